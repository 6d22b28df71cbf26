//! The pinned loop: one thread per configured core, each with its own engine instances.
//!
//! A worker looks at the queues of its models, picks the one that is furthest behind its fair share
//! (virtual time: compute time over weight), asks the batch policy, takes requests, runs them, and
//! answers. It idles as its strategy says. Once the runtime is ready it calls no system
//! allocator if its engines keep the contract; recovery from a panic inside an engine is the
//! exception, since unwinding itself allocates.

mod idle;
mod run;
mod tend;
mod version;
mod warm;

pub use idle::IdleStrategy;
pub use version::{Orders, Version};

use crate::batch::{self, BatchSettings, Decision, SizeCost, Waiting};
use crate::engine::Engine;
use crate::limits::BATCH_SIZES_MAX;
use crate::metrics::{LaneStats, WorkerPhase, WorkerStats};
use crate::queue::SharedQueue;
use crate::queue::completion::CompletionSender;
use crate::queue::exchange::Exchange;
use crate::queue::idle::IdleSet;
use crate::sys::events::{self, Event, tell};
use crate::sys::realtime::{Outcome, ThreadOptions};
use crate::sys::sync::{Arc, Ordering};
use crate::sys::{affinity, alloc, clock, memory};
use crate::units::{CoreId, ModelId, Nanos, WorkerId};
use std::sync::mpsc;

/// A model as a worker serves it.
pub struct Lane {
    /// Its queue.
    pub queue: SharedQueue,
    /// The loaded model.
    pub engine: Arc<dyn Engine>,
    /// How it wants to be batched.
    pub batch: BatchSettings,
    /// Its fair share against the worker's other models; at least 1.
    pub weight: u32,
    /// Runs of each batch size before the timed ones.
    pub warmup_runs: u32,
    /// This worker's counters for it.
    pub stats: Arc<LaneStats>,
    /// Where its next version is offered.
    pub exchange: Arc<Exchange<Version>>,
}

/// What a worker is made from.
pub struct WorkerSpec {
    /// Its number.
    pub id: WorkerId,
    /// The core to pin to; `None` runs unpinned.
    pub core: Option<CoreId>,
    /// Kind of its core, by position in [`ServiceTimes`](crate::queue::ServiceTimes).
    pub kind: usize,
    /// What is asked of the kernel for its thread.
    pub thread: ThreadOptions,
    /// What it does when nothing waits.
    pub idle: IdleStrategy,
    /// The models that it serves.
    pub lanes: Vec<Lane>,
    /// Where its completions go.
    pub completions: CompletionSender,
    /// Who sleeps.
    pub idle_set: Arc<IdleSet>,
    /// What it is told while it serves.
    pub orders: Arc<Orders>,
    /// Its own counters.
    pub stats: Arc<WorkerStats>,
}

/// What a worker says once it has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Which worker.
    pub id: WorkerId,
    /// The core that it is pinned to.
    pub core: Option<CoreId>,
    /// What became of the options of its thread.
    pub thread: Vec<Outcome>,
}

