//! Slots: pre-allocated cells for requests, and the tokens that say who may touch one.
//!
//! [`Lease`] (client, filling) becomes [`Ticket`] (client, waiting) becomes [`Done`] (client,
//! reading the answer); [`Work`] is the worker's. Each token is the only one of its kind for its
//! slot, so exclusive access needs no check at run time. What travels through rings is the index, with
//! as much as a worker must know before the slot's lines have come ([`Queued`]).

use super::asked::{Asked, Notify, Queued};
use super::model_queue::Exit;
use super::owner::Held;
use super::ring::Place;
use super::state::SlotState;
use super::{Failure, ModelQueue, Refusal, Submit};
use crate::limits::TENSORS_MAX;
use crate::model::signature::{RowsLayout, Signature, Span};
use crate::sys::memory::AlignedBytes;
use crate::sys::prefetch::{prefetch_for_read, prefetch_for_write};
use crate::units::{Nanos, Receipt, Rows};

/// One slot, on two cache lines: see [`state`](super::state).
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Slot {
    pub state: SlotState<Result<Receipt, Failure>, Asked>,
}

impl Slot {
    #[inline]
    pub fn asked(&self) -> &Asked {
        &self.state.asked
    }
}

/// The slots of a model, and their buffers.
pub(super) struct SlotPool {
    pub slots: Box<[Slot]>,
    input: AlignedBytes,
    output: AlignedBytes,
    input_stride: usize,
    output_stride: usize,
}

// SAFETY: the buffers are divided by slot, and a slot's part is reached only through its owner's
// token; `Slot` itself is `Sync`.
unsafe impl Sync for SlotPool {}
// SAFETY: nothing in it is tied to a thread.
unsafe impl Send for SlotPool {}

impl SlotPool {
    pub fn new(count: usize, input_bytes: usize, output_bytes: usize) -> Self {
        let align = |n: usize| n.max(1).next_multiple_of(crate::limits::BUFFER_ALIGN_BYTES);
        let (input_stride, output_stride) = (align(input_bytes), align(output_bytes));
        SlotPool {
            slots: (0..count)
                .map(|_| Slot { state: SlotState::new(Err(Failure::Cancelled)) })
                .collect(),
            input: AlignedBytes::zeroed(input_stride * count),
            output: AlignedBytes::zeroed(output_stride * count),
            input_stride,
            output_stride,
        }
    }

    pub fn bytes(&self) -> usize {
        self.input.len() + self.output.len() + std::mem::size_of_val(&*self.slots)
    }

    fn input_ptr(&self, index: u32) -> *mut u8 {
        debug_assert!((index as usize) < self.slots.len());
        // SAFETY: index < count, so the offset is inside the block.
        unsafe { self.input.as_ptr().add(index as usize * self.input_stride) }
    }

    fn output_ptr(&self, index: u32) -> *mut u8 {
        debug_assert!((index as usize) < self.slots.len());
        // SAFETY: index < count, so the offset is inside the block.
        unsafe { self.output.as_ptr().add(index as usize * self.output_stride) }
    }

    /// Asks for the lines that filling and submitting `index` begins with.
    #[inline]
    pub fn prefetch_to_fill(&self, index: u32) {
        self.slots[index as usize].state.prefetch_to_submit();
        prefetch_for_write(self.input_ptr(index));
    }

    /// Asks for the lines that taking and running `index` begins with.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        self.slots[index as usize].state.prefetch_to_take();
        prefetch_for_read(self.input_ptr(index));
        prefetch_for_write(self.output_ptr(index));
    }
}

/// A slot that its client is filling. Dropping it gives the slot back.
#[derive(Debug)]
pub struct Lease {
    queue: Held,
    index: u32,
    rows: Rows,
    input_bytes: usize,
}

impl Lease {
    pub(super) fn new(queue: Held, index: u32, rows: Rows, input_bytes: usize) -> Self {
        Lease { queue, index, rows, input_bytes }
    }

