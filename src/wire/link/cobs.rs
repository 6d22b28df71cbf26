//! Byte stuffing: what is between two zero bytes is one unit.

/// Why a unit was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Damage {
    /// It ended within a block.
    CutShort,
    /// It is longer than the buffer; told once, at the first byte that has no room.
    TooLong {
        /// Bytes there were room for.
        max: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// After a delimiter.
    Between,
    /// Within a unit.
    Within,
    /// Within a unit that is of no use: everything up to the next delimiter is dropped.
    Discarding,
}

/// Takes the bytes of a line and finds units. Never panics, whatever the bytes; after damage of any
/// kind it is back in step at the next delimiter.
#[derive(Debug, Clone)]
pub struct Decoder<B> {
    buffer: B,
    len: usize,
    state: State,
    /// Bytes until the next code.
    left: u8,
    /// The block before was shorter than the longest, so a zero belongs before the next one.
    zero_due: bool,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Decoder<B> {
    /// A decoder for units of at most as many bytes as `buffer` has.
    pub const fn new(buffer: B) -> Self {
        Decoder { buffer, len: 0, state: State::Between, left: 0, zero_due: false }
    }
    /// Longest unit, in bytes.
    pub fn capacity(&self) -> usize {
        self.buffer.as_ref().len()
    }
    /// The first `len` bytes of the buffer: the unit that [`push`](Self::push) reported.
    pub fn unit(&self, len: usize) -> &[u8] {
        let bytes = self.buffer.as_ref();
        &bytes[..len.min(bytes.len())]
    }
    /// Takes one byte. At the end of a unit returns its length; the unit stays until the next call.
    pub fn push(&mut self, byte: u8) -> Option<Result<usize, Damage>> {
        if byte == 0 {
            let state = core::mem::replace(&mut self.state, State::Between);
            return match state {
                State::Within if self.left > 0 => Some(Err(Damage::CutShort)),
                State::Within => Some(Ok(self.len)),
                State::Between | State::Discarding => None,
            };
        }
        match self.state {
            State::Discarding => return None,
            State::Between => {
                self.state = State::Within;
                (self.len, self.left, self.zero_due) = (0, 0, false);
            }
            State::Within => {}
        }
        if self.left > 0 {
            self.left -= 1;
            return self.store(byte);
        }
        let zero = core::mem::replace(&mut self.zero_due, byte != u8::MAX);
        self.left = byte - 1;
        if zero { self.store(0) } else { None }
    }
    fn store(&mut self, byte: u8) -> Option<Result<usize, Damage>> {
        let max = self.capacity();
        match self.buffer.as_mut().get_mut(self.len) {
            Some(place) => {
                *place = byte;
                self.len += 1;
                None
            }
            None => {
                self.state = State::Discarding;
                Some(Err(Damage::TooLong { max }))
            }
        }
    }
}

/// Longest run of bytes without a zero that one block holds.
const RUN_MAX: usize = 254;

/// Where the writing of a unit stands. The unit's bytes are asked for one by one and looked at
/// twice, so that no encoded copy is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Encoder {
    /// The next byte of the unit.
    at: usize,
    /// Bytes left in the block.
    run: u8,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Code,
    Run { zero_after: bool },
    Delimiter,
    Done,
}

impl Encoder {
    pub const fn new() -> Self {
        Encoder { at: 0, run: 0, step: Step::Code }
    }
    /// One that has nothing to write.
    pub const fn done() -> Self {
        Encoder { at: 0, run: 0, step: Step::Done }
    }
    /// The next byte for the line, of a unit of `len` bytes; `None` after the delimiter.
    pub fn next(&mut self, len: usize, byte: impl Fn(usize) -> u8) -> Option<u8> {
        match self.step {
            Step::Code => {
                let rest = (len - self.at).min(RUN_MAX);
                let run = (0..rest).find(|&i| byte(self.at + i) == 0).unwrap_or(rest);
                let zero_after = run < RUN_MAX && self.at + run < len;
                self.run = run as u8;
                self.step = Step::Run { zero_after };
                if run == 0 {
                    self.end_block(zero_after, len);
                }
                Some(run as u8 + 1)
            }
            Step::Run { zero_after } => {
                let next = byte(self.at);
                self.at += 1;
                self.run -= 1;
                if self.run == 0 {
                    self.end_block(zero_after, len);
                }
                Some(next)
            }
            Step::Delimiter => {
                self.step = Step::Done;
                Some(0)
            }
            Step::Done => None,
        }
    }
    /// Whether the delimiter was written.
    pub fn is_done(&self) -> bool {
        self.step == Step::Done
    }
    fn end_block(&mut self, zero_after: bool, len: usize) {
        // A zero that ends the unit still needs a block after it, which is empty.
        self.at += usize::from(zero_after);
        self.step = if zero_after || self.at < len { Step::Code } else { Step::Delimiter };
    }
}

/// Most bytes on the line for a unit of `len` bytes, its delimiter included.
pub const fn encoded_len_max(len: usize) -> usize {
    len + len / RUN_MAX + 2
}

/// Writes a unit and its delimiter to the start of `out`; `None` if it does not fit.
pub fn encode(unit: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut encoder = Encoder::new();
    let mut n = 0;
    while let Some(byte) = encoder.next(unit.len(), |i| unit[i]) {
        *out.get_mut(n)? = byte;
        n += 1;
    }
    Some(n)
}
