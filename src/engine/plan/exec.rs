//! Running a plan: the mutable half of the engine.

use super::graph::{ReduceKind, Unary};
use super::step::{Kernel, Operand, Plan, SOURCES_MAX, Space, Step};
use super::{fallback, ops};
use crate::engine::kernels::{self, AlignedBuf, Kernels, cast};
use crate::engine::{EngineError, EngineErrorKind, Instance, PlanIndex, RunError};
use crate::limits::{TENSORS_MAX, WORKERS_MAX};
use crate::sys::pool::Pool;
use crate::sys::{affinity, clock, cores};
use crate::units::{CoreId, DType};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Address space of an instance's private heap; only what its fallback steps use is ever touched. A process of 32
/// bits has room for a few dozen of these beside its models; with the other size, for two.
const HEAP_BYTES: usize = if cfg!(target_pointer_width = "32") { 64 << 20 } else { 1 << 30 };

/// What the engine shares with its instances.
pub struct Program {
    /// One for each batch size, ascending.
    pub plans: Vec<Plan>,
    /// The instruction set.
    pub kernels: Kernels,
    /// Bytes of packed weights.
    pub weight_bytes: usize,
    /// In which precision weights come, and what becomes of them.
    pub precision: Vec<String>,
    /// Bytes of one row of each input and output.
    pub row_bytes: (Vec<usize>, Vec<usize>),
}

impl Program {
    /// Words of each input's and each output's staging area, which all batch sizes share.
    fn staging_words(&self) -> (Vec<usize>, Vec<usize>) {
        let most = |count: usize, of: fn(&Plan) -> &[usize]| -> Vec<usize> {
            (0..count).map(|i| self.plans.iter().map(|p| of(p)[i]).max().unwrap_or(0)).collect()
        };
        (
            most(self.row_bytes.0.len(), |p| &p.input_words),
            most(self.row_bytes.1.len(), |p| &p.output_words),
        )
    }

    /// Bytes of an instance's staging areas.
    pub fn staging_bytes(&self) -> usize {
        let (inputs, outputs) = self.staging_words();
        inputs.iter().chain(&outputs).sum::<usize>() * size_of::<f32>()
    }
}

/// One worker's buffers. All batch sizes share them, since only one runs at a time: an arena and
/// staging areas as long as the largest needs.
pub struct PlanInstance {
    program: Arc<Program>,
    /// The program's, with the loops for the cores that the instance runs on.
    kernels: Kernels,
    /// Below which the machine shows what its cores are: `/`, but in tests.
    root: PathBuf,
    arena: AlignedBuf,
    inputs: Vec<AlignedBuf>,
    outputs: Vec<AlignedBuf>,
    /// Where steps that run through tract allocate; none if there are none.
    heap: Option<Pool>,
}

impl PlanInstance {
    /// Allocates and touches all buffers.
    ///
    /// # Errors
    /// `Limit` if the arena can't be had as it is required, or a private heap is needed and there can be
    /// no more.
    pub fn new(program: Arc<Program>) -> Result<PlanInstance, EngineError> {
        Self::below(Path::new("/"), program)
    }

    /// The same on the machine whose `sys` lies below `root`.
    pub(super) fn below(root: &Path, program: Arc<Program>) -> Result<PlanInstance, EngineError> {
        let (inputs, outputs) = program.staging_words();
        let zeroed = |words: Vec<usize>| words.into_iter().map(AlignedBuf::zeroed).collect();
        let (inputs, outputs) = (zeroed(inputs), zeroed(outputs));
        let arena = program.plans.iter().map(|p| p.arena_words).max().unwrap_or(0);
        let falls_back = program.plans.iter().any(Plan::falls_back);
        let limit = |text: String| EngineError::new(EngineErrorKind::Limit, text);
        let heap = match falls_back {
            true => Some(Pool::new(HEAP_BYTES).ok_or_else(|| {
                limit(format!(
                    "no private heap for operators without a kernel: the system has no address space, or \
                     {WORKERS_MAX} instances have one already"
                ))
            })?),
            false => None,
        };
        let arena = AlignedBuf::mapped(arena).map_err(|e| limit(format!("the arena: {e}")))?;
        let allowed = affinity::allowed().unwrap_or_default();
        let kernels = kernels_for(root, &program, &allowed);
        let root = root.into();
        Ok(PlanInstance { arena, inputs, outputs, heap, program, kernels, root })
    }

