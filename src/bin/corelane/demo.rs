//! `corelane demo`: real requests on the models in `models/`, every answer checked.

use crate::args::DemoArgs;
use crate::exit::{Code, Exit, Outcome};
use crate::magika::{Features, Rules, features};
use crate::out::{out, outln};
use crate::target::{Answered, Target, Treatment};
use crate::tensors::{self, Data};
use crate::{link, models, stats};
use corelane::client::Address;
use corelane::config::ModelEntry;
use corelane::limits::MODEL_FILE_BYTES_MAX;
use corelane::model::Manifest;
use corelane::model::npy::Array;
use corelane::runtime::Runtime;
use corelane::sys::{clock, files};
use corelane::transport::{ServerOptions, UnixOptions};
use corelane::units::Receipt;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Models of the demo; the first tells file types.
const MODELS: [&str; 5] = ["magika", "mlp", "vww", "resnet8", "dscnn_kws"];

/// Files of the repository, and the label that the Python package `magika` 1.0.3 gives them.
const FILES: &[(&str, &str)] = &[
    ("README.md", "markdown"),
    ("CHANGELOG.md", "markdown"),
    ("LICENSE-MIT", "txt"),
    (".ci/run", "shell"),
    ("Cargo.toml", "toml"),
    ("Cargo.lock", "txt"),
    (".gitignore", "ignorefile"),
    ("src/lib.rs", "rust"),
    ("src/config.rs", "rust"),
    ("src/batch/simulated_load.txt", "csv"),
    ("examples/python/corelane.py", "python"),
    ("models/magika/README.md", "markdown"),
    ("models/magika/LICENSE", "txt"),
    ("models/magika/config.min.json", "json"),
    ("models/magika/labels.txt", "csv"),
    ("models/magika/model.onnx", "onnx"),
    ("models/mlp/manifest.toml", "toml"),
    ("models/mlp/model.onnx", "onnx"),
    ("models/mlp/golden/input_0.npy", "npy"),
];

/// Requests in flight on each way.
const IN_FLIGHT: usize = 8;
/// Requests with golden rows that each model gets on each way.
const GOLDEN_REQUESTS: usize = 48;
/// The same for the large model of file types.
const GOLDEN_REQUESTS_LARGE: usize = 8;

/// For each answer: an emulator on a busy machine takes half a minute, a server that hangs for ever.
const PATIENCE: Duration = Duration::from_secs(300);

/// How the answers are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Socket,
    Process,
}

impl Way {
    const BOTH: [Way; 2] = [Way::Socket, Way::Process];
    fn name(self) -> &'static str {
        match self {
            Way::Socket => "unix socket",
            Way::Process => "in process",
        }
    }
}

/// What was seen so far.
#[derive(Default)]
struct Seen {
    answers: usize,
    wrong: Vec<String>,
    /// Receipts, by model and rows of the batch.
    receipts: BTreeMap<(String, u16), Vec<Receipt>>,
}

impl Seen {
    fn take(&mut self, model: &str, receipt: &Receipt) {
        self.answers += 1;
        self.receipts.entry((model.into(), receipt.batch_size.0)).or_default().push(*receipt);
    }
}

