//! A transport in memory: connections without a kernel, for programs that want the protocol inside
//! one process and for tests.

use crate::queue::completion::IoWaker;
use crate::sys::sync::{Arc, AtomicBool, Ordering};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Bytes that each direction holds.
const PIPE_BYTES: usize = 64 * 1024;

/// One direction: a byte ring of fixed size.
#[derive(Debug)]
struct Ring {
    bytes: Box<[u8]>,
    start: usize,
    len: usize,
    /// The writer will write nothing more.
    finished: bool,
    /// The reader is gone.
    abandoned: bool,
}

impl Ring {
    fn new() -> Self {
        let bytes = vec![0; PIPE_BYTES].into_boxed_slice();
        Ring { bytes, start: 0, len: 0, finished: false, abandoned: false }
    }
    fn write(&mut self, mut from: &[u8]) -> usize {
        let mut written = 0;
        while self.len < self.bytes.len() && !from.is_empty() {
            let at = (self.start + self.len) % self.bytes.len();
            let room = (self.bytes.len() - self.len).min(self.bytes.len() - at);
            let n = room.min(from.len());
            self.bytes[at..at + n].copy_from_slice(&from[..n]);
            self.len += n;
            written += n;
            from = &from[n..];
        }
        written
    }
    fn read(&mut self, mut to: &mut [u8]) -> usize {
        let mut read = 0;
        while self.len > 0 && !to.is_empty() {
            let n = self.len.min(self.bytes.len() - self.start).min(to.len());
            to[..n].copy_from_slice(&self.bytes[self.start..self.start + n]);
            self.start = (self.start + n) % self.bytes.len();
            self.len -= n;
            read += n;
            to = &mut to[n..];
        }
        read
    }
}

/// Both directions: to the server, to the client.
type Rings = (Ring, Ring);

#[derive(Debug)]
struct Pipe {
    rings: Mutex<Rings>,
    changed: Condvar,
    /// The client did something since the server looked.
    touched: AtomicBool,
    hub: Arc<Hub>,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(|e| e.into_inner())
    }
    fn touch(&self) {
        // Release, with the acquire swaps in `take_touched` and `Hub::take_dirty`.
        self.touched.store(true, Ordering::Release);
        self.hub.dirty.store(true, Ordering::Release);
        self.hub.waker.wake();
    }
}

/// Where clients in memory come in.
#[derive(Debug)]
pub(super) struct Hub {
    new: Mutex<Vec<Arc<Pipe>>>,
    /// Pipes that the server is finished with; freed by the next client, since the I/O thread must
    /// not.
    old: Mutex<Vec<Arc<Pipe>>>,
    dirty: AtomicBool,
    closed: AtomicBool,
    waker: Arc<IoWaker>,
}

impl Hub {
    pub fn new(waker: Arc<IoWaker>) -> Arc<Hub> {
        let list = || Mutex::new(Vec::with_capacity(crate::limits::CONNECTIONS_MAX));
        let (new, old) = (list(), list());
        let (dirty, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Hub { new, old, dirty, closed, waker })
    }
    /// Whether something happened since the last call.
    pub fn take_dirty(&self) -> bool {
        self.is_dirty() && self.dirty.swap(false, Ordering::Acquire)
    }
    /// Whether something happened.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed)
    }
    /// The next new connection.
    pub fn accept(&self) -> Option<ServerEnd> {
        self.new.lock().unwrap_or_else(|e| e.into_inner()).pop().map(|p| ServerEnd(Some(p)))
    }
    /// Lets nobody in any more.
    pub fn close(&self) {
        let new = self.new.lock().unwrap_or_else(|e| e.into_inner());
        self.closed.store(true, Ordering::Release);
        for pipe in new.iter() {
            pipe.lock().1.finished = true;
            pipe.changed.notify_all();
        }
        drop(new);
        // A pipe holds its hub, so one left here would keep both for ever.
        self.old.lock().unwrap_or_else(|e| e.into_inner()).clear();
    }
    fn connect(self: &Arc<Self>) -> io::Result<LoopbackStream> {
        let pipe = Arc::new(Pipe {
            rings: Mutex::new((Ring::new(), Ring::new())),
            changed: Condvar::new(),
            touched: AtomicBool::new(true),
            hub: self.clone(),
        });
        self.old.lock().unwrap_or_else(|e| e.into_inner()).clear();
        let mut new = self.new.lock().unwrap_or_else(|e| e.into_inner());
        if self.closed.load(Ordering::Acquire) || new.len() == new.capacity() {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        new.push(pipe.clone());
        drop(new);
        pipe.touch();
        Ok(LoopbackStream { pipe, timeout: None })
    }
}

