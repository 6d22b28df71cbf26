//! A frame's head: what it asks for, and what is done with the payload after it.

use super::{Conn, Core, Incoming, Phase};
use crate::limits::CONNECTION_READ_BYTES;
use crate::transport::bump;
use crate::units::Nanos;
use crate::wire::{ErrorCode, FrameError, MessageError, Request, parse_head};

impl Conn {
    /// Takes in a head. False: it is not whole yet, or the connection is closing.
    pub(super) fn head(&mut self, core: &mut Core, at: u16, bytes: &[u8]) -> bool {
        let head = match parse_head(bytes) {
            Ok(Some(head)) => head,
            Ok(None) => {
                if self.half_until.is_none() {
                    self.half_until = Some(core.now.after(core.half_frame));
                }
                return false;
            }
            Err(error) => {
                let (code, ab) = match error {
                    FrameError::PayloadTooLong { len, max } => {
                        (ErrorCode::FrameTooLong, (len as u64, max as u64))
                    }
                    FrameError::BadMagic { got } => (ErrorCode::Malformed, (got as u64, 0)),
                    FrameError::BadReserved { got } => (ErrorCode::Malformed, (got as u64, 0)),
                    _ => (ErrorCode::Malformed, (0, 0)),
                };
                self.fatal(core, code, ab, format_args!("{error}"));
                return false;
            }
        };
        bump(&core.control.counters.frames_total, 1);
        self.start += head.head_len;
        let payload_len = head.payload_len as usize;
        self.long_payloads = payload_len > CONNECTION_READ_BYTES / 4;
        self.incoming = Incoming::Skip { left: payload_len };
        match Request::decode(head.header) {
            Ok(Request::Infer { id, model, rows, deadline, priority })
                if matches!(self.phase, Phase::Ready) =>
            {
                self.infer(core, (id, model, rows), deadline, priority, payload_len);
            }
            Ok(request)
                if self.phase == Phase::Hello
                    && (payload_len > 0 || !matches!(request, Request::Hello { .. })) =>
            {
                let text = format_args!("the hello is due");
                let ab = (request.number() as u64, 0);
                self.fatal(core, ErrorCode::UnexpectedMessage, ab, text);
            }
            // Whoever speaks version 1 does not know it, and neither is it known to them.
            Ok(request) if self.phase == Phase::Ready && request.version() > self.version => {
                let error = MessageError::UnknownNumber { number: request.number() };
                let ab = (request.number() as u64, 0);
                self.error(core, None, ErrorCode::Malformed, ab, format_args!("{error}"));
            }
            Ok(request) if payload_len > 0 && !matches!(request, Request::Infer { .. }) => self
                .error(
                    core,
                    request.id(),
                    ErrorCode::WrongPayloadLength,
                    (payload_len as u64, 0),
                    format_args!("message {} has no payload", request.number()),
                ),
            Ok(request) => self.request(core, at, request),
            Err(error) => {
                let number = match error {
                    MessageError::UnknownNumber { number } => number,
                    MessageError::BadField { number } => number,
                    _ => head.header[0],
                };
                let (code, ab) = (ErrorCode::Malformed, (number as u64, 0));
                self.error(core, None, code, ab, format_args!("{error}"));
                if !matches!(self.phase, Phase::Ready | Phase::Leaving) {
                    // Nobody is known yet who would be worth the patience.
                    self.phase = Phase::Closing;
                }
            }
        }
        // A payload that is not here yet may be late, but not for ever.
        let patience = payload_len as u64 * self.byte_ns_max;
        if payload_len > 0 && self.phase != Phase::Closing {
            self.half_until = Some(core.now.after(core.half_frame).after(Nanos(patience)));
        }
        if payload_len == 0 && matches!(self.incoming, Incoming::Skip { .. }) {
            self.frame_is_whole();
        }
        self.phase != Phase::Closing
    }
}
