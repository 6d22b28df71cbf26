//! LSTM and GRU layers.

use super::graph::Recurrent;
use crate::engine::kernels::{Activation, Kernels, PackedMatMul};

/// A layer with its weights packed.
#[derive(Debug)]
pub struct Layer {
    lstm: bool,
    hidden: usize,
    input: usize,
    reverse: bool,
    /// Input to gates, with all biases that may be added at once.
    w: PackedMatMul,
    /// Hidden state to gates, with the biases of the recurrent side where GRU keeps them apart.
    r: PackedMatMul,
    h0: Option<Vec<f32>>,
    c0: Option<Vec<f32>>,
}

impl Layer {
    /// Packs the weights. `None` if they are not f32 or of other shapes than the layer says.
    pub fn new(kernels: &Kernels, layer: &Recurrent) -> Option<Layer> {
        let gates = if layer.lstm { 4 } else { 3 };
        let h = layer.hidden;
        let w = layer.w.as_plain_ram()?.as_slice::<f32>().ok()?;
        let r = layer.r.as_plain_ram()?.as_slice::<f32>().ok()?;
        let n = gates * h;
        let input = w.len().checked_div(n)?;
        if w.len() != n * input
            || r.len() != n * h
            || !(layer.bias.is_empty() || layer.bias.len() == 2 * n)
        {
            return None;
        }
        let (mut wb, mut rb) = (vec![0.0; n], vec![0.0; n]);
        if !layer.bias.is_empty() {
            wb.copy_from_slice(&layer.bias[..n]);
            rb.copy_from_slice(&layer.bias[n..]);
        }
        if layer.lstm {
            wb.iter_mut().zip(&rb).for_each(|(w, r)| *w += r);
            rb.fill(0.0);
        }
        Some(Layer {
            lstm: layer.lstm,
            hidden: h,
            input,
            reverse: layer.reverse,
            w: PackedMatMul::new(kernels, input, n, w, true, Some(&wb)),
            r: PackedMatMul::new(kernels, h, n, r, true, Some(&rb)),
            h0: layer.h0.clone(),
            c0: layer.c0.clone(),
        })
    }

    /// The name that `inspect` prints.
    pub fn name(&self) -> &'static str {
        if self.lstm { "lstm" } else { "gru" }
    }

    /// Bytes of packed weights.
    pub fn bytes(&self) -> usize {
        self.w.bytes() + self.r.bytes()
    }

    /// Multiply-accumulates of one row and one instant.
    pub fn macs(&self) -> u64 {
        (self.w.k() * self.w.n() + self.r.k() * self.r.n()) as u64
    }

    /// Words of scratch.
    pub fn scratch_len(&self, batch: usize, time: usize) -> usize {
        batch * self.w.n() * (time + 1) + batch * self.hidden
    }

    /// Runs over `x`, `[batch, time, input]`, into `y`, `[batch, time, hidden]`, followed by the
    /// last h and (LSTM) c, `[batch, hidden]` each.
    pub fn run(
        &self,
        kernels: &Kernels,
        batch: usize,
        time: usize,
        x: &[f32],
        y: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (h, n) = (self.hidden, self.w.n());
        let (y, states) = y.split_at_mut(batch * time * h);
        let (state, cell) = states.split_at_mut(batch * h);
        let (pre, rest) = scratch.split_at_mut(batch * time * n);
        let (step, own_cell) = rest.split_at_mut(batch * n);
        let cell = if self.lstm { cell } else { &mut own_cell[..0] };
        self.w.run(kernels, batch * time, x, self.input, None, Activation::None, pre, n);
        match &self.h0 {
            Some(h0) => state.copy_from_slice(h0),
            None => state.fill(0.0),
        }
        match &self.c0 {
            Some(c0) => cell.copy_from_slice(c0),
            None => cell.fill(0.0),
        }
        for i in 0..time {
            let t = if self.reverse { time - 1 - i } else { i };
            self.r.run(kernels, batch, state, h, None, Activation::None, step, n);
            for b in 0..batch {
                let pre = &pre[(b * time + t) * n..][..n];
                let gates = &mut step[b * n..][..n];
                let state = &mut state[b * h..][..h];
                if self.lstm {
                    let cell = &mut cell[b * h..][..h];
                    gates.iter_mut().zip(pre).for_each(|(g, p)| *g += p);
                    for j in 0..h {
                        let (i, o, f, c) =
                            (gates[j], gates[h + j], gates[2 * h + j], gates[3 * h + j]);
                        cell[j] = sigmoid(f) * cell[j] + sigmoid(i) * c.tanh();
                        state[j] = sigmoid(o) * cell[j].tanh();
                    }
                } else {
                    for j in 0..h {
                        let z = sigmoid(pre[j] + gates[j]);
                        let r = sigmoid(pre[h + j] + gates[h + j]);
                        let n = (pre[2 * h + j] + r * gates[2 * h + j]).tanh();
                        state[j] = n + z * (state[j] - n);
                    }
                }
                y[(b * time + t) * h..][..h].copy_from_slice(state);
            }
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
