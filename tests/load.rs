//! The load generator against real transports: its pace, its allocations, and what a stall looks like.

use corelane::engine::fake::{FakeCompute, FakeEngine};
use corelane::engine::{
    Description, Engine, EngineError, EngineKind, Instance, PlanIndex, RunError,
};
use corelane::lab::compare::{Gate, compare};
use corelane::lab::drive::{Bench, Sending};
use corelane::lab::load::{
    Connection, End, FramePort, LocalPort, Payloads, Port, Ran, Record, Rows as InputRows,
    closed_loop, open_loop,
};
use corelane::lab::run::{self, Load, Run, Series, Severity, analysis};
use corelane::lab::schedule::{Arrival, Plan, Profile};
use corelane::model::signature::{Signature, TensorSpec};
use corelane::runtime::{ModelSetup, Runtime};
use corelane::sys::affinity;
use corelane::sys::alloc::{self, CountingAllocator};
use corelane::transport::{Server, ServerOptions, UnixOptions};
use corelane::units::{CoreId, DType, Micros, Nanos, Priority};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Allocator calls are counted for the whole process, so one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

const PATIENCE: Nanos = Nanos(20_000_000_000);
const ROW_BYTES: usize = 64;

/// An engine that stops once, in its `at`-th run.
struct Stalling {
    inner: FakeEngine,
    at: u64,
    span: Duration,
    runs: Arc<AtomicU64>,
}

struct StallingInstance {
    inner: Box<dyn Instance>,
    at: u64,
    span: Duration,
    runs: Arc<AtomicU64>,
}

impl Engine for Stalling {
    fn kind(&self) -> EngineKind {
        EngineKind::Fake
    }
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }
    fn batch_sizes(&self) -> &[usize] {
        self.inner.batch_sizes()
    }
    fn describe(&self) -> Description {
        self.inner.describe()
    }
    fn instance(&self) -> Result<Box<dyn Instance>, EngineError> {
        let Stalling { inner, at, span, runs } = self;
        let (at, span, runs) = (*at, *span, runs.clone());
        Ok(Box::new(StallingInstance { inner: inner.instance()?, at, span, runs }))
    }
}

impl Instance for StallingInstance {
    fn input_mut(&mut self, plan: PlanIndex, input: usize) -> &mut [u8] {
        self.inner.input_mut(plan, input)
    }
    fn infer(&mut self, plan: PlanIndex) -> Result<(), RunError> {
        if self.runs.fetch_add(1, Ordering::Relaxed) == self.at {
            std::thread::sleep(self.span);
        }
        self.inner.infer(plan)
    }
    fn output(&self, plan: PlanIndex, output: usize) -> &[u8] {
        self.inner.output(plan, output)
    }
}

fn engine(compute: Duration) -> FakeEngine {
    let tensor =
        |name: &str| TensorSpec { name: name.into(), dtype: DType::U8, row_shape: vec![ROW_BYTES] };
    let signature =
        Signature { inputs: vec![tensor("x")], outputs: vec![tensor("y")], batched: true };
    let compute = FakeCompute { per_run: compute, per_row: Duration::ZERO };
    FakeEngine::new(signature, &[1], compute).unwrap()
}

fn setup(engine: Arc<dyn Engine>, max_queue_size: u32) -> ModelSetup {
    ModelSetup { max_queue_size, ..ModelSetup::new("echo", engine) }
}

/// A server on the last core alone: worker and I/O thread; the generator has the first.
fn serve(model: ModelSetup, options: ServerOptions) -> (Runtime, Server, CoreId) {
    let cores = affinity::allowed().unwrap();
    let (first, last) = (cores[0], *cores.last().unwrap());
    let mut runtime = Runtime::builder().cores([last]).model(model).build().unwrap();
    let server = runtime.serve(options, Some(last)).unwrap();
    (runtime, server, first)
}

fn unix() -> (PathBuf, ServerOptions) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("corelane-load-{}-{n}.sock", std::process::id()));
    (path.clone(), ServerOptions { unix: Some(UnixOptions::new(&path)), ..Default::default() })
}

fn payloads() -> Arc<Payloads> {
    let input = InputRows { dtype: DType::U8, row_bytes: ROW_BYTES, data: Vec::new() };
    Arc::new(Payloads::new(&[input], [1], 1))
}

