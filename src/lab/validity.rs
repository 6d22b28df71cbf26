//! What speaks against a run's figures.

use super::run::{Finding, Repeat, Run, Severity};
use super::system::{Machine, State};
use std::collections::BTreeMap;

/// Largest p99 of the generator's lag that is taken without looking at latencies, in nanoseconds.
const LAG_NS_FREE: u64 = 100_000;
/// Part of the p50 latency that the p99 of the lag may be, in percent, beyond that.
const LAG_PERCENT_MAX: u64 = 10;
/// Part of the requests that may have found the other side full, in permille.
const BLOCKED_PERMILLE_MAX: u64 = 10;
/// Part of a worker's core that others may use, in percent.
const OTHER_LOAD_PERCENT_MAX: f64 = 5.0;
/// Part by which a core's frequency may fall during a run, in percent.
const FREQUENCY_FALL_PERCENT_MAX: f64 = 5.0;

/// What is known of the machine around one repeat.
#[derive(Debug, Clone, Default)]
pub struct Around {
    /// Before.
    pub before: State,
    /// After.
    pub after: State,
    /// Ticks that the server's bound threads had used before, by core.
    pub server_ticks_before: BTreeMap<u16, u64>,
    /// The same after.
    pub server_ticks_after: BTreeMap<u16, u64>,
    /// Highest and lowest frequency seen during the run, by core.
    pub frequencies_khz: BTreeMap<u16, (u64, u64)>,
    /// Cores of the workers; `None` for unpinned ones.
    pub worker_cores: Vec<Option<u16>>,
    /// Whether the server, or this program, was built with debug assertions.
    pub debug_build: bool,
}

fn us(ns: u64) -> String {
    format!("{:.1} us", ns as f64 / 1e3)
}

/// What speaks against one repeat.
pub fn of_repeat(
    repeat: &Repeat,
    is_open: bool,
    around: &Around,
    machine: &Machine,
) -> Vec<Finding> {
    let mut found = of_generator(repeat, is_open);
    let too_few = repeat.latency.too_few();
    if !too_few.is_empty() {
        found.push(Finding::warning(
            "too_few_samples",
            format!(
                "{} answered requests are too few for {}; measure for longer",
                repeat.latency.count,
                too_few.join(", ")
            ),
        ));
    }
    found.extend(of_machine(around, machine));
    found
}

fn of_generator(repeat: &Repeat, is_open: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(why) = &repeat.broken {
        found.push(Finding::invalid(
            "broken",
            format!(
                "the run broke off after {} of {} requests ({why}); the figures are of what was \
                 answered until then",
                repeat.sent, repeat.planned
            ),
        ));
    }
    if repeat.answered == 0 {
        found.push(Finding::invalid("no_answer", "no request was answered"));
    }
    if is_open && repeat.broken.is_none() {
        let blocked_max = repeat.planned * BLOCKED_PERMILLE_MAX / 1000;
        let lag_max = LAG_NS_FREE.max(repeat.latency.p50_ns * LAG_PERCENT_MAX / 100);
        if repeat.blocked > blocked_max {
            found.push(Finding::invalid(
                "blocked",
                format!(
                    "{} of {} requests were due while the connections were full: the server is too \
                     slow for the schedule, or there are too few connections (--connections)",
                    repeat.blocked, repeat.planned
                ),
            ));
        } else if repeat.lag.p99_ns > lag_max || repeat.sent < repeat.planned {
            found.push(Finding::invalid(
                "generator_lag",
                format!(
                    "the generator could not keep the schedule: it sent {} of {}, with a lag of {} \
                     at p99, {} at most; allowed are {} at p99. Lower the rate, or give it a core of \
                     its own (--generator-core)",
                    repeat.sent,
                    repeat.planned,
                    us(repeat.lag.p99_ns),
                    us(repeat.lag.max_ns),
                    us(lag_max)
                ),
            ));
        }
    }
    if repeat.unanswered > 0 && repeat.broken.is_none() {
        found.push(Finding::warning(
            "unanswered",
            format!("{} requests had no end when the time was up", repeat.unanswered),
        ));
    }
    if repeat.generator_allocator_calls > 0 {
        found.push(Finding::warning(
            "generator_allocates",
            format!(
                "{} allocator calls on the generator's thread (or on workers and I/O in this \
                 process) during the run",
                repeat.generator_allocator_calls
            ),
        ));
    }
    found
}

