//! `corelane.toml`: what `corelane serve --config` reads.
//!
//! ```toml
//! [[model]]
//! path = "models/magika"          # relative to this file
//!
//! [listen]
//! unix = "/run/corelane.sock"
//! ```
//!
//! [`KEYS`] lists every key; a test holds it against the parser and against the defaults.

use crate::engine::ort::settings::{Wanted, parse_providers};
use crate::engine::{EngineKind, MemoryOptions, Wish};
use crate::limits::{
    BATCH_ROWS_MAX, CONNECTIONS_MAX, MODELS_MAX, QUEUE_DELAY_US_MAX, SLOTS_PER_MODEL_MAX,
    TIMEOUT_US_MAX, WORKERS_MAX,
};
use crate::logs::Options;
use crate::model::manifest::WEIGHT_MAX;
use crate::model::{InstanceGroup, Manifest, ModelError};
use crate::runtime::{BoardMismatch, RealTime};
use crate::toml_errors::{Table, TomlError};
use crate::transport::SerialOptions;
use crate::units::{CoreId, Micros};
use crate::worker::IdleStrategy;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use control::{ModelControl, ModelControlMode};
pub use error::ConfigError;
pub use load_error::OnLoadError;

/// The path that means the lab's synthetic model; a directory of this name is `./synthetic`.
pub const SYNTHETIC: &str = "synthetic";
/// Longest time that a worker may be told to spin before it sleeps, in microseconds (one second).
const SPIN_US_MAX: u64 = 1_000_000;
/// Longest `drain_timeout_ms`, in milliseconds (one hour).
const DRAIN_MS_MAX: u64 = 3_600_000;

/// One key of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyDoc {
    /// The table that it lies in; empty for the outermost.
    pub table: &'static str,
    /// Its name.
    pub key: &'static str,
    /// What it takes.
    pub takes: &'static str,
    /// What holds where it is absent.
    pub default: &'static str,
    /// What it does.
    pub what: &'static str,
}

macro_rules! keys {
    ($($table:literal $key:literal $takes:literal $default:literal $what:literal;)+) => {
        /// Every key, in the order in which the reference shows them.
        pub const KEYS: &[KeyDoc] = &[$(KeyDoc {
            table: $table, key: $key, takes: $takes, default: $default, what: $what,
        },)+];
    };
}

