//! Start, stop, and the answers that an event loop is told of.

use super::args::{borrow, place, text};
use super::builder::{built, copied, corelane_builder};
use super::errand::on_own_thread;
use super::fork::ForkMark;
use super::model::{corelane_model, held};
use super::request::{WAIT_FOREVER, instant};
use super::running::Claim;
use super::status::{Told, corelane_status, fail, guard, guard_value, reload_error};
use crate::limits::WORKER_PATIENCE_MS;
use crate::queue::completion::IoWaker;
use crate::queue::handle::Found;
use crate::runtime::{Completions, Runtime};
use crate::sys::sync::{Arc, AtomicBool, Ordering, SharedCell};
use crate::sys::{alloc, clock};
use crate::units::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsRawFd;
use std::ffi::{c_char, c_int};
use std::time::Duration;

/// How often all requests with a callback are looked at, besides those that a worker tells of: one
/// whose worker died tells of nothing.
const SWEEP: Nanos = Nanos(50_000_000);

/// What every model of a runtime shares.
pub struct Core {
    mark: ForkMark,
    pub(super) waker: Arc<IoWaker>,
}

impl Core {
    /// Refuses in the child of a `fork`, where no worker would ever answer.
    pub(super) fn check(&self) -> Result<(), Told> {
        if self.mark.is_here() {
            return Ok(());
        }
        let text = format_args!(
            "the runtime was started before this process was forked; its threads are the \
             parent's: start one in the child"
        );
        Err(fail(corelane_status::Forked, text))
    }
}

/// What only the thread that dispatches touches.
struct Dispatcher {
    completions: Completions,
    /// Requests that were held when their answer came: model, request.
    deferred: Vec<(usize, u32)>,
    swept_at: Nanos,
}

/// A running runtime: its workers serve until it is stopped.
pub struct corelane_runtime {
    runtime: Runtime,
    models: Box<[corelane_model]>,
    core: Arc<Core>,
    dispatching: AtomicBool,
    dispatcher: SharedCell<Dispatcher>,
    /// Given up last, when the workers have ended.
    _claim: Claim,
}

// SAFETY: the dispatcher is reached only by the thread that took `dispatching`; the requests' parts
// only by the thread that holds them; all else is `Sync` by itself.
unsafe impl Sync for corelane_runtime {}
// SAFETY: nothing in it is tied to a thread; raw pointers lead to the models, which it owns.
unsafe impl Send for corelane_runtime {}

impl corelane_runtime {
    fn new(
        mut runtime: Runtime,
        builder: &corelane_builder,
        claim: Claim,
    ) -> Result<Box<Self>, Told> {
        claim.take_cores(runtime.shared().workers.iter().filter_map(|(core, _)| *core).collect());
        let mark = ForkMark::new()
            .map_err(|e| fail(corelane_status::System, format_args!("no page to mark: {e}")))?;
        let completions = runtime.take_completions().ok_or_else(|| {
            fail(corelane_status::Panic, format_args!("a defect in corelane: no completion rings"))
        })?;
        let core = Arc::new(Core { mark, waker: completions.waker().clone() });
        let client = runtime.client();
        let model = |served: &crate::runtime::ServedModel| {
            let handle = client
                .model(&served.name)
                .map_err(|e| fail(corelane_status::NotFound, format_args!("{e}")))?;
            Ok(corelane_model::new(served, handle, builder.wait, &core))
        };
        let models: Box<[corelane_model]> =
            runtime.shared().models.iter().map(model).collect::<Result<_, _>>()?;
        let requests: usize = models.iter().map(|m| m.requests.len()).sum();
        for model in &models {
            for request in &model.requests {
                request.belongs_to(model);
            }
        }
        let deferred = Vec::with_capacity(requests);
        let swept_at = clock::now();
        Ok(Box::new(corelane_runtime {
            runtime,
            models,
            core: core.clone(),
            dispatching: AtomicBool::new(false),
            dispatcher: SharedCell::new(Dispatcher { completions, deferred, swept_at }),
            _claim: claim,
        }))
    }

    fn running(&self) -> Result<&Runtime, Told> {
        self.core.check()?;
        Ok(&self.runtime)
    }

    /// Makes the calling thread the one that dispatches.
    fn dispatcher(&self) -> Result<Dispatching<'_>, Told> {
        // Acquire: what the last one wrote. Partner: the store in `Dispatching::drop`.
        if self.dispatching.swap(true, Ordering::Acquire) {
            let text = format_args!("another thread, or a callback, dispatches at this moment");
            return Err(fail(corelane_status::Busy, text));
        }
        Ok(Dispatching(self))
    }
}

/// The right to dispatch.
struct Dispatching<'a>(&'a corelane_runtime);

impl Drop for Dispatching<'_> {
    fn drop(&mut self) {
        // Release, with the acquire in `dispatcher`.
        self.0.dispatching.store(false, Ordering::Release);
    }
}

