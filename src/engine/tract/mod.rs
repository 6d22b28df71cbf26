//! Engine `tract`: tract's own runner, the reference that the `plan` engine is tested against.
//!
//! One optimised graph per batch size. tract's thread pools stay off (the parallelism is workers):
//! its default executor is the calling thread, and nothing here sets another. It allocates while it
//! runs, so [`Description::allocation_free`] is false.
//!
//! Its kernels are tract's, which takes one kind for the whole process: that of the largest `CPU part` in
//! `/proc/cpuinfo`, whichever core runs it. On a board with unlike cores all workers then run the same, and
//! where tract knows that part not (a Cortex-A76 beside Cortex-A55), those that it has for any. A choice by
//! core, which engine `plan` makes, can't be had from outside; tract's variable `TRACT_CPU_AARCH64_KIND`
//! names another kind for all.

pub mod front;
mod independence;

use super::fake::Staging;
use super::{
    Description, Engine, EngineError, EngineErrorKind, EngineKind, Instance, LoadRequest,
    OperatorUse, PlanIndex, PlanMemory, RunError,
};
use crate::model::signature::{Signature, TensorSpec};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::TractErrorContext;
use tract_onnx::tract_core::ops::konst::Const;

/// Loads a model.
///
/// # Errors
/// Those of [`front::parse`] and [`front::Parsed::typed`]; `Limit` where one tensor is larger than
/// `arena_bytes_max`; `Untyped` where tract can't optimise the graph.
pub fn load(request: &LoadRequest<'_>) -> Result<Box<dyn Engine>, EngineError> {
    super::check_batch_sizes(request.batch_sizes)?;
    let parsed = front::parse(request.bytes, request.bind_axes, request.bind_inputs)?;
    let signature = parsed.signature.clone();
    let batch_sizes = if signature.batched { request.batch_sizes.to_vec() } else { vec![1usize] };
    let mut plans = Vec::new();
    let mut operators = BTreeMap::<String, usize>::new();
    let mut seen = HashSet::new();
    let mut weight_bytes = 0;
    let mut independence = Ok(());
    for &batch in &batch_sizes {
        let typed = parsed.typed(batch)?;
        front::within(&typed, batch, request.arena_bytes_max)?;
        if batch > 1 && independence.is_ok() {
            independence = parsed.prove_rows_independent(&typed, batch);
        }
        let typed = front::declutter(typed)?;
        for node in typed.nodes() {
            if let Some(konst) = node.op_as::<Const>() {
                // Batch sizes share tensors that typing did not have to change.
                if seen.insert(Arc::as_ptr(konst.val()) as usize) {
                    weight_bytes += konst.val().len() * konst.val().datum_type().size_of();
                }
            }
        }
        let plan = front::guarded("optimising the graph", || {
            let optimised = typed.into_optimized()?;
            optimised.into_runnable()
        })
        .map_err(|f| f.into_error(EngineErrorKind::Untyped, "tract can't optimise the graph"))?;
        if plans.is_empty() {
            for node in plan.model().nodes() {
                *operators.entry(node.op.name().to_string()).or_default() += 1;
            }
        }
        plans.push(plan);
    }
    Ok(Box::new(TractEngine {
        signature,
        batch_sizes,
        plans,
        operators,
        weight_bytes,
        independence,
    }))
}

type Plan = Arc<TypedRunnableModel>;

struct TractEngine {
    signature: Signature,
    batch_sizes: Vec<usize>,
    plans: Vec<Plan>,
    operators: BTreeMap<String, usize>,
    weight_bytes: usize,
    independence: Result<(), String>,
}

impl Engine for TractEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Tract
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
        let memory = PlanMemory::staged(&self.signature, &self.batch_sizes, None);
        Description {
            operators: self
                .operators
                .iter()
                .filter(|(operator, _)| !matches!(operator.as_str(), "Const" | "Source"))
                .map(|(operator, &count)| OperatorUse {
                    operator: operator.clone(),
                    implementation: "tract".into(),
                    count,
                })
                .collect(),
            instance_arena_bytes: None,
            instance_staging_bytes: memory.iter().map(|m| m.staging_bytes).sum(),
            memory,
            weight_bytes: self.weight_bytes,
            allocation_free: false,
            isa: None,
            precision: vec!["as tract computes the graph".into()],
            steps: vec![],
            weights_shared: true,
            backend: None,
        }
    }
    fn instance(&self) -> Result<Box<dyn Instance>, EngineError> {
        let staging = |tensors: &[TensorSpec], rows: usize| -> Vec<Staging> {
            tensors.iter().map(|t| Staging::new(t.row_bytes() * rows)).collect()
        };
        let mut plans = Vec::new();
        for (plan, &rows) in self.plans.iter().zip(&self.batch_sizes) {
            let facts = plan
                .model()
                .input_outlets()
                .and_then(|outlets| {
                    outlets
                        .iter()
                        .map(|o| {
                            let fact = plan.model().outlet_fact(*o)?;
                            let shape = fact.shape.as_concrete().context("an open shape")?;
                            Ok((fact.datum_type, shape.to_vec()))
                        })
                        .collect::<TractResult<Vec<_>>>()
                })
                .map_err(|e| {
                    EngineError::new(EngineErrorKind::Internal, format!("tract's plan: {e}"))
                })?;
            plans.push(Runner {
                plan: plan.clone(),
                facts,
                inputs: staging(&self.signature.inputs, rows),
                outputs: staging(&self.signature.outputs, rows),
            });
        }
        Ok(Box::new(TractInstance { plans }))
    }
}

struct Runner {
    plan: Plan,
    /// Element type and whole shape of each input.
    facts: Vec<(DatumType, Vec<usize>)>,
    inputs: Vec<Staging>,
    outputs: Vec<Staging>,
}

struct TractInstance {
    plans: Vec<Runner>,
}

impl Instance for TractInstance {
    fn input_mut(&mut self, plan: PlanIndex, input: usize) -> &mut [u8] {
        self.plans[plan.0].inputs[input].get_mut()
    }

    fn infer(&mut self, plan: PlanIndex) -> Result<(), RunError> {
        self.plans[plan.0].run().map_err(|_| RunError::Step { step: u32::MAX })
    }

    fn output(&self, plan: PlanIndex, output: usize) -> &[u8] {
        self.plans[plan.0].outputs[output].get()
    }
}

impl Runner {
    /// A new state each time: whatever an error or a panic left behind is gone.
    fn run(&mut self) -> TractResult<()> {
        let mut values = TVec::new();
        for (staging, (datum_type, shape)) in self.inputs.iter().zip(&self.facts) {
            let mut tensor = Tensor::zero_dt(*datum_type, shape)?;
            let bytes = tensor.as_bytes_mut();
            if *datum_type == DatumType::Bool {
                // Any byte may arrive; a bool is 0 or 1.
                bytes.iter_mut().zip(staging.get()).for_each(|(to, from)| *to = (*from != 0) as u8);
            } else {
                bytes.copy_from_slice(staging.get());
            }
            values.push(tensor.into_tvalue());
        }
        let results = self.plan.run(values)?;
        for (staging, value) in self.outputs.iter_mut().zip(results.iter()) {
            let value: &Tensor = value;
            if value.datum_type() == DatumType::TDim {
                let value = value.cast_to::<i64>()?;
                staging.get_mut().copy_from_slice(value.as_bytes());
            } else {
                staging.get_mut().copy_from_slice(value.as_bytes());
            }
        }
        Ok(())
    }
}