    /// The slot's index among its model's.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Rows of this request.
    pub fn rows(&self) -> Rows {
        self.rows
    }

    /// The queue it belongs to.
    pub fn queue(&self) -> &ModelQueue {
        &self.queue
    }

    /// The payload's bytes, laid out as [`Signature::input_layout`](crate::model::signature::Signature::input_layout) says for this many rows. They
    /// hold what an earlier request left; the caller fills all of them.
    pub fn input_mut(&mut self) -> &mut [u8] {
        // SAFETY: this token is the only one for the slot, which is in no ring; input_bytes was
        // checked against the slot's size when the lease was made.
        unsafe {
            std::slice::from_raw_parts_mut(self.queue.pool.input_ptr(self.index), self.input_bytes)
        }
    }

    /// Bytes of the answer.
    pub fn output_bytes(&self) -> usize {
        self.queue.outputs.of(self.rows.0 as usize).bytes
    }

    /// The model's inputs and outputs, the spans of the inputs, and the payload's bytes as
    /// [`input_mut`](Self::input_mut) has them.
    pub fn parts_mut(&mut self) -> (&Signature, &[Span], &mut [u8]) {
        let queue = &*self.queue;
        // SAFETY: as in `input_mut`; the rest is not in the slot.
        let input = unsafe {
            std::slice::from_raw_parts_mut(queue.pool.input_ptr(self.index), self.input_bytes)
        };
        (queue.signature(), &queue.inputs.of(self.rows.0 as usize).spans, input)
    }

    /// What will name the request while it is in flight.
    pub fn completion(&self) -> Completion {
        Completion { model: self.queue.id, slot: self.index }
    }

    /// The spans of the inputs.
    pub fn input_spans(&self) -> &[Span] {
        &self.queue.inputs.of(self.rows.0 as usize).spans
    }

    /// Hands the request over.
    ///
    /// # Errors
    /// The refusal, with the slot given back: the queue is full, the deadline can't be met, the
    /// priority does not exist, or the runtime is shutting down.
    #[inline]
    pub fn submit(self, options: Submit) -> Result<Ticket, Refusal> {
        ModelQueue::submit(self, options)
    }

    /// The slot stays away: it is the caller's to give back.
    #[inline]
    pub(super) fn into_queue(self) -> Held {
        std::mem::ManuallyDrop::new(self).queue
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: the slot is this token's.
        unsafe { self.queue.give_back(self.index) };
    }
}

/// A request that was accepted. Dropping it gives the request up.
#[derive(Debug)]
pub struct Ticket {
    queue: Held,
    index: u32,
    rows: Rows,
    level: u8,
    place: Place,
    deadline: Nanos,
}

impl Ticket {
    /// The token of `queued`, which is at `place` in a level's ring.
    pub(super) fn new(
        queue: Held,
        queued: Queued,
        (level, place): (u8, Place),
        deadline: Nanos,
    ) -> Self {
        Ticket { queue, index: queued.index, rows: queued.rows, level, place, deadline }
    }

    /// Takes the request back if no worker has it.
    fn withdraw(&self) -> bool {
        let timed = self.deadline.0 != u64::MAX;
        let queued = Queued { index: self.index, rows: self.rows, timed };
        self.queue.withdraw(self.level, self.place, queued)
    }

    /// The slot's index among its model's.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The queue it waits in.
    pub fn queue(&self) -> &ModelQueue {
        &self.queue
    }

    /// The instant after which it is not worth running; `Nanos(u64::MAX)` if there is none.
    pub fn deadline(&self) -> Nanos {
        self.deadline
    }

    fn slot(&self) -> &Slot {
        &self.queue.pool.slots[self.index as usize]
    }

