//! Encodings: float32 tensors as fewer bytes on the wire, and the conversions of both ends.

use crate::limits::{ENCODINGS_BYTES_MAX, TENSORS_MAX};

/// The size of a step of [`Encoding::I8`]: positive, finite and no subnormal number, so that the
/// division by it is exact to the last bit everywhere.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Scale(f32);

// No NaN gets in.
impl Eq for Scale {}

impl Scale {
    /// A scale.
    ///
    /// # Errors
    /// The number is not positive, not finite, or subnormal.
    pub const fn new(value: f32) -> Result<Scale, BadScale> {
        if value >= f32::MIN_POSITIVE && value <= f32::MAX {
            Ok(Scale(value))
        } else {
            Err(BadScale { bits: value.to_bits() })
        }
    }
    /// The number.
    pub const fn get(self) -> f32 {
        self.0
    }
}

/// A number that is no [`Scale`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BadScale {
    /// Its bits.
    pub bits: u32,
}

impl core::fmt::Display for BadScale {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let value = f32::from_bits(self.bits);
        write!(f, "{value} is no scale; it must be positive, finite and not subnormal")
    }
}

impl core::error::Error for BadScale {}

/// How the elements of a float32 tensor travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Encoding {
    /// Number 0. As they are, four bytes each: what a tensor travels as when nothing is asked for.
    #[default]
    F32,
    /// Number 1. IEEE 754 half precision, two bytes each. Written with the nearest number (of two as
    /// near, the even one); from 65520 on that is infinity. NaN stays NaN, with its sign.
    F16,
    /// Number 2. One signed byte each, which stands for (byte − `zero_point`) · `scale`. Written with
    /// the nearest byte (of two as near, the even one before `zero_point` is added); what lies
    /// beyond −128 and 127, infinities too, becomes those, and NaN becomes `zero_point`, which is
    /// read as 0.
    I8 {
        /// The distance between two values.
        scale: Scale,
        /// The byte that stands for 0.
        zero_point: i8,
    },
}

impl Encoding {
    /// Largest number of this version.
    pub const NUMBER_MAX: u8 = 2;

    /// The encoding's number on the wire.
    pub const fn number(self) -> u8 {
        match self {
            Encoding::F32 => 0,
            Encoding::F16 => 1,
            Encoding::I8 { .. } => 2,
        }
    }
    /// Bytes of one element.
    pub const fn element_bytes(self) -> usize {
        match self {
            Encoding::F32 => 4,
            Encoding::F16 => 2,
            Encoding::I8 { .. } => 1,
        }
    }
    /// An element as it travels.
    pub fn encode(self, value: f32) -> Element {
        let mut bytes = [0; 4];
        match self {
            Encoding::F32 => bytes = value.to_le_bytes(),
            Encoding::F16 => bytes[..2].copy_from_slice(&f16_from_f32(value).to_le_bytes()),
            Encoding::I8 { scale, zero_point } => {
                bytes[0] = quantize(value, scale.0, zero_point) as u8;
            }
        }
        Element { bytes, len: self.element_bytes() as u8 }
    }
    /// The value of an element that travelled; `None` if `bytes` are not one element.
    pub fn decode(self, bytes: &[u8]) -> Option<f32> {
        Some(match (self, bytes) {
            (Encoding::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Encoding::F16, &[a, b]) => f32_from_f16(u16::from_le_bytes([a, b])),
            (Encoding::I8 { scale, zero_point }, &[a]) => dequantize(a as i8, scale.0, zero_point),
            _ => return None,
        })
    }
    /// The bytes of many elements, one after the other: an input to stream.
    pub fn bytes<I: IntoIterator<Item = f32>>(
        self,
        values: I,
    ) -> impl Iterator<Item = u8> + use<I> {
        values.into_iter().flat_map(move |value| self.encode(value))
    }
    /// Encodes as many of `values` as `out` has room for; returns the bytes written.
    pub fn encode_slice(self, values: &[f32], out: &mut [u8]) -> usize {
        let size = self.element_bytes();
        let mut written = 0;
        for (&value, out) in values.iter().zip(out.chunks_exact_mut(size)) {
            out.copy_from_slice(&self.encode(value));
            written += size;
        }
        written
    }
    /// Decodes as many whole elements as `bytes` has and `values` has room for; returns how many.
    pub fn decode_slice(self, bytes: &[u8], values: &mut [f32]) -> usize {
        let mut n = 0;
        for (bytes, value) in bytes.chunks_exact(self.element_bytes()).zip(values) {
            *value = self.decode(bytes).unwrap_or(0.0);
            n += 1;
        }
        n
    }
}

