//! Convolutions, pooling and products of tensors.

use super::*;

impl Importer<'_> {
    pub(super) fn conv(
        &mut self,
        node: &TypedNode,
        conv: &ops::cnn::Conv,
        inputs: &[ValueId],
    ) -> Result<bool, EngineError> {
        use ops::cnn::KernelFormat;
        use ops::nn::DataFormat;
        let spec = &conv.pool_spec;
        let rank = spec.kernel_shape.len();
        if conv.q_params.is_some()
            || conv.kernel_fmt != KernelFormat::OIHW
            || spec.data_format != DataFormat::NCHW
            || !(rank == 1 || rank == 2)
        {
            return Ok(false);
        }
        let (Some(weight), Some(bias)) =
            (self.val(inputs[1]).konst.clone(), self.val(inputs[2]).floats().map(<[f32]>::to_vec))
        else {
            return Ok(false);
        };
        let Some((kernel, stride, dilation, before, after)) =
            geometry(spec, &self.val(inputs[0]).shape[2..])
        else {
            return Ok(false);
        };
        let out_channels = spec.output_channels;
        let bias = match bias.len() {
            1 if bias[0] == 0.0 => None,
            1 => Some(vec![bias[0]; out_channels]),
            n if n == out_channels => Some(bias),
            _ => return Ok(false),
        };
        let conv = Conv {
            weight,
            kernel,
            stride,
            dilation,
            before,
            after,
            groups: conv.group,
            out_channels,
            epilogue: Epilogue { bias, ..Epilogue::default() },
        };
        let (_, out_shape) = self.fact(node.id.into())?;
        let mut x = inputs[0];
        if rank == 1 {
            let s = self.val(x).shape.clone();
            x = self.reshaped(x, vec![s[0], s[1], 1, s[2]], &node.name);
        }
        let plane = match out_shape[..] {
            [n, c, w] => vec![n, c, 1, w],
            _ => out_shape.clone(),
        };
        let out = self.graph.value(&node.name, DType::F32, plane);
        self.push(Op::Conv(conv), vec![x], vec![out], &node.name, "Conv");
        let out = self.reshaped(out, out_shape, &node.name);
        self.alias(node, out);
        Ok(true)
    }

    pub(super) fn pool(
        &mut self,
        node: &TypedNode,
        spec: &ops::cnn::PoolSpec,
        kind: PoolKind,
        x: ValueId,
    ) -> Result<bool, EngineError> {
        let rank = spec.kernel_shape.len();
        if spec.data_format != ops::nn::DataFormat::NCHW || !(rank == 1 || rank == 2) {
            return Ok(false);
        }
        let Some((kernel, stride, dilation, before, after)) =
            geometry(spec, &self.val(x).shape[2..])
        else {
            return Ok(false);
        };
        let (_, out_shape) = self.fact(node.id.into())?;
        let s = self.val(x).shape.clone();
        // A window over the whole image without padding is a reduction.
        if s.len() == 4
            && kernel == [s[2], s[3]]
            && before == [0, 0]
            && after == [0, 0]
            && out_shape[2..] == [1, 1]
        {
            let (kind, scale) = match kind {
                PoolKind::Max => (ReduceKind::Max, 1.0),
                PoolKind::Average { .. } => (ReduceKind::Sum, 1.0 / (s[2] * s[3]) as f32),
                PoolKind::Sum => (ReduceKind::Sum, 1.0),
            };
            self.emit(node, Op::Reduce { kind, axes: vec![2, 3], scale }, vec![x])?;
            return Ok(true);
        }
        let pool = Pool { kind, kernel, stride, dilation, before, after };
        let mut x = x;
        if rank == 1 {
            x = self.reshaped(x, vec![s[0], s[1], 1, s[2]], &node.name);
        }
        let plane = match out_shape[..] {
            [n, c, w] => vec![n, c, 1, w],
            _ => out_shape.clone(),
        };
        let out = self.graph.value(&node.name, DType::F32, plane);
        self.push(Op::Pool(pool), vec![x], vec![out], &node.name, &node.op.name());
        let out = self.reshaped(out, out_shape, &node.name);
        self.alias(node, out);
        Ok(true)
    }

    /// A product of two tensors, as a matrix product between permutations and reshapes.
    pub(super) fn einsum(
        &mut self,
        node: &TypedNode,
        einsum: &ops::einsum::EinSum,
        inputs: &[ValueId],
    ) -> Result<bool, EngineError> {
        if inputs.len() != 2 || einsum.q_params.is_some() {
            return Ok(false);
        }
        let (ins, outs) = einsum.axes.to_strs();
        let (a, b, c): (Vec<char>, Vec<char>, Vec<char>) =
            (ins[0].chars().collect(), ins[1].chars().collect(), outs[0].chars().collect());
        let distinct = |s: &[char]| s.iter().enumerate().all(|(i, ch)| !s[..i].contains(ch));
        let known = c.iter().all(|ch| a.contains(ch) || b.contains(ch));
        if ![&a, &b, &c].iter().all(|s| distinct(s)) || !known {
            return Ok(false);
        }
        let size = |ch: char, this: &Self| {
            let dim = |s: &[char], id: ValueId| {
                s.iter().position(|&x| x == ch).map(|p| this.val(id).shape[p])
            };
            dim(&a, inputs[0]).into_iter().chain(dim(&b, inputs[1])).max().unwrap_or(1)
        };
        // Axes that broadcast (1 against n) are left to tract.
        for (s, id) in [(&a, inputs[0]), (&b, inputs[1])] {
            for (p, &ch) in s.iter().enumerate() {
                if self.val(id).shape[p] != size(ch, self) {
                    return Ok(false);
                }
            }
        }
        // An axis of one operand alone that is not in the result would be summed: not a product.
        if a.iter().any(|ch| !b.contains(ch) && !c.contains(ch))
            || b.iter().any(|ch| !a.contains(ch) && !c.contains(ch))
        {
            return Ok(false);
        }
        let const_a = self.val(inputs[0]).konst.is_some();
        // A constant goes to the right: C' = B' A'.
        let (l, r, lx, rx) = if const_a {
            (b.clone(), a.clone(), inputs[1], inputs[0])
        } else {
            (a.clone(), b.clone(), inputs[0], inputs[1])
        };
        let pick = |s: &[char], f: &dyn Fn(char) -> bool| -> Vec<char> {
            s.iter().copied().filter(|&ch| f(ch)).collect()
        };
        let batch = pick(&c, &|ch| l.contains(&ch) && r.contains(&ch));
        let m = pick(&l, &|ch| c.contains(&ch) && !r.contains(&ch));
        let n = pick(&r, &|ch| c.contains(&ch) && !l.contains(&ch));
        let k = pick(&l, &|ch| r.contains(&ch) && !c.contains(&ch));
        let dims = |s: &[char], this: &Self| -> Vec<usize> {
            s.iter().map(|&ch| size(ch, this)).collect()
        };
        let (bd, md, nd, kd) = (dims(&batch, self), dims(&m, self), dims(&n, self), dims(&k, self));
        let [ms, ns, ks] = [&md, &nd, &kd].map(|d| d.iter().product::<usize>());
        let order = |s: &[char], want: &[char]| -> Vec<usize> {
            want.iter()
                .map(|ch| s.iter().position(|x| x == ch).expect("axes were sorted above"))
                .collect()
        };
        let name = node.name.clone();
        let konst = self.val(rx).konst.clone();
        let product = if let (Some(weight), true) = (konst, batch.is_empty()) {
            // Weights as [k, n] or [n, k], whichever they lie in already.
            let kn: Vec<char> = k.iter().chain(&n).copied().collect();
            let nk: Vec<char> = n.iter().chain(&k).copied().collect();
            let (weight, transposed) = if r == nk && r != kn {
                (weight, true)
            } else if r == kn {
                (weight, false)
            } else {
                let permuted =
                    weight.into_tensor().permute_axes(&order(&r, &kn)).map_err(tract_failed)?;
                (permuted.into_arc_tensor(), false)
            };
            let lk: Vec<char> = m.iter().chain(&k).copied().collect();
            let left = self.permuted(lx, order(&l, &lk), &name);
            let mut left_shape = md.clone();
            left_shape.push(ks);
            let left = self.reshaped(left, left_shape, &name);
            let gemm = Gemm { weight, transposed, k: ks, n: ns, epilogue: Epilogue::default() };
            let mut shape = md.clone();
            shape.push(ns);
            let out = self.graph.value(&name, DType::F32, shape);
            self.push(Op::Gemm(gemm), vec![left], vec![out], &name, "MatMul");
            out
        } else {
            let side = |first: &[char], second: &[char]| -> Vec<char> {
                batch.iter().chain(first).chain(second).copied().collect()
            };
            // The batch axes stay apart: they need not lie side by side in memory.
            let with = |x: usize, y: usize| bd.iter().copied().chain([x, y]).collect::<Vec<_>>();
            let left = self.permuted(lx, order(&l, &side(&m, &k)), &name);
            let left = self.reshaped(left, with(ms, ks), &name);
            let right = self.permuted(rx, order(&r, &side(&k, &n)), &name);
            let right = self.reshaped(right, with(ks, ns), &name);
            let out = self.graph.value(&name, DType::F32, with(ms, ns));
            self.push(Op::MatMul { scale: 1.0 }, vec![left, right], vec![out], &name, "MatMul");
            out
        };
        let full: Vec<usize> = bd.iter().chain(&md).chain(&nd).copied().collect();
        let have: Vec<char> = batch.iter().chain(&m).chain(&n).copied().collect();
        let product = self.reshaped(product, full, &name);
        let product = self.permuted(product, order(&have, &c), &name);
        self.alias(node, product);
        Ok(true)
    }
}

/// Kernel, strides, dilations, padding before and after, as two axes.
pub(super) fn geometry(spec: &ops::cnn::PoolSpec, image: &[usize]) -> Option<Geometry> {
    let padding = spec.computed_padding(image);
    let two = |s: &[usize], fill: usize| -> Option<[usize; 2]> {
        match *s {
            [w] => Some([fill, w]),
            [h, w] => Some([h, w]),
            _ => None,
        }
    };
    let before: Vec<usize> = padding.iter().map(|p| p.pad_before).collect();
    let after: Vec<usize> = padding.iter().map(|p| p.pad_after).collect();
    Some((
        two(&spec.kernel_shape, 1)?,
        two(&spec.strides(), 1)?,
        two(&spec.dilations(), 1)?,
        two(&before, 0)?,
        two(&after, 0)?,
    ))
}
