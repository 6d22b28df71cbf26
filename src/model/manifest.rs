//! `manifest.toml`: how a model wants to be loaded and served.
//!
//! Every key has a default but `file` (and even that is `model.onnx` in a model directory), so a
//! bare `.onnx` file has a manifest too: the derived one.
//!
//! | key | default | what |
//! |---|---|---|
//! | `name` | directory or file name | what requests call it |
//! | `engine` | [`DEFAULT_ENGINE`] | `"plan"`, `"tract"`, `"ort"` or `"fake"` |
//! | `file` | `"model.onnx"` | beside the manifest |
//! | `sha256` | not checked | of the file, 64 hexadecimal digits |
//! | `max_batch_size` | largest of `batch_sizes`, else 8 | rows |
//! | `batch_sizes` | powers of two up to `max_batch_size` | compiled sizes, ascending, from 1 |
//! | `preferred_batch_size` | `[]` | sizes at which a waiting batch is closed |
//! | `max_queue_delay_microseconds` | 0 | how long a request waits for company |
//! | `max_queue_size` | 64, or as many as take 64 MiB, but at least `max_batch_size` | requests that may wait |
//! | `max_request_rows` | `max_batch_size` | rows of one request; more are refused |
//! | `default_timeout_microseconds` | 0 | deadline of requests without one; 0 is none |
//! | `priority_levels` | 1 | 1 is the highest level |
//! | `default_priority` | `priority_levels` | level of requests without one |
//! | `weight` | 1 | share against other models on the same worker |
//! | `labels` | none | class names: a list, or a file with one a line |
//! | `arena_bytes_max` | 1 GiB | intermediates on one worker, all batch sizes, and outputs (engine `tract`: any one tensor) |
//! | `model_warmup` | 1 | runs of each batch size before a worker is ready, besides those it times |
//! | `tolerance` | 1e-5 | allowed difference from goldens, over the largest value |
//! | `isa` | the best that the processor has | whose kernels engine `plan` takes: `"portable"`, `"avx2"`, `"avx512"`, `"neon"` or `"neon32"`; one that the processor lacks is an error |
//! | `rows_independent` | false | asserts that the rows of a batch are independent where the graph does not show it; rows are still compared |
//! | `[instance_group]` `cores` | `"all"` | worker cores that serve it |
//! | `[bind_axes]` | | symbol of an open axis = its length |
//! | `[bind_inputs]` | | name of an input = the constant it is bound to |
//! | `[ort]` `providers` | `["cpu"]` | where ONNX Runtime may compute, first choice first: `"tensorrt"`, `"cuda"`, `"cpu"`; each must take, unless `:preferred` is behind it; without `"cpu"` no node may run on the processor |
//! | `[ort]` `device` | 0 | which GPU |
//! | `[ort]` `gpu_memory_bytes_max` | what there is | GPU memory that one worker's instance takes for tensors |
//! | `[ort]` `cuda_graph` | false | captures runs on the GPU as CUDA graphs, one for each batch size, and replays them; refused where it can't hold |
//! | `[ort]` `precision` | `"fp32"` | `"fp16"` computes in half precision, and compares with the model file at load |
//! | `[ort]` `fp16_file` | `"model_fp16.onnx"`, if it is there | the model in half precision, inputs and outputs as they are; only `"tensorrt"` can do without |
//! | `[ort]` `fp16_tolerance` | 1e-2 | allowed difference of half from single precision, over the largest value |
//! | `[fake]` | | shapes and times of the `fake` engine, see [`FakeSection`] |