/// Runs the command.
pub fn run(args: &DemoArgs) -> Outcome {
    let root = find_root(args.root.as_deref())?;
    let start = clock::now();
    let mut builder = Runtime::builder();
    let mut setups = Vec::new();
    for name in MODELS {
        let setup = models::load(&ModelEntry::new(root.join("models").join(name)), None)?;
        setups.push(setup.clone());
        builder = builder.model(setup);
    }
    let mut runtime = builder.build().map_err(|e| Exit::new(Code::Config, e))?;
    let path = std::env::temp_dir().join(format!("corelane-demo-{}.sock", std::process::id()));
    let io_core = runtime.housekeeping_cores().map_err(|e| Exit::new(Code::Config, e))?;
    let options = ServerOptions { unix: Some(UnixOptions::new(&path)), ..ServerOptions::default() };
    let server = runtime
        .serve(options, io_core.first().copied())
        .map_err(|e| Exit::new(Code::Unreachable, e))?;
    outln!(
        "{} models loaded, warm and verified in {}",
        setups.len(),
        tensors::span(clock::now().since(start).0)
    );
    let address = Address::Unix(path);
    let targets = |name: &str| -> Result<[Target; 2], Exit> {
        let client = link::connect_for(&address, None, Some(PATIENCE))?;
        let remote = Target::remote(client, &address, name, &[])?;
        let model = runtime.client().model(name).map_err(|e| Exit::new(Code::Failure, e))?;
        Ok([remote, Target::local(model)])
    };
    let mut seen = Seen::default();
    let magika = &setups[0];
    let rules = Rules::read(&root.join("models/magika/config.min.json"))
        .map_err(|e| Exit::new(Code::Config, e))?;
    file_types(&root, targets(MODELS[0])?, &magika.labels, &rules, &mut seen)?;
    outln!("\ngolden rows, alone and together, {IN_FLIGHT} requests in flight on each way");
    for setup in &setups {
        let dir = root.join("models").join(&setup.name);
        let tolerance = setup.inspection.as_ref().map_or(0.0, |i| i.tolerance);
        let rows_max = usize::from(setup.max_request_rows.0);
        let goldens = Goldens::read(&dir, rows_max, tolerance)?;
        let large = setup.name == MODELS[0];
        let requests = if large { GOLDEN_REQUESTS_LARGE } else { GOLDEN_REQUESTS };
        golden_rows(&setup.name, targets(&setup.name)?, &goldens, requests, &mut seen)?;
    }
    let snapshot =
        serde_json::to_value(runtime.stats()).map_err(|e| Exit::new(Code::Failure, e))?;
    out!("{}", latencies(&snapshot, &seen));
    let report = runtime.drain_with(server, Duration::from_secs(5));
    if !report.clean {
        seen.wrong.push(format!("{} requests were left at the end", report.left));
    }
    if seen.wrong.is_empty() {
        outln!("\nall {} answers are right", seen.answers);
        return Ok(());
    }
    for wrong in &seen.wrong {
        outln!("WRONG: {wrong}");
    }
    let text = format!("{} of {} answers are wrong", seen.wrong.len(), seen.answers);
    Err(Exit::new(Code::Failure, text))
}

/// The directory with `models/`: the one asked for, the current one, or the one it was built in.
fn find_root(asked: Option<&Path>) -> Result<PathBuf, Exit> {
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR"));
    let candidates = match asked {
        Some(dir) => vec![dir],
        None => vec![Path::new("."), built_in],
    };
    let has = |dir: &&&Path| dir.join("models").join(MODELS[0]).join(Manifest::FILE).is_file();
    match candidates.iter().find(has) {
        Some(dir) => Ok(dir.to_path_buf()),
        None => {
            let looked: Vec<String> =
                candidates.iter().map(|dir| dir.display().to_string()).collect();
            let text = format!(
                "no models/{}/manifest.toml in {}; run it in the repository, or give --root",
                MODELS[0],
                looked.join(" or ")
            );
            Err(Exit::new(Code::Config, text))
        }
    }
}

