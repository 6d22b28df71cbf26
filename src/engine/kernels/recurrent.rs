//! LSTM and GRU over a sequence, one direction.
//!
//! The inputs of all steps are multiplied first, as one matrix product; then each step multiplies the
//! state by the packed recurrent weights, which is what bounds it: they are read once a step.

use super::Kernels;
use super::gemm::{self, Dest, Panels};
use super::isa::Op;
use super::math;
use super::simd::Simd;
use super::{Activation, Isa};
use serde::{Deserialize, Serialize};

/// Where a sequence lies: element `i` of step `t` of row `b` at `t * step + b * row + i`, for input and
/// output each. So both step-first and batch-first tensors are read and written in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    /// Steps.
    pub steps: usize,
    /// Rows, each a sequence of its own.
    pub batch: usize,
    /// Floats from a step of the input to the next.
    pub x_step: usize,
    /// Floats from a row of the input to the next.
    pub x_row: usize,
    /// Floats from a step of the output to the next.
    pub y_step: usize,
    /// Floats from a row of the output to the next.
    pub y_row: usize,
    /// Whether the last step comes first.
    pub reverse: bool,
}

impl Sequence {
    /// ONNX's layout: input `[steps, batch, input]`, output `[steps, batch, hidden]` (one direction).
    pub fn step_first(steps: usize, batch: usize, input: usize, hidden: usize) -> Sequence {
        Sequence {
            steps,
            batch,
            x_step: batch * input,
            x_row: input,
            y_step: batch * hidden,
            y_row: hidden,
            reverse: false,
        }
    }

    fn need(&self, step: usize, row: usize, width: usize) -> usize {
        if self.steps == 0 || self.batch == 0 {
            return 0;
        }
        (self.steps - 1) * step + (self.batch - 1) * row + width
    }
}

/// Weights of one direction, whatever the cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Cell {
    isa: Isa,
    input: usize,
    hidden: usize,
    w: Panels,
    r: Panels,
}

impl Cell {
    fn bytes(&self) -> usize {
        [&self.w, &self.r].iter().map(|p| p.data.bytes() + p.bias.bytes()).sum()
    }

    #[allow(clippy::too_many_arguments)]
    fn check(
        &self,
        kernels: &Kernels,
        s: &Sequence,
        x: &[f32],
        state: &[&[f32]],
        y: Option<&[f32]>,
        scratch: &[f32],
        need: usize,
    ) {
        assert_eq!(self.isa, kernels.isa(), "weights packed for another instruction set");
        assert!(x.len() >= s.need(s.x_step, s.x_row, self.input), "sequence: input too short");
        for state in state {
            assert_eq!(state.len(), s.batch * self.hidden, "sequence: state of all rows");
        }
        if let Some(y) = y {
            assert!(
                y.len() >= s.need(s.y_step, s.y_row, self.hidden),
                "sequence: output too short"
            );
        }
        assert!(scratch.len() >= need, "scratch: needs {need} floats, got {}", scratch.len());
    }

    /// The input's part of the gates of every step, `[steps, batch, gates]`: a step then reads rows that lie
    /// one after the other, not ones a power of two apart, which a cache keeps few of.
    fn project(&self, kernels: &Kernels, s: &Sequence, x: &[f32], out: &mut [f32]) {
        let g = self.w.n;
        let view = self.w.view();
        // Rows that lie as the gates do are one product; else there is one for each row of the batch.
        let (products, rows, from, to) = if s.x_step == s.batch * s.x_row {
            (1, s.steps * s.batch, s.x_row, g)
        } else {
            (s.batch, s.steps, s.x_step, s.batch * g)
        };
        for b in 0..products {
            let dest = plain(out[b * g..].as_mut_ptr(), to);
            // SAFETY: `check` saw that all steps of all rows lie in `x`; `out` has `steps * batch` rows of
            // gates, of which these are `rows` from row `b`, `to` apart.
            unsafe {
                let x = x[b * s.x_row..].as_ptr();
                gemm::run_rows(kernels.checked, x, from, rows, &view, &dest);
            }
        }
    }
}

fn plain(c: *mut f32, ldc: usize) -> Dest {
    Dest { c, ldc, res: core::ptr::null(), ldr: 0, act: Activation::None }
}

