//! Bytes as a script, and the sound messages that scripts begin from.

use corelane::units::{
    CloseReason, DType, Micros, ModelId, Nanos, Priority, Receipt, RequestId, Rows, WorkerId,
};
use corelane::wire::{
    HEAD_BYTES_MAX, HealthKind, ModelEntry, Reply, Request, ServerLimits, Signature, Tensor,
    encode_head,
};

/// What is left of an input.
#[derive(Debug, Clone)]
pub struct Script<'a>(pub &'a [u8]);

impl<'a> Script<'a> {
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }
    /// The next byte; 0 when it is over.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&byte, rest)) => {
                self.0 = rest;
                byte
            }
            None => 0,
        }
    }
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }
    /// Some bytes, fewer than `n`.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let len = self.below(n).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }
    /// Changes a few bytes: none in half of all cases.
    pub fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.below(8).saturating_sub(4) {
            let at = usize::from(self.short());
            let at = at % bytes.len().max(1);
            match self.below(4) {
                _ if bytes.is_empty() => bytes.push(self.byte()),
                0 => bytes[at] = self.byte(),
                1 => bytes[at] ^= 1 << self.below(8),
                2 => bytes.truncate(at),
                _ => bytes.insert(at, self.byte()),
            }
        }
    }
}

fn signature() -> Signature<'static> {
    let tensor =
        |name, dtype, axis| Tensor { name, dtype, row_shape: heapless::Vec::from_iter([axis]) };
    Signature {
        batched: true,
        inputs: heapless::Vec::from_iter([tensor("x", DType::F32, 3), tensor("n", DType::I32, 1)]),
        outputs: heapless::Vec::from_iter([tensor("y", DType::F32, 2)]),
    }
}

fn written(write: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
    let mut body = [0; 128];
    let n = write(&mut body);
    body[..n].to_vec()
}

/// Bodies that payloads may hold.
pub fn body(script: &mut Script<'_>) -> Vec<u8> {
    let entry = ModelEntry { model: ModelId(2), rows_max: Rows(8), name: "mlp" };
    match script.below(4) {
        0 => written(|out| signature().encode(out).unwrap_or(0)),
        1 => written(|out| entry.encode(out).unwrap_or(0)),
        2 => vec![0x00, 1, 0x80, 2, 0, 0, 0, 0x3F, 0x80],
        _ => script.bytes(48).to_vec(),
    }
}

/// A sound request with its payload; `id` is near those that are in flight.
pub fn request(script: &mut Script<'_>) -> (Request<'static>, Vec<u8>) {
    let id = RequestId(u32::from(script.byte() % 8));
    let request = match script.below(12) {
        0 => Request::Hello { version_min: 1, version_max: 2, client: "cl" },
        1 => Request::Auth { proof: [script.byte(); 32] },
        2 => Request::Open { id, name: "mlp" },
        3 => Request::Cancel { id },
        4 => Request::Stats { id },
        5 => Request::Ping { id },
        6 => Request::Health { id, kind: HealthKind::Ready },
        7 => Request::Models { id },
        8 => Request::Goodbye,
        9 => Request::OpenEncoded {
            id,
            name: "mlp",
            encodings: &[0x00, 1, 0x80, 2, 0, 0, 0, 0x3F, 0x80],
        },
        _ => {
            let request = Request::Infer {
                id,
                model: ModelId(u16::from(script.byte() % 4)),
                rows: Rows(u16::from(script.byte() % 4)),
                deadline: Micros(u32::from(script.short())),
                priority: Priority(script.byte() % 3),
            };
            return (request, script.bytes(48).to_vec());
        }
    };
    (request, Vec::new())
}

/// A sound reply to the request with this id, with its payload.
pub fn reply(script: &mut Script<'_>, id: RequestId, version: u8) -> (Reply<'static>, Vec<u8>) {
    let limits = ServerLimits {
        payload_bytes_max: 1 << 20,
        in_flight_max: u16::from(script.byte() % 4),
        models: 3,
    };
    match script.below(12) {
        0 => (Reply::HelloOk { version, limits }, Vec::new()),
        1 => (Reply::Challenge { nonce: [script.byte(); 32] }, Vec::new()),
        2 | 3 => {
            let reply = Reply::Opened {
                id,
                model: ModelId(u16::from(script.byte() % 4)),
                rows_max: Rows(4),
                priority_levels: 1,
                timeout: Micros(0),
            };
            (reply, written(|out| signature().encode(out).unwrap_or(0)))
        }
        4 => {
            let id = (!script.byte().is_multiple_of(4)).then_some(id);
            (Reply::Error { id, code: 300, text: "full", a: 64, b: 64 }, Vec::new())
        }
        5 => (Reply::Stats { id }, b"{}".to_vec()),
        6 => (Reply::Pong { id }, Vec::new()),
        7 => (Reply::Health { id, kind: HealthKind::Live, ok: true }, Vec::new()),
        8 => (Reply::Models { id, count: 1 }, body(script)),
        9 => (Reply::Goodbye, Vec::new()),
        _ => {
            let ns = Nanos(u64::from(script.short()));
            let receipt = Receipt {
                queue_ns: ns,
                compute_input_ns: ns,
                compute_infer_ns: ns,
                compute_output_ns: ns,
                batch_size: Rows(1),
                close_reason: CloseReason::Idle,
                worker: WorkerId(0),
            };
            (Reply::Answer { id, rows: Rows(1), receipt }, script.bytes(48).to_vec())
        }
    }
}

/// A frame: head and payload, as on a socket; its header perhaps damaged, its prefix right.
pub fn frame<T: serde::Serialize>(script: &mut Script<'_>, message: &T, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; HEAD_BYTES_MAX];
    let n = encode_head(message, payload.len(), &mut head).unwrap_or(0);
    let mut header = head[8.min(n)..n].to_vec();
    script.damage(&mut header);
    header.truncate(255);
    let mut frame = head[..8].to_vec();
    frame[1] = header.len() as u8;
    frame.extend(&header);
    frame.extend(payload);
    frame
}
