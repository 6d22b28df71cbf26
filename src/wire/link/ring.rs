//! The bytes of a stream that were not acknowledged yet.

/// A ring whose positions are those of the stream, modulo 2^16.
#[derive(Debug, Clone)]
pub(super) struct Ring<B> {
    buffer: B,
    capacity: usize,
    /// Where the byte at `floor` lies.
    base: usize,
    /// The first position that is kept.
    floor: u16,
    /// Bytes kept.
    len: usize,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Ring<B> {
    pub fn new(buffer: B) -> Self {
        let capacity = buffer.as_ref().len().min(crate::limits::LINK_WINDOW_BYTES_MAX);
        Ring { buffer, capacity, base: 0, floor: 0, len: 0 }
    }
    pub const fn capacity(&self) -> usize {
        self.capacity
    }
    pub const fn room(&self) -> usize {
        self.capacity - self.len
    }
    pub fn clear(&mut self) {
        (self.base, self.floor, self.len) = (0, 0, 0);
    }
    /// The position after the last byte.
    pub const fn end(&self) -> u16 {
        self.floor.wrapping_add(self.len as u16)
    }
    /// Forgets the bytes before `position`.
    pub fn release(&mut self, position: u16) {
        let n = usize::from(position.wrapping_sub(self.floor));
        if n <= self.len {
            self.base = self.at(n);
            self.floor = position;
            self.len -= n;
        }
    }
    /// Adds bytes as far as there is room; returns how many.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let mut n = 0;
        for &byte in bytes.iter().take(self.room()) {
            let at = self.at(self.len);
            if let Some(place) = self.buffer.as_mut().get_mut(at) {
                *place = byte;
            }
            self.len += 1;
            n += 1;
        }
        n
    }
    fn at(&self, offset: usize) -> usize {
        let at = self.base + offset;
        if at >= self.capacity { at - self.capacity } else { at }
    }
    /// The byte at a position; 0 where none is kept.
    pub fn byte(&self, position: u16) -> u8 {
        let offset = usize::from(position.wrapping_sub(self.floor));
        let at = self.at(offset.min(self.len));
        self.buffer.as_ref().get(at).filter(|_| offset < self.len).copied().unwrap_or(0)
    }
}
