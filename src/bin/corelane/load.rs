//! `corelane load`: load on a model, and what came of it.

use crate::args::LoadArgs;
use crate::bench_target::{self, Opened, failed};
use crate::exit::{Code, Exit, Outcome};
use crate::out::{out, outln};
use crate::tensors;
use corelane::lab::drive;
use corelane::lab::flame;
use corelane::lab::profile::SAMPLES_PER_S;
use corelane::lab::run::{
    Finding, KIND, Load, Point, Profiled, Repeat, Run, SCHEMA, Series, Severity, Sweep, figures,
    folder, report,
};
use corelane::lab::scenario::Scenario;
use corelane::lab::schedule::{Plan, Profile, parse_stages};
use corelane::lab::validity;
use corelane::lab::watch::Detail;
use corelane::sys::clock;
use std::collections::BTreeMap;
use std::path::Path;

/// `--rate`, where it is not given.
const RATE_PER_S_DEFAULT: f64 = 100.0;
/// `--duration`, where it is not given.
const DURATION_S_DEFAULT: f64 = 10.0;

fn duration(args: &LoadArgs) -> f64 {
    args.duration.unwrap_or(DURATION_S_DEFAULT)
}

/// A series to measure.
struct Wanted {
    name: String,
    load: Load,
    scenario: Option<Scenario>,
}

/// Runs the command.
pub fn run(args: &LoadArgs) -> Outcome {
    // What can be wrong without a server is found before one is asked.
    let mut profiles = profiles(&args.profile)?;
    let scenario = args
        .scenario
        .as_deref()
        .map(Scenario::from_name)
        .transpose()
        .map_err(|e| Exit::new(Code::Usage, e))?;
    if profiles.is_empty() {
        profiles.push(Profile::Poisson);
    }
    if args.concurrency.is_empty() && !matches!(scenario, Some(s) if s != Scenario::Server) {
        for profile in &profiles {
            if !matches!(profile, Profile::Replay { .. }) {
                let plan = plan(args, profile.clone(), args.rows);
                plan.schedule().map_err(|e| Exit::new(Code::Usage, e))?;
            }
        }
    } else if !(duration(args) > 0.0 && duration(args).is_finite()) {
        let text = format!("the duration is {}; it must be above 0", duration(args));
        return Err(Exit::new(Code::Usage, text));
    }
    let own = |p: &Profile| matches!(p, Profile::Ramp { .. } | Profile::Replay { .. });
    if profiles.iter().all(own) {
        let given = [("--rate", args.rate), ("--duration", args.duration)];
        if let Some((option, _)) = given.into_iter().find(|(_, given)| given.is_some()) {
            let text = format!(
                "{option} has no meaning here: profile {} says when each request is sent",
                profiles.iter().map(Profile::name).collect::<Vec<_>>().join(" and ")
            );
            return Err(Exit::new(Code::Usage, text));
        }
    }
    for dir in [&args.out, &args.against_out].into_iter().flatten() {
        folder::create(dir).map_err(|e| Exit::new(Code::Usage, e))?;
    }
    let mut sides = vec![bench_target::open(&args.target)?];
    if let Some(address) = &args.against {
        sides.push(bench_target::open_at(&args.target, address)?);
    }
    let wanted = wanted(args, &sides[0], &profiles, scenario)?;
    let mut runs: Vec<Run> = sides.iter().map(|side| empty_run(side, &args.label)).collect();
    if let Some(run) = runs.get_mut(1) {
        run.label.clone_from(&args.against_label);
    }
    let mut details: Vec<Vec<Vec<Detail>>> = vec![Vec::new(); sides.len()];
    let folders = [&args.out, &args.against_out];
    for wanted in &wanted {
        if !args.json {
            out!("{}", header(wanted));
        }
        let mut broken = false;
        for (k, (mut series, detail)) in interleaved(args, wanted, &sides)?.into_iter().enumerate()
        {
            series.scenario = wanted.scenario.map(|s| s.name().into());
            if let Some(us) = args.bound_us {
                drive::bound(&mut series, us * 1000);
            }
            if let (true, Some(dir)) = (args.flame_graph, folders[k]) {
                series.profile = Some(profile(args, wanted, &series, &sides[k], dir)?);
            }
            if !args.json {
                if sides.len() > 1 {
                    outln!("  {}", sides[k].bench.target.address);
                }
                out!("{}", tell(&series));
            }
            broken |= series.repeats.iter().any(|r| r.broken.is_some());
            runs[k].series.push(series);
            details[k].push(detail);
        }
        if broken {
            break;
        }
    }
    for ((run, details), dir) in runs.iter_mut().zip(&details).zip(folders) {
        finish(run);
        if let Some(dir) = dir {
            write(dir, run, details)?;
        }
        if args.json {
            outln!("{}", serde_json::to_string(run).map_err(|e| Exit::new(Code::Failure, e))?);
        } else {
            out!("{}", verdicts(run));
            if let Some(dir) = dir {
                outln!("written to {}", dir.display());
            }
        }
    }
    drop(sides);
    runs.iter().try_for_each(outcome)
}

