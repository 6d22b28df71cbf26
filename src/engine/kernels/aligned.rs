//! Buffers that begin at a cache line: on the heap, in a mapped region of their own, or in one that
//! many share.

use super::cast;
use crate::engine::image;
use crate::sys::region::Region;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// One cache line of floats; a vector of lines is a buffer that begins at a line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Who keeps the memory: kept for its `Drop`, and read through the pointer beside it.
#[derive(Debug)]
#[allow(dead_code)]
enum Owner {
    Heap(Vec<Line>),
    /// Ours alone.
    Region(Region),
    /// Read only; the region is never written again while anybody shares it.
    Shared(Arc<Region>),
}

/// Floats that begin at a multiple of 64 bytes; the length is fixed at creation.
#[derive(Debug)]
pub struct AlignedBuf {
    /// Into what `owner` keeps, which does not move.
    start: NonNull<f32>,
    len: usize,
    owner: Owner,
}

// SAFETY: the buffer is its owner and a pointer into it; a vector of floats and a region may be sent.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl Default for AlignedBuf {
    fn default() -> AlignedBuf {
        AlignedBuf::zeroed(0)
    }
}

impl AlignedBuf {
    /// `len` zeros on the heap.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let mut lines = vec![Line([0.0; 16]); len.div_ceil(16)];
        // A vector's elements stay where they are when the vector itself is moved.
        let start = NonNull::from(&mut lines[..]).cast();
        AlignedBuf { start, len, owner: Owner::Heap(lines) }
    }

    /// `len` zeros in a region of their own, as [`Options`](crate::sys::region::Options) has regions: touched, and locked or
    /// in huge pages where that is asked for.
    ///
    /// # Errors
    /// If the system has no memory, or does not lock it where that is required.
    pub fn mapped(len: usize) -> io::Result<AlignedBuf> {
        if len == 0 {
            return Ok(AlignedBuf::default());
        }
        let region = Region::zeroed(len.saturating_mul(size_of::<f32>()))?;
        let start = region.start().cast();
        Ok(AlignedBuf { start, len, owner: Owner::Region(region) })
    }

    /// `len` floats at byte `offset` of `region`. `None` if they don't lie in it, or not at a line.
    pub fn within(region: &Arc<Region>, offset: usize, len: usize) -> Option<AlignedBuf> {
        let end = len.checked_mul(size_of::<f32>())?.checked_add(offset)?;
        if end > region.len() {
            return None;
        }
        // SAFETY: offset <= end <= the region's length.
        let start = unsafe { region.start().add(offset) };
        let aligned = (start.as_ptr() as usize).is_multiple_of(align_of::<Line>());
        aligned.then(|| AlignedBuf {
            start: start.cast(),
            len,
            owner: Owner::Shared(region.clone()),
        })
    }

    /// A copy of `values`.
    pub fn from_slice(values: &[f32]) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed(values.len());
        buf.copy_from_slice(values);
        buf
    }

    /// Bytes that it takes, whole lines.
    pub fn bytes(&self) -> usize {
        self.len.div_ceil(16) * size_of::<Line>()
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> AlignedBuf {
        match &self.owner {
            Owner::Shared(region) => AlignedBuf {
                start: self.start,
                len: self.len,
                owner: Owner::Shared(region.clone()),
            },
            _ => AlignedBuf::from_slice(self),
        }
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: `start` is the first of `len` initialised floats that `owner` keeps: lines are 16
        // floats without padding, regions are bytes that were zeroed or read from a file, and every
        // bit pattern is a float.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [f32] {
        if let Owner::Shared(_) = self.owner {
            // What is shared is read only; whoever writes gets a copy.
            *self = AlignedBuf::from_slice(self);
        }
        // SAFETY: as in `deref`; the owner is ours alone, and the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Only within an image: the floats go to its block of weights, here is where.
impl Serialize for AlignedBuf {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let offset = image::put(cast::bytes(self)).map_err(ser::Error::custom)?;
        (offset, self.len as u64).serialize(serializer)
    }
}

/// Only within an image: a view of its block of weights.
impl<'de> Deserialize<'de> for AlignedBuf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AlignedBuf, D::Error> {
        let (offset, len) = <(u64, u64)>::deserialize(deserializer)?;
        let (region, from) = image::block().map_err(de::Error::custom)?;
        let place = usize::try_from(offset).ok().and_then(|o| o.checked_add(from));
        let buf = place
            .zip(usize::try_from(len).ok())
            .and_then(|(offset, len)| AlignedBuf::within(&region, offset, len));
        buf.ok_or_else(|| de::Error::custom("weights outside their block"))
    }
}
