//! A small server over a link: the protocol as `wire` says it, models that compute a checksum of
//! their input, and a record of what was executed.

use corelane::limits::{FRAME_PAYLOAD_BYTES_MAX, LINK_FRAME_BYTES_MAX};
use corelane::units::{
    CloseReason, DType, Micros, ModelId, Nanos, Receipt, RequestId, Rows, WorkerId,
};
use corelane::wire::link::{Endpoint, LinkEvent, LinkOptions, Role};
use corelane::wire::{
    Encodings, ErrorCode, HEAD_BYTES_MAX, HeadDecoder, Place, Reply, Request, ServerLimits,
    Signature, Tensor, encode_head,
};
use std::collections::HashMap;

/// Input and output bytes of a model, one row: as they travel. With encodings, those of float32
/// tensors; a server that computes a checksum of the bytes need not decode them.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    pub name: &'static str,
    pub input: usize,
    pub output: usize,
    pub compute_ns: u64,
}

/// What every model computes: each output byte depends on all of the input.
pub fn compute(input: &[u8], output_len: usize) -> Vec<u8> {
    let mut state = 0xCBF2_9CE4_8422_2325u64;
    for &byte in input {
        state = (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
    }
    (0..output_len)
        .map(|i| {
            let mixed = (state ^ i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            (mixed >> 56) as u8 & if i % 7 == 0 { 0 } else { 0xFF }
        })
        .collect()
}

enum Incoming {
    Head,
    Payload { id: RequestId, model: usize, left: usize, bytes: Vec<u8> },
    Skip { left: usize },
}

pub struct Server {
    pub link: Endpoint<Vec<u8>, Vec<u8>>,
    models: Vec<Model>,
    head: HeadDecoder,
    incoming: Incoming,
    /// Bytes that the link has no room for yet.
    out: Vec<u8>,
    /// Answers that are being computed: when they are ready, and their bytes.
    computing: Vec<(u64, Vec<u8>)>,
    session: u64,
    /// It answers a hello by a challenge.
    pub wants_key: bool,
    /// How often each request was executed, by the session and its id.
    pub executed: HashMap<(u64, RequestId), u32>,
    pub sessions: u64,
}

pub fn options(baud: u32) -> LinkOptions {
    LinkOptions { receive_window: 4096, ..LinkOptions::new(baud) }
}

impl Server {
    pub fn new(baud: u32, models: &[Model], seed: u32) -> Self {
        let receive = vec![0; LINK_FRAME_BYTES_MAX];
        let send = vec![0; 4096];
        Server {
            link: Endpoint::new(Role::Acceptor, options(baud), receive, send, seed).unwrap(),
            models: models.to_vec(),
            head: HeadDecoder::new(),
            incoming: Incoming::Head,
            out: Vec::new(),
            computing: Vec::new(),
            session: 0,
            wants_key: false,
            executed: HashMap::new(),
            sessions: 0,
        }
    }
    /// The process ends and starts again.
    pub fn restart(&mut self, baud: u32, seed: u32) {
        let models = std::mem::take(&mut self.models);
        let (executed, sessions) = (std::mem::take(&mut self.executed), self.sessions);
        *self =
            Server { executed, sessions, session: sessions, ..Server::new(baud, &models, seed) };
    }
    fn begin(&mut self) {
        self.head = HeadDecoder::new();
        self.incoming = Incoming::Head;
        self.out.clear();
        self.computing.clear();
        self.sessions += 1;
        self.session = self.sessions;
    }
    pub fn next_instant(&self) -> Option<u64> {
        let link = self.link.next_timeout().map(|us| us * 1000);
        self.computing.iter().map(|&(at, _)| at).chain(link).min()
    }
    pub fn receive(&mut self, now: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (n, event) = self.link.receive(now / 1000, bytes);
            bytes = &bytes[n..];
            match event {
                None => {}
                Some(LinkEvent::Up) => self.begin(),
                Some(LinkEvent::Down(_)) => self.begin(),
                Some(LinkEvent::Data(data)) => {
                    let data = data.to_vec();
                    self.stream(now, &data);
                }
            }
        }
    }
    pub fn turn(&mut self, now: u64) {
        if self.link.poll(now / 1000).is_some() {
            self.begin();
        }
        while let Some(at) = self.computing.iter().position(|&(at, _)| at <= now) {
            let (_, answer) = self.computing.remove(at);
            self.out.extend(answer);
        }
        let n = self.link.send(&self.out, self.out.len() > self.link.send_room());
        self.out.drain(..n);
    }
    fn reply(&mut self, reply: Reply<'_>, payload: &[u8]) {
        let bytes = frame(reply, payload);
        self.out.extend(bytes);
    }
    fn open(&mut self, id: RequestId, name: &str, encodings: &[u8]) -> (Reply<'static>, Vec<u8>) {
        let Some(at) = self.models.iter().position(|m| m.name == name) else {
            return (refusal(id, ErrorCode::UnknownModel), vec![]);
        };
        let model = self.models[at];
        let dtype = if encodings.is_empty() { DType::U8 } else { DType::F32 };
        let mut number = at;
        if !encodings.is_empty() {
            let mut view = Model { name: "", ..model };
            for asked in Encodings::new(encodings) {
                let asked = asked.expect("a stream without errors");
                let size = asked.encoding.element_bytes();
                match asked.place {
                    Place::Input(_) => view.input = model.input / 4 * size,
                    Place::Output(_) => view.output = model.output / 4 * size,
                }
            }
            number = self.models.len();
            self.models.push(view);
        }
        let reply = Reply::Opened {
            id,
            model: ModelId(number as u16),
            rows_max: Rows(1),
            priority_levels: 1,
            timeout: Micros(0),
        };
        (reply, signature(model, dtype))
    }
    fn stream(&mut self, now: u64, mut data: &[u8]) {
        while !data.is_empty() {
            match &mut self.incoming {
                Incoming::Skip { left } => {
                    let n = (*left).min(data.len());
                    *left -= n;
                    data = &data[n..];
                    if *left == 0 {
                        self.incoming = Incoming::Head;
                    }
                }
                Incoming::Payload { id, model, left, bytes } => {
                    let n = (*left).min(data.len());
                    bytes.extend(&data[..n]);
                    *left -= n;
                    data = &data[n..];
                    if *left == 0 {
                        let (id, model) = (*id, self.models[*model]);
                        *self.executed.entry((self.session, id)).or_default() += 1;
                        let output = compute(bytes, model.output);
                        self.incoming = Incoming::Head;
                        let receipt = Receipt {
                            queue_ns: Nanos(0),
                            compute_input_ns: Nanos(0),
                            compute_infer_ns: Nanos(model.compute_ns),
                            compute_output_ns: Nanos(0),
                            batch_size: Rows(1),
                            close_reason: CloseReason::Idle,
                            worker: WorkerId(0),
                        };
                        let answer = frame(Reply::Answer { id, rows: Rows(1), receipt }, &output);
                        self.computing.push((now + model.compute_ns, answer));
                    }
                }
                Incoming::Head => {
                    let n = self.head.feed(data).expect("a stream without errors");
                    data = &data[n..];
                    let Some(head) = self.head.head() else { continue };
                    let (header, left) = (head.header.to_vec(), head.payload_len as usize);
                    let request = Request::decode(&header).expect("a message");
                    let mut replies = Vec::new();
                    self.incoming = if left > 0 { Incoming::Skip { left } } else { Incoming::Head };
                    match request {
                        Request::Hello { .. } if self.wants_key => {
                            replies.push((Reply::Challenge { nonce: [7; 32] }, Vec::new()));
                        }
                        Request::Hello { .. } => {
                            let limits = ServerLimits {
                                payload_bytes_max: FRAME_PAYLOAD_BYTES_MAX as u32,
                                in_flight_max: 8,
                                models: self.models.len() as u16,
                            };
                            replies.push((Reply::HelloOk { version: 2, limits }, Vec::new()));
                        }
                        Request::Open { id, name } => {
                            replies.push(self.open(id, name, &[]));
                        }
                        Request::OpenEncoded { id, name, encodings } => {
                            replies.push(self.open(id, name, encodings));
                        }
                        Request::Infer { id, model, .. } => {
                            let model = usize::from(model.0);
                            assert_eq!(left, self.models[model].input, "a stream without errors");
                            let bytes = Vec::with_capacity(left);
                            self.incoming = Incoming::Payload { id, model, left, bytes };
                        }
                        _ => {}
                    }
                    self.head.clear();
                    for (reply, payload) in replies {
                        self.reply(reply, &payload);
                    }
                }
            }
        }
    }
}

fn refusal(id: RequestId, code: ErrorCode) -> Reply<'static> {
    Reply::Error { id: Some(id), code: code.number(), text: "", a: 0, b: 0 }
}

fn frame(reply: Reply<'_>, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; HEAD_BYTES_MAX];
    let n = encode_head(&reply, payload.len(), &mut head).unwrap();
    [&head[..n], payload].concat()
}

fn signature(model: Model, dtype: DType) -> Vec<u8> {
    let tensor = |name, len: usize| {
        let mut row_shape = heapless::Vec::new();
        row_shape.push((len / dtype.size_bytes()) as u32).unwrap();
        let mut tensors = heapless::Vec::new();
        tensors.push(Tensor { name, dtype, row_shape }).unwrap();
        tensors
    };
    let signature = Signature {
        batched: true,
        inputs: tensor("x", model.input),
        outputs: tensor("y", model.output),
    };
    let mut out = vec![0; 256];
    let n = signature.encode(&mut out).unwrap();
    out.truncate(n);
    out
}
