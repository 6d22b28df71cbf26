//! Errands that need Rust's thread-local storage are run on a thread that ends with them.
//!
//! Rust's standard library keeps values with destructors per thread (the current thread's handle,
//! hooks for spawning). The C library's runtime counts such a destructor as a use of the shared
//! object that registered it, so a host thread that had run such code would keep the library from
//! being unloaded. What the request path does needs none of them; starting and stopping do.

use super::status::{Told, corelane_status, fail};
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Stack of the thread, in bytes: what the loader of models needs, also where the default is small.
const STACK_BYTES: usize = 8 * 1024 * 1024;

struct Errand<F, T> {
    work: Option<F>,
    result: Option<T>,
    /// What a panic said.
    told: String,
}

extern "C" fn run<F: FnOnce() -> T, T>(errand: *mut c_void) -> *mut c_void {
    // SAFETY: `on_own_thread` passes its errand and waits for this thread before it looks at it.
    let errand = unsafe { &mut *errand.cast::<Errand<F, T>>() };
    if let Some(work) = errand.work.take() {
        // Caught here, since this is the thread's outermost function.
        errand.result = super::status::guard_value(None, || Some(work()));
        if errand.result.is_none() {
            errand.told = super::status::told_here();
        }
    }
    std::ptr::null_mut()
}

/// Runs `work` on a thread of its own and waits until it has ended. The wait has no bound of its
/// own: it is as long as the work.
///
/// # Errors
/// `Panic` if the work panicked.
pub(super) fn on_own_thread<F, T>(work: F) -> Result<T, Told>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let mut errand = Errand { work: Some(work), result: None, told: String::new() };
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the attributes are initialised before use, and freed; the errand outlives the thread,
    // which is joined if it was made; what it runs is `Send`.
    let status = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
        let argument = (&raw mut errand).cast::<c_void>();
        let (place, with) = (thread.as_mut_ptr(), attributes.as_ptr());
        let status = libc::pthread_create(place, with, run::<F, T>, argument);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if status == 0 {
            libc::pthread_join(thread.assume_init(), std::ptr::null_mut());
        }
        status
    };
    if status != 0 {
        // No thread is to be had: then here, at the price that the library stays loaded.
        run::<F, T>((&raw mut errand).cast());
    }
    errand.result.ok_or_else(|| fail(corelane_status::Panic, format_args!("{}", errand.told)))
}
