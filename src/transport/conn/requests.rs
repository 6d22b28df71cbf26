//! What each request asks for, and what it is answered with.

use super::encoded::View;
use super::slots::Due;
use super::{Conn, Core, Incoming, Model, Phase};
use crate::limits::{
    AUTH_NONCE_BYTES, DIRECT_ANSWER_BYTES_MAX, LONE_RUN_US_MAX, MODEL_NAME_LEN_MAX, TIMEOUT_US_MAX,
};
use crate::queue::outlet::ANSWER_HEAD_BYTES;
use crate::queue::{Failure, Lease, Notify, Refusal, RefusalReason, Submit};
use crate::sys::events::{Event, tell};
use crate::sys::sync::Ordering;
use crate::transport::arrivals::{Arrivals, Arrived};
use crate::transport::bump;
use crate::transport::link::Link;
use crate::transport::table::Held;
use crate::units::{Micros, ModelId, Nanos, Priority, Receipt, RequestId, Rows};
use crate::wire::{self, ErrorCode, HealthKind, Reply, Request, ServerLimits};
use core::fmt::{self, Write as _};
use std::io;

/// Longest run for which the I/O thread's seat is left to a worker.
const LONE_RUN_MAX: Nanos = Nanos(LONE_RUN_US_MAX * 1_000);

/// The names of the models, as many as a text has room for.
struct Names<'a>(&'a [Model]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, model) in self.0.iter().enumerate() {
            // In one piece, so that no comma is left of one that has no room.
            let mut piece: heapless::String<{ MODEL_NAME_LEN_MAX + 2 }> = heapless::String::new();
            write!(piece, "{}{}", if n == 0 { "" } else { ", " }, model.served.name)?;
            f.write_str(&piece)?;
        }
        Ok(())
    }
}

/// An inference whose payload is coming.
#[derive(Debug)]
pub(super) struct Coming {
    pub id: RequestId,
    pub model: ModelId,
    submit: Submit,
    /// Its number among the arrivals, where they are recorded.
    arrival: Option<u64>,
}

/// Requests that were handed over in one turn.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::transport) struct Submitted {
    pub count: u32,
    /// Whose the last was.
    pub conn: u16,
    /// One takes longer than others may wait for.
    pub is_long: bool,
    /// A worker slept, and was woken for the last.
    pub woke_worker: bool,
}

impl Conn {
    /// Everything but an inference.
    pub(super) fn request(&mut self, core: &mut Core, at: u16, request: Request<'_>) {
        match (request, self.phase) {
            (Request::Hello { version_min, version_max, .. }, Phase::Hello) => {
                let ours = (wire::VERSION_MIN, wire::VERSION_MAX);
                let Some(version) = wire::negotiate(ours, (version_min, version_max)) else {
                    self.fatal(
                        core,
                        ErrorCode::UnsupportedVersion,
                        (ours.0 as u64, ours.1 as u64),
                        format_args!(
                            "versions {version_min} to {version_max} are asked for; this server speaks {} to {}",
                            ours.0, ours.1
                        ),
                    );
                    return;
                };
                if self.wants_key {
                    self.challenge(core, version);
                } else {
                    self.welcome(core, version);
                }
            }
            (Request::Auth { proof }, Phase::Challenged { nonce, version }) => {
                if core.key.as_ref().is_some_and(|key| key.verify(&nonce, &proof)) {
                    self.welcome(core, version);
                } else {
                    self.fatal(
                        core,
                        ErrorCode::AuthFailed,
                        (0, 0),
                        format_args!("the proof is wrong"),
                    );
                }
            }
            (_, Phase::Challenged { .. }) => self.fatal(
                core,
                ErrorCode::AuthRequired,
                (0, 0),
                format_args!("the proof of the pre-shared key is due"),
            ),
            (Request::Open { id, name }, Phase::Ready) => {
                if let Some(at) = self.find(core, id, name) {
                    self.opened(core, id, at, ModelId(at as u16));
                }
            }
            (Request::OpenEncoded { id, name, encodings }, Phase::Ready) => {
                if let Some(at) = self.find(core, id, name)
                    && let Some(view) = self.view(core, id, at, encodings)
                {
                    self.opened(core, id, at, ModelId(core.models.len() as u16 + view));
                }
            }
            (Request::Cancel { id }, Phase::Ready | Phase::Leaving) => self.cancel(core, id),
            (Request::Stats { id }, Phase::Ready) => {
                if self.stats_for.is_some() {
                    let text = format_args!("statistics are asked for already");
                    self.error(core, Some(id), ErrorCode::TooManyInFlight, (1, 1), text);
                } else {
                    self.stats_for = Some(id);
                    core.stats_wanted = true;
                }
            }
            (Request::Ping { id }, Phase::Ready) => {
                self.replies.push(&Reply::Pong { id }, &[]);
            }
            (Request::Health { id, kind }, Phase::Ready) => {
                let ok = kind == HealthKind::Live || is_ready(core);
                self.replies.push(&Reply::Health { id, kind, ok }, &[]);
            }
            (Request::Models { id }, Phase::Ready) => self.list(core, id),
            (Request::Reload { id, name }, Phase::Ready) => self.reload(core, (at, id), name),
            (Request::Goodbye, Phase::Ready) => self.phase = Phase::Leaving,
            (request, _) => self.error(
                core,
                request.id(),
                ErrorCode::UnexpectedMessage,
                (request.number() as u64, 0),
                format_args!("message {} is not allowed now", request.number()),
            ),
        }
    }

