//! What a connection is told, and until when it is waited for.

use super::requests::{count_error, failure_code};
use super::{Closed, Conn, Core, Incoming, Phase};
use crate::limits::{ERROR_TEXT_LEN_MAX, LINGER_MS_MAX};
use crate::queue::outlet::Plug;
use crate::queue::{Done, Failure};
use crate::sys::events::{Event, tell};
use crate::transport::bump;
use crate::transport::link::Link;
use crate::transport::replies::Flushed;
use crate::transport::table::Held;
use crate::units::{Nanos, RequestId};
use crate::wire::{ErrorCode, Reply};
use core::fmt::Write as _;

impl Conn {
    pub(super) fn error(
        &mut self,
        core: &Core,
        id: Option<RequestId>,
        code: ErrorCode,
        (a, b): (u64, u64),
        text: core::fmt::Arguments<'_>,
    ) {
        let mut line: heapless::String<ERROR_TEXT_LEN_MAX> = heapless::String::new();
        // A text that does not fit is cut where it was.
        let _ = line.write_fmt(text);
        count_error(core, code);
        tell(Event::RequestRefused { code: code.name(), a, b });
        let reply = Reply::Error { id, code: code.number(), text: &line, a, b };
        self.replies.push(&reply, &[]);
    }
    /// An error after which the connection closes.
    pub(super) fn fatal(
        &mut self,
        core: &Core,
        code: ErrorCode,
        ab: (u64, u64),
        text: core::fmt::Arguments<'_>,
    ) {
        self.error(core, None, code, ab, text);
        tell(Event::ConnectionFailed { code: code.name(), a: ab.0, b: ab.1 });
        self.phase = Phase::Closing;
        self.half_until = None;
        self.incoming = Incoming::Head;
    }
    /// Takes the end of a request in flight.
    pub fn ended(
        &mut self,
        core: &mut Core,
        (entry, held): (u32, Held),
        end: Result<Done, Failure>,
    ) {
        if let Some(at) = self.entries.iter().position(|&other| other == entry) {
            self.ids.swap_remove(at);
            self.entries.swap_remove(at);
        }
        let id = held.request;
        if let Err(failure) = &end {
            let (connection, reason) = (held.conn, failure.name());
            tell(Event::RequestWithdrawn { connection, request: id.0, reason });
        }
        let mut sent = 0;
        if self.lent == Some(entry) {
            (self.lent, core.lent) = (None, None);
            let plug = self.link.as_ref().and_then(Link::plug);
            if let Some((bytes, total)) = plug.and_then(Plug::settle) {
                bump(&core.control.counters.direct_answers_total, 1);
                bump(&core.control.counters.writes_total, 1);
                bump(&core.control.counters.sent_bytes_total, bytes as u64);
                if bytes == total {
                    bump(&core.control.counters.answers_total, 1);
                    return;
                }
                sent = bytes;
            }
        }
        match end.map(|done| (done.outcome(), done)) {
            Ok((Ok(receipt), mut done)) => {
                bump(&core.control.counters.answers_total, 1);
                let reply = Reply::Answer { id, rows: done.rows(), receipt };
                let view = held.view.and_then(|view| self.views.get(view as usize));
                let len = match view {
                    Some(view) => view.encode_output(&mut done),
                    None => done.output().len(),
                };
                self.replies.push_ending(&reply, Some((done, len)), sent);
            }
            Ok((Err(failure), _)) | Err(failure) => {
                let code = failure_code(failure);
                let (a, b) = match failure {
                    Failure::DeadlineExpired => {
                        (core.now.since(held.submitted_at).0 / 1_000, held.allowed.0 as u64)
                    }
                    _ => (0, 0),
                };
                count_error(core, code);
                let mut line: heapless::String<ERROR_TEXT_LEN_MAX> = heapless::String::new();
                let _ = write!(line, "{failure}");
                let reply = Reply::Error { id: Some(id), code: code.number(), text: &line, a, b };
                self.replies.push_ending(&reply, None, sent);
            }
        }
    }