use crate::engine::EngineKind;
use crate::engine::fake::{FakeCompute, FakeFault, FakeWork};
use crate::engine::kernels::Isa;
use crate::engine::ort::settings::{Precision, parse_providers};
use crate::engine::ort::{OrtSettings, graph};
use crate::limits::{
    ARENA_BYTES_MAX_DEFAULT, BATCH_ROWS_MAX, BATCH_SIZES_MAX, MODEL_NAME_LEN_MAX,
    PRIORITY_LEVELS_MAX, QUEUE_DELAY_US_MAX, ROW_AXES_MAX, SLOTS_PER_MODEL_MAX,
    TENSOR_NAME_LEN_MAX, TENSORS_MAX, TEXT_FILE_BYTES_MAX, TIMEOUT_US_MAX, WORKERS_MAX,
};
use crate::model::error::ModelError;
use crate::model::signature::{Signature, TensorSpec};
use crate::sys::files;
use crate::toml_errors::{Document, Scalar, Table, TomlError};
use crate::units::{CoreId, DType, Micros, Priority};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The engine of models whose manifest names none.
pub const DEFAULT_ENGINE: EngineKind = EngineKind::Plan;
/// `max_batch_size` where neither it nor `batch_sizes` is given.
pub const MAX_BATCH_SIZE_DEFAULT: usize = 8;
/// `tolerance` where none is given.
pub const TOLERANCE_DEFAULT: f64 = 1e-5;
/// Largest `weight`.
pub const WEIGHT_MAX: u64 = 1_000;
/// Largest `model_warmup`, in runs.
pub const WARMUP_RUNS_MAX: u64 = 1_000;

/// Which workers serve a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstanceGroup {
    /// All.
    All,
    /// Those on these cores.
    Cores(Vec<CoreId>),
}

/// What the `fake` engine pretends to be: `[fake]` with `inputs` and `outputs` (lists of
/// `{ name, dtype, shape }`, shapes per row), `batched`, `compute_us`, `compute_per_row_us`, and for
/// tests `error_marker` and `panic_marker`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeSection {
    /// Inputs and outputs.
    pub signature: Signature,
    /// How long a run takes.
    pub compute: FakeCompute,
    /// What a run works. Not a key of the file: it is sized to a machine.
    pub work: FakeWork,
    /// Which rows fail.
    pub fault: FakeFault,
}

/// How a model is loaded and served; the keys are in the module's documentation.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// What requests call it.
    pub name: String,
    /// What runs it.
    pub engine: EngineKind,
    /// Whose kernels engine `plan` takes; `None` for the best that the processor has.
    pub isa: Option<Isa>,
    /// The ONNX file. Not read by the `fake` engine.
    pub file: PathBuf,
    /// The model directory, where `golden/` is looked for; `None` for a bare file.
    pub dir: Option<PathBuf>,
    /// Hash of the file, in lower case hexadecimal.
    pub sha256: Option<String>,
    /// Rows of the largest batch.
    pub max_batch_size: usize,
    /// Compiled sizes: ascending from 1 to `max_batch_size`.
    pub batch_sizes: Vec<usize>,
    /// Sizes at which a waiting batch is closed, ascending.
    pub preferred_batch_size: Vec<usize>,
    /// How long a request waits for company.
    pub max_queue_delay: Micros,
    /// Requests that may wait; none if nothing is said of it.
    pub max_queue_size: Option<u32>,
    /// Rows of one request.
    pub max_request_rows: usize,
    /// Deadline of requests without one; 0 is none.
    pub default_timeout: Micros,
    /// Priority levels.
    pub priority_levels: u8,
    /// Level of requests without one.
    pub default_priority: Priority,
    /// Which workers serve it.
    pub instance_group: InstanceGroup,
    /// Share against other models on the same worker.
    pub weight: u32,
    /// Lengths of open axes other than the batch.
    pub bind_axes: Vec<(String, usize)>,
    /// Inputs bound to a constant.
    pub bind_inputs: Vec<(String, f64)>,
    /// Class names, empty if there are none.
    pub labels: Vec<String>,
    /// Bytes of intermediates on one worker.
    pub arena_bytes_max: usize,
    /// Runs of each batch size before a worker is ready.
    pub model_warmup: u32,
    /// Allowed difference from goldens, over the largest value.
    pub tolerance: f64,
    /// Whether it is asserted that rows are independent, where the graph does not show it.
    pub rows_independent: bool,
    /// What the `ort` engine is asked for.
    pub ort: OrtSettings,
    /// What the `fake` engine pretends to be.
    pub fake: Option<FakeSection>,
    /// Directory of compiled caches. Not a key of the file: whoever loads the model says where.
    pub cache_dir: Option<PathBuf>,
}