impl core::fmt::Display for Encoding {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Encoding::F32 => f.write_str("f32"),
            Encoding::F16 => f.write_str("f16"),
            Encoding::I8 { scale, zero_point } => write!(f, "i8:{}:{zero_point}", scale.0),
        }
    }
}

/// A text that names no encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NoEncoding;

impl core::fmt::Display for NoEncoding {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(
            "no encoding; write f32, f16, i8:SCALE or i8:SCALE:ZERO, with a positive SCALE and a \
             ZERO of -128 to 127",
        )
    }
}

impl core::error::Error for NoEncoding {}

impl core::str::FromStr for Encoding {
    type Err = NoEncoding;

    /// `f32`, `f16`, `i8:SCALE` or `i8:SCALE:ZERO`.
    fn from_str(text: &str) -> Result<Encoding, NoEncoding> {
        let mut parts = text.split(':');
        let encoding = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("f32"), None, ..) => Encoding::F32,
            (Some("f16"), None, ..) => Encoding::F16,
            (Some("i8"), Some(scale), zero_point, None) => {
                let scale = scale.parse().map_err(|_| NoEncoding)?;
                let scale = Scale::new(scale).map_err(|_| NoEncoding)?;
                let zero_point = zero_point.unwrap_or("0").parse().map_err(|_| NoEncoding)?;
                Encoding::I8 { scale, zero_point }
            }
            _ => return Err(NoEncoding),
        };
        Ok(encoding)
    }
}

/// One element as it travels: a slice of one to four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Element {
    bytes: [u8; 4],
    len: u8,
}

impl core::ops::Deref for Element {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl IntoIterator for Element {
    type Item = u8;
    type IntoIter = core::iter::Take<core::array::IntoIter<u8, 4>>;
    fn into_iter(self) -> Self::IntoIter {
        self.bytes.into_iter().take(usize::from(self.len))
    }
}

/// Decodes elements whose bytes come in pieces of any size, as an answer's do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ElementDecoder {
    encoding: Encoding,
    bytes: [u8; 4],
    len: u8,
}

impl ElementDecoder {
    /// Before the first byte of a tensor.
    pub const fn new(encoding: Encoding) -> Self {
        ElementDecoder { encoding, bytes: [0; 4], len: 0 }
    }
    /// Takes a byte; the element's value if it was its last.
    pub fn push(&mut self, byte: u8) -> Option<f32> {
        self.bytes[usize::from(self.len)] = byte;
        self.len += 1;
        let value = self.encoding.decode(&self.bytes[..usize::from(self.len)])?;
        self.len = 0;
        Some(value)
    }
}

