//! Snapshots of counters and histograms, for `stats` and the Prometheus endpoint.

mod told;

pub(super) use told::told;

use super::Shared;
use crate::engine::BackendReport;
use crate::metrics::{Histogram, LaneStats, Summary, WorkerPhase, summarise};
use crate::queue::{Failure, RefusalReason};
use crate::sys::sync::Ordering;
use crate::sys::{alloc, clock, memory};
use crate::units::CloseReason;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Counters that someone else keeps.
pub(crate) struct ExtraStats {
    pub name: &'static str,
    pub read: Box<dyn Fn() -> serde_json::Value + Send>,
}

/// One model's figures. Durations are integer nanoseconds since the start of the process.
#[derive(Debug, Clone, Serialize)]
pub struct ModelStats {
    /// Its name.
    pub name: String,
    /// Its engine.
    pub engine: &'static str,
    /// Its present version: 1 at the start, one more after each reload that changed it.
    pub version: u64,
    /// The first 12 hexadecimal digits of the hash of all that it was loaded from; `None` for one made by hand.
    pub version_hash: Option<String>,
    /// Reloads that changed it.
    pub model_reload_success_total: u64,
    /// Reloads that failed, by reason; the former version then serves on.
    pub model_reload_failure_total: BTreeMap<&'static str, u64>,
    /// Why the last reload failed; `None` if it did not.
    pub model_reload_error: Option<String>,
    /// Where it computes, for an engine that can compute in several places.
    #[serde(flatten)]
    pub backend: Option<BackendReport>,
    /// Requests accepted.
    pub accepted: u64,
    /// Requests answered with success.
    pub inference_request_success: u64,
    /// Requests that failed or were refused, by reason.
    pub inference_request_failure: BTreeMap<&'static str, u64>,
    /// Rows answered with success.
    pub inference_count: u64,
    /// Runs of the engine.
    pub exec_count: u64,
    /// Requests that wait.
    pub queued: u32,
    /// Requests that wait or run.
    pub outstanding: u32,
    /// Batches by close reason.
    pub batch_closed: BTreeMap<&'static str, u64>,
    /// Runs by compiled batch size, since these last changed.
    pub batch_ran: BTreeMap<u16, u64>,
    /// Measured service times, by kind of core.
    pub service_ns: Vec<ServiceStats>,
    /// Per request, closed-loop independent: from submission to being taken.
    pub queue: Summary,
    /// Per batch: gathering rows.
    pub compute_input: Summary,
    /// Per batch: running the model.
    pub compute_infer: Summary,
    /// Per batch: scattering rows.
    pub compute_output: Summary,
    /// Per request: from submission to the answer.
    pub request: Summary,
}

/// Measured service times on one kind of core.
#[derive(Debug, Clone, Serialize)]
pub struct ServiceStats {
    /// What tells the kind apart; absent where the system does not say, or workers are not pinned.
    pub core_kind: Option<String>,
    /// Workers on such cores.
    pub workers: Vec<u32>,
    /// Nanoseconds of a run by compiled batch size, an exponential average.
    pub by_batch_size: BTreeMap<u16, u64>,
}

/// One worker's figures.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerState {
    /// Its number.
    pub worker: usize,
    /// The core that it is pinned to; absent if it runs unpinned.
    pub core: Option<u16>,
    /// What it does at this instant.
    pub state: WorkerPhase,
    /// Nanoseconds spent running batches.
    pub busy_ns: u64,
    /// Nanoseconds spent spinning for work.
    pub spin_ns: u64,
    /// Times it went to sleep.
    pub parks: u64,
    /// Engine instances rebuilt after a panic.
    pub rebuilds: u64,
    /// Page faults of its thread since it was ready; `None` where the system does not count them.
    pub page_faults: Option<u64>,
}

/// The process that serves.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessState {
    /// Its number.
    pub pid: u32,
    /// Version of the program.
    pub version: &'static str,
    /// Whether it was built with debug assertions: its figures then say nothing.
    pub debug_build: bool,
    /// CPU time of all its threads since it started.
    pub cpu_ns: u64,
}

/// Everything, at an instant.
#[derive(Debug, Clone, Serialize)]
pub struct StatsSnapshot {
    /// Version of this layout.
    pub schema: u32,
    /// Nanoseconds since the runtime was ready.
    pub uptime_ns: u64,
    /// Whether requests are accepted.
    pub ready: bool,
    /// Calls into the system allocator by workers and I/O thread since ready; `None` where the
    /// counting allocator is not installed.
    pub hot_path_allocations_total: Option<u64>,
    /// The process.
    pub process: ProcessState,
    /// Models.
    pub models: Vec<ModelStats>,
    /// Workers.
    pub workers: Vec<WorkerState>,
    /// Counters of transports and others, by name.
    pub extra: BTreeMap<&'static str, serde_json::Value>,
}

