//! One direction of a simulated line: bytes take their time, and faults happen by a seed.

use std::collections::VecDeque;

/// xorshift64*.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        random.next();
        random
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n.max(1)
    }
    /// True once in `n` times; never if `n` is 0.
    pub fn once_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }
}

/// What goes wrong: each happens once in so many bytes; 0: never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// One bit is flipped.
    pub flip: u64,
    /// The byte is lost.
    pub lose: u64,
    /// The byte and the seven after it are lost.
    pub lose_cluster: u64,
    /// The byte comes twice.
    pub double: u64,
    /// The rest of the frame is lost, up to its delimiter.
    pub truncate: u64,
    /// Random bytes come in between, up to 64.
    pub noise: u64,
    /// Zeros come in between, up to 64.
    pub zeros: u64,
}

#[derive(Debug)]
pub struct Line {
    bytes: VecDeque<(u64, u8)>,
    byte_ns: u64,
    latency_ns: u64,
    /// When the transmitter has sent all that it took.
    busy_until: u64,
    pub faults: Faults,
    random: Random,
    losing: u32,
    truncating: bool,
    pub damage: u64,
    /// Bytes that were taken, delimiters seen.
    pub sent: u64,
    pub frames: u64,
}

/// Bytes that the transmitter takes before it has sent them.
const FIFO: u64 = 16;

impl Line {
    pub fn new(baud: u64, latency_ns: u64, seed: u64) -> Self {
        Line {
            bytes: VecDeque::new(),
            byte_ns: 10_000_000_000 / baud,
            latency_ns,
            busy_until: 0,
            faults: Faults::default(),
            random: Random::new(seed),
            losing: 0,
            truncating: false,
            damage: 0,
            sent: 0,
            frames: 0,
        }
    }
    /// Bytes that the transmitter takes now.
    pub fn room(&self, now: u64) -> usize {
        let waiting = self.busy_until.saturating_sub(now).div_ceil(self.byte_ns);
        FIFO.saturating_sub(waiting) as usize
    }
    /// When it takes the next, if it takes none now.
    pub fn room_at(&self) -> u64 {
        self.busy_until.saturating_sub((FIFO - 1) * self.byte_ns)
    }
    pub fn next_arrival(&self) -> Option<u64> {
        self.bytes.front().map(|&(at, _)| at)
    }
    pub fn write(&mut self, now: u64, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.room(now));
        for &byte in &bytes[..n] {
            self.busy_until = self.busy_until.max(now) + self.byte_ns;
            self.sent += 1;
            self.frames += u64::from(byte == 0);
            self.pass(byte);
        }
        n
    }
    fn arrive(&mut self, byte: u8) {
        let last = self.bytes.back().map_or(0, |&(at, _)| at);
        let at = (self.busy_until + self.latency_ns).max(last);
        self.bytes.push_back((at, byte));
    }
    /// Sends a byte through the faults.
    fn pass(&mut self, byte: u8) {
        let faults = self.faults;
        if self.random.once_in(faults.lose_cluster) {
            self.losing = 8;
        }
        if self.random.once_in(faults.truncate) {
            self.truncating = true;
        }
        self.truncating &= byte != 0;
        if self.losing > 0 || self.truncating || self.random.once_in(faults.lose) {
            self.losing = self.losing.saturating_sub(1);
            self.damage += 1;
            return;
        }
        let mut byte = byte;
        if self.random.once_in(faults.flip) {
            self.damage += 1;
            byte ^= 1 << self.random.below(8);
        }
        self.arrive(byte);
        if self.random.once_in(faults.double) {
            self.damage += 1;
            self.arrive(byte);
        }
        if self.random.once_in(faults.noise) {
            self.damage += 1;
            for _ in 0..1 + self.random.below(64) {
                let noise = self.random.next() as u8;
                self.arrive(noise);
            }
        }
        if self.random.once_in(faults.zeros) {
            self.damage += 1;
            for _ in 0..1 + self.random.below(64) {
                self.arrive(0);
            }
        }
    }
    /// Bytes that have arrived by `now`.
    pub fn read(&mut self, now: u64, into: &mut [u8]) -> usize {
        let mut n = 0;
        while n < into.len() && self.bytes.front().is_some_and(|&(at, _)| at <= now) {
            into[n] = self.bytes.pop_front().unwrap().1;
            n += 1;
        }
        n
    }
}
