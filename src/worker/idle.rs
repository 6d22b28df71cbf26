//! What a worker does when nothing waits.

use crate::units::{Micros, Nanos};
use serde::{Deserialize, Serialize};

/// What a worker does when nothing waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleStrategy {
    /// Sleeps at once: the least power, a wake-up per request.
    #[default]
    Park,
    /// Spins for so many microseconds, then sleeps.
    SpinUs(Micros),
    /// Spins only while that has lately paid: while requests come sooner than
    /// `ADAPTIVE_SPIN_US_MAX` after one another.
    Adaptive,
}

/// The most that [`IdleStrategy::Adaptive`] spins before it sleeps, in microseconds.
pub const ADAPTIVE_SPIN_US_MAX: u32 = 50;

/// The strategy with what it learnt.
pub(super) struct Idle {
    strategy: IdleStrategy,
    budget: Nanos,
}

const FLOOR: Nanos = Nanos(1_000);

impl Idle {
    pub fn new(strategy: IdleStrategy) -> Self {
        let budget = match strategy {
            IdleStrategy::Park => Nanos(0),
            IdleStrategy::SpinUs(us) => us.into(),
            IdleStrategy::Adaptive => FLOOR,
        };
        Idle { strategy, budget }
    }

    pub fn spin_budget(&self) -> Nanos {
        self.budget
    }

    /// After a spin: whether it found work.
    pub fn learn(&mut self, found: bool) {
        if self.strategy == IdleStrategy::Adaptive && !found {
            self.budget = Nanos((self.budget.0 / 2).max(FLOOR.0));
        }
    }

    /// After a sleep of `span`: a short one would have been worth spinning for.
    pub fn slept(&mut self, span: Nanos) {
        let most = Nanos::from(Micros(ADAPTIVE_SPIN_US_MAX));
        if self.strategy == IdleStrategy::Adaptive && span < most {
            self.budget = Nanos((self.budget.0 * 2).max(span.0 * 2)).min(most);
        }
    }
}
