//! NVIDIA's driver, for what ONNX Runtime leaves to its caller: that a thread sleeps while the GPU computes,
//! and copies to and from tensors at fixed addresses. Its library comes with the driver, and is opened when a
//! model is on a GPU.
//!
//! Not run on a GPU yet; the tests give it a library of their own that copies within the host.

use crate::engine::{EngineError, EngineErrorKind, RunError};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The driver's library, as its package installs it.
const LIBRARY: &CStr = c"libcuda.so.1";
/// `CU_CTX_SCHED_BLOCKING_SYNC`: a thread that waits sleeps.
const SLEEP: c_uint = 4;
/// `CU_CTX_SCHED_MASK`: the flags that say how a thread waits.
const WAY_TO_WAIT: c_uint = 7;
/// `CU_STREAM_NON_BLOCKING`: not ordered with the default stream, which other instances may use.
const OWN_ORDER: c_uint = 1;

type Context = *mut c_void;
type Stream = *mut c_void;

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// What is called, by the driver's interface of version 11 and later.
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// # Safety
            /// `library` was given by `dlopen`, and is NVIDIA's driver, or one with its interface.
            unsafe fn of(library: *mut c_void) -> Result<Functions, String> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: an open library, as the caller says; the name ends in 0.
                        let symbol = unsafe { libc::dlsym(library, $symbol.as_ptr()) };
                        if symbol.is_null() {
                            return Err(format!("it has no {}", $symbol.to_string_lossy()));
                        }
                        // SAFETY: the function has this type in the driver's interface.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> c_int,
                            >(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = c"cuInit" (c_uint);
    error_text = c"cuGetErrorString" (c_int, *mut *const c_char);
    device = c"cuDeviceGet" (*mut c_int, c_int);
    state = c"cuDevicePrimaryCtxGetState" (c_int, *mut c_uint, *mut c_int);
    set_flags = c"cuDevicePrimaryCtxSetFlags_v2" (c_int, c_uint);
    retain = c"cuDevicePrimaryCtxRetain" (*mut Context, c_int);
    set_current = c"cuCtxSetCurrent" (Context);
    create_stream = c"cuStreamCreate" (*mut Stream, c_uint);
    synchronize = c"cuStreamSynchronize" (Stream);
    destroy_stream = c"cuStreamDestroy_v2" (Stream);
    copy_to_device = c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Stream);
    copy_to_host = c"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Stream);
}

/// The driver's number of what went wrong. `Copy`: it is made where nothing allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed(c_int);

impl From<Failed> for RunError {
    fn from(_: Failed) -> RunError {
        RunError::Step { step: u32::MAX }
    }
}

impl From<Failed> for EngineError {
    fn from(Failed(code): Failed) -> EngineError {
        let message = format!("NVIDIA's driver failed to copy (CUDA error {code})");
        EngineError::new(EngineErrorKind::Backend, message)
    }
}

fn done(code: c_int) -> Result<(), Failed> {
    if code == 0 { Ok(()) } else { Err(Failed(code)) }
}

/// The driver, open.
pub struct Driver(Functions);

