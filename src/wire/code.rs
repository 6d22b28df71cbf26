//! Error codes: stable numbers, a name each, and what the two numbers of an error mean.

macro_rules! codes {
    ($($number:literal $name:ident $snake:literal $(#[$doc:meta])+;)+) => {
        /// What an `Error` message says went wrong. The numbers are stable: a number is never
        /// reused, and a client must accept numbers that it does not know.
        ///
        /// The documentation of each code says what the message's two numbers `a` and `b` are; where
        /// it says nothing of them, they are 0.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum ErrorCode {
            $($(#[$doc])+ $name = $number,)+
        }

        impl ErrorCode {
            /// Every code, ascending by number.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)+];

            /// The number that travels.
            pub const fn number(self) -> u16 {
                self as u16
            }
            /// The name in metrics, JSON and texts.
            pub const fn name(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => $snake,)+
                }
            }
            /// The code of a number that travelled; `None` for one that this version does not know.
            pub const fn from_number(number: u16) -> Option<ErrorCode> {
                match number {
                    $($number => Some(ErrorCode::$name),)+
                    _ => None,
                }
            }
        }
    };
}

codes! {
    // The connection.
    100 Malformed "malformed"
        /// The bytes are not a frame, or the header is not a message of this version. `a`: the
        /// offending byte or message number where there is one. After broken framing the
        /// connection closes; after a sound frame with a bad header it goes on.
        ;
    101 FrameTooLong "frame_too_long"
        /// A frame announces a payload over the limit. `a`: bytes announced, `b`: bytes allowed.
        /// The connection closes.
        ;
    102 UnexpectedMessage "unexpected_message"
        /// The message is not allowed in this state (a second hello, a request before the hello).
        /// `a`: its number. Before the hello is accepted the connection closes.
        ;
    110 UnsupportedVersion "unsupported_version"
        /// The version ranges do not meet. `a` and `b`: lowest and highest version that the server
        /// speaks. The connection closes.
        ;
    111 AuthRequired "auth_required"
        /// The server asked for a proof and got another message. The connection closes.
        ;
    112 AuthFailed "auth_failed"
        /// The proof is wrong. The connection closes.
        ;
    113 TooManyConnections "too_many_connections"
        /// The server holds as many connections as it may. `a`: open, `b`: allowed. The connection
        /// closes.
        ;
    114 PeerNotAllowed "peer_not_allowed"
        /// The peer's user is not on the list. `a`: its uid. The connection closes.
        ;
    115 TimedOut "timed_out"
        /// A hello or a frame was left half sent, or answers were not read. `a`: milliseconds
        /// allowed. The connection closes.
        ;
    // The request.
    200 UnknownModel "unknown_model"
        /// No model has this name or number. `a`: the number asked for, `b`: models served.
        ;
    201 WrongPayloadLength "wrong_payload_length"
        /// The payload does not have the length that the model and the rows ask for. `a`: bytes
        /// sent, `b`: bytes expected.
        ;
    202 WrongRows "wrong_rows"
        /// No rows, or more than the model takes in one request. `a`: rows sent, `b`: most allowed.
        ;
    203 BadPriority "bad_priority"
        /// The model has fewer priority levels. `a`: priority sent, `b`: lowest priority (the
        /// largest number).
        ;
    204 DuplicateRequestId "duplicate_request_id"
        /// The connection has a request in flight with this id. `a`: the id. The first request is
        /// not touched.
        ;
    205 TooManyInFlight "too_many_in_flight"
        /// The connection has as many requests in flight as it may. `a`: in flight, `b`: allowed.
        ;
    206 BadDeadline "bad_deadline"
        /// The deadline is longer than any may be. `a`: microseconds sent, `b`: allowed.
        ;
    207 BadEncoding "bad_encoding"
        /// A tensor can't travel as the `OpenEncoded` asks: it is not float32, is listed twice or does
        /// not exist, or the encoding does not. `a`: the tensor's number in the list, `b`: the
        /// encoding's number.
        ;
    208 TooManyEncodings "too_many_encodings"
        /// The connection has opened models with as many different encodings as it may. `a`: opened,
        /// `b`: allowed.
        ;
    209 NotAllowed "not_allowed"
        /// This peer may not ask for it, or the server's configuration lets nobody. `a`: the peer's uid,
        /// 4294967295 where none is known.
        ;
    // Waiting.
    300 QueueFull "queue_full"
        /// The model's queue is full. `a`: requests waiting, `b`: `max_queue_size`.
        ;
    301 DeadlineUnmeetable "deadline_unmeetable"
        /// Refused at once: by the measured service time the deadline can't be met. `a`:
        /// microseconds that it would take, `b`: microseconds allowed.
        ;
    302 DeadlineExpired "deadline_expired"
        /// The deadline passed before a worker took the request. `a`: microseconds waited, `b`:
        /// microseconds allowed.
        ;
    303 Cancelled "cancelled"
        /// The client cancelled it before a worker took it.
        ;
    // The model.
    400 ModelFailed "model_failed"
        /// The model reported an error. `a`: the step, if known.
        ;
    401 ModelPanicked "model_panicked"
        /// The model panicked; the worker goes on.
        ;
    // The server.
    500 ShuttingDown "shutting_down"
        /// The server drains and takes no new requests.
        ;
    501 NotReady "not_ready"
        /// The model, or the server, is not ready yet.
        ;
    502 Internal "internal"
        /// The server broke a promise of its own.
        ;
}

impl core::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
