//! What a row costs in a batch, beside the same row alone.
//!
//! The speed of a core drifts by more than what there is to be seen, so that two figures taken one after the
//! other say little. Here the batch and its rows, one by one, are run in turns, and only times of one pair
//! are compared. Which side comes first changes from pair to pair; before each side's runs there is one that
//! does not count, so that caches hold what this side leaves in them.

use super::sample::percentile;
use crate::engine::fake::Staging;
use crate::engine::{Engine, Instance, PlanIndex, RunError};
use crate::limits::TENSORS_MAX;
use crate::model::signature::TensorSpec;
use crate::sys::{alloc, clock};
use crate::units::Nanos;
use serde::Serialize;

/// Least time of a side of a pair: long beside the reading of a clock, short beside a spell of the machine.
const SIDE: Nanos = Nanos(1_000_000);
/// Pairs from which on the median's range has its confidence: as many throws of a coin are all alike with a
/// probability of 1 to 32, with fewer of more than 5 %.
pub const PAIRS_MIN: usize = 6;
/// Most repeats within a side.
const REPEATS_MAX: u64 = 10_000;

/// A ratio over many pairs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// Median of the pairs' ratios.
    pub median: f64,
    /// With 95 % confidence, given [`PAIRS_MIN`], the median of ever more pairs is from here ...
    pub median_low: f64,
    /// ... to here (order statistics, so that no distribution is assumed).
    pub median_high: f64,
    /// A quarter of the pairs is below.
    pub quartile_1: f64,
    /// A quarter of the pairs is above.
    pub quartile_3: f64,
    /// The ratio of the two least times, of whichever pairs.
    pub of_minima: f64,
}

impl Ratio {
    /// `ours / base`, pair by pair.
    ///
    /// # Panics
    /// If there is no pair, or the lengths differ.
    pub fn of(ours: &[u64], base: &[u64]) -> Ratio {
        assert_eq!(ours.len(), base.len(), "ratios are of pairs");
        let over = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        let mut ratios: Vec<f64> = ours.iter().zip(base).map(|(&a, &b)| over(a, b)).collect();
        ratios.sort_by(f64::total_cmp);
        let n = ratios.len();
        assert!(n > 0, "a ratio of no pairs");
        let quantile = |q: f64| {
            let at = q * (n - 1) as f64;
            let (low, high) = (ratios[at as usize], ratios[at.ceil() as usize]);
            low + (high - low) * at.fract()
        };
        // Half the pairs are below the true median, give or take two standard deviations.
        let reach = 0.98 * (n as f64).sqrt();
        let low = (n as f64 / 2.0 - reach).floor().max(1.0) as usize - 1;
        let least = |times: &[u64]| times.iter().copied().min().unwrap_or(0);
        Ratio {
            median: quantile(0.5),
            median_low: ratios[low],
            median_high: ratios[n - 1 - low],
            quartile_1: quantile(0.25),
            quartile_3: quantile(0.75),
            of_minima: over(least(ours), least(base)),
        }
    }
}

/// Times of a batch and of its rows one by one, in pairs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowCost {
    /// Runs within each time, which is their mean.
    pub repeats: u64,
    /// All rows, one after the other alone: one time a pair, in nanoseconds.
    pub alone_ns: Vec<u64>,
    /// The same rows in one batch: one time a pair, in nanoseconds.
    pub batch_ns: Vec<u64>,
    /// A row's time in the batch over its time alone: below 1, batching pays.
    pub ratio: Ratio,
    /// Allocator calls of the timed runs of both sides.
    pub allocator_calls: u64,
}

/// The same of one step of the plans.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepCost {
    /// Kernel, shapes and name, in the batch's plan.
    pub step: String,
    /// Floating point operations for the batch.
    pub flops: u64,
    /// Median of all rows one after the other, in nanoseconds.
    pub alone_p50_ns: u64,
    /// Median of the batch, in nanoseconds.
    pub batch_p50_ns: u64,
    /// A row's time in the batch over its time alone.
    pub ratio: Ratio,
}

/// One request's buffers.
struct Request {
    plan: PlanIndex,
    inputs: Vec<Staging>,
    outputs: Vec<Staging>,
}

impl Request {
    fn new(engine: &dyn Engine, plan: PlanIndex) -> Request {
        let rows = engine.batch_sizes()[plan.0];
        let zeroed = |specs: &[TensorSpec]| {
            specs.iter().map(|spec| Staging::new(rows * spec.row_bytes())).collect()
        };
        let signature = engine.signature();
        Request { plan, inputs: zeroed(&signature.inputs), outputs: zeroed(&signature.outputs) }
    }

    fn run(&mut self, instance: &mut dyn Instance) -> Result<(), RunError> {
        let (ins, outs) = (self.inputs.len(), self.outputs.len());
        let mut inputs: [&[u8]; TENSORS_MAX] = [&[]; TENSORS_MAX];
        for (to, tensor) in inputs.iter_mut().zip(&self.inputs) {
            *to = tensor.get();
        }
        let mut outputs: [&mut [u8]; TENSORS_MAX] = std::array::from_fn(|_| &mut [][..]);
        for (to, tensor) in outputs.iter_mut().zip(&mut self.outputs) {
            *to = tensor.get_mut();
        }
        instance.infer_direct(self.plan, &inputs[..ins], &mut outputs[..outs])
    }
}

/// A batch, and its rows one by one.
pub struct Rows<'a> {
    engine: &'a dyn Engine,
    alone: Vec<Request>,
    batch: Request,
}

