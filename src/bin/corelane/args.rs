//! The arguments, as clap reads them. Plain data: what they mean is in each command's file.

#[path = "args_control.rs"]
mod control;
#[path = "args_lab.rs"]
mod lab;

pub use control::ReloadArgs;
pub use lab::{BenchContentionArgs, BenchDeviceArgs, BenchEngineArgs, TuneArgs};

use clap::{Args, Parser, Subcommand, ValueEnum};
use corelane::client::Address;
use corelane::config::{ModelControlMode, parse_cores, parse_idle, parse_wish};
use corelane::engine::Wish;
use corelane::logs::Format;
use corelane::transport::SerialOptions;
use corelane::units::CoreId;
use corelane::wire::Encoding;
use corelane::worker::IdleStrategy;
use std::path::PathBuf;

/// Serves ONNX models from pinned workers, without heap on the request path.
#[derive(Debug, Parser)]
#[command(name = "corelane", version, after_help = crate::exit::help())]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Log messages on standard error: off, error, warn, info, debug, trace.
    #[arg(long, global = true, value_name = "LEVEL", value_parser = parse_level)]
    pub log: Option<log::LevelFilter>,
    /// Directory for what is measured once, the size of the model `synthetic`; default:
    /// CORELANE_STATE_DIR, else corelane in XDG_STATE_HOME, else in ~/.local/state.
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// How they are printed: text or json.
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log_format: Option<Format>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs real requests on the models in models/ and checks every answer.
    Demo(DemoArgs),
    /// Serves models over a Unix socket, TCP or serial ports until SIGTERM or SIGINT.
    Serve(ServeArgs),
    /// Serves as `serve` does, and writes down when requests arrived, for `load --profile replay:FILE`.
    Record(RecordArgs),
    /// Sends requests, to a model in this process or to a server, and prints the answers.
    Infer(InferArgs),
    /// Shows a model: signature, batch sizes, memory, operators.
    Inspect(InspectArgs),
    /// Shows a server's counters and stage histograms.
    Stats(StatsArgs),
    /// Has a server read its models again and serve what they hold now.
    Reload(ReloadArgs),
    /// Prints a log file that `serve --log-file` wrote.
    Logs(LogsArgs),
    /// Shows a board, and whether its plan fits this machine.
    Board(BoardArgs),
    /// Measures the runtime and its parts alone.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Puts load on a model, and writes down how it did.
    Load(LoadArgs),
    /// Finds the highest rate that holds a latency bound.
    Saturate(SaturateArgs),
    /// Finds the settings that serve a given load best, and writes them down.
    Tune(TuneArgs),
    /// Compares two runs of `load`, and holds the second against a gate.
    Compare(CompareArgs),
    /// Shows a metric over the runs in a directory.
    History(HistoryArgs),
    /// Shows what this machine offers, and what to do about what is missing.
    Doctor(DoctorArgs),
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// ONNX Runtime's shared library; default: ORT_DYLIB_PATH, else the file beside the program.
    #[arg(long, value_name = "FILE")]
    pub onnxruntime: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The log file.
    pub file: PathBuf,
    /// Print one JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// Leave out what is less serious: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", value_parser = parse_level)]
    pub level: Option<log::LevelFilter>,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The repository's root, if it is not the current directory or the one it was built in.
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["config", "models"]))]
pub struct ServeArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "models", "unix", "tcp", "serial", "cores", "unpinned", "io_core", "idle", "metrics", "allow_uid",
        "psk_file", "non_loopback", "board", "board_mismatch", "cache", "lock_memory", "huge_pages",
        "model_control_mode",
    ])]
    pub config: Option<PathBuf>,
    /// Models to serve: directories with a manifest, or bare .onnx files.
    #[arg(long = "model", value_name = "DIR", num_args = 1..)]
    pub models: Vec<PathBuf>,
    /// Listen on a Unix socket at this path.
    #[arg(long, value_name = "PATH")]
    pub unix: Option<PathBuf>,
    /// Listen on TCP at this address; port 0 takes a free one.
    #[arg(long, value_name = "ADDR")]
    pub tcp: Option<String>,
    /// Listen on a serial port (8N1; may be repeated); :rtscts after the speed asks for hardware flow
    /// control.
    #[arg(long, value_name = "DEVICE:BAUD")]
    pub serial: Vec<SerialOptions>,
    /// Cores of the workers, one pinned worker each (0,2 or 1-3).
    #[arg(long, value_name = "CORES", value_parser = parse_core_list, conflicts_with = "unpinned")]
    pub cores: Option<CoreList>,
    /// Take the cores of workers and I/O from a board's plan: auto, a name, or a file.
    #[arg(long, value_name = "BOARD", conflicts_with_all = ["cores", "unpinned", "io_core"])]
    pub board: Option<String>,
    /// Where this machine is not as the board says: error, or adapt, which takes what there is.
    #[arg(long, value_name = "WHAT", requires = "board")]
    pub board_mismatch: Option<Mismatch>,
    /// Run so many workers without pinning them.
    #[arg(long, value_name = "N")]
    pub unpinned: Option<u8>,
    /// Core of the I/O thread.
    #[arg(long, value_name = "CORE")]
    pub io_core: Option<u16>,
    /// What idle workers do: park, adaptive, or spin=MICROSECONDS.
    #[arg(long, value_parser = parse_idle)]
    pub idle: Option<IdleStrategy>,
    /// Serve Prometheus metrics over HTTP at this loopback address.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// User allowed to connect to the Unix socket (may be repeated); default: whom its mode allows.
    #[arg(long, value_name = "UID")]
    pub allow_uid: Vec<u32>,
    /// File with the key that TCP clients must prove to have.
    #[arg(long, value_name = "FILE")]
    pub psk_file: Option<PathBuf>,
    /// Allow addresses that other machines reach; TCP then needs --psk-file.
    #[arg(long)]
    pub non_loopback: bool,
    /// File that takes what workers and I/O thread tell, for `corelane logs`, in place of standard error.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Directory of compiled models, for a faster start.
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// What makes the server read its models again: none, explicit (SIGHUP, `corelane reload`), or poll.
    #[arg(long, value_name = "MODE")]
    pub model_control_mode: Option<ModelControlMode>,
    /// Lock weights and arenas into memory: off, try or require.
    #[arg(long, value_name = "WISH", value_parser = parse_wish)]
    pub lock_memory: Option<Wish>,
    /// Put weights and arenas in huge pages: off, try or require.
    #[arg(long, value_name = "WISH", value_parser = parse_wish)]
    pub huge_pages: Option<Wish>,
}

