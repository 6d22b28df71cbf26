//! What a worker runs of a model, and how it comes to the next version of it.
//!
//! Whoever reloads makes an instance for every worker, warms it up, and offers it in the lane's
//! [`Exchange`](crate::queue::exchange::Exchange). Then it [gives an order](Orders::look). The worker sees the
//! order between two batches, trades all that it runs of the model for what is offered, and goes on; the
//! old version goes back and is freed by who offered the new one. So a batch runs on one version whole,
//! and the worker neither allocates, nor frees, nor waits.

use super::warm;
use crate::batch::BatchSettings;
use crate::engine::{Engine, Instance, PlanIndex, RunError};
use crate::limits::BATCH_SIZES_MAX;
use crate::sys::sync::{Arc, AtomicU64, Ordering};
use crate::units::Nanos;

/// What one worker runs of a model; exchanged whole.
pub struct Version {
    /// The loaded model, for another instance after a panic.
    pub(super) engine: Arc<dyn Engine>,
    /// None once a panic left nothing to go on with.
    pub(super) instance: Option<Box<dyn Instance>>,
    pub(super) sizes: heapless::Vec<u32, BATCH_SIZES_MAX>,
    pub(super) batch: BatchSettings,
    /// Its fair share against the worker's other models; at least 1.
    pub(super) weight: u32,
    /// Where its service times are: see [`ModelQueue::bank`](crate::queue::ModelQueue::bank).
    pub(super) bank: usize,
}

impl Version {
    /// A version that runs on `instance`, one of `engine`'s.
    pub fn new(
        engine: Arc<dyn Engine>,
        instance: Box<dyn Instance>,
        batch: BatchSettings,
        weight: u32,
        bank: usize,
    ) -> Version {
        let sizes = engine.batch_sizes().iter().map(|&size| size as u32).collect();
        Version { engine, instance: Some(instance), sizes, batch, weight, bank }
    }

    /// Runs each batch size so often that every later run finds it warm; how long each takes on the calling
    /// thread.
    ///
    /// # Errors
    /// A run failed.
    pub fn warm_up(
        &mut self,
        runs: u32,
    ) -> Result<heapless::Vec<Nanos, BATCH_SIZES_MAX>, RunError> {
        let instance = self.instance.as_mut().ok_or(RunError::Panic)?;
        (0..self.sizes.len()).map(|i| warm::warm(&mut **instance, PlanIndex(i), runs)).collect()
    }
}

/// A word that every worker compares with what it has seen: whether to stop, and how many orders to look
/// at what is offered were given.
#[derive(Debug, Default)]
pub struct Orders(AtomicU64);

const STOP: u64 = 1;
const LOOK: u64 = 2;

impl Orders {
    /// Tells all workers to look at what is offered. Wake them afterwards.
    pub fn look(&self) {
        // Release, with the acquire in `get`: the offers come first.
        self.0.fetch_add(LOOK, Ordering::Release);
    }

    /// Tells all workers to end. Wake them afterwards.
    pub fn stop(&self) {
        self.0.fetch_or(STOP, Ordering::Release);
    }

    /// Whether they are told to end.
    pub fn is_stop(&self) -> bool {
        self.get() & STOP != 0
    }

    #[inline(always)]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(super) fn says_stop(seen: u64) -> bool {
        seen & STOP != 0
    }
}
