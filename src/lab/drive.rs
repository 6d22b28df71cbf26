//! Drives runs: connects, warms up, repeats, watches the server and the machine meanwhile.

use super::load::{
    self, ConnectError, Connection, FramePort, LocalPort, Opened, Payloads, Port, Ran, Record, Rows,
};
use super::profile::{ProfileError, Profiler, Stacks};
use super::run::{Bound, Load, Repeat, Series, Target, analysis};
use super::schedule::{Arrival, Plan, Profile, ScheduleError, trace};
use super::system::{Machine, State, SystemFiles};
use super::validity::{self, Around};
use super::watch::{Detail, Watch};
use crate::client::{Address, Client, ClientError, Options, TensorInfo};
use crate::limits::LAB_REQUESTS_MAX;
use crate::runtime::LocalClient;
use crate::sys::sync::Arc;
use crate::sys::{affinity, clock};
use crate::units::{CoreId, Micros, Nanos, Priority};
use crate::wire::Key;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// How long answers are waited for after the last planned send.
const PATIENCE: Nanos = Nanos(10_000_000_000);
/// Records made for each second of a closed loop, at most.
const CLOSED_PER_S: f64 = 200_000.0;
/// In flight in this process.
const LOCAL_IN_FLIGHT: usize = 4096;
/// How long a generator sleeps that shares a core with a worker.
const LOCAL_NAP: Nanos = Nanos(50_000);
/// Steps of the yardstick's work: some milliseconds.
const YARDSTICK_STEPS: u32 = 2_000_000;
/// Times that it is done.
const YARDSTICK_TURNS: u32 = 5;
/// The generator's thread.
const GENERATOR_THREAD: &str = "cl-load";
/// How long the server may take for its statistics.
const STATS_PATIENCE: Duration = Duration::from_secs(5);

/// Why a run could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum DriveError {
    /// The server can't be reached, or said no.
    Connect {
        /// Where.
        address: String,
        /// Why.
        source: ConnectError,
    },
    /// The server's statistics can't be had.
    Stats {
        /// Where.
        address: String,
        /// Why.
        source: ClientError,
    },
    /// The generator's core.
    Affinity(affinity::AffinityError),
    /// There is no schedule.
    Schedule(ScheduleError),
    /// The trace can't be read.
    Trace(trace::TraceError),
    /// The request does not fit the model.
    Request(String),
    /// The system gave no thread.
    System(std::io::Error),
}

impl fmt::Display for DriveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriveError::Connect { address, source } => write!(f, "{address}: {source}"),
            DriveError::Stats { address, source } => {
                write!(f, "{address}: no statistics: {source}")
            }
            DriveError::Affinity(error) => write!(f, "the generator: {error}"),
            DriveError::Schedule(error) => error.fmt(f),
            DriveError::Trace(error) => error.fmt(f),
            DriveError::Request(text) => f.write_str(text),
            DriveError::System(error) => write!(f, "the system refused: {error}"),
        }
    }
}

impl std::error::Error for DriveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DriveError::Connect { source, .. } => Some(source),
            DriveError::Stats { source, .. } => Some(source),
            DriveError::Affinity(error) => Some(error),
            DriveError::Schedule(error) => Some(error),
            DriveError::Trace(error) => Some(error),
            DriveError::System(error) => Some(error),
            DriveError::Request(_) => None,
        }
    }
}

impl From<ScheduleError> for DriveError {
    fn from(error: ScheduleError) -> Self {
        DriveError::Schedule(error)
    }
}

/// How requests are sent.
#[derive(Debug, Clone)]
pub struct Sending {
    /// Connections to a server.
    pub connections: usize,
    /// Deadline of each request; 0 takes the model's.
    pub timeout: Micros,
    /// Priority; 0 takes the model's.
    pub priority: Priority,
    /// The generator's core.
    pub core: Option<CoreId>,
    /// How long before a planned send the generator stops sleeping and spins.
    pub spin: Nanos,
    /// How long requests are sent before each series, not counted.
    pub warm_up: Nanos,
}

