//! Boot, ready, drain, stop: the one place that knows all.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use corelane::runtime::Runtime;
//!
//! let runtime = Runtime::builder().model_dir("models/mlp").build()?;
//! let mlp = runtime.client().model("mlp")?;
//! let mut request = mlp.request(1)?;
//! request.input_mut::<f32>(0)?.fill(0.5);
//! let answer = request.infer()?;
//! println!("{:?} {:?}", answer.output::<f32>(0)?, answer.receipt());
//! # Ok(()) }
//! ```

mod boot;
mod configured;
mod end;
mod kinds;
mod local;
mod notify;
mod plan;
mod realtime;
mod reload;
mod serve;
mod served;
mod source;
mod stats;

pub use boot::{BuildError, RuntimeBuilder};
pub use configured::{Configured, NotServed};
pub use end::{DrainReport, Shutdown};
pub use local::{Answer, InferError, LocalClient, ModelHandle, Pending, Request, WaitPolicy};
pub use notify::Completions;
pub use plan::{BoardMismatch, PlanError, PlannedBoard, plan_board, take_board};
pub use realtime::{
    Outcome, PRIORITY_RANGE, Policy, ProcessOptions, RealTime, Refused, ThreadOptions,
};
pub use reload::{Difference, ReloadError, Reloaded, Reloader, Watch};
pub use serve::ServeError;
pub use served::ServedModel;
pub use source::ModelSource;
pub use stats::{ModelStats, ProcessState, ServiceStats, StatsSnapshot, WorkerState};

use crate::batch::BatchSettings;
use crate::engine::Engine;
use crate::limits::{BATCH_SIZES_MAX, MAX_QUEUE_SIZE_DEFAULT, QUEUE_BYTES_DEFAULT};
use crate::metrics::WorkerStats;
use crate::model::signature::Signature;
use crate::model::{Inspection, InstanceGroup, LoadedModel};
use crate::queue::completion::{CompletionReceiver, IoWaker};
use crate::queue::idle::IdleSet;
use crate::sys::sync::{Arc, AtomicBool, Ordering};
use crate::units::{CoreId, Micros, Nanos, Priority, Rows};
use crate::worker::Orders;

/// A loaded model and how it is to be served.
#[derive(Clone)]
pub struct ModelSetup {
    /// Its name, unique in the runtime.
    pub name: String,
    /// The loaded model.
    pub engine: Arc<dyn Engine>,
    /// How it is batched.
    pub batch: BatchSettings,
    /// `max_queue_size`.
    pub max_queue_size: u32,
    /// Rows that one request may have.
    pub max_request_rows: Rows,
    /// `priority_levels`.
    pub priority_levels: u8,
    /// Priority of requests that ask for none.
    pub default_priority: Priority,
    /// Deadline of requests that ask for none; 0 is none.
    pub default_timeout: Micros,
    /// Fair share against other models on the same worker.
    pub weight: u32,
    /// `model_warmup`: runs of each batch size before a worker is ready, besides the timed ones.
    pub model_warmup: u32,
    /// Worker cores that serve it; `None` is all.
    pub cores: Option<Vec<CoreId>>,
    /// Class labels, if the manifest has them.
    pub labels: Vec<String>,
    /// What was found when the model was loaded; `None` for an engine made by hand.
    pub inspection: Option<Arc<Inspection>>,
    /// Where it was read from, and can be read again; `None` for one made by hand.
    pub source: Option<ModelSource>,
    /// The hash of all that it was loaded from, in hexadecimal; `None` for one made by hand.
    pub version_hash: Option<String>,
}

/// What is common to the runtime, its clients and its transports.
pub struct Shared {
    /// The models, by [`ModelId`](crate::units::ModelId).
    pub models: Vec<ServedModel>,
    /// Each worker's core (`None`: unpinned) and counters.
    pub workers: Vec<(Option<CoreId>, Arc<WorkerStats>)>,
    /// The kinds of the workers' cores.
    pub(crate) kinds: kinds::Kinds,
    pub(crate) idle_set: Arc<IdleSet>,
    pub(crate) started_at: Nanos,
    pub(crate) draining: AtomicBool,
    pub(crate) waker: Arc<IoWaker>,
    /// What workers are told.
    pub(crate) orders: Arc<Orders>,
    /// Held while a version is loaded and handed over: one at a time.
    pub(crate) reloading: std::sync::Mutex<()>,
    /// Extra counters for `stats`, of whoever serves this runtime (transports).
    pub(crate) extra: std::sync::Mutex<Vec<stats::ExtraStats>>,
}

impl Shared {
    /// The model called `name`, and its position.
    pub fn find(&self, name: &str) -> Option<(usize, &ServedModel)> {
        self.models.iter().enumerate().find(|(_, m)| m.name == name)
    }

    /// Whether the runtime accepts requests.
    pub fn is_ready(&self) -> bool {
        !self.draining.load(Ordering::Relaxed)
    }

