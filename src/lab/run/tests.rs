use super::folder::{self, FolderError};
use super::*;
use crate::lab::load::simulated::{Server, SimPort};
use crate::lab::load::{self, Record};
use crate::lab::schedule::{Plan, Profile};
use crate::limits::RUN_FILE_BYTES_MAX;
use crate::units::Nanos;

/// A run of one series against a simulated server.
pub(crate) fn simulated(
    server: &Server,
    rate_per_s: f64,
    span_s: f64,
    repeats: u64,
    seed: u64,
) -> Run {
    let plan =
        Plan { profile: Profile::Poisson, rate_per_s, span_s, seed: 1, rows: 1, rows_max: 1 };
    run_of(vec![series(server, "poisson".into(), &plan, repeats, seed)])
}

/// A series against a simulated server.
pub(crate) fn series(
    server: &Server,
    name: String,
    plan: &Plan,
    repeats: u64,
    seed: u64,
) -> Series {
    let repeat = |n| {
        // As the lab does it: each repeat has arrivals of its own, the same for both sides.
        let schedule = Plan { seed: plan.seed + n, ..plan.clone() }.schedule().unwrap();
        let mut records = vec![Record::default(); schedule.len()];
        let mut port = SimPort::new(server.clone(), seed * 1000 + n);
        let ran = load::open_loop(&mut port, &schedule, &mut records, Nanos(5_000_000_000));
        analysis::repeat(&records, &ran)
    };
    Series::new(name, Load::Open { plan: plan.clone() }, (0..repeats).map(repeat).collect())
}

pub(crate) fn run_of(series: Vec<Series>) -> Run {
    Run {
        schema: SCHEMA,
        kind: KIND.into(),
        version: "0".into(),
        label: "test".into(),
        started_unix_s: 0,
        machine: Machine::default(),
        target: Target {
            address: "simulated".into(),
            model: "m".into(),
            signature: "x uint8 (4,)".into(),
            engine: None,
            server_version: None,
            worker_cores: vec![Some(1)],
            generator_core: Some(0),
        },
        valid: true,
        findings: Vec::new(),
        metrics: BTreeMap::new(),
        series,
        sweep: None,
    }
}

struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("corelane-run-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn percentiles_are_exact_by_nearest_rank() {
    let mut values: Vec<u64> = (1..=1000).rev().collect();
    let p = Percentiles::of(&mut values);
    assert_eq!((p.min_ns, p.p50_ns, p.p90_ns, p.p95_ns), (1, 500, 900, 950));
    assert_eq!((p.p99_ns, p.p999_ns, p.max_ns, p.mean_ns, p.count), (990, 999, 1000, 500, 1000));
    assert_eq!(p.too_few(), ["p999"]);
    assert_eq!(Percentiles::of(&mut []), Percentiles::default());
    assert_eq!(Percentiles::of(&mut [7]).p999_ns, 7);
}

#[test]
fn what_is_far_too_large_for_a_run_is_not_read() {
    let scratch = Scratch::new("large");
    std::fs::create_dir_all(&scratch.0).unwrap();
    let metrics = std::fs::File::create(scratch.0.join(folder::METRICS)).unwrap();
    metrics.set_len(RUN_FILE_BYTES_MAX + 1).unwrap();
    let error = folder::read(&scratch.0).unwrap_err().to_string();
    assert!(error.contains(&format!("at most {RUN_FILE_BYTES_MAX} are read")), "{error}");
}

#[test]
fn a_run_survives_its_folder() {
    let scratch = Scratch::new("folder");
    let run = simulated(&Server { jitter: 0.1, ..Server::default() }, 300.0, 2.0, 3, 1);
    folder::create(&scratch.0).unwrap();
    folder::write(&scratch.0, folder::METRICS, &serde_json::to_string_pretty(&run).unwrap())
        .unwrap();
    assert_eq!(folder::read(&scratch.0).unwrap(), run);
    assert_eq!(folder::read(&scratch.0.join(folder::METRICS)).unwrap(), run);
    // A second run does not overwrite the first.
    let error = folder::create(&scratch.0).unwrap_err().to_string();
    assert!(error.contains("holds a run already"), "{error}");
}

#[test]
fn what_is_no_run_is_refused() {
    let scratch = Scratch::new("no-run");
    let read = |text: &str| {
        std::fs::create_dir_all(&scratch.0).unwrap();
        std::fs::write(scratch.0.join(folder::METRICS), text).unwrap();
        folder::read(&scratch.0).unwrap_err()
    };
    std::fs::create_dir_all(&scratch.0).unwrap();
    let error = folder::read(&scratch.0).unwrap_err();
    assert!(matches!(error, FolderError::NotARun { .. }), "{error}");
    for text in [
        "",
        "{",
        "[]",
        "{\"kind\":\"other\"}",
        "{\"kind\":\"corelane-run\"}",
        "{\"kind\":\"corelane-run\",\"schema\":1}",
    ] {
        let error = read(text);
        assert!(matches!(error, FolderError::NotARun { .. }), "{text}: {error}");
    }
    let error = read("{\"kind\":\"corelane-run\",\"schema\":2}");
    assert!(matches!(error, FolderError::Schema { found: 2, .. }), "{error}");
}

#[test]
fn a_full_disk_is_an_error_with_the_path() {
    // The kernel's own full device.
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    let error = folder::write(std::path::Path::new("/dev"), "full", "x").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/dev/full") && text.contains("No space left"), "{text}");
    assert!(std::path::Path::new("/dev/full").exists());
}

#[test]
fn the_percentile_text_ends_at_the_largest_value() {
    let text = folder::percentile_text(&folder::histogram((1..=10_000).map(|n| n * 1000)));
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip(2)
        .take_while(|l| !l.starts_with('#'))
        .map(|l| l.split_whitespace().collect())
        .collect();
    let last = rows.last().unwrap();
    assert_eq!((last[1], last[2], last[3]), ("1.000000000000", "10000", "inf"));
    let value: f64 = last[0].parse().unwrap();
    assert!((value / 10_000.0 - 1.0).abs() < 0.001, "{value}");
    assert!(rows.windows(2).all(|w| w[0][2].parse::<u64>().unwrap() <= w[1][2].parse().unwrap()));
    assert!(text.contains("#[Mean    ="), "{text}");
}

fn sweep(points: &[(usize, f64, f64)]) -> Sweep {
    let points = points.iter().map(|&(concurrency, throughput_per_s, p50_ns)| Point {
        concurrency,
        throughput_per_s,
        p50_ns,
        p99_ns: p50_ns,
    });
    Sweep::of(points.collect()).unwrap()
}

#[test]
fn a_sweep_is_told_in_words() {
    let serial = sweep(&[(1, 100.0, 10.0), (2, 101.0, 20.0), (4, 99.0, 40.0), (8, 100.0, 80.0)]);
    assert!((serial.slope - 1.0).abs() < 0.01, "{}", serial.slope);
    assert!(serial.verdict.starts_with("serialises"), "{}", serial.verdict);
    let four = sweep(&[(1, 100.0, 10.0), (2, 200.0, 10.0), (4, 400.0, 10.0), (8, 401.0, 20.0)]);
    assert!(four.verdict.starts_with("saturated at 4"), "{}", four.verdict);
    let free = sweep(&[(1, 100.0, 10.0), (2, 200.0, 10.0), (4, 400.0, 10.0)]);
    assert!(free.slope.abs() < 0.01 && free.verdict.starts_with("scales"), "{}", free.verdict);
    assert!(Sweep::of(vec![]).is_none());
    assert!(Sweep::of(four.points[..1].to_vec()).is_none());
}
