//! Requests: filled in their slots, handed over, waited for, read in their slots.

use super::args::{borrow, list, place};
use super::model::{check_len, corelane_model, no_tensor};
use super::status::{Told, code, corelane_status, fail, guard};
use crate::queue::handle::{Found, HandleWord};
use crate::runtime::{Answer, InferError, Pending, Request};
use crate::sys::clock;
use crate::sys::sync::{Ordering, SharedCell};
use crate::units::{Micros, Nanos, Priority};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

/// A time to wait that has no end.
pub(super) const WAIT_FOREVER: u64 = u64::MAX;

const VACANT: u32 = 1;
pub(super) const FILLING: u32 = 2;
const PENDING: u32 = 3;
/// Pending, and a callback will be called.
const DUE: u32 = 4;
pub(super) const DONE: u32 = 5;
const FAILED: u32 = 6;

/// Is told that a request has ended, on the thread that calls `corelane_runtime_dispatch`. From then
/// on the request is the program's again, to be read and freed, here or later. It must return and
/// throw nothing.
pub type corelane_callback = Option<
    unsafe extern "C" fn(
        request: *mut corelane_request,
        status: corelane_status,
        user: *mut c_void,
    ),
>;

/// The instant `timeout_us` microseconds from now.
pub(super) fn instant(timeout_us: u64) -> u64 {
    clock::now().after(Nanos(timeout_us.saturating_mul(1_000))).0
}

/// What a request is at.
pub(super) enum Stage {
    Vacant,
    Filling(Request),
    Pending(Pending),
    Done(Answer),
    Failed(InferError),
    /// It was being changed when corelane panicked.
    Broken,
}

impl Stage {
    /// How the request has ended, each time in words of its own.
    fn outcome(&self, model: &corelane_model) -> Result<(), Told> {
        match self {
            Stage::Failed(error) => Err(model.tell(error)),
            Stage::Broken => {
                let text = format_args!("a defect in corelane: it panicked over this request");
                Err(fail(corelane_status::Panic, text))
            }
            _ => Ok(()),
        }
    }
}

struct Inner {
    stage: Stage,
    callback: corelane_callback,
    user: *mut c_void,
}

impl Inner {
    fn phase(&self) -> u32 {
        match (&self.stage, self.callback) {
            (Stage::Vacant, _) => VACANT,
            (Stage::Filling(_), _) => FILLING,
            (Stage::Pending(_), None) => PENDING,
            (Stage::Pending(_), Some(_)) => DUE,
            (Stage::Done(_), _) => DONE,
            (Stage::Failed(_) | Stage::Broken, _) => FAILED,
        }
    }

    fn end(&mut self, result: Result<Answer, InferError>) {
        self.stage = match result {
            Ok(answer) => Stage::Done(answer),
            Err(error) => Stage::Failed(error),
        };
    }
}

/// A request. One thread uses it at a time; it may be handed to another one.
pub struct corelane_request {
    word: HandleWord,
    pub(super) index: u32,
    /// Set once, before the runtime is handed out.
    model: Cell<*const corelane_model>,
    inner: SharedCell<Inner>,
}

/// A request that this thread holds; put down when dropped.
pub(super) struct Held<'a>(&'a corelane_request);

impl Held<'_> {
    /// What it is at.
    pub(super) fn stage(&mut self) -> &mut Stage {
        &mut self.inner().stage
    }

    /// Where it is being filled.
    fn filling(&mut self) -> Result<&mut Request, Told> {
        let inner = self.inner();
        match inner.stage {
            Stage::Filling(ref mut request) => Ok(request),
            _ => Err(wrong_state(inner.phase())),
        }
    }

    /// Its answer.
    pub(super) fn answer(&mut self) -> Result<&mut Answer, Told> {
        let inner = self.inner();
        match inner.stage {
            Stage::Done(ref mut answer) => Ok(answer),
            _ => Err(wrong_state(inner.phase())),
        }
    }

    /// Whose it is.
    pub(super) fn model(&self) -> &corelane_model {
        self.0.model()
    }

    fn inner(&mut self) -> &mut Inner {
        // SAFETY: this thread holds the word, so it alone reaches the inner part; `&mut self` makes
        // one reference at a time.
        self.0.inner.with_mut(|inner| unsafe { &mut *inner })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let phase = self.inner().phase();
        if self.0.word.put(phase) {
            // The dispatcher came by meanwhile: it comes again.
            self.0.model().core.waker.wake_always();
        }
    }
}

fn wrong_state(phase: u32) -> Told {
    let is = match phase {
        VACANT => "free",
        FILLING => "being filled",
        PENDING => "submitted",
        DUE => "submitted with a callback",
        DONE => "answered",
        _ => "failed",
    };
    fail(corelane_status::WrongState, format_args!("the request is {is}"))
}

