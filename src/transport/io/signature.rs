//! What `Opened` says of a model, in the protocol's words.

use crate::limits::{FRAME_BODY_BYTES_MAX, ROW_AXES_MAX, TENSORS_MAX};
use crate::model::signature::TensorSpec;
use crate::transport::conn::Model;
use crate::transport::{BindError, Served};
use crate::wire;

/// Computes what `Opened` says of a model.
pub(super) fn with_signature(served: Served) -> Result<Model, BindError> {
    let queue = served.queue.clone();
    let signature = queue.signature();
    let wire = wire::Signature {
        batched: signature.batched,
        inputs: tensors(&signature.inputs)?,
        outputs: tensors(&signature.outputs)?,
    };
    let mut body = vec![0; FRAME_BODY_BYTES_MAX];
    let max = body.len();
    let len = wire.encode(&mut body).map_err(|_| BindError::Limit {
        what: "the length of a model's signature",
        value: max + 1,
        max,
    })?;
    body.truncate(len);
    Ok(Model { served, signature: body.into() })
}

fn tensors(
    specs: &[TensorSpec],
) -> Result<heapless::Vec<wire::Tensor<'_>, TENSORS_MAX>, BindError> {
    let mut tensors = heapless::Vec::new();
    for spec in specs {
        let (value, max) = (spec.row_shape.len(), ROW_AXES_MAX);
        let what = "the number of a tensor's axes";
        let axes = spec.row_shape.iter().map(|&axis| axis as u32);
        let mut row_shape = heapless::Vec::new();
        for axis in axes {
            row_shape.push(axis).map_err(|_| BindError::Limit { what, value, max })?;
        }
        let tensor = wire::Tensor { name: &spec.name, dtype: spec.dtype, row_shape };
        let (value, max) = (specs.len(), TENSORS_MAX);
        let what = "the number of a model's tensors";
        tensors.push(tensor).map_err(|_| BindError::Limit { what, value, max })?;
    }
    Ok(tensors)
}
