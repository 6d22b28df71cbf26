//! What a model takes, read from the file: inputs, their axes, and what the manifest binds.
//!
//! The words are those of the front end of the other engines ([`front`](crate::engine::tract::front)),
//! so that a manifest means the same for each.

use crate::engine::{EngineError, EngineErrorKind};
use crate::limits::{
    BATCH_ROWS_MAX, FRAME_PAYLOAD_BYTES_MAX, ROW_AXES_MAX, TENSOR_NAME_LEN_MAX, TENSORS_MAX,
};
use crate::units::DType;
use tract_onnx::pb::tensor_shape_proto::dimension::Value as Dim;
use tract_onnx::pb::{GraphProto, ValueInfoProto, type_proto};
use tract_onnx::prelude::Framework;

/// An axis of an input, after the manifest bound what it binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Of this length.
    Len(usize),
    /// The batch.
    Batch,
}

/// An input.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its axes.
    pub axes: Vec<Axis>,
    /// The constant that the manifest binds it to.
    pub constant: Option<f64>,
}

impl Input {
    /// Its whole shape with `rows` rows.
    pub fn shape(&self, rows: usize) -> Vec<usize> {
        (self.axes.iter())
            .map(|axis| match axis {
                Axis::Len(len) => *len,
                Axis::Batch => rows,
            })
            .collect()
    }

    /// Its bytes with `rows` rows; `None` where they overflow.
    pub fn bytes(&self, rows: usize) -> Option<usize> {
        let mut axes = self.shape(rows).into_iter();
        let len = axes.try_fold(self.dtype.size_bytes(), |len, axis| len.checked_mul(axis))?;
        (len <= isize::MAX as usize).then_some(len)
    }
}

/// What a model takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Interface {
    /// Every input of the graph.
    pub inputs: Vec<Input>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// Whether axis 0 of the inputs is open.
    pub open_batch: bool,
    /// Bytes of the weights in the file.
    pub weight_bytes: usize,
}

impl Interface {
    /// Inputs that requests carry.
    pub fn carried(&self) -> impl Iterator<Item = &Input> {
        self.inputs.iter().filter(|i| i.constant.is_none())
    }
}

fn error(kind: EngineErrorKind, message: String) -> EngineError {
    EngineError::new(kind, message)
}

/// Reads the interface of the model in `bytes`.
///
/// # Errors
/// `Malformed`, `Untyped` for open axes and types that can't travel, `Manifest` for bindings that name
/// nothing, `Limit`.
pub fn read(
    bytes: &[u8],
    bind_axes: &[(String, usize)],
    bind_inputs: &[(String, f64)],
) -> Result<Interface, EngineError> {
    let onnx = tract_onnx::onnx();
    let model = crate::engine::tract::front::guarded("parsing the file", || {
        onnx.proto_model_for_read(&mut &bytes[..])
    });
    let what = "not a valid ONNX model (truncated, damaged, or not ONNX)";
    let model = model.map_err(|f| f.into_error(EngineErrorKind::Malformed, what))?;
    let graph = model.graph.ok_or_else(|| {
        error(EngineErrorKind::Malformed, format!("{what}: there is no graph in it"))
    })?;
    let weights = |name: &str| graph.initializer.iter().any(|t| t.name == name);
    let given: Vec<&ValueInfoProto> = graph.input.iter().filter(|i| !weights(&i.name)).collect();
    check_names(&given, &graph, bind_axes, bind_inputs)?;
    let mut batch = None;
    let mut inputs = Vec::new();
    for info in given {
        let constant = bind_inputs.iter().find(|(name, _)| *name == info.name).map(|b| b.1);
        let (dtype, dims) = typed(info)?;
        let mut axes = Vec::new();
        for (n, dim) in dims.iter().enumerate() {
            axes.push(axis(info, n, dim, bind_axes, &mut batch)?);
        }
        inputs.push(Input { name: info.name.clone(), dtype, axes, constant });
    }
    let interface = Interface {
        inputs,
        outputs: graph.output.iter().map(|o| o.name.clone()).collect(),
        open_batch: batch.is_some(),
        weight_bytes: graph.initializer.iter().map(weight_bytes).sum(),
    };
    check_limits(&interface)?;
    Ok(interface)
}

fn weight_bytes(tensor: &tract_onnx::pb::TensorProto) -> usize {
    let t = tensor;
    t.raw_data.len()
        + t.float_data.len() * 4
        + t.int32_data.len() * 4
        + t.int64_data.len() * 8
        + t.double_data.len() * 8
        + t.uint64_data.len() * 8
}

/// Whatever the manifest binds must be there.
fn check_names(
    given: &[&ValueInfoProto],
    graph: &GraphProto,
    bind_axes: &[(String, usize)],
    bind_inputs: &[(String, f64)],
) -> Result<(), EngineError> {
    for (name, length) in bind_axes {
        let axes = graph.input.iter().filter_map(dims).flatten();
        let mut symbols = axes.filter_map(|d| match d {
            Some(Dim::DimParam(symbol)) => Some(symbol),
            _ => None,
        });
        if !symbols.any(|symbol| symbol == *name) {
            return Err(error(
                EngineErrorKind::Manifest,
                format!("bind_axes names {name:?}, but no input has an open axis of that name"),
            ));
        }
        if *length == 0 {
            return Err(error(
                EngineErrorKind::Manifest,
                format!("bind_axes gives {name:?} the length 0; it must be at least 1"),
            ));
        }
    }
    for (name, _) in bind_inputs {
        if !given.iter().any(|i| i.name == *name) {
            let names: Vec<&str> = given.iter().map(|i| i.name.as_str()).collect();
            return Err(error(
                EngineErrorKind::Manifest,
                format!("bind_inputs names {name:?}, but the inputs are {names:?}"),
            ));
        }
    }
    Ok(())
}

