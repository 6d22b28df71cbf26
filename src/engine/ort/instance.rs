//! The mutable half: one session a worker, and for each batch size tensors that are bound once. Where runs are
//! CUDA graphs, their twins on the device are bound instead (`fixed`).

use super::fixed::{DeviceTensor, Fixed, Place, no_capture};
use super::interface::{Input, Interface};
use super::session::{Live, Memory, Recipe, Tensor, checked, engine_error, succeeded};
use crate::engine::{EngineError, EngineErrorKind, Instance, PlanIndex, RunError};
use crate::model::signature::{Signature, TensorSpec};
use crate::sys::region;
use crate::units::DType;
use ort::AsPointer;
use ort::session::{IoBinding, Session};
use ort::sys::OrtValue;
use std::ffi::CString;
use std::rc::Rc;

/// Tensors of one batch size. The binding is dropped before what it names.
struct Plan {
    binding: IoBinding,
    /// Those that requests carry, then those that the manifest binds to a constant.
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// Where runs are CUDA graphs: what is bound then.
    fixed: Option<Fixed>,
}

/// An instance on its own session.
pub struct OrtInstance {
    plans: Vec<Plan>,
    /// Names of `Plan::inputs`.
    names: Vec<CString>,
    /// Inputs whose bytes must be 0 or 1.
    bools: Vec<usize>,
    /// Whether inputs go to another device: binding copies them, so they are bound for each run.
    device: bool,
    /// Whether tensors are in pinned memory.
    pinned: bool,
    session: Live,
}

// SAFETY: an instance moves whole: its session, its bindings, and every clone of the `Rc`s to memory of the
// session and to the driver's stream, none of which is kept elsewhere. ONNX Runtime's objects and the
// driver's are not tied to a thread (`Fixed` looks where a graph is); that no two threads use them at a time
// is what `&mut` says.
unsafe impl Send for OrtInstance {}

/// Inputs in the order of an instance: those that requests carry first.
pub fn ordered(interface: &Interface) -> Vec<&Input> {
    let constants = interface.inputs.iter().filter(|i| i.constant.is_some());
    interface.carried().chain(constants).collect()
}

/// A name as the library takes it.
pub fn c_name(name: &str) -> Result<CString, EngineError> {
    CString::new(name).map_err(|_| {
        let message = format!("the name {name:?} has a zero byte in it");
        EngineError::new(EngineErrorKind::Malformed, message)
    })
}

/// A tensor for `input` at `rows` rows: zeros, or its constant.
pub fn input_tensor(
    input: &Input,
    rows: usize,
    pinned: Option<&Rc<Memory>>,
) -> Result<Tensor, EngineError> {
    let mut tensor = Tensor::new(input.dtype, &input.shape(rows), pinned)
        .map_err(|e| engine_error("an input's tensor", &e))?;
    if let Some(value) = input.constant {
        fill(input.dtype, value, tensor.buffer.get_mut());
    }
    Ok(tensor)
}

/// Binds each input to its tensor, which must outlive the binding.
fn bind(
    binding: &mut IoBinding,
    names: &[CString],
    tensors: impl Iterator<Item = *const OrtValue>,
) -> Result<(), ort::Error> {
    for (name, tensor) in names.iter().zip(tensors) {
        // SAFETY: binding and tensor are alive; the tensor outlives the binding, as the caller says.
        checked(unsafe { (ort::api().BindInput)(binding.ptr_mut(), name.as_ptr(), tensor) })?;
    }
    Ok(())
}

/// The element type and whole shape of each output of a run on zeros with `rows` rows.
pub fn trial_run(
    session: &mut Session,
    interface: &Interface,
    rows: usize,
) -> Result<Vec<(String, ort::value::ValueType)>, EngineError> {
    let failed = |e: ort::Error| engine_error(&format!("a run on zeros at {rows} rows"), &e);
    let inputs = ordered(interface);
    let names = inputs.iter().map(|i| c_name(&i.name)).collect::<Result<Vec<_>, _>>()?;
    let tensors =
        inputs.iter().map(|i| input_tensor(i, rows, None)).collect::<Result<Vec<_>, _>>()?;
    // It may be on a GPU.
    let _gpu = no_capture();
    let mut binding = session.create_binding().map_err(failed)?;
    bind(&mut binding, &names, tensors.iter().map(Tensor::ptr)).map_err(failed)?;
    for name in &interface.outputs {
        binding.bind_output_to_device(name, &Default::default()).map_err(failed)?;
    }
    let outputs = session.run_binding(&binding).map_err(failed)?;
    let types = outputs.iter().map(|(name, value)| (name.to_string(), value.dtype().clone()));
    let types = types.collect();
    drop(outputs);
    // Before the tensors that it names.
    drop(binding);
    Ok(types)
}

