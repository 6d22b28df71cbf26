//! Running one batch: take, gather, infer, scatter, answer.

use super::{Lane, Live, Worker};
use crate::engine::{Instance, PlanIndex, RunError};
use crate::limits::{BATCH_REQUESTS_MAX, TENSORS_MAX};
use crate::metrics::{LaneStats, WorkerPhase, WorkerStats};
use crate::queue::{Failure, Work};
use crate::sys::events::{Event, tell};
use crate::sys::sync::Ordering;
use crate::sys::{alloc, clock};
use crate::units::{CloseReason, Nanos, Receipt, Rows};
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
        let Live { lane, kind, instance, sizes, virtual_time, .. } = &mut lanes[n];
        let queue = &*lane.queue;
        let mut works = Batch::new();
        queue.take(id.0 as usize, rows, BATCH_REQUESTS_MAX, |work| {
            // No more than asked for.
            let _ = works.push(work);
        });
        if works.is_empty() {
            return None;
        }
        queue.wake_another(id.0 as usize);
        worker_stats.phase.store(WorkerPhase::Running as u64, Ordering::Relaxed);
        let stats = &*lane.stats;
        // Who has an answer need not wait until it is counted; but statistics that are asked for after
        // it have it: see `WorkerStats::settle`.
        worker_stats.counting.store(1, Ordering::Relaxed);
        let model = queue.id().0;
        let mut done = |work: Work<'_>, outcome: Result<Receipt, Failure>, at: Nanos, alone| {
            let (submitted_at, rows) = (work.submitted_at(), work.rows());
            completions.finish(work, outcome, alone);
            let ns = at.since(submitted_at).0;
            match outcome {
                Ok(_) => {
                    tell(Event::RequestAnswered { model, rows: rows.0, ns });
                    LaneStats::bump(&stats.success, 1);
                    LaneStats::bump(&stats.inference_count, rows.0 as u64);
                    stats.queue.record(now.since(submitted_at));
                    stats.request.record(at.since(submitted_at));
                }
                Err(failure) => {
                    LaneStats::bump(&stats.failure[failure as usize], 1);
                    let reason = failure.name();
                    tell(match failure {
                        Failure::ModelFailed | Failure::ModelPanicked => {
                            Event::RequestFailed { model, reason }
                        }
                        _ => Event::RequestDropped { model, ns, reason },
                    });
                }
            }
        };

        // Those whose deadline passed while they waited are answered first, and not run.
        let mut i = 0;
        while i < works.len() {
            if works[i].deadline() < now {
                done(works.remove(i), Err(Failure::DeadlineExpired), now, false);
            } else {
                i += 1;
            }
        }
        let mut end = now;
        if !works.is_empty() {
            let receipt = |work: &Work<'_>, stages: Stages, rows: u32| Receipt {
                queue_ns: now.since(work.submitted_at()),
                compute_input_ns: stages.input,
                compute_infer_ns: stages.infer,
                compute_output_ns: stages.output,
                batch_size: Rows(rows as u16),
                close_reason: reason,
                worker: *id,
            };
            let total: u32 = works.iter().map(|w| w.rows().0 as u32).sum();
            let mut engine = Running { lane, kind: *kind, instance, sizes, worker_stats };
            match engine.attempt(&mut works, total, now) {
                Ok(ran) => {
                    end = ran.end;
                    let alone = works.len() == 1;
                    let requests = works.len() as u32;
                    for work in works.drain(..) {
                        let receipt = receipt(&work, ran.stages, total);
                        done(work, Ok(receipt), end, alone);
                    }
                    engine.count(&ran);
                    let (reason, ns) = (reason.name(), end.since(now).0);
                    tell(Event::BatchRan { model, rows: total, requests, reason, ns });
                }
                Err(failure) if works.len() == 1 => {
                    end = clock::now();
                    for work in works.drain(..) {
                        done(work, Err(failure), end, false);
                    }
                }
                // One request may have spoilt the batch for all: each runs alone, so that only the
                // guilty one fails.
                Err(_) => {
                    for work in works.drain(..) {
                        let rows = work.rows().0 as u32;
                        let mut alone = [work];
                        let ran = engine.attempt(&mut alone, rows, clock::now());
                        let [work] = alone;
                        let outcome = ran.as_ref().map(|ran| receipt(&work, ran.stages, rows));
                        end = clock::now();
                        done(work, outcome.map_err(|failure| *failure), end, false);
                        if let Ok(ran) = &ran {
                            engine.count(ran);
                        }
                    }
                }
            }
            LaneStats::bump(&stats.closed[reason as usize], 1);
        }
        completions.flush();
        // Release, with the acquire in `settle`.
        worker_stats.counting.store(0, Ordering::Release);
        let spent = end.since(now);
        LaneStats::bump(&worker_stats.busy_ns, spent.0);
        *virtual_time = virtual_time.saturating_add(spent.0 / lane.weight.max(1) as u64);
        worker_stats.phase.store(WorkerPhase::Idle as u64, Ordering::Relaxed);
        Some(end)
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
    lane: &'a Lane,
    kind: usize,
    instance: &'a mut Option<Box<dyn Instance>>,
    sizes: &'a [u32],
    worker_stats: &'a WorkerStats,
}