    /// The model of this name, or the error that there is none.
    pub(super) fn find(&mut self, core: &Core, id: RequestId, name: &str) -> Option<usize> {
        let found = core.models.iter().position(|model| model.served.name == name);
        if found.is_none() {
            let ab = (0, core.models.len() as u64);
            let served = Names(&core.models);
            let text = format_args!("no model is named {name:?}; there are: {served}");
            self.error(core, Some(id), ErrorCode::UnknownModel, ab, text);
        }
        found
    }
    /// Says what the model at `at` is, which requests name by `number`.
    fn opened(&mut self, core: &Core, id: RequestId, at: usize, number: ModelId) {
        let model = &core.models[at];
        let spec = model.served.queue.spec();
        let reply = Reply::Opened {
            id,
            model: number,
            rows_max: spec.max_request_rows,
            priority_levels: spec.priority_levels,
            timeout: model.served.queue.default_timeout(),
        };
        self.replies.push(&reply, &model.signature);
    }
    /// The view of the model at `at` with these encodings, made if there is none; or the error.
    fn view(&mut self, core: &Core, id: RequestId, at: usize, encodings: &[u8]) -> Option<u16> {
        let signature = core.models[at].served.queue.signature();
        let view = match View::new(at as u16, signature, encodings) {
            Ok(view) => view,
            Err(refused) => {
                let code = refused.code();
                self.error(core, Some(id), code, refused.numbers(), format_args!("{refused}"));
                return None;
            }
        };
        if let Some(known) = self.views.iter().position(|known| *known == view) {
            return Some(known as u16);
        }
        let (len, max) = (self.views.len(), self.views.capacity());
        if self.views.push(view).is_err() {
            let ab = (len as u64, max as u64);
            let text = format_args!(
                "this connection has opened models with {len} encodings; at most {max} are allowed"
            );
            self.error(core, Some(id), ErrorCode::TooManyEncodings, ab, text);
            return None;
        }
        Some(len as u16)
    }

    fn challenge(&mut self, core: &mut Core, version: u8) {
        let mut nonce = [0; AUTH_NONCE_BYTES];
        if io::Read::read_exact(&mut core.random, &mut nonce).is_err() {
            let text = format_args!("no random bytes");
            self.fatal(core, ErrorCode::Internal, (0, 0), text);
            return;
        }
        self.phase = Phase::Challenged { nonce, version };
        self.replies.push(&Reply::Challenge { nonce }, &[]);
    }

    fn welcome(&mut self, core: &Core, version: u8) {
        self.phase = Phase::Ready;
        self.version = version;
        let limits = ServerLimits {
            payload_bytes_max: crate::limits::FRAME_PAYLOAD_BYTES_MAX as u32,
            in_flight_max: core.in_flight_max as u16,
            models: core.models.len() as u16,
        };
        self.replies.push(&Reply::HelloOk { version, limits }, &[]);
    }

    fn list(&mut self, core: &Core, id: RequestId) {
        let mut body = [0; crate::limits::MODELS_MAX * (crate::limits::MODEL_NAME_LEN_MAX + 8)];
        let mut end = 0;
        for (at, model) in core.models.iter().enumerate() {
            let entry = wire::ModelEntry {
                model: ModelId(at as u16),
                rows_max: model.served.queue.spec().max_request_rows,
                name: &model.served.name,
            };
            end += entry.encode(&mut body[end..]).unwrap_or(0);
        }
        let count = core.models.len() as u16;
        self.replies.push(&Reply::Models { id, count }, &body[..end]);
    }

