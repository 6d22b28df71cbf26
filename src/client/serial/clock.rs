//! Time in microseconds from any `embedded-time` clock.

use core::mem::size_of;
use embedded_time::Clock;

/// A clock whose ticks may be of any length and wrap around; it must be read at least once per wrap
/// while a request is in flight. A step back, as a driver's race between counter and interrupt makes
/// it, counts as no time at all: taken for a wrap, it would end every deadline at once.
#[derive(Debug)]
pub(super) struct Ticks<C: Clock> {
    clock: C,
    last: Option<u64>,
    now_us: u64,
    /// What was left over by the division, in the clock's units.
    rest: u64,
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl<C: Clock> Ticks<C>
where
    C::T: Into<u64>,
{
    /// Microseconds of one tick, as a fraction: 1 below wherever a tick is whole microseconds.
    const MICROS: (u64, u64) = {
        let above = 1_000_000 * *C::SCALING_FACTOR.numerator() as u64;
        let below = *C::SCALING_FACTOR.denominator() as u64;
        let common = gcd(above, below);
        (above / common, below / common)
    };

    pub const fn new(clock: C) -> Self {
        Ticks { clock, last: None, now_us: 0, rest: 0 }
    }
    /// Microseconds since the first call.
    pub fn now(&mut self) -> Result<u64, embedded_time::clock::Error> {
        let ticks: u64 = self.clock.try_now()?.duration_since_epoch().integer().into();
        let elapsed = ticks.wrapping_sub(self.last.unwrap_or(ticks));
        let range = if size_of::<C::T>() == 4 { u64::from(u32::MAX) } else { u64::MAX };
        let elapsed = elapsed & range;
        // Back by less than a 256th of the range: no clock is left alone until so shortly before its wrap.
        let elapsed = if elapsed > range - range / 256 { 0 } else { elapsed };
        self.last = Some(ticks);
        let (above, below) = Self::MICROS;
        match elapsed.checked_mul(above).and_then(|scaled| scaled.checked_add(self.rest)) {
            Some(scaled) => {
                self.now_us = self.now_us.saturating_add(scaled / below);
                self.rest = scaled % below;
            }
            // Hours between two calls; the remainder is not worth keeping.
            None => self.now_us = self.now_us.saturating_add(elapsed / below * above),
        }
        Ok(self.now_us)
    }
}