    /// Sends what waits. Says whether the loop must watch for writability.
    pub fn flush(&mut self, core: &Core) -> Result<Flushed, Closed> {
        if self.link.is_none() || self.hung_up {
            return Err(Closed);
        }
        if core.draining && self.is_stranger() {
            // A goodbye is no answer to a hello.
            let text = format_args!("the server drains");
            self.fatal(core, ErrorCode::ShuttingDown, (0, 0), text);
        }
        let Some(link) = &self.link else { return Err(Closed) };
        if !self.replies.is_empty() && link.plug().is_some_and(|plug| !plug.is_free()) {
            // Nothing may come in between: after the rest of the worker's frame.
            return Ok(Flushed::Lent);
        }
        let mut flushed = self.replies.flush(link, &core.control.counters).map_err(|_| Closed)?;
        let idle = self.ids.is_empty() && matches!(self.incoming, Incoming::Head);
        let leaving = match self.phase {
            Phase::Leaving => idle && self.stats_for.is_none() && !self.power.is_waited_for(),
            Phase::Ready => {
                // What was sent before the drain is told its end first.
                core.draining && self.is_read_dry && self.ids.is_empty() && self.stats_for.is_none()
            }
            Phase::Hello | Phase::Challenged { .. } | Phase::Closing => false,
        };
        if leaving && flushed == Flushed::All {
            self.replies.push(&Reply::Goodbye, &[]);
            self.phase = Phase::Closing;
            self.half_until = None;
            self.incoming = Incoming::Head;
            flushed = self.replies.flush(link, &core.control.counters).map_err(|_| Closed)?;
        }
        match flushed {
            Flushed::All => {
                self.stall_until = None;
                if self.phase == Phase::Closing && self.ids.is_empty() {
                    if self.eof {
                        return Err(Closed);
                    }
                    if !self.finished {
                        self.finished = true;
                        link.finish();
                        // On a serial line what is sent is on its way for a while.
                        let way = link.buffered_bytes_max() as u64 * self.byte_ns_max;
                        let linger = Nanos(LINGER_MS_MAX * 1_000_000);
                        self.linger_until = Some(core.now.after(linger).after(Nanos(way)));
                    }
                }
            }
            Flushed::Lent => {}
            Flushed::Blocked { progress } => {
                if progress || self.stall_until.is_none() {
                    self.stall_until = Some(core.now.after(core.write_stall));
                }
            }
        }
        Ok(flushed)
    }
    /// Looks at the clock.
    pub fn check_timeouts(&mut self, core: &Core, at: u16) -> Result<(), Closed> {
        let passed = |until: Option<Nanos>| until.is_some_and(|until| until <= core.now);
        if passed(self.stall_until) && !self.hung_up {
            count_error(core, ErrorCode::TimedOut);
            self.give_all_up(core, at);
            return Err(Closed);
        }
        if passed(self.linger_until) {
            // What was sent over a line may still not have arrived.
            self.give_up(core, at, self.untaken_ends());
        }
        if passed(self.stall_until) || passed(self.linger_until) {
            return Err(Closed);
        }
        if passed(self.half_until) {
            let ms = core.half_frame.0 / 1_000_000;
            let what = if self.phase == Phase::Ready { "a frame" } else { "the hello" };
            self.fatal(
                core,
                ErrorCode::TimedOut,
                (ms, 0),
                format_args!("{what} was left half sent"),
            );
        }
        Ok(())
    }

    /// Ends of accepted requests that are here and that the peer has not taken, as far as can be known.
    pub fn untaken_ends(&self) -> usize {
        self.replies.unsent_ends() + self.link.as_ref().map_or(0, Link::unacked_ends)
    }

    /// [Gives up](Self::give_up) these, and those of requests in flight.
    pub fn give_all_up(&self, core: &Core, at: u16) {
        let sent = usize::from(self.perhaps_answered().is_some());
        self.give_up(core, at, self.ids.len() - sent + self.untaken_ends());
    }

    /// Counts and tells `ends` of accepted requests that the peer of this connection, which is the `at`-th, will
    /// not get, though it is there.
    pub fn give_up(&self, core: &Core, at: u16, ends: usize) {
        if ends > 0 && !self.hung_up {
            bump(&core.control.counters.answers_given_up_total, ends as u64);
            tell(Event::AnswersGivenUp { connection: at, answers: ends as u64 });
        }
    }
}