/// Copies the state of all rows to step `t` of the output.
fn emit(s: &Sequence, t: usize, hidden: usize, h: &[f32], y: &mut Option<&mut [f32]>) {
    if let Some(y) = y {
        for (b, h) in h.chunks_exact(hidden).enumerate() {
            y[t * s.y_step + b * s.y_row..][..hidden].copy_from_slice(h);
        }
    }
}

/// An LSTM direction: ONNX gate order (input, output, forget, cell), no peepholes, no clipping.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Lstm(Cell);

/// `c = f c + i g`, `h = o tanh c`, for rows of `n`.
struct LstmStep<'a> {
    n: usize,
    gates: &'a [f32],
    c: &'a mut [f32],
    h: &'a mut [f32],
}

impl Op for LstmStep<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let n = self.n;
        let rows = self.gates.chunks_exact(4 * n);
        for (gates, (c, h)) in rows.zip(self.c.chunks_exact_mut(n).zip(self.h.chunks_exact_mut(n)))
        {
            let (gate, c, h) = (gates.as_ptr(), c.as_mut_ptr(), h.as_mut_ptr());
            let mut k = 0;
            while k < n {
                let part = S::LANES.min(n - k);
                // SAFETY: four gates of `n`, and `n` of `c` and `h`; `part` from `k`.
                unsafe {
                    let load = |p: *const f32| {
                        if part < S::LANES { S::load_part(p, part) } else { S::load(p) }
                    };
                    let i = math::gate_sigmoid::<S>(load(gate.add(k)));
                    let o = math::gate_sigmoid::<S>(load(gate.add(n + k)));
                    let f = math::gate_sigmoid::<S>(load(gate.add(2 * n + k)));
                    let g = math::gate_tanh::<S>(load(gate.add(3 * n + k)));
                    let cell = S::fma(f, load(c.add(k)), S::mul(i, g));
                    let out = S::mul(o, math::gate_tanh::<S>(cell));
                    if part < S::LANES {
                        S::store_part(c.add(k), cell, part);
                        S::store_part(h.add(k), out, part);
                    } else {
                        S::store(c.add(k), cell);
                        S::store(h.add(k), out);
                    }
                }
                k += part;
            }
        }
    }
}

impl Lstm {
    /// Packs one direction: `w` is `[4 * hidden, input]`, `r` `[4 * hidden, hidden]`, `bias` `[8 * hidden]` (for `w`,
    /// then for `r`) or none.
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn new(
        kernels: &Kernels,
        input: usize,
        hidden: usize,
        w: &[f32],
        r: &[f32],
        bias: Option<&[f32]>,
    ) -> Lstm {
        let g = 4 * hidden;
        assert_eq!(w.len(), g * input, "lstm: input weights");
        assert_eq!(r.len(), g * hidden, "lstm: recurrent weights");
        let sum: Option<Vec<f32>> = bias.map(|b| {
            assert_eq!(b.len(), 2 * g, "lstm: bias");
            b[..g].iter().zip(&b[g..]).map(|(x, y)| x + y).collect()
        });
        let isa = kernels.isa();
        Lstm(Cell {
            isa,
            input,
            hidden,
            w: Panels::pack(isa, input, g, |i, j| w[j * input + i], sum.as_deref()),
            r: Panels::pack(isa, hidden, g, |i, j| r[j * hidden + i], None),
        })
    }

    /// Bytes of packed weights.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Floats of scratch for `steps` of `batch` rows.
    pub fn scratch_len(&self, steps: usize, batch: usize) -> usize {
        (steps + 1) * batch * 4 * self.0.hidden
    }

    /// Runs the sequence. `h` and `c` (`[batch, hidden]`) are the state before, and after; `y` gets `h` of every step.
    ///
    /// # Panics
    /// If a length does not fit, or the weights were packed for another instruction set.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        kernels: &Kernels,
        s: &Sequence,
        x: &[f32],
        h: &mut [f32],
        c: &mut [f32],
        mut y: Option<&mut [f32]>,
        scratch: &mut [f32],
    ) {
        let n = self.0.hidden;
        let need = self.scratch_len(s.steps, s.batch);
        self.0.check(kernels, s, x, &[h, c], y.as_deref(), scratch, need);
        if n == 0 || s.steps == 0 || s.batch == 0 {
            return;
        }
        let g = 4 * n;
        let (xw, gates) = scratch[..need].split_at_mut(s.steps * s.batch * g);
        self.0.project(kernels, s, x, xw);
        for i in 0..s.steps {
            let t = if s.reverse { s.steps - 1 - i } else { i };
            let mut dest = plain(gates.as_mut_ptr(), g);
            (dest.res, dest.ldr) = (xw[t * s.batch * g..].as_ptr(), g);
            // SAFETY: `h` has `batch` rows of `n`, `gates` of `g`, and `xw` as many from `t * batch * g`.
            unsafe {
                let view = self.0.r.view();
                gemm::run_rows(kernels.checked, h.as_ptr(), n, s.batch, &view, &dest);
            }
            kernels.checked.dispatch(LstmStep { n, gates, c, h });
            emit(s, t, n, h, &mut y);
        }
    }
}

