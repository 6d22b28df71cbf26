//! Status codes, the calling thread's last message, and the border that no panic crosses.

use super::line::Line;
use crate::queue::{Failure, Refusal};
use crate::runtime::{BuildError, InferError, ReloadError};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes of the calling thread's last message, its closing zero included.
const MESSAGE_BYTES: usize = 512;

/// What a function returned: 0 and above is no error, below 0 is one.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum corelane_status {
    /// Done.
    Ok = 0,
    /// The answer is not there yet; no error.
    Pending = 1,
    /// A null pointer, a text that is not UTF-8, or a number that names nothing.
    InvalidArgument = -1,
    /// The header's version is not one that this library serves.
    AbiMismatch = -2,
    /// The configuration is wrong, or contradicts itself.
    Config = -3,
    /// A model can't be read, or is not what its manifest says.
    Model = -4,
    /// A core is not allowed, or a pin did not take.
    Affinity = -5,
    /// A count or a size is over its limit.
    Limit = -6,
    /// The operating system refused something.
    System = -7,
    /// A worker could not start.
    Worker = -8,
    /// No model, tensor or label of that name or number.
    NotFound = -9,
    /// A buffer has another size than the tensor.
    WrongSize = -10,
    /// The request is not in the state that this function needs.
    WrongState = -11,
    /// Another thread uses it at this moment.
    Busy = -12,
    /// Requests are not freed yet.
    InUse = -13,
    /// The time to wait is over; what was waited for goes on.
    Timeout = -14,
    /// The process is the child of a `fork`: the runtime's threads are not in it.
    Forked = -15,
    /// A defect of corelane: a panic was caught.
    Panic = -16,
    /// `max_queue_size` requests wait, or every slot is in use.
    QueueFull = -17,
    /// By measured service times the deadline can't be met.
    DeadlineUnmeetable = -18,
    /// No rows, or more than a request may have.
    WrongRows = -19,
    /// The model has no such priority.
    BadPriority = -20,
    /// The deadline is over the limit.
    DeadlineTooLong = -21,
    /// The runtime accepts nothing more.
    ShuttingDown = -22,
    /// The deadline passed while the request waited.
    DeadlineExpired = -23,
    /// The request was given up.
    Cancelled = -24,
    /// The engine reported an error.
    ModelFailed = -25,
    /// The engine panicked; its worker goes on.
    ModelPanicked = -26,
    /// This build can't tell.
    Unavailable = -27,
}

/// Every status, with its name and its text.
pub(super) const STATUSES: &[(corelane_status, &CStr, &CStr)] = &[
    (corelane_status::Ok, c"ok", c"done"),
    (corelane_status::Pending, c"pending", c"the answer is not there yet"),
    (corelane_status::InvalidArgument, c"invalid_argument", c"an argument can't be used"),
    (
        corelane_status::AbiMismatch,
        c"abi_mismatch",
        c"the program was compiled against another version",
    ),
    (corelane_status::Config, c"config", c"the configuration can't be used"),
    (corelane_status::Model, c"model", c"a model can't be loaded"),
    (corelane_status::Affinity, c"affinity", c"a core can't be used"),
    (corelane_status::Limit, c"limit", c"a limit is exceeded"),
    (corelane_status::System, c"system", c"the operating system refused"),
    (corelane_status::Worker, c"worker", c"a worker could not start"),
    (corelane_status::NotFound, c"not_found", c"there is nothing of that name or number"),
    (corelane_status::WrongSize, c"wrong_size", c"a buffer has the wrong size"),
    (corelane_status::WrongState, c"wrong_state", c"the request is in another state"),
    (corelane_status::Busy, c"busy", c"another thread uses it at this moment"),
    (corelane_status::InUse, c"in_use", c"requests are still in use"),
    (corelane_status::Timeout, c"timeout", c"the time to wait is over"),
    (corelane_status::Forked, c"forked", c"the runtime belongs to the parent process"),
    (corelane_status::Panic, c"panic", c"a defect in corelane: a panic was caught"),
    (corelane_status::QueueFull, c"queue_full", c"the queue is full"),
    (corelane_status::DeadlineUnmeetable, c"deadline_unmeetable", c"the deadline can't be met"),
    (corelane_status::WrongRows, c"wrong_rows", c"a request can't have that many rows"),
    (corelane_status::BadPriority, c"bad_priority", c"there is no such priority"),
    (corelane_status::DeadlineTooLong, c"deadline_too_long", c"the deadline is over the limit"),
    (corelane_status::ShuttingDown, c"shutting_down", c"the runtime is shutting down"),
    (
        corelane_status::DeadlineExpired,
        c"deadline_expired",
        c"the deadline passed while the request waited",
    ),
    (corelane_status::Cancelled, c"cancelled", c"the request was given up"),
    (corelane_status::ModelFailed, c"model_failed", c"the model failed"),
    (corelane_status::ModelPanicked, c"model_panicked", c"the model panicked"),
    (corelane_status::Unavailable, c"unavailable", c"this build can't tell"),
];

thread_local! {
    // Const-initialised and without a destructor: neither allocates nor keeps the library loaded.
    static MESSAGE: UnsafeCell<Line<MESSAGE_BYTES>> = const { UnsafeCell::new(Line::new()) };
}

/// An error whose sentence the calling thread has: nothing but [`fail`] makes one, so a function can't
/// fail and leave the sentence of another call standing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told(corelane_status);

/// A function that has nothing else to say is done.
impl From<()> for corelane_status {
    fn from((): ()) -> corelane_status {
        corelane_status::Ok
    }
}

