//! Model checks of the lock-free code: every interleaving, within a bound on preemptions, and every
//! value that a weakly ordered load may return.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release --no-default-features --test loom --target-dir target/loom
//! ```
//!
//! A lost wake-up shows as a deadlock (see `sys::futex`), a race on data as an illegal access to a
//! `SharedCell`. The tests named `mutant_...` run the same code with its fences taken out, and pass
//! only if the model then fails.
//!
//! Tried by hand, one change at a time, and caught by at least one model: each of the fences
//! removed; the exchange of `push` relaxed, and that of `pop_if`; the counters' advance relaxed;
//! `peek_each` one position shorter; the bit set and the bit cleared in `IdleSet` relaxed; the flag taken
//! by a load and a store instead of a swap; a slot's `complete` without release or without acquire, its
//! `abandon` relaxed, and `is_done` relaxed; a withdrawn value that is popped; a queue's list retired by
//! a load and a store, or told so by nobody, its holders counted off without release or without acquire,
//! or without one for the owners, whose own count likewise.
#![cfg(loom)]

use corelane::queue::handle::{Found, HandleWord};
use corelane::queue::handover::{Handover, Reclaimed};
use corelane::queue::idle::{IdleSet, SleepFlag};
use corelane::queue::ring::IndexRing;
use corelane::queue::state::SlotState;
use corelane::sys::returns::Returns;
use corelane::sys::sync::mutant::without_fences;
use corelane::sys::sync::{Arc, AtomicU32, AtomicU64, Ordering, SharedCell, spin_turn};
use loom::thread;

#[path = "loom/exchange.rs"]
mod exchange;
#[path = "loom/keep.rs"]
mod keep;
#[path = "loom/ring.rs"]
mod ring;
#[path = "loom/seat.rs"]
mod seat;

/// Checks `model` with at most three preemptions, unless `LOOM_MAX_PREEMPTIONS` says otherwise.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(model);
}

/// Cells that the ring's values point at: written by who pushes, read by who pops.
struct Payloads(Vec<SharedCell<u32>>);

// SAFETY: loom watches each access and fails the model if two of them race.
unsafe impl Sync for Payloads {}
// SAFETY: as above.
unsafe impl Send for Payloads {}

impl Payloads {
    fn new(n: usize) -> Arc<Self> {
        Arc::new(Payloads((0..n).map(|_| SharedCell::new(0)).collect()))
    }

    fn write(&self, index: u32) {
        // SAFETY: loom has checked that nobody else reaches the cell now.
        self.0[index as usize].with_mut(|p| unsafe { *p = index + 100 });
    }

    /// Reads and marks, so that a second consumer of the same value is an illegal access or a
    /// wrong number.
    fn consume(&self, index: u32) {
        self.0[index as usize].with_mut(|p| {
            // SAFETY: loom has checked that nobody else reaches the cell now.
            let value = unsafe { &mut *p };
            assert_eq!(*value, index + 100);
            *value = 0;
        });
    }
}

// --- queue::idle ---

/// A worker that announces, looks again, and sleeps; a producer that pushes and wakes.
fn one_worker_one_producer() {
    let ring = Arc::new(IndexRing::new(2));
    let idle = Arc::new(IdleSet::new(1));
    let producer = {
        let (ring, idle) = (ring.clone(), idle.clone());
        thread::spawn(move || {
            ring.push(7).unwrap();
            idle.wake_one(1);
        })
    };
    let got = loop {
        if let Some(value) = ring.pop() {
            break value;
        }
        idle.announce(0);
        if !ring.is_empty() {
            idle.cancel(0);
            continue;
        }
        // Never woken would be a deadlock.
        idle.sleep(0, None);
    };
    assert_eq!(got, 7);
    producer.join().unwrap();
}

