//! Tuning: which settings serve a given load with the least CPU time at a good tail latency.
//!
//! Candidates are measured in turns, the order of each turn the reverse of the last, so that a machine
//! that drifts does so for all. Every candidate is measured [`SCREENS`] times; those that held the load
//! and are nearest to the *frontier* (no other has both less CPU time per request and a lower p99) are
//! measured on, up to [`REPEATS`] times, as the budget allows. Differences are told from noise by the
//! rank test of [`compare`](super::compare).
//!
//! The *choice* is the candidate with the least CPU time per request among those that are within the
//! bound of the p99 latency, or, without a bound, among those whose p99 is not worse than the best by
//! more than noise. Where CPU times differ by no more than noise, the plainer settings win.

use super::compare::{ALPHA, EFFECT_MIN, rank_test};
use super::run::figures::Figure;
use super::sample::Spread;
use crate::units::{CoreId, Micros};
use crate::worker::IdleStrategy;
use serde::Serialize;
use serde_json::json;
use std::fmt;

/// Version of the layout of `tune.json`.
pub const SCHEMA: u32 = 1;
/// Measurements of every candidate.
pub const SCREENS: usize = 2;
/// Measurements of the candidates near the frontier: the fewest from which the rank test can tell.
pub const REPEATS: usize = 5;
/// Candidates that are measured on, at most.
pub const FINALISTS_MAX: usize = 8;
/// Most candidates.
pub const CANDIDATES_MAX: usize = 256;
/// Shortest measurement, in seconds.
pub const TRIAL_S_MIN: f64 = 0.3;
/// Longest measurement that is chosen where none is asked for, in seconds.
const TRIAL_S_MAX: f64 = 5.0;
/// Part of the budget that the first measurements may take.
const SCREEN_SHARE: f64 = 0.6;
/// Part of the budget that is planned for; measurements do not take the same time to the hair.
const PLANNED_SHARE: f64 = 0.95;

/// Settings that are tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// `max_batch_size`.
    pub max_batch_size: usize,
    /// `max_queue_delay_microseconds`.
    pub max_queue_delay_us: u32,
    /// Cores of the workers.
    pub cores: Vec<CoreId>,
    /// What an idle worker does.
    #[serde(serialize_with = "idle_text")]
    pub idle: IdleStrategy,
}

/// The strategy as configurations and the command line spell it.
pub fn idle_name(idle: IdleStrategy) -> String {
    match idle {
        IdleStrategy::Park => "park".into(),
        IdleStrategy::Adaptive => "adaptive".into(),
        IdleStrategy::SpinUs(Micros(us)) => format!("spin={us}"),
    }
}

fn idle_text<S: serde::Serializer>(idle: &IdleStrategy, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&idle_name(*idle))
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "batch {}, delay {} us, {} worker{}, {}",
            self.max_batch_size,
            self.max_queue_delay_us,
            self.cores.len(),
            if self.cores.len() == 1 { "" } else { "s" },
            idle_name(self.idle)
        )
    }
}

/// The values that are tried of each setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// `max_batch_size`.
    pub batches: Vec<usize>,
    /// `max_queue_delay_microseconds`.
    pub delays_us: Vec<u32>,
    /// Sets of worker cores.
    pub cores: Vec<Vec<CoreId>>,
    /// Idle strategies.
    pub idles: Vec<IdleStrategy>,
}

impl Space {
    /// Every combination that makes sense: without batches there is nothing to wait for.
    pub fn candidates(&self) -> Vec<Settings> {
        let mut all: Vec<Settings> = Vec::new();
        for &max_batch_size in &self.batches {
            for &delay in &self.delays_us {
                for cores in &self.cores {
                    for &idle in &self.idles {
                        let max_queue_delay_us = if max_batch_size == 1 { 0 } else { delay };
                        let cores = cores.clone();
                        let one = Settings { max_batch_size, max_queue_delay_us, cores, idle };
                        if !all.contains(&one) {
                            all.push(one);
                        }
                    }
                }
            }
        }
        all
    }
}

