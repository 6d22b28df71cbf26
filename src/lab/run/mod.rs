//! Runs: what was measured, how it is summed up, and the folder that it is kept in.
//!
//! # The folder
//! | file | what |
//! |---|---|
//! | `metrics.json` | everything that was counted, by the schema below |
//! | `SERIES.hgrm` | the latency distribution as HdrHistogram's percentile text |
//! | `SERIES.folded` | sampled stacks of the server, where a flame graph was asked for and taken |
//! | `SERIES.FIGURE.plotly.json` | figures, for whatever draws Plotly's JSON (QA-Board by this name) |
//! | `report.html` | all of it on one page, without network |
//!
//! # Schema 1 of `metrics.json`
//! The types of this module, as serde writes them: [`Run`] outermost. Times are integer nanoseconds
//! (`_ns`), rates are per second (`_per_s`). `latency` counts from the planned send in an open loop
//! and from the actual send in a closed one (`load.loop` says which); `latency_from_send` counts from
//! the actual send always. Percentiles are exact (nearest rank over all answered requests of the
//! repeat). What could not be measured is `null`, never zero. `metrics` repeats the medians flat, by
//! name, for tools that want one number a name.

pub mod analysis;
pub mod figures;
pub mod folder;
pub mod report;

use crate::lab::sample::Spread;
use crate::lab::schedule::Plan;
use crate::lab::system::Machine;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the layout of `metrics.json`.
pub const SCHEMA: u32 = 1;
/// What `metrics.json` says it is.
pub const KIND: &str = "corelane-run";

/// One run: one target, one or more series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: u32,
    /// [`KIND`].
    pub kind: String,
    /// Version of the program that measured.
    pub version: String,
    /// A name given by the user: a commit, say.
    pub label: String,
    /// Seconds since 1970 when it began, for sorting.
    pub started_unix_s: u64,
    /// Where it was measured.
    pub machine: Machine,
    /// What was measured.
    pub target: Target,
    /// Whether the figures may be used: no finding says that they are wrong.
    pub valid: bool,
    /// What speaks against the figures, over all series.
    pub findings: Vec<Finding>,
    /// Medians, flat: `SERIES_METRIC`.
    pub metrics: BTreeMap<String, f64>,
    /// One a profile or a concurrency.
    pub series: Vec<Series>,
    /// The verdict over several concurrencies of a closed loop.
    pub sweep: Option<Sweep>,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// `in process`, or the server's address.
    pub address: String,
    /// The model's name.
    pub model: String,
    /// Its inputs, as text; two runs of different inputs can't be compared.
    pub signature: String,
    /// Its engine, as the server says.
    pub engine: Option<String>,
    /// Version of the server.
    pub server_version: Option<String>,
    /// The cores of its workers; `null` for one that runs unpinned.
    pub worker_cores: Vec<Option<u16>>,
    /// The core of the generator; `null` if it ran unpinned.
    pub generator_core: Option<u16>,
}

/// How load was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "loop", rename_all = "lowercase")]
pub enum Load {
    /// By a schedule.
    Open {
        /// The plan that the schedule follows from.
        plan: Plan,
    },
    /// A number of requests in flight.
    Closed {
        /// How many.
        concurrency: usize,
        /// For how long.
        span_s: f64,
        /// Rows of each request.
        rows: u16,
    },
}

/// One way of loading, measured several times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Unique in the run: the profile's name, or `closed-8`.
    pub name: String,
    /// How load was made.
    pub load: Load,
    /// MLPerf's name of the scenario, where one was asked for.
    pub scenario: Option<String>,
    /// The latency bound of the scenario, and whether its percentile held it.
    pub bound: Option<Bound>,
    /// The repeats, in order.
    pub repeats: Vec<Repeat>,
    /// Each metric over the repeats, by name.
    pub summary: BTreeMap<String, Spread>,
    /// What became of the flame graph; absent where none was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profiled>,
}

/// What became of a flame graph that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profiled {
    /// The folder has it.
    Taken {
        /// Samples in it.
        samples: u64,
        /// Samples of each busy core per second.
        samples_per_s: u32,
    },
    /// There is none.
    Absent {
        /// Why.
        why: String,
    },
}

/// A latency bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// Nanoseconds.
    pub p99_ns_max: u64,
    /// Whether the median over the repeats is within it.
    pub held: bool,
}

/// Percentiles of some requests. Exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many.
    pub count: u64,
    /// Least.
    pub min_ns: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 95th percentile.
    pub p95_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Largest.
    pub max_ns: u64,
}

