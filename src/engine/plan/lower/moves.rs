//! Steps that combine, move or convert elements.

use super::*;

impl Lowering<'_> {
    pub(super) fn binary(&mut self, node: &Node, op: Binary) -> Result<(), EngineError> {
        let out = node.outputs[0];
        let shape = self.shape(out).to_vec();
        let (a, b) = (node.inputs[0], node.inputs[1]);
        let full = |this: &Self, v: ValueId| this.shape(v) == shape;
        let computed = |this: &Self, v: ValueId| this.phys[v].is_some();
        let lead = [a, b].into_iter().find(|&v| full(self, v) && computed(self, v));
        let order = lead.map_or_else(|| order::identity(shape.len()), |v| self.order_of(v));
        let mut places = vec![];
        let mut strides = vec![];
        for v in [a, b] {
            let own = self.shape(v).to_vec();
            let missing = shape.len() - own.len();
            let own_order: Vec<usize> =
                order.iter().filter(|&&axis| axis >= missing).map(|&axis| axis - missing).collect();
            places.push(self.at(v, &own_order)?);
            let dense = order::strides(&own, &own_order);
            strides.push(
                (0..shape.len())
                    .map(|axis| {
                        if axis < missing || own[axis - missing] == 1 {
                            0
                        } else {
                            dense[axis - missing]
                        }
                    })
                    .collect::<Vec<_>>(),
            );
        }
        let axes: Vec<_> =
            order.iter().map(|&axis| (shape[axis], strides[0][axis], strides[1][axis])).collect();
        let dest = self.define(out, order);
        let (a_full, b_full) = (full(self, a), full(self, b));
        // The result can take the place of a, or of b where the operator commutes.
        let swap = op.commutes() && b_full && (!a_full || !computed(self, a));
        let broadcast = if swap {
            places.swap(0, 1);
            Broadcast::new(axes.iter().map(|&(n, sa, sb)| (n, sb, sa)))
        } else {
            Broadcast::new(axes)
        };
        let in_place = (a_full || swap).then_some(0);
        let vector = broadcast.vector(op).filter(|_| in_place == Some(0));
        let kernel = Kernel::Binary { op, broadcast, vector };
        self.push(node, kernel, places, dest, 0, in_place, dest.len as u64);
        Ok(())
    }

    pub(super) fn reshape(&mut self, x: ValueId, out: ValueId) -> Result<(), EngineError> {
        let order = self.order_of(x);
        if let Some(renamed) = order::reshaped(self.shape(x), &order, self.shape(out)) {
            let from = self.at(x, &order)?;
            self.phys[out] = Some(Phys { buf: from.buf, offset: from.start, order: renamed });
        } else {
            let from = self.plain(x)?;
            let order = order::identity(self.shape(out).len());
            self.phys[out] = Some(Phys { buf: from.buf, offset: from.start, order });
        }
        Ok(())
    }

    pub(super) fn slice(
        &mut self,
        node: &Node,
        axis: usize,
        start: usize,
    ) -> Result<(), EngineError> {
        let (x, out) = (node.inputs[0], node.outputs[0]);
        let order = self.order_of(x);
        let from = self.at(x, &order)?;
        let s = order::strides(self.shape(x), &order);
        let first = start * s[axis];
        // A slice of the outermost axis is a view.
        let outermost = order::long(self.shape(x), &order).first().is_none_or(|&a| a == axis);
        if outermost && self.graph.values[x].dtype.size_bytes() == size_of::<f32>() {
            self.phys[out] = Some(Phys { buf: from.buf, offset: from.start + first, order });
            return Ok(());
        }
        let d = order::strides(self.shape(out), &order);
        let shape = self.shape(out).to_vec();
        let copies = vec![Copy::new(order.iter().map(|&a| (shape[a], s[a], d[a])), first, 0)];
        let dest = self.define(out, order);
        self.push(node, Kernel::Move { copies, fill: None }, vec![from], dest, 0, None, 0);
        Ok(())
    }

    pub(super) fn concat(&mut self, node: &Node, axis: usize) -> Result<(), EngineError> {
        let out = node.outputs[0];
        if node.inputs.len() > SOURCES_MAX {
            return Err(too_many(node.inputs.len()));
        }
        let lead = node.inputs.iter().copied().find(|&v| self.phys[v].is_some());
        let order =
            lead.map_or_else(|| order::identity(self.shape(out).len()), |v| self.order_of(v));
        let d = order::strides(self.shape(out), &order);
        let (mut sources, mut copies, mut at) = (vec![], vec![], 0);
        for &x in &node.inputs {
            sources.push(self.at(x, &order)?);
            let shape = self.shape(x).to_vec();
            let s = order::strides(&shape, &order);
            copies.push(Copy::new(order.iter().map(|&a| (shape[a], s[a], d[a])), 0, at * d[axis]));
            at += shape[axis];
        }
        let dest = self.define(out, order);
        self.push(node, Kernel::Move { copies, fill: None }, sources, dest, 0, None, 0);
        Ok(())
    }

    pub(super) fn convert(&mut self, node: &Node) -> Result<(), EngineError> {
        let (x, out) = (node.inputs[0], node.outputs[0]);
        let (from_type, to_type) = (self.graph.values[x].dtype, self.graph.values[out].dtype);
        let count = self.graph.values[x].len();
        // Only floats can be put into another order: what isn't one is made in that of the graph.
        let order = match to_type.size_bytes() == size_of::<f32>() {
            true => self.order_of(x),
            false => order::identity(self.shape(x).len()),
        };
        let from = self.at(x, &order)?;
        let dest = self.define(out, order);
        let kernel = match node.op {
            Op::Quantize { scale, zero } => Kernel::Quantize { scale, zero, to: to_type, count },
            Op::Dequantize { scale, zero } => {
                Kernel::Dequantize { scale, zero, from: from_type, count }
            }
            _ => Kernel::Cast { from: from_type, to: to_type, count },
        };
        self.push(node, kernel, vec![from], dest, 0, None, count as u64);
        Ok(())
    }

    pub(super) fn recurrent(&mut self, node: &Node, layer: &Recurrent) -> Result<(), EngineError> {
        let x = node.inputs[0];
        let &[batch, time, width] = self.shape(x) else { return Err(rank_four()) };
        let misfit = || {
            let message = "weights of a recurrent layer don't fit it";
            EngineError::new(EngineErrorKind::Malformed, message).at_node(&node.name)
        };
        let packed = match self.shared.layers.get(&node.name) {
            // The initial state depends on the batch.
            Some(packed) if layer.h0.is_none() && layer.c0.is_none() => packed.clone(),
            _ => {
                let packed = Layer::new(&self.shared.kernels, layer).ok_or_else(misfit)?;
                let packed = Arc::new(packed);
                self.shared.layers.insert(node.name.clone(), packed.clone());
                packed
            }
        };
        if packed.input_width() != width {
            return Err(misfit());
        }
        // Time may come first in memory, and then it does in the result.
        let time_first = order::same(self.shape(x), &self.order_of(x), &[1, 0, 2]);
        let order = if time_first { [1, 0, 2] } else { [0, 1, 2] };
        let from = self.at(x, &order)?;
        let (dest, _) = self.define_all(&node.outputs);
        if let Some(phys) = &mut self.phys[node.outputs[0]] {
            phys.order = order.to_vec();
        }
        let scratch = packed.scratch_len(batch, time);
        let flops = 2 * packed.macs() * (batch * time) as u64;
        let kernel = Kernel::Recurrent(packed, (batch, time, time_first));
        self.push(node, kernel, vec![from], dest, scratch, None, flops);
        Ok(())
    }
}

/// The vector kernel's form of a pooling, where it has the same windows.
pub(super) fn vector_pool(
    pool: &Pool,
    [height, width, channels]: [usize; 3],
    out: (usize, usize),
) -> Option<PoolParams> {
    let kind = match pool.kind {
        PoolKind::Max => kernels::PoolKind::Max,
        PoolKind::Average { include_pad } => {
            kernels::PoolKind::Average { count_include_pad: include_pad }
        }
        PoolKind::Sum => return None,
    };
    let params = PoolParams {
        kind,
        height,
        width,
        channels,
        kernel_h: pool.kernel[0],
        kernel_w: pool.kernel[1],
        stride_h: pool.stride[0],
        stride_w: pool.stride[1],
        pad_top: pool.before[0],
        pad_left: pool.before[1],
        pad_bottom: pool.after[0],
        pad_right: pool.after[1],
        ceil_mode: false,
    };
    (pool.dilation == [1, 1] && params.output() == out).then_some(params)
}
