use super::*;
use crate::toml_errors::TomlErrorKind;

/// A model directory with this manifest, removed when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new(manifest: &str) -> Dir {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("corelane-manifest-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("manifest.toml"), manifest).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read(text: &str) -> Result<Manifest, ModelError> {
    Manifest::read(&Dir::new(text).0)
}

/// The error without the file's name before it.
fn said(text: &str) -> String {
    let error = read(text).unwrap_err().to_string();
    error.split_once("manifest.toml, ").map_or(error.clone(), |(_, rest)| rest.to_string())
}

#[test]
fn everything_is_read() {
    let m = read(
        r#"
name = "kws-2"
engine = "tract"
file = "net.onnx"
sha256 = "FDF16D7115A1E0F8AA0F6ED59592ECA6FF58D6BEF80382B28465C64D5D2E87FB"
max_batch_size = 8
batch_sizes = [1, 3, 8]
preferred_batch_size = [3, 8]
max_queue_delay_microseconds = 250
max_queue_size = 100
max_request_rows = 4
default_timeout_microseconds = 20_000
priority_levels = 3
default_priority = 2
weight = 5
labels = ["yes", "no"]
arena_bytes_max = 1_000_000
model_warmup = 3
tolerance = 2e-5
[instance_group]
cores = [1, 3]
[bind_axes]
sequence = 128
"time steps" = 2
[bind_inputs]
mask = 1
scale = 0.5
"#,
    )
    .unwrap();
    assert_eq!((m.name.as_str(), m.engine), ("kws-2", EngineKind::Tract));
    assert_eq!(m.file.file_name().unwrap(), "net.onnx");
    assert_eq!(m.sha256.as_deref().map(|h| &h[..8]), Some("fdf16d71"));
    assert_eq!((m.max_batch_size, m.batch_sizes.as_slice()), (8, &[1, 3, 8][..]));
    assert_eq!(m.preferred_batch_size, [3, 8]);
    assert_eq!((m.max_queue_delay, m.max_queue_size), (Micros(250), Some(100)));
    assert_eq!((m.max_request_rows, m.default_timeout), (4, Micros(20_000)));
    assert_eq!((m.priority_levels, m.default_priority, m.weight), (3, Priority(2), 5));
    assert_eq!(m.labels, ["yes", "no"]);
    assert_eq!((m.arena_bytes_max, m.model_warmup, m.tolerance), (1_000_000, 3, 2e-5));
    assert_eq!(m.instance_group, InstanceGroup::Cores(vec![CoreId(1), CoreId(3)]));
    let mut axes = m.bind_axes.clone();
    axes.sort();
    assert_eq!(axes, [("sequence".to_string(), 128), ("time steps".to_string(), 2)]);
    assert!(m.bind_inputs.contains(&("mask".to_string(), 1.0)));
    assert!(m.bind_inputs.contains(&("scale".to_string(), 0.5)));
}

#[test]
fn an_empty_manifest_has_the_documented_defaults() {
    let dir = Dir::new("");
    let m = Manifest::read(&dir.0).unwrap();
    assert_eq!(m.name, dir.0.file_name().unwrap().to_str().unwrap());
    assert_eq!(m.file, dir.0.join("model.onnx"));
    assert_eq!(m.engine, DEFAULT_ENGINE);
    assert_eq!((m.max_batch_size, m.batch_sizes.as_slice()), (8, &[1, 2, 4, 8][..]));
    assert_eq!((m.max_queue_size, m.max_queue_delay, m.max_request_rows), (None, Micros(0), 8));
    assert_eq!((m.priority_levels, m.default_priority, m.weight), (1, Priority(1), 1));
    assert_eq!((m.default_timeout, m.tolerance, m.model_warmup), (Micros(0), 1e-5, 1));
    assert_eq!(m.instance_group, InstanceGroup::All);
    assert!(m.labels.is_empty() && m.sha256.is_none() && m.fake.is_none());
    assert_eq!((m.isa, m.kernels()), (None, Isa::detect()));
}

#[test]
fn kernels_are_those_of_a_set_that_there_is() {
    for isa in Isa::ALL {
        let m = read(&format!("isa = {:?}", isa.name())).unwrap();
        assert_eq!((m.isa, m.kernels()), (Some(isa), isa));
    }
    let text = said("isa = \"sse2\"");
    assert!(text.contains("\"sse2\" is none of \"portable\", \"neon32\""), "{text}");
    let text = said("engine = \"tract\"\nisa = \"avx2\"");
    assert!(text.contains("is of engine \"plan\", not of \"tract\""), "{text}");
}

