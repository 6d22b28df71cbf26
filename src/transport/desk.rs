//! Statistics text, made on a thread of its own: rendering allocates, and the I/O thread may not.

use crate::limits::FRAME_BODY_BYTES_MAX;
use crate::queue::completion::IoWaker;
use crate::sys::sync::{Arc, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

struct State {
    wanted: bool,
    closed: bool,
    page: Box<[u8]>,
    len: usize,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Pages made so far.
    made: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Asks a housekeeping thread for a page of text and gets it without waiting. Dropping it ends the
/// thread.
pub struct StatsDesk {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    seen: u64,
}

impl std::fmt::Debug for StatsDesk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StatsDesk")
    }
}

impl StatsDesk {
    /// Starts the thread `cl-stats`; `render` appends JSON text to the empty string that it gets.
    /// Text over [`FRAME_BODY_BYTES_MAX`] bytes is replaced by an object with the key `too_long`.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn spawn(
        waker: Arc<IoWaker>,
        mut render: impl FnMut(&mut String) + Send + 'static,
    ) -> std::io::Result<StatsDesk> {
        let page = vec![0; FRAME_BODY_BYTES_MAX].into_boxed_slice();
        let shared = Arc::new(Shared {
            state: Mutex::new(State { wanted: false, closed: false, page, len: 0 }),
            wake: Condvar::new(),
            made: AtomicU64::new(0),
        });
        let theirs = shared.clone();
        let work = move || {
            let mut text = String::new();
            loop {
                let mut state = theirs.lock();
                while !state.wanted && !state.closed {
                    state = theirs.wake.wait(state).unwrap_or_else(|e| e.into_inner());
                }
                if state.closed {
                    return;
                }
                state.wanted = false;
                drop(state);
                text.clear();
                render(&mut text);
                if text.len() > FRAME_BODY_BYTES_MAX {
                    text = format!("{{\"too_long\":{}}}", text.len());
                }
                let mut state = theirs.lock();
                state.page[..text.len()].copy_from_slice(text.as_bytes());
                state.len = text.len();
                drop(state);
                // Release, with the acquire in `is_new`: whoever sees the count finds the page.
                theirs.made.fetch_add(1, Ordering::Release);
                waker.wake();
            }
        };
        let thread = std::thread::Builder::new().name("cl-stats".into()).spawn(work)?;
        Ok(StatsDesk { shared, thread: Some(thread), seen: 0 })
    }
    /// Asks for a page that is made after this call.
    pub(super) fn want(&self) {
        self.shared.lock().wanted = true;
        self.shared.wake.notify_one();
    }
    /// Whether a page was made since the last [`read`](Self::read).
    pub(super) fn is_new(&self) -> bool {
        self.shared.made.load(Ordering::Acquire) != self.seen
    }
    /// Gives the latest page to `f`.
    pub(super) fn read(&mut self, f: impl FnOnce(&[u8])) {
        self.seen = self.shared.made.load(Ordering::Acquire);
        let state = self.shared.lock();
        f(&state.page[..state.len]);
    }
}

impl Drop for StatsDesk {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