impl Manifest {
    /// Its file in a model's directory.
    pub const FILE: &str = "manifest.toml";

    /// Reads the manifest of `path`: a model directory, a manifest (`.toml`), or an ONNX file, for
    /// which it is derived.
    ///
    /// # Errors
    /// `Io`, `TooLarge`, `NotAModel`, `Name`, and `Manifest` for everything in the TOML file.
    pub fn read(path: &Path) -> Result<Manifest, ModelError> {
        let io = |source| ModelError::Io { path: path.into(), what: "the model", source };
        let is_toml = |p: &Path| p.extension().is_some_and(|e| e == "toml");
        if std::fs::metadata(path).map_err(io)?.is_dir() {
            let manifest = path.join(Self::FILE);
            if has_file(&manifest, "the manifest")? {
                return Self::read_toml(&manifest);
            }
            let file = path.join("model.onnx");
            if has_file(&file, "the model file")? {
                return Self::derived(&file, Some(path), base_name(path, false));
            }
            return Err(ModelError::NotAModel { path: path.into() });
        }
        if is_toml(path) {
            return Self::read_toml(path);
        }
        Self::derived(path, None, base_name(path, true))
    }

    /// The manifest of a model that no file describes, run by the `fake` engine: all defaults.
    ///
    /// # Errors
    /// `Name`, if requests can't call it so.
    pub fn fake(name: &str, section: FakeSection) -> Result<Manifest, ModelError> {
        let origin = Path::new(name);
        let document = Document::parse(name, "")?;
        let mut manifest = parse(&document.root(), name.into(), Path::new(""), origin)?;
        manifest.dir = None;
        manifest.engine = EngineKind::Fake;
        manifest.fake = Some(section);
        Ok(manifest)
    }

    /// The manifest of a bare ONNX file: all defaults.
    fn derived(file: &Path, dir: Option<&Path>, name: String) -> Result<Manifest, ModelError> {
        let document = Document::parse(&file.display().to_string(), "")?;
        let mut manifest = parse(&document.root(), name, dir.unwrap_or(Path::new("")), file)?;
        manifest.dir = dir.map(Path::to_path_buf);
        manifest.file = file.to_path_buf();
        Ok(manifest)
    }

    fn read_toml(path: &Path) -> Result<Manifest, ModelError> {
        let text = read_text(path, "the manifest")?;
        let dir = path.parent().unwrap_or(Path::new(""));
        let absolute = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let name = absolute.parent().map(|d| base_name(d, false)).unwrap_or_default();
        let document = Document::parse(&path.display().to_string(), &text)?;
        parse(&document.root(), name, dir, path)
    }

    /// Whose kernels engine `plan` takes on this processor.
    pub fn kernels(&self) -> Isa {
        self.isa.unwrap_or_else(Isa::detect)
    }

    /// What is asked of ONNX Runtime, with the files that the model's place implies.
    pub fn ort_settings(&self) -> OrtSettings {
        let mut settings = self.ort.clone();
        if settings.precision == Precision::Fp16 && settings.fp16_file.is_none() {
            let stem = self.file.file_stem().unwrap_or_default().to_string_lossy();
            let beside = self.file.with_file_name(format!("{stem}_fp16.onnx"));
            settings.fp16_file = beside.is_file().then_some(beside);
        }
        if settings.engine_cache.is_none() {
            settings.engine_cache.clone_from(&self.cache_dir);
        }
        settings
    }

    /// Allowed difference from goldens, and of a row in a batch from the same row alone, over the largest
    /// value: that of the precision that is asked for.
    pub fn allowed_difference(&self) -> f64 {
        match (self.engine, self.ort.precision) {
            (EngineKind::Ort, Precision::Fp16) => self.tolerance.max(self.ort.fp16_tolerance),
            _ => self.tolerance,
        }
    }

