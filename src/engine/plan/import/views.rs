//! Slices, lookups and recurrent layers.

use super::*;

impl Importer<'_> {
    pub(super) fn strided_slice(
        &mut self,
        node: &TypedNode,
        op: &ops::array::StridedSlice,
        inputs: &[ValueId],
        out_shape: &[usize],
    ) -> Result<bool, EngineError> {
        let ints = |this: &Self, slot: usize| -> Option<Vec<i64>> {
            let konst = this.val(inputs[slot]).konst.clone()?;
            let ints = konst.cast_to::<i64>().ok()?;
            Some(ints.as_plain_ram()?.as_slice::<i64>().ok()?.to_vec())
        };
        let (Some(begin), Some(end)) = (ints(self, 1), ints(self, 2)) else { return Ok(false) };
        let axes = match op.optional_axes_input {
            Some(slot) => ints(self, slot),
            None => Some((0..begin.len() as i64).collect()),
        };
        let steps = match op.optional_steps_input {
            Some(slot) => ints(self, slot),
            None => Some(vec![1; begin.len()]),
        };
        let (Some(axes), Some(steps)) = (axes, steps) else { return Ok(false) };
        if op.begin_mask != 0
            || op.end_mask != 0
            || op.shrink_axis_mask != 0
            || steps.iter().any(|&s| s != 1)
        {
            return Ok(false);
        }
        let mut x = inputs[0];
        let rank = self.val(x).shape.len() as i64;
        if self.val(x).dtype != DType::F32 && self.val(x).shape != out_shape {
            return Ok(false);
        }
        for ((&axis, &begin), &end) in axes.iter().zip(&begin).zip(&end) {
            let axis = if axis < 0 { axis + rank } else { axis } as usize;
            let len = self.val(x).shape[axis] as i64;
            let clamp = |v: i64| if v < 0 { (v + len).max(0) } else { v.min(len) };
            let (begin, end) = (clamp(begin), clamp(end));
            if begin == 0 && end == len {
                continue;
            }
            let mut shape = self.val(x).shape.clone();
            shape[axis] = (end - begin).max(0) as usize;
            let out = self.graph.value(&node.name, DType::F32, shape);
            let op = Op::Slice { axis, start: begin as usize };
            self.push(op, vec![x], vec![out], &node.name, "Slice");
            x = out;
        }
        if self.val(x).shape != out_shape {
            return Ok(false);
        }
        self.alias(node, x);
        Ok(true)
    }

    /// A constant index is a slice; a constant table is a lookup.
    pub(super) fn gather(
        &mut self,
        node: &TypedNode,
        axis: usize,
        inputs: &[ValueId],
        out_shape: &[usize],
    ) -> Result<bool, EngineError> {
        let (data, indices) = (inputs[0], inputs[1]);
        if self.val(data).dtype != DType::F32 {
            return Ok(false);
        }
        if let Some(konst) = self.val(indices).konst.clone() {
            let Ok(index) = konst.cast_to_scalar::<i64>() else { return Ok(false) };
            if konst.len() != 1 {
                return Ok(false);
            }
            let mut shape = self.val(data).shape.clone();
            let start = if index < 0 { index + shape[axis] as i64 } else { index };
            if !(0..shape[axis] as i64).contains(&start) {
                return Ok(false);
            }
            shape[axis] = 1;
            let out = self.graph.value(&node.name, DType::F32, shape);
            let op = Op::Slice { axis, start: start as usize };
            self.push(op, vec![data], vec![out], &node.name, "Gather");
            let out = self.reshaped(out, out_shape.to_vec(), &node.name);
            self.alias(node, out);
            return Ok(true);
        }
        let integer = matches!(self.val(indices).dtype, DType::I32 | DType::I64);
        let shape = self.val(data).shape.clone();
        let Some(rows) =
            self.val(data).floats().filter(|_| axis == 0 && integer && !shape.is_empty())
        else {
            return Ok(false);
        };
        let width: usize = shape[1..].iter().product();
        let mut table = rows.to_vec();
        // An index outside is an error in ONNX; a row of NaN makes it visible in the answer.
        table.resize(table.len() + width, f32::NAN);
        let op = Op::Embed { table: Arc::new(table), width, first: 0, wraps: true };
        self.emit(node, op, vec![indices])?;
        Ok(true)
    }

    pub(super) fn recurrent(
        &mut self,
        node: &TypedNode,
        inputs: &[ValueId],
    ) -> Result<bool, EngineError> {
        use ops::scan::{InputMapping, Scan};
        let (lstm, hidden, has_bias, chunk, outlets): (
            bool,
            usize,
            bool,
            isize,
            [Option<usize>; 3],
        );
        if let Some(gru) = node.op_as::<ops::gru_seq::GruSeq>() {
            if gru.projected || gru.packed_r.is_some() {
                return Ok(false);
            }
            (lstm, hidden, has_bias, chunk) = (false, gru.hidden, gru.has_bias, gru.chunk);
            outlets = [Some(0), Some(1), None];
        } else if let Some(scan) = node.op_as::<Scan>() {
            let cell = scan.body.nodes().iter().find_map(|n| {
                n.op_as::<ops::lstm_cell::LstmEpilogue>()
                    .map(|c| (true, c.hidden))
                    .or_else(|| n.op_as::<ops::gru_cell::GruEpilogue>().map(|c| (false, c.hidden)))
            });
            let Some((is_lstm, h)) = cell else { return Ok(false) };
            let InputMapping::Scan(info) = scan.input_mapping[0] else { return Ok(false) };
            let states = scan.input_mapping.iter().filter(|m| m.is_state()).count();
            let full = scan.input_mapping.len() - 1 - states;
            if !(full == 2 || full == 3)
                || states != 1 + usize::from(is_lstm)
                || info.chunk.abs() != 1
            {
                return Ok(false);
            }
            (lstm, hidden, has_bias, chunk) = (is_lstm, h, full == 3, info.chunk);
            let c = if is_lstm { scan.output_mapping[1].last_value_slot } else { None };
            outlets = [
                scan.output_mapping[0].scan.map(|(slot, _)| slot),
                scan.output_mapping[0].last_value_slot,
                c,
            ];
        } else {
            return Ok(false);
        }
        let (Some(w), Some(r)) =
            (self.val(inputs[1]).konst.clone(), self.val(inputs[2]).konst.clone())
        else {
            return Ok(false);
        };
        let bias =
            if has_bias { self.val(inputs[3]).floats().map(<[f32]>::to_vec) } else { Some(vec![]) };
        let state = |slot: usize| -> Option<Option<Vec<f32>>> {
            let floats = self.val(inputs[slot]).floats()?.to_vec();
            Some(if floats.iter().all(|&x| x == 0.0) { None } else { Some(floats) })
        };
        let first = 3 + usize::from(has_bias);
        let (Some(bias), Some(h0)) = (bias, state(first)) else { return Ok(false) };
        let c0 = if lstm {
            let Some(c0) = state(first + 1) else { return Ok(false) };
            c0
        } else {
            None
        };
        let [batch, time, _] = self.val(inputs[0]).shape[..] else { return Ok(false) };
        let shapes = [vec![batch, time, hidden], vec![batch, 1, hidden], vec![batch, 1, hidden]];
        let mut outputs = vec![];
        for (shape, outlet) in shapes.into_iter().zip(outlets).take(if lstm { 3 } else { 2 }) {
            let out = self.graph.value(&node.name, DType::F32, shape);
            outputs.push(out);
            if let Some(slot) = outlet.filter(|&slot| slot < node.outputs.len()) {
                let (_, wanted) = self.fact(OutletId::new(node.id, slot))?;
                let out = self.reshaped(out, wanted, &node.name);
                self.map.insert(OutletId::new(node.id, slot), out);
            }
        }
        let op = Recurrent { lstm, w, r, bias, hidden, reverse: chunk < 0, h0, c0 };
        let operator = if lstm { "LSTM" } else { "GRU" };
        // A reshape of an output was pushed before its producer: keep the order runnable.
        let at = self.graph.nodes.iter().position(|n| n.inputs.iter().any(|i| outputs.contains(i)));
        self.push(Op::Recurrent(Box::new(op)), vec![inputs[0]], outputs, &node.name, operator);
        if let Some(at) = at {
            let node = self.graph.nodes.pop().expect("it was pushed above");
            self.graph.nodes.insert(at, node);
        }
        Ok(true)
    }
}
