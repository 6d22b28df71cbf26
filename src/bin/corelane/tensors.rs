//! Tensors between files, payloads and what is printed.

use corelane::client::TensorInfo;
use corelane::limits::NPY_FILE_BYTES_MAX;
use corelane::model::npy::{self, Array};
use corelane::model::signature::TensorSpec;
use corelane::sys::files;
use corelane::units::DType;
use corelane::wire;
use serde::ser::{Serialize, SerializeSeq, Serializer};
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// A tensor of a signature, as clients see it.
pub fn info(spec: &TensorSpec) -> TensorInfo {
    TensorInfo {
        name: spec.name.clone(),
        dtype: spec.dtype,
        row_shape: spec.row_shape.clone(),
        row_bytes: spec.row_bytes(),
    }
}

/// Reads a `.npy` file.
pub fn read_npy(path: &Path) -> Result<Array, String> {
    let bytes = files::read_any(path, NPY_FILE_BYTES_MAX)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    npy::read(&bytes).map_err(|e| format!("{}: {e}", path.display()))
}

/// Where each tensor lies in a payload of `rows` rows, and the payload's length.
pub fn spans(tensors: &[TensorInfo], rows: usize) -> (Vec<Range<usize>>, usize) {
    let mut end = 0;
    let spans = tensors
        .iter()
        .map(|t| {
            let (from, to) = wire::place(end, t.row_bytes as u64, rows as u64)
                .expect("the client has checked that lengths don't overflow");
            end = to;
            from as usize..to as usize
        })
        .collect();
    (spans, end as usize)
}

/// How many rows `array` has as input `tensor`.
fn rows_of(tensor: &TensorInfo, array: &Array, batched: bool) -> Result<usize, String> {
    let TensorInfo { name, dtype, row_shape, .. } = tensor;
    if array.dtype != *dtype {
        return Err(format!("input {name:?} takes {dtype}, the file holds {}", array.dtype));
    }
    if batched && array.shape.get(1..) == Some(row_shape.as_slice()) {
        return Ok(array.shape[0]);
    }
    if array.shape == *row_shape {
        return Ok(1);
    }
    let wanted = if batched {
        format!("(rows, {}) or {}", comma(row_shape), shape_text(row_shape))
    } else {
        shape_text(row_shape)
    };
    let got = shape_text(&array.shape);
    Err(format!("input {name:?} takes the shape {wanted}, the file holds {got}"))
}

fn comma(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// A shape as Python writes it.
pub fn shape_text(shape: &[usize]) -> String {
    if shape.len() == 1 { format!("({},)", shape[0]) } else { format!("({})", comma(shape)) }
}

/// Checks whole inputs against what the model takes; returns their rows.
pub fn check(inputs: &[TensorInfo], arrays: &[Array], batched: bool) -> Result<usize, String> {
    if arrays.len() != inputs.len() {
        let names: Vec<_> = inputs.iter().map(|t| format!("{:?}", t.name)).collect();
        return Err(format!(
            "the model takes {} inputs ({}), {} are given",
            inputs.len(),
            names.join(", "),
            arrays.len()
        ));
    }
    let mut rows = None;
    for (tensor, array) in inputs.iter().zip(arrays) {
        let here = rows_of(tensor, array, batched)?;
        match rows {
            None => rows = Some(here),
            Some(rows) if rows != here => {
                return Err(format!(
                    "input {:?} has {here} rows, the one before it {rows}; give the same number",
                    tensor.name
                ));
            }
            Some(_) => {}
        }
    }
    Ok(rows.unwrap_or(1))
}

/// The payload of the rows in `range`. The arrays were checked.
pub fn payload(inputs: &[TensorInfo], arrays: &[Array], range: Range<usize>) -> Vec<u8> {
    let (spans, len) = spans(inputs, range.len());
    let mut out = vec![0; len];
    for ((tensor, array), span) in inputs.iter().zip(arrays).zip(spans) {
        let row = tensor.row_bytes;
        out[span].copy_from_slice(&array.data[range.start * row..range.end * row]);
    }
    out
}

/// One output of an answer. As JSON: `name`, `dtype`, `shape` (rows first), and `data`, flat in C
/// order; numbers that JSON has not are the texts `NaN`, `Infinity` and `-Infinity`.
#[derive(Debug, serde::Serialize)]
pub struct Output<'a> {
    /// Its name.
    pub name: &'a str,
    /// Element type, as NumPy spells it.
    pub dtype: &'static str,
    /// Axes; the rows first, where the model has a batch axis.
    pub shape: Vec<usize>,
    /// Elements.
    pub data: Data<'a>,
}

/// The outputs in an answer's payload.
pub fn outputs<'a>(
    tensors: &'a [TensorInfo],
    rows: usize,
    batched: bool,
    payload: &'a [u8],
) -> Vec<Output<'a>> {
    let (spans, _) = spans(tensors, rows);
    let output = |(tensor, span): (&'a TensorInfo, Range<usize>)| {
        let mut shape = if batched { vec![rows] } else { Vec::new() };
        shape.extend(&tensor.row_shape);
        let data = Data { dtype: tensor.dtype, bytes: payload.get(span).unwrap_or_default() };
        Output { name: &tensor.name, dtype: tensor.dtype.name(), shape, data }
    };
    tensors.iter().zip(spans).map(output).collect()
}