impl corelane_request {
    pub(super) fn new(index: u32) -> corelane_request {
        corelane_request {
            word: HandleWord::new(VACANT),
            index,
            model: Cell::new(ptr::null()),
            inner: SharedCell::new(Inner {
                stage: Stage::Vacant,
                callback: None,
                user: ptr::null_mut(),
            }),
        }
    }

    pub(super) fn belongs_to(&self, model: &corelane_model) {
        self.model.set(model);
    }

    pub(super) fn model(&self) -> &corelane_model {
        // SAFETY: set before the request was handed out, and never again; the model owns this
        // request and outlives it.
        unsafe { &*self.model.get() }
    }

    pub(super) fn is_vacant(&self) -> bool {
        self.word.is(VACANT)
    }

    pub(super) fn is_due(&self) -> bool {
        self.word.is(DUE)
    }

    /// Holds the request, if it is in one of `phases`.
    pub(super) fn hold(&self, phases: &[u32]) -> Result<Held<'_>, Told> {
        self.model().core.check()?;
        match self.word.take(|phase| phases.contains(&phase)) {
            Ok(_) => Ok(Held(self)),
            Err(Found::Held) => {
                let text = format_args!("another thread uses the request at this moment");
                Err(fail(corelane_status::Busy, text))
            }
            Err(Found::Phase(phase)) => Err(wrong_state(phase)),
        }
    }

    /// For the dispatcher: calls the callback if the request has ended.
    pub(super) fn deliver(&self) -> Result<bool, Found> {
        self.word.take_or_hint(DUE)?;
        let mut held = Held(self);
        let inner = held.inner();
        let Stage::Pending(pending) = &mut inner.stage else { return Ok(false) };
        let Some(result) = pending.poll() else { return Ok(false) };
        inner.end(result);
        let status = code(inner.stage.outcome(self.model()));
        let (callback, user) = (inner.callback.take(), inner.user);
        // From here on the program may use it, also within its callback.
        drop(held);
        if let Some(callback) = callback {
            // SAFETY: the program's function, called as its type says.
            unsafe { callback(ptr::from_ref(self).cast_mut(), status, user) };
        }
        Ok(true)
    }
}

/// Takes a request of `rows` rows for `model`, to be filled in place. What an earlier request left
/// is still in its inputs.
///
/// Ownership: the request is the caller's, until `corelane_request_free`, whatever becomes of it.
///
/// # Errors
/// `WRONG_ROWS`; `QUEUE_FULL`: no slot is free, or too many requests are not freed;
/// `SHUTTING_DOWN`; `FORKED`; `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_new(
    model: *const corelane_model,
    rows: u32,
    request: *mut *mut corelane_request,
) -> corelane_status {
    guard(|| {
        let place = place(request, "request")?;
        // SAFETY: C's promise: a model of a runtime that is not stopped.
        let model = unsafe { borrow(model, "model") }?;
        model.core.check()?;
        let slot = model.handle.request(rows as usize).map_err(|e| model.tell(&e))?;
        let Some(index) = model.free.pop() else {
            let count = model.requests.len();
            let text = format_args!("{count} requests are not freed yet; there are no more");
            return Err(fail(corelane_status::QueueFull, text));
        };
        let request = &model.requests[index as usize];
        let mut held = request.hold(&[VACANT])?;
        *held.inner() =
            Inner { stage: Stage::Filling(slot), callback: None, user: ptr::null_mut() };
        drop(held);
        // SAFETY: C's promise: `request` may be written.
        unsafe { place.put(ptr::from_ref(request).cast_mut()) };
        Ok(())
    })
}

/// Frees a request, in whatever state; null is allowed. One that was submitted is given up: it does
/// not run if it still waits, and its callback is not called.
///
/// Ownership: the request is corelane's again; what `corelane_request_input` and
/// `corelane_request_output` gave is not to be touched any more. Its address comes round again as that
/// of another request, so a second call with it may free that one, and say `OK`.
///
/// # Errors
/// `BUSY`: another thread uses it, or its callback is due: then nothing has changed, and the callback
/// will be called; `WRONG_STATE`: it is free already; `FORKED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_free(request: *mut corelane_request) -> corelane_status {
    guard(|| {
        if request.is_null() {
            return Ok(());
        }
        // SAFETY: C's promise: from `corelane_request_new`, of a runtime that is not stopped.
        let request = unsafe { borrow(request, "request") }?;
        let mut held = request.hold(&[FILLING, PENDING, DUE, DONE, FAILED])?;
        let inner = held.inner();
        let stage = std::mem::replace(&mut inner.stage, Stage::Vacant);
        if let (Stage::Pending(pending), Some(_)) = (stage, inner.callback)
            && let Err(back) = pending.give_up()
        {
            inner.stage = Stage::Pending(back);
            let text = format_args!("the request has ended, and its callback will be called");
            return Err(fail(corelane_status::Busy, text));
        }
        inner.callback = None;
        drop(held);
        let free = &request.model().free;
        free.push(request.index).expect("the ring holds every request");
        Ok(())
    })
}

