//! Arrival schedules: when each request is to be sent, fixed by a seed before the run begins.
//!
//! A schedule is a pure function of its plan: the same plan and seed give the same arrivals on every
//! machine and in every version (the generator is PCG, whose stream is fixed).
//!
//! | profile | gaps between arrivals |
//! |---|---|
//! | `steady` | constant |
//! | `poisson` | exponential: the arrivals of many independent clients |
//! | `bursty` | exponential while on, none while off; the mean rate is the one asked for |
//! | `heavy-tailed` | Pareto (shape 1.5), scaled to the mean rate; rows are Pareto too, where the model batches |
//! | `ramp` | constant, at a rate that rises linearly to each stage's target and holds it |
//! | `replay` | as a trace recorded them |

pub mod trace;

use crate::limits::{LAB_REQUESTS_MAX, LAB_REQUESTS_PER_S_MAX, LAB_RUN_S_MAX};
use crate::toml_errors::nearest;
use crate::units::Nanos;
use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Shape of the Pareto distributions: below 2, so that single gaps are as long as hundreds of usual
/// ones, and above 1, so that there is a mean.
const PARETO_SHAPE: f64 = 1.5;

/// One planned request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When, from the start of the run.
    pub at: Nanos,
    /// Rows.
    pub rows: u16,
}

/// One stage of a ramp: a linear rise from the rate before it (0 at first) to `rate`, then a hold.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Requests per second at the end of the rise.
    pub rate_per_s: f64,
    /// Seconds of the rise.
    pub rise_s: f64,
    /// Seconds at the rate.
    pub hold_s: f64,
}

/// How arrivals are spread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "profile", rename_all = "kebab-case")]
pub enum Profile {
    /// Constant gaps.
    Steady,
    /// Exponential gaps.
    Poisson,
    /// Exponential gaps while on, nothing while off.
    Bursty {
        /// Milliseconds on.
        on_ms: u32,
        /// Milliseconds off.
        off_ms: u32,
    },
    /// Pareto gaps, and Pareto rows.
    HeavyTailed,
    /// Stages; the plan's rate and span are not used.
    Ramp {
        /// In order.
        stages: Vec<Stage>,
    },
    /// A recorded trace; the plan's rate and span are not used.
    Replay {
        /// The file, as the user named it.
        file: String,
    },
}

/// Names of the profiles, as the command line takes them.
pub const PROFILES: [&str; 6] = ["steady", "poisson", "bursty", "heavy-tailed", "ramp", "replay"];

/// On and off time of `bursty` where nothing else is asked for, in milliseconds.
pub const BURST_MS_DEFAULT: (u32, u32) = (100, 100);

impl Profile {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Profile::Steady => "steady",
            Profile::Poisson => "poisson",
            Profile::Bursty { .. } => "bursty",
            Profile::HeavyTailed => "heavy-tailed",
            Profile::Ramp { .. } => "ramp",
            Profile::Replay { .. } => "replay",
        }
    }

    /// The profile of a name, with its defaults; `ramp` and `replay` need more than a name.
    ///
    /// # Errors
    /// No such profile (the nearest is named), or one that needs more.
    pub fn from_name(name: &str) -> Result<Profile, ScheduleError> {
        match name {
            "steady" => Ok(Profile::Steady),
            "poisson" => Ok(Profile::Poisson),
            "bursty" => {
                let (on_ms, off_ms) = BURST_MS_DEFAULT;
                Ok(Profile::Bursty { on_ms, off_ms })
            }
            "heavy-tailed" => Ok(Profile::HeavyTailed),
            "ramp" | "replay" => Err(ScheduleError::NeedsMore { name: name.into() }),
            _ => Err(ScheduleError::UnknownProfile {
                name: name.into(),
                nearest: nearest(name, PROFILES.into_iter()),
            }),
        }
    }
}

/// Everything that a schedule follows from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// How arrivals are spread.
    #[serde(flatten)]
    pub profile: Profile,
    /// Mean requests per second.
    pub rate_per_s: f64,
    /// How long, in seconds.
    pub span_s: f64,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Rows of each request; of `heavy-tailed` the least.
    pub rows: u16,
    /// Most rows that `heavy-tailed` takes; `rows` keeps them constant.
    pub rows_max: u16,
}

