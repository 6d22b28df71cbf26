//! The end of a runtime: drained, then stopped.

use super::Runtime;
use crate::limits::{WORKER_END_MS_MIN, WORKER_PATIENCE_MS};
use crate::sys::clock;
use crate::sys::sync::Ordering;
use crate::units::Nanos;
use std::thread::JoinHandle;
use std::time::Duration;

/// How a drain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct DrainReport {
    /// Whether every accepted request was answered in time, and every answer taken.
    pub clean: bool,
    /// Requests that had no answer when the time was up.
    pub left: u32,
    /// Answers, and requests that still waited behind them, that were given up: their reader took nothing
    /// for too long, or not all when the time was up; on a serial line, acknowledged them not. Only where a
    /// [`Server`](crate::transport::Server) was drained, too.
    pub unread: u64,
}

/// How a runtime ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Shutdown {
    /// Requests that had no answer when the time was up.
    pub left: u32,
    /// Workers that did not end in time, by number: each is in a batch whose engine does not return.
    pub stuck: Vec<usize>,
}

impl Runtime {
    /// Accepts nothing more, waits until all that was accepted is answered or `patience` is over.
    pub fn drain(&self, patience: Duration) -> DrainReport {
        self.shared.draining.store(true, Ordering::SeqCst);
        for model in &self.shared.models {
            model.queue.close();
        }
        let end = clock::now().after(nanos(patience));
        loop {
            let left = self.shared.models.iter().map(|m| m.queue.outstanding()).sum();
            if left == 0 || clock::now() >= end {
                return DrainReport { clean: left == 0, left, unread: 0 };
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// [Drains](Self::drain) for up to `patience`, then stops the workers, which have what is left of it to end, but
    /// a second at least. So dropping it does, within 10 s; this takes another time, and tells how it ended.
    ///
    /// A worker whose engine does not return can't be stopped: its thread is left behind, and a line of the log
    /// says so. It keeps what it may still touch (its engine, its queues, the requests of its batch), so all that
    /// stays in memory; should the engine return after all, the thread answers what waits in its queues, and ends.
    /// Without that it ends with the process.
    pub fn shutdown(mut self, patience: Duration) -> Shutdown {
        self.end(patience)
    }

    fn end(&mut self, patience: Duration) -> Shutdown {
        let started = clock::now();
        let DrainReport { left, .. } = self.drain(patience);
        self.shared.orders.stop();
        self.shared.idle_set.wake_all(u64::MAX);
        let least = clock::now().after(Nanos(WORKER_END_MS_MIN * 1_000_000));
        let end = started.after(nanos(patience)).max(least);
        while clock::now() < end && !self.threads.iter().all(JoinHandle::is_finished) {
            std::thread::sleep(Duration::from_micros(200));
        }
        let mut stuck = Vec::new();
        for (worker, thread) in self.threads.drain(..).enumerate() {
            if thread.is_finished() {
                // A worker that panicked has printed why; its requests were answered by their tokens.
                let _ = thread.join();
            } else {
                // All that it reaches is its own or counted, so it may outlive the runtime.
                event!(
                    error,
                    "worker {} did not end its batch within {} ms: it is left behind, with all that it holds",
                    worker,
                    clock::now().since(started).0 / 1_000_000
                );
                stuck.push(worker);
            }
        }
        Shutdown { left, stuck }
    }
}

impl Drop for Runtime {
    /// [Shuts down](Self::shutdown) within [`WORKER_PATIENCE_MS`], unless that was done.
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.end(Duration::from_millis(WORKER_PATIENCE_MS));
        }
    }
}

pub(super) fn nanos(patience: Duration) -> Nanos {
    Nanos(patience.as_nanos().min(u64::MAX as u128) as u64)
}