/// Makes connections in memory to one server; cheap to clone.
#[derive(Debug, Clone)]
pub struct Loopback(pub(super) Arc<Hub>);

impl Loopback {
    /// Connects.
    ///
    /// # Errors
    /// `ConnectionRefused` if the server is gone or has not accepted for long.
    pub fn connect(&self) -> io::Result<LoopbackStream> {
        self.0.connect()
    }
}

/// The server's end.
#[derive(Debug)]
pub(super) struct ServerEnd(Option<Arc<Pipe>>);

impl ServerEnd {
    fn pipe(&self) -> &Pipe {
        self.0.as_ref().expect("a server's end holds its pipe until it is dropped")
    }
    pub fn take_touched(&self) -> bool {
        self.pipe().touched.load(Ordering::Relaxed)
            && self.pipe().touched.swap(false, Ordering::Acquire)
    }
    pub fn read(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut rings = self.pipe().lock();
        let ring = &mut rings.0;
        if ring.len == 0 {
            return if ring.finished { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let n = buffers.iter_mut().map(|buffer| ring.read(buffer)).sum();
        self.pipe().changed.notify_all();
        Ok(n)
    }
    pub fn write(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut rings = self.pipe().lock();
        let ring = &mut rings.1;
        if ring.abandoned {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let n: usize = buffers.iter().map(|buffer| ring.write(buffer)).sum();
        if n == 0 && buffers.iter().any(|buffer| !buffer.is_empty()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.pipe().changed.notify_all();
        Ok(n)
    }
    pub fn finish(&self) {
        self.pipe().lock().1.finished = true;
        self.pipe().changed.notify_all();
    }
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        let Some(pipe) = self.0.take() else { return };
        let mut rings = pipe.lock();
        rings.1.finished = true;
        rings.0.abandoned = true;
        pipe.changed.notify_all();
        drop(rings);
        let hub = pipe.hub.clone();
        let mut old = hub.old.lock().unwrap_or_else(|e| e.into_inner());
        if old.len() < old.capacity() && !hub.closed.load(Ordering::Acquire) {
            // Moved, not cloned: a client may empty the list at once, and would leave the last
            // reference, and the freeing, to this thread.
            old.push(pipe);
        }
    }
}

/// The client's end: a blocking stream of bytes. Dropping it closes both directions.
#[derive(Debug)]
pub struct LoopbackStream {
    pipe: Arc<Pipe>,
    timeout: Option<Duration>,
}

impl LoopbackStream {
    /// How long [`Read`] and [`Write`] wait before they say `TimedOut`; `None`: for ever.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }
    fn wait<'a>(
        &self,
        rings: MutexGuard<'a, Rings>,
        until: Option<Instant>,
        pipe: &'a Pipe,
    ) -> io::Result<MutexGuard<'a, Rings>> {
        let Some(until) = until else {
            return Ok(pipe.changed.wait(rings).unwrap_or_else(|e| e.into_inner()));
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(pipe.changed.wait_timeout(rings, left).unwrap_or_else(|e| e.into_inner()).0)
    }
}

impl Read for LoopbackStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let until = self.timeout.map(|timeout| Instant::now() + timeout);
        let mut rings = self.pipe.lock();
        loop {
            let n = rings.1.read(buffer);
            if n > 0 || buffer.is_empty() {
                drop(rings);
                self.pipe.touch();
                return Ok(n);
            }
            if rings.1.finished {
                return Ok(0);
            }
            rings = self.wait(rings, until, &self.pipe)?;
        }
    }
}

impl Write for LoopbackStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let until = self.timeout.map(|timeout| Instant::now() + timeout);
        let mut rings = self.pipe.lock();
        loop {
            if rings.0.abandoned {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let n = rings.0.write(buffer);
            if n > 0 || buffer.is_empty() {
                drop(rings);
                self.pipe.touch();
                return Ok(n);
            }
            rings = self.wait(rings, until, &self.pipe)?;
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LoopbackStream {
    fn drop(&mut self) {
        let mut rings = self.pipe.lock();
        rings.0.finished = true;
        rings.1.abandoned = true;
        drop(rings);
        self.pipe.touch();
    }
}
