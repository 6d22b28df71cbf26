//! The lab's sweeps (`bench contention`, `tune`), the model `synthetic`, and runs that can't be kept.

use crate::support::{Ran, Scratch, Server, program, run};
use corelane::config::{Config, Workers};
use corelane::lab::run::{Run, SCHEMA, folder};
use corelane::units::CoreId;
use serde_json::Value;
use std::path::Path;

#[test]
fn synthetic_is_sized_once_and_anew_where_its_file_is_damaged() {
    let scratch = Scratch::new();
    let state = scratch.path("state");
    let file = format!("{state}/synthetic.json");
    let with = |args: &[&str]| run(&[args, &["--state-dir", &state, "--log", "info"]].concat());
    let first = with(&["inspect", "synthetic"]).ok();
    assert!(first.err.contains(&format!("kept in {file}")), "{first:?}");
    let again = with(&["inspect", "synthetic"]).ok();
    assert!(!again.err.contains("sized"), "{again:?}");
    std::fs::write(&file, "{\"schema\": 1").unwrap();
    let anew = with(&["inspect", "synthetic"]).ok();
    assert_eq!(anew.err.matches("did not do: it is damaged").count(), 1, "{anew:?}");
    assert!(!with(&["inspect", "synthetic"]).ok().err.contains("damaged"));
    // By its bare name in a configuration too, and over a socket.
    let socket = scratch.path("s.sock");
    let config = scratch.write(
        "corelane.toml",
        format!(
            "[[model]]\npath = 'synthetic'\n[runtime]\npin = false\n[listen]\nunix = '{socket}'\n"
        ),
    );
    let server = Server::start(&["--config", &config, "--state-dir", &state]);
    let address = server.address("unix:");
    let load = ["load", "--connect", &address, "--concurrency", "1", "--duration", "0.2"];
    let ran = run(&[&load[..], &["--repeats", "1", "--json"]].concat());
    let measured: Run =
        serde_json::from_str(ran.out.trim()).unwrap_or_else(|e| panic!("{e} {ran:?}"));
    assert_eq!(
        (measured.target.model.as_str(), measured.target.engine.as_deref()),
        ("synthetic", Some("fake"))
    );
    assert!(measured.series[0].repeats[0].answered > 0);
    server.stop().ok();
    let bench = ["bench", "engine", "synthetic", "--iterations", "5", "--batch", "1,4", "--engine"];
    let timed = with(&[&bench[..], &["fake", "--json"]].concat()).ok().json();
    assert_eq!((timed.len(), &timed[1]["batch"]), (2, &Value::from(4)));
    with(&[&bench[..], &["plan"]].concat())
        .says(2, "model synthetic and engine plan do not go together");
    let blocked = scratch.write("file", "");
    run(&["inspect", "synthetic", "--state-dir", &blocked]).says(3, "give --state-dir DIR");
    let nowhere = program()
        .args(["inspect", "synthetic"])
        .env_remove("HOME")
        .env_remove("XDG_STATE_HOME")
        .env_remove("CORELANE_STATE_DIR")
        .output()
        .unwrap();
    assert_eq!(nowhere.status.code(), Some(3));
    let told = String::from_utf8_lossy(&nowhere.stderr);
    assert!(told.contains("nowhere to keep the size of model synthetic"), "{told}");
}

/// A run that the machine disturbed is no failure of the program, and says so.
#[track_caller]
fn ran(args: &[&str]) -> Ran {
    let ran = run(args);
    assert!(ran.code == 0 || ran.code == 1 && ran.err.contains("INVALID"), "{ran:?}");
    ran
}