    /// Reduces the manifest to batches of at most `max_batch_size` rows.
    pub fn limit_batches(&mut self, max_batch_size: usize) {
        self.batch_sizes.retain(|&n| n <= max_batch_size);
        if self.batch_sizes.is_empty() {
            self.batch_sizes.push(1);
        }
        self.max_batch_size = self.batch_sizes[self.batch_sizes.len() - 1];
        self.preferred_batch_size.retain(|&n| n <= self.max_batch_size);
        self.max_request_rows = self.max_request_rows.min(self.max_batch_size);
    }
}

/// Powers of two from 1, and `max_batch_size` itself.
pub fn default_batch_sizes(max_batch_size: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2))
        .take_while(|&n| n < max_batch_size)
        .collect();
    sizes.push(max_batch_size);
    sizes
}

fn base_name(path: &Path, is_file: bool) -> String {
    let absolute = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let name = if is_file { absolute.file_stem() } else { absolute.file_name() };
    name.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Whether there is such a file. One that is there and can't be looked at, as in a directory of another user's,
/// is an error: to go on without it would be to load something else.
fn has_file(path: &Path, what: &'static str) -> Result<bool, ModelError> {
    match std::fs::metadata(path) {
        Ok(meta) => Ok(meta.is_file()),
        // A link to nowhere is there.
        Err(source) if source.kind() != std::io::ErrorKind::NotFound || path.is_symlink() => {
            Err(ModelError::Io { path: path.into(), what, source })
        }
        Err(_) => Ok(false),
    }
}

fn read_text(path: &Path, what: &'static str) -> Result<String, ModelError> {
    let io = |source| ModelError::Io { path: path.into(), what, source };
    let bytes = std::fs::metadata(path).map_err(io)?.len();
    if bytes > TEXT_FILE_BYTES_MAX {
        return Err(ModelError::TooLarge { path: path.into(), bytes, max: TEXT_FILE_BYTES_MAX });
    }
    files::read_text(path, TEXT_FILE_BYTES_MAX).map_err(io)
}

/// Reads all keys; `origin` is the file that errors about the name are laid to.
fn parse(
    t: &Table<'_>,
    default_name: String,
    dir: &Path,
    origin: &Path,
) -> Result<Manifest, ModelError> {
    let name = t.text("name")?.unwrap_or(default_name);
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > MODEL_NAME_LEN_MAX || !name.chars().all(allowed) {
        return Err(ModelError::Name { name, path: origin.into() });
    }
    let engine = engine_kind(t)?;
    let isa = isa(t, engine)?;
    let file = dir.join(t.text("file")?.unwrap_or_else(|| "model.onnx".into()));
    let sha256 = t.text("sha256")?.map(|s| s.to_ascii_lowercase());
    if let Some(hash) = &sha256
        && (hash.len() != 64 || !hash.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        return Err(t.invalid("sha256", "must be 64 hexadecimal digits").into());
    }
    let (max_batch_size, batch_sizes, preferred_batch_size) = batching(t)?;
    let max_queue_delay =
        t.integer("max_queue_delay_microseconds", 0, QUEUE_DELAY_US_MAX as u64)?;
    let max_queue_size = t.integer("max_queue_size", 1, SLOTS_PER_MODEL_MAX as u64)?;
    let max_request_rows = t.integer("max_request_rows", 1, max_batch_size as u64)?;
    let timeout = t.integer("default_timeout_microseconds", 0, TIMEOUT_US_MAX as u64)?;
    let priority_levels = t.integer("priority_levels", 1, PRIORITY_LEVELS_MAX as u64)?.unwrap_or(1);
    let default_priority = t.integer("default_priority", 1, priority_levels)?;
    let weight = t.integer("weight", 1, WEIGHT_MAX)?.unwrap_or(1);
    let labels = labels(t, dir)?;
    let arena = t.integer("arena_bytes_max", 1, isize::MAX as u64)?;
    let model_warmup = t.integer("model_warmup", 0, WARMUP_RUNS_MAX)?.unwrap_or(1);
    let tolerance = t.number("tolerance")?.unwrap_or(TOLERANCE_DEFAULT);
    if !(0.0..=1.0).contains(&tolerance) {
        let message = format!("is {tolerance}; it must be within 0 to 1");
        return Err(t.invalid("tolerance", message).into());
    }
    let rows_independent = t.boolean("rows_independent")?.unwrap_or(false);
    let mut instance_group = InstanceGroup::All;
    if let Some(group) = t.table("instance_group")? {
        instance_group = cores(&group)?;
        group.finish()?;
    }
    let mut bind_axes = Vec::new();
    if let Some(axes) = t.table("bind_axes")? {
        for key in axes.keys() {
            let length = axes.integer(&key, 1, u32::MAX as u64)?.unwrap_or(1);
            bind_axes.push((key, length as usize));
        }
    }
    let mut bind_inputs = Vec::new();
    if let Some(inputs) = t.table("bind_inputs")? {
        for key in inputs.keys() {
            let value = inputs.number(&key)?.unwrap_or(0.0);
            bind_inputs.push((key, value));
        }
    }
    let ort =
        t.table("ort")?.map_or_else(|| Ok(OrtSettings::default()), |t| ort_section(t, dir))?;
    let fake = t.table("fake")?.map(fake_section).transpose()?;
    if engine == EngineKind::Fake && fake.is_none() {
        return Err(t.invalid("engine", "the fake engine needs its shapes, in [fake]").into());
    }
    t.finish()?;
    Ok(Manifest {
        name,
        engine,
        isa,
        file,
        dir: Some(dir.to_path_buf()),
        sha256,
        max_batch_size,
        batch_sizes,
        preferred_batch_size,
        max_queue_delay: Micros(max_queue_delay.unwrap_or(0) as u32),
        max_queue_size: max_queue_size.map(|n| n as u32),
        max_request_rows: max_request_rows.map_or(max_batch_size, |n| n as usize),
        default_timeout: Micros(timeout.unwrap_or(0) as u32),
        priority_levels: priority_levels as u8,
        default_priority: Priority(default_priority.unwrap_or(priority_levels) as u8),
        instance_group,
        weight: weight as u32,
        bind_axes,
        bind_inputs,
        labels,
        arena_bytes_max: arena.map_or(ARENA_BYTES_MAX_DEFAULT, |n| n as usize),
        model_warmup: model_warmup as u32,
        tolerance,
        rows_independent,
        ort,
        fake,
        cache_dir: None,
    })
}

fn engine_kind(t: &Table<'_>) -> Result<EngineKind, TomlError> {
    let Some(name) = t.text("engine")? else { return Ok(DEFAULT_ENGINE) };
    let kinds = [EngineKind::Plan, EngineKind::Tract, EngineKind::Ort, EngineKind::Fake];
    kinds.into_iter().find(|k| k.name() == name).ok_or_else(|| {
        let names = kinds.map(|k| format!("{:?}", k.name())).join(", ");
        t.invalid("engine", format!("{name:?} is none of {names}"))
    })
}

fn isa(t: &Table<'_>, engine: EngineKind) -> Result<Option<Isa>, TomlError> {
    let Some(name) = t.text("isa")? else { return Ok(None) };
    if engine != EngineKind::Plan {
        let message = format!("is of engine \"plan\", not of {:?}", engine.name());
        return Err(t.invalid("isa", message));
    }
    Isa::from_name(&name).map(Some).ok_or_else(|| {
        let names = Isa::ALL.map(|isa| format!("{:?}", isa.name())).join(", ");
        t.invalid("isa", format!("{name:?} is none of {names}"))
    })
}

/// `max_batch_size`, `batch_sizes` and `preferred_batch_size`.
fn batching(t: &Table<'_>) -> Result<(usize, Vec<usize>, Vec<usize>), TomlError> {
    let rows_max = BATCH_ROWS_MAX as u64;
    let as_sizes = |list: Vec<u64>| list.into_iter().map(|n| n as usize).collect::<Vec<usize>>();
    let given_max = t.integer("max_batch_size", 1, rows_max)?.map(|n| n as usize);
    let given_sizes = t.integers("batch_sizes", 1, rows_max)?.map(as_sizes);
    let preferred =
        t.integers("preferred_batch_size", 1, rows_max)?.map(as_sizes).unwrap_or_default();
    let ascending = |list: &[usize]| list.windows(2).all(|w| w[0] < w[1]);
    let sizes = match given_sizes {
        Some(sizes) => {
            if sizes.first() != Some(&1) || !ascending(&sizes) {
                let message = "must be ascending and begin with 1, the size of a request alone";
                return Err(t.invalid("batch_sizes", message));
            }
            sizes
        }
        None => default_batch_sizes(given_max.unwrap_or(MAX_BATCH_SIZE_DEFAULT)),
    };
    let max = sizes[sizes.len() - 1];
    if let Some(given) = given_max
        && given != max
    {
        let message =
            format!("is {given}, but the largest of batch_sizes is {max}; they must be equal");
        return Err(t.invalid("max_batch_size", message));
    }
    for (key, list) in [("batch_sizes", &sizes), ("preferred_batch_size", &preferred)] {
        if list.len() > BATCH_SIZES_MAX {
            let message = format!("has {} sizes; the limit is {BATCH_SIZES_MAX}", list.len());
            return Err(t.invalid(key, message));
        }
    }
    if !ascending(&preferred) {
        return Err(t.invalid("preferred_batch_size", "must be ascending"));
    }
    if let Some(&large) = preferred.iter().find(|&&n| n > max) {
        let message = format!("{large} is more than max_batch_size, which is {max}");
        return Err(t.invalid("preferred_batch_size", message));
    }
    Ok((max, sizes, preferred))
}

fn cores(group: &Table<'_>) -> Result<InstanceGroup, TomlError> {
    match group.text_or_integers("cores", 0, u16::MAX as u64)? {
        None => Ok(InstanceGroup::All),
        Some(Scalar::Integers(list)) if (1..=WORKERS_MAX).contains(&list.len()) => {
            Ok(InstanceGroup::Cores(list.into_iter().map(|n| CoreId(n as u16)).collect()))
        }
        Some(Scalar::Text(text)) if text == "all" => Ok(InstanceGroup::All),
        Some(_) => {
            let message = format!("must be \"all\" or a list of 1 to {WORKERS_MAX} cores");
            Err(group.invalid("cores", message))
        }
    }
}

/// The class names in the text of a file of them: one a line, blanks at its end not counted.
pub fn labels_of(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim_end().to_string()).collect()
}