keys! {
    "" "metrics" "address" "none" "Prometheus text over HTTP at this address; loopback only, unless `metrics_allow_non_loopback`.";
    "" "metrics_allow_non_loopback" "true or false" "false" "Lets `metrics` be an address that other machines reach.";
    "" "cache" "path" "none" "Directory of compiled models, for a faster start; relative to the configuration file. Files are replaced where the model, its manifest, this version or the processor changed.";
    "memory" "lock" "\"off\", \"try\" or \"require\"" "\"off\"" "Weights and arenas locked into memory (RLIMIT_MEMLOCK).";
    "memory" "huge_pages" "\"off\", \"try\" or \"require\"" "\"off\"" "Weights and arenas in transparent huge pages.";
    "runtime" "cores" "list of cores" "every allowed core but the first" "One pinned worker on each.";
    "runtime" "pin" "true or false" "true" "`false` runs `workers` workers wherever the scheduler puts them.";
    "runtime" "workers" "number" "1" "Workers, where `pin = false`.";
    "runtime" "io_core" "core" "the first allowed core without a worker" "Core of the I/O thread. Not pinned where every core has a worker, or with `pin = false`.";
    "runtime" "idle" "\"park\", \"adaptive\" or { spin_us = N }" "\"park\"" "What a worker does when nothing waits: sleep, spin while that pays, or spin for N microseconds and then sleep.";
    "runtime" "board" "\"auto\", a board's name or a file" "none" "Takes `cores` and `io_core` from the board's plan. `auto` looks at the device tree and the processor.";
    "runtime" "board_mismatch" "\"error\" or \"adapt\"" "\"error\"" "What to do where the machine is not as the board says: say so and stop, or take the part of the plan that it has.";
    "runtime" "on_load_error" "\"exit\" or \"serve_others\"" "\"exit\"" "What to do where a model can't be served: say so and stop, or serve the others. The line that says ready, and `stats`, name those that are `not_served`.";
    "runtime" "model_control_mode" "\"none\", \"explicit\" or \"poll\"" "\"none\"" "What makes the server read its models' files again: nothing; SIGHUP or `corelane reload`; or those, and files that changed.";
    "runtime" "repository_poll_secs" "seconds" "15" "How often it looks whether files changed, where `model_control_mode` is `poll`.";
    "runtime" "drain_timeout_ms" "milliseconds" "10000" "How long SIGTERM waits for accepted requests. What is printed in the end waits for its readers as long as is left of that, in all, but 2 s at least and 5 s at most.";
    "runtime" "onnxruntime" "path" "ORT_DYLIB_PATH, else libonnxruntime.so beside the program" "ONNX Runtime's shared library, for models with engine ort; relative to the configuration file.";
    "realtime" "scheduler" "\"fifo\", \"rr\" or \"other\"" "as it is" "Scheduling policy of workers and I/O thread. With `fifo` or `rr`, a worker that spins lets nothing else run on its core: use `idle = \"park\"`.";
    "realtime" "priority" "1 to 99" "50" "Priority, where `scheduler` is `fifo` or `rr`; 99 is the highest.";
    "realtime" "timer_slack_ns" "nanoseconds" "as it is" "How late timers of workers and I/O thread may fire.";
    "realtime" "lock_memory" "true or false" "false" "Locks all memory of the process once everything is loaded.";
    "realtime" "cpu_dma_latency_us" "microseconds" "as it is" "Longest time that an idle core may take to wake; costs power.";
    "realtime" "transparent_huge_pages" "\"system\" or \"off\"" "\"system\"" "`off` keeps the kernel from gathering small pages of this process.";
    "realtime" "refused" "\"error\" or \"run_on\"" "\"error\"" "What to do where the system refuses one of these. `stats` shows each as `wanted` and `got`.";
    "model" "path" "path" "required" "A directory with a manifest, or a bare .onnx file; relative to the configuration file. `synthetic` is the lab's model.";
    "model" "name" "text" "the manifest's" "Name that clients ask for.";
    "model" "engine" "\"plan\", \"tract\" or \"ort\"" "the manifest's" "What runs it.";
    "model" "providers" "list of texts" "the manifest's" "Where ONNX Runtime may compute, as in the manifest.";
    "model" "max_batch_size" "number" "the manifest's" "Largest batch in rows; larger batch sizes of the manifest are not compiled. More than the manifest's is an error.";
    "model" "max_queue_size" "number" "the manifest's" "Requests that may wait.";
    "model" "max_queue_delay_microseconds" "microseconds" "the manifest's" "How long a request may wait for company.";
    "model" "default_timeout_microseconds" "microseconds" "the manifest's" "Deadline of requests that carry none; 0 is none.";
    "model" "weight" "number" "the manifest's" "Share of a worker against its other models.";
    "model" "cores" "list of cores" "the manifest's" "Worker cores that serve it.";
    "listen" "unix" "path" "none" "Unix socket; relative to the configuration file.";
    "listen" "unix_mode" "file mode" "0o600" "Permissions of the Unix socket.";
    "listen" "allow_uids" "list of user ids" "whom the mode allows" "Users that may connect to the Unix socket.";
    "listen" "tcp" "address" "none" "TCP address, such as 127.0.0.1:7070; port 0 takes a free one.";
    "listen" "serial" "list of DEVICE:BAUD" "none" "Serial ports, such as [\"/dev/ttyS1:921600\"]; `:rtscts` after the speed asks for hardware flow control.";
    "listen" "psk_file" "path" "none" "File with the key that TCP clients must prove to have.";
    "listen" "connections_max" "number" "256" "Connections at a time, over all doors; with a Unix socket, TCP gets three quarters of them. Each needs a file descriptor (RLIMIT_NOFILE, which is raised as far as it may be).";
    "listen" "workers_tend" "true or false" "true" "Whether a worker that parks may read the requests of a connection that asks one short thing at a time; `false` leaves all reading to the I/O thread and its core.";
    "listen" "allow_non_loopback" "true or false" "false" "Lets `tcp` be an address that other machines reach; needs `psk_file`.";
    "log" "level" "off, error, warn, info, debug or trace" "info" "Messages on standard error, and events of the threads that serve.";
    "log" "format" "\"text\" or \"json\"" "\"text\"" "How they are printed.";
    "log" "file" "path" "none" "Takes events in place of standard error, and messages besides, for `corelane logs`; relative to the configuration file.";
    "log" "file_bytes_max" "bytes" "67108864" "The size at which the file is put aside as FILE.1.";
    "log" "ring_bytes" "bytes" "65536" "Room for events of each thread that serves, until they are printed or written; what finds none is lost, and counted.";
}