fn port(mut connections: Vec<Connection>, spin: Nanos) -> FramePort {
    let mut opened = None;
    for connection in &mut connections {
        opened = Some(connection.model("echo").unwrap());
    }
    let opened = opened.unwrap();
    assert_eq!(opened.inputs[0].row_bytes, ROW_BYTES);
    FramePort::new(connections, &opened, payloads(), Micros(0), Priority(0), spin)
}

fn on_core<R: Send>(core: CoreId, f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let pinned = scope.spawn(|| {
            affinity::restrict(&[core]).unwrap();
            f()
        });
        pinned.join().unwrap()
    })
}

fn plan(profile: Profile, rate_per_s: f64, span_s: f64) -> Plan {
    Plan { profile, rate_per_s, span_s, seed: 3, rows: 1, rows_max: 1 }
}

fn sent(port: &mut dyn Port, schedule: &[Arrival]) -> (Ran, Vec<Record>) {
    let mut records = vec![Record::default(); schedule.len()];
    let ran = open_loop(port, schedule, &mut records, PATIENCE);
    (ran, records)
}

#[test]
fn over_memory_sockets_and_in_process_every_request_ends_once_without_allocation() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let (path, options) = unix();
    let (runtime, server, core) = serve(setup(Arc::new(engine(Duration::ZERO)), 512), options);
    let schedule = plan(Profile::Poisson, 4000.0, 0.5).schedule().unwrap();
    let check = |name: &str, (ran, records): (Ran, Vec<Record>)| {
        assert_eq!((ran.sent, ran.broken), (schedule.len(), None), "{name}");
        assert_eq!(ran.allocator_calls, 0, "{name}");
        for record in &records {
            assert_eq!(record.end, End::Answered, "{name}");
            assert!(record.was_sent && record.planned <= record.sent && record.sent < record.done);
            assert!(record.receipt.is_some());
        }
    };
    assert!(alloc::installed());
    let address = corelane::client::Address::Unix(path);
    let sockets = || (0..4).map(|_| Connection::open(&address, None).unwrap()).collect();
    for spin in [Nanos(200_000), Nanos(u64::MAX)] {
        check("unix", on_core(core, || sent(&mut port(sockets(), spin), &schedule)));
    }
    let memory = || vec![Connection::in_memory(server.loopback().connect().unwrap()).unwrap()];
    check("memory", on_core(core, || sent(&mut port(memory(), Nanos(0)), &schedule)));
    let client = runtime.client();
    let local = || {
        let model = client.model("echo").unwrap();
        LocalPort::new(model, payloads(), Micros(0), Priority(0), 1024)
    };
    check("in process", on_core(core, || sent(&mut local(), &schedule)));
    let mut records = vec![Record::default(); 10_000];
    let span = Nanos(200_000_000);
    let ran = on_core(core, || {
        closed_loop(&mut port(sockets(), Nanos(0)), 8, 1, span, &mut records, PATIENCE)
    });
    assert_eq!((ran.broken, ran.allocator_calls), (None, 0));
    assert!(ran.sent > 8 && records[..ran.sent].iter().all(|r| r.end == End::Answered));
    drop(server);
    drop(runtime);
}

/// What the generator is for: 50,000 requests a second from one core. A figure, so it runs alone and
/// on demand: `cargo test --release --test load -- --ignored --nocapture pace`.
#[test]
#[ignore = "a measurement: needs a quiet machine with two cores"]
fn the_pace_of_fifty_thousand_a_second_is_kept() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let options = ServerOptions::default();
    let (runtime, server, core) = serve(setup(Arc::new(engine(Duration::ZERO)), 4000), options);
    let schedule = plan(Profile::Poisson, 50_000.0, 3.0).schedule().unwrap();
    let mut lags = Vec::new();
    for repeat in 0..5 {
        let (ran, records) = on_core(core, || {
            let connect = || Connection::in_memory(server.loopback().connect().unwrap()).unwrap();
            sent(&mut port((0..8).map(|_| connect()).collect(), Nanos(0)), &schedule)
        });
        let figures = analysis::repeat(&records, &ran);
        println!(
            "repeat {repeat}: {} planned, {} sent, {} answered, errors {:?}, blocked {}; lag p50 {} \
             p99 {} max {} ns; latency p50 {} p99 {} ns; {} allocator calls",
            figures.planned,
            figures.sent,
            figures.answered,
            figures.errors,
            figures.blocked,
            figures.lag.p50_ns,
            figures.lag.p99_ns,
            figures.lag.max_ns,
            figures.latency.p50_ns,
            figures.latency.p99_ns,
            ran.allocator_calls
        );
        assert_eq!(ran.allocator_calls, 0);
        assert_eq!(figures.sent, figures.planned);
        lags.push(figures.lag.p99_ns);
    }
    lags.sort();
    println!("lag p99: {} ns ({} to {} over {} repeats)", lags[2], lags[0], lags[4], lags.len());
    assert!(lags[2] < 100_000, "the median is no less than 100 us");
    drop(server);
    drop(runtime);
}