    /// Whether the answer is there.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.slot().state.is_done()
    }

    /// Spins up to `spins` turns for the answer.
    #[inline]
    pub fn spin(&self, spins: u32) -> bool {
        let output = self.queue.pool.output_ptr(self.index);
        // The worker writes the answer's first line just before the word that says so: looked for
        // together, both come at the same time.
        self.slot().state.spin_done(spins, || prefetch_for_read(output))
    }

    /// Sleeps until the answer is there or `timeout` has passed; may return early.
    pub fn sleep(&self, timeout: Option<Nanos>) -> bool {
        self.slot().state.wait_done(timeout)
    }

    /// The answer, or the ticket back if it is not there yet.
    #[inline]
    pub fn into_done(self) -> Result<Done, Ticket> {
        if !self.is_done() {
            return Err(self);
        }
        let this = self.keep_away();
        // The worker's cache has it, and it is what the client looks at next.
        prefetch_for_read(this.queue.pool.output_ptr(this.index));
        Ok(Done { queue: this.queue, index: this.index, rows: this.rows })
    }

    /// Gives the request up if it still waits: `Ok` if so (it will not run), else the ticket back.
    ///
    /// `reason` is what the counters call it.
    pub fn cancel_queued(self, reason: Failure) -> Result<(), Ticket> {
        if !self.withdraw() {
            return Err(self);
        }
        let this = self.keep_away();
        this.queue.abandoned(this.rows, reason);
        // SAFETY: the slot was the ticket's, and is again, since it was withdrawn.
        unsafe { this.queue.give_back(this.index) };
        Ok(())
    }

    /// Gives the request up unless its answer is there: `Ok` if so (its completion will not be
    /// sent), else the ticket back.
    pub fn give_up_undone(self) -> Result<(), Ticket> {
        let ticket = match self.cancel_queued(Failure::Cancelled) {
            Ok(()) => return Ok(()),
            Err(ticket) => ticket,
        };
        if !ticket.slot().state.abandon() {
            return Err(ticket);
        }
        // The worker gives the slot back.
        ticket.keep_away();
        Ok(())
    }

    /// The slot stays away: it is the caller's, or a worker's, to give back.
    #[inline]
    fn keep_away(self) -> std::mem::ManuallyDrop<Ticket> {
        std::mem::ManuallyDrop::new(self)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.withdraw() {
            self.queue.abandoned(self.rows, Failure::Cancelled);
        } else if self.slot().state.abandon() {
            // The worker gives the slot back.
            return;
        }
        // SAFETY: the slot is this token's, withdrawn or done.
        unsafe { self.queue.give_back(self.index) };
    }
}

/// An answer. Dropping it gives the slot back.
#[derive(Debug)]
pub struct Done {
    queue: Held,
    index: u32,
    rows: Rows,
}

impl Done {
    fn slot(&self) -> &Slot {
        &self.queue.pool.slots[self.index as usize]
    }

    /// The slot's index among its model's.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The queue it came from.
    pub fn queue(&self) -> &ModelQueue {
        &self.queue
    }

    /// The receipt, or why it failed.
    #[inline]
    pub fn outcome(&self) -> Result<Receipt, Failure> {
        // SAFETY: this token is the only one for the slot, whose state is DONE; the reference does not
        // outlive the call.
        unsafe { self.slot().state.record(|outcome| *outcome) }
    }

    /// Rows of the request.
    pub fn rows(&self) -> Rows {
        self.rows
    }

    /// The number that the client gave at submission.
    pub fn tag(&self) -> u64 {
        self.slot().asked().tag()
    }

    /// The spans of the outputs.
    pub fn output_spans(&self) -> &[Span] {
        &self.queue.outputs.of(self.rows.0 as usize).spans
    }

    /// The answer's bytes, laid out as [`Signature::output_layout`](crate::model::signature::Signature::output_layout) says; meaningless if the
    /// outcome is a failure.
    #[inline]
    pub fn output(&self) -> &[u8] {
        let bytes = self.queue.outputs.of(self.rows.0 as usize).bytes;
        // SAFETY: this token is the only one for the slot, whose state is DONE, so nobody writes;
        // the slot's output area holds max_request_rows rows, and rows was checked against that.
        unsafe { std::slice::from_raw_parts(self.queue.pool.output_ptr(self.index), bytes) }
    }
}

