//! The program from outside: what it prints, what it refuses, and with which exit code.

mod bad;
mod board;
mod faults;
mod floor;
mod lab;
mod logs;
mod reload;
mod serial;
mod serve;
mod story;
mod support;
mod sweeps;

use corelane::model::npy;
use corelane::units::DType;
use serde_json::Value;
use support::{Scratch, model, root, run};

/// The largest difference of an output from a golden file, over the largest golden value.
pub fn difference(output: &Value, golden: &str) -> f64 {
    let golden = npy::read(&std::fs::read(golden).unwrap()).unwrap();
    let wanted: Vec<f64> = golden
        .data
        .chunks_exact(4)
        .map(|c| f64::from(f32::from_le_bytes(c.try_into().unwrap())))
        .collect();
    let got: Vec<f64> =
        output["data"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    assert_eq!(got.len(), wanted.len());
    let shape: Vec<u64> =
        output["shape"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
    assert_eq!(shape, golden.shape.iter().map(|&n| n as u64).collect::<Vec<_>>());
    let largest = wanted.iter().fold(0f64, |m, v| m.max(v.abs()));
    got.iter().zip(&wanted).fold(0f64, |m, (a, b)| m.max((a - b).abs())) / largest
}

/// The fields that every answered request has.
#[track_caller]
pub fn check_answer(answer: &Value, name: &str, rows: u64) {
    assert_eq!(answer["model"], name);
    assert_eq!(answer["rows"], rows);
    let latency = answer["latency_ns"].as_u64().expect("latency_ns");
    let receipt = &answer["receipt"];
    let ns = |key: &str| receipt[key].as_u64().unwrap_or_else(|| panic!("{key} in {receipt}"));
    let stages =
        ns("queue_ns") + ns("compute_input_ns") + ns("compute_infer_ns") + ns("compute_output_ns");
    assert!(stages <= latency, "{stages} ns of stages within {latency} ns");
    assert!(ns("batch_size") >= rows);
    assert_eq!(receipt["worker"], 0);
    let reason = receipt["close_reason"].as_str().expect("close_reason");
    let known = ["full", "preferred", "delay", "deadline", "idle", "drain"];
    assert!(known.contains(&reason), "{reason}");
}

#[test]
fn infer_in_process_gives_the_goldens() {
    for (name, rows, file) in
        [("mlp", 1, "golden"), ("mlp", 4, "golden/batch4"), ("resnet8", 4, "golden/batch4")]
    {
        let dir = model(name);
        let input = format!("{dir}/{file}/input_0.npy");
        let ran = run(&["infer", &dir, &input, "--json"]).ok();
        let [answer] = &ran.json()[..] else { panic!("one line: {ran:?}") };
        check_answer(answer, name, rows);
        let output = &answer["outputs"][0];
        assert_eq!(output["dtype"], "float32");
        let golden = format!("{dir}/{file}/output_0.npy");
        assert!(difference(output, &golden) <= 1e-5);
    }
}

#[test]
fn infer_takes_goldens_by_default_names_rows_and_repeats() {
    let dir = model("mlp");
    let ran = run(&["infer", &dir, "--json", "--repeat", "3"]).ok();
    let answers = ran.json();
    assert_eq!(answers.len(), 3);
    let golden = format!("{dir}/golden/output_0.npy");
    for answer in &answers {
        assert_eq!(answer["outputs"][0]["name"], "y");
        assert!(difference(&answer["outputs"][0], &golden) <= 1e-5);
    }
    let named = format!("x={dir}/golden/batch4/input_0.npy");
    let ran = run(&["infer", &dir, "--input", &named, "--rows", "--json"]).ok();
    let answers = ran.json();
    assert_eq!(answers.len(), 4);
    // The first golden row of the batch is the row of batch 1, and each answer has its own row.
    assert!(difference(&answers[0]["outputs"][0], &golden) <= 1e-5);
    assert_ne!(answers[0]["outputs"][0]["data"], answers[1]["outputs"][0]["data"]);
    let text = run(&["infer", &dir, "--repeat", "2"]).ok().out;
    assert!(
        text.starts_with("mlp: 1 row in ") && text.contains("2 answers, closed loop"),
        "{text}"
    );
}

#[test]
fn a_bare_onnx_file_gets_a_manifest_and_labels_are_told() {
    let dir = model("mlp");
    let (file, input) = (format!("{dir}/model.onnx"), format!("{dir}/golden/input_0.npy"));
    let ran = run(&["infer", &file, &input, "--json"]).ok();
    assert!(
        difference(&ran.json()[0]["outputs"][0], &format!("{dir}/golden/output_0.npy")) <= 1e-5
    );
    let ran = run(&["infer", &model("magika"), "--json"]).ok();
    let answer = &ran.json()[0];
    assert_eq!(answer["labels"][0]["label"], "python");
    assert!(answer["labels"][0]["score"].as_f64().unwrap() > 0.9);
    assert!(run(&["infer", &model("magika")]).ok().out.contains("row 0: python 0.9"));
}

#[test]
fn nan_passes_through() {
    let scratch = Scratch::new();
    // A model that gives back what it gets: bits that are no number are nothing special.
    scratch.write(
        "echo/manifest.toml",
        "engine = 'fake'\n[fake]\ninputs = [{ name = 'x', shape = [4] }]\n\
         outputs = [{ name = 'y', shape = [4] }]\n",
    );
    let row = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.5].map(f32::to_le_bytes).concat();
    let input = scratch.npy("nan.npy", DType::F32, &[1, 4], &row);
    let ran = run(&["infer", &scratch.path("echo"), &input, "--json"]).ok();
    let data = serde_json::json!(["NaN", "Infinity", "-Infinity", 1.5]);
    assert_eq!(ran.json()[0]["outputs"][0]["data"], data);
    // A real one takes them too.
    let input = scratch.npy("row.npy", DType::F32, &[1, 64], &f32::NAN.to_le_bytes().repeat(64));
    run(&["infer", &model("mlp"), &input]).ok();
}

#[test]
fn inspect_tells_what_a_model_is() {
    let ran = run(&["inspect", &model("mlp"), "--json"]).ok();
    let i = &ran.json()[0];
    assert_eq!(i["name"], "mlp");
    assert_eq!(i["inputs"][0]["name"], "x");
    assert_eq!(i["inputs"][0]["dtype"], "float32");
    assert_eq!(i["inputs"][0]["shape"], serde_json::json!(["batch", "64"]));
    assert_eq!(i["outputs"][0]["name"], "y");
    assert_eq!(i["batch_axis"], 0);
    assert_eq!(i["batching"]["enabled"], true);
    assert_eq!(i["golden_rows"], 4);
    let sizes = i["batch_sizes"].as_array().unwrap();
    let memory = i["memory"].as_array().unwrap();
    assert_eq!(sizes.len(), memory.len());
    for (size, memory) in sizes.iter().zip(memory) {
        assert_eq!(size, &memory["batch_size"]);
        assert!(memory["staging_bytes"].as_u64().unwrap() > 0);
    }
    let operators = i["operators"].as_array().unwrap();
    assert!(!operators.is_empty());
    for o in operators {
        assert!(o["operator"].is_string() && o["implementation"].is_string(), "{o}");
        assert!(o["count"].as_u64().unwrap() > 0);
    }
    assert!(i["weight_bytes"].as_u64().unwrap() > 60_000);
    assert!(i["allocation_free"].is_boolean());
    let text = run(&["inspect", &model("mlp"), "--plan"]).ok().out;
    for part in
        ["mlp (engine ", "input     x float32 (batch, 64)", "batching  on, sizes [1, ", "operator"]
    {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    // Why a model is not batched is told.
    let scratch = Scratch::new();
    let one = scratch.fake("one", 0, "max_batch_size = 1");
    let text = run(&["inspect", &one]).ok().out;
    assert!(text.contains("batching  off: max_batch_size is 1"), "{text}");
}

#[test]
fn bench_engine_tells_every_run() {
    for (engine, batch) in [("tract", 1), ("plan", 4)] {
        let ran = run(&[
            "bench",
            "engine",
            &model("mlp"),
            "--engine",
            engine,
            "--batch",
            &batch.to_string(),
            "--iterations",
            "20",
            "--json",
        ])
        .ok();
        let r = &ran.json()[0];
        assert_eq!(r["engine"], engine);
        assert_eq!(r["batch"], batch);
        assert_eq!(r["iterations"], 20);
        let mut runs: Vec<u64> =
            r["run_ns"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        runs.sort_unstable();
        assert_eq!(runs.len(), 20);
        assert_eq!(r["min_ns"], runs[0]);
        assert_eq!(r["p50_ns"], runs[9]);
        assert_eq!(r["p99_ns"], runs[19]);
        assert!(r["core"].is_u64());
        if engine == "plan" {
            assert_eq!(r["allocator_calls"], 0);
        } else {
            assert!(r["allocator_calls"].as_u64().unwrap() > 0, "the count sees tract's own calls");
        }
    }
}

#[test]
fn bench_engine_takes_the_kernels_that_are_asked_for() {
    let mlp = model("mlp");
    let bench = ["bench", "engine", &mlp, "--iterations", "5", "--json", "--engine"];
    let portable = run(&[&bench[..], &["plan", "--isa", "portable"]].concat()).ok();
    assert_eq!(portable.json()[0]["isa"], "portable");
    run(&[&bench[..], &["plan", "--isa", "sse2"]].concat()).says(2, "none of portable, ");
    run(&[&bench[..], &["tract", "--isa", "portable"]].concat())
        .says(2, "--isa is for engine plan");
    let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    let said = format!("this processor can't run {foreign} kernels");
    run(&[&bench[..], &["plan", "--isa", foreign]].concat()).says(3, &said);
}

#[test]
fn bench_engine_times_several_sizes_and_every_step() {
    let mlp = model("mlp");
    let args =
        ["bench", "engine", &mlp, "--engine", "plan", "--batch", "4,1", "--iterations", "25"];
    let ran = run(&[&args[..], &["--profile", "--json"]].concat()).ok();
    let reports = ran.json();
    let batches: Vec<_> = reports.iter().map(|r| r["batch"].as_u64().unwrap()).collect();
    assert_eq!(batches, [1, 4]);
    for r in &reports {
        assert_eq!(r["run_ns"].as_array().unwrap().len(), 25);
        let steps = r["steps"].as_array().unwrap();
        assert_eq!(steps.len(), 3, "{steps:?}");
        for step in steps {
            assert!(step["p50_ns"].as_u64().unwrap() > 0, "{step}");
        }
        let flops: u64 = steps.iter().map(|s| s["flops"].as_u64().unwrap()).sum();
        let batch = r["batch"].as_u64().unwrap();
        assert_eq!(flops, 2 * batch * (64 * 128 + 128 * 64 + 64 * 10), "{steps:?}");
    }
    let text = run(&args).ok().out;
    assert!(text.contains("; a row takes "), "{text}");
}

#[test]
fn bench_engine_holds_a_batch_against_its_rows() {
    let mlp = model("mlp");
    let args = ["bench", "engine", &mlp, "--engine", "plan", "--per-row", "--iterations", "7"];
    let ran = run(&[&args[..], &["--batch", "4,8", "--profile", "--json"]].concat()).ok();
    let reports = ran.json();
    let batches: Vec<_> = reports.iter().map(|r| r["batch"].as_u64().unwrap()).collect();
    assert_eq!(batches, [4, 8]);
    for r in &reports {
        for side in ["alone_ns", "batch_ns"] {
            let times = r[side].as_array().unwrap();
            assert_eq!(times.len(), 7);
            assert!(times.iter().all(|ns| ns.as_u64().unwrap() > 0), "{r}");
        }
        assert_eq!((&r["pairs"], &r["allocator_calls"]), (&7.into(), &0.into()));
        assert_eq!(r["same_answers"], true);
        let ratio = |key: &str| r["ratio"][key].as_f64().unwrap();
        let ordered = ["median_low", "quartile_1", "median", "quartile_3", "median_high"];
        assert!(ordered.is_sorted_by(|a, b| ratio(a) <= ratio(b)), "{r}");
        assert_eq!(r["steps"].as_array().unwrap().len(), 3);
    }
    let text = run(&[&args[..], &["--batch", "8"]].concat()).ok().out;
    assert!(text.contains("batch 8 beside its rows alone, 7 pairs"), "{text}");
    assert!(text.ends_with("; 0 allocator calls; answers have the same bits\n"), "{text}");
    run(&args).says(2, "give a --batch above 1");
    run(&[&args[..6], &["--iterations", "5", "--batch", "8"]].concat())
        .says(2, "--iterations 5: --per-row gives the range of a median, which takes at least 6");
}

#[test]
fn benchmarks_keep_the_times_of_no_more_runs_than_there_is_room_for() {
    let says = "4294967295 is not in 1..=1000000";
    let many = ["--iterations", "4294967295"];
    for of in [&["engine", "synthetic", "--engine", "fake"][..], &["overhead"]] {
        run(&[&["bench"][..], of, &many].concat()).says(2, says);
    }
}

#[test]
fn bench_engine_takes_no_option_of_another_engine() {
    let mlp = model("mlp");
    let bench = |engine: &str, more: &[&str]| {
        run(&[&["bench", "engine", &mlp, "--iterations", "1", "--engine", engine][..], more]
            .concat())
    };
    for engine in ["plan", "tract", "fake"] {
        let says = format!("--provider is for engine ort: engine {engine} takes none");
        bench(engine, &["--provider", "cpu"]).says(2, &says);
        let says = format!("--onnxruntime is for engine ort: engine {engine} takes none");
        bench(engine, &["--onnxruntime", "libonnxruntime.so"]).says(2, &says);
    }
    bench("tract", &["--profile"]).says(2, "times the steps of a plan: engine tract has none");
}

#[test]
fn the_demo_is_right_also_on_one_core() {
    let first = corelane::sys::affinity::allowed().unwrap()[0].to_string();
    let output = std::process::Command::new("taskset")
        .args(["-c", &first, env!("CARGO_BIN_EXE_corelane"), "demo"])
        .current_dir(std::env::temp_dir())
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{out}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.contains(" answers are right\n"), "{out}");
    for part in ["src/lib.rs", "unix socket", "in process", "compute_infer", "infer a row"] {
        assert!(out.contains(part), "no {part:?} in {out}");
    }
}

#[test]
fn the_demo_notices_a_wrong_answer() {
    let scratch = Scratch::new();
    // The same models, but a file that is not what its name says.
    for entry in [
        "Cargo.toml",
        "Cargo.lock",
        ".gitignore",
        "LICENSE-MIT",
        "README.md",
        "CHANGELOG.md",
        ".ci",
        "examples",
        "models",
    ] {
        let from = root().join(entry);
        if from.exists() {
            std::os::unix::fs::symlink(from, scratch.path(entry)).unwrap();
        }
    }
    scratch.write(
        "src/lib.rs",
        "#!/bin/sh\nset -eu\nfor f in *.txt; do\n  echo \"$f\"\ndone\n".repeat(20),
    );
    for entry in ["config.rs", "batch"] {
        let from = root().join("src").join(entry);
        std::os::unix::fs::symlink(from, scratch.path(&format!("src/{entry}"))).unwrap();
    }
    let ran = run(&["demo", "--root", &scratch.path("")]).says(1, "2 of ");
    assert!(ran.out.contains("WRONG: src/lib.rs, unix socket: shell for rust"), "{}", ran.out);
    assert!(ran.out.contains("WRONG: src/lib.rs, in process: shell for rust"), "{}", ran.out);
}