    /// Whether it takes the loops for cores that run in order.
    #[cfg(test)]
    pub(crate) fn in_order(&self) -> bool {
        self.kernels.in_order()
    }

    /// Runs a plan on the staging areas, each step through `around`.
    fn staged(
        &mut self,
        plan: PlanIndex,
        around: impl FnMut(usize, &mut dyn FnMut() -> Option<()>) -> Option<()>,
    ) -> Result<(), RunError> {
        let PlanInstance { program, kernels, arena, inputs, outputs, heap, .. } = self;
        let plan = &program.plans[plan.0];
        let mut from: [&[f32]; TENSORS_MAX] = [&[]; TENSORS_MAX];
        for (i, input) in inputs.iter().enumerate() {
            from[i] = &input[..plan.input_words[i]];
        }
        let mut to: [&mut [f32]; TENSORS_MAX] = std::array::from_fn(|_| &mut [][..]);
        for (o, output) in outputs.iter_mut().enumerate() {
            to[o] = &mut output[..plan.output_words[o]];
        }
        run(kernels, plan, (arena, heap), &from, &mut to, around)
    }
}

/// With the loops for these cores; a pinned worker that makes its instance may run on one only.
fn kernels_for(root: &Path, program: &Program, on: &[CoreId]) -> Kernels {
    program.kernels.with_in_order(cores::in_order(root, on))
}

impl Instance for PlanInstance {
    fn settle_on(&mut self, core: CoreId) {
        self.kernels = kernels_for(&self.root, &self.program, &[core]);
    }
    fn input_mut(&mut self, plan: PlanIndex, input: usize) -> &mut [u8] {
        let bytes = self.program.row_bytes.0[input] * self.program.plans[plan.0].batch;
        &mut cast::bytes_mut(&mut self.inputs[input])[..bytes]
    }

    fn infer(&mut self, plan: PlanIndex) -> Result<(), RunError> {
        self.staged(plan, |_, run| run())
    }

    fn infer_profiled(&mut self, plan: PlanIndex, step_ns: &mut [u64]) -> Result<(), RunError> {
        self.staged(plan, |step, run| {
            let start = clock::now();
            let done = run();
            step_ns[step] += clock::now().since(start).0;
            done
        })
    }

    fn output(&self, plan: PlanIndex, output: usize) -> &[u8] {
        let bytes = self.program.row_bytes.1[output] * self.program.plans[plan.0].batch;
        &cast::bytes(&self.outputs[output])[..bytes]
    }

    fn infer_direct(
        &mut self,
        index: PlanIndex,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), RunError> {
        let PlanInstance {
            program,
            kernels,
            arena,
            inputs: staged_in,
            outputs: staged_out,
            heap,
            ..
        } = self;
        let plan = &program.plans[index.0];
        let mut from: [&[f32]; TENSORS_MAX] = [&[]; TENSORS_MAX];
        for (i, (input, staged)) in inputs.iter().zip(staged_in.iter_mut()).enumerate() {
            from[i] = match cast::words(input) {
                Some(words) if words.len() == plan.input_words[i] => words,
                _ => {
                    cast::bytes_mut(staged)[..input.len()].copy_from_slice(input);
                    &staged[..plan.input_words[i]]
                }
            };
        }
        let mut direct = [false; TENSORS_MAX];
        {
            let mut to: [&mut [f32]; TENSORS_MAX] = std::array::from_fn(|_| &mut [][..]);
            for (o, (output, staged)) in outputs.iter_mut().zip(staged_out.iter_mut()).enumerate() {
                to[o] = match cast::words_mut(output) {
                    Some(words) if words.len() == plan.output_words[o] => {
                        direct[o] = true;
                        words
                    }
                    _ => &mut staged[..plan.output_words[o]],
                };
            }
            let plain = |_: usize, run: &mut dyn FnMut() -> Option<()>| run();
            run(kernels, plan, (arena, heap), &from, &mut to, plain)?;
        }
        for (o, output) in outputs.iter_mut().enumerate() {
            if !direct[o] {
                output.copy_from_slice(&cast::bytes(&staged_out[o])[..output.len()]);
            }
        }
        Ok(())
    }
}

