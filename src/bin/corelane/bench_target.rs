//! The model that a lab command measures: a server's, or one in this process.

use crate::args::BenchTargetArgs;
use crate::exit::{Code, Exit};
use crate::{build, link, tensors};
use corelane::client::Address;
use corelane::config::{Config, ModelEntry};
use corelane::lab::drive::{Bench, DriveError, Sending};
use corelane::lab::load::ConnectError;
use corelane::runtime::Runtime;
use corelane::units::{CoreId, Micros, Nanos, Priority};
use std::path::{Path, PathBuf};

/// A model to measure, and the runtime that serves it if it is in this process.
pub struct Opened {
    pub bench: Bench,
    pub how: Sending,
    /// Held until the end.
    pub runtime: Option<Runtime>,
}

/// The end after an error of the lab.
pub fn failed(error: &DriveError) -> Exit {
    let code = match error {
        DriveError::Connect { source: ConnectError::Refused { .. }, .. } => Code::Refused,
        DriveError::Connect { .. } | DriveError::Stats { .. } => Code::Unreachable,
        DriveError::Affinity(_) => Code::Config,
        DriveError::Schedule(_) | DriveError::Trace(_) | DriveError::Request(_) => Code::Usage,
        _ => Code::Failure,
    };
    Exit::new(code, error)
}

/// Connects, or builds the runtime.
pub fn open(args: &BenchTargetArgs) -> Result<Opened, Exit> {
    match &args.server.connect {
        Some(address) => open_at(args, address),
        None => {
            let (bench, runtime, dir) = local(args)?;
            ready(args, bench, Some(runtime), dir)
        }
    }
}

/// Connects to a server.
pub fn open_at(args: &BenchTargetArgs, address: &Address) -> Result<Opened, Exit> {
    if let Address::Serial(_) = address {
        return Err(Exit::new(Code::Usage, format_args!("{address}: {}", ConnectError::Line)));
    }
    let key = args.server.psk_file.as_deref().map(link::read_key).transpose()?;
    let name = match &args.model {
        Some(name) => name.clone(),
        None => only_model(args, address)?,
    };
    let bench = Bench::remote(address, key.as_ref(), &name).map_err(|e| failed(&e))?;
    ready(args, bench, None, None)
}

/// The only model of a configuration, in this process, with the golden rows of its directory; the
/// generator is on the first core without a worker, if there is one.
pub fn in_process(config: &Config, warm_up: Nanos) -> Result<Opened, Exit> {
    let (runtime, _) = build::build(config)?;
    let client = runtime.client();
    let name = only(client.models().map(str::to_owned).collect())?;
    let mut bench = Bench::local(&client, &name).map_err(|e| failed(&e))?;
    fill(&mut bench, &[], config.models.first().map(|m| m.path.as_path()))?;
    let core = bench.free_core();
    bench.target.generator_core = core.map(|c| c.0);
    let how = Sending { core, warm_up, ..Sending::default() };
    Ok(Opened { bench, how, runtime: Some(runtime) })
}

fn ready(
    args: &BenchTargetArgs,
    mut bench: Bench,
    runtime: Option<Runtime>,
    dir: Option<PathBuf>,
) -> Result<Opened, Exit> {
    fill(&mut bench, &args.inputs, dir.as_deref())?;
    let core = args.generator_core.map(CoreId).or_else(|| bench.free_core());
    bench.target.generator_core = core.map(|c| c.0);
    let how = Sending {
        connections: usize::from(args.connections),
        timeout: Micros(args.timeout_us),
        priority: Priority(args.priority),
        core,
        spin: Nanos(u64::from(args.spin_us) * 1000),
        warm_up: Nanos(u64::from(args.warmup_ms) * 1_000_000),
    };
    Ok(Opened { bench, how, runtime })
}

fn only_model(args: &BenchTargetArgs, address: &corelane::client::Address) -> Result<String, Exit> {
    let mut client = link::connect(address, args.server.psk_file.as_deref())?;
    let models = client.models().map_err(|e| link::lost(address, &e))?;
    let names: Vec<String> = models.into_iter().map(|(_, _, name)| name).collect();
    only(names)
}

fn only(mut names: Vec<String>) -> Result<String, Exit> {
    if names.len() == 1 {
        return Ok(names.remove(0));
    }
    let text = format!("choose a model (--model): there are {}", names.join(", "));
    Err(Exit::new(Code::Usage, text))
}

fn local(args: &BenchTargetArgs) -> Result<(Bench, Runtime, Option<PathBuf>), Exit> {
    let config = match (&args.config, &args.model) {
        (Some(path), _) => Config::read(path).map_err(|e| Exit::new(Code::Config, e))?,
        (None, Some(dir)) => Config { models: vec![ModelEntry::new(dir)], ..Config::default() },
        (None, None) => {
            let text = "what runs in this process? give --config FILE or --model DIR";
            return Err(Exit::new(Code::Usage, text));
        }
    };
    let (runtime, _) = build::build(&config)?;
    let client = runtime.client();
    let name = match (&args.config, &args.model) {
        (Some(_), Some(name)) => name.clone(),
        _ => only(client.models().map(str::to_owned).collect())?,
    };
    let bench = Bench::local(&client, &name).map_err(|e| failed(&e))?;
    let at = client.models().position(|m| m == name).unwrap_or(0);
    let dir = config.models.get(at).map(|m| m.path.clone());
    Ok((bench, runtime, dir))
}

/// Rows to send: those given, or the golden ones of the model's directory; else random numbers.
fn fill(bench: &mut Bench, files: &[PathBuf], dir: Option<&Path>) -> Result<(), Exit> {
    let usage = |e: String| Exit::new(Code::Usage, e);
    let count = bench.tensors.len();
    let golden: Vec<PathBuf> = match dir {
        Some(dir) if files.is_empty() => {
            let all: Vec<PathBuf> =
                (0..count).map(|k| dir.join(format!("golden/input_{k}.npy"))).collect();
            if all.iter().all(|f| f.is_file()) { all } else { Vec::new() }
        }
        _ => files.to_vec(),
    };
    if golden.is_empty() {
        return Ok(());
    }
    let arrays = golden
        .iter()
        .map(|file| tensors::read_npy(file).map_err(usage))
        .collect::<Result<Vec<_>, _>>()?;
    tensors::check(&bench.tensors, &arrays, true).map_err(usage)?;
    for (rows, array) in bench.inputs.iter_mut().zip(arrays) {
        rows.data = array.data;
    }
    Ok(())
}
