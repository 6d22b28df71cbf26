//! Which steps of a batch run together, and which run turn by turn on some of its rows.
//!
//! A batch that runs step by step reads each weight once, but its intermediates are as many times
//! larger as it has rows, and fall out of the cache between the step that writes them and the one that
//! reads them. Row by row it is the other way round. So the steps are cut into segments, each with
//! its own number of turns: early convolutions (large images, few weights) run on few rows at a time, late
//! ones and matrix products on all rows. The cut is the cheapest by an estimate, the same on every
//! machine, so that a plan does not depend on what else ran while it was made.
//!
//! Turns never change an answer: a step is cut only where its operands are rows one after the other and
//! its kernel treats them alike ([`part`]).

use super::ops::{Broadcast, Copy};
use super::step::Kernel;
use crate::units::DType;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Intermediates up to this size stay in the second-level cache, beside the weights that pass through
/// it: three quarters of 512 KiB, which most cores that run this have at least.
const CACHED_BYTES: usize = 384 * 1024;
/// Intermediates up to this size stay in what cache there is beyond it.
const NEAR_BYTES: usize = 2 * 1024 * 1024;
/// Bytes a nanosecond from that cache.
const NEAR_RATE: f64 = 20.0;
/// Bytes a nanosecond from memory.
const FAR_RATE: f64 = 6.0;
/// What is felt of weights that stream in while there is enough to compute: they lie in the order in which
/// they are read, so that most of them are fetched ahead.
const STREAMED: f64 = 0.25;
/// What a step costs however little it computes.
const STEP_NS: f64 = 60.0;
/// Multiply-accumulates a nanosecond, where nothing else is in the way.
const MACS_RATE: f64 = 40.0;
/// Rows of results that products compute at once.
const TILE_ROWS: usize = 6;

/// Steps that run together, in turns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Which steps.
    pub steps: Range<usize>,
    /// How often they run, each time on the next rows of the batch.
    pub turns: usize,
}

/// What the estimate takes of a step, for the whole batch.
#[derive(Debug, Clone, Default)]
pub struct Cost {
    /// Whether it can run in turns.
    pub divisible: bool,
    /// Each source that is not constant: the step that made it (none for an input of the model), bytes.
    pub sources: Vec<(Option<usize>, usize)>,
    /// Bytes of the result.
    pub dest_bytes: usize,
    /// Bytes that are live while it runs, its scratch included.
    pub live_bytes: usize,
    /// Bytes of weights.
    pub weight_bytes: usize,
    /// Multiply-accumulates of a matrix product, and the rows it has; zeros for others.
    pub product: (u64, usize),
}

/// Time that `bytes` take when `live` bytes are passed over between one use and the next.
fn transfer_ns(bytes: usize, live: usize) -> f64 {
    match live {
        _ if live <= CACHED_BYTES => 0.0,
        _ if live <= NEAR_BYTES => bytes as f64 / NEAR_RATE,
        _ => bytes as f64 / FAR_RATE,
    }
}

/// What a product loses in a turn with few rows, over all turns.
fn idle_ns(macs: u64, rows: usize) -> f64 {
    if rows == 0 {
        return 0.0;
    }
    let tiles = (rows.div_ceil(TILE_ROWS) * TILE_ROWS) as f64 / rows as f64;
    macs as f64 / MACS_RATE * ((tiles - 1.0) / 4.0).min(0.6)
}

/// What is felt of a step's weights when they come from beyond the second-level cache, in one turn.
fn weights_ns(step: &Cost, turns: usize) -> f64 {
    let stream = step.weight_bytes as f64 / NEAR_RATE;
    let compute = step.product.0 as f64 / turns as f64 / MACS_RATE;
    (stream - compute).max(stream * STREAMED)
}