impl Driver {
    /// The one of this machine; opened once, and never closed.
    ///
    /// # Errors
    /// A sentence: it is not there, is too old, or does not start.
    pub fn get() -> Result<&'static Driver, String> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        DRIVER.get_or_init(|| Driver::open(LIBRARY)).as_ref().map_err(String::clone)
    }

    fn open(path: &CStr) -> Result<Driver, String> {
        let name = path.to_string_lossy();
        // SAFETY: the path ends in 0. The library's initialisers run; it is NVIDIA's, by its name.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: a text of this thread's last error, until the next call; null if there is none.
            let said = unsafe { libc::dlerror() };
            // SAFETY: as above; not null is checked first.
            let said = (!said.is_null()).then(|| unsafe { CStr::from_ptr(said) }.to_string_lossy());
            let said = said.unwrap_or_default();
            return Err(format!("{name} (of NVIDIA's driver) can't be opened: {said}"));
        }
        // SAFETY: just opened, and never closed.
        let functions = unsafe { Functions::of(library) };
        let functions = functions.map_err(|e| format!("{name} (of NVIDIA's driver): {e}"))?;
        let driver = Driver(functions);
        // SAFETY: the first call; its argument must be 0.
        let code = unsafe { (driver.0.init)(0) };
        driver.checked("cuInit", code)?;
        Ok(driver)
    }

    fn checked(&self, call: &str, code: c_int) -> Result<(), String> {
        let Err(Failed(code)) = done(code) else { return Ok(()) };
        let mut text = std::ptr::null();
        // SAFETY: the text is written by the call, and is the driver's own for ever.
        let known = unsafe { (self.0.error_text)(code, &mut text) } == 0 && !text.is_null();
        // SAFETY: as above.
        let text = known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy());
        let text = text.unwrap_or_default();
        Err(format!("NVIDIA's driver: {call} failed with {code} {text}"))
    }

    fn device(&self, number: u32) -> Result<c_int, String> {
        let mut device = 0;
        let number = c_int::try_from(number).unwrap_or(c_int::MAX);
        // SAFETY: written by the call.
        let code = unsafe { (self.0.device)(&mut device, number) };
        self.checked("cuDeviceGet", code)?;
        Ok(device)
    }

    /// Makes threads of this process sleep while they wait for GPU `number`; left to itself, the driver
    /// lets them spin where cores are many.
    ///
    /// # Errors
    /// A sentence: there is no such GPU, or the driver keeps another way to wait.
    pub fn sleep_while_waiting(&self, number: u32) -> Result<(), String> {
        let device = self.device(number)?;
        let flags = || {
            let (mut flags, mut active) = (0, 0);
            // SAFETY: both are written by the call.
            let code = unsafe { (self.0.state)(device, &mut flags, &mut active) };
            self.checked("cuDevicePrimaryCtxGetState", code)?;
            Ok::<c_uint, String>(flags)
        };
        let before = flags()?;
        if before & WAY_TO_WAIT == SLEEP {
            return Ok(());
        }
        // SAFETY: a device of the driver's.
        let code = unsafe { (self.0.set_flags)(device, before & !WAY_TO_WAIT | SLEEP) };
        self.checked("cuDevicePrimaryCtxSetFlags", code)?;
        match flags()? & WAY_TO_WAIT {
            SLEEP => Ok(()),
            other => Err(format!("NVIDIA's driver keeps way {other} to wait instead of {SLEEP}")),
        }
    }

    /// A stream of its own for copies to and from GPU `number`.
    ///
    /// # Errors
    /// A sentence with the call that failed.
    pub fn copies(&'static self, number: u32) -> Result<Copies, String> {
        let device = self.device(number)?;
        let mut context = std::ptr::null_mut();
        // The library's context, too; neither ever gives it back.
        // SAFETY: written by the call.
        let code = unsafe { (self.0.retain)(&mut context, device) };
        self.checked("cuDevicePrimaryCtxRetain", code)?;
        let mut copies = Copies { driver: self, context, stream: std::ptr::null_mut() };
        let entered = copies.enter();
        self.checked("cuCtxSetCurrent", entered.err().map_or(0, |Failed(code)| code))?;
        // SAFETY: written by the call; the context is current.
        let code = unsafe { (self.0.create_stream)(&mut copies.stream, OWN_ORDER) };
        self.checked("cuStreamCreate", code)?;
        Ok(copies)
    }
}

/// Copies to and from a GPU, in the order in which they are asked for.
pub struct Copies {
    driver: &'static Driver,
    context: Context,
    stream: Stream,
}

impl Copies {
    /// Makes the GPU the one of this thread; before the first copy on each.
    pub fn enter(&self) -> Result<(), Failed> {
        // SAFETY: the context is never given back.
        done(unsafe { (self.driver.0.set_current)(self.context) })
    }

    /// Begins to copy `from` to `address`.
    ///
    /// # Safety
    /// `from` stays as it is until [`wait`](Self::wait) has returned; so many bytes at `address` are the
    /// caller's, and nothing else uses them meanwhile.
    pub unsafe fn to_device(&self, address: u64, from: &[u8]) -> Result<(), Failed> {
        // SAFETY: as the caller says.
        done(unsafe {
            (self.driver.0.copy_to_device)(address, from.as_ptr().cast(), from.len(), self.stream)
        })
    }

    /// Begins to copy from `address`, as many bytes as `to` has.
    ///
    /// # Safety
    /// As [`to_device`](Self::to_device), and nothing reads `to` meanwhile.
    pub unsafe fn to_host(&self, to: &mut [u8], address: u64) -> Result<(), Failed> {
        // SAFETY: as the caller says.
        done(unsafe {
            (self.driver.0.copy_to_host)(to.as_mut_ptr().cast(), address, to.len(), self.stream)
        })
    }

    /// Waits until all copies are done.
    pub fn wait(&self) -> Result<(), Failed> {
        // SAFETY: the stream is alive.
        done(unsafe { (self.driver.0.synchronize)(self.stream) })
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        if !self.stream.is_null() && self.enter().is_ok() {
            // SAFETY: made in `copies`, destroyed once; the driver finishes what is under way.
            unsafe { (self.driver.0.destroy_stream)(self.stream) };
        }
    }
}

#[cfg(test)]
pub mod tests;
