//! The bytes of a stream that were not acknowledged yet.

/// A ring whose positions are those of the stream, modulo 2^16.
#[derive(Debug, Clone)]
pub(super) struct Ring<B> {
    buffer: B,
    /// Where the byte at `floor` lies.
    base: usize,
    /// The first position that is kept.
    floor: u16,
    /// Bytes kept.
    len: usize,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Ring<B> {
    pub const fn new(buffer: B) -> Self {
        Ring { buffer, base: 0, floor: 0, len: 0 }
    }
    pub fn capacity(&self) -> usize {
        self.buffer.as_ref().len().min(crate::limits::LINK_WINDOW_BYTES_MAX)
    }
    pub fn room(&self) -> usize {
        self.capacity() - self.len
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
        let n = position.wrapping_sub(self.floor) as usize;
        if n <= self.len && n > 0 {
            self.base = (self.base + n) % self.capacity();
            self.floor = position;
            self.len -= n;
        }
    }
    /// Adds bytes as far as there is room; returns how many.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.room());
        let capacity = self.capacity();
        let (now, later) = bytes[..n].split_at(n.min(capacity - self.at(self.len)));
        let at = self.at(self.len);
        let buffer = self.buffer.as_mut();
        buffer[at..at + now.len()].copy_from_slice(now);
        buffer[..later.len()].copy_from_slice(later);
        self.len += n;
        n
    }
    fn at(&self, offset: usize) -> usize {
        let at = self.base + offset;
        if at >= self.capacity() { at - self.capacity() } else { at }
    }
    /// The byte at a position; 0 where none is kept.
    pub fn byte(&self, position: u16) -> u8 {
        let offset = position.wrapping_sub(self.floor) as usize;
        if offset < self.len { self.buffer.as_ref()[self.at(offset)] } else { 0 }
    }
    /// `len` bytes from a position, in two pieces.
    pub fn pieces(&self, position: u16, len: usize) -> (&[u8], &[u8]) {
        let offset = (position.wrapping_sub(self.floor) as usize).min(self.len);
        let len = len.min(self.len - offset);
        let at = self.at(offset);
        let first = len.min(self.capacity() - at);
        let buffer = self.buffer.as_ref();
        (&buffer[at..at + first], &buffer[..len - first])
    }
}