/// Measures a series on one side, or on two in turns, each repeat in the other order, so that a
/// machine that changes meanwhile changes for both.
fn interleaved(
    args: &LoadArgs,
    wanted: &Wanted,
    sides: &[Opened],
) -> Result<Vec<(Series, Vec<Detail>)>, Exit> {
    let mut measured: Vec<(Vec<Repeat>, Vec<Detail>)> =
        sides.iter().map(|_| Default::default()).collect();
    for n in 0..usize::from(args.repeats) {
        for turn in 0..sides.len() {
            let k = if n % 2 == 0 { turn } else { sides.len() - 1 - turn };
            let side = &sides[k];
            let (repeat, detail) =
                side.bench.repeat(&wanted.load, n as u64, &side.how).map_err(|e| failed(&e))?;
            if !args.json {
                outln!("{}", line(n, &repeat));
            }
            measured[k].0.push(repeat);
            measured[k].1.push(detail);
        }
        if measured.iter().any(|(repeats, _)| repeats.iter().any(|r| r.broken.is_some())) {
            break;
        }
    }
    let series = |(repeats, details)| {
        (Series::new(wanted.name.clone(), wanted.load.clone(), repeats), details)
    };
    Ok(measured.into_iter().map(series).collect())
}

/// One more repeat under the profiler; its stacks go to the folder.
fn profile(
    args: &LoadArgs,
    wanted: &Wanted,
    series: &Series,
    side: &Opened,
    dir: &Path,
) -> Result<Profiled, Exit> {
    if let Some(why) = series.repeats.iter().find_map(|r| r.broken.as_ref()) {
        return Ok(Profiled::Absent { why: format!("the series broke off: {why}") });
    }
    let taken = side
        .bench
        .profile(&wanted.load, args.repeats.into(), &side.how, dir)
        .map_err(|e| failed(&e))?;
    Ok(match taken {
        Ok(stacks) => {
            folder::write(dir, &flame::file(&wanted.name), &stacks.text())
                .map_err(|e| Exit::new(Code::Failure, e))?;
            Profiled::Taken { samples: stacks.samples(), samples_per_s: SAMPLES_PER_S }
        }
        Err(error) => Profiled::Absent { why: error.to_string() },
    })
}

/// An invalid run ends with 1: its figures must not be used.
pub fn outcome(run: &Run) -> Outcome {
    match run.findings.iter().find(|f| f.severity == Severity::Invalid) {
        None => Ok(()),
        Some(finding) => {
            Err(Exit::new(Code::Failure, format_args!("the run is INVALID: {}", finding.text)))
        }
    }
}

/// Reads profiles as the command line spells them.
pub fn profiles(texts: &[String]) -> Result<Vec<Profile>, Exit> {
    let usage = |e: &dyn std::fmt::Display| Exit::new(Code::Usage, e);
    texts
        .iter()
        .map(|text| match text.split_once(':') {
            Some(("ramp", stages)) => {
                Ok(Profile::Ramp { stages: parse_stages(stages).map_err(|e| usage(&e))? })
            }
            Some(("replay", file)) if !file.is_empty() => Ok(Profile::Replay { file: file.into() }),
            Some(("bursty", times)) => {
                let parsed = times
                    .split_once('/')
                    .and_then(|(on, off)| Some((on.parse().ok()?, off.parse().ok()?)));
                let wrong = format!("{text:?} is no burst; write bursty:ON_MS/OFF_MS");
                let (on_ms, off_ms) = parsed.ok_or_else(|| usage(&wrong))?;
                Ok(Profile::Bursty { on_ms, off_ms })
            }
            Some((name, _)) => {
                Profile::from_name(name).map_err(|e| usage(&e))?;
                Err(usage(&format!("profile {name} takes nothing after its name")))
            }
            None => Profile::from_name(text).map_err(|e| usage(&e)),
        })
        .collect()
}

