//! Why a request was not accepted, and why an accepted one failed.

use std::fmt;

/// Why a request was not accepted. Nothing of it remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// `max_queue_size` requests wait, or every slot is in use.
    QueueFull {
        /// Requests that wait.
        queued: u32,
        /// `max_queue_size`.
        max: u32,
    },
    /// By the measured service time the deadline can't be met.
    DeadlineUnmeetable {
        /// Microseconds that it is estimated to take.
        needed_us: u32,
        /// Microseconds that the request allows.
        given_us: u32,
    },
    /// No rows, or more than a request may have.
    WrongRows {
        /// Rows of the request.
        rows: u32,
        /// `max_request_rows`.
        max: u32,
    },
    /// The priority does not exist.
    BadPriority {
        /// The priority asked for.
        priority: u8,
        /// `priority_levels`.
        levels: u8,
    },
    /// The deadline is over the limit.
    TimeoutTooLong {
        /// Microseconds asked for.
        given_us: u32,
        /// The most that a request may ask for.
        max_us: u32,
    },
    /// The runtime accepts nothing more.
    ShuttingDown,
}

/// Why a request was not accepted, as the counters call it: by the queue, or by a transport before it
/// came there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// [`Refusal::QueueFull`].
    QueueFull,
    /// [`Refusal::DeadlineUnmeetable`].
    DeadlineUnmeetable,
    /// [`Refusal::WrongRows`].
    WrongRows,
    /// [`Refusal::BadPriority`].
    BadPriority,
    /// [`Refusal::TimeoutTooLong`].
    TimeoutTooLong,
    /// [`Refusal::ShuttingDown`].
    ShuttingDown,
    /// The payload has not the length of that many rows.
    WrongPayloadLength,
    /// A request with its id is in flight on the connection.
    DuplicateRequestId,
    /// As many requests are in flight on the connection as may be.
    TooManyInFlight,
    /// The server is not ready yet.
    NotReady,
}

impl RefusalReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [RefusalReason; 10] = [
        RefusalReason::QueueFull,
        RefusalReason::DeadlineUnmeetable,
        RefusalReason::WrongRows,
        RefusalReason::BadPriority,
        RefusalReason::TimeoutTooLong,
        RefusalReason::ShuttingDown,
        RefusalReason::WrongPayloadLength,
        RefusalReason::DuplicateRequestId,
        RefusalReason::TooManyInFlight,
        RefusalReason::NotReady,
    ];

    /// The reason's name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            RefusalReason::QueueFull => "queue_full",
            RefusalReason::DeadlineUnmeetable => "deadline_unmeetable",
            RefusalReason::WrongRows => "wrong_rows",
            RefusalReason::BadPriority => "bad_priority",
            RefusalReason::TimeoutTooLong => "timeout_too_long",
            RefusalReason::ShuttingDown => "shutting_down",
            RefusalReason::WrongPayloadLength => "wrong_payload_length",
            RefusalReason::DuplicateRequestId => "duplicate_request_id",
            RefusalReason::TooManyInFlight => "too_many_in_flight",
            RefusalReason::NotReady => "not_ready",
        }
    }
}

impl Refusal {
    /// What the counters call it.
    pub const fn reason(self) -> RefusalReason {
        match self {
            Refusal::QueueFull { .. } => RefusalReason::QueueFull,
            Refusal::DeadlineUnmeetable { .. } => RefusalReason::DeadlineUnmeetable,
            Refusal::WrongRows { .. } => RefusalReason::WrongRows,
            Refusal::BadPriority { .. } => RefusalReason::BadPriority,
            Refusal::TimeoutTooLong { .. } => RefusalReason::TimeoutTooLong,
            Refusal::ShuttingDown => RefusalReason::ShuttingDown,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::QueueFull { queued, max } => {
                write!(f, "the queue is full: {queued} requests wait, max_queue_size is {max}")
            }
            Refusal::DeadlineUnmeetable { needed_us, given_us } => write!(
                f,
                "the deadline can't be met: about {needed_us} us are needed, {given_us} us are given"
            ),
            Refusal::WrongRows { rows, max } => {
                write!(f, "{rows} rows, but a request has 1 to {max} (max_request_rows)")
            }
            Refusal::BadPriority { priority, levels } => {
                write!(f, "priority {priority}, but this model has 1 to {levels} (priority_levels)")
            }
            Refusal::TimeoutTooLong { given_us, max_us } => {
                write!(f, "a deadline of {given_us} us is over the limit of {max_us} us")
            }
            Refusal::ShuttingDown => f.write_str("the runtime is shutting down"),
        }
    }
}

impl std::error::Error for Refusal {}

/// Why an accepted request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// Its deadline passed while it waited.
    DeadlineExpired,
    /// Its client gave it up while it waited.
    Cancelled,
    /// The engine reported an error.
    ModelFailed,
    /// The engine panicked; the worker goes on.
    ModelPanicked,
    /// The runtime stopped before it could run.
    ShuttingDown,
}

impl Failure {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Failure; 5] = [
        Failure::DeadlineExpired,
        Failure::Cancelled,
        Failure::ModelFailed,
        Failure::ModelPanicked,
        Failure::ShuttingDown,
    ];

    /// The reason's name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Failure::DeadlineExpired => "deadline_expired",
            Failure::Cancelled => "cancelled",
            Failure::ModelFailed => "model_failed",
            Failure::ModelPanicked => "model_panicked",
            Failure::ShuttingDown => "shutting_down",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::DeadlineExpired => "the deadline passed while the request waited",
            Failure::Cancelled => "the request was cancelled",
            Failure::ModelFailed => "the model failed",
            Failure::ModelPanicked => "the model panicked",
            Failure::ShuttingDown => "the runtime stopped",
        })
    }
}

impl std::error::Error for Failure {}
