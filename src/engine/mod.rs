//! Engines: what turns a batch of rows into answers.
//!
//! An [`Engine`] is a loaded model: its signature, and whatever is read-only and shared (packed
//! weights). Each worker makes itself an [`Instance`]: the mutable half, with the buffers of every
//! compiled batch size. After [`Instance::warm_up`] an instance of an engine that keeps the
//! no-allocation contract ([`Description::allocation_free`]) never calls the system allocator.
//!
//! | engine | what | allocation free |
//! |---|---|---|
//! | `plan` | static plan and kernels of our own | yes |
//! | `tract` | tract's own runner, the reference | no |
//! | `ort` | ONNX Runtime, from a shared library (feature `ort`) | no |
//! | `fake` | a fixed compute time, for tests and overhead figures | yes |
//!
//! Only engine `plan` has loops for each kind of core and chooses by the worker's; [`tract`] chooses once for
//! the process.

pub mod fake;
pub mod image;
pub mod kernels;
pub mod ort;
pub mod plan;
pub(crate) mod quiet;
pub mod tract;

use crate::limits::{BATCH_ROWS_MAX, BATCH_SIZES_MAX};
use crate::model::signature::{Signature, TensorSpec};
pub use crate::sys::region::{Options as MemoryOptions, Wish};
use crate::units::{CoreId, Nanos};
use std::fmt;

/// Which implementation runs a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Static memory plan and kernels of our own.
    Plan,
    /// tract's own runner.
    Tract,
    /// ONNX Runtime.
    Ort,
    /// Fixed compute time.
    Fake,
}

impl EngineKind {
    /// The name in manifests, metrics and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            EngineKind::Plan => "plan",
            EngineKind::Tract => "tract",
            EngineKind::Ort => "ort",
            EngineKind::Fake => "fake",
        }
    }
}

/// Position of a batch size in [`Engine::batch_sizes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlanIndex(pub usize);

/// A model that is loaded: shared between workers, read-only.
pub trait Engine: Send + Sync {
    /// Which implementation this is.
    fn kind(&self) -> EngineKind;
    /// Inputs and outputs, per row.
    fn signature(&self) -> &Signature;
    /// Compiled batch sizes, ascending, at least one. `[1]` where the model can't batch.
    fn batch_sizes(&self) -> &[usize];
    /// Whether the structure of the model shows that the rows of a batch are computed each from itself
    /// alone, as alone.
    ///
    /// # Errors
    /// What can't be shown, and where.
    fn independence(&self) -> Result<(), &str> {
        Err("the engine does not follow its rows")
    }
    /// What `inspect` prints.
    fn describe(&self) -> Description;
    /// The steps of a plan that [`Instance::infer_profiled`] times, in order; none where the engine
    /// does not say.
    fn steps(&self, plan: PlanIndex) -> Vec<StepInfo> {
        let _ = plan;
        Vec::new()
    }
    /// Times the steps of `plan` over `runs` runs on zeros; `None` where the engine has no steps.
    ///
    /// # Errors
    /// As [`instance`](Self::instance), and `Internal` where a run fails.
    fn profile(&self, _plan: PlanIndex, _runs: usize) -> Result<Option<Profile>, EngineError> {
        Ok(None)
    }
    /// The compiled program, to be kept in a cache; why it can't be.
    fn image(&self) -> Result<image::Image, String> {
        Err(format!("engine {} compiles nothing that could be kept", self.kind().name()))
    }
    /// What computes where, for an engine that can compute in several places.
    fn backend(&self) -> Option<&BackendReport> {
        None
    }
    /// Makes the mutable half, with every buffer allocated. Called at start on the worker's own thread,
    /// after pinning, so that memory is local; for a version that comes later, on the thread that loads it.
    fn instance(&self) -> Result<Box<dyn Instance>, EngineError>;
}

/// The mutable half of a loaded model: one per worker, never shared. It is made warm and freed on other
/// threads than its worker's where versions change while the runtime serves, so it is tied to none.
///
/// Tensors are exchanged as raw little-endian bytes, rows contiguous, through staging areas whose
/// addresses are aligned to [`BUFFER_ALIGN_BYTES`](crate::limits::BUFFER_ALIGN_BYTES).
pub trait Instance: Send {
    /// Staging area of input `input` for `plan`: batch size x row bytes. The caller fills the rows
    /// it has; what the pad rows hold does not matter.
    fn input_mut(&mut self, plan: PlanIndex, input: usize) -> &mut [u8];
    /// Runs `plan` on the staging areas.
    fn infer(&mut self, plan: PlanIndex) -> Result<(), RunError>;
    /// Staging area of output `output` for `plan`, valid after [`infer`](Self::infer).
    fn output(&self, plan: PlanIndex, output: usize) -> &[u8];

