//! Answers, read in their slots.

use super::args::{borrow, place, put_prefix};
use super::model::{check_len, no_tensor};
use super::request::{DONE, FILLING, Held, Stage, corelane_request};
use super::status::{Told, corelane_status, guard, guard_value};
use crate::runtime::Answer;
use std::ffi::c_void;

/// What happened to a request that was answered.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct corelane_receipt {
    /// From submission to the instant a worker took the request.
    pub queue_ns: u64,
    /// Gathering the batch's rows, the whole batch.
    pub compute_input_ns: u64,
    /// Running the model, the whole batch.
    pub compute_infer_ns: u64,
    /// Scattering the batch's rows, the whole batch.
    pub compute_output_ns: u64,
    /// Rows in the batch.
    pub batch_size: u32,
    /// Which worker ran it.
    pub worker: u32,
    /// A `corelane_close_reason`.
    pub close_reason: i32,
    /// Zero.
    pub reserved: u32,
}

/// Why a batch was closed.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum corelane_close_reason {
    /// The largest batch that pays was there.
    Full = 0,
    /// A preferred size was reached.
    Preferred = 1,
    /// The oldest request had waited as long as the model's delay.
    Delay = 2,
    /// Waiting longer would have missed a deadline.
    Deadline = 3,
    /// The worker was idle and took what was there.
    Idle = 4,
    /// The runtime is stopping.
    Drain = 5,
}

/// Every reason, in the order of [`CloseReason::ALL`](crate::units::CloseReason::ALL).
pub(super) const CLOSE_REASONS: [corelane_close_reason; 6] = [
    corelane_close_reason::Full,
    corelane_close_reason::Preferred,
    corelane_close_reason::Delay,
    corelane_close_reason::Deadline,
    corelane_close_reason::Idle,
    corelane_close_reason::Drain,
];

pub(super) fn filled(answer: &Answer) -> corelane_receipt {
    let r = answer.receipt();
    corelane_receipt {
        queue_ns: r.queue_ns.0,
        compute_input_ns: r.compute_input_ns.0,
        compute_infer_ns: r.compute_infer_ns.0,
        compute_output_ns: r.compute_output_ns.0,
        batch_size: r.batch_size.0.into(),
        worker: r.worker.0.into(),
        close_reason: CLOSE_REASONS[r.close_reason as usize] as i32,
        reserved: 0,
    }
}

/// Where to read output `index`: `bytes` bytes, rows after rows, aligned for its type.
///
/// Ownership: the bytes are the request's, and the caller's to read until it is freed.
///
/// # Errors
/// `NOT_FOUND`: there is no such output; `WRONG_STATE`: it has no answer; `BUSY`, `FORKED`,
/// `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_output(
    request: *const corelane_request,
    index: usize,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> corelane_status {
    guard(|| {
        let (data, bytes) = (place(data, "data")?, place(bytes, "bytes")?);
        // SAFETY: C's promise: a request that is not freed.
        let request = unsafe { borrow(request, "request") }?;
        let mut held = request.hold(&[DONE])?;
        let area = output(&mut held, index)?;
        // SAFETY: C's promise: both may be written.
        unsafe {
            bytes.put(area.len());
            data.put(area.as_ptr().cast());
        }
        Ok(())
    })
}

fn output<'a>(held: &'a mut Held<'_>, index: usize) -> Result<&'a [u8], Told> {
    let count = held.model().handle.signature().outputs.len();
    held.answer()?.output_bytes(index).map_err(|_| no_tensor("output", index, count))
}

/// Copies output `index` out.
///
/// Ownership: `data` is the caller's.
///
/// # Errors
/// `NOT_FOUND`: there is no such output; `WRONG_SIZE`; `WRONG_STATE`: it has no answer; `BUSY`,
/// `FORKED`, `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_copy_output(
    request: *const corelane_request,
    index: usize,
    data: *mut c_void,
    bytes: usize,
) -> corelane_status {
    guard(|| {
        let target = place(data.cast::<u8>(), "data")?;
        // SAFETY: C's promise: a request that is not freed.
        let request = unsafe { borrow(request, "request") }?;
        let mut held = request.hold(&[DONE])?;
        let area = output(&mut held, index)?;
        let specs = &request.model().handle.signature().outputs;
        check_len(specs, ("output", index), bytes, area.len())?;
        // SAFETY: C's promise: `bytes` bytes may be written; the length was compared.
        unsafe { target.fill(area) };
        Ok(())
    })
}

/// What happened to an answered request. `receipt_bytes` is `sizeof(corelane_receipt)`, as the
/// program knows it.
///
/// Ownership: `receipt` is the caller's and is filled.
///
/// # Errors
/// `WRONG_STATE`: it has no answer; `BUSY`, `FORKED`, `INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_receipt(
    request: *const corelane_request,
    receipt: *mut corelane_receipt,
    receipt_bytes: usize,
) -> corelane_status {
    guard(|| {
        // SAFETY: C's promise: a request that is not freed.
        let request = unsafe { borrow(request, "request") }?;
        let mut held = request.hold(&[DONE])?;
        let filled = filled(held.answer()?);
        // SAFETY: C's promise: `receipt_bytes` bytes may be written.
        unsafe { put_prefix(receipt, receipt_bytes, filled, "receipt") }
    })
}

/// Rows of a request that is being filled or was answered; 0 otherwise, or if `request` is null.
///
/// Ownership: nothing changes hands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corelane_request_rows(request: *const corelane_request) -> u32 {
    guard_value(0, || {
        // SAFETY: C's promise: a request that is not freed.
        let Some(request) = (unsafe { request.as_ref() }) else { return 0 };
        let Ok(mut held) = request.hold(&[FILLING, DONE]) else { return 0 };
        match held.stage() {
            Stage::Filling(request) => request.rows().0.into(),
            Stage::Done(answer) => answer.rows().0.into(),
            _ => 0,
        }
    })
}
