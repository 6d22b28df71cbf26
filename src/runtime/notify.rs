//! Ready answers for an event loop that is not corelane's own.

use crate::queue::completion::{CompletionReceiver, IoWaker};
use crate::sys::sync::Arc;
use crate::units::ModelId;
use rustix::fd::BorrowedFd;

/// Tells which requests, submitted with [`submit_notified`](super::Request::submit_notified), are
/// done.
///
/// ```text
/// loop {
///     wait until fd() is readable         (poll, epoll, whatever the loop is made of)
///     clear()
///     while let Some(..) = next() { look at that request }
///     if !rest() { come again at once }
/// }
/// ```
///
/// What it tells is a hint: "look at the request in this slot". The request itself is the truth.
pub struct Completions {
    rings: Vec<CompletionReceiver>,
    waker: Arc<IoWaker>,
}

impl Completions {
    pub(super) fn new(rings: Vec<CompletionReceiver>, waker: Arc<IoWaker>) -> Completions {
        // From here on the first completion makes the descriptor readable.
        waker.flag().announce(false);
        Completions { rings, waker }
    }

    /// The descriptor of an eventfd, readable when something is ready. Level or edge triggered.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.waker.fd()
    }

    /// Makes [`fd`](Self::fd) readable from any thread.
    pub fn waker(&self) -> &Arc<IoWaker> {
        &self.waker
    }

    /// Makes [`fd`](Self::fd) unreadable, before looking.
    pub fn clear(&mut self) {
        self.waker.flag().cancel();
        self.waker.clear();
    }

    /// A request that is done: its model and its slot.
    #[allow(clippy::should_implement_trait)] // an iterator would promise that `None` is the end
    pub fn next(&mut self) -> Option<(ModelId, u32)> {
        let completion = self.rings.iter_mut().find_map(CompletionReceiver::receive)?;
        Some((completion.model, completion.slot))
    }

    /// After looking: from here on the next completion makes [`fd`](Self::fd) readable. `false` if
    /// one came meanwhile: then look again, since it may not have.
    pub fn rest(&mut self) -> bool {
        self.waker.flag().announce(false);
        self.rings.iter().all(CompletionReceiver::is_empty)
    }
}