fn labels(t: &Table<'_>, dir: &Path) -> Result<Vec<String>, ModelError> {
    let labels = match t.text_or_texts("labels")? {
        None => return Ok(vec![]),
        Some(Scalar::Text(file)) => {
            let text = read_text(&dir.join(file), "the labels")?;
            labels_of(&text)
        }
        Some(Scalar::Texts(list)) => list,
        Some(Scalar::Integers(_)) => vec![],
    };
    if labels.is_empty() || labels.iter().any(String::is_empty) {
        return Err(t.invalid("labels", "there must be labels, and none may be empty").into());
    }
    Ok(labels)
}

fn ort_section(t: Table<'_>, dir: &Path) -> Result<OrtSettings, TomlError> {
    let mut settings = OrtSettings::default();
    if let Some(list) = t.texts("providers")? {
        settings.providers = parse_providers(&list).map_err(|e| t.invalid("providers", e))?;
    }
    if let Some(device) = t.integer("device", 0, i32::MAX as u64)? {
        settings.device = device as u32;
    }
    settings.gpu_memory_bytes_max = t.integer("gpu_memory_bytes_max", 1, isize::MAX as u64)?;
    settings.cuda_graph = t.boolean("cuda_graph")?.unwrap_or(false);
    graph::check(&settings).map_err(|e| t.invalid("cuda_graph", e.to_string()))?;
    if let Some(name) = t.text("precision")? {
        settings.precision =
            Precision::ALL.into_iter().find(|p| p.name() == name).ok_or_else(|| {
                let names = Precision::ALL.map(|p| format!("{:?}", p.name())).join(", ");
                t.invalid("precision", format!("{name:?} is none of {names}"))
            })?;
    }
    settings.fp16_file = t.text("fp16_file")?.map(|file| dir.join(file));
    if let Some(tolerance) = t.number("fp16_tolerance")? {
        if !(0.0..=1.0).contains(&tolerance) {
            let message = format!("is {tolerance}; it must be within 0 to 1");
            return Err(t.invalid("fp16_tolerance", message));
        }
        settings.fp16_tolerance = tolerance;
    }
    t.finish()?;
    Ok(settings)
}

