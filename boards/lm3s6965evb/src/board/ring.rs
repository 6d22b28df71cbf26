//! Bytes between an interrupt and the program.

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// A queue of bytes with one producer and one consumer, which may be an interrupt and what it
/// interrupts. Holds `N - 1` bytes.
pub struct Ring<const N: usize> {
    bytes: [AtomicU8; N],
    /// Where the next byte is put.
    head: AtomicUsize,
    /// Where the next byte is taken.
    tail: AtomicUsize,
}

impl<const N: usize> Ring<N> {
    pub const fn new() -> Self {
        Ring {
            bytes: [const { AtomicU8::new(0) }; N],
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
        }
    }
    /// The producer's: false if there is no room.
    pub fn push(&self, byte: u8) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        let next = (head + 1) % N;
        if next == self.tail.load(Ordering::Acquire) {
            return false;
        }
        self.bytes[head].store(byte, Ordering::Relaxed);
        self.head.store(next, Ordering::Release);
        true
    }
    /// The consumer's: `None` if it is empty.
    pub fn pop(&self) -> Option<u8> {
        let tail = self.tail.load(Ordering::Relaxed);
        if tail == self.head.load(Ordering::Acquire) {
            return None;
        }
        let byte = self.bytes[tail].load(Ordering::Relaxed);
        self.tail.store((tail + 1) % N, Ordering::Release);
        Some(byte)
    }
    pub fn is_empty(&self) -> bool {
        self.tail.load(Ordering::Relaxed) == self.head.load(Ordering::Acquire)
    }
}