#[test]
fn idle_worker_is_never_left_asleep_with_work() {
    check(one_worker_one_producer);
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_idle_without_fences_loses_a_wake_up() {
    without_fences(|| check(one_worker_one_producer));
}

#[test]
fn idle_two_producers_wake_two_workers() {
    check(|| {
        let ring = Arc::new(IndexRing::new(2));
        let idle = Arc::new(IdleSet::new(2));
        let worker = |me: usize| {
            let (ring, idle) = (ring.clone(), idle.clone());
            move || loop {
                if let Some(value) = ring.pop() {
                    break value;
                }
                idle.announce(me);
                if !ring.is_empty() {
                    idle.cancel(me);
                    continue;
                }
                idle.sleep(me, None);
            }
        };
        let (a, b) = (thread::spawn(worker(0)), thread::spawn(worker(1)));
        // Each worker takes one value: were one push to wake nobody, or one worker twice, the
        // other would sleep for ever.
        for value in 0..2 {
            ring.push(value).unwrap();
            idle.wake_one(0b11);
        }
        let mut got = [a.join().unwrap(), b.join().unwrap()];
        got.sort();
        assert_eq!(got, [0, 1]);
    });
}

#[test]
fn idle_wakes_only_workers_that_serve_the_model() {
    check(|| {
        let idle = Arc::new(IdleSet::new(2));
        idle.announce(0);
        let sleeper = {
            let idle = idle.clone();
            thread::spawn(move || {
                idle.announce(1);
                idle.cancel(1);
            })
        };
        let woken = idle.wake_one(0b10);
        assert!(matches!(woken, None | Some(1)));
        sleeper.join().unwrap();
        assert_eq!(idle.parked() & 1, 1, "worker 0 serves another model");
        assert_eq!(idle.wake_one(0b01), Some(0));
    });
}

/// An eventfd: its counter changes under the kernel's lock, a reader sleeps while it is zero.
#[derive(Default)]
struct Event {
    count: loom::sync::Mutex<u32>,
    written: loom::sync::Condvar,
}

impl Event {
    fn write(&self) {
        *self.count.lock().unwrap() += 1;
        self.written.notify_one();
    }

    fn read(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.written.wait(count).unwrap();
        }
        *count = 0;
    }
}

#[test]
fn idle_recheck_sees_past_a_head_that_lags() {
    check(|| {
        // Another consumer has popped and not yet moved the head when the producer reuses the cell:
        // the new value is a whole ring ahead of the head that the sleeper starts from.
        let ring = Arc::new(IndexRing::new(2));
        let idle = Arc::new(IdleSet::new(1));
        ring.push(0).unwrap();
        ring.push(1).unwrap();
        let other = {
            let ring = ring.clone();
            thread::spawn(move || {
                ring.pop();
                ring.pop();
            })
        };
        let producer = {
            let (ring, idle) = (ring.clone(), idle.clone());
            thread::spawn(move || {
                if ring.push(2).is_err() {
                    return false;
                }
                idle.wake_one(1);
                true
            })
        };
        idle.announce(0);
        let empty = ring.is_empty();
        let pushed_and_not_woken = {
            let pushed = producer.join().unwrap();
            pushed && idle.parked() != 0
        };
        other.join().unwrap();
        // Three values and two pops: one is left, and somebody must know.
        assert!(!(empty && pushed_and_not_woken), "asleep with a value in the ring");
    });
}

#[test]
fn idle_recheck_starts_from_a_head_at_most_a_round_behind() {
    check(|| {
        // Three of four values are popped. The fourth is two positions beyond a ring that begins at the
        // oldest head; that head must be no answer for a sleeper whom its producer did not see.
        let ring = Arc::new(IndexRing::new(2));
        let idle = Arc::new(IdleSet::new(1));
        ring.push(0).unwrap();
        ring.push(1).unwrap();
        let other = {
            let ring = ring.clone();
            thread::spawn(move || (0..3).filter(|_| ring.pop().is_some()).count())
        };
        let producer = {
            let (ring, idle) = (ring.clone(), idle.clone());
            thread::spawn(move || {
                let pushed = (2..4).take_while(|&value| ring.push(value).is_ok()).count();
                if pushed == 2 {
                    idle.wake_one(1);
                }
                pushed
            })
        };
        idle.announce(0);
        let empty = ring.is_empty();
        let (popped, pushed) = (other.join().unwrap(), producer.join().unwrap());
        let asleep = empty && idle.parked() != 0;
        assert!(!(asleep && pushed == 2 && popped < 4), "asleep with a value in the ring");
    });
}