/// Where to write input `index`: `bytes` bytes, rows after rows, aligned for its type.
///
/// Ownership: the bytes are the request's, and the caller's to write until it is submitted.
///
/// # Errors
/// `NOT_FOUND`: there is no such input; `WRONG_STATE`: it was submitted; `BUSY`, `FORKED`,
/// `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_input(
    request: *mut corelane_request,
    index: usize,
    data: *mut *mut c_void,
    bytes: *mut usize,
) -> corelane_status {
    guard(|| {
        let (data, bytes) = (place(data, "data")?, place(bytes, "bytes")?);
        // SAFETY: C's promise: a request that is not freed.
        let request = unsafe { borrow(request, "request") }?;
        let mut held = request.hold(&[FILLING])?;
        let area = input(&mut held, index)?;
        // SAFETY: C's promise: both may be written.
        unsafe {
            bytes.put(area.len());
            data.put(area.as_mut_ptr().cast());
        }
        Ok(())
    })
}

fn input<'a>(held: &'a mut Held<'_>, index: usize) -> Result<&'a mut [u8], Told> {
    let count = held.model().handle.signature().inputs.len();
    held.filling()?.input_bytes_mut(index).map_err(|_| no_tensor("input", index, count))
}

/// Copies input `index` in.
///
/// Ownership: `data` stays the caller's, and is not looked at after the call.
///
/// # Errors
/// `NOT_FOUND`: there is no such input; `WRONG_SIZE`; `WRONG_STATE`: it was submitted; `BUSY`,
/// `FORKED`, `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_set_input(
    request: *mut corelane_request,
    index: usize,
    data: *const c_void,
    bytes: usize,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a request that is not freed.
        let request = unsafe { borrow(request, "request") }?;
        let mut held = request.hold(&[FILLING])?;
        let area = input(&mut held, index)?;
        let specs = &request.model().handle.signature().inputs;
        check_len(specs, ("input", index), bytes, area.len())?;
        // SAFETY: C's promise: `bytes` bytes may be read.
        area.copy_from_slice(unsafe { list(data.cast::<u8>(), bytes, "data") }?);
        Ok(())
    })
}

/// Microseconds from submission after which the request is not worth running; 0 takes the model's
/// default. A deadline that can't be met is refused when the request is submitted.
///
/// Ownership: nothing changes hands.
///
/// # Errors
/// `WRONG_STATE`: it was submitted; `BUSY`, `FORKED`, `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_set_deadline(
    request: *mut corelane_request,
    deadline_us: u32,
) -> corelane_status {
    // SAFETY: C's promise: a request that is not freed.
    guard(|| unsafe { change(request, |r| r.timeout(Micros(deadline_us))) })
}

/// Priority; 1 is the highest, 0 takes the model's default. One that the model does not have is
/// refused when the request is submitted.
///
/// Ownership: nothing changes hands.
///
/// # Errors
/// `WRONG_STATE`: it was submitted; `BUSY`, `FORKED`, `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_set_priority(
    request: *mut corelane_request,
    priority: u8,
) -> corelane_status {
    // SAFETY: C's promise: a request that is not freed.
    guard(|| unsafe { change(request, |r| r.priority(Priority(priority))) })
}

/// # Safety
/// `request` is null or not freed.
unsafe fn change(
    request: *mut corelane_request,
    f: impl FnOnce(Request) -> Request,
) -> Result<(), Told> {
    // SAFETY: the caller's promise.
    let request = unsafe { borrow(request, "request") }?;
    let mut held = request.hold(&[FILLING])?;
    let stage = &mut held.inner().stage;
    match std::mem::replace(stage, Stage::Broken) {
        Stage::Filling(request) => *stage = Stage::Filling(f(request)),
        other => *stage = other,
    }
    Ok(())
}

/// Hands the request over without waiting: then poll it, or wait for it.
///
/// Ownership: the request stays the caller's; its inputs are corelane's from here on.
///
/// # Errors
/// Why it was refused: `QUEUE_FULL`, `DEADLINE_UNMEETABLE`, `BAD_PRIORITY`, `DEADLINE_TOO_LONG`,
/// `SHUTTING_DOWN`; then it has ended, and can only be freed. Or `WRONG_STATE`: it was submitted
/// already; `BUSY`, `FORKED`, `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_submit(
    request: *mut corelane_request,
) -> corelane_status {
    // SAFETY: C's promise: a request that is not freed.
    guard(|| unsafe { submit(request, None, ptr::null_mut()) })
}