impl OrtInstance {
    /// Whether tensors are in pinned memory.
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Makes a session and binds tensors for every batch size. Where runs are CUDA graphs, captures them.
    pub fn new(
        recipe: &Recipe,
        interface: &Interface,
        signature: &Signature,
        batch_sizes: &[usize],
    ) -> Result<OrtInstance, EngineError> {
        let session = recipe.session(None).map_err(|e| engine_error("the session", &e))?;
        let number = recipe.settings.device;
        let device = !recipe.only_cpu();
        let pinned = device.then(|| Memory::pinned(&session, number)).transpose();
        let pinned = pinned.unwrap_or_else(|error| {
            event!(warn, "requests are not in pinned memory: {}", error.message());
            None
        });
        let place = recipe.graphs.map(|_| Place::on(&session, number)).transpose()?;
        let on = Memories { device, pinned, place };
        let instance = OrtInstance::with(session, on, interface, signature, batch_sizes)?;
        // What making a session took: the model's file, parsed, twice over.
        region::trim();
        Ok(instance)
    }

    /// `on` is of the session, and goes before it (the order of arguments).
    fn with(
        session: Live,
        on: Memories,
        interface: &Interface,
        signature: &Signature,
        batch_sizes: &[usize],
    ) -> Result<OrtInstance, EngineError> {
        let inputs = ordered(interface);
        let names = inputs.iter().map(|i| c_name(&i.name)).collect::<Result<Vec<_>, _>>()?;
        let carried = interface.carried().enumerate();
        let bools = carried.filter(|(_, i)| i.dtype == DType::Bool).map(|(n, _)| n).collect();
        let mut plans = Vec::new();
        for (n, &rows) in batch_sizes.iter().enumerate() {
            plans.push(plan(&session, &on, &inputs, &names, signature, (n + 1, rows))?);
        }
        // Only now: a captured graph goes on using memory that the library holds to be free, and would
        // give to tensors that are made later.
        for Plan { binding, inputs, outputs, fixed } in &mut plans {
            if let Some(fixed) = fixed {
                fixed.capture(&session, binding, inputs, outputs)?;
            }
        }
        Ok(OrtInstance {
            plans,
            names,
            bools,
            device: on.device,
            pinned: on.pinned.is_some(),
            session,
        })
    }
}

/// Where an instance's tensors are.
struct Memories {
    /// Whether inputs go to another device.
    device: bool,
    /// Where those that requests are copied to are; on the heap if `None`.
    pinned: Option<Rc<Memory>>,
    /// Where their twins are, if runs are CUDA graphs.
    place: Option<Place>,
}

/// Tensors for `rows` rows, as the plan of number `id`.
fn plan(
    session: &Session,
    on: &Memories,
    inputs: &[&Input],
    names: &[CString],
    signature: &Signature,
    (id, rows): (usize, usize),
) -> Result<Plan, EngineError> {
    let failed = |e: ort::Error| engine_error("binding tensors", &e);
    let pinned = on.pinned.as_ref();
    let given = inputs;
    let inputs = given.iter().map(|i| input_tensor(i, rows, pinned));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let shape = |spec: &TensorSpec| -> Vec<usize> {
        let batch = signature.batched.then_some(rows);
        batch.into_iter().chain(spec.row_shape.iter().copied()).collect()
    };
    let outputs = signature.outputs.iter();
    let outputs = outputs.map(|spec| Tensor::new(spec.dtype, &shape(spec), pinned));
    let outputs = outputs.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let fixed = match &on.place {
        None => None,
        Some(Place { memory, copies }) => {
            let ins = given.iter().map(|i| DeviceTensor::new(i.dtype, &i.shape(rows), memory));
            let outs = signature.outputs.iter();
            let outs = outs.map(|spec| DeviceTensor::new(spec.dtype, &shape(spec), memory));
            let ins = ins.collect::<Result<_, _>>().map_err(failed)?;
            let outs = outs.collect::<Result<_, _>>().map_err(failed)?;
            let carried = signature.inputs.len();
            Some(Fixed::new(id, (ins, carried), outs, copies).map_err(failed)?)
        }
    };
    let mut binding = session.create_binding().map_err(failed)?;
    let hosts = |tensors: &[Tensor]| tensors.iter().map(Tensor::ptr).collect::<Vec<_>>();
    let (bound_inputs, bound_outputs) = match &fixed {
        None => (hosts(&inputs), hosts(&outputs)),
        Some(fixed) => fixed.bound(),
    };
    bind(&mut binding, names, bound_inputs.into_iter()).map_err(failed)?;
    for (spec, tensor) in signature.outputs.iter().zip(bound_outputs) {
        let name = c_name(&spec.name)?;
        // SAFETY: binding and tensor are alive; the tensor outlives the binding (`Plan`).
        checked(unsafe { (ort::api().BindOutput)(binding.ptr_mut(), name.as_ptr(), tensor) })
            .map_err(failed)?;
    }
    Ok(Plan { binding, inputs, outputs, fixed })
}

