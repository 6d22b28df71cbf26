//! Buffers that are sized once.

use crate::limits::BUFFER_ALIGN_BYTES;
use crate::sys::region::Region;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Blocks from this length on are mapped: the system hands their pages over all at once, which takes half
/// the time of faulting them in one by one.
const MAPPED_BYTES_MIN: usize = 1024 * 1024;

/// A zeroed block of bytes, aligned to [`BUFFER_ALIGN_BYTES`], that never grows.
pub struct AlignedBytes {
    start: NonNull<u8>,
    len: usize,
    /// What keeps it, where it is not the heap.
    region: Option<Region>,
}

// SAFETY: the block is owned, plain bytes; nothing in it is tied to a thread.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access gives only `&[u8]` or a raw pointer whose users keep the rules themselves.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `len` zero bytes, each page touched, so that no later access faults.
    ///
    /// # Panics
    /// If `len` is over `isize::MAX` less the alignment.
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        if len >= MAPPED_BYTES_MIN {
            let Ok(region) = Region::resident(len) else { handle_alloc_error(layout) };
            return AlignedBytes { start: region.start(), len, region: Some(region) };
        }
        // SAFETY: the layout's size is at least one alignment unit, never zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        let block = AlignedBytes { start, len, region: None };
        for offset in (0..len).step_by(4096) {
            // SAFETY: offset < len, inside the block. Volatile, so that the write is not elided and
            // the page becomes resident.
            unsafe { start.as_ptr().add(offset).write_volatile(0) };
        }
        block
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(BUFFER_ALIGN_BYTES), BUFFER_ALIGN_BYTES)
            .expect("buffer size fits the address space")
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte; users of disjoint parts keep the aliasing rules themselves.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: start..start+len is one live allocation, initialised by zeroing.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.region.is_some() {
            return;
        }
        // SAFETY: allocated in `zeroed` with this very layout, freed once; no region keeps it.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) };
    }
}

impl std::fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len)
    }
}

/// Zeroed bytes of which each page is memory only once it is used: for buffers that are sized for the worst
/// case, of which few are in use at a time. The first use of a page faults it in, once; it calls no
/// allocator. The default is no bytes, and asks the system for nothing.
#[derive(Debug, Default)]
pub struct LazyBytes(Option<Region>);

impl LazyBytes {
    /// `len` bytes. Where the system has no address space, the process ends as it does without memory.
    pub fn new(len: usize) -> Self {
        LazyBytes(Some(Region::untouched(len).unwrap_or_else(|_| {
            handle_alloc_error(Layout::array::<u8>(len).unwrap_or(Layout::new::<u8>()))
        })))
    }
}

impl std::ops::Deref for LazyBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Region::as_slice)
    }
}

impl std::ops::DerefMut for LazyBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // An anonymous region is always writable.
        self.0.as_mut().and_then(Region::as_mut_slice).unwrap_or_default()
    }
}

/// The system's number of the calling thread.
pub fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Page faults of a thread of this process so far, minor and major; `None` where the system does not say.
pub fn page_faults(thread: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    faults_of(&stat)
}

/// Fields 10 and 12 of a `stat` file; the name in field 2 may hold anything.
fn faults_of(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let minor: u64 = fields.nth(7)?.parse().ok()?;
    let major: u64 = fields.nth(1)?.parse().ok()?;
    Some(minor + major)
}

/// Bytes of this process that are in memory; `None` where the system does not say.
pub fn resident_bytes() -> Option<usize> {
    status_bytes("VmRSS:")
}

/// The most bytes of this process that were in memory at once; `None` where the system does not say.
pub fn peak_resident_bytes() -> Option<usize> {
    status_bytes("VmHWM:")
}

fn status_bytes(field: &str) -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Views bytes as elements of a plain type. `None` if the address or the length does not fit.
pub fn view<T: Element>(bytes: &[u8]) -> Option<&[T]> {
    // SAFETY: `Element` types accept every bit pattern; `align_to` checks alignment and length.
    let (head, body, tail) = unsafe { bytes.align_to::<T>() };
    (head.is_empty() && tail.is_empty()).then_some(body)
}

/// Views bytes as elements of a plain type. `None` if the address or the length does not fit.
pub fn view_mut<T: Element>(bytes: &mut [u8]) -> Option<&mut [T]> {
    // SAFETY: `Element` types accept every bit pattern and have no padding, so bytes written
    // through the view are initialised; `align_to_mut` checks alignment and length.
    let (head, body, tail) = unsafe { bytes.align_to_mut::<T>() };
    (head.is_empty() && tail.is_empty()).then_some(body)
}

/// Plain numbers: every bit pattern is a value, no padding.
///
/// # Safety
/// Implementors accept every bit pattern and have neither padding nor interior mutability.
pub unsafe trait Element: Copy + 'static {
    /// The matching element type.
    const DTYPE: crate::units::DType;
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => {$(
        // SAFETY: a primitive number: every bit pattern is a value, and it has no padding.
        unsafe impl Element for $t {
            const DTYPE: crate::units::DType = crate::units::DType::$d;
        }
    )*};
}
element!(f32 => F32, f64 => F64, i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32,
         u32 => U32, i64 => I64, u64 => U64);

#[cfg(test)]
mod tests;