impl Done {
    /// The model's inputs and outputs, and the answer's bytes as [`output_mut`](Self::output_mut) has
    /// them.
    pub fn parts_mut(&mut self) -> (&Signature, &mut [u8]) {
        let queue = &*self.queue;
        let bytes = queue.outputs.of(self.rows.0 as usize).bytes;
        // SAFETY: as in `output_mut`; the signature is not in the slot.
        let output =
            unsafe { std::slice::from_raw_parts_mut(queue.pool.output_ptr(self.index), bytes) };
        (queue.signature(), output)
    }

    /// As [`output`](Self::output), to be changed in place, by a transport that sends it in other bytes.
    pub fn output_mut(&mut self) -> &mut [u8] {
        let bytes = self.queue.outputs.of(self.rows.0 as usize).bytes;
        // SAFETY: as in `output`; `&mut self` is the slot's only token, so nobody reads either.
        unsafe { std::slice::from_raw_parts_mut(self.queue.pool.output_ptr(self.index), bytes) }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        // Last in, first out: this client's next request will likely be in this slot, and then what it
        // writes is here already.
        self.queue.pool.prefetch_to_fill(self.index);
        // SAFETY: the slot is this token's.
        unsafe { self.queue.give_back(self.index) };
    }
}

/// A request that a worker took. It must be finished with [`complete`](Work::complete).
#[derive(Debug)]
pub struct Work<'q> {
    // Borrowed, not counted: workers and clients would pass the count's cache line to and fro.
    queue: &'q ModelQueue,
    /// Where its worker counts.
    exit: &'q Exit,
    index: u32,
    rows: Rows,
    timed: bool,
}

