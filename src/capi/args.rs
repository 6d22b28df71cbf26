//! What C hands over: pointers and texts, looked at before they are used.

use super::status::{Told, corelane_status, fail};
use std::ffi::{CStr, c_char};

/// The thing behind a pointer that C gave.
///
/// # Safety
/// `ptr` is null, or points to a live `T` that nobody changes during `'a` but through `&T`.
pub(super) unsafe fn borrow<'a, T>(ptr: *const T, what: &str) -> Result<&'a T, Told> {
    // SAFETY: the caller's promise.
    unsafe { ptr.as_ref() }.ok_or_else(|| null(what))
}

/// The thing behind a pointer that C gave, alone with it.
///
/// # Safety
/// `ptr` is null, or points to a live `T` that nobody else reaches during `'a`.
pub(super) unsafe fn borrow_mut<'a, T>(ptr: *mut T, what: &str) -> Result<&'a mut T, Told> {
    // SAFETY: the caller's promise.
    unsafe { ptr.as_mut() }.ok_or_else(|| null(what))
}

pub(super) fn null(what: &str) -> Told {
    fail(corelane_status::InvalidArgument, format_args!("{what} is a null pointer"))
}

/// Checks that a result has a place to go, before anything is done.
pub(super) fn place<T>(out: *mut T, what: &str) -> Result<Place<T>, Told> {
    if out.is_null() { Err(null(what)) } else { Ok(Place(out)) }
}

/// Where a result goes.
pub(super) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// Stores the result.
    ///
    /// # Safety
    /// The pointer is aligned and may be written for one `T`.
    pub unsafe fn put(self, value: T) {
        // SAFETY: not null by `place`, the rest is the caller's promise.
        unsafe { self.0.write(value) };
    }
}

impl Place<u8> {
    /// Stores bytes.
    ///
    /// # Safety
    /// The pointer may be written for `bytes.len()` bytes, none of which are `bytes`' own.
    pub unsafe fn fill(self, bytes: &[u8]) {
        // SAFETY: not null by `place`, the rest is the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) };
    }
}

/// A text.
///
/// # Safety
/// `ptr` is null, or points to bytes that end with a zero and do not change during `'a`.
pub(super) unsafe fn text<'a>(ptr: *const c_char, what: &str) -> Result<&'a str, Told> {
    if ptr.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, the rest is the caller's promise.
    let bytes = unsafe { CStr::from_ptr(ptr) };
    bytes.to_str().map_err(|e| {
        fail(corelane_status::InvalidArgument, format_args!("{what} is not UTF-8: {e}"))
    })
}

/// A list.
///
/// # Safety
/// `ptr` is null or points to `count` values that do not change during `'a`.
pub(super) unsafe fn list<'a, T>(ptr: *const T, count: usize, what: &str) -> Result<&'a [T], Told> {
    match (ptr.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(what)),
        // SAFETY: not null, the rest is the caller's promise.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(ptr, count) }),
    }
}

/// Copies the first `bytes` bytes of a result that may grow with later versions: a program that was
/// compiled with a shorter one gets what it knows.
///
/// # Safety
/// `out` is null, or `bytes` bytes may be written there.
pub(super) unsafe fn put_prefix<T: Copy>(
    out: *mut T,
    bytes: usize,
    value: T,
    what: &str,
) -> Result<(), Told> {
    if out.is_null() {
        return Err(null(what));
    }
    let known = bytes.min(size_of::<T>());
    // SAFETY: `value` has at least `known` bytes, the place too by the caller's promise, and they
    // are distinct.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), out.cast::<u8>(), known);
        // A program from the future has fields that this library does not know: they are zero.
        out.cast::<u8>().add(known).write_bytes(0, bytes - known);
    }
    Ok(())
}
