//! What the kernel can be asked for so that nothing gets between a request and its answer, and
//! whether it was granted: each option is set, read back, and told as `wanted` and `got`.

use crate::units::{Micros, Nanos};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{
    current_timer_slack, disable_transparent_huge_pages, set_current_timer_slack,
    transparent_huge_pages_are_disabled,
};
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::num::NonZeroU64;
use std::path::Path;

/// Lowest and highest priority of the real-time policies on Linux.
pub const PRIORITY_RANGE: std::ops::RangeInclusive<u8> = 1..=99;
/// The file whose open handle bounds how deep idle cores sleep.
const CPU_DMA_LATENCY: &str = "/dev/cpu_dma_latency";

/// How the scheduler treats a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// As every other thread.
    Other,
    /// Before every other, until it sleeps; the priority is within [`PRIORITY_RANGE`].
    Fifo(
        /// Priority.
        u8,
    ),
    /// As `Fifo`, in turns with threads of the same priority.
    RoundRobin(
        /// Priority.
        u8,
    ),
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Other => f.write_str("other"),
            Policy::Fifo(priority) => write!(f, "fifo {priority}"),
            Policy::RoundRobin(priority) => write!(f, "rr {priority}"),
        }
    }
}

/// What is asked for of each worker and of the I/O thread. `None` leaves the thread as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadOptions {
    /// Scheduling policy.
    pub policy: Option<Policy>,
    /// How late a timer may fire, so that the kernel can gather wake-ups; 50 us by default.
    pub timer_slack: Option<Nanos>,
}

/// What is asked for of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessOptions {
    /// Whether all memory is to be locked.
    pub lock_memory: bool,
    /// Longest time that an idle core may take to wake.
    pub cpu_dma_latency: Option<Micros>,
    /// Whether transparent huge pages are to be off for this process: they save TLB misses, and cost
    /// pauses when the kernel gathers them.
    pub no_huge_pages: bool,
}

/// One option, what was wanted, and what holds.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Outcome {
    /// The option, as the configuration calls it.
    pub option: &'static str,
    /// The thread that it is for; empty for the process.
    pub thread: String,
    /// What was asked for.
    pub wanted: String,
    /// What holds now.
    pub got: String,
    /// Whether that is what was asked for.
    pub granted: bool,
    /// What would help, where it was refused.
    pub hint: &'static str,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.thread.is_empty() {
            write!(f, "{}: ", self.thread)?;
        }
        write!(f, "{}: {} is wanted, got {}", self.option, self.wanted, self.got)?;
        if !self.granted && !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        Ok(())
    }
}

/// The nice value of threads that load models.
const STEPPED_BACK_NICE: i32 = 10;

/// Lets other threads go first, from here on, where there is not time for all: for a thread that loads
/// models beside those that serve. Where the system refuses, it goes on as it was.
pub fn step_back() {
    // On Linux this is the calling thread alone, not its process.
    let _ = rustix::process::setpriority_process(None, STEPPED_BACK_NICE);
}

/// The calling thread's policy, as the kernel tells it.
///
/// # Errors
/// The kernel does not tell, or the policy is none of those here.
pub fn policy() -> std::io::Result<Policy> {
    // The kernel's calls, since musl's functions of these names only refuse. Their parameter is this number.
    let mut priority: libc::c_int = 0;
    // SAFETY: thread 0 is the calling one, and `priority` is live and writable.
    let (policy, read) = unsafe {
        (
            libc::syscall(libc::SYS_sched_getscheduler, 0),
            libc::syscall(libc::SYS_sched_getparam, 0, &raw mut priority),
        )
    };
    if policy < 0 || read < 0 {
        return Err(std::io::Error::last_os_error());
    }
    let priority = priority as u8;
    // The flag that children don't inherit says nothing of the policy.
    match policy as libc::c_int & !libc::SCHED_RESET_ON_FORK {
        libc::SCHED_FIFO => Ok(Policy::Fifo(priority)),
        libc::SCHED_RR => Ok(Policy::RoundRobin(priority)),
        libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE => Ok(Policy::Other),
        other => Err(std::io::Error::other(format!("policy {other}"))),
    }
}

/// Sets the calling thread's policy. Threads that it starts later get the usual one.
fn set_policy(policy: Policy) -> std::io::Result<()> {
    let (number, priority) = match policy {
        Policy::Other => (libc::SCHED_OTHER, 0),
        Policy::Fifo(priority) => (libc::SCHED_FIFO, priority),
        Policy::RoundRobin(priority) => (libc::SCHED_RR, priority),
    };
    let priority = libc::c_int::from(priority);
    // SAFETY: thread 0 is the calling one, and `priority` is live, and all that the kernel reads.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            number | libc::SCHED_RESET_ON_FORK,
            &raw const priority,
        )
    };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

