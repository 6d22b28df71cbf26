//! Arguments of the lab's sweeps, and of `bench engine`. A file of its own by its path, since a test includes
//! `args.rs` too.

use super::parse_core_list;
use clap::{Args, ValueEnum};
use corelane::config::parse_idle;
use corelane::engine::EngineKind;
use corelane::engine::kernels::Isa;
use corelane::limits::LAB_ITERATIONS_COUNT_MAX;
use corelane::worker::IdleStrategy;
use std::path::PathBuf;

/// The engines that can be timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchEngine {
    /// Static memory plan and kernels of our own.
    Plan,
    /// tract's own runner.
    Tract,
    /// ONNX Runtime, one thread.
    Ort,
    /// The one of the model `synthetic`, and of no other.
    Fake,
}

impl BenchEngine {
    /// What the rest of the program calls it.
    pub fn kind(self) -> EngineKind {
        match self {
            BenchEngine::Plan => EngineKind::Plan,
            BenchEngine::Tract => EngineKind::Tract,
            BenchEngine::Ort => EngineKind::Ort,
            BenchEngine::Fake => EngineKind::Fake,
        }
    }
}

/// Arguments of `bench engine`.
#[derive(Debug, Args)]
pub struct BenchEngineArgs {
    /// A model directory or a bare .onnx file.
    pub model: PathBuf,
    /// The engine.
    #[arg(long, value_enum)]
    pub engine: BenchEngine,
    /// Whose kernels engine plan takes: portable, avx2, avx512, neon or neon32; an error where the processor
    /// lacks them. Default: the manifest's, else the best that the processor has.
    #[arg(long, value_name = "NAME", value_parser = parse_isa)]
    pub isa: Option<Isa>,
    /// Where ONNX Runtime may compute (engine ort), first choice first: tensorrt, cuda, cpu; each must
    /// take, unless :preferred is behind it. Default: the manifest's.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub provider: Vec<String>,
    /// ONNX Runtime's shared library (engine ort); default: ORT_DYLIB_PATH, else the file beside the
    /// program.
    #[arg(long, value_name = "FILE")]
    pub onnxruntime: Option<PathBuf>,
    /// Rows of each run; several sizes (1,8) are timed in turns.
    #[arg(long, value_name = "N", default_value = "1", value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..))]
    pub batch: Vec<u16>,
    /// Timed runs.
    #[arg(long, default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=LAB_ITERATIONS_COUNT_MAX as i64))]
    pub iterations: u32,
    /// Hold each batch size against the same rows one by one, in pairs: what a row costs in a batch,
    /// over what it costs alone. --iterations is then the number of pairs, at least 6.
    #[arg(long)]
    pub per_row: bool,
    /// The core to pin to; default: the last allowed one.
    #[arg(long)]
    pub core: Option<u16>,
    /// Time every step of the plan too (engine plan), in runs of their own.
    #[arg(long)]
    pub profile: bool,
    /// Print one JSON object a batch size, with every run's time.
    #[arg(long)]
    pub json: bool,
}

fn parse_isa(text: &str) -> Result<Isa, String> {
    Isa::from_name(text).ok_or_else(|| format!("none of {}", Isa::ALL.map(Isa::name).join(", ")))
}

/// Arguments of `bench contention`.
#[derive(Debug, Args)]
pub struct BenchContentionArgs {
    /// A model directory or a bare .onnx file; `synthetic` is the one whose compute time is sized to
    /// the machine.
    #[arg(default_value = "synthetic")]
    pub model: PathBuf,
    /// Requests in flight.
    #[arg(long, value_name = "N,...", default_value = "1,4,8,16,32", value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub concurrency: Vec<u16>,
    /// Largest batch in rows; 1 keeps requests apart, so that only workers share the work.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_batch_size: u16,
    /// Cores of all workers; default: every allowed one. The one worker runs on the last of them.
    #[arg(long, value_name = "CORES", value_parser = parse_core_list)]
    pub cores: Option<super::CoreList>,
    /// Seconds of each repeat.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub duration: f64,
    /// Repeats of each point.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub repeats: u16,
    /// Folder for both runs: `one-worker` and `all-workers` in it.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// A name for the runs: a commit, say.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub label: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `tune`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("tuned").required(true).args(["config", "model"]))]
pub struct TuneArgs {
    /// A configuration of one model; what is not tuned is kept.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A model directory or a bare .onnx file; `synthetic` is the one whose compute time is sized to
    /// the machine.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Requests per second of the load.
    #[arg(long, value_name = "N")]
    pub rate: f64,
    /// How arrivals are spread: steady, poisson, bursty[:ON_MS/OFF_MS] or heavy-tailed.
    #[arg(long, value_name = "PROFILE", default_value = "poisson")]
    pub profile: String,
    /// Rows of each request.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub rows: u16,
    /// Seed of the schedules.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Bound of the p99 latency in microseconds: the least CPU time within it is chosen. Without one,
    /// the least CPU time of those whose p99 is not worse than the best by more than noise.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub bound_us: Option<u64>,
    /// Batch sizes to try; default: 1, the middle one and the largest of the model's.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    pub batch: Vec<u16>,
    /// Delays to try (max_queue_delay_microseconds).
    #[arg(long, value_name = "N,...", default_value = "0,500", value_delimiter = ',')]
    pub delay_us: Vec<u32>,
    /// Numbers of workers to try; default: one, and one on each of --cores.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: Vec<u16>,
    /// Cores that workers may have, the last ones first; default: every allowed one.
    #[arg(long, value_name = "CORES", value_parser = parse_core_list)]
    pub cores: Option<super::CoreList>,
    /// Idle strategies to try: park, adaptive, spin=MICROSECONDS.
    #[arg(long, value_name = "NAME,...", default_value = "park,adaptive,spin=200", value_delimiter = ',',
        value_parser = parse_idle)]
    pub idle: Vec<IdleStrategy>,
    /// Most seconds that all of it may take.
    #[arg(long, value_name = "S", default_value_t = 180.0)]
    pub budget_s: f64,
    /// Seconds of each measurement; default: what the budget allows, at most 5.
    #[arg(long, value_name = "S")]
    pub duration: Option<f64>,
    /// Where the chosen configuration goes.
    #[arg(long, value_name = "FILE", default_value = "corelane.toml")]
    pub out: PathBuf,
    /// Overwrite --out.
    #[arg(long)]
    pub force: bool,
    /// Folder for tune.json, the frontier's figure and report.html.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `bench device`.
#[derive(Debug, Args)]
pub struct BenchDeviceArgs {
    /// Models to put on the card: directories or bare .onnx files; default: those in models/ with a
    /// manifest, and the one whose compute time is sized to the machine, `synthetic`.
    #[arg(value_name = "MODEL")]
    pub models: Vec<PathBuf>,
    /// The board: auto, a name, or a file. Workers get the cores of its plan, and the rows for its file
    /// are printed.
    #[arg(long, value_name = "BOARD")]
    pub board: Option<String>,
    /// Cores of the workers; default: the board's plan, else every allowed one.
    #[arg(long, value_name = "CORES", value_parser = parse_core_list)]
    pub cores: Option<super::CoreList>,
    /// About how many seconds the measurements take, loading aside; at most 240.
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u16).range(1..=240))]
    pub budget_s: u16,
    /// File for the card as JSON; it is not overwritten.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print the card as JSON.
    #[arg(long)]
    pub json: bool,
}
