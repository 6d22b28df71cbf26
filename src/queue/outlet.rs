//! Outlets: through which a worker may answer one request by itself.
//!
//! An answer usually goes by the completion ring to the I/O thread, which gathers the answers that are
//! ready together into one write. A request with no company pays for that with two thread switches
//! that buy nothing. So the I/O thread, when it submits the only request that it holds, lends the
//! connection's socket with it (see [`handover`](super::handover)), and the worker sends the answer in
//! one system call that never waits. Whatever the socket does not take is left to the I/O thread, which
//! also keeps all books: it learns of the answer by the completion ring as ever, but is not woken.
//!
//! A socket is *plugged* into its connection's outlet for as long as the connection lives, and leaves
//! it only when no worker is writing: the descriptor that a worker uses is never closed under it.

use super::handover::{Handover, Reclaimed};
use super::slot::Completion;
use crate::limits::CONNECTIONS_MAX;
use crate::sys::sync::{Arc, AtomicBool, Ordering, SharedCell};
use crate::units::{Receipt, RequestId, Rows};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::IoSlice;

/// Room for the head of an answer, or of the failure of an accepted request.
pub const ANSWER_HEAD_BYTES: usize = 128;

/// Writes the head of an answer with so many bytes of payload; returns its length, 0 if it can't.
/// The transport's, since the queue knows no protocol.
pub type WriteHead = fn(RequestId, Rows, Receipt, usize, &mut [u8; ANSWER_HEAD_BYTES]) -> usize;

/// What is lent with the socket, and what comes back.
#[derive(Debug)]
struct Loan {
    request: RequestId,
    write_head: WriteHead,
    /// Bytes that the socket took.
    sent: usize,
    /// Bytes of the whole frame.
    total: usize,
}

/// A connection's way out.
#[derive(Debug)]
struct Outlet {
    handover: Handover<Loan>,
    plugged: AtomicBool,
    socket: SharedCell<Option<OwnedFd>>,
}

// SAFETY: `socket` is written only while a `Plug` is made or dropped, which `plugged` allows once at a
// time and the handover only while no worker is writing; otherwise both sides only read it.
unsafe impl Sync for Outlet {}

/// The outlets of all connections, made once.
#[derive(Debug)]
pub struct Outlets(Box<[Outlet]>);

fn no_head(_: RequestId, _: Rows, _: Receipt, _: usize, _: &mut [u8; ANSWER_HEAD_BYTES]) -> usize {
    0
}

impl Default for Outlets {
    fn default() -> Self {
        let loan = || Loan { request: RequestId(0), write_head: no_head, sent: 0, total: 0 };
        let outlet = || Outlet {
            handover: Handover::new(loan()),
            plugged: AtomicBool::new(false),
            socket: SharedCell::new(None),
        };
        Outlets((0..CONNECTIONS_MAX).map(|_| outlet()).collect())
    }
}

fn key(request: Completion) -> u64 {
    (request.model.0 as u64) << 32 | request.slot as u64
}

impl Outlets {
    /// The worker's side: sends the answer through outlet `at`, if that is still lent for `request`.
    /// `None`: it is not. `Some(false)`: the socket did not take all of it, and the I/O thread must be
    /// told.
    pub(super) fn send(
        &self,
        at: u16,
        request: Completion,
        (rows, receipt): (Rows, Receipt),
        output: &[u8],
    ) -> Option<bool> {
        let outlet = &self.0[at as usize];
        if !outlet.handover.begin(key(request)) {
            return None;
        }
        let mut head = [0; ANSWER_HEAD_BYTES];
        // SAFETY: `begin` made the record the worker's, until `end`.
        let head_len = unsafe {
            outlet.handover.record(|loan| {
                (loan.write_head)(loan.request, rows, receipt, output.len(), &mut head)
            })
        };
        let total = head_len + output.len();
        let parts = [IoSlice::new(&head[..head_len]), IoSlice::new(output)];
        let sent = if head_len == 0 {
            0
        } else {
            // SAFETY: while a worker is sending nobody writes the cell (see `Outlet`).
            outlet.socket.with(|socket| match unsafe { &*socket } {
                Some(socket) => send_now(socket, &parts),
                None => 0,
            })
        };
        // SAFETY: as above.
        unsafe { outlet.handover.record(|loan| (loan.sent, loan.total) = (sent, total)) };
        outlet.handover.end();
        Some(sent == total)
    }
}

