//! The way to a model in this process.

use super::{Broken, End, Ends, Payloads, Port};
use crate::runtime::{InferError, ModelHandle, Pending};
use crate::sys::clock;
use crate::sys::sync::{Arc, spin_turn};
use crate::units::{Micros, Nanos, Priority};

/// A model in this process. It looks for many answers at once and does not sleep: give its thread a
/// core of its own, or let it [nap](LocalPort::napping).
pub struct LocalPort {
    model: ModelHandle,
    payloads: Arc<Payloads>,
    timeout: Micros,
    priority: Priority,
    pending: Vec<(u32, Pending)>,
    /// Ends that were known at submission.
    refused: Vec<(u32, End, Nanos)>,
    in_flight_max: usize,
    nap: Option<Nanos>,
}

impl LocalPort {
    /// A way that holds at most `in_flight_max` requests in flight.
    pub fn new(
        model: ModelHandle,
        payloads: Arc<Payloads>,
        timeout: Micros,
        priority: Priority,
        in_flight_max: usize,
    ) -> LocalPort {
        LocalPort {
            model,
            payloads,
            timeout,
            priority,
            pending: Vec::with_capacity(in_flight_max),
            refused: Vec::with_capacity(in_flight_max),
            in_flight_max,
            nap: None,
        }
    }

    /// The same for a thread that shares its core with a worker: it sleeps for `nap` at most between
    /// two looks, and an answer may be seen so much later than it came.
    pub fn napping(mut self, nap: Nanos) -> LocalPort {
        self.nap = Some(nap);
        self
    }
}

/// By the protocol's code, so that runs of both kinds count alike.
fn failed(error: &InferError) -> End {
    End::Failed(error.code().number())
}

impl Port for LocalPort {
    fn now(&self) -> Nanos {
        clock::now()
    }

    fn send(&mut self, index: u32, rows: u16) -> Result<bool, Broken> {
        if self.in_flight() >= self.in_flight_max {
            return Ok(false);
        }
        let payload = self.payloads.get(index, rows);
        let submitted = self.model.request(usize::from(rows)).and_then(|mut request| {
            let (spans, _) = self.model.signature().input_layout(usize::from(rows));
            for (i, span) in spans.iter().enumerate() {
                let from = payload.get(span.offset..span.offset + span.len).unwrap_or_default();
                request.input_bytes_mut(i)?.copy_from_slice(from);
            }
            request.timeout(self.timeout).priority(self.priority).submit()
        });
        match submitted {
            Ok(pending) => self.pending.push((index, pending)),
            Err(error) => self.refused.push((index, failed(&error), clock::now())),
        }
        Ok(true)
    }

    fn turn(&mut self, ends: &mut Ends<'_>) -> Result<(), Broken> {
        for (index, end, at) in self.refused.drain(..) {
            ends.note(index, at, end, None);
        }
        let mut n = 0;
        while n < self.pending.len() {
            let (index, pending) = &mut self.pending[n];
            match pending.poll() {
                None => n += 1,
                Some(Ok(answer)) => {
                    let at = clock::now();
                    ends.note(*index, at, End::Answered, Some(*answer.receipt()));
                    drop(answer);
                    self.pending.swap_remove(n);
                }
                Some(Err(error)) => {
                    ends.note(*index, clock::now(), failed(&error), None);
                    self.pending.swap_remove(n);
                }
            }
        }
        Ok(())
    }

    fn wait(&mut self, until: Nanos) {
        if let Some(nap) = self.nap {
            let left = until.since(clock::now()).min(nap);
            std::thread::sleep(std::time::Duration::from_nanos(left.0));
            return;
        }
        // A worker may share this core where there is only one.
        std::thread::yield_now();
        spin_turn();
    }

    fn in_flight(&self) -> usize {
        self.pending.len() + self.refused.len()
    }
}