#[test]
fn a_contention_curve_has_a_run_for_one_worker_and_one_for_all() {
    let scratch = Scratch::new();
    // Long enough that what a busy machine adds to it does not hide the queue.
    let model = scratch.fake("m", 15_000, "name = 'fake'");
    let out = scratch.path("curve");
    let curve = ["bench", "contention", &model, "--concurrency", "1,4", "--duration", "0.5"];
    let told = ran(&[&curve[..], &["--repeats", "1", "--out", &out, "--label", "abc"]].concat());
    assert!(told.out.contains("one-worker: workers on cores"), "{told:?}");
    assert!(told.out.contains("slope of log p50 over log concurrency"), "{told:?}");
    let one: Run = folder::read(Path::new(&format!("{out}/one-worker"))).unwrap();
    let sweep = one.sweep.unwrap();
    assert_eq!((one.label.as_str(), sweep.points.len()), ("abc one-worker", 2));
    // One worker and no batches: three of four wait.
    assert!(sweep.slope > 0.5, "{sweep:?}");
    assert!(Path::new(&format!("{out}/one-worker/contention.plotly.json")).is_file());
    let json = ran(&[&curve[..], &["--repeats", "1", "--json"]].concat());
    let json: Value = serde_json::from_str(json.out.trim()).unwrap();
    assert_eq!(json["runs"][0]["sweep"]["points"][1]["concurrency"], 4);
    run(&[&curve[..], &["--out", &out]].concat()).says(2, "holds a run already");
    run(&["bench", "contention", &model, "--concurrency", "4,4"]).says(2, "two points at least");
    run(&["bench", "contention", &model, "--duration", "0"]).says(2, "the duration is 0");
    run(&["bench", "contention", &model, "--cores", "0,999"]).says(3, "999");
    run(&["bench", "contention", "/nowhere/model"]).says(3, "/nowhere/model");
}

