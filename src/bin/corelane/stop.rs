//! SIGTERM and SIGINT: the first asks for a drain, the second cuts it short. SIGHUP: models are read again,
//! where the configuration lets them.

use crate::exit::{Code, Exit};
use crate::{logger, out};
use corelane::limits::PRINT_PATIENCE_MS_MAX;
use corelane::runtime::LocalClient;
use corelane::sys::sync::{AtomicBool, Ordering};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// How long the program may take to end after the second signal, before it is ended: what it does then takes
/// milliseconds, and waits for nobody but for a while for who reads what it says.
const GRACE: Duration = Duration::from_millis(PRINT_PATIENCE_MS_MAX + 2_000);

/// What SIGHUP means.
pub enum Hangup {
    /// Models are read again, by who hears this.
    Reload(mpsc::Sender<()>),
    /// It comes from a service manager, and nothing may change: it is told so.
    Refuse,
    /// The terminal is gone: as SIGTERM.
    Drain,
}

/// How far the program is.
enum Stage {
    /// Models are loaded; whether they are to be read again after that.
    Loading { again: bool },
    /// Requests may be accepted: what the thread needs then.
    Serving { client: LocalClient, hangup: Hangup },
}

/// The thread that hears signals.
pub struct Stop {
    asked: mpsc::Receiver<()>,
    stage: Arc<Mutex<Stage>>,
    cut_short: Arc<AtomicBool>,
}

impl Stop {
    /// Listens from here on. While models are loaded SIGHUP ends the program where `hangup_ends`.
    pub fn listen(hangup_ends: bool) -> Result<Stop, Exit> {
        let failed = |e: std::io::Error| Exit::new(Code::Failure, format_args!("signals: {e}"));
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
        let (ask, asked) = mpsc::channel();
        let stage = Arc::new(Mutex::new(Stage::Loading { again: false }));
        let theirs = stage.clone();
        let cut_short = Arc::<AtomicBool>::default();
        let hurry = cut_short.clone();
        let thread = std::thread::Builder::new().name("cl-signals".into());
        let work = move || {
            let (mut drains, mut told) = (false, false);
            for signal in signals.forever() {
                let mut stage = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                let (client, hangup) = match &mut *stage {
                    Stage::Loading { again } if signal == SIGHUP && !hangup_ends => {
                        *again = true;
                        continue;
                    }
                    Stage::Loading { .. } => end_before_ready(signal),
                    Stage::Serving { client, hangup } => (client, hangup),
                };
                match hangup {
                    // The receiver lives as long as the program serves.
                    Hangup::Reload(reload) if signal == SIGHUP => drop(reload.send(())),
                    Hangup::Refuse if signal == SIGHUP => refuse(),
                    _ if !std::mem::replace(&mut drains, true) => {
                        told = signal != SIGHUP;
                        // An end of who waits for it is an end of the program.
                        let _ = ask.send(());
                    }
                    // A terminal's end is told by the kernel and by its shell, and often beside a SIGTERM, in
                    // any order: it is no reason to hurry.
                    _ if signal == SIGHUP || !std::mem::replace(&mut told, true) => {}
                    _ => {
                        // The thread that drains says what is left, and ends the program.
                        hurry.store(true, Ordering::Relaxed);
                        std::thread::sleep(GRACE);
                        give_up(client)
                    }
                }
            }
        };
        thread.spawn(work).map_err(failed)?;
        Ok(Stop { asked, stage, cut_short })
    }

    /// From here on requests may be accepted: a signal drains. A SIGHUP that came before has its turn.
    pub fn opening(&self, client: LocalClient, hangup: Hangup) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*stage, Stage::Loading { again: true }) {
            match &hangup {
                Hangup::Reload(reload) => drop(reload.send(())),
                Hangup::Refuse => refuse(),
                // It has ended the program.
                Hangup::Drain => {}
            }
        }
        *stage = Stage::Serving { client, hangup };
    }

    /// Whether a second signal came.
    pub fn is_cut_short(&self) -> bool {
        self.cut_short.load(Ordering::Relaxed)
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

/// Ends a program that was asked to before it was ready. It accepted nothing, so that nothing is lost: that is no
/// failure, but who started it learns that it never served.
fn end_before_ready(signal: i32) -> ! {
    let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
    out::with_patience(move || {
        logger::last_words(&format!("stopped by {name} before it was ready; it served nothing"));
    });
    std::process::exit(Code::Ok as i32)
}

/// Says that a SIGHUP is for nothing.
fn refuse() {
    log::warn!(
        "SIGHUP changes nothing: model_control_mode is \"none\"; \"explicit\" lets it read the models again"
    );
}

/// Ends a program that is stuck on its way out.
fn give_up(client: &LocalClient) -> ! {
    let left: u32 = client.stats().models.iter().map(|m| m.outstanding).sum();
    logger::last_words(&format!(
        "stopped by a second signal, {GRACE:?} after it, in the middle of ending; {left} accepted requests are \
         without answer"
    ));
    let code = if left == 0 { Code::Failure } else { Code::Unclean };
    std::process::exit(code as i32)
}