    /// Says that `core` is the one that it will run on. Until then that is any core that the thread which
    /// made it may run on. The default takes the same kernels on all.
    fn settle_on(&mut self, core: CoreId) {
        let _ = core;
    }

    /// Runs `plan` once or more on zeros, so that every later run finds its memory touched, its
    /// caches filled and its code loaded.
    fn warm_up(&mut self, plan: PlanIndex) -> Result<(), RunError> {
        self.infer(plan)
    }

    /// [`infer`](Self::infer) that adds each step's time, in nanoseconds, to `step_ns`, which has one
    /// place for each of [`Engine::steps`]. The default times nothing.
    fn infer_profiled(&mut self, plan: PlanIndex, step_ns: &mut [u64]) -> Result<(), RunError> {
        let _ = step_ns;
        self.infer(plan)
    }

    /// Runs `plan` on one request that fills it exactly, from the request's own buffers into the
    /// request's own buffers. The default copies through the staging areas; an engine that can do
    /// without a copy overrides it. Buffers are aligned to
    /// [`TENSOR_ALIGN_BYTES`](crate::limits::TENSOR_ALIGN_BYTES).
    fn infer_direct(
        &mut self,
        plan: PlanIndex,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), RunError> {
        for (i, input) in inputs.iter().enumerate() {
            self.input_mut(plan, i)[..input.len()].copy_from_slice(input);
        }
        self.infer(plan)?;
        for (o, output) in outputs.iter_mut().enumerate() {
            output.copy_from_slice(&self.output(plan, o)[..output.len()]);
        }
        Ok(())
    }
}

/// A step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepInfo {
    /// Kernel, shapes and place, for people.
    pub text: String,
    /// Floating point operations of a run, a multiplication and an addition counting as two.
    pub flops: u64,
}

/// One kind of operator in a model, and what runs it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct OperatorUse {
    /// Operator, as the graph names it after simplification.
    pub operator: String,
    /// What runs it (`tract`, a kernel's name, `fallback:tract`).
    pub implementation: String,
    /// How many steps.
    pub count: usize,
}

/// Memory of one batch size on one worker.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PlanMemory {
    /// Rows.
    pub batch_size: usize,
    /// Bytes of intermediates (the arena), if the engine knows.
    pub arena_bytes: Option<usize>,
    /// The least that any arena would need: the largest sum of live bytes.
    pub arena_lower_bound_bytes: Option<usize>,
    /// Bytes of the input and output staging areas.
    pub staging_bytes: usize,
}

impl PlanMemory {
    /// For each batch size of an engine that plans no memory: staging areas for every tensor, and an
    /// arena of `arena_bytes`, if that is known.
    fn staged(
        signature: &Signature,
        batch_sizes: &[usize],
        arena_bytes: Option<usize>,
    ) -> Vec<PlanMemory> {
        let tensors = || signature.inputs.iter().chain(&signature.outputs);
        let row_bytes: usize = tensors().map(TensorSpec::row_bytes).sum();
        let memory = |&rows: &usize| PlanMemory {
            batch_size: rows,
            arena_bytes,
            arena_lower_bound_bytes: arena_bytes,
            staging_bytes: row_bytes * rows,
        };
        batch_sizes.iter().map(memory).collect()
    }
}

/// A provider that runs nodes of a model.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BackendUse {
    /// Its name: `cpu`, `cuda`, `tensorrt`, or the library's own name for another.
    pub provider: String,
    /// Nodes of the optimised graph that it runs.
    pub nodes: usize,
}

impl fmt::Display for BackendUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} nodes on {}", self.nodes, self.provider)
    }
}

/// A provider that was preferred, but did not take.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BackendMissing {
    /// Its name.
    pub provider: String,
    /// Why it did not take.
    pub reason: String,
}

/// Runs of the first batch size on zeros, at load: as the model is served, and on the processor alone.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Canary {
    /// Rows.
    pub batch_size: usize,
    /// Median time as the model is served.
    pub got_ns: Nanos,
    /// Median time on the processor.
    pub cpu_ns: Nanos,
}

