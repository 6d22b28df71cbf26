//! Versions handed to workers, and back.

use super::ReloadError;
use crate::queue::exchange::Exchange;
use crate::runtime::{ServedModel, Shared};
use crate::sys::clock;
use crate::units::Nanos;
use crate::worker::Version;
use std::time::Duration;

/// How often it is looked whether a worker has taken its version: a batch ends meanwhile, or a few.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// The places where a model's workers find its next version and leave the one that they had.
pub(super) struct Trade<'a> {
    shared: &'a Shared,
    model: &'a str,
    mask: u64,
    /// Each worker of the model, and its place.
    places: Vec<(usize, &'a Exchange<Version>)>,
    patience: Duration,
}

impl<'a> Trade<'a> {
    /// With the workers of `served`, each of which is waited for so long. One that was not waited for any longer
    /// the last time may still have to fetch what it ran before; and nothing can be offered to it until then.
    ///
    /// # Errors
    /// `Worker`, `Stopping`.
    pub fn begin(
        shared: &'a Shared,
        served: &'a ServedModel,
        patience: Duration,
    ) -> Result<Trade<'a>, ReloadError> {
        let mask = served.queue.spec().workers;
        let mine = |worker: &usize| mask & (1 << worker) != 0;
        let places = (0..served.exchanges.len()).filter(mine);
        let places = places.map(|worker| (worker, &*served.exchanges[worker])).collect();
        let trade = Trade { shared, model: &served.name, mask, places, patience };
        let end = trade.end();
        for &(worker, place) in &trade.places {
            if !place.is_empty() && trade.left_at(place, end).is_none() {
                return Err(trade.missing(worker));
            }
        }
        Ok(trade)
    }

    /// The workers, in the order in which [`give`](Self::give) takes their versions.
    pub fn workers(&self) -> impl Iterator<Item = usize> {
        self.places.iter().map(|(worker, _)| *worker)
    }

    /// Gives each worker its version. When this returns every worker has taken it, and what they had before is
    /// freed.
    ///
    /// # Errors
    /// `Worker`, `Stopping`: then no worker takes it any more, and those that had have what they had before.
    pub fn give(&self, versions: Vec<Version>) -> Result<(), ReloadError> {
        self.offer(self.places.iter().map(|(_, place)| *place).zip(versions));
        let end = self.end();
        let mut formers = Vec::with_capacity(self.places.len());
        for &(worker, place) in &self.places {
            match self.left_at(place, end) {
                Some(former) => formers.push((place, former)),
                None => {
                    let error = self.missing(worker);
                    self.undo(formers);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Offers versions at empty places, and calls the workers there.
    fn offer(&self, versions: impl Iterator<Item = (&'a Exchange<Version>, Version)>) {
        for (place, version) in versions {
            let offered = place.offer(version);
            debug_assert!(offered.is_ok(), "reloads take turns, and each empties all places");
        }
        self.shared.orders.look();
        self.shared.idle_set.wake_all(self.mask);
    }

    /// Has workers run what they ran before: `formers` is what those left that have come so far.
    fn undo(&self, mut formers: Vec<(&'a Exchange<Version>, Version)>) {
        for &(_, place) in &self.places[formers.len()..] {
            // A worker that comes at this very moment has it, and leaves what it had at once.
            while place.withdraw().is_none() {
                if let Some(former) = place.take_back() {
                    formers.push((place, former));
                    break;
                }
                std::thread::yield_now();
            }
        }
        let places: Vec<_> = formers.iter().map(|(place, _)| *place).collect();
        self.offer(formers.into_iter());
        let end = self.end();
        for place in places {
            // One that does not come now finds it there before its next batch.
            drop(self.left_at(place, end));
        }
    }

    /// What the worker of `place` left there for what was offered; `None`: it has not come by `end`, or it has
    /// ended.
    fn left_at(&self, place: &Exchange<Version>, end: Nanos) -> Option<Version> {
        loop {
            let left = place.take_back();
            if left.is_some() || self.shared.orders.is_stop() || clock::now() >= end {
                return left;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn end(&self) -> Nanos {
        clock::now().after(Nanos(u64::try_from(self.patience.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Why a worker did not come.
    fn missing(&self, worker: usize) -> ReloadError {
        let model = self.model.to_owned();
        match self.shared.orders.is_stop() {
            true => ReloadError::Stopping { model },
            false => ReloadError::Worker { model, worker, waited: self.patience },
        }
    }
}
