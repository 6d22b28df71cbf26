//! Models of a running runtime: what they take and give, and one whole request at once.

use super::answer::{corelane_receipt, filled};
use super::args::{borrow, list, put_prefix};
use super::request::{WAIT_FOREVER, corelane_request, instant};
use super::runtime::Core;
use super::status::{Told, corelane_status, fail, guard, guard_value, infer_error};
use crate::model::signature::TensorSpec;
use crate::queue::ring::IndexRing;
use crate::runtime::{InferError, ModelHandle, ServedModel, WaitPolicy};
use crate::sys::sync::{Arc, AtomicU32};
use std::ffi::{CString, c_char, c_void};
use std::ptr;

/// Element type of a tensor; all are little-endian.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum corelane_dtype {
    /// IEEE 754 single.
    F32 = 0,
    /// IEEE 754 half.
    F16 = 1,
    /// IEEE 754 double.
    F64 = 2,
    /// Signed 8 bit.
    I8 = 3,
    /// Unsigned 8 bit.
    U8 = 4,
    /// Signed 16 bit.
    I16 = 5,
    /// Unsigned 16 bit.
    U16 = 6,
    /// Signed 32 bit.
    I32 = 7,
    /// Unsigned 32 bit.
    U32 = 8,
    /// Signed 64 bit.
    I64 = 9,
    /// Unsigned 64 bit.
    U64 = 10,
    /// One byte, 0 or 1.
    Bool = 11,
}

/// Every type, in the order of [`DType::ALL`](crate::units::DType::ALL).
pub(super) const DTYPES: [corelane_dtype; 12] = [
    corelane_dtype::F32,
    corelane_dtype::F16,
    corelane_dtype::F64,
    corelane_dtype::I8,
    corelane_dtype::U8,
    corelane_dtype::I16,
    corelane_dtype::U16,
    corelane_dtype::I32,
    corelane_dtype::U32,
    corelane_dtype::I64,
    corelane_dtype::U64,
    corelane_dtype::Bool,
];

/// Axes of one row, at most.
pub const CORELANE_ROW_AXES_MAX: usize = 7;
const _: () = assert!(CORELANE_ROW_AXES_MAX == crate::limits::ROW_AXES_MAX);

/// An input or output of a model.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct corelane_tensor {
    /// Its name in the ONNX graph; lives as long as the runtime.
    pub name: *const c_char,
    /// Bytes of one row. A request of `n` rows has `n` times as many.
    pub row_bytes: u64,
    /// Axes of one row, the first `axis_count` of them; the batch axis is not among them.
    pub row_shape: [u64; CORELANE_ROW_AXES_MAX],
    /// Axes of one row.
    pub axis_count: u32,
    /// A `corelane_dtype`.
    pub dtype: i32,
}

/// Bytes to read.
#[repr(C)]
pub struct corelane_input {
    /// The first byte; no alignment is asked for.
    pub data: *const c_void,
    /// How many.
    pub bytes: usize,
}

/// Bytes to write.
#[repr(C)]
pub struct corelane_output {
    /// The first byte; no alignment is asked for.
    pub data: *mut c_void,
    /// How many.
    pub bytes: usize,
}

/// A model of a running runtime.
pub struct corelane_model {
    name: CString,
    labels: Vec<CString>,
    inputs: Vec<CString>,
    outputs: Vec<CString>,
    pub(super) handle: ModelHandle,
    pub(super) core: Arc<Core>,
    /// The handles of requests, and which are free.
    pub(super) requests: Box<[corelane_request]>,
    pub(super) free: IndexRing,
    /// Which request submitted a slot last, with a callback.
    pub(super) by_slot: Box<[AtomicU32]>,
}