#[test]
fn tune_writes_what_serve_reads_and_overwrites_nothing() {
    let scratch = Scratch::new();
    let model = scratch.fake("m", 200, "name = 'fake'\nmax_batch_size = 4");
    let base = scratch.write(
        "base/corelane.toml",
        "[[model]]\npath = '../m'\n[listen]\ntcp = '127.0.0.1:0'\n[log]\nlevel = 'warn'\n",
    );
    let (out, report) = (scratch.path("tuned.toml"), scratch.path("report"));
    let small =
        ["--rate", "40", "--batch", "1,4", "--delay-us", "0", "--workers", "1", "--idle", "park"];
    let time = ["--duration", "0.3", "--budget-s", "60", "--json"];
    let places = ["--config", &base, "--out", &out, "--report", &report];
    let ran = run(&[&["tune"], &small[..], &time[..], &places[..]].concat());
    let told: Value =
        serde_json::from_str(ran.out.trim()).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    let candidates = told["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 2);
    for candidate in candidates {
        assert!(candidate["trials"].as_array().unwrap().len() >= 2, "{candidate}");
    }
    for file in ["tune.json", "frontier.plotly.json", "report.html"] {
        assert!(Path::new(&format!("{report}/{file}")).is_file(), "{file}");
    }
    if ran.code == 0 {
        let chosen = candidates.iter().find(|c| c["chosen"] == true).unwrap();
        assert_eq!(chosen["trials"].as_array().unwrap().len(), 5, "{chosen}");
        let text = std::fs::read_to_string(&out).unwrap();
        assert!(text.starts_with("# Written by corelane tune for 40 poisson requests/s"), "{text}");
        let config = Config::read(Path::new(&out)).unwrap();
        let core = chosen["settings"]["cores"][0].as_u64().unwrap() as u16;
        assert_eq!(config.workers, Workers::Cores(vec![CoreId(core)]));
        let batch = chosen["settings"]["max_batch_size"].as_u64().unwrap() as usize;
        assert_eq!(config.models[0].max_batch_size, Some(batch));
        // What was not tuned is kept, and paths still lead where they led.
        assert_eq!(config.log_level, log::LevelFilter::Warn);
        assert!(config.models[0].path.join("manifest.toml").is_file());
        let server = Server::start(&["--config", &out]);
        assert!(server.address("tcp:").starts_with("tcp:127.0.0.1:"));
        server.stop().ok();
    } else {
        // A machine too busy for the load.
        assert_eq!(ran.code, 1, "{ran:?}");
        let said = ["no settings held the load", "could not be measured"];
        assert!(said.iter().any(|part| ran.err.contains(part)), "{ran:?}");
        scratch.write("tuned.toml", "something");
    }
    let before = std::fs::read(&out).unwrap();
    run(&[&["tune"], &small[..], &time[..], &places[..]].concat()).says(2, "--force overwrites it");
    assert_eq!(std::fs::read(&out).unwrap(), before);
    let tune = |more: &[&str]| {
        let out = scratch.path("none.toml");
        let ran = run(&[&["tune", "--out", &out], more].concat());
        assert!(!Path::new(&out).exists(), "{ran:?}");
        ran
    };
    let of = |more: &[&str]| tune(&[&["--model", &model, "--rate", "40"], more].concat());
    tune(&["--model", &model]).says(2, "--rate");
    tune(&["--rate", "40"]).says(2, "--config");
    tune(&["--model", &model, "--rate", "0"]).says(2, "the rate is 0; it must be above 0");
    of(&["--duration", "0"]).says(2, "the duration is 0");
    of(&["--budget-s", "0"]).says(2, "the budget is 0 s");
    of(&["--budget-s", "2"]).says(2, "give a larger --budget-s");
    of(&["--profile", "busty"]).says(2, "did you mean \"bursty\"?");
    of(&["--profile", "replay:x"]).says(2, "profiles with a rate");
    of(&["--batch", "1,3"]).says(2, "--batch 3: the model has [1, 2, 4]");
    of(&["--batch", "1", "--rows", "2"]).says(2, "requests have 2 rows");
    of(&["--workers", "4000"]).says(2, "--workers 4000: there are");
    of(&["--cores", "999"]).says(3, "--cores 999: the scheduler allows this process only");
    of(&["--delay-us", "4000000000"]).says(2, "--delay-us 4000000000: at most");
    of(&["--idle", "sleepy"]).says(2, "is no idle strategy");
    of(&["--batch", "1", "--delay-us", "0", "--workers", "1", "--idle", "park"])
        .says(2, "1 combinations of settings; 2 to");
    run(&["tune", "--model", &model, "--rate", "40", "--out", "/nowhere/x.toml"])
        .says(2, "/nowhere is no directory to write to");
    let two =
        scratch.write("two.toml", "[[model]]\npath = 'm'\n[[model]]\npath = 'm'\nname = 'n'\n");
    tune(&["--config", &two, "--rate", "40"]).says(2, "has 2 models; one is tuned at a time");
    tune(&["--config", "/nowhere/c.toml", "--rate", "40"]).says(3, "/nowhere/c.toml");
    tune(&["--model", "/nowhere/m", "--rate", "40"]).says(3, "/nowhere/m");
}

#[test]
fn a_rate_beyond_the_generator_is_invalid_and_not_a_wrong_figure() {
    let scratch = Scratch::new();
    let model = scratch.fake("m", 0, "name = 'fake'\nmax_queue_size = 4000");
    let socket = scratch.path("s.sock");
    let server = Server::start(&["--model", &model, "--unix", &socket, "--unpinned", "1"]);
    let address = server.address("unix:");
    let out = scratch.path("run");
    // A send takes more than the microsecond that this schedule has for it.
    let load =
        ["load", "--connect", &address, "--rate", "1000000", "--duration", "0.5", "--out", &out];
    let ran = run(&[&load[..], &["--repeats", "1", "--profile", "steady"]].concat());
    ran.says(1, "the run is INVALID");
    let read = folder::read(Path::new(&out)).unwrap();
    assert!(!read.valid);
    assert!(
        read.findings.iter().any(|f| f.id == "generator_lag" || f.id == "blocked"),
        "{:?}",
        read.findings
    );
    server.stop().ok();
}

#[test]
fn a_full_disk_is_told_and_leaves_no_half_file() {
    let scratch = Scratch::new();
    let model = scratch.fake("m", 100, "name = 'fake'");
    let out = scratch.path("run");
    let program = env!("CARGO_BIN_EXE_corelane");
    // The limit of a file's size stands for the disk's; its signal is ignored, so that the write fails.
    let output = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" \"$@\"", program, "load"])
        .args(["--in-process", "--model", &model, "--rate", "100", "--duration", "0.3"])
        .args(["--repeats", "1", "--warmup-ms", "0", "--out", &out])
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("can't be written: File too large"), "{err}");
    let path = err.split(": ").find_map(|part| part.strip_suffix(" can't be written"));
    assert!(!Path::new(path.expect("a path")).exists(), "{err}");
    // What was written before it is whole.
    if let Ok(text) = std::fs::read_to_string(format!("{out}/metrics.json")) {
        serde_json::from_str::<Value>(&text).unwrap();
    }
}

