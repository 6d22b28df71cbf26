//! Engine `fake`: a fixed compute time or a fixed piece of work, answers that tell whose row they are, and
//! faults on demand.
//!
//! Each output row repeats (or truncates) the bytes of the same row of an input, so a test sees at
//! once whether rows were crossed. Nothing is allocated after [`Engine::instance`].

use super::{
    Description, Engine, EngineError, EngineErrorKind, EngineKind, Instance, OperatorUse,
    PlanIndex, PlanMemory, RunError,
};
use crate::limits::{BUFFER_ALIGN_BYTES, TENSORS_MAX};
use crate::model::signature::{Signature, TensorSpec};
use crate::sys::clock;
use crate::units::Nanos;
use std::time::Duration;

/// How long a run takes: `per_run`, and `per_row` for each row of the plan, pad rows included (as in
/// a real engine). The time is spent in a busy wait; zero spends none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FakeCompute {
    /// For each run.
    pub per_run: Duration,
    /// For each row of the plan.
    pub per_row: Duration,
}

/// Rows that make a run fail: those whose first byte of the first input equals a marker. A marker
/// should not be 0, which is what buffers hold at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FakeFault {
    /// Returns [`RunError::Injected`].
    pub error_marker: Option<u8>,
    /// Panics.
    pub panic_marker: Option<u8>,
}

/// Work of a run, in rounds of [`grind`]: what a core does in earnest, where [`FakeCompute`] only lets
/// time pass. A slower core takes longer for it, and two on one core take twice as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FakeWork {
    /// For each run.
    pub rounds_per_run: u64,
    /// For each row of the plan.
    pub rounds_per_row: u64,
}

impl FakeWork {
    /// Rounds of a run over `rows` rows.
    fn of(self, rows: usize) -> u64 {
        self.rounds_per_run + self.rounds_per_row * rows as u64
    }
}

/// Lanes of [`grind`]: enough for several vector registers, and few enough to stay in them.
const GRIND_LANES: usize = 32;

/// Multiply-adds on registers, `rounds` times over 32 lanes; returns their sum, so that
/// no compiler leaves them out. It touches no memory, so that cores do not hinder each other.
pub fn grind(rounds: u64) -> f32 {
    let mut lanes: [f32; GRIND_LANES] = std::array::from_fn(|n| n as f32);
    // Unknown to the compiler; the lanes go towards 1 and never become subnormal.
    let (factor, add) = std::hint::black_box((0.999_f32, 0.001_f32));
    for _ in 0..rounds {
        for lane in &mut lanes {
            *lane = *lane * factor + add;
        }
    }
    std::hint::black_box(lanes).iter().sum()
}

/// The engine: see the module's documentation.
#[derive(Debug, Clone)]
pub struct FakeEngine {
    signature: Signature,
    batch_sizes: Vec<usize>,
    compute: FakeCompute,
    work: FakeWork,
    fault: FakeFault,
}

impl FakeEngine {
    /// A fake model of `signature` at `batch_sizes`.
    ///
    /// # Errors
    /// `Limit` where the signature has no input or output, or too many, or a row without bytes;
    /// `Batch` where the sizes are not ascending within 1 to `BATCH_ROWS_MAX`, or are not `[1]` for
    /// a signature without a batch axis.
    pub fn new(
        signature: Signature,
        batch_sizes: &[usize],
        compute: FakeCompute,
    ) -> Result<Self, EngineError> {
        for (what, tensors) in [("inputs", &signature.inputs), ("outputs", &signature.outputs)] {
            if tensors.is_empty() || tensors.len() > TENSORS_MAX {
                let message = format!("{} {what}, 1 to {TENSORS_MAX} are served", tensors.len());
                return Err(EngineError::new(EngineErrorKind::Limit, message));
            }
            if let Some(empty) = tensors.iter().find(|t| t.row_bytes() == 0) {
                let message = format!("a row of {:?} has no bytes", empty.name);
                return Err(EngineError::new(EngineErrorKind::Limit, message));
            }
        }
        super::check_batch_sizes(batch_sizes)?;
        if !signature.batched && batch_sizes != [1] {
            let message =
                format!("batch sizes {batch_sizes:?} without a batch axis; only [1] will do");
            return Err(EngineError::new(EngineErrorKind::Batch, message));
        }
        let batch_sizes = batch_sizes.to_vec();
        let (work, fault) = Default::default();
        Ok(FakeEngine { signature, batch_sizes, compute, work, fault })
    }

