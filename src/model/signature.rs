//! What goes into a model and what comes out of it, per row.

use crate::limits::{TENSOR_ALIGN_BYTES, TENSORS_MAX};
use crate::units::DType;

/// One input or output of a model.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TensorSpec {
    /// The name in the ONNX graph.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Axes of one row: the ONNX shape without the batch axis (axis 0), all bound.
    pub row_shape: Vec<usize>,
}

impl TensorSpec {
    /// Elements of one row.
    pub fn row_len(&self) -> usize {
        self.row_shape.iter().product()
    }
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.row_len() * self.dtype.size_bytes()
    }
}

/// Inputs and outputs of a model, in the graph's order.
///
/// A payload, and a slot's buffer, holds the tensors in this order; each is `rows` contiguous rows
/// of little-endian elements, and begins at the next multiple of
/// [`TENSOR_ALIGN_BYTES`] (gap bytes are zero).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Signature {
    /// Inputs, without those that the manifest binds to a constant.
    pub inputs: Vec<TensorSpec>,
    /// Outputs.
    pub outputs: Vec<TensorSpec>,
    /// Whether axis 0 of every input and output is the batch. If not, requests have exactly one
    /// row, whose shape is the whole tensor.
    pub batched: bool,
}

/// Where a tensor lies in a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// Where each tensor of a payload lies, and its whole length.
pub fn layout(tensors: &[TensorSpec], rows: usize) -> (heapless::Vec<Span, TENSORS_MAX>, usize) {
    let mut spans = heapless::Vec::new();
    let mut end = 0usize;
    for tensor in tensors.iter().take(TENSORS_MAX) {
        let offset = end.next_multiple_of(TENSOR_ALIGN_BYTES);
        let len = tensor.row_bytes() * rows;
        end = offset + len;
        let _ = spans.push(Span { offset, len });
    }
    (spans, end)
}

impl Signature {
    /// Spans of the inputs in a payload of `rows` rows, and the payload's length in bytes.
    pub fn input_layout(&self, rows: usize) -> (heapless::Vec<Span, TENSORS_MAX>, usize) {
        layout(&self.inputs, rows)
    }
    /// Spans of the outputs in a payload of `rows` rows, and the payload's length in bytes.
    pub fn output_layout(&self, rows: usize) -> (heapless::Vec<Span, TENSORS_MAX>, usize) {
        layout(&self.outputs, rows)
    }
}
