//! NumPy's `.npy` files, versions 1 and 2: what goldens, and inputs of the command line, are kept in.
//!
//! Little-endian, C order, and the element types of [`DType`]; everything else is refused by a typed
//! error. Reading never trusts a length: memory is bounded by the bytes given.

use crate::units::DType;
use std::fmt;

/// A tensor with its shape: little-endian elements in C order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// Element type.
    pub dtype: DType,
    /// Axes; empty for a single value.
    pub shape: Vec<usize>,
    /// Elements.
    pub data: Vec<u8>,
}

/// Why bytes are not a `.npy` file that corelane reads.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NpyError {
    /// The file does not begin as a `.npy` file does.
    NotNpy,
    /// Version 1 and 2 are read.
    Version {
        /// Major version of the file.
        major: u8,
    },
    /// The file ends before its header or its data does.
    Truncated {
        /// Bytes that there must be.
        wanted: usize,
        /// Bytes that there are.
        got: usize,
    },
    /// Bytes after the data.
    Trailing {
        /// Bytes that there must be.
        wanted: usize,
        /// Bytes that there are.
        got: usize,
    },
    /// The header is not the dictionary that it must be.
    Header {
        /// What is wrong with it.
        what: &'static str,
    },
    /// Column-major data.
    FortranOrder,
    /// An element type that [`DType`] does not have, or big-endian.
    Dtype {
        /// The type as the file names it.
        descr: String,
    },
    /// A shape whose size overflows.
    Overflow,
}

impl fmt::Display for NpyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NpyError::NotNpy => f.write_str("not a .npy file: it does not begin with \\x93NUMPY"),
            NpyError::Version { major } => {
                write!(f, ".npy version {major} is not read; versions 1 and 2 are")
            }
            NpyError::Truncated { wanted, got } => {
                write!(f, "the .npy file is cut short: {got} bytes of {wanted}")
            }
            NpyError::Trailing { wanted, got } => {
                write!(f, "the .npy file has {got} bytes, its header says {wanted}")
            }
            NpyError::Header { what } => write!(f, "the .npy header is damaged: {what}"),
            NpyError::FortranOrder => f.write_str(
                "the .npy file is in Fortran order; save numpy.ascontiguousarray(array) instead",
            ),
            NpyError::Dtype { descr } => write!(
                f,
                "element type {descr:?} of the .npy file is not served; use little-endian float16, \
                 float32, float64, (u)int8 to (u)int64, or bool"
            ),
            NpyError::Overflow => f.write_str("the shape in the .npy header overflows"),
        }
    }
}

impl std::error::Error for NpyError {}

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Reads a whole `.npy` file.
///
/// # Errors
/// Every kind of [`NpyError`].
pub fn read(bytes: &[u8]) -> Result<Array, NpyError> {
    if !bytes.starts_with(MAGIC) {
        return Err(NpyError::NotNpy);
    }
    let need = |wanted: usize| {
        if bytes.len() < wanted {
            Err(NpyError::Truncated { wanted, got: bytes.len() })
        } else {
            Ok(())
        }
    };
    need(8)?;
    let (start, header_len) = match bytes[6] {
        1 => {
            need(10)?;
            (10, u16::from_le_bytes([bytes[8], bytes[9]]) as usize)
        }
        2 => {
            need(12)?;
            (12, u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize)
        }
        major => return Err(NpyError::Version { major }),
    };
    let data_start = start + header_len;
    need(data_start)?;
    let header = std::str::from_utf8(&bytes[start..data_start])
        .map_err(|_| NpyError::Header { what: "not text" })?;
    let (dtype, shape) = parse_header(header)?;
    let data_len = shape
        .iter()
        .try_fold(dtype.size_bytes(), |len, axis| len.checked_mul(*axis))
        .ok_or(NpyError::Overflow)?;
    let end = data_start.checked_add(data_len).ok_or(NpyError::Overflow)?;
    need(end)?;
    if bytes.len() > end {
        return Err(NpyError::Trailing { wanted: end, got: bytes.len() });
    }
    Ok(Array { dtype, shape, data: bytes[data_start..].to_vec() })
}

/// Writes a `.npy` file, version 1 (2 where the header is too long for it); data begins at a multiple
/// of 64 bytes.
///
/// # Panics
/// If `array.data` has another length than its shape says.
pub fn write(array: &Array) -> Vec<u8> {
    let len = array.shape.iter().product::<usize>() * array.dtype.size_bytes();
    assert_eq!(array.data.len(), len, "data has the length that the shape says");
    let mut shape: String = array.shape.iter().map(|n| format!("{n}, ")).collect();
    if array.shape.len() > 1 {
        shape.truncate(shape.len() - 2);
    } else {
        shape.truncate(shape.trim_end().len());
    }
    let mut header = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': ({shape}), }}",
        descr(array.dtype)
    );
    let mut prefix = 10;
    if (prefix + header.len() + 1).next_multiple_of(64) - prefix > u16::MAX as usize {
        prefix = 12;
    }
    let header_len = (prefix + header.len() + 1).next_multiple_of(64) - prefix;
    while header.len() + 1 < header_len {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = Vec::with_capacity(prefix + header_len + len);
    bytes.extend_from_slice(MAGIC);
    if prefix == 10 {
        bytes.extend_from_slice(&[1, 0]);
        bytes.extend_from_slice(&(header_len as u16).to_le_bytes());
    } else {
        bytes.extend_from_slice(&[2, 0]);
        bytes.extend_from_slice(&(header_len as u32).to_le_bytes());
    }
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&array.data);
    bytes
}

