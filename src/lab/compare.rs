//! Two runs side by side: what changed, and whether it is more than noise.
//!
//! The unit is the repeat. For each series and metric the values of both runs are ranked together; the
//! p-value is the part of all ways to deal these ranks to the two runs that differ at least as much
//! (an exact rank-sum test; a normal approximation beyond [`DEALS_MAX`] ways). A change is called one
//! where the p-value is at most [`ALPHA`] *and* the medians differ by at least [`EFFECT_MIN`]. Where
//! the machine itself was slower in one run (its yardstick says so, and by the same kind of test), a
//! change of times in the same direction, and not many times as large, is called unclear, not a change.

use super::run::{Load, Run, Series};
use super::sample::Spread;
use crate::toml_errors::{Document, Table, TomlError};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// Largest p-value that is called a change: at five repeats a side, all but one pair must be apart.
pub const ALPHA: f64 = 0.02;
/// Least part by which medians differ in a change.
pub const EFFECT_MIN: f64 = 0.03;
/// Ways of dealing ranks that are counted one by one.
pub const DEALS_MAX: u64 = 200_000;
/// Part by which the machine's yardstick may differ between runs.
const YARDSTICK_MAX: f64 = 0.05;
/// Largest p-value at which the machine is believed to have changed: larger than [`ALPHA`], since to
/// believe it too often only costs another measurement. Where runs are measured in turns, a machine that
/// is busy at times is so for both, and its yardsticks are not apart.
const YARDSTICK_ALPHA: f64 = 0.1;
/// A figure may change so many times as far (in logarithms) as the machine before it is the build's.
/// A queue makes more of a slower machine than the machine itself does.
const MACHINE_TIMES_MAX: f64 = 3.0;

/// The metrics that are judged. The others of a run's summary are tails of few samples (`p999`,
/// `max`): they are shown by their medians, and gated only if a rule names them.
pub const JUDGED: [&str; 6] = [
    "latency_p50_us",
    "latency_p90_us",
    "latency_p99_us",
    "compute_infer_p50_us",
    "throughput_per_s",
    "cpu_us_per_request",
];

/// What became of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Not more than noise.
    NoDifference,
    /// Better by more than noise.
    Better,
    /// Worse by more than noise.
    Worse,
    /// The machine itself changed in the same direction.
    Unclear,
    /// Too few repeats for any answer.
    TooFewRepeats,
}

impl Verdict {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::NoDifference => "no difference",
            Verdict::Better => "better",
            Verdict::Worse => "WORSE",
            Verdict::Unclear => "unclear: the machine changed too",
            Verdict::TooFewRepeats => "too few repeats to tell",
        }
    }
}

/// One metric of one series in both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The series.
    pub series: String,
    /// The metric.
    pub metric: String,
    /// In the base.
    pub base: Spread,
    /// In the new run.
    pub new: Spread,
    /// New median over base median, minus 1, in percent.
    pub percent: f64,
    /// Of the rank test.
    pub p_value: f64,
    /// What became of it.
    pub verdict: Verdict,
    /// Whether the verdict counts for the whole.
    pub judged: bool,
}

/// Both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Label of the base.
    pub base: String,
    /// Label of the new run.
    pub new: String,
    /// What both have.
    pub changes: Vec<Change>,
    /// What can't be compared, or should be kept in mind.
    pub notes: Vec<String>,
}

/// Why two runs can't be compared.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CompareError {
    /// They measured different things.
    Different {
        /// What differs.
        what: String,
        /// In the base.
        base: String,
        /// In the new run.
        new: String,
    },
    /// They have no series in common.
    NothingInCommon {
        /// Series of the base.
        base: Vec<String>,
        /// Series of the new run.
        new: Vec<String>,
    },
}

impl fmt::Display for CompareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompareError::Different { what, base, new } => {
                write!(f, "the runs differ in {what}: {base} in the base, {new} in the new one")
            }
            CompareError::NothingInCommon { base, new } => write!(
                f,
                "the runs have no series in common: {} in the base, {} in the new one",
                base.join(", "),
                new.join(", ")
            ),
        }
    }
}

impl std::error::Error for CompareError {}

/// Whether more is better.
fn more_is_better(metric: &str) -> bool {
    metric.starts_with("throughput")
}

