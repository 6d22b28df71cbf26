//! ONNX Runtime beside engine `plan`, and what the runtime adds to ONNX Runtime:
//!
//!     ORT_DYLIB_PATH=... cargo bench --bench ort --features ort -- models/resnet8 --batch 1,8,32
//!     ORT_DYLIB_PATH=... cargo bench --bench ort --features ort -- models/resnet8 --provider cuda --batch 1,8,32,64
//!
//! - *engines*: whole runs of engine `ort` and of engine `plan`, one thread each on the same core, in turns
//!   (`plan` only where ONNX Runtime is on the processor).
//! - *binding*: the same against ONNX Runtime as programs commonly call it, with tensors made for each run.
//! - *overhead*: requests of one batch over a Unix socket, one in flight, against a bare loop: the same
//!   engine, called by one thread on the worker's core, input and output copied. Once with the client on the
//!   worker's core, once on another. And rows per second with two batches in flight, where the client's work
//!   and the worker's overlap.
//!
//! Each repeat measures both sides, in alternating order; a figure is the median over the repeats of the
//! median run, and the ratio that of the pairs, with the least and the largest. The table is Markdown.

use clap::Parser;
use corelane::client::{Address, Client, Options};
use corelane::engine::ort::settings::parse_providers;
use corelane::engine::ort::{OrtSettings, Unbound};
use corelane::engine::{EngineKind, Instance, LoadRequest, PlanIndex};
use corelane::lab::sample::{Spread, percentile};
use corelane::model::{LoadedModel, Manifest};
use corelane::runtime::{ModelSetup, Runtime};
use corelane::sys::{affinity, clock};
use corelane::transport::{Server, ServerOptions, UnixOptions};
use corelane::units::{CoreId, Rows};
use std::path::{Path, PathBuf};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// ONNX Runtime beside engine `plan`, and what the runtime adds to it.
#[derive(Parser)]
struct Arguments {
    /// Model directories, or bare .onnx files.
    #[arg(default_value = "models/resnet8")]
    models: Vec<PathBuf>,
    /// Where ONNX Runtime computes, first choice first.
    #[arg(long, value_delimiter = ',', default_value = "cpu")]
    provider: Vec<String>,
    /// Runs as CUDA graphs, where they are bound; on a GPU only.
    #[arg(long)]
    cuda_graph: bool,
    /// Rows of a run.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32")]
    batch: Vec<usize>,
    /// Repeats of each pair.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Milliseconds of each side in each repeat.
    #[arg(long, default_value_t = 200)]
    span_ms: u64,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn load(
    path: &Path,
    kind: EngineKind,
    batches: &[usize],
    arguments: &Arguments,
) -> Result<LoadedModel, Error> {
    let providers = &arguments.provider;
    let mut manifest = Manifest::read(path)?;
    manifest.engine = kind;
    manifest.ort.providers = parse_providers(providers)?;
    manifest.ort.cuda_graph = arguments.cuda_graph;
    manifest.batch_sizes = batches.to_vec();
    manifest.max_batch_size = batches[batches.len() - 1];
    manifest.max_request_rows = manifest.max_batch_size;
    manifest.preferred_batch_size = Vec::new();
    if kind == EngineKind::Ort && *providers != ["cpu"] {
        // Products on a GPU may be shorter; the goldens are the processor's.
        manifest.tolerance = manifest.tolerance.max(1e-2);
    }
    let loaded = LoadedModel::load(manifest)?;
    if loaded.engine.batch_sizes() != batches {
        let why = loaded.batching.reason.unwrap_or_default();
        return Err(format!("{} does not run at {batches:?}: {why}", path.display()).into());
    }
    Ok(loaded)
}

/// Times of runs for `span` nanoseconds, after a few that warm up.
fn timed(span: u64, mut run: impl FnMut() -> Result<(), Error>) -> Result<Vec<u64>, Error> {
    for _ in 0..3 {
        run()?;
    }
    let (begin, mut times) = (clock::now(), Vec::new());
    while times.len() < 5 || clock::now().since(begin).0 < span {
        let start = clock::now();
        run()?;
        times.push(clock::now().since(start).0);
    }
    Ok(times)
}

/// Input and output of a batch, as a request carries them.
struct Payload {
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl Payload {
    fn new(model: &LoadedModel, rows: usize) -> Payload {
        let signature = model.engine.signature();
        let zeros = |n: usize| vec![0u8; n * rows];
        Payload {
            inputs: signature.inputs.iter().map(|t| zeros(t.row_bytes())).collect(),
            outputs: signature.outputs.iter().map(|t| zeros(t.row_bytes())).collect(),
        }
    }

    fn run(&mut self, instance: &mut dyn Instance, plan: PlanIndex) -> Result<(), Error> {
        for (i, input) in self.inputs.iter().enumerate() {
            instance.input_mut(plan, i)[..input.len()].copy_from_slice(input);
        }
        instance.infer(plan)?;
        for (o, output) in self.outputs.iter_mut().enumerate() {
            let len = output.len();
            output.copy_from_slice(&instance.output(plan, o)[..len]);
        }
        Ok(())
    }
}

/// Both sides of a figure, measured in turns.
struct Sides {
    a: Vec<f64>,
    b: Vec<f64>,
}

impl Sides {
    fn measure(
        repeats: usize,
        mut a: impl FnMut() -> Result<f64, Error>,
        mut b: impl FnMut() -> Result<f64, Error>,
    ) -> Result<Sides, Error> {
        let mut sides = Sides { a: Vec::new(), b: Vec::new() };
        for repeat in 0..repeats {
            for step in 0..2 {
                if (step + repeat) % 2 == 0 {
                    sides.a.push(a()?);
                } else {
                    sides.b.push(b()?);
                }
            }
        }
        Ok(sides)
    }