    fn cancel(&mut self, core: &mut Core, id: RequestId) {
        let Some(at) = self.ids.iter().position(|&other| other == id) else { return };
        let entry = self.entries[at];
        let Some((ticket, held)) = core.table.remove(entry) else { return };
        match ticket.cancel_queued(Failure::Cancelled) {
            Ok(()) => self.ended(core, (entry, held), Err(Failure::Cancelled)),
            // It runs, or is done: the answer comes.
            Err(ticket) => core.table.restore(entry, ticket),
        }
    }

    /// Checks an inference's head.
    pub(super) fn infer(
        &mut self,
        core: &mut Core,
        (id, model, rows): (RequestId, ModelId, Rows),
        timeout: Micros,
        priority: Priority,
        payload_len: usize,
    ) {
        let who = Some(id);
        // Numbers after the models' are views of this connection.
        let view = (model.0 as usize).checked_sub(core.models.len());
        let view = view.filter(|&view| view < self.views.len());
        let number = model;
        let model = view.map_or(model, |view| ModelId(self.views[view].model));
        let view = view.map(|view| view as u8);
        let Some(found) = core.models.get(model.0 as usize) else {
            bump(&core.control.counters.unknown_model_total, 1);
            let models = core.models.len();
            let text = format_args!("no model has number {number}; there are {models}");
            let ab = (number.0 as u64, models as u64);
            return self.error(core, who, ErrorCode::UnknownModel, ab, text);
        };
        let queue = &found.served.queue;
        if core.draining {
            queue.count_refusal(RefusalReason::ShuttingDown);
            let text = format_args!("the server drains");
            return self.error(core, who, ErrorCode::ShuttingDown, (0, 0), text);
        }
        if !is_ready(core) {
            queue.count_refusal(RefusalReason::NotReady);
            let text = format_args!("the server is not ready yet");
            return self.error(core, who, ErrorCode::NotReady, (0, 0), text);
        }
        let perhaps_answered = self.perhaps_answered();
        let taken = |(at, other): (usize, &RequestId)| *other == id && Some(at) != perhaps_answered;
        if self.ids.iter().enumerate().any(taken) {
            queue.count_refusal(RefusalReason::DuplicateRequestId);
            let text = format_args!("request {id} is in flight already");
            return self.error(core, who, ErrorCode::DuplicateRequestId, (id.0 as u64, 0), text);
        }
        let (len, max) = (self.in_flight(), core.in_flight_max);
        if len >= max {
            queue.count_refusal(RefusalReason::TooManyInFlight);
            let text = format_args!("{len} requests are in flight on this connection");
            let ab = (len as u64, max as u64);
            return self.error(core, who, ErrorCode::TooManyInFlight, ab, text);
        }
        let note = |arrivals: &Arrivals| arrivals.note(Arrived { at: core.now, model, rows });
        let arrival = core.arrivals.as_deref().map(note);
        if timeout.0 > TIMEOUT_US_MAX {
            let refusal = Refusal::TimeoutTooLong { given_us: timeout.0, max_us: TIMEOUT_US_MAX };
            queue.count_refusal(refusal.reason());
            return self.refusal(core, id, refusal);
        }
        let levels = queue.spec().priority_levels;
        if priority.0 > levels {
            let refusal = Refusal::BadPriority { priority: priority.0, levels };
            queue.count_refusal(refusal.reason());
            return self.refusal(core, id, refusal);
        }
        let submit = Submit { timeout, priority, notify: Notify::Io, tag: 0 };
        let coming = Coming { id, model, submit, arrival };
        self.incoming = Incoming::Due(Due { coming, rows, view, payload_len, since: core.now });
    }

    /// Hands the request over whose payload is whole.
    pub(super) fn submit(&mut self, core: &mut Core, at: u16) {
        let incoming = std::mem::replace(&mut self.incoming, Incoming::Head);
        let Incoming::Payload { mut lease, decoding, due, .. } = incoming else { return };
        let Coming { id, model, mut submit, arrival } = due.coming;
        if let (Some(arrivals), Some(arrival)) = (&core.arrivals, arrival) {
            arrivals.keep(arrival, model, lease.input_mut());
        }
        let model = model.0 as usize;
        // What a worker sends is not encoded.
        let view = decoding.map(|decoding| decoding.view());
        let lent = if view.is_none() { self.lend(core, &lease, id) } else { None };
        if let Some(at) = lent {
            submit.notify = Notify::Outlet(at);
        }
        // Before it is queued: a worker's lines on it are later than this one then.
        tell(Event::RequestRead { connection: at, request: id.0, model: model as u16 });
        let (rows, idle) = (lease.rows(), lease.queue().has_idle_worker());
        match lease.submit(submit) {
            Ok(ticket) => {
                let queue = &core.models[model].served.queue;
                let allowed = match submit.timeout {
                    Micros(0) => queue.default_timeout(),
                    given => given,
                };
                let held = Held { conn: at, request: id, submitted_at: core.now, allowed, view };
                let run = queue.service().estimate(rows, 0, queue.spec().workers);
                core.submitted.count += 1;
                (core.submitted.conn, core.submitted.woke_worker) = (at, idle);
                core.submitted.is_long |= run > LONE_RUN_MAX;
                let entry = core.table.insert(model, ticket, held);
                self.entries.push(entry);
                self.ids.push(id);
                if lent.is_some() {
                    (self.lent, core.lent) = (Some(entry), Some(at));
                }
            }
            Err(refusal) => {
                // Nobody else can have taken it: the request is in no ring.
                if let (Some(_), Some(plug)) = (lent, self.link.as_ref().and_then(Link::plug)) {
                    plug.reclaim();
                }
                self.refusal(core, id, refusal);
            }
        }
    }

