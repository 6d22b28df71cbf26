//! What a runtime is made from.

use super::args::{borrow, borrow_mut, list, place, text};
use super::status::{Told, build_error, corelane_status, fail, guard, guard_value};
use crate::board::Machine;
use crate::config::{Config, ModelEntry, Workers};
use crate::limits::{MODELS_MAX, WORKERS_MAX};
use crate::runtime::{
    BuildError, Configured, ModelSetup, ModelSource, PlannedBoard, Runtime, WaitPolicy, take_board,
};
use crate::units::{CoreId, Micros};
use crate::worker::IdleStrategy;
use std::ffi::c_char;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// The version of the C interface: the upper half changes when something existing changes, the lower
/// when something is added. A program runs with a library of the same upper half and the same or a
/// larger lower half.
pub const CORELANE_ABI_VERSION: u32 = 0x0001_0001;

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
    pub(super) config: Config,
    /// The plan that names the worker cores, as wanted and as got.
    board: Option<PlannedBoard>,
    pub(super) wait: WaitPolicy,
}

impl corelane_builder {
    /// Loads the models and starts the workers.
    pub(super) fn build(&self) -> Result<Runtime, BuildError> {
        let cache = &self.config.cache;
        let (runtime, _) = Configured::load(&self.config, |entry| load(entry, cache))?.build()?;
        if let Some(board) = &self.board {
            runtime.shared().add_fact("board", board);
        }
        Ok(runtime)
    }

    /// Has the workers where the program says, and not where a board's plan said.
    fn set_workers(&mut self, workers: Workers) {
        self.config.workers = workers;
        self.board = None;
    }
}

fn load(entry: &ModelEntry, cache: &Option<PathBuf>) -> Result<ModelSetup, BuildError> {
    let loaded = ModelSource::of(entry.clone(), cache.clone()).load();
    let setup = loaded.map_err(|error| BuildError::Model {
        model: entry.path.display().to_string(),
        reason: Box::new(error),
    })?;
    event!(info, "model {}: loaded from {}", setup.name, entry.path.display());
    let batching = setup.inspection.as_ref().map(|i| &i.batching);
    if let Some(reason) = batching.and_then(|b| b.reason.as_ref()) {
        event!(warn, "model {}: batching is off: {}", setup.name, reason);
    }
    Ok(setup)
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
        if builder.config.models.len() >= MODELS_MAX {
            let text = format_args!("model {path:?} is one too many; {MODELS_MAX} are served");
            return Err(fail(corelane_status::Limit, text));
        }
        builder.config.models.push(ModelEntry::new(path));
        Ok(())
    })
}

/// Takes everything that a `corelane.toml` says, in place of what the builder holds: models, the cache
/// directory, memory, worker cores or the board that plans them, the idle strategy, `on_load_error` and
/// real-time options. The counters say what came of it: `board`, `realtime`, `not_served`.
///
/// What only `corelane serve` does is an error here, so that nothing is left out in silence: `metrics`,
/// `metrics_allow_non_loopback`, `[listen]`, `[log]`, and in `[runtime]` `io_core`, `drain_timeout_ms`
/// and a `model_control_mode` other than `none`.
///
/// `[memory]` is for the whole process: runtimes that run at the same time ask for the same.
///
/// Ownership: `path` stays the caller's.
///
/// # Errors
/// `INVALID_ARGUMENT`; `CONFIG`: the message names the key and the line. Then the builder is as before.
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
        let failed = |e: &dyn Display| fail(corelane_status::Config, format_args!("{e}"));
        let mut config = Config::read_embedded(Path::new(path)).map_err(|e| failed(&e))?;
        let board = take_board(&mut config, &Machine::here()).map_err(|e| failed(&e))?;
        (builder.config, builder.board) = (config, board);
        Ok(())
    })
}

/// One pinned worker on each of `count` cores. The default is every core that the scheduler allows
/// but the first, which is left to the program. Each runtime takes its cores for itself: two with the
/// default have a worker each on the same cores, which a message of level 2 tells (`corelane_log_set`).
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
        let cores = cores.iter().map(narrow).collect::<Result<_, _>>()?;
        builder.set_workers(Workers::Cores(cores));
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
        builder.set_workers(Workers::Unpinned(workers));
        Ok(())
    })
}

fn workers_in_bounds(count: usize) -> Result<(), Told> {
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
        builder.config.idle = match idle {
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
pub(super) unsafe fn copied(builder: *const corelane_builder) -> Result<corelane_builder, Told> {
    // SAFETY: the caller's promise.
    Ok(unsafe { borrow(builder, "builder") }?.clone())
}

pub(super) fn built(result: Result<Runtime, BuildError>) -> Result<Runtime, Told> {
    result.map_err(|error| build_error(&error))
}