fn run(
    kernels: &Kernels,
    plan: &Plan,
    (arena, heap): (&mut [f32], &mut Option<Pool>),
    inputs: &[&[f32]; TENSORS_MAX],
    outputs: &mut [&mut [f32]; TENSORS_MAX],
    mut around: impl FnMut(usize, &mut dyn FnMut() -> Option<()>) -> Option<()>,
) -> Result<(), RunError> {
    // Every step overwrites what it writes, so a run that was cut short leaves nothing behind.
    catch_unwind(AssertUnwindSafe(|| {
        for segment in &plan.segments {
            for turn in 0..segment.turns {
                for i in segment.steps.clone() {
                    let step = &plan.steps[i];
                    let this = &mut || {
                        let memory = (&mut *arena, &mut *heap);
                        run_step(kernels, plan, (step, turn), memory, inputs, outputs)
                    };
                    if around(i, this).is_none() {
                        return Err(RunError::Step { step: i as u32 });
                    }
                }
            }
        }
        Ok(())
    }))
    .unwrap_or(Err(RunError::Panic))
}

/// The rest of the arena beside a step's destination and scratch: `(first word, words)`.
type Pieces<'a> = [(usize, &'a [f32]); 3];

/// Cuts the destination and the scratch out of the arena.
fn cut(arena: &mut [f32], a: Operand, b: Operand) -> (&mut [f32], &mut [f32], Pieces<'_>) {
    if a.start > b.start {
        let (b, a, pieces) = cut(arena, b, a);
        return (a, b, pieces);
    }
    let (left, rest) = arena.split_at_mut(a.start);
    let (a_words, rest) = rest.split_at_mut(a.len);
    let middle_from = a.start + a.len;
    let (middle, rest) = rest.split_at_mut(b.start - middle_from);
    let (b_words, right) = rest.split_at_mut(b.len);
    (a_words, b_words, [(0, left), (middle_from, middle), (b.start + b.len, right)])
}

fn find<'a>(pieces: &Pieces<'a>, operand: Operand) -> &'a [f32] {
    for &(from, words) in pieces {
        if operand.start >= from && operand.start - from + operand.len <= words.len() {
            return &words[operand.start - from..][..operand.len];
        }
    }
    unreachable!("the memory plan keeps sources apart from destination and scratch")
}

fn run_step(
    kernels: &Kernels,
    plan: &Plan,
    (step, turn): (&Step, usize),
    (arena, heap): (&mut [f32], &mut Option<Pool>),
    inputs: &[&[f32]; TENSORS_MAX],
    outputs: &mut [&mut [f32]; TENSORS_MAX],
) -> Option<()> {
    let mut read: [&[f32]; SOURCES_MAX] = [&[]; SOURCES_MAX];
    let to = step.dest.at(turn);
    let (dest, scratch);
    match to.space {
        Space::Output(o) => {
            let (before, rest) = outputs.split_at_mut(o);
            let (this, after) = rest.split_first_mut()?;
            let nothing = Operand { space: Space::Arena, start: 0, len: 0, step: 0 };
            let scratch_at = if step.scratch.len == 0 { nothing } else { step.scratch };
            let (s, _, pieces) = cut(arena, scratch_at, nothing_after(scratch_at));
            for (slot, operand) in read.iter_mut().zip(&step.sources) {
                let operand = operand.at(turn);
                *slot = match operand.space {
                    Space::Arena => find(&pieces, operand),
                    Space::Input(i) => &inputs[i][operand.start..][..operand.len],
                    Space::Const(c) => &plan.constants[c][operand.start..][..operand.len],
                    Space::Output(p) if p < o => &before[p][operand.start..][..operand.len],
                    Space::Output(p) => &after[p - o - 1][operand.start..][..operand.len],
                };
            }
            scratch = s;
            dest = &mut this[to.start..][..to.len];
        }
        _ => {
            let scratch_at = if step.scratch.len == 0 { nothing_after(to) } else { step.scratch };
            let (d, s, pieces) = cut(arena, to, scratch_at);
            for (slot, operand) in read.iter_mut().zip(&step.sources) {
                let operand = operand.at(turn);
                *slot = match operand.space {
                    Space::Arena => find(&pieces, operand),
                    Space::Input(i) => &inputs[i][operand.start..][..operand.len],
                    Space::Const(c) => &plan.constants[c][operand.start..][..operand.len],
                    Space::Output(o) => &outputs[o][operand.start..][..operand.len],
                };
            }
            (dest, scratch) = (d, s);
        }
    }
    compute(kernels, &step.kernel, &read[..step.sources.len()], dest, (scratch, heap))
}

