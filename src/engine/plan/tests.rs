use super::*;
use crate::engine::PlanIndex;
use std::path::PathBuf;

pub(super) fn shared() -> Option<PathBuf> {
    let dir = std::env::var_os("CORELANE_SHARED_MODELS")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/models"));
    if dir.is_dir() {
        return Some(dir);
    }
    println!("skipped: no ../shared/models");
    None
}

#[test]
#[ignore = "prints the graphs, to look at"]
fn dump() {
    let Some(dir) = shared() else { return };
    let only = std::env::var("MODEL").unwrap_or_default();
    let batch: usize = std::env::var("BATCH").ok().and_then(|b| b.parse().ok()).unwrap_or(1);
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        if path.extension().is_none_or(|e| e != "onnx") || !(only.is_empty() || only == name) {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let parsed = crate::engine::tract::front::parse(&bytes, &[], &[]).unwrap();
        let t = std::time::Instant::now();
        let mut graph = import::import(&parsed.typed(batch).unwrap()).unwrap();
        let t1 = t.elapsed();
        let before = graph.nodes.len();
        simplify::simplify(&mut graph);
        println!(
            "=== {name}: {before} -> {} import {t1:?} simplify {:?}",
            graph.nodes.len(),
            t.elapsed() - t1
        );
        for node in &graph.nodes {
            let ins: Vec<_> =
                node.inputs.iter().map(|&i| format!("{i}:{:?}", graph.values[i].shape)).collect();
            let outs: Vec<_> =
                node.outputs.iter().map(|&i| format!("{i}:{:?}", graph.values[i].shape)).collect();
            let op = match &node.op {
                graph::Op::Conv(c) => format!(
                    "Conv k{:?} s{:?} g{} b{:?} a{:?} act {:?} res {} scale {} bias {}",
                    c.kernel,
                    c.stride,
                    c.groups,
                    c.before,
                    c.after,
                    c.epilogue.act,
                    c.epilogue.residual,
                    c.epilogue.scale.is_some(),
                    c.epilogue.bias.is_some()
                ),
                graph::Op::Gemm(c) => format!(
                    "Gemm {}x{} t{} act {:?} res {} scale {} bias {}",
                    c.k,
                    c.n,
                    c.transposed,
                    c.epilogue.act,
                    c.epilogue.residual,
                    c.epilogue.scale.is_some(),
                    c.epilogue.bias.is_some()
                ),
                graph::Op::LayerNorm { axis, eps, .. } => {
                    format!("LayerNorm axis {axis} eps {eps}")
                }
                graph::Op::Embed { width, first, .. } => format!("Embed {width} first {first}"),
                graph::Op::Recurrent(r) => format!(
                    "Recurrent lstm {} hidden {} rev {} bias {}",
                    r.lstm,
                    r.hidden,
                    r.reverse,
                    r.bias.len()
                ),
                op => format!("{op:?}").chars().take(200).collect(),
            };
            println!("  {op} [{}] {ins:?} -> {outs:?}", node.operator);
        }
    }
}

const MODELS: [(&str, f32); 13] = [
    ("mlp", 1e-5),
    ("ad_autoencoder", 1e-5),
    ("dscnn_kws", 1e-5),
    ("resnet8", 1e-5),
    ("vww", 2e-5),
    ("lstm", 1e-5),
    ("transformer", 1e-5),
    ("magika", 1e-5),
    ("dscnn_kws_int8", 1e-5),
    ("mobilenet_v3_small", 1e-5),
    ("mobilenet_v2", 1e-5),
    ("resnet18", 1e-5),
    ("mobilenet_v2_int8", 10.0),
];

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

fn loaded(name: &str, batch_sizes: &[usize]) -> Option<PlanEngine> {
    let bytes = std::fs::read(shared()?.join(format!("{name}.onnx"))).unwrap();
    let request = LoadRequest {
        bytes: &bytes,
        batch_sizes,
        bind_axes: &[],
        bind_inputs: &[],
        arena_bytes_max: 1 << 30,
    };
    let t = std::time::Instant::now();
    let engine = load_with(&request, Isa::detect()).unwrap();
    println!("{name}: loaded in {:?}", t.elapsed());
    Some(engine)
}

#[test]
fn goldens() {
    let Some(dir) = shared() else { return };
    let only = std::env::var("MODEL").unwrap_or_default();
    let mut failed = vec![];
    for (name, tolerance) in MODELS {
        if !only.is_empty() && only != name {
            continue;
        }
        let engine = loaded(name, &[1, 4]).unwrap();
        let mut instance = engine.instance().unwrap();
        for (plan, sub) in [(0, ""), (1, "batch4")] {
            let dir = dir.join("golden").join(name).join(sub);
            let Ok(input) = std::fs::read(dir.join("input_0.npy")) else { continue };
            let input = crate::model::npy::read(&input).unwrap();
            let output =
                crate::model::npy::read(&std::fs::read(dir.join("output_0.npy")).unwrap()).unwrap();
            instance.input_mut(PlanIndex(plan), 0).copy_from_slice(&input.data);
            instance.infer(PlanIndex(plan)).unwrap();
            let d = distance(&floats(instance.output(PlanIndex(plan), 0)), &floats(&output.data));
            let mut direct = vec![0u8; output.data.len()];
            instance.infer_direct(PlanIndex(plan), &[&input.data], &mut [&mut direct]).unwrap();
            assert_eq!(direct, instance.output(PlanIndex(plan), 0));
            let memory = &engine.describe().memory[plan];
            let ratio =
                memory.arena_bytes.unwrap() as f64 / memory.arena_lower_bound_bytes.unwrap() as f64;
            println!("{name} {sub}: {d:e}, arena {} x{ratio:.3}", memory.arena_bytes.unwrap());
            if d > tolerance {
                failed.push((name, sub, d));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
#[ignore = "prints step times"]
fn profile() {
    let name = std::env::var("MODEL").unwrap();
    let batch: usize = std::env::var("BATCH").ok().and_then(|b| b.parse().ok()).unwrap_or(1);
    let engine = loaded(&name, &[batch]).unwrap();
    let mut instance = exec::PlanInstance::new(engine.program.clone());
    let mut best: Vec<u64> = vec![];
    for _ in 0..200 {
        let times = instance.profile(PlanIndex(0));
        if best.is_empty() {
            best = times;
        } else {
            best.iter_mut().zip(times).for_each(|(b, t)| *b = t.min(*b));
        }
    }
    let lines = step_lines(&engine.program.plans[0]);
    for ((line, t), step) in lines[1..].iter().zip(&best).zip(&engine.program.plans[0].steps) {
        println!("{t:>9} ns {:>7.2} GF/s {line}", step.flops as f64 / *t as f64);
    }
    println!("total {} ns", best.iter().sum::<u64>());
}
