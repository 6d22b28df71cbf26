use super::*;

fn costs(list: &[(u32, u64)]) -> Vec<SizeCost> {
    list.iter().map(|&(size, us)| SizeCost { size, time: Nanos(us * 1_000) }).collect()
}

fn settings(delay_us: u32, preferred: &[u32]) -> BatchSettings {
    BatchSettings {
        max_batch_size: 8,
        preferred_batch_size: preferred.iter().copied().collect(),
        max_queue_delay: Micros(delay_us),
    }
}

fn waiting(rows: u32, oldest_us: u64, deadline_us: Option<u64>) -> Waiting {
    Waiting {
        rows,
        oldest_at: Nanos(oldest_us * 1_000),
        earliest_deadline: Nanos(deadline_us.map_or(u64::MAX, |d| d * 1_000)),
    }
}

/// Batching pays: 8 rows cost 2 x one row.
const PAYS: &[(u32, u64)] = &[(1, 100), (2, 120), (4, 150), (8, 200)];
/// Batching loses: a row in a batch of 8 costs 2 x what it costs alone.
const LOSES: &[(u32, u64)] = &[(1, 100), (2, 300), (4, 700), (8, 1_600)];

#[test]
fn the_batch_grows_only_where_it_pays() {
    assert_eq!(best_rows(20, 8, &costs(PAYS)), 8);
    assert_eq!(best_rows(3, 8, &costs(PAYS)), 3);
    assert_eq!(best_rows(20, 8, &costs(LOSES)), 1);
    assert_eq!(best_rows(1, 8, &costs(LOSES)), 1);
    assert_eq!(best_rows(20, 4, &costs(PAYS)), 4);
}

#[test]
fn a_gain_within_the_noise_is_no_gain() {
    let flat = costs(&[(1, 100), (2, 196), (4, 390)]);
    assert_eq!(best_rows(4, 4, &flat), 1);
    let gain = costs(&[(1, 100), (2, 180), (4, 340)]);
    assert_eq!(best_rows(4, 4, &gain), 4);
}

#[test]
fn padding_is_paid_for() {
    // 5 rows padded to 8 cost 200 us, 40 a row; 4 rows cost 150, 37.5 a row.
    assert_eq!(best_rows(5, 8, &costs(PAYS)), 4);
    // 6 rows at 200 us are 33 a row.
    assert_eq!(best_rows(6, 8, &costs(PAYS)), 6);
}

#[test]
fn an_unmeasured_size_gets_measured() {
    assert_eq!(best_rows(8, 8, &costs(&[(1, 100), (8, 0)])), 8);
    assert_eq!(best_rows(8, 8, &costs(&[(1, 0), (8, 0)])), 8);
}

#[test]
fn reasons() {
    let pays = costs(PAYS);
    let d = |s: &BatchSettings, w, drain, now_us: u64| {
        decide(s, w, &pays, drain, Nanos(now_us * 1_000))
    };
    let at_once = settings(0, &[]);
    let delayed = settings(500, &[4]);
    assert_eq!(d(&at_once, waiting(0, 0, None), false, 10), Decision::Nothing);
    assert_eq!(
        d(&at_once, waiting(3, 0, None), false, 10),
        Decision::Close { rows: 3, reason: CloseReason::Idle }
    );
    assert_eq!(
        d(&at_once, waiting(9, 0, None), false, 10),
        Decision::Close { rows: 8, reason: CloseReason::Full }
    );
    assert_eq!(
        d(&delayed, waiting(5, 0, None), false, 10),
        Decision::Close { rows: 4, reason: CloseReason::Preferred }
    );
    assert_eq!(
        d(&delayed, waiting(2, 100, None), false, 10),
        Decision::Wait { until: Nanos(600_000) }
    );
    assert_eq!(
        d(&delayed, waiting(2, 100, None), false, 600),
        Decision::Close { rows: 2, reason: CloseReason::Delay }
    );
    // A run of 2 takes 120 us; with a quarter of margin it must start 150 us before the deadline.
    assert_eq!(
        d(&delayed, waiting(2, 100, Some(400)), false, 200),
        Decision::Wait { until: Nanos(250_000) }
    );
    assert_eq!(
        d(&delayed, waiting(2, 100, Some(400)), false, 250),
        Decision::Close { rows: 2, reason: CloseReason::Deadline }
    );
    assert_eq!(
        d(&delayed, waiting(2, 100, None), true, 200),
        Decision::Close { rows: 2, reason: CloseReason::Drain }
    );
}

/// One simulated worker under a seeded open-loop load of single-row requests. Returns mean batch size x 100,
/// p99 latency in us, and requests refused by a queue of 64.
fn simulate(rate_per_s: u64, delay_us: u32, cost: &[(u32, u64)]) -> (u64, u64, u64) {
    let costs = costs(cost);
    let settings = settings(delay_us, &[]);
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let mut uniform = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut arrivals = Vec::new();
    let mut t = 0f64;
    for _ in 0..20_000 {
        t += -(1.0 - uniform()).ln() * 1e9 / rate_per_s as f64;
        arrivals.push(t as u64);
    }
    let (mut next, mut now) = (0usize, 0u64);
    let mut queue: std::collections::VecDeque<u64> = Default::default();
    let (mut latencies, mut batches, mut refused) = (Vec::new(), 0u64, 0u64);
    while next < arrivals.len() || !queue.is_empty() {
        while next < arrivals.len() && arrivals[next] <= now {
            if queue.len() < 64 {
                queue.push_back(arrivals[next])
            } else {
                refused += 1
            }
            next += 1;
        }
        let w = Waiting {
            rows: queue.len() as u32,
            oldest_at: Nanos(queue.front().copied().unwrap_or(now)),
            earliest_deadline: Nanos(u64::MAX),
        };
        let upcoming = arrivals.get(next).copied().unwrap_or(u64::MAX);
        match decide(&settings, w, &costs, false, Nanos(now)) {
            Decision::Nothing => now = upcoming,
            Decision::Wait { until } => now = until.0.min(upcoming),
            Decision::Close { rows, .. } => {
                now += time_of(rows, &costs).0;
                batches += 1;
                latencies.extend(queue.drain(..rows as usize).map(|at| (now - at) / 1_000));
                // Arrivals during the run are admitted at the top of the loop, in order.
            }
        }
    }
    latencies.sort_unstable();
    let p99 = latencies[latencies.len() * 99 / 100];
    (latencies.len() as u64 * 100 / batches, p99, refused)
}

/// The policy's behaviour as a golden table: offered load x delay -> mean batch, p99, refused.
#[test]
fn simulated_load() {
    let mut table = String::new();
    for (name, cost) in [("pays", PAYS), ("loses", LOSES)] {
        for rate in [1_000, 5_000, 9_000, 20_000, 60_000] {
            for delay in [0, 500] {
                let (mean, p99, refused) = simulate(rate, delay, cost);
                table += &format!(
                    "{name} rate {rate} delay {delay}: mean batch {}.{:02}, p99 {p99} us, refused {refused}\n",
                    mean / 100,
                    mean % 100
                );
            }
        }
    }
    assert_eq!(table, include_str!("simulated_load.txt"), "\n{table}");
}
