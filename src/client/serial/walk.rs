//! A model's signature, read byte by byte as it comes: nothing of it is kept but the tensors' sizes.

use super::types::{Opening, SerialModel};
use crate::limits::{ROW_AXES_MAX, TENSORS_MAX};
use crate::units::DType;
use crate::wire::{BodyError, Place};

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Batched,
    Tensors,
    NameLen,
    Name,
    DType,
    Axes,
    Axis,
    End,
}

/// Where the reading stands. All but the names' bytes are varints, as postcard writes a
/// [`Signature`](crate::wire::Signature); names are passed over, and need not be UTF-8.
#[derive(Debug)]
pub(super) struct Walk {
    step: Step,
    /// The outputs are read.
    outputs: bool,
    /// Tensors and axes to come.
    tensors: u8,
    axes: u8,
    /// Bytes of the tensor's row, as far as its axes are known.
    row_bytes: u32,
    /// The number that is being read, and its bits so far; or what is left of a name.
    number: u32,
    bits: u8,
}

impl Walk {
    pub const fn new() -> Self {
        Walk {
            step: Step::Batched,
            outputs: false,
            tensors: 0,
            axes: 0,
            row_bytes: 0,
            number: 0,
            bits: 0,
        }
    }
    /// Whether the signature is whole.
    pub fn is_whole(&self) -> bool {
        self.step == Step::End
    }
    /// Takes a byte, and notes in `model` what later requests need.
    ///
    /// # Errors
    /// The signature is damaged, or a tensor's row has 4 GiB or more.
    pub fn take(
        &mut self,
        byte: u8,
        opening: &Opening<'_>,
        model: &mut SerialModel,
    ) -> Result<(), BodyError> {
        self.step(byte, opening, model).ok_or(BodyError)
    }
    fn step(&mut self, byte: u8, opening: &Opening<'_>, model: &mut SerialModel) -> Option<()> {
        match self.step {
            Step::End => return None,
            Step::Batched => {
                model.batched = byte == 1;
                self.step = Step::Tensors;
                return (byte <= 1).then_some(());
            }
            Step::Name => {
                self.number -= 1;
                if self.number == 0 {
                    self.step = Step::DType;
                }
                return Some(());
            }
            _ => {}
        }
        if self.bits == 28 && byte > 15 {
            return None;
        }
        self.number |= u32::from(byte & 0x7F) << self.bits;
        if byte >= 0x80 {
            self.bits += 7;
            return Some(());
        }
        let number = core::mem::take(&mut self.number);
        self.bits = 0;
        match self.step {
            Step::Tensors => {
                self.tensors = up_to(number, TENSORS_MAX)?;
                self.next_tensor();
            }
            Step::NameLen => {
                self.number = number;
                self.step = if number > 0 { Step::Name } else { Step::DType };
            }
            Step::DType => {
                let dtype = *DType::ALL.get(number as usize)?;
                let at = model.sizes(self.outputs).len();
                let place = if self.outputs { Place::Output(at) } else { Place::Input(at) };
                self.row_bytes = match dtype {
                    DType::F32 => opening.encoding(place).element_bytes(),
                    other => other.size_bytes(),
                } as u32;
                self.step = Step::Axes;
            }
            Step::Axes => {
                self.axes = up_to(number, ROW_AXES_MAX)?;
                self.next_axis(model);
            }
            _ => {
                let row_bytes = u64::from(self.row_bytes) * u64::from(number);
                self.row_bytes = u32::try_from(row_bytes).ok()?;
                self.axes -= 1;
                self.next_axis(model);
            }
        }
        Some(())
    }
    fn next_axis(&mut self, model: &mut SerialModel) {
        self.step = Step::Axis;
        if self.axes == 0 {
            model.sizes(self.outputs).push(self.row_bytes);
            self.tensors -= 1;
            self.next_tensor();
        }
    }
    fn next_tensor(&mut self) {
        self.step = match (self.tensors, self.outputs) {
            (0, true) => Step::End,
            (0, false) => Step::Tensors,
            _ => Step::NameLen,
        };
        self.outputs |= self.tensors == 0;
    }
}

fn up_to(number: u32, max: usize) -> Option<u8> {
    u8::try_from(number).ok().filter(|&number| usize::from(number) <= max)
}

#[cfg(all(test, feature = "std"))]
mod tests;