/// What to do where the machine is not as the board says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mismatch {
    /// Say so and stop.
    Error,
    /// Take the part of the plan that there is.
    Adapt,
}

/// Arguments of `board`.
#[derive(Debug, Args)]
pub struct BoardArgs {
    /// The board: auto, a name, or a file.
    #[arg(default_value = "auto")]
    pub board: String,
    /// Print the names of the boards that are part of the program.
    #[arg(long, conflicts_with_all = ["board", "json"])]
    pub list: bool,
    /// Print the board's file, to copy and change it.
    #[arg(long, requires = "board", conflicts_with = "json")]
    pub file: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

fn parse_level(text: &str) -> Result<log::LevelFilter, String> {
    text.parse().map_err(|_| "choose off, error, warn, info, debug or trace".into())
}

/// Cores, as a list on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreList(pub Vec<CoreId>);

fn parse_core_list(text: &str) -> Result<CoreList, String> {
    parse_cores(text).map(CoreList)
}

/// Where a server is.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// The server: unix:PATH, tcp:HOST:PORT, or serial:DEVICE:BAUD, a line of this machine with a server at
    /// its other end (:rtscts after the speed for hardware flow control; one connection, so not for load).
    #[arg(long, value_name = "ADDRESS")]
    pub connect: Option<Address>,
    /// File with the pre-shared key, where the server wants one.
    #[arg(long, value_name = "FILE", requires = "connect")]
    pub psk_file: Option<PathBuf>,
}

/// Arguments of `infer`.
#[derive(Debug, Args)]
pub struct InferArgs {
    /// A model directory or a bare .onnx file; with --connect the name of a served model.
    pub model: String,
    /// Inputs as .npy files, in the model's order. A model directory's first golden input is the
    /// default.
    #[arg(value_name = "INPUT.npy")]
    pub inputs: Vec<PathBuf>,
    /// An input by name.
    #[arg(long = "input", value_name = "NAME=FILE.npy", value_parser = parse_named)]
    pub named: Vec<(String, PathBuf)>,
    /// Class names to print: of the model in this directory, or of a file with one a line. Default: those
    /// of a model in this process; a server does not send them.
    #[arg(long, value_name = "DIR|FILE")]
    pub labels: Option<PathBuf>,
    /// Let a float32 input or output of a served model travel as f16, or as i8:SCALE:ZERO, where each
    /// byte stands for (byte - ZERO) * SCALE (may be repeated).
    #[arg(long = "encoding", value_name = "NAME=ENCODING", value_parser = parse_encoding, requires = "connect")]
    pub encodings: Vec<(String, Encoding)>,
    /// Send each row as a request of its own, all in flight at once.
    #[arg(long)]
    pub rows: bool,
    /// Send everything so many times, one after the other.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Deadline of each request in microseconds; 0 takes the model's default.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub timeout_us: u32,
    /// Priority, 1 is the highest; 0 takes the model's default.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub priority: u8,
    /// The server.
    #[command(flatten)]
    pub server: ConnectArgs,
    /// Print one JSON object per request.
    #[arg(long)]
    pub json: bool,
}