/// Half precision beside single precision, as found at load on golden and on random rows.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct PrecisionReport {
    /// What was asked for: `fp16`.
    pub wanted: &'static str,
    /// Where half precision comes from: a model file, or the provider that converts by itself.
    pub from: String,
    /// Nodes that take or give half precision, conversions not counted, as read back from a run; `None`
    /// where a provider converts inside of its nodes.
    pub half_nodes: Option<usize>,
    /// All nodes that ran.
    pub nodes: usize,
    /// Golden rows that were compared.
    pub golden_rows: usize,
    /// Random rows that were compared.
    pub random_rows: usize,
    /// Largest difference from single precision on the processor, over the output's largest value.
    pub largest_difference: f64,
    /// Mean difference, likewise.
    pub mean_difference: f64,
    /// Share of rows (or places within them) whose largest class of the first output is the same, 0 to 1;
    /// `None` where there are no classes.
    pub top1_agreement: Option<f64>,
    /// Largest difference that is allowed.
    pub tolerance: f64,
}

impl fmt::Display for PrecisionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} from {}: largest difference {:.1e} (at most {:.1e}), mean {:.1e}",
            self.wanted, self.from, self.largest_difference, self.tolerance, self.mean_difference
        )?;
        if let Some(top1) = self.top1_agreement {
            write!(f, ", top-1 agreement {:.1} %", top1 * 100.0)?;
        }
        write!(f, " on {} golden and {} random rows", self.golden_rows, self.random_rows)?;
        if let Some(half) = self.half_nodes {
            write!(f, "; {half} of {} nodes in half precision", self.nodes)?;
        }
        Ok(())
    }
}

/// What is kept of a provider's compiled engines for the next start.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct EngineCacheReport {
    /// The directory; `None` where nothing is kept.
    pub dir: Option<String>,
    /// Engines in it, after loading.
    pub engines: usize,
    /// Why nothing is kept.
    pub reason: Option<String>,
}

/// Where a model computes, beside what was asked for.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct BackendReport {
    /// Providers asked for, in order, each `required` or `preferred`.
    pub backend_wanted: Vec<String>,
    /// Who runs how many nodes, as read back from a run.
    pub backend_got: Vec<BackendUse>,
    /// Preferred providers that did not take.
    pub backend_missing: Vec<BackendMissing>,
    /// The shared library.
    pub backend_library: String,
    /// Its version.
    pub backend_version: String,
    /// Time against the processor; `None` where everything runs on it.
    pub backend_canary: Option<Canary>,
    /// Whether requests are in memory that a GPU copies from and to at once; `None` on the processor alone.
    pub backend_pinned: Option<bool>,
    /// Whether workers sleep while a GPU computes, else they may spin; `None` on the processor alone.
    pub backend_sleeps: Option<bool>,
    /// Whether runs are CUDA graphs that are replayed; `None` on the processor alone.
    pub backend_cuda_graph: Option<bool>,
    /// How far half precision is from single precision; `None` where it was not asked for.
    pub backend_precision: Option<PrecisionReport>,
    /// Engines that TensorRT keeps; `None` without it, or where no cache was asked for.
    pub backend_engine_cache: Option<EngineCacheReport>,
}

/// What `inspect` prints of a loaded model.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Description {
    /// Operators by kind and implementation.
    pub operators: Vec<OperatorUse>,
    /// Memory per batch size.
    pub memory: Vec<PlanMemory>,
    /// Bytes of intermediates of one instance, for all batch sizes, if the engine knows.
    pub instance_arena_bytes: Option<usize>,
    /// Bytes of staging areas of one instance, for all batch sizes.
    pub instance_staging_bytes: usize,
    /// Bytes of weights as the engine keeps them, for all batch sizes.
    pub weight_bytes: usize,
    /// Whether all workers share them; else each has its own.
    pub weights_shared: bool,
    /// Whether an instance never calls the system allocator once warm.
    pub allocation_free: bool,
    /// Instruction set of the kernels, where the engine chooses one.
    pub isa: Option<String>,
    /// In which precision weights come, are kept, and are computed with.
    pub precision: Vec<String>,
    /// The steps of a plan, one line each (engine `plan`).
    pub steps: Vec<String>,
    /// Where it computes (engine `ort`).
    #[serde(flatten)]
    pub backend: Option<BackendReport>,
}

/// How long the steps of a plan take.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Profile {
    /// Rows of the plan.
    pub batch_size: usize,
    /// Runs that were timed.
    pub runs: usize,
    /// Each step's kernel and node.
    pub steps: Vec<String>,
    /// Median of each step's time in nanoseconds, all its turns together.
    pub step_ns: Vec<u64>,
    /// The part of these times that is spent in operators without a kernel, in percent.
    pub fallback_percent: u64,
}

