//! A model that is being served: what is fixed while the runtime runs, and its present version.

use super::ModelSetup;
use super::reload::{ReloadError, Reloaded};
use crate::metrics::LaneStats;
use crate::queue::SharedQueue;
use crate::queue::exchange::Exchange;
use crate::sys::sync::{Arc, AtomicU64, Ordering};
use crate::worker::Version;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// Bytes of the text that is kept of the last failed reload.
const LAST_ERROR_BYTES_MAX: usize = 240;

/// A model that is being served.
#[derive(Clone)]
pub struct ServedModel {
    /// What requests call it.
    pub name: String,
    /// Its queue.
    pub queue: SharedQueue,
    /// Its workers' counters.
    pub lanes: Arc<Vec<Arc<LaneStats>>>,
    /// As it was at the start, without the engine: what later versions must keep to.
    pub(super) limits: Arc<Limits>,
    /// Where each worker finds the next version.
    pub(super) exchanges: Arc<Vec<Arc<Exchange<Version>>>>,
    present: Arc<Mutex<Present>>,
    reloads: Arc<Counters>,
}

/// What was decided at the start beside the queue's own settings.
#[derive(Debug)]
pub(super) struct Limits {
    /// `max_batch_size`: slots are counted by it.
    pub max_batch_size: u32,
    /// Worker cores that serve it; `None` is all.
    pub cores: Option<Vec<crate::units::CoreId>>,
}

struct Present {
    setup: Arc<ModelSetup>,
    version: u64,
}

#[derive(Default)]
struct Counters {
    success: AtomicU64,
    failures: [AtomicU64; ReloadError::REASONS.len()],
    last_error: Mutex<Option<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl ServedModel {
    pub(super) fn new(setup: &ModelSetup, queue: SharedQueue, workers: usize) -> ServedModel {
        let limits =
            Limits { max_batch_size: setup.batch.max_batch_size, cores: setup.cores.clone() };
        let present = Present { setup: Arc::new(setup.clone()), version: 1 };
        ServedModel {
            name: setup.name.clone(),
            queue,
            lanes: Arc::new((0..workers).map(|_| Default::default()).collect()),
            limits: Arc::new(limits),
            exchanges: Arc::new((0..workers).map(|_| Default::default()).collect()),
            present: Arc::new(Mutex::new(present)),
            reloads: Arc::default(),
        }
    }

    /// How its present version is served.
    pub fn setup(&self) -> Arc<ModelSetup> {
        lock(&self.present).setup.clone()
    }

    /// Its present version: 1 at the start, one more after each reload that changed it.
    pub fn version(&self) -> u64 {
        lock(&self.present).version
    }

    /// Reloads that changed it.
    pub fn reloads(&self) -> u64 {
        self.reloads.success.load(Ordering::Relaxed)
    }

    /// Reloads that failed, by [reason](ReloadError::reason).
    pub fn reload_failures(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.reloads.failures.iter().map(|n| n.load(Ordering::Relaxed));
        ReloadError::REASONS.into_iter().zip(counts).collect()
    }

    /// Why the last reload failed; `None` if it did not.
    pub fn last_reload_error(&self) -> Option<String> {
        lock(&self.reloads.last_error).clone()
    }

    /// Every worker has the version of `setup`; the former is returned.
    pub(super) fn take_over(&self, setup: ModelSetup) -> Arc<ModelSetup> {
        let mut present = lock(&self.present);
        present.version += 1;
        std::mem::replace(&mut present.setup, Arc::new(setup))
    }

    /// Counts how a reload ended.
    pub(super) fn count(&self, result: &Result<Reloaded, ReloadError>) {
        let (text, counter) = match result {
            Ok(reloaded) if reloaded.changed => (None, Some(&self.reloads.success)),
            Ok(_) => (None, None),
            Err(error) => {
                let mut text = error.to_string();
                text.truncate(text.floor_char_boundary(LAST_ERROR_BYTES_MAX));
                let at = ReloadError::REASONS.iter().position(|r| *r == error.reason());
                (Some(text), at.map(|at| &self.reloads.failures[at]))
            }
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        *lock(&self.reloads.last_error) = text;
    }
}
