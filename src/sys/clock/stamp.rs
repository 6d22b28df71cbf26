//! Instants for the price of a look at the processor's counter.
//!
//! The kernel's clock is read in order with all that comes before it, which keeps a core from working
//! ahead: on the request path that costs more than what is timed. A [`stamp`] reads the kernel's clock
//! only once in [`WINDOW_NS`] on each thread (an *anchor*), and adds what the counter has counted since.
//! Each thread measures the counter's rate by the kernel's clock, again and again, so a stamp is off by
//! what one anchor is (some tens of nanoseconds), never by what had added up. One that has only begun
//! goes by the rate that another measured. A stamp may be taken
//! before the last few instructions are finished: good for a request's stages, not for a benchmark.
//!
//! The counter is used only where the kernel itself takes its time from it, so that all cores count
//! alike; elsewhere, and before [`prepare`] was called, a stamp is the clock's reading.

use crate::sys::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::Nanos;
use std::cell::Cell;

/// How long an anchor serves, in nanoseconds.
pub const WINDOW_NS: u64 = 500_000;
/// The shortest span by which the counter's rate is measured, in nanoseconds.
const RATE_SPAN_NS_MIN: u64 = 2_000_000;
/// The span after which the rate is measured from a later moment on.
const RATE_SPAN_NS_MAX: u64 = 1_000_000_000;
/// A longer span tells no rate: the machine may have slept in it, and the clock with it.
const RATE_SPAN_NS_TRUSTED_MAX: u64 = 4 * RATE_SPAN_NS_MAX;
/// Two looks at the counter with the clock's reading between them lie closer together, in nanoseconds;
/// else the thread was interrupted, and nobody knows when.
const READING_NS_MAX: u64 = 1_000;
/// A rate has so many bits after the point: nanoseconds for each tick.
const RATE_SHIFT: u32 = 32;

/// The counter, with the clock as it was in between.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub before: u64,
    pub ns: u64,
    pub after: u64,
}

impl Reading {
    fn take() -> Reading {
        let before = counter();
        let ns = super::now().0;
        Reading { before, ns, after: counter() }
    }
    fn width(&self) -> u64 {
        self.after.wrapping_sub(self.before)
    }
    fn ticks(&self) -> u64 {
        self.before.wrapping_add(self.width() / 2)
    }
}

/// Where the counter and the clock were at the same moment, and how they go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Anchor {
    ticks: u64,
    ns: u64,
    /// Ticks for which it serves; 0 if the rate is not known.
    window: u64,
    /// Nanoseconds for each tick, shifted; 0 if not known.
    rate: u64,
    /// Since when the rate is measured.
    from: (u64, u64),
}

impl Anchor {
    pub const NONE: Anchor = Anchor { ticks: 0, ns: 0, window: 0, rate: 0, from: (0, 0) };

    /// The first one; the rate is to be measured from there.
    pub fn measured_from(ticks: u64, ns: u64) -> Anchor {
        Anchor { from: (ticks, ns), ..Anchor::NONE }
    }

    /// The same with a rate to go by meanwhile; 0 if none is known.
    pub fn with_rate(self, rate: u64) -> Anchor {
        Anchor { rate, ..self }
    }

    /// The time at a count; `None` if this anchor is too old for it, or too young.
    #[inline(always)]
    pub fn at(&self, ticks: u64) -> Option<Nanos> {
        let later = ticks.wrapping_sub(self.ticks);
        (later < self.window).then(|| Nanos(self.ns + ((later * self.rate) >> RATE_SHIFT)))
    }

    /// The anchor after this one.
    pub fn next(self, reading: Reading) -> Anchor {
        let (ticks, ns) = (reading.ticks(), reading.ns);
        let span = (ticks.wrapping_sub(self.from.0), ns.saturating_sub(self.from.1));
        let rate = match span {
            (_, RATE_SPAN_NS_MIN..=RATE_SPAN_NS_TRUSTED_MAX) => rate(span),
            _ => self.rate,
        };
        let width_ns = (reading.width() as u128 * rate as u128) >> RATE_SHIFT;
        if width_ns > READING_NS_MAX as u128 {
            // This one's time is over, but what it knows of the rate still holds.
            return self;
        }
        // The counter jumped, or the clock did: from here on, then.
        if self.rate != 0 && rate.abs_diff(self.rate) > self.rate >> 10 {
            return Anchor::measured_from(ticks, ns);
        }
        let window = (WINDOW_NS << RATE_SHIFT).checked_div(rate).unwrap_or(0);
        let from = if span.1 > RATE_SPAN_NS_MAX { (ticks, ns) } else { self.from };
        Anchor { ticks, ns, window, rate, from }
    }
}

