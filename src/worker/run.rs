//! Running one batch: take, gather, infer, scatter, answer.

use super::{Live, Version, Worker};
use crate::engine::{Instance, PlanIndex, RunError};
use crate::limits::{BATCH_REQUESTS_MAX, TENSORS_MAX};
use crate::metrics::{LaneStats, WorkerPhase, WorkerStats};
use crate::queue::completion::CompletionSender;
use crate::queue::{Failure, ModelQueue, Work};
use crate::sys::events::{Event, tell};
use crate::sys::sync::Ordering;
use crate::sys::{alloc, clock};
use crate::units::{CloseReason, Nanos, Receipt, Rows, WorkerId};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Durations of one run's stages.
#[derive(Clone, Copy)]
struct Stages {
    input: Nanos,
    infer: Nanos,
    output: Nanos,
}

/// The requests of one batch.
type Batch<'q> = heapless::Vec<Work<'q>, BATCH_REQUESTS_MAX>;

impl Worker {
    /// Takes up to `rows` rows of lane `n` and answers them. Returns the instant at which the last
    /// ended; `None` if nothing was there to take.
    pub(super) fn run(
        &mut self,
        n: usize,
        rows: u32,
        reason: CloseReason,
        now: Nanos,
    ) -> Option<Nanos> {
        let Worker { spec_id: id, lanes, completions, stats: worker_stats, .. } = self;
        let Live { queue, stats, kind, version, virtual_time, .. } = &mut lanes[n];
        let queue = &**queue;
        let me = id.0 as usize;
        let mut answers = Answers { completions, stats, model: queue.id().0, now };
        let weight = version.weight.max(1);
        let mut engine = Running { queue, stats, kind: *kind, version, worker_stats };
        let batch = Closed { reason, worker: *id, now };
        // Nearly always there is one request, and then nothing is made for more of them.
        let end = if rows == 1 {
            let Some(work) = queue.take_one(me) else {
                answers.completions.flush();
                return None;
            };
            engine.begin(me);
            batch.run_one(work, &mut engine, &mut answers)
        } else {
            let mut works = Batch::new();
            queue.take(me, rows, BATCH_REQUESTS_MAX, |work| {
                // No more than asked for.
                let _ = works.push(work);
            });
            if works.is_empty() {
                answers.completions.flush();
                return None;
            }
            engine.begin(me);
            batch.run_all(works, &mut engine, &mut answers)
        };
        answers.completions.flush();
        // Release, with the acquire in `settle`.
        worker_stats.counting.store(0, Ordering::Release);
        let spent = end.since(now);
        LaneStats::bump(&worker_stats.busy_ns, spent.0);
        // A division takes long, and most models weigh the same.
        let share = if weight == 1 { spent.0 } else { spent.0 / weight as u64 };
        *virtual_time = virtual_time.saturating_add(share);
        worker_stats.phase.store(WorkerPhase::Idle as u64, Ordering::Relaxed);
        Some(end)
    }
}

/// A batch that the policy closed.
#[derive(Clone, Copy)]
struct Closed {
    reason: CloseReason,
    worker: WorkerId,
    /// When it was closed.
    now: Nanos,
}

impl Closed {
    /// What the client of one of its requests is told, in a run of `rows` rows.
    #[inline(always)]
    fn receipt(&self, work: &Work<'_>, stages: Stages, rows: u32) -> Receipt {
        Receipt {
            queue_ns: self.now.since(work.submitted_at()),
            compute_input_ns: stages.input,
            compute_infer_ns: stages.infer,
            compute_output_ns: stages.output,
            batch_size: Rows(rows as u16),
            close_reason: self.reason,
            worker: self.worker,
        }
    }

    /// Runs the only request there is. Returns when it ended.
    #[inline(always)]
    fn run_one(
        self,
        mut work: Work<'_>,
        engine: &mut Running<'_>,
        answers: &mut Answers<'_>,
    ) -> Nanos {
        let now = self.now;
        if work.deadline() < now {
            answers.give(work, Err(Failure::DeadlineExpired), now, false);
            return now;
        }
        let rows = work.rows().0 as u32;
        let end = match engine.attempt_one(&mut work, rows, now) {
            Ok(ran) => {
                let receipt = self.receipt(&work, ran.stages, rows);
                answers.give(work, Ok(receipt), ran.end, true);
                self.count(&ran, engine, (rows, 1));
                ran.end
            }
            Err(failure) => {
                let end = clock::stamp();
                answers.give(work, Err(failure), end, false);
                end
            }
        };
        LaneStats::bump(&answers.stats.closed[self.reason as usize], 1);
        end
    }