/// Sends what is taken at once; 0 also on an error, which the I/O thread will meet by itself.
fn send_now(socket: &OwnedFd, parts: &[IoSlice<'_>]) -> usize {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.unwrap_or(0),
        }
    }
}

/// A socket in its outlet: the I/O thread's token. Dropping it closes the socket.
#[derive(Debug)]
pub struct Plug {
    outlets: Arc<Outlets>,
    at: u16,
}

impl Plug {
    /// Plugs `socket` into outlet `at`.
    ///
    /// # Panics
    /// If the outlet does not exist, or has a socket.
    pub fn new(outlets: Arc<Outlets>, at: u16, socket: OwnedFd) -> Plug {
        let outlet = &outlets.0[at as usize];
        // Acquire, with the release in `drop`: the cell is empty.
        let taken = outlet.plugged.swap(true, Ordering::Acquire);
        assert!(!taken, "outlet {at} has a socket");
        // SAFETY: this is the only plug of the outlet, and it was never lent since the last one.
        outlet.socket.with_mut(|cell| unsafe { *cell = Some(socket) });
        Plug { outlets, at }
    }

    fn outlet(&self) -> &Outlet {
        &self.outlets.0[self.at as usize]
    }

    /// The outlet's number.
    pub fn at(&self) -> u16 {
        self.at
    }

    /// Lends the socket for the answer of `request`, which goes into that slot and is not submitted
    /// yet.
    pub fn lend(&self, request: Completion, id: RequestId, write_head: WriteHead) {
        let handover = &self.outlet().handover;
        assert_eq!(handover.reclaim(), Reclaimed::Held, "one answer at a time");
        // SAFETY: it is held, and this token is the lender's.
        unsafe { handover.record(|loan| (loan.request, loan.write_head) = (id, write_head)) };
        handover.lend(key(request));
    }

    /// Takes it back, if no worker has begun.
    pub fn reclaim(&self) -> Reclaimed {
        self.outlet().handover.reclaim()
    }

    /// Whether a worker has begun to send, or has sent: the peer may have the answer.
    pub fn has_begun(&self) -> bool {
        self.outlet().handover.has_begun()
    }

    /// Takes it back, if no worker has begun. Whether the I/O thread may write now: not while a worker
    /// does, nor after one that the socket did not take all from.
    pub fn is_free(&self) -> bool {
        let handover = &self.outlet().handover;
        match handover.reclaim() {
            Reclaimed::Held => true,
            Reclaimed::Sending => false,
            // SAFETY: in SENT the record is the lender's.
            Reclaimed::Sent => unsafe { handover.record(|loan| loan.sent == loan.total) },
        }
    }

    /// What a worker sent, after it has: bytes that the socket took, and bytes of the frame. After this
    /// the outlet may be lent again. `None` if no worker has sent.
    pub fn settle(&self) -> Option<(usize, usize)> {
        let handover = &self.outlet().handover;
        if handover.reclaim() != Reclaimed::Sent {
            return None;
        }
        // SAFETY: in SENT the record is the lender's.
        let sent = unsafe { handover.record(|loan| (loan.sent, loan.total)) };
        handover.settle();
        Some(sent)
    }
}

impl AsFd for Plug {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the cell is written only when the plug is made and dropped, and it has a socket in
        // between; the borrow ends with that of the plug.
        let socket = self.outlet().socket.with(|cell| unsafe { (*cell).as_ref() });
        socket.expect("a plug has a socket").as_fd()
    }
}

impl Drop for Plug {
    fn drop(&mut self) {
        // The I/O thread drops no plug while a worker sends; if it unwinds it waits here, as long as
        // a system call takes that does not wait.
        while self.reclaim() == Reclaimed::Sending {
            std::thread::yield_now();
        }
        self.settle();
        let outlet = self.outlet();
        // SAFETY: no worker is writing, and none will begin: the handover is held.
        outlet.socket.with_mut(|cell| drop(unsafe { (*cell).take() }));
        // Release, with the acquire in `new`.
        outlet.plugged.store(false, Ordering::Release);
    }
}