fn refused(result: std::io::Result<()>, is: impl fmt::Display) -> String {
    match result {
        Ok(()) => is.to_string(),
        Err(e) => format!("{is} ({e})"),
    }
}

impl ThreadOptions {
    /// Asks for them on the calling thread, which outcomes call `thread`.
    pub fn apply(&self, thread: &str) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        if let Some(wanted) = self.policy {
            let result = set_policy(wanted);
            let is = policy();
            outcomes.push(Outcome {
                option: "scheduler",
                thread: thread.into(),
                wanted: wanted.to_string(),
                granted: is.as_ref().is_ok_and(|is| *is == wanted),
                got: match is {
                    Ok(is) => refused(result, is),
                    Err(e) => format!("unknown ({e})"),
                },
                hint: "give CAP_SYS_NICE or LimitRTPRIO (ulimit -r)",
            });
        }
        if let Some(wanted) = self.timer_slack {
            let set = set_current_timer_slack(NonZeroU64::new(wanted.0.max(1)));
            let is = current_timer_slack().unwrap_or(0);
            // A real-time thread's timers have no slack at all, whatever it asks for.
            let none = policy().is_ok_and(|policy| policy != Policy::Other) && is == 0;
            outcomes.push(Outcome {
                option: "timer_slack_ns",
                thread: thread.into(),
                wanted: wanted.to_string(),
                granted: none || is == wanted.0.max(1),
                got: refused(set.map_err(Into::into), is),
                hint: "",
            });
        }
        outcomes
    }
}

/// Options that hold as long as this lives.
#[derive(Debug, Default)]
pub struct Held {
    _cpu_dma_latency: Option<File>,
}

impl ProcessOptions {
    /// Asks for what must be there before memory is allocated.
    pub fn apply_early(&self) -> Vec<Outcome> {
        if !self.no_huge_pages {
            return Vec::new();
        }
        let set = disable_transparent_huge_pages(true);
        let off = transparent_huge_pages_are_disabled().unwrap_or(false);
        vec![Outcome {
            option: "transparent_huge_pages",
            thread: String::new(),
            wanted: "off".into(),
            granted: off,
            got: refused(set.map_err(Into::into), if off { "off" } else { "as the system has it" }),
            hint: "",
        }]
    }

    /// Asks for the rest, once all memory is there.
    pub fn apply(&self) -> (Held, Vec<Outcome>) {
        self.apply_at(Path::new(CPU_DMA_LATENCY), Path::new("/proc/self/status"))
    }

    fn apply_at(&self, latency_file: &Path, status: &Path) -> (Held, Vec<Outcome>) {
        let mut outcomes = Vec::new();
        let mut held = Held::default();
        if self.lock_memory {
            // Under a limit, locking what is mapped later would turn into failed allocations.
            let unlimited = getrlimit(Resource::Memlock).current.is_none();
            let later = if unlimited { MlockAllFlags::FUTURE } else { MlockAllFlags::empty() };
            let set = mlockall(MlockAllFlags::CURRENT | later);
            let kib = locked_kib(status).unwrap_or(0);
            let but = if unlimited { "" } else { ", without what is mapped later" };
            outcomes.push(Outcome {
                option: "lock_memory",
                thread: String::new(),
                wanted: "all".into(),
                granted: set.is_ok() && kib > 0,
                got: refused(set.map_err(Into::into), format_args!("{kib} KiB{but}")),
                hint: "give CAP_IPC_LOCK or LimitMEMLOCK=infinity (ulimit -l)",
            });
        }
        if let Some(wanted) = self.cpu_dma_latency {
            // The kernel takes a number in its own byte order and forgets it when the file is closed.
            let opened = File::options().write(true).open(latency_file);
            let written = opened.and_then(|mut file| {
                file.write_all(&(wanted.0 as i32).to_ne_bytes())?;
                Ok(file)
            });
            let result = written.map(|file| held._cpu_dma_latency = Some(file));
            outcomes.push(Outcome {
                option: "cpu_dma_latency_us",
                thread: String::new(),
                wanted: wanted.to_string(),
                granted: result.is_ok(),
                got: match result {
                    Ok(()) => wanted.to_string(),
                    Err(e) => format!("as the system has it ({}: {e})", latency_file.display()),
                },
                hint: "give write access to the file",
            });
        }
        (held, outcomes)
    }
}

/// Memory that is locked, as the kernel counts it.
fn locked_kib(status: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmLck:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

#[cfg(test)]
mod tests;
