//! LSTM and GRU layers with their weights packed and their initial states.

use super::graph::Recurrent;
use crate::engine::kernels::{Gru, Kernels, Lstm, Sequence};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
enum Cell {
    Lstm(Lstm),
    Gru(Gru),
}

/// A layer of one direction.
#[derive(Debug, Serialize, Deserialize)]
pub struct Layer {
    cell: Cell,
    hidden: usize,
    input: usize,
    reverse: bool,
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
        let biased = !layer.bias.is_empty();
        if w.len() != n * input || r.len() != n * h || (biased && layer.bias.len() != 2 * n) {
            return None;
        }
        let bias = biased.then_some(&layer.bias[..]);
        let cell = if layer.lstm {
            Cell::Lstm(Lstm::new(kernels, input, h, w, r, bias))
        } else {
            // What tract leaves as one operator has the reset after the product.
            Cell::Gru(Gru::new(kernels, (input, h), true, w, r, bias))
        };
        let (h0, c0) = (layer.h0.clone(), layer.c0.clone());
        Some(Layer { cell, hidden: h, input, reverse: layer.reverse, h0, c0 })
    }

    /// The name that `inspect` prints.
    pub fn name(&self) -> &'static str {
        match self.cell {
            Cell::Lstm(_) => "lstm",
            Cell::Gru(_) => "gru",
        }
    }

    /// Values of one row and one instant that it takes.
    pub fn input_width(&self) -> usize {
        self.input
    }

    /// Bytes of packed weights.
    pub fn bytes(&self) -> usize {
        match &self.cell {
            Cell::Lstm(cell) => cell.bytes(),
            Cell::Gru(cell) => cell.bytes(),
        }
    }

    /// Multiply-accumulates of one row and one instant.
    pub fn macs(&self) -> u64 {
        let gates = if let Cell::Lstm(_) = self.cell { 4 } else { 3 };
        (gates * self.hidden * (self.input + self.hidden)) as u64
    }

    /// Words of scratch.
    pub fn scratch_len(&self, batch: usize, time: usize) -> usize {
        match &self.cell {
            Cell::Lstm(cell) => cell.scratch_len(time, batch),
            Cell::Gru(cell) => cell.scratch_len(time, batch),
        }
    }

    /// Runs over `x`, `[batch, time, input]` (or `[time, batch, input]` if `time_first`), into `y`, likewise
    /// with the hidden state, followed by the last h and (LSTM) c, `[batch, hidden]` each.
    pub fn run(
        &self,
        kernels: &Kernels,
        (batch, time, time_first): (usize, usize, bool),
        x: &[f32],
        y: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (h, i) = (self.hidden, self.input);
        let sequence = if time_first {
            Sequence { reverse: self.reverse, ..Sequence::step_first(time, batch, i, h) }
        } else {
            Sequence {
                steps: time,
                batch,
                x_step: i,
                x_row: time * i,
                y_step: h,
                y_row: time * h,
                reverse: self.reverse,
            }
        };
        let (y, states) = y.split_at_mut(batch * time * h);
        let (state, cell) = states.split_at_mut(batch * h);
        let fill = |state: &mut [f32], from: &Option<Vec<f32>>| match from {
            Some(from) => state.copy_from_slice(from),
            None => state.fill(0.0),
        };
        fill(state, &self.h0);
        match &self.cell {
            Cell::Lstm(lstm) => {
                fill(cell, &self.c0);
                lstm.run(kernels, &sequence, x, state, cell, Some(y), scratch);
            }
            Cell::Gru(gru) => gru.run(kernels, &sequence, x, state, Some(y), scratch),
        }
    }
}
