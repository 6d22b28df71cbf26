//! What goes into a model and what comes out of it, per row.

use crate::limits::TENSORS_MAX;
use crate::units::DType;
use crate::wire::place;

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
/// [`TENSOR_ALIGN_BYTES`](crate::limits::TENSOR_ALIGN_BYTES) (gap bytes are zero).
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
    let mut end = 0;
    for tensor in tensors.iter().take(TENSORS_MAX) {
        let (from, to) = place(end, tensor.row_bytes() as u64, rows as u64)
            .expect("a model's payloads fit the address space");
        let _ = spans.push(Span { offset: from as usize, len: (to - from) as usize });
        end = to;
    }
    (spans, end as usize)
}

/// [`layout`] of one number of rows.
#[derive(Debug, Clone, Default)]
pub struct RowsLayout {
    /// Where each tensor lies.
    pub spans: heapless::Vec<Span, TENSORS_MAX>,
    /// The payload's length in bytes.
    pub bytes: usize,
}

/// The layouts of every number of rows that a request may have, computed once.
#[derive(Debug, Clone)]
pub struct Layouts(Box<[RowsLayout]>);

impl Layouts {
    /// Layouts of 1 to `rows_max` rows.
    pub fn new(tensors: &[TensorSpec], rows_max: usize) -> Self {
        let of = |rows| {
            let (spans, bytes) = layout(tensors, rows);
            RowsLayout { spans, bytes }
        };
        Layouts((1..=rows_max.max(1)).map(of).collect())
    }
    /// The layout of `rows` rows.
    ///
    /// # Panics
    /// If `rows` is 0 or more than the most.
    #[inline]
    pub fn of(&self, rows: usize) -> &RowsLayout {
        &self.0[rows - 1]
    }
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

/// Little-endian elements as numbers; 64-bit integers beyond 2^53 are rounded.
pub fn values(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|c| f(*c)).collect()
    }
    match dtype {
        DType::F32 => each(bytes, |b| f32::from_le_bytes(b) as f64),
        DType::F16 => each(bytes, |b| half::f16::from_le_bytes(b).to_f64()),
        DType::F64 => each(bytes, f64::from_le_bytes),
        DType::I8 => each(bytes, |b| i8::from_le_bytes(b) as f64),
        DType::U8 | DType::Bool => each(bytes, |b| u8::from_le_bytes(b) as f64),
        DType::I16 => each(bytes, |b| i16::from_le_bytes(b) as f64),
        DType::U16 => each(bytes, |b| u16::from_le_bytes(b) as f64),
        DType::I32 => each(bytes, |b| i32::from_le_bytes(b) as f64),
        DType::U32 => each(bytes, |b| u32::from_le_bytes(b) as f64),
        DType::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        DType::U64 => each(bytes, |b| u64::from_le_bytes(b) as f64),
    }
}
