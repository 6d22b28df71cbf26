//! What a new version may not change: what clients were told, and what memory was sized by.

use super::ReloadError;
use crate::model::signature::{Signature, TensorSpec};
use crate::runtime::{ModelSetup, ServedModel};
use crate::units::CoreId;
use std::fmt;

/// Something that is fixed while the runtime serves, and that a new version has otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What it is.
    pub what: String,
    /// As it is served.
    pub serves: String,
    /// As the new version has it.
    pub asked: String,
    /// Whether it is part of the signature.
    pub is_signature: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, and was {}", self.what, self.asked, self.serves)
    }
}

/// Refuses what differs in anything that is fixed, naming all of it.
pub fn check(served: &ServedModel, next: &ModelSetup) -> Result<(), ReloadError> {
    let mut found = Found(Vec::new());
    let spec = served.queue.spec();
    found.compare("name", &served.name, &next.name);
    found.signature(&spec.signature, next.engine.signature());
    let (rows, asked) = (spec.max_request_rows.0, next.max_request_rows.0);
    let batching = next.inspection.as_ref().map(|inspection| &inspection.batching);
    match batching.and_then(|batching| batching.reason.as_ref()) {
        Some(why) if asked < rows => {
            let asked = format!("{asked} (batching is off: {why})");
            found.add("max_request_rows", rows.to_string(), asked, false);
        }
        _ => found.compare("max_request_rows", rows, asked),
    }
    found.compare("max_queue_size", spec.max_queue_size, next.max_queue_size);
    found.compare("priority_levels", spec.priority_levels, next.priority_levels);
    found.compare("default_priority", spec.default_priority.0, next.default_priority.0);
    found.compare(
        "instance_group",
        core_names(served.limits.cores.as_deref()),
        core_names(next.cores.as_deref()),
    );
    let (max, asked) = (served.limits.max_batch_size, next.batch.max_batch_size);
    if asked > max {
        found.add("max_batch_size", format!("{max} at the most"), asked.to_string(), false);
    }
    let largest = next.engine.batch_sizes().last().copied().unwrap_or(1);
    for (what, rows) in
        [("max_request_rows", spec.max_request_rows.0 as usize), ("max_batch_size", asked as usize)]
    {
        // A request larger than every plan could never be taken.
        if rows > largest {
            let serves = format!("at least {what}, {rows}");
            found.add("the largest of batch_sizes", serves, largest.to_string(), false);
        }
    }
    if found.0.is_empty() {
        return Ok(());
    }
    Err(ReloadError::Fixed { model: served.name.clone(), differences: found.0 })
}

fn core_names(cores: Option<&[CoreId]>) -> String {
    let Some(cores) = cores else { return "all cores".into() };
    let mut cores = cores.to_vec();
    cores.sort_unstable();
    cores.dedup();
    format!("cores {}", crate::sys::affinity::core_list(&cores))
}

struct Found(Vec<Difference>);

impl Found {
    fn add(&mut self, what: &str, serves: String, asked: String, is_signature: bool) {
        self.0.push(Difference { what: what.into(), serves, asked, is_signature });
    }

    fn compare<T: PartialEq + fmt::Display>(&mut self, what: &str, serves: T, asked: T) {
        if serves != asked {
            self.add(what, serves.to_string(), asked.to_string(), false);
        }
    }

    fn signature(&mut self, serves: &Signature, asked: &Signature) {
        let axis = |batched: bool| if batched { "axis 0" } else { "none" }.to_string();
        if serves.batched != asked.batched {
            self.add("the batch axis", axis(serves.batched), axis(asked.batched), true);
        }
        for (what, serves, asked) in
            [("input", &serves.inputs, &asked.inputs), ("output", &serves.outputs, &asked.outputs)]
        {
            if serves.len() != asked.len() {
                let count = format!("the number of {what}s");
                self.add(&count, serves.len().to_string(), asked.len().to_string(), true);
                continue;
            }
            for (n, (serves, asked)) in serves.iter().zip(asked).enumerate() {
                if serves != asked {
                    let place = format!("{what} {n}");
                    self.add(&place, tensor(serves), tensor(asked), true);
                }
            }
        }
    }
}

fn tensor(t: &TensorSpec) -> String {
    format!("{:?} {} {:?}", t.name, t.dtype, t.row_shape)
}