/// The cheapest cut of `steps` into segments for a batch of `rows`.
pub fn cut(steps: &[Cost], rows: usize) -> Vec<Segment> {
    let divisors: Vec<usize> = (1..=rows).filter(|turns| rows.is_multiple_of(*turns)).collect();
    // The least cost of all before a step, and the segment that ends there.
    let mut best: Vec<(f64, usize, usize)> = vec![(f64::INFINITY, 0, 1); steps.len() + 1];
    best[0].0 = 0.0;
    for first in 0..steps.len() {
        for &turns in &divisors {
            let (mut sum, mut weights, mut widest) = (best[first].0, 0usize, 0usize);
            let mut felt = 0.0;
            for (at, step) in steps.iter().enumerate().skip(first) {
                if turns > 1 && !step.divisible {
                    break;
                }
                let live = step.live_bytes / turns;
                let mut inside = step.dest_bytes;
                for &(maker, bytes) in &step.sources {
                    if maker.is_some_and(|m| m >= first) {
                        inside += bytes;
                    } else {
                        // An input is only read. What another segment wrote was written for the whole
                        // batch, with all that lives beside it, before any of it is read here.
                        let (passes, between) = match maker {
                            Some(_) => (2, step.live_bytes),
                            None => (1, live),
                        };
                        sum += transfer_ns(passes * bytes, bytes.max(between));
                    }
                }
                sum += turns as f64 * STEP_NS + transfer_ns(inside, live);
                sum += idle_ns(step.product.0, step.product.1 / turns);
                weights += step.weight_bytes;
                felt += weights_ns(step, turns);
                widest = widest.max(live);
                let again = if weights + widest > CACHED_BYTES { turns } else { 1 };
                let total = sum + felt * again as f64;
                // Among equals the longer segment, which came first.
                if total < best[at + 1].0 {
                    best[at + 1] = (total, first, turns);
                }
            }
        }
    }
    let mut segments = vec![];
    let mut end = steps.len();
    while end > 0 {
        let (_, first, turns) = best[end];
        segments.push(Segment { steps: first..end, turns });
        end = first;
    }
    segments.reverse();
    // Neighbours without turns are one.
    segments.dedup_by(|next, before| {
        let one = before.turns == 1 && next.turns == 1;
        if one {
            before.steps.end = next.steps.end;
        }
        one
    });
    segments
}

/// How a step takes a source when it runs in turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Each turn takes its own part.
    Part,
    /// Every turn takes all of it.
    Whole,
}

