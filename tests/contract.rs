//! The no-allocation contract: once ready, no worker and no I/O thread calls the system allocator,
//! whether requests succeed, fail, miss their deadline, are refused or are given up.

use corelane::client::Infer;
use corelane::client::{Address, Client, ClientError, Options};
use corelane::engine::EngineKind;
use corelane::engine::fake::{FakeCompute, FakeEngine, FakeFault};
use corelane::limits::ENCODED_OPENS_COUNT_MAX;
use corelane::model::signature::{Signature, TensorSpec};
use corelane::model::{LoadedModel, Manifest};
use corelane::runtime::{InferError, ModelSetup, Runtime};
use corelane::sys::alloc::{CountingAllocator, hot_calls, installed};
use corelane::sys::events::{self, Event, KINDS, Sink, Value};
use corelane::sys::records::{self, Found};
use corelane::transport::{ServerOptions, UnixOptions};
use corelane::units::{DType, Micros, Rows};
use corelane::wire::{Encoding, Place, Scale, TensorEncoding};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Requests in all, over all models and both ways in.
const REQUESTS: usize = 10_000;
const BAD_ROW: u8 = 0xEE;

fn model_files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = std::env::var_os("CORELANE_SHARED_MODELS")
        .map_or_else(|| root.join("../shared/models"), PathBuf::from);
    let mut files = Vec::new();
    for dir in [root.join("models"), shared] {
        let Ok(entries) = std::fs::read_dir(&dir) else {
            eprintln!("skipped: no {}", dir.display());
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.join("manifest.toml").exists() || path.extension().is_some_and(|e| e == "onnx")
            {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Every model with the `plan` engine, and one that fails on demand.
fn setups() -> Vec<ModelSetup> {
    let mut setups: Vec<ModelSetup> = Vec::new();
    for path in model_files() {
        let mut manifest = Manifest::read(&path).unwrap();
        manifest.engine = EngineKind::Plan;
        manifest.batch_sizes = vec![1, 2, 4];
        manifest.preferred_batch_size.clear();
        manifest.limit_batches(4);
        manifest.max_queue_size = Some(8);
        manifest.max_request_rows = 2;
        let loaded = LoadedModel::load(manifest).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        assert!(loaded.engine.describe().allocation_free, "{path:?} has a step that allocates");
        let mut setup = ModelSetup::from(loaded);
        if setups.iter().any(|s| s.name == setup.name) {
            setup.name += "-shared";
        }
        setups.push(setup);
    }
    let tensor = |n: &str| TensorSpec { name: n.into(), dtype: DType::U8, row_shape: vec![256] };
    let signature =
        Signature { inputs: vec![tensor("x")], outputs: vec![tensor("y")], batched: true };
    let compute = FakeCompute { per_run: Duration::from_micros(300), per_row: Duration::ZERO };
    let engine = FakeEngine::new(signature, &[1, 4], compute)
        .unwrap()
        .with_fault(FakeFault { error_marker: Some(BAD_ROW), panic_marker: None });
    let mut faulty = setups[0].clone();
    faulty.name = "faulty".into();
    faulty.engine = Arc::new(engine);
    faulty.inspection = None;
    faulty.labels.clear();
    setups.push(faulty);
    setups
}

struct Tally {
    answered: usize,
    refused: usize,
    failed: usize,
}

fn draw(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// The model of the next request: a slow one now and then, so that the whole stays short.
fn pick(seed: &mut u64, service_us: &[u64]) -> usize {
    loop {
        let model = draw(seed) as usize % service_us.len();
        let keep = (2_000 / service_us[model].max(1)).clamp(1, 100);
        if draw(seed) % 100 < keep {
            return model;
        }
    }
}

fn in_process(runtime: &Runtime, service_us: &[u64], requests: usize) -> Tally {
    let client = runtime.client();
    let names: Vec<String> = client.models().map(str::to_owned).collect();
    let models: Vec<_> = names.iter().map(|n| client.model(n).unwrap()).collect();
    let mut seed = 1u64;
    let mut tally = Tally { answered: 0, refused: 0, failed: 0 };
    let mut pending = std::collections::VecDeque::new();
    let settle = |p: corelane::runtime::Pending, tally: &mut Tally| match p.wait() {
        Ok(_) => tally.answered += 1,
        Err(InferError::Failed(_)) => tally.failed += 1,
        Err(other) => panic!("{other}"),
    };
    for n in 0..requests {
        let model = &models[pick(&mut seed, service_us)];
        let rows = 1 + n % 2;
        let request = match model.request(rows) {
            Ok(request) => request,
            Err(InferError::Refused(_)) => {
                tally.refused += 1;
                continue;
            }
            Err(other) => panic!("{other}"),
        };
        let mut request = request;
        let byte = if n % 5 == 0 { BAD_ROW } else { 0 };
        request.input_bytes_mut(0).unwrap().fill(byte);
        if n % 7 == 0 {
            request = request.timeout(Micros(1 + (draw(&mut seed) % 20_000) as u32));
        }
        match request.submit() {
            Ok(p) if n % 11 == 0 => {
                // Given up: whether it ran or not, nobody waits for it.
                drop(p);
                tally.failed += 1;
            }
            Ok(p) => pending.push_back(p),
            Err(InferError::Refused(_)) => tally.refused += 1,
            Err(other) => panic!("{other}"),
        }
        if pending.len() > 6 {
            settle(pending.pop_front().unwrap(), &mut tally);
        }
    }
    for p in pending {
        settle(p, &mut tally);
    }
    tally
}

/// All float32 tensors of a model, in turns.
fn encodings(model: &corelane::client::Model) -> Vec<TensorEncoding> {
    let i8 = Encoding::I8 { scale: Scale::new(0.01).unwrap(), zero_point: 3 };
    let inputs = model.inputs.iter().enumerate().map(|(n, t)| (t, Place::Input(n as u8)));
    let outputs = model.outputs.iter().enumerate().map(|(n, t)| (t, Place::Output(n as u8)));
    let numbers = inputs.chain(outputs).filter(|(t, _)| t.dtype == DType::F32);
    let each = numbers.zip([Encoding::F16, i8].into_iter().cycle());
    each.map(|((_, place), encoding)| TensorEncoding { place, encoding }).collect()
}

fn over_a_socket(path: &Path, names: &[String], service_us: &[u64], requests: usize) -> Tally {
    let mut client =
        Client::connect(&Address::Unix(path.to_path_buf()), Options::default()).unwrap();
    let mut encoded = 0;
    let models: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(n, name)| {
            let as_is = client.open(name).unwrap();
            // Every other model has its numbers travel encoded, where it has such.
            let asked = encodings(&as_is);
            if n % 2 == 1 || asked.is_empty() || encoded == ENCODED_OPENS_COUNT_MAX {
                return as_is;
            }
            encoded += 1;
            client.open_encoded(name, &asked).unwrap()
        })
        .collect();
    assert!(encoded > 0);
    let mut seed = 99u64;
    let mut tally = Tally { answered: 0, refused: 0, failed: 0 };
    let mut sent = 0;
    while sent < requests || client.in_flight() > 0 {
        while sent < requests && client.in_flight() < 6 {
            let model = &models[pick(&mut seed, service_us)];
            let rows = Rows(1 + (sent % 2) as u16);
            let byte = if sent % 5 == 0 { BAD_ROW } else { 0 };
            let short = usize::from(sent % 13 == 0);
            let payload = vec![byte; model.input_len(rows.0 as usize) - short];
            let deadline = match sent % 7 {
                0 => Micros(1 + (draw(&mut seed) % 20_000) as u32),
                _ => Micros(0),
            };
            let request = Infer { model: model.id, rows, deadline, priority: Default::default() };
            let ticket = client.submit_with(request, &payload).unwrap();
            if sent % 17 == 0 {
                client.cancel(ticket).unwrap();
            }
            sent += 1;
        }
        match client.wait_any() {
            Ok((_, Ok(_))) => tally.answered += 1,
            Ok((_, Err(_))) => tally.failed += 1,
            Err(ClientError::Server(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    tally
}

/// Tells every event into its thread's ring, as the command does, but without defmt's encoding.
const TO_RINGS: Sink = Sink {
    thread: || records::open(1 << 14),
    event: |event: Event| {
        records::begin();
        records::append(event.name().as_bytes());
        for value in event.values() {
            match value {
                Value::Number(n) => records::append(&n.to_le_bytes()),
                Value::Text(text) => records::append(text.as_bytes()),
            }
        }
        records::commit();
    },
};

/// Sets a flag when it is dropped.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Takes records out of the rings while the requests run, until `stop`; which kinds there were.
fn listen(stop: &AtomicBool) -> std::collections::BTreeSet<&'static str> {
    let mut seen = std::collections::BTreeSet::new();
    loop {
        let last = stop.load(Ordering::Acquire);
        records::drain(|_, found| {
            if let Found::Record(bytes) = found {
                let kind = KINDS.iter().find(|kind| bytes.starts_with(kind.name.as_bytes()));
                seen.insert(kind.expect("the name of an event").name);
            }
        });
        if last {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ten_thousand_requests_without_the_system_allocator() {
    assert!(installed());
    // At the finest level, so that logging is part of the contract, also where rings are full.
    events::install(TO_RINGS).unwrap();
    events::set_level(log::LevelFilter::Trace);
    let stop = AtomicBool::new(false);
    let setups = setups();
    let models = setups.len();
    let mut runtime =
        setups.into_iter().fold(Runtime::builder().unpinned(2), |b, s| b.model(s)).build().unwrap();
    let socket = std::env::temp_dir().join(format!("corelane-contract-{}", std::process::id()));
    let unix = Some(UnixOptions::new(&socket));
    let server = runtime.serve(ServerOptions { unix, ..ServerOptions::default() }, None).unwrap();
    let stats = runtime.stats();
    let service_us: Vec<u64> = stats
        .models
        .iter()
        .map(|m| m.service_ns[0].by_batch_size.values().next().unwrap() / 1_000)
        .collect();
    let names: Vec<String> = stats.models.iter().map(|m| m.name.clone()).collect();

    let before = hot_calls();
    let half = REQUESTS / 2;
    let (local, remote, told) = std::thread::scope(|s| {
        let listener = s.spawn(|| listen(&stop));
        // Also where an assertion fails: the scope waits for the listener.
        let stop_at_end = SetAtEnd(&stop);
        let remote = s.spawn(|| over_a_socket(&socket, &names, &service_us, half));
        let local = in_process(&runtime, &service_us, half);
        let remote = remote.join().unwrap();
        drop(stop_at_end);
        (local, remote, listener.join().unwrap())
    });
    let calls = hot_calls() - before;
    let stats = runtime.stats();
    for tally in [&local, &remote] {
        assert_eq!(tally.answered + tally.refused + tally.failed, half, "each ended once");
        assert!(tally.answered > half / 4, "most are answered: {}", tally.answered);
        assert!(tally.failed > 0, "failures are among them");
    }
    for model in &stats.models {
        assert!(model.exec_count > 0, "{} never ran", model.name);
    }
    let ran_batches: u64 = stats.models.iter().flat_map(|m| &m.batch_ran).map(|(_, n)| n).sum();
    println!(
        "{REQUESTS} requests of {models} models, {ran_batches} batches: {calls} allocator calls on \
         hot threads"
    );
    assert_eq!(calls, 0);
    for kind in
        ["batch_ran", "request_answered", "request_failed", "request_refused", "request_read"]
    {
        assert!(told.contains(kind), "no {kind} among {told:?}");
    }
    assert_eq!(stats.hot_path_allocations_total, Some(before + calls));
    drop(server);
}