/// How the time is spent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Budget {
    /// All of it, in seconds.
    pub budget_s: f64,
    /// Each measurement, in seconds.
    pub trial_s: f64,
    /// What each measurement costs besides: building the runtime, warming up, in seconds.
    pub beside_s: f64,
    /// Candidates.
    pub candidates: usize,
    /// Candidates that are measured on.
    pub finalists: usize,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum BudgetError {
    /// There is nothing to choose from, or too much.
    Candidates {
        /// How many.
        found: usize,
    },
    /// The time does not do for every candidate.
    TooShort {
        /// How many candidates.
        candidates: usize,
        /// Each measurement, in seconds.
        trial_s: f64,
        /// What it would take, in seconds.
        needed_s: f64,
        /// What there is, in seconds.
        budget_s: f64,
    },
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BudgetError::Candidates { found } => write!(
                f,
                "{found} combinations of settings; 2 to {CANDIDATES_MAX} can be compared: give other \
                 values"
            ),
            BudgetError::TooShort { candidates, trial_s, needed_s, budget_s } => write!(
                f,
                "{candidates} combinations, {SCREENS} times {trial_s} s each and once again for the \
                 best, take {needed_s:.0} s; the budget is {budget_s:.0} s: give a larger --budget-s, \
                 fewer values, or a shorter --duration (at least {TRIAL_S_MIN})"
            ),
        }
    }
}

impl std::error::Error for BudgetError {}

impl Budget {
    /// Divides `budget_s`: `trial_s` is what was asked for; `beside_s` what each measurement costs
    /// besides.
    ///
    /// # Errors
    /// Too few or too many candidates, or too little time for them.
    pub fn plan(
        candidates: usize,
        budget_s: f64,
        trial_s: Option<f64>,
        beside_s: f64,
    ) -> Result<Budget, BudgetError> {
        if !(2..=CANDIDATES_MAX).contains(&candidates) {
            return Err(BudgetError::Candidates { found: candidates });
        }
        let screens = (candidates * SCREENS) as f64;
        let more = (REPEATS - SCREENS) as f64;
        // Two finalists at least: one has nothing to be compared with.
        let room = (budget_s * SCREEN_SHARE / screens)
            .min(budget_s * PLANNED_SHARE / (screens + 2.0 * more))
            - beside_s;
        let trial = trial_s.unwrap_or_else(|| room.clamp(TRIAL_S_MIN, TRIAL_S_MAX));
        let cost = trial + beside_s;
        let left = budget_s - screens * cost;
        let finalists = (left / (more * cost)).floor().max(0.0) as usize;
        if finalists < 2 {
            return Err(BudgetError::TooShort {
                candidates,
                trial_s: trial,
                needed_s: ((screens + 2.0 * more) * cost).ceil(),
                budget_s,
            });
        }
        let finalists = finalists.min(FINALISTS_MAX).min(candidates);
        Ok(Budget { budget_s, trial_s: trial, beside_s, candidates, finalists })
    }

    /// Measurements in all.
    pub fn trials(&self) -> usize {
        self.candidates * SCREENS + self.finalists * (REPEATS - SCREENS)
    }
}

/// One measurement of a candidate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// p99 latency, from the planned send, in microseconds.
    pub p99_us: f64,
    /// p50 latency, in microseconds.
    pub p50_us: f64,
    /// CPU time of the server for each answered request, in microseconds.
    pub cpu_us: f64,
    /// Answered per second.
    pub throughput_per_s: f64,
    /// Why the load was not held, or not made.
    pub why_not: Option<String>,
    /// Whether the load was made as asked; if not, the figures say nothing of the settings.
    pub valid: bool,
}

/// A candidate and its measurements.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// The settings.
    pub settings: Settings,
    /// The measurements, in order.
    pub trials: Vec<Trial>,
}

/// Less is better, beyond noise?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// Too few measurements to tell.
    Unknown,
    /// Not more than noise.
    WithinNoise,
    /// Less.
    Less,
    /// More.
    More,
}

