//! Steps of a plan: a kernel, and where its operands lie.

use super::graph::{Binary, Fallback, Pool, ReduceKind, Unary};
use super::ops::{Broadcast, Copy};
use super::turns::Segment;
use crate::engine::image;
use crate::engine::kernels::{
    self, Activation, AlignedBuf, CodedConv, Codes, Conv2d, Grid, MatMulParams, PackedMatMul,
    PoolParams,
};
use crate::units::DType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Memory that an operand lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Space {
    /// The instance's arena.
    Arena,
    /// An input of the model.
    Input(usize),
    /// An output of the model.
    Output(usize),
    /// A constant of the plan.
    Const(usize),
}

/// A stretch of 32-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operand {
    /// In which memory.
    pub space: Space,
    /// First word, in the first turn.
    pub start: usize,
    /// How many words.
    pub len: usize,
    /// Words from one turn's to the next one's.
    pub step: usize,
}

impl Operand {
    /// Where it is in a turn.
    pub fn at(self, turn: usize) -> Operand {
        Operand { start: self.start + turn * self.step, ..self }
    }
}

/// What a step does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Kernel {
    /// Sources: x, and the residual if there is one.
    Conv {
        /// Packed weights and geometry.
        #[serde(with = "image::shared")]
        conv: Arc<Conv2d>,
        /// Images.
        batch: usize,
        /// Fused activation.
        act: Activation,
    },
    /// Sources: a (dense rows), and the residual if there is one.
    Gemm {
        /// Packed weights.
        #[serde(with = "image::shared")]
        weights: Arc<PackedMatMul>,
        /// Rows.
        rows: usize,
        /// Fused activation.
        act: Activation,
    },
    /// Source: codes of images. Destination: codes.
    CodedConv {
        /// Packed weights and geometry.
        #[serde(with = "image::shared")]
        conv: Arc<CodedConv>,
        /// Images.
        batch: usize,
    },
    /// Sources: codes of a and of b. Destination: codes of their sums.
    AddCodes {
        /// Of a, of b, of the sums.
        codes: [Codes; 3],
        /// Elements.
        count: usize,
    },
    /// Source: x (f32). Destination: codes.
    Encode {
        /// Which.
        to: Codes,
        /// Elements.
        count: usize,
    },
    /// Source: codes. Destination: what they stand for.
    Decode {
        /// Which.
        from: Codes,
        /// Elements.
        count: usize,
    },
    /// Sources: a, b. One product for each of `at`, the offsets of A, B and C.
    MatMul {
        /// Geometry of one product.
        params: MatMulParams,
        /// Offsets of each product.
        at: Vec<[usize; 3]>,
    },
    /// Source: x, or none if it works in place.
    Unary(Unary),
    /// Source: x, or none if it works in place.
    Activation(Activation),
    /// Sources: a, b; only b if it works in place on a.
    Binary {
        /// The operator.
        op: Binary,
        /// How the operands are passed over.
        broadcast: Broadcast,
        /// The same for the vector kernel, where it can.
        vector: Option<(kernels::Binary, kernels::Broadcast)>,
    },
    /// Source: x as `[outer, n, inner]`, reduced over n.
    Reduce {
        /// How.
        kind: ReduceKind,
        /// `[outer, n, inner]`.
        dims: (usize, usize, usize),
        /// Factor on the result.
        scale: f32,
    },
    /// Source: rows of n, or none if it works in place.
    Softmax {
        /// Length of a row.
        n: usize,
        /// Factor on the source.
        scale: f32,
        /// Whether its logarithm is wanted.
        log: bool,
    },
    /// Source: x as `[outer, n, inner]`, normalised over n.
    LayerNorm {
        /// `[outer, n, inner]`.
        dims: (usize, usize, usize),
        /// Added to the variance.
        eps: f32,
        /// Factor per position.
        #[serde(with = "image::shared")]
        gamma: Arc<AlignedBuf>,
        /// Addend per position.
        #[serde(with = "image::shared")]
        beta: Arc<AlignedBuf>,
    },
    /// Source: x in NHWC.
    Pool {
        /// Window.
        pool: Pool,
        /// Batch, height, width, channels of x.
        image: [usize; 4],
        /// Height and width of the result.
        out: [usize; 2],
        /// The same for the vector kernel, where it can.
        vector: Option<PoolParams>,
    },
    /// Sources: one for each copy. What no copy covers is filled first.
    Move {
        /// The copies.
        copies: Vec<Copy>,
        /// What to fill the destination with, where copies leave gaps.
        fill: Option<f32>,
    },
    /// Source: integers.
    Embed {
        /// The table.
        #[serde(with = "image::shared")]
        table: Arc<AlignedBuf>,
        /// Length of a row.
        width: usize,
        /// First index.
        first: i64,
        /// Whether negative indices count from the end (then `first` is 0).
        wraps: bool,
        /// Type of the integers.
        index: DType,
        /// How many.
        count: usize,
    },
    /// Source: x; to or from f32.
    Cast {
        /// Type of the source.
        from: DType,
        /// Type of the destination.
        to: DType,
        /// Elements.
        count: usize,
    },
    /// Source: x (f32) to i8 or u8.
    Quantize {
        /// Scale.
        scale: f32,
        /// Zero point.
        zero: i32,
        /// Type of the destination.
        to: DType,
        /// Elements.
        count: usize,
    },
    /// Source: integers, to f32.
    Dequantize {
        /// Scale.
        scale: f32,
        /// Zero point.
        zero: i32,
        /// Type of the source.
        from: DType,
        /// Elements.
        count: usize,
    },
    /// Source: matrices. Matrices, rows, columns.
    Transpose(usize, usize, usize),
    /// Source: x `[batch, time, input]`. Destination: y `[batch, time, hidden]`, then the last h
    /// and c, each `[batch, hidden]`. Batch, time, and whether time comes before the batch in memory.
    Recurrent(#[serde(with = "image::shared")] Arc<super::recurrent::Layer>, (usize, usize, bool)),
    /// Sources: all inputs; destination: all outputs, one after the other. An image can't hold it.
    #[serde(skip)]
    Fallback {
        /// The node.
        node: Fallback,
        /// Types and shapes of the sources.
        inputs: Vec<(DType, Vec<usize>)>,
        /// Types, elements and first words of the outputs.
        outputs: Vec<(DType, usize, usize)>,
    },
}

