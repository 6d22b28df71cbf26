//! What a runtime is made from.

use super::args::{borrow, borrow_mut, list, place, text};
use super::status::{build_error, corelane_status, fail, guard, guard_value};
use crate::board::Machine;
use crate::config::{Config, ModelEntry, Workers};
use crate::limits::{MODELS_MAX, WORKERS_MAX};
use crate::model::{LoadedModel, Manifest};
use crate::runtime::{BuildError, ModelSetup, RealTime, Runtime, WaitPolicy, plan_board};
use crate::units::{CoreId, Micros};
use crate::worker::IdleStrategy;
use std::ffi::c_char;
use std::path::Path;

/// The version of the C interface: the upper half changes when something existing changes, the lower
/// when something is added. A program runs with a library of the same upper half and the same or a
/// larger lower half.
pub const CORELANE_ABI_VERSION: u32 = 0x0001_0000;

/// What workers do when nothing waits.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum corelane_idle {
    /// Sleep at once: the least power, a wake-up per request.
    Park = 0,
    /// Spin for a time that is given, then sleep.
    Spin = 1,
    /// Spin while that has lately paid.
    Adaptive = 2,
}

/// What a runtime is made from: models, worker cores. It can start any number of runtimes, one after
/// the other or at the same time.
#[derive(Clone, Default)]
pub struct corelane_builder {
    models: Vec<ModelEntry>,
    workers: Workers,
    idle: IdleStrategy,
    realtime: RealTime,
    pub(super) wait: WaitPolicy,
}

impl corelane_builder {
    /// Loads the models and starts the workers.
    pub(super) fn build(&self) -> Result<Runtime, BuildError> {
        let mut builder = Runtime::builder().idle(self.idle).realtime(self.realtime);
        builder = match &self.workers {
            Workers::AllButFirst => builder,
            Workers::Cores(cores) => builder.cores(cores.iter().copied()),
            Workers::Unpinned(workers) => builder.unpinned(*workers),
        };
        for entry in &self.models {
            builder = builder.model(load(entry)?);
        }
        builder.build()
    }
}

fn load(entry: &ModelEntry) -> Result<ModelSetup, BuildError> {
    let failed = |error| BuildError::Model {
        model: entry.path.display().to_string(),
        reason: Box::new(error),
    };
    let mut manifest = Manifest::read(&entry.path).map_err(failed)?;
    entry.apply(&mut manifest).map_err(failed)?;
    let model = LoadedModel::load(manifest).map_err(failed)?;
    event!(info, "model {}: loaded from {}", model.manifest.name, entry.path.display());
    if let Some(reason) = &model.batching.reason {
        event!(warn, "model {}: batching is off: {}", model.manifest.name, reason);
    }
    Ok(model.into())
}

/// The version of the C interface that this library has.
///
/// Ownership: nothing changes hands.
#[unsafe(no_mangle)]
pub extern "C" fn corelane_abi_version() -> u32 {
    CORELANE_ABI_VERSION
}

/// The library's own version, such as "0.1.0".
///
/// Ownership: the text is static, and lives as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn corelane_library_version() -> *const c_char {
    const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    TEXT.as_ptr().cast()
}

/// Makes a builder for a program compiled against version `abi_version`. Programs call
/// `corelane_builder_new`, which passes the header's version.
///
/// Ownership: the builder is the caller's, until `corelane_builder_free`.
///
/// # Errors
/// `ABI_MISMATCH`: the library does not serve such programs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_builder_new_abi(
    abi_version: u32,
    builder: *mut *mut corelane_builder,
) -> corelane_status {
    guard(|| {
        let place = place(builder, "builder")?;
        let (major, minor) = (abi_version >> 16, abi_version & 0xFFFF);
        let (ours, minors) = (CORELANE_ABI_VERSION >> 16, CORELANE_ABI_VERSION & 0xFFFF);
        if major != ours || minor > minors {
            let text = format_args!(
                "the program was compiled for version {major}.{minor} of the C interface, the \
                 library has {ours}.{minors}"
            );
            return Err(fail(corelane_status::AbiMismatch, text));
        }
        let new = Box::into_raw(Box::new(corelane_builder::default()));
        // SAFETY: C's promise: `builder` may be written.
        unsafe { place.put(new) };
        Ok(())
    })
}

/// Frees a builder; null is allowed. Runtimes that it started go on.
///
/// Ownership: the builder is corelane's again, and gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_builder_free(builder: *mut corelane_builder) {
    guard_value((), || {
        if !builder.is_null() {
            // SAFETY: C's promise: from `corelane_builder_new`, not freed yet, used by nobody.
            drop(unsafe { Box::from_raw(builder) });
        }
    });
}

/// Adds a model: a directory with a manifest, or a bare `.onnx` file. It is read by
/// `corelane_runtime_start`.
///
/// Ownership: `path` stays the caller's; it is copied.
///
/// # Errors
/// `INVALID_ARGUMENT`; `LIMIT`: too many models.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_builder_add_model(
    builder: *mut corelane_builder,
    path: *const c_char,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a live builder that no other thread uses.
        let builder = unsafe { borrow_mut(builder, "builder") }?;
        // SAFETY: C's promise: a text that ends with a zero.
        let path = unsafe { text(path, "path") }?;
        if builder.models.len() >= MODELS_MAX {
            let text = format_args!("model {path:?} is one too many; {MODELS_MAX} are served");
            return Err(fail(corelane_status::Limit, text));
        }
        builder.models.push(ModelEntry::new(path));
        Ok(())
    })
}