/// Number of ways to choose `k` of `n`, saturating.
fn choose(n: u64, k: u64) -> u64 {
    (0..k.min(n - k)).fold(1u64, |ways, i| ways.saturating_mul(n - i) / (i + 1))
}

/// Ranks from 1; equal values share their mean rank. Doubled, so that they are whole.
fn double_ranks(values: &[f64]) -> Vec<u64> {
    let below = |v: f64| values.iter().filter(|o| **o < v).count() as u64;
    let same = |v: f64| values.iter().filter(|o| **o == v).count() as u64;
    values.iter().map(|v| 2 * below(*v) + same(*v) + 1).collect()
}

/// Two-sided p-value of the rank-sum test that `a` and `b` come from the same distribution.
pub fn rank_test(a: &[f64], b: &[f64]) -> f64 {
    let (n, m) = (a.len(), b.len());
    if n == 0 || m == 0 {
        return 1.0;
    }
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let ranks = double_ranks(&all);
    let sum: u64 = ranks[..n].iter().sum();
    // Doubled mean of the sum; then everything is compared by its distance from it.
    let mean = (n * (n + m + 1)) as u64;
    let distance = sum.abs_diff(mean);
    if choose((n + m) as u64, n as u64) > DEALS_MAX {
        let variance = (n * m * (n + m + 1)) as f64 / 12.0 * 4.0;
        return 2.0 * (1.0 - normal(distance as f64 / variance.sqrt()));
    }
    let (mut far, mut deals) = (0u64, 0u64);
    deal(&ranks, n, 0, &mut |sum| {
        deals += 1;
        far += u64::from(sum.abs_diff(mean) >= distance);
    });
    far as f64 / deals as f64
}

/// Calls `each` with the sum of every choice of `k` ranks.
fn deal(ranks: &[u64], k: usize, sum: u64, each: &mut impl FnMut(u64)) {
    if k == 0 {
        return each(sum);
    }
    if ranks.len() >= k {
        deal(&ranks[1..], k - 1, sum + ranks[0], each);
        deal(&ranks[1..], k, sum, each);
    }
}

