//! The lab's commands: what they write, what they refuse, and what a gate does.

use crate::support::{Ran, Scratch, Server, model, program, run};
use corelane::lab::run::{Profiled, Run, folder};
use corelane::lab::schedule::trace::{RecordedPayloads, Trace};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;

/// A server with a fake model of so much compute.
fn serve(scratch: &Scratch, name: &str, compute_us: u64) -> (Server, String) {
    let model =
        scratch.fake(name, compute_us, "name = 'fake'\nmax_queue_size = 512\nmax_batch_size = 1");
    let socket = scratch.path(&format!("{name}.sock"));
    let server = Server::start(&["--model", &model, "--unix", &socket, "--unpinned", "1"]);
    let address = server.address("unix:");
    (server, address)
}

/// Runs `load` on a machine that may be busy: an invalid run is no failure of the program, and says
/// so by its exit code.
#[track_caller]
fn load(args: &[&str]) -> Ran {
    let ran = run(&[&["load", "--warmup-ms", "10"], args].concat());
    assert!(ran.code == 0 || ran.code == 1 && ran.err.contains("INVALID"), "{ran:?}");
    ran
}

/// Makes a run valid whatever the machine did, for tests of what comes after it.
pub fn make_valid(dir: &str) {
    let mut run = folder::read(Path::new(dir)).unwrap();
    run.valid = true;
    run.findings.clear();
    for repeat in run.series.iter_mut().flat_map(|s| &mut s.repeats) {
        repeat.yardstick_ns = None;
    }
    let text = serde_json::to_string(&run).unwrap();
    std::fs::write(Path::new(dir).join(folder::METRICS), text).unwrap();
}

#[test]
fn a_load_writes_a_folder_with_everything_in_it() {
    let scratch = Scratch::new();
    let (server, address) = serve(&scratch, "m", 200);
    let out = scratch.path("run");
    load(&[
        "--connect",
        &address,
        "--profile",
        "poisson",
        "--profile",
        "bursty:20/20",
        "--rate",
        "300",
        "--duration",
        "0.7",
        "--repeats",
        "2",
        "--out",
        &out,
        "--label",
        "abc123",
    ]);
    let read: Run = folder::read(Path::new(&out)).unwrap();
    assert_eq!((read.label.as_str(), read.target.model.as_str()), ("abc123", "fake"));
    assert_eq!(read.target.engine.as_deref(), Some("fake"));
    assert_eq!(read.target.worker_cores, [None]);
    let names: Vec<&str> = read.series.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["poisson", "bursty"]);
    for series in &read.series {
        assert_eq!(series.repeats.len(), 2);
        for repeat in &series.repeats {
            assert_eq!(repeat.answered, repeat.planned);
            assert_eq!(repeat.generator_allocator_calls, 0);
            assert!(
                repeat.latency.p50_ns >= 200_000 && repeat.latency.max_ns >= repeat.latency.p999_ns
            );
            assert!(repeat.stages["compute_infer"].p50_ns >= 200_000);
            assert!(repeat.cpu_us_per_request.unwrap() > 0.0);
            assert_eq!(repeat.batch_rows.values().sum::<u64>(), repeat.answered);
        }
        for figure in [
            "latency-percentiles",
            "latency-histogram",
            "stages",
            "latency-over-time",
            "cpu",
            "batch-sizes",
            "batch-close-reasons",
        ] {
            let file = format!("{out}/{}.{figure}.plotly.json", series.name);
            let plotly: Value = serde_json::from_str(
                &std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}")),
            )
            .unwrap();
            assert!(!plotly["data"].as_array().unwrap().is_empty(), "{file}");
            assert!(plotly["layout"]["title"]["text"].is_string(), "{file}");
        }
        let hgrm = std::fs::read_to_string(format!("{out}/{}.hgrm", series.name)).unwrap();
        assert!(hgrm.contains("#[Max     =") && hgrm.contains("1.000000000000"));
    }
    assert!(read.findings.iter().any(|f| f.id == "unpinned_workers"));
    assert!(read.findings.iter().any(|f| f.id == "too_few_samples"));
    assert!(read.metrics.contains_key("poisson_latency_p99_us"));
    let page = std::fs::read_to_string(format!("{out}/report.html")).unwrap();
    assert!(
        page.contains("abc123") && !page.contains("{{") && !page.contains("http-equiv=\"refresh")
    );
    // A second run does not fall upon the first.
    run(&["load", "--connect", &address, "--out", &out]).says(2, "holds a run already");
    server.stop().ok();
}

