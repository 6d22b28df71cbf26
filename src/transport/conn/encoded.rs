//! Tensors that travel encoded: decoded into their slot as they come, encoded in their slot before they
//! go. Nothing is allocated; an encoded payload is never longer than the slot's.

use crate::limits::TENSORS_MAX;
use crate::model::signature::{Signature, TensorSpec};
use crate::queue::{Done, Lease};
use crate::units::DType;
use crate::wire::{
    Encoding, Encodings, EncodingsError, ErrorCode, Place, TensorEncoding, decode_le,
    encode_in_place, place,
};
use core::fmt;

/// A model with encodings, as one connection opened it. Tensors that have none are [`Encoding::F32`],
/// whatever their type: their bytes are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    pub model: u16,
    inputs: [Encoding; TENSORS_MAX],
    outputs: [Encoding; TENSORS_MAX],
}

/// Why there is no view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused<'a> {
    List(EncodingsError),
    NoTensor(TensorEncoding),
    Twice(TensorEncoding, &'a TensorSpec),
    NotFloat(TensorEncoding, &'a TensorSpec),
}

impl Refused<'_> {
    pub fn code(&self) -> ErrorCode {
        match self {
            Refused::List(EncodingsError::CutShort | EncodingsError::TooLong { .. }) => {
                ErrorCode::Malformed
            }
            _ => ErrorCode::BadEncoding,
        }
    }
    pub fn numbers(&self) -> (u64, u64) {
        let (place, number) = match *self {
            Refused::List(EncodingsError::UnknownEncoding { place, number }) => (place, number),
            Refused::List(EncodingsError::BadScale { place, .. }) => (place, 2),
            // The message's number.
            Refused::List(_) => return (10, 0),
            Refused::NoTensor(asked) | Refused::Twice(asked, _) | Refused::NotFloat(asked, _) => {
                (asked.place, asked.encoding.number())
            }
        };
        (place.number().into(), number.into())
    }
}

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::List(error) => error.fmt(f),
            Refused::NoTensor(asked) => write!(f, "the model has no {}", asked.place),
            Refused::Twice(asked, tensor) => {
                write!(f, "{} {:?} is listed twice", asked.place, tensor.name)
            }
            Refused::NotFloat(asked, tensor) => write!(
                f,
                "{} {:?} is {}; only float32 tensors travel as f16 or i8",
                asked.place, tensor.name, tensor.dtype
            ),
        }
    }
}

/// Where a tensor begins that comes after `end`, and where it ends.
fn span(tensor: &TensorSpec, encoding: Encoding, rows: usize, end: usize) -> (usize, usize) {
    let row_bytes = match tensor.dtype {
        DType::F32 => tensor.row_len() * encoding.element_bytes(),
        _ => tensor.row_bytes(),
    };
    let (from, to) = place(end as u64, row_bytes as u64, rows as u64)
        .expect("an encoded payload is no longer than the slot's");
    (from as usize, to as usize)
}

impl View {
    /// The model at `model` with the list of a request.
    pub fn new<'a>(model: u16, signature: &'a Signature, list: &[u8]) -> Result<View, Refused<'a>> {
        let as_is = [Encoding::F32; TENSORS_MAX];
        let mut view = View { model, inputs: as_is, outputs: as_is };
        let mut listed = 0u32;
        for asked in Encodings::new(list) {
            let asked = asked.map_err(Refused::List)?;
            let (tensors, encodings, at, bit) = match asked.place {
                Place::Input(at) => (&signature.inputs, &mut view.inputs, at, 0),
                Place::Output(at) => (&signature.outputs, &mut view.outputs, at, TENSORS_MAX),
            };
            let at = at as usize;
            let Some((tensor, encoding)) = tensors.get(at).zip(encodings.get_mut(at)) else {
                return Err(Refused::NoTensor(asked));
            };
            if listed & 1 << (bit + at) != 0 {
                return Err(Refused::Twice(asked, tensor));
            }
            if tensor.dtype != DType::F32 {
                return Err(Refused::NotFloat(asked, tensor));
            }
            listed |= 1 << (bit + at);
            *encoding = asked.encoding;
        }
        Ok(view)
    }
    /// Bytes of the input as it travels.
    pub fn input_len(&self, lease: &Lease) -> usize {
        let tensors = lease.queue().signature().inputs.iter().zip(self.inputs);
        let rows = lease.rows().0 as usize;
        tensors.fold(0, |end, (tensor, encoding)| span(tensor, encoding, rows, end).1)
    }
    /// Encodes an answer in its slot, from the front; returns its bytes.
    pub fn encode_output(&self, done: &mut Done) -> usize {
        let rows = done.rows().0 as usize;
        let (signature, bytes) = done.parts_mut();
        let (mut end, mut plain_end) = (0, 0);
        for (tensor, encoding) in signature.outputs.iter().zip(self.outputs) {
            let (from, from_end) = span(tensor, Encoding::F32, rows, plain_end);
            let (to, to_end) = span(tensor, encoding, rows, end);
            // The gap ends at most where the next tensor to read begins.
            bytes[end..to].fill(0);
            match tensor.dtype {
                DType::F32 => encode_in_place(encoding, bytes, from, to, (from_end - from) / 4),
                _ => bytes.copy_within(from..from_end, to),
            }
            (end, plain_end) = (to_end, from_end);
        }
        end
    }
}

/// How far an input is decoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoding {
    view: u8,
    /// The tensor that comes.
    tensor: u8,
    /// Bytes of it in the slot.
    filled: usize,
    /// Bytes of the payload taken.
    taken: usize,
}

impl Decoding {
    pub fn new(view: u8) -> Self {
        Decoding { view, tensor: 0, filled: 0, taken: 0 }
    }
    /// Bytes of the payload taken so far.
    pub fn taken(&self) -> usize {
        self.taken
    }
    /// Which view.
    pub fn view(&self) -> u8 {
        self.view
    }
    /// Decodes `bytes` into the slot; returns how many it took, and whether the payload is whole. It
    /// leaves at most a part of one element.
    pub fn take(&mut self, views: &[View], lease: &mut Lease, bytes: &[u8]) -> (usize, bool) {
        let view = &views[self.view as usize];
        let (signature, spans, input) = lease.parts_mut();
        let inputs = &signature.inputs;
        let mut at = 0;
        loop {
            let i = self.tensor as usize;
            let Some(tensor) = inputs.get(i) else { return (at, true) };
            if self.filled == 0 {
                let (from, _) = span(tensor, Encoding::F32, 0, self.taken);
                let gap = (from - self.taken).min(bytes.len() - at);
                at += gap;
                self.taken += gap;
                if self.taken < from {
                    return (at, false);
                }
            }
            let span = spans[i];
            let to = &mut input[span.offset + self.filled..span.offset + span.len];
            let from = &bytes[at..];
            let (read, written) = match tensor.dtype {
                DType::F32 => decode_le(view.inputs[i], from, to),
                _ => {
                    let n = from.len().min(to.len());
                    to[..n].copy_from_slice(&from[..n]);
                    (n, n)
                }
            };
            at += read;
            self.taken += read;
            self.filled += written;
            if self.filled < span.len {
                return (at, false);
            }
            self.tensor += 1;
            self.filled = 0;
        }
    }
}