/// Why a worker could not start.
#[derive(Debug)]
pub enum StartError {
    /// The pin did not take.
    Affinity(affinity::AffinityError),
    /// An engine gave no instance, or failed its warm-up.
    Engine {
        /// The model, by its position in the runtime.
        model: ModelId,
        /// Why.
        reason: String,
    },
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StartError::Affinity(e) => e.fmt(f),
            StartError::Engine { model, reason } => write!(f, "model {model}: {reason}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A lane with what only the worker's thread touches.
struct Live {
    queue: SharedQueue,
    stats: Arc<LaneStats>,
    exchange: Arc<Exchange<Version>>,
    /// Kind of the worker's core.
    kind: usize,
    version: Version,
    virtual_time: u64,
    backlogged: bool,
    /// Its queue's version when the policy said to wait; `None` if nothing waited.
    waits_since: Option<u64>,
}

impl Live {
    /// Whether there is something that was not there when the lane was looked at. Then it will be taken.
    #[inline(always)]
    fn anything_new(&self) -> bool {
        match self.waits_since {
            // The ring itself: its head is the line that a client writes first.
            None => self.queue.has_work_ahead(),
            // The policy waits for nobody where a queue hurries, so it did not yet.
            Some(version) => self.queue.version() != version || self.queue.hurries(),
        }
    }
}

struct Worker {
    spec_id: WorkerId,
    idle: idle::Idle,
    lanes: Vec<Live>,
    completions: CompletionSender,
    idle_set: Arc<IdleSet>,
    orders: Arc<Orders>,
    /// The orders that it has followed.
    followed: u64,
    stats: Arc<WorkerStats>,
    virtual_now: u64,
    /// Whether it comes from a spin that found something.
    ahead: bool,
    /// In the I/O thread's seat: whether it waited there since its last run.
    waited: bool,
}

/// Starts a worker's thread. It reports once on `ready`, then serves until told to stop.
///
/// # Errors
/// If the system gives no thread.
pub fn spawn(
    spec: WorkerSpec,
    ready: mpsc::Sender<Result<Started, StartError>>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(format!("cl-worker-{}", spec.id)).spawn(move || {
        match Worker::start(spec) {
            Ok((mut worker, started)) => {
                events::thread_starts();
                let thread = memory::this_thread();
                let faults = memory::page_faults(thread).unwrap_or(0);
                worker.stats.faults_at_ready.store(faults, Ordering::Relaxed);
                worker.stats.thread.store(thread.into(), Ordering::Relaxed);
                // The receiver is gone only if the runtime gave up starting.
                if ready.send(Ok(started)).is_err() {
                    return;
                }
                drop(ready);
                alloc::set_hot(true);
                // Release: whoever sees it sees that this thread has let go of what it started with.
                // Partner: the acquire in the runtime's start.
                worker.stats.phase.store(WorkerPhase::Idle as u64, Ordering::Release);
                let (id, models) = (worker.spec_id.0, worker.lanes.len() as u16);
                tell(Event::WorkerServes { worker: id, models });
                worker.serve();
                alloc::set_hot(false);
                worker.phase(WorkerPhase::Stopped);
            }
            Err(e) => drop(ready.send(Err(e))),
        }
    })
}

impl Worker {
    fn start(spec: WorkerSpec) -> Result<(Worker, Started), StartError> {
        let core = match spec.core {
            Some(core) => Some(affinity::pin(core).map_err(StartError::Affinity)?.core()),
            None => None,
        };
        let mut lanes = Vec::with_capacity(spec.lanes.len());
        for lane in spec.lanes {
            let model = lane.queue.id();
            let failed = |reason: String| StartError::Engine { model, reason };
            let instance = lane.engine.instance().map_err(|e| failed(e.to_string()))?;
            let Lane { queue, engine, batch, weight, warmup_runs, stats, exchange } = lane;
            let bank = queue.bank();
            let mut version = Version::new(engine, instance, batch, weight, bank);
            let times = version.warm_up(warmup_runs).map_err(|e| failed(e.to_string()))?;
            for (i, &time) in times.iter().enumerate() {
                queue.service_of(bank).observe(spec.kind, i, time);
            }
            lanes.push(Live {
                queue,
                stats,
                exchange,
                version,
                virtual_time: 0,
                backlogged: false,
                waits_since: None,
                kind: spec.kind,
            });
        }
        // Last, so that loading and warming up don't hold up the rest of the system.
        let thread = spec.thread.apply(&format!("cl-worker-{}", spec.id));
        let started = Started { id: spec.id, core, thread };
        let worker = Worker {
            spec_id: spec.id,
            idle: idle::Idle::new(spec.idle),
            lanes,
            completions: spec.completions,
            idle_set: spec.idle_set,
            // What is offered before it serves is followed in its first turn.
            followed: 0,
            orders: spec.orders,
            stats: spec.stats,
            virtual_now: 0,
            ahead: false,
            waited: false,
        };
        Ok((worker, started))
    }

    fn phase(&self, phase: WorkerPhase) {
        self.stats.phase.store(phase as u64, Ordering::Relaxed);
    }

    fn serve(&mut self) {
        let mut now = clock::now();
        loop {
            let orders = self.orders.get();
            if orders != self.followed {
                self.follow(orders);
            }
            let turn = self.turn(now);
            self.ahead = false;
            let wait_until = match turn {
                // The next turn begins where the run ended.
                Turn::Ran { end } => {
                    now = if self.completions.sitter().sits() { self.tend() } else { end };
                    continue;
                }
                Turn::Idle { until } => until,
            };
            if Orders::says_stop(self.followed) {
                self.completions.sitter().bring_home();
                return;
            }
            now = if self.completions.sitter().sits() {
                self.rest_in_seat(wait_until)
            } else {
                self.rest(now, wait_until)
            };
        }
    }

    /// Takes the versions that are offered, between two batches.
    #[cold]
    #[inline(never)]
    fn follow(&mut self, orders: u64) {
        self.followed = orders;
        for live in &mut self.lanes {
            let sizes = live.version.sizes.clone();
            if live.exchange.trade(&mut live.version) {
                // Looked at under the old version's settings.
                live.waits_since = None;
                if sizes != live.version.sizes {
                    // Counted by position; a position stands for another size now.
                    live.stats.ran.iter().for_each(|n| n.store(0, Ordering::Relaxed));
                }
                let (worker, model) = (self.spec_id.0, live.queue.id().0);
                tell(Event::VersionTaken { worker, model });
            }
        }
    }

    /// Looks at all lanes once and runs the batch that is most due, if one closes.
    #[inline(always)]
    fn turn(&mut self, now: Nanos) -> Turn {
        let mut until = Nanos(u64::MAX);
        let mut best: Option<(usize, u32, crate::units::CloseReason)> = None;
        for n in 0..self.lanes.len() {
            match self.look(n, now) {
                Decision::Nothing => self.lanes[n].backlogged = false,
                Decision::Wait { until: u } => until = until.min(u),
                Decision::Close { rows, reason } => {
                    let live = &mut self.lanes[n];
                    if !live.backlogged {
                        // No credit for time in which it wanted nothing.
                        live.virtual_time = live.virtual_time.max(self.virtual_now);
                        live.backlogged = true;
                    }
                    let due = live.virtual_time;
                    if best.is_none_or(|(b, ..)| due < self.lanes[b].virtual_time) {
                        best = Some((n, rows, reason));
                    }
                }
            }
        }
        let Some((n, rows, reason)) = best else { return Turn::Idle { until } };
        self.virtual_now = self.lanes[n].virtual_time;
        if self.completions.sitter().sits() {
            self.leave_seat(n, rows);
        }
        match self.run(n, rows, reason, now) {
            Some(end) => Turn::Ran { end },
            // Others took it, or its client gave it up: nothing is left to wait for that would not
            // show as new.
            None => Turn::Idle { until },
        }
    }

    #[inline(always)]
    fn look(&mut self, n: usize, now: Nanos) -> Decision {
        let live = &mut self.lanes[n];
        let queue = &live.queue;
        let Version { batch: settings, sizes, bank, .. } = &live.version;
        let delayed = settings.max_queue_delay.0 != 0;
        // Read before the ring is: what comes later is new.
        let version = delayed.then(|| queue.version());
        let view = queue.view(delayed, settings.max_batch_size, self.ahead, now);
        live.waits_since = None;
        if view.rows == 0 {
            queue.sweep();
            return Decision::Nothing;
        }
        let mut costs = heapless::Vec::<SizeCost, BATCH_SIZES_MAX>::new();
        let service = queue.service_of(*bank);
        for (i, &size) in sizes.iter().enumerate() {
            let _ = costs.push(SizeCost { size, time: service.get(live.kind, i) });
        }
        let waiting = Waiting {
            rows: view.rows,
            oldest_at: view.oldest_at,
            earliest_deadline: view.earliest_deadline,
        };
        let decision = batch::decide(settings, waiting, &costs, queue.hurries(), now);
        if matches!(decision, Decision::Wait { .. }) {
            live.waits_since = version;
        }
        decision
    }

    /// Whether a lane changed since it was looked at.
    #[inline(always)]
    fn anything_new(&self) -> bool {
        for live in &self.lanes {
            if live.anything_new() {
                return true;
            }
        }
        self.orders.get() != self.followed
    }

    /// Spins, then sleeps, as the strategy says, until something is new or `until`. Returns the
    /// present; `start` is when it was last looked at.
    fn rest(&mut self, start: Nanos, until: Nanos) -> Nanos {
        let me = self.spec_id.0 as usize;
        let budget = self.idle.spin_budget();
        if budget.0 > 0 {
            let spin_end = start.after(budget).min(until);
            let found = self.spin_until(spin_end);
            let now = clock::stamp();
            LaneStats::bump(&self.stats.spin_ns, now.since(start).0);
            self.idle.learn(found);
            if found {
                self.ahead = true;
                return now;
            }
        }
        self.idle_set.announce(me);
        if self.anything_new() {
            self.idle_set.cancel(me);
            return clock::now();
        }
        self.phase(WorkerPhase::Parked);
        LaneStats::bump(&self.stats.parks, 1);
        let slept_at = clock::now();
        let timeout = (until.0 != u64::MAX).then(|| until.since(slept_at));
        self.idle_set.sleep(me, timeout);
        let now = clock::now();
        self.idle.slept(now.since(slept_at));
        tell(Event::WorkerSlept { ns: now.since(slept_at).0 });
        self.phase(WorkerPhase::Idle);
        now
    }

    fn spin_until(&self, end: Nanos) -> bool {
        loop {
            // The clock is read once in a while; looking is what the spin is for.
            for _ in 0..32 {
                if self.anything_new() {
                    return true;
                }
                crate::sys::sync::spin_turn();
            }
            if clock::stamp() >= end {
                return false;
            }
        }
    }
}

enum Turn {
    Ran { end: Nanos },
    Idle { until: Nanos },
}
