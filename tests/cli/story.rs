//! The story of the lab, for real: two careless changes, and what finds them. The page `docs::story`
//! tells it with the figures of one run.
//!
//! A build is this program once more, as a server with an engine of its own (see `serves`). Times are
//! real, so these tests are run by name (`.ci/run story`): each has effects many times as large as what
//! a busy machine does, or counts how often a verdict was right. The same in simulated time is in
//! `lab::compare`'s own tests. `CORELANE_STORY_OUT=DIR` keeps the folders.

use crate::lab::make_valid;
use crate::support::{Ran, Scratch, program, run};
use corelane::engine::fake::{FakeCompute, FakeEngine};
use corelane::engine::{
    Description, Engine, EngineError, EngineKind, Instance, PlanIndex, RunError,
};
use corelane::lab::compare::{Verdict, compare};
use corelane::lab::run::{Profiled, Run, folder};
use corelane::model::signature::{Signature, TensorSpec};
use corelane::runtime::{ModelSetup, Runtime};
use corelane::sys::affinity;
use corelane::transport::{ServerOptions, UnixOptions};
use corelane::units::{DType, Rows};
use serde_json::Value;
use std::hint::black_box;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a build is made of, for the child that serves it.
const BUILD: &str = "CORELANE_STORY_BUILD";
/// Its socket.
const SOCKET: &str = "CORELANE_STORY_SOCKET";

/// Work that can be counted: each step waits for the one before.
#[inline(never)]
fn compute(steps: u64) {
    let mut x = 0x9E37_79B9_7F4A_7C15u64;
    for _ in 0..steps {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x);
}

/// A copy as one writes it in a hurry: element by element, into a vector that grows.
#[inline(never)]
fn copy_in_a_hurry(input: &[u8]) -> Vec<u8> {
    let mut copy = Vec::new();
    for byte in input {
        copy.push(black_box(*byte));
    }
    copy
}

/// What is done around each run of the model.
#[derive(Clone)]
enum Around {
    Nothing,
    /// One lock for all workers, held while the model runs.
    CarelessCache(Arc<Mutex<u64>>),
    /// One copy more of each payload.
    ExtraCopy,
}

/// A run of the model: it computes, and then waits for a device without using the processor.
#[derive(Clone)]
struct Work {
    device: Duration,
    steps: u64,
    around: Around,
}

impl Work {
    #[inline(never)]
    fn run_model(&self) {
        compute(self.steps);
        if !self.device.is_zero() {
            std::thread::sleep(self.device);
        }
    }

    /// Looks an answer up in a cache, and computes it if it is not there, which is always. The lock
    /// is held meanwhile.
    #[inline(never)]
    fn careless_look_up(&self, misses: &Mutex<u64>) {
        let mut misses = misses.lock().unwrap();
        self.run_model();
        *misses += 1;
    }

    fn turn(&self, input: &[u8]) {
        match &self.around {
            Around::Nothing => self.run_model(),
            Around::CarelessCache(misses) => self.careless_look_up(misses),
            Around::ExtraCopy => {
                black_box(copy_in_a_hurry(input));
                self.run_model();
            }
        }
    }
}

struct Model {
    inner: FakeEngine,
    work: Work,
}

struct ModelInstance {
    inner: Box<dyn Instance>,
    work: Work,
}

impl Model {
    fn new(row_bytes: usize, sizes: &[usize], work: Work) -> Model {
        let tensor = |name: &str, bytes: usize| TensorSpec {
            name: name.into(),
            dtype: DType::U8,
            row_shape: vec![bytes],
        };
        let (inputs, outputs) = (vec![tensor("x", row_bytes)], vec![tensor("y", 4)]);
        let signature = Signature { inputs, outputs, batched: true };
        Model { inner: FakeEngine::new(signature, sizes, FakeCompute::default()).unwrap(), work }
    }
}