/// The normal distribution's integral up to `z` >= 0 (Abramowitz and Stegun 26.2.17, error < 1e-7).
fn normal(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    1.0 - (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly
}

/// How much slower the machine was in `new`: the ratio of the yardsticks, if they differ by more than is
/// allowed, and by more than they vary within the runs.
fn machine_changed(base: &Series, new: &Series) -> Option<f64> {
    let yardsticks = |s: &Series| -> Vec<f64> {
        s.repeats.iter().filter_map(|r| r.yardstick_ns).map(|ns| ns as f64).collect()
    };
    let (before, after) = (yardsticks(base), yardsticks(new));
    if before.is_empty() || after.is_empty() || rank_test(&before, &after) > YARDSTICK_ALPHA {
        return None;
    }
    let ratio = Spread::of(&after).median / Spread::of(&before).median;
    ((ratio - 1.0).abs() > YARDSTICK_MAX).then_some(ratio)
}

/// Whether a machine that changed so much may have changed a figure so much: in the same direction,
/// and not many times as far.
fn explains(machine: f64, slower: f64) -> bool {
    let times = slower.ln() / machine.ln();
    (0.0..=MACHINE_TIMES_MAX).contains(&times)
}

fn change(base: &Series, new: &Series, metric: &str) -> Option<Change> {
    let (a, b) = (base.values(metric), new.values(metric));
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let (before, after) = (Spread::of(&a), Spread::of(&b));
    let ratio = match (before.median, after.median) {
        (x, y) if x == y => 1.0,
        (x, y) => y / x,
    };
    let p_value = rank_test(&a, &b);
    let least_p = 2.0 / choose((a.len() + b.len()) as u64, a.len() as u64) as f64;
    let verdict = if least_p > ALPHA {
        Verdict::TooFewRepeats
    } else if p_value > ALPHA || (ratio - 1.0).abs() < EFFECT_MIN {
        Verdict::NoDifference
    } else {
        // A slower machine makes times longer and rates lower.
        let slower = if more_is_better(metric) { 1.0 / ratio } else { ratio };
        match machine_changed(base, new) {
            Some(machine) if explains(machine, slower) => Verdict::Unclear,
            _ if slower > 1.0 => Verdict::Worse,
            _ => Verdict::Better,
        }
    };
    Some(Change {
        series: base.name.clone(),
        metric: metric.into(),
        base: before,
        new: after,
        percent: (ratio - 1.0) * 100.0,
        p_value,
        verdict,
        judged: JUDGED.contains(&metric),
    })
}

fn same(what: &str, base: &str, new: &str) -> Result<(), CompareError> {
    if base == new {
        return Ok(());
    }
    Err(CompareError::Different { what: what.into(), base: base.into(), new: new.into() })
}

fn load_text(load: &Load) -> String {
    serde_json::to_string(load).unwrap_or_default()
}

/// Compares two runs.
///
/// # Errors
/// They measured different models or inputs, or a series of the same name under another load, or
/// have no series in common.
pub fn compare(base: &Run, new: &Run) -> Result<Comparison, CompareError> {
    same("the model", &base.target.model, &new.target.model)?;
    same("the model's inputs", &base.target.signature, &new.target.signature)?;
    let label = |run: &Run, other: &str| match run.label.as_str() {
        "" => other.to_string(),
        label => label.to_string(),
    };
    let mut out = Comparison {
        base: label(base, "base"),
        new: label(new, "new"),
        changes: Vec::new(),
        notes: Vec::new(),
    };
    if base.machine.name != new.machine.name {
        out.notes.push(format!(
            "measured on different machines: {} and {}",
            base.machine.name, new.machine.name
        ));
    }
    for (run, name) in [(base, "base"), (new, "new")] {
        if let Some(finding) = run.findings.first().filter(|_| !run.valid) {
            out.notes.push(format!("the {name} run is INVALID: {}", finding.text));
        }
    }
    let mut common = 0;
    for before in &base.series {
        let Some(after) = new.series.iter().find(|s| s.name == before.name) else {
            out.notes.push(format!("series {} is in the base only", before.name));
            continue;
        };
        common += 1;
        let what = format!("the load of series {}", before.name);
        same(&what, &load_text(&before.load), &load_text(&after.load))?;
        if let Some(ratio) = machine_changed(before, after) {
            out.notes.push(format!(
                "series {}: fixed work took {:+.0} % of its time in the base; measure both again, \
                 interleaved (--against)",
                before.name,
                (ratio - 1.0) * 100.0
            ));
        }
        for metric in before.summary.keys() {
            out.changes.extend(change(before, after, metric));
        }
    }
    if common == 0 {
        let names = |run: &Run| run.series.iter().map(|s| s.name.clone()).collect();
        return Err(CompareError::NothingInCommon { base: names(base), new: names(new) });
    }
    Ok(out)
}

impl Comparison {
    /// The judged changes that are more than noise.
    pub fn differences(&self) -> impl Iterator<Item = &Change> {
        let is = |c: &&Change| c.judged && matches!(c.verdict, Verdict::Better | Verdict::Worse);
        self.changes.iter().filter(is)
    }

    /// The whole in one line.
    pub fn headline(&self) -> String {
        let worse: Vec<String> = self
            .differences()
            .filter(|c| c.verdict == Verdict::Worse)
            .map(|c| format!("{} {} {:+.1} %", c.series, c.metric, c.percent))
            .collect();
        let better = self.differences().filter(|c| c.verdict == Verdict::Better).count();
        let judged = || self.changes.iter().filter(|c| c.judged);
        if !worse.is_empty() {
            format!("worse: {}", worse.join(", "))
        } else if better > 0 {
            format!("better in {better} metrics, worse in none")
        } else if judged().any(|c| c.verdict == Verdict::Unclear) {
            "unclear: the machine changed too".into()
        } else if judged().all(|c| c.verdict == Verdict::TooFewRepeats) {
            "too few repeats to tell; measure at least 5".into()
        } else {
            "no difference".into()
        }
    }
}

/// A rule of a gate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rule {
    /// The series; every one if absent.
    pub series: Option<String>,
    /// The metric, with or without its unit.
    pub metric: String,
    /// How much worse it may be, in percent.
    pub max_percent: f64,
}

/// A rule of a gate is about a metric that neither run has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownMetric {
    /// The gate's file.
    pub file: String,
    /// The metric that it names.
    pub metric: String,
    /// Those that the runs have.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownMetric { file, metric, known } = self;
        write!(f, "{file}: no run has the metric {metric:?}; there are {}", known.join(", "))
    }
}

impl std::error::Error for UnknownMetric {}

/// Rules that a comparison must keep.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Gate {
    /// In the order of the file.
    pub rules: Vec<Rule>,
}