impl Instance for OrtInstance {
    fn input_mut(&mut self, plan: PlanIndex, input: usize) -> &mut [u8] {
        self.plans[plan.0].inputs[input].buffer.get_mut()
    }

    fn infer(&mut self, plan: PlanIndex) -> Result<(), RunError> {
        let Plan { binding, inputs, outputs, fixed } = &mut self.plans[plan.0];
        for &input in &self.bools {
            // Any byte may arrive; a bool is 0 or 1.
            inputs[input].buffer.get_mut().iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        if let Some(fixed) = fixed {
            return fixed.run(&self.session, binding, inputs, outputs);
        }
        let _gpu = self.device.then(no_capture);
        let api = ort::api();
        let binding = binding.ptr_mut();
        if self.device {
            for (name, tensor) in self.names.iter().zip(&*inputs) {
                // SAFETY: as in `bind`.
                succeeded(unsafe { (api.BindInput)(binding, name.as_ptr(), tensor.ptr()) })?;
            }
            // SAFETY: the binding is alive.
            succeeded(unsafe { (api.SynchronizeBoundInputs)(binding) })?;
        }
        let session = self.session.ptr().cast_mut();
        // SAFETY: session and binding are alive and used by no one else (`&mut self`); every tensor
        // that is bound is alive and borrowed by no one.
        succeeded(unsafe { (api.RunWithBinding)(session, std::ptr::null(), binding) })?;
        if self.device {
            // SAFETY: the binding is alive.
            succeeded(unsafe { (api.SynchronizeBoundOutputs)(binding) })?;
        }
        Ok(())
    }

    fn output(&self, plan: PlanIndex, output: usize) -> &[u8] {
        self.plans[plan.0].outputs[output].buffer.get()
    }
}

/// Fills `bytes` with `value` as elements of `dtype`; whole numbers saturate.
fn fill(dtype: DType, value: f64, bytes: &mut [u8]) {
    let mut element = [0u8; 8];
    let size = dtype.size_bytes();
    let put = |element: &mut [u8; 8], value: &[u8]| element[..value.len()].copy_from_slice(value);
    let e = &mut element;
    match dtype {
        DType::F32 => put(e, &(value as f32).to_le_bytes()),
        DType::F64 => put(e, &value.to_le_bytes()),
        DType::F16 => put(e, &half::f16::from_f64(value).to_le_bytes()),
        DType::I8 => put(e, &(value as i8).to_le_bytes()),
        DType::U8 => put(e, &(value as u8).to_le_bytes()),
        DType::I16 => put(e, &(value as i16).to_le_bytes()),
        DType::U16 => put(e, &(value as u16).to_le_bytes()),
        DType::I32 => put(e, &(value as i32).to_le_bytes()),
        DType::U32 => put(e, &(value as u32).to_le_bytes()),
        DType::I64 => put(e, &(value as i64).to_le_bytes()),
        DType::U64 => put(e, &(value as u64).to_le_bytes()),
        DType::Bool => put(e, &[u8::from(value != 0.0)]),
    }
    for to in bytes.chunks_exact_mut(size) {
        to.copy_from_slice(&element[..size]);
    }
}

#[cfg(test)]
#[path = "instance_tests.rs"]
mod tests;
