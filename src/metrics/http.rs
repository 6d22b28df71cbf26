//! A page over HTTP/1.1, for Prometheus: one thread, a fixed number of connections, and a bound on what each
//! may take in bytes and in time.
//!
//! It answers `GET` and `HEAD` of `/metrics` and closes the connection. Where all connections are taken, the
//! newest gets the place of the one that has kept it longest, one that has not said what it wants before one
//! that is being answered; so clients that say nothing, or take nothing, keep nobody out. Where the system has
//! no descriptor, it is asked again later.

use crate::limits::{
    LINGER_MS_MAX, METRICS_CONNECTIONS_MAX, METRICS_HEAD_BYTES_MAX, METRICS_PATIENCE_MS_MAX,
};
use crate::sys::clock;
use crate::units::Nanos;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

/// The path of the page.
const PATH: &str = "/metrics";
/// The text format's own name.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How long nobody is accepted after the system refused to.
const ACCEPT_PAUSE: Nanos = Nanos(100_000_000);
/// How long a connection keeps its place before those that are older or less far.
const GRACE: Nanos = Nanos(100_000_000);
const PATIENCE: Nanos = Nanos(METRICS_PATIENCE_MS_MAX * 1_000_000);
const LINGER: Nanos = Nanos(LINGER_MS_MAX * 1_000_000);

/// The endpoint. Dropping it closes the port and ends its thread.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Serves what `page` returns, from the thread `cl-metrics`, which inherits the cores of the calling
    /// one. `page` is called there, once for all who ask at the same time.
    ///
    /// # Errors
    /// The system refuses a thread, a descriptor, or what is asked of the listener.
    pub fn start(
        listener: TcpListener,
        page: impl FnMut() -> String + Send + 'static,
    ) -> io::Result<Endpoint> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stopped = stop.try_clone()?;
        let serving = Serving {
            listener,
            stopped,
            page,
            conns: Vec::with_capacity(METRICS_CONNECTIONS_MAX),
            accept_again: None,
        };
        let thread =
            std::thread::Builder::new().name("cl-metrics".into()).spawn(|| serving.run())?;
        Ok(Endpoint { address, stop, thread: Some(thread) })
    }

    /// Where it listens, with the port that was found.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // It has room for the only number that is ever written.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It waits for nobody; a panic of it has been told.
            let _ = thread.join();
        }
    }
}

/// Where a connection stands. The order is that in which connections are given up for others.
#[derive(Debug)]
enum Stage {
    /// All is said; the peer's end is waited for, so that a reset does not take back what was said.
    Closing,
    /// The request is not whole.
    Reading(Vec<u8>),
    /// The answer is not wholly sent.
    Writing(Vec<u8>, usize),
}

impl Stage {
    fn rank(&self) -> u8 {
        match self {
            Stage::Closing => 0,
            Stage::Reading(_) => 1,
            Stage::Writing(..) => 2,
        }
    }
}

#[derive(Debug)]
struct Conn {
    stream: TcpStream,
    stage: Stage,
    since: Nanos,
    until: Nanos,
    /// The poller, or the door, says that there may be something to do.
    ready: bool,
}

/// What a connection is waiting for.
enum Step {
    /// For its peer.
    Wait,
    /// For an answer to this head.
    Answer(Vec<u8>),
    /// For nothing: it is over.
    Over,
}

impl Conn {
    /// Goes on as far as the peer lets it.
    fn step(&mut self, now: Nanos) -> Step {
        loop {
            match &mut self.stage {
                Stage::Reading(head) => {
                    let mut piece = [0; 1024];
                    let room = (METRICS_HEAD_BYTES_MAX - head.len()).min(piece.len());
                    match self.stream.read(&mut piece[..room]) {
                        Ok(0) => return Step::Over,
                        Ok(n) => head.extend_from_slice(&piece[..n]),
                        Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                        Err(e) if e.kind() == ErrorKind::WouldBlock => return Step::Wait,
                        Err(_) => return Step::Over,
                    }
                    if is_whole(head) || head.len() == METRICS_HEAD_BYTES_MAX {
                        return Step::Answer(std::mem::take(head));
                    }
                }
                Stage::Writing(bytes, sent) => match self.stream.write(&bytes[*sent..]) {
                    Ok(n) => {
                        *sent += n;
                        if *sent == bytes.len() {
                            if self.stream.shutdown(Shutdown::Write).is_err() {
                                return Step::Over;
                            }
                            self.stage = Stage::Closing;
                            self.until = now.after(LINGER);
                        }
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Step::Wait,
                    Err(_) => return Step::Over,
                },
                Stage::Closing => match self.stream.read(&mut [0; 1024]) {
                    Ok(0) => return Step::Over,
                    // One piece a turn: a peer that never ends must not keep the others waiting.
                    Ok(_) => return Step::Wait,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Step::Wait,
                    Err(_) => return Step::Over,
                },
            }
        }
    }
}

fn is_whole(head: &[u8]) -> bool {
    head.windows(4).any(|w| w == b"\r\n\r\n") || head.windows(2).any(|w| w == b"\n\n")
}

struct Serving<F> {
    listener: TcpListener,
    stopped: OwnedFd,
    page: F,
    conns: Vec<Conn>,
    /// When the system is asked again for connections that it refused.
    accept_again: Option<Nanos>,
}

impl<F: FnMut() -> String> Serving<F> {
    fn run(mut self) {
        loop {
            if self.wait() {
                return;
            }
            let now = clock::now();
            if self.accept_again.is_some_and(|at| at <= now) {
                self.accept_again = None;
            }
            if self.accept_again.is_none() {
                self.accept(now);
            }
            let mut page = None;
            self.conns.retain_mut(|conn| {
                if conn.until <= now {
                    return false;
                }
                if !std::mem::take(&mut conn.ready) {
                    return true;
                }
                loop {
                    match conn.step(now) {
                        Step::Wait => return true,
                        Step::Over => return false,
                        Step::Answer(head) => {
                            let answer = answer(&head, || page.get_or_insert_with(&mut self.page));
                            conn.stage = Stage::Writing(answer, 0);
                        }
                    }
                }
            });
        }
    }

