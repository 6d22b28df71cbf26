//! `corelane tune`: settings for a given load.

use crate::args::TuneArgs;
use crate::bench_target::{self, failed};
use crate::exit::{Code, Exit, Outcome};
use crate::out::{out, outln};
use crate::progress::Progress;
use crate::{load, models, tensors};
use corelane::config::{Config, ModelEntry, Workers};
use corelane::lab::run::{Load, folder, report};
use corelane::lab::sample::Spread;
use corelane::lab::saturate::{Goal, judge};
use corelane::lab::schedule::{Plan, Profile};
use corelane::lab::synthetic;
use corelane::lab::tune::{self, Budget, Candidate, Difference, Settings, Space, Trial};
use corelane::limits::TEXT_FILE_BYTES_MAX;
use corelane::sys::{affinity, clock, files};
use corelane::units::{CoreId, Micros, Nanos};
use serde_json::json;
use std::path::Path;

/// How long requests are sent before each measurement, not counted.
const WARM_UP: Nanos = Nanos(100_000_000);
/// A bound that no latency reaches, where none is asked for.
const NO_BOUND_NS: u64 = u64::MAX / 2;

/// Runs the command.
pub fn run(args: &TuneArgs) -> Outcome {
    let usage = |e: &dyn std::fmt::Display| Exit::new(Code::Usage, e);
    // What can be wrong is found before anything is measured.
    writable(args)?;
    let profile = profile(args)?;
    let plan = |span_s: f64, seed: u64| Plan {
        profile: profile.clone(),
        rate_per_s: args.rate,
        span_s,
        seed,
        rows: args.rows,
        rows_max: args.rows,
    };
    plan(args.duration.unwrap_or(1.0), 1).schedule().map_err(|e| usage(&e))?;
    if !(args.budget_s > 0.0 && args.budget_s.is_finite()) {
        return Err(usage(&format_args!("the budget is {} s; it must be above 0", args.budget_s)));
    }
    let base = base(args)?;
    let space = space(args, &base.config.models[0])?;
    let candidates = space.candidates();
    let start = clock::now();
    // The first build tells what a measurement costs besides, and whether all of it works.
    let probe = candidates.last().ok_or_else(|| usage(&"no settings to try"))?;
    let built = clock::now();
    drop(open(&base.config, probe)?);
    let beside_s = clock::now().since(built).0 as f64 / 1e9 + WARM_UP.0 as f64 / 1e9 + 0.1;
    let spent_s = clock::now().since(start).0 as f64 / 1e9;
    let budget = Budget::plan(candidates.len(), args.budget_s - spent_s, args.duration, beside_s)
        .map_err(|e| usage(&e))?;
    let mut candidates: Vec<Candidate> = candidates.into_iter().map(Candidate::new).collect();
    if !args.json {
        outln!(
            "{} settings under {} {} requests/s: {} measurements of {:.1} s, about {:.0} s in all",
            candidates.len(),
            args.rate,
            profile.name(),
            budget.trials(),
            budget.trial_s,
            budget.trials() as f64 * (budget.trial_s + budget.beside_s)
        );
    }
    let mut progress = Progress::new(budget.trials());
    let end = start.after(Nanos((args.budget_s * 1e9) as u64));
    let mut round =
        |candidates: &mut [Candidate], which: &[usize], n: usize| -> Result<bool, Exit> {
            for turn in 0..which.len() {
                if clock::now() > end {
                    return Ok(false);
                }
                let k = which[if n.is_multiple_of(2) { turn } else { which.len() - 1 - turn }];
                progress.tell(&candidates[k].settings.to_string());
                let load = Load::Open { plan: plan(budget.trial_s, args.seed + n as u64) };
                let trial = measure(&base.config, &candidates[k].settings, &load, args)?;
                candidates[k].trials.push(trial);
                progress.step();
            }
            Ok(true)
        };
    let everyone: Vec<usize> = (0..candidates.len()).collect();
    let mut in_time = true;
    for n in 0..tune::SCREENS {
        in_time = in_time && round(&mut candidates, &everyone, n)?;
    }
    let finalists = tune::finalists(&candidates, budget.finalists);
    for n in tune::SCREENS..tune::REPEATS {
        in_time = in_time && round(&mut candidates, &finalists, n)?;
    }
    drop(progress);
    if !in_time {
        let text = format!(
            "the budget of {} s ran out: measurements took longer than the first one; give a larger \
             --budget-s or fewer values",
            args.budget_s
        );
        return Err(Exit::new(Code::Failure, text));
    }
    let chosen = tune::choose(&candidates, args.bound_us.map(|us| us as f64));
    write_report(args, &candidates, chosen)?;
    if args.json {
        outln!("{}", told(&candidates, chosen));
    } else {
        out!("{}", table(&candidates, &finalists, chosen));
    }
    let unmeasured: Vec<&Candidate> = candidates.iter().filter(|c| c.unmeasured()).collect();
    if unmeasured.len() * 2 > candidates.len() {
        let text = format!(
            "{} of {} settings could not be measured, so that a choice among the others would be \
             luck, and none is written: {}",
            unmeasured.len(),
            candidates.len(),
            unmeasured[0].why_not().unwrap_or("no figures")
        );
        return Err(Exit::new(Code::Failure, text));
    }
    let Some(chosen) = chosen else {
        let why = candidates.iter().find_map(Candidate::why_not);
        let text = match (args.bound_us, why) {
            (_, Some(why)) if finalists.is_empty() => {
                format!("no settings held the load: {why}; give a lower --rate")
            }
            (Some(bound), _) => format!("no settings held the load with p99 within {bound} us"),
            (None, why) => format!("no settings held the load: {}", why.unwrap_or("no figures")),
        };
        return Err(Exit::new(Code::Failure, text));
    };
    write_config(args, &base, &candidates[chosen].settings)
}

