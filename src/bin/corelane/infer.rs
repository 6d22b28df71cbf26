//! `corelane infer`: requests from the command line.

use crate::args::InferArgs;
use crate::exit::{Code, Exit, Outcome};
use crate::out::outln;
use crate::target::{Answered, End, Target, Treatment};
use crate::{link, tensors};
use corelane::client::TensorInfo;
use corelane::config::ModelEntry;
use corelane::limits::TEXT_FILE_BYTES_MAX;
use corelane::model::Manifest;
use corelane::model::manifest::labels_of;
use corelane::model::npy::Array;
use corelane::runtime::Runtime;
use corelane::sys::{affinity, files};
use corelane::units::{Micros, Priority, Receipt};
use serde::Serialize;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Requests that `--rows` keeps in flight at most.
const IN_FLIGHT_MAX: usize = 16;
/// Labels printed for a row.
const LABELS_SHOWN: usize = 3;
/// Values printed of a tensor.
const VALUES_SHOWN: usize = 10;

/// One answered request, as JSON.
#[derive(Serialize)]
struct Told<'a> {
    model: &'a str,
    rows: usize,
    outputs: Vec<tensors::Output<'a>>,
    /// The best label of each row, where the model has labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<Labelled<'a>>,
    latency_ns: u64,
    receipt: &'a Receipt,
}

#[derive(Serialize)]
struct Labelled<'a> {
    label: &'a str,
    score: f64,
}

/// One request without an answer, as JSON.
#[derive(Serialize)]
struct ToldError<'a> {
    model: &'a str,
    error: ErrorText<'a>,
}

#[derive(Serialize)]
struct ErrorText<'a> {
    code: &'static str,
    number: u16,
    text: &'a str,
}

/// Runs the command.
pub fn run(args: &InferArgs) -> Outcome {
    match &args.server.connect {
        Some(address) => {
            if args.inputs.is_empty() && args.named.is_empty() {
                let text = "give inputs: a server's model has no golden input here";
                return Err(Exit::new(Code::Usage, text));
            }
            let client = link::connect(address, args.server.psk_file.as_deref())?;
            let target = Target::remote(client, address, &args.model, &args.encodings)?;
            talk(args, target, &args.model, &given_labels(args)?.unwrap_or_default())
        }
        None => {
            let setup = crate::models::load(&ModelEntry::new(&args.model), None)?;
            let name = setup.name.clone();
            let labels = given_labels(args)?.unwrap_or_else(|| setup.labels.clone());
            // One worker is enough for one client; it stays off the first core, where this thread
            // most likely is.
            let cores = affinity::allowed().map_err(|e| Exit::new(Code::Config, e))?;
            let runtime = Runtime::builder().model(setup).cores(cores.last().copied());
            let runtime = runtime.build().map_err(|e| Exit::new(Code::Config, e))?;
            let model = runtime.client().model(&name).map_err(|e| Exit::new(Code::Failure, e))?;
            talk(args, Target::local(model), &name, &labels)
        }
    }
}

/// The class names that the arguments name.
fn given_labels(args: &InferArgs) -> Result<Option<Vec<String>>, Exit> {
    let Some(path) = &args.labels else { return Ok(None) };
    let wrong = |e: &dyn std::fmt::Display| {
        Exit::new(Code::Usage, format_args!("the labels {}: {e}", path.display()))
    };
    let labels: Vec<String> = if path.is_dir() {
        Manifest::read(&path.join(Manifest::FILE)).map_err(|e| wrong(&e))?.labels
    } else {
        let text = files::read_any_text(path, TEXT_FILE_BYTES_MAX).map_err(|e| wrong(&e))?;
        labels_of(&text)
    };
    if labels.is_empty() || labels.iter().any(String::is_empty) {
        return Err(wrong(&"there must be labels, and none may be empty"));
    }
    Ok(Some(labels))
}

