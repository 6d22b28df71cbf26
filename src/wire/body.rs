//! What travels in payloads besides tensors: signatures and the list of models.

use super::encoding::Encoding;
use crate::limits::{MODEL_NAME_LEN_MAX, ROW_AXES_MAX, TENSOR_ALIGN_BYTES, TENSORS_MAX};
use crate::units::{DType, ModelId, Rows};
use serde::{Deserialize, Serialize};

/// One input or output of a model, per row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Tensor<'a> {
    /// The name in the ONNX graph.
    #[serde(borrow)]
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Axes of one row.
    pub row_shape: heapless::Vec<u32, ROW_AXES_MAX>,
}

impl Tensor<'_> {
    /// Bytes of one row; `None` if the shape overflows.
    pub fn row_bytes(&self) -> Option<u64> {
        let size = self.dtype.size_bytes() as u64;
        self.row_shape.iter().try_fold(size, |bytes, &axis| bytes.checked_mul(axis as u64))
    }
    /// Bytes of one row that travels with `encoding`; `None` if the shape overflows. Only float32
    /// tensors have encodings: others travel as they are.
    pub fn encoded_row_bytes(&self, encoding: Encoding) -> Option<u64> {
        match self.dtype {
            DType::F32 => Some(self.row_bytes()? / 4 * encoding.element_bytes() as u64),
            _ => self.row_bytes(),
        }
    }
}

/// Payload of `Opened`: inputs and outputs of a model, in the order in which payloads hold them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Signature<'a> {
    /// Whether axis 0 is a batch; if not, requests have exactly one row.
    pub batched: bool,
    /// Inputs.
    #[serde(borrow)]
    pub inputs: heapless::Vec<Tensor<'a>, TENSORS_MAX>,
    /// Outputs.
    #[serde(borrow)]
    pub outputs: heapless::Vec<Tensor<'a>, TENSORS_MAX>,
}

/// Where a tensor of `rows` rows lies in a payload, after one that ends at `end`: its first byte, and
/// the byte after its last. The one place that knows the rule; `None` if it overflows.
pub const fn place(end: u64, row_bytes: u64, rows: u64) -> Option<(u64, u64)> {
    let Some(from) = end.checked_next_multiple_of(TENSOR_ALIGN_BYTES as u64) else { return None };
    let Some(len) = row_bytes.checked_mul(rows) else { return None };
    match from.checked_add(len) {
        Some(to) => Some((from, to)),
        None => None,
    }
}

/// Length in bytes of a payload that holds `rows` rows of `tensors`; `None` if it overflows.
pub fn payload_len(tensors: &[Tensor<'_>], rows: Rows) -> Option<u64> {
    let mut end = 0u64;
    for tensor in tensors {
        (_, end) = place(end, tensor.row_bytes()?, rows.0 as u64)?;
    }
    Some(end)
}

/// A payload is not what its header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BodyError;

impl core::fmt::Display for BodyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the payload of the message is cut short, too long, or out of bounds")
    }
}

impl core::error::Error for BodyError {}

impl<'a> Signature<'a> {
    /// Reads a signature that fills `payload`. Never panics.
    pub fn decode(payload: &'a [u8]) -> Result<Signature<'a>, BodyError> {
        match postcard::take_from_bytes(payload) {
            Ok((signature, [])) => Ok(signature),
            _ => Err(BodyError),
        }
    }
    /// Writes the signature to the start of `out`; returns the bytes written.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, BodyError> {
        Ok(postcard::to_slice(self, out).map_err(|_| BodyError)?.len())
    }
}

/// One entry of the list of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ModelEntry<'a> {
    /// Names it in requests.
    pub model: ModelId,
    /// Most rows of one request.
    pub rows_max: Rows,
    /// Its name.
    pub name: &'a str,
}

impl<'a> ModelEntry<'a> {
    /// Reads one entry from the start of `payload`, and returns the rest. Never panics.
    pub fn decode(payload: &'a [u8]) -> Result<(ModelEntry<'a>, &'a [u8]), BodyError> {
        match postcard::take_from_bytes::<ModelEntry<'a>>(payload) {
            Ok((entry, rest)) if entry.name.len() <= MODEL_NAME_LEN_MAX => Ok((entry, rest)),
            _ => Err(BodyError),
        }
    }
    /// Writes the entry to the start of `out`; returns the bytes written.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, BodyError> {
        Ok(postcard::to_slice(self, out).map_err(|_| BodyError)?.len())
    }
}