/// A bad place for the file is found before the minutes are spent.
fn writable(args: &TuneArgs) -> Outcome {
    let usage = |text: String| Err(Exit::new(Code::Usage, text));
    if args.out.exists() && !args.force {
        return usage(format!(
            "{} is there already; --force overwrites it, --out FILE names another",
            args.out.display()
        ));
    }
    let dir = args.out.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !dir.is_dir() {
        return usage(format!("{} is no directory to write to", dir.display()));
    }
    if let Some(dir) = &args.report {
        std::fs::create_dir_all(dir)
            .map_err(|e| Exit::new(Code::Usage, format_args!("{}: {e}", dir.display())))?;
    }
    Ok(())
}

fn profile(args: &TuneArgs) -> Result<Profile, Exit> {
    let profile = load::profiles(std::slice::from_ref(&args.profile))?.remove(0);
    if matches!(profile, Profile::Ramp { .. } | Profile::Replay { .. }) {
        let text = "tune takes profiles with a rate: steady, poisson, bursty, heavy-tailed";
        return Err(Exit::new(Code::Usage, text));
    }
    Ok(profile)
}

/// What the tuned configuration is made from.
struct Base {
    config: Config,
    text: String,
    /// Where its relative paths count from.
    dir: std::path::PathBuf,
}

fn base(args: &TuneArgs) -> Result<Base, Exit> {
    let failed = |e: std::io::Error| Exit::new(Code::Usage, e);
    match (&args.config, &args.model) {
        (Some(path), _) => {
            let config = Config::read(path).map_err(|e| Exit::new(Code::Config, e))?;
            if config.models.len() != 1 {
                let text = format!(
                    "{} has {} models; one is tuned at a time: give --model, or a configuration of one",
                    path.display(),
                    config.models.len()
                );
                return Err(Exit::new(Code::Usage, text));
            }
            let text = files::read_text(path, TEXT_FILE_BYTES_MAX).map_err(failed)?;
            let dir = std::path::absolute(path).map_err(failed)?;
            let dir = dir.parent().map(Path::to_path_buf).unwrap_or_default();
            Ok(Base { config, text, dir })
        }
        (None, model) => {
            let path = model.clone().unwrap_or_default();
            let config = Config { models: vec![ModelEntry::new(&path)], ..Config::default() };
            // Beside the current directory's file its paths do; elsewhere the model's is made whole.
            let here = std::env::current_dir().map_err(failed)?;
            let out = std::path::absolute(&args.out).map_err(failed)?;
            let dir = out.parent().map(Path::to_path_buf).unwrap_or_default();
            let path = match dir == here || path == Path::new(synthetic::NAME) {
                true => path,
                false => std::path::absolute(&path).map_err(failed)?,
            };
            let path = toml::Value::String(path.display().to_string());
            let text = format!("[[model]]\npath = {path}\n[listen]\nunix = \"corelane.sock\"\n");
            Ok(Base { config, text, dir })
        }
    }
}