    /// The request whose answer a worker sends or has sent, by its position among the ids.
    pub(in crate::transport) fn perhaps_answered(&self) -> Option<usize> {
        let lent = self.lent?;
        if !self.link.as_ref()?.plug()?.has_begun() {
            return None;
        }
        self.entries.iter().position(|&entry| entry == lent)
    }

    /// Lends the socket for the answer of a request that has no company, so that its worker may send
    /// it at once. Returns the outlet.
    ///
    /// Only while nothing else is held: then no answers can be gathered into one write. Its slot waits,
    /// for at most one sweep, until the sleeping I/O thread has seen its end; no more than one in the
    /// whole server ever does, and every model has a slot beyond those that it needs for that one.
    fn lend(&self, core: &Core, lease: &Lease, id: RequestId) -> Option<u16> {
        let plug = self.link.as_ref()?.plug()?;
        let alone = core.table.held() == 0 && self.lent.is_none() && self.replies.is_empty();
        let short = lease.output_bytes() <= DIRECT_ANSWER_BYTES_MAX;
        // A worker in this thread's seat sends it anyway.
        if !alone || !short || core.seat_is_away || core.draining || self.phase != Phase::Ready {
            return None;
        }
        plug.lend(lease.completion(), id, answer_head);
        Some(plug.at())
    }

    pub(super) fn refusal(&mut self, core: &Core, id: RequestId, refusal: Refusal) {
        let (code, a, b) = refusal_code(refusal);
        self.error(core, Some(id), code, (a as u64, b as u64), format_args!("{refusal}"));
    }
}

/// Writes the head of an answer that a worker sends.
fn answer_head(
    id: RequestId,
    rows: Rows,
    receipt: Receipt,
    payload_len: usize,
    head: &mut [u8; ANSWER_HEAD_BYTES],
) -> usize {
    wire::encode_head(&Reply::Answer { id, rows, receipt }, payload_len, head).unwrap_or(0)
}

fn is_ready(core: &Core) -> bool {
    !core.draining && core.control.ready.load(Ordering::Acquire)
}

/// The code of an accepted request's failure.
pub(crate) fn failure_code(failure: Failure) -> ErrorCode {
    match failure {
        Failure::DeadlineExpired => ErrorCode::DeadlineExpired,
        Failure::Cancelled => ErrorCode::Cancelled,
        Failure::ModelFailed => ErrorCode::ModelFailed,
        Failure::ModelPanicked => ErrorCode::ModelPanicked,
        Failure::ShuttingDown => ErrorCode::ShuttingDown,
    }
}

/// The code of a refusal, and its numbers.
pub(crate) fn refusal_code(refusal: Refusal) -> (ErrorCode, u32, u32) {
    match refusal {
        Refusal::QueueFull { queued, max } => (ErrorCode::QueueFull, queued, max),
        Refusal::DeadlineUnmeetable { needed_us, given_us } => {
            (ErrorCode::DeadlineUnmeetable, needed_us, given_us)
        }
        Refusal::WrongRows { rows, max } => (ErrorCode::WrongRows, rows, max),
        Refusal::BadPriority { priority, levels } => {
            (ErrorCode::BadPriority, priority as u32, levels as u32)
        }
        Refusal::TimeoutTooLong { given_us, max_us } => (ErrorCode::BadDeadline, given_us, max_us),
        Refusal::ShuttingDown => (ErrorCode::ShuttingDown, 0, 0),
    }
}

pub(in crate::transport) fn count_error(core: &Core, code: ErrorCode) {
    if let Some(at) = ErrorCode::ALL.iter().position(|&other| other == code) {
        bump(&core.control.counters.errors[at], 1);
    }
}
