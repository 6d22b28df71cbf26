use super::*;
use crate::units::DType;

fn tensor(name: &str, dtype: DType, row_shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, row_shape: row_shape.to_vec() }
}

fn signature() -> Signature {
    Signature {
        inputs: vec![tensor("x", DType::U8, &[3])],
        outputs: vec![tensor("long", DType::U8, &[7]), tensor("short", DType::U8, &[2])],
        batched: true,
    }
}

fn engine() -> FakeEngine {
    FakeEngine::new(signature(), &[1, 4], FakeCompute::default()).unwrap()
}

#[test]
fn rows_come_back_as_themselves() {
    let mut instance = engine().instance().unwrap();
    let plan = PlanIndex(1);
    instance.input_mut(plan, 0).copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    instance.infer(plan).unwrap();
    assert_eq!(&instance.output(plan, 0)[7..14], &[4, 5, 6, 4, 5, 6, 4]);
    assert_eq!(instance.output(plan, 1), &[1, 2, 4, 5, 7, 8, 10, 11]);
    let (mut long, mut short) = ([0; 7], [0; 2]);
    instance.infer_direct(PlanIndex(0), &[&[9, 8, 7]], &mut [&mut long, &mut short]).unwrap();
    assert_eq!((long, short), ([9, 8, 7, 9, 8, 7, 9], [9, 8]));
}

#[test]
fn staging_is_aligned() {
    let mut instance = engine().instance().unwrap();
    for plan in [PlanIndex(0), PlanIndex(1)] {
        assert_eq!(instance.input_mut(plan, 0).as_ptr() as usize % BUFFER_ALIGN_BYTES, 0);
        assert_eq!(instance.output(plan, 1).as_ptr() as usize % BUFFER_ALIGN_BYTES, 0);
    }
}

#[test]
fn a_marked_row_fails_its_batch_once() {
    let fault = FakeFault { error_marker: Some(0xEE), panic_marker: Some(0xDD) };
    let mut instance = engine().with_fault(fault).instance().unwrap();
    let plan = PlanIndex(1);
    instance.input_mut(plan, 0)[9] = 0xEE;
    assert_eq!(instance.infer(plan), Err(RunError::Injected));
    // The next batch leaves that row as padding.
    instance.input_mut(plan, 0)[0] = 1;
    assert_eq!(instance.infer(plan), Ok(()));
    instance.input_mut(plan, 0)[3] = 0xDD;
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| instance.infer(plan)));
    assert!(caught.is_err());
    assert_eq!(instance.infer(plan), Ok(()));
    let (mut long, mut short) = ([0; 7], [0; 2]);
    let direct =
        instance.infer_direct(PlanIndex(0), &[&[0xEE, 0, 0]], &mut [&mut long, &mut short]);
    assert_eq!(direct, Err(RunError::Injected));
}

#[test]
fn compute_takes_at_least_its_time() {
    let compute =
        FakeCompute { per_run: Duration::from_micros(300), per_row: Duration::from_micros(100) };
    let mut instance = FakeEngine::new(signature(), &[1, 4], compute).unwrap().instance().unwrap();
    let before = clock::now();
    instance.infer(PlanIndex(1)).unwrap();
    assert!(clock::now().since(before) >= Nanos(700_000));
}

#[test]
fn senseless_settings_are_refused() {
    let kind = |s: Signature, sizes: &[usize]| {
        FakeEngine::new(s, sizes, FakeCompute::default()).map(|_| ()).unwrap_err().kind()
    };
    assert_eq!(kind(signature(), &[]), EngineErrorKind::Batch);
    assert_eq!(kind(signature(), &[4, 1]), EngineErrorKind::Batch);
    assert_eq!(kind(signature(), &[0]), EngineErrorKind::Batch);
    assert_eq!(kind(Signature { batched: false, ..signature() }, &[1, 2]), EngineErrorKind::Batch);
    assert_eq!(kind(Signature { outputs: vec![], ..signature() }, &[1]), EngineErrorKind::Limit);
    let empty = Signature { inputs: vec![tensor("x", DType::F32, &[0])], ..signature() };
    assert_eq!(kind(empty, &[1]), EngineErrorKind::Limit);
}

#[test]
fn work_is_done_in_earnest_and_ends_near_one() {
    let begin: f32 = (0..32).sum::<i32>() as f32;
    assert_eq!(grind(0), begin);
    // x -> 0.999 x + 0.001 brings every lane nearer to 1.
    let (some, more, most) = (grind(100), grind(1000), grind(100_000));
    assert!(begin > some && some > more && more > most, "{some} {more} {most}");
    assert!((most - 32.0).abs() < 0.01, "{most}");
}

#[test]
fn an_engine_that_works_still_answers_with_its_rows() {
    let signature = Signature {
        inputs: vec![tensor("x", DType::U8, &[4])],
        outputs: vec![tensor("y", DType::U8, &[4])],
        batched: true,
    };
    let engine = FakeEngine::new(signature, &[1, 2], FakeCompute::default())
        .unwrap()
        .with_work(FakeWork { rounds_per_run: 10, rounds_per_row: 5 });
    let mut instance = engine.instance().unwrap();
    instance.input_mut(PlanIndex(1), 0).copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    instance.infer(PlanIndex(1)).unwrap();
    assert_eq!(instance.output(PlanIndex(1), 0), [1, 2, 3, 4, 5, 6, 7, 8]);
}
