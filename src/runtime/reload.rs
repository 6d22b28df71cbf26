//! Another version of a model while the runtime serves.
//!
//! # How
//! A reload runs on the thread that asks for it, which serves no requests; one at a time.
//! 1. The model's files are read again, and hashed ([`version_hash`](crate::model::version::version_hash)).
//!    Nothing changed: nothing is done.
//! 2. The new version is loaded and verified as at the start: hash, goldens, independence of rows.
//! 3. It is compared with what is fixed while the runtime serves: the signature that clients have been
//!    told, and the memory that was sized by it ([`changes`]). Whether there is memory for both versions
//!    at once is looked up before it is taken.
//! 4. An instance for each worker is made and warmed up, then all are offered, one to each worker, through
//!    [`Exchange`](crate::queue::exchange::Exchange)s, and the workers are woken.
//! 5. Each worker trades its version for the new one between two batches; the former comes back here and is
//!    freed here. So a batch is of one version, no worker allocates or frees, and once the reload has
//!    returned no answer is of the former version. Requests that waited meanwhile are answered by one or
//!    the other, whole.
//!
//! Whatever fails before step 5 leaves the former version serving, and nothing of the new one. A worker that does
//! not end its batch in time fails step 5: then those that have come get the former version back.

mod changes;
mod error;
mod told;
mod trade;
mod watch;

pub use changes::Difference;
pub use error::ReloadError;
pub use watch::Watch;

use super::{ModelSetup, Runtime, ServedModel, Shared};
use crate::engine::quiet::caught;
use crate::limits::{BATCH_SIZES_MAX, WORKER_PATIENCE_MS};
use crate::sys::sync::{Arc, Ordering};
use crate::sys::{clock, headroom, region};
use crate::transport::ReloadHandler;
use crate::units::{Micros, Nanos};
use crate::worker::Version;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use told::told;
use trade::Trade;

/// What came of a reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// The model.
    pub model: String,
    /// Whether there was another version; if not, nothing was done.
    pub changed: bool,
    /// The version that serves now: 1 at the start, one more after each reload that changed it.
    pub version: u64,
    /// Hash of all that it was loaded from, in hexadecimal; `None` for one made by hand.
    pub version_hash: Option<String>,
    /// From the call to the last worker's last answer of the former version.
    pub took_ns: Nanos,
}

/// Loads new versions of a runtime's models. Cheap to clone; any thread that serves no requests may use it,
/// and reloads that are asked for at once take turns.
///
/// What may change: weights, graph, operators, engine, goldens, tolerance, bound inputs, labels; `batch_sizes`,
/// `preferred_batch_size`, and `max_batch_size` up to what it was at the start; `max_queue_delay_microseconds`,
/// `default_timeout_microseconds`, `weight`, `model_warmup`. What may not, and is [`ReloadError::Fixed`]: name,
/// signature, `max_request_rows`, `max_queue_size`, `priority_levels`, `default_priority`, `instance_group`.
///
/// While it lasts both versions are in memory, with an instance of each for every worker.
#[derive(Clone)]
pub struct Reloader {
    shared: Arc<Shared>,
    /// How long a worker may take to end its batch.
    patience: Duration,
}

impl Runtime {
    /// Reads the files of the model called `name` again and, if they changed, serves what they hold now.
    /// See [`Reloader::reload`].
    ///
    /// # Errors
    /// Every kind of [`ReloadError`]. The former version serves on.
    pub fn reload(&self, name: &str) -> Result<Reloaded, ReloadError> {
        self.reloader().reload(name)
    }

    /// Serves `setup` in place of the model of its name, which it was made by hand for, or loaded ahead.
    ///
    /// # Errors
    /// Every kind of [`ReloadError`] but those of reading. The former version serves on.
    pub fn replace(&self, setup: ModelSetup) -> Result<Reloaded, ReloadError> {
        self.reloader().replace(setup)
    }

