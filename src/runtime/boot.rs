//! From a configuration to a runtime that is ready.

use super::kinds::Kinds;
use super::realtime::{RealTime, Refused};
use super::{ModelSetup, Runtime, ServedModel, Shared, slot_bytes};
use crate::board::core_kinds;
use crate::limits::{MODELS_MAX, SLOT_BYTES_PER_MODEL_MAX, SLOTS_PER_MODEL_MAX, WORKERS_MAX};
use crate::metrics::{WorkerPhase, WorkerStats};
use crate::queue::completion::{IoWaker, completion_ring};
use crate::queue::idle::IdleSet;
use crate::queue::{ModelQueue, QueueSpec, ServiceTimes};
use crate::sys::sync::{Arc, AtomicBool, Ordering};
use crate::sys::{affinity, clock};
use crate::units::{CoreId, Micros, ModelId, WorkerId};
use crate::worker::{self, IdleStrategy, Lane, Orders, StartError, WorkerSpec};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// Why a runtime could not be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// A core is not allowed, or a pin did not take.
    Affinity(affinity::AffinityError),
    /// A model could not be loaded.
    Model {
        /// Where it is, or its name.
        model: String,
        /// Why.
        reason: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A count or a size is over its limit, or there is none of something.
    Limit {
        /// What.
        what: String,
        /// How much is asked for.
        wanted: usize,
        /// The most there can be.
        max: usize,
    },
    /// Something in the configuration contradicts something else.
    Config(
        /// What, and what would be right.
        String,
    ),
    /// A worker could not start.
    Worker {
        /// The model that is to blame, if one is.
        model: Option<String>,
        /// Why.
        reason: String,
    },
    /// The system refused a thread or a file descriptor.
    System(std::io::Error),
    /// The system refused real-time options.
    RealTime(Refused),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Affinity(e) => e.fmt(f),
            BuildError::Model { model, reason } => write!(f, "model {model}: {reason}"),
            BuildError::Limit { what, wanted, max } => {
                write!(f, "{what}: {wanted} asked for, the limit is {max}")
            }
            BuildError::Config(text) => f.write_str(text),
            BuildError::Worker { model: Some(model), reason } => {
                write!(f, "model {model}: a worker could not start: {reason}")
            }
            BuildError::Worker { model: None, reason } => {
                write!(f, "a worker could not start: {reason}")
            }
            BuildError::System(e) => write!(f, "the system refused: {e}"),
            BuildError::RealTime(refused) => refused.fmt(f),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BuildError::Affinity(e) => Some(e),
            BuildError::Model { reason, .. } => Some(&**reason),
            BuildError::System(e) => Some(e),
            BuildError::RealTime(refused) => Some(refused),
            _ => None,
        }
    }
}

/// What a runtime is made from.
#[derive(Default)]
pub struct RuntimeBuilder {
    dirs: Vec<PathBuf>,
    setups: Vec<ModelSetup>,
    cores: Option<Vec<CoreId>>,
    unpinned: Option<usize>,
    idle: IdleStrategy,
    realtime: RealTime,
    /// Kind of each worker's core, where a test says it.
    kinds: Option<Vec<Option<String>>>,
}

