//! `corelane saturate`: the highest rate within a latency bound.

use crate::args::SaturateArgs;
use crate::bench_target::{self, failed};
use crate::exit::{Code, Exit, Outcome};
use crate::out::outln;
use crate::{load, tensors};
use corelane::lab::run::analysis::PERCENTILES;
use corelane::lab::run::{Load, Repeat};
use corelane::lab::saturate::{Goal, Probe, judge, search};
use corelane::lab::schedule::{Plan, Profile};
use corelane::limits::LAB_REQUESTS_PER_S_MAX;
use serde::Serialize;

/// In flight while the first guess is made.
const GUESS_IN_FLIGHT: usize = 16;

/// The rates told at the end: the saturation point, and 10 and 20 % below it.
const MARGINS_PERCENT: [f64; 3] = [0.0, 10.0, 20.0];

#[derive(Serialize)]
struct Told<'a> {
    schema: u32,
    saturation: &'a corelane::lab::saturate::Saturation,
    margins: &'a [Margin],
}

#[derive(Serialize)]
struct Margin {
    margin_percent: f64,
    rate_per_s: f64,
    repeat: Repeat,
}

/// Runs the command.
pub fn run(args: &SaturateArgs) -> Outcome {
    let profiles = load::profiles(std::slice::from_ref(&args.profile))?;
    let profile = profiles.into_iter().next().unwrap_or(Profile::Poisson);
    if matches!(profile, Profile::Ramp { .. } | Profile::Replay { .. }) {
        let text = "saturate takes profiles with a rate: steady, poisson, bursty, heavy-tailed";
        return Err(Exit::new(Code::Usage, text));
    }
    let names = PERCENTILES.map(|(name, _)| name);
    let Some(percentile) = names.into_iter().find(|n| *n == args.percentile) else {
        let text = format!("{:?} is no percentile; choose {}", args.percentile, names.join(", "));
        return Err(Exit::new(Code::Usage, text));
    };
    let goal = Goal { percentile, bound_ns: args.bound_us * 1000 };
    let plan = |rate_per_s: f64| Plan {
        profile: profile.clone(),
        rate_per_s,
        span_s: args.duration,
        seed: args.seed,
        rows: args.rows,
        rows_max: args.rows,
    };
    // A first rate that is none is found here, too.
    plan(args.from.unwrap_or(1000.0)).schedule().map_err(|e| Exit::new(Code::Usage, e))?;
    let opened = bench_target::open(&args.target)?;
    let first = match args.from {
        Some(rate) => rate,
        None => {
            let closed =
                Load::Closed { concurrency: GUESS_IN_FLIGHT, span_s: 0.5, rows: args.rows };
            let (repeat, _) =
                opened.bench.repeat(&closed, 0, &opened.how).map_err(|e| failed(&e))?;
            // Half of what a closed loop reaches most likely holds.
            (repeat.throughput_per_s / 2.0).max(1.0)
        }
    };
    let tell = |probe: &Probe| {
        if !args.json {
            outln!(
                "  {:>11.1} requests/s: {percentile} {:>9}, {:>11.1} answered/s, {}",
                probe.rate_per_s,
                tensors::span(probe.latency_ns),
                probe.throughput_per_s,
                probe.why.as_deref().map_or("holds".into(), |w| format!("does not hold: {w}"))
            );
        }
    };
    if !args.json {
        outln!(
            "the highest rate of {} arrivals with {percentile} within {}, {} s a probe",
            profile.name(),
            tensors::span(goal.bound_ns),
            args.duration
        );
    }
    let measure = |rate: f64| {
        let load = Load::Open { plan: plan(rate) };
        let (repeat, detail) =
            opened.bench.repeat(&load, 0, &opened.how).map_err(|e| failed(&e))?;
        let probe = judge(goal, rate, &repeat, &detail);
        Ok::<_, Exit>((probe, repeat))
    };
    let found = search(goal, first, f64::from(LAB_REQUESTS_PER_S_MAX), |rate| {
        let (mut probe, _) = measure(rate)?;
        // One bad probe of a rate is noise as likely as the truth: two of three decide.
        if !probe.held && probe.valid {
            let (second, _) = measure(rate)?;
            if second.held {
                probe = measure(rate)?.0;
            }
        }
        tell(&probe);
        Ok::<_, Exit>(probe)
    })?;
    let mut margins = Vec::new();
    if let Some(rate) = found.rate_per_s {
        for margin_percent in MARGINS_PERCENT {
            let rate_per_s = rate * (1.0 - margin_percent / 100.0);
            let (_, repeat) = measure(rate_per_s)?;
            margins.push(Margin { margin_percent, rate_per_s, repeat });
        }
    }
    if args.json {
        let told = Told { schema: 1, saturation: &found, margins: &margins };
        outln!("{}", serde_json::to_string(&told).map_err(|e| Exit::new(Code::Failure, e))?);
    } else {
        for m in &margins {
            let l = &m.repeat.latency;
            outln!(
                "{:<28} {:>11.1} requests/s: p50 {}, p99 {}, p99.9 {}, max {}",
                match m.margin_percent {
                    0.0 => "saturation point".to_string(),
                    margin => format!("with a margin of {margin} %"),
                },
                m.rate_per_s,
                tensors::span(l.p50_ns),
                tensors::span(l.p99_ns),
                tensors::span(l.p999_ns),
                tensors::span(l.max_ns)
            );
        }
    }
    drop(opened.runtime);
    match (found.rate_per_s, found.ended_early) {
        (Some(_), None) => Ok(()),
        (_, Some(why)) => {
            Err(Exit::new(Code::Failure, format_args!("the search ended early: {why}")))
        }
        (None, None) => Err(Exit::new(Code::Failure, "no rate holds the bound")),
    }
}
