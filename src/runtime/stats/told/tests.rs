use super::*;
use crate::engine::fake::{FakeCompute, FakeEngine};
use crate::limits::BATCH_SIZES_MAX;
use crate::model::signature::{Signature, TensorSpec};
use crate::runtime::{ModelSetup, Runtime};
use crate::sys::sync::Arc;
use crate::units::{DType, Rows};
use std::collections::BTreeMap;

/// Of a runtime with as many models as there may be, each with all batch sizes, on three kinds of cores; the first
/// model has answered a request.
fn snapshot() -> StatsSnapshot {
    let tensor =
        |name: &str| TensorSpec { name: name.into(), dtype: DType::U8, row_shape: vec![8] };
    let signature =
        Signature { inputs: vec![tensor("x")], outputs: vec![tensor("y")], batched: true };
    let sizes: Vec<usize> = (1..=BATCH_SIZES_MAX).collect();
    let engine = FakeEngine::new(signature, &sizes, FakeCompute::default()).unwrap();
    let engine = Arc::new(engine);
    let name = |n: usize| format!("{n:02}{}", "m".repeat(MODEL_NAME_LEN_MAX - 2));
    let setup = |n| ModelSetup {
        max_queue_size: 2,
        max_request_rows: Rows(1),
        model_warmup: 0,
        ..ModelSetup::new(&name(n), engine.clone())
    };
    let builder = Runtime::builder().unpinned(1);
    let runtime = (0..MODELS_MAX).fold(builder, |b, n| b.model(setup(n))).build().unwrap();
    runtime.client().model(&name(0)).unwrap().request(1).unwrap().infer().unwrap();
    let mut snapshot = runtime.stats();
    snapshot.workers = vec![snapshot.workers[0].clone(); WORKERS_MAX];
    for model in &mut snapshot.models {
        model.service_ns = vec![model.service_ns[0].clone(); 3];
    }
    snapshot
}

fn read(snapshot: &StatsSnapshot) -> Value {
    let text = told(snapshot);
    assert!(text.len() <= FRAME_BODY_BYTES_MAX, "{} bytes", text.len());
    serde_json::from_str(&text).unwrap()
}

fn shortened(told: &Value) -> Vec<bool> {
    told["models"].as_array().unwrap().iter().map(|m| m["shortened"] == true).collect()
}

#[test]
fn what_fits_is_told_as_it_is() {
    let mut snapshot = snapshot();
    snapshot.models.truncate(4);
    assert_eq!(told(&snapshot), serde_json::to_string(&snapshot).unwrap());
}

#[test]
fn zeros_of_many_models_are_left_out_and_nothing_else() {
    let snapshot = snapshot();
    let full = serde_json::to_value(&snapshot).unwrap();
    let told = read(&snapshot);
    assert_eq!(told["too_long"], serde_json::to_string(&snapshot).unwrap().len());
    assert!(!shortened(&told).contains(&true));
    for (told, full) in
        told["models"].as_array().unwrap().iter().zip(full["models"].as_array().unwrap())
    {
        for (key, value) in full.as_object().unwrap() {
            match value.as_object() {
                Some(stage) if stage.contains_key("count") => {
                    assert!(stage["count"] == 0 || told[key] == *value, "{key}: {told}");
                }
                Some(counts) => {
                    for (name, n) in counts {
                        assert!(*n == 0 || told[key][name] == *n, "{key} {name}: {told}");
                    }
                }
                None => assert_eq!(told[key], *value, "{key}"),
            }
        }
    }
    assert_eq!(told["workers"], full["workers"]);
}

#[test]
fn details_of_those_asked_least_are_left_out_first() {
    let mut snapshot = snapshot();
    let busy = snapshot.models[0].clone();
    for (n, model) in snapshot.models.iter_mut().enumerate() {
        let name = std::mem::replace(model, busy.clone()).name;
        model.name = name;
        model.accepted = 1_000 + n as u64;
        // As much as makes the zeros no help.
        model.inference_request_failure.values_mut().for_each(|n| *n = 12_345);
        model.batch_ran.values_mut().for_each(|n| *n = 12_345);
        model.batch_closed.values_mut().for_each(|n| *n = 12_345);
    }
    let told = read(&snapshot);
    let short = shortened(&told);
    let first_whole = short.iter().position(|short| !short).unwrap();
    assert!(first_whole > 0 && !short[first_whole..].contains(&true), "{short:?}");
    let models = told["models"].as_array().unwrap();
    assert_eq!(models[0]["inference_request_failure"]["queue_full"], 12_345);
    assert_eq!(models[0]["request"], Value::Null);
    assert_eq!(models[MODELS_MAX - 1]["request"]["count"], 1);
}

#[test]
fn whatever_there_is_the_main_counters_are_told() {
    let mut snapshot = snapshot();
    for model in &mut snapshot.models {
        model.model_reload_error = Some("\u{1}".repeat(240));
        let all = (0..100).map(|n| (&*format!("reason_{n}").leak(), u64::MAX)).collect();
        model.inference_request_failure = all;
        model.accepted = u64::MAX;
        model.inference_request_success = u64::MAX;
    }
    let many: Vec<String> = (0..1_000).map(|n| format!("{n} {}", "x".repeat(300))).collect();
    snapshot.extra = BTreeMap::from([("not_served", many.into()), ("transport", 7.into())]);
    let told = read(&snapshot);
    assert_eq!(told["models"].as_array().unwrap().len(), MODELS_MAX);
    for (told, model) in told["models"].as_array().unwrap().iter().zip(&snapshot.models) {
        assert_eq!(told["name"], model.name);
        assert_eq!(told["inference_request_success"], u64::MAX);
    }
    assert_eq!(told["workers"].as_array().unwrap().len(), WORKERS_MAX);
    assert_eq!(
        (&told["extra"]["not_served"], &told["extra"]["transport"]),
        (&Value::Null, &7.into())
    );
}