/// An empty operand that lies after `operand`.
fn nothing_after(operand: Operand) -> Operand {
    Operand { space: Space::Arena, start: operand.start + operand.len, len: 0, step: 0 }
}

/// Runs a kernel. `None` if the fallback failed, or the operands don't fit.
pub fn compute(
    kernels: &Kernels,
    kernel: &Kernel,
    read: &[&[f32]],
    dest: &mut [f32],
    (scratch, heap): (&mut [f32], &mut Option<Pool>),
) -> Option<()> {
    match kernel {
        Kernel::Conv { conv, batch, act } => {
            conv.run(kernels, *batch, read[0], read.get(1).copied(), *act, dest, scratch);
        }
        Kernel::Gemm { weights, rows, act } => {
            let (k, n) = (weights.k(), weights.n());
            weights.run(kernels, *rows, read[0], k, read.get(1).copied(), *act, dest, n);
        }
        Kernel::CodedConv { conv, batch } => {
            let (from, to) = (conv.params().input_len(), conv.params().output_len());
            let x = &cast::bytes(read[0])[..batch * from];
            conv.run(kernels, *batch, x, &mut cast::bytes_mut(dest)[..batch * to], scratch);
        }
        Kernel::AddCodes { codes, count } => {
            let (a, b) = (&cast::bytes(read[0])[..*count], &cast::bytes(read[1])[..*count]);
            kernels::add_codes(kernels, *codes, a, b, &mut cast::bytes_mut(dest)[..*count]);
        }
        Kernel::Encode { to, count } => {
            let y = &mut cast::bytes_mut(dest)[..*count];
            kernels::encode(kernels, *to, &read[0][..*count], y);
        }
        Kernel::Decode { from, count } => {
            let x = &cast::bytes(read[0])[..*count];
            kernels::decode(kernels, *from, x, &mut dest[..*count]);
        }
        Kernel::MatMul { params, at } => {
            for &[a, b, c] in at {
                kernels::matmul(
                    kernels,
                    params,
                    &read[0][a..],
                    &read[1][b..],
                    &mut dest[c..],
                    scratch,
                );
            }
        }
        Kernel::Activation(act) => elementwise(kernels, kernels::Unary::Act(*act), read, dest),
        Kernel::Unary(f) => match vector_form(*f) {
            Some(op) => elementwise(kernels, op, read, dest),
            None => {
                if let Some(x) = read.first() {
                    dest.copy_from_slice(x);
                }
                ops::unary(*f, dest);
            }
        },
        Kernel::Binary { op, broadcast, vector } => match (read, vector) {
            (&[a, b], Some((op, shape))) => {
                kernels::binary(kernels, *op, *shape, a, b, kernels::Activation::None, dest);
            }
            (&[b], Some((op, shape))) => {
                kernels::binary_inplace(kernels, *op, *shape, dest, b, kernels::Activation::None);
            }
            (&[a, b], None) => broadcast.run(*op, a, b, dest),
            (&[b], None) => broadcast.run_in_place(*op, b, dest),
            _ => return None,
        },
        Kernel::Reduce { kind, dims, scale } => {
            let op = match kind {
                ReduceKind::Sum => kernels::Reduction::Sum,
                ReduceKind::SumSquares => kernels::Reduction::SumSquares,
                ReduceKind::Max => kernels::Reduction::Max,
                ReduceKind::Min => kernels::Reduction::Min,
                ReduceKind::Prod => {
                    ops::product(read[0], *dims, dest);
                    scaled(kernels, *scale, dest);
                    return Some(());
                }
            };
            kernels::reduce(kernels, op, (*dims).into(), read[0], dest);
            scaled(kernels, *scale, dest);
        }
        Kernel::Softmax { n, scale, log } => {
            let in_place = *log || *scale != 1.0 || read.is_empty();
            if in_place && let Some(x) = read.first() {
                dest.copy_from_slice(x);
            }
            scaled(kernels, *scale, dest);
            let rows = dest.len() / n;
            match (read.first(), log) {
                (_, true) => ops::log_softmax(dest, *n),
                (Some(x), _) if !in_place => kernels::softmax(kernels, rows, *n, x, dest),
                _ => kernels::softmax_inplace(kernels, rows, *n, dest),
            }
        }
        Kernel::LayerNorm { dims, eps, gamma, beta } => {
            if dims.2 == 1 {
                let norm =
                    kernels::LayerNorm { gamma: Some(gamma), beta: Some(beta), epsilon: *eps };
                kernels::layer_norm(kernels, dims.0, dims.1, norm, read[0], dest);
            } else {
                ops::layer_norm_middle(read[0], *dims, (*eps, gamma, beta), scratch, dest);
            }
        }
        Kernel::Pool { pool, image, out, vector } => match vector {
            Some(params) => kernels::pool2d(kernels, params, image[0], read[0], dest),
            None => ops::pool(pool, *image, *out, read[0], dest),
        },
        Kernel::Transpose(batch, rows, cols) => {
            kernels::transpose(kernels, *batch, *rows, *cols, read[0], dest);
        }
        Kernel::Move { copies, fill } => {
            if let Some(fill) = fill {
                dest.fill(*fill);
            }
            for (copy, x) in copies.iter().zip(read) {
                copy.run(x, dest);
            }
        }
        Kernel::Embed { table, width, first, wraps, index, count } => match index {
            DType::I32 => {
                let index = read[0][..*count].iter().map(|x| i64::from(x.to_bits() as i32));
                ops::embed(table, *width, (*first, *wraps), index, dest);
            }
            DType::I64 => {
                let index = cast::bytes(read[0])
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .map(|&b| i64::from_le_bytes(b))
                    .take(*count);
                ops::embed(table, *width, (*first, *wraps), index, dest);
            }
            _ => return None,
        },
        Kernel::Cast { from, to, count } => return convert(*from, *to, *count, read[0], dest),
        Kernel::Quantize { scale, zero, to, count } => {
            let out = cast::bytes_mut(dest);
            for (y, &x) in out.iter_mut().zip(&read[0][..*count]) {
                let q = (x / scale).round_ties_even() + *zero as f32;
                *y = match to {
                    DType::I8 => (q.clamp(-128.0, 127.0) as i8) as u8,
                    DType::U8 => q.clamp(0.0, 255.0) as u8,
                    _ => return None,
                };
            }
        }
        Kernel::Dequantize { scale, zero, from, count } => {
            let source = cast::bytes(read[0]);
            for (i, y) in dest[..*count].iter_mut().enumerate() {
                let q = match from {
                    DType::I8 => i32::from(source[i] as i8),
                    DType::U8 => i32::from(source[i]),
                    DType::I32 => read[0][i].to_bits() as i32,
                    _ => return None,
                };
                *y = (q - zero) as f32 * scale;
            }
        }
        Kernel::Recurrent(layer, dims) => layer.run(kernels, *dims, read[0], dest, scratch),
        Kernel::Fallback { node, inputs, outputs } => {
            let mut eval = || fallback::fall_back(node, inputs, outputs, read, dest);
            return match heap {
                Some(heap) => heap.run(eval),
                None => eval(),
            };
        }
    }
    Some(())
}