fn plan(args: &LoadArgs, profile: Profile, rows_max: u16) -> Plan {
    Plan {
        profile,
        rate_per_s: args.rate.unwrap_or(RATE_PER_S_DEFAULT),
        span_s: duration(args),
        seed: args.seed,
        rows: args.rows,
        rows_max,
    }
}

fn wanted(
    args: &LoadArgs,
    opened: &Opened,
    profiles: &[Profile],
    scenario: Option<Scenario>,
) -> Result<Vec<Wanted>, Exit> {
    let rows_max = args.rows_max.unwrap_or(opened.bench.rows_max);
    let closed = |concurrency: usize, rows: u16| Wanted {
        name: format!("closed-{concurrency}"),
        load: Load::Closed { concurrency, span_s: duration(args), rows },
        scenario,
    };
    if let Some(scenario) = scenario {
        let mut wanted = match scenario {
            Scenario::SingleStream => closed(1, args.rows),
            Scenario::MultiStream => closed(1, Scenario::MULTI_STREAM_ROWS),
            Scenario::Offline => closed(Scenario::OFFLINE_IN_FLIGHT, args.rows),
            Scenario::Server => {
                let load = Load::Open { plan: plan(args, Profile::Poisson, args.rows) };
                Wanted { name: String::new(), load, scenario: Some(scenario) }
            }
        };
        wanted.name = scenario.name().into();
        return Ok(vec![wanted]);
    }
    if !args.concurrency.is_empty() {
        let mut all: Vec<Wanted> = Vec::new();
        for concurrency in &args.concurrency {
            let wanted = closed(usize::from(*concurrency), args.rows);
            if all.iter().any(|w| w.name == wanted.name) {
                let text = format!("concurrency {concurrency} is named twice");
                return Err(Exit::new(Code::Usage, text));
            }
            all.push(wanted);
        }
        return Ok(all);
    }
    let mut all: Vec<Wanted> = Vec::new();
    for profile in profiles {
        let mut name = profile.name().to_string();
        let same = all.iter().filter(|w| w.name.starts_with(&name)).count();
        if same > 0 {
            name = format!("{name}-{}", same + 1);
        }
        let load = Load::Open { plan: plan(args, profile.clone(), rows_max) };
        all.push(Wanted { name, load, scenario: None });
    }
    Ok(all)
}

/// A run without series.
pub fn empty_run(opened: &Opened, label: &str) -> Run {
    Run {
        schema: SCHEMA,
        kind: KIND.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        label: label.into(),
        started_unix_s: clock::unix_seconds(),
        machine: opened.bench.machine().clone(),
        target: opened.bench.target.clone(),
        valid: true,
        findings: Vec::<Finding>::new(),
        metrics: BTreeMap::new(),
        series: Vec::new(),
        sweep: None,
    }
}

/// What follows from the series: flat metrics, the sweep's verdict, validity.
pub fn finish(run: &mut Run) {
    for series in &run.series {
        for (name, spread) in &series.summary {
            run.metrics.insert(format!("{}_{name}", series.name), spread.median);
        }
    }
    let points = run.series.iter().filter(|s| s.scenario.is_none()).filter_map(|s| {
        let Load::Closed { concurrency, .. } = s.load else { return None };
        let median = |name: &str| s.summary.get(name).map(|m| m.median);
        Some(Point {
            concurrency,
            throughput_per_s: median("throughput_per_s")?,
            p50_ns: median("latency_p50_us")? * 1e3,
            p99_ns: median("latency_p99_us")? * 1e3,
        })
    });
    run.sweep = Sweep::of(points.collect());
    validity::judge(run);
}

/// Writes the run's folder.
pub fn write(dir: &Path, run: &Run, details: &[Vec<Detail>]) -> Outcome {
    let failed = |e: &dyn std::fmt::Display| Exit::new(Code::Failure, e);
    let text = serde_json::to_string_pretty(run).map_err(|e| failed(&e))?;
    folder::write(dir, folder::METRICS, &text).map_err(|e| failed(&e))?;
    for (series, details) in run.series.iter().zip(details) {
        let all = details.iter().flat_map(|d| d.latencies.iter().copied());
        let text = folder::percentile_text(&folder::histogram(all));
        folder::write(dir, &format!("{}.hgrm", series.name), &text).map_err(|e| failed(&e))?;
    }
    let mut figures = figures::all(run, details);
    figures.extend(flame::of_run(run, dir));
    for figure in &figures {
        let text = figure.plotly.to_string();
        folder::write(dir, &figure.file(), &text).map_err(|e| failed(&e))?;
    }
    folder::write(dir, "report.html", &report::page(run, &figures)).map_err(|e| failed(&e))
}

