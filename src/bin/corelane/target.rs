//! A model to send requests to, in this process or behind a socket, with one face.

use crate::exit::{Code, Exit};
use crate::link;
use crate::tensors;
use corelane::client::{self, Address, Client, ClientError, Infer, TensorInfo};
use corelane::runtime::{InferError, ModelHandle, Pending};
use corelane::units::{Micros, Priority, Receipt, Rows};
use corelane::wire::{Encoding, ErrorCode, Place, TensorEncoding};
use std::collections::VecDeque;
use std::time::Instant;

/// How requests are to be treated.
#[derive(Debug, Clone, Copy, Default)]
pub struct Treatment {
    /// Deadline; 0 takes the model's default.
    pub timeout: Micros,
    /// Priority; 0 takes the model's default.
    pub priority: Priority,
}

/// An answer.
pub struct Answered {
    /// Rows.
    pub rows: usize,
    /// The output tensors.
    pub payload: Vec<u8>,
    /// What happened to the request.
    pub receipt: Receipt,
    /// From just before the request was handed over, its inputs in place, until the answer was seen.
    pub latency_ns: u64,
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// The protocol's code, in process too.
    pub code: ErrorCode,
    /// A sentence.
    pub text: String,
}

/// What a request came to.
pub type End = Result<Answered, Unanswered>;

enum Way {
    Local {
        model: ModelHandle,
        pending: VecDeque<(u64, Instant, Result<Pending, InferError>)>,
    },
    Remote {
        client: Box<Client>,
        address: Address,
        model: client::Model,
        sent: Vec<(u64, client::Ticket, Instant)>,
    },
}

/// A model to send requests to.
pub struct Target {
    way: Way,
    next: u64,
    /// Its inputs.
    pub inputs: Vec<TensorInfo>,
    /// Its outputs.
    pub outputs: Vec<TensorInfo>,
    /// Whether requests may have several rows.
    pub batched: bool,
}

impl Target {
    /// A model of a runtime in this process.
    pub fn local(model: ModelHandle) -> Target {
        let signature = model.signature();
        Target {
            inputs: signature.inputs.iter().map(tensors::info).collect(),
            outputs: signature.outputs.iter().map(tensors::info).collect(),
            batched: signature.batched,
            way: Way::Local { model, pending: VecDeque::new() },
            next: 0,
        }
    }

    /// A model of a server. `encodings` are by the names of its tensors.
    pub fn remote(
        mut client: Client,
        address: &Address,
        name: &str,
        encodings: &[(String, Encoding)],
    ) -> Result<Target, Exit> {
        let mut model = client.open(name).map_err(|e| link::lost(address, &e))?;
        if !encodings.is_empty() {
            let tensors = places(&model, encodings)?;
            let opened = client.open_encoded(name, &tensors);
            model = opened.map_err(|e| link::lost(address, &e))?;
        }
        Ok(Target {
            inputs: model.inputs.clone(),
            outputs: model.outputs.clone(),
            batched: model.batched,
            way: Way::Remote {
                client: Box::new(client),
                address: address.clone(),
                model,
                sent: Vec::new(),
            },
            next: 0,
        })
    }