    /// Adds counters to `stats`: `f` is called on the thread that asks for a snapshot.
    pub fn add_stats(
        &self,
        name: &'static str,
        f: impl Fn() -> serde_json::Value + Send + 'static,
    ) {
        let mut extra = self.extra.lock().unwrap_or_else(|e| e.into_inner());
        extra.push(stats::ExtraStats { name, read: Box::new(f) });
    }

    /// Adds to `stats` what stays as it is: plain data, whose keys are texts.
    pub fn add_fact(&self, name: &'static str, fact: &impl serde::Serialize) {
        // Such data always has a JSON form.
        let value = serde_json::to_value(fact).unwrap_or_default();
        self.add_stats(name, move || value.clone());
    }
}

/// A running runtime: its workers serve until it is drained or dropped.
pub struct Runtime {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
    io: Option<(Vec<CompletionReceiver>, Arc<IoWaker>)>,
    realtime: realtime::Granted,
}

impl Runtime {
    /// A builder.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// A cloneable handle for requests from this process.
    pub fn client(&self) -> LocalClient {
        LocalClient::new(self.shared.clone())
    }

    /// What transports and reports need.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The completion rings and the waker, for the one I/O thread; `None` after the first call.
    pub fn take_io(&mut self) -> Option<(Vec<CompletionReceiver>, Arc<IoWaker>)> {
        self.io.take()
    }

    /// What an event loop of the caller's own learns of ready answers by; `None` after the first
    /// call, or once the runtime serves sockets.
    pub fn take_completions(&mut self) -> Option<Completions> {
        self.take_io().map(|(rings, waker)| Completions::new(rings, waker))
    }

    /// Counters and stage histograms.
    pub fn stats(&self) -> StatsSnapshot {
        stats::snapshot(&self.shared)
    }
}

impl ModelSetup {
    /// An engine made by hand, served plainly: batches of up to its largest size without delay, one row
    /// a request, one priority level, no deadline, on all workers.
    pub fn new(name: &str, engine: Arc<dyn Engine>) -> ModelSetup {
        ModelSetup {
            name: name.into(),
            batch: BatchSettings {
                max_batch_size: engine.batch_sizes().iter().copied().max().unwrap_or(1) as u32,
                preferred_batch_size: Default::default(),
                max_queue_delay: Micros(0),
            },
            engine,
            max_queue_size: MAX_QUEUE_SIZE_DEFAULT as u32,
            max_request_rows: Rows(1),
            priority_levels: 1,
            default_priority: Priority(1),
            default_timeout: Micros(0),
            weight: 1,
            model_warmup: 1,
            cores: None,
            labels: Vec::new(),
            inspection: None,
            source: None,
            version_hash: None,
        }
    }

    /// Loads and verifies the model in `path` (a directory with a manifest, a manifest, or a bare
    /// `.onnx` file), to be served as its manifest says.
    ///
    /// # Errors
    /// Whatever [`LoadedModel::read`] finds.
    pub fn read(path: &std::path::Path) -> Result<ModelSetup, BuildError> {
        ModelSource::new(path).load().map_err(|error| BuildError::Model {
            model: path.display().to_string(),
            reason: Box::new(error),
        })
    }
}

/// Bytes of one slot, input and output, for requests of up to `rows` rows.
fn slot_bytes(signature: &Signature, rows: usize) -> usize {
    signature.input_layout(rows).1 + signature.output_layout(rows).1
}

/// How many requests wait at most where nothing is said of it, with slots of `slot_bytes`.
fn queue_size(slot_bytes: usize, max_batch_size: usize) -> u32 {
    let fit = (QUEUE_BYTES_DEFAULT / slot_bytes.max(1)).max(max_batch_size);
    fit.min(MAX_QUEUE_SIZE_DEFAULT) as u32
}

impl From<LoadedModel> for ModelSetup {
    fn from(loaded: LoadedModel) -> ModelSetup {
        let inspection = loaded.inspect();
        let manifest = loaded.manifest;
        let rows = manifest.max_request_rows;
        ModelSetup {
            name: manifest.name,
            batch: BatchSettings {
                max_batch_size: manifest.max_batch_size as u32,
                preferred_batch_size: manifest
                    .preferred_batch_size
                    .iter()
                    .map(|&size| size as u32)
                    .take(BATCH_SIZES_MAX)
                    .collect(),
                max_queue_delay: manifest.max_queue_delay,
            },
            max_queue_size: manifest.max_queue_size.unwrap_or_else(|| {
                queue_size(slot_bytes(loaded.engine.signature(), rows), manifest.max_batch_size)
            }),
            max_request_rows: Rows(manifest.max_request_rows as u16),
            priority_levels: manifest.priority_levels,
            default_priority: manifest.default_priority,
            default_timeout: manifest.default_timeout,
            weight: manifest.weight,
            model_warmup: manifest.model_warmup,
            cores: match manifest.instance_group {
                InstanceGroup::All => None,
                InstanceGroup::Cores(cores) => Some(cores),
            },
            labels: manifest.labels,
            engine: loaded.engine,
            inspection: Some(Arc::new(inspection)),
            source: None,
            version_hash: None,
        }
    }
}

#[cfg(test)]
mod tests;