#[test]
fn every_key_is_in_the_table_of_the_documentation() {
    let source = include_str!("../manifest.rs");
    let docs: String = source.lines().filter(|l| l.starts_with("//!")).collect();
    let error = read("zzzzzzzzzzzz = 1").unwrap_err();
    let ModelError::Manifest(error) = error else { panic!("{error}") };
    let TomlErrorKind::UnknownKey { known, .. } = *error.kind else { panic!("{error}") };
    assert!(known.len() > 20);
    for key in known {
        assert!(
            docs.contains(&format!("`{key}`")) || docs.contains(&format!("`[{key}]`")),
            "{key}"
        );
    }
}

#[test]
fn sizes_follow_from_each_other() {
    let sizes = |text: &str| read(text).unwrap().batch_sizes;
    assert_eq!(sizes("max_batch_size = 1"), [1]);
    assert_eq!(sizes("max_batch_size = 6"), [1, 2, 4, 6]);
    assert_eq!(read("batch_sizes = [1, 5]").unwrap().max_batch_size, 5);
    assert_eq!(default_batch_sizes(1024).len(), 11);
    let mut m = read("batch_sizes = [1, 5, 8]\npreferred_batch_size = [5, 8]").unwrap();
    m.limit_batches(6);
    assert_eq!((m.max_batch_size, m.max_request_rows), (5, 5));
    assert_eq!((m.batch_sizes, m.preferred_batch_size), (vec![1, 5], vec![5]));
}

#[test]
fn errors_name_key_line_and_what_would_be_right() {
    for (text, wanted) in [
        (
            "max_batchsize = 4",
            "line 1: unknown key `max_batchsize`; did you mean `max_batch_size`?",
        ),
        (
            "name = 'a'\n[instance_group]\ncore = [1]",
            "line 3: unknown key `instance_group.core`; did you mean `instance_group.cores`?",
        ),
        (
            "name = 'a'\nmax_queue_size = 'many'",
            "line 2: `max_queue_size` must be a whole number, but is text",
        ),
        (
            "max_queue_delay_microseconds = 2000000",
            "line 1: `max_queue_delay_microseconds` is 2000000; it must be within 0 to 1000000",
        ),
        (
            "\nmax_batch_size = 2000",
            "line 2: `max_batch_size` is 2000; it must be within 1 to 1024",
        ),
        (
            "batch_sizes = [1, 4]\nmax_batch_size = 8",
            "line 2: `max_batch_size`: is 8, but the largest of batch_sizes is 4; they must be equal",
        ),
        (
            "batch_sizes = [4, 8]",
            "line 1: `batch_sizes`: must be ascending and begin with 1, the size of a request alone",
        ),
        (
            "max_batch_size = 4\npreferred_batch_size = [8]",
            "line 2: `preferred_batch_size`: 8 is more than max_batch_size, which is 4",
        ),
        (
            "max_batch_size = 4\nmax_request_rows = 5",
            "line 2: `max_request_rows` is 5; it must be within 1 to 4",
        ),
        (
            "priority_levels = 2\ndefault_priority = 3",
            "line 2: `default_priority` is 3; it must be within 1 to 2",
        ),
        (
            "engine = 'onnx'",
            "line 1: `engine`: \"onnx\" is none of \"plan\", \"tract\", \"ort\", \"fake\"",
        ),
        ("sha256 = 'abc'", "line 1: `sha256`: must be 64 hexadecimal digits"),
        ("tolerance = -1", "line 1: `tolerance`: is -1; it must be within 0 to 1"),
        ("tolerance = nan", "line 1: `tolerance`: is NaN; it must be within 0 to 1"),
        ("bind_axes = { n = 0 }", "line 1: `bind_axes.n` is 0; it must be within 1 to 4294967295"),
        ("bind_inputs = { x = 'y' }", "line 1: `bind_inputs.x` must be a number, but is text"),
        ("labels = []", "line 1: `labels`: there must be labels, and none may be empty"),
        (
            "[instance_group]\ncores = 'some'",
            "line 2: `instance_group.cores`: must be \"all\" or a list of 1 to 64 cores",
        ),
        ("engine = 'fake'", "line 1: `engine`: the fake engine needs its shapes, in [fake]"),
        (
            "engine = 'fake'\n[fake]\ninputs = [{ name = 'x', dtype = 'int9', shape = [1] }]",
            "line 3: `fake.inputs[0].dtype`: \"int9\" is none of float32, float16, float64, int8, uint8, \
             int16, uint16, int32, uint32, int64, uint64, bool",
        ),
        ("name = 'a'\nname", "line 2: not valid TOML"),
    ] {
        let error = said(text);
        assert!(error.starts_with(wanted), "{text:?}: {error}");
    }
}