    /// Runs several, as one batch. Returns when the last ended.
    #[inline(never)]
    fn run_all(
        self,
        mut works: Batch<'_>,
        engine: &mut Running<'_>,
        answers: &mut Answers<'_>,
    ) -> Nanos {
        let now = self.now;
        // Those whose deadline passed while they waited are answered first, and not run.
        let mut i = 0;
        while i < works.len() {
            if works[i].deadline() < now {
                answers.give(works.remove(i), Err(Failure::DeadlineExpired), now, false);
            } else {
                i += 1;
            }
        }
        let requests = works.len() as u32;
        match requests {
            0 => return now,
            1 => return self.run_one(works.remove(0), engine, answers),
            _ => {}
        }
        let rows: u32 = works.iter().map(|w| w.rows().0 as u32).sum();
        let mut end = now;
        match engine.attempt(&mut works, rows, now) {
            Ok(ran) => {
                end = ran.end;
                for work in works.drain(..) {
                    let receipt = self.receipt(&work, ran.stages, rows);
                    answers.give(work, Ok(receipt), end, false);
                }
                self.count(&ran, engine, (rows, requests));
            }
            // One request may have spoilt the batch for all: each runs alone, so that only the guilty
            // one fails.
            Err(_) => {
                for mut work in works.drain(..) {
                    let rows = work.rows().0 as u32;
                    let ran = engine.attempt_one(&mut work, rows, clock::stamp());
                    let outcome = ran.as_ref().map(|ran| self.receipt(&work, ran.stages, rows));
                    end = clock::stamp();
                    answers.give(work, outcome.map_err(|failure| *failure), end, false);
                    if let Ok(ran) = &ran {
                        engine.count(ran);
                    }
                }
            }
        }
        LaneStats::bump(&answers.stats.closed[self.reason as usize], 1);
        end
    }

    /// Counts a run over so many rows of so many requests.
    #[inline]
    fn count(&self, ran: &Ran, engine: &Running<'_>, (rows, requests): (u32, u32)) {
        engine.count(ran);
        let (model, reason) = (engine.queue.id().0, self.reason.name());
        let ns = ran.end.since(self.now).0;
        tell(Event::BatchRan { model, rows, requests, reason, ns });
    }
}

/// Who is answered, and where that is counted.
struct Answers<'a> {
    completions: &'a mut CompletionSender,
    stats: &'a LaneStats,
    model: u16,
    now: Nanos,
}

impl Answers<'_> {
    /// Ends a request at the instant `at`, and counts it. `alone`: it ran without company.
    #[inline(always)]
    fn give(&mut self, work: Work<'_>, outcome: Result<Receipt, Failure>, at: Nanos, alone: bool) {
        let (submitted_at, rows) = (work.submitted_at(), work.rows());
        self.completions.finish(work, outcome, alone);
        match outcome {
            Ok(_) => self.count_success(rows, submitted_at, at),
            Err(failure) => self.count_failure(failure, at.since(submitted_at)),
        }
    }

    /// Not inlined: what comes before the answer is what its client waits for, and is better without.
    #[inline(never)]
    fn count_success(&self, rows: Rows, submitted_at: Nanos, at: Nanos) {
        let (model, stats, took) = (self.model, self.stats, at.since(submitted_at));
        tell(Event::RequestAnswered { model, rows: rows.0, ns: took.0 });
        LaneStats::bump(&stats.success, 1);
        LaneStats::bump(&stats.inference_count, rows.0 as u64);
        stats.queue.record(self.now.since(submitted_at));
        stats.request.record(took);
    }

    #[cold]
    #[inline(never)]
    fn count_failure(&self, failure: Failure, took: Nanos) {
        let (model, ns, reason) = (self.model, took.0, failure.name());
        LaneStats::bump(&self.stats.failure[failure as usize], 1);
        tell(match failure {
            Failure::ModelFailed | Failure::ModelPanicked => Event::RequestFailed { model, reason },
            _ => Event::RequestDropped { model, ns, reason },
        });
    }
}

/// A run that succeeded.
struct Ran {
    stages: Stages,
    /// Position of the batch size that ran.
    index: usize,
    start: Nanos,
    end: Nanos,
}

/// What a run needs of its lane.
struct Running<'a> {
    queue: &'a ModelQueue,
    stats: &'a LaneStats,
    kind: usize,
    version: &'a mut Version,
    worker_stats: &'a WorkerStats,
}

