//! One model's queue: its slots, its rings by priority, and who may enter.

use super::asked::{Notify, Queued};
use super::idle::IdleSet;
use super::keep::Keep;
use super::owner::SharedQueue;
use super::refusal::{Failure, Refusal, RefusalReason};
use super::ring::{IndexRing, Place};
use super::service::ServiceTimes;
use super::slot::{Lease, SlotPool, Ticket, Work};
use crate::limits::{PRIORITY_LEVELS_MAX, TIMEOUT_US_MAX};
use crate::model::signature::{Layouts, Signature};
use crate::sys::clock;
use crate::sys::sync::{Arc, AtomicU32, AtomicU64, Ordering};
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
    /// Deadline of requests that ask for none, at first; 0 is no deadline.
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

/// Counters of the client's side; each is a statistic.
#[derive(Debug, Default)]
pub(crate) struct QueueCounters {
    pub refused: [AtomicU64; RefusalReason::ALL.len()],
    pub abandoned: [AtomicU64; Failure::ALL.len()],
}

/// A model's queue.
pub struct ModelQueue {
    pub(super) id: ModelId,
    signature: Signature,
    /// By rows, so that no request computes them again.
    pub(super) inputs: Layouts,
    pub(super) outputs: Layouts,
    pub(super) pool: SlotPool,
    pub(super) keep: Keep,
    levels: Box<[IndexRing]>,
    spec: QueueSpec,
    idle: Arc<IdleSet>,
    /// Of the present version and of the one before or after it, by [`bank`](Self::bank).
    services: [ServiceTimes; 2],
    bank: AtomicU32,
    /// In microseconds.
    default_timeout: AtomicU32,
    entry: Entry,
    /// One for each worker, by its number, and the last for the clients.
    exits: Box<[Exit]>,
    /// Where it is on its way to the end.
    phase: AtomicU32,
    pub(crate) counters: QueueCounters,
}

const OPEN: u32 = 0;
const HURRIES: u32 = 1;
const CLOSED: u32 = 2;

/// What every submission writes, on lines of its own: workers look here only for statistics, so the
/// lines stay with the clients.
#[derive(Default)]
#[repr(align(128))]
struct Entry {
    /// Requests that came to wait so far.
    entered: AtomicU64,
    /// Their rows beyond the first of each.
    further_rows: AtomicU64,
    /// Requests that left so far, as a client last saw it: never ahead of the truth.
    left_seen: AtomicU64,
}

/// What the ends of requests write: a worker those that it takes, with loads and stores, since it
/// alone writes its own; clients those that they give up.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Exit {
    /// Requests that wait no more.
    left: AtomicU64,
    /// Their rows beyond the first of each.
    further_rows: AtomicU64,
    /// Requests answered or given up.
    finished: AtomicU64,
}

impl Exit {
    /// Its worker took a request.
    #[inline]
    pub fn taken(&self, rows: Rows) {
        let bump = |counter: &AtomicU64, n: u64| {
            counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        };
        bump(&self.left, 1);
        if rows.0 > 1 {
            bump(&self.further_rows, rows.0 as u64 - 1);
        }
    }

