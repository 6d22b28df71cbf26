//! Requests from this process: no copy but the client's own, no allocation per request.

use super::Shared;
use crate::model::signature::{Signature, Span};
use crate::queue::{Done, Failure, Lease, Notify, Refusal, SharedQueue, Submit, Ticket};
use crate::sys::clock;
use crate::sys::memory::{Element, view, view_mut};
use crate::sys::sync::Arc;
use crate::transport::{failure_code, refusal_code};
use crate::units::{DType, Micros, Nanos, Priority, Receipt, Rows};
use crate::wire::ErrorCode;
use std::fmt;

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InferError {
    /// No model of that name.
    UnknownModel {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The model has no such input or output.
    NoSuchTensor {
        /// Position asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The tensor has another element type.
    WrongType {
        /// The tensor's name.
        tensor: String,
        /// The type asked for.
        wanted: DType,
        /// The tensor's type.
        is: DType,
    },
    /// The data has another length.
    WrongLength {
        /// The tensor's name.
        tensor: String,
        /// Elements given.
        given: usize,
        /// Elements that these rows have.
        needed: usize,
    },
    /// The request was not accepted.
    Refused(Refusal),
    /// The request was accepted and failed.
    Failed(Failure),
}

impl fmt::Display for InferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InferError::UnknownModel { name, known } => {
                write!(f, "there is no model {name:?}; there are: {}", known.join(", "))
            }
            InferError::NoSuchTensor { index, count } => {
                write!(f, "there is no tensor {index}; the model has {count}")
            }
            InferError::WrongType { tensor, wanted, is } => {
                write!(f, "tensor {tensor:?} is {is}, not {wanted}")
            }
            InferError::WrongLength { tensor, given, needed } => {
                write!(f, "tensor {tensor:?} takes {needed} elements, {given} are given")
            }
            InferError::Refused(refusal) => refusal.fmt(f),
            InferError::Failed(failure) => failure.fmt(f),
        }
    }
}

impl std::error::Error for InferError {}

impl InferError {
    /// The code under which a transport would tell it; `Internal` for what no remote client can do.
    pub fn code(&self) -> ErrorCode {
        match self {
            InferError::UnknownModel { .. } => ErrorCode::UnknownModel,
            InferError::WrongLength { .. } => ErrorCode::WrongPayloadLength,
            InferError::NoSuchTensor { .. } | InferError::WrongType { .. } => ErrorCode::Internal,
            InferError::Refused(refusal) => refusal_code(*refusal).0,
            InferError::Failed(failure) => failure_code(*failure),
        }
    }
}

impl From<Refusal> for InferError {
    fn from(r: Refusal) -> Self {
        InferError::Refused(r)
    }
}

/// A cloneable handle for requests from this process.
#[derive(Clone)]
pub struct LocalClient {
    shared: Arc<Shared>,
}

impl LocalClient {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        LocalClient { shared }
    }

    /// The model called `name`.
    ///
    /// # Errors
    /// There is no such model.
    pub fn model(&self, name: &str) -> Result<ModelHandle, InferError> {
        match self.shared.find(name) {
            Some((_, m)) => Ok(ModelHandle { queue: m.queue.clone(), wait: WaitPolicy::default() }),
            None => Err(InferError::UnknownModel {
                name: name.into(),
                known: self.models().map(str::to_owned).collect(),
            }),
        }
    }

    /// The names of the models.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.shared.models.iter().map(|m| m.name.as_str())
    }

    /// Counters and stage histograms.
    pub fn stats(&self) -> super::StatsSnapshot {
        super::stats::snapshot(&self.shared)
    }
}

/// How a caller waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WaitPolicy {
    /// Turns of a spin loop before sleeping; `u32::MAX` never sleeps.
    pub spins: u32,
}

/// A model, to send requests to. Cheap to clone; any thread may use one.
#[derive(Debug, Clone)]
pub struct ModelHandle {
    queue: SharedQueue,
    wait: WaitPolicy,
}

impl ModelHandle {
    /// The same model, with answers waited for in another way.
    pub fn with_wait(mut self, wait: WaitPolicy) -> Self {
        self.wait = wait;
        self
    }

    /// Inputs and outputs.
    pub fn signature(&self) -> &Signature {
        self.queue.signature()
    }

    /// Rows that one request may have.
    pub fn max_request_rows(&self) -> Rows {
        self.queue.spec().max_request_rows
    }

    /// Slots: requests that are filled, wait, run or are read at the same time.
    pub fn slots(&self) -> usize {
        self.queue.slots()
    }

    /// Takes a slot for `rows` rows, to be filled in place.
    ///
    /// # Errors
    /// No rows, more than [`max_request_rows`](Self::max_request_rows), no free slot, or shutting
    /// down.
    #[inline]
    pub fn request(&self, rows: usize) -> Result<Request, InferError> {
        let Ok(narrow) = u16::try_from(rows) else { return Err(self.wrong_rows(rows)) };
        let lease = self.queue.lease(Rows(narrow))?;
        Ok(Request { lease, timeout: Micros(0), priority: Priority(0), wait: self.wait })
    }