impl Running<'_> {
    /// Requests were taken by worker `me`: others may take what is left, and statistics wait for these.
    #[inline(always)]
    fn begin(&self, me: usize) {
        self.queue.wake_another(me);
        self.worker_stats.phase.store(WorkerPhase::Running as u64, Ordering::Relaxed);
        // Who has an answer need not wait until it is counted; but statistics that are asked for after
        // it have it: see `WorkerStats::settle`.
        self.worker_stats.counting.store(1, Ordering::Relaxed);
    }

    /// Runs several requests, `rows` rows in all, on the smallest plan that holds them, from the instant
    /// `start`. What came of it is to be [counted](Self::count).
    fn attempt(&mut self, works: &mut [Work<'_>], rows: u32, start: Nanos) -> Result<Ran, Failure> {
        let index = self.plan_for(rows)?;
        let mut instants = [start; 3];
        self.guarded(|instance| {
            let ran = staged(instance, PlanIndex(index), works);
            ran.map(|at| instants = at).is_ok()
        })?;
        let [infer_from, infer_to, end] = instants;
        let stages = Stages {
            input: infer_from.since(start),
            infer: infer_to.since(infer_from),
            output: end.since(infer_to),
        };
        Ok(Ran { stages, index, start, end })
    }

    /// The same with one request, which goes from its own buffers into its own buffers if it fills its
    /// plan.
    #[inline(always)]
    fn attempt_one(
        &mut self,
        work: &mut Work<'_>,
        rows: u32,
        start: Nanos,
    ) -> Result<Ran, Failure> {
        let index = self.plan_for(rows)?;
        if self.version.sizes[index] != rows {
            return self.attempt(std::slice::from_mut(work), rows, start);
        }
        self.guarded(|instance| {
            work.buffers(|inputs, outputs| {
                instance.infer_direct(PlanIndex(index), inputs, outputs).is_ok()
            })
        })?;
        // Comes while the clock is read.
        work.prefetch_end();
        let end = clock::stamp();
        // Nothing is gathered or scattered: these stages take no time.
        let stages = Stages { input: Nanos(0), infer: end.since(start), output: Nanos(0) };
        Ok(Ran { stages, index, start, end })
    }

    /// The position of the smallest batch size that holds `rows` rows.
    #[inline(always)]
    fn plan_for(&self, rows: u32) -> Result<usize, Failure> {
        self.version.sizes.iter().position(|&s| s >= rows).ok_or(Failure::ModelFailed)
    }

    /// Calls `run` with the instance; it says whether it ran, and may panic.
    ///
    /// No more than that is passed on: what is caught goes through memory, and were it read in other
    /// parts than it was written in, the worker would wait until all that it wrote before, the answer's
    /// first line too, is in the cache.
    #[inline(always)]
    fn guarded(&mut self, run: impl FnOnce(&mut dyn Instance) -> bool) -> Result<(), Failure> {
        let Some(instance) = self.version.instance.as_mut() else {
            return Err(Failure::ModelFailed);
        };
        match catch_unwind(AssertUnwindSafe(|| run(&mut **instance))) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::ModelFailed),
            Err(_panic) => Err(self.rebuild()),
        }
    }

    /// What a panic left inside the engine can't be trusted: a fresh instance. This is the one path on
    /// which a worker allocates.
    #[cold]
    #[inline(never)]
    fn rebuild(&mut self) -> Failure {
        alloc::set_hot(false);
        let version = &mut *self.version;
        version.instance = None;
        version.instance = version.engine.instance().ok();
        LaneStats::bump(&self.worker_stats.rebuilds, 1);
        let rebuilt = u8::from(version.instance.is_some());
        tell(Event::EnginePanicked { model: self.queue.id().0, rebuilt });
        alloc::set_hot(true);
        Failure::ModelPanicked
    }

    /// Counts a run that succeeded.
    #[inline(never)]
    fn count(&self, ran: &Ran) {
        let stats = self.stats;
        stats.compute_input.record(ran.stages.input);
        stats.compute_infer.record(ran.stages.infer);
        stats.compute_output.record(ran.stages.output);
        LaneStats::bump(&stats.exec_count, 1);
        LaneStats::bump(&stats.ran[ran.index], 1);
        self.queue.service_of(self.version.bank).observe(
            self.kind,
            ran.index,
            ran.end.since(ran.start),
        );
    }
}

/// Several requests, or fewer rows than the plan has: through the engine's staging areas. Returns the
/// instants at which the inference began, it ended, and the outputs were scattered.
#[inline(never)]
fn staged(
    instance: &mut dyn Instance,
    plan: PlanIndex,
    works: &mut [Work<'_>],
) -> Result<[Nanos; 3], RunError> {
    let mut offsets = [0usize; TENSORS_MAX];
    for work in works.iter() {
        let (spans, payload) = work.input();
        for (i, span) in spans.iter().enumerate() {
            let staging = &mut instance.input_mut(plan, i)[offsets[i]..offsets[i] + span.len];
            staging.copy_from_slice(&payload[span.offset..span.offset + span.len]);
            offsets[i] += span.len;
        }
    }
    let infer_from = clock::stamp();
    instance.infer(plan)?;
    let infer_to = clock::stamp();
    let mut offsets = [0usize; TENSORS_MAX];
    for work in works.iter_mut() {
        let (spans, payload) = work.output_mut();
        for (o, span) in spans.iter().enumerate() {
            let staged = &instance.output(plan, o)[offsets[o]..offsets[o] + span.len];
            payload[span.offset..span.offset + span.len].copy_from_slice(staged);
            offsets[o] += span.len;
        }
    }
    Ok([infer_from, infer_to, clock::stamp()])
}
