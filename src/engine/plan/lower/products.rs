//! Steps of convolutions and matrix products, with their weights packed once.

use super::*;

/// The geometry of a convolution of images of `shape`. None where it has not four axes.
pub fn conv_params(conv: &Conv, shape: &[usize]) -> Option<ConvParams> {
    let &[_, c_in, h, w] = shape else { return None };
    // A column of pixels is a row of pixels.
    let turned = w == 1
        && conv.kernel[1] == 1
        && conv.before[1] == 0
        && conv.after[1] == 0
        && conv.stride[1] == 1;
    let (v, u) = if turned { (1, 0) } else { (0, 1) };
    let image = [h, w];
    Some(ConvParams {
        height: image[v],
        width: image[u],
        c_in,
        c_out: conv.out_channels,
        kernel_h: conv.kernel[v],
        kernel_w: conv.kernel[u],
        stride_h: conv.stride[v],
        stride_w: conv.stride[u],
        dilation_h: conv.dilation[v],
        dilation_w: conv.dilation[u],
        pad_top: conv.before[v],
        pad_left: conv.before[u],
        pad_bottom: conv.after[v],
        pad_right: conv.after[u],
        groups: conv.groups,
    })
}

impl Lowering<'_> {
    pub(super) fn conv(&mut self, node: &Node, conv: &Conv) -> Result<(), EngineError> {
        let (x, out) = (node.inputs[0], node.outputs[0]);
        let params = conv_params(conv, self.shape(x)).ok_or_else(rank_four)?;
        let batch = self.shape(x)[0];
        let packed = match self.shared.convs.get(&node.name) {
            Some(packed) => packed.clone(),
            None => {
                let weights = floats(&conv.weight)?;
                let scaled = conv.epilogue.scale.as_ref().map(|scale| {
                    let each = weights.len() / scale.len().max(1);
                    let mut scaled = weights.to_vec();
                    for (chunk, s) in scaled.chunks_exact_mut(each.max(1)).zip(scale) {
                        chunk.iter_mut().for_each(|w| *w *= s);
                    }
                    scaled
                });
                let bias = conv.epilogue.bias.as_deref();
                let packed = Conv2d::new(
                    &self.shared.kernels,
                    params,
                    scaled.as_deref().unwrap_or(weights),
                    bias,
                )
                .map_err(|e| {
                    EngineError::new(EngineErrorKind::UnsupportedOperator, e.to_string())
                })?;
                let packed = Arc::new(packed);
                self.shared.convs.insert(node.name.clone(), packed.clone());
                packed
            }
        };
        let mut sources = vec![self.at(x, &order::CHANNELS_LAST)?];
        if conv.epilogue.residual {
            sources.push(self.at(node.inputs[1], &order::CHANNELS_LAST)?);
        }
        let (act, dest, after) =
            self.product_dest(&conv.epilogue, out, order::CHANNELS_LAST.to_vec());
        let flops = 2 * params.macs() * batch as u64;
        let scratch = packed.scratch_len(batch);
        self.push(
            node,
            Kernel::Conv { conv: packed, batch, act },
            sources,
            dest,
            scratch,
            None,
            flops,
        );
        self.then(node, dest, after);
        Ok(())
    }

    pub(super) fn gemm(&mut self, node: &Node, gemm: &Gemm) -> Result<(), EngineError> {
        let (x, out) = (node.inputs[0], node.outputs[0]);
        let rank = self.shape(x).len();
        let order = order::with_last(self.shape(x), &self.order_of(x), rank - 1);
        let packed = match self.shared.gemms.get(&node.name) {
            Some(packed) => packed.clone(),
            None => {
                let weights = floats(&gemm.weight)?;
                if weights.len() != gemm.k * gemm.n {
                    return Err(EngineError::new(
                        EngineErrorKind::Malformed,
                        format!(
                            "{} weights where {} x {} are needed",
                            weights.len(),
                            gemm.k,
                            gemm.n
                        ),
                    ));
                }
                let scaled = gemm.epilogue.scale.as_ref().map(|scale| {
                    let mut scaled = weights.to_vec();
                    for (i, w) in scaled.iter_mut().enumerate() {
                        *w *= scale[if gemm.transposed { i / gemm.k } else { i % gemm.n }];
                    }
                    scaled
                });
                let (w, bias) =
                    (scaled.as_deref().unwrap_or(weights), gemm.epilogue.bias.as_deref());
                let packed = PackedMatMul::new(
                    &self.shared.kernels,
                    gemm.k,
                    gemm.n,
                    w,
                    gemm.transposed,
                    bias,
                );
                let packed = Arc::new(packed);
                self.shared.gemms.insert(node.name.clone(), packed.clone());
                packed
            }
        };
        let mut sources = vec![self.at(x, &order)?];
        if gemm.epilogue.residual {
            sources.push(self.at(node.inputs[1], &order)?);
        }
        let rows = self.shape(x)[..rank - 1].iter().product::<usize>();
        let (act, dest, after) = self.product_dest(&gemm.epilogue, out, order);
        let flops = 2 * (rows * gemm.k * gemm.n) as u64;
        self.push(node, Kernel::Gemm { weights: packed, rows, act }, sources, dest, 0, None, flops);
        self.then(node, dest, after);
        Ok(())
    }

    pub(super) fn matmul(&mut self, node: &Node, scale: f32) -> Result<(), EngineError> {
        let (a, b, c) = (node.inputs[0], node.inputs[1], node.outputs[0]);
        let rank = self.shape(c).len();
        let (m, k, n) = (self.shape(a)[rank - 2], self.shape(a)[rank - 1], self.shape(b)[rank - 1]);
        let a_order = order::with_last(self.shape(a), &self.order_of(a), rank - 1);
        let mut b_order = self.order_of(b);
        let mut b_strides = order::strides(self.shape(b), &b_order);
        let b_transposed = b_strides[rank - 1] != 1 && n != 1;
        if b_transposed && b_strides[rank - 2] != 1 {
            b_order = order::identity(rank);
            b_strides = order::strides(self.shape(b), &b_order);
        }
        let b_transposed = b_strides[rank - 1] != 1 && n != 1;
        // The result lies as the one transposition that reads it wants it.
        let mut c_order = order::identity(rank);
        let mut readers = self.graph.nodes.iter().filter(|r| r.inputs.contains(&c));
        if let (Some(reader), None) = (readers.next(), readers.next())
            && let Op::Permute(perm) = &reader.op
            && perm.last() == Some(&(rank - 1))
        {
            c_order = perm.clone();
        }
        let sources = vec![self.at(a, &a_order)?, self.at(b, &b_order)?];
        let a_strides = order::strides(self.shape(a), &a_order);
        let c_strides = order::strides(self.shape(c), &c_order);
        let batch = self.shape(c)[..rank - 2].to_vec();
        let mut at = vec![[0; 3]];
        for (axis, &len) in batch.iter().enumerate() {
            let steps = [a_strides[axis], b_strides[axis], c_strides[axis]];
            at = at
                .iter()
                .flat_map(|from| (0..len).map(|i| std::array::from_fn(|o| from[o] + i * steps[o])))
                .collect();
        }
        let params = MatMulParams {
            m,
            k,
            n,
            lda: a_strides[rank - 2].max(k),
            ldb: if b_transposed { b_strides[rank - 1].max(k) } else { b_strides[rank - 2].max(n) },
            ldc: c_strides[rank - 2].max(n),
            b_transposed,
            alpha: scale,
            act: Activation::None,
        };
        let flops = 2 * (at.len() * m * k * n) as u64;
        let dest = self.define(c, c_order);
        let scratch = matmul_scratch_len(&self.shared.kernels, &params);
        self.push(node, Kernel::MatMul { params, at }, sources, dest, scratch, None, flops);
        Ok(())
    }
}