/// The reference of [`KEYS`] as a Markdown table.
pub fn reference() -> String {
    let mut out = "| key | takes | default | what |\n|---|---|---|---|\n".to_string();
    for k in KEYS {
        let table = match k.table {
            "" => String::new(),
            "model" => "[[model]] ".into(),
            table => format!("[{table}] "),
        };
        out.push_str(&format!(
            "| `{table}{}` | {} | {} | {} |\n",
            k.key, k.takes, k.default, k.what
        ));
    }
    out
}

/// Where the workers run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Workers {
    /// One pinned worker on every allowed core but the first.
    #[default]
    AllButFirst,
    /// One pinned worker on each of these cores.
    Cores(Vec<CoreId>),
    /// So many workers, not pinned.
    Unpinned(usize),
}

/// A model to serve, and what is to differ from its manifest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelEntry {
    /// A directory with a manifest, or a bare `.onnx` file.
    pub path: PathBuf,
    /// Name that clients ask for.
    pub name: Option<String>,
    /// What runs it.
    pub engine: Option<EngineKind>,
    /// Where ONNX Runtime may compute.
    pub providers: Option<Vec<Wanted>>,
    /// ONNX Runtime's shared library.
    pub onnxruntime: Option<PathBuf>,
    /// Largest batch, in rows; batch sizes above it are not compiled.
    pub max_batch_size: Option<usize>,
    /// `max_queue_size`.
    pub max_queue_size: Option<u32>,
    /// `max_queue_delay_microseconds`.
    pub max_queue_delay: Option<Micros>,
    /// `default_timeout_microseconds`.
    pub default_timeout: Option<Micros>,
    /// Share of a worker against its other models.
    pub weight: Option<u32>,
    /// Worker cores that serve it.
    pub cores: Option<Vec<CoreId>>,
}

impl ModelEntry {
    /// A model as its manifest says.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        ModelEntry { path: path.into(), ..Default::default() }
    }

    /// Puts the differences into the model's manifest, before it is loaded.
    ///
    /// # Errors
    /// `BatchSize` where `max_batch_size` is more than the manifest compiles.
    pub fn apply(&self, manifest: &mut Manifest) -> Result<(), ModelError> {
        if let Some(name) = &self.name {
            manifest.name.clone_from(name);
        }
        if let Some(engine) = self.engine {
            manifest.engine = engine;
        }
        set(&mut manifest.ort.providers, self.providers.clone());
        if self.onnxruntime.is_some() {
            manifest.ort.library.clone_from(&self.onnxruntime);
        }
        if let Some(rows) = self.max_batch_size {
            if rows > manifest.max_batch_size {
                return Err(ModelError::BatchSize {
                    model: manifest.name.clone(),
                    wanted: rows,
                    max: manifest.max_batch_size,
                });
            }
            // Compiled itself, where the manifest has no such size: what is asked for is what is got.
            if !manifest.batch_sizes.contains(&rows) {
                manifest.batch_sizes.push(rows);
                manifest.batch_sizes.sort_unstable();
            }
            manifest.limit_batches(rows);
        }
        manifest.max_queue_size = self.max_queue_size.or(manifest.max_queue_size);
        set(&mut manifest.max_queue_delay, self.max_queue_delay);
        set(&mut manifest.default_timeout, self.default_timeout);
        set(&mut manifest.weight, self.weight);
        if let Some(cores) = &self.cores {
            manifest.instance_group = InstanceGroup::Cores(cores.clone());
        }
        Ok(())
    }
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Unix socket.
    pub unix: Option<PathBuf>,
    /// Permissions of the Unix socket.
    pub unix_mode: u32,
    /// Users that may connect to the Unix socket; `None`: whom its mode allows.
    pub allow_uids: Option<Vec<u32>>,
    /// TCP address.
    pub tcp: Option<String>,
    /// Serial ports.
    pub serial: Vec<SerialOptions>,
    /// File with the pre-shared key.
    pub psk_file: Option<PathBuf>,
    /// Whether `tcp` may be an address that other machines reach.
    pub allow_non_loopback: bool,
    /// Connections at a time, over all doors.
    pub connections_max: usize,
    /// Whether a worker may read the requests of a connection that asks alone.
    pub workers_tend: bool,
}