impl RuntimeBuilder {
    /// Serves the model in `path`: a directory with a manifest, or a bare `.onnx` file.
    pub fn model_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.dirs.push(path.into());
        self
    }

    /// Serves a model that is loaded already.
    pub fn model(mut self, setup: ModelSetup) -> Self {
        self.setups.push(setup);
        self
    }

    /// One worker on each of `cores`, pinned. The default is every allowed core but the first, which is
    /// left for I/O and the application; the first alone if there is no other.
    pub fn cores(mut self, cores: impl IntoIterator<Item = CoreId>) -> Self {
        self.cores = Some(cores.into_iter().collect());
        self
    }

    /// `workers` workers that the scheduler may move about. Latencies then vary; it is for machines
    /// where pinning is not allowed.
    pub fn unpinned(mut self, workers: usize) -> Self {
        self.unpinned = Some(workers);
        self
    }

    /// What workers do when nothing waits.
    pub fn idle(mut self, idle: IdleStrategy) -> Self {
        self.idle = idle;
        self
    }

    /// What the kernel is asked for. The default asks for nothing.
    pub fn realtime(mut self, realtime: RealTime) -> Self {
        self.realtime = realtime;
        self
    }

    /// Tells workers apart on a machine whose cores are alike.
    #[cfg(test)]
    pub(super) fn kinds(mut self, kinds: &[&str]) -> Self {
        self.kinds = Some(kinds.iter().map(|kind| Some(kind.to_string())).collect());
        self
    }

    /// The kinds of cores that the workers have.
    fn core_kinds(&self, cores: &[Option<CoreId>]) -> Kinds {
        let pinned: Vec<CoreId> = cores.iter().flatten().copied().collect();
        Kinds::new(match &self.kinds {
            Some(kinds) => kinds.clone(),
            None if pinned.len() == cores.len() => core_kinds(Path::new("/"), &pinned),
            // The scheduler may move them to any kind.
            None => vec![None; cores.len()],
        })
    }

    fn worker_cores(&self) -> Result<Vec<Option<CoreId>>, BuildError> {
        if let Some(workers) = self.unpinned {
            if self.cores.is_some() {
                let text = "worker cores are given and unpinned workers are asked for; choose one";
                return Err(BuildError::Config(text.into()));
            }
            return Ok(vec![None; workers]);
        }
        let allowed = affinity::allowed().map_err(BuildError::Affinity)?;
        let cores = match &self.cores {
            Some(cores) => {
                let pinnable = affinity::pinnable().map_err(BuildError::Affinity)?;
                affinity::check(cores, &pinnable).map_err(BuildError::Affinity)?;
                let mut sorted = cores.clone();
                sorted.sort_unstable();
                sorted.dedup();
                if sorted.len() != cores.len() {
                    let text = "a worker core is named twice; a core has one worker";
                    return Err(BuildError::Config(text.into()));
                }
                cores.clone()
            }
            None if allowed.len() > 1 => allowed[1..].to_vec(),
            None => allowed,
        };
        Ok(cores.into_iter().map(Some).collect())
    }

    /// Loads, warms up and verifies every model, starts the workers, and returns when all are ready.
    ///
    /// # Errors
    /// The first thing that is not as asked for; nothing keeps running.
    pub fn build(mut self) -> Result<Runtime, BuildError> {
        clock::prepare();
        let cores = self.worker_cores()?;
        limit("workers", cores.len(), WORKERS_MAX)?;
        let early = self.realtime.process.apply_early();
        for dir in std::mem::take(&mut self.dirs) {
            self.setups.push(ModelSetup::read(&dir)?);
        }
        limit("models", self.setups.len(), MODELS_MAX)?;
        let kinds = self.core_kinds(&cores);
        let waker = IoWaker::new().map_err(BuildError::System)?;
        let delayed = self.setups.iter().any(|setup| setup.batch.max_queue_delay != Micros(0));
        waker.seat().allow(self.idle == IdleStrategy::Park && !delayed);
        let poke = waker.clone();
        let idle_set = IdleSet::new(cores.len()).poked_by(move || poke.wake_always());
        let idle_set = Arc::new(idle_set);
        let orders = Arc::new(Orders::default());
        let mut models = Vec::new();
        for (id, setup) in self.setups.iter().enumerate() {
            if self.setups[..id].iter().any(|other| other.name == setup.name) {
                return Err(BuildError::Config(format!("two models are called {:?}", setup.name)));
            }
            models.push(served(id, setup, &cores, &kinds, &idle_set)?);
        }
        let slots: usize = models.iter().map(|m| m.queue.slots()).sum();
        let (ready, readiness) = mpsc::channel();
        let mut threads = Vec::new();
        let mut receivers = Vec::new();
        let mut workers = Vec::new();
        for (n, &core) in cores.iter().enumerate() {
            let (completions, receiver) = completion_ring(slots, Some(waker.clone()));
            let stats = Arc::new(WorkerStats::default());
            let lanes = (models.iter().zip(&self.setups))
                .filter(|(m, _)| m.queue.spec().workers & (1 << n) != 0)
                .map(|(m, setup)| Lane {
                    queue: m.queue.clone(),
                    engine: setup.engine.clone(),
                    batch: setup.batch.clone(),
                    weight: setup.weight,
                    warmup_runs: setup.model_warmup,
                    stats: m.lanes[n].clone(),
                    exchange: m.exchanges[n].clone(),
                })
                .collect();
            let spec = WorkerSpec {
                id: WorkerId(n as u8),
                core,
                kind: kinds.of_worker[n],
                thread: self.realtime.thread,
                idle: self.idle,
                lanes,
                completions,
                idle_set: idle_set.clone(),
                orders: orders.clone(),
                stats: stats.clone(),
            };
            threads.push(worker::spawn(spec, ready.clone()).map_err(BuildError::System)?);
            receivers.push(receiver);
            workers.push((core, stats));
        }
        drop(ready);
        let shared = Arc::new(Shared {
            models,
            workers,
            kinds,
            idle_set,
            started_at: clock::now(),
            draining: AtomicBool::new(false),
            waker: waker.clone(),
            orders,
            reloading: std::sync::Mutex::new(()),
            extra: std::sync::Mutex::new(Vec::new()),
        });
        // From here on a failure drops the runtime, which stops the workers that did start.
        let io = Some((receivers, waker));
        let realtime = self.realtime.granted(early);
        let mut runtime = Runtime { shared: shared.clone(), threads, io, realtime };
        for _ in 0..cores.len() {
            match readiness.recv() {
                Ok(Ok(started)) => runtime.realtime.add(started.thread),
                Ok(Err(StartError::Affinity(e))) => return Err(BuildError::Affinity(e)),
                Ok(Err(StartError::Engine { model, reason })) => {
                    let model = shared.models.get(model.0 as usize).map(|m| m.name.clone());
                    return Err(BuildError::Worker { model, reason });
                }
                Err(_) => {
                    let reason = "it panicked while it started".into();
                    return Err(BuildError::Worker { model: None, reason });
                }
            }
        }
        runtime.realtime.finish(&shared).map_err(BuildError::RealTime)?;
        for (_, stats) in &shared.workers {
            // A few instructions: the worker frees its end of the channel. From here on it frees
            // nothing. Acquire: see the worker's store.
            while stats.phase.load(Ordering::Acquire) == WorkerPhase::Starting as u64 {
                std::thread::yield_now();
            }
        }
        Ok(runtime)
    }
}