impl Engine for Model {
    fn kind(&self) -> EngineKind {
        self.inner.kind()
    }
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }
    fn batch_sizes(&self) -> &[usize] {
        self.inner.batch_sizes()
    }
    fn describe(&self) -> Description {
        Description { allocation_free: false, ..self.inner.describe() }
    }
    fn instance(&self) -> Result<Box<dyn Instance>, EngineError> {
        Ok(Box::new(ModelInstance { inner: self.inner.instance()?, work: self.work.clone() }))
    }
}

impl Instance for ModelInstance {
    fn input_mut(&mut self, plan: PlanIndex, input: usize) -> &mut [u8] {
        self.inner.input_mut(plan, input)
    }
    fn infer(&mut self, plan: PlanIndex) -> Result<(), RunError> {
        self.work.turn(self.inner.input_mut(plan, 0));
        self.inner.infer(plan)
    }
    fn output(&self, plan: PlanIndex, output: usize) -> &[u8] {
        self.inner.output(plan, output)
    }
    fn infer_direct(
        &mut self,
        plan: PlanIndex,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), RunError> {
        self.work.turn(inputs[0]);
        self.inner.infer_direct(plan, inputs, outputs)
    }
}

/// What a build is made of.
struct Build {
    /// `plain`, `lock` or `copy`.
    kind: &'static str,
    workers: usize,
    row_bytes: usize,
    rows_max: usize,
    device: Duration,
    steps: u64,
}

/// A build that serves until it is dropped.
struct Served {
    child: Child,
    address: String,
}

impl Build {
    fn serve(&self, scratch: &Scratch, name: &str) -> Served {
        let socket = scratch.path(&format!("{name}.sock"));
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "story::serves", "--nocapture"])
            .env(BUILD, self.text())
            .env(SOCKET, &socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let served = Served { child, address: format!("unix:{socket}") };
        let patience = Instant::now() + Duration::from_secs(30);
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < patience, "{name} does not serve");
            std::thread::sleep(Duration::from_millis(20));
        }
        served
    }

    fn text(&self) -> String {
        let Build { kind, workers, row_bytes, rows_max, device, steps } = self;
        format!("{kind} {workers} {row_bytes} {rows_max} {} {steps}", device.as_nanos())
    }

    fn parse(text: &str) -> (String, [usize; 5]) {
        let (kind, numbers) = text.split_once(' ').unwrap();
        let numbers: Vec<usize> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
        (kind.into(), numbers.try_into().unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test of its own: what a child does that serves a build.
#[test]
#[ignore = "the server of the other tests of the story"]
fn serves() {
    let Ok(build) = std::env::var(BUILD) else { return };
    let (kind, [workers, row_bytes, rows_max, device_ns, steps]) = Build::parse(&build);
    let around = match kind.as_str() {
        "lock" => Around::CarelessCache(Arc::default()),
        "copy" => Around::ExtraCopy,
        _ => Around::Nothing,
    };
    let sizes: Vec<usize> = (0..).map(|n| 1 << n).take_while(|n| *n <= rows_max).collect();
    let work = Work { device: Duration::from_nanos(device_ns as u64), steps: steps as u64, around };
    let setup = ModelSetup {
        max_request_rows: Rows(rows_max as u16),
        ..ModelSetup::new("story", Arc::new(Model::new(row_bytes, &sizes, work)))
    };
    let builder = match workers {
        // The last core, so that the generator takes another.
        1 => Runtime::builder().cores(affinity::allowed().unwrap().last().copied()),
        _ => Runtime::builder().unpinned(workers),
    };
    let mut runtime = builder.model(setup).build().unwrap();
    let unix = Some(UnixOptions::new(std::env::var(SOCKET).unwrap()));
    let _server = runtime.serve(ServerOptions { unix, ..ServerOptions::default() }, None).unwrap();
    loop {
        // Until it is killed.
        std::thread::park();
    }
}

/// Median time of `f` in nanoseconds.
fn time(mut f: impl FnMut()) -> u64 {
    let mut times: Vec<u64> = (0..21)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_nanos() as u64
        })
        .collect();
    times.sort_unstable();
    times[10]
}