impl Difference {
    /// Of `ours` from `theirs`.
    pub fn of(ours: &[f64], theirs: &[f64]) -> Difference {
        if ours.is_empty() || theirs.is_empty() {
            return Difference::Unknown;
        }
        let ratio = Spread::of(ours).median / Spread::of(theirs).median;
        if ours.len().min(theirs.len()) < REPEATS {
            return Difference::Unknown;
        }
        if rank_test(ours, theirs) > ALPHA || (ratio - 1.0).abs() < EFFECT_MIN {
            return Difference::WithinNoise;
        }
        if ratio < 1.0 { Difference::Less } else { Difference::More }
    }

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Difference::Unknown => "not told apart",
            Difference::WithinNoise => "within noise",
            Difference::Less => "less",
            Difference::More => "more",
        }
    }
}

impl Candidate {
    /// A candidate that was not measured yet.
    pub fn new(settings: Settings) -> Candidate {
        Candidate { settings, trials: Vec::new() }
    }

    /// Whether the load was held in most of its measurements.
    pub fn held(&self) -> bool {
        let good = self.trials.iter().filter(|t| t.why_not.is_none()).count();
        good * 2 > self.trials.len()
    }

    /// Whether too few of its measurements had the load that was asked for to say anything of it.
    pub fn unmeasured(&self) -> bool {
        !self.held() && self.trials.iter().filter(|t| t.valid).count() * 2 <= self.trials.len()
    }

    /// Why it was not held.
    pub fn why_not(&self) -> Option<&str> {
        if self.held() {
            return None;
        }
        self.trials.iter().find_map(|t| t.why_not.as_deref()).or(Some("not measured"))
    }

    fn values(&self, of: impl Fn(&Trial) -> f64) -> Vec<f64> {
        self.trials.iter().filter(|t| t.why_not.is_none()).map(of).collect()
    }

    /// p99 latencies of the measurements that held, in microseconds.
    pub fn p99_us(&self) -> Vec<f64> {
        self.values(|t| t.p99_us)
    }

    /// CPU times of the measurements that held, in microseconds.
    pub fn cpu_us(&self) -> Vec<f64> {
        self.values(|t| t.cpu_us)
    }

    /// Median p99 and CPU time; `None` if the load was not held.
    pub fn medians(&self) -> Option<(f64, f64)> {
        let held = self.held();
        held.then(|| (Spread::of(&self.p99_us()).median, Spread::of(&self.cpu_us()).median))
    }

    /// How plain the settings are; less is plainer.
    fn plainness(&self) -> (usize, bool, u32, usize) {
        let s = &self.settings;
        (s.cores.len(), s.idle != IdleStrategy::Park, s.max_queue_delay_us, s.max_batch_size)
    }
}

/// For each candidate how many layers of better ones lie before it; 0 is the frontier, `None` is
/// without figures.
pub fn layers(candidates: &[Candidate]) -> Vec<Option<usize>> {
    let medians: Vec<Option<(f64, f64)>> = candidates.iter().map(Candidate::medians).collect();
    let mut layer: Vec<Option<usize>> = vec![None; candidates.len()];
    let beats = |a: (f64, f64), b: (f64, f64)| a.0 <= b.0 && a.1 <= b.1 && (a.0 < b.0 || a.1 < b.1);
    for depth in 0..candidates.len() {
        let open: Vec<usize> =
            (0..candidates.len()).filter(|&k| layer[k].is_none() && medians[k].is_some()).collect();
        for &k in &open {
            let mine = medians[k].unwrap_or_default();
            let others = open.iter().filter_map(|&o| medians[o]);
            if !others.clone().any(|other| beats(other, mine)) {
                layer[k] = Some(depth);
            }
        }
    }
    layer
}