    #[cold]
    fn wrong_rows(&self, rows: usize) -> InferError {
        let rows = rows.min(u32::MAX as usize) as u32;
        Refusal::WrongRows { rows, max: self.max_request_rows().0 as u32 }.into()
    }

    /// One request from whole tensors, one slice of bytes an input, and its answer.
    ///
    /// # Errors
    /// As [`request`](Self::request) and [`Request::infer`], or an input of the wrong number or
    /// length.
    pub fn infer(&self, rows: usize, inputs: &[&[u8]]) -> Result<Answer, InferError> {
        let mut request = self.request(rows)?;
        let count = self.signature().inputs.len();
        if inputs.len() != count {
            return Err(InferError::NoSuchTensor { index: inputs.len(), count });
        }
        for (i, bytes) in inputs.iter().enumerate() {
            let input = request.input_bytes_mut(i)?;
            if input.len() != bytes.len() {
                let spec = &self.signature().inputs[i];
                return Err(InferError::WrongLength {
                    tensor: spec.name.clone(),
                    given: bytes.len() / spec.dtype.size_bytes(),
                    needed: spec.row_len() * rows,
                });
            }
            input.copy_from_slice(bytes);
        }
        request.infer()
    }
}

/// A request that is being filled, in its slot. Dropping it gives the slot back.
#[derive(Debug)]
pub struct Request {
    lease: Lease,
    timeout: Micros,
    priority: Priority,
    wait: WaitPolicy,
}

impl Request {
    /// Input `index`, as the slot holds it. What an earlier request left is still there.
    ///
    /// # Errors
    /// There is no such input.
    #[inline]
    pub fn input_bytes_mut(&mut self, index: usize) -> Result<&mut [u8], InferError> {
        let spans = self.lease.input_spans();
        let Some(&Span { offset, len }) = spans.get(index) else {
            return Err(InferError::NoSuchTensor { index, count: spans.len() });
        };
        Ok(&mut self.lease.input_mut()[offset..offset + len])
    }

    /// Input `index` as elements: rows x row elements, C order.
    ///
    /// # Errors
    /// There is no such input, or its type is another one.
    pub fn input_mut<T: Element>(&mut self, index: usize) -> Result<&mut [T], InferError> {
        let spec = self.lease.queue().signature().inputs.get(index);
        if let Some(spec) = spec.filter(|s| s.dtype != T::DTYPE) {
            return Err(wrong_type(&spec.name, T::DTYPE, spec.dtype));
        }
        let bytes = self.input_bytes_mut(index)?;
        Ok(view_mut(bytes).expect("tensors in a slot are aligned for their type"))
    }

    /// Microseconds from submission after which it is not worth running.
    pub fn timeout(mut self, timeout: Micros) -> Self {
        self.timeout = timeout;
        self
    }

    /// Its priority; 1 is the highest.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Hands it over without waiting.
    ///
    /// # Errors
    /// It was refused; nothing of it remains.
    pub fn submit(self) -> Result<Pending, InferError> {
        self.submit_to(Notify::Waiter)
    }

    /// The same for an event loop: [`Completions`](super::Completions) tells when it is done, under
    /// the number of its [`slot`](Self::slot). Do not wait for it meanwhile.
    ///
    /// # Errors
    /// It was refused; nothing of it remains.
    pub fn submit_notified(self) -> Result<Pending, InferError> {
        self.submit_to(Notify::Io)
    }

    fn submit_to(self, notify: Notify) -> Result<Pending, InferError> {
        let Request { lease, timeout, priority, wait } = self;
        let ticket = lease.submit(Submit { timeout, priority, notify, ..Submit::default() })?;
        Ok(Pending { ticket: Some(ticket), wait })
    }

    /// Rows.
    pub fn rows(&self) -> Rows {
        self.lease.rows()
    }

    /// The number of its slot among its model's.
    pub fn slot(&self) -> u32 {
        self.lease.index()
    }

    /// Hands it over and waits for the answer.
    ///
    /// # Errors
    /// It was refused, or it failed.
    #[inline]
    pub fn infer(self) -> Result<Answer, InferError> {
        let Request { lease, timeout, priority, wait } = self;
        let ticket = lease.submit(Submit { timeout, priority, ..Submit::default() })?;
        wait_for(ticket, wait)
    }
}

fn wrong_type(tensor: &str, wanted: DType, is: DType) -> InferError {
    InferError::WrongType { tensor: tensor.into(), wanted, is }
}

/// A request in flight. Dropping it gives the request up.
#[derive(Debug)]
pub struct Pending {
    ticket: Option<Ticket>,
    wait: WaitPolicy,
}

