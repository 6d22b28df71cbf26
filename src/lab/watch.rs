//! What is seen while a run goes on, and what its figures are drawn from.

use super::load::{End, Record};
use super::run::Percentiles;
use super::run::analysis::{self, STAGES};
use super::system::{State, SystemFiles};
use crate::sys::clock;
use crate::units::Nanos;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// How often the machine and the server are looked at.
const EVERY: Duration = Duration::from_millis(100);
/// How often the end is looked for.
const END_EVERY: Duration = Duration::from_millis(5);
/// Most samples of one repeat.
const SAMPLES_MAX: usize = 20_000;
/// Bins of the latency over time.
const BINS: usize = 100;

/// The server and the machine at an instant.
#[derive(Debug, Clone)]
pub struct Sample {
    /// When.
    pub at: Nanos,
    /// The machine.
    pub state: State,
    /// Requests that wait, of all models.
    pub queued: Option<u64>,
}

/// Looks at the server and the machine until a run ends.
pub struct Watch(Mutex<Vec<Sample>>);

impl Watch {
    /// A watch with its first sample.
    pub fn new(files: &SystemFiles) -> Watch {
        let first = Sample { at: clock::now(), state: files.state(), queued: None };
        Watch(Mutex::new(vec![first]))
    }

    /// Samples until `ended`.
    pub fn until(
        &self,
        files: &SystemFiles,
        ended: impl Fn() -> bool,
        stats: impl Fn() -> Option<Value>,
    ) {
        let mut next = clock::now().after(Nanos(EVERY.as_nanos() as u64));
        while !ended() {
            std::thread::sleep(END_EVERY);
            if clock::now() < next {
                continue;
            }
            next = clock::now().after(Nanos(EVERY.as_nanos() as u64));
            let queued = stats().map(|s| {
                let models = s["models"].as_array().into_iter().flatten();
                models.filter_map(|m| m["queued"].as_u64()).sum()
            });
            let sample = Sample { at: clock::now(), state: files.state(), queued };
            let mut samples = self.0.lock().unwrap_or_else(|e| e.into_inner());
            if samples.len() < SAMPLES_MAX {
                samples.push(sample);
            }
        }
    }

    /// The samples.
    pub fn samples(&self) -> Vec<Sample> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

/// A stretch of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bin {
    /// Seconds from the start, its middle.
    pub at_s: f64,
    /// Requests that were planned in it, per second.
    pub planned_per_s: f64,
    /// Latency of those that were answered.
    pub latency: Percentiles,
}

/// What one repeat's figures are drawn from.
#[derive(Debug, Clone, Default)]
pub struct Detail {
    /// Latencies of the answered, ascending.
    pub latencies: Vec<u64>,
    /// Latency over time.
    pub bins: Vec<Bin>,
    /// Times in each stage of the requests around a percentile of the latency: name of the
    /// percentile, and mean nanoseconds by stage.
    pub stages: Vec<(&'static str, [f64; STAGES.len()])>,
    /// Queue depth: seconds, requests.
    pub queued: Vec<(f64, u64)>,
    /// Busy percent over time, by core.
    pub cores: BTreeMap<u16, Vec<(f64, f64)>>,
}

impl Detail {
    /// Of a repeat that began at `start`.
    pub fn new(records: &[Record], start: Nanos, mut samples: Vec<Sample>) -> Detail {
        // The warm-up was watched too.
        samples.retain(|s| s.at >= start);
        let mut latencies: Vec<u64> = records.iter().filter_map(analysis::latency).collect();
        latencies.sort_unstable();
        let seconds = |at: Nanos| at.0 as f64 / 1e9;
        let from_start = |at: Nanos| (at.0 as f64 - start.0 as f64) / 1e9;
        let mut cores: BTreeMap<u16, Vec<(f64, f64)>> = BTreeMap::new();
        for pair in samples.windows(2) {
            for (core, now) in &pair[1].state.cores {
                let Some(then) = pair[0].state.cores.get(core) else { continue };
                let all = now.all_ticks.saturating_sub(then.all_ticks);
                if all > 0 {
                    let busy = now.busy_ticks.saturating_sub(then.busy_ticks);
                    let percent = 100.0 * busy as f64 / all as f64;
                    cores.entry(*core).or_default().push((from_start(pair[1].at), percent));
                }
            }
        }
        let queued = samples.iter().filter_map(|s| Some((from_start(s.at), s.queued?))).collect();
        Detail { bins: bins(records, seconds), stages: stages(records), latencies, queued, cores }
    }

    /// Highest and lowest frequency of each core.
    pub fn frequencies(samples: &[Sample]) -> BTreeMap<u16, (u64, u64)> {
        let mut out: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
        for (core, state) in samples.iter().flat_map(|s| &s.state.cores) {
            if let Some(khz) = state.frequency_khz {
                let (high, low) = out.entry(*core).or_insert((khz, khz));
                *high = (*high).max(khz);
                *low = (*low).min(khz);
            }
        }
        out
    }
}

fn bins(records: &[Record], seconds: impl Fn(Nanos) -> f64) -> Vec<Bin> {
    let end = records.iter().map(|r| r.planned.0).max().unwrap_or(0) + 1;
    let mut values: Vec<Vec<u64>> = vec![Vec::new(); BINS];
    let mut planned = [0u64; BINS];
    for record in records {
        let at = (u128::from(record.planned.0) * BINS as u128 / u128::from(end)) as usize;
        planned[at] += 1;
        values[at].extend(analysis::latency(record));
    }
    let width = seconds(Nanos(end)) / BINS as f64;
    let bin = |(n, values): (usize, &mut Vec<u64>)| Bin {
        at_s: (n as f64 + 0.5) * width,
        planned_per_s: planned[n] as f64 / width,
        latency: Percentiles::of(values),
    };
    values.iter_mut().enumerate().map(bin).filter(|b| b.planned_per_s > 0.0).collect()
}

/// Mean stages of the requests whose latency is around each percentile: stages of percentiles would
/// not add up.
fn stages(records: &[Record]) -> Vec<(&'static str, [f64; STAGES.len()])> {
    let mut all: Vec<(u64, [u64; STAGES.len()])> = records
        .iter()
        .filter(|r| r.end == End::Answered)
        .filter_map(|r| {
            let stages = analysis::stages(r)?;
            Some((stages.iter().sum(), stages))
        })
        .collect();
    all.sort_unstable();
    let n = all.len();
    if n == 0 {
        return Vec::new();
    }
    [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999)]
        .into_iter()
        .map(|(name, permille)| {
            let rank = (n * permille).div_ceil(1000).max(1) - 1;
            let around = (n / 2000).max(1);
            let part = &all[rank.saturating_sub(around)..(rank + around + 1).min(n)];
            let mean =
                |k: usize| part.iter().map(|(_, s)| s[k] as f64).sum::<f64>() / part.len() as f64;
            (name, std::array::from_fn(mean))
        })
        .collect()
}