fn text(text: &str) -> CString {
    // A zero inside a name would hide what follows.
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

impl corelane_model {
    pub(super) fn new(
        served: &ServedModel,
        handle: ModelHandle,
        wait: WaitPolicy,
        core: &Arc<Core>,
    ) -> corelane_model {
        let names = |tensors: &[TensorSpec]| tensors.iter().map(|t| text(&t.name)).collect();
        let count = handle.slots();
        let free = IndexRing::new(count);
        for index in 0..count as u32 {
            free.push(index).expect("the ring holds every request");
        }
        corelane_model {
            name: text(&served.name),
            labels: served.setup().labels.iter().map(|l| text(l)).collect(),
            inputs: names(&handle.signature().inputs),
            outputs: names(&handle.signature().outputs),
            requests: (0..count as u32).map(corelane_request::new).collect(),
            handle: handle.with_wait(wait),
            core: core.clone(),
            free,
            by_slot: (0..count).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    pub(super) fn name(&self) -> &CString {
        &self.name
    }

    /// Says why a request for this model was refused, or failed.
    pub(super) fn tell(&self, error: &InferError) -> Told {
        infer_error(&self.name, error)
    }
}

/// The model's name; null if `model` is null.
///
/// Ownership: the text lives as long as the runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_model_name(model: *const corelane_model) -> *const c_char {
    guard_value(ptr::null(), || {
        // SAFETY: C's promise: a model of a runtime that is not stopped.
        unsafe { model.as_ref() }.map_or(ptr::null(), |model| model.name.as_ptr())
    })
}

/// How many inputs the model has; 0 if `model` is null.
///
/// Ownership: nothing changes hands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_model_input_count(model: *const corelane_model) -> usize {
    // SAFETY: C's promise: a model of a runtime that is not stopped.
    guard_value(0, || unsafe { model.as_ref() }.map_or(0, |m| m.inputs.len()))
}

/// How many outputs the model has; 0 if `model` is null.
///
/// Ownership: nothing changes hands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_model_output_count(model: *const corelane_model) -> usize {
    // SAFETY: C's promise: a model of a runtime that is not stopped.
    guard_value(0, || unsafe { model.as_ref() }.map_or(0, |m| m.outputs.len()))
}

/// How many rows one request may have; 0 if `model` is null.
///
/// Ownership: nothing changes hands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_model_rows_max(model: *const corelane_model) -> u32 {
    // SAFETY: C's promise: a model of a runtime that is not stopped.
    guard_value(0, || unsafe { model.as_ref() }.map_or(0, |m| m.handle.max_request_rows().0.into()))
}

/// Label `index` of the model's classes; null if there is none.
///
/// Ownership: the text lives as long as the runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_model_label(
    model: *const corelane_model,
    index: usize,
) -> *const c_char {
    guard_value(ptr::null(), || {
        // SAFETY: C's promise: a model of a runtime that is not stopped.
        let label = unsafe { model.as_ref() }.and_then(|model| model.labels.get(index));
        label.map_or(ptr::null(), |label| label.as_ptr())
    })
}

/// Describes input `index`. `tensor_bytes` is `sizeof(corelane_tensor)`, as the program knows it.
///
/// Ownership: `tensor` is the caller's and is filled; the name in it lives as long as the runtime.
///
/// # Errors
/// `INVALID_ARGUMENT`; `NOT_FOUND`: there is no such input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_model_describe_input(
    model: *const corelane_model,
    index: usize,
    tensor: *mut corelane_tensor,
    tensor_bytes: usize,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a model of a runtime that is not stopped.
        let model = unsafe { borrow(model, "model") }?;
        let found = describe(&model.handle.signature().inputs, &model.inputs, index, "input")?;
        // SAFETY: C's promise: `tensor_bytes` bytes may be written.
        unsafe { put_prefix(tensor, tensor_bytes, found, "tensor") }
    })
}

/// Describes output `index`. `tensor_bytes` is `sizeof(corelane_tensor)`, as the program knows it.
///
/// Ownership: `tensor` is the caller's and is filled; the name in it lives as long as the runtime.
///
/// # Errors
/// `INVALID_ARGUMENT`; `NOT_FOUND`: there is no such output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_model_describe_output(
    model: *const corelane_model,
    index: usize,
    tensor: *mut corelane_tensor,
    tensor_bytes: usize,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a model of a runtime that is not stopped.
        let model = unsafe { borrow(model, "model") }?;
        let found = describe(&model.handle.signature().outputs, &model.outputs, index, "output")?;
        // SAFETY: C's promise: `tensor_bytes` bytes may be written.
        unsafe { put_prefix(tensor, tensor_bytes, found, "tensor") }
    })
}

fn describe(
    specs: &[TensorSpec],
    names: &[CString],
    index: usize,
    what: &str,
) -> Result<corelane_tensor, Told> {
    let (Some(spec), Some(name)) = (specs.get(index), names.get(index)) else {
        return Err(no_tensor(what, index, specs.len()));
    };
    let mut row_shape = [0; CORELANE_ROW_AXES_MAX];
    for (to, from) in row_shape.iter_mut().zip(&spec.row_shape) {
        *to = *from as u64;
    }
    Ok(corelane_tensor {
        name: name.as_ptr(),
        row_bytes: spec.row_bytes() as u64,
        row_shape,
        axis_count: spec.row_shape.len() as u32,
        dtype: DTYPES[spec.dtype as usize] as i32,
    })
}