fn fake_section(t: Table<'_>) -> Result<FakeSection, TomlError> {
    let tensors = |key: &str| -> Result<Vec<TensorSpec>, TomlError> {
        let list = t.tables(key)?.ok_or_else(|| t.missing(key))?;
        if !(1..=TENSORS_MAX).contains(&list.len()) {
            let message = format!("has {} tensors; 1 to {TENSORS_MAX} are served", list.len());
            return Err(t.invalid(key, message));
        }
        list.into_iter().map(tensor).collect()
    };
    let (inputs, outputs) = (tensors("inputs")?, tensors("outputs")?);
    let batched = t.boolean("batched")?.unwrap_or(true);
    let time = |key: &str| -> Result<Duration, TomlError> {
        Ok(Duration::from_micros(t.integer(key, 0, TIMEOUT_US_MAX as u64)?.unwrap_or(0)))
    };
    let compute =
        FakeCompute { per_run: time("compute_us")?, per_row: time("compute_per_row_us")? };
    let marker = |key: &str| -> Result<Option<u8>, TomlError> {
        Ok(t.integer(key, 1, u8::MAX as u64)?.map(|n| n as u8))
    };
    let fault =
        FakeFault { error_marker: marker("error_marker")?, panic_marker: marker("panic_marker")? };
    t.finish()?;
    let signature = Signature { inputs, outputs, batched };
    Ok(FakeSection { signature, compute, work: FakeWork::default(), fault })
}

