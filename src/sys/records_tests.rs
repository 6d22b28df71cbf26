use super::*;

/// The rings are the process's: tests that drain them take turns.
static TURN: Mutex<()> = Mutex::new(());

pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

fn record(parts: &[&[u8]]) {
    begin();
    for part in parts {
        append(part);
    }
    commit();
}

#[derive(Debug, PartialEq, Eq)]
enum Got {
    Record(Vec<u8>),
    Lost(u64),
}

/// What is there of the thread called so.
fn drained(name: &str) -> Vec<Got> {
    let mut got = Vec::new();
    drain(|thread, found| {
        if thread.name == name {
            got.push(match found {
                Found::Record(bytes) => Got::Record(bytes.into()),
                Found::Lost(n) => Got::Lost(n),
            });
        }
    });
    got
}

fn on_thread<R: Send>(name: &str, f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|s| {
        std::thread::Builder::new().name(name.into()).spawn_scoped(s, f).unwrap().join().unwrap()
    })
}

#[test]
fn records_come_out_whole_and_in_order_also_after_their_thread() {
    let _turn = turn();
    on_thread("whole", || {
        record(&[b"without a ring it is nowhere"]);
        open(4096);
        open(1 << 20);
        record(&[b"a", b"", b"bc"]);
        record(&[]);
        assert_eq!(drained("whole"), [Got::Record(b"abc".into()), Got::Record(b"".into())]);
        assert_eq!(drained("whole"), []);
        record(&[b"last"]);
    });
    assert_eq!(drained("whole"), [Got::Record(b"last".into())]);
    assert!(lanes().lanes.iter().all(|lane| lane.thread.name != "whole"), "its ring is gone");
}

#[test]
fn a_full_ring_loses_what_comes_and_counts_it() {
    let _turn = turn();
    on_thread("full", || {
        let before = totals();
        open(0);
        let fits = LOG_RING_BYTES_MIN / (LENGTH_BYTES + 100);
        for n in 0..10u8 {
            record(&[&[n; 100]]);
        }
        let lost = 10 - fits as u64;
        let mut expected: Vec<Got> = (0..fits as u8).map(|n| Got::Record(vec![n; 100])).collect();
        expected.push(Got::Lost(lost));
        assert_eq!(drained("full"), expected);
        assert_eq!(drained("full"), [], "a loss is told once");
        // There is room again.
        record(&[b"x"]);
        assert_eq!(drained("full"), [Got::Record(b"x".into())]);
        let after = totals();
        assert_eq!(after.lost - before.lost, lost);
        assert_eq!(after.told - before.told, fits as u64 + 1);
    });
    let ended = totals();
    drained("full");
    assert_eq!(totals(), ended, "what a thread counted outlives it");
}

#[test]
fn a_record_over_the_limit_is_lost_as_a_whole() {
    let _turn = turn();
    on_thread("long", || {
        open(4096);
        record(&[&[1; LOG_RECORD_BYTES_MAX]]);
        record(&[&[2; LOG_RECORD_BYTES_MAX], &[2]]);
        record(&[&[3]]);
        let expected =
            [Got::Record(vec![1; LOG_RECORD_BYTES_MAX]), Got::Record(vec![3]), Got::Lost(1)];
        assert_eq!(drained("long"), expected);
    });
}

#[test]
fn a_record_within_a_record_is_lost_and_the_outer_one_is_not_disturbed() {
    let _turn = turn();
    on_thread("nested", || {
        open(4096);
        begin();
        append(b"outer ");
        record(&[b"inner"]);
        append(b"record");
        commit();
        // One end too many.
        commit();
        append(b"nowhere");
        record(&[b"next"]);
        let expected =
            [Got::Record(b"outer record".into()), Got::Record(b"next".into()), Got::Lost(1)];
        assert_eq!(drained("nested"), expected);
    });
}

#[test]
fn a_captured_record_is_in_no_ring() {
    let _turn = turn();
    on_thread("captured", || {
        assert_eq!(capture(|| record(&[b"one", b"two"])), Some(b"onetwo".into()));
        assert_eq!(capture(|| {}), None);
        assert_eq!(capture(|| record(&[&[0; LOG_RECORD_BYTES_MAX + 1]])), None);
        open(4096);
        assert_eq!(drained("captured"), []);
    });
}

/// Four threads tell as fast as they can while a fifth reads: every record is there or counted, whole,
/// and in its thread's order.
#[test]
fn threads_and_a_reader_at_once() {
    let _turn = turn();
    const THREADS: usize = 4;
    const RECORDS: u64 = 20_000;
    let mut next = [0u64; THREADS];
    let mut lost = 0;
    let mut take = || {
        drain(|thread, found| {
            let Some(n) = thread.name.strip_prefix("many-") else { return };
            let n: usize = n.parse().unwrap();
            match found {
                Found::Lost(records) => lost += records,
                Found::Record(bytes) => {
                    let (number, rest) = bytes.split_first_chunk::<8>().unwrap();
                    let number = u64::from_le_bytes(*number);
                    assert!(number >= next[n], "{number} after {}", next[n]);
                    assert_eq!(rest, vec![number as u8; number as usize % 100]);
                    next[n] = number + 1;
                }
            }
        });
    };
    let before = totals();
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let thread = std::thread::Builder::new().name(format!("many-{n}"));
                let tell = || {
                    open(2048);
                    for number in 0..RECORDS {
                        let rest = [number as u8; 100];
                        record(&[&number.to_le_bytes(), &rest[..number as usize % 100]]);
                    }
                };
                thread.spawn_scoped(s, tell).unwrap()
            })
            .collect();
        while threads.iter().any(|t| !t.is_finished()) {
            take();
        }
    });
    take();
    let after = totals();
    assert_eq!(after.lost - before.lost, lost);
    assert_eq!(after.told - before.told + lost, THREADS as u64 * RECORDS);
    assert!(after.told > before.told);
}
