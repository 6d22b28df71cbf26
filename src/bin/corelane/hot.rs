//! What workers and the I/O thread tell, encoded by defmt (feature `hot-log`) into their rings.
//!
//! Every event has its own defmt statement, whose format string never leaves the build: what is written
//! is a number, an instant and the fields. Which number is which event is found out at start, by telling
//! each once; see [`corelane::logs`].

#[cfg(feature = "hot-log")]
mod logger;

use corelane::logs::{Entry, Table};
use corelane::sys::events::{self, Event, KINDS, Sink};
use corelane::sys::records;
use corelane::sys::sync::{AtomicU32, Ordering};

/// Bytes of the rings that threads open from now on.
static RING_BYTES: AtomicU32 = AtomicU32::new(0);

#[cfg(feature = "hot-log")]
mod statements {
    use super::Event;

    // Without a unit: the table says how it is read.
    defmt::timestamp!("{=u64}", corelane::sys::clock::stamp().0);

    macro_rules! statements {
        ($($(#[$doc:meta])* $level:ident $variant:ident $name:literal $format:literal
            { $($field:ident: $type:ty),* })+) => {
            /// Tells an event through its own statement.
            pub fn tell(event: Event) {
                match event {
                    $(Event::$variant { $($field),* } => defmt::$level!($format $(, $field)*),)+
                }
            }
        };
    }
    corelane::corelane_events!(statements);
}

#[cfg(not(feature = "hot-log"))]
mod statements {
    /// This build tells no events.
    pub fn tell(_: super::Event) {}
}

/// Has events told into rings of `ring_bytes`, for every thread that begins to serve from now on.
/// Returns what their records mean; an event that `DEFMT_LOG` left out of the build is not in it.
pub fn install(ring_bytes: usize) -> Result<Table, String> {
    if !cfg!(feature = "hot-log") {
        return Ok(Table::default());
    }
    RING_BYTES.store(u32::try_from(ring_bytes).unwrap_or(u32::MAX), Ordering::Relaxed);
    let mut entries = Vec::new();
    for (kind, event) in KINDS.iter().zip(Event::samples()) {
        let Some(record) = records::capture(|| statements::tell(event)) else { continue };
        let &[low, high, ..] = record.as_slice() else {
            return Err(format!("the statement of {} wrote no index", kind.name));
        };
        entries.push(Entry::new(u16::from_le_bytes([low, high]), kind));
    }
    let table = Table::new(entries).map_err(|e| e.to_string())?;
    // What was found is what is read back.
    for (kind, event) in KINDS.iter().zip(Event::samples()) {
        let Some(record) = records::capture(|| statements::tell(event)) else { continue };
        let told = table.read(&record).map_err(|e| format!("{}: {e}", kind.name))?;
        if told.entry.name != kind.name || told.values != event.values() {
            return Err(format!("{} reads back as {told}", kind.name));
        }
    }
    let sink = Sink {
        thread: || records::open(RING_BYTES.load(Ordering::Relaxed) as usize),
        event: statements::tell,
    };
    events::install(sink).map_err(|e| e.to_string())?;
    Ok(table)
}
