//! Engine `plan`: static plan and kernels of our own.
//!
//! tract parses and types the file once; for every batch size its typed graph goes through
//! `import` (an intermediate representation), `simplify` (operators found again, epilogues
//! folded), `lower` (layouts, kernels, packed weights that all batch sizes share) and `memory`
//! (one arena with every intermediate at a fixed offset). An instance then runs the steps in order
//! and never allocates. A step that falls back to tract, as [`describe`](super::Engine::describe)
//! lists, does so from the instance's private heap (`sys::pool`), given the counting allocator.
//!
//! Everything is computed in f32 but what `codes` finds in quantised graphs (QuantizeLinear,
//! DequantizeLinear): convolutions and products from one 8-bit tensor to another, computed in whole numbers
//! where the instruction set is faster at it. The rest of such a graph is computed on the dequantised values,
//! rounded where the graph rounds. f16 is widened when weights are loaded.

use super::image::Image;
use super::kernels::{Isa, Kernels};
use super::tract::front;
use super::{
    Description, Engine, EngineError, EngineErrorKind, EngineKind, Instance, LoadRequest,
    OperatorUse, PlanIndex, PlanMemory, Profile, StepInfo,
};
use crate::model::signature::{Signature, TensorSpec};
use crate::sys;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use step::Plan;

mod codes;
mod exec;
mod fallback;
mod functions;
mod graph;
mod import;
mod lower;
mod memory;
mod ops;
mod order;
mod recurrent;
mod report;
mod simplify;
mod step;
mod turns;

/// A loaded model.
pub struct PlanEngine {
    signature: Signature,
    batch_sizes: Vec<usize>,
    program: Arc<exec::Program>,
    independence: Result<(), String>,
}

/// Loads a model.
///
/// # Errors
/// What [`front::parse`] refuses; `Limit` where shapes overflow, or the largest arena or all outputs together are
/// over `arena_bytes_max` (nothing of them is allocated then); `UnsupportedOperator` where neither a kernel
/// nor tract can run a node, or this processor lacks the instruction set asked for.
pub fn load(request: &LoadRequest<'_>) -> Result<Box<dyn Engine>, EngineError> {
    Ok(Box::new(compile(request)?))
}

/// As [`load`], for who asks more of the engine than the trait has.
pub(crate) fn compile(request: &LoadRequest<'_>) -> Result<PlanEngine, EngineError> {
    let kernels = Kernels::new(request.isa)
        .map_err(|e| EngineError::new(EngineErrorKind::UnsupportedOperator, e.to_string()))?;
    super::check_batch_sizes(request.batch_sizes)?;
    let parsed = front::parse(request.bytes, request.bind_axes, request.bind_inputs)?;
    let batch_sizes = if parsed.signature.batched { request.batch_sizes.to_vec() } else { vec![1] };
    let rows =
        |specs: &[TensorSpec]| -> Vec<usize> { specs.iter().map(TensorSpec::row_bytes).collect() };
    let row_bytes = (rows(&parsed.signature.inputs), rows(&parsed.signature.outputs));
    let mut shared = lower::Shared::new(kernels);
    let mut plans = vec![];
    let mut precision = vec![];
    let mut independence = Ok(());
    for &batch in &batch_sizes {
        let typed = parsed.typed(batch)?;
        if batch > 1 && independence.is_ok() {
            independence = parsed.prove_rows_independent(&typed, batch);
        }
        let plan = front::contained("planning the graph", || {
            let mut graph = import::import(&typed)?;
            if plans.is_empty() {
                precision = report::precision(&graph);
            }
            simplify::simplify(&mut graph);
            codes::encode(&mut graph, &mut shared);
            if plans.is_empty() {
                precision.extend(report::in_whole_numbers(&graph));
            }
            lower::lower(&graph, batch, &mut shared)
        })?;
        drop(typed);
        // Outputs lie outside the arena, and a number in the file can make them as large.
        let outputs = plan.output_words.iter().sum::<usize>() * size_of::<f32>();
        for (what, bytes) in [("an arena", plan.arena_bytes()), ("outputs", outputs)] {
            if bytes > request.arena_bytes_max {
                return Err(EngineError::new(
                    EngineErrorKind::Limit,
                    format!(
                        "batch size {batch} needs {what} of {bytes} bytes, the limit (arena_bytes_max) is {}",
                        request.arena_bytes_max
                    ),
                ));
            }
        }
        plans.push(plan);
    }
    let weight_bytes = shared.bytes();
    let compiled = Compiled {
        isa: request.isa,
        signature: parsed.signature.clone(),
        batch_sizes,
        plans,
        row_bytes,
        weight_bytes,
        precision,
    };
    if compiled.plans.iter().any(Plan::falls_back) {
        // What runs through tract needs tract's graph of it, which no image holds.
        return Ok(PlanEngine { independence, ..compiled.engine(kernels) });
    }
    // Nothing of the graph, nor of its weights as the file has them, is kept beside the image.
    drop(parsed);
    let image = Image::of(&compiled).map_err(|e| {
        EngineError::new(EngineErrorKind::Limit, format!("the packed weights: {e}"))
    })?;
    drop((compiled, shared));
    Ok(PlanEngine { independence, ..restore(&image)? })
}

