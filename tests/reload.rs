//! Models that are replaced on disk while a server answers: every request is answered once, by one
//! version; no serving thread allocates; nothing is kept of what served before.

#[allow(dead_code)]
#[path = "engine/onnx.rs"]
mod onnx;

use corelane::client::{Address, Client, Options};
use corelane::config::ModelEntry;
use corelane::engine::kernels::Isa;
use corelane::model::npy::{self, Array};
use corelane::model::{LoadedModel, Manifest};
use corelane::runtime::{ModelSource, ReloadError, Runtime};
use corelane::sys::alloc::{CountingAllocator, hot_calls};
use corelane::sys::{memory, region};
use corelane::transport::{ServerOptions, UnixOptions};
use corelane::units::{DType, Rows};
use onnx::{Axis, floats, model as onnx_model, node, tensor, with_ints};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Allocator calls and resident memory are the process's, so one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

const INPUTS: usize = 64;
const OUTPUTS: usize = 1024;
/// Resident memory may grow by so much over many reloads: less than one version's weights each ten times.
const GROWTH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A model directory that is gone afterwards.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("corelane-reload-{}-{n}", std::process::id()));
        std::fs::create_dir_all(dir.join("model/golden")).unwrap();
        Dir(dir)
    }
    fn model(&self) -> PathBuf {
        self.0.join("model")
    }
    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        // As an update does: beside its place, then renamed.
        let (beside, place) = (self.0.join("new"), self.model().join(name));
        std::fs::write(&beside, content).unwrap();
        std::fs::rename(&beside, place).unwrap();
    }
    /// The version whose answers are `mark` times the sum of the inputs, and its golden row.
    fn version(&self, mark: f32) {
        self.write("model.onnx", scaled(mark, OUTPUTS));
        let array = |len: usize, value: f32| {
            let data: Vec<u8> = vec![value; len].iter().flat_map(|v| v.to_le_bytes()).collect();
            npy::write(&Array { dtype: DType::F32, shape: vec![1, len], data })
        };
        self.write("golden/input_0.npy", array(INPUTS, 1.0));
        self.write("golden/output_0.npy", array(OUTPUTS, mark * INPUTS as f32));
    }
    fn manifest(&self, more: &str) {
        self.write("manifest.toml", format!("name = 'sum'\nbatch_sizes = [1, 4]\n{more}"));
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn scaled(mark: f32, outputs: usize) -> Vec<u8> {
    let axes = |len: usize| [Axis::Open("batch"), Axis::Len(len as u64)];
    let weights = floats("w", &[INPUTS as u64, outputs as u64], &vec![mark; INPUTS * outputs]);
    let nodes = [weights, node("MatMul", &["x", "w"], "y")];
    onnx_model(&nodes, &[tensor("x", &axes(INPUTS))], &[tensor("y", &axes(outputs))])
}

/// The version that gave these outputs to rows whose elements are all 1.
fn mark_of(outputs: &[f32]) -> f32 {
    let mark = outputs[0] / INPUTS as f32;
    assert!(outputs.iter().all(|&y| y == outputs[0]), "an answer of two versions");
    mark
}

/// Ends the threads of a test also where an assertion fails: their scope waits for them.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn over_a_socket(path: &Path, floor: &AtomicU64, stop: &AtomicBool) -> u64 {
    let mut client =
        Client::connect(&Address::Unix(path.to_path_buf()), Options::default()).unwrap();
    let model = client.open("sum").unwrap();
    let mut answers = 0;
    let mut flying = std::collections::VecDeque::new();
    loop {
        let over = stop.load(Ordering::Acquire);
        while !over && flying.len() < 4 {
            let rows = 1 + answers as usize % 2;
            let payload: Vec<u8> =
                vec![1f32; rows * INPUTS].iter().flat_map(|v| v.to_le_bytes()).collect();
            let least = floor.load(Ordering::SeqCst);
            let ticket = client.submit(&model, Rows(rows as u16), &payload).unwrap();
            flying.push_back((ticket, least));
        }
        let Some((ticket, least)) = flying.pop_front() else { return answers };
        let answer = client.wait(ticket).unwrap();
        let outputs: Vec<f32> =
            answer.payload.as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c)).collect();
        let mark = mark_of(&outputs);
        assert!(mark as u64 >= least, "version {mark} after {least} was in");
        answers += 1;
    }
}