#[test]
fn names_are_checked() {
    for name in ["", "a b", "a/b", "ä", &"a".repeat(65)] {
        let error = read(&format!("name = {name:?}")).unwrap_err();
        assert!(matches!(&error, ModelError::Name { .. }), "{error}");
    }
    assert!(read(&format!("name = {:?}", "a".repeat(64))).is_ok());
}

#[test]
fn labels_come_from_a_file() {
    let dir = Dir::new("labels = 'labels.txt'");
    let error = Manifest::read(&dir.0).unwrap_err();
    assert!(matches!(&error, ModelError::Io { what: "the labels", .. }), "{error}");
    std::fs::write(dir.0.join("labels.txt"), "cat\r\nbig dog\n").unwrap();
    assert_eq!(Manifest::read(&dir.0).unwrap().labels, ["cat", "big dog"]);
}

#[test]
fn the_fake_section_makes_a_signature() {
    let m = read(
        "engine = 'fake'\n[fake]\ninputs = [{ name = 'x', dtype = 'uint8', shape = [2, 3] }]\n\
         outputs = [{ name = 'y', shape = [4] }]\ncompute_us = 50\ncompute_per_row_us = 5\nerror_marker = 255\n",
    )
    .unwrap();
    let fake = m.fake.unwrap();
    assert!(fake.signature.batched);
    assert_eq!(fake.signature.inputs[0].row_bytes(), 6);
    assert_eq!(fake.signature.outputs[0].row_bytes(), 16);
    assert_eq!(fake.compute.per_run, Duration::from_micros(50));
    assert_eq!(fake.fault.error_marker, Some(255));
}

#[test]
fn paths_of_every_kind() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let dir = Manifest::read(&models.join("mlp")).unwrap();
    let toml = Manifest::read(&models.join("mlp/manifest.toml")).unwrap();
    assert_eq!(dir, toml);
    let bare = Manifest::read(&models.join("mlp/model.onnx")).unwrap();
    assert_eq!((bare.name.as_str(), bare.dir), ("model", None));
    let error = Manifest::read(&models.join("nothing")).unwrap_err();
    assert!(matches!(&error, ModelError::Io { .. }), "{error}");
    let error = Manifest::read(&models).unwrap_err();
    assert!(matches!(&error, ModelError::NotAModel { .. }), "{error}");
}

#[test]
fn half_precision_is_read_with_its_file_and_tolerance() {
    let half = "engine = 'ort'\ntolerance = 1e-4\n[ort]\nprecision = 'fp16'\n";
    let m = read(&format!("{half}fp16_file = 'h.onnx'\nfp16_tolerance = 0.05\n")).unwrap();
    assert_eq!((m.ort.precision, m.ort.fp16_tolerance), (Precision::Fp16, 0.05));
    // Named, it is taken whether it is there or not: loading says so.
    assert_eq!(m.ort_settings().fp16_file.unwrap().file_name().unwrap(), "h.onnx");
    assert_eq!(m.allowed_difference(), 0.05);
    let as_plan = Manifest { engine: EngineKind::Plan, ..m };
    assert_eq!(as_plan.allowed_difference(), 1e-4, "other engines have no half precision");

    let dir = Dir::new(half);
    let m = Manifest::read(&dir.0).unwrap();
    assert_eq!((m.ort_settings().fp16_file, m.allowed_difference()), (None, 1e-2));
    let beside = dir.0.join("model_fp16.onnx");
    std::fs::write(&beside, "").unwrap();
    assert_eq!(m.ort_settings().fp16_file, Some(beside));
    let single = Manifest { ort: OrtSettings::default(), ..m };
    assert_eq!((single.ort_settings().fp16_file, single.allowed_difference()), (None, 1e-4));
    let cached = Manifest { cache_dir: Some("/cache".into()), ..single };
    assert_eq!(cached.ort_settings().engine_cache, Some("/cache".into()));

    let m = read("[ort]\nproviders = ['cuda', 'cpu']\ncuda_graph = true\n").unwrap();
    assert!(m.ort.cuda_graph && !OrtSettings::default().cuda_graph);
    let wrong = said("[ort]\ncuda_graph = true");
    assert!(wrong.contains("cuda_graph") && wrong.contains("cpu computes on no GPU"), "{wrong}");

    let wrong = said("[ort]\nprecision = 'fp8'");
    assert!(wrong.contains("\"fp8\" is none of \"fp32\", \"fp16\""), "{wrong}");
    let wrong = said("[ort]\nfp16_tolerance = 2");
    assert!(wrong.contains("is 2; it must be within 0 to 1"), "{wrong}");
}
