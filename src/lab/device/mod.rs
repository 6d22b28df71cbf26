//! The standard card of a board: `corelane bench device`.
//!
//! Every figure has the same box of time, so that the whole takes about as long on every board. Times
//! are integer nanoseconds, percentiles are exact (nearest rank). What a machine does not have is
//! absent, with the reason.

mod models;
mod ways;

use super::overhead::{Error, two_cores, wake_up};
use super::run::Percentiles;
use super::system::SystemFiles;
use crate::runtime::ModelSetup;
use crate::sys::{affinity, memory};
use crate::units::{CoreId, Nanos};
use serde::Serialize;

/// Version of the card's layout.
pub const SCHEMA: u32 = 1;
/// What the card says it is.
pub const KIND: &str = "corelane-card";
/// Wake-ups that are timed.
const WAKE_UPS: usize = 2_000;

/// A loaded model to put on the card.
pub struct CardModel {
    /// The model.
    pub setup: ModelSetup,
    /// How long it took to load: reading, compiling, checking.
    pub load: Nanos,
    /// One row of each input.
    pub rows: Vec<Vec<u8>>,
    /// Whether the rows are the model's own golden ones, or zeros.
    pub golden: bool,
}

/// One batch size on one worker, one request in flight.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchRow {
    /// Rows of each request.
    pub batch: usize,
    /// From before the request is handed over, in process, until its answer is seen.
    pub request: Percentiles,
    /// The engine's part of it.
    pub infer: Percentiles,
}

/// Requests of the largest batch size, two in flight for each worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Throughput {
    /// Rows of each request.
    pub batch: usize,
    /// Cores of the workers.
    pub cores: Vec<CoreId>,
    /// Rows per second of one worker, on the last of the cores.
    pub one_rows_per_s: f64,
    /// Rows per second of all.
    pub all_rows_per_s: f64,
    /// `all` over as many times `one`; 1 is ideal.
    pub efficiency: f64,
}

/// A model on the card.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelRow {
    /// Its name.
    pub name: String,
    /// What runs it.
    pub engine: &'static str,
    /// Loading: reading, compiling every batch size, checking.
    pub load_ns: u64,
    /// `golden` or `zeros`: what was sent.
    pub input: &'static str,
    /// The core of the single worker.
    pub core: CoreId,
    /// By batch size.
    pub batches: Vec<BatchRow>,
    /// All workers.
    pub throughput: Throughput,
    /// Calls into the system allocator by workers and I/O while they served.
    pub hot_path_allocations: Option<u64>,
    /// Whether the engine promises none.
    pub allocation_free: bool,
}

/// What a way to the runtime costs: round trips of a model that computes nothing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WayRow {
    /// `in process`, `unix`, `tcp`, `serial (pseudo-terminal)`.
    pub way: &'static str,
    /// Bytes each way.
    pub bytes: usize,
    /// Which threads ran on which core.
    pub placement: String,
    /// Round trips, one in flight; `None` where there is no such way.
    pub round_trip: Option<Percentiles>,
    /// Why there is none.
    pub absent: Option<String>,
}

/// A card.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Card {
    /// [`SCHEMA`].
    pub schema: u32,
    /// [`KIND`].
    pub kind: &'static str,
    /// Version of the program.
    pub version: &'static str,
    /// The board's short name, where this machine is one that is known.
    pub board: Option<String>,
    /// Board or processor, as the machine names itself.
    pub machine: String,
    /// Kernel release.
    pub kernel: String,
    /// Frequency governors that are not `performance`; figures under them are lower.
    pub slow_governors: Vec<String>,
    /// Allowed cores.
    pub cores: String,
    /// Time for each figure.
    pub box_ns: u64,
    /// The models.
    pub models: Vec<ModelRow>,
    /// The ways.
    pub ways: Vec<WayRow>,
    /// From just before a thread is woken on another core (or this one) until it runs.
    pub wake_up: Percentiles,
    /// Which threads ran on which core for it.
    pub wake_up_placement: String,
    /// Most memory that the process had, over all of it.
    pub peak_memory_bytes: Option<usize>,
    /// Calls into the system allocator by workers and I/O, over all models that promise none.
    pub hot_path_allocations: Option<u64>,
    /// How long all of it took.
    pub took_ns: u64,
}