impl Running<'_> {
    /// Runs `works`, `rows` rows in all, on the smallest plan that holds them, from the instant
    /// `start`. What came of it is to be [counted](Self::count).
    fn attempt(&mut self, works: &mut [Work<'_>], rows: u32, start: Nanos) -> Result<Ran, Failure> {
        let Some(instance) = self.instance.as_mut() else { return Err(Failure::ModelFailed) };
        let index = self.sizes.iter().position(|&s| s >= rows).ok_or(Failure::ModelFailed)?;
        let plan = PlanIndex(index);
        let exact = works.len() == 1 && self.sizes[index] == rows;
        let result = catch_unwind(AssertUnwindSafe(|| {
            if exact {
                direct(&mut **instance, plan, &mut works[0], start)
            } else {
                staged(&mut **instance, plan, works)
            }
        }));
        match result {
            Ok(Ok([infer_from, infer_to, end])) => {
                let stages = Stages {
                    input: infer_from.since(start),
                    infer: infer_to.since(infer_from),
                    output: end.since(infer_to),
                };
                Ok(Ran { stages, index, start, end })
            }
            Ok(Err(_)) => Err(Failure::ModelFailed),
            Err(_panic) => {
                // What a panic left inside the engine can't be trusted: a fresh instance. This is the
                // one path on which a worker allocates.
                alloc::set_hot(false);
                *self.instance = None;
                *self.instance = self.lane.engine.instance().ok();
                LaneStats::bump(&self.worker_stats.rebuilds, 1);
                let rebuilt = u8::from(self.instance.is_some());
                tell(Event::EnginePanicked { model: self.lane.queue.id().0, rebuilt });
                alloc::set_hot(true);
                Err(Failure::ModelPanicked)
            }
        }
    }

    /// Counts a run that succeeded.
    fn count(&self, ran: &Ran) {
        let stats = &self.lane.stats;
        stats.compute_input.record(ran.stages.input);
        stats.compute_infer.record(ran.stages.infer);
        stats.compute_output.record(ran.stages.output);
        LaneStats::bump(&stats.exec_count, 1);
        LaneStats::bump(&stats.ran[ran.index], 1);
        self.lane.queue.service().observe(self.kind, ran.index, ran.end.since(ran.start));
    }
}

/// One request that fills its plan: from its own buffers into its own buffers. Returns the instants at
/// which the inference began, it ended, and the outputs were scattered.
fn direct(
    instance: &mut dyn Instance,
    plan: PlanIndex,
    work: &mut Work<'_>,
    start: Nanos,
) -> Result<[Nanos; 3], RunError> {
    work.buffers(|inputs, outputs| instance.infer_direct(plan, inputs, outputs))?;
    // Comes while the clock is read.
    work.prefetch_end();
    // Nothing is gathered or scattered: these stages take no time.
    let end = clock::now();
    Ok([start, end, end])
}

/// Several requests, or fewer rows than the plan has: through the engine's staging areas. Returns the
/// same instants.
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
    let infer_from = clock::now();
    instance.infer(plan)?;
    let infer_to = clock::now();
    let mut offsets = [0usize; TENSORS_MAX];
    for work in works.iter_mut() {
        let (spans, payload) = work.output_mut();
        for (o, span) in spans.iter().enumerate() {
            let staged = &instance.output(plan, o)[offsets[o]..offsets[o] + span.len];
            payload[span.offset..span.offset + span.len].copy_from_slice(staged);
            offsets[o] += span.len;
        }
    }
    Ok([infer_from, infer_to, clock::now()])
}