/// Why there is no schedule.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ScheduleError {
    /// No profile has this name.
    UnknownProfile {
        /// The name.
        name: String,
        /// The one that it resembles.
        nearest: Option<&'static str>,
    },
    /// The profile takes more than its name.
    NeedsMore {
        /// The name.
        name: String,
    },
    /// A rate, a span or a time that is zero, negative, no number, or over its limit.
    OutOfRange {
        /// What.
        what: &'static str,
        /// Its value.
        value: f64,
        /// The most that it may be.
        max: f64,
    },
    /// More requests than a run records.
    TooMany {
        /// Planned.
        wanted: u64,
        /// Recorded at most.
        max: u64,
    },
    /// The schedule has no arrival: the span is shorter than a gap.
    Empty,
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScheduleError::UnknownProfile { name, nearest: Some(nearest) } => {
                write!(f, "there is no profile {name:?}; did you mean {nearest:?}?")
            }
            ScheduleError::UnknownProfile { name, nearest: None } => {
                write!(f, "there is no profile {name:?}; there are {}", PROFILES.join(", "))
            }
            ScheduleError::NeedsMore { name } if name == "ramp" => {
                f.write_str("profile ramp takes stages: ramp:RATE/RISE_S/HOLD_S,...")
            }
            ScheduleError::NeedsMore { name } => {
                write!(f, "profile {name} takes a file: {name}:FILE")
            }
            ScheduleError::OutOfRange { what, value, max } => {
                write!(f, "{what} is {value}; it must be above 0 and at most {max}")
            }
            ScheduleError::TooMany { wanted, max } => write!(
                f,
                "the schedule has {wanted} requests, a run records at most {max}; lower the rate or \
                 the span"
            ),
            ScheduleError::Empty => {
                f.write_str("no request falls into the span; raise the rate or the span")
            }
        }
    }
}

impl std::error::Error for ScheduleError {}

fn within(what: &'static str, value: f64, max: f64) -> Result<(), ScheduleError> {
    if value > 0.0 && value <= max {
        return Ok(());
    }
    Err(ScheduleError::OutOfRange { what, value, max })
}

/// Numbers in [0, 1), never 1.
struct Uniform(Pcg32);

impl Uniform {
    fn next(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Exponential with this mean.
    fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.next()).ln() * mean
    }
    /// Pareto with least value 1.
    fn pareto(&mut self) -> f64 {
        (1.0 - self.next()).powf(-1.0 / PARETO_SHAPE)
    }
}

impl Plan {
    /// How long the schedule is, in seconds; of a replay unknown before it is read.
    fn length_s(&self) -> f64 {
        match &self.profile {
            Profile::Ramp { stages } => stages.iter().map(|s| s.rise_s + s.hold_s).sum(),
            _ => self.span_s,
        }
    }

    fn check(&self) -> Result<(), ScheduleError> {
        let rate_max = LAB_REQUESTS_PER_S_MAX as f64;
        let span_max = LAB_RUN_S_MAX as f64;
        let expected = match &self.profile {
            Profile::Ramp { stages } => {
                if stages.is_empty() {
                    return Err(ScheduleError::NeedsMore { name: "ramp".into() });
                }
                let mut before = 0.0;
                let mut sum = 0.0;
                for s in stages {
                    within("the rate of a stage", s.rate_per_s, rate_max)?;
                    within("the time of a stage", s.rise_s + s.hold_s, span_max)?;
                    if s.rise_s < 0.0 || s.hold_s < 0.0 {
                        let value = s.rise_s.min(s.hold_s);
                        let what = "the rise or hold of a stage";
                        return Err(ScheduleError::OutOfRange { what, value, max: span_max });
                    }
                    sum += (before + s.rate_per_s) / 2.0 * s.rise_s + s.rate_per_s * s.hold_s;
                    before = s.rate_per_s;
                }
                within("the duration of the ramp", self.length_s(), span_max)?;
                sum
            }
            Profile::Replay { .. } => 0.0,
            profile => {
                within("the rate", self.rate_per_s, rate_max)?;
                within("the duration", self.span_s, span_max)?;
                if let Profile::Bursty { on_ms, off_ms } = profile {
                    within("the time on", f64::from(*on_ms), span_max * 1e3)?;
                    within("the time off", f64::from(*off_ms), span_max * 1e3)?;
                }
                self.rate_per_s * self.span_s
            }
        };
        let max = LAB_REQUESTS_MAX as u64;
        // A random schedule may have a few more than expected; it is checked again when it is made.
        if expected.ceil() > max as f64 {
            return Err(ScheduleError::TooMany { wanted: expected.ceil() as u64, max });
        }
        Ok(())
    }