/// A GRU direction: ONNX gate order (update, reset, hidden), no clipping.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Gru {
    cell: Cell,
    /// Recurrent weights of the hidden gate alone, where the reset comes before the product.
    hidden_r: Option<Panels>,
}

/// The gates' functions for one row. `xh` is the input's part of the hidden gate.
struct GruStep<'a> {
    /// Sums of the update and reset gates, and the state's part of the hidden gate.
    gates: &'a mut [f32],
    xh: &'a [f32],
    h: &'a mut [f32],
    stage: GruStage,
}

#[derive(Clone, Copy, PartialEq)]
enum GruStage {
    /// The reset multiplies the product: all at once.
    After,
    /// The reset multiplies the state: gates, then `gates[2n..] = r h`.
    Reset,
    /// The product of that is in `gates[2n..]`, the input's part added.
    Finish,
}

impl Op for GruStep<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let n = self.h.len();
        let gate = self.gates.as_mut_ptr();
        let (xh, h) = (self.xh.as_ptr(), self.h.as_mut_ptr());
        let mut k = 0;
        while k < n {
            let part = S::LANES.min(n - k);
            // SAFETY: three gates of `n`, `n` of `xh` and `h` (the maker's promise); `part` from `k`.
            unsafe {
                let load = |p: *const f32| {
                    if part < S::LANES { S::load_part(p, part) } else { S::load(p) }
                };
                let store = |p: *mut f32, v: S::V| {
                    if part < S::LANES { S::store_part(p, v, part) } else { S::store(p, v) }
                };
                let third = load(gate.add(2 * n + k));
                let mix = |z: S::V, new: S::V| {
                    // (1 - z) new + z h
                    S::fma(z, S::sub(load(h.add(k)), new), new)
                };
                match self.stage {
                    GruStage::After => {
                        let z = math::gate_sigmoid::<S>(load(gate.add(k)));
                        let r = math::gate_sigmoid::<S>(load(gate.add(n + k)));
                        let new = math::gate_tanh::<S>(S::fma(r, third, load(xh.add(k))));
                        store(h.add(k), mix(z, new));
                    }
                    GruStage::Reset => {
                        let z = math::gate_sigmoid::<S>(load(gate.add(k)));
                        let r = math::gate_sigmoid::<S>(load(gate.add(n + k)));
                        store(gate.add(k), z);
                        store(gate.add(2 * n + k), S::mul(r, load(h.add(k))));
                    }
                    GruStage::Finish => {
                        let new = math::gate_tanh::<S>(third);
                        store(h.add(k), mix(load(gate.add(k)), new));
                    }
                }
            }
            k += part;
        }
    }
}

impl Gru {
    /// Packs one direction: `w` is `[3 * hidden, input]`, `r` `[3 * hidden, hidden]`, `bias` `[6 * hidden]` (for `w`,
    /// then for `r`) or none. `linear_before_reset` as ONNX has it.
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn new(
        kernels: &Kernels,
        (input, hidden): (usize, usize),
        linear_before_reset: bool,
        w: &[f32],
        r: &[f32],
        bias: Option<&[f32]>,
    ) -> Gru {
        let (isa, n) = (kernels.isa(), hidden);
        assert_eq!(w.len(), 3 * n * input, "gru: input weights");
        assert_eq!(r.len(), 3 * n * n, "gru: recurrent weights");
        // The recurrent bias joins the input's, but for the hidden gate where the reset multiplies it.
        let mut wb = vec![0.0; 3 * n];
        let mut rb = vec![0.0; 3 * n];
        if let Some(b) = bias {
            assert_eq!(b.len(), 6 * n, "gru: bias");
            for (i, wb) in wb.iter_mut().enumerate() {
                *wb = b[i];
                if linear_before_reset && i >= 2 * n {
                    rb[i] = b[3 * n + i];
                } else {
                    *wb += b[3 * n + i];
                }
            }
        }
        let columns = if linear_before_reset { 3 * n } else { 2 * n };
        let hidden_r = (!linear_before_reset)
            .then(|| Panels::pack(isa, n, n, |i, j| r[(2 * n + j) * n + i], None));
        Gru {
            cell: Cell {
                isa,
                input,
                hidden,
                w: Panels::pack(isa, input, 3 * n, |i, j| w[j * input + i], Some(&wb)),
                r: Panels::pack(isa, n, columns, |i, j| r[j * n + i], Some(&rb[..columns])),
            },
            hidden_r,
        }
    }

