//! A worker in the I/O thread's seat: it reads the next request itself, and no other thread is woken for
//! it. See [`seat`](crate::queue::seat).

use super::Worker;
use crate::limits::LONE_RUN_US_MAX;
use crate::metrics::{LaneStats, WorkerPhase};
use crate::queue::seat::Next;
use crate::sys::clock;
use crate::units::Nanos;

const LONE_RUN_MAX: Nanos = Nanos(LONE_RUN_US_MAX * 1_000);

impl Worker {
    /// Before a run: leaves the seat open if the run is short and came by a wait; else the seat goes
    /// home. Runs that follow one another are of clients that don't come through the connections, which
    /// would wait for them all.
    pub(super) fn leave_seat(&mut self, n: usize, rows: u32) {
        let live = &self.lanes[n];
        let index = live.version.sizes.iter().position(|&size| size >= rows);
        let time = index.map(|i| live.queue.service_of(live.version.bank).get(live.kind, i));
        let short = time.is_some_and(|time| time <= LONE_RUN_MAX);
        let sitter = self.completions.sitter();
        if short && std::mem::take(&mut self.waited) {
            sitter.leave_open();
        } else {
            sitter.bring_home();
        }
    }

    /// Tends the connections for a turn. Returns the present.
    pub(super) fn tend(&mut self) -> Nanos {
        self.idle_set.attend(self.spec_id.0 as usize);
        let next = self.completions.sitter().turn();
        self.idle_set.attended();
        if next == Next::Home {
            self.completions.sitter().bring_home();
        }
        clock::stamp()
    }

    /// Waits for bytes, for other work, or until `until`, and tends the connections. Returns the present.
    pub(super) fn rest_in_seat(&mut self, until: Nanos) -> Nanos {
        let me = self.spec_id.0 as usize;
        self.phase(WorkerPhase::Parked);
        LaneStats::bump(&self.stats.parks, 1);
        self.idle_set.announce_in_seat(me);
        let (orders, followed, lanes) = (&self.orders, self.followed, &self.lanes);
        let found = || orders.get() != followed || lanes.iter().any(super::Live::anything_new);
        let next = self.completions.sitter().wait(until, &found);
        self.idle_set.cancel(me);
        self.phase(WorkerPhase::Idle);
        self.waited = true;
        if next == Next::Stay {
            return self.tend();
        }
        self.completions.sitter().bring_home();
        // Of two that wake it at once one pokes, and the other counts on its looking now.
        self.idle_set.attended();
        clock::stamp()
    }
}