#[test]
fn a_closed_loop_tells_its_slope_and_scenarios_their_figure() {
    let scratch = Scratch::new();
    let (server, address) = serve(&scratch, "m", 300);
    let closed = ["--connect", &address, "--duration", "0.3", "--repeats", "1"];
    let ran = load(&[&closed[..], &["--concurrency", "1,2,4,8", "--json"]].concat());
    let run: Run = serde_json::from_str(ran.out.trim()).unwrap();
    let sweep = run.sweep.unwrap();
    assert_eq!(sweep.points.iter().map(|p| p.concurrency).collect::<Vec<_>>(), [1, 2, 4, 8]);
    // One worker, 300 us each, no batches: more in flight only wait.
    assert!(sweep.slope > 0.7, "{sweep:?}");
    assert!(run.series[3].repeats[0].latency.p50_ns > 2 * run.series[0].repeats[0].latency.p50_ns);
    for (scenario, metric) in [
        ("singlestream", "SingleStream is about latency_p90_us"),
        ("Offline", "Offline is about throughput_per_s"),
        ("Server", "Server is about throughput_per_s"),
    ] {
        let more = ["--scenario", scenario, "--rate", "200", "--bound-us", "60000000"];
        let ran = load(&[&closed[..], &more].concat());
        assert!(ran.out.contains(metric) && ran.out.contains("at p99 is held"), "{}", ran.out);
    }
    server.stop().ok();
}

#[test]
fn it_measures_in_this_process_too() {
    let mlp = model("mlp");
    let ran = load(&[
        "--in-process",
        "--model",
        &mlp,
        "--rate",
        "500",
        "--duration",
        "0.4",
        "--repeats",
        "1",
        "--json",
    ]);
    let run: Run = serde_json::from_str(ran.out.trim()).unwrap();
    assert_eq!((run.target.address.as_str(), run.target.model.as_str()), ("in process", "mlp"));
    assert_eq!(run.series[0].repeats[0].answered, run.series[0].repeats[0].planned);
}

#[test]
fn a_recorded_trace_is_replayed() {
    let scratch = Scratch::new();
    let model = scratch.fake("m", 0, "name = 'fake'");
    let (socket, file) = (scratch.path("s.sock"), scratch.path("arrivals.txt"));
    let server = Server::start_as(
        "record",
        &["--out", &file, "--model", &model, "--unix", &socket, "--unpinned", "1"],
    );
    let address = server.address("unix:");
    let steady = ["--profile", "steady", "--rate", "200", "--duration", "0.5", "--repeats", "1"];
    run(&[&["load", "--warmup-ms", "0", "--connect", &address], &steady[..]].concat());
    server.stop().ok();
    let trace = Trace::read(Path::new(&file)).unwrap();
    assert_eq!((trace.model.as_str(), trace.arrivals.len()), ("fake", 100));
    assert!(trace.arrivals[99].at.0 > 400_000_000);
    let (server, address) = serve(&scratch, "again", 0);
    let replay = format!("replay:{file}");
    let ran = load(&["--connect", &address, "--profile", &replay, "--repeats", "1", "--json"]);
    let run: Run = serde_json::from_str(ran.out.trim()).unwrap();
    assert_eq!(run.series[0].name, "replay");
    assert_eq!(run.series[0].repeats[0].answered, 100);
    server.stop().ok();
}