/// The vector kernel of a function, where there is one.
fn vector_form(f: Unary) -> Option<kernels::Unary> {
    Some(match f {
        Unary::Exp => kernels::Unary::Exp,
        Unary::Erf => kernels::Unary::Erf,
        Unary::Sqrt => kernels::Unary::Sqrt,
        Unary::Rsqrt => kernels::Unary::Rsqrt,
        Unary::Recip => kernels::Unary::Reciprocal,
        Unary::Square => kernels::Unary::Square,
        Unary::Abs => kernels::Unary::Abs,
        Unary::Neg => kernels::Unary::Neg,
        Unary::Affine(scale, shift) => kernels::Unary::Affine { scale, shift },
        _ => return None,
    })
}

fn elementwise(kernels: &Kernels, op: kernels::Unary, read: &[&[f32]], y: &mut [f32]) {
    match read.first() {
        Some(x) => kernels::unary(kernels, op, x, y),
        None => kernels::unary_inplace(kernels, op, y),
    }
}

fn scaled(kernels: &Kernels, scale: f32, y: &mut [f32]) {
    if scale != 1.0 {
        kernels::unary_inplace(kernels, kernels::Unary::Affine { scale, shift: 0.0 }, y);
    }
}

/// Elements of `N` bytes.
pub(super) fn elements<const N: usize>(
    words: &[f32],
    count: usize,
) -> impl Iterator<Item = [u8; N]> + '_ {
    cast::bytes(words).as_chunks::<N>().0.iter().copied().take(count)
}