    /// The arrivals, ascending. Of a replay, use [`trace::Trace`].
    ///
    /// # Errors
    /// The plan is out of its bounds, or has no arrival.
    pub fn schedule(&self) -> Result<Vec<Arrival>, ScheduleError> {
        self.check()?;
        let mut uniform = Uniform(Pcg32::seed_from_u64(self.seed));
        let end = self.length_s() * 1e9;
        let mean = 1e9 / self.rate_per_s;
        let times: Vec<f64> = match &self.profile {
            Profile::Steady => {
                let count = (self.rate_per_s * self.span_s).round() as usize;
                (0..count).map(|n| n as f64 * mean).collect()
            }
            Profile::Poisson => until(end, || uniform.exponential(mean)),
            Profile::Bursty { on_ms, off_ms } => {
                let (on, off) = (f64::from(*on_ms) * 1e6, f64::from(*off_ms) * 1e6);
                let cycle = on + off;
                // Time that counts only while on; then the off times are put in.
                let active = (end / cycle).floor() * on + (end % cycle).min(on);
                let mean = mean * active / end;
                let times = until(active, || uniform.exponential(mean));
                times.into_iter().map(|t| (t / on).floor() * cycle + t % on).collect()
            }
            Profile::HeavyTailed => {
                let count = (self.rate_per_s * self.span_s).round() as usize;
                let gaps: Vec<f64> = (0..count).map(|_| uniform.pareto()).collect();
                let scale = end / gaps.iter().sum::<f64>();
                let mut at = 0.0;
                let mut times = Vec::with_capacity(count);
                for gap in gaps {
                    times.push(at);
                    at += gap * scale;
                }
                times
            }
            Profile::Ramp { stages } => ramp(stages),
            Profile::Replay { file } => {
                return Err(ScheduleError::NeedsMore { name: format!("replay:{file}") });
            }
        };
        let max = LAB_REQUESTS_MAX as u64;
        if times.len() as u64 > max {
            return Err(ScheduleError::TooMany { wanted: times.len() as u64, max });
        }
        if times.is_empty() {
            return Err(ScheduleError::Empty);
        }
        let heavy = self.profile == Profile::HeavyTailed && self.rows_max > self.rows;
        let mut rows = || match heavy {
            true => {
                let scaled = f64::from(self.rows.max(1)) * uniform.pareto();
                (scaled as u64).min(u64::from(self.rows_max)) as u16
            }
            false => self.rows.max(1),
        };
        Ok(times.into_iter().map(|t| Arrival { at: Nanos(t as u64), rows: rows() }).collect())
    }
}

/// Sums of gaps, as far as they are before `end`.
fn until(end: f64, mut gap: impl FnMut() -> f64) -> Vec<f64> {
    let mut at = gap();
    let mut times = Vec::new();
    while at < end && times.len() <= LAB_REQUESTS_MAX {
        times.push(at);
        at += gap();
    }
    times
}

/// The instants at which the integral of the rate reaches 0, 1, 2 ...
fn ramp(stages: &[Stage]) -> Vec<f64> {
    let mut times = Vec::new();
    let (mut start, mut before, mut count) = (0.0f64, 0.0f64, 0.0f64);
    let mut next = 0.0f64;
    for s in stages {
        for (from, to, span) in
            [(before, s.rate_per_s, s.rise_s), (s.rate_per_s, s.rate_per_s, s.hold_s)]
        {
            let here = (from + to) / 2.0 * span;
            while next < count + here {
                // from t + slope t^2 / 2 = wanted
                let wanted = next - count;
                let slope = if span > 0.0 { (to - from) / span } else { 0.0 };
                let t = if slope.abs() < 1e-12 {
                    wanted / from
                } else {
                    let root = (from * from + 2.0 * slope * wanted).max(0.0).sqrt();
                    // The form that does not cancel: the least root that is not negative.
                    if from + root > 0.0 { 2.0 * wanted / (from + root) } else { 0.0 }
                };
                times.push((start + t) * 1e9);
                next += 1.0;
            }
            count += here;
            start += span;
        }
        before = s.rate_per_s;
    }
    times
}

/// Reads the stages of a ramp: `RATE/RISE_S/HOLD_S`, separated by commas.
///
/// # Errors
/// A sentence that says what would be right.
pub fn parse_stages(text: &str) -> Result<Vec<Stage>, String> {
    let wrong = || {
        format!("{text:?} are no stages; write RATE/RISE_S/HOLD_S,... such as 100/5/10,200/5/10")
    };
    text.split(',')
        .map(|stage| {
            let numbers: Vec<f64> = stage
                .split('/')
                .map(|n| n.parse().ok().filter(|n: &f64| n.is_finite()))
                .collect::<Option<_>>()
                .ok_or_else(wrong)?;
            match numbers[..] {
                [rate_per_s, rise_s, hold_s] => Ok(Stage { rate_per_s, rise_s, hold_s }),
                _ => Err(wrong()),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