    /// Sleeps until there is something to do. Whether that is to stop.
    fn wait(&mut self) -> bool {
        let instants = self.conns.iter().map(|conn| conn.until).chain(self.accept_again);
        let timeout = instants.min().map(|at| {
            let ns = at.since(clock::now()).0;
            Timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ }
        });
        let doors = match self.accept_again {
            Some(_) => PollFlags::empty(),
            None => PollFlags::IN,
        };
        let mut fds =
            vec![PollFd::new(&self.stopped, PollFlags::IN), PollFd::new(&self.listener, doors)];
        fds.extend(self.conns.iter().map(|conn| {
            let wanted = match conn.stage {
                Stage::Writing(..) => PollFlags::OUT,
                Stage::Reading(_) | Stage::Closing => PollFlags::IN,
            };
            PollFd::new(&conn.stream, wanted)
        }));
        if poll(&mut fds, timeout.as_ref()).is_err() {
            // A signal: nothing was reported.
            return false;
        }
        let found: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (conn, found) in self.conns.iter_mut().zip(&found[2..]) {
            conn.ready = *found;
        }
        found[0]
    }

    /// Lets in who is at the door, in one turn no more than there are places.
    fn accept(&mut self, now: Nanos) {
        for _ in 0..METRICS_CONNECTIONS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) =>
                {
                    continue;
                }
                Err(_) => {
                    // Most likely no descriptor is left; someone may give one back.
                    self.accept_again = Some(now.after(ACCEPT_PAUSE));
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.conns.len() == METRICS_CONNECTIONS_MAX {
                let worth =
                    |conn: &Conn| (conn.since.after(GRACE) > now, conn.stage.rank(), conn.since);
                let least = (0..self.conns.len()).min_by_key(|&at| worth(&self.conns[at]));
                if let Some(at) = least {
                    self.conns.remove(at);
                }
            }
            let stage = Stage::Reading(Vec::new());
            let until = now.after(PATIENCE);
            self.conns.push(Conn { stream, stage, since: now, until, ready: true });
        }
    }
}

/// The answer to a head, or to as much of it as is taken.
fn answer<'p>(head: &[u8], page: impl FnOnce() -> &'p mut String) -> Vec<u8> {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line).unwrap_or_default().trim_end_matches('\r');
    let mut words = line.split(' ');
    let parts = (words.next(), words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some(version), None) = parts else {
        return response("400 Bad Request", "", "this is no request of HTTP/1.1\n", true);
    };
    if !version.starts_with("HTTP/1.") {
        return response("505 HTTP Version Not Supported", "", "HTTP/1.1 is spoken\n", true);
    }
    if !is_whole(head) {
        let text = format!("the head is over {METRICS_HEAD_BYTES_MAX} bytes\n");
        return response("431 Request Header Fields Too Large", "", &text, true);
    }
    if target.split('?').next() != Some(PATH) {
        return response("404 Not Found", "", "see /metrics\n", method != "HEAD");
    }
    match method {
        "GET" => response("200 OK", "", page(), true),
        "HEAD" => response("200 OK", "", page(), false),
        _ => response("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "only GET\n", true),
    }
}

fn response(status: &str, fields: &str, body: &str, with_body: bool) -> Vec<u8> {
    let len = body.len();
    let body = if with_body { body } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len}\r\n{fields}\
         Connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests;
