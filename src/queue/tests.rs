use super::idle::IdleSet;
use super::ring::IndexRing;
use super::*;
use crate::model::signature::{Signature, TensorSpec};
use crate::sys::sync::Arc;
use crate::units::{CloseReason, DType, Micros, ModelId, Nanos, Priority, Receipt, Rows, WorkerId};
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn ring_is_fifo_and_bounded() {
    let ring = IndexRing::new(4);
    for round in 0..10 {
        for v in 0..4 {
            ring.push(round * 4 + v).unwrap();
        }
        assert_eq!(ring.push(99), Err(99));
        let mut seen = Vec::new();
        ring.peek_each(|v| {
            seen.push(v);
            true
        });
        assert_eq!(seen, (0..4).map(|v| round * 4 + v).collect::<Vec<_>>());
        assert_eq!(ring.pop_if(|v| v != round * 4), None, "the head is refused, nothing moves");
        for v in 0..4 {
            assert_eq!(ring.pop(), Some(round * 4 + v));
        }
        assert_eq!(ring.pop(), None);
        assert!(ring.is_empty());
    }
}

#[test]
fn who_sleeps_again_is_not_woken_again() {
    // As a worker of a higher priority on the same core does: it runs at once and sleeps before the caller goes on.
    use std::sync::{OnceLock, Weak};
    let (at, pokes) = (Arc::new(OnceLock::<Weak<IdleSet>>::new()), Arc::new(AtomicU64::new(0)));
    let (poked, counted) = (at.clone(), pokes.clone());
    let idle = Arc::new(IdleSet::new(2).poked_by(move || {
        assert!(counted.fetch_add(1, Ordering::Relaxed) < 3, "woken over and over");
        poked.get().unwrap().upgrade().unwrap().announce_in_seat(0);
    }));
    at.set(Arc::downgrade(&idle)).unwrap();
    idle.announce_in_seat(0);
    idle.announce(1);
    idle.wake_all(0b11);
    assert_eq!(pokes.load(Ordering::Relaxed), 1);
    assert!(idle.sleep(1, None), "the other one was woken");
    assert_eq!(idle.parked(), 0b01);
}