#[test]
fn recorded_payloads_are_sent_again() {
    let scratch = Scratch::new();
    let model = scratch.fake("m", 0, "name = 'fake'");
    let record = |name: &str, load: &[&str]| {
        let (socket, file) = (scratch.path(&format!("{name}.sock")), scratch.path(name));
        let serve = ["--out", &file, "--payloads", "1", "--model", &model, "--unix", &socket];
        let server = Server::start_as("record", &[&serve[..], &["--unpinned", "1"]].concat());
        let address = server.address("unix:");
        let first = ["load", "--warmup-ms", "0", "--repeats", "1", "--connect", &address];
        run(&[&first[..], load].concat());
        server.stop().ok();
        let arrivals = Trace::read(Path::new(&file)).unwrap().arrivals.len();
        (file.clone(), RecordedPayloads::read(Path::new(&file), arrivals).unwrap().unwrap())
    };
    let steady = ["--profile", "steady", "--rate", "200", "--duration", "0.3"];
    let (trace, first) = record("first", &steady);
    assert_eq!(first.0.len(), 60);
    assert!(first.0.iter().all(|payload| payload.len() == 4), "{first:?}");
    // Random, of more than one kind; what is sent again is what came, each in its place.
    assert!(first.0.iter().any(|payload| *payload != first.0[0]));
    let replay = format!("replay:{trace}");
    let (_, again) = record("again", &["--profile", &replay]);
    assert_eq!(first, again);
    // Payloads that are not the model's are refused, not sent.
    let (server, address) = serve(&scratch, "other", 0);
    let payloads = |bytes: &[u8]| scratch.write("first.payloads", bytes);
    let load = || run(&["load", "--connect", &address, "--profile", &replay, "--repeats", "1"]);
    payloads(b"corelane payloads 1\n\x00\0\0\0\x03\0\0\0abc");
    load().says(2, "has a payload of 3 bytes; 1 rows of model fake are 4");
    payloads(b"corelane payloads 1\n\x00\0\0\0\x04\0\0\0abc");
    load().says(2, "the payload at byte 20 is cut off");
    payloads(b"corelane payloads 1\n\xff\0\0\0\x04\0\0\0abcd");
    load().says(2, "is of arrival 255; there are 60");
    payloads(b"payloads\n");
    load().says(2, "must begin with the line");
    server.stop().ok();
    // A recording without payloads leaves none of an earlier one beside it.
    let socket = scratch.path("s.sock");
    let serve = ["--out", &trace, "--model", &model, "--unix", &socket, "--unpinned", "1"];
    let refused = run(&[&["record"][..], &serve].concat());
    refused.says(2, "first is there already; --force overwrites it");
    Server::start_as("record", &[&serve[..], &["--force"]].concat()).stop().ok();
    assert!(!Path::new(&format!("{trace}.payloads")).exists());
}

#[test]
fn a_gate_fails_a_slower_build_and_history_shows_both() {
    let scratch = Scratch::new();
    let (fast, fast_address) = serve(&scratch, "fast", 500);
    let (slow, slow_address) = serve(&scratch, "slow", 1000);
    let (base, new) = (scratch.path("runs/base"), scratch.path("runs/new"));
    load(&[
        "--connect",
        &fast_address,
        "--against",
        &slow_address,
        "--rate",
        "200",
        "--duration",
        "0.5",
        "--repeats",
        "5",
        "--out",
        &base,
        "--label",
        "fast",
        "--against-out",
        &new,
        "--against-label",
        "slow",
    ]);
    make_valid(&base);
    make_valid(&new);
    // Not of latency, which a busy machine moves more than the build does.
    let gate = scratch.write("gate.toml", "compute_infer_p50 = \"10%\"\n");
    let out = scratch.path("comparison");
    let ran = run(&["compare", &base, &new, "--gate", &gate, "--out", &out]);
    ran.says(1, "the gate is broken: poisson compute_infer_p50_us is");
    let page = std::fs::read_to_string(format!("{out}/report.html")).unwrap();
    assert!(page.contains("slow against fast"));
    assert!(Path::new(&format!("{out}/poisson.latency-percentiles.plotly.json")).is_file());
    // The other way round it is better, which no gate minds.
    let ran = run(&["compare", &new, &base, "--gate", &gate]).ok();
    assert!(ran.out.contains("better in"), "{}", ran.out);
    let runs = scratch.path("runs");
    let ran = run(&["history", &runs, "--metric", "compute_infer_p50_us", "--out", &out]).ok();
    let told: Vec<(&str, &str)> = (ran.out.lines())
        .map(|line| {
            let mut words = line.split_whitespace();
            (words.next().unwrap(), words.next().unwrap())
        })
        .collect();
    assert_eq!(told, [("base", "fast"), ("new", "slow")], "{}", ran.out);
    // A rule about nothing is a slip, and no verdict.
    let slip = scratch.write("slip.toml", "compute_infer_p5 = \"10%\"\n");
    run(&["compare", &base, &new, "--gate", &slip])
        .says(2, "slip.toml: no run has the metric \"compute_infer_p5\"; there are ");
    run(&["history", &runs, "--metric", "beauty"]).says(2, "there are compute_infer_p50_us");
    fast.stop().ok();
    slow.stop().ok();
}