fn talk(args: &InferArgs, mut target: Target, name: &str, labels: &[String]) -> Outcome {
    let arrays = read_inputs(args, &target.inputs)?;
    let rows = tensors::check(&target.inputs, &arrays, target.batched)
        .map_err(|e| Exit::new(Code::Refused, e))?;
    let how = Treatment { timeout: Micros(args.timeout_us), priority: Priority(args.priority) };
    let ranges: Vec<Range<usize>> = if args.rows {
        (0..rows).map(|r| r..r + 1).collect()
    } else {
        std::iter::once(0..rows).collect()
    };
    let payloads: Vec<Vec<u8>> =
        ranges.iter().map(|r| tensors::payload(&target.inputs, &arrays, r.clone())).collect();
    let mut refused = Vec::new();
    let mut latencies = Vec::new();
    for round in 0..args.repeat {
        for end in round_of(&mut target, &ranges, &payloads, how)? {
            match end {
                Ok(answer) => {
                    latencies.push(answer.latency_ns);
                    if args.json || round == 0 {
                        tell(args, &target, name, labels, &answer)?;
                    }
                }
                Err(error) => {
                    if args.json {
                        let (code, number) = (error.code.name(), error.code.number());
                        let error = ErrorText { code, number, text: &error.text };
                        print_json(&ToldError { model: name, error })?;
                    }
                    refused.push(format!("{}: {}", error.code, error.text));
                }
            }
        }
    }
    if args.repeat > 1 && !args.json && !latencies.is_empty() {
        latencies.sort_unstable();
        let at = |permille: usize| {
            let rank = (latencies.len() * permille).div_ceil(1000).max(1);
            tensors::span(latencies[rank - 1])
        };
        outln!(
            "{} answers, closed loop: latency p50 {}, p99 {}, max {}",
            latencies.len(),
            at(500),
            at(990),
            at(1000)
        );
    }
    match refused.first() {
        None => Ok(()),
        Some(first) if refused.len() == 1 => Err(Exit::new(Code::Refused, first)),
        Some(first) => {
            let text = format!("{} requests have no answer; the first: {first}", refused.len());
            Err(Exit::new(Code::Refused, text))
        }
    }
}

/// Sends every payload once, and returns what each came to, in order.
fn round_of(
    target: &mut Target,
    ranges: &[Range<usize>],
    payloads: &[Vec<u8>],
    how: Treatment,
) -> Result<Vec<End>, Exit> {
    let mut ends: Vec<Option<End>> = payloads.iter().map(|_| None).collect();
    let mut first = None;
    let mut take = |target: &mut Target, first: u64| -> Result<(), Exit> {
        let (number, end) = target.next()?;
        ends[(number - first) as usize] = Some(end);
        Ok(())
    };
    for (range, payload) in ranges.iter().zip(payloads) {
        if target.in_flight() == IN_FLIGHT_MAX {
            take(target, first.unwrap_or(0))?;
        }
        let number = target.submit(range.len(), payload, how)?;
        first.get_or_insert(number);
    }
    while target.in_flight() > 0 {
        take(target, first.unwrap_or(0))?;
    }
    Ok(ends.into_iter().flatten().collect())
}

