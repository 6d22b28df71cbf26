//! Models of `queue::seat`, and of the worker that sleeps there.

use super::{Event, check};
use corelane::queue::idle::{IdleSet, SleepFlag};
use corelane::queue::seat::{Connections, Next, Seat, Sitter};
use corelane::sys::sync::mutant::without_fences;
use corelane::sys::sync::{Arc, AtomicU32, Ordering, SharedCell};
use corelane::units::Nanos;
use loom::thread;

/// What is tended: written to by whoever has the seat, so that two at once are an illegal access.
struct Tended {
    turns: SharedCell<u32>,
    /// Turns after which a worker is told to go home.
    home_at: u32,
}

// SAFETY: loom watches each access and fails the model if two of them race.
unsafe impl Send for Tended {}

impl Tended {
    fn touch(&self) -> u32 {
        // SAFETY: loom has checked that nobody else reaches the cell now.
        self.turns.with_mut(|turns| unsafe {
            *turns += 1;
            *turns
        })
    }
}

impl Connections for Tended {
    fn turn(&mut self) -> Next {
        if self.touch() < self.home_at { Next::Stay } else { Next::Home }
    }
    fn wait(&mut self, _: Nanos, _: &dyn Fn() -> bool) -> Next {
        Next::Stay
    }
}

/// A worker ends the I/O thread's only request, takes the seat if it is open, and leaves it open for one
/// run more.
fn seat_and_worker() {
    let seat = Arc::new(Seat::default());
    let flag = Arc::new(SleepFlag::new());
    let told = Arc::new(AtomicU32::new(0));
    let worker = {
        let (seat, flag, told) = (seat.clone(), flag.clone(), told.clone());
        thread::spawn(move || {
            let mut sitter = Sitter::new(seat);
            told.store(1, Ordering::Release);
            flag.take_eager();
            sitter.after_run(true);
            let mut turns = 0;
            while sitter.sits() {
                turns += 1;
                if sitter.turn() == Next::Home {
                    sitter.bring_home();
                } else {
                    sitter.leave_open();
                    sitter.after_run(false);
                }
            }
            turns
        })
    };
    let mut tended = Tended { turns: SharedCell::new(0), home_at: 2 };
    flag.announce(true);
    if told.load(Ordering::Acquire) == 0 {
        // A seat that nobody takes would be a deadlock.
        seat.lend(&mut tended, &flag);
    }
    flag.cancel();
    let after = tended.touch();
    let turns = worker.join().unwrap();
    assert_eq!(after, turns + 1, "the seat was the worker's before, and is not after");
    assert_eq!(told.load(Ordering::Acquire), 1, "there is news whenever it is home");
}

#[test]
fn seat_has_one_sitter_and_news_are_never_left_alone() {
    check(seat_and_worker);
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_seat_without_fences_is_left_alone() {
    without_fences(|| check(seat_and_worker));
}

#[test]
fn seat_is_taken_by_one_of_two_workers() {
    check(|| {
        let seat = Arc::new(Seat::default());
        let flag = Arc::new(SleepFlag::new());
        let told = Arc::new(AtomicU32::new(0));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (seat, flag, told) = (seat.clone(), flag.clone(), told.clone());
                thread::spawn(move || {
                    let mut sitter = Sitter::new(seat);
                    told.fetch_add(1, Ordering::Release);
                    flag.take_eager();
                    sitter.after_run(true);
                    let sat = sitter.sits();
                    if sat {
                        sitter.turn();
                    }
                    // Dropped, it brings the seat home.
                    sat as u32
                })
            })
            .collect();
        let mut tended = Tended { turns: SharedCell::new(0), home_at: 9 };
        flag.announce(true);
        if told.load(Ordering::Acquire) == 0 {
            seat.lend(&mut tended, &flag);
        }
        flag.cancel();
        let after = tended.touch();
        let sat: u32 = workers.into_iter().map(|w| w.join().unwrap()).sum();
        assert_eq!(after, sat + 1);
    });
}

/// A worker that tends connections is woken for nothing, looks for work after each turn, and sleeps
/// in the seat, where it is poked.
fn worker_in_the_seat() {
    let event = Arc::new(Event::default());
    let poked = event.clone();
    let idle = Arc::new(IdleSet::new(1).poked_by(move || poked.write()));
    let work = Arc::new(AtomicU32::new(0));
    let client = {
        let (idle, work) = (idle.clone(), work.clone());
        thread::spawn(move || {
            work.store(1, Ordering::Release);
            idle.wake_one(1);
        })
    };
    loop {
        idle.attend(0);
        idle.attended();
        if work.load(Ordering::Acquire) == 1 {
            break;
        }
        idle.announce_in_seat(0);
        if work.load(Ordering::Acquire) == 0 {
            // Never poked would be a deadlock.
            event.read();
        }
        idle.cancel(0);
    }
    client.join().unwrap();
}

#[test]
fn seat_worker_is_never_left_asleep_with_work() {
    check(worker_in_the_seat);
}

#[test]
#[should_panic(expected = "deadlock")]
fn mutant_seat_worker_without_fences_loses_a_poke() {
    without_fences(|| check(worker_in_the_seat));
}