    /// What lets clients of the Unix socket reload models: for
    /// [`ServerOptions::reload`](crate::transport::ServerOptions::reload).
    pub fn reload_handler(&self) -> ReloadHandler {
        let reloader = self.reloader();
        ReloadHandler::new(move |model, text| {
            let results = match model {
                Some(name) => vec![(name.to_string(), reloader.reload(name))],
                None => reloader.reload_all(),
            };
            text.push_str(&told(results));
        })
    }

    /// What loads new versions, for another thread.
    pub fn reloader(&self) -> Reloader {
        let patience = Duration::from_millis(WORKER_PATIENCE_MS);
        Reloader { shared: self.shared.clone(), patience }
    }
}

impl Reloader {
    /// The same, where a worker that is in a batch is waited for so long, and not for [`WORKER_PATIENCE_MS`].
    pub fn with_patience(self, patience: Duration) -> Reloader {
        Reloader { patience, ..self }
    }

    /// The names of the models.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.shared.models.iter().map(|m| m.name.as_str())
    }

    /// Reads the files of the model called `name` again and, if they changed, serves what they hold now.
    ///
    /// Takes as long as loading does, and then until each worker has ended the batch that it is in, for which it
    /// has [`WORKER_PATIENCE_MS`]. When it returns, no answer of the former version is given any more.
    ///
    /// # Errors
    /// Every kind of [`ReloadError`]. The former version serves on.
    pub fn reload(&self, name: &str) -> Result<Reloaded, ReloadError> {
        self.one_at_a_time(name, |served| {
            let former = served.setup();
            let model = &served.name;
            let Some(source) = &former.source else {
                return Err(ReloadError::NoSource { model: model.clone() });
            };
            let load = |error| ReloadError::Load { model: model.clone(), source: Box::new(error) };
            let read = source.read().map_err(load)?;
            let hash = read.version_hash();
            if former.version_hash.as_ref() == Some(&hash) {
                return Ok(None);
            }
            // The file is there, and then, at once with it, the weights made of it.
            self.find_room(model, "loading the model file", read.file_bytes())?;
            let size = served.queue.spec().max_queue_size;
            let setup = source.load_read(read, Some(size)).map_err(load)?;
            if setup.version_hash.as_ref() != Some(&hash) {
                return Err(ReloadError::FilesChanged { model: model.clone() });
            }
            Ok(Some(setup))
        })
    }

    /// [`reload`](Self::reload) of every model that was read from files, each with what came of it.
    pub fn reload_all(&self) -> Vec<(String, Result<Reloaded, ReloadError>)> {
        let models = self.shared.models.iter();
        let from_files = models.filter(|m| m.setup().source.is_some());
        from_files.map(|m| (m.name.clone(), self.reload(&m.name))).collect()
    }

    /// Serves `setup` in place of the model of its name.
    ///
    /// # Errors
    /// Every kind of [`ReloadError`] but those of reading. The former version serves on.
    pub fn replace(&self, setup: ModelSetup) -> Result<Reloaded, ReloadError> {
        let name = setup.name.clone();
        self.one_at_a_time(&name, |_| Ok(Some(setup)))
    }

    /// Finds the model, gets its next version (`None`: it is what serves), and hands it over.
    fn one_at_a_time(
        &self,
        name: &str,
        next: impl FnOnce(&ServedModel) -> Result<Option<ModelSetup>, ReloadError>,
    ) -> Result<Reloaded, ReloadError> {
        let started = clock::now();
        let Some((_, served)) = self.shared.find(name) else {
            return Err(ReloadError::UnknownModel {
                name: name.into(),
                known: self.models().map(str::to_owned).collect(),
            });
        };
        let result = (|| {
            self.go_on(name)?;
            // A panic in a loader leaves nothing half done: versions change only in `hand_over`.
            let _turn = self.shared.reloading.lock().unwrap_or_else(|e| e.into_inner());
            self.go_on(name)?;
            let changed = match next(served)? {
                None => false,
                Some(setup) => {
                    changes::check(served, &setup)?;
                    self.hand_over(served, setup)?;
                    true
                }
            };
            // What the allocator keeps of both versions goes back to the system.
            region::trim();
            Ok(Reloaded {
                model: name.into(),
                changed,
                version: served.version(),
                version_hash: served.setup().version_hash.clone(),
                took_ns: clock::now().since(started),
            })
        })();
        served.count(&result);
        match &result {
            Ok(done) if done.changed => {
                event!(info, "model {}: version {} serves", name, done.version);
            }
            Ok(_) => event!(info, "model {}: nothing changed", name),
            Err(error) => event!(error, "{}", error),
        }
        result
    }

    /// Unless the runtime drains or ends.
    fn go_on(&self, model: &str) -> Result<(), ReloadError> {
        if self.shared.draining.load(Ordering::SeqCst) || self.shared.orders.is_stop() {
            return Err(ReloadError::Stopping { model: model.into() });
        }
        Ok(())
    }

    fn find_room(&self, model: &str, what: &'static str, needed: usize) -> Result<(), ReloadError> {
        enough(model, what, needed, headroom::available_bytes(Path::new("/")))
    }

    /// Makes an instance for every worker, and gives each its own.
    fn hand_over(&self, served: &ServedModel, setup: ModelSetup) -> Result<(), ReloadError> {
        let model = &served.name;
        let queue = &served.queue;
        let trade = Trade::begin(&self.shared, served, self.patience)?;
        let description = setup.engine.describe();
        let mut each = description.instance_arena_bytes.unwrap_or(0);
        each += description.instance_staging_bytes;
        if !description.weights_shared {
            each += description.weight_bytes;
        }
        let what = "an instance of the new version for each worker, beside the former";
        self.find_room(model, what, each * trade.workers().count())?;
        let bank = 1 - queue.bank();
        let mut times = [Nanos(u64::MAX); BATCH_SIZES_MAX];
        let mut versions = Vec::new();
        for worker in trade.workers() {
            let failed = |reason: String| ReloadError::Instance { model: model.clone(), reason };
            let ready = caught(|| {
                let engine = setup.engine.clone();
                let mut instance = engine.instance().map_err(|e| e.to_string())?;
                if let (Some(core), _) = self.shared.workers[worker] {
                    // This thread runs on another, perhaps of another kind.
                    instance.settle_on(core);
                }
                let mut version =
                    Version::new(engine, instance, setup.batch.clone(), setup.weight, bank);
                let warm = version.warm_up(setup.model_warmup).map_err(|e| e.to_string())?;
                Ok((version, warm))
            });
            let ready = ready.unwrap_or_else(|panic| Err(format!("it panicked: {panic}")));
            let (version, warm) = ready.map_err(failed)?;
            for (least, time) in times.iter_mut().zip(warm) {
                *least = time.min(*least);
            }
            versions.push(version);
        }
        let sizes = setup.engine.batch_sizes();
        // Nobody writes there: the last reload has seen every worker leave it.
        queue.service_of(bank).restart(sizes, &times[..sizes.len()]);
        let seat = self.shared.waker.seat();
        let tended = seat.is_allowed();
        // A worker that waits for more requests tends no connections: as at the start.
        seat.allow(tended && setup.batch.max_queue_delay == Micros(0));
        if let Err(error) = trade.give(versions) {
            seat.allow(tended);
            return Err(error);
        }
        queue.change_version(bank, setup.default_timeout);
        drop(served.take_over(setup));
        Ok(())
    }
}

fn enough(
    model: &str,
    what: &'static str,
    needed: usize,
    available: Option<usize>,
) -> Result<(), ReloadError> {
    match available {
        Some(available) if available < needed => {
            Err(ReloadError::Memory { model: model.into(), what, needed, available })
        }
        // Where the system does not say, taking it tells.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
