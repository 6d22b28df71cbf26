//! A seeded fault injector around any stream of bytes: what a bad client, or a bad line, does.

use std::io::{self, Read, Write};

/// What goes wrong, each with its chance in 1000 per call (or per byte where it says so).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultPlan {
    /// Only some of the bytes of a call are passed on; the caller sends the rest in later calls.
    pub short: u32,
    /// A pause before a call.
    pub pause: u32,
    /// Longest pause, in microseconds.
    pub pause_us_max: u32,
    /// A byte that is written has one bit flipped (per byte).
    pub flip: u32,
    /// A byte that is written is lost (per byte).
    pub lose: u32,
    /// A byte that is written comes twice (per byte).
    pub double: u32,
    /// The connection breaks before a write.
    pub cut: u32,
}

/// A stream with faults by a plan and a seed: the same calls meet the same faults.
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    plan: FaultPlan,
    state: u64,
    cut: bool,
    scratch: Vec<u8>,
    /// Faults so far that changed what the peer gets.
    damage: u64,
}

impl<S> Faulty<S> {
    /// Wraps `inner`.
    pub fn new(inner: S, plan: FaultPlan, seed: u64) -> Self {
        let state = seed ^ 0x9E37_79B9_7F4A_7C15;
        Faulty { inner, plan, state, cut: false, scratch: Vec::new(), damage: 0 }
    }
    /// Flipped, lost and doubled bytes, and cuts, so far.
    pub fn damage(&self) -> u64 {
        self.damage
    }
    /// The stream inside.
    pub fn into_inner(self) -> S {
        self.inner
    }
    /// xorshift64*: the next number below `n`.
    fn below(&mut self, n: u32) -> u32 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        ((self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n.max(1) as u64) as u32
    }
    fn happens(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1000) < per_mille
    }
    /// A pause if the plan says so; how many of `len` bytes to pass on.
    fn begin(&mut self, len: usize) -> io::Result<usize> {
        if self.cut {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if self.happens(self.plan.pause) {
            let us = self.below(self.plan.pause_us_max + 1);
            std::thread::park_timeout(std::time::Duration::from_micros(us as u64));
        }
        if len > 1 && self.happens(self.plan.short) {
            return Ok(1 + self.below(len as u32 - 1) as usize);
        }
        Ok(len)
    }
}

impl<S: Read> Read for Faulty<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.begin(buffer.len())?;
        self.inner.read(&mut buffer[..n])
    }
}

impl<S: Write> Write for Faulty<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let n = self.begin(buffer.len())?;
        if self.happens(self.plan.cut) {
            self.cut = true;
            self.damage += 1;
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.scratch.clear();
        for &byte in &buffer[..n] {
            if self.happens(self.plan.lose) {
                self.damage += 1;
                continue;
            }
            let mut byte = byte;
            if self.happens(self.plan.flip) {
                self.damage += 1;
                byte ^= 1 << self.below(8);
            }
            self.scratch.push(byte);
            if self.happens(self.plan.double) {
                self.damage += 1;
                self.scratch.push(byte);
            }
        }
        self.inner.write_all(&self.scratch)?;
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
