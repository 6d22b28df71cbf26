//! The seat: which thread tends the connections.
//!
//! It is the I/O thread's. While one connection asks one short thing at a time, every request passes
//! from that thread to a worker, and that switch of threads costs more than all the rest. So the I/O
//! thread then leaves its seat open, and the worker that ends the request takes it: it sends the answer,
//! waits where the connections' bytes come in, reads the next request and runs it, and no other thread
//! is woken. With company the seat goes home.
//!
//! ```text
//! HOME -> OPEN -> AWAY -> HOME
//!   ^      |  ^    |
//!   +------+  +----+   (a worker leaves it open while it runs a model)
//! ```
//!
//! HOME belongs to the I/O thread, AWAY to the worker that took it. OPEN belongs to nobody: nothing is
//! tended. A worker leaves the seat open for runs that are known to be short, and takes it again after
//! them. Where one takes long after all, the I/O thread finds the seat open for [`SEAT_LOOK_MS`] on end,
//! and takes it home: connections never wait for a model that hangs.

use super::idle::SleepFlag;
use crate::limits::SEAT_LOOK_MS;
use crate::sys::futex::WaitWord;
use crate::sys::sync::{Arc, AtomicBool, Ordering, SharedCell, fence};
use crate::units::Nanos;
use core::ptr::NonNull;

/// What whoever has the seat tends.
pub trait Connections: Send {
    /// Does all that is there to do, without waiting.
    fn turn(&mut self) -> Next;
    /// Waits until something is there to do, `until` has passed, or the waiting thread is wanted
    /// elsewhere, for which `found` is looked at last and which writes to the waker's descriptor.
    fn wait(&mut self, until: Nanos, found: &dyn Fn() -> bool) -> Next;
}

/// What a worker in the seat does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It stays.
    Stay,
    /// The seat goes home.
    Home,
}

const HOME: u32 = 0;
const OPEN: u32 = 1;
const AWAY: u32 = 2;
const STATE: u32 = 3;
/// Each change counts, so that two looks tell a seat that stayed as it was.
const CHANGE: u32 = 4;

fn changed(word: u32, state: u32) -> u32 {
    (word & !STATE).wrapping_add(CHANGE) | state
}

/// The seat.
#[derive(Debug)]
pub struct Seat {
    /// On which the I/O thread sleeps until the seat comes home.
    word: WaitWord,
    /// Whether workers take it at all.
    allowed: AtomicBool,
    lent: SharedCell<Option<NonNull<dyn Connections>>>,
}

// SAFETY: `lent` is written by the I/O thread in HOME and read by the worker that moved the word to
// AWAY; what it points to may be sent, and is reached only by who has the seat.
unsafe impl Sync for Seat {}
// SAFETY: as above.
unsafe impl Send for Seat {}

impl Default for Seat {
    fn default() -> Self {
        Seat {
            word: WaitWord::new(HOME),
            allowed: AtomicBool::new(false),
            lent: SharedCell::new(None),
        }
    }
}

impl Seat {
    /// Says whether workers take it where it is open. Those should that sleep when nothing waits (one
    /// that spins finds its work sooner elsewhere) and never leave a request waiting for more of them
    /// (meanwhile nobody would sit here).
    pub fn allow(&self, allowed: bool) {
        self.allowed.store(allowed, Ordering::Relaxed);
    }

    /// Whether workers take it.
    pub fn is_allowed(&self) -> bool {
        self.allowed.load(Ordering::Relaxed)
    }