/// Steps that take about so long on this machine.
fn steps_of(span: Duration) -> u64 {
    let steps = 1_000_000;
    (steps as f64 * span.as_nanos() as f64 / time(|| compute(steps)) as f64) as u64
}

/// Where a test's folders are: kept, if that is wanted.
fn folder_of(scratch: &Scratch, name: &str) -> String {
    match std::env::var("CORELANE_STORY_OUT") {
        Ok(dir) => format!("{dir}/{name}"),
        Err(_) => scratch.path(name),
    }
}

/// Measures a change against the plain build, in turns, and compares: the comparison as text and as
/// JSON.
fn story(scratch: &Scratch, name: &str, builds: [&Build; 2], how: &[&str]) -> (Ran, Value) {
    let (plain, change) = (builds[0].serve(scratch, "plain"), builds[1].serve(scratch, "change"));
    let [base, new, out] =
        ["plain", builds[1].kind, "comparison"].map(|n| folder_of(scratch, &format!("{name}/{n}")));
    let mut load = vec!["load", "--connect", &plain.address, "--against", &change.address];
    load.extend(["--flame-graph", "--warmup-ms", "50", "--out", &base, "--label", "plain"]);
    load.extend(["--against-out", &new, "--against-label", builds[1].kind]);
    load.extend(how);
    let ran = run(&load);
    println!("{}{}", ran.out, ran.err);
    assert!(ran.code == 0 || ran.err.contains("INVALID"), "{ran:?}");
    // A busy machine may make a run invalid; the effects here are larger than that.
    for dir in [&base, &new] {
        make_valid(dir);
        let run: Run = folder::read(Path::new(dir)).unwrap();
        for series in &run.series {
            assert!(matches!(series.profile, Some(Profiled::Taken { .. })), "{:?}", series.profile);
        }
    }
    let gate = scratch.write("gate.toml", "latency_p99 = \"10%\"\n");
    let ran = run(&["compare", &base, &new, "--gate", &gate, "--out", &out]);
    println!("{}{}", ran.out, ran.err);
    let told = std::fs::read_to_string(format!("{out}/comparison.json")).unwrap();
    (ran, serde_json::from_str(&told).unwrap())
}

/// The function of a series whose share of CPU time moved most.
fn moved_most(told: &Value, series: &str) -> (String, f64) {
    let all = told["functions"].as_array().unwrap();
    let first = all.iter().find(|f| f["series"] == series).unwrap();
    assert_eq!(first["more_than_noise"], true, "{first}");
    (first["function"].as_str().unwrap().into(), first["points"].as_f64().unwrap())
}

#[test]
#[ignore = "real time, half a minute, and perf: `.ci/run story`"]
fn a_lock_around_the_model_is_failed_by_the_gate_and_named_by_the_flame_graph() {
    let scratch = Scratch::new();
    let plain = Build {
        kind: "plain",
        workers: 2,
        row_bytes: 64,
        rows_max: 1,
        device: Duration::from_micros(4000),
        steps: steps_of(Duration::from_micros(500)),
    };
    let lock = Build { kind: "lock", ..plain };
    // Two workers do 440 a second, one behind the other 220.
    let how = ["--profile", "poisson", "--rate", "300", "--duration", "2", "--repeats", "5"];
    let (ran, told) = story(&scratch, "lock", [&plain, &lock], &how);
    ran.says(1, "the gate is broken: poisson latency_p99_us is");
    let p99 = told["changes"].as_array().unwrap().iter().find(|c| c["metric"] == "latency_p99_us");
    assert!(p99.unwrap()["percent"].as_f64().unwrap() > 400.0, "{p99:?}");
    let (function, points) = moved_most(&told, "poisson");
    assert!(function.contains("careless_look_up") && points > 20.0, "{function} {points}");
}