/// `kernel` on one of `turns` equal, consecutive parts of its result, if each such part depends only on
/// the same part of some sources, and on all of the others (which must then be constant). `sources` and
/// `dest` are lengths in words.
pub fn part(
    kernel: &Kernel,
    turns: usize,
    sources: &[usize],
    dest: usize,
) -> Option<(Kernel, Vec<Share>)> {
    let share = |n: usize| n.is_multiple_of(turns).then(|| n / turns);
    let dest_part = share(dest)?;
    let mut shares = vec![Share::Part; sources.len()];
    // A part's elements are whole words, and make up the operand.
    let fills = |dtype: DType, count: usize, len: usize| {
        let bytes = count * dtype.size_bytes();
        let words = bytes.div_ceil(size_of::<f32>());
        (turns == 1 || bytes.is_multiple_of(size_of::<f32>())) && words * turns == len
    };
    let kernel = match kernel {
        Kernel::Conv { conv, batch, act } => {
            Kernel::Conv { conv: conv.clone(), batch: share(*batch)?, act: *act }
        }
        Kernel::Gemm { weights, rows, act } => {
            Kernel::Gemm { weights: weights.clone(), rows: share(*rows)?, act: *act }
        }
        Kernel::CodedConv { conv, batch } => {
            let (batch, p) = (share(*batch)?, conv.params());
            let exact = fills(DType::U8, batch * p.input_len(), *sources.first()?)
                && fills(DType::U8, batch * p.output_len(), dest);
            exact.then_some(Kernel::CodedConv { conv: conv.clone(), batch })?
        }
        Kernel::AddCodes { codes, count } => {
            let count = share(*count)?;
            fills(DType::U8, count, dest).then_some(())?;
            Kernel::AddCodes { codes: *codes, count }
        }
        Kernel::Encode { to, count } => {
            let count = share(*count)?;
            fills(DType::U8, count, dest).then_some(())?;
            Kernel::Encode { to: *to, count }
        }
        Kernel::Decode { from, count } => {
            let count = share(*count)?;
            fills(DType::U8, count, *sources.first()?).then_some(())?;
            Kernel::Decode { from: *from, count }
        }
        Kernel::MatMul { params, at } => {
            let &[a, b] = sources else { return None };
            let products = share(at.len())?;
            let one_right = turns > 1 && at[products][1] == at[0][1];
            if one_right {
                shares[1] = Share::Whole;
            }
            let steps = [share(a)?, if one_right { 0 } else { share(b)? }, dest_part];
            let regular = at.iter().enumerate().all(|(i, at_i)| {
                let (turn, first) = (i / products, &at[i % products]);
                (0..3).all(|o| at_i[o] == first[o] + turn * steps[o])
            });
            let b_last = if params.b_transposed {
                params.n.saturating_sub(1) * params.ldb + params.k
            } else {
                params.k.saturating_sub(1) * params.ldb + params.n
            };
            let last = [
                params.m.saturating_sub(1) * params.lda + params.k,
                b_last,
                params.m.saturating_sub(1) * params.ldc + params.n,
            ];
            let length = [steps[0], if one_right { b } else { steps[1] }, steps[2]];
            let within =
                at[..products].iter().all(|at| (0..3).all(|o| at[o] + last[o] <= length[o]));
            if !regular || !within {
                return None;
            }
            Kernel::MatMul { params: *params, at: at[..products].to_vec() }
        }
        Kernel::Activation(_) | Kernel::Unary(_) => kernel.clone(),
        Kernel::Binary { op, broadcast, vector } => {
            let &[a, b] = sources else { return None };
            let (outer, inner) = broadcast.axes.split_first()?;
            let len = share(outer.0)?;
            for ((stride, source), share) in [(outer.1, a), (outer.2, b)].iter().zip(&mut shares) {
                match len * stride {
                    0 => *share = Share::Whole,
                    step if step * turns == *source => {}
                    _ => return None,
                }
            }
            let first = (len, outer.1, outer.2);
            let broadcast = Broadcast::new([first].into_iter().chain(inner.iter().copied()));
            let vector = vector.and_then(|_| broadcast.vector(*op));
            Kernel::Binary { op: *op, broadcast, vector }
        }
        Kernel::Reduce { kind, dims, scale } => {
            Kernel::Reduce { kind: *kind, dims: (share(dims.0)?, dims.1, dims.2), scale: *scale }
        }
        Kernel::Softmax { n, .. } => {
            share(dest / n)?;
            kernel.clone()
        }
        Kernel::LayerNorm { dims, eps, gamma, beta } => Kernel::LayerNorm {
            dims: (share(dims.0)?, dims.1, dims.2),
            eps: *eps,
            gamma: gamma.clone(),
            beta: beta.clone(),
        },
        Kernel::Pool { pool, image: [n, h, w, c], out, vector } => Kernel::Pool {
            pool: pool.clone(),
            image: [share(*n)?, *h, *w, *c],
            out: *out,
            vector: *vector,
        },
        Kernel::Move { copies, fill } => {
            let parts: Option<Vec<Copy>> = (copies.iter().zip(sources))
                .map(|(copy, &source)| {
                    let (outer, inner) = copy.axes.split_first()?;
                    let len = share(outer.0)?;
                    let reach = |first: usize, stride: fn(&(usize, usize, usize)) -> usize| {
                        inner.iter().map(|a| (a.0 - 1) * stride(a)).sum::<usize>()
                            + first
                            + (len - 1) * stride(outer)
                    };
                    let fits = len * outer.1 * turns == source
                        && len * outer.2 == dest_part
                        && reach(copy.from, |a| a.1) < len * outer.1
                        && reach(copy.to, |a| a.2) < dest_part;
                    let axes = [(len, outer.1, outer.2)].into_iter().chain(inner.iter().copied());
                    fits.then(|| Copy::new(axes, copy.from, copy.to))
                })
                .collect();
            Kernel::Move { copies: parts?, fill: *fill }
        }
        Kernel::Embed { table, width, first, wraps, index, count } => {
            let count = share(*count)?;
            fills(*index, count, *sources.first()?).then_some(())?;
            Kernel::Embed {
                table: table.clone(),
                width: *width,
                first: *first,
                wraps: *wraps,
                index: *index,
                count,
            }
        }
        Kernel::Cast { from, to, count } => {
            let count = share(*count)?;
            let exact = fills(*from, count, *sources.first()?) && fills(*to, count, dest);
            exact.then_some(Kernel::Cast { from: *from, to: *to, count })?
        }
        Kernel::Quantize { scale, zero, to, count } => {
            let count = share(*count)?;
            fills(*to, count, dest).then_some(())?;
            Kernel::Quantize { scale: *scale, zero: *zero, to: *to, count }
        }
        Kernel::Dequantize { scale, zero, from, count } => {
            let count = share(*count)?;
            fills(*from, count, *sources.first()?).then_some(())?;
            Kernel::Dequantize { scale: *scale, zero: *zero, from: *from, count }
        }
        Kernel::Transpose(batch, rows, cols) => Kernel::Transpose(share(*batch)?, *rows, *cols),
        // Time may come before the rows, and weights are what such a layer waits for.
        Kernel::Recurrent(..) | Kernel::Fallback { .. } => return None,
    };
    let parted = |(&words, &how): (&usize, &Share)| how == Share::Whole || share(words).is_some();
    sources.iter().zip(&shares).all(parted).then_some((kernel, shares))
}

#[cfg(test)]
mod tests;
