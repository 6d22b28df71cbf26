use super::*;

#[test]
fn buckets_cover_every_value_within_their_width() {
    let mut last = None;
    for ns in (0..5_000).chain((13..39).flat_map(|b| [(1u64 << b) - 1, 1 << b, (1 << b) + 1])) {
        let i = bucket_of(ns);
        assert!(bucket_top(i) >= ns, "{ns}");
        assert!(i == 0 || bucket_top(i - 1) < ns, "{ns}");
        assert!((bucket_top(i) - ns) as f64 <= ns as f64 * 0.032 + 1.0, "{ns}");
        assert!(last.is_none_or(|l| l <= i) || ns < 5_000);
        last = Some(i);
    }
    assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
}

#[test]
fn percentiles_of_a_known_set() {
    let (a, b) = (Histogram::default(), Histogram::default());
    for v in 1..=1000u64 {
        if v % 2 == 0 { a.record(Nanos(v * 1000)) } else { b.record(Nanos(v * 1000)) }
    }
    let s = summarise([&a, &b].into_iter());
    assert_eq!((s.count, s.max_ns, s.sum_ns), (1000, 1_000_000, 500_500_000));
    for (got, want) in [(s.p50_ns, 500e3), (s.p90_ns, 900e3), (s.p99_ns, 990e3), (s.p999_ns, 999e3)]
    {
        assert!((got as f64 - want).abs() <= want * 0.032, "{got} for {want}");
    }
}

#[test]
fn whoever_asks_after_its_answer_finds_it_counted() {
    let stats = WorkerStats::default();
    for n in 1..=100 {
        // The answer is given, and its worker is about to count it.
        stats.counting.store(1, Ordering::Relaxed);
        std::thread::scope(|s| {
            s.spawn(|| {
                LaneStats::bump(&stats.parks, 1);
                stats.counting.store(0, Ordering::Release);
            });
            while stats.counting.load(Ordering::Relaxed) != 0 {
                stats.settle();
            }
            stats.settle();
            assert_eq!(stats.parks.load(Ordering::Relaxed), n);
        });
    }
}

#[test]
fn a_worker_that_never_counts_is_not_waited_for_for_ever() {
    let stats = WorkerStats::default();
    stats.counting.store(1, Ordering::Relaxed);
    stats.settle();
    assert_eq!(stats.counting.load(Ordering::Relaxed), 1);
}