/// Little-endian elements.
#[derive(Debug, Clone, Copy)]
pub struct Data<'a> {
    /// Their type.
    pub dtype: DType,
    /// Their bytes.
    pub bytes: &'a [u8],
}

impl<'a> Data<'a> {
    /// The elements one by one.
    pub fn elements(self) -> impl ExactSizeIterator<Item = Element> + 'a {
        let dtype = self.dtype;
        self.bytes.chunks_exact(dtype.size_bytes()).map(move |bytes| Element::read(dtype, bytes))
    }
    /// `n` elements from the `start`-th on.
    pub fn part(self, start: usize, n: usize) -> Data<'a> {
        let size = self.dtype.size_bytes();
        let bytes = self.bytes.get(start * size..(start + n) * size).unwrap_or_default();
        Data { dtype: self.dtype, bytes }
    }
}

impl Serialize for Data<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let elements = self.elements();
        let mut list = serializer.serialize_seq(Some(elements.len()))?;
        for element in elements {
            list.serialize_element(&element)?;
        }
        list.end()
    }
}

/// One number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Element {
    /// Half and single.
    F32(f32),
    /// Double.
    F64(f64),
    /// Signed.
    Int(i64),
    /// Unsigned.
    Uint(u64),
    /// True or false.
    Bool(bool),
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}

impl Element {
    fn read(dtype: DType, b: &[u8]) -> Element {
        match dtype {
            DType::F32 => Element::F32(f32::from_le_bytes(array(b))),
            DType::F16 => Element::F32(half::f16::from_le_bytes(array(b)).to_f32()),
            DType::F64 => Element::F64(f64::from_le_bytes(array(b))),
            DType::I8 => Element::Int(i8::from_le_bytes(array(b)).into()),
            DType::U8 => Element::Uint(b[0].into()),
            DType::I16 => Element::Int(i16::from_le_bytes(array(b)).into()),
            DType::U16 => Element::Uint(u16::from_le_bytes(array(b)).into()),
            DType::I32 => Element::Int(i32::from_le_bytes(array(b)).into()),
            DType::U32 => Element::Uint(u32::from_le_bytes(array(b)).into()),
            DType::I64 => Element::Int(i64::from_le_bytes(array(b))),
            DType::U64 => Element::Uint(u64::from_le_bytes(array(b))),
            DType::Bool => Element::Bool(b[0] != 0),
        }
    }
    /// As a double, for comparing and ranking.
    pub fn to_f64(self) -> f64 {
        match self {
            Element::F32(x) => x.into(),
            Element::F64(x) => x,
            Element::Int(x) => x as f64,
            Element::Uint(x) => x as f64,
            Element::Bool(x) => x.into(),
        }
    }
}

impl Serialize for Element {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let special = self.to_f64();
        if special.is_nan() {
            return serializer.serialize_str("NaN");
        }
        if special.is_infinite() {
            return serializer.serialize_str(if special > 0.0 { "Infinity" } else { "-Infinity" });
        }
        match *self {
            Element::F32(x) => serializer.serialize_f32(x),
            Element::F64(x) => serializer.serialize_f64(x),
            Element::Int(x) => serializer.serialize_i64(x),
            Element::Uint(x) => serializer.serialize_u64(x),
            Element::Bool(x) => serializer.serialize_bool(x),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Element::F32(x) => x.fmt(f),
            Element::F64(x) => x.fmt(f),
            Element::Int(x) => x.fmt(f),
            Element::Uint(x) => x.fmt(f),
            Element::Bool(x) => x.fmt(f),
        }
    }
}

/// The largest difference between two tensors, over the largest value of `scale` (absolute where
/// that is 0); infinite where only one of a pair is a number, or the lengths differ.
pub fn difference(ours: Data<'_>, wanted: Data<'_>, scale: Data<'_>) -> f64 {
    if ours.elements().len() != wanted.elements().len() {
        return f64::INFINITY;
    }
    let mut worst = 0f64;
    for (a, b) in ours.elements().zip(wanted.elements()) {
        let (a, b) = (a.to_f64(), b.to_f64());
        if a == b || (a.is_nan() && b.is_nan()) {
            continue;
        }
        let apart = if a.is_finite() && b.is_finite() { (a - b).abs() } else { f64::INFINITY };
        worst = worst.max(apart);
    }
    let finite = scale.elements().map(|e| e.to_f64().abs()).filter(|v| v.is_finite());
    let largest = finite.fold(0.0, f64::max);
    if largest > 0.0 { worst / largest } else { worst }
}

/// Nanoseconds for people: three digits and a unit.
pub fn span(ns: u64) -> String {
    let ns = ns as f64;
    let (value, unit) = match ns {
        _ if ns < 1e3 => (ns, "ns"),
        _ if ns < 1e6 => (ns / 1e3, "us"),
        _ if ns < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let digits = match value {
        _ if value >= 100.0 || unit == "ns" => 0,
        _ if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

/// The labels of one row with the highest scores, best first; empty where there is not one label
/// for each element.
pub fn ranking<'a>(labels: &'a [String], row: Data<'_>, n: usize) -> Vec<(&'a str, f64)> {
    if labels.is_empty() || row.elements().len() != labels.len() {
        return Vec::new();
    }
    let mut all: Vec<(&str, f64)> =
        labels.iter().map(String::as_str).zip(row.elements().map(Element::to_f64)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(n);
    all
}

#[cfg(test)]
mod tests;
