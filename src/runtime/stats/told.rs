//! Statistics as clients are told them: JSON that fits a frame's body.
//!
//! Where all of it would not, what says least is left out, as far as it takes: counters that are 0, ends of long
//! texts, details of the models that were asked least, then all but their main counters, and what others count,
//! the longest first. `too_long` then tells how many bytes all of it takes, and `shortened` of a model that
//! something of it is left out which was not 0.

use super::StatsSnapshot;
use crate::limits::{FRAME_BODY_BYTES_MAX, MODEL_NAME_LEN_MAX, MODELS_MAX, WORKERS_MAX};
use serde_json::{Map, Value};

/// What a model keeps in any case. In [`ModelStats`](super::ModelStats) they are a name and numbers.
const MAIN: [&str; 9] = [
    "name",
    "engine",
    "version",
    "accepted",
    "inference_request_success",
    "inference_count",
    "exec_count",
    "queued",
    "outstanding",
];
/// What it keeps besides where its details are left out.
const ENDS: [&str; 5] = [
    "inference_request_failure",
    "version_hash",
    "model_reload_success_total",
    "model_reload_failure_total",
    "model_reload_error",
];
/// Bytes of a text that are kept where texts are cut.
const TEXT_BYTES_MAX: usize = 120;

// Main counters of all models and workers, each of at most 20 digits with a name of at most 30 bytes.
const _: () = assert!(
    MODELS_MAX * (MAIN.len() * 56 + MODEL_NAME_LEN_MAX) + WORKERS_MAX * 9 * 56 + 4096
        <= FRAME_BODY_BYTES_MAX
);

/// The snapshot as JSON text of at most [`FRAME_BODY_BYTES_MAX`] bytes.
pub(in crate::runtime) fn told(snapshot: &StatsSnapshot) -> String {
    // Plain data with text keys: it always has a JSON form.
    let text = serde_json::to_string(snapshot).unwrap_or_default();
    if text.len() <= FRAME_BODY_BYTES_MAX {
        return text;
    }
    let mut all = serde_json::to_value(snapshot).unwrap_or_default();
    all["too_long"] = text.len().into();
    let mut excess = len(&all).saturating_sub(FRAME_BODY_BYTES_MAX);
    let mut models = taken(&mut all, "models");
    for model in &mut models {
        excess = excess.saturating_sub(saved(model, drop_zeros));
        excess = excess.saturating_sub(saved(model, cut_texts));
    }
    excess = excess.saturating_sub(saved(&mut all["extra"], cut_texts));
    let mut least_asked: Vec<&mut Value> = models.iter_mut().collect();
    least_asked.sort_by_key(|model| model["accepted"].as_u64());
    for kept in [&[&MAIN[..], &ENDS].concat()[..], &MAIN] {
        for model in &mut least_asked {
            if excess > 0 {
                excess = excess.saturating_sub(saved(model, |model| shorten(model, kept)));
            }
        }
    }
    all["models"] = models.into();
    let mut extra: Vec<&mut Value> =
        all["extra"].as_object_mut().into_iter().flat_map(Map::values_mut).collect();
    extra.sort_by_key(|value| std::cmp::Reverse(len(value)));
    for value in extra {
        if excess > 0 {
            excess = excess.saturating_sub(saved(value, |value| *value = Value::Null));
        }
    }
    all.to_string()
}

fn len(value: &Value) -> usize {
    value.to_string().len()
}

/// Takes an array out of an object.
fn taken(all: &mut Value, key: &str) -> Vec<Value> {
    match all[key].take() {
        Value::Array(values) => values,
        _ => Vec::new(),
    }
}

/// By how many bytes `f` makes a value shorter.
fn saved(value: &mut Value, f: impl Fn(&mut Value)) -> usize {
    let before = len(value);
    f(value);
    before.saturating_sub(len(value))
}

/// Leaves out counters that are 0, of kinds that are named, and stages without a sample.
fn drop_zeros(model: &mut Value) {
    let Some(model) = model.as_object_mut() else { return };
    model.retain(|_, value| value["count"] != 0);
    for value in model.values_mut() {
        if let Value::Object(counts) = value
            && counts.values().all(Value::is_u64)
            && !counts.contains_key("count")
        {
            counts.retain(|_, n| *n != 0);
        }
    }
}

/// Cuts long texts, and says so in them.
fn cut_texts(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > TEXT_BYTES_MAX => {
            let bytes = text.len();
            text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
            text.push_str(&format!(" ... and {} bytes more", bytes - text.len()));
        }
        Value::Array(values) => values.iter_mut().for_each(cut_texts),
        Value::Object(values) => values.values_mut().for_each(cut_texts),
        _ => {}
    }
}

/// Leaves out all of a model that is not called so.
fn shorten(model: &mut Value, kept: &[&str]) {
    let Some(model) = model.as_object_mut() else { return };
    model.retain(|key, _| kept.contains(&key.as_str()));
    model.insert("shortened".into(), true.into());
}

#[cfg(test)]
mod tests;