impl Pending {
    /// The answer, if it is there; `None` if not yet. After it was given, always `None`.
    ///
    /// # Errors
    /// The request failed, or its deadline passed while it waited.
    pub fn poll(&mut self) -> Option<Result<Answer, InferError>> {
        let ticket = self.ticket.take()?;
        match ticket.into_done() {
            Ok(done) => Some(finish(done)),
            Err(back) => match expire(back) {
                Ok(failed) => Some(Err(failed)),
                Err(back) => {
                    self.ticket = Some(back);
                    None
                }
            },
        }
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// The request failed, or its deadline passed while it waited.
    ///
    /// # Panics
    /// If [`poll`](Self::poll) gave the answer already.
    pub fn wait(self) -> Result<Answer, InferError> {
        wait_for(self.ticket.expect("the answer was given already"), self.wait)
    }

    /// Waits for the answer until `until` on [`clock::now`]'s clock. `None`: it is not there yet,
    /// or was given already.
    ///
    /// # Errors
    /// The request failed, or its deadline passed while it waited.
    pub fn wait_until(&mut self, until: Nanos) -> Option<Result<Answer, InferError>> {
        self.ticket.as_ref()?.spin(self.wait.spins);
        loop {
            if let Some(result) = self.poll() {
                return Some(result);
            }
            let ticket = self.ticket.as_ref()?;
            let now = clock::now();
            if now >= until {
                return None;
            }
            // A request that runs is waited for past its deadline: its answer is on the way.
            let deadline = ticket.deadline();
            let end = if now < deadline { deadline.min(until) } else { until };
            ticket.sleep((end.0 != u64::MAX).then(|| end.since(now)));
        }
    }

    /// Gives the request up unless its answer is there; then it is given back.
    ///
    /// # Errors
    /// The answer is there.
    pub fn give_up(mut self) -> Result<(), Pending> {
        let Some(ticket) = self.ticket.take() else { return Ok(()) };
        ticket.give_up_undone().map_err(|ticket| {
            self.ticket = Some(ticket);
            self
        })
    }

    /// Gives the request up. `true` if it will not run.
    pub fn cancel(mut self) -> bool {
        let Some(ticket) = self.ticket.take() else { return false };
        ticket.cancel_queued(Failure::Cancelled).is_ok()
    }
}

/// Spins for the answer, then sleeps.
#[inline(always)]
fn wait_for(ticket: Ticket, wait: WaitPolicy) -> Result<Answer, InferError> {
    ticket.spin(wait.spins);
    match ticket.into_done() {
        Ok(done) => finish(done),
        Err(ticket) => sleep_for(ticket),
    }
}

#[inline(never)]
fn sleep_for(ticket: Ticket) -> Result<Answer, InferError> {
    let mut pending = Pending { ticket: Some(ticket), wait: WaitPolicy { spins: 0 } };
    loop {
        // Without a bound of its own: the request's deadline, or its worker, ends it.
        if let Some(result) = pending.wait_until(Nanos(u64::MAX)) {
            return result;
        }
    }
}

/// Ends a request whose deadline passed while it waited; else gives the ticket back.
fn expire(ticket: Ticket) -> Result<InferError, Ticket> {
    let deadline = ticket.deadline();
    if deadline == Nanos(u64::MAX) || clock::now() < deadline {
        return Err(ticket);
    }
    ticket.cancel_queued(Failure::DeadlineExpired)?;
    Ok(InferError::Failed(Failure::DeadlineExpired))
}

#[inline]
fn finish(done: Done) -> Result<Answer, InferError> {
    let receipt = done.outcome().map_err(InferError::Failed)?;
    Ok(Answer { done, receipt })
}

/// An answer, in its slot. Dropping it gives the slot back, so take what you need and let it go.
#[derive(Debug)]
pub struct Answer {
    done: Done,
    receipt: Receipt,
}

impl Answer {
    /// Output `index` as the slot holds it.
    ///
    /// # Errors
    /// There is no such output.
    #[inline]
    pub fn output_bytes(&self, index: usize) -> Result<&[u8], InferError> {
        let spans = self.done.output_spans();
        let Some(&Span { offset, len }) = spans.get(index) else {
            return Err(InferError::NoSuchTensor { index, count: spans.len() });
        };
        Ok(&self.done.output()[offset..offset + len])
    }

    /// Output `index` as elements: rows x row elements, C order.
    ///
    /// # Errors
    /// There is no such output, or its type is another one.
    pub fn output<T: Element>(&self, index: usize) -> Result<&[T], InferError> {
        let spec = self.done.queue().signature().outputs.get(index);
        if let Some(spec) = spec.filter(|s| s.dtype != T::DTYPE) {
            return Err(wrong_type(&spec.name, T::DTYPE, spec.dtype));
        }
        let bytes = self.output_bytes(index)?;
        Ok(view(bytes).expect("tensors in a slot are aligned for their type"))
    }

    /// Rows.
    pub fn rows(&self) -> Rows {
        self.done.rows()
    }

    /// What happened to it.
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }
}