/// A half as a single, exactly.
fn f32_from_f16(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let (exponent, fraction) = (u32::from(half >> 10 & 0x1F), u32::from(half & 0x3FF));
    let magnitude = match exponent {
        // Subnormal: steps of 2^-24. Both factors and the product are normal singles.
        0 => (fraction as f32 * f32::from_bits((127 - 24) << 23)).to_bits(),
        // NaN becomes a quiet one.
        0x1F if fraction != 0 => 0x7FC0_0000 | fraction << 13,
        0x1F => 0x7F80_0000,
        _ => (exponent + 112) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// A single as the nearest half, of two as near the even one.
fn f16_from_f32(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    let magnitude = value.to_bits() & 0x7FFF_FFFF;
    let half = match magnitude {
        0x7F80_0001.. => 0x7E00,
        // 65520 lies between the largest half and the next, which is infinity.
        0x477F_F000.. => 0x7C00,
        // 2^-14, the least normal half: the exponent's bias is 15 and not 127, ten bits of the
        // fraction stay; a carry goes into the exponent, as it should.
        0x3880_0000.. => {
            let wide = magnitude - (112 << 23);
            (wide + 0xFFF + (wide >> 13 & 1)) >> 13
        }
        // Subnormal: in the sum with 0.5 the last bit of the fraction stands for 2^-24.
        _ => (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits(),
    };
    sign | half as u16
}

/// Adding it rounds a number of moderate size to an integer, of two as near the even one, whose two's
/// complement is then in the low bits.
const ROUND: f32 = 12_582_912.0;

fn quantize(value: f32, scale: f32, zero_point: i8) -> i8 {
    let steps = value / scale;
    // Not a number compares with nothing.
    let steps = if steps.is_nan() { 0.0 } else { steps.clamp(-256.0, 256.0) };
    let rounded = (steps + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
    (rounded + i32::from(zero_point)).clamp(-128, 127) as i8
}

fn dequantize(byte: i8, scale: f32, zero_point: i8) -> f32 {
    (i16::from(byte) - i16::from(zero_point)) as f32 * scale
}

/// A tensor of a model, by its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Place {
    /// An input.
    Input(u8),
    /// An output.
    Output(u8),
}

const OUTPUT: u8 = 0x80;

impl Place {
    /// The number on the wire: the position, for outputs with the highest bit set.
    pub const fn number(self) -> u8 {
        match self {
            Place::Input(at) => at & !OUTPUT,
            Place::Output(at) => at | OUTPUT,
        }
    }
    /// The place with this number.
    pub const fn from_number(number: u8) -> Place {
        if number & OUTPUT == 0 { Place::Input(number) } else { Place::Output(number & !OUTPUT) }
    }
}

impl core::fmt::Display for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Place::Input(at) => write!(f, "input {at}"),
            Place::Output(at) => write!(f, "output {at}"),
        }
    }
}

/// What a client asks for one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TensorEncoding {
    /// Which.
    pub place: Place,
    /// How it is to travel.
    pub encoding: Encoding,
}

impl TensorEncoding {
    /// What stands for it in a list: the first [`entry_len`](Self::entry_len) bytes.
    pub(crate) fn entry(&self) -> [u8; 7] {
        let (place, number) = (self.place.number(), self.encoding.number());
        let mut entry = [place, number, 0, 0, 0, 0, 0];
        if let Encoding::I8 { scale, zero_point } = self.encoding {
            let [a, b, c, d] = scale.0.to_le_bytes();
            entry = [place, number, a, b, c, d, zero_point as u8];
        }
        entry
    }
    pub(crate) fn entry_len(&self) -> usize {
        match self.encoding {
            Encoding::I8 { .. } => 7,
            _ => 2,
        }
    }
}

/// Why a list of encodings can't be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum EncodingsError {
    /// The list ends within an entry.
    CutShort,
    /// The list is longer than one with every tensor that a model may have.
    TooLong {
        /// Bytes that there may be.
        max: usize,
    },
    /// No encoding of this version has this number.
    UnknownEncoding {
        /// The tensor.
        place: Place,
        /// The number.
        number: u8,
    },
    /// The scale is not one.
    BadScale {
        /// The tensor.
        place: Place,
        /// What it is.
        scale: BadScale,
    },
}

impl core::fmt::Display for EncodingsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            EncodingsError::CutShort => f.write_str("the list of encodings is cut short"),
            EncodingsError::TooLong { max } => {
                write!(f, "a list of encodings of more than {max} bytes, or with a tensor twice")
            }
            EncodingsError::UnknownEncoding { place, number } => {
                write!(f, "{place}: no encoding has number {number}; f32 is 0, f16 is 1, i8 is 2")
            }
            EncodingsError::BadScale { place, scale } => write!(f, "{place}: {scale}"),
        }
    }
}

impl core::error::Error for EncodingsError {}

/// The list of an [`OpenEncoded`](super::Request::OpenEncoded), entry by entry; ends after an error.
#[derive(Debug, Clone)]
pub struct Encodings<'a>(&'a [u8]);

impl<'a> Encodings<'a> {
    /// Of the message's field.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Encodings(bytes)
    }
    fn entry(&mut self) -> Result<TensorEncoding, EncodingsError> {
        let [place, number, rest @ ..] = self.0 else { return Err(EncodingsError::CutShort) };
        let place = Place::from_number(*place);
        let (encoding, rest) = match (number, rest) {
            (0, rest) => (Encoding::F32, rest),
            (1, rest) => (Encoding::F16, rest),
            (2, &[a, b, c, d, zero_point, ref rest @ ..]) => {
                let scale = Scale::new(f32::from_le_bytes([a, b, c, d]))
                    .map_err(|scale| EncodingsError::BadScale { place, scale })?;
                (Encoding::I8 { scale, zero_point: zero_point as i8 }, rest)
            }
            (2, _) => return Err(EncodingsError::CutShort),
            (&number, _) => return Err(EncodingsError::UnknownEncoding { place, number }),
        };
        self.0 = rest;
        Ok(TensorEncoding { place, encoding })
    }
}