impl Default for Listen {
    fn default() -> Self {
        Listen {
            unix: None,
            unix_mode: 0o600,
            allow_uids: None,
            tcp: None,
            serial: Vec::new(),
            psk_file: None,
            allow_non_loopback: false,
            connections_max: CONNECTIONS_MAX,
            workers_tend: true,
        }
    }
}

/// The whole configuration of a server. `Default` holds every default, but no model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where the workers run.
    pub workers: Workers,
    /// The board whose plan names the cores: `auto`, a name, or a file.
    pub board: Option<String>,
    /// What to do where the machine is not as the board says.
    pub board_mismatch: BoardMismatch,
    /// What the kernel is asked for.
    pub realtime: RealTime,
    /// Core of the I/O thread; `None`: the first allowed one without a worker.
    pub io_core: Option<CoreId>,
    /// What a worker does when nothing waits.
    pub idle: IdleStrategy,
    /// How long a drain waits for accepted requests.
    pub drain_timeout: Duration,
    /// The models.
    pub models: Vec<ModelEntry>,
    /// What to do where one of them can't be served.
    pub on_load_error: OnLoadError,
    /// Whether they may change meanwhile.
    pub model_control: ModelControl,
    /// Where to listen.
    pub listen: Listen,
    /// Address of the Prometheus endpoint.
    pub metrics: Option<String>,
    /// Whether `metrics` may be an address that other machines reach.
    pub metrics_allow_non_loopback: bool,
    /// Messages on standard error.
    pub log_level: log::LevelFilter,
    /// What becomes of them, and of what the threads that serve tell.
    pub log: Options,
    /// Directory of compiled models.
    pub cache: Option<PathBuf>,
    /// What is asked for, for weights and arenas.
    pub memory: MemoryOptions,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            workers: Workers::default(),
            board: None,
            board_mismatch: BoardMismatch::default(),
            realtime: RealTime::default(),
            io_core: None,
            idle: IdleStrategy::default(),
            drain_timeout: Duration::from_secs(10),
            models: Vec::new(),
            on_load_error: OnLoadError::default(),
            model_control: ModelControl::default(),
            listen: Listen::default(),
            metrics: None,
            metrics_allow_non_loopback: false,
            log_level: log::LevelFilter::Info,
            log: Options::default(),
            cache: None,
            memory: MemoryOptions::default(),
        }
    }
}

impl Config {
    /// The configuration in a document, whose relative paths are taken from `base`.
    fn of(root: &Table<'_>, base: &Path) -> Result<Config, TomlError> {
        let mut config = Config { metrics: root.text("metrics")?, ..Config::default() };
        set(&mut config.metrics_allow_non_loopback, root.boolean("metrics_allow_non_loopback")?);
        config.cache = root.text("cache")?.map(|dir| base.join(dir));
        if let Some(table) = root.table("memory")? {
            let wish = |key: &str| -> Result<Wish, TomlError> {
                let Some(text) = table.text(key)? else { return Ok(Wish::Off) };
                parse_wish(&text).map_err(|e| table.invalid(key, e))
            };
            config.memory = MemoryOptions { lock: wish("lock")?, huge_pages: wish("huge_pages")? };
            table.finish()?;
        }
        let mut onnxruntime = None;
        if let Some(table) = root.table("runtime")? {
            onnxruntime = table.text("onnxruntime")?.map(|path| base.join(path));
            config.runtime(table, base)?;
        }
        if let Some(table) = root.table("realtime")? {
            config.realtime = realtime::read(table)?;
        }
        let tables = root.tables("model")?.unwrap_or_default();
        if tables.is_empty() {
            return Err(root.missing("model"));
        }
        if tables.len() > MODELS_MAX {
            let message = format!("{} models; at most {MODELS_MAX} are served", tables.len());
            return Err(root.invalid("model", message));
        }
        for table in tables {
            let entry = model(table, base)?;
            config.models.push(ModelEntry { onnxruntime: onnxruntime.clone(), ..entry });
        }
        if let Some(table) = root.table("listen")? {
            config.listen = listen(table, base)?;
        }
        if let Some(table) = root.table("log")? {
            config.log(&table, base)?;
        }
        root.finish()?;
        Ok(config)
    }