fn in_process(
    runtime: &corelane::runtime::LocalClient,
    floor: &AtomicU64,
    stop: &AtomicBool,
) -> u64 {
    let model = runtime.model("sum").unwrap();
    let mut answers = 0;
    while !stop.load(Ordering::Acquire) {
        let least = floor.load(Ordering::SeqCst);
        let mut request = model.request(1 + answers as usize % 3).unwrap();
        request.input_mut::<f32>(0).unwrap().fill(1.0);
        let answer = request.infer().unwrap();
        let mark = mark_of(answer.output::<f32>(0).unwrap());
        assert!(mark as u64 >= least, "version {mark} after {least} was in");
        answers += 1;
    }
    answers
}

fn resident() -> usize {
    region::trim();
    memory::resident_bytes().expect("Linux says")
}

#[test]
fn fifty_versions_under_load_lose_nothing_cross_nothing_and_leave_nothing() {
    const VERSIONS: u64 = 50;
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = Dir::new();
    dir.version(1.0);
    dir.manifest("");
    let mut runtime = Runtime::builder().unpinned(2).model_dir(dir.model()).build().unwrap();
    let socket = dir.0.join("s");
    let unix = Some(UnixOptions::new(&socket));
    let server = runtime.serve(ServerOptions { unix, ..ServerOptions::default() }, None).unwrap();
    // The version whose reload has returned; a version's mark is its number.
    let (floor, stop) = (AtomicU64::new(1), AtomicBool::new(false));
    let before = hot_calls();
    let mut after_ten = 0;
    let answers: u64 = std::thread::scope(|s| {
        let at_end = SetAtEnd(&stop);
        let remote = (0..2).map(|_| s.spawn(|| over_a_socket(&socket, &floor, &stop)));
        let mut clients: Vec<_> = remote.collect();
        let local = runtime.client();
        let (floor, stop) = (&floor, &stop);
        clients.push(s.spawn(move || in_process(&local, floor, stop)));
        for version in 2..=VERSIONS + 1 {
            if version % 5 == 0 {
                // What can't be loaded, in between.
                dir.write("model.onnx", b"\x08\x08garbage");
                let error = runtime.reload("sum").unwrap_err();
                assert_eq!(error.reason(), "load", "{error}");
            }
            dir.version(version as f32);
            let done = runtime.reload("sum").unwrap();
            assert_eq!((done.changed, done.version), (true, version));
            floor.store(version, Ordering::SeqCst);
            if version == 10 {
                after_ten = resident();
            }
        }
        drop(at_end);
        clients.into_iter().map(|c| c.join().unwrap()).sum()
    });
    let calls = hot_calls() - before;
    let now = resident();
    // Nothing changed: nothing is done.
    assert!(!runtime.reload("sum").unwrap().changed);
    let stats = runtime.stats();
    let model = &stats.models[0];
    println!(
        "{answers} answers of {VERSIONS} versions; {calls} allocator calls on serving threads; resident \
         {after_ten} bytes after ten versions, {now} after all"
    );
    assert_eq!(calls, 0);
    assert!(now <= after_ten + GROWTH_BYTES_MAX, "{after_ten} bytes became {now}");
    assert_eq!(model.inference_request_success, answers);
    assert_eq!(model.inference_request_failure.values().sum::<u64>(), 0);
    assert_eq!((model.version, model.model_reload_success_total), (VERSIONS + 1, VERSIONS));
    assert_eq!(model.model_reload_failure_total["load"], VERSIONS / 5);
    assert_eq!(model.version_hash.as_ref().map(String::len), Some(12));
    assert!(answers > VERSIONS, "{answers}");
    assert!(runtime.drain_with(server, Duration::from_secs(10)).clean);
}

