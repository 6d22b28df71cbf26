use super::*;
use crate::config::Config;
use std::path::Path;

fn settings(max_batch_size: usize, delay: u32, cores: &[u16], idle: IdleStrategy) -> Settings {
    let cores = cores.iter().map(|c| CoreId(*c)).collect();
    Settings { max_batch_size, max_queue_delay_us: delay, cores, idle }
}

/// A candidate whose measurements scatter by 1 % around these medians.
fn candidate(settings: Settings, p99_us: f64, cpu_us: f64, trials: usize) -> Candidate {
    let scatter = |k: usize| 1.0 + 0.01 * (k % 3) as f64 - 0.01;
    let trial = |k: usize| Trial {
        p99_us: p99_us * scatter(k),
        p50_us: p99_us / 2.0,
        cpu_us: cpu_us * scatter(k + 1),
        throughput_per_s: 100.0,
        why_not: None,
        valid: true,
    };
    Candidate { settings, trials: (0..trials).map(trial).collect() }
}

fn parked(batch: usize) -> Settings {
    settings(batch, 0, &[1], IdleStrategy::Park)
}

#[test]
fn without_batches_there_is_nothing_to_wait_for() {
    let space = Space {
        batches: vec![1, 8],
        delays_us: vec![0, 500],
        cores: vec![vec![CoreId(1)], vec![CoreId(0), CoreId(1)]],
        idles: vec![IdleStrategy::Park, IdleStrategy::SpinUs(Micros(200))],
    };
    let all = space.candidates();
    assert_eq!(all.len(), 4 + 8);
    assert!(all.iter().all(|s| s.max_batch_size > 1 || s.max_queue_delay_us == 0));
    assert_eq!(all[0].to_string(), "batch 1, delay 0 us, 1 worker, park");
    assert_eq!(all[11].to_string(), "batch 8, delay 500 us, 2 workers, spin=200");
}

#[test]
fn a_budget_is_kept_or_refused_with_what_it_would_take() {
    for (candidates, budget_s) in [(2, 10.0), (12, 60.0), (30, 120.0), (100, 600.0)] {
        let plan = Budget::plan(candidates, budget_s, None, 0.2).unwrap();
        assert!(plan.trials() as f64 * (plan.trial_s + 0.2) <= budget_s, "{plan:?}");
        assert!(plan.trial_s >= TRIAL_S_MIN && plan.finalists >= 2, "{plan:?}");
    }
    let asked = Budget::plan(4, 60.0, Some(1.5), 0.0).unwrap();
    assert_eq!((asked.trial_s, asked.finalists), (1.5, 4));
    let error = Budget::plan(30, 20.0, None, 0.2).unwrap_err();
    assert!(matches!(error, BudgetError::TooShort { needed_s, .. } if needed_s > 20.0));
    assert!(error.to_string().contains("the budget is 20 s: give a larger --budget-s"), "{error}");
    for found in [0, 1, CANDIDATES_MAX + 1] {
        let error = Budget::plan(found, 1e6, None, 0.0).unwrap_err();
        assert_eq!(error, BudgetError::Candidates { found });
    }
}

#[test]
fn the_frontier_is_what_nothing_beats_in_both() {
    let mut all = vec![
        candidate(parked(1), 1000.0, 100.0, 2),
        candidate(parked(2), 2000.0, 50.0, 2),
        // Beaten by the first in both.
        candidate(parked(3), 1500.0, 150.0, 2),
        // Beaten by the third too.
        candidate(parked(4), 1600.0, 160.0, 2),
    ];
    let mut failed = candidate(parked(5), 1.0, 1.0, 2);
    failed.trials.iter_mut().for_each(|t| t.why_not = Some("answers fall behind".into()));
    all.push(failed);
    assert_eq!(layers(&all), [Some(0), Some(0), Some(1), Some(2), None]);
    assert_eq!(finalists(&all, 3), [0, 1, 2]);
    assert_eq!(all[4].why_not(), Some("answers fall behind"));
    let figure = figure(&all, Some(1));
    let names: Vec<_> =
        figure.plotly["data"].as_array().unwrap().iter().map(|t| &t["name"]).collect();
    assert_eq!(names, ["frontier", "other settings", "chosen"]);
    assert_eq!(figure.plotly["data"][0]["x"].as_array().unwrap().len(), 2);
}

