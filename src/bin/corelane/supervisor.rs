//! A service manager that wants to hear: readiness, the end, and a watchdog's beats (the protocol of
//! `sd_notify`: datagrams to the socket named by `NOTIFY_SOCKET`).

use crate::exit::{Code, Exit};
use corelane::metrics::WorkerPhase;
use corelane::runtime::Runtime;
use corelane::sys::sync::Ordering;
use corelane::transport::Server;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Who started this program, if it wants to hear.
#[derive(Debug)]
pub struct Supervisor {
    link: Option<(UnixDatagram, SocketAddr)>,
    beat_every: Option<Duration>,
}

impl Supervisor {
    /// As the environment says.
    pub fn from_env() -> Result<Supervisor, Exit> {
        let [socket, usec, pid] =
            ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"].map(std::env::var_os);
        Supervisor::new(socket, usec, pid)
    }

    fn new(
        socket: Option<OsString>,
        watchdog_usec: Option<OsString>,
        watchdog_pid: Option<OsString>,
    ) -> Result<Supervisor, Exit> {
        let Some(socket) = socket.filter(|s| !s.is_empty()) else {
            return Ok(Supervisor { link: None, beat_every: None });
        };
        let failed = |e: std::io::Error| {
            Exit::new(Code::Config, format_args!("NOTIFY_SOCKET={}: {e}", socket.display()))
        };
        let address = match socket.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(&socket),
        };
        let link = (UnixDatagram::unbound().map_err(failed)?, address.map_err(failed)?);
        // A manager that is stuck must not hold this program up.
        link.0.set_nonblocking(true).map_err(failed)?;
        let number = |text: Option<OsString>| text?.to_str()?.parse::<u64>().ok();
        let mine =
            watchdog_pid.is_none() || number(watchdog_pid) == Some(u64::from(std::process::id()));
        let beat_every = number(watchdog_usec)
            .filter(|&usec| usec > 0 && mine)
            .map(|usec| Duration::from_micros(usec / 2));
        Ok(Supervisor { link: Some(link), beat_every })
    }

    /// Whether there is one.
    pub fn listens(&self) -> bool {
        self.link.is_some()
    }

    /// How often it wants to hear a beat: half of its patience.
    pub fn beat_every(&self) -> Option<Duration> {
        self.beat_every
    }

    /// Says `state`, lines of `KEY=VALUE`.
    pub fn say(&self, state: &str) {
        if let Some((socket, address)) = &self.link
            && let Err(error) = socket.send_to_addr(state.as_bytes(), address)
        {
            log::warn!("the service manager does not hear {state:?}: {error}");
        }
    }
}

/// Whether everything that serves moves.
#[derive(Debug)]
pub struct Pulse {
    sleeps: Option<u64>,
    workers: Vec<(u64, u64)>,
}

impl Pulse {
    /// Nothing seen yet.
    pub fn new() -> Pulse {
        Pulse { sleeps: None, workers: Vec::new() }
    }

    /// Who has not moved since the last call: the I/O thread, which was nudged then, or a worker that
    /// was and is in the same batch. A batch that takes longer than that is not told from a hang.
    pub fn stuck(&mut self, runtime: &Runtime, server: &Server) -> Option<String> {
        let sleeps = server.counters().sleeps_total.load(Ordering::Relaxed);
        let before = self.sleeps.replace(sleeps);
        server.nudge();
        let workers: Vec<(u64, u64)> = (runtime.shared().workers.iter())
            .map(|(_, stats)| {
                let phase = stats.phase.load(Ordering::Relaxed);
                (phase, stats.busy_ns.load(Ordering::Relaxed))
            })
            .collect();
        let former = std::mem::replace(&mut self.workers, workers);
        if server.is_finished() {
            return Some("the I/O thread has ended".into());
        }
        if before == Some(sleeps) {
            return Some("the I/O thread does not turn".into());
        }
        let in_batch = |phase| WorkerPhase::from_number(phase) == WorkerPhase::Running;
        (former.iter().zip(&self.workers))
            .position(|(then, now)| then == now && in_batch(now.0))
            .map(|worker| format!("worker {worker} is in the same batch as before"))
    }
}

#[cfg(test)]
mod tests;