fn us(us: f64) -> String {
    tensors::span((us * 1e3) as u64)
}

fn header(wanted: &Wanted) -> String {
    let loop_text = match &wanted.load {
        Load::Open { plan } => match plan.profile {
            Profile::Ramp { .. } | Profile::Replay { .. } => {
                "open loop; latency from the planned send".into()
            }
            _ => format!(
                "open loop, {} requests/s for {} s; latency from the planned send",
                plan.rate_per_s, plan.span_s
            ),
        },
        Load::Closed { concurrency, span_s, rows } => format!(
            "closed loop, {concurrency} in flight, {rows} rows each, {span_s} s; latency from the send"
        ),
    };
    format!(
        "{}: {loop_text}\n  {:<7}{:>10} {:>10} {:>10} {:>10} {:>10} {:>11} {:>9} {:>9}\n",
        wanted.name,
        "repeat",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "answered/s",
        "lag p99",
        "errors"
    )
}

fn line(n: usize, r: &Repeat) -> String {
    let span = tensors::span;
    let l = &r.latency;
    let errors: u64 = r.errors.values().sum::<u64>() + r.unanswered;
    format!(
        "  {:<7}{:>10} {:>10} {:>10} {:>10} {:>10} {:>11.1} {:>9} {errors:>9}",
        n + 1,
        span(l.p50_ns),
        span(l.p90_ns),
        span(l.p99_ns),
        span(l.p999_ns),
        span(l.max_ns),
        r.throughput_per_s,
        span(r.lag.p99_ns)
    )
}

/// A series over its repeats.
pub fn tell(series: &Series) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    for (name, s) in &series.summary {
        let value = |v: f64| if name.ends_with("_us") { us(v) } else { format!("{v:.2}") };
        let _ = writeln!(
            out,
            "  {name:<24} {:>10}  ({} to {} over {} repeats)",
            value(s.median),
            value(s.min),
            value(s.max),
            s.repeats
        );
    }
    if let Load::Open { .. } = series.load {
        let mut p: Vec<u64> = series.repeats.iter().map(|r| r.latency_from_send.p99_ns).collect();
        p.sort_unstable();
        let median = p.get(p.len() / 2).copied().unwrap_or(0);
        let _ = writeln!(
            out,
            "  {:<24} {:>10}  (beside it, not instead: from the actual send)",
            "p99 from the send",
            tensors::span(median)
        );
    }
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in series.repeats.iter().flat_map(|r| &r.errors) {
        *errors.entry(name).or_default() += count;
    }
    for (name, count) in errors {
        let _ = writeln!(out, "  {count} requests ended with {name}");
    }
    if let Some(scenario) = series.scenario.as_deref().and_then(|s| Scenario::from_name(s).ok())
        && let Some(figure) = series.summary.get(scenario.metric())
    {
        let _ = writeln!(
            out,
            "  {} is about {}: {:.2}",
            scenario.name(),
            scenario.metric(),
            figure.median
        );
    }
    match &series.profile {
        Some(Profiled::Taken { samples, .. }) => {
            let _ = writeln!(out, "  a flame graph of {samples} samples");
        }
        Some(Profiled::Absent { why }) => {
            let _ = writeln!(out, "  no flame graph: {why}");
        }
        None => {}
    }
    if let Some(bound) = series.bound {
        let held = if bound.held { "held" } else { "NOT held" };
        let _ =
            writeln!(out, "  the bound of {} at p99 is {held}", tensors::span(bound.p99_ns_max));
    }
    out
}

/// The sweep's verdict, and what speaks against the figures.
pub fn verdicts(run: &Run) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    if let Some(sweep) = &run.sweep {
        let _ =
            writeln!(out, "  {:>11} {:>12} {:>10} {:>10}", "in flight", "answered/s", "p50", "p99");
        for p in &sweep.points {
            let _ = writeln!(
                out,
                "  {:>11} {:>12.1} {:>10} {:>10}",
                p.concurrency,
                p.throughput_per_s,
                us(p.p50_ns / 1e3),
                us(p.p99_ns / 1e3)
            );
        }
        let _ = writeln!(
            out,
            "  slope of log p50 over log concurrency {:.2}: {}",
            sweep.slope, sweep.verdict
        );
    }
    for finding in &run.findings {
        let word = if finding.severity == Severity::Invalid { "INVALID" } else { "warning" };
        let _ = writeln!(out, "{word} [{}]: {}", finding.id, finding.text);
    }
    if run.findings.is_empty() {
        out.push_str("valid: nothing speaks against these figures\n");
    }
    out
}
