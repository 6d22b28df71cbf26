//! SIGTERM and SIGINT: the first asks for a drain, the second ends the program at once. SIGHUP: models are
//! read again, where the configuration lets them.

use crate::exit::{Code, Exit};
use crate::logger;
use crate::ready::Drained;
use corelane::runtime::{DrainReport, LocalClient};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// What SIGHUP means.
pub enum Hangup {
    /// Models are read again, by who hears this.
    Reload(mpsc::Sender<()>),
    /// It comes from a service manager, and nothing may change: it is told so.
    Refuse,
    /// The terminal is gone: as SIGTERM.
    Drain,
}

/// What the thread needs once requests may be accepted.
struct Serving {
    client: LocalClient,
    hangup: Hangup,
}

/// The thread that hears signals.
pub struct Stop {
    asked: mpsc::Receiver<()>,
    serving: Arc<OnceLock<Serving>>,
}

impl Stop {
    /// Listens from here on.
    pub fn listen() -> Result<Stop, Exit> {
        let failed = |e: std::io::Error| Exit::new(Code::Failure, format_args!("signals: {e}"));
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
        let (ask, asked) = mpsc::channel();
        let serving = Arc::<OnceLock<Serving>>::default();
        let theirs = serving.clone();
        let thread = std::thread::Builder::new().name("cl-signals".into());
        let work = move || {
            let mut stopping = false;
            for signal in signals.forever() {
                let Some(serving) = theirs.get() else {
                    // Nothing was accepted yet, so nothing is lost.
                    std::process::exit(Code::Ok as i32);
                };
                match &serving.hangup {
                    // The receiver lives as long as the program serves.
                    Hangup::Reload(reload) if signal == SIGHUP => drop(reload.send(())),
                    Hangup::Refuse if signal == SIGHUP => log::warn!(
                        "SIGHUP changes nothing: model_control_mode is \"none\"; \"explicit\" lets it \
                         read the models again"
                    ),
                    _ if !std::mem::replace(&mut stopping, true) => drop(ask.send(())),
                    _ => give_up(&serving.client),
                }
            }
        };
        thread.spawn(work).map_err(failed)?;
        Ok(Stop { asked, serving })
    }

    /// From here on requests may be accepted: a signal drains.
    pub fn opening(&self, client: LocalClient, hangup: Hangup) {
        // The only call.
        let _ = self.serving.set(Serving { client, hangup });
    }

    /// Waits for a signal, and calls `beat` meanwhile.
    pub fn wait(&self, beat_every: Option<Duration>, mut beat: impl FnMut()) {
        // An end of the channel is an end of the signal thread: stop too.
        let Some(every) = beat_every else {
            let _ = self.asked.recv();
            return;
        };
        while let Err(mpsc::RecvTimeoutError::Timeout) = self.asked.recv_timeout(every) {
            beat();
        }
    }
}

/// Says what is lost, and ends the program.
fn give_up(client: &LocalClient) {
    let stats = client.stats();
    let left: u32 = stats.models.iter().map(|m| m.outstanding).sum();
    Drained::new(&stats, DrainReport { clean: false, left }).print();
    logger::last_words(&format!(
        "stopped by a second signal, with {left} accepted requests without answer"
    ));
    std::process::exit(Code::Unclean as i32);
}