/// Figures that a card with these models has: for a progress bar.
pub fn figures(models: &[CardModel]) -> usize {
    let of = |m: &CardModel| m.setup.engine.batch_sizes().len() + 2;
    models.iter().map(of).sum::<usize>() + ways::COUNT + 1
}

/// The box of each figure, so that `figures` of them take `budget` in all; `None` if that would be too
/// short to say anything.
pub fn time_box(figures: usize, budget: Nanos) -> Option<Nanos> {
    /// Share of the boxes; the rest is for building runtimes and warming up.
    const SHARE_PERCENT: u64 = 70;
    const BOX_NS_MIN: u64 = 50_000_000;
    const BOX_NS_MAX: u64 = 2_000_000_000;
    let each = budget.0 / 100 * SHARE_PERCENT / figures.max(1) as u64;
    (each >= BOX_NS_MIN).then_some(Nanos(each.min(BOX_NS_MAX)))
}

/// Measures the card. Workers are put on `cores`, the client on the first allowed core without one, else
/// on the first. `progress` is told each figure before it is measured.
///
/// # Errors
/// A pin did not take, a runtime could not be built, or a request failed.
pub fn measure(
    models: &[CardModel],
    cores: &[CoreId],
    time_box: Nanos,
    mut progress: impl FnMut(&str),
) -> Result<Card, Error> {
    let start = crate::sys::clock::now();
    let machine = SystemFiles::default().machine();
    let allowed = affinity::allowed()?;
    let mut rows = Vec::new();
    for model in models {
        rows.push(models::measure(model, cores, time_box, &mut progress)?);
    }
    let ways = ways::measure(time_box, &mut progress)?;
    progress("wake-up");
    let (first, last) = two_cores()?;
    let mut wakes = wake_up(first, last, WAKE_UPS)?;
    let promised = rows.iter().filter(|r| r.allocation_free).map(|r| r.hot_path_allocations);
    Ok(Card {
        schema: SCHEMA,
        kind: KIND,
        version: env!("CARGO_PKG_VERSION"),
        board: None,
        machine: machine.name,
        kernel: machine.kernel,
        slow_governors: (machine.governors.into_iter())
            .filter(|(_, governor)| governor != "performance")
            .map(|(core, governor)| format!("core {core}: {governor}"))
            .collect(),
        cores: affinity::core_list(&allowed),
        box_ns: time_box.0,
        hot_path_allocations: promised.sum(),
        models: rows,
        ways,
        wake_up: Percentiles::of(&mut wakes),
        wake_up_placement: format!("waker on core {first}, sleeper on core {last}"),
        peak_memory_bytes: memory::peak_resident_bytes(),
        took_ns: crate::sys::clock::now().since(start).0,
    })
}

impl Card {
    /// The rows for a board's file: `[[measured]]`, one a model, of one row on one worker.
    pub fn board_rows(&self) -> String {
        let mut out = String::new();
        for model in &self.models {
            let Some(row) = model.batches.iter().find(|b| b.batch == 1) else { continue };
            let how = format!(
                "corelane {}, bench device: p50 of {} requests of one row in process, one worker on core \
                 {}, engine {}, {}",
                self.version, row.request.count, model.core, model.engine, model.input
            );
            let ms = row.request.p50_ns as f64 / 1e6;
            let (name, how) = (toml::Value::from(model.name.as_str()), toml::Value::from(how));
            out.push_str(&format!("[[measured]]\nmodel = {name}\nms = {ms:.4}\nhow = {how}\n\n"));
        }
        out
    }
}

#[cfg(test)]
mod tests;