    fn runtime(&mut self, table: Table<'_>, base: &Path) -> Result<(), TomlError> {
        let cores = cores(&table)?;
        self.board = table.text("board")?.map(|asked| board(&asked, base));
        if self.board.is_some() {
            for key in ["cores", "pin", "workers", "io_core"] {
                if table.keys().iter().any(|k| k == key) {
                    let message = "not with `board`, whose plan says it";
                    return Err(table.invalid(key, message));
                }
            }
        }
        if let Some(mismatch) = table.text("board_mismatch")? {
            self.board_mismatch = match mismatch.as_str() {
                "error" => BoardMismatch::Error,
                "adapt" => BoardMismatch::Adapt,
                _ => {
                    let message = format!("{mismatch:?}; choose \"error\" or \"adapt\"");
                    return Err(table.invalid("board_mismatch", message));
                }
            };
        }
        let on_load_error = table.text("on_load_error")?.map(|text| text.parse()).transpose();
        let wrong = |e: String| table.invalid("on_load_error", e);
        set(&mut self.on_load_error, on_load_error.map_err(wrong)?);
        self.model_control = ModelControl::read(&table)?;
        let pin = table.boolean("pin")?.unwrap_or(true);
        let workers = table.integer("workers", 1, WORKERS_MAX as u64)?;
        self.workers = match (pin, cores, workers) {
            (true, None, None) => Workers::AllButFirst,
            (true, Some(cores), None) => Workers::Cores(cores),
            (true, _, Some(_)) => {
                let message = "only with pin = false; pinned workers are counted by `cores`";
                return Err(table.invalid("workers", message));
            }
            (false, None, n) => Workers::Unpinned(n.unwrap_or(1) as usize),
            (false, Some(_), _) => {
                let message = "not with pin = false; give `workers`, or pin";
                return Err(table.invalid("cores", message));
            }
        };
        self.io_core = table.integer("io_core", 0, u16::MAX as u64)?.map(|n| CoreId(n as u16));
        if let Some(text) = table.text_or_table("idle")? {
            self.idle = match text {
                Ok(text) => parse_idle(&text).map_err(|e| table.invalid("idle", e))?,
                Err(spin) => {
                    let us = spin.integer("spin_us", 0, SPIN_US_MAX)?;
                    let us = us.ok_or_else(|| spin.missing("spin_us"))?;
                    spin.finish()?;
                    IdleStrategy::SpinUs(Micros(us as u32))
                }
            };
        }
        let drain = table.integer("drain_timeout_ms", 0, DRAIN_MS_MAX)?;
        set(&mut self.drain_timeout, drain.map(Duration::from_millis));
        table.finish()
    }
}

/// A file is taken from the configuration's own directory; what has neither `/` nor `.toml` is a name.
fn board(asked: &str, base: &Path) -> String {
    if asked.contains('/') || asked.ends_with(".toml") {
        return base.join(asked).display().to_string();
    }
    asked.into()
}

fn set<T>(to: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *to = value;
    }
}

fn cores(table: &Table<'_>) -> Result<Option<Vec<CoreId>>, TomlError> {
    let Some(list) = table.integers("cores", 0, u16::MAX as u64)? else { return Ok(None) };
    if list.is_empty() {
        return Err(table.invalid("cores", "names no core; leave it out for the default"));
    }
    Ok(Some(list.into_iter().map(|n| CoreId(n as u16)).collect()))
}

fn model(table: Table<'_>, base: &Path) -> Result<ModelEntry, TomlError> {
    let path = table.text("path")?.ok_or_else(|| table.missing("path"))?;
    let micros = |key: &str, max: u32| -> Result<Option<Micros>, TomlError> {
        Ok(table.integer(key, 0, max as u64)?.map(|n| Micros(n as u32)))
    };
    let entry = ModelEntry {
        // The bare word is the lab's model, which lies in no directory.
        path: if path == SYNTHETIC { path.into() } else { base.join(path) },
        name: table.text("name")?,
        engine: engine(&table)?,
        providers: match table.texts("providers")? {
            None => None,
            Some(list) => Some(parse_providers(&list).map_err(|e| table.invalid("providers", e))?),
        },
        onnxruntime: None,
        max_batch_size: table
            .integer("max_batch_size", 1, BATCH_ROWS_MAX as u64)?
            .map(|n| n as usize),
        max_queue_size: table
            .integer("max_queue_size", 1, SLOTS_PER_MODEL_MAX as u64 - 1)?
            .map(|n| n as u32),
        max_queue_delay: micros("max_queue_delay_microseconds", QUEUE_DELAY_US_MAX)?,
        default_timeout: micros("default_timeout_microseconds", TIMEOUT_US_MAX)?,
        weight: table.integer("weight", 1, WEIGHT_MAX)?.map(|n| n as u32),
        cores: cores(&table)?,
    };
    if let Some(name) = entry.name.as_deref().filter(|name| !is_model_name(name)) {
        let max = crate::limits::MODEL_NAME_LEN_MAX;
        let message = format!(
            "{name:?} is no model name; 1 to {max} of the characters a-z, A-Z, 0-9, _, - and . \
             will do"
        );
        return Err(table.invalid("name", message));
    }
    table.finish()?;
    Ok(entry)
}