fn of_machine(around: &Around, machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    let workers: Vec<u16> = around.worker_cores.iter().flatten().copied().collect();
    if around.debug_build {
        found.push(Finding::invalid(
            "debug_build",
            "a debug build was measured; build with --release",
        ));
    }
    if around.worker_cores.iter().any(Option::is_none) {
        found.push(Finding::warning(
            "unpinned_workers",
            "workers run unpinned: latencies vary with where the scheduler puts them",
        ));
    }
    for core in &workers {
        if let Some(governor) = machine.governors.get(core).filter(|g| *g != "performance") {
            found.push(Finding::warning(
                "governor",
                format!(
                    "core {core} has the frequency governor {governor:?}; with \"performance\" \
                     latencies vary less"
                ),
            ));
        }
        if let Some((high, low)) = around.frequencies_khz.get(core)
            && (*low as f64) < *high as f64 * (1.0 - FREQUENCY_FALL_PERCENT_MAX / 100.0)
        {
            found.push(Finding::warning(
                "frequency",
                format!("core {core} ran between {} and {} MHz", low / 1000, high / 1000),
            ));
        }
        let (before, after) = (around.before.cores.get(core), around.after.cores.get(core));
        let (Some(before), Some(after)) = (before, after) else { continue };
        if let (Some(then), Some(now)) = (before.throttled_count, after.throttled_count)
            && now > then
        {
            found.push(Finding::invalid(
                "thermal_throttling",
                format!(
                    "core {core} was slowed by heat {} times during the run; cool it",
                    now - then
                ),
            ));
        }
        let ticks = |of: &BTreeMap<u16, u64>| of.get(core).copied();
        if let (Some(then), Some(now)) =
            (ticks(&around.server_ticks_before), ticks(&around.server_ticks_after))
        {
            let all = after.all_ticks.saturating_sub(before.all_ticks).max(1);
            let busy = after.busy_ticks.saturating_sub(before.busy_ticks);
            let other = busy.saturating_sub(now.saturating_sub(then));
            let percent = 100.0 * other as f64 / all as f64;
            // A few ticks are rounding.
            if other > 3 && percent > OTHER_LOAD_PERCENT_MAX {
                found.push(Finding::warning(
                    "other_load",
                    format!("others used {percent:.0} % of core {core}, on which a worker runs"),
                ));
            }
        }
    }
    if let Some(flags) = around.after.pi_throttled {
        let since = around.before.pi_throttled.unwrap_or(0);
        for (bit, id, what) in [
            (0, "undervoltage", "the supply voltage is too low"),
            (1, "frequency_capped", "the firmware caps the frequency"),
            (2, "thermal_throttling", "the firmware throttles the processor"),
            (3, "thermal_throttling", "the soft temperature limit is active"),
        ] {
            let now = (flags | since) & (1 << bit) != 0;
            let new = flags & !since & (1 << (bit + 16)) != 0;
            let ever = flags & (1 << (bit + 16)) != 0;
            if now || new {
                found.push(Finding::invalid(id, format!("{what} (get_throttled is {flags:#x})")));
            } else if ever {
                let text =
                    format!("since boot it happened that {what} (get_throttled is {flags:#x})");
                found.push(Finding::warning(id, text));
            }
        }
    }
    if around.before.undervoltage_alarm == Some(true)
        || around.after.undervoltage_alarm == Some(true)
    {
        let text = "the sensor of the supply voltage raises its alarm";
        found.push(Finding::invalid("undervoltage", text));
    }
    found
}

/// Puts the findings of all repeats together, each once with all repeats that have it, worst first, and
/// says whether the run is valid.
pub fn judge(run: &mut Run) {
    let mut all: Vec<Finding> = std::mem::take(&mut run.findings);
    for series in &run.series {
        for (n, repeat) in series.repeats.iter().enumerate() {
            for finding in &repeat.findings {
                if !all.iter().any(|f| f.id == finding.id && f.severity >= finding.severity) {
                    let text = format!("{}, repeat {}: {}", series.name, n + 1, finding.text);
                    let text = format!("{text}{}", others(run, finding, (&series.name, n)));
                    all.push(Finding { text, ..finding.clone() });
                }
            }
        }
    }
    all.sort_by_key(|f| std::cmp::Reverse(f.severity));
    run.valid = all.iter().all(|f| f.severity < Severity::Invalid);
    run.findings = all;
}

/// Which other repeats have the same finding.
fn others(run: &Run, finding: &Finding, (name, repeat): (&str, usize)) -> String {
    let mut others = Vec::new();
    for series in &run.series {
        let same = |f: &Finding| f.id == finding.id && f.severity == finding.severity;
        let repeats = series.repeats.iter().enumerate();
        let numbers: Vec<String> = repeats
            .filter(|(n, r)| (series.name != name || *n != repeat) && r.findings.iter().any(same))
            .map(|(n, _)| (n + 1).to_string())
            .collect();
        if !numbers.is_empty() {
            others.push(format!("{}, repeat {}", series.name, numbers.join(", ")));
        }
    }
    if others.is_empty() { String::new() } else { format!(" (also {})", others.join("; ")) }
}

#[cfg(test)]
mod tests;