impl Dispatching<'_> {
    fn with<T>(&mut self, f: impl FnOnce(&mut Dispatcher) -> T) -> T {
        // SAFETY: `dispatching` was false and is true until `self` is dropped, so this thread alone
        // reaches the dispatcher; `&mut self` makes one reference at a time, since `f` calls nothing
        // of the program's.
        self.0.dispatcher.with_mut(|dispatcher| f(unsafe { &mut *dispatcher }))
    }

    /// Looks at a request; calls its callback if it has ended. Returns whether it did.
    fn visit(&mut self, model: usize, request: u32) -> bool {
        let models = &self.0.models;
        match models[model].requests[request as usize].deliver() {
            Ok(called) => called,
            Err(Found::Held) => {
                self.with(|d| {
                    // A full list loses nothing: the sweep finds what is not on it.
                    if d.deferred.len() < d.deferred.capacity()
                        && !d.deferred.contains(&(model, request))
                    {
                        d.deferred.push((model, request));
                    }
                });
                false
            }
            Err(Found::Phase(_)) => false,
        }
    }

    /// Calls the callbacks of all requests that have ended so far.
    fn turn(&mut self) -> u32 {
        let mut called = 0;
        self.with(|d| d.completions.clear());
        // Those that are held still go to the end of the list, and wait for the next turn.
        for _ in 0..self.with(|d| d.deferred.len()) {
            let (model, request) = self.with(|d| d.deferred.remove(0));
            called += u32::from(self.visit(model, request));
        }
        // At most as many as there are requests: callbacks may submit new ones for ever.
        for _ in 0..self.with(|d| d.deferred.capacity()) {
            let Some((model, slot)) = self.with(|d| d.completions.next()) else { break };
            let model = usize::from(model.0);
            let Some(request) = self.0.models.get(model).and_then(|m| m.by_slot.get(slot as usize))
            else {
                continue;
            };
            // Relaxed: written before the request was submitted, ordered by the ring.
            let request = request.load(Ordering::Relaxed);
            called += u32::from(self.visit(model, request));
        }
        let now = clock::now();
        if now.since(self.with(|d| d.swept_at)) >= SWEEP {
            self.with(|d| d.swept_at = now);
            for (n, model) in self.0.models.iter().enumerate() {
                for request in model.requests.iter().filter(|r| r.is_due()) {
                    called += u32::from(self.visit(n, request.index));
                }
            }
        }
        called
    }

    /// Turns until a callback was called or `until` has come.
    fn run(&mut self, until: Nanos) -> Result<u32, Told> {
        loop {
            let called = self.turn();
            let rests = self.with(|d| d.completions.rest());
            if !rests {
                // Something came meanwhile, or is left: the descriptor says so.
                self.0.core.waker.wake_always();
            }
            let now = clock::now();
            if called > 0 || now >= until {
                return Ok(called);
            }
            if rests {
                self.wait(until.since(now).min(SWEEP))?;
            }
        }
    }

    fn wait(&mut self, most: Nanos) -> Result<(), Told> {
        let waker = &self.0.core.waker;
        let fd = waker.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let timeout = Timespec::try_from(Duration::from_nanos(most.0)).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(fail(corelane_status::System, format_args!("waiting: {e}"))),
        }
    }
}

/// Loads, checks and warms up every model, starts the workers, and returns when all are ready. No
/// thread of corelane runs before this call.
///
/// Ownership: the runtime is the caller's, until `corelane_runtime_stop` succeeds; the builder
/// stays the caller's, and may be freed at once.
///
/// # Errors
/// `MODEL`, `CONFIG`, `AFFINITY`, `LIMIT`, `WORKER`, `SYSTEM`, `INVALID_ARGUMENT`: the first thing
/// that is not as asked for. Then nothing keeps running. `CONFIG` too where a runtime that runs in this
/// process was started with another `[memory]`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_runtime_start(
    builder: *const corelane_builder,
    runtime: *mut *mut corelane_runtime,
) -> corelane_status {
    guard(|| {
        let place = place(runtime, "runtime")?;
        // SAFETY: C's promise: a live builder that no other thread changes.
        let builder = unsafe { copied(builder) }?;
        let claim = Claim::new(builder.config.memory)?;
        let result = on_own_thread(|| builder.build())?;
        let runtime = corelane_runtime::new(built(result)?, &builder, claim)?;
        event!(info, "{} models, ready", runtime.models.len());
        // SAFETY: C's promise: `runtime` may be written.
        unsafe { place.put(Box::into_raw(runtime)) };
        Ok(())
    })
}

