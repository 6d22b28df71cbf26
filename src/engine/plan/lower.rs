//! From the graph to steps: every value gets an order of its axes in memory and a buffer, every
//! operator a kernel.
//!
//! The order of axes is what makes most layout changes free: a transposition only renames the axes,
//! a reshape keeps the memory where axes that are joined or split lie side by side. A copy is made
//! only where a kernel needs another order (convolutions need channels last) and nothing lies so.

mod codes;
mod finish;
mod moves;
mod products;

use super::graph::{
    Binary, Conv, Epilogue, Gemm, Graph, Node, Op, Pool, PoolKind, Recurrent, Unary, ValueId,
};
use super::ops::{AXES_MAX, Broadcast, Copy};
use super::recurrent::Layer;
use super::step::{Kernel, Operand, Plan, SOURCES_MAX, Space, Step};
use super::{memory, order};
use crate::engine::kernels::{
    self, Activation, AlignedBuf, CodedConv, Conv2d, ConvParams, Grid, Kernels, MatMulParams,
    PackedMatMul, PoolParams, matmul_scratch_len,
};
use crate::engine::{EngineError, EngineErrorKind};
use crate::units::DType;
pub(super) use products::conv_params;
use std::collections::HashMap;
use std::sync::Arc;

/// What all batch sizes and workers share.
pub struct Shared {
    /// Instruction set.
    pub kernels: Kernels,
    convs: HashMap<String, Arc<Conv2d>>,
    gemms: HashMap<String, Arc<PackedMatMul>>,
    /// None where a node can't be one.
    pub(super) coded: HashMap<String, Option<Arc<CodedConv>>>,
    layers: HashMap<String, Arc<Layer>>,
    tables: HashMap<String, Arc<AlignedBuf>>,
    constants: HashMap<String, Arc<AlignedBuf>>,
}

impl Shared {
    /// Nothing packed yet.
    pub fn new(kernels: Kernels) -> Shared {
        Shared {
            kernels,
            convs: HashMap::new(),
            gemms: HashMap::new(),
            coded: HashMap::new(),
            layers: HashMap::new(),
            tables: HashMap::new(),
            constants: HashMap::new(),
        }
    }

    /// Bytes of all weights as they are kept.
    pub fn bytes(&self) -> usize {
        self.convs.values().map(|c| c.bytes()).sum::<usize>()
            + self.gemms.values().map(|g| g.bytes()).sum::<usize>()
            + self.coded.values().flatten().map(|c| c.bytes()).sum::<usize>()
            + self.layers.values().map(|l| l.bytes()).sum::<usize>()
            + self.tables.values().map(|t| t.bytes()).sum::<usize>()
            + self.constants.values().map(|c| c.bytes()).sum::<usize>()
    }

    fn table(&mut self, key: String, table: &[f32]) -> Arc<AlignedBuf> {
        let key = format!("{key}:{:x}", digest(table));
        self.tables.entry(key).or_insert_with(|| Arc::new(AlignedBuf::from_slice(table))).clone()
    }
}

/// Where a value lies: the whole of a buffer from `offset` on, dense, its logical axes in `order`,
/// the outermost first.
#[derive(Debug, Clone)]
struct Phys {
    buf: usize,
    offset: usize,
    order: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Buf {
    words: usize,
    space: Option<Space>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    buf: usize,
    start: usize,
    len: usize,
}

struct Draft {
    kernel: Kernel,
    sources: Vec<Place>,
    dest: Place,
    scratch: usize,
    /// A source that the result may take the place of.
    in_place: Option<usize>,
    name: String,
    operator: String,
    shapes: String,
    flops: u64,
}

struct Lowering<'a> {
    graph: &'a Graph,
    shared: &'a mut Shared,
    bufs: Vec<Buf>,
    phys: Vec<Option<Phys>>,
    drafts: Vec<Draft>,
    copies: HashMap<(ValueId, Vec<usize>), Phys>,
    constants: Vec<Arc<AlignedBuf>>,
    /// The buffer that each was merged into; itself if none.
    merged: Vec<usize>,
}

/// Lowers `graph` for `batch` rows.
///
/// # Errors
/// `Limit` where sizes overflow, `UnsupportedOperator` where no kernel takes a node.
pub fn lower(graph: &Graph, batch: usize, shared: &mut Shared) -> Result<Plan, EngineError> {
    let mut lowering = Lowering {
        graph,
        shared,
        bufs: vec![],
        phys: vec![None; graph.values.len()],
        drafts: vec![],
        copies: HashMap::new(),
        constants: vec![],
        merged: vec![],
    };
    for (i, &input) in graph.inputs.iter().enumerate() {
        let value = &graph.values[input];
        let words = words_of(value.dtype, value.len());
        let order = order::identity(value.shape.len());
        lowering.bufs.push(Buf { words, space: Some(Space::Input(i)) });
        lowering.phys[input] = Some(Phys { buf: i, offset: 0, order });
    }
    for node in &graph.nodes {
        lowering
            .node(node)
            .map_err(|e| if e.node().is_some() { e } else { e.at_node(&node.name) })?;
    }
    lowering.finish(batch)
}

