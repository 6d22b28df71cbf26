use super::*;
use crate::engine::LoadRequest;
use crate::engine::kernels::Isa;
use crate::engine::ort::library::{LibraryError, find};
use crate::engine::ort::load::{read_signature, recipe};
use crate::engine::ort::settings::OrtSettings;
use crate::engine::ort::{driver, interface};

#[path = "../../../tests/engine/onnx.rs"]
#[allow(dead_code)] // more than is needed here
mod onnx;
use onnx::{Axis, model, node, tensor};

#[test]
fn constants_fill_every_element_type() {
    for dtype in DType::ALL {
        let mut bytes = vec![0; dtype.size_bytes() * 3];
        fill(dtype, 1.0, &mut bytes);
        let one: &[u8] = match dtype {
            DType::F32 => &1f32.to_le_bytes(),
            DType::F64 => &1f64.to_le_bytes(),
            DType::F16 => &0x3C00u16.to_le_bytes(),
            _ => &1u64.to_le_bytes()[..dtype.size_bytes()],
        };
        assert!(bytes.chunks_exact(one.len()).all(|element| element == one), "{dtype:?}");
    }
    let mut bytes = [0u8; 1];
    fill(DType::I8, -300.0, &mut bytes);
    assert_eq!(bytes[0] as i8, i8::MIN);
    fill(DType::Bool, 7.0, &mut bytes);
    assert_eq!(bytes[0], 1);
}

/// Whether there is a library; CI must have one.
fn has_library() -> bool {
    let Err(LibraryError::NotFound { .. }) = find(None) else { return true };
    let text = "no ONNX Runtime: set ORT_DYLIB_PATH";
    assert!(std::env::var_os("CORELANE_TEST_ORT").is_none_or(|v| v != "1"), "{text}");
    println!("skipped: {text}");
    false
}

/// The way of the bytes where runs are CUDA graphs: the library computes on the processor, and what would be
/// on a GPU is memory that it gives of the host, to which a made-up driver copies.
#[test]
fn runs_on_fixed_tensors_have_each_their_own_bytes() {
    let Some(driver) = driver::tests::made_up() else { return };
    if !has_library() {
        return;
    }
    let rows = [Axis::Open("batch"), Axis::Len(3)];
    let bytes = model(
        &[node("Mul", &["x", "scale"], "y")],
        &[tensor("x", &rows), tensor("scale", &rows)],
        &[tensor("y", &rows)],
    );
    let sizes = [1, 2, 4];
    let request = LoadRequest {
        bytes: &bytes,
        batch_sizes: &sizes,
        bind_axes: &[],
        bind_inputs: &[("scale".into(), 2.5)],
        arena_bytes_max: usize::MAX,
        isa: Isa::detect(),
    };
    let recipe = recipe(&request, &OrtSettings::default()).unwrap();
    let interface = interface::read(&bytes, &[], request.bind_inputs).unwrap();
    let mut session = recipe.session(None).unwrap();
    let signature = read_signature(&mut session, &interface).unwrap();
    let memory = Memory::on_host(&session).unwrap();
    let place = Some(Place { memory, copies: Rc::new(driver.copies(0).unwrap()) });
    let on = Memories { device: true, pinned: None, place };
    let mut instance = OrtInstance::with(session, on, &interface, &signature, &sizes).unwrap();
    let captured = |instance: &OrtInstance| {
        let plans = instance.plans.iter().map(|p| p.fixed.as_ref().unwrap().captured_here());
        plans.collect::<Vec<_>>()
    };
    assert_eq!(captured(&instance), [true; 3], "before the first request");

    let value = |turn: usize, plan: usize, n: usize| (turn * 100 + plan * 20 + n) as f32;
    let answers = |instance: &mut OrtInstance, turn: usize| {
        // All are written before the first runs: none has the bytes of another.
        for (plan, size) in sizes.iter().enumerate() {
            let row = instance.input_mut(PlanIndex(plan), 0);
            for (n, bytes) in row.chunks_exact_mut(4).enumerate() {
                bytes.copy_from_slice(&value(turn, plan, n).to_le_bytes());
            }
            assert_eq!(row.len(), size * 12);
        }
        for plan in [1, 2, 0] {
            instance.infer(PlanIndex(plan)).unwrap();
        }
        for (plan, size) in sizes.iter().enumerate() {
            let output = instance.output(PlanIndex(plan), 0);
            let got = output.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            let wanted = (0..size * 3).map(|n| 2.5 * value(turn, plan, n));
            assert!(got.eq(wanted), "turn {turn}, plan {plan}: {output:?}");
        }
    };
    answers(&mut instance, 1);
    answers(&mut instance, 2);
    // The library keeps graphs for the thread that captured them.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(captured(&instance), [false; 3]);
            answers(&mut instance, 3);
            assert_eq!(captured(&instance), [true; 3]);
            answers(&mut instance, 4);
        });
    });
}