/// Accepts nothing more, waits at most `timeout_us` microseconds (`CORELANE_WAIT_FOREVER`: as long as
/// it takes) until every accepted request has ended, then ends the workers and frees the runtime. No
/// other call with this runtime, its models or its requests may run meanwhile or come later.
///
/// Ownership: if it returns `OK` or `WORKER` the runtime is gone, with its models. Else it is the
/// caller's still, and the call may be repeated.
///
/// # Errors
/// `IN_USE`: requests are not freed (nothing has changed); `TIMEOUT`: requests still run; `BUSY`:
/// from within a callback; `WORKER`: a thread that had nothing to do did not end within 10 seconds, so the
/// library must stay loaded; `FORKED`; `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_runtime_stop(
    runtime: *mut corelane_runtime,
    timeout_us: u64,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a runtime that is not stopped.
        let this = unsafe { borrow(runtime, "runtime") }?;
        let inner = this.running()?;
        drop(this.dispatcher()?);
        for model in &this.models {
            let held = held(model);
            if held > 0 {
                let name = model.name();
                let text = format_args!("model {name:?}: {held} requests are not freed yet");
                return Err(fail(corelane_status::InUse, text));
            }
        }
        let patience = Duration::from_micros(timeout_us);
        let report = inner.drain(patience);
        if !report.clean {
            let text = format_args!(
                "{} requests still run after {timeout_us} us; stop again",
                report.left
            );
            return Err(fail(corelane_status::Timeout, text));
        }
        // SAFETY: C's promise: nobody else uses the runtime; it came from `Box::into_raw`, and `this`
        // and `inner` are not used again.
        let owned = unsafe { Box::from_raw(runtime) };
        let stuck = on_own_thread(move || {
            let this = *owned;
            this.runtime.shutdown(Duration::from_millis(WORKER_PATIENCE_MS)).stuck
        })?;
        if stuck.is_empty() {
            return Ok(());
        }
        let text = format_args!(
            "workers {stuck:?} did not end within {} s: the library must stay loaded",
            WORKER_PATIENCE_MS / 1000
        );
        Err(fail(corelane_status::Worker, text))
    })
}

/// Reads the files of the model called `name` again and, if they changed, serves what they hold now, once it is
/// checked and warm. Takes as long as loading does; meanwhile other threads go on asking, and once it returns
/// every answer is the new version's. `changed` may be null, else it is set to 1 if there was another version, to 0
/// if not. Names, tensors and limits of a model never change so. Calls from several threads take turns.
///
/// Ownership: nothing changes hands: the model and its requests stay what they are; `name` stays the
/// caller's.
///
/// # Errors
/// The former version serves on. `NOT_FOUND`: the message lists the models; `MODEL`: the files can't be
/// loaded, do not pass the checks, or changed while they were read; `CONFIG`: they differ in what is fixed
/// at the start, which the message names; `SYSTEM`: there is no memory for two versions; `WORKER`: an
/// instance could not be made, or failed its warm-up; `TIMEOUT`: a worker did not end its batch within 10
/// seconds; `SHUTTING_DOWN`; `FORKED`; `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_runtime_reload(
    runtime: *const corelane_runtime,
    name: *const c_char,
    changed: *mut u32,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a runtime that is not stopped.
        let reloader = unsafe { borrow(runtime, "runtime") }?.running()?.reloader();
        // SAFETY: C's promise: a text that ends with a zero.
        let name = unsafe { text(name, "name") }?;
        let done = on_own_thread(|| reloader.reload(name))?.map_err(|e| reload_error(&e))?;
        if !changed.is_null() {
            let place = place(changed, "changed")?;
            // SAFETY: C's promise: `changed` may be written.
            unsafe { place.put(done.changed.into()) };
        }
        Ok(())
    })
}

/// The model called `name`.
///
/// Ownership: the model is the runtime's, and gone with it; `name` stays the caller's.
///
/// # Errors
/// `NOT_FOUND`: the message lists the models; `INVALID_ARGUMENT`; `FORKED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_runtime_find_model(
    runtime: *const corelane_runtime,
    name: *const c_char,
    model: *mut *const corelane_model,
) -> corelane_status {
    guard(|| {
        let place = place(model, "model")?;
        // SAFETY: C's promise: a runtime that is not stopped.
        let runtime = unsafe { borrow(runtime, "runtime") }?;
        runtime.core.check()?;
        // SAFETY: C's promise: a text that ends with a zero.
        let name = unsafe { text(name, "name") }?;
        let found = runtime.models.iter().find(|m| m.name().to_bytes() == name.as_bytes());
        let Some(found) = found else {
            let known: Vec<_> = runtime.models.iter().map(|m| m.name().to_string_lossy()).collect();
            let known = known.join(", ");
            let text = format_args!("there is no model {name:?}; there are: {known}");
            return Err(fail(corelane_status::NotFound, text));
        };
        // SAFETY: C's promise: `model` may be written.
        unsafe { place.put(found) };
        Ok(())
    })
}

