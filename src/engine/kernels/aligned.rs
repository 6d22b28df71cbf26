//! Weight buffers: heap memory that begins at a cache line.

/// One cache line of floats; a vector of lines is a buffer that begins at a line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Floats that begin at a multiple of 64 bytes; the length is fixed at creation.
#[derive(Debug, Clone, Default)]
pub struct AlignedBuf {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedBuf {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> AlignedBuf {
        AlignedBuf { lines: vec![Line([0.0; 16]); len.div_ceil(16)], len }
    }

    /// A copy of `values`.
    pub fn from_slice(values: &[f32]) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed(values.len());
        buf.copy_from_slice(values);
        buf
    }

    /// Bytes of heap that it holds.
    pub fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: `lines` holds at least `len` initialised floats, contiguous (`repr(C)`, no padding:
        // 16 floats fill the 64 bytes).
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