#[test]
fn what_does_not_pass_the_checks_is_refused_by_its_reason() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = Dir::new();
    dir.version(1.0);
    dir.manifest("");
    let runtime = Runtime::builder().unpinned(1).model_dir(dir.model()).build().unwrap();
    let model = runtime.client().model("sum").unwrap();
    let serves = || {
        let mut request = model.request(1).unwrap();
        request.input_mut::<f32>(0).unwrap().fill(1.0);
        mark_of(request.infer().unwrap().output::<f32>(0).unwrap())
    };
    let refused = |reason: &str, part: &str| {
        let error = runtime.reload("sum").unwrap_err();
        let text = error.to_string();
        assert_eq!(error.reason(), reason, "{text}");
        assert!(text.contains(part), "{text}");
        assert_eq!(serves(), 1.0);
        error
    };
    // Other weights under the old goldens.
    dir.write("model.onnx", scaled(2.0, OUTPUTS));
    refused("golden", "is 64");
    dir.version(1.0);
    dir.manifest(&format!("sha256 = '{}'\n", "0".repeat(64)));
    refused("hash", "the file is damaged or another one");
    dir.manifest("max_bath_size = 4\n");
    refused("load", "max_batch_size");
    dir.manifest("max_queue_size = 8\npriority_levels = 2\n");
    let error =
        refused("fixed", "max_queue_size is 8, and was 64; priority_levels is 2, and was 1");
    let ReloadError::Fixed { differences, .. } = error else { panic!("{error}") };
    assert!(differences.iter().all(|d| !d.is_signature));
    dir.write("manifest.toml", "name = 'other'\nbatch_sizes = [1, 4]\n");
    refused("fixed", "name is other, and was sum");
    dir.manifest("");
    dir.write("model.onnx", scaled(2.0, OUTPUTS / 2));
    std::fs::remove_dir_all(dir.model().join("golden")).unwrap();
    refused("fixed", "output 0 is \"y\" float32 [512], and was \"y\" float32 [1024]");
    // Rows that are added up are not independent.
    let rows = [Axis::Open("batch"), Axis::Len(OUTPUTS as u64)];
    let total = with_ints(node("ReduceMean", &["m"], "t"), "axes", &[0]);
    let weights = floats("w", &[INPUTS as u64, OUTPUTS as u64], &vec![1.0; INPUTS * OUTPUTS]);
    let nodes = [weights, node("MatMul", &["x", "w"], "m"), total, node("Sub", &["m", "t"], "y")];
    let inputs = [Axis::Open("batch"), Axis::Len(INPUTS as u64)];
    dir.write("model.onnx", onnx_model(&nodes, &[tensor("x", &inputs)], &[tensor("y", &rows)]));
    refused(
        "fixed",
        "max_request_rows is 1 (batching is off: the graph does not show that the rows",
    );
    std::fs::remove_file(dir.model().join("model.onnx")).unwrap();
    refused("load", "model.onnx");
    std::fs::create_dir_all(dir.model().join("golden")).unwrap();
    // As it was: nothing to do.
    dir.version(1.0);
    let same = runtime.reload("sum").unwrap();
    assert!(!same.changed && same.version == 1);
    // How it is written changes nothing; what it says does.
    dir.manifest("# a remark\n");
    assert!(!runtime.reload("sum").unwrap().changed);
    dir.manifest("max_queue_delay_microseconds = 10\n");
    assert_eq!(runtime.reload("sum").unwrap().version, 2);
    dir.version(3.0);
    let third = runtime.reload("sum").unwrap();
    assert_eq!((third.version, serves()), (3, 3.0));
    let all = runtime.reloader().reload_all();
    assert!(matches!(&all[..], [(name, Ok(done))] if name == "sum" && !done.changed));
}