#[test]
fn the_choice_is_the_least_cpu_time_within_the_bound_or_within_noise_of_the_best() {
    let spins = |batch| settings(batch, 0, &[1], IdleStrategy::SpinUs(Micros(200)));
    let all = vec![
        // The lowest p99, and dear.
        candidate(spins(1), 1000.0, 300.0, REPEATS),
        // Within noise of it, and cheaper.
        candidate(parked(1), 1005.0, 100.0, REPEATS),
        // Cheaper still, and slower.
        candidate(parked(8), 3000.0, 60.0, REPEATS),
        // The cheapest of all, but measured too rarely to count.
        candidate(parked(4), 1000.0, 10.0, SCREENS),
    ];
    assert_eq!(choose(&all, None), Some(1));
    assert_eq!(choose(&all, Some(5000.0)), Some(2));
    assert_eq!(choose(&all, Some(1100.0)), Some(1));
    assert_eq!(choose(&all, Some(10.0)), None);
    assert_eq!(choose(&[], None), None);
    // CPU times within noise: the plainer settings.
    let alike = vec![
        candidate(settings(8, 500, &[0, 1], IdleStrategy::Adaptive), 1000.0, 100.0, REPEATS),
        candidate(settings(8, 0, &[1], IdleStrategy::Park), 1000.0, 100.5, REPEATS),
    ];
    assert_eq!(choose(&alike, None), Some(1));
    assert_eq!(Difference::of(&[1.0; 5], &[2.0; 5]), Difference::Less);
    assert_eq!(Difference::of(&[2.0; 5], &[1.0; 5]), Difference::More);
    assert_eq!(Difference::of(&[1.0; 4], &[2.0; 5]), Difference::Unknown);
    assert_eq!(Difference::of(&[1.0; 5], &[1.01; 5]), Difference::WithinNoise);
}

#[test]
fn the_file_keeps_what_the_base_says_and_reads_back_as_the_choice() {
    let base = "cache = 'cache'\n\
                [[model]]\npath = 'models/a'\nname = 'kept'\n\
                [runtime]\nboard = 'rpi5'\ndrain_timeout_ms = 77\n\
                [listen]\nunix = 's.sock'\ntcp = '127.0.0.1:0'\n";
    let chosen = settings(4, 250, &[1, 2], IdleStrategy::SpinUs(Micros(200)));
    let text = config_text(base, Path::new("/base"), &chosen, "two\nlines").unwrap();
    assert!(text.starts_with("# two\n# lines\n"), "{text}");
    let read = Config::parse("f", &text, Path::new("/elsewhere")).unwrap();
    assert_eq!(read.board, None);
    assert_eq!(read.drain_timeout.as_millis(), 77);
    let model = &read.models[0];
    assert_eq!((model.name.as_deref(), model.max_batch_size), (Some("kept"), Some(4)));
    assert_eq!(model.path, Path::new("/base/models/a"));
    assert_eq!(read.cache.as_deref(), Some(Path::new("/base/cache")));
    assert_eq!(read.listen.unix.as_deref(), Some(Path::new("/base/s.sock")));
    assert_eq!(read.listen.tcp.as_deref(), Some("127.0.0.1:0"));
    // The bare word is no path.
    let base = "[[model]]\npath = 'synthetic'\n";
    let text = config_text(base, Path::new("/base"), &chosen, "").unwrap();
    let read = Config::parse("f", &text, Path::new("/elsewhere")).unwrap();
    assert_eq!(read.models[0].path, Path::new("synthetic"));
    let error = config_text("x = 1\n", Path::new(""), &chosen, "").unwrap_err();
    assert!(error.to_string().contains("the base has no [[model]]"), "{error}");
    let beyond = Settings { max_batch_size: 1 << 20, ..chosen };
    let error = config_text(base, Path::new(""), &beyond, "").unwrap_err();
    assert!(error.to_string().contains("max_batch_size"), "{error}");
}