/// Tells constants of one name apart: one that was folded from a shape differs between batch sizes.
fn digest(values: &[f32]) -> u64 {
    values.iter().fold(values.len() as u64, |hash, value| {
        (hash.rotate_left(5) ^ u64::from(value.to_bits())).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

/// 32-bit words that hold `len` elements.
pub fn words_of(dtype: DType, len: usize) -> usize {
    (len * dtype.size_bytes()).div_ceil(size_of::<f32>())
}

fn text(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

impl Lowering<'_> {
    fn shape(&self, v: ValueId) -> &[usize] {
        &self.graph.values[v].shape
    }

    fn buf(&mut self, words: usize) -> usize {
        self.bufs.push(Buf { words, space: None });
        self.bufs.len() - 1
    }

    /// The kernels' form of a function, where they have one.
    fn activation(&self, f: Unary) -> Option<Activation> {
        Some(match f {
            Unary::Relu => Activation::Relu,
            Unary::Clip(lo, hi) => Activation::Clip { lo, hi },
            Unary::LeakyRelu(alpha) => Activation::LeakyRelu { alpha },
            Unary::HardSwish => Activation::HardSwish,
            Unary::HardSigmoid(alpha, beta) => Activation::HardSigmoid { alpha, beta },
            Unary::Silu => Activation::Silu,
            Unary::Sigmoid => Activation::Sigmoid,
            Unary::Tanh => Activation::Tanh,
            Unary::GeluErf => Activation::GeluErf,
            Unary::GeluTanh => Activation::GeluTanh,
            Unary::FakeQuant { scale, zero, lo, hi } => {
                Activation::Grid(Grid::new(&self.shared.kernels, scale, lo - zero, hi - zero)?)
            }
            _ => return None,
        })
    }

    /// A buffer for `v`, its axes in `order`.
    fn define(&mut self, v: ValueId, order: Vec<usize>) -> Place {
        let value = &self.graph.values[v];
        let len = words_of(value.dtype, value.len());
        let buf = self.buf(len);
        self.phys[v] = Some(Phys { buf, offset: 0, order });
        Place { buf, start: 0, len }
    }

    fn constant(&mut self, key: String, make: impl FnOnce() -> AlignedBuf) -> usize {
        let konst = self.shared.constants.entry(key).or_insert_with(|| Arc::new(make())).clone();
        let words = konst.len();
        self.constants.push(konst);
        self.bufs.push(Buf { words, space: Some(Space::Const(self.constants.len() - 1)) });
        self.bufs.len() - 1
    }

    fn order_of(&self, v: ValueId) -> Vec<usize> {
        match &self.phys[v] {
            Some(phys) => phys.order.clone(),
            None => order::identity(self.shape(v).len()),
        }
    }

    /// `v` with its axes in `order`, copied if it does not lie so.
    fn at(&mut self, v: ValueId, order: &[usize]) -> Result<Place, EngineError> {
        let graph = self.graph;
        let value = &graph.values[v];
        let len = words_of(value.dtype, value.len());
        if let Some(floats) = value.floats() {
            let shape = value.shape.clone();
            let key = format!("{}:{shape:?}:{order:?}:{:x}", value.name, digest(floats));
            let order = order.to_vec();
            let buf = self.constant(key, || {
                let mut out = AlignedBuf::zeroed(floats.len());
                order::permute(&shape, &order).run(floats, &mut out);
                out
            });
            return Ok(Place { buf, start: 0, len });
        }
        let Some(phys) = self.phys[v].clone() else {
            return Err(EngineError::new(
                EngineErrorKind::UnsupportedOperator,
                format!("a constant of type {} can't be an operand", value.dtype),
            ));
        };
        if order::same(&value.shape, &phys.order, order) {
            return Ok(Place { buf: phys.buf, start: phys.offset, len });
        }
        if value.dtype.size_bytes() != size_of::<f32>() {
            return Err(EngineError::new(
                EngineErrorKind::UnsupportedOperator,
                format!("a transposition of {} is not supported", value.dtype),
            ));
        }
        let key = (v, order::long(&value.shape, order));
        if let Some(copy) = self.copies.get(&key) {
            return Ok(Place { buf: copy.buf, start: copy.offset, len });
        }
        let strides = order::strides(&value.shape, &phys.order);
        let to = order::strides(&value.shape, order);
        let axes = order.iter().map(|&a| (value.shape[a], strides[a], to[a]));
        let copy = Copy::new(axes, 0, 0);
        let dest = Place { buf: self.buf(len), start: 0, len };
        let source = Place { buf: phys.buf, start: phys.offset, len };
        self.drafts.push(Draft {
            kernel: match copy.transposed() {
                Some((batch, rows, cols)) => Kernel::Transpose(batch, rows, cols),
                None => Kernel::Move { copies: vec![copy], fill: None },
            },
            sources: vec![source],
            dest,
            scratch: 0,
            in_place: None,
            name: value.name.clone(),
            operator: "layout".into(),
            shapes: format!("{} to {}", text(&value.shape), order::text(order)),
            flops: 0,
        });
        self.copies.insert(key, Phys { buf: dest.buf, offset: 0, order: order.to_vec() });
        Ok(dest)
    }

    fn plain(&mut self, v: ValueId) -> Result<Place, EngineError> {
        let order = order::identity(self.shape(v).len());
        self.at(v, &order)
    }

    #[allow(clippy::too_many_arguments)]
    fn push(
        &mut self,
        node: &Node,
        kernel: Kernel,
        sources: Vec<Place>,
        dest: Place,
        scratch: usize,
        in_place: Option<usize>,
        flops: u64,
    ) {
        let join = |ids: &[ValueId]| {
            ids.iter().map(|&i| text(self.shape(i))).collect::<Vec<_>>().join(" ")
        };
        let shapes = format!("{} -> {}", join(&node.inputs), join(&node.outputs));
        self.drafts.push(Draft {
            kernel,
            sources,
            dest,
            scratch,
            in_place,
            name: node.name.clone(),
            operator: node.operator.clone(),
            shapes,
            flops,
        });
    }

    /// The output of a product, and where the product itself goes before an activation that no
    /// product kernel has.
    fn product_dest(
        &mut self,
        e: &Epilogue,
        out: ValueId,
        order: Vec<usize>,
    ) -> (Activation, Place, Option<(Unary, Place)>) {
        let dest = self.define(out, order);
        match e.act {
            None => (Activation::None, dest, None),
            Some(f) => match self.activation(f) {
                Some(act) => (act, dest, None),
                None => {
                    let buf = self.buf(dest.len);
                    (Activation::None, Place { buf, ..dest }, Some((f, dest)))
                }
            },
        }
    }

    fn then(&mut self, node: &Node, from: Place, after: Option<(Unary, Place)>) {
        if let Some((f, dest)) = after {
            self.push(node, Kernel::Unary(f), vec![from], dest, 0, Some(0), dest.len as u64);
        }
    }

    fn node(&mut self, node: &Node) -> Result<(), EngineError> {
        if node.outputs.iter().any(|&o| self.shape(o).len() > AXES_MAX) {
            return Err(EngineError::new(
                EngineErrorKind::Limit,
                format!("a tensor has more than {AXES_MAX} axes"),
            ));
        }
        if let Some(&empty) = node.outputs.iter().find(|&&o| self.shape(o).contains(&0)) {
            return Err(EngineError::new(
                EngineErrorKind::Limit,
                format!(
                    "a tensor of shape {:?} is empty; every axis must be at least 1",
                    self.shape(empty)
                ),
            ));
        }
        let x = node.inputs.first().copied().unwrap_or(0);
        let out = node.outputs[0];
        let len = self.graph.values[out].len();
        match &node.op {
            Op::Conv(conv) => self.conv(node, conv)?,
            Op::Gemm(gemm) => self.gemm(node, gemm)?,
            Op::MatMul { scale } => self.matmul(node, *scale)?,
            Op::Unary(f) => {
                let order = self.order_of(x);
                let from = self.at(x, &order)?;
                let dest = self.define(out, order);
                let kernel = self.activation(*f).map_or(Kernel::Unary(*f), Kernel::Activation);
                self.push(node, kernel, vec![from], dest, 0, Some(0), len as u64);
            }
            Op::Binary(op) => self.binary(node, *op)?,
            Op::Reshape => self.reshape(x, out)?,
            Op::Permute(perm) => {
                let order = self.order_of(x);
                let from = self.at(x, &order)?;
                let renamed = order
                    .iter()
                    .map(|a| perm.iter().position(|p| p == a).expect("perm is a permutation"))
                    .collect();
                self.phys[out] = Some(Phys { buf: from.buf, offset: from.start, order: renamed });
            }
            Op::Slice { axis, start } => self.slice(node, *axis, *start)?,
            Op::Concat { axis } => self.concat(node, *axis)?,
            Op::Pad { pads, value } => {
                let order = self.order_of(x);
                let from = self.at(x, &order)?;
                let (s, d) = (
                    order::strides(self.shape(x), &order),
                    order::strides(self.shape(out), &order),
                );
                let axes: Vec<_> = order.iter().map(|&a| (self.shape(x)[a], s[a], d[a])).collect();
                let to = pads.iter().enumerate().map(|(a, p)| p.0 * d[a]).sum();
                let dest = self.define(out, order);
                let copies = vec![Copy::new(axes, 0, to)];
                self.push(
                    node,
                    Kernel::Move { copies, fill: Some(*value) },
                    vec![from],
                    dest,
                    0,
                    None,
                    0,
                );
            }
            Op::Broadcast => {
                let order = self.order_of(x);
                let from = self.at(x, &order)?;
                let (s, d) = (
                    order::strides(self.shape(x), &order),
                    order::strides(self.shape(out), &order),
                );
                let (xs, os) = (self.shape(x).to_vec(), self.shape(out).to_vec());
                let axes = order.iter().map(|&a| (os[a], if xs[a] == 1 { 0 } else { s[a] }, d[a]));
                let copies = vec![Copy::new(axes, 0, 0)];
                let dest = self.define(out, order.clone());
                self.push(node, Kernel::Move { copies, fill: None }, vec![from], dest, 0, None, 0);
            }
            Op::Upsample { scales } => {
                let order = self.order_of(x);
                let from = self.at(x, &order)?;
                let (s, d) = (
                    order::strides(self.shape(x), &order),
                    order::strides(self.shape(out), &order),
                );
                let shape = self.shape(x).to_vec();
                let axes: Vec<_> = order
                    .iter()
                    .flat_map(|&a| [(shape[a], s[a], d[a] * scales[a]), (scales[a], 0, d[a])])
                    .collect();
                let copy = Copy::new(axes, 0, 0);
                if copy.axes.len() > AXES_MAX {
                    return Err(EngineError::new(
                        EngineErrorKind::Limit,
                        "an upsampling over too many axes",
                    ));
                }
                let dest = self.define(out, order);
                self.push(
                    node,
                    Kernel::Move { copies: vec![copy], fill: None },
                    vec![from],
                    dest,
                    0,
                    None,
                    0,
                );
            }
            Op::Reduce { kind, axes, scale } => {
                let (order, dims) = self.split(x, axes);
                let from = self.at(x, &order)?;
                let dest = self.define(out, order);
                let kernel = Kernel::Reduce { kind: *kind, dims, scale: *scale };
                self.push(node, kernel, vec![from], dest, 0, None, from.len as u64);
            }
            Op::Softmax { axis, scale, log } => {
                let order = order::with_last(self.shape(x), &self.order_of(x), *axis);
                let from = self.at(x, &order)?;
                let dest = self.define(out, order);
                let kernel = Kernel::Softmax { n: self.shape(x)[*axis], scale: *scale, log: *log };
                self.push(node, kernel, vec![from], dest, 0, Some(0), 8 * len as u64);
            }
            Op::LayerNorm { axis, eps, gamma, beta } => {
                let (order, dims) = self.split(x, &[*axis]);
                let from = self.at(x, &order)?;
                let dest = self.define(out, order);
                let gamma = self.shared.table(format!("{}:gamma", node.name), gamma);
                let beta = self.shared.table(format!("{}:beta", node.name), beta);
                let kernel = Kernel::LayerNorm { dims, eps: *eps, gamma, beta };
                self.push(node, kernel, vec![from], dest, 2 * dims.2, None, 8 * len as u64);
            }
            Op::Pool(pool) => {
                let from = self.at(x, &order::CHANNELS_LAST)?;
                let &[n, c, h, w] = self.shape(x) else { return Err(rank_four()) };
                let &[.., oh, ow] = self.shape(out) else { return Err(rank_four()) };
                let dest = self.define(out, order::CHANNELS_LAST.to_vec());
                let flops = (len * pool.kernel[0] * pool.kernel[1]) as u64;
                let kernel = Kernel::Pool {
                    pool: pool.clone(),
                    image: [n, h, w, c],
                    out: [oh, ow],
                    vector: moves::vector_pool(pool, [h, w, c], (oh, ow)),
                };
                self.push(node, kernel, vec![from], dest, 0, None, flops);
            }
            Op::Embed { table, width, first, wraps } => {
                let from = self.plain(x)?;
                let index = self.graph.values[x].dtype;
                let count = self.graph.values[x].len();
                let dest = self.define(out, order::identity(self.shape(out).len()));
                let table = self.shared.table(format!("{}:table", node.name), table);
                let (width, first, wraps) = (*width, *first, *wraps);
                let kernel = Kernel::Embed { table, width, first, wraps, index, count };
                self.push(node, kernel, vec![from], dest, 0, None, 0);
            }
            Op::Cast | Op::Quantize { .. } | Op::Dequantize { .. } => self.convert(node)?,
            Op::CodedConv(conv) => self.coded_conv(node, conv)?,
            Op::AddCodes(codes) => self.add_codes(node, *codes)?,
            Op::Encode(codes) => self.encode(node, *codes)?,
            Op::Decode(codes) => self.decode(node, *codes)?,
            Op::Recurrent(layer) => self.recurrent(node, layer)?,
            Op::OneHot { .. } => {
                return Err(EngineError::new(
                    EngineErrorKind::UnsupportedOperator,
                    "a comparison with a range is supported as a one-hot operand of a product only",
                ));
            }
            Op::Fallback(fallback) => {
                if node.inputs.len() > SOURCES_MAX {
                    return Err(too_many(node.inputs.len()));
                }
                let from =
                    node.inputs.iter().map(|&i| self.plain(i)).collect::<Result<Vec<_>, _>>()?;
                let typed = |&i: &ValueId| {
                    let value = &self.graph.values[i];
                    (value.dtype, value.shape.clone())
                };
                let inputs = node.inputs.iter().map(typed).collect();
                let (dest, outputs) = self.define_all(&node.outputs);
                let kernel = Kernel::Fallback { node: fallback.clone(), inputs, outputs };
                self.push(node, kernel, from, dest, 0, None, 0);
            }
        }
        Ok(())
    }

    /// One buffer for all outputs of a node, one after the other.
    fn define_all(&mut self, outputs: &[ValueId]) -> (Place, Vec<(DType, usize, usize)>) {
        let (buf, mut start) = (self.buf(0), 0);
        let mut places = vec![];
        for &v in outputs {
            let value = &self.graph.values[v];
            let order = order::identity(value.shape.len());
            self.phys[v] = Some(Phys { buf, offset: start, order });
            places.push((value.dtype, value.len(), start));
            start += words_of(value.dtype, value.len());
        }
        self.bufs[buf].words = start;
        (Place { buf, start: 0, len: start }, places)
    }

    /// An order of the axes in which `axes` lie side by side, and the lengths before, of and
    /// after them.
    fn split(&self, x: ValueId, axes: &[usize]) -> (Vec<usize>, (usize, usize, usize)) {
        let shape = self.shape(x);
        let product = |s: &[usize]| s.iter().map(|&a| shape[a]).product::<usize>();
        let mut order = self.order_of(x);
        let long = order::long(shape, &order);
        let within: Vec<bool> = long.iter().map(|a| axes.contains(a)).collect();
        let changes = within.windows(2).filter(|w| w[0] != w[1]).count();
        let first = within.iter().position(|&w| w);
        if changes > 2 || (changes == 2 && within[0]) {
            let (inside, outside): (Vec<usize>, Vec<usize>) =
                order.iter().partition(|a| axes.contains(a));
            order = outside;
            order.extend(inside);
            return (order.clone(), {
                let (i, o): (Vec<usize>, Vec<usize>) = order.iter().partition(|a| axes.contains(a));
                (product(&o), product(&i), 1)
            });
        }
        let Some(first) = first else {
            return (order, (1, 1, product(&long)));
        };
        let last = within.iter().rposition(|&w| w).unwrap_or(first) + 1;
        (order, (product(&long[..first]), product(&long[first..last]), product(&long[last..])))
    }
}

/// The elements of weights.
pub(super) fn floats(tensor: &tract_onnx::prelude::Tensor) -> Result<&[f32], EngineError> {
    tensor.as_plain_ram().and_then(|p| p.as_slice::<f32>().ok()).ok_or_else(|| {
        EngineError::new(EngineErrorKind::Internal, "weights are not f32 after they were widened")
    })
}

fn rank_four() -> EngineError {
    EngineError::new(EngineErrorKind::Internal, "an operator over images got another rank")
}

fn too_many(inputs: usize) -> EngineError {
    EngineError::new(
        EngineErrorKind::Limit,
        format!("an operator reads {inputs} tensors, the limit is {SOURCES_MAX}"),
    )
}
