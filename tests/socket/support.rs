//! A server with fake models, and a client that says exactly what it is told to.

use corelane::client::{Address, Client, Options};
use corelane::engine::fake::{FakeCompute, FakeEngine, FakeFault};
use corelane::model::signature::{Signature, TensorSpec};
use corelane::queue::Lease;
use corelane::runtime::{ModelSetup, Runtime};
use corelane::sys::alloc;
use corelane::transport::{Served, Server, ServerOptions, StatsDesk, UnixOptions};
use corelane::units::{DType, Micros, ModelId, Priority, RequestId, Rows};
use corelane::wire::{self, ErrorCode, HEAD_BYTES_MAX, Reply, Request};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const BAD_ROW: u8 = 0xEE;
/// Longest that any single step may take on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A model that echoes rows of `row_bytes` bytes and takes `compute` for a run.
pub fn model(name: &str, row_bytes: usize, sizes: &[usize], compute: Duration) -> ModelSetup {
    let tensor =
        |name: &str| TensorSpec { name: name.into(), dtype: DType::U8, row_shape: vec![row_bytes] };
    let signature =
        Signature { inputs: vec![tensor("x")], outputs: vec![tensor("y")], batched: true };
    let compute = FakeCompute { per_run: compute, per_row: Duration::ZERO };
    let fault = FakeFault { error_marker: Some(BAD_ROW), panic_marker: None };
    let engine = FakeEngine::new(signature, sizes, compute).unwrap().with_fault(fault);
    ModelSetup {
        max_request_rows: Rows(4.min(*sizes.last().unwrap()) as u16),
        priority_levels: 2,
        default_priority: Priority(2),
        ..ModelSetup::new(name, Arc::new(engine))
    }
}

/// A model that answers a row of 8 bytes with `bytes` bytes, the same ones over and over: what is asked is read
/// whole, whether the answers are taken or not.
pub fn wide(name: &str, bytes: usize) -> ModelSetup {
    let tensor =
        |name: &str, len| TensorSpec { name: name.into(), dtype: DType::U8, row_shape: vec![len] };
    let (inputs, outputs) = (vec![tensor("x", 8)], vec![tensor("y", bytes)]);
    let signature = Signature { inputs, outputs, batched: true };
    let engine = FakeEngine::new(signature, &[1], FakeCompute::default()).unwrap();
    ModelSetup::new(name, Arc::new(engine))
}

pub struct Fixture {
    pub server: Option<Server>,
    pub runtime: Runtime,
    pub path: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

pub fn socket_path() -> PathBuf {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("corelane-test-{}-{n}.sock", std::process::id()))
}

/// A server on a Unix socket of its own, with one unpinned worker.
pub fn serve(models: Vec<ModelSetup>) -> Fixture {
    serve_with(models, ServerOptions::default())
}

pub fn serve_with(models: Vec<ModelSetup>, mut options: ServerOptions) -> Fixture {
    let mut builder = Runtime::builder().unpinned(1);
    for model in models {
        builder = builder.model(model);
    }
    let mut runtime = builder.build().unwrap();
    let path = socket_path();
    if options.unix.is_none() {
        options.unix = Some(UnixOptions::new(&path));
    }
    let path = options.unix.as_ref().unwrap().path.clone();
    let server = start(&mut runtime, options).unwrap();
    server.set_ready(true);
    Fixture { server: Some(server), runtime, path }
}

pub fn start(
    runtime: &mut Runtime,
    options: ServerOptions,
) -> Result<Server, corelane::transport::BindError> {
    let (completions, waker) = runtime.take_io().unwrap();
    let local = runtime.client();
    let render = move |text: &mut String| {
        text.push_str(&serde_json::to_string(&local.stats()).unwrap());
    };
    let desk = StatsDesk::spawn(waker.clone(), render).unwrap();
    let served = runtime
        .shared()
        .models
        .iter()
        .map(|m| Served { name: m.name.clone(), queue: m.queue.clone() })
        .collect();
    Server::start(options, served, completions, waker, desk, || {})
}

