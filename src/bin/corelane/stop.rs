//! SIGTERM and SIGINT: the first asks for a drain, the second ends the program at once.

use crate::exit::{Code, Exit};
use crate::logger;
use crate::ready::Drained;
use corelane::runtime::{DrainReport, LocalClient};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// The thread that hears signals.
pub struct Stop {
    asked: mpsc::Receiver<()>,
    serving: Arc<OnceLock<LocalClient>>,
}

impl Stop {
    /// Listens from here on.
    pub fn listen() -> Result<Stop, Exit> {
        let failed = |e: std::io::Error| Exit::new(Code::Failure, format_args!("signals: {e}"));
        let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(failed)?;
        let (ask, asked) = mpsc::channel();
        let serving = Arc::<OnceLock<LocalClient>>::default();
        let theirs = serving.clone();
        let thread = std::thread::Builder::new().name("cl-signals".into());
        thread
            .spawn(move || {
                for (n, _) in signals.forever().enumerate() {
                    match theirs.get() {
                        // Nothing was accepted yet, so nothing is lost.
                        None => std::process::exit(Code::Ok as i32),
                        // The receiver lives as long as the program serves.
                        Some(_) if n == 0 => drop(ask.send(())),
                        Some(client) => give_up(client),
                    }
                }
            })
            .map_err(failed)?;
        Ok(Stop { asked, serving })
    }

    /// From here on requests may be accepted: a signal drains.
    pub fn opening(&self, client: LocalClient) {
        // The only call.
        let _ = self.serving.set(client);
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