    /// Hands a request over and returns its number. What is wrong with it, `next` tells.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn submit(&mut self, rows: usize, payload: &[u8], how: Treatment) -> Result<u64, Exit> {
        let number = self.next;
        self.next += 1;
        match &mut self.way {
            Way::Local { model, pending } => {
                let spans = tensors::spans(&self.inputs, rows).0;
                let filled = model.request(rows).and_then(|mut request| {
                    for (i, span) in spans.into_iter().enumerate() {
                        request.input_bytes_mut(i)?.copy_from_slice(&payload[span]);
                    }
                    Ok(request.timeout(how.timeout).priority(how.priority))
                });
                let start = Instant::now();
                pending.push_back((number, start, filled.and_then(|request| request.submit())));
            }
            Way::Remote { client, address, model, sent } => {
                let Treatment { timeout, priority } = how;
                let encoded = model.encode_input(rows, payload.to_vec());
                let payload = encoded.map_err(|e| link::lost(address, &e))?;
                // More rows than the number travels with are refused by the server as that many.
                let rows = Rows(u16::try_from(rows).unwrap_or(u16::MAX));
                let request = Infer { model: model.id, rows, deadline: timeout, priority };
                let start = Instant::now();
                let ticket =
                    client.submit_with(request, &payload).map_err(|e| link::lost(address, &e))?;
                sent.push((number, ticket, start));
            }
        }
        Ok(number)
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        match &self.way {
            Way::Local { pending, .. } => pending.len(),
            Way::Remote { sent, .. } => sent.len(),
        }
    }

    /// Waits for a request in flight: the oldest in process, any over a socket.
    ///
    /// # Errors
    /// The connection is lost.
    ///
    /// # Panics
    /// If none is in flight.
    pub fn next(&mut self) -> Result<(u64, End), Exit> {
        match &mut self.way {
            Way::Local { pending, .. } => {
                let (number, start, pending) = pending.pop_front().expect("a request in flight");
                let answer = match pending.and_then(Pending::wait) {
                    Ok(answer) => answer,
                    Err(error) => return Ok((number, Err(unanswered(&error)))),
                };
                let latency_ns = start.elapsed().as_nanos() as u64;
                let rows = answer.rows().0 as usize;
                let (spans, len) = tensors::spans(&self.outputs, rows);
                let mut payload = vec![0; len];
                for (i, span) in spans.into_iter().enumerate() {
                    let bytes = answer.output_bytes(i).map_err(|e| Exit::new(Code::Failure, e))?;
                    payload[span].copy_from_slice(bytes);
                }
                let receipt = *answer.receipt();
                Ok((number, Ok(Answered { rows, payload, receipt, latency_ns })))
            }
            Way::Remote { client, address, model, sent } => {
                assert!(!sent.is_empty(), "a request in flight");
                let (ticket, end) = client.wait_any().map_err(|e| link::lost(address, &e))?;
                let at = sent
                    .iter()
                    .position(|(_, other, _)| *other == ticket)
                    .ok_or_else(|| link::lost(address, &ClientError::NoSuchTicket(ticket)))?;
                let (number, _, start) = sent.swap_remove(at);
                let latency_ns = start.elapsed().as_nanos() as u64;
                let end = match end {
                    Ok(client::Answer { rows, receipt, payload }) => {
                        let rows = rows.0 as usize;
                        let payload = model.decode_output(rows, &payload);
                        let payload = payload.map_err(|e| link::lost(address, &e))?;
                        Ok(Answered { rows, payload, receipt, latency_ns })
                    }
                    Err(error) => Err(Unanswered {
                        code: error.code().unwrap_or(ErrorCode::Internal),
                        text: error.text,
                    }),
                };
                Ok((number, end))
            }
        }
    }
}

/// The positions of the tensors that are named; one that is input and output is both.
fn places(
    model: &client::Model,
    encodings: &[(String, Encoding)],
) -> Result<Vec<TensorEncoding>, Exit> {
    let inputs = model.inputs.iter().enumerate().map(|(at, t)| (&t.name, Place::Input(at as u8)));
    let outputs =
        model.outputs.iter().enumerate().map(|(at, t)| (&t.name, Place::Output(at as u8)));
    let all: Vec<(&String, Place)> = inputs.chain(outputs).collect();
    let mut tensors = Vec::new();
    for (name, encoding) in encodings {
        let before = tensors.len();
        let named = all.iter().filter(|(other, _)| *other == name);
        tensors.extend(named.map(|&(_, place)| TensorEncoding { place, encoding: *encoding }));
        if tensors.len() == before {
            let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
            let text = format!("there is no tensor {name:?}; there are: {}", names.join(", "));
            return Err(Exit::new(Code::Refused, text));
        }
    }
    Ok(tensors)
}

fn unanswered(error: &InferError) -> Unanswered {
    Unanswered { code: error.code(), text: error.to_string() }
}