impl Default for Sending {
    fn default() -> Self {
        Sending {
            connections: 8,
            timeout: Micros(0),
            priority: Priority(0),
            core: None,
            spin: Nanos(200_000),
            warm_up: Nanos(300_000_000),
        }
    }
}

/// What was seen between the warm-up and the run; `cpu` is the generator's, of the run in the end.
struct Before {
    yardstick: Nanos,
    state: State,
    ticks: BTreeMap<u16, u64>,
    stats: Option<Value>,
    cpu: Nanos,
}

type Connect = dyn Fn(Arc<Payloads>, &Sending) -> Result<Box<dyn Port>, DriveError> + Sync;
type Probe = dyn FnMut() -> Option<Value> + Send;

/// A model to measure: in this process, or behind a socket.
pub struct Bench {
    /// What is measured, as the run's folder says.
    pub target: Target,
    /// Inputs; `data` may be filled with rows to send, else they are random.
    pub inputs: Vec<Rows>,
    /// The same as the model names them.
    pub tensors: Vec<TensorInfo>,
    /// Most rows of one request.
    pub rows_max: u16,
    /// The machine's files.
    pub files: SystemFiles,
    machine: Machine,
    connect: Box<Connect>,
    probe: Mutex<Box<Probe>>,
    /// The server's process, where its workers' times are to be read.
    pid: Option<u32>,
    in_process: bool,
}

fn signature_text(inputs: &[TensorInfo]) -> String {
    let tensor = |t: &TensorInfo| {
        let axes: Vec<String> = t.row_shape.iter().map(usize::to_string).collect();
        format!("{} {} ({})", t.name, t.dtype, axes.join(","))
    };
    inputs.iter().map(tensor).collect::<Vec<_>>().join("; ")
}

impl Bench {
    /// A model of a server.
    ///
    /// # Errors
    /// The server can't be reached, wants a key, or has no such model.
    pub fn remote(address: &Address, key: Option<&Key>, model: &str) -> Result<Bench, DriveError> {
        let name = address.to_string();
        let at = |source| DriveError::Connect { address: name.clone(), source };
        let opened = Connection::open(address, key).and_then(|mut c| c.model(model)).map_err(at)?;
        let options = Options {
            name: "corelane-lab".into(),
            key: key.cloned(),
            timeout: Some(STATS_PATIENCE),
        };
        let mut client = Client::connect(address, options)
            .map_err(|source| DriveError::Stats { address: name.clone(), source })?;
        let probe = move || serde_json::from_str(&client.stats().ok()?).ok();
        let (address, key, model_name) = (address.clone(), key.cloned(), model.to_string());
        let connect = move |payloads: Arc<Payloads>, how: &Sending| {
            let at = |source| DriveError::Connect { address: address.to_string(), source };
            let mut connections = Vec::new();
            let mut opened: Option<Opened> = None;
            for _ in 0..how.connections.max(1) {
                let mut connection = Connection::open(&address, key.as_ref()).map_err(at)?;
                opened = Some(connection.model(&model_name).map_err(at)?);
                connections.push(connection);
            }
            let opened = opened.ok_or_else(|| DriveError::Request("no connection".into()))?;
            let port =
                FramePort::new(connections, &opened, payloads, how.timeout, how.priority, how.spin);
            Ok(Box::new(port) as Box<dyn Port>)
        };
        let mut bench = Bench::new(
            name,
            model,
            opened.inputs,
            if opened.batched { opened.rows_max } else { 1 },
            Box::new(connect),
            Box::new(probe),
        );
        bench.ask_server();
        Ok(bench)
    }

