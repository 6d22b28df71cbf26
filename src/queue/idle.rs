//! Who sleeps, and waking exactly one of them.
//!
//! A worker that found nothing sets its bit in [`IdleSet`], looks at its rings once more, and sleeps
//! on its own word. A producer pushes, then looks at the bits; if one serves its model it clears the
//! bit and wakes that worker. Both sides put a sequentially consistent fence between their write and
//! their look, so at least one of them sees the other: a request is never left with all its workers
//! asleep.
//!
//! A worker in the I/O thread's [seat](super::seat) sleeps where bytes come in, and is poked there. While
//! it is awake there it says so, and nobody else is woken for what it serves: it looks at its rings
//! after that, with a fence between.

use crate::sys::futex::WaitWord;
use crate::sys::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::units::Nanos;

/// Sleeping workers, as bits, and a word for each to sleep on. On lines of its own: every submission
/// reads it.
#[derive(Debug)]
#[repr(align(128))]
pub struct IdleSet {
    parked: AtomicU64,
    /// The worker that tends the connections now, if one does, as a bit: it looks for work before it
    /// sleeps, so nobody is woken for what it serves.
    attends: AtomicU64,
    words: Box<[WaitWord]>,
    poke: Poke,
}

/// What wakes the worker that sleeps in the [seat](super::seat).
struct Poke(Option<Box<dyn Fn() + Send + Sync>>);

impl std::fmt::Debug for Poke {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Poke")
    }
}

const AWAKE: u32 = 1;
const ASLEEP: u32 = 0;
/// Asleep, but not on its word.
const ASLEEP_IN_SEAT: u32 = 2;

impl IdleSet {
    /// A set for `workers` workers, at most [`WORKERS_MAX`](crate::limits::WORKERS_MAX), all awake.
    pub fn new(workers: usize) -> Self {
        IdleSet {
            parked: AtomicU64::new(0),
            attends: AtomicU64::new(0),
            words: (0..workers).map(|_| WaitWord::new(AWAKE)).collect(),
            poke: Poke(None),
        }
    }

    /// The same; `poke` wakes the worker that sleeps in the seat.
    pub fn poked_by(mut self, poke: impl Fn() + Send + Sync + 'static) -> Self {
        self.poke = Poke(Some(Box::new(poke)));
        self
    }

    /// Announces that `worker` is about to sleep. The caller must look for work again after this,
    /// and then call [`sleep`](Self::sleep) or [`cancel`](Self::cancel).
    pub fn announce(&self, worker: usize) {
        self.announce_as(worker, ASLEEP);
    }

    /// As [`announce`](Self::announce), for a sleep in the seat: whoever wakes the worker pokes, and it
    /// calls [`cancel`](Self::cancel) when it is awake.
    pub fn announce_in_seat(&self, worker: usize) {
        self.announce_as(worker, ASLEEP_IN_SEAT);
    }