impl<'a> Rows<'a> {
    /// The plan `batch` of `engine` beside its plan for one row; `fill` writes the bytes of an input's row
    /// (input, row), which are zero before. None if the engine has no plan for one row.
    pub fn new(
        engine: &'a dyn Engine,
        batch: PlanIndex,
        mut fill: impl FnMut(usize, usize, &mut [u8]),
    ) -> Option<Rows<'a>> {
        let one = PlanIndex(engine.batch_sizes().iter().position(|&rows| rows == 1)?);
        let rows = engine.batch_sizes()[batch.0];
        let mut together = Request::new(engine, batch);
        let mut alone: Vec<Request> = (0..rows).map(|_| Request::new(engine, one)).collect();
        for (k, spec) in engine.signature().inputs.iter().enumerate() {
            let bytes = together.inputs[k].get_mut().chunks_exact_mut(spec.row_bytes());
            for (row, (bytes, request)) in bytes.zip(&mut alone).enumerate() {
                fill(k, row, bytes);
                request.inputs[k].get_mut().copy_from_slice(bytes);
            }
        }
        Some(Rows { engine, alone, batch: together })
    }

    /// Whether all outputs have the same bits, as of the last runs.
    pub fn same_answers(&self) -> bool {
        self.batch.outputs.iter().enumerate().all(|(o, together)| {
            let alone = self.alone.iter().flat_map(|request| request.outputs[o].get());
            alone.eq(together.get())
        })
    }

    fn side(&mut self, instance: &mut dyn Instance, alone: bool) -> Result<(), RunError> {
        match alone {
            true => self.alone.iter_mut().try_for_each(|request| request.run(instance)),
            false => self.batch.run(instance),
        }
    }

    /// Mean time of a side over `repeats` runs, after one that does not count.
    fn time(
        &mut self,
        instance: &mut dyn Instance,
        alone: bool,
        repeats: u64,
    ) -> Result<u64, RunError> {
        self.side(instance, alone)?;
        alloc::set_hot(true);
        let start = clock::now();
        let result = (0..repeats).try_for_each(|_| self.side(instance, alone));
        let time = clock::now().since(start);
        alloc::set_hot(false);
        result?;
        Ok(time.0 / repeats)
    }

    /// Times `pairs` pairs.
    ///
    /// # Errors
    /// What a run fails with.
    ///
    /// # Panics
    /// If `pairs` is 0.
    pub fn measure(
        &mut self,
        instance: &mut dyn Instance,
        pairs: usize,
    ) -> Result<RowCost, RunError> {
        let once = self.time(instance, true, 1)?.min(self.time(instance, false, 1)?);
        let repeats = SIDE.0.div_ceil(once.max(1)).clamp(1, REPEATS_MAX);
        let mut times = [const { Vec::new() }; 2];
        let calls = alloc::hot_calls();
        for pair in 0..pairs {
            for alone in [pair % 2 == 0, pair % 2 == 1] {
                let time = self.time(instance, alone, repeats)?;
                times[usize::from(alone)].push(time);
            }
        }
        let allocator_calls = alloc::hot_calls() - calls;
        let [batch_ns, alone_ns] = times;
        let ratio = Ratio::of(&batch_ns, &alone_ns);
        Ok(RowCost { repeats, alone_ns, batch_ns, ratio, allocator_calls })
    }

    /// Whether the two plans are made of the same number of steps, so that they can be timed step by step.
    pub fn same_steps(&self) -> bool {
        let alone = self.alone.first().map_or(0, |one| self.engine.steps(one.plan).len());
        alone > 0 && alone == self.engine.steps(self.batch.plan).len()
    }

    /// Times `pairs` pairs step by step; empty where the two plans are not made of the same steps
    /// ([`same_steps`](Self::same_steps)).
    ///
    /// # Errors
    /// What a run fails with.
    pub fn steps(
        &mut self,
        instance: &mut dyn Instance,
        pairs: usize,
    ) -> Result<Vec<StepCost>, RunError> {
        if !self.same_steps() {
            return Ok(vec![]);
        }
        let (rows, batch) = (self.alone.len(), self.batch.plan);
        let (one, steps) = (self.alone[0].plan, self.engine.steps(batch));
        let mut times = vec![[const { Vec::new() }; 2]; steps.len()];
        let mut spent = vec![0; steps.len()];
        for pair in 0..pairs {
            for alone in [pair % 2 == 0, pair % 2 == 1] {
                let (plan, runs) = if alone { (one, rows) } else { (batch, 1) };
                for _ in 0..runs {
                    instance.infer_profiled(plan, &mut spent)?;
                }
                spent.fill(0);
                for _ in 0..runs {
                    instance.infer_profiled(plan, &mut spent)?;
                }
                for (times, &ns) in times.iter_mut().zip(&spent) {
                    times[usize::from(alone)].push(ns);
                }
            }
        }
        Ok((steps.into_iter().zip(times))
            .filter(|(_, times)| !times[0].is_empty())
            .map(|(step, [mut batch, mut alone])| {
                let ratio = Ratio::of(&batch, &alone);
                StepCost {
                    step: step.text,
                    flops: step.flops,
                    alone_p50_ns: percentile(&mut alone, 500),
                    batch_p50_ns: percentile(&mut batch, 500),
                    ratio,
                }
            })
            .collect())
    }
}

#[cfg(test)]
mod tests;