impl Gate {
    /// Reads a gate.
    ///
    /// ```toml
    /// latency_p99 = "10%"
    /// throughput = "5%"
    ///
    /// [profile.bursty]
    /// latency_p99 = "20%"
    /// ```
    /// A rule of a profile replaces the general one of the same metric there.
    ///
    /// # Errors
    /// Not TOML, or a rule that is no percentage.
    pub fn parse(file: &str, text: &str) -> Result<Gate, TomlError> {
        let document = Document::parse(file, text)?;
        let root = document.root();
        let mut gate = Gate::default();
        rules(&root, None, &mut gate.rules)?;
        if let Some(profiles) = root.table("profile")? {
            for name in profiles.keys() {
                if let Some(table) = profiles.table(&name)? {
                    rules(&table, Some(&name), &mut gate.rules)?;
                    table.finish()?;
                }
            }
        }
        root.finish()?;
        if gate.rules.is_empty() {
            return Err(root.missing("latency_p99"));
        }
        Ok(gate)
    }

    /// Whether every rule is about a metric that the runs have; `file` is the gate's name.
    ///
    /// # Errors
    /// One is not, most likely by a slip; the error has those that there are.
    pub fn check(&self, file: &str, comparison: &Comparison) -> Result<(), UnknownMetric> {
        let known = |metric: &str| {
            let rule = Rule { series: None, metric: metric.into(), max_percent: 0.0 };
            comparison.changes.iter().any(|c| rule.is_about(c))
        };
        let Some(rule) = self.rules.iter().find(|rule| !known(&rule.metric)) else { return Ok(()) };
        let all: BTreeSet<&str> = comparison.changes.iter().map(|c| c.metric.as_str()).collect();
        Err(UnknownMetric {
            file: file.into(),
            metric: rule.metric.clone(),
            known: all.into_iter().map(str::to_owned).collect(),
        })
    }

    /// What breaks the rules, in sentences; empty if nothing does.
    pub fn broken(&self, comparison: &Comparison) -> Vec<String> {
        let mut broken: Vec<String> =
            comparison.notes.iter().filter(|n| n.contains("INVALID")).cloned().collect();
        for rule in &self.rules {
            let mut found = false;
            for change in comparison.changes.iter().filter(|c| rule.is_about(c)) {
                found = true;
                let special = self.rules.iter().any(|other| {
                    other.series.is_some() && other.metric == rule.metric && other.is_about(change)
                });
                if rule.series.is_none() && special {
                    continue;
                }
                let worse =
                    if more_is_better(&change.metric) { -change.percent } else { change.percent };
                let (series, metric) = (&change.series, &change.metric);
                match change.verdict {
                    Verdict::Worse if worse > rule.max_percent => broken.push(format!(
                        "{series} {metric} is {worse:.1} % worse; at most {} % is allowed",
                        rule.max_percent
                    )),
                    Verdict::TooFewRepeats => broken.push(format!(
                        "{series} {metric} can't be judged: too few repeats; measure at least 5"
                    )),
                    Verdict::Unclear if worse > rule.max_percent => broken.push(format!(
                        "{series} {metric} is {worse:.1} % worse, but the machine changed too; \
                         measure again"
                    )),
                    _ => {}
                }
            }
            if !found {
                let wanted = rule.series.as_deref().unwrap_or("any series");
                broken.push(format!("{} of {wanted} is in no run", rule.metric));
            }
        }
        broken
    }
}

impl Rule {
    fn is_about(&self, change: &Change) -> bool {
        let name = |unit: &str| format!("{}{unit}", self.metric) == change.metric;
        self.series.as_ref().is_none_or(|s| *s == change.series)
            && ["", "_us", "_per_s", "_percent"].into_iter().any(name)
    }
}

fn rules(table: &Table<'_>, series: Option<&str>, out: &mut Vec<Rule>) -> Result<(), TomlError> {
    for metric in table.keys() {
        if series.is_none() && metric == "profile" {
            continue;
        }
        let Some(text) = table.text(&metric)? else { continue };
        let number = text.trim().strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok());
        let Some(max_percent) = number.filter(|n| *n >= 0.0 && n.is_finite()) else {
            let what = format!("{text:?} is no percentage; write \"10%\"");
            return Err(table.invalid(&metric, what));
        };
        out.push(Rule { series: series.map(str::to_owned), metric, max_percent });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