/// The I/O thread sleeps in the kernel; two workers complete something each.
fn flag_and_event() {
    let flag = Arc::new(SleepFlag::new());
    let event = Arc::new(Event::default());
    let done = Arc::new(AtomicU32::new(0));
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let (flag, event, done) = (flag.clone(), event.clone(), done.clone());
            thread::spawn(move || {
                done.fetch_add(1, Ordering::Release);
                if flag.take() {
                    event.write();
                }
            })
        })
        .collect();
    while done.load(Ordering::Acquire) < 2 {
        flag.announce(false);
        if done.load(Ordering::Acquire) < 2 {
            // Never written to would be a deadlock.
            event.read();
        }
        flag.cancel();
    }
    for worker in workers {
        worker.join().unwrap();
    }
}

#[test]
fn sleep_flag_never_leaves_a_completion_unseen() {
    check(flag_and_event);
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_sleep_flag_without_fences_loses_a_wake_up() {
    without_fences(|| check(flag_and_event));
}

#[test]
fn sleep_flag_tells_one_caller_only() {
    check(|| {
        let flag = Arc::new(SleepFlag::new());
        flag.announce(false);
        let told: Vec<_> = (0..2)
            .map(|_| {
                let flag = flag.clone();
                thread::spawn(move || flag.take() as u32)
            })
            .collect();
        let told: u32 = told.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(told, 1);
    });
}

// --- queue::state ---

type Slot = SlotState<u32>;

fn write(slot: &Slot, value: u32) {
    // SAFETY: the models' own claim of who owns the record; loom checks it.
    unsafe { slot.record(|r| *r = value) }
}

fn read(slot: &Slot) -> u32 {
    // SAFETY: as above.
    unsafe { slot.record(|r| *r) }
}

/// A slot whose request a worker has popped already.
fn running(value: u32) -> Arc<Slot> {
    let slot = Arc::new(SlotState::new(0));
    write(&slot, value);
    slot.submit();
    slot
}

#[test]
fn slot_cancel_races_with_a_worker() {
    check(|| {
        let ring = Arc::new(IndexRing::new(2));
        let slot = running(5);
        let place = ring.push(0).unwrap();
        let worker = {
            let (ring, slot) = (ring.clone(), slot.clone());
            thread::spawn(move || {
                let popped = ring.pop().is_some();
                if popped {
                    assert_eq!(read(&slot), 5);
                    write(&slot, 6);
                    assert!(slot.complete());
                }
                popped
            })
        };
        let cancelled = ring.withdraw(place, 0);
        if cancelled {
            // The slot is the client's as before, for the next request.
            write(&slot, 8);
            slot.submit();
        }
        let ran = worker.join().unwrap();
        assert_ne!(cancelled, ran, "it ran or it was cancelled, never both, never neither");
        assert_eq!(slot.is_done(), ran);
        assert_eq!(read(&slot), if ran { 6 } else { 8 });
    });
}

#[test]
fn slot_abandon_races_with_complete() {
    check(|| {
        let slot = running(5);
        // What a client keeps for the slot beside it. The slot's next owner has it, and must not meet
        // this one there.
        let kept = Payloads::new(1);
        let freed = Arc::new(AtomicU64::new(0));
        let worker = {
            let (slot, kept, freed) = (slot.clone(), kept.clone(), freed.clone());
            thread::spawn(move || {
                write(&slot, 6);
                let answered = slot.complete();
                if !answered {
                    // The slot is the worker's to put on the free list, and the next client's.
                    freed.fetch_add(1, Ordering::Relaxed);
                    kept.consume(0);
                    write(&slot, 7);
                    slot.submit();
                }
                answered
            })
        };
        kept.write(0);
        if slot.abandon() {
            assert!(!worker.join().unwrap());
        } else {
            assert_eq!(read(&slot), 6);
            freed.fetch_add(1, Ordering::Relaxed);
            assert!(worker.join().unwrap());
        }
        assert_eq!(freed.load(Ordering::Relaxed), 1, "freed once");
    });
}

fn wait_and_complete() {
    let slot = running(5);
    let worker = {
        let slot = slot.clone();
        thread::spawn(move || {
            write(&slot, read(&slot) + 1);
            assert!(slot.complete());
        })
    };
    // Woken by nobody would be a deadlock.
    while !slot.wait_done(None) {}
    assert_eq!(read(&slot), 6);
    worker.join().unwrap();
}

#[test]
fn slot_waiter_is_always_woken() {
    check(wait_and_complete);
}

#[test]
fn slot_waiter_that_gives_up_leaves_the_slot_to_the_worker() {
    check(|| {
        // It slept once, in vain, and then has no more patience.
        let slot = running(5);
        let worker = {
            let slot = slot.clone();
            thread::spawn(move || {
                write(&slot, 6);
                let answered = slot.complete();
                if !answered {
                    write(&slot, 7);
                }
                answered
            })
        };
        let done = slot.spin_done(1, || ()) || slot.wait_done(None) || !slot.abandon();
        if done {
            assert_eq!(read(&slot), 6);
        }
        assert_eq!(worker.join().unwrap(), done);
    });
}

#[test]
fn slot_serves_the_next_request_with_its_own_answer() {
    check(|| {
        // What is left of the first answer is not taken for the second.
        let ring = Arc::new(IndexRing::new(2));
        let slot = running(5);
        ring.push(0).unwrap();
        let worker = {
            let (ring, slot) = (ring.clone(), slot.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    while ring.pop().is_none() {
                        spin_turn();
                    }
                    write(&slot, read(&slot) + 1);
                    assert!(slot.complete());
                }
            })
        };
        while !slot.wait_done(None) {}
        assert_eq!(read(&slot), 6);
        write(&slot, 20);
        slot.submit();
        ring.push(0).unwrap();
        while !slot.wait_done(None) {}
        assert_eq!(read(&slot), 21);
        worker.join().unwrap();
    });
}