#[test]
fn saturate_finds_what_one_worker_holds() {
    let scratch = Scratch::new();
    let (server, address) = serve(&scratch, "m", 5000);
    let ran = run(&[
        "saturate",
        "--connect",
        &address,
        "--bound-us",
        "400000",
        "--duration",
        "0.5",
        "--profile",
        "steady",
        "--json",
    ]);
    // A machine that is too busy for the generator ends the search early, and that is said.
    if ran.code == 1 {
        ran.says(1, "the search ended early");
    } else {
        let told: Value = serde_json::from_str(ran.ok().out.trim()).unwrap();
        let rate = told["saturation"]["rate_per_s"].as_f64().unwrap();
        // 5 ms each: at most 200 a second, and what half a second may hide in its queue.
        assert!(rate < 420.0, "{told}");
        assert_eq!(told["margins"].as_array().unwrap().len(), 3);
    }
    server.stop().ok();
}

#[test]
fn a_flame_graph_is_taken_or_its_absence_explained() {
    let scratch = Scratch::new();
    let (server, address) = serve(&scratch, "m", 2000);
    let measure = |name: &str, path: Option<&str>| {
        let out = scratch.path(name);
        let mut command = program();
        if let Some(path) = path {
            command.env("PATH", path);
        }
        let how = ["--connect", &address, "--rate", "100", "--duration", "0.5", "--repeats", "1"];
        let ran = command.arg("load").args(how).args(["--flame-graph", "--out", &out]).output();
        let told = String::from_utf8(ran.unwrap().stdout).unwrap();
        let run: Run = folder::read(Path::new(&out)).unwrap();
        (out, told, run.series[0].profile.clone().unwrap())
    };
    // Whether this machine has a profiler or not: a figure, or the reason, and never an empty one.
    let figure = "poisson.flame-graph.plotly.json";
    let (out, told, profile) = measure("here", None);
    let there = Path::new(&out).join(figure).exists();
    match profile {
        Profiled::Taken { samples, .. } => {
            assert!(there && samples > 0 && told.contains("a flame graph of"), "{told}");
            let stacks = std::fs::read_to_string(format!("{out}/poisson.folded")).unwrap();
            assert!(stacks.contains("cl-worker;") && stacks.contains("corelane::"), "{stacks}");
            assert!(!Path::new(&out).join("perf.data").exists());
        }
        Profiled::Absent { why } => assert!(!there && told.contains(&why), "{told}"),
    }
    let (without, told, profile) = measure("without", Some("/nowhere"));
    assert!(
        matches!(&profile, Profiled::Absent { why } if why.contains("linux-perf")),
        "{profile:?}"
    );
    assert!(told.contains("no flame graph: there is no program"), "{told}");
    assert!(!Path::new(&without).join(figure).exists());
    assert!(
        std::fs::read_to_string(format!("{without}/report.html")).unwrap().contains("linux-perf")
    );
    // No difference can be had of these, and that is said.
    let ran = run(&["compare", &out, &without]).ok();
    assert!(
        ran.out.contains("note: series poisson has no differential flame graph"),
        "{}",
        ran.out
    );
    run(&["load", "--connect", &address, "--flame-graph"]).says(2, "--out");
    server.stop().ok();
}

#[test]
fn a_server_that_dies_in_mid_run_leaves_a_marked_folder() {
    let scratch = Scratch::new();
    let (server, address) = serve(&scratch, "m", 100);
    let out = scratch.path("run");
    let ran = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(1500));
            server.signal(Signal::KILL);
        });
        let ran = run(&[
            "load",
            "--connect",
            &address,
            "--rate",
            "100",
            "--duration",
            "30",
            "--repeats",
            "3",
            "--out",
            &out,
        ]);
        killer.join().unwrap();
        ran
    });
    let ran = ran.says(1, "the run is INVALID");
    assert!(ran.out.contains("INVALID [broken]"), "{}", ran.out);
    let read = folder::read(Path::new(&out)).unwrap();
    assert!(!read.valid && read.series[0].repeats.len() == 1);
    assert!(read.series[0].repeats[0].answered > 0);
}