    /// Bytes of packed weights.
    pub fn bytes(&self) -> usize {
        self.cell.bytes() + self.hidden_r.as_ref().map_or(0, |p| p.data.bytes() + p.bias.bytes())
    }

    /// Floats of scratch for `steps` of `batch` rows.
    pub fn scratch_len(&self, steps: usize, batch: usize) -> usize {
        ((steps + 1) * 3 + 1) * batch * self.cell.hidden
    }

    /// Runs the sequence. `h` (`[batch, hidden]`) is the state before, and after; `y` gets it of every step.
    ///
    /// # Panics
    /// If a length does not fit, or the weights were packed for another instruction set.
    pub fn run(
        &self,
        kernels: &Kernels,
        s: &Sequence,
        x: &[f32],
        h: &mut [f32],
        mut y: Option<&mut [f32]>,
        scratch: &mut [f32],
    ) {
        let n = self.cell.hidden;
        let need = self.scratch_len(s.steps, s.batch);
        self.cell.check(kernels, s, x, &[h], y.as_deref(), scratch, need);
        if n == 0 || s.steps == 0 || s.batch == 0 {
            return;
        }
        let g = 3 * n;
        let (xw, rest) = scratch[..need].split_at_mut(s.steps * s.batch * g);
        let (gates, sums) = rest.split_at_mut(s.batch * g);
        self.cell.project(kernels, s, x, xw);
        let run = |stage, gates: &mut [f32], h: &mut [f32], t: usize| {
            for b in 0..s.batch {
                kernels.checked.dispatch(GruStep {
                    gates: &mut gates[b * g..][..g],
                    xh: &xw[(t * s.batch + b) * g + 2 * n..][..n],
                    h: &mut h[b * n..][..n],
                    stage,
                });
            }
        };
        for i in 0..s.steps {
            let t = if s.reverse { s.steps - 1 - i } else { i };
            let recurrent = self.cell.r.view();
            let dest = plain(gates.as_mut_ptr(), g);
            // SAFETY: `h` has `batch` rows of `n`, `gates` of `g`, which is at least the columns.
            unsafe {
                gemm::run_rows(kernels.checked, h.as_ptr(), n, s.batch, &recurrent, &dest);
            }
            // The input's part: of all gates but the hidden one.
            for b in 0..s.batch {
                let from = &xw[(t * s.batch + b) * g..][..2 * n];
                for (gate, x) in gates[b * g..][..2 * n].iter_mut().zip(from) {
                    *gate += x;
                }
            }
            if let Some(hidden_r) = &self.hidden_r {
                run(GruStage::Reset, gates, h, t);
                let mut dest = plain(sums.as_mut_ptr(), n);
                (dest.res, dest.ldr) = (xw[t * s.batch * g + 2 * n..].as_ptr(), g);
                // SAFETY: rows of `r h` lie at stride `g` from `gates[2n..]`, `sums` has `batch` rows of `n`,
                // and `xw` one hidden gate at `(t * batch + b) * g + 2n` for each row `b`.
                unsafe {
                    let view = hidden_r.view();
                    let a = gates[2 * n..].as_ptr();
                    gemm::run_rows(kernels.checked, a, g, s.batch, &view, &dest);
                }
                for (gates, sum) in gates.chunks_exact_mut(g).zip(sums.chunks_exact(n)) {
                    gates[2 * n..].copy_from_slice(sum);
                }
                run(GruStage::Finish, gates, h, t);
            } else {
                run(GruStage::After, gates, h, t);
            }
            emit(s, t, n, h, &mut y);
        }
    }
}
