//! Operators without a kernel: through tract, from words to its tensors and back.

use super::exec::elements;
use super::graph::Fallback;
use crate::engine::kernels::cast;
use crate::units::DType;
use tract_onnx::prelude::{IntoTValue, TValue, TVec, Tensor};

/// Runs a node through tract, which allocates.
pub fn fall_back(
    node: &Fallback,
    inputs: &[(DType, Vec<usize>)],
    outputs: &[(DType, usize, usize)],
    read: &[&[f32]],
    dest: &mut [f32],
) -> Option<()> {
    let mut tensors: TVec<TValue> = TVec::new();
    for (((dtype, shape), x), wanted) in inputs.iter().zip(read).zip(&node.input_types) {
        let tensor = tensor(*dtype, shape, x)?;
        tensors.push(tensor.cast_to_dt(*wanted).ok()?.into_owned().into_tvalue());
    }
    let results = node.plan.run(tensors).ok()?;
    for (result, (dtype, len, start)) in results.iter().zip(outputs) {
        store(result, *dtype, *len, &mut dest[*start..])?;
    }
    Some(())
}

/// tract's form of an operand. Allocates.
fn tensor(dtype: DType, shape: &[usize], words: &[f32]) -> Option<Tensor> {
    let count = shape.iter().product();
    macro_rules! of {
        ($t:ty, $n:literal) => {
            Tensor::from_shape(
                shape,
                &elements::<$n>(words, count).map(<$t>::from_le_bytes).collect::<Vec<_>>(),
            )
        };
    }
    match dtype {
        DType::F32 => Tensor::from_shape(shape, &words[..count]),
        DType::Bool => Tensor::from_shape(
            shape,
            &elements::<1>(words, count).map(|b| b[0] != 0).collect::<Vec<_>>(),
        ),
        DType::F64 => of!(f64, 8),
        DType::I8 => of!(i8, 1),
        DType::U8 => of!(u8, 1),
        DType::I16 => of!(i16, 2),
        DType::U16 => of!(u16, 2),
        DType::I32 => of!(i32, 4),
        DType::U32 => of!(u32, 4),
        DType::I64 => of!(i64, 8),
        DType::U64 => of!(u64, 8),
        DType::F16 => return None,
    }
    .ok()
}

/// A result of tract's back into words. Allocates where the type differs.
fn store(result: &Tensor, dtype: DType, len: usize, words: &mut [f32]) -> Option<()> {
    let out = cast::bytes_mut(words);
    macro_rules! of {
        ($t:ty, $n:literal) => {{
            let cast = result.cast_to::<$t>().ok()?;
            let plain = cast.as_plain_ram()?;
            let values = plain.as_slice::<$t>().ok()?;
            if values.len() != len {
                return None;
            }
            out.as_chunks_mut::<$n>()
                .0
                .iter_mut()
                .zip(values)
                .for_each(|(y, x)| *y = x.to_le_bytes());
        }};
    }
    match dtype {
        DType::F32 => of!(f32, 4),
        DType::F64 => of!(f64, 8),
        DType::I8 => of!(i8, 1),
        DType::U8 => of!(u8, 1),
        DType::I16 => of!(i16, 2),
        DType::U16 => of!(u16, 2),
        DType::I32 => of!(i32, 4),
        DType::U32 => of!(u32, 4),
        DType::I64 => of!(i64, 8),
        DType::U64 => of!(u64, 8),
        DType::Bool => {
            let plain = result.as_plain_ram()?;
            let values = plain.as_slice::<bool>().ok()?;
            out.iter_mut().zip(values).for_each(|(y, &x)| *y = u8::from(x));
        }
        DType::F16 => return None,
    }
    Some(())
}
