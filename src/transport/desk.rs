//! Text that is made on a thread of its own, since making it allocates, and the I/O thread may not:
//! statistics, and what came of a reload.

use crate::limits::{FRAME_BODY_BYTES_MAX, MODEL_NAME_LEN_MAX, RELOADS_WAITING_REQUESTS_MAX};
use crate::queue::completion::IoWaker;
use crate::sys::realtime;
use crate::sys::sync::{Arc, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

struct State {
    wanted: bool,
    /// The model that it is wanted for.
    model: heapless::String<MODEL_NAME_LEN_MAX>,
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
struct Desk {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    seen: u64,
}

impl Desk {
    /// Starts the thread `name`; `render` is given the model that was asked for and appends text to the
    /// empty string that it gets.
    fn spawn(
        name: &str,
        waker: Arc<IoWaker>,
        mut render: impl FnMut(&str, &mut String) + Send + 'static,
    ) -> std::io::Result<Desk> {
        let page = vec![0; FRAME_BODY_BYTES_MAX].into_boxed_slice();
        let model = heapless::String::new();
        let shared = Arc::new(Shared {
            state: Mutex::new(State { wanted: false, model, closed: false, page, len: 0 }),
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
                let model = state.model.clone();
                drop(state);
                text.clear();
                render(&model, &mut text);
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
        let thread = std::thread::Builder::new().name(name.into()).spawn(work)?;
        Ok(Desk { shared, thread: Some(thread), seen: 0 })
    }
    fn want(&self, model: heapless::String<MODEL_NAME_LEN_MAX>) {
        let mut state = self.shared.lock();
        (state.wanted, state.model) = (true, model);
        drop(state);
        self.shared.wake.notify_one();
    }
    fn is_new(&self) -> bool {
        self.shared.made.load(Ordering::Acquire) != self.seen
    }
    fn read(&mut self, f: impl FnOnce(&[u8])) {
        self.seen = self.shared.made.load(Ordering::Acquire);
        let state = self.shared.lock();
        f(&state.page[..state.len]);
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Who makes the statistics' text. Dropping it ends its thread.
pub struct StatsDesk(Desk);

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
        Desk::spawn("cl-stats", waker, move |_, text| render(text)).map(StatsDesk)
    }
    /// Asks for a page that is made after this call.
    pub(super) fn want(&self) {
        self.0.want(heapless::String::new());
    }
    /// Whether a page was made since the last [`read`](Self::read).
    pub(super) fn is_new(&self) -> bool {
        self.0.is_new()
    }
    /// Gives the latest page to `f`.
    pub(super) fn read(&mut self, f: impl FnOnce(&[u8])) {
        self.0.read(f);
    }
}

/// What a [`ReloadHandler`] calls.
type Reload = dyn Fn(Option<&str>, &mut String) + Send + Sync;

/// Who loads models anew when a client asks for it. It runs on the thread `cl-control`, one call at a time.
#[derive(Clone)]
pub struct ReloadHandler(Arc<Reload>);

impl std::fmt::Debug for ReloadHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReloadHandler")
    }
}

impl ReloadHandler {
    /// `reload` is given the name of a model that is served, or none for all of them, and appends to the
    /// empty string that it gets, as JSON text, what came of it: at most [`FRAME_BODY_BYTES_MAX`] bytes, else an
    /// object with the key `too_long` is told in its place.
    pub fn new(reload: impl Fn(Option<&str>, &mut String) + Send + Sync + 'static) -> Self {
        ReloadHandler(Arc::new(reload))
    }
}

/// A request to reload: of which connection, which of its requests, of which model (empty: all).
#[derive(Debug)]
pub(super) struct Asked {
    pub conn: u16,
    pub number: u32,
    pub model: heapless::String<MODEL_NAME_LEN_MAX>,
}

/// The requests to reload that wait, and the one that is carried out.
pub(super) struct ReloadDesk {
    desk: Desk,
    waiting: heapless::Deque<Asked, RELOADS_WAITING_REQUESTS_MAX>,
    current: Option<(u16, u32)>,
    asked: u32,
}

impl std::fmt::Debug for ReloadDesk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReloadDesk")
    }
}

impl Drop for ReloadDesk {
    /// Does not wait for a reload that is carried out: loading may take longer than a drain.
    fn drop(&mut self) {
        drop(self.desk.thread.take());
    }
}

impl ReloadDesk {
    pub fn spawn(waker: Arc<IoWaker>, handler: ReloadHandler) -> std::io::Result<ReloadDesk> {
        let ReloadHandler(reload) = handler;
        let render = move |model: &str, text: &mut String| {
            realtime::step_back();
            reload(Some(model).filter(|model| !model.is_empty()), text);
        };
        let desk = Desk::spawn("cl-control", waker, render)?;
        Ok(ReloadDesk { desk, waiting: heapless::Deque::new(), current: None, asked: 0 })
    }
    /// Takes a request of connection `conn`; its number. `Err`: so many wait already.
    pub fn ask(&mut self, conn: u16, model: &str) -> Result<u32, usize> {
        self.asked = self.asked.wrapping_add(1);
        let number = self.asked;
        let model = model.chars().collect();
        let full = self.waiting.push_back(Asked { conn, number, model }).is_err();
        self.go_on();
        if full { Err(self.waiting.len()) } else { Ok(number) }
    }
    fn go_on(&mut self) {
        if self.current.is_none()
            && let Some(Asked { conn, number, model }) = self.waiting.pop_front()
        {
            self.current = Some((conn, number));
            self.desk.want(model);
        }
    }
    /// The connection and the request that an answer is there for.
    pub fn done(&self) -> Option<(u16, u32)> {
        self.current.filter(|_| self.desk.is_new())
    }
    /// Gives that answer to `f`, which says whether it was taken; then comes the next.
    pub fn give(&mut self, f: impl FnOnce(&[u8]) -> bool) {
        let mut taken = false;
        let seen = self.desk.seen;
        self.desk.read(|page| taken = f(page));
        if taken {
            self.current = None;
            self.go_on();
        } else {
            self.desk.seen = seen;
        }
    }
}