fn tensor(t: Table<'_>) -> Result<TensorSpec, TomlError> {
    let name = t.text("name")?.ok_or_else(|| t.missing("name"))?;
    if name.is_empty() || name.len() > TENSOR_NAME_LEN_MAX {
        let message = format!("has {} bytes; 1 to {TENSOR_NAME_LEN_MAX} will do", name.len());
        return Err(t.invalid("name", message));
    }
    let dtype_name = t.text("dtype")?.unwrap_or_else(|| "float32".into());
    let dtype = DType::ALL.into_iter().find(|d| d.name() == dtype_name).ok_or_else(|| {
        let names = DType::ALL.map(DType::name).join(", ");
        t.invalid("dtype", format!("{dtype_name:?} is none of {names}"))
    })?;
    let shape = t.integers("shape", 1, u32::MAX as u64)?.ok_or_else(|| t.missing("shape"))?;
    let row_shape: Vec<usize> = shape.into_iter().map(|n| n as usize).collect();
    let bytes = row_shape.iter().try_fold(dtype.size_bytes(), |len, &n| len.checked_mul(n));
    let max = crate::limits::FRAME_PAYLOAD_BYTES_MAX;
    if row_shape.len() > ROW_AXES_MAX || bytes.is_none_or(|b| b > max) {
        let message = format!("at most {ROW_AXES_MAX} axes and {max} bytes a row will do");
        return Err(t.invalid("shape", message));
    }
    t.finish()?;
    Ok(TensorSpec { name, dtype, row_shape })
}

#[cfg(test)]
mod tests;