fn read_inputs(args: &InferArgs, inputs: &[TensorInfo]) -> Result<Vec<Array>, Exit> {
    let read = |path: &Path| tensors::read_npy(path).map_err(|e| Exit::new(Code::Usage, e));
    if args.inputs.is_empty() && args.named.is_empty() {
        return golden_inputs(Path::new(&args.model), inputs.len())?
            .iter()
            .map(|p| read(p))
            .collect();
    }
    let mut files: Vec<Option<&PathBuf>> = vec![None; inputs.len()];
    for (name, file) in &args.named {
        let Some(at) = inputs.iter().position(|t| t.name == *name) else {
            let names: Vec<&str> = inputs.iter().map(|t| t.name.as_str()).collect();
            let text = format!("there is no input {name:?}; there are: {}", names.join(", "));
            return Err(Exit::new(Code::Refused, text));
        };
        if files[at].replace(file).is_some() {
            return Err(Exit::new(Code::Usage, format_args!("input {name:?} is given twice")));
        }
    }
    let mut positional = args.inputs.iter();
    for file in files.iter_mut().filter(|f| f.is_none()) {
        *file = positional.next();
    }
    let count = args.inputs.len() + args.named.len();
    if count != inputs.len() {
        let names: Vec<&str> = inputs.iter().map(|t| t.name.as_str()).collect();
        let text = format!(
            "the model takes {} inputs ({}), {count} are given",
            inputs.len(),
            names.join(", ")
        );
        return Err(Exit::new(Code::Refused, text));
    }
    files.into_iter().flatten().map(|p| read(p)).collect()
}

/// The first golden input of a model directory.
fn golden_inputs(model: &Path, count: usize) -> Result<Vec<PathBuf>, Exit> {
    let files: Vec<PathBuf> =
        (0..count).map(|k| model.join(format!("golden/input_{k}.npy"))).collect();
    match files.iter().find(|f| !f.is_file()) {
        None => Ok(files),
        Some(file) => {
            let text = format!("give inputs: there is no golden input {}", file.display());
            Err(Exit::new(Code::Usage, text))
        }
    }
}

fn print_json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string(value).map_err(|e| Exit::new(Code::Failure, e))?;
    outln!("{text}");
    Ok(())
}

fn tell(
    args: &InferArgs,
    target: &Target,
    name: &str,
    labels: &[String],
    answer: &Answered,
) -> Outcome {
    let outputs = tensors::outputs(&target.outputs, answer.rows, target.batched, &answer.payload);
    let row_len = |k: usize| target.outputs[k].row_bytes / target.outputs[k].dtype.size_bytes();
    let best = |row: usize, n: usize| {
        let len = row_len(0);
        tensors::ranking(labels, outputs[0].data.part(row * len, len), n)
    };
    if args.json {
        let labels = (0..answer.rows)
            .flat_map(|row| best(row, 1))
            .map(|(label, score)| Labelled { label, score })
            .collect();
        return print_json(&Told {
            model: name,
            rows: answer.rows,
            labels,
            latency_ns: answer.latency_ns,
            receipt: &answer.receipt,
            outputs,
        });
    }
    let r = &answer.receipt;
    outln!(
        "{name}: {} row{} in {} (queue {}, input {}, infer {}, output {}; batch of {}, closed by {}, worker {})",
        answer.rows,
        if answer.rows == 1 { "" } else { "s" },
        tensors::span(answer.latency_ns),
        tensors::span(r.queue_ns.0),
        tensors::span(r.compute_input_ns.0),
        tensors::span(r.compute_infer_ns.0),
        tensors::span(r.compute_output_ns.0),
        r.batch_size,
        r.close_reason.name(),
        r.worker
    );
    for (k, output) in outputs.iter().enumerate() {
        outln!("  {} {} {}", output.name, output.dtype, tensors::shape_text(&output.shape));
        for row in 0..answer.rows {
            let values = output.data.part(row * row_len(k), row_len(k));
            let ranked = if k == 0 { best(row, LABELS_SHOWN) } else { Vec::new() };
            let text = if ranked.is_empty() {
                let shown: Vec<String> =
                    values.elements().take(VALUES_SHOWN).map(|e| e.to_string()).collect();
                let more = values.elements().len().saturating_sub(VALUES_SHOWN);
                let tail = if more > 0 { format!(" ... {more} more") } else { String::new() };
                format!("{}{tail}", shown.join(" "))
            } else {
                let shown: Vec<String> =
                    ranked.iter().map(|(label, score)| format!("{label} {score:.4}")).collect();
                shown.join(", ")
            };
            outln!("    row {row}: {text}");
        }
    }
    Ok(())
}