#[test]
fn a_stall_shows_in_the_open_loop_and_hides_in_the_closed_one() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let stall = Duration::from_millis(500);
    let p999 = |closed: bool| {
        let runs = Arc::new(AtomicU64::new(0));
        let inner = engine(Duration::ZERO);
        let engine = Stalling { inner, at: 500, span: stall, runs };
        let (path, options) = unix();
        let (runtime, server, core) = serve(setup(Arc::new(engine), 2048), options);
        let address = corelane::client::Address::Unix(path);
        let connections = (0..8).map(|_| Connection::open(&address, None).unwrap()).collect();
        let mut port = port(connections, Nanos(0));
        let (ran, records) = on_core(core, || {
            if closed {
                let mut records = vec![Record::default(); 3000];
                let ran = closed_loop(&mut port, 1, 1, Nanos(1 << 40), &mut records, PATIENCE);
                (ran, records)
            } else {
                sent(&mut port, &plan(Profile::Steady, 1000.0, 3.0).schedule().unwrap())
            }
        });
        assert_eq!((ran.sent, &ran.broken), (3000, &None));
        drop(server);
        drop(runtime);
        analysis::repeat(&records, &ran).latency
    };
    let (open, closed) = (p999(false), p999(true));
    println!(
        "p99.9 with a stall of 500 ms: open loop {} ns, closed loop {} ns",
        open.p999_ns, closed.p999_ns
    );
    // Both met it.
    let stall_ns = stall.as_nanos() as u64;
    assert!(open.max_ns >= stall_ns && closed.max_ns >= stall_ns);
    // Of 3000 requests, some 500 were due in half a second.
    assert!(open.p999_ns > stall_ns * 9 / 10, "{open:?}");
    assert!(open.p90_ns > stall_ns / 10, "{open:?}");
    assert!(closed.p999_ns < open.p999_ns / 2, "{closed:?}");
}

#[test]
fn a_server_that_dies_in_mid_run_leaves_partial_results_that_are_marked() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let (path, options) = unix();
    let (runtime, server, core) = serve(setup(Arc::new(engine(Duration::ZERO)), 64), options);
    let address = corelane::client::Address::Unix(path);
    let bench = Bench::remote(&address, None, "echo").unwrap();
    let how = Sending { core: Some(core), warm_up: Nanos(0), ..Sending::default() };
    let load = Load::Open { plan: plan(Profile::Steady, 500.0, 4.0) };
    let (repeat, _) = std::thread::scope(|scope| {
        let killer = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(700));
            drop(server);
        });
        let repeat = bench.repeat(&load, 0, &how).unwrap();
        killer.join().unwrap();
        repeat
    });
    assert!(repeat.broken.is_some(), "{repeat:?}");
    assert!(repeat.answered > 50 && repeat.sent < repeat.planned, "{repeat:?}");
    let broken = repeat.findings.iter().find(|f| f.id == "broken").expect("the mark");
    assert_eq!(broken.severity, Severity::Invalid);
    drop(runtime);
}

