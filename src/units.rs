//! Numbers that say what they are. Plain data, no behaviour beyond conversion.

use serde::{Deserialize, Serialize};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

unit!(
    /// Microseconds, a span. Deadlines travel so, since clocks differ.
    Micros(u32)
);
unit!(
    /// Nanoseconds: a span, or an instant of the process's monotonic clock.
    Nanos(u64)
);
unit!(
    /// Rows of a batch, or of one request.
    Rows(u16)
);
unit!(
    /// A model of the runtime, by its position in the configuration.
    ModelId(u16)
);
unit!(
    /// A processor as the kernel numbers it.
    CoreId(u16)
);
unit!(
    /// A worker of the runtime, by its position in the configuration.
    WorkerId(u8)
);
unit!(
    /// A request, as its client numbers it; unique among a connection's requests in flight.
    RequestId(u32)
);
unit!(
    /// Priority: 1 is the highest; 0 asks for the model's default.
    Priority(u8)
);

impl Nanos {
    /// The span from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
    /// The instant `span` after `self`; saturates.
    pub const fn after(self, span: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(span.0))
    }
}

impl From<Micros> for Nanos {
    fn from(us: Micros) -> Nanos {
        Nanos(us.0 as u64 * 1_000)
    }
}

/// Element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum DType {
    /// IEEE 754 single.
    F32,
    /// IEEE 754 half.
    F16,
    /// IEEE 754 double.
    F64,
    /// Signed 8 bit.
    I8,
    /// Unsigned 8 bit.
    U8,
    /// Signed 16 bit.
    I16,
    /// Unsigned 16 bit.
    U16,
    /// Signed 32 bit.
    I32,
    /// Unsigned 32 bit.
    U32,
    /// Signed 64 bit.
    I64,
    /// Unsigned 64 bit.
    U64,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// All types, in the order of their numbers.
    pub const ALL: [DType; 12] = [
        DType::F32,
        DType::F16,
        DType::F64,
        DType::I8,
        DType::U8,
        DType::I16,
        DType::U16,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::U64,
        DType::Bool,
    ];
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::I8 | DType::U8 | DType::Bool => 1,
            DType::F16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }
    /// The name as ONNX and NumPy spell it (`float32`, `int8` ...).
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::F64 => "float64",
            DType::I8 => "int8",
            DType::U8 => "uint8",
            DType::I16 => "int16",
            DType::U16 => "uint16",
            DType::I32 => "int32",
            DType::U32 => "uint32",
            DType::I64 => "int64",
            DType::U64 => "uint64",
            DType::Bool => "bool",
        }
    }
}

impl core::fmt::Display for DType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a batch was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// The largest batch that pays was there.
    Full,
    /// A preferred size was reached.
    Preferred,
    /// The oldest request had waited `max_queue_delay_microseconds`.
    Delay,
    /// Waiting longer would have missed a deadline.
    Deadline,
    /// The worker was idle and no delay is configured: it took what was there.
    Idle,
    /// The runtime is draining.
    Drain,
}

impl CloseReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [CloseReason; 6] = [
        CloseReason::Full,
        CloseReason::Preferred,
        CloseReason::Delay,
        CloseReason::Deadline,
        CloseReason::Idle,
        CloseReason::Drain,
    ];
    /// The name as it appears in receipts and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            CloseReason::Full => "full",
            CloseReason::Preferred => "preferred",
            CloseReason::Delay => "delay",
            CloseReason::Deadline => "deadline",
            CloseReason::Idle => "idle",
            CloseReason::Drain => "drain",
        }
    }
}

/// What happened to one answered request. Stage names are Triton's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Receipt {
    /// From submission to the instant a worker took the request.
    pub queue_ns: Nanos,
    /// Gathering the batch's rows, the whole batch.
    pub compute_input_ns: Nanos,
    /// Running the model, the whole batch.
    pub compute_infer_ns: Nanos,
    /// Scattering the batch's rows, the whole batch.
    pub compute_output_ns: Nanos,
    /// Rows in the batch, pad rows not counted.
    pub batch_size: Rows,
    /// Why the batch was closed.
    pub close_reason: CloseReason,
    /// Which worker ran it.
    pub worker: WorkerId,
}
