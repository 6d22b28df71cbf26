//! Memory as the system sees it: what is resident, locked, cached and faulted in, of a server, and of
//! workers in this process.

#[allow(dead_code)]
#[path = "engine/onnx.rs"]
mod onnx;
#[allow(dead_code)]
#[path = "cli/support.rs"]
mod support;

use corelane::engine::kernels::Kernels;
use corelane::model::{LoadedModel, Manifest};
use corelane::runtime::{ModelSetup, Runtime};
use corelane::sys::alloc::{CountingAllocator, hot_calls};
use onnx::{Axis, model as onnx_model, node, tensor};
use serde_json::Value;
use support::{Scratch, Server, model, program, root, run};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What a server may take beside weights, arenas and slots: the program, its threads, its buffers.
const OVERHEAD_BYTES_MAX: u64 = 25_000_000;
/// Page faults of a worker after it was ready, at most. Serving needs none; a page of the program that is
/// run for the first time (an error's text, a rare path) costs one.
const FAULTS_MAX: u64 = 16;

fn bytes(of: &Value, key: &str) -> u64 {
    of["memory"][key].as_u64().unwrap_or_else(|| panic!("no {key} in {of}"))
}

/// A figure of `/proc/PID/status`, in bytes.
fn status(pid: &Value, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|l| l.starts_with(key)).unwrap_or_else(|| panic!("no {key}"));
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_server_of_two_workers_takes_what_it_says_and_little_more() {
    for name in ["magika", "mlp", "resnet8"] {
        let dir = Scratch::new();
        let args = ["--model", &model(name), "--unix", &dir.path("s"), "--unpinned", "2"];
        let server = Server::start(&args);
        let said =
            ["weight_bytes", "arena_bytes", "slot_bytes"].map(|key| bytes(&server.ready, key));
        let resident = status(&server.ready["pid"], "VmRSS");
        println!("{name}: resident {resident}, weights, arenas and slots {said:?}");
        let most = said.iter().sum::<u64>() + OVERHEAD_BYTES_MAX;
        assert!(resident <= most, "{name}: {resident} bytes resident, {most} at most");
        server.stop().ok();
    }
}

#[test]
fn a_second_start_comes_from_the_cache() {
    let dir = Scratch::new();
    let (cache, socket, model) = (dir.path("cache"), dir.path("s"), model("resnet8"));
    let args = ["--model", &model, "--unix", &socket, "--unpinned", "1", "--cache", &cache];
    for state in ["written", "used"] {
        let server = Server::start(&args);
        let model = &server.ready["models"][0];
        assert_eq!(model["cache"], state, "{model}");
        assert!(model["golden_rows"].as_u64().unwrap() >= 4, "{model}");
        assert!(bytes(&server.ready, "weight_bytes") > 100_000);
        server.stop().ok();
    }
    // With weights in memory of its own, too.
    let args = [&args[..], &["--huge-pages", "try"]].concat();
    let server = Server::start(&args);
    assert_eq!(server.ready["models"][0]["cache"], "used");
    server.stop().ok();
}

#[test]
fn locked_memory_and_huge_pages_are_reported_as_wanted_and_got() {
    let dir = Scratch::new();
    let (socket, model) = (dir.path("s"), model("resnet8"));
    let args = ["--model", &model, "--unix", &socket, "--unpinned", "2"];
    let server = Server::start(&args);
    for kind in ["lock", "huge_pages"] {
        let report = &server.ready["regions"][kind];
        assert_eq!((&report["wish"], &report["wanted_bytes"]), (&"off".into(), &0.into()));
    }
    server.stop().ok();
    let wishes = ["--lock-memory", "try", "--huge-pages", "try"];
    let server = Server::start(&[&args[..], &wishes].concat());
    let regions = &server.ready["regions"];
    println!("{regions}");
    let kept = bytes(&server.ready, "weight_bytes") + bytes(&server.ready, "arena_bytes");
    for kind in ["lock", "huge_pages"] {
        let (wanted, got) = (&regions[kind]["wanted_bytes"], &regions[kind]["got_bytes"]);
        let wanted = wanted.as_u64().unwrap();
        assert!(wanted >= kept, "{kind}: {wanted} wanted, weights and arenas are {kept}");
        assert!(got.is_null() || got.as_u64().is_some(), "{got}");
    }
    let locked = regions["lock"]["got_bytes"].as_u64().unwrap();
    assert!(status(&server.ready["pid"], "VmLck") >= locked);
    server.stop().ok();
}

/// Under a limit of no locked memory at all, and without the privilege to pass over it.
#[test]
fn locked_memory_that_is_required_and_refused_is_an_error() {
    let dir = Scratch::new();
    let (socket, model) = (dir.path("s"), model("mlp"));
    let serve = |wish: &str| {
        let program = program().get_program().to_owned();
        let mut command = std::process::Command::new("sh");
        // Without the capability; where setpriv is missing, the privilege may be there.
        let script = "ulimit -l 0 && exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock \
                      --ambient-caps=-ipc_lock -- \"$0\" \"$@\"";
        command.arg("-c").arg(script).arg(program);
        command.args(["serve", "--model", &model, "--unix", &socket, "--unpinned", "1"]);
        command.args(["--lock-memory", wish]);
        command.output().unwrap()
    };
    let missing = run_quiet("setpriv", &["--version"]).is_none();
    if missing {
        println!("skipped: no setpriv");
        return;
    }
    let output = serve("require");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_ne!(output.status.code(), Some(0));
    assert!(said.contains("RLIMIT_MEMLOCK") && said.contains("bytes"), "{said}");
}