    /// The same with work beside the time that passes.
    pub fn with_work(mut self, work: FakeWork) -> Self {
        self.work = work;
        self
    }

    /// The same with rows that fail, for tests.
    pub fn with_fault(mut self, fault: FakeFault) -> Self {
        self.fault = fault;
        self
    }
}

impl Engine for FakeEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Fake
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn batch_sizes(&self) -> &[usize] {
        &self.batch_sizes
    }
    fn independence(&self) -> Result<(), &str> {
        Ok(())
    }
    fn describe(&self) -> Description {
        let memory = PlanMemory::staged(&self.signature, &self.batch_sizes, Some(0));
        Description {
            operators: vec![OperatorUse {
                operator: "Fake".into(),
                implementation: "fake".into(),
                count: 1,
            }],
            instance_arena_bytes: Some(0),
            instance_staging_bytes: memory.iter().map(|m| m.staging_bytes).sum(),
            memory,
            weight_bytes: 0,
            allocation_free: true,
            isa: None,
            precision: vec![],
            steps: vec![],
            weights_shared: true,
            backend: None,
        }
    }
    fn instance(&self) -> Result<Box<dyn Instance>, EngineError> {
        let areas = |tensors: &[TensorSpec]| -> Vec<Vec<Staging>> {
            self.batch_sizes
                .iter()
                .map(|rows| tensors.iter().map(|t| Staging::new(t.row_bytes() * rows)).collect())
                .collect()
        };
        let row_bytes =
            |tensors: &[TensorSpec]| tensors.iter().map(TensorSpec::row_bytes).collect();
        Ok(Box::new(FakeInstance {
            inputs: areas(&self.signature.inputs),
            outputs: areas(&self.signature.outputs),
            input_row_bytes: row_bytes(&self.signature.inputs),
            output_row_bytes: row_bytes(&self.signature.outputs),
            run_ns: self.batch_sizes.iter().map(|&rows| self.compute.of(rows)).collect(),
            run_rounds: self.batch_sizes.iter().map(|&rows| self.work.of(rows)).collect(),
            fault: self.fault,
        }))
    }
}

/// Bytes that begin at a multiple of [`BUFFER_ALIGN_BYTES`], without unsafe: the vector is longer
/// than asked for, and its first aligned byte is found once.
pub(crate) struct Staging {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Staging {
    /// `len` zeros.
    pub(crate) fn new(len: usize) -> Self {
        let bytes = vec![0u8; len + BUFFER_ALIGN_BYTES];
        let start = bytes.as_ptr().align_offset(BUFFER_ALIGN_BYTES).min(BUFFER_ALIGN_BYTES);
        Staging { bytes, start, len }
    }
    /// The bytes.
    pub(crate) fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
    /// The bytes, to be written.
    pub(crate) fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

struct FakeInstance {
    /// By plan, then by input.
    inputs: Vec<Vec<Staging>>,
    /// By plan, then by output.
    outputs: Vec<Vec<Staging>>,
    input_row_bytes: Vec<usize>,
    output_row_bytes: Vec<usize>,
    /// By plan.
    run_ns: Vec<Nanos>,
    /// By plan.
    run_rounds: Vec<u64>,
    fault: FakeFault,
}

#[derive(Clone, Copy)]
enum Injected {
    Error,
    Panic,
}

impl FakeFault {
    fn is_asked_for(&self) -> bool {
        self.panic_marker.is_some() || self.error_marker.is_some()
    }