    /// A model in this process.
    ///
    /// # Errors
    /// There is no such model.
    pub fn local(client: &LocalClient, model: &str) -> Result<Bench, DriveError> {
        let handle = client.model(model).map_err(|e| DriveError::Request(e.to_string()))?;
        let inputs = handle
            .signature()
            .inputs
            .iter()
            .map(|spec| TensorInfo {
                name: spec.name.clone(),
                dtype: spec.dtype,
                row_shape: spec.row_shape.clone(),
                row_bytes: spec.row_bytes(),
            })
            .collect();
        let rows_max = handle.max_request_rows().0;
        let stats = client.clone();
        let probe = move || serde_json::to_value(stats.stats()).ok();
        let workers: Vec<u16> = client.stats().workers.iter().filter_map(|w| w.core).collect();
        let connect = move |payloads: Arc<Payloads>, how: &Sending| {
            let (timeout, priority) = (how.timeout, how.priority);
            let handle = handle.clone();
            let mut port = LocalPort::new(handle, payloads, timeout, priority, LOCAL_IN_FLIGHT);
            // Spinning would take the core from the worker.
            if how.core.map_or(!workers.is_empty(), |core| workers.contains(&core.0)) {
                port = port.napping(LOCAL_NAP);
            }
            Ok(Box::new(port) as Box<dyn Port>)
        };
        let mut bench = Bench::new(
            "in process".into(),
            model,
            inputs,
            rows_max,
            Box::new(connect),
            Box::new(probe),
        );
        bench.in_process = true;
        bench.ask_server();
        Ok(bench)
    }

    fn new(
        address: String,
        model: &str,
        tensors: Vec<TensorInfo>,
        rows_max: u16,
        connect: Box<Connect>,
        probe: Box<Probe>,
    ) -> Bench {
        let files = SystemFiles::default();
        let inputs = tensors
            .iter()
            .map(|t| Rows { dtype: t.dtype, row_bytes: t.row_bytes, data: Vec::new() })
            .collect();
        let target = Target {
            address,
            model: model.into(),
            signature: signature_text(&tensors),
            engine: None,
            server_version: None,
            worker_cores: Vec::new(),
            generator_core: None,
        };
        Bench {
            target,
            inputs,
            tensors,
            rows_max,
            machine: files.machine(),
            files,
            connect,
            probe: Mutex::new(probe),
            pid: None,
            in_process: false,
        }
    }

    /// What the server says of itself.
    fn ask_server(&mut self) {
        let Some(stats) = self.stats() else { return };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        self.target.server_version = text(&stats["process"]["version"]);
        self.target.engine = stats["models"]
            .as_array()
            .and_then(|models| models.iter().find(|m| m["name"] == *self.target.model))
            .and_then(|m| text(&m["engine"]));
        self.target.worker_cores = stats["workers"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|w| w["core"].as_u64().map(|c| c as u16))
            .collect();
        // Its number means something here only if it is a process of this machine.
        let is_here = ["in process", "unix:", "tcp:127.", "tcp:localhost:", "tcp:[::1]"]
            .iter()
            .any(|start| self.target.address.starts_with(start));
        self.pid = stats["process"]["pid"].as_u64().filter(|_| is_here).map(|pid| pid as u32);
    }