/// Takes models, worker cores or the board that plans them, the idle strategy and real-time options
/// from a `corelane.toml`, in place of what the builder holds. What such a file says of sockets, metrics and messages is for `corelane serve`
/// and is not looked at.
///
/// Ownership: `path` stays the caller's.
///
/// # Errors
/// `INVALID_ARGUMENT`; `CONFIG`: the message names the key and the line.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_builder_read_config(
    builder: *mut corelane_builder,
    path: *const c_char,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a live builder that no other thread uses.
        let builder = unsafe { borrow_mut(builder, "builder") }?;
        // SAFETY: C's promise: a text that ends with a zero.
        let path = unsafe { text(path, "path") }?;
        let config = Config::read(Path::new(path))
            .map_err(|e| fail(corelane_status::Config, format_args!("{e}")))?;
        let workers = match &config.board {
            None => config.workers,
            Some(board) => {
                let planned = plan_board(board, &Machine::here(), config.board_mismatch)
                    .map_err(|e| fail(corelane_status::Config, format_args!("{e}")))?;
                Workers::Cores(planned.got_workers)
            }
        };
        builder.models = config.models;
        builder.workers = workers;
        builder.idle = config.idle;
        builder.realtime = config.realtime;
        Ok(())
    })
}

/// One pinned worker on each of `count` cores. The default is every core that the scheduler allows
/// but the first, which is left to the program.
///
/// Ownership: `cores` stays the caller's; it is copied.
///
/// # Errors
/// `INVALID_ARGUMENT`; `LIMIT`: none, or too many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_builder_set_cores(
    builder: *mut corelane_builder,
    cores: *const u32,
    count: usize,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a live builder that no other thread uses.
        let builder = unsafe { borrow_mut(builder, "builder") }?;
        workers_in_bounds(count)?;
        // SAFETY: C's promise: `count` numbers.
        let cores = unsafe { list(cores, count, "cores") }?;
        let narrow = |core: &u32| {
            u16::try_from(*core).map(CoreId).map_err(|_| {
                fail(corelane_status::InvalidArgument, format_args!("there is no core {core}"))
            })
        };
        builder.workers = Workers::Cores(cores.iter().map(narrow).collect::<Result<_, _>>()?);
        Ok(())
    })
}

/// `workers` workers that the scheduler may move about, for machines where pinning is not allowed.
///
/// Ownership: nothing changes hands.
///
/// # Errors
/// `INVALID_ARGUMENT`; `LIMIT`: none, or too many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_builder_set_unpinned(
    builder: *mut corelane_builder,
    workers: usize,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a live builder that no other thread uses.
        let builder = unsafe { borrow_mut(builder, "builder") }?;
        workers_in_bounds(workers)?;
        builder.workers = Workers::Unpinned(workers);
        Ok(())
    })
}

fn workers_in_bounds(count: usize) -> Result<(), corelane_status> {
    if (1..=WORKERS_MAX).contains(&count) {
        return Ok(());
    }
    let text = format_args!("{count} workers; there are 1 to {WORKERS_MAX}");
    Err(fail(corelane_status::Limit, text))
}

/// What workers do when nothing waits: a `corelane_idle`, and how long `CORELANE_IDLE_SPIN` spins
/// (at most a second). The default is `CORELANE_IDLE_PARK`.
///
/// Ownership: nothing changes hands.
///
/// # Errors
/// `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_builder_set_idle(
    builder: *mut corelane_builder,
    idle: i32,
    spin_us: u32,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a live builder that no other thread uses.
        let builder = unsafe { borrow_mut(builder, "builder") }?;
        builder.idle = match idle {
            i if i == corelane_idle::Park as i32 => IdleStrategy::Park,
            i if i == corelane_idle::Adaptive as i32 => IdleStrategy::Adaptive,
            i if i == corelane_idle::Spin as i32 && spin_us <= 1_000_000 => {
                IdleStrategy::SpinUs(Micros(spin_us))
            }
            _ => {
                let text = format_args!(
                    "idle {idle} with {spin_us} us; 0 parks, 1 spins up to 1000000 us, 2 adapts"
                );
                return Err(fail(corelane_status::InvalidArgument, text));
            }
        };
        Ok(())
    })
}

/// How often a thread that waits for an answer looks for it before it sleeps. The default is 0.
///
/// Ownership: nothing changes hands.
///
/// # Errors
/// `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_builder_set_wait_spins(
    builder: *mut corelane_builder,
    spins: u32,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a live builder that no other thread uses.
        unsafe { borrow_mut(builder, "builder") }?.wait = WaitPolicy { spins };
        Ok(())
    })
}

/// A builder, copied for the thread that starts.
///
/// # Safety
/// `builder` is null or a live builder that no other thread changes.
pub(super) unsafe fn copied(
    builder: *const corelane_builder,
) -> Result<corelane_builder, corelane_status> {
    // SAFETY: the caller's promise.
    Ok(unsafe { borrow(builder, "builder") }?.clone())
}

pub(super) fn built(result: Result<Runtime, BuildError>) -> Result<Runtime, corelane_status> {
    result.map_err(|error| build_error(&error))
}