/// Without its manifest the directory still holds a model, by the defaults: another one.
#[test]
fn a_directory_that_has_lost_its_manifest_is_refused() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = Dir::new();
    dir.version(1.0);
    dir.manifest("");
    let runtime = Runtime::builder().unpinned(1).model_dir(dir.model()).build().unwrap();
    std::fs::remove_file(dir.model().join(Manifest::FILE)).unwrap();
    dir.version(2.0);
    let error = runtime.reload("sum").unwrap_err();
    assert_eq!(error.reason(), "load");
    assert!(error.to_string().contains("manifest.toml"), "{error}");
    // One that is there and can't be read is none less.
    for target in [Manifest::FILE, "nowhere"] {
        std::os::unix::fs::symlink(target, dir.model().join(Manifest::FILE)).unwrap();
        let error = LoadedModel::read(dir.model()).err().unwrap();
        assert!(error.to_string().contains("manifest.toml: can't read the manifest"), "{error}");
        std::fs::remove_file(dir.model().join(Manifest::FILE)).unwrap();
    }
    dir.manifest("");
    assert_eq!(runtime.reload("sum").unwrap().version, 2);
}

#[test]
fn a_compiled_cache_keeps_one_file_of_a_model() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = Dir::new();
    let cache = dir.0.join("cache");
    std::fs::create_dir(&cache).unwrap();
    // Another model's, whose name begins alike, and what is no cache.
    let others = ["sum-more-0123456789ab.plan", "sum-notes.plan", "sum-0123456789ab.txt"];
    others.iter().for_each(|name| std::fs::write(cache.join(name), "").unwrap());
    dir.version(1.0);
    dir.manifest("");
    let source = ModelSource::of(ModelEntry::new(dir.model()), Some(cache.clone()));
    let setup = source.load().unwrap();
    let runtime = Runtime::builder().unpinned(1).model(setup).build().unwrap();
    for mark in 2..5u8 {
        dir.version(mark.into());
        assert_eq!(runtime.reload("sum").unwrap().version, u64::from(mark));
        let entries = std::fs::read_dir(&cache).unwrap();
        let names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(names.len(), others.len() + 1, "{names:?}");
        assert!(others.iter().all(|other| names.iter().any(|n| n == other)), "{names:?}");
    }
}

/// A step that runs through tract has a private heap in each instance, of which there is a bounded number:
/// each goes back.
#[test]
fn versions_with_a_private_heap_give_it_back() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = Dir::new();
    let cosine = |mark: f32| {
        let rows = [Axis::Open("batch"), Axis::Len(8)];
        let nodes =
            [floats("s", &[], &[mark]), node("Cos", &["x"], "c"), node("Mul", &["c", "s"], "y")];
        onnx_model(&nodes, &[tensor("x", &rows)], &[tensor("y", &rows)])
    };
    dir.write("model.onnx", cosine(1.0));
    dir.manifest("");
    let runtime = Runtime::builder().unpinned(1).model_dir(dir.model()).build().unwrap();
    let falls_back = |u: &corelane::engine::OperatorUse| u.implementation.starts_with("fallback");
    let description = runtime.shared().models[0].setup().engine.describe();
    assert!(description.operators.iter().any(falls_back), "{:?} {:?}", description, Isa::detect());
    let model = runtime.client().model("sum").unwrap();
    let before = hot_calls();
    for version in 2..100u8 {
        dir.write("model.onnx", cosine(version.into()));
        runtime.reload("sum").unwrap_or_else(|e| panic!("version {version}: {e}"));
        for rows in [1, 3] {
            let mut request = model.request(rows).unwrap();
            request.input_mut::<f32>(0).unwrap().fill(0.0);
            let answer = request.infer().unwrap();
            assert!(answer.output::<f32>(0).unwrap().iter().all(|&y| y == f32::from(version)));
        }
    }
    assert_eq!(hot_calls() - before, 0);
}