pub(super) fn snapshot(shared: &Shared) -> StatsSnapshot {
    for (_, worker) in &shared.workers {
        worker.settle();
    }
    let models = shared
        .models
        .iter()
        .map(|m| {
            let lanes = &m.lanes;
            let sum = |f: fn(&LaneStats) -> &crate::sys::sync::AtomicU64| {
                lanes.iter().map(|l| f(l).load(Ordering::Relaxed)).sum::<u64>()
            };
            let stage = |f: fn(&LaneStats) -> &Histogram| summarise(lanes.iter().map(|l| f(l)));
            let counters = &m.queue.counters;
            let mut failures = BTreeMap::new();
            for (i, failure) in Failure::ALL.iter().enumerate() {
                let by_workers: u64 =
                    lanes.iter().map(|l| l.failure[i].load(Ordering::Relaxed)).sum();
                let total = by_workers + counters.abandoned[i].load(Ordering::Relaxed);
                failures.insert(failure.name(), total);
            }
            for reason in RefusalReason::ALL {
                *failures.entry(reason.name()).or_default() +=
                    counters.refused[reason as usize].load(Ordering::Relaxed);
            }
            let sizes = m.queue.service().sizes();
            let setup = m.setup();
            ModelStats {
                name: m.name.clone(),
                engine: setup.engine.kind().name(),
                version: m.version(),
                version_hash: setup.version_hash.as_ref().map(|hash| hash[..12].to_string()),
                model_reload_success_total: m.reloads(),
                model_reload_failure_total: m.reload_failures(),
                model_reload_error: m.last_reload_error(),
                backend: setup.engine.backend().cloned(),
                accepted: m.queue.accepted(),
                inference_request_success: sum(|l| &l.success),
                inference_request_failure: failures,
                inference_count: sum(|l| &l.inference_count),
                exec_count: sum(|l| &l.exec_count),
                queued: m.queue.queued(),
                outstanding: m.queue.outstanding(),
                batch_closed: CloseReason::ALL
                    .iter()
                    .enumerate()
                    .map(|(i, r)| {
                        let n = lanes.iter().map(|l| l.closed[i].load(Ordering::Relaxed)).sum();
                        (r.name(), n)
                    })
                    .collect(),
                batch_ran: sizes
                    .iter()
                    .enumerate()
                    .map(|(i, &s)| {
                        (s, lanes.iter().map(|l| l.ran[i].load(Ordering::Relaxed)).sum())
                    })
                    .collect(),
                service_ns: shared
                    .kinds
                    .workers
                    .iter()
                    .enumerate()
                    .map(|(kind, workers)| ServiceStats {
                        core_kind: shared.kinds.names[kind].clone(),
                        workers: (0..u64::BITS).filter(|w| workers & (1 << w) != 0).collect(),
                        by_batch_size: sizes
                            .iter()
                            .enumerate()
                            .map(|(i, &s)| (s, m.queue.service().get(kind, i).0))
                            .collect(),
                    })
                    .collect(),
                queue: stage(|l| &l.queue),
                compute_input: stage(|l| &l.compute_input),
                compute_infer: stage(|l| &l.compute_infer),
                compute_output: stage(|l| &l.compute_output),
                request: stage(|l| &l.request),
            }
        })
        .collect();
    let workers = shared
        .workers
        .iter()
        .enumerate()
        .map(|(worker, (core, s))| WorkerState {
            worker,
            core: core.map(|c| c.0),
            state: WorkerPhase::from_number(s.phase.load(Ordering::Relaxed)),
            busy_ns: s.busy_ns.load(Ordering::Relaxed),
            spin_ns: s.spin_ns.load(Ordering::Relaxed),
            parks: s.parks.load(Ordering::Relaxed),
            rebuilds: s.rebuilds.load(Ordering::Relaxed),
            page_faults: memory::page_faults(s.thread.load(Ordering::Relaxed) as u32)
                .map(|now| now.saturating_sub(s.faults_at_ready.load(Ordering::Relaxed))),
        })
        .collect();
    let extra = shared.extra.lock().unwrap_or_else(|e| e.into_inner());
    StatsSnapshot {
        schema: 1,
        uptime_ns: clock::now().since(shared.started_at).0,
        ready: shared.is_ready(),
        hot_path_allocations_total: alloc::installed().then(alloc::hot_calls),
        process: ProcessState {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            debug_build: cfg!(debug_assertions),
            cpu_ns: clock::process_cpu().0,
        },
        models,
        workers,
        extra: extra.iter().map(|e| (e.name, (e.read)())).collect(),
    }
}