    /// A snapshot of the server's statistics.
    pub fn stats(&self) -> Option<Value> {
        let mut probe = self.probe.lock().unwrap_or_else(|e| e.into_inner());
        probe()
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The allowed core for the generator: the first without a worker.
    pub fn free_core(&self) -> Option<CoreId> {
        let workers: Vec<u16> = self.target.worker_cores.iter().flatten().copied().collect();
        let allowed = affinity::allowed().ok()?;
        allowed.into_iter().find(|core| !workers.contains(&core.0))
    }

    fn schedule(&self, plan: &Plan) -> Result<Vec<Arrival>, DriveError> {
        let schedule = match &plan.profile {
            Profile::Replay { file } => {
                trace::Trace::read(Path::new(file)).map_err(DriveError::Trace)?.arrivals
            }
            _ => plan.schedule()?,
        };
        self.check_rows(schedule.iter().map(|a| a.rows).max().unwrap_or(1))?;
        Ok(schedule)
    }

    fn payloads(&self, load: &Load, rows: &[u16], seed: u64) -> Result<Payloads, DriveError> {
        let payloads = Payloads::new(&self.inputs, rows.iter().copied(), seed);
        let Load::Open { plan: Plan { profile: Profile::Replay { file }, .. } } = load else {
            return Ok(payloads);
        };
        let recorded = trace::RecordedPayloads::read(Path::new(file), rows.len())
            .map_err(DriveError::Trace)?;
        let Some(recorded) = recorded else { return Ok(payloads) };
        payloads.with_recorded(&self.inputs, rows, recorded.0).map_err(|(n, has, needs)| {
            let rows = rows[n];
            DriveError::Request(format!(
                "arrival {n} of {file} has a payload of {has} bytes; {rows} rows of model {} are \
                 {needs}",
                self.target.model
            ))
        })
    }

    fn check_rows(&self, rows: u16) -> Result<(), DriveError> {
        if rows <= self.rows_max && rows > 0 {
            return Ok(());
        }
        let text = format!(
            "requests of {rows} rows; model {} takes 1 to {}",
            self.target.model, self.rows_max
        );
        Err(DriveError::Request(text))
    }

    /// Measures one repeat; `n` changes the schedule's seed, so that repeats are samples and not
    /// copies.
    ///
    /// # Errors
    /// The load makes no sense, or the server can't be reached. A server that is lost during the repeat
    /// is no error: what was measured is kept, and marked.
    pub fn repeat(
        &self,
        load: &Load,
        n: u64,
        how: &Sending,
    ) -> Result<(Repeat, Detail), DriveError> {
        let (schedule, rows, capacity) = match load {
            Load::Open { plan } => {
                let plan = Plan { seed: plan.seed.wrapping_add(n), ..plan.clone() };
                let schedule = self.schedule(&plan)?;
                let rows: Vec<u16> = schedule.iter().map(|a| a.rows).collect();
                let capacity = schedule.len();
                (schedule, rows, capacity)
            }
            Load::Closed { rows, span_s, .. } => {
                self.check_rows(*rows)?;
                let capacity = (span_s * CLOSED_PER_S).clamp(1000.0, LAB_REQUESTS_MAX as f64);
                (Vec::new(), vec![*rows], capacity as usize)
            }
        };
        let payloads = Arc::new(self.payloads(load, &rows, n)?);
        let mut records = vec![Record::default(); capacity];
        let ticks = || self.pid.map_or(BTreeMap::new(), |pid| self.files.bound_thread_ticks(pid));
        let generator = |records: &mut [Record]| -> Result<(Ran, Before), DriveError> {
            if let Some(core) = how.core {
                affinity::restrict(&[core]).map_err(DriveError::Affinity)?;
            }
            // A millisecond of slack is harmless to a server and fatal to a schedule.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
            let mut port = (self.connect)(payloads.clone(), how)?;
            let first = rows.first().copied().unwrap_or(1);
            if how.warm_up.0 > 0 {
                let mut scratch = vec![Record::default(); 100_000];
                load::closed_loop(&mut *port, 1, first, how.warm_up, &mut scratch, PATIENCE);
            }
            // What the warm-up costs is not the run's.
            let before = Before {
                yardstick: yardstick(),
                state: self.files.state(),
                ticks: ticks(),
                stats: self.stats(),
                cpu: clock::thread_cpu(),
            };
            let ran = match load {
                Load::Open { .. } => load::open_loop(&mut *port, &schedule, records, PATIENCE),
                Load::Closed { concurrency, span_s, rows } => {
                    let span = Nanos((span_s * 1e9) as u64);
                    load::closed_loop(&mut *port, *concurrency, *rows, span, records, PATIENCE)
                }
            };
            Ok((ran, Before { cpu: clock::thread_cpu().since(before.cpu), ..before }))
        };
        let watch = Watch::new(&self.files);
        let outcome = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name(GENERATOR_THREAD.into())
                .spawn_scoped(scope, || generator(&mut records));
            let thread = thread.map_err(DriveError::System)?;
            watch.until(&self.files, || thread.is_finished(), || self.stats());
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let (ran, before) = outcome?;
        let stats_after = self.stats();
        let after = self.files.state();
        if matches!(load, Load::Closed { .. }) {
            records.truncate(ran.sent);
        }
        let mut repeat = analysis::repeat(&records, &ran);
        repeat.yardstick_ns = Some(before.yardstick.0);
        self.costs(&mut repeat, before.stats.as_ref(), stats_after.as_ref(), before.cpu);
        let energy = after.energy_since(&before.state);
        if repeat.answered > 0 {
            repeat.energy_uj_per_request = energy.map(|uj| uj as f64 / repeat.answered as f64);
        }
        let server_is_debug =
            before.stats.is_some_and(|s| s["process"]["debug_build"] == Value::Bool(true));
        let samples = watch.samples();
        let around = Around {
            before: before.state,
            after,
            server_ticks_before: before.ticks,
            server_ticks_after: ticks(),
            frequencies_khz: Detail::frequencies(&samples),
            worker_cores: self.target.worker_cores.clone(),
            debug_build: cfg!(debug_assertions) || server_is_debug,
        };
        let is_open = matches!(load, Load::Open { .. });
        repeat.findings = validity::of_repeat(&repeat, is_open, &around, &self.machine);
        let detail = Detail::new(&records[..ran.sent], ran.start, samples);
        Ok((repeat, detail))
    }

    /// Samples where the server spends its CPU time, during a repeat of its own: one that is measured is
    /// not to be disturbed. Data lies in `dir` meanwhile.
    ///
    /// # Errors
    /// As [`repeat`](Self::repeat). A profile that can't be had is no error of the run: why is in the
    /// inner result.
    pub fn profile(
        &self,
        load: &Load,
        n: u64,
        how: &Sending,
        dir: &Path,
    ) -> Result<Result<Stacks, ProfileError>, DriveError> {
        let Some(pid) = self.pid else { return Ok(Err(ProfileError::Elsewhere)) };
        let profiler = match Profiler::start(pid, dir) {
            Ok(profiler) => profiler,
            Err(error) => return Ok(Err(error)),
        };
        self.repeat(load, n, how)?;
        // In this process only the runtime's own threads are the server.
        let is_server = |thread: &str| {
            !self.in_process || thread.starts_with("cl-") && thread != GENERATOR_THREAD
        };
        Ok(profiler.finish(is_server))
    }

    fn costs(
        &self,
        repeat: &mut Repeat,
        before: Option<&Value>,
        after: Option<&Value>,
        generator_cpu: Nanos,
    ) {
        let cpu = |stats: Option<&Value>| stats?["process"]["cpu_ns"].as_u64();
        let (Some(before), Some(after)) = (cpu(before), cpu(after)) else { return };
        // In this process the generator's own time is not the server's.
        let own = if self.in_process { generator_cpu.0 } else { 0 };
        let spent = after.saturating_sub(before).saturating_sub(own);
        repeat.server_cpu_ns = Some(spent);
        if repeat.answered > 0 {
            repeat.cpu_us_per_request = Some(spent as f64 / 1e3 / repeat.answered as f64);
        }
    }
}

/// Time of a fixed piece of work: the least of a few, so that a single interruption does not count.
fn yardstick() -> Nanos {
    let once = || {
        let start = clock::now();
        let mut x = 0x9E37_79B9_7F4A_7C15u64;
        for _ in 0..YARDSTICK_STEPS {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
        }
        std::hint::black_box(x);
        clock::now().since(start)
    };
    (0..YARDSTICK_TURNS).map(|_| once()).min().unwrap_or_default()
}

/// Holds a series' median p99 against a bound.
pub fn bound(series: &mut Series, p99_ns_max: u64) {
    if let Some(p99) = series.summary.get("latency_p99_us") {
        let failed = series.summary.get("errors_percent").is_some_and(|e| e.median > 1.0);
        let held = p99.median * 1e3 <= p99_ns_max as f64 && !failed;
        series.bound = Some(Bound { p99_ns_max, held });
    }
}