    fn announce_as(&self, worker: usize, asleep: u32) {
        self.words[worker].atomic().store(asleep, Ordering::Relaxed);
        // Release: the word's reset comes before the bit. Partner: the acquire in `wake_one`.
        self.parked.fetch_or(1 << worker, Ordering::Release);
        // Partner: the fence in `wake_one`.
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back: work was found.
    pub fn cancel(&self, worker: usize) {
        self.parked.fetch_and(!(1 << worker), Ordering::Relaxed);
    }

    /// Sleeps until woken or until `timeout` has passed. Returns whether it was woken.
    pub fn sleep(&self, worker: usize, timeout: Option<Nanos>) -> bool {
        let word = &self.words[worker];
        let mut woken = word.atomic().load(Ordering::Acquire) == AWAKE;
        if !woken {
            word.wait(ASLEEP, timeout);
            woken = word.atomic().load(Ordering::Acquire) == AWAKE;
        }
        self.cancel(worker);
        woken
    }

    /// Wakes one sleeping worker among `workers` (a bit set), after work was made visible.
    /// Returns which.
    #[inline]
    pub fn wake_one(&self, workers: u64) -> Option<usize> {
        // Partner: the fences in `announce` and `attended`.
        fence(Ordering::SeqCst);
        if self.attends.load(Ordering::Relaxed) & workers != 0 {
            return None;
        }
        self.wake_parked(workers)
    }

    fn wake_parked(&self, workers: u64) -> Option<usize> {
        loop {
            let candidates = self.parked.load(Ordering::Relaxed) & workers;
            if candidates == 0 {
                return None;
            }
            let worker = candidates.trailing_zeros() as usize;
            // Acquire: after the word's reset in `announce`.
            if self.parked.fetch_and(!(1 << worker), Ordering::Acquire) & (1 << worker) != 0 {
                // Release: what it is woken for comes before its word. Partner: the acquire in `sleep`.
                match self.words[worker].atomic().swap(AWAKE, Ordering::Release) {
                    ASLEEP_IN_SEAT => self.poke.0.iter().for_each(|poke| poke()),
                    _ => self.words[worker].wake(1),
                }
                return Some(worker);
            }
        }
    }

    /// Says that `worker` tends the connections: until [`attended`](Self::attended) nobody is woken for
    /// work that it serves.
    pub fn attend(&self, worker: usize) {
        self.attends.store(1 << worker, Ordering::Relaxed);
    }

    /// It does no more, and looks for work now.
    pub fn attended(&self) {
        self.attends.store(0, Ordering::Relaxed);
        // Partner: the fence in `wake_one`.
        fence(Ordering::SeqCst);
    }

    /// Wakes all of `workers` that sleep, each once: one that sleeps again meanwhile has looked.
    pub fn wake_all(&self, workers: u64) {
        // Partner: the fence in `announce`. Who attends looks by itself, as after `wake_one`.
        fence(Ordering::SeqCst);
        let mut left = workers;
        // A worker of a higher priority on the caller's core is back asleep before the next turn.
        while let Some(worker) = self.wake_parked(left) {
            left &= !(1 << worker);
        }
    }

    /// Sleeping workers, as bits; a statistic.
    pub fn parked(&self) -> u64 {
        self.parked.load(Ordering::Relaxed)
    }
}

/// The I/O thread's side of the same protocol: a flag that says it may be asleep in the kernel.
///
/// The sleeper announces, fences, looks again; a worker pushes a completion, fences, and wakes the
/// sleeper only if the flag is up. News that can wait wakes only a sleeper that is eager for it.
#[derive(Debug)]
pub struct SleepFlag {
    sleeping: AtomicU32,
}

const UP: u32 = 0;
const SLEEPING: u32 = 1;
const SLEEPING_EAGER: u32 = 2;

impl SleepFlag {
    /// A flag that is down.
    pub fn new() -> Self {
        SleepFlag { sleeping: AtomicU32::new(UP) }
    }

    /// Raises the flag; the caller must look for work once more before it sleeps. An `eager` sleeper
    /// also wants to be woken for what can wait.
    pub fn announce(&self, eager: bool) {
        let how = if eager { SLEEPING_EAGER } else { SLEEPING };
        self.sleeping.store(how, Ordering::Relaxed);
        // Partner: the fences in `take` and `take_eager`.
        fence(Ordering::SeqCst);
    }

    /// Whether it is down: nobody sleeps, or somebody has told the sleeper.
    pub fn is_down(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed) == UP
    }

    /// Lowers the flag: the thread is awake and will look.
    pub fn cancel(&self) {
        self.sleeping.store(UP, Ordering::Relaxed);
    }

    /// After work was made visible: whether the caller must wake the sleeper. Exactly one caller is
    /// told so per announcement.
    pub fn take(&self) -> bool {
        // Partner: the fence in `announce`.
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) != UP
            && self.sleeping.swap(UP, Ordering::Relaxed) != UP
    }

    /// The same for work that can wait: only an eager sleeper must be woken.
    pub fn take_eager(&self) -> bool {
        // Partner: the fence in `announce`.
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) == SLEEPING_EAGER
            && self.sleeping.swap(UP, Ordering::Relaxed) != UP
    }
}

impl Default for SleepFlag {
    fn default() -> Self {
        Self::new()
    }
}
