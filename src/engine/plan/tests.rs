use super::graph::{Graph, Op, Unary, ValueId};
use super::*;
use crate::engine::{PlanIndex, kernels::Kernels};
use crate::units::{CoreId, DType};
use proptest::prelude::*;
use std::path::PathBuf;

fn shared() -> Option<PathBuf> {
    let dir = std::env::var_os("CORELANE_SHARED_MODELS")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/models"));
    if dir.is_dir() {
        return Some(dir);
    }
    println!("skipped: no ../shared/models");
    None
}

fn request<'a>(bytes: &'a [u8], batch_sizes: &'a [usize]) -> LoadRequest<'a> {
    LoadRequest {
        bytes,
        batch_sizes,
        bind_axes: &[],
        bind_inputs: &[],
        arena_bytes_max: 1 << 30,
        isa: Isa::detect(),
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// Largest difference over the largest value.
fn distance(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let most = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let far = got.iter().zip(want).fold(0.0f32, |m, (g, w)| {
        let d = (g - w).abs();
        if d.is_nan() { f32::INFINITY } else { m.max(d) }
    });
    far / most
}

/// Pseudo-random input bytes for `count` elements.
fn noise(dtype: DType, count: usize, seed: &mut u32) -> Vec<u8> {
    (0..count)
        .flat_map(|_| {
            *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let word = match dtype {
                DType::I32 => *seed >> 24,
                _ => ((*seed >> 8) as f32 / (1 << 23) as f32 - 1.0).to_bits(),
            };
            word.to_le_bytes()
        })
        .collect()
}

#[test]
fn plan_and_tract_agree_on_noise_at_every_batch_size() {
    let Some(dir) = shared() else { return };
    let models = [
        ("mlp", 1e-5),
        ("ad_autoencoder", 1e-5),
        ("dscnn_kws", 1e-5),
        ("resnet8", 1e-5),
        ("vww", 2e-5),
        ("lstm", 1e-5),
        ("transformer", 1e-5),
        ("magika", 1e-5),
    ];
    let batches = [1, 2, 3, 8];
    let mut seed = 7;
    for (name, tolerance) in models {
        let bytes = std::fs::read(dir.join(format!("{name}.onnx"))).unwrap();
        let plan = compile(&request(&bytes, &batches)).unwrap();
        assert!(plan.describe().allocation_free, "{name} falls back");
        let reference = crate::engine::tract::load(&request(&bytes, &batches)).unwrap();
        let (mut a, mut b) = (plan.instance().unwrap(), reference.instance().unwrap());
        let spec = &plan.signature().inputs[0];
        for (p, batch) in batches.into_iter().enumerate() {
            let input = noise(spec.dtype, spec.row_len() * batch, &mut seed);
            for instance in [&mut a, &mut b] {
                instance.input_mut(PlanIndex(p), 0)[..input.len()].copy_from_slice(&input);
                instance.infer(PlanIndex(p)).unwrap();
            }
            let got = a.output(PlanIndex(p), 0).to_vec();
            let d = distance(&floats(&got), &floats(&b.output(PlanIndex(p), 0)[..got.len()]));
            assert!(d <= tolerance, "{name} at batch {batch}: {d:e}");
            let mut direct = vec![0u8; got.len()];
            a.infer_direct(PlanIndex(p), &[&input], &mut [&mut direct]).unwrap();
            assert_eq!(direct, got, "{name} at batch {batch}, direct");
        }
    }
}

#[test]
fn portable_kernels_give_the_same_answers() {
    let Some(dir) = shared() else { return };
    for name in ["dscnn_kws", "lstm", "transformer", "dscnn_kws_int8"] {
        let bytes = std::fs::read(dir.join(format!("{name}.onnx"))).unwrap();
        let outputs = [Isa::Portable, Isa::detect()].map(|isa| {
            let engine = compile(&LoadRequest { isa, ..request(&bytes, &[2]) }).unwrap();
            assert_eq!(engine.describe().isa.as_deref(), Some(isa.name()));
            let mut instance = engine.instance().unwrap();
            let spec = &engine.signature().inputs[0];
            let input = noise(spec.dtype, spec.row_len() * 2, &mut 3);
            instance.input_mut(PlanIndex(0), 0).copy_from_slice(&input);
            instance.infer(PlanIndex(0)).unwrap();
            floats(instance.output(PlanIndex(0), 0))
        });
        // One step of the quantised grid where a tie is rounded the other way.
        let tolerance = if name.ends_with("int8") { 0.1 } else { 1e-5 };
        let d = distance(&outputs[0], &outputs[1]);
        assert!(d <= tolerance, "{name}: {d:e}");
    }
}

#[test]
fn arenas_stay_near_their_lower_bound() {
    let Some(dir) = shared() else { return };
    for name in ["mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnet8", "vww", "dscnn_kws"] {
        let bytes = std::fs::read(dir.join(format!("{name}.onnx"))).unwrap();
        let engine = compile(&request(&bytes, &[1, 4])).unwrap();
        for memory in engine.describe().memory {
            let (got, least) =
                (memory.arena_bytes.unwrap(), memory.arena_lower_bound_bytes.unwrap());
            assert!(got >= least && got * 100 <= least * 115, "{name}: {got} of at least {least}");
        }
    }
}

#[test]
fn an_arena_over_its_budget_is_refused_with_both_numbers() {
    let Some(dir) = shared() else { return };
    let bytes = std::fs::read(dir.join("resnet8.onnx")).unwrap();
    let engine = compile(&request(&bytes, &[1])).unwrap();
    let needed = engine.describe().memory[0].arena_bytes.unwrap();
    let tight = LoadRequest { arena_bytes_max: 1000, ..request(&bytes, &[1]) };
    let error = compile(&tight).err().unwrap();
    assert_eq!(error.kind(), EngineErrorKind::Limit);
    let text = error.to_string();
    assert!(text.contains("1000") && text.contains(&needed.to_string()), "{text}");
}

#[test]
fn rows_of_a_batch_have_the_bits_that_they_have_alone() {
    let Some(dir) = shared() else { return };
    let mut in_turns = 0;
    for name in [
        "mlp",
        "dscnn_kws",
        "dscnn_kws_int8",
        "resnet8",
        "vww",
        "transformer",
        "mobilenet_v3_small",
        "lstm",
    ] {
        let bytes = std::fs::read(dir.join(format!("{name}.onnx"))).unwrap();
        let plan = compile(&request(&bytes, &[1, 6])).unwrap();
        in_turns += usize::from(plan.program.plans[1].segments.iter().any(|s| s.turns > 1));
        let mut instance = plan.instance().unwrap();
        let spec = &plan.signature().inputs[0];
        let input = noise(spec.dtype, spec.row_len() * 6, &mut 5);
        instance.input_mut(PlanIndex(1), 0).copy_from_slice(&input);
        instance.infer(PlanIndex(1)).unwrap();
        let together = instance.output(PlanIndex(1), 0).to_vec();
        let row_bytes = together.len() / 6;
        for (row, got) in together.chunks_exact(row_bytes).enumerate() {
            let from = &input[row * spec.row_bytes()..][..spec.row_bytes()];
            instance.input_mut(PlanIndex(0), 0).copy_from_slice(from);
            instance.infer(PlanIndex(0)).unwrap();
            assert_eq!(instance.output(PlanIndex(0), 0), got, "{name}, row {row}");
        }
    }
    assert!(in_turns > 0, "no plan runs in turns, so nothing was tested");
}

#[test]
fn an_instance_takes_the_loops_of_the_core_that_it_settles_on() {
    let root = std::env::temp_dir().join(format!("corelane-settle-{}", std::process::id()));
    for (core, midr) in [(0, "0x00000000412fd050"), (1, "0x00000000414fd0b0")] {
        let dir = root.join(format!("sys/devices/system/cpu/cpu{core}/regs/identification"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("midr_el1"), midr).unwrap();
    }
    let bytes =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/models/mlp/model.onnx")).unwrap();
    let engine = compile(&request(&bytes, &[8])).unwrap();
    let mut instance = engine.instance_below(&root).unwrap();
    let x = noise(DType::F32, instance.input_mut(PlanIndex(0), 0).len() / 4, &mut 1);
    instance.input_mut(PlanIndex(0), 0).copy_from_slice(&x);
    let mut settled = |core| {
        instance.settle_on(CoreId(core));
        instance.infer(PlanIndex(0)).unwrap();
        (instance.in_order(), instance.output(PlanIndex(0), 0).to_vec())
    };
    let [little, big, unknown] = [0, 1, 7].map(&mut settled);
    assert!(little.0 && !big.0 && !unknown.0);
    assert!(little.1 == big.1 && big.1 == unknown.1, "other bits");
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn an_operator_without_a_kernel_runs_through_tract() {
    use tract_onnx::prelude::*;
    let mut model = TypedModel::default();
    let x = model.add_source("x", f32::fact([2, 3])).unwrap();
    let y = model.wire_node("y", tract_onnx::tract_core::ops::math::cos(), &[x]).unwrap();
    model.select_output_outlets(&y).unwrap();
    let mut graph = import::import(&model).unwrap();
    simplify::simplify(&mut graph);
    let mut shared = lower::Shared::new(Kernels::best());
    let plan = lower::lower(&graph, 2, &mut shared).unwrap();
    assert!(plan.falls_back());
    assert_eq!(plan.steps[0].kernel.name(), "fallback:tract");
    let program = exec::Program {
        plans: vec![plan],
        kernels: shared.kernels,
        row_bytes: (vec![12], vec![12]),
        weight_bytes: 0,
        precision: vec![],
    };
    let mut instance = exec::PlanInstance::new(Arc::new(program)).unwrap();
    let input: Vec<f32> = vec![0.0, 0.5, 1.0, -1.0, 2.0, 3.0];
    for _ in 0..2 {
        let bytes: Vec<u8> = input.iter().flat_map(|x| x.to_le_bytes()).collect();
        Instance::input_mut(&mut instance, PlanIndex(0), 0).copy_from_slice(&bytes);
        instance.infer(PlanIndex(0)).unwrap();
        let got = floats(instance.output(PlanIndex(0), 0));
        for (x, y) in input.iter().zip(&got) {
            assert!((x.cos() - y).abs() < 1e-6, "cos({x}) = {y}");
        }
    }
}

/// `x` through `nodes`, each from the value before.
fn chain(nodes: Vec<(Op, Vec<usize>)>, count: usize) -> Graph {
    let mut graph = Graph::default();
    let x = graph.value("x", DType::F32, vec![2, count]);
    graph.inputs.push(x);
    let mut last = x;
    for (op, mut inputs) in nodes {
        let out = graph.value("y", DType::F32, vec![2, count]);
        if inputs.is_empty() {
            inputs = vec![last];
        }
        graph.nodes.push(graph::Node {
            op,
            inputs,
            outputs: vec![out],
            name: format!("n{out}"),
            operator: "test".into(),
        });
        last = out;
    }
    graph.outputs.push(last);
    graph
}

#[test]
fn a_spelled_out_gelu_is_one_function() {
    use super::graph::Binary;
    // x * (1 + erf(x / sqrt 2)) * 0.5, in an order of its own.
    let nodes = vec![
        (Op::Unary(Unary::Affine(std::f32::consts::FRAC_1_SQRT_2, 0.0)), vec![]),
        (Op::Unary(Unary::Erf), vec![]),
        (Op::Unary(Unary::Affine(0.5, 0.5)), vec![]),
        (Op::Binary(Binary::Mul), vec![3, 0]),
    ];
    let mut graph = chain(nodes, 5);
    simplify::simplify(&mut graph);
    assert_eq!(graph.nodes.len(), 1);
    assert!(matches!(graph.nodes[0].op, Op::Unary(Unary::GeluErf)), "{:?}", graph.nodes[0].op);
}

/// A bound far out, or a small addend that a logarithm needs, is no part of a function.
#[test]
fn what_is_nearly_a_function_is_not_taken_for_it() {
    use super::graph::Binary;
    let silu = [(Op::Unary(Unary::Sigmoid), vec![]), (Op::Binary(Binary::Mul), vec![1, 0])];
    for (more, whole) in [
        (Unary::Clip(-10.0, 60.0), &silu[..]),
        (Unary::Clip(-1.0, 1e7), &silu),
        (Unary::Affine(1.0, 1e-7), &silu[..1]),
        (Unary::Affine(1.0, 1e-9), &silu[..1]),
        (Unary::Affine(1.0 + 1e-5, 0.0), &silu),
    ] {
        let mut graph = chain([whole, &[(Op::Unary(more), vec![])]].concat(), 5);
        functions::recognise(&mut graph);
        let ops: Vec<_> = graph.nodes.iter().map(|n| &n.op).collect();
        assert!(matches!(ops[..], [.., Op::Unary(last)] if *last == more), "{more:?}: {ops:?}");
    }
    let mut known = chain(silu.to_vec(), 5);
    functions::recognise(&mut known);
    assert!(
        matches!(known.nodes[..], [graph::Node { op: Op::Unary(Unary::Silu), .. }]),
        "{:?}",
        known.nodes
    );
}

#[test]
fn roundings_to_a_grid_take_in_the_clips_beside_them() {
    let rounds = |zero, lo, hi| Unary::FakeQuant { scale: 0.25, zero, lo, hi };
    let clip = Unary::Clip(-0.3, 6.1);
    for functions in [
        vec![Unary::Relu, rounds(10, -128, 127)],
        vec![clip, rounds(10, -128, 127)],
        vec![rounds(-20, -128, 127), Unary::Relu, rounds(-20, -128, 127)],
        vec![rounds(0, 0, 255), rounds(0, 7, 300)],
    ] {
        let nodes = functions.iter().map(|&f| (Op::Unary(f), vec![])).collect();
        let mut graph = chain(nodes, 4);
        simplify::simplify(&mut graph);
        let [Op::Unary(one)] = graph.nodes.iter().map(|n| n.op.clone()).collect::<Vec<_>>()[..]
        else {
            panic!("{functions:?} became {:?}", graph.nodes)
        };
        for i in -2000..2000 {
            let x = f64::from(i) * 0.05;
            let want = functions.iter().fold(x, |x, &f| functions::eval(f, x));
            assert_eq!(functions::eval(one, x), want, "{functions:?} as {one:?} at {x}");
        }
    }
    // Whose bounds the clip moves off the grid, or which has no 0, stays two.
    for functions in [[rounds(10, -128, 127), clip], [rounds(0, 1, 255), Unary::Relu]] {
        let mut graph = chain(functions.map(|f| (Op::Unary(f), vec![])).to_vec(), 4);
        simplify::simplify(&mut graph);
        assert_eq!(graph.nodes.len(), 2, "{functions:?}");
    }
}

#[test]
fn quantised_graphs_round_in_the_steps_that_make_what_they_round() {
    let Some(dir) = shared() else { return };
    let bytes = std::fs::read(dir.join("dscnn_kws_int8.onnx")).unwrap();
    let engine = compile(&LoadRequest { isa: Isa::Portable, ..request(&bytes, &[1]) }).unwrap();
    let steps = &engine.program.plans[0].steps;
    let rounding = |kind: &str| {
        let of_kind = |s: &&step::Step| s.kernel.name().starts_with(kind);
        steps.iter().filter(of_kind).filter(|s| s.kernel.grid().is_some()).count()
    };
    assert_eq!((rounding("conv:"), rounding("matmul:")), (9, 1));
    let lines = report::lines(&engine.program.plans[0]);
    let told =
        lines.iter().filter(|l| l.contains("conv:") && l.contains(" float32->grid(")).count();
    assert_eq!(told, 9, "{lines:?}");
}

#[test]
fn a_quantised_network_is_computed_in_codes_after_its_first_convolution() {
    let Some(dir) = shared() else { return };
    let bytes = std::fs::read(dir.join("dscnn_kws_int8.onnx")).unwrap();
    let engine = compile(&request(&bytes, &[1, 4])).unwrap();
    if !engine.program.kernels.prefers_codes() {
        println!("skipped: floats are as fast here");
        return;
    }
    for plan in &engine.program.plans {
        let kinds: Vec<String> = plan.steps.iter().map(|s| s.kernel.kind()).collect();
        let count = |kind: &str| kinds.iter().filter(|k| *k == kind).count();
        // The last product is pointwise over one pixel.
        let counts = ["codes:depthwise", "codes:pointwise"].map(count);
        assert_eq!(counts, [4, 5], "{kinds:?}");
        let floats = kinds.iter().filter(|k| k.starts_with("conv:") || k.starts_with("matmul"));
        assert!(floats.eq(["conv:direct+grid"]), "all but the first: {kinds:?}");
        // What the first one made, and what was averaged.
        assert_eq!(count("codes:encode"), 2, "{kinds:?}");
    }
}

/// Convolutions of all kinds, a sum and a product between roundings to 8 bits; `batch` images of 3 x 9 x 7.
fn quantised(batch: usize, seed: u32) -> Graph {
    use super::graph::{Binary, Conv, Epilogue, Gemm, Node, ReduceKind};
    use tract_onnx::prelude::Tensor;
    let mut graph = Graph::default();
    let mut seed = seed;
    let mut draw = move |most: i32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as i32 % (2 * most + 1) - most
    };
    let rounds = |zero, lo| Unary::FakeQuant { scale: 0.05, zero, lo, hi: 255 };
    let x = graph.value("x", DType::F32, vec![batch, 3, 9, 7]);
    graph.inputs.push(x);
    let add = |graph: &mut Graph, op: Op, inputs: Vec<ValueId>, shape: Vec<usize>| {
        let name = format!("n{}", graph.values.len());
        let out = graph.value(&name, DType::F32, shape);
        let operator = "test".to_string();
        graph.nodes.push(Node { op, inputs, outputs: vec![out], name, operator });
        out
    };
    let mut weights = |shape: &[usize]| {
        let len = shape.iter().product();
        let each = len / shape[0];
        let weights: Vec<f32> =
            (0..len).map(|i| draw(127) as f32 * (0.002 + (i / each) as f32 * 1e-4)).collect();
        let bias: Vec<f32> = (0..shape[0]).map(|_| draw(1000) as f32 * 1e-3).collect();
        (Arc::new(Tensor::from_shape(shape, &weights).unwrap()), bias)
    };
    let mut conv = |out: usize, cin_g: usize, k: usize, groups: usize, act| {
        let (weight, bias) = weights(&[out, cin_g, k, k]);
        Op::Conv(Conv {
            weight,
            kernel: [k; 2],
            stride: [1; 2],
            dilation: [1; 2],
            before: [k / 2; 2],
            after: [k / 2; 2],
            groups,
            out_channels: out,
            epilogue: Epilogue { bias: Some(bias), act: Some(act), ..Epilogue::default() },
        })
    };
    let image = vec![batch, 20, 9, 7];
    let v = add(&mut graph, Op::Unary(rounds(128, 0)), vec![x], vec![batch, 3, 9, 7]);
    let v = add(&mut graph, conv(20, 3, 3, 1, rounds(100, 0)), vec![v], image.clone());
    let before = add(&mut graph, conv(20, 1, 3, 20, rounds(0, 0)), vec![v], image.clone());
    let v = add(&mut graph, conv(20, 20, 1, 1, rounds(128, 0)), vec![before], image.clone());
    let v = add(&mut graph, Op::Binary(Binary::Add), vec![v, before], image.clone());
    let v = add(&mut graph, Op::Unary(rounds(117, 20)), vec![v], image);
    let mean = Op::Reduce { kind: ReduceKind::Sum, axes: vec![2, 3], scale: 1.0 / 63.0 };
    let v = add(&mut graph, mean, vec![v], vec![batch, 20, 1, 1]);
    let v = add(&mut graph, Op::Unary(rounds(128, 0)), vec![v], vec![batch, 20, 1, 1]);
    let v = add(&mut graph, Op::Reshape, vec![v], vec![batch, 20]);
    let (weight, bias) = weights(&[11, 20]);
    let epilogue = Epilogue { bias: Some(bias), act: Some(rounds(90, 0)), ..Epilogue::default() };
    let gemm = Op::Gemm(Gemm { weight, transposed: true, k: 20, n: 11, epilogue });
    let v = add(&mut graph, gemm, vec![v], vec![batch, 11]);
    graph.outputs.push(v);
    graph
}

#[test]
fn codes_give_the_answers_of_floats() {
    let kernels = Kernels::best();
    if !kernels.prefers_codes() {
        println!("skipped: floats are as fast here");
        return;
    }
    for (batch, seed) in [(1, 1), (2, 2), (5, 3), (8, 4)] {
        let input = noise(DType::F32, batch * 3 * 9 * 7, &mut seed.clone());
        let [floats_of, codes_of] = [false, true].map(|coded| {
            let mut graph = quantised(batch, seed);
            let mut shared = lower::Shared::new(kernels);
            if coded {
                codes::encode(&mut graph, &mut shared);
            }
            let plan = lower::lower(&graph, batch, &mut shared).unwrap();
            let count =
                |kind| plan.steps.iter().filter(|s| s.kernel.kind().starts_with(kind)).count();
            let of_codes = ["codes:depthwise", "codes:pointwise", "codes:add"].map(count);
            assert_eq!(of_codes, if coded { [1, 2, 1] } else { [0; 3] });
            let program = exec::Program {
                plans: vec![plan],
                kernels,
                row_bytes: (vec![3 * 9 * 7 * 4], vec![11 * 4]),
                weight_bytes: 0,
                precision: vec![],
            };
            let mut instance = exec::PlanInstance::new(Arc::new(program)).unwrap();
            Instance::input_mut(&mut instance, PlanIndex(0), 0).copy_from_slice(&input);
            instance.infer(PlanIndex(0)).unwrap();
            floats(instance.output(PlanIndex(0), 0))
        });
        let spread = floats_of.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        assert!(spread > 0.5, "{floats_of:?}");
        // A tie that is rounded the other way is a step at most by the end.
        for (a, b) in floats_of.iter().zip(&codes_of) {
            assert!((a - b).abs() < 0.051, "batch {batch}: {a} in floats, {b} in codes");
        }
    }
}

#[test]
fn unary_steps_work_in_place() {
    let nodes = vec![
        (Op::Unary(Unary::Exp), vec![]),
        (Op::Unary(Unary::Sqrt), vec![]),
        (Op::Unary(Unary::Neg), vec![]),
    ];
    let graph = chain(nodes, 100);
    let plan = lower::lower(&graph, 2, &mut lower::Shared::new(Kernels::best())).unwrap();
    assert_eq!(plan.arena_words, 0, "all of it can happen in the output");
    assert!(plan.steps[1..].iter().all(|s| s.sources.is_empty()));
}

#[test]
fn what_works_in_place_is_not_cut_from_what_it_works_on() {
    let Some(dir) = shared() else { return };
    let bytes = std::fs::read(dir.join("transformer.onnx")).unwrap();
    let engine = compile(&request(&bytes, &[1, 8])).unwrap();
    let plan = &engine.program.plans[1];
    let in_place = |i: usize| plan.steps[i].sources.is_empty();
    assert!((0..plan.steps.len()).any(in_place), "softmax works in place");
    // Scores of all rows would pass through the cache between two segments.
    for segment in plan.segments.iter().filter(|s| s.turns > 1) {
        assert!(!in_place(segment.steps.start), "{:?}", plan.segments);
    }
}

#[test]
fn the_error_function_is_exact_enough_to_tell_functions_apart() {
    // Reference values to 15 digits.
    for (x, want) in [
        (0.0, 0.0),
        (0.5, 0.520_499_877_813_046_5),
        (1.0, 0.842_700_792_949_714_9),
        (2.5, 0.999_593_047_982_555),
        (3.0, 0.999_977_909_503_001_4),
        (-1.0, -0.842_700_792_949_714_9),
    ] {
        assert!((functions::erf(x) - want).abs() < 1e-13, "erf({x}) = {}", functions::erf(x));
    }
}

proptest! {
    /// A reshape that claims to keep the memory does keep every element's place.
    #[test]
    fn reshapes_without_copies_keep_every_element(
        dims in proptest::collection::vec(1usize..4, 1..5),
        keys in proptest::collection::vec(0u32..1000, 5),
        joined in 0usize..4,
    ) {
        let mut order: Vec<usize> = (0..dims.len()).collect();
        order.sort_by_key(|&a| keys[a]);
        // Join two neighbouring axes, and add an axis of length 1.
        let at = joined % dims.len();
        let mut to = dims.clone();
        if at + 1 < to.len() {
            let next = to.remove(at + 1);
            to[at] *= next;
        }
        to.insert(at, 1);
        if let Some(renamed) = order::reshaped(&dims, &order, &to) {
            let mut sorted = renamed.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..to.len()).collect::<Vec<_>>());
            let (s, t) = (order::strides(&dims, &order), order::strides(&to, &renamed));
            let place = |shape: &[usize], strides: &[usize], mut i: usize| {
                let mut offset = 0;
                for (axis, &len) in shape.iter().enumerate().rev() {
                    offset += i % len * strides[axis];
                    i /= len;
                }
                offset
            };
            for i in 0..dims.iter().product() {
                prop_assert_eq!(place(&dims, &s, i), place(&to, &t, i));
            }
        }
    }

    /// A permuting copy puts every element where its strides say.
    #[test]
    fn copies_move_every_element(
        dims in proptest::collection::vec(1usize..6, 1..5),
        keys in proptest::collection::vec(0u32..1000, 5),
    ) {
        let mut order: Vec<usize> = (0..dims.len()).collect();
        order.sort_by_key(|&a| keys[a]);
        let len: usize = dims.iter().product();
        let from: Vec<f32> = (0..len).map(|i| i as f32).collect();
        let mut to = vec![-1.0; len];
        let copy = order::permute(&dims, &order);
        copy.run(&from, &mut to);
        let strides = order::strides(&dims, &order);
        for i in 0..len {
            let (mut rest, mut offset) = (i, 0);
            for (axis, &d) in dims.iter().enumerate().rev() {
                offset += rest % d * strides[axis];
                rest /= d;
            }
            prop_assert_eq!(to[offset], i as f32);
        }
        if let Some((batch, rows, cols)) = copy.transposed() {
            let mut again = vec![-1.0; len];
            crate::engine::kernels::transpose(&Kernels::best(), batch, rows, cols, &from, &mut again);
            prop_assert_eq!(again, to);
        }
    }
}

#[test]
fn negative_indices_of_a_table_count_from_its_end() {
    let table = [1.0, 2.0, 3.0, f32::NAN];
    let look_up = |wraps| {
        let index = [-1, -3, 0, 2, 3, -4, i64::MIN, i64::MAX];
        let mut found = [0.0; 8];
        super::ops::embed(&table, 1, (0, wraps), index.into_iter(), &mut found);
        found.map(|x| if x.is_nan() { 0 } else { x as i32 })
    };
    assert_eq!(look_up(true), [3, 1, 1, 3, 0, 0, 0, 0]);
    assert_eq!(look_up(false), [0, 0, 1, 3, 0, 0, 0, 0]);
}
