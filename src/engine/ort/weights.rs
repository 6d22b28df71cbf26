//! Weights that all sessions of a model share, on the processor.
//!
//! ONNX Runtime shares what it is given: tensors by name (`AddInitializer`), and, for those, the copies that
//! kernels pack for themselves (a container of packed weights). But its optimiser writes weights anew (another
//! layout, a scale multiplied in), under new names, for each session. So the first session lets it write the
//! optimised model to a file; the weights in there are read once, and every later session takes the optimised
//! model as it is, with these weights.

use super::interface::dtype_of;
use super::session::{Tensor, checked, engine_error};
use crate::limits::MODEL_FILE_BYTES_MAX;
use ort::session::builder::{PrepackedWeights, SessionBuilder};
use ort::{AsPointer, Error};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tract_onnx::pb::TensorProto;
use tract_onnx::prelude::Framework;

/// Smaller tensors are shapes and the like, which sessions need as constants of their own.
const SHARED_BYTES_MIN: usize = 1024;

/// An optimised model and its weights. Sessions made from it must go before it.
pub struct Weights {
    /// By name; only ever read.
    tensors: Vec<(CString, Tensor)>,
    /// What kernels packed.
    packed: PrepackedWeights,
    /// The optimised model. Its name is gone: it is read where a session is made, and takes no memory.
    model: File,
    bytes: usize,
}

// SAFETY: tensors are of the heap (no counted pointer is in them), and written in `read`, before anyone else
// sees them; after that they are only read, by us and by ONNX Runtime, which lets sessions share them. ONNX
// Runtime's values and its container of packed weights (which has a lock of its own) are tied to no thread;
// a file isn't either.
unsafe impl Send for Weights {}
// SAFETY: as above; `&self` gives no way to write.
unsafe impl Sync for Weights {}

impl Weights {
    /// Reads the optimised model at `path`.
    ///
    /// # Errors
    /// A sentence, where it can't be read, or has nothing to share.
    pub fn read(path: &Path) -> Result<Weights, String> {
        let model = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let bytes = whole(&model).map_err(|e| format!("{}: {e}", path.display()))?;
        let onnx = tract_onnx::onnx();
        let parsed = crate::engine::tract::front::guarded("parsing the optimised model", || {
            onnx.proto_model_for_read(&mut &bytes[..])
        });
        let parsed = parsed.map_err(|_| "the optimised model can't be parsed".to_string())?;
        drop(bytes);
        let graph = parsed.graph.ok_or("the optimised model has no graph")?;
        let mut weights =
            Weights { tensors: Vec::new(), packed: PrepackedWeights::new(), model, bytes: 0 };
        for weight in &graph.initializer {
            if let Some(tensor) = shared(weight)? {
                weights.bytes += weight.raw_data.len();
                let name = CString::new(weight.name.as_str()).map_err(|e| e.to_string())?;
                weights.tensors.push((name, tensor));
            }
        }
        if weights.tensors.is_empty() {
            return Err(format!("no weight has {SHARED_BYTES_MIN} bytes or more"));
        }
        Ok(weights)
    }

    /// Bytes of the weights that are shared, those that kernels packed not counted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The optimised model.
    ///
    /// # Errors
    /// Where the file can't be read.
    pub fn model(&self) -> Result<Vec<u8>, Error> {
        whole(&self.model).map_err(|e| Error::new(format!("the optimised model: {e}")))
    }

    /// Gives the weights to a session that is being made. It must go before `self`.
    pub fn lend(&self, mut builder: SessionBuilder) -> Result<SessionBuilder, Error> {
        for (name, tensor) in &self.tensors {
            // SAFETY: options, name and value are alive; the value outlives the session, as the
            // caller (`session::Live`) keeps `self`.
            unsafe {
                checked((ort::api().AddInitializer)(
                    builder.ptr_mut(),
                    name.as_ptr(),
                    tensor.ptr(),
                ))?;
            }
        }
        Ok(builder.with_prepacked_weights(&self.packed)?)
    }
}

fn whole(file: &File) -> std::io::Result<Vec<u8>> {
    let len = file.metadata()?.len();
    if len > MODEL_FILE_BYTES_MAX {
        let text = format!("{len} bytes, at most {MODEL_FILE_BYTES_MAX} are read");
        return Err(std::io::Error::other(text));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// The tensor of a weight that is worth sharing; `None` for others, which stay in the model.
fn shared(weight: &TensorProto) -> Result<Option<Tensor>, String> {
    let raw = &weight.raw_data;
    let Some(dtype) = dtype_of(weight.data_type) else { return Ok(None) };
    if raw.len() < SHARED_BYTES_MIN {
        return Ok(None);
    }
    let shape = weight.dims.iter().map(|&n| usize::try_from(n)).collect::<Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| format!("weight {:?} has a negative axis", weight.name))?;
    let len = shape.iter().try_fold(dtype.size_bytes(), |len, &n| len.checked_mul(n));
    if len != Some(raw.len()) {
        return Err(format!("weight {:?} of {shape:?} has {} bytes", weight.name, raw.len()));
    }
    let tensor = Tensor::new(dtype, &shape, None);
    let mut tensor = tensor.map_err(|e| engine_error("a shared weight", &e).to_string())?;
    tensor.buffer.get_mut()[..raw.len()].copy_from_slice(raw);
    Ok(Some(tensor))
}