impl Iterator for Encodings<'_> {
    type Item = Result<TensorEncoding, EncodingsError>;

    /// Never panics, whatever the bytes.
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = self.entry();
        if entry.is_err() {
            self.0 = &[];
        }
        Some(entry)
    }
}

/// Writes the list of an [`OpenEncoded`](super::Request::OpenEncoded) to the start of `out`; returns
/// the bytes written.
///
/// # Errors
/// It does not fit.
pub fn write_encodings(
    tensors: &[TensorEncoding],
    out: &mut [u8; ENCODINGS_BYTES_MAX],
) -> Result<usize, EncodingsError> {
    let mut end = 0;
    for tensor in tensors {
        let (entry, len) = (tensor.entry(), tensor.entry_len());
        let place = out.get_mut(end..end + len);
        let max = ENCODINGS_BYTES_MAX;
        place.ok_or(EncodingsError::TooLong { max })?.copy_from_slice(&entry[..len]);
        end += len;
    }
    Ok(end)
}

/// Every tensor that a model may have, with the longest entry.
const _: () = assert!(ENCODINGS_BYTES_MAX == 2 * TENSORS_MAX * 7);

/// Decodes whole elements of `from` into little-endian singles, as many as both have; returns how
/// many bytes of each were used.
#[cfg(feature = "std")]
pub(crate) fn decode_le(encoding: Encoding, from: &[u8], to: &mut [u8]) -> (usize, usize) {
    let size = encoding.element_bytes();
    let n = (from.len() / size).min(to.len() / 4);
    let (from, to) = (&from[..n * size], &mut to[..n * 4]);
    // A loop for each, so that none looks at the encoding element by element.
    match encoding {
        Encoding::F32 => to.copy_from_slice(from),
        Encoding::F16 => {
            for (to, from) in to.as_chunks_mut::<4>().0.iter_mut().zip(from.as_chunks::<2>().0) {
                *to = f32_from_f16(u16::from_le_bytes(*from)).to_le_bytes();
            }
        }
        Encoding::I8 { scale, zero_point } => {
            for (to, &from) in to.as_chunks_mut::<4>().0.iter_mut().zip(from) {
                *to = dequantize(from as i8, scale.0, zero_point).to_le_bytes();
            }
        }
    }
    (n * size, n * 4)
}

/// Encodes the `n` little-endian singles that begin at `from` in place: the elements begin at `to`,
/// which is not after `from`.
#[cfg(feature = "std")]
pub(crate) fn encode_in_place(
    encoding: Encoding,
    bytes: &mut [u8],
    from: usize,
    to: usize,
    n: usize,
) {
    assert!(to <= from, "an encoded tensor does not begin after the one it is made from");
    if encoding == Encoding::F32 {
        return bytes.copy_within(from..from + 4 * n, to);
    }
    // In pieces, each read as a whole before it is written: an encoded piece ends before the next one
    // to read begins.
    const PIECE: usize = 64;
    let size = encoding.element_bytes();
    let mut done = 0;
    while done < n {
        let len = PIECE.min(n - done);
        let mut values = [0f32; PIECE];
        let read = &bytes[from + 4 * done..][..4 * len];
        for (value, bytes) in values.iter_mut().zip(read.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        let write = &mut bytes[to + size * done..][..size * len];
        match encoding {
            Encoding::F16 => {
                for (out, value) in write.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    *out = f16_from_f32(value).to_le_bytes();
                }
            }
            Encoding::I8 { scale, zero_point } => {
                for (out, value) in write.iter_mut().zip(values) {
                    *out = quantize(value, scale.0, zero_point) as u8;
                }
            }
            Encoding::F32 => {}
        }
        done += len;
    }
}

#[cfg(all(test, feature = "std"))]
mod tests;