#[test]
fn ring_loses_and_doubles_nothing_among_threads() {
    const EACH: u32 = 50_000;
    let ring = IndexRing::new(8);
    let sum = AtomicU64::new(0);
    let count = AtomicU64::new(0);
    std::thread::scope(|s| {
        for p in 0..2u32 {
            let ring = &ring;
            s.spawn(move || {
                for v in 0..EACH {
                    while ring.push(p * EACH + v).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..2 {
            s.spawn(|| {
                let mut last = [None::<u32>; 2];
                while count.load(Ordering::Relaxed) < 2 * EACH as u64 {
                    let Some(v) = ring.pop() else {
                        std::thread::yield_now();
                        continue;
                    };
                    let producer = (v / EACH) as usize;
                    assert!(last[producer].is_none_or(|l| l < v), "per-producer order");
                    last[producer] = Some(v);
                    sum.fetch_add(v as u64, Ordering::Relaxed);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let n = 2 * EACH as u64;
    assert_eq!(sum.load(Ordering::Relaxed), n * (n - 1) / 2);
}

fn spec(max_queue_size: u32) -> QueueSpec {
    let tensor =
        |name: &str| TensorSpec { name: name.into(), dtype: DType::F32, row_shape: vec![4] };
    QueueSpec {
        id: ModelId(0),
        signature: Signature {
            inputs: vec![tensor("x")],
            outputs: vec![tensor("y")],
            batched: true,
        },
        max_queue_size,
        max_request_rows: Rows(4),
        priority_levels: 2,
        default_priority: Priority(2),
        default_timeout: Micros(0),
        extra_slots: 2,
        workers: 1,
    }
}

fn queue(max_queue_size: u32, service_us: u64) -> SharedQueue {
    let service =
        ServiceTimes::new(&[1, 4], &[Nanos(service_us * 1_000), Nanos(service_us * 2_000)]);
    ModelQueue::make(spec(max_queue_size), Arc::new(IdleSet::new(1)), service)
}

fn receipt() -> Receipt {
    Receipt {
        queue_ns: Nanos(1),
        compute_input_ns: Nanos(2),
        compute_infer_ns: Nanos(3),
        compute_output_ns: Nanos(4),
        batch_size: Rows(1),
        close_reason: CloseReason::Idle,
        worker: WorkerId(0),
    }
}

fn take_all(q: &ModelQueue) -> Vec<Work<'_>> {
    let mut taken = Vec::new();
    q.take(0, 64, 64, |w| taken.push(w));
    taken
}

#[test]
fn a_request_keeps_its_own_bytes() {
    let q = queue(4, 1);
    let mut tickets = Vec::new();
    for n in 0..4u8 {
        let mut lease = q.lease(Rows(1)).unwrap();
        lease.input_mut().fill(n);
        tickets.push(lease.submit(Submit { tag: n as u64, ..Submit::default() }).unwrap());
    }
    for mut work in take_all(&q) {
        let (_, input) = work.input();
        let byte = input[0];
        assert!(input.iter().all(|&b| b == byte));
        work.output_mut().1.fill(byte + 100);
        assert_eq!(work.complete(Ok(receipt())), None);
    }
    for (n, ticket) in tickets.into_iter().enumerate() {
        let done = ticket.into_done().expect("done");
        assert_eq!(done.tag(), n as u64);
        assert_eq!(done.outcome(), Ok(receipt()));
        assert!(done.output().iter().all(|&b| b == n as u8 + 100));
    }
    assert_eq!(q.outstanding(), 0);
}

#[test]
fn full_queue_is_refused_with_its_numbers_and_recovers() {
    let q = queue(2, 1);
    let a = q.lease(Rows(1)).unwrap().submit(Submit::default()).unwrap();
    let b = q.lease(Rows(1)).unwrap().submit(Submit::default()).unwrap();
    let refused = q.lease(Rows(1)).unwrap().submit(Submit::default()).unwrap_err();
    assert_eq!(refused, Refusal::QueueFull { queued: 2, max: 2 });
    drop(a); // given up while it waits: its place is free at once
    let c = q.lease(Rows(1)).unwrap().submit(Submit::default()).unwrap();
    let work = take_all(&q);
    assert_eq!(work.len(), 2);
    for w in work {
        w.complete(Ok(receipt()));
    }
    assert!(b.is_done() && c.is_done());
    drop((b, c));
    assert_eq!((q.queued(), q.outstanding()), (0, 0));
    let all: Vec<_> = (0..4).map(|_| q.lease(Rows(1)).unwrap()).collect();
    assert!(matches!(q.lease(Rows(1)), Err(Refusal::QueueFull { .. })), "{} slots", all.len());
}

#[test]
fn rows_priority_deadline_are_checked() {
    let q = queue(4, 100);
    assert_eq!(q.lease(Rows(0)).unwrap_err(), Refusal::WrongRows { rows: 0, max: 4 });
    assert_eq!(q.lease(Rows(5)).unwrap_err(), Refusal::WrongRows { rows: 5, max: 4 });
    let submit = |options| q.lease(Rows(1)).unwrap().submit(options).map(drop);
    assert_eq!(
        submit(Submit { priority: Priority(3), ..Submit::default() }),
        Err(Refusal::BadPriority { priority: 3, levels: 2 })
    );
    assert_eq!(
        submit(Submit { timeout: Micros(99), ..Submit::default() }),
        Err(Refusal::DeadlineUnmeetable { needed_us: 100, given_us: 99 })
    );
    assert!(submit(Submit { timeout: Micros(1_000), ..Submit::default() }).is_ok());
    assert!(matches!(
        submit(Submit { timeout: Micros(u32::MAX), ..Submit::default() }),
        Err(Refusal::TimeoutTooLong { .. })
    ));
    q.close();
    assert_eq!(q.lease(Rows(1)).unwrap_err(), Refusal::ShuttingDown);
}

#[test]
fn priority_one_goes_first_and_a_large_request_waits_for_room() {
    let q = queue(8, 1);
    let submit = |rows, priority, tag| {
        let options = Submit { priority: Priority(priority), tag, ..Submit::default() };
        q.lease(Rows(rows)).unwrap().submit(options).unwrap()
    };
    let _tickets = [submit(1, 2, 0), submit(4, 2, 1), submit(1, 1, 2)];
    let mut rows = Vec::new();
    q.take(0, 4, 8, |w| {
        rows.push(w.rows().0);
        w.complete(Ok(receipt()));
    });
    assert_eq!(rows, [1, 1], "the one of priority 1, the older single row; 4 rows do not fit");
    q.take(0, 4, 8, |w| {
        rows.push(w.rows().0);
        w.complete(Ok(receipt()));
    });
    assert_eq!(rows, [1, 1, 4]);
}

#[test]
fn a_withdrawn_request_leaves_its_slot_at_once_and_its_cell_to_the_next_who_needs_it() {
    let q = queue(4, 1);
    // More often than the ring has cells, and no worker comes by.
    for n in 0..100 {
        let lease = q.lease(Rows(1)).unwrap();
        assert_eq!(lease.index(), 0, "the same slot is free again");
        let ticket = lease.submit(Submit { tag: n, ..Submit::default() }).unwrap();
        ticket.cancel_queued(Failure::Cancelled).unwrap();
        assert!(!q.has_work());
    }
    assert_eq!((q.queued(), q.outstanding()), (0, 0));
    // Behind a request that waits, cells can't be freed; then the ring is full before the queue is.
    let first = q.lease(Rows(2)).unwrap().submit(Submit::default()).unwrap();
    let mut withdrawn = 0;
    let refusal = loop {
        match q.lease(Rows(3)).unwrap().submit(Submit::default()) {
            Ok(ticket) => ticket.cancel_queued(Failure::Cancelled).unwrap(),
            Err(refusal) => break refusal,
        }
        withdrawn += 1;
    };
    assert_eq!(refusal, Refusal::QueueFull { queued: 1, max: 4 });
    assert_eq!(withdrawn, 8 - 1, "six slots have a ring of eight cells");
    assert_eq!((q.queued(), q.outstanding()), (1, 1));
    assert_eq!(q.view(false, 100, false, Nanos(0)).rows, 2);
    // A worker passes over them.
    for work in take_all(&q) {
        assert_eq!(work.rows(), Rows(2));
        work.complete(Ok(receipt()));
    }
    drop(first.into_done().unwrap());
    let tickets: Vec<_> =
        (0..4).map(|_| q.lease(Rows(1)).unwrap().submit(Submit::default())).collect();
    assert!(tickets.iter().all(Result::is_ok));
    assert_eq!(take_all(&q).len(), 4);
}

#[test]
fn what_travels_through_the_ring_is_read_as_it_was_written() {
    use super::asked::Queued;
    use crate::limits::{BATCH_ROWS_MAX, SLOTS_PER_MODEL_MAX};
    for index in [0, 1, SLOTS_PER_MODEL_MAX as u32 - 1] {
        for rows in [1, 2, BATCH_ROWS_MAX as u16] {
            for timed in [false, true] {
                let queued = Queued { index, rows: Rows(rows), timed };
                assert_eq!(Queued::from_number(queued.to_number()), queued);
                assert!(queued.to_number() < IndexRing::VALUE_END);
            }
        }
    }
}

#[test]
fn a_queue_stays_until_its_last_owner_and_its_last_slot_are_gone() {
    // The queue has a share of its idle set for as long as it is in memory.
    let idle = Arc::new(IdleSet::new(1));
    let service = || ServiceTimes::new(&[1], &[Nanos(1)]);
    let made = || ModelQueue::make(spec(4), idle.clone(), service());
    let is_there = || Arc::strong_count(&idle) == 2;

    let q = made();
    drop(q.lease(Rows(1)).unwrap());
    let other = q.clone();
    drop(q);
    assert!(is_there() && other.lease(Rows(1)).is_ok());
    drop(other);
    assert!(!is_there());

    // One request of each kind, with the owner gone first.
    let q = made();
    let submit = || q.lease(Rows(1)).unwrap().submit(Submit::default()).unwrap();
    let (given_up, answered) = (submit(), submit());
    let works = take_all(&q);
    drop(given_up);
    works.into_iter().for_each(|work| assert_eq!(work.complete(Ok(receipt())), None));
    let done = answered.into_done().unwrap();
    let (leased, dropped, cancelled) = (q.lease(Rows(1)).unwrap(), submit(), submit());
    let signature = q.signature().clone();
    drop(q);
    assert!(is_there());
    drop(leased);
    drop(dropped);
    cancelled.cancel_queued(Failure::Cancelled).unwrap();
    assert!(is_there(), "the answer can still be read");
    assert_eq!((done.outcome(), done.queue().signature()), (Ok(receipt()), &signature));
    drop(done);
    assert!(!is_there());

    // A waiting request is withdrawn last.
    let q = made();
    let ticket = q.lease(Rows(1)).unwrap().submit(Submit::default()).unwrap();
    drop(q);
    assert!(is_there());
    drop(ticket);
    assert!(!is_there());
}

#[test]
fn a_ticket_dropped_while_running_gives_its_slot_back() {
    let q = queue(1, 1);
    let ticket = q.lease(Rows(1)).unwrap().submit(Submit::default()).unwrap();
    let work = take_all(&q).pop().unwrap();
    drop(ticket);
    assert_eq!(q.outstanding(), 1);
    assert_eq!(work.complete(Ok(receipt())), None);
    assert_eq!(q.outstanding(), 0);
    let leases: Vec<_> = (0..3).map(|_| q.lease(Rows(1)).unwrap()).collect();
    assert_eq!(leases.len(), q.slots());
}

#[test]
fn work_that_is_dropped_still_answers() {
    let q = queue(1, 1);
    let ticket = q.lease(Rows(1)).unwrap().submit(Submit::default()).unwrap();
    drop(take_all(&q));
    assert_eq!(ticket.into_done().unwrap().outcome(), Err(Failure::ModelPanicked));
}

#[test]
fn waiters_and_workers_race_without_loss() {
    let q = queue(8, 1);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let worker = s.spawn(|| {
            let mut ran = 0u64;
            while !stop.load(Ordering::Relaxed) || q.has_work() {
                q.take(0, 4, 4, |mut w| {
                    let byte = w.input().1[0];
                    w.output_mut().1.fill(byte);
                    w.complete(Ok(receipt()));
                    ran += 1;
                });
            }
            ran
        });
        let clients: Vec<_> = (0..2u8)
            .map(|c| {
                let q = &q;
                s.spawn(move || {
                    let (mut answered, mut given_up) = (0u64, 0u64);
                    for n in 0..20_000u32 {
                        let byte = (n as u8) ^ (c << 7);
                        let mut lease = q.lease(Rows(1)).unwrap();
                        lease.input_mut().fill(byte);
                        let mut ticket = lease.submit(Submit::default()).unwrap();
                        if n % 7 == 0 {
                            match ticket.cancel_queued(Failure::Cancelled) {
                                Ok(()) => {
                                    given_up += 1;
                                    continue;
                                }
                                Err(back) => ticket = back,
                            }
                        }
                        let done = loop {
                            ticket.sleep(None);
                            match ticket.into_done() {
                                Ok(done) => break done,
                                Err(back) => ticket = back,
                            }
                        };
                        assert!(done.output().iter().all(|&b| b == byte));
                        answered += 1;
                    }
                    (answered, given_up)
                })
            })
            .collect();
        let totals: Vec<_> = clients.into_iter().map(|c| c.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        let ran = worker.join().unwrap();
        let (answered, given_up) = totals.iter().fold((0, 0), |a, t| (a.0 + t.0, a.1 + t.1));
        assert_eq!(answered + given_up, 40_000);
        assert_eq!(ran, answered);
    });
    assert_eq!((q.queued(), q.outstanding()), (0, 0));
}

#[test]
fn each_kind_of_core_has_its_own_times_and_admission_adds_them_up() {
    // Two fast workers and two slow ones.
    let times = ServiceTimes::of_kinds(&[1, 4], &[0b0011, 0b1100]);
    for (kind, one, four) in [(0, 1_000, 2_000), (1, 4_000, 16_000)] {
        times.observe(kind, 0, Nanos(one));
        times.observe(kind, 1, Nanos(four));
    }
    assert_eq!((times.get(0, 1), times.get(1, 1)), (Nanos(2_000), Nanos(16_000)));
    times.observe(1, 0, Nanos(4_800));
    assert_eq!((times.get(0, 0), times.get(1, 0)), (Nanos(1_000), Nanos(4_100)));
    // Nothing ahead: its own run, on the fastest kind that serves.
    assert_eq!(times.estimate(Rows(1), 0, 0b1111), Nanos(1_000));
    assert_eq!(times.estimate(Rows(3), 0, 0b1111), Nanos(2_000));
    assert_eq!(times.estimate(Rows(1), 0, 0b1100), Nanos(4_100));
    // A fast worker takes 500 ns a row in batches, a slow one 4,000 (three in 12.3 us alone).
    let rate = 2 * (1_000_000_000 / 500) + 2 * (1_000_000_000 / 4_000);
    let wait = 90 * 1_000_000_000 / rate;
    assert_eq!(times.estimate(Rows(1), 90, 0b1111), Nanos(wait + 1_000));
    // With one kind it is what it was before there were kinds.
    let alike = ServiceTimes::new(&[1, 4], &[Nanos(1_000), Nanos(2_000)]);
    assert_eq!(alike.estimate(Rows(1), 90, 0b11), Nanos(90 * 500 / 2 + 1_000));
    assert_eq!(alike.kinds(), 1);
}

#[test]
fn more_kinds_than_are_told_apart_share_the_last() {
    let times = ServiceTimes::of_kinds(&[1], &[1, 2, 4, 8, 16, 32]);
    assert_eq!(times.kinds(), crate::limits::CORE_KINDS_COUNT_MAX);
    times.observe(5, 0, Nanos(700));
    assert_eq!(times.get(3, 0), Nanos(700));
    assert_eq!(times.estimate(Rows(1), 0, 32), Nanos(700));
}

#[test]
fn times_that_no_worker_measured_yet_refuse_nobody() {
    let times = ServiceTimes::new(&[1, 4], &[Nanos(1_000), Nanos(2_000)]);
    let next = times.twin();
    assert_eq!((next.sizes().as_slice(), next.get(0, 1)), (&[1, 4][..], Nanos(0)));
    next.restart(&[1, 2, 8], &[Nanos(5_000), Nanos(6_000), Nanos(8_000)]);
    assert_eq!(next.sizes().as_slice(), [1, 2, 8]);
    // The policy has them, admission has not.
    assert_eq!((next.get(0, 0), next.get(0, 2)), (Nanos(5_000), Nanos(8_000)));
    assert_eq!(next.estimate(Rows(1), 100, 1), Nanos(0));
    // The first run of a worker takes their place, but a hiccup counts for no more than twice.
    next.observe(0, 0, Nanos(3_000));
    next.observe(0, 2, Nanos(900_000));
    assert_eq!((next.get(0, 0), next.get(0, 2)), (Nanos(3_000), Nanos(16_000)));
    assert_eq!(next.estimate(Rows(1), 0, 1), Nanos(3_000));
    assert_eq!(next.estimate(Rows(2), 0, 1), Nanos(0));
    // Of those that are known the best: eight rows in 16,000 ns.
    assert_eq!(next.estimate(Rows(1), 10, 1), Nanos(10 * 2_000 + 3_000));
    next.observe(0, 0, Nanos(3_000));
    assert_eq!(next.get(0, 0), Nanos(3_000));
}