/// How many models the runtime serves; 0 if `runtime` is null.
///
/// Ownership: nothing changes hands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_runtime_model_count(runtime: *const corelane_runtime) -> usize {
    // SAFETY: C's promise: a runtime that is not stopped.
    guard_value(0, || unsafe { runtime.as_ref() }.map_or(0, |r| r.models.len()))
}

/// Model `index`, in the order in which they were added; null if there is none.
///
/// Ownership: the model is the runtime's, and gone with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_runtime_model(
    runtime: *const corelane_runtime,
    index: usize,
) -> *const corelane_model {
    guard_value(std::ptr::null(), || {
        // SAFETY: C's promise: a runtime that is not stopped.
        let model = unsafe { runtime.as_ref() }.and_then(|r| r.models.get(index));
        model.map_or(std::ptr::null(), std::ptr::from_ref)
    })
}

/// The descriptor of an eventfd, for the program's event loop: when it is readable, call
/// `corelane_runtime_dispatch`. Level or edge triggered; -1 if `runtime` is null or forked.
///
/// Ownership: the descriptor is the runtime's: not to be read, written or closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_runtime_event_fd(runtime: *const corelane_runtime) -> c_int {
    guard_value(-1, || {
        // SAFETY: C's promise: a runtime that is not stopped.
        let runtime = unsafe { runtime.as_ref() }.filter(|r| r.core.mark.is_here());
        runtime.map_or(-1, |r| r.core.waker.fd().as_raw_fd())
    })
}

/// Calls the callbacks of the requests that have ended, on the calling thread. Waits at most
/// `timeout_us` microseconds until there is one; 0 does not wait, `CORELANE_WAIT_FOREVER` has no end.
/// `called` may be null, else it is set to the number of callbacks that were called.
///
/// Ownership: each request is its program's again when its callback is called.
///
/// # Errors
/// `BUSY`: another thread dispatches, or this is within a callback; `SYSTEM`; `FORKED`;
/// `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_runtime_dispatch(
    runtime: *const corelane_runtime,
    timeout_us: u64,
    called: *mut u32,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a runtime that is not stopped.
        let runtime = unsafe { borrow(runtime, "runtime") }?;
        runtime.core.check()?;
        let until = if timeout_us == WAIT_FOREVER { WAIT_FOREVER } else { instant(timeout_us) };
        let count = runtime.dispatcher()?.run(Nanos(until))?;
        if let Ok(place) = place(called, "called") {
            // SAFETY: C's promise: `called` may be written.
            unsafe { place.put(count) };
        }
        Ok(())
    })
}

/// Counters and stage histograms as JSON text with a closing zero, as `corelane stats` prints them.
/// `needed` is set to the bytes that the text takes, its zero included; if `bytes` is less, nothing
/// is written. Not for the request path: it allocates.
///
/// Ownership: `text` is the caller's; it may be null if `bytes` is 0.
///
/// # Errors
/// `WRONG_SIZE`: the buffer is too short; `FORKED`; `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_runtime_write_stats(
    runtime: *const corelane_runtime,
    text: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> corelane_status {
    guard(|| {
        let place = place(needed, "needed")?;
        // SAFETY: C's promise: a runtime that is not stopped.
        let runtime = unsafe { borrow(runtime, "runtime") }?;
        let json = serde_json::to_string(&runtime.running()?.stats())
            .map_err(|e| fail(corelane_status::Panic, format_args!("no JSON: {e}")))?;
        let length = json.len() + 1;
        // SAFETY: C's promise: `needed` may be written.
        unsafe { place.put(length) };
        if bytes < length {
            let text = format_args!("the text takes {length} bytes, the buffer has {bytes}");
            return Err(fail(corelane_status::WrongSize, text));
        }
        if text.is_null() {
            return Err(super::args::null("text"));
        }
        // SAFETY: C's promise: `bytes` bytes may be written, which is enough; they are the caller's,
        // so they don't overlap with the new text.
        unsafe {
            std::ptr::copy_nonoverlapping(json.as_ptr(), text.cast(), json.len());
            text.add(json.len()).write(0);
        }
        Ok(())
    })
}

/// Calls of the system allocator that workers made since they were ready, of all runtimes in the
/// process: 0, if corelane keeps its promise.
///
/// Ownership: `calls` is the caller's.
///
/// # Errors
/// `UNAVAILABLE`: the library was built without the counting allocator; `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_runtime_hot_allocations(calls: *mut u64) -> corelane_status {
    guard(|| {
        let place = place(calls, "calls")?;
        if !alloc::installed() {
            let text = format_args!("the counting allocator is not installed");
            return Err(fail(corelane_status::Unavailable, text));
        }
        // SAFETY: C's promise: `calls` may be written.
        unsafe { place.put(alloc::hot_calls()) };
        Ok(())
    })
}