/// Axes of an input as the file has them; `None` without a shape.
fn dims(info: &ValueInfoProto) -> Option<Vec<Option<Dim>>> {
    let type_proto::Value::TensorType(tensor) = info.r#type.as_ref()?.value.as_ref()?;
    Some(tensor.shape.as_ref()?.dim.iter().map(|d| d.value.clone()).collect())
}

fn typed(info: &ValueInfoProto) -> Result<(DType, Vec<Option<Dim>>), EngineError> {
    let name = &info.name;
    let tensor = info.r#type.as_ref().and_then(|t| t.value.as_ref());
    let Some(type_proto::Value::TensorType(tensor)) = tensor else {
        return Err(error(EngineErrorKind::Untyped, format!("input {name:?} is no tensor")));
    };
    let dtype = dtype_of(tensor.elem_type).ok_or_else(|| {
        error(
            EngineErrorKind::Untyped,
            format!("input {name:?} has element type {}, which can't travel", tensor.elem_type),
        )
    })?;
    let dims = dims(info).ok_or_else(|| {
        error(
            EngineErrorKind::Untyped,
            format!("input {name:?} has no shape at all; export the model with its input shapes"),
        )
    })?;
    Ok((dtype, dims))
}

/// The element type that ONNX numbers so (`TensorProto.DataType`, and ONNX Runtime's own numbers).
pub fn dtype_of(number: i32) -> Option<DType> {
    DType::ALL.into_iter().find(|&dtype| onnx_number(dtype) == number)
}

/// ONNX's number of an element type.
pub fn onnx_number(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
    }
}

/// Axis `n` of an input. `batch` is the name of the batch axis, once one was met (empty: without name).
fn axis(
    info: &ValueInfoProto,
    n: usize,
    dim: &Option<Dim>,
    bind_axes: &[(String, usize)],
    batch: &mut Option<String>,
) -> Result<Axis, EngineError> {
    let name = &info.name;
    let symbol = match dim {
        Some(Dim::DimValue(len)) if *len > 0 => {
            return usize::try_from(*len).map(Axis::Len).map_err(|_| {
                error(EngineErrorKind::Limit, format!("axis {n} of input {name:?} is {len} long"))
            });
        }
        Some(Dim::DimParam(symbol)) => symbol.clone(),
        _ => String::new(),
    };
    if let Some((_, len)) = bind_axes.iter().find(|(bound, _)| *bound == symbol) {
        return Ok(Axis::Len(*len));
    }
    if n == 0 {
        let known = batch.get_or_insert_with(|| symbol.clone());
        if known.is_empty() {
            known.clone_from(&symbol);
        }
        if symbol.is_empty() || *known == symbol {
            return Ok(Axis::Batch);
        }
    }
    // The batch may come up again in an input that the manifest fills.
    if !symbol.is_empty() && batch.as_deref() == Some(&symbol) {
        return Ok(Axis::Batch);
    }
    Err(error(
        EngineErrorKind::Untyped,
        if symbol.is_empty() {
            format!(
                "axis {n} of input {name:?} is open and has no name, so bind_axes can't give its \
                 length; export the model with a named or a fixed axis"
            )
        } else {
            format!(
                "input {name:?} has an open axis ({symbol}) that is not the batch; give its length \
                 in the manifest: bind_axes = {{ {symbol} = N }}"
            )
        },
    ))
}

/// Limits of what requests carry; also the largest tensor, before anything of its size is allocated.
fn check_limits(interface: &Interface) -> Result<(), EngineError> {
    let limit = |message: String| Err(error(EngineErrorKind::Limit, message));
    let counts = [("inputs", interface.carried().count()), ("outputs", interface.outputs.len())];
    for (what, count) in counts {
        if !(1..=TENSORS_MAX).contains(&count) {
            return limit(format!("the model has {count} {what}, 1 to {TENSORS_MAX} are served"));
        }
    }
    let names = interface.inputs.iter().map(|i| &i.name).chain(&interface.outputs);
    for name in names {
        if name.len() > TENSOR_NAME_LEN_MAX {
            return limit(format!(
                "name {name:?} has {} bytes, the limit is {TENSOR_NAME_LEN_MAX}",
                name.len()
            ));
        }
    }
    for input in &interface.inputs {
        let axes = input.axes.iter().skip(usize::from(interface.open_batch)).count();
        if axes > ROW_AXES_MAX {
            return limit(format!(
                "{:?} has {axes} axes a row, the limit is {ROW_AXES_MAX}",
                input.name
            ));
        }
        if input.bytes(BATCH_ROWS_MAX).is_none() {
            return limit(format!(
                "input {:?} of shape {:?} overflows the address space",
                input.name,
                input.shape(1)
            ));
        }
        let bytes = input.bytes(1).unwrap_or(usize::MAX);
        if bytes > FRAME_PAYLOAD_BYTES_MAX {
            return limit(format!(
                "a row of input {:?} has {bytes} bytes, at most {FRAME_PAYLOAD_BYTES_MAX} are served",
                input.name
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