/// The candidates to measure on: the nearest to the frontier, at most `count`.
pub fn finalists(candidates: &[Candidate], count: usize) -> Vec<usize> {
    let layers = layers(candidates);
    let mut order: Vec<usize> = (0..candidates.len()).filter(|&k| layers[k].is_some()).collect();
    // The ends of a layer first: the lowest p99, then the least CPU time, matter most.
    let least = |of: fn((f64, f64)) -> f64| {
        order.iter().copied().min_by(|&a, &b| {
            let value = |k: usize| candidates[k].medians().map_or(f64::MAX, of);
            value(a).total_cmp(&value(b))
        })
    };
    let ends = [least(|m| m.0), least(|m| m.1)];
    order.sort_by(|&a, &b| {
        let p99 = |k: usize| candidates[k].medians().map_or(f64::MAX, |m| m.0);
        let inner = |k: usize| !ends.contains(&Some(k));
        (inner(a), layers[a]).cmp(&(inner(b), layers[b])).then(p99(a).total_cmp(&p99(b)))
    });
    order.truncate(count);
    order
}

/// The choice among `candidates`, of which only those measured [`REPEATS`] times count; `None` if none
/// of them held the load within `p99_bound_us`.
pub fn choose(candidates: &[Candidate], p99_bound_us: Option<f64>) -> Option<usize> {
    let measured: Vec<(usize, (f64, f64))> = candidates
        .iter()
        .enumerate()
        .filter(|(_, c)| c.trials.len() >= REPEATS)
        .filter_map(|(k, c)| Some((k, c.medians()?)))
        .collect();
    let best = measured.iter().min_by(|a, b| a.1.0.total_cmp(&b.1.0))?.0;
    let good: Vec<(usize, (f64, f64))> = measured
        .into_iter()
        .filter(|&(k, (p99, _))| match p99_bound_us {
            Some(bound) => p99 <= bound,
            None => {
                let ours = candidates[k].p99_us();
                k == best
                    || Difference::of(&ours, &candidates[best].p99_us()) == Difference::WithinNoise
            }
        })
        .collect();
    let least = good.iter().min_by(|a, b| a.1.1.total_cmp(&b.1.1))?.0;
    let alike = |k: usize| {
        let difference = Difference::of(&candidates[k].cpu_us(), &candidates[least].cpu_us());
        k == least || difference == Difference::WithinNoise
    };
    good.iter().map(|g| g.0).filter(|&k| alike(k)).min_by_key(|&k| candidates[k].plainness())
}

/// CPU time per request against p99: every candidate that held the load, the frontier, the choice.
pub fn figure(candidates: &[Candidate], chosen: Option<usize>) -> Figure {
    let layers = layers(candidates);
    let points = |which: &dyn Fn(usize) -> bool| {
        let mut points: Vec<(f64, f64, String)> = (0..candidates.len())
            .filter(|&k| which(k))
            .filter_map(|k| {
                let (p99, cpu) = candidates[k].medians()?;
                Some((p99, cpu, candidates[k].settings.to_string()))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let trace = |name: &str, mode: &str, points: Vec<(f64, f64, String)>| {
        let x: Vec<f64> = points.iter().map(|p| p.0).collect();
        let y: Vec<f64> = points.iter().map(|p| p.1).collect();
        let text: Vec<String> = points.into_iter().map(|p| p.2).collect();
        json!({"type": "scatter", "mode": mode, "name": name, "x": x, "y": y, "text": text})
    };
    let data = [
        trace("frontier", "lines+markers", points(&|k| layers[k] == Some(0))),
        trace("other settings", "markers", points(&|k| layers[k] != Some(0))),
        trace("chosen", "markers", points(&|k| Some(k) == chosen)),
    ];
    let data: Vec<_> =
        data.into_iter().filter(|t| t["x"].as_array().is_some_and(|x| !x.is_empty())).collect();
    let axis = |title: &str| json!({"title": {"text": title}, "type": "log"});
    Figure {
        series: String::new(),
        name: "frontier",
        says: "CPU time per request against p99 latency, medians; no other settings are better in both \
               than those of the frontier.",
        plotly: json!({"data": data, "layout": {
            "title": {"text": "frontier"},
            "xaxis": axis("p99 latency (us)"), "yaxis": axis("CPU time per request (us)"),
        }}),
    }
}

mod file;
pub use file::{FileError, config_text};

#[cfg(test)]
mod tests;
