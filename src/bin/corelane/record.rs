//! `corelane record`: serves as `serve` does, and writes the arrivals down in the end.

use crate::args::RecordArgs;
use crate::exit::{Code, Exit, Outcome};
use crate::serve::serve;
use corelane::lab::schedule::Arrival;
use corelane::lab::schedule::trace::{RecordedPayloads, Trace, payloads_file};
use corelane::logs::Format;
use corelane::runtime::Runtime;
use corelane::sys::sync::Arc;
use corelane::transport::Arrivals;
use corelane::units::{ModelId, Nanos};
use log::LevelFilter;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Runs the command.
pub fn run(args: &RecordArgs, log: Option<LevelFilter>, format: Option<Format>) -> Outcome {
    // A place that can't be written is found before anything is served.
    let trace = Place::take(&args.out, args.force)?;
    let payloads = payloads_file(&args.out);
    let payloads = match args.payloads {
        Some(_) => Some(Place::take(&payloads, args.force)?),
        // Those of an earlier trace of this name are not this one's.
        None if !payloads.exists() => None,
        None if args.force => {
            std::fs::remove_file(&payloads).map_err(|e| unwritable(&payloads, &e))?;
            None
        }
        None => return Err(taken(&payloads)),
    };
    serve(&args.serve, log, format, Some(Recorder { args, trace, payloads, begun: None }))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Exit {
    Exit::new(Code::Usage, format_args!("the trace {}: {error}", path.display()))
}

fn taken(path: &Path) -> Exit {
    let path = path.display();
    let text = format!("{path} is there already; --force overwrites it, --out FILE names another");
    Exit::new(Code::Usage, text)
}

/// A file that will be written. Requests may be confidential: nobody else reads it. Gone again if nothing
/// was written.
struct Place {
    path: PathBuf,
    file: File,
    written: bool,
}

impl Place {
    fn take(path: &Path, force: bool) -> Result<Place, Exit> {
        let mut how = OpenOptions::new();
        how.write(true).mode(0o600);
        match force {
            true => how.create(true).truncate(true),
            false => how.create_new(true),
        };
        let file = how.open(path).map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => taken(path),
            _ => unwritable(path, &e),
        })?;
        // One that was there keeps its mode otherwise; what is no file has none that matters.
        if file.metadata().is_ok_and(|found| found.is_file()) {
            let private = std::fs::Permissions::from_mode(0o600);
            file.set_permissions(private).map_err(|e| unwritable(path, &e))?;
        }
        Ok(Place { path: path.into(), file, written: false })
    }

    fn write(&mut self, bytes: &[u8]) -> Outcome {
        self.written = true;
        self.file.write_all(bytes).map_err(|e| {
            Exit::new(Code::Failure, format_args!("the trace {}: {e}", self.path.display()))
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.written && self.file.metadata().is_ok_and(|found| found.is_file()) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Takes the arrivals of one model, and writes them.
pub struct Recorder<'a> {
    args: &'a RecordArgs,
    trace: Place,
    payloads: Option<Place>,
    begun: Option<(ModelId, String, Arc<Arrivals>)>,
}

impl Recorder<'_> {
    /// Where the server is to note arrivals.
    pub fn begin(&mut self, runtime: &Runtime) -> Result<Arc<Arrivals>, Exit> {
        let (model, name) = traced(runtime, self.args)?;
        let arrivals = Arrivals::new(self.args.entries as usize);
        let arrivals = Arc::new(match self.args.payloads {
            Some(mib) => arrivals.with_payloads(model, usize::from(mib) << 20),
            None => arrivals,
        });
        self.begun = Some((model, name, arrivals.clone()));
        Ok(arrivals)
    }

    /// Writes what arrived.
    pub fn write(mut self) -> Outcome {
        let Some((model, name, arrivals)) = self.begun.take() else { return Ok(()) };
        let all = arrivals.read_with_payloads();
        let lost = arrivals.total() - all.len() as u64;
        let (mine, payloads): (Vec<_>, Vec<_>) =
            all.into_iter().filter(|(a, _)| a.model == model).unzip();
        let start = mine.first().map_or(Nanos(0), |a| a.at);
        let trace = Trace {
            model: name.clone(),
            arrivals: mine
                .iter()
                .map(|a| Arrival { at: a.at.since(start), rows: a.rows.0.max(1) })
                .collect(),
        };
        self.trace.write(trace.text().as_bytes())?;
        log::info!("{} arrivals of {name} written; {lost} older ones were lost", mine.len());
        if let Some(file) = &mut self.payloads {
            let kept = payloads.iter().flatten().count();
            let payloads = payloads.into_iter().map(Option::unwrap_or_default).collect();
            file.write(&RecordedPayloads(payloads).bytes())?;
            log::info!("payloads of {kept} of them written");
        }
        Ok(())
    }
}

/// The model whose arrivals are to be written.
fn traced(runtime: &Runtime, args: &RecordArgs) -> Result<(ModelId, String), Exit> {
    let shared = runtime.shared();
    let names: Vec<&str> = shared.models.iter().map(|m| m.name.as_str()).collect();
    let found = match (&args.trace_model, names.as_slice()) {
        (Some(wanted), _) => names.iter().position(|n| n == wanted),
        (None, [_]) => Some(0),
        (None, _) => None,
    };
    match found {
        Some(at) => Ok((ModelId(at as u16), names[at].to_string())),
        None => {
            let text = format!("choose a model (--trace-model): there are {}", names.join(", "));
            Err(Exit::new(Code::Usage, text))
        }
    }
}