fn limit(what: &str, wanted: usize, max: usize) -> Result<(), BuildError> {
    if (1..=max).contains(&wanted) {
        return Ok(());
    }
    Err(BuildError::Limit { what: what.into(), wanted, max })
}

fn served(
    id: usize,
    setup: &ModelSetup,
    cores: &[Option<CoreId>],
    kinds: &Kinds,
    idle_set: &Arc<IdleSet>,
) -> Result<ServedModel, BuildError> {
    let name = &setup.name;
    let workers = match &setup.cores {
        None => cores.iter().enumerate().fold(0u64, |mask, (n, _)| mask | 1 << n),
        Some(wanted) => {
            let mut mask = 0u64;
            for core in wanted {
                let Some(n) = cores.iter().position(|c| *c == Some(*core)) else {
                    let have: Vec<CoreId> = cores.iter().flatten().copied().collect();
                    return Err(BuildError::Config(format!(
                        "model {name}: instance_group names core {core}, but the workers are on \
                         cores {}",
                        affinity::core_list(&have)
                    )));
                };
                mask |= 1 << n;
            }
            mask
        }
    };
    if workers == 0 {
        return Err(BuildError::Config(format!("model {name}: no worker serves it")));
    }
    let largest = setup.engine.batch_sizes().last().copied().unwrap_or(1);
    for (what, rows) in [
        ("max_request_rows", setup.max_request_rows.0 as usize),
        ("max_batch_size", setup.batch.max_batch_size as usize),
    ] {
        // A request larger than every plan could never be taken.
        limit(&format!("model {name}: {what} (the largest compiled batch)"), rows, largest)?;
    }
    let sizes = setup.engine.batch_sizes();
    let signature = setup.engine.signature().clone();
    // Beside those that wait: one batch of single rows on each worker, and as many being filled or
    // read by their clients; and one whose answer a worker has sent by itself, until the I/O thread
    // wakes up and puts it away.
    let in_batch = setup.batch.max_batch_size.min(setup.max_queue_size.max(1));
    let extra = workers.count_ones() * in_batch * 2 + 1;
    let max_extra = (SLOTS_PER_MODEL_MAX as u32).saturating_sub(setup.max_queue_size);
    let extra_slots = extra.clamp(1, max_extra.max(1));
    let slots = setup.max_queue_size as usize + extra_slots as usize;
    limit(
        &format!("model {name}: slots (max_queue_size and those in use)"),
        slots,
        SLOTS_PER_MODEL_MAX,
    )?;
    let rows = setup.max_request_rows.0 as usize;
    let bytes = slots * slot_bytes(&signature, rows);
    limit(
        &format!(
            "model {name}: bytes of {slots} slots of {rows} rows (lower max_queue_size or \
             max_request_rows)"
        ),
        bytes,
        SLOT_BYTES_PER_MODEL_MAX,
    )?;
    let spec = QueueSpec {
        id: ModelId(id as u16),
        signature,
        max_queue_size: setup.max_queue_size,
        max_request_rows: setup.max_request_rows,
        priority_levels: setup.priority_levels,
        default_priority: setup.default_priority,
        default_timeout: setup.default_timeout,
        extra_slots,
        workers,
    };
    let queue =
        ModelQueue::make(spec, idle_set.clone(), ServiceTimes::of_kinds(sizes, &kinds.workers));
    Ok(ServedModel::new(setup, queue, cores.len()))
}