const DESCRS: [(DType, &str); 12] = [
    (DType::F32, "<f4"),
    (DType::F16, "<f2"),
    (DType::F64, "<f8"),
    (DType::I8, "|i1"),
    (DType::U8, "|u1"),
    (DType::I16, "<i2"),
    (DType::U16, "<u2"),
    (DType::I32, "<i4"),
    (DType::U32, "<u4"),
    (DType::I64, "<i8"),
    (DType::U64, "<u8"),
    (DType::Bool, "|b1"),
];

fn descr(dtype: DType) -> &'static str {
    DESCRS.iter().find(|(d, _)| *d == dtype).map_or("", |(_, name)| name)
}

fn dtype_of(descr: &str) -> Option<DType> {
    // One-byte types have no byte order, whatever sign stands before them.
    let one_byte = descr.ends_with('1') && descr.starts_with(['|', '<', '>', '=']);
    DESCRS
        .iter()
        .find(|(_, name)| *name == descr || (one_byte && name[1..] == descr[1..]))
        .map(|(dtype, _)| *dtype)
}

/// Reads the header's dictionary: exactly the keys `descr`, `fortran_order` and `shape`.
fn parse_header(header: &str) -> Result<(DType, Vec<usize>), NpyError> {
    let mut rest = Cursor(header);
    let (mut dtype, mut order, mut shape) = (None, None, None);
    rest.expect('{')?;
    while !rest.accept('}') {
        let key = rest.text()?;
        rest.expect(':')?;
        match key {
            "descr" if dtype.is_none() => {
                let descr = rest.text()?;
                dtype =
                    Some(dtype_of(descr).ok_or_else(|| NpyError::Dtype {
                        descr: descr.chars().take(40).collect(),
                    })?);
            }
            "fortran_order" if order.is_none() => order = Some(rest.boolean()?),
            "shape" if shape.is_none() => shape = Some(rest.tuple()?),
            _ => return Err(NpyError::Header { what: "a key that is unknown or there twice" }),
        }
        if !rest.accept(',') {
            rest.expect('}')?;
            break;
        }
    }
    if !rest.0.trim().is_empty() {
        return Err(NpyError::Header { what: "text after the dictionary" });
    }
    match (dtype, order, shape) {
        (Some(dtype), Some(false), Some(shape)) => Ok((dtype, shape)),
        // One axis or none is the same in both orders.
        (Some(dtype), Some(true), Some(shape)) if shape.len() < 2 => Ok((dtype, shape)),
        (Some(_), Some(true), Some(_)) => Err(NpyError::FortranOrder),
        _ => Err(NpyError::Header { what: "descr, fortran_order or shape is missing" }),
    }
}

struct Cursor<'a>(&'a str);

impl<'a> Cursor<'a> {
    fn accept(&mut self, c: char) -> bool {
        self.0 = self.0.trim_start();
        match self.0.strip_prefix(c) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }
    fn expect(&mut self, c: char) -> Result<(), NpyError> {
        if self.accept(c) { Ok(()) } else { Err(NpyError::Header { what: "not a dictionary" }) }
    }
    fn text(&mut self) -> Result<&'a str, NpyError> {
        let quote = if self.accept('\'') {
            '\''
        } else if self.accept('"') {
            '"'
        } else {
            return Err(NpyError::Header { what: "text expected" });
        };
        let (text, rest) =
            self.0.split_once(quote).ok_or(NpyError::Header { what: "text without an end" })?;
        self.0 = rest;
        Ok(text)
    }
    fn boolean(&mut self) -> Result<bool, NpyError> {
        self.0 = self.0.trim_start();
        for (word, value) in [("False", false), ("True", true)] {
            if let Some(rest) = self.0.strip_prefix(word) {
                self.0 = rest;
                return Ok(value);
            }
        }
        Err(NpyError::Header { what: "True or False expected" })
    }
    fn tuple(&mut self) -> Result<Vec<usize>, NpyError> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while !self.accept(')') {
            self.0 = self.0.trim_start();
            let digits = self.0.bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 {
                return Err(NpyError::Header { what: "an axis that is not a number" });
            }
            shape.push(self.0[..digits].parse().map_err(|_| NpyError::Overflow)?);
            self.0 = &self.0[digits..];
            if !self.accept(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests;