/// Nanoseconds for each tick; 0 if that is no number.
fn rate((ticks, ns): (u64, u64)) -> u64 {
    let rate = ((ns as u128) << RATE_SHIFT).checked_div(ticks as u128);
    rate.and_then(|rate| u64::try_from(rate).ok()).unwrap_or(0)
}

thread_local! {
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor::NONE) };
}

/// 1: the counter may be used, and its rate measured from what the other two say.
static TRUSTED: AtomicU32 = AtomicU32::new(0);
static FROM_TICKS: AtomicU64 = AtomicU64::new(0);
static FROM_NS: AtomicU64 = AtomicU64::new(0);
/// The rate as some thread last measured it, for those that begin: 0 if none has, or the counter jumped
/// since. Relaxed everywhere: it stands for itself.
static RATE: AtomicU64 = AtomicU64::new(0);

/// Lets stamps use the processor's counter, if the kernel's clock does. It reads a file, so it is
/// called before requests are served; calls after the first do nothing.
pub fn prepare() {
    if TRUSTED.load(Ordering::Relaxed) != 0 || !kernel_uses_counter() {
        return;
    }
    let readings = (0..16).map(|_| Reading::take());
    let Some(best) = readings.min_by_key(Reading::width) else { return };
    FROM_TICKS.store(best.ticks(), Ordering::Relaxed);
    FROM_NS.store(best.ns, Ordering::Relaxed);
    // Release, with the acquire in `anchor`: the two above.
    TRUSTED.store(1, Ordering::Release);
}

/// The kernel's name for the counter, where [`counter`] reads it.
const COUNTER: Option<&str> = if cfg!(miri) {
    None
} else if cfg!(target_arch = "x86_64") {
    Some("tsc")
} else if cfg!(target_arch = "aarch64") {
    Some("arch_sys_counter")
} else {
    None
};

fn kernel_uses_counter() -> bool {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    COUNTER.is_some()
        && std::fs::read_to_string(path).is_ok_and(|name| Some(name.trim()) == COUNTER)
}

/// The present on [`now`](super::now)'s clock, to some tens of nanoseconds, and perhaps from before the last
/// few instructions are finished: good for a request's stages, not for a benchmark.
#[inline]
pub fn stamp() -> Nanos {
    let anchor = ANCHOR.get();
    if anchor.window != 0
        && let Some(now) = anchor.at(counter())
    {
        return now;
    }
    anchor_here(anchor)
}

#[cold]
#[inline(never)]
fn anchor_here(last: Anchor) -> Nanos {
    // Acquire, with the release in `prepare`.
    if TRUSTED.load(Ordering::Acquire) == 0 {
        return super::now();
    }
    let last = match last.from {
        (0, 0) => Anchor::measured_from(
            FROM_TICKS.load(Ordering::Relaxed),
            FROM_NS.load(Ordering::Relaxed),
        )
        .with_rate(RATE.load(Ordering::Relaxed)),
        _ => last,
    };
    let reading = Reading::take();
    let next = last.next(reading);
    if next.rate != last.rate {
        RATE.store(next.rate, Ordering::Relaxed);
    }
    ANCHOR.set(next);
    Nanos(reading.ns)
}

/// The processor's counter, which goes at a constant rate; not in order with other instructions.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The same, by the generic timer.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: it reads a register; Linux lets programs do so, or does it for them.
    unsafe {
        core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags));
    }
    ticks
}

/// No counter.
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
#[inline(always)]
fn counter() -> u64 {
    0
}

#[cfg(test)]
#[path = "stamp_tests.rs"]
mod tests;