#[test]
fn a_rate_beyond_the_server_is_marked_and_its_latency_counts_from_the_plan() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let (path, options) = unix();
    let options = ServerOptions { in_flight_max: 4, ..options };
    let slow = Arc::new(engine(Duration::from_millis(5)));
    let (runtime, server, core) = serve(setup(slow, 64), options);
    let address = corelane::client::Address::Unix(path);
    let bench = Bench::remote(&address, None, "echo").unwrap();
    let how = Sending { connections: 1, core: Some(core), warm_up: Nanos(0), ..Sending::default() };
    // 200 a second is all that it can do.
    let load = Load::Open { plan: plan(Profile::Steady, 400.0, 1.0) };
    let (repeat, _) = bench.repeat(&load, 0, &how).unwrap();
    assert!(repeat.findings.iter().any(|f| f.id == "blocked" && f.severity == Severity::Invalid));
    assert_eq!(repeat.answered, 400);
    assert!(repeat.latency.p99_ns > 800_000_000, "{repeat:?}");
    assert!(repeat.latency_from_send.p99_ns < repeat.latency.p99_ns / 2, "{repeat:?}");
    assert!(repeat.cpu_us_per_request.unwrap() > 0.0, "{repeat:?}");
    drop(server);
    drop(runtime);
}

/// An engine whose run sleeps, and holds a lock meanwhile if it has one: what a careless cache of
/// results, shared by all workers, does.
struct Sleeping {
    inner: FakeEngine,
    span: Duration,
    lock: Option<Arc<Mutex<()>>>,
}

struct SleepingInstance {
    inner: Box<dyn Instance>,
    span: Duration,
    lock: Option<Arc<Mutex<()>>>,
}

impl Engine for Sleeping {
    fn kind(&self) -> EngineKind {
        EngineKind::Fake
    }
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }
    fn batch_sizes(&self) -> &[usize] {
        self.inner.batch_sizes()
    }
    fn describe(&self) -> Description {
        self.inner.describe()
    }
    fn instance(&self) -> Result<Box<dyn Instance>, EngineError> {
        let Sleeping { inner, span, lock } = self;
        let (span, lock) = (*span, lock.clone());
        Ok(Box::new(SleepingInstance { inner: inner.instance()?, span, lock }))
    }
}

impl Instance for SleepingInstance {
    fn input_mut(&mut self, plan: PlanIndex, input: usize) -> &mut [u8] {
        self.inner.input_mut(plan, input)
    }
    fn infer(&mut self, plan: PlanIndex) -> Result<(), RunError> {
        let _held = self.lock.as_ref().map(|lock| lock.lock().unwrap());
        std::thread::sleep(self.span);
        self.inner.infer(plan)
    }
    fn output(&self, plan: PlanIndex, output: usize) -> &[u8] {
        self.inner.output(plan, output)
    }
}

/// The first half of the story: a lock around the run, shared by four workers, makes p99 explode at a
/// rate that the plain build holds, and the gate fails it. The runs sleep, so that no core is needed.
#[test]
fn a_lock_shared_by_all_workers_fails_the_gate() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let measured = |lock: Option<Arc<Mutex<()>>>| {
        let engine =
            Sleeping { inner: engine(Duration::ZERO), span: Duration::from_millis(4), lock };
        let model = setup(Arc::new(engine), 2048);
        let runtime = Runtime::builder().unpinned(4).model(model).build().unwrap();
        let bench = Bench::local(&runtime.client(), "echo").unwrap();
        let how = Sending { warm_up: Nanos(0), ..Sending::default() };
        // Four workers hold about 900 a second, one at a time about 240.
        let load = Load::Open { plan: plan(Profile::Steady, 500.0, 0.5) };
        let repeats = (0..5).map(|n| bench.repeat(&load, n, &how).unwrap().0).collect();
        let series = Series::new("steady".into(), load, repeats);
        Run {
            schema: run::SCHEMA,
            kind: run::KIND.into(),
            version: String::new(),
            label: String::new(),
            started_unix_s: 0,
            machine: bench.machine().clone(),
            target: bench.target.clone(),
            valid: true,
            findings: Vec::new(),
            metrics: Default::default(),
            series: vec![series],
            sweep: None,
        }
    };
    let (plain, locked) = (measured(None), measured(Some(Arc::default())));
    let comparison = compare(&plain, &locked).unwrap();
    let gate = Gate::parse("gate.toml", "latency_p99 = \"10%\"\nthroughput = \"5%\"").unwrap();
    let broken = gate.broken(&comparison);
    println!("{}\n{broken:?}", comparison.headline());
    assert!(broken.iter().any(|b| b.starts_with("steady latency_p99_us is")), "{broken:?}");
    let p99 = |run: &Run| run.series[0].summary["latency_p99_us"].median;
    assert!(p99(&locked) > 3.0 * p99(&plain), "{} and {}", p99(&plain), p99(&locked));
}
