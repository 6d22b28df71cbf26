//! Input payloads, made before a run.

use crate::limits::TENSOR_ALIGN_BYTES;
use crate::units::DType;
use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Most payloads of a size that are kept; requests take them in turn.
const VARIANTS_MAX: usize = 16;
/// Most bytes of all payloads of a size.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// One input tensor: its type, the bytes of a row, and rows to take in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    /// Element type.
    pub dtype: DType,
    /// Bytes of one row.
    pub row_bytes: usize,
    /// Whole rows, one after the other; empty: random numbers.
    pub data: Vec<u8>,
}

/// Payloads for every number of rows that a schedule has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payloads {
    /// By rows; those that no request has are empty.
    by_rows: Vec<Vec<Vec<u8>>>,
    /// By request, those that were recorded; empty for the others.
    recorded: Vec<Vec<u8>>,
}

impl Payloads {
    /// Payloads of the inputs, for each number of rows in `rows`.
    pub fn new(inputs: &[Rows], rows: impl IntoIterator<Item = u16>, seed: u64) -> Payloads {
        let mut random = Pcg32::seed_from_u64(seed);
        let mut by_rows: Vec<Vec<Vec<u8>>> = Vec::new();
        for rows in rows {
            let rows = usize::from(rows);
            if by_rows.len() <= rows {
                by_rows.resize(rows + 1, Vec::new());
            }
            if !by_rows[rows].is_empty() {
                continue;
            }
            let bytes: usize = inputs.iter().map(|i| i.row_bytes * rows).sum();
            let variants = (BYTES_MAX / bytes.max(1)).clamp(1, VARIANTS_MAX);
            by_rows[rows] = (0..variants).map(|n| payload(inputs, rows, n, &mut random)).collect();
        }
        Payloads { by_rows, recorded: Vec::new() }
    }

    /// The same with recorded payloads for the requests that have one.
    ///
    /// # Errors
    /// The first request, from 0, whose payload has another length than its rows need: bytes that it
    /// has and needs.
    pub fn with_recorded(
        mut self,
        inputs: &[Rows],
        rows: &[u16],
        recorded: Vec<Vec<u8>>,
    ) -> Result<Payloads, (usize, usize, usize)> {
        for (n, (payload, rows)) in recorded.iter().zip(rows).enumerate() {
            let needed = payload_bytes(inputs, usize::from(*rows));
            if !payload.is_empty() && payload.len() != needed {
                return Err((n, payload.len(), needed));
            }
        }
        self.recorded = recorded;
        Ok(self)
    }

    /// The payload of request `index`, of `rows` rows; empty if none was made.
    pub fn get(&self, index: u32, rows: u16) -> &[u8] {
        if let Some(payload) = self.recorded.get(index as usize).filter(|p| !p.is_empty()) {
            return payload;
        }
        let variants = self.by_rows.get(usize::from(rows)).map_or(&[][..], Vec::as_slice);
        if variants.is_empty() { &[] } else { &variants[index as usize % variants.len()] }
    }
}

/// Bytes of a payload of so many rows.
fn payload_bytes(inputs: &[Rows], rows: usize) -> usize {
    let after =
        |at: usize, input: &Rows| at.next_multiple_of(TENSOR_ALIGN_BYTES) + input.row_bytes * rows;
    inputs.iter().fold(0, after)
}

fn payload(inputs: &[Rows], rows: usize, variant: usize, random: &mut Pcg32) -> Vec<u8> {
    let mut out = Vec::new();
    for input in inputs {
        out.resize(out.len().next_multiple_of(TENSOR_ALIGN_BYTES), 0);
        let there = input.data.len() / input.row_bytes.max(1);
        for row in 0..rows {
            if there > 0 {
                let at = (variant * rows + row) % there * input.row_bytes;
                out.extend(&input.data[at..at + input.row_bytes]);
            } else {
                random_row(input, random, &mut out);
            }
        }
    }
    out
}

/// Numbers that a model can take: floats in [-1, 1), integers small and not negative.
fn random_row(input: &Rows, random: &mut Pcg32, out: &mut Vec<u8>) {
    for _ in 0..input.row_bytes / input.dtype.size_bytes() {
        let word = random.next_u32();
        let unit = f64::from(word) / f64::from(1u32 << 31) - 1.0;
        match input.dtype {
            DType::F32 => out.extend((unit as f32).to_le_bytes()),
            DType::F64 => out.extend(unit.to_le_bytes()),
            DType::F16 => out.extend(half::f16::from_f64(unit).to_le_bytes()),
            DType::Bool => out.push((word >> 31) as u8),
            DType::I8 | DType::U8 => out.push((word >> 25) as u8),
            dtype => {
                // Little-endian, below 64: also a plausible index into a small table.
                out.push((word >> 26) as u8);
                out.resize(out.len() + dtype.size_bytes() - 1, 0);
            }
        }
    }
}
