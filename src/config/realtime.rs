//! The table `[realtime]`.

use crate::runtime::{Policy, RealTime};
use crate::toml_errors::{Table, TomlError};
use crate::units::{Micros, Nanos};

/// Priority where none is given: below the kernel's own threads that must come first.
const PRIORITY_DEFAULT: u64 = 50;
/// Longest timer slack and wake-up time, in their units: a second.
const TIMER_SLACK_NS_MAX: u64 = 1_000_000_000;
const CPU_DMA_LATENCY_US_MAX: u64 = 1_000_000;

pub(super) fn read(table: Table<'_>) -> Result<RealTime, TomlError> {
    let mut realtime = RealTime::default();
    let range = crate::runtime::PRIORITY_RANGE;
    let priority = table.integer("priority", (*range.start()).into(), (*range.end()).into())?;
    let given = priority.unwrap_or(PRIORITY_DEFAULT) as u8;
    realtime.thread.policy = match table.text("scheduler")?.as_deref() {
        None => None,
        Some("other") => Some(Policy::Other),
        Some("fifo") => Some(Policy::Fifo(given)),
        Some("rr") => Some(Policy::RoundRobin(given)),
        Some(name) => {
            let message = format!("{name:?}; choose \"fifo\", \"rr\" or \"other\"");
            return Err(table.invalid("scheduler", message));
        }
    };
    let has_priority =
        matches!(realtime.thread.policy, Some(Policy::Fifo(_) | Policy::RoundRobin(_)));
    if priority.is_some() && !has_priority {
        return Err(table.invalid("priority", "only with scheduler = \"fifo\" or \"rr\""));
    }
    realtime.thread.timer_slack =
        table.integer("timer_slack_ns", 1, TIMER_SLACK_NS_MAX)?.map(Nanos);
    realtime.process.lock_memory = table.boolean("lock_memory")?.unwrap_or(false);
    let latency = table.integer("cpu_dma_latency_us", 0, CPU_DMA_LATENCY_US_MAX)?;
    realtime.process.cpu_dma_latency = latency.map(|us| Micros(us as u32));
    realtime.process.no_huge_pages = match table.text("transparent_huge_pages")?.as_deref() {
        None | Some("system") => false,
        Some("off") => true,
        Some(other) => {
            let message = format!("{other:?}; choose \"system\" or \"off\"");
            return Err(table.invalid("transparent_huge_pages", message));
        }
    };
    realtime.run_on = match table.text("refused")?.as_deref() {
        None | Some("error") => false,
        Some("run_on") => true,
        Some(other) => {
            let message = format!("{other:?}; choose \"error\" or \"run_on\"");
            return Err(table.invalid("refused", message));
        }
    };
    table.finish()?;
    Ok(realtime)
}
