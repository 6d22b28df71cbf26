//! One model's queue: its slots, its rings by priority, and who may enter.

use super::idle::IdleSet;
use super::refusal::{Failure, Refusal};
use super::ring::IndexRing;
use super::service::ServiceTimes;
use super::slot::{Lease, Notify, SlotPool, Ticket, Work};
use crate::limits::{PRIORITY_LEVELS_MAX, TIMEOUT_US_MAX};
use crate::model::signature::Signature;
use crate::sys::clock;
use crate::sys::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use crate::units::{Micros, ModelId, Nanos, Priority, Rows};
use std::fmt;

/// How a request is to be treated.
#[derive(Debug, Clone, Copy, Default)]
pub struct Submit {
    /// Microseconds from now after which it is not worth running; 0 takes the model's default.
    pub timeout: Micros,
    /// Priority; 0 takes the model's default.
    pub priority: Priority,
    /// Who is told.
    pub notify: Notify,
    /// A number for the client, kept with the slot.
    pub tag: u64,
}

/// What a queue is made from.
#[derive(Debug, Clone)]
pub struct QueueSpec {
    /// The model's number.
    pub id: ModelId,
    /// Its inputs and outputs.
    pub signature: Signature,
    /// `max_queue_size`: requests that may wait.
    pub max_queue_size: u32,
    /// Rows that one request may have.
    pub max_request_rows: Rows,
    /// `priority_levels`.
    pub priority_levels: u8,
    /// Priority of requests that ask for none.
    pub default_priority: Priority,
    /// Deadline of requests that ask for none; 0 is no deadline.
    pub default_timeout: Micros,
    /// Slots beyond the waiting ones: being filled, running, being answered.
    pub extra_slots: u32,
    /// Which workers serve it, as bits.
    pub workers: u64,
}

/// What a worker sees of a queue before it takes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueuedView {
    /// Rows that wait (in all priority levels).
    pub rows: u32,
    /// When the oldest was submitted.
    pub oldest_at: Nanos,
    /// The earliest deadline among those that wait; `Nanos(u64::MAX)` if none has one.
    pub earliest_deadline: Nanos,
}

/// How many requests a call to [`ModelQueue::take`] gave and dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TakeStats {
    /// Rows taken.
    pub rows: u32,
}

/// Counters of the client's side; each is a statistic.
#[derive(Debug, Default)]
pub(crate) struct QueueCounters {
    pub refused: [AtomicU64; 6],
    pub abandoned: [AtomicU64; Failure::ALL.len()],
}

/// A model's queue.
pub struct ModelQueue {
    pub(super) id: ModelId,
    pub(super) signature: Signature,
    pub(super) pool: SlotPool,
    free: IndexRing,
    levels: Box<[IndexRing]>,
    spec: QueueSpec,
    idle: Arc<IdleSet>,
    service: ServiceTimes,
    entry: Entry,
    exit: Exit,
    closed: AtomicBool,
    pub(crate) counters: QueueCounters,
}

/// What every submission writes, on lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Entry {
    /// Requests that wait, in the upper half; their rows, in the lower.
    waiting: AtomicU64,
    /// Requests accepted so far.
    accepted: AtomicU64,
}

/// What every end of a request writes.
#[derive(Default)]
#[repr(align(128))]
struct Exit {
    /// Requests answered or given up so far.
    finished: AtomicU64,
}

/// One waiting request of `rows` rows, as [`Entry::waiting`] counts.
fn one_waiting(rows: Rows) -> u64 {
    (1 << 32) | rows.0 as u64
}

impl fmt::Debug for ModelQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelQueue({}, {} slots)", self.id, self.pool.slots.len())
    }
}

impl ModelQueue {
    /// A queue with all its memory.
    ///
    /// # Panics
    /// If a count in `spec` is zero or over its limit; configuration checks that first.
    pub fn new(spec: QueueSpec, idle: Arc<IdleSet>, service: ServiceTimes) -> Arc<Self> {
        let count = (spec.max_queue_size + spec.extra_slots) as usize;
        assert!((1..=PRIORITY_LEVELS_MAX).contains(&(spec.priority_levels as usize)));
        assert!((1..=crate::limits::SLOTS_PER_MODEL_MAX).contains(&count));
        let rows = spec.max_request_rows.0 as usize;
        let pool = SlotPool::new(
            count,
            spec.signature.input_layout(rows).1,
            spec.signature.output_layout(rows).1,
        );
        let free = IndexRing::new(count);
        for index in 0..count as u32 {
            free.push(index).expect("the free ring holds every slot");
        }
        Arc::new(ModelQueue {
            id: spec.id,
            signature: spec.signature.clone(),
            pool,
            free,
            levels: (0..spec.priority_levels).map(|_| IndexRing::new(count)).collect(),
            spec,
            idle,
            service,
            entry: Entry::default(),
            exit: Exit::default(),
            closed: AtomicBool::new(false),
            counters: QueueCounters::default(),
        })
    }

    /// The model's number.
    pub fn id(&self) -> ModelId {
        self.id
    }