#[test]
#[ignore = "real time, a minute, perf, and a core to spare: `.ci/run story`"]
fn an_extra_copy_is_found_on_the_heavy_tailed_profile_only() {
    let scratch = Scratch::new();
    let row = vec![7u8; 128 * 1024];
    // The copy of one row is less than 2 in 100 of a run, whatever the machine: not worth a word.
    let copy_ns = time(|| drop(black_box(copy_in_a_hurry(&row))));
    let plain = Build {
        kind: "plain",
        // Enough that no request waits for another: the device does the work, not the processor.
        workers: 12,
        row_bytes: row.len(),
        rows_max: 16,
        device: Duration::from_nanos(60 * copy_ns),
        steps: 0,
    };
    let copy = Build { kind: "copy", ..plain };
    let how = ["--profile", "poisson", "--profile", "heavy-tailed", "--rate", "100"];
    let how = [&how[..], &["--duration", "3", "--repeats", "5"]].concat();
    let (ran, told) = story(&scratch, "copy", [&plain, &copy], &how);
    ran.says(1, "the gate is broken: heavy-tailed latency_p99_us is");
    assert!(told["broken"].as_array().unwrap().len() == 1, "{told}");
    for change in told["changes"].as_array().unwrap() {
        let is_latency = change["metric"].as_str().unwrap().starts_with("latency_p99_us");
        if is_latency {
            assert_eq!(
                change["verdict"] == "worse",
                change["series"] == "heavy-tailed",
                "{change}"
            );
        }
    }
    let (function, _) = moved_most(&told, "heavy-tailed");
    assert!(function.contains("copy_in_a_hurry"), "{function}");
}

/// Pairs of builds of which the second has more steps, by so many percent: how many pairs are told
/// apart, and what was said of the others.
fn told_apart(percent: u64, pairs: u64, seed: u64) -> u64 {
    let scratch = Scratch::new();
    let plain = Build {
        kind: "plain",
        workers: 1,
        row_bytes: 64,
        rows_max: 1,
        device: Duration::ZERO,
        steps: steps_of(Duration::from_micros(1000)),
    };
    let other = Build { steps: plain.steps * (100 + percent) / 100, ..plain };
    let (plain, other) = (plain.serve(&scratch, "plain"), other.serve(&scratch, "other"));
    let mut apart = 0;
    for pair in 0..pairs {
        let [base, new] =
            ["base", "new"].map(|n| folder_of(&scratch, &format!("{percent}/{pair}/{n}")));
        let mut command = program();
        command.args(["load", "--connect", &plain.address, "--against", &other.address]);
        command.args(["--out", &base, "--against-out", &new, "--warmup-ms", "20", "--rate", "200"]);
        command.args([
            "--duration",
            "0.6",
            "--repeats",
            "5",
            "--seed",
            &(seed + 100 * pair).to_string(),
        ]);
        let ran = command.output().unwrap();
        let [base, new] = [&base, &new].map(|dir| folder::read(Path::new(dir)).unwrap());
        let comparison = compare(&base, &new).unwrap();
        let worse =
            |c: &&corelane::lab::compare::Change| percent == 0 || c.verdict == Verdict::Worse;
        let found = comparison.differences().filter(worse).count() > 0;
        apart += u64::from(found);
        println!("{percent} % more, pair {}: {}", pair + 1, comparison.headline());
        for reason in String::from_utf8_lossy(&ran.stdout).lines().filter(|l| l.contains("INVALID"))
        {
            println!("    {reason}");
        }
    }
    println!("{percent} % more: told apart in {apart} of {pairs} pairs");
    apart
}

#[test]
#[ignore = "real time, two minutes: `.ci/run story`"]
fn the_same_build_is_no_different_and_ten_percent_are_found() {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
    };
    // In parts, where a machine can be had for so long only.
    let (pairs, seed) = (number("CORELANE_STORY_PAIRS", 10), number("CORELANE_STORY_SEED", 1));
    let wrong = told_apart(0, pairs, seed);
    let found = told_apart(10, pairs, seed);
    // 9 of 10, and as many of fewer.
    assert!(10 * wrong <= pairs, "{wrong} of {pairs} pairs of the same build are told apart");
    assert!(10 * (pairs - found) <= pairs, "10 % are found in {found} of {pairs} pairs");
}