/// Hands the request over; `callback` is called with it and `user` when it has ended, by the thread
/// that then calls `corelane_runtime_dispatch`: exactly once, unless the request is freed before.
///
/// Ownership: the request is corelane's until its callback is called; only
/// `corelane_request_free` may be called before. `user` stays the program's.
///
/// # Errors
/// As `corelane_request_submit`; then the callback is not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_submit_callback(
    request: *mut corelane_request,
    callback: corelane_callback,
    user: *mut c_void,
) -> corelane_status {
    guard(|| {
        if callback.is_none() {
            return Err(super::args::null("callback"));
        }
        // SAFETY: C's promise: a request that is not freed.
        unsafe { submit(request, callback, user) }
    })
}

/// # Safety
/// `request` is null or not freed.
unsafe fn submit(
    request: *mut corelane_request,
    callback: corelane_callback,
    user: *mut c_void,
) -> Result<(), Told> {
    // SAFETY: the caller's promise.
    let handle = unsafe { borrow(request, "request") }?;
    let mut held = handle.hold(&[FILLING])?;
    let inner = held.inner();
    let Stage::Filling(request) = std::mem::replace(&mut inner.stage, Stage::Broken) else {
        return Err(wrong_state(FAILED));
    };
    let submitted = match callback {
        None => request.submit(),
        Some(_) => {
            let slot = request.slot() as usize;
            // Relaxed: ordered by the submission, before the dispatcher can hear of it.
            handle.model().by_slot[slot].store(handle.index, Ordering::Relaxed);
            request.submit_notified()
        }
    };
    match submitted {
        Ok(pending) => {
            *inner = Inner { stage: Stage::Pending(pending), callback, user };
            Ok(())
        }
        Err(error) => {
            inner.stage = Stage::Failed(error);
            inner.stage.outcome(handle.model())
        }
    }
}

/// Looks whether the answer is there: `OK` if so, `PENDING` if not yet.
///
/// Ownership: nothing changes hands.
///
/// # Errors
/// Why it failed; or `WRONG_STATE`: it was not submitted, or with a callback; `BUSY`, `FORKED`,
/// `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_poll(request: *mut corelane_request) -> corelane_status {
    // SAFETY: C's promise: a request that is not freed.
    guard(|| match unsafe { await_until(request, 0) }? {
        true => Ok(corelane_status::Ok),
        false => Ok(corelane_status::Pending),
    })
}

/// Waits for the answer, at most `timeout_us` microseconds; `CORELANE_WAIT_FOREVER` waits until the
/// request ends, which its deadline or its worker brings about.
///
/// Ownership: nothing changes hands.
///
/// # Errors
/// `TIMEOUT`: it goes on, and may be waited for again; why it failed; or `WRONG_STATE`: it was not
/// submitted, or with a callback; `BUSY`, `FORKED`, `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_wait(
    request: *mut corelane_request,
    timeout_us: u64,
) -> corelane_status {
    guard(|| {
        let until = if timeout_us == WAIT_FOREVER { WAIT_FOREVER } else { instant(timeout_us) };
        // SAFETY: C's promise: a request that is not freed.
        match unsafe { await_until(request, until) }? {
            true => Ok(()),
            false => {
                let text = format_args!("no answer within {timeout_us} us; the request goes on");
                Err(fail(corelane_status::Timeout, text))
            }
        }
    })
}

/// Whether the request has ended well by `until`.
///
/// # Safety
/// `request` is null or not freed.
unsafe fn await_until(request: *mut corelane_request, until: u64) -> Result<bool, Told> {
    // SAFETY: the caller's promise.
    let request = unsafe { borrow(request, "request") }?;
    let mut held = request.hold(&[PENDING, DONE, FAILED])?;
    let inner = held.inner();
    if let Stage::Pending(pending) = &mut inner.stage {
        let result = if until == 0 { pending.poll() } else { pending.wait_until(Nanos(until)) };
        match result {
            None => return Ok(false),
            Some(result) => inner.end(result),
        }
    }
    inner.stage.outcome(request.model()).map(|()| true)
}

/// Submits the request and waits until it ends, which its deadline or its worker brings about.
///
/// Ownership: the request stays the caller's.
///
/// # Errors
/// Why it was refused, or failed; or `WRONG_STATE`, `BUSY`, `FORKED`, `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_infer(request: *mut corelane_request) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a request that is not freed.
        unsafe { submit(request, None, ptr::null_mut()) }?;
        // SAFETY: as above.
        unsafe { await_until(request, WAIT_FOREVER) }.map(drop)
    })
}
