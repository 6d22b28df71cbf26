//! What the runtimes of a process have to share.

use super::status::{Told, corelane_status, fail};
use crate::sys::region::Options;
use crate::units::CoreId;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A runtime that runs, or starts.
struct Running {
    /// The process that it is in: in the child of a `fork` none of the parent's runs.
    pid: u32,
    number: u64,
    memory: Options,
    cores: Vec<CoreId>,
}

static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<Running>> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    running.retain(|r| r.pid == std::process::id());
    running
}

fn words(memory: Options) -> String {
    format!("lock {:?}, huge_pages {:?}", memory.lock.name(), memory.huge_pages.name())
}

/// A place among the runtimes of the process, until it is dropped.
pub(super) struct Claim(u64);

impl Claim {
    /// For a runtime that asks for `memory`, which is the process's: all that run ask for the same.
    pub(super) fn new(memory: Options) -> Result<Claim, Told> {
        let mut running = running();
        if let Some(other) = running.iter().find(|r| r.memory != memory) {
            let (this, other) = (words(memory), words(other.memory));
            let text = format_args!(
                "[memory] is for the whole process: this runtime asks for {this}, one that runs for {other}"
            );
            return Err(fail(corelane_status::Config, text));
        }
        let number = running.last().map_or(0, |last| last.number + 1);
        running.push(Running { pid: std::process::id(), number, memory, cores: Vec::new() });
        Ok(Claim(number))
    }

    /// Notes the cores of its workers; those that have a worker of another runtime already are told.
    pub(super) fn take_cores(&self, cores: Vec<CoreId>) {
        let mut running = running();
        for core in &cores {
            if running.iter().any(|r| r.cores.contains(core)) {
                event!(warn, "core {} has a worker of another runtime, too; they share it", core);
            }
        }
        if let Some(this) = running.iter_mut().find(|r| r.number == self.0) {
            this.cores = cores;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut running = running();
        running.retain(|r| r.number != self.0);
        if running.is_empty() {
            // An unloaded library leaves nothing behind.
            *running = Vec::new();
        }
    }
}