    /// Inputs and outputs.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// What it was made from.
    pub fn spec(&self) -> &QueueSpec {
        &self.spec
    }

    /// Measured service times.
    pub fn service(&self) -> &ServiceTimes {
        &self.service
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.pool.slots.len()
    }

    /// Bytes of all slots.
    pub fn slot_bytes(&self) -> usize {
        self.pool.bytes()
    }

    /// Requests that wait.
    pub fn queued(&self) -> u32 {
        (self.entry.waiting.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Requests accepted so far.
    pub fn accepted(&self) -> u64 {
        self.entry.accepted.load(Ordering::Relaxed)
    }

    /// Requests that were accepted and are not answered (waiting or running).
    pub fn outstanding(&self) -> u32 {
        // Finished first: it never overtakes. Acquire, with the release in `left`: a drain that
        // sees zero sees every answer. SeqCst: see `submit`.
        let finished = self.exit.finished.load(Ordering::Acquire);
        self.entry.accepted.load(Ordering::SeqCst).wrapping_sub(finished) as u32
    }

    /// Accepts nothing more; what is accepted still runs.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.idle.wake_all(self.spec.workers);
    }

    /// Whether it accepts nothing more.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn refuse(&self, refusal: Refusal) -> Refusal {
        let kind = match refusal {
            Refusal::QueueFull { .. } => 0,
            Refusal::DeadlineUnmeetable { .. } => 1,
            Refusal::WrongRows { .. } => 2,
            Refusal::BadPriority { .. } => 3,
            Refusal::TimeoutTooLong { .. } => 4,
            Refusal::ShuttingDown => 5,
        };
        self.counters.refused[kind].fetch_add(1, Ordering::Relaxed);
        refusal
    }

    /// Takes a free slot for a request of `rows` rows.
    ///
    /// # Errors
    /// Wrong number of rows, no free slot, or shutting down.
    pub fn lease(self: &Arc<Self>, rows: Rows) -> Result<Lease, Refusal> {
        let max = self.spec.max_request_rows;
        if rows.0 == 0 || rows > max {
            return Err(self.refuse(Refusal::WrongRows { rows: rows.0 as u32, max: max.0 as u32 }));
        }
        if self.is_closed() {
            return Err(self.refuse(Refusal::ShuttingDown));
        }
        let Some(index) = self.free.pop() else {
            return Err(self.refuse(self.full()));
        };
        self.pool.slots[index as usize].state.lease();
        let (_, bytes) = self.signature.input_layout(rows.0 as usize);
        Ok(Lease::new(self.clone(), index, rows, bytes))
    }

    fn full(&self) -> Refusal {
        Refusal::QueueFull { queued: self.queued(), max: self.spec.max_queue_size }
    }

    pub(super) fn submit(lease: Lease, options: Submit) -> Result<Ticket, Refusal> {
        let queue = lease.queue().clone();
        let now = clock::now();
        let priority = match options.priority {
            Priority(0) => queue.spec.default_priority,
            given => given,
        };
        if priority.0 == 0 || priority.0 > queue.spec.priority_levels {
            let levels = queue.spec.priority_levels;
            return Err(queue.refuse(Refusal::BadPriority { priority: priority.0, levels }));
        }
        let timeout = match options.timeout {
            Micros(0) => queue.spec.default_timeout,
            given => given,
        };
        if timeout.0 > TIMEOUT_US_MAX {
            let refusal = Refusal::TimeoutTooLong { given_us: timeout.0, max_us: TIMEOUT_US_MAX };
            return Err(queue.refuse(refusal));
        }
        let deadline = match timeout {
            Micros(0) => Nanos(u64::MAX),
            given => now.after(given.into()),
        };
        if timeout.0 != 0 {
            let needed = queue.estimate(lease.rows()).0.div_ceil(1_000);
            if needed > timeout.0 as u64 {
                return Err(queue.refuse(Refusal::DeadlineUnmeetable {
                    needed_us: needed.min(u32::MAX as u64) as u32,
                    given_us: timeout.0,
                }));
            }
        }
        // Admission: count first, so that the bound holds among racing clients.
        let one = one_waiting(lease.rows());
        let waiting = queue.entry.waiting.fetch_add(one, Ordering::Relaxed);
        if waiting >> 32 >= queue.spec.max_queue_size as u64 {
            queue.entry.waiting.fetch_sub(one, Ordering::Relaxed);
            return Err(queue.refuse(queue.full()));
        }
        // SeqCst twice over: a drain closes first and then looks at `accepted`; this counts first
        // and then looks at `closed`. Either this sees the close or the drain sees this request.
        // Release, with the acquire in `version`: whoever sees it sees the count above.
        queue.entry.accepted.fetch_add(1, Ordering::SeqCst);
        if queue.is_closed() {
            queue.entry.waiting.fetch_sub(one, Ordering::Relaxed);
            queue.left();
            return Err(queue.refuse(Refusal::ShuttingDown));
        }
        let (_, index, rows) = lease.into_parts();
        let slot = &queue.pool.slots[index as usize];
        // SAFETY: the lease, consumed above, was the only token and the state is still FILLING.
        unsafe {
            slot.state.record(|r| {
                r.rows = rows;
                r.notify = options.notify;
                r.tag = options.tag;
                r.submitted_at = now;
            })
        };
        slot.rows.store(rows.0 as u32, Ordering::Relaxed);
        slot.deadline.store(deadline.0, Ordering::Relaxed);
        slot.submitted_at.store(now.0, Ordering::Relaxed);
        slot.state.submit();
        queue.levels[priority.0 as usize - 1]
            .push(index)
            .expect("a level's ring holds every slot of the model");
        queue.idle.wake_one(queue.spec.workers);
        Ok(Ticket::new(queue, index, rows, deadline))
    }