#[test]
fn slot_that_spins_sees_the_answer_with_the_word() {
    check(|| {
        let slot = running(5);
        let worker = {
            let slot = slot.clone();
            thread::spawn(move || {
                write(&slot, 9);
                assert!(slot.complete());
            })
        };
        if slot.spin_done(2, || ()) {
            assert_eq!(read(&slot), 9);
        }
        worker.join().unwrap();
    });
}

#[test]
fn slot_goes_through_the_ring_and_back() {
    check(|| {
        // The whole way: submit, push, pop, complete, or give up; the record never has two owners.
        let ring = Arc::new(IndexRing::new(2));
        let slot = Arc::new(SlotState::new(0));
        let worker = {
            let (ring, slot) = (ring.clone(), slot.clone());
            thread::spawn(move || {
                if ring.pop().is_none() {
                    return None;
                }
                write(&slot, read(&slot) * 2);
                Some(slot.complete())
            })
        };
        write(&slot, 21);
        slot.submit();
        let place = ring.push(0).unwrap();
        if ring.withdraw(place, 0) {
            assert_eq!(read(&slot), 21);
            assert_eq!(worker.join().unwrap(), None);
        } else if slot.abandon() {
            assert_eq!(worker.join().unwrap(), Some(false));
        } else {
            assert_eq!(read(&slot), 42);
            assert_eq!(worker.join().unwrap(), Some(true));
        }
    });
}

// --- queue::handle ---

const VACANT: u32 = 1;
const PENDING: u32 = 2;

/// A thread submits while the dispatcher already hears of the answer: exactly one of the dispatcher's
/// first visit and the submitter's "send it here again" delivers, and sees what the submitter wrote.
#[test]
fn handle_submit_against_dispatch() {
    check(|| {
        let word = Arc::new(HandleWord::new(VACANT));
        let ticket = Payloads::new(1);
        // The worker's completion, which the dispatcher hears of.
        let done = Arc::new(AtomicU32::new(0));
        let again = Arc::new(AtomicU32::new(0));
        let submitter = {
            let (word, ticket, done, again) =
                (word.clone(), ticket.clone(), done.clone(), again.clone());
            thread::spawn(move || {
                word.take(|phase| phase == VACANT).unwrap();
                // Submitted: from here on a worker may answer.
                done.store(1, Ordering::Release);
                ticket.write(0);
                if word.put(PENDING) {
                    again.store(1, Ordering::Release);
                }
            })
        };
        let mut delivered = 0;
        if done.load(Ordering::Acquire) == 1 {
            match word.take_or_hint(PENDING) {
                Ok(()) => {
                    ticket.consume(0);
                    delivered += 1;
                    word.put(VACANT);
                }
                Err(Found::Held) => {}
                Err(Found::Phase(other)) => panic!("submitted, but in phase {other}"),
            }
        } else {
            // Not heard of yet: the dispatcher visits when it is.
            submitter.join().unwrap();
            word.take_or_hint(PENDING).unwrap();
            ticket.consume(0);
            return;
        }
        submitter.join().unwrap();
        if again.load(Ordering::Acquire) == 1 {
            word.take_or_hint(PENDING).unwrap();
            ticket.consume(0);
            delivered += 1;
        }
        assert_eq!(delivered, 1);
    });
}