    fn print(&self, name: &str, batch: usize, figure: &str, scale: f64) {
        let (a, b) = (Spread::of(&self.a), Spread::of(&self.b));
        let ratio = Spread::of_ratios(&self.a, &self.b);
        println!(
            "| {name} | {batch} | {figure} | {:.1} | {:.1} | {:.3} ({:.3} to {:.3}) |",
            a.median * scale,
            b.median * scale,
            ratio.median,
            ratio.min,
            ratio.max
        );
    }
}

fn p50(mut times: Vec<u64>) -> f64 {
    percentile(&mut times, 500) as f64
}

/// A server with its runtime; the server goes first.
struct Host {
    _server: Server,
    _runtime: Runtime,
    address: Address,
}

impl Host {
    fn start(setup: ModelSetup, worker: CoreId, io: CoreId) -> Result<Host, Error> {
        let name = format!("corelane-bench-ort-{}-{}.sock", std::process::id(), clock::now());
        let path = std::env::temp_dir().join(name);
        let mut runtime = Runtime::builder().cores([worker]).model(setup).build()?;
        let unix = Some(UnixOptions::new(&path));
        let server = runtime.serve(ServerOptions { unix, ..ServerOptions::default() }, Some(io))?;
        Ok(Host { _server: server, _runtime: runtime, address: Address::Unix(path) })
    }
}

/// Rows per second with `depth` requests of `rows` rows in flight.
fn rate(host: &Host, name: &str, rows: usize, depth: usize, span: u64) -> Result<f64, Error> {
    let mut client = Client::connect(&host.address, Options::default())?;
    let model = client.open(name)?;
    let payload = vec![0u8; model.input_len(rows)];
    let round = |client: &mut Client| -> Result<(), Error> {
        while client.in_flight() < depth {
            client.submit(&model, Rows(rows as u16), &payload)?;
        }
        let (_, answer) = client.wait_any()?;
        client.give_back(answer?.payload);
        Ok(())
    };
    for _ in 0..3 {
        round(&mut client)?;
    }
    let (begin, mut answered) = (clock::now(), 0);
    loop {
        round(&mut client)?;
        answered += rows;
        let elapsed = clock::now().since(begin).0;
        if elapsed >= span {
            while client.in_flight() > 0 {
                client.wait_any()?.1?;
            }
            return Ok(answered as f64 * 1e9 / elapsed as f64);
        }
    }
}

/// Median round trip of requests of `rows` rows, one in flight.
fn round_trip(host: &Host, name: &str, rows: usize, span: u64) -> Result<f64, Error> {
    let mut client = Client::connect(&host.address, Options::default())?;
    let model = client.open(name)?;
    let payload = vec![0u8; model.input_len(rows)];
    let times = timed(span, || {
        let answer = client.infer(&model, Rows(rows as u16), &payload)?;
        client.give_back(answer.payload);
        Ok(())
    })?;
    Ok(p50(times))
}

fn measure(path: &Path, arguments: &Arguments) -> Result<(), Error> {
    let (repeats, span) = (arguments.repeats.max(1), arguments.span_ms.max(1) * 1_000_000);
    let mut batches = arguments.batch.clone();
    batches.push(1);
    batches.sort_unstable();
    batches.dedup();
    let allowed = affinity::allowed()?;
    let (Some(&first), Some(&worker)) = (allowed.first(), allowed.last()) else {
        return Err("the scheduler allows no core".into());
    };
    let asked = |batch: usize| arguments.batch.contains(&batch);

    affinity::pin(worker)?;
    let loaded = load(path, EngineKind::Ort, &batches, arguments)?;
    let name = loaded.manifest.name.clone();
    let backend = loaded.engine.backend().ok_or("engine ort says where it computes")?;
    let got: Vec<String> = backend.backend_got.iter().map(ToString::to_string).collect();
    println!("\n{name}: ONNX Runtime {}, {}\n", backend.backend_version, got.join(", "));
    println!("| model | batch | figure | a | b | a / b (least to largest) |");
    println!("|---|---|---|---|---|---|");
    let mut bare = loaded.engine.instance()?;
    if arguments.provider == ["cpu"] {
        let plan = load(path, EngineKind::Plan, &batches, arguments)?;
        let mut ours = plan.engine.instance()?;
        for (n, &batch) in batches.iter().enumerate().filter(|(_, batch)| asked(**batch)) {
            let sides = Sides::measure(
                repeats,
                || Ok(p50(timed(span, || Ok(ours.infer(PlanIndex(n))?))?)),
                || Ok(p50(timed(span, || Ok(bare.infer(PlanIndex(n))?))?)),
            )?;
            sides.print(&name, batch, "us a run: plan (a), ort (b)", 1e-3);
        }
    }
    let bytes = std::fs::read(&loaded.manifest.file)?;
    let request = LoadRequest {
        bytes: &bytes,
        batch_sizes: &batches,
        bind_axes: &loaded.manifest.bind_axes,
        bind_inputs: &loaded.manifest.bind_inputs,
        arena_bytes_max: loaded.manifest.arena_bytes_max,
        isa: loaded.manifest.kernels(),
    };
    let unbound = OrtSettings { cuda_graph: false, ..loaded.manifest.ort.clone() };
    let mut unbound = Unbound::new(&request, &unbound)?;
    for (n, &batch) in batches.iter().enumerate().filter(|(_, batch)| asked(**batch)) {
        let mut payload = Payload::new(&loaded, batch);
        let inputs = payload.inputs.clone();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let sides = Sides::measure(
            repeats,
            || Ok(p50(timed(span, || payload.run(&mut *bare, PlanIndex(n)))?)),
            || {
                let copied = || {
                    unbound.run(batch, &inputs)?;
                    Ok(())
                };
                Ok(p50(timed(span, copied)?))
            },
        )?;
        sides.print(&name, batch, "us with copies: bound (a), unbound (b)", 1e-3);
    }
    let mut clients = vec![(worker, "the same core")];
    if first != worker {
        clients.push((first, "another core"));
    }
    for (client, place) in clients {
        // Pinned for what was measured before; the server's threads are on two cores.
        affinity::restrict(&allowed)?;
        let host = Host::start(
            ModelSetup::from(load(path, EngineKind::Ort, &batches, arguments)?),
            worker,
            client,
        )?;
        for (n, &batch) in batches.iter().enumerate().filter(|(_, batch)| asked(**batch)) {
            let mut payload = Payload::new(&loaded, batch);
            let bare = std::cell::RefCell::new(&mut bare);
            let mut loop_ns = || -> Result<f64, Error> {
                affinity::pin(worker)?;
                let times = timed(span, || payload.run(&mut ***bare.borrow_mut(), PlanIndex(n)))?;
                Ok(p50(times))
            };
            let sides = Sides::measure(
                repeats,
                || {
                    affinity::pin(client)?;
                    round_trip(&host, &name, batch, span)
                },
                &mut loop_ns,
            )?;
            let figure = format!("us: socket, client on {place} (a), bare loop (b)");
            sides.print(&name, batch, &figure, 1e-3);
            let sides = Sides::measure(
                repeats,
                || {
                    affinity::pin(client)?;
                    rate(&host, &name, batch, 2, span)
                },
                || Ok(batch as f64 * 1e9 / loop_ns()?),
            )?;
            let figure =
                format!("rows/s: socket, 2 in flight, client on {place} (a), bare loop (b)");
            sides.print(&name, batch, &figure, 1.0);
        }
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    for model in &arguments.models {
        if let Err(error) = measure(model, &arguments) {
            eprintln!("{}: {error}", model.display());
            return std::process::ExitCode::FAILURE;
        }
    }
    std::process::ExitCode::SUCCESS
}
