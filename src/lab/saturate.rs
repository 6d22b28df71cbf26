//! The highest rate that a target holds within a latency bound, found by staged open-loop probes.
//!
//! A rate *holds* if the latency at the percentile is within the bound, (nearly) nothing fails, the
//! answers keep up with the schedule, and the latency does not grow from the first part of the probe
//! to the last, as it does when a queue builds up. The search first rises by doubling, then halves the
//! interval between the highest rate that held and the lowest that did not, until these are near. A
//! probe whose generator did not keep its schedule decides nothing about the target: the search goes on
//! below it, and ends early if that is where the answer would be.

use super::run::{Repeat, Severity};
use super::watch::Detail;
use serde::Serialize;

/// The two ends of the last interval differ by at most so much, in percent.
pub const NEAR_PERCENT: f64 = 4.0;
/// Requests that may fail, in percent.
const FAILED_PERCENT_MAX: f64 = 0.1;
/// Answers may lag behind the schedule by so much, in percent.
const BEHIND_PERCENT_MAX: f64 = 3.0;
/// The median latency of the last third may be so many times that of the first.
const GROWTH_MAX: f64 = 2.0;
/// Most probes of one search.
const PROBES_MAX: usize = 40;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goal {
    /// Name of the percentile: `p50` to `p999`.
    pub percentile: &'static str,
    /// Its bound.
    pub bound_ns: u64,
}

/// What a rate did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Probe {
    /// Requests planned per second.
    pub rate_per_s: f64,
    /// Whether it held.
    pub held: bool,
    /// Why not.
    pub why: Option<String>,
    /// Latency at the goal's percentile.
    pub latency_ns: u64,
    /// Answered per second.
    pub throughput_per_s: f64,
    /// Whether the generator kept the schedule; if not, nothing follows from it.
    pub valid: bool,
}

/// What a search came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Saturation {
    /// The goal.
    pub goal: Goal,
    /// Every probe, in order.
    pub probes: Vec<Probe>,
    /// Highest rate that held; `None` if none did.
    pub rate_per_s: Option<f64>,
    /// Lowest rate that did not hold; `None` if the search ended before one was found.
    pub beyond_per_s: Option<f64>,
    /// Why the search ended before its ends were near.
    pub ended_early: Option<String>,
}

/// Holds one probe against the goal.
pub fn judge(goal: Goal, rate_per_s: f64, repeat: &Repeat, detail: &Detail) -> Probe {
    let latency_ns = repeat.latency.by_name(goal.percentile).unwrap_or(repeat.latency.max_ns);
    let failed: u64 = repeat.errors.values().sum::<u64>() + repeat.unanswered;
    let failed = 100.0 * failed as f64 / (repeat.sent.max(1)) as f64;
    let blocked = repeat.findings.iter().any(|f| f.id == "blocked");
    let invalid =
        repeat.findings.iter().find(|f| f.severity == Severity::Invalid && f.id != "blocked");
    let behind = 100.0 * (1.0 - repeat.throughput_per_s / repeat.offered_per_s.max(1e-9));
    let why = if let Some(finding) = invalid {
        Some(finding.text.clone())
    } else if failed > FAILED_PERCENT_MAX {
        let worst = repeat.errors.iter().max_by_key(|(_, n)| **n).map_or("no answer", |(e, _)| e);
        Some(format!("{failed:.2} % failed ({worst})"))
    } else if latency_ns > goal.bound_ns {
        Some(format!("{} is {:.1} us", goal.percentile, latency_ns as f64 / 1e3))
    } else if blocked {
        Some("the connections were full".into())
    } else if behind > BEHIND_PERCENT_MAX && repeat.planned > 100 {
        Some(format!("answers fall behind by {behind:.1} %"))
    } else {
        growth(detail).filter(|g| *g > GROWTH_MAX).map(|g| format!("latency grows {g:.1} times"))
    };
    Probe {
        rate_per_s,
        held: why.is_none(),
        why,
        latency_ns,
        throughput_per_s: repeat.throughput_per_s,
        valid: invalid.is_none(),
    }
}

/// Median latency of the last third of a probe over that of the first; `None` for few samples.
fn growth(detail: &Detail) -> Option<f64> {
    let bins: Vec<_> = detail.bins.iter().filter(|b| b.latency.count > 0).collect();
    let third = bins.len() / 3;
    let median = |part: &[&super::watch::Bin]| {
        let mut all: Vec<u64> = part.iter().map(|b| b.latency.p50_ns).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    };
    let first = median(bins.get(..third)?)?;
    let last = median(bins.get(bins.len() - third..)?)?;
    // Growth within some tens of microseconds is no queue.
    (last > first + 50_000).then(|| last as f64 / first.max(1) as f64)
}

/// Searches from `first_per_s`, a guess. `probe` measures one rate.
///
/// # Errors
/// Whatever `probe` returns.
pub fn search<E>(
    goal: Goal,
    first_per_s: f64,
    rate_max_per_s: f64,
    mut probe: impl FnMut(f64) -> Result<Probe, E>,
) -> Result<Saturation, E> {
    let mut out = Saturation {
        goal,
        probes: Vec::new(),
        rate_per_s: None,
        beyond_per_s: None,
        ended_early: None,
    };
    let mut rate = first_per_s.min(rate_max_per_s);
    // The lowest rate at which the generator did not keep its schedule, and why.
    let mut undecided: Option<(f64, String)> = None;
    while out.probes.len() < PROBES_MAX {
        let probed = probe(rate)?;
        let (held, valid) = (probed.held, probed.valid);
        let why = probed.why.clone();
        out.probes.push(probed);
        if !valid {
            undecided = Some((rate, why.unwrap_or_default()));
        } else if held {
            out.rate_per_s = Some(out.rate_per_s.map_or(rate, |r: f64| r.max(rate)));
        } else {
            out.beyond_per_s = Some(out.beyond_per_s.map_or(rate, |r: f64| r.min(rate)));
        }
        // Where the search may go on: nothing is known from there up, or it does not hold.
        let known = out.beyond_per_s.unwrap_or(f64::INFINITY);
        let high = undecided.as_ref().map_or(known, |(rate, _)| rate.min(known));
        let is_undecided = high < known;
        let stop = |out: &mut Saturation| {
            if let Some((rate, why)) = undecided.as_ref().filter(|_| is_undecided) {
                out.ended_early = Some(format!("at {rate:.0} requests/s: {why}"));
            }
        };
        rate = match (out.rate_per_s, Some(high).filter(|high| high.is_finite())) {
            (Some(low), Some(high)) => {
                if high / low <= 1.0 + NEAR_PERCENT / 100.0 {
                    stop(&mut out);
                    return Ok(out);
                }
                // Rates are compared by their ratio.
                (low * high).sqrt()
            }
            (Some(low), None) if low >= rate_max_per_s => {
                out.ended_early = Some(format!("the highest rate of a schedule, {low:.0}, holds"));
                return Ok(out);
            }
            (Some(low), None) => (low * 2.0).min(rate_max_per_s),
            (None, Some(high)) if high < first_per_s / 1000.0 => {
                out.ended_early = Some("no rate holds the bound".into());
                stop(&mut out);
                return Ok(out);
            }
            (None, Some(high)) => high / 2.0,
            (None, None) => return Ok(out),
        };
    }
    out.ended_early = Some(format!("{PROBES_MAX} probes did not bring its ends together"));
    Ok(out)
}

#[cfg(test)]
mod tests;