/// Every file by both ways, all in flight together; prints label and score beside what is expected.
fn file_types(
    root: &Path,
    mut targets: [Target; 2],
    labels: &[String],
    rules: &Rules,
    seen: &mut Seen,
) -> Outcome {
    let mut payloads = Vec::new();
    for (file, _) in FILES {
        let content = files::read(&root.join(file), MODEL_FILE_BYTES_MAX)
            .map_err(|e| Exit::new(Code::Failure, format_args!("{file}: {e}")))?;
        let Features::Ask(features) = features(&content) else {
            let text = format!("{file} is too short to ask the model");
            return Err(Exit::new(Code::Failure, text));
        };
        payloads.push(features.iter().flat_map(|f| f.to_le_bytes()).collect::<Vec<u8>>());
    }
    let mut told: Vec<[Option<(String, f64)>; 2]> = vec![[None, None]; FILES.len()];
    let mut take = |way: usize, target: &mut Target, seen: &mut Seen| -> Outcome {
        let (number, end) = target.next()?;
        let file = FILES[number as usize].0;
        match end {
            Ok(answer) => {
                seen.take(MODELS[0], &answer.receipt);
                let outputs = tensors::outputs(&target.outputs, 1, true, &answer.payload);
                let best = tensors::ranking(labels, outputs[0].data, 1);
                if let Some((label, score)) = best.first() {
                    let label = rules.told(label, *score).to_string();
                    told[number as usize][way] = Some((label, *score));
                }
            }
            Err(e) => seen.wrong.push(format!("{file}, {}: {}", Way::BOTH[way].name(), e.text)),
        }
        Ok(())
    };
    for payload in &payloads {
        for (way, target) in targets.iter_mut().enumerate() {
            while target.in_flight() >= IN_FLIGHT {
                take(way, target, seen)?;
            }
            target.submit(1, payload, Treatment::default())?;
        }
    }
    for (way, target) in targets.iter_mut().enumerate() {
        while target.in_flight() > 0 {
            take(way, target, seen)?;
        }
    }
    outln!("\nfile types by the Magika model, each file asked over a Unix socket and in process");
    let shown = |answer: &Option<(String, f64)>| match answer {
        Some((label, score)) => format!("{label} {score:.3}"),
        None => "no answer".into(),
    };
    outln!("  {:<32} {:<12} {:<18} {:<18}", "file", "expected", "unix socket", "in process");
    for ((file, expected), answers) in FILES.iter().zip(&told) {
        let mut right = true;
        for (way, answer) in Way::BOTH.iter().zip(answers) {
            let Some((label, _)) = answer else {
                right = false;
                continue;
            };
            if label != expected {
                right = false;
                let text = format!("{file}, {}: {label} for {expected}", way.name());
                seen.wrong.push(text);
            }
        }
        let [socket, process] = answers.each_ref().map(shown);
        let mark = if right { "" } else { "  WRONG" };
        outln!("  {file:<32} {expected:<12} {socket:<18} {process:<18}{mark}");
    }
    Ok(())
}

/// Golden rows of one model: each row as a request of its own, and as many together as one request
/// may have.
struct Goldens {
    inputs: Vec<Array>,
    outputs: Vec<Array>,
    rows: usize,
    rows_max: usize,
    tolerance: f64,
}

impl Goldens {
    fn read(dir: &Path, rows_max: usize, tolerance: f64) -> Result<Goldens, Exit> {
        let batch = dir.join("golden/batch4");
        let dir = if batch.is_dir() { batch } else { dir.join("golden") };
        let read = |kind: &str| -> Result<Vec<Array>, Exit> {
            let files = (0..).map(|k| dir.join(format!("{kind}_{k}.npy")));
            files
                .take_while(|file| file.is_file())
                .map(|file| tensors::read_npy(&file).map_err(|e| Exit::new(Code::Config, e)))
                .collect()
        };
        let (inputs, outputs) = (read("input")?, read("output")?);
        let rows = inputs.first().and_then(|a| a.shape.first()).copied().unwrap_or(0);
        if rows == 0 || outputs.is_empty() {
            let text = format!("no golden rows in {}", dir.display());
            return Err(Exit::new(Code::Config, text));
        }
        Ok(Goldens { inputs, outputs, rows, rows_max, tolerance })
    }

    /// The rows of request `n`: every fifth takes as many as it may, the others one in turn.
    fn range(&self, n: usize) -> std::ops::Range<usize> {
        if n % 5 == 4 { 0..self.rows.min(self.rows_max) } else { n % self.rows..n % self.rows + 1 }
    }

