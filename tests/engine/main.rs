//! Every engine on every model: what loads, what it answers, and what is refused by name.

mod bad;
#[cfg(feature = "ort")]
#[path = "../ort/library.rs"]
mod library;
mod numerics;
mod onnx;
mod quantised;
mod rows;

use corelane::engine::kernels::Isa;
use corelane::engine::ort::OrtSettings;
use corelane::engine::{self, Engine, EngineErrorKind, EngineKind, LoadRequest, PlanIndex};
use corelane::limits::ARENA_BYTES_MAX_DEFAULT;
use corelane::model::check::values;
use corelane::model::npy;
use corelane::model::{LoadedModel, Manifest, ModelError};
use onnx::{Axis, model, node, tensor, typed_tensor, with_int, with_ints};
use std::path::{Path, PathBuf};

/// The engines that read ONNX; `ort` with its feature, and where its library is.
fn engines() -> Vec<EngineKind> {
    let mut engines = vec![EngineKind::Tract, EngineKind::Plan];
    if ort_settings().is_some() {
        engines.push(EngineKind::Ort);
    }
    engines
}

#[cfg(feature = "ort")]
fn ort_settings() -> Option<OrtSettings> {
    library::library().map(|path| OrtSettings { library: Some(path), ..OrtSettings::default() })
}

#[cfg(not(feature = "ort"))]
fn ort_settings() -> Option<OrtSettings> {
    None
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The larger collection of models, where it is there.
fn shared() -> Option<PathBuf> {
    let dir = std::env::var_os("CORELANE_SHARED_MODELS")
        .map(PathBuf::from)
        .unwrap_or_else(|| repository().join("../shared/models"));
    if dir.is_dir() {
        return Some(dir);
    }
    println!("skipped: no ../shared/models");
    None
}

fn load(
    kind: EngineKind,
    bytes: &[u8],
    batch_sizes: &[usize],
) -> Result<Box<dyn Engine>, engine::EngineError> {
    let request = LoadRequest {
        bytes,
        batch_sizes,
        bind_axes: &[],
        bind_inputs: &[],
        arena_bytes_max: ARENA_BYTES_MAX_DEFAULT,
        isa: Isa::detect(),
    };
    match (kind, ort_settings()) {
        (EngineKind::Ort, Some(settings)) => engine::ort::load(&request, &settings),
        _ => engine::load(kind, &request),
    }
}

/// How answers are compared with goldens.
#[derive(Clone, Copy)]
enum Comparison {
    /// Largest difference over the largest value.
    Within(f64),
    /// Correlation above this, and the same largest class in each row.
    Correlation(f64),
}

/// What each model must hold; the spread is in the models' README.
fn comparison(model: &str) -> Comparison {
    match model {
        // ONNX Runtime differs from itself by as much: vww between optimisation levels, magika's last
        // row between batch 4 and alone (1.6e-5).
        "vww" | "magika" => Comparison::Within(2e-5),
        // Roundings in another order carry far in a deep 8-bit network.
        "mobilenet_v2_int8" => Comparison::Correlation(0.99),
        _ => Comparison::Within(1e-5),
    }
}

/// Compares; the figure, or what is wrong.
fn compare(how: Comparison, got: &[f64], wanted: &[f64], row_len: usize) -> Result<String, String> {
    if got.len() != wanted.len() {
        return Err(format!("{} values instead of {}", got.len(), wanted.len()));
    }
    match how {
        Comparison::Within(tolerance) => {
            let largest = wanted.iter().fold(0f64, |m, v| m.max(v.abs()));
            // Not f64::max: a NaN must not pass.
            let worst = got.iter().zip(wanted).map(|(a, b)| (a - b).abs() / largest);
            let worst = worst.fold(0f64, |m, d| if d > m || d.is_nan() { d } else { m });
            if worst <= tolerance {
                Ok(format!("{worst:.1e}"))
            } else {
                Err(format!("differs by {worst:.1e}, {tolerance:.0e} is allowed"))
            }
        }
        Comparison::Correlation(least) => {
            let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
            let (ma, mb) = (mean(got), mean(wanted));
            let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
                got.iter().zip(wanted).map(|(a, b)| f(a - ma, b - mb)).sum()
            };
            let r = sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
            let top =
                |v: &[f64]| v.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|m| m.0);
            let same =
                got.chunks(row_len).zip(wanted.chunks(row_len)).all(|(a, b)| top(a) == top(b));
            if r >= least && same {
                Ok(format!("correlation {r:.4}"))
            } else {
                Err(format!("correlation {r:.4} (at least {least}), same top class: {same}"))
            }
        }
    }
}