    /// The I/O thread leaves its seat open for the worker that has its only request, and returns when
    /// it has it again. It has announced its sleep on `flag` before, and then found nothing to do.
    ///
    /// Returns false if the worker was done before it could see the seat open, and nobody has taken it.
    pub fn lend(&self, connections: &mut (dyn Connections + 'static), flag: &SleepFlag) -> bool {
        let word = self.word.atomic();
        // Relaxed: only the I/O thread leaves HOME.
        let home = word.load(Ordering::Relaxed);
        debug_assert_eq!(home & STATE, HOME);
        let connections = NonNull::from(connections);
        // SAFETY: in HOME the cell is the I/O thread's. The pointer is good until this returns, which it
        // does in HOME only.
        self.lent.with_mut(|cell| unsafe { *cell = Some(connections) });
        let open = changed(home, OPEN);
        // Release, with the acquire in `take`.
        word.store(open, Ordering::Release);
        // Partner: the fence in `take`. A worker that told its news before it could see the seat open
        // has taken the flag down.
        fence(Ordering::SeqCst);
        if flag.is_down() && self.take_home(open) {
            return false;
        }
        self.await_home();
        true
    }

    /// Takes an open seat home, if nothing has changed.
    fn take_home(&self, seen: u32) -> bool {
        let word = self.word.atomic();
        let home = changed(seen, HOME);
        // Acquire, with the release in `leave_open`.
        seen & STATE == OPEN
            && word.compare_exchange(seen, home, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn await_home(&self) {
        // Acquire, with the release in `bring_home`.
        let look = || self.word.atomic().load(Ordering::Acquire);
        let mut seen = look();
        while seen & STATE != HOME {
            self.word.wait(seen, Some(Nanos(SEAT_LOOK_MS * 1_000_000)));
            let now = look();
            if now == seen && self.take_home(seen) {
                return;
            }
            seen = now;
        }
    }

    /// A worker takes the seat if it is open, after it told its news.
    fn take(&self) -> bool {
        // Partner: the fence in `lend`.
        fence(Ordering::SeqCst);
        let word = self.word.atomic();
        let seen = word.load(Ordering::Relaxed);
        // Acquire, with the release in `lend` and `leave_open`.
        seen & STATE == OPEN
            && word
                .compare_exchange(seen, changed(seen, AWAY), Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// The worker in the seat leaves it open.
    fn leave_open(&self) {
        let word = self.word.atomic();
        // Relaxed: only the worker in the seat leaves AWAY.
        let away = word.load(Ordering::Relaxed);
        // Release, with the acquires in `take` and `take_home`.
        word.store(changed(away, OPEN), Ordering::Release);
    }

    /// The worker in the seat gives it to the I/O thread.
    fn bring_home(&self) {
        let word = self.word.atomic();
        // Relaxed: only the worker in the seat leaves AWAY.
        let away = word.load(Ordering::Relaxed);
        // Release, with the acquire in `await_home`.
        word.store(changed(away, HOME), Ordering::Release);
        self.word.wake(1);
    }
}

/// Where a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Elsewhere,
    Seat,
    /// Running a model, with the seat left open.
    Run,
}

/// A worker's claim to the seat: the token of who sits there. Dropping it brings the seat home.
#[derive(Debug)]
pub struct Sitter {
    seat: Arc<Seat>,
    at: At,
}

impl Sitter {
    /// One that does not sit.
    pub fn new(seat: Arc<Seat>) -> Self {
        Sitter { seat, at: At::Elsewhere }
    }

    /// Whether it sits.
    #[inline(always)]
    pub fn sits(&self) -> bool {
        self.at == At::Seat
    }

    /// After a run: takes the seat if it was left for the run; or if `news` were told to whoever tends
    /// the connections, and it is open.
    #[inline(always)]
    pub fn after_run(&mut self, news: bool) {
        if self.at == At::Run || news {
            self.at = if self.seat.take() { At::Seat } else { At::Elsewhere };
        }
    }

    /// Tends the connections for a turn.
    ///
    /// # Panics
    /// If it does not sit.
    pub fn turn(&mut self) -> Next {
        self.connections().turn()
    }

    /// Waits there; see [`Connections::wait`].
    ///
    /// # Panics
    /// If it does not sit.
    pub fn wait(&mut self, until: Nanos, found: &dyn Fn() -> bool) -> Next {
        self.connections().wait(until, found)
    }

    fn connections(&mut self) -> &mut dyn Connections {
        assert!(self.sits(), "the seat is another's");
        // SAFETY: this worker has the seat, so nobody writes the cell; it was written when the seat was
        // left open, and what it points to lives until the seat is home.
        let lent = self.seat.lent.with(|cell| unsafe { *cell });
        // SAFETY: as above; only who has the seat reaches it, and this borrows the token of that.
        unsafe { lent.expect("an open seat has connections").as_mut() }
    }

    /// Leaves the seat open for a short run.
    pub fn leave_open(&mut self) {
        if self.sits() {
            self.at = At::Run;
            self.seat.leave_open();
        }
    }

    /// Gives the seat to the I/O thread.
    pub fn bring_home(&mut self) {
        if self.sits() {
            self.at = At::Elsewhere;
            self.seat.bring_home();
        }
    }
}

impl Drop for Sitter {
    fn drop(&mut self) {
        self.bring_home();
    }
}
