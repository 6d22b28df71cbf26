//! What a server says on standard output: one line when it is ready, one when it ends.

use crate::out::outln;
use corelane::engine::PrecisionReport;
use corelane::model::CacheState;
use corelane::runtime::{
    DrainReport, NotServed, PlannedBoard, Runtime, ServedModel, StatsSnapshot,
};
use corelane::sys::{memory as system_memory, region};
use corelane::units::CoreId;
use serde::Serialize;
use std::net::SocketAddr;

/// The last line on standard output.
#[derive(Serialize)]
pub struct Drained {
    drained: bool,
    /// Requests accepted since the start.
    accepted: u64,
    /// Those that were answered.
    answered: u64,
    /// Those that ended in an error.
    failed: u64,
    /// Those that had no end when the time was up.
    left: u32,
    /// Answers that their readers did not take in the drain.
    unread: u64,
}

impl Drained {
    /// After a drain that ended so.
    pub fn new(stats: &StatsSnapshot, report: DrainReport) -> Drained {
        let accepted: u64 = stats.models.iter().map(|m| m.accepted).sum();
        let computed: u64 = stats.models.iter().map(|m| m.inference_request_success).sum();
        let left = report.left;
        // What was computed after the time was up is nobody's answer.
        let answered = computed.min(accepted.saturating_sub(left.into()));
        Drained {
            drained: report.clean,
            accepted,
            answered,
            failed: accepted.saturating_sub(answered + u64::from(left)),
            left,
            unread: report.unread,
        }
    }

    /// Prints it.
    pub fn print(&self) {
        // Plain data with text keys: it always has a JSON form.
        outln!("{}", serde_json::to_string(self).unwrap_or_default());
    }
}

/// The one line on standard output.
#[derive(Serialize)]
pub struct Ready {
    ready: bool,
    /// Layout version.
    schema: u32,
    pid: u32,
    version: &'static str,
    addresses: Vec<String>,
    /// Address of the Prometheus endpoint.
    metrics: Option<String>,
    models: Vec<ReadyModel>,
    /// Models that can't be served, with `on_load_error = "serve_others"`.
    pub not_served: Vec<NotServed>,
    workers: Vec<ReadyWorker>,
    /// The core that the I/O thread is pinned to.
    io_core: Option<u16>,
    /// The board whose plan named the cores, as wanted and as got.
    pub board: Option<PlannedBoard>,
    memory: Memory,
    /// Bytes of the process that are in memory.
    resident_bytes: Option<usize>,
    /// What was asked for, for weights and arenas, and what the system gave.
    regions: region::Report,
    /// From the start of loading to here.
    boot_ns: u64,
}

#[derive(Serialize)]
struct ReadyWorker {
    worker: usize,
    /// The core that it is pinned to; `null` if it runs unpinned.
    core: Option<u16>,
}

#[derive(Serialize)]
struct ReadyModel {
    name: String,
    engine: &'static str,
    batch_sizes: Vec<usize>,
    batching: bool,
    /// Why it does not batch.
    batching_reason: Option<String>,
    /// Golden rows that were compared at load.
    golden_rows: usize,
    max_queue_size: u32,
    max_request_rows: u16,
    /// Workers that serve it.
    workers: Vec<usize>,
    /// Whether its engine never calls the allocator once warm.
    allocation_free: bool,
    /// Whether it comes from a compiled cache.
    cache: CacheState,
    /// How far half precision is from single precision; absent where it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    precision: Option<PrecisionReport>,
    memory: Memory,
}

/// Bytes, all allocated before the line is printed.
#[derive(Serialize, Default, Clone, Copy)]
struct Memory {
    /// Shared by all workers, or those of each together.
    weight_bytes: usize,
    /// Intermediates, over all workers and batch sizes; `null` where an engine does not know.
    arena_bytes: Option<usize>,
    /// Staging areas, over all workers and batch sizes.
    staging_bytes: usize,
    /// Requests and answers.
    slot_bytes: usize,
}

impl ReadyModel {
    fn new(model: &ServedModel) -> ReadyModel {
        let setup = model.setup();
        let spec = model.queue.spec();
        let description = setup.engine.describe();
        let workers: Vec<usize> =
            (0..u64::BITS as usize).filter(|w| spec.workers & (1 << w) != 0).collect();
        let batching = setup.inspection.as_ref().map(|i| &i.batching);
        ReadyModel {
            name: setup.name.clone(),
            engine: setup.engine.kind().name(),
            batch_sizes: setup.engine.batch_sizes().to_vec(),
            batching: setup.batch.max_batch_size > 1,
            batching_reason: batching.and_then(|b| b.reason.clone()),
            golden_rows: setup.inspection.as_ref().map_or(0, |i| i.golden_rows),
            max_queue_size: spec.max_queue_size,
            max_request_rows: spec.max_request_rows.0,
            allocation_free: description.allocation_free,
            cache: setup.inspection.as_ref().map_or(CacheState::Off, |i| i.cache.state),
            precision: setup.engine.backend().and_then(|b| b.backend_precision.clone()),
            memory: Memory {
                weight_bytes: description.weight_bytes
                    * if description.weights_shared { 1 } else { workers.len() },
                arena_bytes: description.instance_arena_bytes.map(|n| n * workers.len()),
                staging_bytes: description.instance_staging_bytes * workers.len(),
                slot_bytes: model.queue.slot_bytes(),
            },
            workers,
        }
    }
}

impl Ready {
    /// Of a runtime that is ready.
    pub fn new(
        runtime: &Runtime,
        addresses: Vec<String>,
        metrics: Option<SocketAddr>,
        io_core: Option<CoreId>,
        boot_ns: u64,
    ) -> Ready {
        let shared = runtime.shared();
        let models: Vec<ReadyModel> = shared.models.iter().map(ReadyModel::new).collect();
        let total = |f: fn(&Memory) -> usize| models.iter().map(|m| f(&m.memory)).sum();
        let memory = Memory {
            weight_bytes: total(|m| m.weight_bytes),
            arena_bytes: models.iter().map(|m| m.memory.arena_bytes).sum(),
            staging_bytes: total(|m| m.staging_bytes),
            slot_bytes: total(|m| m.slot_bytes),
        };
        let worker = |(worker, (core, _)): (usize, &(Option<CoreId>, _))| ReadyWorker {
            worker,
            core: core.map(|c| c.0),
        };
        Ready {
            ready: true,
            schema: 1,
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            addresses,
            metrics: metrics.map(|address| format!("http://{address}/metrics")),
            workers: shared.workers.iter().enumerate().map(worker).collect(),
            models,
            io_core: io_core.map(|c| c.0),
            board: None,
            not_served: Vec::new(),
            memory,
            resident_bytes: system_memory::resident_bytes(),
            regions: region::report(),
            boot_ns,
        }
    }
}