    fn of(&self, first_byte: u8) -> Option<Injected> {
        if self.panic_marker == Some(first_byte) {
            Some(Injected::Panic)
        } else if self.error_marker == Some(first_byte) {
            Some(Injected::Error)
        } else {
            None
        }
    }
}

impl Injected {
    fn raise(self) -> RunError {
        match self {
            Injected::Error => RunError::Injected,
            Injected::Panic => panic!("a panic that was asked for"),
        }
    }
}

impl FakeCompute {
    /// For a run of a plan of `rows` rows.
    fn of(&self, rows: usize) -> Nanos {
        let per_row = self.per_row.as_nanos() as u64;
        Nanos(self.per_run.as_nanos() as u64 + per_row * rows as u64)
    }
}

#[inline(never)]
fn wait(span: Nanos) {
    let until = clock::now().after(span);
    while clock::now() < until {
        std::hint::spin_loop();
    }
}

impl FakeInstance {
    #[inline(always)]
    fn spend(&self, plan: PlanIndex) {
        // A model that takes no time stays the floor that others are compared with.
        let (span, rounds) = (self.run_ns[plan.0], self.run_rounds[plan.0]);
        if span.0 > 0 {
            wait(span);
        }
        if rounds > 0 {
            std::hint::black_box(grind(rounds));
        }
    }
}

/// Fills each output row with the bytes of its input row, again and again until it is full.
fn echo(input: &[u8], in_row: usize, output: &mut [u8], out_row: usize) {
    if in_row == out_row && input.len() == output.len() {
        return output.copy_from_slice(input);
    }
    for (from, to) in input.chunks_exact(in_row).zip(output.chunks_exact_mut(out_row)) {
        for chunk in to.chunks_mut(in_row) {
            chunk.copy_from_slice(&from[..chunk.len()]);
        }
    }
}

impl Instance for FakeInstance {
    fn input_mut(&mut self, plan: PlanIndex, input: usize) -> &mut [u8] {
        self.inputs[plan.0][input].get_mut()
    }

    fn infer(&mut self, plan: PlanIndex) -> Result<(), RunError> {
        self.spend(plan);
        let mut injected = None;
        let first = self.inputs[plan.0][0].get_mut();
        for row in first.chunks_exact_mut(self.input_row_bytes[0]) {
            if let Some(fault) = self.fault.of(row[0]) {
                injected = Some(fault);
                // What a faulty row leaves behind must not hit a later batch as a pad row.
                row[0] = 0;
            }
        }
        if let Some(fault) = injected {
            return Err(fault.raise());
        }
        let inputs = &self.inputs[plan.0];
        for (o, output) in self.outputs[plan.0].iter_mut().enumerate() {
            let i = o.min(inputs.len() - 1);
            let (in_row, out_row) = (self.input_row_bytes[i], self.output_row_bytes[o]);
            echo(inputs[i].get(), in_row, output.get_mut(), out_row);
        }
        Ok(())
    }

    fn output(&self, plan: PlanIndex, output: usize) -> &[u8] {
        self.outputs[plan.0][output].get()
    }

    fn infer_direct(
        &mut self,
        plan: PlanIndex,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), RunError> {
        self.spend(plan);
        if self.fault.is_asked_for() {
            for row in inputs[0].chunks_exact(self.input_row_bytes[0]) {
                if let Some(fault) = self.fault.of(row[0]) {
                    return Err(fault.raise());
                }
            }
        }
        // The same as below for one of each and rows alike.
        if let ([input], [output]) = (inputs, &mut *outputs)
            && input.len() == output.len()
            && self.input_row_bytes[0] == self.output_row_bytes[0]
        {
            output.copy_from_slice(input);
            return Ok(());
        }
        for (o, output) in outputs.iter_mut().enumerate() {
            let i = o.min(inputs.len() - 1);
            echo(inputs[i], self.input_row_bytes[i], output, self.output_row_bytes[o]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