fn parse_named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => {
            Ok((name.into(), file.into()))
        }
        _ => Err("write NAME=FILE.npy".into()),
    }
}

fn parse_encoding(text: &str) -> Result<(String, Encoding), String> {
    // Names may hold any character; encodings hold no "=".
    match text.rsplit_once('=') {
        Some((name, encoding)) if !name.is_empty() => {
            let encoding = encoding.parse().map_err(|e| format!("{encoding:?} is {e}"))?;
            Ok((name.into(), encoding))
        }
        _ => Err("write NAME=f16 or NAME=i8:SCALE:ZERO".into()),
    }
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A model directory or a bare .onnx file.
    pub model: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Print the steps of the plan too, timed.
    #[arg(long)]
    pub plan: bool,
    /// Directory of compiled models.
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

/// Arguments of `stats`.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// The server: unix:PATH, tcp:HOST:PORT, or serial:DEVICE:BAUD, a line of this machine with a server at
    /// its other end (:rtscts after the speed for hardware flow control; one connection, so not for load).
    #[arg(long, value_name = "ADDRESS")]
    pub connect: Address,
    /// File with the pre-shared key, where the server wants one.
    #[arg(long, value_name = "FILE")]
    pub psk_file: Option<PathBuf>,
    /// Print the snapshot as JSON.
    #[arg(long)]
    pub json: bool,
    /// Print it again every second, until interrupted.
    #[arg(long)]
    pub watch: bool,
}

/// What `bench` measures.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Times an engine alone: one pinned thread, warm, no queue.
    Engine(BenchEngineArgs),
    /// Compares the runtime's own cost with bare floors, with a model that computes nothing.
    Overhead(BenchOverheadArgs),
    /// Shows latency against requests in flight, with one worker and with all.
    Contention(BenchContentionArgs),
    /// Measures the standard card of a board, in under five minutes.
    Device(BenchDeviceArgs),
}

/// Arguments of `bench overhead`.
#[derive(Debug, Args)]
pub struct BenchOverheadArgs {
    /// Repeats; each measures everything once.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub repeats: Option<u16>,
    /// Round trips per figure and repeat.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=corelane::limits::LAB_ITERATIONS_COUNT_MAX as i64))]
    pub iterations: Option<u32>,
    /// The small model of the figure with many requests in flight.
    #[arg(long, default_value = "models/mlp")]
    pub model: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What to measure, and where the requests come from.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["connect", "in_process"]))]
pub struct BenchTargetArgs {
    /// The server.
    #[command(flatten)]
    pub server: ConnectArgs,
    /// Run the models of --config (or the model directory given by --model) in this process.
    #[arg(long)]
    pub in_process: bool,
    /// The configuration of --in-process.
    #[arg(long, value_name = "FILE", requires = "in_process")]
    pub config: Option<PathBuf>,
    /// The model's name; with --in-process and no --config, its directory. May be left out where
    /// there is one model only.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Rows to send, as .npy files in the order of the model's inputs; taken in turn. Default: the
    /// golden inputs of a model directory, else random numbers.
    #[arg(long = "input", value_name = "FILE.npy")]
    pub inputs: Vec<PathBuf>,
    /// Connections to the server.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub connections: u16,
    /// Deadline of each request in microseconds; 0 takes the model's default.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub timeout_us: u32,
    /// Priority, 1 is the highest; 0 takes the model's default.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub priority: u8,
    /// Core of the load generator; default: the first allowed one without a worker.
    #[arg(long, value_name = "CORE")]
    pub generator_core: Option<u16>,
    /// How long before a send the generator stops sleeping and spins, in microseconds.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub spin_us: u32,
    /// How long requests are sent before each repeat, not counted, in milliseconds.
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub warmup_ms: u32,
}

