//! A text of fixed size that C can read: cut at its bound, with a closing zero.

use std::ffi::c_char;
use std::fmt::{self, Write};

/// At most `N` bytes, the closing zero included.
pub(super) struct Line<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Line<N> {
    /// An empty text.
    pub const fn new() -> Self {
        Line { bytes: [0; N], len: 0 }
    }

    /// Holds `text`, cut where the place ends.
    pub fn set(&mut self, text: fmt::Arguments<'_>) {
        self.len = 0;
        self.bytes[0] = 0;
        // Cutting stops the formatting; that is not an error.
        let _ = self.write_fmt(text);
    }

    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The text for C.
    pub const fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

impl<const N: usize> Write for Line<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut take = text.len().min(N - 1 - self.len);
        while !text.is_char_boundary(take) {
            take -= 1;
        }
        let place = &mut self.bytes[self.len..self.len + take];
        place.copy_from_slice(&text.as_bytes()[..take]);
        // A zero inside would hide what follows.
        place.iter_mut().filter(|b| **b == 0).for_each(|b| *b = b' ');
        self.len += take;
        self.bytes[self.len] = 0;
        if take < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}