/// The number that C is given.
pub(super) fn code(result: Result<impl Into<corelane_status>, Told>) -> corelane_status {
    result.map_or_else(|told| told.0, Into::into)
}

/// Writes the calling thread's message, cut at its bound.
pub(super) fn fail(status: corelane_status, text: fmt::Arguments<'_>) -> Told {
    MESSAGE.with(|message| {
        // SAFETY: the cell is this thread's own, and no reference to it outlives this call;
        // formatting crate types does not call back into this function.
        unsafe { &mut *message.get() }.set(text);
    });
    Told(status)
}

/// Runs the body of a C function: a panic becomes [`corelane_status::Panic`].
pub(super) fn guard<T: Into<corelane_status>>(
    body: impl FnOnce() -> Result<T, Told>,
) -> corelane_status {
    guard_value(corelane_status::Panic, || code(body()))
}

/// Runs the body of a C function that returns no status: `bad` is returned after a panic.
pub(super) fn guard_value<T>(bad: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(panic) => {
            told(&*panic);
            // What was thrown may itself panic when it is dropped.
            std::mem::forget(panic);
            bad
        }
    }
}

/// The calling thread's message.
pub(super) fn told_here() -> String {
    MESSAGE.with(|message| {
        // SAFETY: the cell is this thread's own, and no mutable reference to it is alive.
        let message = unsafe { &*message.get() };
        String::from_utf8_lossy(message.as_bytes()).into_owned()
    })
}

fn told(panic: &(dyn std::any::Any + Send)) {
    let text = (panic.downcast_ref::<&str>().copied())
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message");
    fail(corelane_status::Panic, format_args!("a defect in corelane, please report it: {text}"));
}

pub(super) fn build_error(error: &BuildError) -> Told {
    let status = match error {
        BuildError::Affinity(_) => corelane_status::Affinity,
        BuildError::Model { .. } => corelane_status::Model,
        BuildError::Limit { .. } => corelane_status::Limit,
        BuildError::Config(_) => corelane_status::Config,
        BuildError::Worker { .. } => corelane_status::Worker,
        BuildError::RealTime(_) | BuildError::System(_) => corelane_status::System,
    };
    fail(status, format_args!("{error}"))
}

pub(super) fn reload_error(error: &ReloadError) -> Told {
    let status = match error {
        ReloadError::UnknownModel { .. } => corelane_status::NotFound,
        ReloadError::Load { .. } | ReloadError::FilesChanged { .. } => corelane_status::Model,
        ReloadError::NoSource { .. } | ReloadError::Fixed { .. } => corelane_status::Config,
        ReloadError::Memory { .. } => corelane_status::System,
        ReloadError::Instance { .. } => corelane_status::Worker,
        ReloadError::Worker { .. } => corelane_status::Timeout,
        ReloadError::Stopping { .. } => corelane_status::ShuttingDown,
    };
    fail(status, format_args!("{error}"))
}

/// `model` is the one that the request was for.
pub(super) fn infer_error(model: &CStr, error: &InferError) -> Told {
    let status = match error {
        InferError::UnknownModel { .. } | InferError::NoSuchTensor { .. } => {
            corelane_status::NotFound
        }
        InferError::WrongType { .. } => corelane_status::InvalidArgument,
        InferError::WrongLength { .. } => corelane_status::WrongSize,
        InferError::Refused(refusal) => match refusal {
            Refusal::QueueFull { .. } => corelane_status::QueueFull,
            Refusal::DeadlineUnmeetable { .. } => corelane_status::DeadlineUnmeetable,
            Refusal::WrongRows { .. } => corelane_status::WrongRows,
            Refusal::BadPriority { .. } => corelane_status::BadPriority,
            Refusal::TimeoutTooLong { .. } => corelane_status::DeadlineTooLong,
            Refusal::ShuttingDown => corelane_status::ShuttingDown,
        },
        InferError::Failed(failure) => match failure {
            Failure::DeadlineExpired => corelane_status::DeadlineExpired,
            Failure::Cancelled => corelane_status::Cancelled,
            Failure::ModelFailed => corelane_status::ModelFailed,
            Failure::ModelPanicked => corelane_status::ModelPanicked,
            Failure::ShuttingDown => corelane_status::ShuttingDown,
        },
    };
    fail(status, format_args!("model {model:?}: {error}"))
}

fn row(status: i32) -> Option<&'static (corelane_status, &'static CStr, &'static CStr)> {
    STATUSES.iter().find(|(code, ..)| *code as i32 == status)
}

/// The name of a status, such as `queue_full`; `"unknown"` for a number that is none.
///
/// Ownership: the text is static, and lives as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn corelane_status_name(status: i32) -> *const c_char {
    guard_value(c"unknown".as_ptr(), || row(status).map_or(c"unknown", |row| row.1).as_ptr())
}

/// What a status means, in a few words; never null.
///
/// Ownership: the text is static, and lives as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn corelane_status_text(status: i32) -> *const c_char {
    let none = c"no status of this library";
    guard_value(none.as_ptr(), || row(status).map_or(none, |row| row.2).as_ptr())
}

/// What went wrong in the calling thread's last call that returned an error: a sentence with names
/// and numbers, cut at 511 bytes. Empty before the first error. Calls that succeed leave it as it is.
///
/// Ownership: the text is the thread's own; it changes with the thread's next error, and is gone
/// with the thread.
#[unsafe(no_mangle)]
pub extern "C" fn corelane_error_message() -> *const c_char {
    // SAFETY: the cell is this thread's own, and no mutable reference to it is alive; the pointer
    // stays valid while the thread lives.
    MESSAGE.with(|message| unsafe { (*message.get()).as_ptr() })
}
