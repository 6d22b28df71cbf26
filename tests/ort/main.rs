//! Engine `ort`: what is refused and how, what is read back, and the whole way over a socket.
//!
//! A process opens one library, once, so everything that must be refused before that is tried first
//! ([`refusals`]), while another model is being served.

mod gpu;
mod library;
#[path = "../engine/onnx.rs"]
#[allow(dead_code)] // more than is needed here
mod onnx;
mod precision;
mod sharing;

use corelane::client::{Address, Client, Infer, Options};
use corelane::engine::kernels::Isa;
use corelane::engine::ort::graph::GraphError;
use corelane::engine::ort::settings::parse_providers;
use corelane::engine::ort::{OrtSettings, Unbound};
use corelane::engine::{EngineErrorKind, EngineKind, LoadRequest};
use corelane::limits::ARENA_BYTES_MAX_DEFAULT;
use corelane::model::check::values;
use corelane::model::{LoadedModel, Manifest, ModelError};
use corelane::runtime::{ModelSetup, Runtime};
use corelane::sys::alloc::{CountingAllocator, hot_calls, installed};
use corelane::transport::{ServerOptions, UnixOptions};
use corelane::units::{DType, Micros, Rows};
use sharing::Server;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Within so long there must be an answer, also a bad one.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

fn model_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name)
}

fn load(name: &str, ort: OrtSettings) -> Result<LoadedModel, ModelError> {
    let mut manifest = Manifest::read(&model_dir(name)).unwrap();
    manifest.engine = EngineKind::Ort;
    manifest.ort = ort;
    LoadedModel::load(manifest)
}

fn settings(library: &Path, providers: &[&str]) -> OrtSettings {
    let list: Vec<String> = providers.iter().map(|p| p.to_string()).collect();
    OrtSettings {
        library: Some(library.into()),
        providers: parse_providers(&list).unwrap(),
        ..OrtSettings::default()
    }
}