    /// Its worker ended a request.
    #[inline]
    pub fn ended(&self) {
        // Release, with the acquire in `outstanding`.
        self.finished.store(self.finished.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// A client gave a waiting request up.
    fn given_up(&self, rows: Rows) {
        self.left.fetch_add(1, Ordering::Relaxed);
        self.further_rows.fetch_add(rows.0 as u64 - 1, Ordering::Relaxed);
        // Release, with the acquire in `outstanding`.
        self.finished.fetch_add(1, Ordering::Release);
    }
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
    pub fn make(spec: QueueSpec, idle: Arc<IdleSet>, service: ServiceTimes) -> SharedQueue {
        let count = (spec.max_queue_size + spec.extra_slots) as usize;
        assert!((1..=PRIORITY_LEVELS_MAX).contains(&(spec.priority_levels as usize)));
        assert!((1..=crate::limits::SLOTS_PER_MODEL_MAX).contains(&count));
        let rows = spec.max_request_rows.0 as usize;
        let pool = SlotPool::new(
            count,
            spec.signature.input_layout(rows).1,
            spec.signature.output_layout(rows).1,
        );
        let workers_end = u64::BITS - spec.workers.leading_zeros();
        let twin = service.twin();
        let queue = ModelQueue {
            id: spec.id,
            inputs: Layouts::new(&spec.signature.inputs, rows),
            outputs: Layouts::new(&spec.signature.outputs, rows),
            signature: spec.signature.clone(),
            pool,
            keep: Keep::new(count),
            levels: (0..spec.priority_levels).map(|_| IndexRing::new(count)).collect(),
            default_timeout: AtomicU32::new(spec.default_timeout.0),
            spec,
            idle,
            services: [service, twin],
            bank: AtomicU32::new(0),
            entry: Entry::default(),
            exits: (0..=workers_end.max(1)).map(|_| Exit::default()).collect(),
            phase: AtomicU32::new(OPEN),
            counters: QueueCounters::default(),
        };
        SharedQueue::new(queue)
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

    /// Measured service times of the present version.
    #[inline]
    pub fn service(&self) -> &ServiceTimes {
        self.service_of(self.bank())
    }

    /// Where the present version's service times are: 0 or 1. The next version's are in the other bank,
    /// so that workers on either keep their own while one follows the other.
    #[inline]
    pub fn bank(&self) -> usize {
        // Relaxed: the numbers in a bank stand for themselves.
        self.bank.load(Ordering::Relaxed) as usize
    }

    /// Service times of a bank.
    #[inline]
    pub fn service_of(&self, bank: usize) -> &ServiceTimes {
        &self.services[bank & 1]
    }

    /// From here on admission reckons with this bank, and requests that carry no deadline get this one.
    pub fn change_version(&self, bank: usize, default_timeout: Micros) {
        self.bank.store(bank as u32 & 1, Ordering::Relaxed);
        self.default_timeout.store(default_timeout.0, Ordering::Relaxed);
    }

    /// Deadline of requests that ask for none; 0 is no deadline.
    #[inline]
    pub fn default_timeout(&self) -> Micros {
        Micros(self.default_timeout.load(Ordering::Relaxed))
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
        // Those that left first: they never overtake.
        let left = self.left();
        self.entry.entered.load(Ordering::Relaxed).saturating_sub(left) as u32
    }

    /// Requests that left so far. Relaxed: a count, which orders nothing.
    fn left(&self) -> u64 {
        self.exits.iter().map(|exit| exit.left.load(Ordering::Relaxed)).sum()
    }

    /// Rows that wait.
    fn queued_rows(&self) -> u64 {
        let left = self.exits.iter().map(|exit| exit.further_rows.load(Ordering::Relaxed)).sum();
        let entered = self.entry.further_rows.load(Ordering::Relaxed);
        self.queued() as u64 + entered.saturating_sub(left)
    }

    /// Whether [`lease`](SharedQueue::lease) most likely finds a slot: a hint.
    pub fn has_free_slot(&self) -> bool {
        self.keep.has_free()
    }

    /// Whether one of its workers sleeps: a hint.
    pub fn has_idle_worker(&self) -> bool {
        self.idle.parked() & self.spec.workers != 0
    }

    /// Requests accepted so far.
    pub fn accepted(&self) -> u64 {
        self.entry.entered.load(Ordering::Relaxed)
    }

    /// Requests that were accepted and are not answered (waiting or running).
    pub fn outstanding(&self) -> u32 {
        // Finished first: it never overtakes. Acquire, with the release in `Exit`: a drain that sees
        // zero sees every answer. SeqCst: see `submit`.
        let finished: u64 = self.exits.iter().map(|e| e.finished.load(Ordering::Acquire)).sum();
        self.entry.entered.load(Ordering::SeqCst).saturating_sub(finished) as u32
    }

    /// Lets no request wait for company any more: the end is near, and who asks is told elsewhere.
    pub fn hurry(&self) {
        self.end_by(HURRIES);
    }

    /// Accepts nothing more; what is accepted still runs, and waits for no company.
    pub fn close(&self) {
        self.end_by(CLOSED);
    }

    fn end_by(&self, phase: u32) {
        self.phase.fetch_max(phase, Ordering::SeqCst);
        self.idle.wake_all(self.spec.workers);
    }

    /// Whether no request waits for company any more.
    #[inline]
    pub fn hurries(&self) -> bool {
        self.phase.load(Ordering::SeqCst) >= HURRIES
    }

    /// Whether it accepts nothing more.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.phase.load(Ordering::SeqCst) == CLOSED
    }

    fn refuse(&self, refusal: Refusal) -> Refusal {
        self.count_refusal(refusal.reason());
        refusal
    }

    /// Counts a request for this model that a transport refused before it came here.
    pub fn count_refusal(&self, reason: RefusalReason) {
        self.counters.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a free slot for a request of `rows` rows; returns it and its payload's bytes. Only for an
    /// owner.
    #[inline(always)]
    pub(super) fn lease_slot(&self, rows: Rows) -> Result<(u32, usize), Refusal> {
        let max = self.spec.max_request_rows;
        if rows.0 == 0 || rows > max {
            return Err(self.refuse(Refusal::WrongRows { rows: rows.0 as u32, max: max.0 as u32 }));
        }
        if self.is_closed() {
            return Err(self.refuse(Refusal::ShuttingDown));
        }
        let Some(index) = self.keep.lease() else {
            return Err(self.refuse(self.full()));
        };
        // What will be written at submission comes while the client fills the slot; its lines were asked
        // for when it was given back, which is likely here.
        self.levels[self.spec.default_priority.0.saturating_sub(1) as usize].prefetch_tail();
        Ok((index, self.inputs.of(rows.0 as usize).bytes))
    }

    fn full(&self) -> Refusal {
        Refusal::QueueFull { queued: self.queued(), max: self.spec.max_queue_size }
    }

    #[inline]
    pub(super) fn submit(lease: Lease, options: Submit) -> Result<Ticket, Refusal> {
        let queue = lease.queue();
        let now = clock::stamp();
        let priority = match options.priority {
            Priority(0) => queue.spec.default_priority,
            given => given,
        };
        if priority.0 == 0 || priority.0 > queue.spec.priority_levels {
            let levels = queue.spec.priority_levels;
            return Err(queue.refuse(Refusal::BadPriority { priority: priority.0, levels }));
        }
        let timeout = match options.timeout {
            Micros(0) => queue.default_timeout(),
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
        // Admission: count first, so that the bound holds among racing clients. SeqCst: a drain closes
        // first and then looks at `entered`; this counts first and then looks at `phase`. Either this
        // sees the close or the drain sees this request.
        let entered = queue.entry.entered.fetch_add(1, Ordering::SeqCst);
        let give_back = || queue.entry.entered.fetch_sub(1, Ordering::Relaxed);
        let max = queue.spec.max_queue_size as u64;
        if entered.saturating_sub(queue.entry.left_seen.load(Ordering::Relaxed)) >= max {
            // Only now the workers' lines are fetched.
            let left = queue.left();
            queue.entry.left_seen.store(left, Ordering::Relaxed);
            if entered.saturating_sub(left) >= max {
                give_back();
                return Err(queue.refuse(queue.full()));
            }
        }
        if queue.is_closed() {
            give_back();
            return Err(queue.refuse(Refusal::ShuttingDown));
        }
        if lease.rows().0 > 1 {
            let further = lease.rows().0 as u64 - 1;
            queue.entry.further_rows.fetch_add(further, Ordering::Relaxed);
        }
        let queued = Queued { index: lease.index(), rows: lease.rows(), timed: timeout.0 != 0 };
        let slot = &queue.pool.slots[queued.index as usize];
        slot.asked().set(options.notify, options.tag, now, deadline);
        slot.state.submit();
        let level = priority.0 - 1;
        let Ok(place) = queue.push(level, queued) else {
            give_back();
            let further = lease.rows().0 as u64 - 1;
            queue.entry.further_rows.fetch_sub(further, Ordering::Relaxed);
            return Err(queue.refuse(queue.full()));
        };
        let queue = lease.into_queue();
        queue.idle.wake_one(queue.spec.workers);
        Ok(Ticket::new(queue, queued, (level, place), deadline))
    }

    /// Puts a request into its level's ring, which has a cell for every slot of the model, but may be full
    /// of withdrawn requests behind one that waits.
    #[inline]
    fn push(&self, level: u8, queued: Queued) -> Result<Place, u32> {
        let level = &self.levels[level as usize];
        level.push(queued.to_number()).or_else(|number| {
            level.sweep();
            level.push(number)
        })
    }

    /// Takes a request out of its level's ring, if no worker did.
    pub(super) fn withdraw(&self, level: u8, place: Place, queued: Queued) -> bool {
        self.levels[level as usize].withdraw(place, queued.to_number())
    }

    /// How long a request of `rows` rows is estimated to take from now: what waits ahead of it, at
    /// the best measured time per row, over the model's workers, and its own run.
    #[inline(never)]
    fn estimate(&self, rows: Rows) -> Nanos {
        self.service().estimate(rows, self.queued_rows(), self.spec.workers)
    }

    /// What waits, as the rings have it, so that it can be taken; rows are counted up to `enough`.
    ///
    /// The deadline and the age are read only if `look` (a worker with a configured delay needs
    /// them); else they are `Nanos(u64::MAX)` and the present.
    /// `ahead`: [`has_work_ahead`](Self::has_work_ahead) has just asked for the first request's lines.
    #[inline]
    pub fn view(&self, look: bool, enough: u32, ahead: bool, now: Nanos) -> QueuedView {
        let mut view = QueuedView { rows: 0, oldest_at: now, earliest_deadline: Nanos(u64::MAX) };
        for level in &self.levels {
            level.peek_each(|number| {
                let queued = Queued::from_number(number);
                if view.rows == 0 && !ahead {
                    // It will be taken: its lines come while this goes on.
                    level.prefetch_head();
                    self.pool.prefetch(queued.index);
                }
                if look {
                    let asked = self.pool.slots[queued.index as usize].asked();
                    view.oldest_at = view.oldest_at.min(asked.submitted_at());
                    view.earliest_deadline = view.earliest_deadline.min(asked.deadline());
                }
                view.rows += queued.rows.0 as u32;
                look || view.rows < enough
            });
        }
        view
    }

    /// Changes with every request that is put into a ring.
    #[inline]
    pub fn version(&self) -> u64 {
        self.levels.iter().fold(0, |sum, level| sum.wrapping_add(level.pushed()))
    }

    /// Frees what withdrawn requests still occupy at the heads of their levels' rings.
    #[inline]
    pub fn sweep(&self) {
        self.levels.iter().for_each(IndexRing::sweep);
    }

    /// Whether a request waits in a ring.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.levels.iter().any(|l| !l.is_empty())
    }

    /// As [`has_work`](Self::has_work), for a worker that will take it at once: the lines of the first
    /// request are on their way meanwhile.
    #[inline(always)]
    pub fn has_work_ahead(&self) -> bool {
        for level in &self.levels {
            if let Some(number) = level.peek() {
                level.prefetch_head();
                self.pool.prefetch(Queued::from_number(number).index);
                return true;
            }
        }
        false
    }

    /// Takes requests of up to `rows_max` rows in all, highest priority first, oldest first within
    /// a level, and gives each to `f`. A request that would go over `rows_max` stays at the head of its
    /// level, unless it is the first: a request of more rows than are worth batching must run all the same.
    ///
    /// `worker` is the caller's number, of those in [`QueueSpec::workers`]; only one thread at a time
    /// takes, and ends what it took, under it.
    #[inline]
    pub fn take<'q>(
        &'q self,
        worker: usize,
        rows_max: u32,
        requests_max: usize,
        mut f: impl FnMut(Work<'q>),
    ) {
        let exit = &self.exits[worker.min(self.exits.len() - 2)];
        let (mut rows, mut requests) = (0, 0);
        for level in &self.levels {
            while requests < requests_max {
                let room = rows_max.saturating_sub(rows);
                if room == 0 {
                    return;
                }
                let fits = |number: u32| {
                    requests == 0 || Queued::from_number(number).rows.0 as u32 <= room
                };
                let Some(number) = level.pop_if(fits) else { break };
                let work = Work::take(self, exit, Queued::from_number(number));
                rows += work.rows().0 as u32;
                requests += 1;
                f(work);
            }
        }
    }

    /// Takes the first request of the highest level that has one, whatever its rows. For
    /// [`take`](Self::take)'s callers, as that is.
    #[inline(always)]
    pub fn take_one(&self, worker: usize) -> Option<Work<'_>> {
        let exit = &self.exits[worker.min(self.exits.len() - 2)];
        for level in &self.levels {
            if let Some(number) = level.pop() {
                return Some(Work::take(self, exit, Queued::from_number(number)));
            }
        }
        None
    }

    /// Wakes a sleeping worker other than `except`, if something waits.
    #[inline]
    pub fn wake_another(&self, except: usize) {
        let others = self.spec.workers & !(1 << except);
        if others != 0 && self.has_work() {
            self.idle.wake_one(others);
        }
    }

    /// A request that waited was withdrawn by its client, who gives the slot back.
    pub(super) fn abandoned(&self, rows: Rows, reason: Failure) {
        self.exits[self.exits.len() - 1].given_up(rows);
        self.counters.abandoned[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Gives back a slot whose client is gone.
    pub(super) fn recycle(&self, index: u32) {
        // Whoever lent `self` to the worker is an owner, or has a slot away.
        let last = self.keep.give_back(index);
        debug_assert!(!last, "a queue is borrowed by nobody who has anything of it");
    }
}
