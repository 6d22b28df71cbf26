//! The intermediate representation: values and operators with every shape known, before layout and
//! memory are decided.
//!
//! Shapes are logical (as ONNX has them, channels on axis 1). f16 is widened to f32 when a graph is
//! imported; other element types stay.

use crate::engine::kernels::{CodedConv, Codes};
use crate::units::DType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tract_onnx::prelude::{Tensor, TypedSimplePlan};

/// A value of the graph, by position in [`Graph::values`].
pub type ValueId = usize;

/// What is known of a value.
#[derive(Debug, Clone)]
pub struct Value {
    /// Element type.
    pub dtype: DType,
    /// Logical shape.
    pub shape: Vec<usize>,
    /// Its elements, where they are known at load.
    pub konst: Option<Arc<Tensor>>,
    /// Name of the node that makes it.
    pub name: String,
}

impl Value {
    /// Elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }
    /// The elements of an f32 constant.
    pub fn floats(&self) -> Option<&[f32]> {
        self.konst.as_ref()?.as_plain_ram()?.as_slice::<f32>().ok()
    }
    /// The element of an f32 constant with one element.
    pub fn scalar(&self) -> Option<f32> {
        let floats = self.floats()?;
        (floats.len() == 1).then(|| floats[0])
    }
}

/// A function of one element. All are f32 to f32.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Unary {
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, lo), hi)`.
    Clip(f32, f32),
    /// `x * clip(x / 6 + 1 / 2, 0, 1)`.
    HardSwish,
    /// `clip(alpha * x + beta, 0, 1)`.
    HardSigmoid(f32, f32),
    /// `x * sigmoid(x)`.
    Silu,
    /// Logistic function.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// GELU by the error function.
    GeluErf,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// `x` below zero times alpha.
    LeakyRelu(f32),
    /// Exponential.
    Exp,
    /// Natural logarithm.
    Ln,
    /// Error function.
    Erf,
    /// Square root.
    Sqrt,
    /// `1 / sqrt(x)`.
    Rsqrt,
    /// `1 / x`.
    Recip,
    /// `x * x`.
    Square,
    /// Absolute value.
    Abs,
    /// `-x`.
    Neg,
    /// Round down.
    Floor,
    /// Round up.
    Ceil,
    /// `scale * x + shift`.
    Affine(f32, f32),
    /// To a quantised grid and back: `(clamp(round(x / scale) + zero, lo, hi) - zero) * scale`.
    FakeQuant {
        /// Step of the grid.
        scale: f32,
        /// Zero point.
        zero: i32,
        /// Least quantised value.
        lo: i32,
        /// Largest quantised value.
        hi: i32,
    },
}

/// A function of two elements, with NumPy broadcasting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Binary {
    /// a + b
    Add,
    /// a - b
    Sub,
    /// a * b
    Mul,
    /// a / b
    Div,
    /// The smaller.
    Min,
    /// The larger.
    Max,
    /// a to the power b
    Pow,
}

impl Binary {
    /// The function itself.
    #[inline(always)]
    pub fn eval(self, a: f32, b: f32) -> f32 {
        match self {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            // f32::min and max drop a NaN; here either one's goes on.
            Binary::Min if a.is_nan() || a < b => a,
            Binary::Max if a.is_nan() || a > b => a,
            Binary::Min | Binary::Max => b,
            Binary::Pow => a.powf(b),
        }
    }
    /// Whether `a op b == b op a`.
    pub fn commutes(self) -> bool {
        matches!(self, Binary::Add | Binary::Mul | Binary::Min | Binary::Max)
    }
}

/// What is done to a sum of products before it is stored: `act(scale[c] * sum + bias[c] + residual)`,
/// the scale folded into the weights when they are packed.
#[derive(Debug, Clone, Default)]
pub struct Epilogue {
    /// Per output channel, if any.
    pub scale: Option<Vec<f32>>,
    /// Per output channel, if any.
    pub bias: Option<Vec<f32>>,
    /// Whether the node's last input is added before the activation.
    pub residual: bool,
    /// Applied last.
    pub act: Option<Unary>,
}

/// A convolution with constant weights over NCHW; one spatial axis is `[1, width]`.
#[derive(Debug, Clone)]
pub struct Conv {
    /// Weights, `[out, in / groups, kernel height, kernel width]`.
    pub weight: Arc<Tensor>,
    /// Kernel height and width.
    pub kernel: [usize; 2],
    /// Strides.
    pub stride: [usize; 2],
    /// Dilations.
    pub dilation: [usize; 2],
    /// Padding before (top, left).
    pub before: [usize; 2],
    /// Padding after (bottom, right).
    pub after: [usize; 2],
    /// Groups.
    pub groups: usize,
    /// Output channels.
    pub out_channels: usize,
    /// What follows.
    pub epilogue: Epilogue,
}

/// `[.., k] x [k, n]` with constant weights.
#[derive(Debug, Clone)]
pub struct Gemm {
    /// Weights, `[k, n]`, or `[n, k]` if `transposed`.
    pub weight: Arc<Tensor>,
    /// Whether the weights lie as `[n, k]`.
    pub transposed: bool,
    /// Inner length.
    pub k: usize,
    /// Columns.
    pub n: usize,
    /// What follows.
    pub epilogue: Epilogue,
}

/// How a window is reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolKind {
    /// Largest.
    Max,
    /// Mean over the elements inside the image, or over the whole window if `include_pad`.
    Average {
        /// Whether padding counts.
        include_pad: bool,
    },
    /// Sum.
    Sum,
}

/// A pooling window over NCHW.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pool {
    /// How.
    pub kind: PoolKind,
    /// Window height and width.
    pub kernel: [usize; 2],
    /// Strides.
    pub stride: [usize; 2],
    /// Dilations.
    pub dilation: [usize; 2],
    /// Padding before (top, left).
    pub before: [usize; 2],
    /// Padding after (bottom, right), as far as the last window reaches.
    pub after: [usize; 2],
}

/// How axes are reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReduceKind {
    /// Sum.
    Sum,
    /// Largest.
    Max,
    /// Smallest.
    Min,
    /// Product.
    Prod,
    /// Sum of squares.
    SumSquares,
}

/// A recurrent layer, one direction, constant weights in ONNX's gate order.
#[derive(Debug, Clone)]
pub struct Recurrent {
    /// LSTM, or else GRU with `linear_before_reset`.
    pub lstm: bool,
    /// `[gates * hidden, input]`.
    pub w: Arc<Tensor>,
    /// `[gates * hidden, hidden]`.
    pub r: Arc<Tensor>,
    /// `[2 * gates * hidden]`: of W, then of R; empty if there is none.
    pub bias: Vec<f32>,
    /// Length of the hidden state.
    pub hidden: usize,
    /// Whether time runs backwards.
    pub reverse: bool,
    /// Initial hidden state, `[batch, hidden]`; zero if there is none.
    pub h0: Option<Vec<f32>>,
    /// Initial cell state, `[batch, hidden]`; zero if there is none.
    pub c0: Option<Vec<f32>>,
}

/// A node of tract's graph that runs through tract.
#[derive(Clone)]
pub struct Fallback {
    /// A graph of that node alone.
    pub plan: Arc<TypedSimplePlan>,
    /// Element types that it takes.
    pub input_types: Vec<tract_onnx::prelude::DatumType>,
}

impl std::fmt::Debug for Fallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fallback({:?})", self.input_types)
    }
}

/// An operator.
#[derive(Debug, Clone)]
pub enum Op {
    /// Inputs: x, and a residual if the epilogue says so.
    Conv(Conv),
    /// Inputs: a, and a residual if the epilogue says so.
    Gemm(Gemm),
    /// `[.., m, k] x [.., k, n]`, both computed, equal batch axes; the product times a constant.
    MatMul {
        /// Factor.
        scale: f32,
    },
    /// Input: x.
    Pool(Pool),
    /// Input: x. The axes stay, with length 1. The result times `scale`.
    Reduce {
        /// How.
        kind: ReduceKind,
        /// Which.
        axes: Vec<usize>,
        /// Factor.
        scale: f32,
    },
    /// Inputs: a, b.
    Binary(Binary),
    /// Input: x.
    Unary(Unary),
    /// Input: x, times `scale` first.
    Softmax {
        /// Along which axis.
        axis: usize,
        /// Factor.
        scale: f32,
        /// Whether the logarithm of it is wanted.
        log: bool,
    },
    /// Input: x. `(x - mean) / sqrt(variance + eps) * gamma + beta` along one axis.
    LayerNorm {
        /// Along which axis.
        axis: usize,
        /// Added to the variance.
        eps: f32,
        /// Per position of the axis.
        gamma: Arc<Vec<f32>>,
        /// Per position of the axis.
        beta: Arc<Vec<f32>>,
    },
    /// Input: x, same elements in the same logical order.
    Reshape,
    /// Output axis `i` is input axis `perm[i]`.
    Permute(Vec<usize>),
    /// Input: x; `start ..` of one axis, as long as the output.
    Slice {
        /// Which axis.
        axis: usize,
        /// First position.
        start: usize,
    },
    /// Inputs one after the other along an axis.
    Concat {
        /// Which axis.
        axis: usize,
    },
    /// Constant padding.
    Pad {
        /// Before and after, per axis.
        pads: Vec<(usize, usize)>,
        /// Filled with.
        value: f32,
    },
    /// Input: x, axes of length 1 stretched.
    Broadcast,
    /// Whole multiples of each axis, nearest neighbour.
    Upsample {
        /// Factor per axis.
        scales: Vec<usize>,
    },
    /// Input: indices (integer). Rows of a table, `[rows, width]`; the last row is for an index
    /// outside the others.
    Embed {
        /// The table.
        table: Arc<Vec<f32>>,
        /// Length of a row.
        width: usize,
        /// First index.
        first: i64,
        /// Whether negative indices count from the end (then `first` is 0).
        wraps: bool,
    },
    /// Whether an integer equals each of `first .. first + count`, along a new last axis that the
    /// input has with length 1. Only a step towards [`Op::Embed`].
    OneHot {
        /// First value.
        first: i64,
        /// How many.
        count: usize,
    },
    /// To the output's element type.
    Cast,
    /// Input: x (f32) to i8 or u8.
    Quantize {
        /// Scale.
        scale: f32,
        /// Zero point.
        zero: i32,
    },
    /// Input: x (i8, u8 or i32) to f32.
    Dequantize {
        /// Scale.
        scale: f32,
        /// Zero point.
        zero: i32,
    },
    /// Input: codes. Output: codes.
    CodedConv(Arc<CodedConv>),
    /// Inputs: codes, as the first two say. Output: those of the sums, as the last says.
    AddCodes([Codes; 3]),
    /// Input: x (f32). Output: codes.
    Encode(Codes),
    /// Input: codes. Output: what they stand for.
    Decode(Codes),
    /// Input: x `[batch, time, input]`. Outputs: y `[batch, time, hidden]`, and the last h and c,
    /// each `[batch, 1, hidden]` (c for LSTM only).
    Recurrent(Box<Recurrent>),
    /// Through tract.
    Fallback(Fallback),
}

/// An operator with its operands.
#[derive(Debug, Clone)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// From what.
    pub inputs: Vec<ValueId>,
    /// Into what.
    pub outputs: Vec<ValueId>,
    /// Name in the ONNX file, as far as tract keeps it.
    pub name: String,
    /// Operator as tract calls it.
    pub operator: String,
}

/// A graph; nodes in an order in which they can run.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// All values.
    pub values: Vec<Value>,
    /// Nodes that are left.
    pub nodes: Vec<Node>,
    /// Values that requests bring.
    pub inputs: Vec<ValueId>,
    /// Values that answers take.
    pub outputs: Vec<ValueId>,
    /// Constants by the element type that the file has them in: elements.
    pub stored: Vec<(DType, usize)>,
}

impl Graph {
    /// A new value that is computed.
    pub fn value(&mut self, name: &str, dtype: DType, shape: Vec<usize>) -> ValueId {
        self.values.push(Value { dtype, shape, konst: None, name: name.to_string() });
        self.values.len() - 1
    }
    /// A new f32 constant.
    pub fn floats(&mut self, name: &str, shape: Vec<usize>, data: &[f32]) -> ValueId {
        let tensor = Tensor::from_shape(&shape, data).expect("the caller's length fits its shape");
        self.values.push(Value {
            dtype: DType::F32,
            shape,
            konst: Some(Arc::new(tensor)),
            name: name.to_string(),
        });
        self.values.len() - 1
    }
    /// Which node makes each value.
    pub fn producers(&self) -> Vec<Option<usize>> {
        let mut producers = vec![None; self.values.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            for &output in &node.outputs {
                producers[output] = Some(i);
            }
        }
        producers
    }
    /// How often each value is read, an output of the graph counting as one.
    pub fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.values.len()];
        for node in &self.nodes {
            for &input in &node.inputs {
                uses[input] += 1;
            }
        }
        for &output in &self.outputs {
            uses[output] += 1;
        }
        uses
    }
    /// Makes every reader of `from` read `to`.
    pub fn replace(&mut self, from: ValueId, to: ValueId) {
        for node in &mut self.nodes {
            for input in &mut node.inputs {
                if *input == from {
                    *input = to;
                }
            }
        }
        for output in &mut self.outputs {
            if *output == from {
                *output = to;
            }
        }
    }
    /// Drops nodes that nothing reads.
    pub fn sweep(&mut self) {
        let mut live = vec![false; self.values.len()];
        for &output in &self.outputs {
            live[output] = true;
        }
        let mut keep = vec![false; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if node.outputs.iter().any(|&o| live[o]) {
                keep[i] = true;
                for &input in &node.inputs {
                    live[input] = true;
                }
            }
        }
        let mut keep = keep.into_iter();
        self.nodes.retain(|_| keep.next().unwrap_or(true));
    }
}
