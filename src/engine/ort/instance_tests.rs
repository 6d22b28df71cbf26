use super::*;

#[test]
fn constants_fill_every_element_type() {
    for dtype in DType::ALL {
        let mut bytes = vec![0; dtype.size_bytes() * 3];
        fill(dtype, 1.0, &mut bytes);
        let one: &[u8] = match dtype {
            DType::F32 => &1f32.to_le_bytes(),
            DType::F64 => &1f64.to_le_bytes(),
            DType::F16 => &0x3C00u16.to_le_bytes(),
            _ => &1u64.to_le_bytes()[..dtype.size_bytes()],
        };
        assert!(bytes.chunks_exact(one.len()).all(|element| element == one), "{dtype:?}");
    }
    let mut bytes = [0u8; 1];
    fill(DType::I8, -300.0, &mut bytes);
    assert_eq!(bytes[0] as i8, i8::MIN);
    fill(DType::Bool, 7.0, &mut bytes);
    assert_eq!(bytes[0], 1);
}