fn run_quiet(name: &str, args: &[&str]) -> Option<std::process::Output> {
    std::process::Command::new(name).args(args).output().ok()
}

/// Workers that were warmed up fault in no pages, nor do they allocate; also where a step runs through
/// tract, on the worker's private heap.
#[test]
fn warm_workers_fault_in_no_pages_and_allocate_nothing() {
    let dir = Scratch::new();
    let rows = [Axis::Open("batch"), Axis::Len(64)];
    let nodes = [node("Abs", &["x"], "r"), node("Cos", &["r"], "c"), node("Relu", &["c"], "y")];
    let cosine = onnx_model(&nodes, &[tensor("x", &rows)], &[tensor("y", &rows)]);
    let cosine = dir.write("cosine.onnx", cosine);
    let mut builder = Runtime::builder().unpinned(2);
    for path in [cosine, model("magika"), model("resnet8"), model("mlp")] {
        let mut manifest = Manifest::read(path.as_ref()).unwrap();
        manifest.limit_batches(4);
        let loaded = LoadedModel::load(manifest).unwrap();
        let description = loaded.engine.describe();
        assert!(description.allocation_free, "{path}");
        let falls_back =
            description.operators.iter().any(|o| o.implementation.starts_with("fallback"));
        assert_eq!(falls_back, path.ends_with("cosine.onnx"), "{:?}", description.operators);
        builder = builder.model(ModelSetup::from(loaded));
    }
    let runtime = builder.build().unwrap();
    let client = runtime.client();
    let before = hot_calls();
    let names: Vec<String> = client.models().map(str::to_owned).collect();
    for n in 0..2_000usize {
        let name = &names[n % names.len()];
        let mut request = client.model(name).unwrap().request(1 + n % 4).unwrap();
        request.input_bytes_mut(0).unwrap().fill(0);
        let answer = request.infer().unwrap();
        if name == "cosine" {
            assert!(answer.output::<f32>(0).unwrap().iter().all(|&y| (y - 1.0).abs() < 1e-6));
        }
    }
    assert_eq!(hot_calls() - before, 0, "allocator calls on workers");
    for worker in runtime.stats().workers {
        let faults = worker.page_faults.expect("Linux counts them");
        println!("worker {}: {faults} page faults since it was ready", worker.worker);
        assert!(faults <= FAULTS_MAX, "worker {}: {faults} page faults", worker.worker);
    }
}

#[test]
fn inspect_times_the_steps_and_says_in_which_precision_they_run() {
    let dir = Scratch::new();
    let ran = run(&["inspect", "--plan", "--json", &model("resnet8")]).ok();
    let json = &ran.json()[0];
    let steps = json["steps"].as_array().unwrap();
    let times = json["profile"]["step_ns"].as_array().unwrap();
    assert!(times.len() > 5 && steps.len() > times.len());
    assert_eq!(json["profile"]["fallback_percent"], 0);
    let precision = json["precision"].as_array().unwrap();
    assert!(precision[0].as_str().unwrap().contains("float32"), "{precision:?}");
    assert!(steps.iter().any(|s| s.as_str().unwrap().contains("flop")));
    // One operator without a kernel: all of the time is spent in it, or nearly.
    let rows = [Axis::Open("batch"), Axis::Len(4096)];
    let cosine =
        onnx_model(&[node("Cos", &["x"], "y")], &[tensor("x", &rows)], &[tensor("y", &rows)]);
    let ran = run(&["inspect", "--plan", "--json", &dir.write("cosine.onnx", cosine)]).ok();
    let json = &ran.json()[0];
    assert!(json["profile"]["fallback_percent"].as_u64().unwrap() > 50, "{}", json["profile"]);
    let text = run(&["inspect", "--plan", &model("mlp")]).ok().out;
    assert!(text.contains("% of it in fallbacks") && text.contains("float32"), "{text}");
    // An 8-bit graph, where there is one.
    let shared = std::env::var_os("CORELANE_SHARED_MODELS")
        .map_or_else(|| root().join("../shared/models"), Into::into);
    let int8 = shared.join("dscnn_kws_int8.onnx");
    if !int8.exists() {
        println!("skipped: no ../shared/models");
        return;
    }
    let text = run(&["inspect", &int8.display().to_string()]).ok().out;
    assert!(text.contains("products and sums are f32, rounded to the grid"), "{text}");
    if Kernels::best().prefers_codes() {
        assert!(
            text.contains("9 of its convolutions and products are computed in whole"),
            "{text}"
        );
    }
}