/// Two threads that want the same handle: one has it, the other is told.
#[test]
fn handle_has_one_holder() {
    check(|| {
        let word = Arc::new(HandleWord::new(PENDING));
        let inside = Payloads::new(1);
        inside.write(0);
        let other = {
            let (word, inside) = (word.clone(), inside.clone());
            thread::spawn(move || {
                if word.take_or_hint(PENDING).is_ok() {
                    inside.consume(0);
                    word.put(VACANT);
                    return 1;
                }
                0
            })
        };
        let mut taken = 0;
        let mut hinted = false;
        if word.take(|phase| phase == PENDING).is_ok() {
            inside.consume(0);
            hinted = word.put(VACANT);
            taken += 1;
        }
        let theirs = other.join().unwrap();
        assert_eq!(taken + theirs, 1);
        assert!(!hinted || taken == 1);
        assert_eq!(word.take(|phase| phase == PENDING), Err(Found::Phase(VACANT)));
    });
}

// --- queue::handover ---

/// A connection's way out: the record is what was lent, the cell stands for the socket, which two
/// threads must never write to at once.
struct WayOut {
    handover: Handover<u32>,
    socket: SharedCell<Vec<u32>>,
}

// SAFETY: loom watches each access and fails the model if two of them race.
unsafe impl Sync for WayOut {}
// SAFETY: as above.
unsafe impl Send for WayOut {}

impl WayOut {
    fn new() -> Arc<Self> {
        Arc::new(WayOut { handover: Handover::new(0), socket: SharedCell::new(Vec::new()) })
    }

    fn write(&self, frame: u32) {
        // SAFETY: loom has checked that nobody else reaches the cell now.
        self.socket.with_mut(|socket| unsafe { (*socket).push(frame) });
    }

    fn lend(&self, key: u64, request: u32) {
        // SAFETY: the models' own claim of who owns the record; loom checks it.
        unsafe { self.handover.record(|r| *r = request) };
        self.handover.lend(key);
    }

    /// What a worker does at the end of the request with this key. Returns whether it sent.
    fn answer(&self, key: u64) -> bool {
        let begun = self.handover.begin(key);
        if begun {
            // SAFETY: as above.
            let request = unsafe { self.handover.record(|r| *r) };
            assert_eq!(request as u64, key + 100, "the answer of its own request");
            self.write(request);
            // SAFETY: as above.
            unsafe { self.handover.record(|r| *r = 7) };
            self.handover.end();
        }
        begun
    }

    fn written(&self) -> Vec<u32> {
        // SAFETY: as above.
        self.socket.with(|socket| unsafe { (*socket).clone() })
    }
}

fn lent_socket_is_written_by_one() {
    let out = WayOut::new();
    out.lend(1, 101);
    let worker = {
        let out = out.clone();
        thread::spawn(move || out.answer(1))
    };
    // The I/O thread wants to write something of its own meanwhile.
    let found = out.handover.reclaim();
    if found != Reclaimed::Sending {
        out.write(9);
    }
    let sent = worker.join().unwrap();
    match found {
        Reclaimed::Held => assert!(!sent, "it was taken back"),
        Reclaimed::Sending | Reclaimed::Sent => assert!(sent),
    }
    assert_eq!(out.handover.reclaim() == Reclaimed::Sent, sent);
    if sent {
        out.handover.settle();
        // SAFETY: as above: settled, it is the lender's.
        assert_eq!(unsafe { out.handover.record(|r| *r) }, 7, "the outcome comes with the end");
        assert!(out.written().contains(&101));
    }
    assert_eq!(out.handover.reclaim(), Reclaimed::Held);
}

#[test]
fn handover_lent_socket_is_written_by_one_side_at_a_time() {
    check(lent_socket_is_written_by_one);
}