    /// The largest difference of an answer, over the largest golden value.
    fn difference(&self, n: usize, target: &Target, answer: &Answered) -> f64 {
        let range = self.range(n);
        let outputs =
            tensors::outputs(&target.outputs, answer.rows, target.batched, &answer.payload);
        let mut worst = 0f64;
        for ((output, golden), info) in outputs.iter().zip(&self.outputs).zip(&target.outputs) {
            let row = info.row_bytes;
            let whole = Data { dtype: golden.dtype, bytes: &golden.data };
            let bytes = golden.data.get(range.start * row..range.end * row).unwrap_or_default();
            let wanted = Data { dtype: golden.dtype, bytes };
            worst = worst.max(tensors::difference(output.data, wanted, whole));
        }
        worst
    }
}

fn golden_rows(
    name: &str,
    mut targets: [Target; 2],
    goldens: &Goldens,
    requests: usize,
    seen: &mut Seen,
) -> Outcome {
    let mut worst = 0f64;
    let mut right = 0;
    let mut take = |way: usize, target: &mut Target, seen: &mut Seen| -> Outcome {
        let (number, end) = target.next()?;
        let way = Way::BOTH[way].name();
        match end {
            Ok(answer) => {
                seen.take(name, &answer.receipt);
                let difference = goldens.difference(number as usize, target, &answer);
                worst = worst.max(difference);
                if difference <= goldens.tolerance {
                    right += 1;
                } else {
                    seen.wrong.push(format!(
                        "{name}, {way}, request {number}: differs from the golden by {difference:.1e} \
                         of the largest value; {:.1e} is allowed",
                        goldens.tolerance
                    ));
                }
            }
            Err(e) => seen.wrong.push(format!("{name}, {way}, request {number}: {}", e.text)),
        }
        Ok(())
    };
    for n in 0..requests {
        let range = goldens.range(n);
        for (way, target) in targets.iter_mut().enumerate() {
            while target.in_flight() >= IN_FLIGHT {
                take(way, target, seen)?;
            }
            let payload = tensors::payload(&target.inputs, &goldens.inputs, range.clone());
            target.submit(range.len(), &payload, Treatment::default())?;
        }
    }
    for (way, target) in targets.iter_mut().enumerate() {
        while target.in_flight() > 0 {
            take(way, target, seen)?;
        }
    }
    outln!(
        "  {name:<10} {right} of {} answers right, within {worst:.1e} of the largest value \
         ({:.1e} is allowed)",
        2 * requests,
        goldens.tolerance
    );
    Ok(())
}

/// Latencies by stage, and by rows in the batch, as the workers measured them.
fn latencies(snapshot: &serde_json::Value, seen: &Seen) -> String {
    use std::fmt::Write;
    let mut out = String::from(
        "\nlatencies by stage, as the workers measured them; queue and request (from submission to \
         the answer) count requests, the others batches\n",
    );
    for model in snapshot["models"].as_array().into_iter().flatten() {
        let _ = writeln!(
            out,
            "{} (engine {})",
            model["name"].as_str().unwrap_or("?"),
            model["engine"].as_str().unwrap_or("?")
        );
        out.push_str(&stats::stage_table(model));
    }
    out.push_str("\nthe same by rows in the batch, p50 of the answers' receipts\n");
    let _ = writeln!(
        out,
        "  {:<10} {:>5} {:>9} {:>10} {:>10} {:>10} {:>10} {:>12}",
        "model", "rows", "requests", "queue", "input", "infer", "output", "infer a row"
    );
    for ((model, rows), receipts) in &seen.receipts {
        let p50 = |stage: fn(&Receipt) -> u64| {
            let mut all: Vec<u64> = receipts.iter().map(stage).collect();
            all.sort_unstable();
            all[(all.len() - 1) / 2]
        };
        let infer = p50(|r| r.compute_infer_ns.0);
        let _ = writeln!(
            out,
            "  {model:<10} {rows:>5} {:>9} {:>10} {:>10} {:>10} {:>10} {:>12}",
            receipts.len(),
            tensors::span(p50(|r| r.queue_ns.0)),
            tensors::span(p50(|r| r.compute_input_ns.0)),
            tensors::span(infer),
            tensors::span(p50(|r| r.compute_output_ns.0)),
            tensors::span(infer / u64::from((*rows).max(1)))
        );
    }
    out
}