impl StatsSnapshot {
    /// The snapshot in the Prometheus text format, names as Triton's with `nv_` replaced.
    pub fn prometheus(&self) -> String {
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, help: &str, rows: Vec<(String, u64)>| {
            let _ = writeln!(out, "# HELP corelane_{name} {help}\n# TYPE corelane_{name} {kind}");
            for (labels, value) in rows {
                let _ = match labels.as_str() {
                    "" => writeln!(out, "corelane_{name} {value}"),
                    _ => writeln!(out, "corelane_{name}{{{labels}}} {value}"),
                };
            }
        };
        let per_model = |f: &dyn Fn(&ModelStats) -> u64| -> Vec<(String, u64)> {
            self.models.iter().map(|m| (format!("model=\"{}\"", m.name), f(m))).collect()
        };
        let keyed = |label: &str, f: &dyn Fn(&ModelStats) -> Vec<(String, u64)>| {
            let mut rows = Vec::new();
            for m in &self.models {
                for (key, value) in f(m) {
                    rows.push((format!("model=\"{}\",{label}=\"{key}\"", m.name), value));
                }
            }
            rows
        };
        let mut failures = keyed("reason", &|m| {
            m.inference_request_failure.iter().map(|(k, v)| (k.to_string(), *v)).collect()
        });
        // Of no model, so its name is empty.
        let transport = |key: &str| self.extra.get("transport").and_then(|t| t[key].as_u64());
        let unknown = transport("unknown_model_total");
        failures.extend(unknown.map(|n| ("model=\"\",reason=\"unknown_model\"".into(), n)));
        family(
            "inference_request_success",
            "counter",
            "Requests answered with success.",
            per_model(&|m| m.inference_request_success),
        );
        family(
            "inference_request_failure",
            "counter",
            "Requests that failed or were refused, by reason.",
            failures,
        );
        if let Some(n) = transport("answers_given_up_total") {
            let help = "Ends of accepted requests that their readers did not take.";
            family("answers_given_up_total", "counter", help, vec![(String::new(), n)]);
        }
        family(
            "inference_count",
            "counter",
            "Rows answered with success.",
            per_model(&|m| m.inference_count),
        );
        family(
            "inference_exec_count",
            "counter",
            "Runs of the engine.",
            per_model(&|m| m.exec_count),
        );
        family(
            "inference_pending_request_count",
            "gauge",
            "Requests that wait.",
            per_model(&|m| m.queued as u64),
        );
        family(
            "batch_closed_total",
            "counter",
            "Batches by close reason.",
            keyed("reason", &|m| m.batch_closed.iter().map(|(k, v)| (k.to_string(), *v)).collect()),
        );
        family(
            "model_version",
            "gauge",
            "Version that serves: 1 at the start, one more after each reload that changed it.",
            per_model(&|m| m.version),
        );
        family(
            "model_reload_success_total",
            "counter",
            "Reloads that changed the model.",
            per_model(&|m| m.model_reload_success_total),
        );
        family(
            "model_reload_failure_total",
            "counter",
            "Reloads after which the former version serves on, by reason.",
            keyed("reason", &|m| {
                m.model_reload_failure_total.iter().map(|(k, v)| (k.to_string(), *v)).collect()
            }),
        );
        for (name, help, get) in [
            ("queue", "Microseconds from submission to being taken.", 0),
            ("compute_input", "Microseconds of gathering rows.", 1),
            ("compute_infer", "Microseconds of running the model.", 2),
            ("compute_output", "Microseconds of scattering rows.", 3),
            ("request", "Microseconds from submission to the answer.", 4),
        ] {
            let stage = |m: &ModelStats| {
                [&m.queue, &m.compute_input, &m.compute_infer, &m.compute_output, &m.request][get]
                    .sum_ns
                    / 1_000
            };
            family(&format!("inference_{name}_duration_us"), "counter", help, per_model(&stage));
        }
        let worker = |f: &dyn Fn(&WorkerState) -> u64| -> Vec<(String, u64)> {
            self.workers.iter().map(|w| (format!("worker=\"{}\"", w.worker), f(w))).collect()
        };
        family(
            "worker_busy_ns_total",
            "counter",
            "Nanoseconds spent running batches.",
            worker(&|w| w.busy_ns),
        );
        family(
            "worker_spin_ns_total",
            "counter",
            "Nanoseconds spent spinning for work.",
            worker(&|w| w.spin_ns),
        );
        family("worker_parks_total", "counter", "Times it went to sleep.", worker(&|w| w.parks));
        if let Some(n) = self.extra.get("log").and_then(|log| log["lost_total"].as_u64()) {
            let help = "Log records of workers and I/O thread that found their ring full.";
            family("log_records_lost_total", "counter", help, vec![(String::new(), n)]);
        }
        if let Some(n) = self.extra.get("log").and_then(|log| log["unprinted_total"].as_u64()) {
            let help = "Log lines that were not printed, since nobody read fast enough.";
            family("log_lines_lost_total", "counter", help, vec![(String::new(), n)]);
        }
        if let Some(n) = self.hot_path_allocations_total {
            let _ = writeln!(
                out,
                "# HELP corelane_hot_path_allocations_total Allocator calls on workers and I/O \
                 thread since ready.\n# TYPE corelane_hot_path_allocations_total counter\n\
                 corelane_hot_path_allocations_total {n}"
            );
        }
        out
    }
}