fn convert(from: DType, to: DType, count: usize, x: &[f32], y: &mut [f32]) -> Option<()> {
    if (from, to) == (DType::F32, DType::F16) {
        let out = cast::bytes_mut(y).as_chunks_mut::<2>().0;
        for (y, &x) in out.iter_mut().zip(&x[..count]) {
            *y = half::f16::from_f32(x).to_le_bytes();
        }
        return Some(());
    }
    if to != DType::F32 {
        return None;
    }
    let y = y[..count].iter_mut();
    match from {
        DType::F32 => y.zip(x).for_each(|(y, &x)| *y = x),
        DType::F16 => y
            .zip(elements::<2>(x, count))
            .for_each(|(y, b)| *y = half::f16::from_le_bytes(b).to_f32()),
        DType::F64 => {
            y.zip(elements::<8>(x, count)).for_each(|(y, b)| *y = f64::from_le_bytes(b) as f32)
        }
        DType::I8 => y.zip(elements::<1>(x, count)).for_each(|(y, b)| *y = f32::from(b[0] as i8)),
        DType::U8 | DType::Bool => {
            y.zip(elements::<1>(x, count)).for_each(|(y, b)| *y = f32::from(b[0]))
        }
        DType::I16 => {
            y.zip(elements::<2>(x, count)).for_each(|(y, b)| *y = f32::from(i16::from_le_bytes(b)))
        }
        DType::U16 => {
            y.zip(elements::<2>(x, count)).for_each(|(y, b)| *y = f32::from(u16::from_le_bytes(b)))
        }
        DType::I32 => {
            y.zip(elements::<4>(x, count)).for_each(|(y, b)| *y = i32::from_le_bytes(b) as f32)
        }
        DType::U32 => {
            y.zip(elements::<4>(x, count)).for_each(|(y, b)| *y = u32::from_le_bytes(b) as f32)
        }
        DType::I64 => {
            y.zip(elements::<8>(x, count)).for_each(|(y, b)| *y = i64::from_le_bytes(b) as f32)
        }
        DType::U64 => {
            y.zip(elements::<8>(x, count)).for_each(|(y, b)| *y = u64::from_le_bytes(b) as f32)
        }
    }
    Some(())
}