    /// How long a request of `rows` rows is estimated to take from now: what waits ahead of it, at
    /// the best measured time per row, over the model's workers, and its own run.
    fn estimate(&self, rows: Rows) -> Nanos {
        let ahead = self.entry.waiting.load(Ordering::Relaxed) & u32::MAX as u64;
        self.service.estimate(rows, ahead, self.spec.workers)
    }

    /// What waits. The deadline and the age are read only if `look` (a worker with a configured
    /// delay needs them); else they are `Nanos(u64::MAX)` and the present.
    pub fn view(&self, look: bool, now: Nanos) -> QueuedView {
        let mut view = QueuedView { rows: 0, oldest_at: now, earliest_deadline: Nanos(u64::MAX) };
        view.rows = self.entry.waiting.load(Ordering::Relaxed) as u32;
        if look {
            for level in &self.levels {
                level.peek_each(|index| {
                    let slot = &self.pool.slots[index as usize];
                    let at = Nanos(slot.submitted_at.load(Ordering::Relaxed));
                    let deadline = Nanos(slot.deadline.load(Ordering::Relaxed));
                    view.oldest_at = view.oldest_at.min(at);
                    view.earliest_deadline = view.earliest_deadline.min(deadline);
                    true
                });
            }
        }
        view
    }

    /// Changes with every request that is accepted, before it is in its ring.
    #[inline]
    pub fn version(&self) -> u64 {
        self.entry.accepted.load(Ordering::Acquire)
    }

    /// Recycles requests that were given up and are at the heads of their levels.
    pub fn sweep(&self) {
        for level in &self.levels {
            let given_up = |index: u32| self.pool.slots[index as usize].state.is_abandoned();
            while let Some(index) = level.pop_if(given_up) {
                self.pool.slots[index as usize].state.recycle_abandoned();
                self.put_free(index);
            }
        }
    }

    /// Whether anything is in a ring (given-up requests included).
    pub fn has_work(&self) -> bool {
        self.levels.iter().any(|l| !l.is_empty())
    }

    /// Takes requests of up to `rows_max` rows in all, highest priority first, oldest first within
    /// a level, and gives each to `f`. Given-up requests on the way are recycled. A request that
    /// would go over `rows_max` stays at the head of its level, unless it is the first: a request of
    /// more rows than are worth batching must run all the same.
    pub fn take(
        self: &Arc<Self>,
        rows_max: u32,
        requests_max: usize,
        now: Nanos,
        mut f: impl FnMut(Work),
    ) -> TakeStats {
        let mut stats = TakeStats::default();
        let mut requests = 0;
        for level in &self.levels {
            while requests < requests_max {
                let room = rows_max.saturating_sub(stats.rows);
                if room == 0 {
                    return stats;
                }
                let fits = |index: u32| {
                    requests == 0
                        || self.pool.slots[index as usize].rows.load(Ordering::Relaxed) <= room
                };
                let Some(index) = level.pop_if(fits) else { break };
                if let Some(work) = Work::take(self, index, now) {
                    stats.rows += work.rows().0 as u32;
                    requests += 1;
                    f(work);
                }
            }
        }
        stats
    }

    /// Wakes a sleeping worker other than `except`, if something waits.
    pub fn wake_another(&self, except: usize) {
        if self.has_work() {
            self.idle.wake_one(self.spec.workers & !(1 << except));
        }
    }

    /// A request stopped waiting: a worker took it.
    pub(super) fn left_queue(&self, rows: Rows) {
        self.entry.waiting.fetch_sub(one_waiting(rows), Ordering::Relaxed);
    }

    /// A request that waited was given up by its client.
    pub(super) fn abandoned(&self, rows: Rows, reason: Failure) {
        self.left_queue(rows);
        self.left();
        self.counters.abandoned[reason as usize].fetch_add(1, Ordering::Relaxed);
        // Its slot stays in the ring until a worker comes by; a sleeping one would not.
        self.idle.wake_one(self.spec.workers);
    }

    /// A request was answered, or given up.
    pub(super) fn left(&self) {
        // Release, with the acquire in `outstanding`.
        self.exit.finished.fetch_add(1, Ordering::Release);
    }

    pub(super) fn put_free(&self, index: u32) {
        self.free.push(index).expect("the free ring holds every slot");
    }
}