pub(super) fn no_tensor(what: &str, index: usize, count: usize) -> Told {
    let text = format_args!("there is no {what} {index}; the model has {count}");
    fail(corelane_status::NotFound, text)
}

pub(super) fn check_len(
    specs: &[TensorSpec],
    (what, index): (&str, usize),
    given: usize,
    needed: usize,
) -> Result<(), Told> {
    if given == needed {
        return Ok(());
    }
    let name = specs.get(index).map_or("", |spec| &spec.name);
    let text =
        format_args!("{what} {index} ({name:?}) has {needed} bytes here, the buffer {given}");
    Err(fail(corelane_status::WrongSize, text))
}

/// One whole request: copies `rows` rows in from the caller's buffers, waits for the answer at most
/// `timeout_us` microseconds (`CORELANE_WAIT_FOREVER`: until it ends), and copies it out. A request
/// whose time is over is given up. `receipt` may be null, else it is filled as by
/// `corelane_request_receipt`.
///
/// Ownership: all buffers stay the caller's, and are not looked at after the call.
///
/// # Errors
/// `INVALID_ARGUMENT`, `WRONG_SIZE`, `TIMEOUT`, `FORKED`, or why the request was refused or failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_model_infer(
    model: *const corelane_model,
    rows: u32,
    inputs: *const corelane_input,
    input_count: usize,
    outputs: *const corelane_output,
    output_count: usize,
    timeout_us: u64,
    receipt: *mut corelane_receipt,
    receipt_bytes: usize,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a model of a runtime that is not stopped.
        let model = unsafe { borrow(model, "model") }?;
        model.core.check()?;
        // SAFETY: C's promise: as many entries as it says.
        let inputs = unsafe { list(inputs, input_count, "inputs") }?;
        // SAFETY: C's promise: as many entries as it says.
        let outputs = unsafe { list(outputs, output_count, "outputs") }?;
        let signature = model.handle.signature();
        for (what, given, has) in [
            ("inputs", input_count, signature.inputs.len()),
            ("outputs", output_count, signature.outputs.len()),
        ] {
            if given != has {
                let text = format_args!("{given} {what} are given; the model has {has}");
                return Err(fail(corelane_status::InvalidArgument, text));
            }
        }
        let mut request = model.handle.request(rows as usize).map_err(|e| model.tell(&e))?;
        // Everything is looked at before anything is run.
        for (index, (output, spec)) in outputs.iter().zip(&signature.outputs).enumerate() {
            let needed = spec.row_bytes() * rows as usize;
            check_len(&signature.outputs, ("output", index), output.bytes, needed)?;
            if output.data.is_null() {
                return Err(super::args::null("an output's data"));
            }
        }
        for (index, input) in inputs.iter().enumerate() {
            let slot = request.input_bytes_mut(index).map_err(|e| model.tell(&e))?;
            check_len(&signature.inputs, ("input", index), input.bytes, slot.len())?;
            // SAFETY: C's promise: `bytes` bytes may be read, and don't change meanwhile.
            let given = unsafe { list(input.data.cast::<u8>(), input.bytes, "an input's data") }?;
            slot.copy_from_slice(given);
        }
        let mut pending = request.submit().map_err(|e| model.tell(&e))?;
        let until = if timeout_us == WAIT_FOREVER { WAIT_FOREVER } else { instant(timeout_us) };
        let answer = match pending.wait_until(crate::units::Nanos(until)) {
            Some(result) => result.map_err(|e| model.tell(&e))?,
            None => {
                let text =
                    format_args!("no answer within {timeout_us} us; the request is given up");
                return Err(fail(corelane_status::Timeout, text));
            }
        };
        for (index, output) in outputs.iter().enumerate() {
            let bytes = answer.output_bytes(index).map_err(|e| model.tell(&e))?;
            // SAFETY: not null and of this length, both checked above; C's promise: it may be
            // written. A slot is never a caller's buffer, so they don't overlap.
            unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), output.data.cast(), bytes.len());
            }
        }
        if !receipt.is_null() {
            let filled = filled(&answer);
            // SAFETY: C's promise: `receipt_bytes` bytes may be written.
            unsafe { put_prefix(receipt, receipt_bytes, filled, "receipt") }?;
        }
        Ok(())
    })
}

/// Whether every request of the model is free.
pub(super) fn held(model: &corelane_model) -> usize {
    model.requests.iter().filter(|request| !request.is_vacant()).count()
}