fn is_model_name(name: &str) -> bool {
    (1..=crate::limits::MODEL_NAME_LEN_MAX).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

fn engine(table: &Table<'_>) -> Result<Option<EngineKind>, TomlError> {
    let Some(name) = table.text("engine")? else { return Ok(None) };
    let kinds = [EngineKind::Plan, EngineKind::Tract, EngineKind::Ort];
    kinds.into_iter().find(|kind| kind.name() == name).map(Some).ok_or_else(|| {
        let choice = "choose \"plan\", \"tract\" or \"ort\"";
        table.invalid("engine", format!("{name:?} is no engine; {choice}"))
    })
}

fn listen(table: Table<'_>, base: &Path) -> Result<Listen, TomlError> {
    let path = |key: &str| -> Result<Option<PathBuf>, TomlError> {
        Ok(table.text(key)?.map(|p| base.join(p)))
    };
    let mut listen = Listen {
        unix: path("unix")?,
        tcp: table.text("tcp")?,
        psk_file: path("psk_file")?,
        ..Listen::default()
    };
    set(&mut listen.unix_mode, table.integer("unix_mode", 0, 0o777)?.map(|n| n as u32));
    let uids = table.integers("allow_uids", 0, u32::MAX as u64)?;
    listen.allow_uids = uids.map(|list| list.into_iter().map(|n| n as u32).collect());
    for text in table.texts("serial")?.unwrap_or_default() {
        listen.serial.push(text.parse().map_err(|e: String| table.invalid("serial", e))?);
    }
    let connections = table.integer("connections_max", 1, CONNECTIONS_MAX as u64)?;
    set(&mut listen.connections_max, connections.map(|n| n as usize));
    set(&mut listen.workers_tend, table.boolean("workers_tend")?);
    set(&mut listen.allow_non_loopback, table.boolean("allow_non_loopback")?);
    if listen.allow_non_loopback && listen.psk_file.is_none() {
        let message = "needs psk_file: whoever reaches the port must prove to have a key";
        return Err(table.invalid("allow_non_loopback", message));
    }
    table.finish()?;
    Ok(listen)
}

/// Reads an idle strategy: `park`, `adaptive` or `spin=MICROSECONDS`.
///
/// # Errors
/// A sentence that says what would be right.
pub fn parse_idle(text: &str) -> Result<IdleStrategy, String> {
    match text {
        "park" => Ok(IdleStrategy::Park),
        "adaptive" => Ok(IdleStrategy::Adaptive),
        _ => text
            .strip_prefix("spin=")
            .and_then(|n| n.parse().ok())
            .filter(|n| u64::from(*n) <= SPIN_US_MAX)
            .map(|n| IdleStrategy::SpinUs(Micros(n)))
            .ok_or_else(|| {
                format!(
                    "{text:?} is no idle strategy; write park, adaptive, or spin=N with N up to \
                     {SPIN_US_MAX} microseconds"
                )
            }),
    }
}

/// Reads how much something is wanted: `off`, `try` or `require`.
///
/// # Errors
/// A sentence that says what would be right.
pub fn parse_wish(text: &str) -> Result<Wish, String> {
    Wish::from_name(text).ok_or_else(|| format!("{text:?} is none of off, try and require"))
}

/// Reads a list of cores: `0,2` or `1-3`.
///
/// # Errors
/// A sentence that says what would be right.
pub fn parse_cores(text: &str) -> Result<Vec<CoreId>, String> {
    let wrong = || format!("{text:?} is no list of cores; write 0,2 or 1-3");
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u16 = first.parse().map_err(|_| wrong())?;
        let last: u16 = last.parse().map_err(|_| wrong())?;
        if first > last || cores.len() + usize::from(last - first) >= WORKERS_MAX {
            return Err(wrong());
        }
        cores.extend((first..=last).map(CoreId));
    }
    Ok(cores)
}

mod control;
mod error;
mod load_error;
mod log_table;
mod read;
mod realtime;

#[cfg(test)]
mod tests;