impl<'q> Work<'q> {
    /// The token of what was popped.
    #[inline]
    pub(super) fn take(queue: &'q ModelQueue, exit: &'q Exit, popped: Queued) -> Work<'q> {
        let Queued { index, rows, timed } = popped;
        exit.taken(rows);
        Work { queue, exit, index, rows, timed }
    }

    fn slot(&self) -> &Slot {
        &self.queue.pool.slots[self.index as usize]
    }

    /// Rows of the request.
    pub fn rows(&self) -> Rows {
        self.rows
    }

    /// When it was submitted.
    pub fn submitted_at(&self) -> Nanos {
        self.slot().asked().submitted_at()
    }

    /// The instant after which it is not worth running; `Nanos(u64::MAX)` if there is none.
    #[inline]
    pub fn deadline(&self) -> Nanos {
        // Most have none, and then the slot's line need not be here.
        if self.timed { self.slot().asked().deadline() } else { Nanos(u64::MAX) }
    }

    /// Who is told.
    pub fn notify(&self) -> Notify {
        self.slot().asked().notify()
    }

    /// Names the request among all that are in flight.
    pub fn completion(&self) -> Completion {
        Completion { model: self.queue.id, slot: self.index }
    }

    fn input_layout(&self) -> &'q RowsLayout {
        self.queue.inputs.of(self.rows.0 as usize)
    }

    fn output_layout(&self) -> &'q RowsLayout {
        self.queue.outputs.of(self.rows.0 as usize)
    }

    /// The spans of its inputs and its payload.
    pub fn input(&self) -> (&'q [Span], &[u8]) {
        let layout = self.input_layout();
        // SAFETY: the worker owns the slot (popped, not completed), so nobody writes; rows was
        // checked against the slot's size at submission.
        let payload = unsafe {
            std::slice::from_raw_parts(self.queue.pool.input_ptr(self.index), layout.bytes)
        };
        (&layout.spans, payload)
    }

    /// What the engine wrote.
    pub fn output(&self) -> &[u8] {
        let bytes = self.output_layout().bytes;
        // SAFETY: the worker owns the slot (popped, not completed) and writes to it only through
        // `&mut self`; rows was checked against the slot's size at submission.
        unsafe { std::slice::from_raw_parts(self.queue.pool.output_ptr(self.index), bytes) }
    }

    /// The spans of its outputs and the bytes to write; those between spans are zero.
    pub fn output_mut(&mut self) -> (&'q [Span], &mut [u8]) {
        let layout = self.output_layout();
        // SAFETY: the worker owns the slot (popped, not completed) and `&mut self` is its only
        // token; rows was checked against the slot's size at submission.
        let payload = unsafe {
            std::slice::from_raw_parts_mut(self.queue.pool.output_ptr(self.index), layout.bytes)
        };
        // Between tensors there may be bytes of an earlier request with other rows.
        let mut end = 0;
        for span in &layout.spans {
            if end != span.offset {
                payload[end..span.offset].fill(0);
            }
            end = span.offset + span.len;
        }
        (&layout.spans, payload)
    }

    /// Calls `f` with each input and each output as a slice of its own.
    #[inline(always)]
    pub fn buffers<R>(&mut self, f: impl FnOnce(&[&[u8]], &mut [&mut [u8]]) -> R) -> R {
        let (input, output) =
            (self.queue.pool.input_ptr(self.index), self.queue.pool.output_ptr(self.index));
        // One of each is what most models have, and nothing is between one.
        if let ([i], [o]) = (&*self.input_layout().spans, &*self.output_layout().spans) {
            // SAFETY: the worker owns the slot, so nobody writes its input; the span lies inside the
            // slot, since rows was checked at submission.
            let input = unsafe { std::slice::from_raw_parts(input.add(i.offset), i.len) };
            // SAFETY: as above, and `&mut self` is the slot's only token.
            let output = unsafe { std::slice::from_raw_parts_mut(output.add(o.offset), o.len) };
            return f(&[input], &mut [output]);
        }
        // Makes zero what is between them.
        self.output_mut();
        let inputs: heapless::Vec<&[u8], TENSORS_MAX> = (self.input_layout().spans.iter())
            // SAFETY: the worker owns the slot (popped, not completed), so nobody writes its
            // input; the spans lie inside the slot, since rows was checked at submission.
            .map(|s| unsafe { std::slice::from_raw_parts(input.add(s.offset), s.len) })
            .collect();
        let mut outputs: heapless::Vec<&mut [u8], TENSORS_MAX> =
            (self.output_layout().spans.iter())
                // SAFETY: as above, `&mut self` is the slot's only token, and spans don't overlap.
                .map(|s| unsafe { std::slice::from_raw_parts_mut(output.add(s.offset), s.len) })
                .collect();
        f(&inputs, &mut outputs)
    }

    /// Asks for the line that ending it writes. Not long before it ends: a client that polls takes the
    /// line back.
    #[inline]
    pub fn prefetch_end(&self) {
        self.slot().state.prefetch_to_complete();
    }

    /// Ends the request. Returns the completion to send if the I/O thread is to be told.
    #[inline(always)]
    pub fn complete(self, outcome: Result<Receipt, Failure>) -> Option<Completion> {
        let this = std::mem::ManuallyDrop::new(self);
        let tell_io = this.notify() != Notify::Waiter;
        (this.end(outcome) && tell_io).then(|| this.completion())
    }

    /// Whether the client still wants the answer.
    #[inline(always)]
    fn end(&self, outcome: Result<Receipt, Failure>) -> bool {
        let slot = self.slot();
        // SAFETY: the worker owns the slot.
        unsafe { slot.state.record(|r| *r = outcome) };
        // The I/O thread must hear of a completion after the state says DONE, never before.
        let wanted = slot.state.complete();
        self.exit.ended();
        if !wanted {
            self.queue.recycle(self.index);
        }
        wanted
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        // A worker that unwinds between take and complete: the client still gets its one answer.
        self.end(Err(Failure::ModelPanicked));
    }
}

/// What a worker tells the I/O thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The model.
    pub model: crate::units::ModelId,
    /// The slot, whose [`Ticket`] the I/O thread holds.
    pub slot: u32,
}
