//! Completions: from each worker to the I/O thread, by a single-producer single-consumer ring each.
//!
//! A completion is a hint: "look at this slot's ticket". The ticket's state is the truth, so a hint
//! that comes late (its slot was freed, and perhaps leased again, meanwhile) does no harm. A ring has
//! two entries for each slot of the runtime; the I/O thread drains it every turn, so a full ring only
//! means that the thread has not run for that long, and the worker waits for it.

use super::Failure;
use super::asked::Notify;
use super::idle::SleepFlag;
use super::outlet::Outlets;
use super::seat::{Seat, Sitter};
use super::slot::{Completion, Work};
use crate::sys::futex::WaitWord;
use crate::sys::sync::Arc;
use crate::units::{Nanos, Receipt};
use ringbuf::traits::{Consumer, Observer, Producer, Split};
use ringbuf::{HeapCons, HeapProd, HeapRb};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// Between two attempts at a ring that is full.
const FULL_RING_WAIT: Nanos = Nanos(50_000);

/// Wakes the I/O thread: an eventfd, written only when the thread may be asleep.
#[derive(Debug)]
pub struct IoWaker {
    flag: SleepFlag,
    event: OwnedFd,
    outlets: Arc<Outlets>,
    seat: Arc<Seat>,
}

impl IoWaker {
    /// A waker with its eventfd.
    ///
    /// # Errors
    /// If the system has no file descriptor left.
    pub fn new() -> std::io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(IoWaker {
            flag: SleepFlag::new(),
            event,
            outlets: Arc::default(),
            seat: Arc::default(),
        }))
    }

    /// The flag; the I/O thread announces its sleep here, then drains its rings once more, then
    /// waits in the kernel with [`fd`](Self::fd) among what it waits for.
    pub fn flag(&self) -> &SleepFlag {
        &self.flag
    }

    /// The connections' outlets.
    pub fn outlets(&self) -> &Arc<Outlets> {
        &self.outlets
    }

    /// The I/O thread's seat.
    pub fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// The eventfd, to be registered edge-triggered for reading: every wake is a write, and each
    /// write is an edge, so it never needs to be read (its counter is drained by
    /// [`clear`](Self::clear) long before it could overflow, if at all).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Wakes the I/O thread if it may be asleep. Called after work was made visible.
    pub fn wake(&self) {
        if self.flag.take() {
            self.wake_always();
        }
    }

    /// Wakes the I/O thread if it may be asleep and is eager. Called after work was made visible that
    /// can wait.
    pub fn wake_eager(&self) {
        if self.flag.take_eager() {
            self.wake_always();
        }
    }

    /// Wakes the I/O thread whatever it does.
    pub fn wake_always(&self) {
        // Fails only when the counter is full, and then the thread has an edge to come anyway.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Takes the counter down to zero.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }
}

/// A worker's end.
pub struct CompletionSender {
    ring: HeapProd<Completion>,
    waker: Option<Arc<IoWaker>>,
    /// Whether something was sent since the last flush.
    sent: bool,
    /// Whether an answer was sent by itself since then.
    answered: bool,
    sitter: Sitter,
}

/// The I/O thread's end of one worker's ring.
pub struct CompletionReceiver {
    ring: HeapCons<Completion>,
}

/// A worker's ring for a runtime with `slots` slots in all. Without a waker (no transport), nothing
/// is ever sent.
pub fn completion_ring(
    slots: usize,
    waker: Option<Arc<IoWaker>>,
) -> (CompletionSender, CompletionReceiver) {
    let (producer, consumer) = HeapRb::new(2 * slots.max(1)).split();
    let seat = waker.as_ref().map(|waker| waker.seat.clone()).unwrap_or_default();
    let sitter = Sitter::new(seat);
    let sender = CompletionSender { ring: producer, waker, sent: false, answered: false, sitter };
    (sender, CompletionReceiver { ring: consumer })
}

impl CompletionSender {
    /// Ends a request and sends its completion, if it has one. A request that ran `alone` is answered
    /// here if its connection's outlet is lent for it. Call [`flush`](Self::flush) after the last of a
    /// batch.
    #[inline(always)]
    pub fn finish(&mut self, work: Work<'_>, outcome: Result<Receipt, Failure>, alone: bool) {
        let answered = match work.notify() {
            Notify::Outlet(at) if alone => self.answer(at, &work, &outcome),
            _ => None,
        };
        let Some(completion) = work.complete(outcome) else { return };
        self.send(completion);
        if answered == Some(true) {
            self.answered = true;
            if let Some(waker) = &self.waker {
                waker.wake_eager();
            }
        } else {
            self.sent = true;
        }
    }

    /// Sends the answer through its connection's outlet, if that is lent for it.
    fn answer(&self, at: u16, work: &Work<'_>, outcome: &Result<Receipt, Failure>) -> Option<bool> {
        let (Ok(receipt), Some(waker)) = (outcome, &self.waker) else { return None };
        waker.outlets.send(at, work.completion(), (work.rows(), *receipt), work.output())
    }

    fn send(&mut self, completion: Completion) {
        while self.ring.try_push(completion).is_err() {
            // Without a reader (the transport is gone, the runtime is stopping) nobody listens.
            if !self.ring.read_is_held() {
                return;
            }
            if let Some(waker) = &self.waker {
                waker.wake_always();
            }
            // A yield would keep the I/O thread off a core that it shares with a worker of real-time priority.
            WaitWord::new(0).wait(0, Some(FULL_RING_WAIT));
        }
    }

    /// After a run: wakes the I/O thread if it sleeps and something waits for it, or takes its seat if
    /// that is open.
    pub fn flush(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        let news = std::mem::take(&mut self.answered) | sent;
        if sent && let Some(waker) = &self.waker {
            waker.wake();
        }
        self.sitter.after_run(news);
    }

    /// The worker's claim to the I/O thread's seat.
    #[inline(always)]
    pub fn sitter(&mut self) -> &mut Sitter {
        &mut self.sitter
    }
}

impl CompletionReceiver {
    /// The next completion.
    pub fn receive(&mut self) -> Option<Completion> {
        self.ring.try_pop()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }
}