/// One repeat of a series.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Repeat {
    /// Requests that the schedule has, or that a closed loop sent.
    pub planned: u64,
    /// Requests handed over.
    pub sent: u64,
    /// Requests answered.
    pub answered: u64,
    /// Requests sent that had no end when the run was given up.
    pub unanswered: u64,
    /// Requests refused or failed, by the protocol's code.
    pub errors: BTreeMap<String, u64>,
    /// Requests that were due while the other side took no more.
    pub blocked: u64,
    /// From the start to the last end.
    pub span_ns: u64,
    /// Requests planned per second, over the time in which they were planned.
    pub offered_per_s: f64,
    /// Requests answered per second, over the whole span.
    pub throughput_per_s: f64,
    /// Latency of the answered: from the planned send in an open loop, from the actual in a closed.
    pub latency: Percentiles,
    /// Latency of the answered from the actual send.
    pub latency_from_send: Percentiles,
    /// Actual send after planned send, of all sent.
    pub lag: Percentiles,
    /// By stage, from the receipts: `queue` (with waiting for company), `compute_input`,
    /// `compute_infer`, `compute_output`; `transport` is the rest of the time from the actual send.
    pub stages: BTreeMap<String, Percentiles>,
    /// Answered requests by the rows of their batch.
    pub batch_rows: BTreeMap<u16, u64>,
    /// Answered requests by why their batch was closed.
    pub close_reasons: BTreeMap<String, u64>,
    /// CPU time of the server's process during the run.
    pub server_cpu_ns: Option<u64>,
    /// The same for each answered request, in microseconds.
    pub cpu_us_per_request: Option<f64>,
    /// Energy of the machine for each answered request, in microjoules.
    pub energy_uj_per_request: Option<f64>,
    /// Time of a fixed piece of work on the generator's core just before: how fast the machine was.
    pub yardstick_ns: Option<u64>,
    /// Calls into the system allocator by the generator during the run.
    pub generator_allocator_calls: u64,
    /// Why it stopped early: the figures are of what was answered until then.
    pub broken: Option<String>,
    /// What speaks against the figures.
    pub findings: Vec<Finding>,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The figures hold, with this in mind.
    Warning,
    /// The figures do not say what they seem to say.
    Invalid,
}

/// Something that speaks against the figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// A name that stays the same.
    pub id: String,
    /// How bad it is.
    pub severity: Severity,
    /// What, with its numbers, and what would help.
    pub text: String,
}

impl Finding {
    /// The figures hold, with this in mind.
    pub fn warning(id: &str, text: impl Into<String>) -> Finding {
        Finding { id: id.into(), severity: Severity::Warning, text: text.into() }
    }
    /// The figures do not say what they seem to say.
    pub fn invalid(id: &str, text: impl Into<String>) -> Finding {
        Finding { id: id.into(), severity: Severity::Invalid, text: text.into() }
    }
}

/// Several concurrencies of a closed loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// Ascending by concurrency.
    pub points: Vec<Point>,
    /// Slope of the p50 latency against concurrency on log axes, from the least concurrency to the
    /// greatest (least squares): 0 scales, 1 serialises.
    pub slope: f64,
    /// How much more throughput the best point has than the first.
    pub throughput_gain: f64,
    /// In words.
    pub verdict: String,
}

/// One concurrency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Requests in flight.
    pub concurrency: usize,
    /// Median over the repeats.
    pub throughput_per_s: f64,
    /// Median over the repeats.
    pub p50_ns: f64,
    /// Median over the repeats.
    pub p99_ns: f64,
}

impl Sweep {
    /// The verdict over `points`; `None` for fewer than two.
    pub fn of(mut points: Vec<Point>) -> Option<Sweep> {
        points.sort_by_key(|p| p.concurrency);
        let (first, last) = (*points.first()?, *points.last()?);
        if first.concurrency == last.concurrency || points.iter().any(|p| p.p50_ns <= 0.0) {
            return None;
        }
        let xs: Vec<f64> = points.iter().map(|p| (p.concurrency as f64).ln()).collect();
        let ys: Vec<f64> = points.iter().map(|p| p.p50_ns.ln()).collect();
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        let (mx, my) = (mean(&xs), mean(&ys));
        let cov: f64 = xs.iter().zip(&ys).map(|(x, y)| (x - mx) * (y - my)).sum();
        let var: f64 = xs.iter().map(|x| (x - mx).powi(2)).sum();
        let slope = cov / var;
        let most = points.iter().map(|p| p.throughput_per_s).fold(0.0, f64::max);
        let gain = most / first.throughput_per_s;
        // The least concurrency that has nearly all the throughput there is.
        let knee = points.iter().find(|p| p.throughput_per_s >= 0.95 * most)?;
        let verdict = if gain < 1.15 && slope > 0.8 {
            format!(
                "serialises: latency grows with every request in flight, {gain:.2} times the throughput at best"
            )
        } else if knee.concurrency < last.concurrency {
            format!(
                "saturated at {}: {:.0} requests/s, {gain:.2} times one of {} in flight; more only waits",
                knee.concurrency, knee.throughput_per_s, first.concurrency
            )
        } else {
            format!("scales: {gain:.2} times the throughput at {} in flight", last.concurrency)
        };
        Some(Sweep { points, slope, throughput_gain: gain, verdict })
    }
}

#[cfg(test)]
pub(crate) mod tests;