/// A refusal in time: its kind, and what it says.
fn refusal(name: &str, ort: OrtSettings) -> (EngineErrorKind, String) {
    let start = Instant::now();
    let error = load(name, ort).err().expect("must be refused");
    assert!(start.elapsed() < ANSWER_WITHIN, "{error} after {:?}", start.elapsed());
    let said = error.to_string();
    match error {
        ModelError::Engine { source, .. } => (source.kind(), said),
        other => panic!("{other}"),
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir =
            std::env::temp_dir().join(format!("corelane-ort-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A library that claims to be ONNX Runtime of `version`, and has nothing; `None` without a C compiler.
fn made_library(dir: &Path, version: &str, more: &str) -> Option<PathBuf> {
    library_of(dir, version, &format!("const void *OrtGetApiBase(void) {{ return 0; }}\n{more}\n"))
}

/// A library of `code` that claims to be ONNX Runtime of `version`; `None` without a C compiler.
fn library_of(dir: &Path, version: &str, code: &str) -> Option<PathBuf> {
    let write = |name: &str, text: String| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let code = write("code.c", code.into());
    let script = write("script", format!("VERS_{version} {{ global: OrtGetApiBase; local: *; }};"));
    let path = dir.join(format!("libonnxruntime.so.{version}"));
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&path).arg(code);
    cc.arg(format!("-Wl,--version-script={}", script.display()));
    match cc.status() {
        Ok(status) => status.success().then_some(path),
        Err(e) => {
            println!("skipped: no C compiler: {e}");
            None
        }
    }
}

/// Everything that must be refused before a library is open, while `mlp` is served and answers.
fn refusals() -> &'static Option<PathBuf> {
    static DONE: OnceLock<Option<PathBuf>> = OnceLock::new();
    DONE.get_or_init(|| {
        let found = library::library()?;
        let setup = ModelSetup::read(&model_dir("mlp")).unwrap();
        let runtime = Runtime::builder().unpinned(1).model(setup).build().unwrap();
        let mlp = runtime.client().model("mlp").unwrap();
        let still_serves = || {
            mlp.request(1).unwrap().infer().unwrap();
        };
        still_serves();
        let scratch = Scratch::new("refusals");
        let text = scratch.0.join("libonnxruntime.so");
        std::fs::write(&text, "not a library").unwrap();
        let mut cases = vec![
            (text, "not an ELF file"),
            (scratch.0.join("gone.so"), "can't be read"),
            (std::env::current_exe().unwrap(), "not ONNX Runtime"),
        ];
        let hang = "#include <unistd.h>\n__attribute__((constructor)) static void f(void) { for (;;) pause(); }";
        let crash = "#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { abort(); }";
        for (version, more, said) in [
            ("1.16.3", "", "ONNX Runtime 1.16.3; versions from 1.17 on"),
            ("1.30.1", hang, "still being loaded after"),
            ("1.30.2", crash, "ends the process that loads it"),
        ] {
            cases.extend(made_library(&scratch.0, version, more).map(|path| (path, said)));
        }
        // Tried in another process, it is gone before this one opens it.
        let gone = scratch.0.join("libonnxruntime.so.1.30.3");
        let goes = format!(
            "#include <unistd.h>\n__attribute__((constructor)) static void f(void) {{ unlink({gone:?}); }}"
        );
        let goes = made_library(&scratch.0, "1.30.3", &goes);
        cases.extend(goes.map(|path| (path, "(ONNX Runtime 1.30.3) can't be opened")));
        // It is what it says, but has nothing.
        let empty = made_library(&scratch.0, "1.30.4", "");
        cases.extend(empty.map(|path| (path, "(ONNX Runtime 1.30.4) can't be opened")));
        for (path, part) in cases {
            let (kind, said) = refusal("mlp", settings(&path, &["cpu"]));
            assert_eq!(kind, EngineErrorKind::Library, "{said}");
            assert!(said.contains(part), "{said}");
            assert!(said.contains(&*path.to_string_lossy()), "{said} does not name the file");
            still_serves();
        }
        // A provider that the library does not have, or a GPU that the machine does not have.
        if !gpu::present() {
            for list in [&["cuda"][..], &["cuda", "cpu"], &["tensorrt", "cpu"]] {
                let (kind, said) = refusal("mlp", settings(&found, list));
                assert_eq!(kind, EngineErrorKind::Backend, "{said}");
                assert!(said.contains(&format!("provider {} is required", list[0])), "{said}");
                still_serves();
            }
            let (kind, said) = refusal("mlp", settings(&found, &["cuda:preferred"]));
            assert_eq!(kind, EngineErrorKind::Backend, "{said}");
            assert!(said.contains("no provider of the list is left"), "{said}");
            still_serves();
        }
        Some(found)
    })
}

#[test]
fn what_can_not_be_used_is_refused_in_time_while_others_are_served() {
    refusals();
}

/// What CUDA graphs need is not there: an error that says what would be right, or, where the GPU was only
/// preferred, a model without them that says so.
#[test]
fn cuda_graphs_without_a_gpu_are_refused_or_told() {
    let Some(found) = refusals() else { return };
    let graphs = |list: &[&str]| OrtSettings { cuda_graph: true, ..settings(found, list) };
    let (kind, said) = refusal("mlp", graphs(&["cpu"]));
    assert_eq!(kind, EngineErrorKind::Backend, "{said}");
    assert!(said.contains("put cuda or tensorrt into providers"), "{said}");
    let bytes = std::fs::read(model_dir("mlp").join("model.onnx")).unwrap();
    let request = LoadRequest {
        bytes: &bytes,
        batch_sizes: &[1],
        bind_axes: &[],
        bind_inputs: &[],
        arena_bytes_max: ARENA_BYTES_MAX_DEFAULT,
        isa: Isa::detect(),
    };
    let error = Unbound::new(&request, &graphs(&["cuda", "cpu"])).err().unwrap();
    let source = std::error::Error::source(&error).unwrap().downcast_ref::<GraphError>();
    assert!(matches!(source, Some(GraphError::Unbound)), "{error}");
    if gpu::present() {
        return;
    }
    let (kind, said) = refusal("mlp", graphs(&["cuda", "cpu"]));
    assert_eq!(kind, EngineErrorKind::Backend, "{said}");
    assert!(said.contains("provider cuda is required"), "{said}");
    let loaded = load("mlp", graphs(&["cuda:preferred", "cpu"])).unwrap_or_else(|e| panic!("{e}"));
    let json = serde_json::to_value(loaded.inspect()).unwrap();
    assert_eq!(json["backend_missing"][0]["provider"], "cuda");
    assert!(json["backend_cuda_graph"].is_null() && json["backend_sleeps"].is_null(), "{json}");
}

#[test]
fn a_process_has_one_library() {
    let Some(found) = refusals() else { return };
    load("mlp", settings(found, &["cpu"])).unwrap_or_else(|e| panic!("{e}"));
    let scratch = Scratch::new("second");
    let copy = scratch.0.join("libonnxruntime.so");
    std::fs::copy(found, &copy).unwrap();
    let (kind, said) = refusal("mlp", settings(&copy, &["cpu"]));
    assert_eq!(kind, EngineErrorKind::Library);
    assert!(said.contains("one process has one ONNX Runtime"), "{said}");
}

/// A library that gives no interface of the version that is asked for.
const KEEPS_BACK: &str = "#include <stddef.h>
static const void *api(unsigned version) { (void)version; return NULL; }
static const char *version(void) { return \"1.30.5\"; }
static const struct { const void *(*a)(unsigned); const char *(*b)(void); } base = { api, version };
const void *OrtGetApiBase(void) { return &base; }";

/// By [`a_library_that_does_not_work_is_not_taken_for_another`].
#[test]
#[ignore = "it spoils its process"]
fn child_opens_a_library_that_does_not_work() {
    let Some(found) = library::library() else { return };
    let scratch = Scratch::new("keeps");
    let Some(bad) = library_of(&scratch.0, "1.30.5", KEEPS_BACK) else { return };
    for _ in 0..2 {
        let (kind, said) = refusal("mlp", settings(&bad, &["cpu"]));
        assert_eq!(kind, EngineErrorKind::Library, "{said}");
        assert!(said.contains("1.30.5) can't be opened"), "{said}");
    }
    let (_, said) = refusal("mlp", settings(&found, &["cpu"]));
    assert!(said.contains("this process has opened") && said.contains("1.30.5"), "{said}");
}

#[test]
fn a_library_that_does_not_work_is_not_taken_for_another() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--ignored", "--exact", "child_opens_a_library_that_does_not_work"]);
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn what_computes_where_is_read_back() {
    let Some(found) = refusals() else { return };
    let loaded = load("resnet8", settings(found, &["cpu"])).unwrap_or_else(|e| panic!("{e}"));
    let json = serde_json::to_value(loaded.inspect()).unwrap();
    assert_eq!(json["backend_wanted"], serde_json::json!(["cpu:required"]));
    assert_eq!(json["backend_got"][0]["provider"], "cpu");
    let nodes = json["backend_got"][0]["nodes"].as_u64().unwrap();
    let operators = json["operators"].as_array().unwrap();
    assert_eq!(operators.iter().map(|o| o["count"].as_u64().unwrap()).sum::<u64>(), nodes);
    assert!(operators.iter().any(|o| o["operator"].as_str().unwrap().contains("Conv")), "{json}");
    assert!(json["backend_canary"].is_null() && json["backend_missing"] == serde_json::json!([]));
    assert_eq!(json["allocation_free"], false);
    if gpu::present() {
        return;
    }
    let loaded = load("resnet8", settings(found, &["tensorrt:preferred", "cuda:preferred", "cpu"]))
        .unwrap_or_else(|e| panic!("{e}"));
    let backend = loaded.engine.backend().unwrap();
    let wanted = ["tensorrt:preferred", "cuda:preferred", "cpu:required"];
    assert_eq!(backend.backend_wanted, wanted);
    let missing: Vec<&str> = backend.backend_missing.iter().map(|m| m.provider.as_str()).collect();
    assert_eq!(missing, ["tensorrt", "cuda"]);
    assert_eq!(backend.backend_got.len(), 1);
    assert_eq!(
        (backend.backend_got[0].provider.as_str(), backend.backend_got[0].nodes as u64),
        ("cpu", nodes)
    );
}

/// Rows of made-up values, the same each time.
fn rows(model: &LoadedModel, count: usize) -> Vec<Vec<u8>> {
    let signature = model.engine.signature();
    (0..count)
        .map(|row| {
            let spec = &signature.inputs[0];
            (0..spec.row_len())
                .flat_map(|i| match spec.dtype {
                    DType::F32 => (((row * 31 + i * 7) % 64) as f32 / 64.0).to_le_bytes(),
                    DType::I32 => (((row * 31 + i * 7) % 257) as i32).to_le_bytes(),
                    other => panic!("no rows of {other:?} are made here"),
                })
                .collect()
        })
        .collect()
}

/// Two models with engine ort, behind a Unix socket: many in flight, batches form, every answer is
/// that of engine plan, and our side of the path calls no allocator.
#[test]
fn the_whole_way_over_a_socket() {
    let Some(found) = refusals() else { return };
    assert!(installed());
    const REQUESTS: usize = 200;
    let mut builder = Runtime::builder().unpinned(2);
    for name in ["mlp", "magika"] {
        let loaded = load(name, settings(found, &["cpu"])).unwrap_or_else(|e| panic!("{e}"));
        assert!(loaded.batching.enabled, "{:?}", loaded.batching);
        builder = builder.model(ModelSetup::from(loaded));
    }
    let mut runtime = builder.build().unwrap();
    let scratch = Scratch::new("socket");
    let socket = scratch.0.join("s");
    let unix = Some(UnixOptions::new(&socket));
    let server = runtime.serve(ServerOptions { unix, ..ServerOptions::default() }, None).unwrap();
    let mut client = Client::connect(&Address::Unix(socket), Options::default()).unwrap();
    let before = hot_calls();
    for (name, tolerance) in [("mlp", 1e-5), ("magika", 2e-5)] {
        let plan = LoadedModel::read(model_dir(name)).unwrap();
        let rows = rows(&plan, 8);
        let local = Runtime::builder().unpinned(1).model(ModelSetup::from(plan)).build().unwrap();
        let wanted: Vec<Vec<f64>> = (rows.iter())
            .map(|row| {
                let mut request = local.client().model(name).unwrap().request(1).unwrap();
                request.input_bytes_mut(0).unwrap().copy_from_slice(row);
                let answer = request.infer().unwrap();
                values(DType::F32, answer.output_bytes(0).unwrap())
            })
            .collect();
        drop(local);
        let model = client.open(name).unwrap();
        let request = Infer {
            model: model.id,
            rows: Rows(1),
            deadline: Micros(0),
            priority: Default::default(),
        };
        let mut tickets = std::collections::HashMap::new();
        let (mut sent, mut answered) = (0, 0);
        while answered < REQUESTS {
            while sent < REQUESTS && client.in_flight() < 32 {
                let ticket = client.submit_with(request, &rows[sent % rows.len()]).unwrap();
                tickets.insert(ticket, sent % rows.len());
                sent += 1;
            }
            let (ticket, answer) = client.wait_any().unwrap();
            let answer = answer.unwrap_or_else(|e| panic!("{name}: {e}"));
            let got = values(DType::F32, &answer.payload);
            let wanted = &wanted[tickets[&ticket]];
            let largest = wanted.iter().fold(0f64, |m, v| m.max(v.abs()));
            for (a, b) in got.iter().zip(wanted) {
                assert!((a - b).abs() <= tolerance * largest, "{name}: {a} instead of {b}");
            }
            assert_eq!(got.len(), wanted.len());
            answered += 1;
        }
    }
    assert_eq!(hot_calls() - before, 0, "our side of the path allocates");
    let stats: serde_json::Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
    for model in stats["models"].as_array().unwrap() {
        assert_eq!(model["engine"], "ort");
        assert_eq!(model["backend_wanted"], serde_json::json!(["cpu:required"]));
        assert_eq!(model["backend_got"][0]["provider"], "cpu");
        assert!(model["exec_count"].as_u64().unwrap() > 0);
    }
    drop(server);
}

/// The program: exit codes, and what it says.
#[test]
fn the_program_refuses_measures_and_advises() {
    let Some(found) = refusals() else { return };
    let scratch = Scratch::new("program");
    let run = |args: &[&str]| {
        let start = Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_corelane"));
        command.env_remove("ORT_DYLIB_PATH").args(args);
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr), start.elapsed())
    };
    let mlp = model_dir("mlp").display().to_string();
    let library = found.display().to_string();
    let bench = ["bench", "engine", &mlp, "--engine", "ort", "--iterations", "20", "--json"];
    let with = |more: &[&str]| run(&[&bench[..], more].concat());
    let (code, out, err, _) = with(&["--onnxruntime", &library, "--provider", "cpu"]);
    assert_eq!(code, Some(0), "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&json["engine"], &json["backend_got"][0]["provider"]),
        (&"ort".into(), &"cpu".into())
    );
    assert_eq!(json["run_ns"].as_array().unwrap().len(), 20);
    assert_eq!(json["allocator_calls"], 0);
    let (code, _, err, _) = with(&["--onnxruntime", &library, "--provider", "gpu"]);
    assert!(code == Some(2) && err.contains("no provider"), "{err}");
    let (code, _, err, took) = with(&[]);
    assert!(code == Some(3) && err.contains("ORT_DYLIB_PATH") && took < ANSWER_WITHIN, "{err}");

    let config = |text: &str| {
        let path = scratch.0.join("corelane.toml");
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    if !gpu::present() {
        let text = format!(
            "[runtime]\nonnxruntime = '{library}'\n[[model]]\npath = '{mlp}'\nengine = 'ort'\n\
             providers = ['cuda', 'cpu']\n[listen]\nunix = 'socket'\n"
        );
        let (code, _, err, took) = run(&["serve", "--config", &config(&text)]);
        assert!(code == Some(3) && err.contains("cuda is required"), "{err}");
        assert!(took < ANSWER_WITHIN);
        // Or the others are served.
        let magika = model_dir("magika").display().to_string();
        let (text, socket) = (text.replace("'socket'", "'others'"), scratch.0.join("others"));
        let text =
            text.replace("[runtime]", "[runtime]\npin = false\non_load_error = 'serve_others'");
        let text = format!("{text}[[model]]\npath = '{magika}'\nengine = 'ort'\n");
        let server = Server::start(found, &["--config", &config(&text)]);
        assert_eq!(server.ready["models"].as_array().unwrap().len(), 1, "{}", server.ready);
        let reason = server.ready["not_served"][0]["reason"].as_str().unwrap();
        assert!(reason.contains("cuda is required"), "{reason}");
        let mut client = Client::connect(&Address::Unix(socket), Options::default()).unwrap();
        let magika = client.open("magika").unwrap();
        client.infer(&magika, Rows(1), &vec![0; magika.input_len(1)]).unwrap();
    }
    let finding = |out: &str, area: &str| -> serde_json::Value {
        let json: serde_json::Value = serde_json::from_str(out).unwrap();
        let all = json["findings"].as_array().unwrap();
        all.iter().find(|f| f["area"] == area).cloned().unwrap_or_default()
    };
    let (code, out, err, _) = run(&["doctor", "--json", "--onnxruntime", &library]);
    assert_eq!(code, Some(0), "{err}");
    let text = finding(&out, "ONNX Runtime")["what"].to_string();
    assert!(text.contains("libonnxruntime"), "{out}");
    assert!(
        finding(&out, "providers")["what"].to_string().contains("CPUExecutionProvider"),
        "{out}"
    );
    assert!(finding(&out, "cores")["what"].to_string().contains("allowed"), "{out}");
    let (code, out, _, _) = run(&["doctor", "--json", "--onnxruntime", &config("no library")]);
    assert_eq!(
        (code, &finding(&out, "ONNX Runtime")["state"]),
        (Some(0), &"problem".into()),
        "{out}"
    );
    let (code, out, _, _) = run(&["doctor"]);
    assert!(code == Some(0) && out.contains("-> "), "{out}");
}
