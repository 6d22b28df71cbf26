//! Which provider runs which node, read from the profile that ONNX Runtime writes of a run.

use crate::engine::OperatorUse;
use std::collections::{BTreeMap, HashSet};

/// Nodes that ran, by operator and provider.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// How many nodes, by (operator, ONNX Runtime's name of the provider).
    nodes: BTreeMap<(String, String), usize>,
    /// How many of them take or give half precision, conversions not counted.
    half: usize,
}

/// Operators that only convert or move.
const CONVERSIONS: [&str; 3] = ["Cast", "MemcpyFromHost", "MemcpyToHost"];

/// Whether a list of types and shapes (`[{"float16": [1, 10]}]`) has half precision in it.
fn is_half(tensors: &serde_json::Value) -> bool {
    let mut tensors = tensors.as_array().into_iter().flatten();
    tensors.any(|t| t.get("float16").is_some())
}

impl Placement {
    /// Reads a profile: a list of events, of which those of category `Node` name a node that ran, its
    /// operator and its provider. A node that ran several times counts once.
    ///
    /// # Errors
    /// A sentence: not JSON, not a list, no node in it.
    pub fn parse(profile: &[u8]) -> Result<Placement, String> {
        let events: serde_json::Value = serde_json::from_slice(profile)
            .map_err(|e| format!("the profile of the run is not as expected: {e}"))?;
        let mut placement = Placement::default();
        let mut seen = HashSet::new();
        for event in events.as_array().into_iter().flatten() {
            let args = &event["args"];
            let (Some(name), Some(operator), Some(provider)) =
                (event["name"].as_str(), args["op_name"].as_str(), args["provider"].as_str())
            else {
                continue;
            };
            // Older versions write fences around each kernel too.
            if event["cat"] != "Node" || !name.ends_with("_kernel_time") {
                continue;
            }
            if seen.insert((name.to_string(), args["node_index"].to_string())) {
                *placement.nodes.entry((operator.into(), provider.into())).or_default() += 1;
                let half =
                    ["input_type_shape", "output_type_shape"].iter().any(|k| is_half(&args[k]));
                placement.half += usize::from(half && !CONVERSIONS.contains(&operator));
            }
        }
        if placement.nodes.is_empty() {
            return Err("the profile of the run names no node".into());
        }
        Ok(placement)
    }

    /// Nodes that ran on the provider that ONNX Runtime calls `name`.
    pub fn nodes_on(&self, name: &str) -> usize {
        self.nodes.iter().filter(|((_, p), _)| p == name).map(|(_, n)| n).sum()
    }

    /// Nodes that take or give half precision, conversions not counted.
    pub fn half_nodes(&self) -> usize {
        self.half
    }

    /// All nodes.
    pub fn all_nodes(&self) -> usize {
        self.nodes.values().sum()
    }

    /// ONNX Runtime's names of the providers that ran nodes, with how many.
    pub fn providers(&self) -> BTreeMap<&str, usize> {
        let mut providers = BTreeMap::new();
        for ((_, provider), n) in &self.nodes {
            *providers.entry(provider.as_str()).or_default() += n;
        }
        providers
    }

    /// As `inspect` prints it.
    pub fn operators(&self) -> Vec<OperatorUse> {
        (self.nodes.iter())
            .map(|((operator, provider), &count)| OperatorUse {
                operator: operator.clone(),
                implementation: format!("ort:{provider}"),
                count,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
