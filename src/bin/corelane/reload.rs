//! Reading models again while the server runs: on a signal, where files changed, or as `corelane reload`
//! asks a server to.

use crate::args::ReloadArgs;
use crate::exit::{Code, Exit, Outcome};
use crate::out::outln;
use crate::stop::Hangup;
use crate::supervisor::Supervisor;
use crate::{link, tensors};
use corelane::config::{ModelControl, ModelControlMode};
use corelane::runtime::{Reloader, Watch};
use corelane::sys::realtime;
use serde_json::Value;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Whether SIGHUP is the end of a terminal, and so of the program, rather than a wish for other models.
pub fn hangup_ends(control: ModelControl, supervisor: &Supervisor) -> bool {
    control.mode == ModelControlMode::None && !supervisor.listens()
}

/// Starts the thread `cl-reload` where models may change; what SIGHUP means then.
pub fn start(
    control: ModelControl,
    reloader: Reloader,
    supervisor: &Supervisor,
) -> Result<Hangup, Exit> {
    if control.mode == ModelControlMode::None {
        return Ok(if hangup_ends(control, supervisor) { Hangup::Drain } else { Hangup::Refuse });
    }
    let (ask, asked) = mpsc::channel();
    let mut watch = (control.mode == ModelControlMode::Poll).then(|| Watch::new(reloader.clone()));
    let work = move || {
        realtime::step_back();
        loop {
            // The runtime counts and logs what comes of each.
            let end = match &mut watch {
                None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(_) => asked.recv_timeout(control.poll_every),
            };
            match (end, &mut watch) {
                (Ok(()), _) => {
                    // What was asked for until now is done by reading once.
                    while asked.try_recv().is_ok() {}
                    drop(reloader.reload_all());
                }
                (Err(RecvTimeoutError::Timeout), Some(watch)) => watch.look(),
                (Err(_), _) => return,
            }
        }
    };
    let thread = std::thread::Builder::new().name("cl-reload".into()).spawn(work);
    thread.map_err(|e| Exit::new(Code::Failure, format_args!("the thread that reloads: {e}")))?;
    Ok(Hangup::Reload(ask))
}

/// Runs the command.
pub fn run(args: &ReloadArgs) -> Outcome {
    let patience = Duration::from_secs(args.timeout_s.into());
    let mut client = link::connect_for(&args.connect, args.psk_file.as_deref(), Some(patience))?;
    let text = client.reload(args.model.as_deref()).map_err(|e| link::lost(&args.connect, &e))?;
    let models: Vec<Value> = serde_json::from_str(&text)
        .map_err(|e| Exit::new(Code::Failure, format_args!("what came of it: {e}")))?;
    let mut failed = Vec::new();
    for model in &models {
        let said = |key: &str| model[key].as_str().unwrap_or("?");
        if model["ok"] != true {
            failed.push(said("error").to_string());
        }
        if args.json {
            outln!("{model}");
        } else if model["changed"] == true {
            let took = tensors::span(model["took_ns"].as_u64().unwrap_or(0));
            let hash = said("version_hash").get(..12).unwrap_or("?");
            outln!("{}: version {} ({hash}) serves after {took}", said("model"), model["version"]);
        } else if model["ok"] == true {
            outln!("{}: nothing changed; version {} serves", said("model"), model["version"]);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Exit::new(Code::Refused, failed.join("\ncorelane: ")))
}