/// Arguments of `record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Where the trace goes when the server ends. It holds whatever arrived, a load generator's warm-up
    /// too (`load --warmup-ms 0` sends none).
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Overwrite --out.
    #[arg(long)]
    pub force: bool,
    /// The last so many arrivals are kept.
    #[arg(long, value_name = "N", default_value_t = corelane::limits::ARRIVALS_ENTRIES_DEFAULT as u32,
        value_parser = clap::value_parser!(u32).range(1..=corelane::limits::ARRIVALS_ENTRIES_MAX as i64))]
    pub entries: u32,
    /// Keep payloads too, the last ones that fit into so many MiB; `replay` then sends them.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..=(corelane::limits::ARRIVALS_PAYLOAD_BYTES_MAX >> 20) as i64))]
    pub payloads: Option<u16>,
    /// The model whose arrivals are written; may be left out where there is one model only.
    #[arg(long, value_name = "NAME")]
    pub trace_model: Option<String>,
    /// How to serve.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// Arguments of `load`.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// What to measure.
    #[command(flatten)]
    pub target: BenchTargetArgs,
    /// How arrivals are spread: steady, poisson, bursty[:ON_MS/OFF_MS], heavy-tailed,
    /// ramp:RATE/RISE_S/HOLD_S,..., replay:FILE. May be repeated: each is a series of its own.
    /// Default: poisson.
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["concurrency", "scenario"])]
    pub profile: Vec<String>,
    /// Mean requests per second; default: 100. Not of ramp and replay, which have rates of their own.
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,
    /// Seconds of each repeat; default: 10. Not of ramp and replay.
    #[arg(long, value_name = "S")]
    pub duration: Option<f64>,
    /// Seed of the schedule.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Rows of each request.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub rows: u16,
    /// Most rows of a request under heavy-tailed; default: as many as the model takes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub rows_max: Option<u16>,
    /// Closed loop: so many requests in flight, one series each (1,2,4,8).
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub concurrency: Vec<u16>,
    /// An MLPerf scenario: SingleStream, MultiStream, Server or Offline.
    #[arg(long, value_name = "NAME", conflicts_with = "concurrency")]
    pub scenario: Option<String>,
    /// Bound of the p99 latency in microseconds; told whether it held.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub bound_us: Option<u64>,
    /// Repeats of each series.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub repeats: u16,
    /// Folder for the run; made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Also sample where the server spends its CPU time (with `perf`, in one more repeat of each series
    /// that is not in the figures), for a flame graph in the folder.
    #[arg(long, requires = "out")]
    pub flame_graph: bool,
    /// A name for the run: a commit, say.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub label: String,
    /// A second server, measured in turns with the first: what both see of the machine is then the
    /// same.
    #[arg(long, value_name = "ADDRESS", requires = "connect")]
    pub against: Option<Address>,
    /// Folder for the second server's run.
    #[arg(long, value_name = "DIR", requires = "against")]
    pub against_out: Option<PathBuf>,
    /// A name for the second server's run.
    #[arg(long, value_name = "TEXT", default_value = "", requires = "against")]
    pub against_label: String,
    /// Print the run as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `saturate`.
#[derive(Debug, Args)]
pub struct SaturateArgs {
    /// What to measure.
    #[command(flatten)]
    pub target: BenchTargetArgs,
    /// Bound of the latency in microseconds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub bound_us: u64,
    /// The percentile that is bound: p50, p90, p95, p99 or p999.
    #[arg(long, value_name = "NAME", default_value = "p99")]
    pub percentile: String,
    /// How arrivals are spread: steady, poisson, bursty[:ON_MS/OFF_MS] or heavy-tailed.
    #[arg(long, value_name = "PROFILE", default_value = "poisson")]
    pub profile: String,
    /// Seconds of each probe.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub duration: f64,
    /// First rate; default: half of what a closed loop reaches.
    #[arg(long, value_name = "N")]
    pub from: Option<f64>,
    /// Seed of the schedules.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Rows of each request.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub rows: u16,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Folder of the run to compare with.
    pub base: PathBuf,
    /// Folder of the new run.
    pub new: PathBuf,
    /// Rules that the new run must keep; exit code 1 if it breaks one.
    #[arg(long, value_name = "FILE")]
    pub gate: Option<PathBuf>,
    /// Folder for the report with both runs' figures laid over each other.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// A directory with folders of runs.
    pub dir: PathBuf,
    /// The metric.
    #[arg(long, value_name = "NAME", default_value = "latency_p99_us")]
    pub metric: String,
    /// Folder for the figure.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}