/// The values to try: those asked for, else some that make sense for the model.
fn space(args: &TuneArgs, entry: &ModelEntry) -> Result<Space, Exit> {
    let usage = |text: String| Exit::new(Code::Usage, text);
    let mut manifest = models::manifest(&entry.path)?;
    entry.apply(&mut manifest).map_err(|e| Exit::new(Code::Config, e))?;
    let sizes = &manifest.batch_sizes;
    let largest = manifest.max_batch_size;
    let mut batches: Vec<usize> = args.batch.iter().map(|n| usize::from(*n)).collect();
    if let Some(wrong) = batches.iter().find(|n| !sizes.contains(n)) {
        return Err(usage(format!("--batch {wrong}: the model has {sizes:?}")));
    }
    if batches.is_empty() {
        batches = vec![1, sizes[sizes.len() / 2], largest];
    }
    if let Some(few) = batches.iter().find(|n| **n < usize::from(args.rows)) {
        if !args.batch.is_empty() {
            return Err(usage(format!("--batch {few}: requests have {} rows", args.rows)));
        }
        batches.retain(|n| *n >= usize::from(args.rows));
    }
    batches.sort_unstable();
    batches.dedup();
    let allowed = affinity::allowed().map_err(|e| Exit::new(Code::Config, e))?;
    let cores = args.cores.as_ref().map_or_else(|| allowed.clone(), |list| list.0.clone());
    if let Some(stranger) = cores.iter().find(|c| !allowed.contains(c)) {
        let have = affinity::core_list(&allowed);
        let text = format!("--cores {stranger}: the scheduler allows this process only {have}");
        return Err(Exit::new(Code::Config, text));
    }
    let mut counts: Vec<usize> = args.workers.iter().map(|n| usize::from(*n)).collect();
    if let Some(many) = counts.iter().find(|n| **n > cores.len()) {
        return Err(usage(format!("--workers {many}: there are {} cores for them", cores.len())));
    }
    if counts.is_empty() {
        counts = vec![1, cores.len()];
    }
    counts.sort_unstable();
    counts.dedup();
    let last = |n: usize| -> Vec<CoreId> { cores[cores.len() - n..].to_vec() };
    let max = corelane::limits::QUEUE_DELAY_US_MAX;
    if let Some(long) = args.delay_us.iter().find(|us| **us > max) {
        return Err(usage(format!("--delay-us {long}: at most {max}")));
    }
    Ok(Space {
        batches,
        delays_us: args.delay_us.clone(),
        cores: counts.into_iter().map(last).collect(),
        idles: args.idle.clone(),
    })
}

fn open(config: &Config, settings: &Settings) -> Result<bench_target::Opened, Exit> {
    let mut config = config.clone();
    config.board = None;
    config.workers = Workers::Cores(settings.cores.clone());
    config.idle = settings.idle;
    config.models[0].max_batch_size = Some(settings.max_batch_size);
    config.models[0].max_queue_delay = Some(Micros(settings.max_queue_delay_us));
    bench_target::in_process(&config, WARM_UP)
}

fn measure(
    config: &Config,
    settings: &Settings,
    load: &Load,
    args: &TuneArgs,
) -> Result<Trial, Exit> {
    let opened = open(config, settings)?;
    let (repeat, detail) = opened.bench.repeat(load, 0, &opened.how).map_err(|e| failed(&e))?;
    let goal = Goal { percentile: "p99", bound_ns: NO_BOUND_NS };
    let probe = judge(goal, args.rate, &repeat, &detail);
    let us = |ns: u64| ns as f64 / 1e3;
    let why_not = match (probe.why, repeat.cpu_us_per_request) {
        (Some(why), _) => Some(why),
        (None, None) => Some("the process's CPU time can't be read".into()),
        (None, Some(_)) => None,
    };
    Ok(Trial {
        p99_us: us(repeat.latency.p99_ns),
        p50_us: us(repeat.latency.p50_ns),
        cpu_us: repeat.cpu_us_per_request.unwrap_or(0.0),
        throughput_per_s: repeat.throughput_per_s,
        why_not,
        valid: probe.valid,
    })
}

