//! Tensors at fixed addresses of a GPU, and runs on them that are replayed as CUDA graphs
//! ([`graph`](super::graph)).

use super::driver::{Copies, Driver, Failed};
use super::session::{Memory, Tensor, Value, checked, dims, element_type, engine_error, succeeded};
use crate::engine::{EngineError, EngineErrorKind, RunError};
use crate::units::DType;
use ort::AsPointer;
use ort::session::{IoBinding, RunOptions, Session};
use ort::sys::{OrtStatusPtr, OrtValue};
use std::rc::Rc;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{self, ThreadId};

/// The run option by which the library tells graphs of a session apart; 0 is its own, below it captures none.
const GRAPH_ID: &str = "gpu_graph_id";

/// While a graph is captured, CUDA lets no thread of the process allocate or free on a GPU, or wait for all
/// of it. So whoever captures has this alone, and whoever else uses a GPU shares it.
static CAPTURE: RwLock<()> = RwLock::new(());

/// Held while a GPU is used without capturing.
pub fn no_capture() -> RwLockReadGuard<'static, ()> {
    CAPTURE.read().unwrap_or_else(|e| e.into_inner())
}

fn capture() -> RwLockWriteGuard<'static, ()> {
    CAPTURE.write().unwrap_or_else(|e| e.into_inner())
}

/// Where tensors with fixed addresses are made, and what copies to them.
pub struct Place {
    /// The GPU's memory, as the session has it.
    pub memory: Rc<Memory>,
    /// The driver's stream.
    pub copies: Rc<Copies>,
}

impl Place {
    /// That of GPU `device`.
    pub fn on(session: &Session, device: u32) -> Result<Place, EngineError> {
        let memory = Memory::on_device(session, device)
            .map_err(|e| engine_error("the GPU's memory for tensors", &e))?;
        let copies = Driver::get().and_then(|driver| driver.copies(device));
        let copies = copies.map_err(|said| EngineError::new(EngineErrorKind::Backend, said))?;
        Ok(Place { memory, copies: Rc::new(copies) })
    }
}

/// A tensor on the device.
pub struct DeviceTensor {
    value: Value,
    address: u64,
    /// After the value, whose memory it is.
    _memory: Rc<Memory>,
}

impl DeviceTensor {
    /// One of a type and shape; what is in it is not said.
    pub fn new(
        dtype: DType,
        shape: &[usize],
        memory: &Rc<Memory>,
    ) -> Result<DeviceTensor, ort::Error> {
        let (dims, mut value) = (dims(shape), std::ptr::null_mut());
        // SAFETY: the allocator is alive, and outlives the value (field order).
        let status = unsafe {
            (ort::api().CreateTensorAsOrtValue)(
                memory.allocator().ptr().cast_mut(),
                dims.as_ptr(),
                dims.len(),
                element_type(dtype),
                &mut value,
            )
        };
        checked(status)?;
        let value = Value::new(value)?;
        let mut start = std::ptr::null_mut();
        // SAFETY: the value is a tensor, and alive; its address is written by the call.
        checked(unsafe { (ort::api().GetTensorMutableData)(value.ptr(), &mut start) })?;
        Ok(DeviceTensor { value, address: start as u64, _memory: memory.clone() })
    }
}

/// What a batch size has on the device: a twin of each tensor on the host.
pub struct Fixed {
    inputs: Vec<DeviceTensor>,
    /// How many of the inputs requests carry; those behind them are constant.
    carried: usize,
    outputs: Vec<DeviceTensor>,
    options: RunOptions,
    copies: Rc<Copies>,
    /// The library keeps a graph for the thread that captured it.
    captured_by: Option<ThreadId>,
}

impl Fixed {
    /// Twins that are graph `id` of the session, from 1; requests carry the first `carried` inputs.
    pub fn new(
        id: usize,
        (inputs, carried): (Vec<DeviceTensor>, usize),
        outputs: Vec<DeviceTensor>,
        copies: &Rc<Copies>,
    ) -> Result<Fixed, ort::Error> {
        let mut options = RunOptions::new()?;
        options.set(GRAPH_ID, id.to_string())?;
        let copies = copies.clone();
        Ok(Fixed { inputs, carried, outputs, options, copies, captured_by: None })
    }

    /// What is to be bound: inputs, outputs.
    pub fn bound(&self) -> (Vec<*const OrtValue>, Vec<*const OrtValue>) {
        let ptrs =
            |tensors: &[DeviceTensor]| tensors.iter().map(|t| t.value.ptr().cast_const()).collect();
        (ptrs(&self.inputs), ptrs(&self.outputs))
    }

    /// Whether this thread captured the graph.
    pub fn captured_here(&self) -> bool {
        self.captured_by == Some(thread::current().id())
    }

    /// The first run on this thread: captures. With what was said where it fails.
    pub fn capture(
        &mut self,
        session: &Session,
        binding: &IoBinding,
        inputs: &[Tensor],
        outputs: &mut [Tensor],
    ) -> Result<(), EngineError> {
        let said = |status| {
            checked(status).map_err(|e| engine_error("a run that is captured as a graph", &e))
        };
        self.turn(session, binding, inputs, outputs, said)
    }

    /// A run: replays, or captures where it is the first on this thread.
    pub fn run(
        &mut self,
        session: &Session,
        binding: &IoBinding,
        inputs: &[Tensor],
        outputs: &mut [Tensor],
    ) -> Result<(), RunError> {
        self.turn(session, binding, inputs, outputs, succeeded)
    }

    fn turn<E: From<Failed>>(
        &mut self,
        session: &Session,
        binding: &IoBinding,
        inputs: &[Tensor],
        outputs: &mut [Tensor],
        check: impl Fn(OrtStatusPtr) -> Result<(), E>,
    ) -> Result<(), E> {
        let replay = self.captured_here();
        let (_shared, _alone) = (replay.then(no_capture), (!replay).then(capture));
        self.copies.enter()?;
        let changed = if replay { self.carried } else { self.inputs.len() };
        for (twin, tensor) in self.inputs[..changed].iter().zip(inputs) {
            // SAFETY: twins have as many bytes as their tensors and are this instance's own; nobody
            // touches either before `wait` (`&mut self`), which is called whatever happens.
            let begun = unsafe { self.copies.to_device(twin.address, tensor.buffer.get()) };
            self.waited(begun)?;
        }
        // The library's stream is another: what it reads must be there.
        self.copies.wait()?;
        // SAFETY: session, options and binding are alive and used by no one else (`&mut self`), and so
        // are the twins that are bound. It returns when the outputs are there.
        check(unsafe {
            (ort::api().RunWithBinding)(session.ptr().cast_mut(), self.options.ptr(), binding.ptr())
        })?;
        self.captured_by = Some(thread::current().id());
        for (twin, tensor) in self.outputs.iter().zip(outputs) {
            // SAFETY: as above.
            let begun = unsafe { self.copies.to_host(tensor.buffer.get_mut(), twin.address) };
            self.waited(begun)?;
        }
        self.copies.wait()?;
        Ok(())
    }

    /// `begun`; where it failed, what was begun before is over.
    fn waited(&self, begun: Result<(), Failed>) -> Result<(), Failed> {
        if begun.is_err() {
            let _ = self.copies.wait();
        }
        begun
    }
}

#[cfg(test)]
mod tests;