fn read_npy(path: &Path) -> npy::Array {
    npy::read(&std::fs::read(path).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Runs `engine` at the batch size of `plan` on golden rows and compares each output. Where the
/// goldens have fewer rows than the batch, they are repeated.
fn golden(engine: &dyn Engine, plan: usize, dir: &Path, how: Comparison) -> Result<String, String> {
    let batch = engine.batch_sizes()[plan];
    let signature = engine.signature();
    let mut instance = engine.instance().map_err(|e| e.to_string())?;
    for (i, spec) in signature.inputs.iter().enumerate() {
        let array = read_npy(&dir.join(format!("input_{i}.npy")));
        if array.dtype != spec.dtype || array.shape[1..] != spec.row_shape {
            return Err(format!("input {i} is {:?}, the golden {:?}", spec, array.shape));
        }
        let staging = instance.input_mut(PlanIndex(plan), i);
        for (row, to) in
            staging[..batch * spec.row_bytes()].chunks_mut(spec.row_bytes()).enumerate()
        {
            let at = row * spec.row_bytes() % array.data.len();
            to.copy_from_slice(&array.data[at..at + spec.row_bytes()]);
        }
    }
    instance.infer(PlanIndex(plan)).map_err(|e| e.to_string())?;
    let mut figures = Vec::new();
    for (o, spec) in signature.outputs.iter().enumerate() {
        let array = read_npy(&dir.join(format!("output_{o}.npy")));
        let wanted: Vec<u8> =
            array.data.iter().copied().cycle().take(batch * spec.row_bytes()).collect();
        let got = values(spec.dtype, &instance.output(PlanIndex(plan), o)[..wanted.len()]);
        figures.push(compare(how, &got, &values(spec.dtype, &wanted), spec.row_len())?);
    }
    Ok(figures.join(" "))
}

/// The table of the models' README against every engine: batch 1 and 4, goldens each.
#[test]
fn every_shared_model_answers_as_its_goldens() {
    let Some(dir) = shared() else { return };
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("models.json")).unwrap()).unwrap();
    let models = json["models"].as_array().unwrap();
    assert!(models.len() >= 13, "{} models", models.len());
    let mut failures = Vec::new();
    println!("| model | engine | batch 1 | batch 4 |\n|---|---|---|---|");
    for entry in models {
        let name = entry["name"].as_str().unwrap();
        let bytes = std::fs::read(dir.join(entry["file"].as_str().unwrap())).unwrap();
        for kind in engines() {
            let cells: Vec<String> = match load(kind, &bytes, &[1, 4]) {
                Ok(engine) => (0..2)
                    .map(|plan| {
                        let mut goldens = dir.join("golden").join(name);
                        if plan == 1 && goldens.join("batch4").is_dir() {
                            goldens = goldens.join("batch4");
                        }
                        golden(&*engine, plan, &goldens, comparison(name)).unwrap_or_else(|e| {
                            failures.push(format!("{name} {} batch {plan}: {e}", kind.name()));
                            e
                        })
                    })
                    .collect(),
                Err(error) => {
                    failures.push(format!("{name} {}: {error}", kind.name()));
                    vec![error.to_string()]
                }
            };
            println!("| {name} | {} | {} |", kind.name(), cells.join(" | "));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// The models of this repository, as they are served.
#[test]
fn every_model_directory_loads_verified_and_batches() {
    let mut count = 0;
    for entry in std::fs::read_dir(repository().join("models")).unwrap() {
        let dir = entry.unwrap().path();
        if !dir.join("manifest.toml").is_file() {
            continue;
        }
        for kind in engines() {
            let mut manifest = Manifest::read(&dir).unwrap();
            manifest.engine = kind;
            manifest.ort = ort_settings().unwrap_or_default();
            assert!(manifest.sha256.is_some(), "{}", dir.display());
            let loaded = LoadedModel::load(manifest).unwrap_or_else(|e| panic!("{e}"));
            assert!(loaded.golden_rows >= 4, "{}", dir.display());
            assert!(loaded.batching.enabled, "{}: {:?}", dir.display(), loaded.batching);
            assert_eq!(loaded.batching.unproven, None, "{}", dir.display());
            println!(
                "{} {}: {} golden rows within {:.1e}, batches within {:.1e}, {:?}",
                dir.file_name().unwrap().display(),
                kind.name(),
                loaded.golden_rows,
                loaded.golden_difference.unwrap_or(f64::NAN),
                loaded.batching.max_difference.unwrap_or(f64::NAN),
                loaded.times
            );
        }
        let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        let hash = Manifest::read(&dir).unwrap().sha256.unwrap();
        assert!(
            text("README.md").contains(&hash),
            "the README of {} has another hash",
            dir.display()
        );
        if let Ok(config) = std::fs::read(dir.join("config.min.json")) {
            let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
            let labels: Vec<&str> = config["target_labels_space"]
                .as_array()
                .unwrap()
                .iter()
                .map(|label| label.as_str().unwrap())
                .collect();
            assert!(text("labels.txt").lines().eq(labels), "labels.txt is not the model's list");
        }
        for file in ["README.md", "golden/input_0.npy", "golden/batch4/output_0.npy"] {
            assert!(dir.join(file).is_file(), "{}", dir.join(file).display());
        }
        count += 1;
    }
    assert!(count >= 5, "{count} models");
}

/// On a board it must be NEON (all of `boards/` have it): the portable kernels would give the same answers, slowly.
#[test]
fn plans_take_the_vector_kernels_of_this_processor() {
    let wanted = match std::env::consts::ARCH {
        "aarch64" => "neon",
        "arm" => "neon32",
        _ => Isa::detect().name(),
    };
    for model in ["mlp", "resnet8", "magika"] {
        let manifest = Manifest::read(&repository().join("models").join(model)).unwrap();
        let loaded = LoadedModel::load(manifest).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(loaded.engine.describe().isa.as_deref(), Some(wanted), "{model}");
    }
}

const BATCH: Axis = Axis::Open("batch");

#[test]
fn an_unknown_operator_is_named_with_its_node() {
    let rows = [BATCH, Axis::Len(4)];
    let bytes =
        model(&[node("Frobnicate", &["x"], "y")], &[tensor("x", &rows)], &[tensor("y", &rows)]);
    for kind in engines() {
        let error = load(kind, &bytes, &[1]).err().expect("must be refused");
        assert_eq!(error.kind(), EngineErrorKind::UnsupportedOperator, "{error}");
        assert_eq!(error.node(), Some("frobnicate_0"), "{error}");
        assert!(error.to_string().contains("Frobnicate"), "{error}");
    }
}

/// A model directory made here, removed when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str, bytes: &[u8], manifest: &str) -> Dir {
        let dir =
            std::env::temp_dir().join(format!("corelane-engine-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("model.onnx"), bytes).unwrap();
        std::fs::write(dir.join("manifest.toml"), manifest).unwrap();
        Dir(dir)
    }
    fn load(&self, kind: EngineKind) -> Result<LoadedModel, ModelError> {
        let mut manifest = Manifest::read(&self.0)?;
        manifest.engine = kind;
        manifest.ort = ort_settings().unwrap_or_default();
        LoadedModel::load(manifest)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Subtracts the batch's mean: the shapes look like a batch, the rows are not independent.
#[test]
fn a_model_that_mixes_its_rows_is_served_unbatched() {
    let rows = [BATCH, Axis::Len(4)];
    let mean = with_ints(node("ReduceMean", &["x"], "m"), "axes", &[0]);
    let bytes =
        model(&[mean, node("Sub", &["x", "m"], "y")], &[tensor("x", &rows)], &[tensor("y", &rows)]);
    let dir = Dir::new("mixes", &bytes, "max_batch_size = 4");
    let asserted =
        Dir::new("mixes-asserted", &bytes, "max_batch_size = 4\nrows_independent = true");
    for kind in engines() {
        let loaded = dir.load(kind).unwrap_or_else(|e| panic!("{e}"));
        assert!(!loaded.batching.enabled);
        assert_eq!((loaded.batching.wanted, loaded.batching.got), (4, 1));
        assert_eq!(loaded.engine.batch_sizes(), [1]);
        assert_eq!(loaded.manifest.max_request_rows, 1);
        let reason = loaded.batching.reason.unwrap();
        assert!(reason.contains("reduces over the rows") && reason.contains("mean"), "{reason}");
        assert!(reason.contains("rows_independent"), "{reason}");
        // Who asserts what is wrong is contradicted by the rows.
        let loaded = asserted.load(kind).unwrap_or_else(|e| panic!("{e}"));
        let reason = loaded.batching.reason.unwrap();
        assert!(reason.contains("at batch size 2") && reason.contains("\"y\""), "{reason}");
    }
}

#[test]
fn a_fixed_first_axis_is_no_batch() {
    let whole = [Axis::Len(2), Axis::Len(4)];
    let bytes = model(&[node("Relu", &["x"], "y")], &[tensor("x", &whole)], &[tensor("y", &whole)]);
    let dir = Dir::new("fixed", &bytes, "");
    for kind in engines() {
        let loaded = dir.load(kind).unwrap_or_else(|e| panic!("{e}"));
        assert!(!loaded.engine.signature().batched);
        assert_eq!(loaded.engine.signature().inputs[0].row_shape, [2, 4]);
        assert!(loaded.batching.reason.is_some_and(|r| r.contains("axis 0")));
    }
}

/// An open axis must be bound by the manifest, an input may be.
#[test]
fn open_axes_and_inputs_are_bound_by_the_manifest() {
    let rows = [BATCH, Axis::Open("sequence")];
    let bytes = model(
        &[node("Mul", &["x", "scale"], "y")],
        &[tensor("x", &rows), tensor("scale", &rows)],
        &[tensor("y", &rows)],
    );
    let open = Dir::new("open", &bytes, "");
    let bound = Dir::new(
        "bound",
        &bytes,
        "max_batch_size = 2\nbind_axes = { sequence = 3 }\nbind_inputs = { scale = 2.5 }\n",
    );
    for kind in engines() {
        let error = open.load(kind).err().expect("an open axis must be refused");
        let said = error.to_string();
        assert!(said.contains("sequence") && said.contains("bind_axes"), "{said}");
        let loaded = bound.load(kind).unwrap_or_else(|e| panic!("{e}"));
        let signature = loaded.engine.signature();
        assert_eq!(signature.inputs.len(), 1);
        assert_eq!(signature.inputs[0].row_shape, [3]);
        assert!(loaded.batching.enabled, "{:?}", loaded.batching);
        let mut instance = loaded.engine.instance().unwrap();
        let input: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
        instance.input_mut(PlanIndex(1), 0).copy_from_slice(&input);
        instance.infer(PlanIndex(1)).unwrap();
        let got = values(signature.outputs[0].dtype, instance.output(PlanIndex(1), 0));
        assert_eq!(got, [0.0, 2.5, 5.0, 7.5, 10.0, 12.5]);
    }
}

#[test]
fn numbers_that_are_none_pass_through() {
    let rows = [BATCH, Axis::Len(4)];
    let bytes =
        model(&[node("Add", &["x", "x"], "y")], &[tensor("x", &rows)], &[tensor("y", &rows)]);
    for kind in engines() {
        let engine = load(kind, &bytes, &[1, 2]).unwrap_or_else(|e| panic!("{e}"));
        let mut instance = engine.instance().unwrap();
        let input = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0, 2.0, 3.0, 4.0, 5.0];
        let bytes: Vec<u8> = input.iter().flat_map(|v| v.to_le_bytes()).collect();
        instance.input_mut(PlanIndex(1), 0).copy_from_slice(&bytes);
        instance.infer(PlanIndex(1)).unwrap();
        let got = values(corelane::units::DType::F32, instance.output(PlanIndex(1), 0));
        assert!(got[0].is_nan());
        let rest = [f64::INFINITY, f64::NEG_INFINITY, 2.0, 4.0, 6.0, 8.0, 10.0];
        assert_eq!(got[1..], rest);
    }
}

/// Every element type goes in and comes out as its own bytes.
#[test]
fn element_types_keep_their_bytes() {
    let rows = [BATCH, Axis::Len(3)];
    let doubled = |elem_type: u64| {
        let ends = [typed_tensor("x", elem_type, &rows), typed_tensor("y", elem_type, &rows)];
        model(&[node("Add", &["x", "x"], "y")], &ends[..1], &ends[1..])
    };
    let i64s = |v: [i64; 6]| v.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let i32s = |v: [i32; 6]| v.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let f64s = |v: [f64; 6]| v.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let f32s = |v: [f32; 6]| v.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let f16s = |v: [u16; 6]| v.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let not = model(
        &[node("Not", &["x"], "y")],
        &[typed_tensor("x", 9, &rows)],
        &[typed_tensor("y", 9, &rows)],
    );
    let cast = model(
        &[with_int(node("Cast", &["x"], "y"), "to", 1)],
        &[typed_tensor("x", 2, &rows)],
        &[typed_tensor("y", 1, &rows)],
    );
    let big = 1 << 40;
    let cases = [
        ("int64", doubled(7), i64s([1, -2, big, 4, 5, -6]), i64s([2, -4, 2 * big, 8, 10, -12])),
        ("int32", doubled(6), i32s([1, -2, 3, 1 << 29, 5, 6]), i32s([2, -4, 6, 1 << 30, 10, 12])),
        (
            "float64",
            doubled(11),
            f64s([0.1, 1e300, 3., 4., 5., 6.]),
            f64s([0.2, 2e300, 6., 8., 10., 12.]),
        ),
        // 1, 2, -1, 0.5, 65504 / 2 = 32752, 0 and their doubles.
        (
            "float16",
            doubled(10),
            f16s([0x3C00, 0x4000, 0xBC00, 0x3800, 0x77FF, 0]),
            f16s([0x4000, 0x4400, 0xC000, 0x3C00, 0x7BFF, 0]),
        ),
        // A byte that is neither 0 nor 1 is true.
        ("bool", not, vec![0, 1, 7, 255, 0, 1], vec![1, 0, 0, 0, 1, 0]),
        ("uint8", cast, vec![0, 1, 127, 128, 200, 255], f32s([0., 1., 127., 128., 200., 255.])),
    ];
    for (name, bytes, input, wanted) in cases {
        for kind in engines() {
            let engine = load(kind, &bytes, &[1, 2])
                .unwrap_or_else(|e| panic!("{name} {}: {e}", kind.name()));
            let mut instance = engine.instance().unwrap();
            instance.input_mut(PlanIndex(1), 0)[..input.len()].copy_from_slice(&input);
            instance.infer(PlanIndex(1)).unwrap();
            let got = &instance.output(PlanIndex(1), 0)[..wanted.len()];
            assert_eq!(got, wanted, "{name} {}", kind.name());
            let half = |v: &[u8]| v[..v.len() / 2].to_vec();
            let mut output = half(&wanted);
            output.fill(0xAA);
            let input = half(&input);
            instance
                .infer_direct(PlanIndex(0), &[&input], &mut [&mut output])
                .unwrap_or_else(|e| panic!("{name} {} direct: {e}", kind.name()));
            assert_eq!(output, half(&wanted), "{name} {} direct", kind.name());
        }
    }
}

#[test]
fn batch_sizes_out_of_their_bounds_are_refused() {
    let rows = [BATCH, Axis::Len(4)];
    let bytes = model(&[node("Relu", &["x"], "y")], &[tensor("x", &rows)], &[tensor("y", &rows)]);
    for kind in engines() {
        for sizes in [&[][..], &[0], &[4, 1], &[1, 1], &[1, 2000]] {
            let error = load(kind, &bytes, sizes).err().expect("must be refused");
            assert_eq!(error.kind(), EngineErrorKind::Batch, "{sizes:?}: {error}");
        }
    }
}

#[test]
fn an_arena_over_its_budget_is_refused_with_both_numbers() {
    let Ok(bytes) = std::fs::read(repository().join("models/resnet8/model.onnx")) else {
        panic!("models/resnet8 is part of the repository")
    };
    let request = LoadRequest {
        bytes: &bytes,
        batch_sizes: &[1],
        bind_axes: &[],
        bind_inputs: &[],
        arena_bytes_max: 1000,
        isa: Isa::detect(),
    };
    let error = engine::load(EngineKind::Plan, &request).err().expect("must be refused");
    assert_eq!(error.kind(), EngineErrorKind::Limit, "{error}");
    let said = error.to_string();
    assert!(said.contains("1000") && said.contains("arena_bytes_max"), "{said}");
    let arena = load(EngineKind::Plan, &bytes, &[1]).unwrap_or_else(|e| panic!("{e}"));
    let arena = arena.describe().memory[0].arena_bytes.unwrap();
    assert!(said.contains(&arena.to_string()), "{said}: the arena has {arena} bytes");
}

#[test]
fn shapes_that_overflow_are_refused() {
    for axes in [[1u64 << 40, 1 << 40], [1 << 62, 2], [u32::MAX as u64, 1 << 31]] {
        let rows = [BATCH, Axis::Len(axes[0]), Axis::Len(axes[1])];
        let bytes =
            model(&[node("Relu", &["x"], "y")], &[tensor("x", &rows)], &[tensor("y", &rows)]);
        for kind in engines() {
            let error = load(kind, &bytes, &[1]).err().expect("must be refused");
            assert_eq!(error.kind(), EngineErrorKind::Limit, "{axes:?} {}: {error}", kind.name());
        }
    }
}

/// Shapes that fit the address space, but no request.
#[test]
fn tensors_that_no_request_could_carry_are_refused_before_they_are_allocated() {
    for len in [1u64 << 22, 1 << 40, 1 << 59] {
        let rows = [BATCH, Axis::Len(len)];
        let bytes =
            model(&[node("Relu", &["x"], "y")], &[tensor("x", &rows)], &[tensor("y", &rows)]);
        let dir = Dir::new("large", &bytes, "max_batch_size = 4");
        for kind in engines() {
            let error = dir.load(kind).err().expect("must be refused");
            match &error {
                ModelError::Payload { rows: 4, max, .. } => assert_eq!(*max, 64 << 20),
                ModelError::Engine { source, .. } => {
                    assert_eq!(source.kind(), EngineErrorKind::Limit, "{error}");
                }
                _ => panic!("{error}"),
            }
        }
    }
}

/// Bytes of a valid file, changed one by one: an error or a model, never a panic.
#[test]
fn damaged_files_are_errors_not_panics() {
    let rows = [BATCH, Axis::Len(4)];
    let good = model(
        &[node("Add", &["x", "x"], "s"), node("Relu", &["s"], "y")],
        &[tensor("x", &rows)],
        &[tensor("y", &rows)],
    );
    for at in 0..good.len() {
        for flip in [1u8, 0x80, 0xFF] {
            let mut bytes = good.clone();
            bytes[at] ^= flip;
            for kind in engines() {
                let loaded = std::panic::catch_unwind(|| load(kind, &bytes, &[1]).map(|_| ()));
                assert!(loaded.is_ok(), "{}: byte {at} ^ {flip} panics", kind.name());
            }
        }
    }
}