#[test]
fn handover_late_worker_does_not_answer_another_request() {
    check(|| {
        // Lent, taken back, and lent again for another request, while the first one's worker ends.
        let out = WayOut::new();
        out.lend(1, 101);
        let first = {
            let out = out.clone();
            thread::spawn(move || out.answer(1))
        };
        let taken_back = out.handover.reclaim() == Reclaimed::Held;
        if taken_back {
            out.lend(2, 102);
            let second = {
                let out = out.clone();
                thread::spawn(move || out.answer(2))
            };
            assert!(second.join().unwrap(), "it was lent for this one and never taken back");
            assert!(!first.join().unwrap());
            assert_eq!(out.written(), [102]);
        } else {
            assert!(first.join().unwrap());
            assert_eq!(out.written(), [101]);
        }
        assert_eq!(out.handover.reclaim(), Reclaimed::Sent);
    });
}

#[test]
fn handover_what_a_closing_lender_sees_is_final() {
    check(|| {
        // The I/O thread closes the socket as soon as no worker is writing: here, takes all out.
        let out = WayOut::new();
        out.lend(1, 101);
        let worker = {
            let out = out.clone();
            thread::spawn(move || out.answer(1))
        };
        if out.handover.reclaim() != Reclaimed::Sending {
            // SAFETY: loom has checked that nobody else reaches the cell now, nor later.
            out.socket.with_mut(|socket| unsafe { (*socket).clear() });
            worker.join().unwrap();
            assert!(out.written().is_empty(), "nobody writes to a closed socket");
        } else {
            assert!(worker.join().unwrap());
        }
    });
}

/// An answer that a worker sent by itself wakes only an I/O thread that is eager for it.
fn eager_sleeper() {
    let flag = Arc::new(SleepFlag::new());
    let event = Arc::new(Event::default());
    let told = Arc::new(AtomicU32::new(0));
    let worker = {
        let (flag, event, told) = (flag.clone(), event.clone(), told.clone());
        thread::spawn(move || {
            told.store(1, Ordering::Release);
            if flag.take_eager() {
                event.write();
            }
        })
    };
    while told.load(Ordering::Acquire) == 0 {
        flag.announce(true);
        if told.load(Ordering::Acquire) == 0 {
            // Never written to would be a deadlock.
            event.read();
        }
        flag.cancel();
    }
    worker.join().unwrap();
}

#[test]
fn sleep_flag_wakes_an_eager_sleeper() {
    check(eager_sleeper);
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_eager_sleep_flag_without_fences_loses_a_wake_up() {
    without_fences(|| check(eager_sleeper));
}

#[test]
fn sleep_flag_lets_others_sleep_through_what_can_wait() {
    check(|| {
        let flag = Arc::new(SleepFlag::new());
        flag.announce(false);
        let other = {
            let flag = flag.clone();
            thread::spawn(move || flag.take_eager())
        };
        assert!(!other.join().unwrap());
        assert!(flag.take(), "the flag is still up for what can't wait");
    });
}

// --- sys::returns ---

/// A block of a private heap: its link, and what its user wrote.
struct Block {
    next: SharedCell<*mut Block>,
    used: SharedCell<u32>,
}

#[test]
fn returned_blocks_come_back_once_with_what_was_written() {
    check(|| {
        let returns = Arc::new(Returns::<Block>::default());
        let give = |returns: &Returns<Block>, value: u32| {
            let block = Box::into_raw(Box::new(Block {
                next: SharedCell::new(std::ptr::null_mut()),
                used: SharedCell::new(0),
            }));
            // SAFETY: the block is the giver's until it is given; loom watches the accesses.
            unsafe {
                (*block).used.with_mut(|used| *used = value);
                returns.give(block, |next| (*block).next.with_mut(|link| *link = next));
            }
        };
        let givers: Vec<_> = (1..=2)
            .map(|value| {
                let returns = returns.clone();
                thread::spawn(move || give(&returns, value))
            })
            .collect();
        let mut seen = Vec::new();
        let mut take = || {
            let mut block = returns.take_all();
            while !block.is_null() {
                // SAFETY: a block that was taken is the taker's; it was made by `Box::into_raw`.
                unsafe {
                    seen.push((*block).used.with(|used| *used));
                    let next = (*block).next.with(|link| *link);
                    drop(Box::from_raw(block));
                    block = next;
                }
            }
        };
        take();
        give(&returns, 3);
        take();
        for giver in givers {
            giver.join().unwrap();
        }
        take();
        seen.sort();
        assert_eq!(seen, [1, 2, 3], "nothing lost, nothing twice");
    });
}
