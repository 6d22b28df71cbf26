//! What the runtime costs beside its floor: `corelane bench overhead`.
//!
//! Every figure is a ratio to a floor with the same threads on the same cores, measured in the same
//! repeat, interleaved; the median over the repeats and their range are told. Latencies are of a
//! closed loop with one request in flight, counted from just before the request is handed over to
//! just after the answer is seen; throughputs say how many are in flight.

mod floors;
mod inproc;
mod socket;
mod statement;

pub(crate) use floors::on_core;
pub use floors::{Waiting, ping_pong, unix_echo, wake_up};
pub(crate) use inproc::echo_model;
pub use statement::{GOAL_NS, STATEMENTS_PER_BLOCK, Statement};

use super::sample::{Spread, percentile};
use crate::runtime::ModelSetup;
use crate::sys::{affinity, events};
use crate::units::CoreId;
use serde::Serialize;

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Repeats; each measures everything once.
    pub repeats: usize,
    /// Round trips per figure and repeat.
    pub iterations: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Effort { repeats: 7, iterations: 3_000 }
    }
}

/// A latency beside its floor, both p50 in nanoseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    /// What was measured.
    pub name: String,
    /// Which threads ran on which core.
    pub placement: String,
    /// p50 of the closed loop, one in flight.
    pub p50_ns: Spread,
    /// p50 of the floor in the same repeats.
    pub floor_p50_ns: Spread,
    /// Ratio within each repeat.
    pub ratio: Spread,
    /// The ratio that was set as goal, on its median.
    pub goal: f64,
}

/// A comparison of two ways of the runtime itself.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// What is compared.
    pub name: String,
    /// Which threads ran on which core.
    pub placement: String,
    /// The first way.
    pub a: Spread,
    /// The second.
    pub b: Spread,
    /// Unit of both.
    pub unit: &'static str,
    /// `b / a` within each repeat.
    pub ratio: Spread,
    /// What was set as goal, in words.
    pub goal: &'static str,
}

/// Everything.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Layout version.
    pub schema: u32,
    /// The processor, as the kernel names it.
    pub machine: String,
    /// Allowed cores.
    pub cores: String,
    /// Repeats.
    pub repeats: usize,
    /// Round trips per figure and repeat.
    pub iterations: usize,
    /// Latencies against floors.
    pub latencies: Vec<Latency>,
    /// Comparisons.
    pub comparisons: Vec<Comparison>,
    /// What telling an event costs; absent where the program has no sink for events.
    pub statement: Option<Statement>,
}

/// Why nothing was measured.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A pair of measurements, repeated: ours and the floor, in this order, then the other.
pub(crate) struct Pair<'a> {
    pub name: String,
    pub placement: String,
    pub goal: f64,
    pub ours: Box<dyn FnMut() -> Result<Vec<u64>, Error> + 'a>,
    pub floor: Box<dyn FnMut() -> Result<Vec<u64>, Error> + 'a>,
}

pub(crate) fn run_pairs(pairs: &mut [Pair<'_>], repeats: usize) -> Result<Vec<Latency>, Error> {
    let mut figures = vec![(Vec::new(), Vec::new()); pairs.len()];
    for repeat in 0..repeats {
        for (pair, (ours, floor)) in pairs.iter_mut().zip(&mut figures) {
            // The order alternates, so that a drift of the machine favours neither.
            for step in 0..2 {
                if (step + repeat) % 2 == 0 {
                    ours.push(percentile(&mut (pair.ours)()?, 500) as f64);
                } else {
                    floor.push(percentile(&mut (pair.floor)()?, 500) as f64);
                }
            }
        }
    }
    let told = pairs.iter().zip(figures).map(|(pair, (ours, floor))| Latency {
        name: pair.name.clone(),
        placement: pair.placement.clone(),
        p50_ns: Spread::of(&ours),
        floor_p50_ns: Spread::of(&floor),
        ratio: Spread::of_ratios(&ours, &floor),
        goal: pair.goal,
    });
    Ok(told.collect())
}

/// The first and the last allowed core: the same one where only one is allowed.
pub(crate) fn two_cores() -> Result<(CoreId, CoreId), Error> {
    let allowed = affinity::allowed()?;
    match (allowed.first(), allowed.last()) {
        (Some(&first), Some(&last)) => Ok((first, last)),
        _ => Err("the scheduler allows no core".into()),
    }
}

fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|l| l.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    field("model name").or_else(|| field("Model")).unwrap_or_else(|| "unknown".into())
}

/// Measures everything. `model` is the small model of the figure with many requests in flight; without
/// it that figure is left out.
///
/// # Errors
/// A pin did not take, or a runtime could not be built.
pub fn measure(effort: Effort, model: Option<&ModelSetup>) -> Result<Report, Error> {
    // While events are told they would be part of every other figure.
    let level = events::level();
    events::set_level(log::LevelFilter::Off);
    let report = measure_all(effort, model);
    events::set_level(level);
    report
}

fn measure_all(effort: Effort, model: Option<&ModelSetup>) -> Result<Report, Error> {
    let mut latencies = inproc::latencies(effort)?;
    latencies.extend(socket::latencies(effort)?);
    let mut comparisons = inproc::comparisons(effort)?;
    if let Some(setup) = model {
        comparisons.extend(socket::in_flight(setup, effort)?);
    }
    Ok(Report {
        schema: 1,
        machine: machine(),
        cores: affinity::core_list(&affinity::allowed()?),
        repeats: effort.repeats,
        iterations: effort.iterations,
        latencies,
        comparisons,
        statement: statement::measure(effort)?,
    })
}