/// Makes an engine of an image that [`Engine::image`] gave. Whether its rows are independent is not in
/// the image: whoever kept it knows.
///
/// # Errors
/// `UnsupportedOperator` where this processor lacks the image's instruction set, `Internal` where it is no
/// image of a plan.
pub fn restore(image: &Image) -> Result<PlanEngine, EngineError> {
    let compiled: Compiled = image.read().map_err(|e| {
        EngineError::new(EngineErrorKind::Internal, format!("no image of a plan: {e}"))
    })?;
    let kernels = Kernels::new(compiled.isa)
        .map_err(|e| EngineError::new(EngineErrorKind::UnsupportedOperator, e.to_string()))?;
    Ok(compiled.engine(kernels))
}

/// Everything that loading finds out.
#[derive(Serialize, Deserialize)]
struct Compiled {
    isa: Isa,
    signature: Signature,
    batch_sizes: Vec<usize>,
    plans: Vec<Plan>,
    row_bytes: (Vec<usize>, Vec<usize>),
    weight_bytes: usize,
    precision: Vec<String>,
}

impl Compiled {
    fn engine(self, kernels: Kernels) -> PlanEngine {
        let Compiled { signature, batch_sizes, plans, row_bytes, weight_bytes, precision, .. } =
            self;
        let program =
            Arc::new(exec::Program { plans, kernels, row_bytes, weight_bytes, precision });
        let independence = Err("it was compiled elsewhere".to_string());
        PlanEngine { signature, batch_sizes, program, independence }
    }
}

#[cfg(test)]
impl PlanEngine {
    /// An instance as a worker makes it, on the machine whose `sys` lies below `root`.
    pub(crate) fn instance_below(
        &self,
        root: &std::path::Path,
    ) -> Result<exec::PlanInstance, EngineError> {
        exec::PlanInstance::below(root, self.program.clone())
    }
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

    fn independence(&self) -> Result<(), &str> {
        self.independence.as_ref().copied().map_err(String::as_str)
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
                arena_bytes: Some(plan.arena_bytes()),
                arena_lower_bound_bytes: Some(plan.lower_bound_words * size_of::<f32>()),
                staging_bytes: plan.input_words.iter().chain(&plan.output_words).sum::<usize>()
                    * size_of::<f32>(),
            })
            .collect();
        Description {
            operators,
            memory,
            instance_arena_bytes: program.plans.iter().map(Plan::arena_bytes).max(),
            instance_staging_bytes: program.staging_bytes(),
            weight_bytes: program.weight_bytes,
            // A fallback step allocates from the instance's private heap, which only the counting
            // allocator leads to.
            allocation_free: !program.plans.iter().any(Plan::falls_back) || sys::alloc::installed(),
            isa: Some(program.kernels.isa().name().to_string()),
            precision: program.precision.clone(),
            steps: program.plans.iter().flat_map(report::lines).collect(),
            weights_shared: true,
            backend: None,
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

    fn profile(&self, plan: PlanIndex, runs: usize) -> Result<Option<Profile>, EngineError> {
        report::profile(&self.program, plan, runs).map(Some)
    }

    fn image(&self) -> Result<Image, String> {
        let program = &self.program;
        let steps = program.plans.iter().flat_map(|p| p.steps.iter());
        let fallbacks = steps.filter(|s| matches!(s.kernel, step::Kernel::Fallback { .. })).count();
        if fallbacks > 0 {
            return Err(format!("{fallbacks} of its steps run through tract and need its graph"));
        }
        Image::of(&Compiled {
            isa: program.kernels.isa(),
            signature: self.signature.clone(),
            batch_sizes: self.batch_sizes.clone(),
            plans: program.plans.clone(),
            row_bytes: program.row_bytes.clone(),
            weight_bytes: program.weight_bytes,
            precision: program.precision.clone(),
        })
    }

    fn instance(&self) -> Result<Box<dyn Instance>, EngineError> {
        Ok(Box::new(exec::PlanInstance::new(self.program.clone())?))
    }
}

#[cfg(test)]
mod tests;