#[test]
fn runs_of_other_models_or_inputs_are_refused_with_the_difference() {
    let scratch = Scratch::new();
    let model = scratch.fake("m", 0, "name = 'fake'");
    let (base, new) = (scratch.path("base"), scratch.path("new"));
    let load = ["load", "--in-process", "--model", &model, "--rate", "100", "--duration", "0.2"];
    ran(&[&load[..], &["--repeats", "1", "--warmup-ms", "0", "--out", &base]].concat());
    let written = folder::read(Path::new(&base)).unwrap();
    let with = |change: &dyn Fn(&mut Run)| {
        let mut run = written.clone();
        change(&mut run);
        scratch.write("new/metrics.json", serde_json::to_string(&run).unwrap());
        crate::support::run(&["compare", &base, &new])
    };
    with(&|r| r.target.model = "other".into())
        .says(2, "the runs differ in the model: fake in the base, other in the new one");
    with(&|r| r.target.signature = "x float32 (3)".into()).says(2, "differ in the model's inputs");
    with(&|r| r.series[0].name = "ramp".into()).says(2, "no series in common: poisson in the base");
    let (this, next) = (SCHEMA, SCHEMA + 1);
    with(&|r| r.schema = next).says(2, &format!("schema {next}; this version reads schema {this}"));
    scratch.write("new/metrics.json", format!("{{\"kind\":\"corelane-run\",\"schema\":{this}}}"));
    run(&["compare", &base, &new]).says(2, "is not a run's folder: metrics.json is damaged");
}

#[test]
fn a_card_has_the_boards_figures_and_lands_in_no_other_boards_file() {
    let scratch = Scratch::new();
    let model = scratch.fake("m", 100, "name = 'fake'\nmax_batch_size = 2");
    let out = scratch.path("card.json");
    let card = ["bench", "device", &model, "--budget-s", "2", "--out", &out];
    let told = run(&card).ok();
    for part in
        ["fake (engine fake, zeros rows): loaded in", "efficiency", "unix, 64 B", "wake-up: p50"]
    {
        assert!(told.out.contains(part), "no {part:?} in {told:?}");
    }
    assert!(told.out.contains("no rows for a board's file:"), "{told:?}");
    let card_json: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!((&card_json["schema"], &card_json["kind"]), (&1.into(), &"corelane-card".into()));
    let batches = card_json["models"][0]["batches"].as_array().unwrap();
    assert_eq!(batches.iter().map(|b| b["batch"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    assert!(batches[0]["request"]["p50_ns"].as_u64().unwrap() >= 100_000);
    assert_eq!(card_json["hot_path_allocations"], 0);
    assert_eq!(card_json["ways"].as_array().unwrap().len(), 4);
    run(&card).says(2, "is there already");
    let many = ["bench", "device", &model, &model, &model, &model, "--budget-s", "1"];
    run(&many).says(2, "give a larger --budget-s or fewer models");
    run(&["bench", "device", &model, "--budget-s", "0"]).says(2, "--budget-s");
    run(&["bench", "device", &model, "--board", "nowhere"]).says(3, "nowhere");
    let other = if cfg!(target_arch = "x86_64") { "rpi5" } else { "generic-x86_64" };
    run(&["bench", "device", &model, "--board", other])
        .says(3, &format!("this machine is not as board {other} says"));
    run(&["bench", "device", "/nowhere/m"]).says(3, "/nowhere/m");
    let elsewhere =
        program().args(["bench", "device"]).current_dir(scratch.path("m")).output().unwrap();
    let err = String::from_utf8_lossy(&elsewhere.stderr);
    assert!(elsewhere.status.code() == Some(2) && err.contains("name their directories"), "{err}");
}