#[test]
fn bad_input_is_refused_with_what_would_be_right() {
    let connect = ["--connect", "unix:/nowhere/x.sock", "--model", "m"];
    let load = |more: &[&str]| run(&[&["load"], &connect[..], more].concat());
    load(&["--profile", "busty"]).says(2, "did you mean \"bursty\"?");
    load(&["--profile", "ramp"]).says(2, "takes stages: ramp:RATE/RISE_S/HOLD_S");
    load(&["--profile", "ramp:1/2"]).says(2, "such as 100/5/10");
    load(&["--profile", "bursty:5"]).says(2, "write bursty:ON_MS/OFF_MS");
    load(&["--profile", "steady:5"]).says(2, "takes nothing after its name");
    load(&["--rate", "0"]).says(2, "the rate is 0; it must be above 0");
    load(&["--duration", "0"]).says(2, "the duration is 0; it must be above 0");
    load(&["--duration", "0", "--concurrency", "1"]).says(2, "the duration is 0");
    load(&["--rate", "NaN"]).says(2, "the rate is NaN");
    load(&["--rate", "900000", "--duration", "3600"]).says(2, "a run records at most 4000000");
    load(&["--rate", "2000000"]).says(2, "at most 1000000");
    load(&["--scenario", "Sever"]).says(2, "did you mean \"Server\"?");
    load(&["--concurrency", "0"]).says(2, "--concurrency");
    load(&["--repeats", "0"]).says(2, "--repeats");
    load(&[]).says(4, "unix:/nowhere/x.sock");
    run(&["load"]).says(2, "required");
    run(&["load", "--in-process"]).says(2, "give --config FILE or --model DIR");
    let scratch = Scratch::new();
    let (server, address) = serve(&scratch, "m", 0);
    let there = |more: &[&str]| run(&[&["load", "--connect", &address], more].concat());
    there(&["--model", "other"]).says(5, "unknown_model");
    there(&["--rows", "9999"]).says(2, "takes 1 to");
    let replay = ["--profile", "replay:/nowhere/trace", "--rate", "5"];
    there(&replay).says(2, "--rate has no meaning here: profile replay says when");
    let ramp = ["--profile", "ramp:10/1/1", "--duration", "5"];
    there(&ramp).says(2, "--duration has no meaning here: profile ramp says when");
    there(&["--profile", "replay:/nowhere/trace"]).says(2, "/nowhere/trace can't be read");
    there(&["--generator-core", "999"]).says(3, "999");
    let array = scratch.npy("x.npy", corelane::units::DType::F32, &[1, 4], &[0; 16]);
    there(&["--input", &array]).says(2, "takes uint8, the file holds float32");
    run(&["saturate", "--connect", &address]).says(2, "--bound-us");
    let bound = ["saturate", "--connect", &address, "--bound-us", "1000"];
    run(&[&bound[..], &["--from", "NaN"]].concat()).says(2, "the rate is NaN");
    run(&[&bound[..], &["--from=-1"]].concat()).says(2, "the rate is -1; it must be above 0");
    run(&[&bound[..], &["--percentile", "p42"]].concat()).says(2, "choose p50, p90");
    run(&[&bound[..], &["--profile", "ramp:1/1/1"]].concat()).says(2, "profiles with a rate");
    server.stop().ok();
    // Folders that are no runs.
    let empty = scratch.path("empty");
    std::fs::create_dir_all(&empty).unwrap();
    run(&["compare", &empty, &empty]).says(2, "is not a run's folder: there is no");
    run(&["history", &empty]).says(2, "no folder of a run");
    run(&["history", "/nowhere"]).says(2, "/nowhere");
    scratch.write("future/metrics.json", "{\"kind\":\"corelane-run\",\"schema\":99}");
    run(&["compare", &scratch.path("future"), &empty])
        .says(2, "schema 99; this version reads schema 1");
    let gate = scratch.write("gate.toml", "latency_p99 = \"much\"\n");
    run(&["compare", &empty, &empty, "--gate", &gate]).says(2, "line 1");
    run(&["compare", &empty, &empty, "--gate", "/nowhere/g"]).says(2, "/nowhere/g");
}