/// What went wrong while a model was being loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineErrorKind {
    /// The file can't be read.
    Io,
    /// The file is not a valid ONNX model (truncated, damaged, not ONNX).
    Malformed,
    /// An operator, or one of its attributes, is not supported.
    UnsupportedOperator,
    /// A type or shape could not be inferred; often an axis that the manifest must bind.
    Untyped,
    /// A shape, count or size is over its limit, or overflows.
    Limit,
    /// The model can't run at a batch size asked for.
    Batch,
    /// The manifest does not fit the model (unknown input, axis, or value).
    Manifest,
    /// The engine's shared library can't be used.
    Library,
    /// A provider that is required did not take, or can't do what is asked of it.
    Backend,
    /// The precision that was asked for can't be had, or strays too far.
    Precision,
    /// Something else inside the engine.
    Internal,
}

/// Why a model could not be loaded: a kind to match on, where, and a sentence that says what would
/// be right.
#[derive(Debug)]
pub struct EngineError {
    kind: EngineErrorKind,
    node: Option<String>,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl EngineError {
    /// An error of `kind`.
    pub fn new(kind: EngineErrorKind, message: impl Into<String>) -> Self {
        EngineError { kind, node: None, message: message.into(), source: None }
    }
    /// Names the node of the graph where it happened.
    pub fn at_node(mut self, node: impl Into<String>) -> Self {
        self.node = Some(node.into());
        self
    }
    /// Keeps the cause.
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }
    /// What to match on.
    pub fn kind(&self) -> EngineErrorKind {
        self.kind
    }
    /// The node of the graph, if one is to blame.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(node) = &self.node {
            write!(f, " (at node {node:?})")?;
        }
        Ok(())
    }
}

impl std::error::Error for EngineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}

/// Why a run failed. Small and `Copy`: it is made on the request path, where nothing allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunError {
    /// The engine reported an error at this step of the plan.
    Step {
        /// Position of the step, or `u32::MAX` where the engine does not say.
        step: u32,
    },
    /// The engine panicked; its state was rebuilt or is safe to use again.
    Panic,
    /// A fault that a test injected.
    Injected,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Step { step: u32::MAX } => f.write_str("the engine failed"),
            RunError::Step { step } => write!(f, "the engine failed at step {step}"),
            RunError::Panic => f.write_str("the engine panicked"),
            RunError::Injected => f.write_str("a fault was injected"),
        }
    }
}

impl std::error::Error for RunError {}

/// What to load: the bytes of an ONNX file and what the manifest says of it.
#[derive(Debug, Clone)]
pub struct LoadRequest<'a> {
    /// The ONNX file.
    pub bytes: &'a [u8],
    /// Batch sizes to compile, ascending. Engines reduce it to `[1]` where the graph has no batch
    /// axis.
    pub batch_sizes: &'a [usize],
    /// Axes other than the batch that the graph leaves open: symbol (`"sequence"`) to length.
    pub bind_axes: &'a [(String, usize)],
    /// Inputs bound to a constant: name to value, broadcast over the whole tensor.
    pub bind_inputs: &'a [(String, f64)],
    /// Largest arena in bytes, over all batch sizes on one worker. For tract's own runner, which has none,
    /// the largest tensor.
    pub arena_bytes_max: usize,
    /// Whose kernels engine `plan` takes; the others choose by themselves.
    pub isa: kernels::Isa,
}

/// Checks a list of batch sizes: 1 to [`BATCH_SIZES_MAX`] of them, ascending, each within 1 to
/// [`BATCH_ROWS_MAX`].
///
/// # Errors
/// `Batch`, with the list and the bounds.
pub fn check_batch_sizes(batch_sizes: &[usize]) -> Result<(), EngineError> {
    let ascending = batch_sizes.windows(2).all(|w| w[0] < w[1]);
    let within = batch_sizes.iter().all(|n| (1..=BATCH_ROWS_MAX).contains(n));
    if (1..=BATCH_SIZES_MAX).contains(&batch_sizes.len()) && ascending && within {
        return Ok(());
    }
    Err(EngineError::new(
        EngineErrorKind::Batch,
        format!(
            "batch sizes {batch_sizes:?}; there must be 1 to {BATCH_SIZES_MAX} of them, ascending, \
             each within 1 to {BATCH_ROWS_MAX}"
        ),
    ))
}

/// Loads a model with the engine asked for, `ort` on the processor ([`ort::load`] takes its settings);
/// `fake` is made by [`fake::FakeEngine`] directly.
pub fn load(kind: EngineKind, request: &LoadRequest<'_>) -> Result<Box<dyn Engine>, EngineError> {
    match kind {
        EngineKind::Plan => plan::load(request),
        EngineKind::Tract => tract::load(request),
        EngineKind::Ort => ort::load(request, &ort::OrtSettings::default()),
        EngineKind::Fake => Err(EngineError::new(
            EngineErrorKind::Manifest,
            "the fake engine takes no model file; give its shapes in the manifest",
        )),
    }
}