impl Fixture {
    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }
    pub fn address(&self) -> Address {
        Address::Unix(self.path.clone())
    }
    pub fn client(&self) -> Client {
        let options = Options { timeout: Some(PATIENCE), ..Options::default() };
        Client::connect(&self.address(), options).unwrap()
    }
    pub fn raw(&self) -> Raw<UnixStream> {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Raw::new(stream)
    }
    /// A raw client that has said hello.
    pub fn greeted(&self) -> Raw<UnixStream> {
        let mut raw = self.raw();
        raw.hello();
        raw
    }
    /// Waits until every slot of the `n`-th model is free.
    pub fn all_slots_come_back(&self, n: usize) {
        let queue = &self.runtime.shared().models[n].queue;
        let end = Instant::now() + PATIENCE;
        loop {
            let leases: Vec<Lease> = std::iter::from_fn(|| queue.lease(Rows(1)).ok()).collect();
            if leases.len() == queue.slots() {
                return;
            }
            assert!(Instant::now() < end, "{} of {} slots are free", leases.len(), queue.slots());
            drop(leases);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    /// Whether exactly one request of the `n`-th model is accepted, and a worker has it.
    pub fn is_running(&self, n: usize) -> bool {
        let queue = &self.runtime.shared().models[n].queue;
        queue.outstanding() == 1 && queue.queued() == 0
    }
    /// Waits until something is so.
    pub fn until(&self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !so(self) {
            assert!(Instant::now() < end, "never happened: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    /// Checks what every test ends with: the server still serves, nothing is held, and nothing
    /// was allocated where nothing may be.
    pub fn still_serves(&self) {
        let mut client = self.client();
        let models = client.models().unwrap();
        for (n, (_, _, name)) in models.iter().enumerate() {
            self.all_slots_come_back(n);
            let model = client.open(name).unwrap();
            // What lies between tensors comes back as zeros.
            let row = model.encode_input(1, vec![7; model.input_len(1)]).unwrap();
            assert_eq!(client.infer(&model, Rows(1), &row).unwrap().payload, row);
            self.all_slots_come_back(n);
        }
        assert!(alloc::installed());
        assert_eq!(alloc::hot_calls(), 0, "the I/O thread or a worker called the allocator");
    }
}

/// A client that sends any bytes and reads frames.
pub struct Raw<S> {
    pub stream: S,
}

/// A reply without borrowed parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    Error { id: Option<u32>, code: ErrorCode, a: u64, b: u64 },
    Answer { id: u32, rows: u16, payload: Vec<u8> },
    Pong(u32),
    HelloOk,
    Challenge([u8; 32]),
    Goodbye,
    Other(u8, Option<u32>, Vec<u8>),
}

pub fn frame(request: &Request<'_>, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; HEAD_BYTES_MAX];
    let n = wire::encode_head(request, payload.len(), &mut head).unwrap();
    [&head[..n], payload].concat()
}

/// A frame around any header.
pub fn frame_of(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![wire::MAGIC, header.len() as u8, 0, 0];
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(header);
    bytes.extend(payload);
    bytes
}

pub fn infer(id: u32, model: u16, rows: u16, payload: &[u8]) -> Vec<u8> {
    infer_with(id, model, rows, 0, 0, payload)
}

pub fn infer_with(
    id: u32,
    model: u16,
    rows: u16,
    deadline: u32,
    priority: u8,
    payload: &[u8],
) -> Vec<u8> {
    let request = Request::Infer {
        id: RequestId(id),
        model: ModelId(model),
        rows: Rows(rows),
        deadline: Micros(deadline),
        priority: Priority(priority),
    };
    frame(&request, payload)
}

pub fn ping(id: u32) -> Vec<u8> {
    frame(&Request::Ping { id: RequestId(id) }, &[])
}

pub const HELLO: Request<'static> =
    Request::Hello { version_min: 1, version_max: 1, client: "raw" };

impl<S: Read + Write> Raw<S> {
    pub fn new(stream: S) -> Self {
        Raw { stream }
    }
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }
    pub fn hello(&mut self) {
        self.send(&frame(&HELLO, &[]));
        assert_eq!(self.hear(), Heard::HelloOk);
    }
    pub fn try_hear(&mut self) -> std::io::Result<Heard> {
        let mut prefix = [0; 8];
        self.stream.read_exact(&mut prefix)?;
        let prefix = wire::Prefix::decode(&prefix).unwrap();
        let mut header = vec![0; prefix.header_len as usize];
        self.stream.read_exact(&mut header)?;
        let mut payload = vec![0; prefix.payload_len as usize];
        self.stream.read_exact(&mut payload)?;
        let reply = Reply::decode(&header).unwrap();
        Ok(match reply {
            Reply::Error { id, code, a, b, text } => {
                assert!(!text.is_empty(), "errors say what was wrong");
                let code = ErrorCode::from_number(code).unwrap();
                Heard::Error { id: id.map(|id| id.0), code, a, b }
            }
            Reply::Answer { id, rows, .. } => Heard::Answer { id: id.0, rows: rows.0, payload },
            Reply::Pong { id } => Heard::Pong(id.0),
            Reply::HelloOk { version: 1..=3, .. } => Heard::HelloOk,
            Reply::Challenge { nonce } => Heard::Challenge(nonce),
            Reply::Goodbye => Heard::Goodbye,
            other => Heard::Other(other.number(), other.id().map(|id| id.0), payload),
        })
    }
    pub fn hear(&mut self) -> Heard {
        self.try_hear().unwrap()
    }
    /// Reads to the end of the stream; what is left of it.
    pub fn closed(&mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => assert!(rest.is_empty(), "{} more bytes", rest.len()),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
    pub fn expect_error(&mut self, id: Option<u32>, code: ErrorCode, a: u64, b: u64) {
        assert_eq!(self.hear(), Heard::Error { id, code, a, b });
    }
    /// The connection still works.
    pub fn still_talks(&mut self) {
        self.send(&ping(0xFFFF));
        assert_eq!(self.hear(), Heard::Pong(0xFFFF));
    }
}
