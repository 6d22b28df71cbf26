//! Which cores the scheduler allows, and pinning to one of them.

use crate::units::CoreId;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;

/// Why a thread could not be pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AffinityError {
    /// The scheduler does not allow these cores to this process.
    NotAllowed {
        /// Cores asked for.
        wanted: Vec<CoreId>,
        /// Cores that the scheduler allows.
        allowed: Vec<CoreId>,
    },
    /// The system call succeeded but the thread's set is another one.
    NotTaken {
        /// The core asked for.
        wanted: CoreId,
        /// The thread's cores afterwards.
        got: Vec<CoreId>,
    },
    /// The scheduler did not tell.
    Unreadable(
        /// The system's error number.
        i32,
    ),
}

/// Cores as a list: `0-3,6`.
pub fn core_list(cores: &[CoreId]) -> String {
    let mut sorted: Vec<u16> = cores.iter().map(|c| c.0).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut parts: Vec<(u16, u16)> = Vec::new();
    for c in sorted {
        match parts.last_mut() {
            Some((_, end)) if *end + 1 == c => *end = c,
            _ => parts.push((c, c)),
        }
    }
    let text: Vec<String> = parts
        .into_iter()
        .map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") })
        .collect();
    if text.is_empty() { "none".into() } else { text.join(",") }
}

/// Reads a list of cores as the kernel writes it, `0-3,6`; an empty one has none. `None` if it is no
/// such list, or names a core that no set can hold.
pub fn parse_core_list(text: &str) -> Option<Vec<CoreId>> {
    let mut cores = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || usize::from(last) >= CpuSet::MAX_CPU {
            return None;
        }
        cores.extend((first..=last).map(CoreId));
    }
    cores.sort_unstable();
    cores.dedup();
    Some(cores)
}

impl fmt::Display for AffinityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AffinityError::NotAllowed { wanted, allowed } => write!(
                f,
                "cores {} are wanted, but the scheduler allows this process only {}; choose among \
                 these, widen the cpuset, or run unpinned",
                core_list(wanted),
                core_list(allowed)
            ),
            AffinityError::NotTaken { wanted, got } => write!(
                f,
                "the pin to core {wanted} did not take: the thread may run on {}",
                core_list(got)
            ),
            AffinityError::Unreadable(errno) => {
                write!(f, "the scheduler does not tell the allowed cores (error {errno})")
            }
        }
    }
}

impl std::error::Error for AffinityError {}

/// Cores that the scheduler allows the calling thread, ascending.
pub fn allowed() -> Result<Vec<CoreId>, AffinityError> {
    let set = sched_getaffinity(None).map_err(|e| AffinityError::Unreadable(e.raw_os_error()))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).map(|c| CoreId(c as u16)).collect())
}

/// Cores that the calling thread can be pinned to, ascending: those that it may run on, and those that
/// the kernel isolates, which no thread inherits but any may ask for.
///
/// # Errors
/// The scheduler does not tell.
pub fn pinnable() -> Result<Vec<CoreId>, AffinityError> {
    let isolated = std::fs::read_to_string("/sys/devices/system/cpu/isolated").unwrap_or_default();
    let mut cores = allowed()?;
    cores.extend(parse_core_list(&isolated).unwrap_or_default());
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

/// Checks that every core in `wanted` is in `allowed`.
pub fn check(wanted: &[CoreId], allowed: &[CoreId]) -> Result<(), AffinityError> {
    if wanted.iter().all(|c| allowed.contains(c)) {
        return Ok(());
    }
    Err(AffinityError::NotAllowed { wanted: wanted.to_vec(), allowed: allowed.to_vec() })
}

/// Proof that the thread that holds it is pinned. Not `Send`: it can't leave its thread.
#[derive(Debug)]
pub struct Pinned {
    core: CoreId,
    _not_send: core::marker::PhantomData<*const ()>,
}

impl Pinned {
    /// The core.
    pub fn core(&self) -> CoreId {
        self.core
    }
}

/// Pins the calling thread to `core`, and reads back that it took.
pub fn pin(core: CoreId) -> Result<Pinned, AffinityError> {
    check(&[core], &pinnable()?)?;
    core_affinity::set_for_current(core_affinity::CoreId { id: core.0 as usize });
    let got = self::allowed()?;
    if got != [core] {
        return Err(AffinityError::NotTaken { wanted: core, got });
    }
    Ok(Pinned { core, _not_send: core::marker::PhantomData })
}

/// Lets the calling thread run on `cores` only, whatever it was restricted to before, and reads back
/// that it took. Threads that it starts later inherit it.
///
/// # Errors
/// The scheduler allows this process none of these cores (`allowed` are then the thread's own), or
/// gave others.
pub fn restrict(cores: &[CoreId]) -> Result<(), AffinityError> {
    let before = allowed()?;
    let mut set = CpuSet::new();
    for core in cores.iter().filter(|core| usize::from(core.0) < CpuSet::MAX_CPU) {
        set.set(usize::from(core.0));
    }
    let wanted = || cores.to_vec();
    if sched_setaffinity(None, &set).is_err() {
        return Err(AffinityError::NotAllowed { wanted: wanted(), allowed: before });
    }
    let got = allowed()?;
    let mut sorted = wanted();
    sorted.sort_unstable();
    sorted.dedup();
    if got != sorted {
        return Err(AffinityError::NotAllowed { wanted: wanted(), allowed: before });
    }
    Ok(())
}
