//! What `inspect` prints of a plan.

use super::exec::{PlanInstance, Program};
use super::graph::{Graph, Node, Op};
use super::step::{Kernel, Operand, Plan, Space, Step};
use crate::engine::{EngineError, EngineErrorKind, Instance, PlanIndex, Profile};
use crate::units::DType;
use std::sync::Arc;

/// In which precision the weights of `graph` come, and what becomes of them.
pub fn precision(graph: &Graph) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for &(dtype, elements) in &graph.stored {
        let becomes = match dtype {
            DType::F32 => "kept and computed with as f32",
            DType::F16 => "widened to f32 at load, kept and computed with as f32",
            DType::I8 | DType::U8 => "dequantised to f32 at load, kept and computed with as f32",
            // Shapes, axes and the like.
            _ => continue,
        };
        notes.push(format!("{elements} constants stored as {dtype}: {becomes}"));
    }
    // tract turns weights on a grid into f32 when it types the graph, so that only the roundings tell.
    let grid = |node: &&Node| matches!(node.op, Op::Quantize { .. } | Op::Dequantize { .. });
    let roundings = graph.nodes.iter().filter(grid).count();
    if roundings > 0 {
        notes.push(format!(
            "a quantised graph ({roundings} steps to or from an 8-bit grid): its weights are dequantised \
             at load; but for what is computed in whole numbers, products and sums are f32, rounded to the grid \
             where the graph rounds"
        ));
    }
    notes
}

/// What of `graph`, as it is lowered, is computed in whole numbers, if something is.
pub fn in_whole_numbers(graph: &Graph) -> Option<String> {
    let count = graph.nodes.iter().filter(|node| matches!(node.op, Op::CodedConv(_))).count();
    (count > 0).then(|| {
        format!(
            "{count} of its convolutions and products are computed in whole numbers, from tensors of 8 bits to \
             tensors of 8 bits, with weights of 16 bits"
        )
    })
}

/// One line for each step of a plan, after one for the plan.
pub fn lines(plan: &Plan) -> Vec<String> {
    let flops: u64 = plan.steps.iter().map(|s| s.flops).sum();
    let percent = (plan.arena_bytes() * 100).checked_div(plan.lower_bound_words * size_of::<f32>());
    let mut lines = vec![format!(
        "batch {}: {} steps, {} flop a row, arena {} bytes, lower bound {} bytes ({} %)",
        plan.batch,
        plan.steps.len(),
        flops / plan.batch.max(1) as u64,
        plan.arena_bytes(),
        plan.lower_bound_words * size_of::<f32>(),
        percent.unwrap_or(100),
    )];
    for segment in &plan.segments {
        let rows = plan.batch / segment.turns.max(1);
        if segment.turns > 1 {
            lines.push(format!("    {} turns of {rows} rows each:", segment.turns));
        } else if plan.segments.len() > 1 {
            lines.push(format!("    all {rows} rows at once:"));
        }
        lines.extend(segment.steps.clone().map(|i| line(i, &plan.steps[i])));
    }
    lines
}

fn line(i: usize, step: &Step) -> String {
    let place = |o: &Operand| match o.space {
        Space::Arena => format!("arena+{}", o.start * size_of::<f32>()),
        Space::Input(n) => format!("input{n}"),
        Space::Output(n) => format!("output{n}"),
        Space::Const(n) => format!("const{n}"),
    };
    let from: Vec<String> = step.sources.iter().map(place).collect();
    format!(
        "{i:>3} {} {} {} [{} -> {}, {} bytes, {} flop] {} ({:?})",
        step.kernel.name(),
        runs_in(&step.kernel),
        step.shapes,
        from.join(" "),
        place(&step.dest),
        step.dest.len * size_of::<f32>(),
        step.flops,
        step.operator,
        step.name,
    )
}

/// The element types that a step truly works in.
fn runs_in(kernel: &Kernel) -> String {
    match kernel {
        Kernel::Cast { from, to, .. } => format!("{from}->{to}"),
        Kernel::Quantize { to, .. } => format!("float32->{to}"),
        Kernel::Dequantize { from, .. } => format!("{from}->float32"),
        Kernel::CodedConv { .. } | Kernel::AddCodes { .. } => DType::U8.name().into(),
        Kernel::Encode { .. } => format!("float32->{}", DType::U8),
        Kernel::Decode { .. } => format!("{}->float32", DType::U8),
        Kernel::Embed { index, .. } => format!("{index}->float32"),
        Kernel::Fallback { inputs, outputs, .. } => {
            let join = |types: Vec<&str>| types.join(",");
            format!(
                "{}->{}",
                join(inputs.iter().map(|(dtype, _)| dtype.name()).collect()),
                join(outputs.iter().map(|(dtype, ..)| dtype.name()).collect())
            )
        }
        _ => match kernel.grid() {
            Some(grid) => format!("float32->grid({grid})"),
            None => "float32".into(),
        },
    }
}

/// Times the steps of a plan on zeros, after one run that is not counted.
pub fn profile(
    program: &Arc<Program>,
    index: PlanIndex,
    runs: usize,
) -> Result<Profile, EngineError> {
    let plan = &program.plans[index.0];
    let mut instance = PlanInstance::new(program.clone())?;
    let mut times: Vec<Vec<u64>> = vec![Vec::with_capacity(runs); plan.steps.len()];
    for run in 0..=runs {
        let mut spent = vec![0u64; plan.steps.len()];
        instance
            .infer_profiled(index, &mut spent)
            .map_err(|e| EngineError::new(EngineErrorKind::Internal, e.to_string()))?;
        if run > 0 {
            times.iter_mut().zip(spent).for_each(|(times, ns)| times.push(ns));
        }
    }
    let median = |times: &mut Vec<u64>| {
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or(0)
    };
    let step_ns: Vec<u64> = times.iter_mut().map(median).collect();
    let falls_back = |(step, _): &(&Step, &u64)| matches!(step.kernel, Kernel::Fallback { .. });
    let fallback: u64 = plan.steps.iter().zip(&step_ns).filter(falls_back).map(|(_, ns)| ns).sum();
    let fallback_percent = (fallback * 100).checked_div(step_ns.iter().sum()).unwrap_or(0);
    let steps = (plan.steps.iter()).map(|s| format!("{} {:?}", s.kernel.name(), s.name)).collect();
    Ok(Profile { batch_size: plan.batch, runs, steps, step_ns, fallback_percent })
}
