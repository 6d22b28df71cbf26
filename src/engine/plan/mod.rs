//! Engine `plan`: static plan and kernels of our own.
//!
//! tract parses and types the file once; for every batch size its typed graph goes through
//! `import` (an intermediate representation), `simplify` (operators found again, epilogues
//! folded), `lower` (layouts, kernels, packed weights that all batch sizes share) and `memory`
//! (one arena with every intermediate at a fixed offset). An instance then runs the steps in order
//! and never allocates. A step that falls back to tract, as [`describe`](super::Engine::describe)
//! lists, does so from the instance's private heap (`sys::pool`), given the counting allocator.
//!
//! Everything is computed in f32: f16 is widened when weights are loaded, and quantised graphs
//! (QuantizeLinear, DequantizeLinear) are computed on the dequantised values, rounded where the
//! graph rounds.

use super::kernels::{Isa, Kernels};
use super::tract::front;
use super::{
    Description, Engine, EngineError, EngineErrorKind, EngineKind, Instance, LoadRequest,
    OperatorUse, PlanIndex, PlanMemory, StepInfo,
};
use crate::limits::WORKERS_MAX;
use crate::model::signature::{Signature, TensorSpec};
use crate::sys;
use std::sync::Arc;

mod exec;
mod functions;
mod graph;
mod import;
mod lower;
mod memory;
mod ops;
mod order;
mod recurrent;
mod simplify;
mod step;
mod turns;

/// A loaded model.
pub struct PlanEngine {
    signature: Signature,
    batch_sizes: Vec<usize>,
    program: Arc<exec::Program>,
}

/// Loads a model with the best kernels that this processor has.
///
/// # Errors
/// As [`load_with`].
pub fn load(request: &LoadRequest<'_>) -> Result<Box<dyn Engine>, EngineError> {
    Ok(Box::new(load_with(request, Isa::detect())?))
}

/// Loads a model with the kernels of `isa`.
///
/// # Errors
/// What [`front::parse`] refuses; `Limit` where shapes overflow or the largest arena is over
/// `arena_bytes_max` (nothing of it is allocated then); `UnsupportedOperator` where neither a kernel
/// nor tract can run a node, or this processor lacks `isa`.
pub fn load_with(request: &LoadRequest<'_>, isa: Isa) -> Result<PlanEngine, EngineError> {
    let kernels = Kernels::new(isa)
        .map_err(|e| EngineError::new(EngineErrorKind::UnsupportedOperator, e.to_string()))?;
    super::check_batch_sizes(request.batch_sizes)?;
    let parsed = front::parse(request.bytes, request.bind_axes, request.bind_inputs)?;
    let batch_sizes = if parsed.signature.batched { request.batch_sizes.to_vec() } else { vec![1] };
    let rows =
        |specs: &[TensorSpec]| -> Vec<usize> { specs.iter().map(TensorSpec::row_bytes).collect() };
    let row_bytes = (rows(&parsed.signature.inputs), rows(&parsed.signature.outputs));
    let mut shared = lower::Shared::new(kernels);
    let mut plans = vec![];
    for &batch in &batch_sizes {
        let mut graph = import::import(&parsed.typed(batch)?)?;
        simplify::simplify(&mut graph);
        let plan = lower::lower(&graph, batch, &mut shared)?;
        let bytes = plan.arena_words.saturating_mul(size_of::<f32>());
        if bytes > request.arena_bytes_max {
            return Err(EngineError::new(
                EngineErrorKind::Limit,
                format!(
                    "batch size {batch} needs an arena of {bytes} bytes, the limit (arena_bytes_max) is {}",
                    request.arena_bytes_max
                ),
            ));
        }
        plans.push(plan);
    }
    let program = Arc::new(exec::Program { plans, shared, row_bytes });
    Ok(PlanEngine { signature: parsed.signature, batch_sizes, program })
}

impl Engine for PlanEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Plan
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn batch_sizes(&self) -> &[usize] {
        &self.batch_sizes
    }

    fn describe(&self) -> Description {
        let program = &self.program;
        let mut operators: Vec<OperatorUse> = vec![];
        for step in program.plans.first().map_or(&[][..], |p| &p.steps) {
            let (operator, implementation) = (step.operator.clone(), step.kernel.kind());
            match operators
                .iter_mut()
                .find(|u| u.operator == operator && u.implementation == implementation)
            {
                Some(known) => known.count += 1,
                None => operators.push(OperatorUse { operator, implementation, count: 1 }),
            }
        }
        let memory = program
            .plans
            .iter()
            .map(|plan| PlanMemory {
                batch_size: plan.batch,
                arena_bytes: Some(plan.arena_words * size_of::<f32>()),
                arena_lower_bound_bytes: Some(plan.lower_bound_words * size_of::<f32>()),
                staging_bytes: plan.input_words.iter().chain(&plan.output_words).sum::<usize>()
                    * size_of::<f32>(),
            })
            .collect();
        Description {
            operators,
            memory,
            weight_bytes: program.shared.bytes(),
            // A fallback step allocates from the instance's private heap, which only the counting
            // allocator leads to.
            allocation_free: !program.plans.iter().any(step::Plan::falls_back)
                || sys::alloc::installed(),
            isa: Some(program.shared.kernels.isa().name().to_string()),
            steps: program.plans.iter().flat_map(step_lines).collect(),
        }
    }

    fn steps(&self, plan: PlanIndex) -> Vec<StepInfo> {
        let steps = &self.program.plans[plan.0].steps;
        (steps.iter())
            .map(|s| StepInfo {
                text: format!("{} {} ({:?})", s.kernel.name(), s.shapes, s.name),
                flops: s.flops,
            })
            .collect()
    }

    fn instance(&self) -> Result<Box<dyn Instance>, EngineError> {
        let instance = exec::PlanInstance::new(self.program.clone()).ok_or_else(|| {
            EngineError::new(
                EngineErrorKind::Limit,
                format!(
                    "no private heap for operators without a kernel: the system has no address space, or \
                     {WORKERS_MAX} instances have one already"
                ),
            )
        })?;
        Ok(Box::new(instance))
    }
}

/// One line for each step of a plan, after one for the plan.
fn step_lines(plan: &step::Plan) -> Vec<String> {
    let mut lines = vec![format!(
        "batch {}: {} steps, arena {} bytes, lower bound {} bytes",
        plan.batch,
        plan.steps.len(),
        plan.arena_words * size_of::<f32>(),
        plan.lower_bound_words * size_of::<f32>()
    )];
    let place = |o: &step::Operand| match o.space {
        step::Space::Arena => format!("arena+{}", o.start * size_of::<f32>()),
        step::Space::Input(n) => format!("input{n}"),
        step::Space::Output(n) => format!("output{n}"),
        step::Space::Const(n) => format!("const{n}"),
    };
    for segment in &plan.segments {
        let rows = plan.batch / segment.turns.max(1);
        if segment.turns > 1 {
            lines.push(format!("    {} turns of {rows} rows each:", segment.turns));
        } else if plan.segments.len() > 1 {
            lines.push(format!("    all {rows} rows at once:"));
        }
        for (i, step) in segment.steps.clone().map(|i| (i, &plan.steps[i])) {
            let from: Vec<String> = step.sources.iter().map(place).collect();
            lines.push(format!(
                "{i:>3} {} f32 {} [{} -> {}, {} bytes, {} flop] {} ({:?})",
                step.kernel.name(),
                step.shapes,
                from.join(" "),
                place(&step.dest),
                step.dest.len * size_of::<f32>(),
                step.flops,
                step.operator,
                step.name,
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests;
