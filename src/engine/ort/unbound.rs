//! ONNX Runtime as programs commonly call it: tensors are made for each run, and outputs are where the
//! library puts them. What bound tensors save is measured against it; nothing is served so.

use super::graph::GraphError;
use super::instance::{c_name, input_tensor, ordered};
use super::interface::{self, Interface};
use super::load::{read_signature, recipe};
use super::session::{Live, Value, checked, engine_error};
use super::settings::OrtSettings;
use crate::engine::{EngineError, EngineErrorKind, LoadRequest};
use crate::model::signature::Signature;
use ort::AsPointer;
use std::ffi::{CString, c_char};

/// A session without bound tensors.
pub struct Unbound {
    session: Live,
    interface: Interface,
    signature: Signature,
    inputs: Vec<CString>,
    outputs: Vec<CString>,
}

impl Unbound {
    /// Makes a session with the providers that are asked for; all of them must take.
    ///
    /// # Errors
    /// As [`load`](super::load()), and where a provider does not take, or CUDA graphs are asked for.
    pub fn new(request: &LoadRequest<'_>, settings: &OrtSettings) -> Result<Unbound, EngineError> {
        if settings.cuda_graph {
            return Err(GraphError::Unbound.into());
        }
        let interface = interface::read(request.bytes, request.bind_axes, request.bind_inputs)?;
        let recipe = recipe(request, settings)?;
        let mut session = recipe.session(None).map_err(|e| engine_error("the session", &e))?;
        let signature = read_signature(&mut session, &interface)?;
        let inputs = ordered(&interface).into_iter().map(|i| c_name(&i.name));
        let inputs = inputs.collect::<Result<_, _>>()?;
        let outputs =
            signature.outputs.iter().map(|o| c_name(&o.name)).collect::<Result<_, _>>()?;
        Ok(Unbound { session, interface, signature, inputs, outputs })
    }

    /// Runs `rows` rows; each output's bytes.
    ///
    /// # Errors
    /// `Internal` where the library reports an error.
    ///
    /// # Panics
    /// If an input has another length than `rows` rows of it.
    pub fn run(&mut self, rows: usize, inputs: &[&[u8]]) -> Result<Vec<Vec<u8>>, EngineError> {
        let failed = |e: ort::Error| engine_error("a run without bound tensors", &e);
        let ordered = ordered(&self.interface);
        let mut tensors = Vec::new();
        for (n, input) in ordered.iter().enumerate() {
            let mut tensor = input_tensor(input, rows, None)?;
            if let Some(bytes) = inputs.get(n) {
                assert_eq!(Some(bytes.len()), input.bytes(rows), "input {n} has {rows} rows");
                tensor.buffer.get_mut()[..bytes.len()].copy_from_slice(bytes);
            }
            tensors.push(tensor);
        }
        let names =
            |list: &[CString]| list.iter().map(|n| n.as_ptr()).collect::<Vec<*const c_char>>();
        let (in_names, out_names) = (names(&self.inputs), names(&self.outputs));
        let values: Vec<_> = tensors.iter().map(|t| t.ptr()).collect();
        let mut made = vec![std::ptr::null_mut(); out_names.len()];
        // SAFETY: the session is ours alone (`&mut self`); names and values are alive, as many as are
        // said; the library writes as many outputs as there are names.
        let status = unsafe {
            (ort::api().Run)(
                self.session.ptr().cast_mut(),
                std::ptr::null(),
                in_names.as_ptr(),
                values.as_ptr(),
                values.len(),
                out_names.as_ptr(),
                out_names.len(),
                made.as_mut_ptr(),
            )
        };
        // Whatever happened, what was made is released.
        let made: Vec<_> = made.into_iter().map(Value::new).collect();
        checked(status).map_err(failed)?;
        let made = made.into_iter().collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let mut answers = Vec::new();
        for (value, spec) in made.iter().zip(&self.signature.outputs) {
            let wanted = spec.row_bytes() * if self.signature.batched { rows } else { 1 };
            let mut bytes = std::ptr::null_mut();
            let mut shape = std::ptr::null_mut();
            let mut elements = 0;
            // SAFETY: the value is alive and a tensor, as the signature was read from one; the shape is
            // released below.
            unsafe {
                let api = ort::api();
                checked((api.GetTensorMutableData)(value.ptr(), &mut bytes)).map_err(failed)?;
                checked((api.GetTensorTypeAndShape)(value.ptr(), &mut shape)).map_err(failed)?;
                let count = (api.GetTensorShapeElementCount)(shape, &mut elements);
                (api.ReleaseTensorTypeAndShapeInfo)(shape);
                checked(count).map_err(failed)?;
            }
            if elements * spec.dtype.size_bytes() != wanted || bytes.is_null() {
                let message = format!("output {:?} has {elements} elements", spec.name);
                return Err(EngineError::new(EngineErrorKind::Internal, message));
            }
            // SAFETY: so many elements of its type, as was just asked.
            let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), wanted) };
            answers.push(bytes.to_vec());
        }
        Ok(answers)
    }
}