/// Most operands that a step reads; only concatenations and fallbacks read more than two.
pub const SOURCES_MAX: usize = 16;

/// A kernel with its operands.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    /// What it does.
    pub kernel: Kernel,
    /// What it reads.
    pub sources: Vec<Operand>,
    /// What it writes.
    pub dest: Operand,
    /// Memory for its own use.
    pub scratch: Operand,
    /// Node of the graph.
    pub name: String,
    /// Operator as the graph calls it.
    pub operator: String,
    /// Shapes, for people.
    pub shapes: String,
    /// Floating point operations of all turns, a multiplication and an addition counting as two.
    pub flops: u64,
}

/// A plan for one batch size.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Rows.
    pub batch: usize,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Which of them run together, in order; all steps are in one.
    pub segments: Vec<Segment>,
    /// Constants that steps read, other than packed weights.
    #[serde(with = "image::shared_list")]
    pub constants: Vec<Arc<AlignedBuf>>,
    /// Words of the arena.
    pub arena_words: usize,
    /// The least that an arena would need.
    pub lower_bound_words: usize,
    /// Words of each input.
    pub input_words: Vec<usize>,
    /// Words of each output.
    pub output_words: Vec<usize>,
}

impl Plan {
    /// Whether a step runs through tract.
    pub fn falls_back(&self) -> bool {
        self.steps.iter().any(|s| matches!(s.kernel, Kernel::Fallback { .. }))
    }
    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> usize {
        self.arena_words.saturating_mul(size_of::<f32>())
    }
}

impl Kernel {
    /// Floats of scratch, given what the step needed for the whole batch.
    pub fn scratch_len(&self, whole: usize) -> usize {
        match self {
            Kernel::Conv { conv, batch, .. } => conv.scratch_len(*batch),
            Kernel::CodedConv { conv, batch } => conv.scratch_len(*batch),
            _ => whole,
        }
    }

    /// Bytes of packed weights.
    pub fn weight_bytes(&self) -> usize {
        match self {
            Kernel::Conv { conv, .. } => conv.bytes(),
            Kernel::CodedConv { conv, .. } => conv.bytes(),
            Kernel::Gemm { weights, .. } => weights.bytes(),
            Kernel::Recurrent(layer, ..) => layer.bytes(),
            _ => 0,
        }
    }

    /// Rows of results, where the kernel is a matrix product with packed weights (else 0).
    pub fn product_rows(&self) -> usize {
        match self {
            Kernel::Conv { conv, batch, .. } => conv.product_rows(*batch),
            Kernel::CodedConv { conv, batch } => conv.product_rows(*batch),
            Kernel::Gemm { rows, .. } => *rows,
            _ => 0,
        }
    }

    /// The values that results are rounded to, if they are.
    pub fn grid(&self) -> Option<&Grid> {
        match self {
            Kernel::Conv { act: Activation::Grid(grid), .. }
            | Kernel::Gemm { act: Activation::Grid(grid), .. }
            | Kernel::Activation(Activation::Grid(grid)) => Some(grid),
            _ => None,
        }
    }

    /// The name that `inspect` prints.
    pub fn name(&self) -> String {
        let rounded = if self.grid().is_some() { "+grid" } else { "" };
        match self {
            Kernel::Conv { conv, .. } => format!("conv:{}{rounded}", conv.algorithm().name()),
            Kernel::Gemm { .. } => format!("matmul:packed{rounded}"),
            Kernel::CodedConv { conv, .. } => format!("codes:{}", conv.name()),
            Kernel::AddCodes { .. } => "codes:add".into(),
            Kernel::Encode { .. } => "codes:encode".into(),
            Kernel::Decode { .. } => "codes:decode".into(),
            Kernel::MatMul { .. } => "matmul:dynamic".into(),
            Kernel::Unary(f) => format!("unary:{f:?}"),
            Kernel::Activation(a) => format!("activation:{a:?}"),
            Kernel::Binary { op, .. } => format!("binary:{op:?}"),
            Kernel::Reduce { kind, .. } => format!("reduce:{kind:?}"),
            Kernel::Softmax { .. } => "softmax".into(),
            Kernel::LayerNorm { .. } => "layernorm".into(),
            Kernel::Pool { pool, .. } => format!("pool:{:?}", pool.kind),
            Kernel::Move { copies, .. } if copies.len() == 1 => "move".into(),
            Kernel::Move { .. } => "concat".into(),
            Kernel::Transpose(..) => "transpose".into(),
            Kernel::Embed { .. } => "lookup".into(),
            Kernel::Cast { .. } => "cast".into(),
            Kernel::Quantize { .. } => "quantize".into(),
            Kernel::Dequantize { .. } => "dequantize".into(),
            Kernel::Recurrent(layer, ..) => layer.name().into(),
            Kernel::Fallback { .. } => "fallback:tract".into(),
        }
    }

    /// The name without parameters, for counting.
    pub fn kind(&self) -> String {
        let name = self.name();
        name.split(['(', '{', ' ']).next().unwrap_or_default().to_string()
    }
}