/// Every candidate, nearest to the frontier first.
fn table(candidates: &[Candidate], finalists: &[usize], chosen: Option<usize>) -> String {
    use std::fmt::Write;
    let layers = tune::layers(candidates);
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|k| {
        (Some(*k) != chosen, !finalists.contains(k), layers[*k].unwrap_or(usize::MAX))
    });
    let mut out = format!(
        "  {:<44} {:>10} {:>22} {:>10} {:>22}\n",
        "settings", "p99", "(least to largest)", "CPU/req", "against the choice"
    );
    for k in order {
        let candidate = &candidates[k];
        if let Some(why) = candidate.why_not() {
            let what =
                if candidate.unmeasured() { "not measured" } else { "does not hold the load" };
            let _ = writeln!(out, "  {:<44} {what}: {why}", candidate.settings);
            continue;
        }
        let (p99, cpu) = (Spread::of(&candidate.p99_us()), Spread::of(&candidate.cpu_us()));
        let us = |us: f64| tensors::span((us * 1e3) as u64);
        let mark = match (chosen, layers[k]) {
            (Some(chosen), _) if chosen == k => "chosen",
            (_, Some(0)) => "frontier, ",
            _ => "",
        };
        let against = match chosen {
            Some(chosen) if chosen != k => {
                let other = &candidates[chosen];
                format!(
                    "p99 {}, CPU {}",
                    Difference::of(&candidate.p99_us(), &other.p99_us()).name(),
                    Difference::of(&candidate.cpu_us(), &other.cpu_us()).name()
                )
            }
            _ => String::new(),
        };
        let _ = writeln!(
            out,
            "  {:<44} {:>10} {:>22} {:>10}   {mark}{against}",
            candidate.settings.to_string(),
            us(p99.median),
            format!("({} to {})", us(p99.min), us(p99.max)),
            us(cpu.median)
        );
    }
    out
}

fn told(candidates: &[Candidate], chosen: Option<usize>) -> serde_json::Value {
    let layers = tune::layers(candidates);
    let all: Vec<_> = candidates
        .iter()
        .enumerate()
        .map(|(k, c)| {
            let against = chosen.map(|chosen| {
                let other = &candidates[chosen];
                json!({
                    "p99": Difference::of(&c.p99_us(), &other.p99_us()),
                    "cpu": Difference::of(&c.cpu_us(), &other.cpu_us()),
                })
            });
            json!({
                "settings": c.settings, "trials": c.trials, "held": c.held(), "why_not": c.why_not(),
                "frontier": layers[k] == Some(0), "chosen": Some(k) == chosen,
                "against_choice": against,
            })
        })
        .collect();
    json!({"schema": tune::SCHEMA, "kind": "corelane-tune", "candidates": all})
}

fn write_report(args: &TuneArgs, candidates: &[Candidate], chosen: Option<usize>) -> Outcome {
    let Some(dir) = &args.report else { return Ok(()) };
    let failed = |e| Exit::new(Code::Failure, e);
    let figure = tune::figure(candidates, chosen);
    folder::write(dir, "tune.json", &told(candidates, chosen).to_string()).map_err(failed)?;
    folder::write(dir, &figure.file(), &figure.plotly.to_string()).map_err(failed)?;
    let title = format!("tuned for {} requests/s", args.rate);
    let shown =
        json!({"series": "", "name": figure.name, "says": figure.says, "plotly": figure.plotly});
    let data = json!({"history": {"title": title}, "figures": [shown]});
    folder::write(dir, "report.html", &report::document(&title, &data)).map_err(failed)
}

fn write_config(args: &TuneArgs, base: &Base, chosen: &Settings) -> Outcome {
    let failed = |e: &dyn std::fmt::Display| Exit::new(Code::Failure, e);
    let out = std::path::absolute(&args.out).map_err(|e| failed(&e))?;
    // Beside the base its own paths do; elsewhere they are made whole.
    let dir = match out.parent() == Some(&base.dir) {
        true => Path::new(""),
        false => &base.dir,
    };
    let about = format!(
        "Written by corelane tune for {} {} requests/s of {} rows.",
        args.rate, args.profile, args.rows
    );
    let text = tune::config_text(&base.text, dir, chosen, &about).map_err(|e| failed(&e))?;
    let at = |e: std::io::Error| failed(&format_args!("{}: {e}", args.out.display()));
    let mut options = std::fs::OpenOptions::new();
    options.write(true);
    if args.force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let mut file = options.open(&args.out).map_err(at)?;
    std::io::Write::write_all(&mut file, text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(at)?;
    if !args.json {
        outln!("chosen: {chosen}; written to {}", args.out.display());
    }
    Ok(())
}
