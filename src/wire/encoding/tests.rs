use super::*;
use half::f16;
use proptest::prelude::*;
use std::vec::Vec;

fn i8(scale: f32, zero_point: i8) -> Encoding {
    Encoding::I8 { scale: Scale::new(scale).unwrap(), zero_point }
}

#[test]
fn golden_elements() {
    let of = |encoding: Encoding, value: f32| encoding.encode(value).to_vec();
    assert_eq!(of(Encoding::F32, 1.5), [0, 0, 0xC0, 0x3F]);
    for (value, bytes) in [
        (1.5, 0x3E00u16),
        (-0.0, 0x8000),
        (65504.0, 0x7BFF),
        // Half way to what would be the next, and just below that.
        (65520.0, 0x7C00),
        (65519.996, 0x7BFF),
        (f32::INFINITY, 0x7C00),
        (f32::NEG_INFINITY, 0xFC00),
        (f32::NAN, 0x7E00),
        // The least subnormal, and half of it: the even one is 0.
        (5.9604645e-8, 0x0001),
        (2.9802322e-8, 0x0000),
        (2.9802326e-8, 0x0001),
        (f32::MIN_POSITIVE, 0x0000),
    ] {
        assert_eq!(of(Encoding::F16, value), bytes.to_le_bytes(), "{value}");
    }
    for (value, byte) in [
        (0.0f32, 0i8),
        (0.25, 0),
        (0.75, 2),
        (-0.25, 0),
        (-0.75, -2),
        (1.0, 2),
        (63.5, 127),
        (64.0, 127),
        (-64.0, -128),
        (-1e30, -128),
        (f32::INFINITY, 127),
        (f32::NEG_INFINITY, -128),
        (f32::NAN, 0),
    ] {
        assert_eq!(of(i8(0.5, 0), value), [byte as u8], "{value}");
    }
    assert_eq!(of(i8(0.5, -128), f32::NAN), [0x80]);
    assert_eq!(i8(0.5, -128).decode(&[0x80]), Some(0.0));
    // An unsigned image travels as it is.
    let image = i8(1.0, -128);
    for pixel in 0..=255u8 {
        assert_eq!(of(image, pixel.into()), [pixel ^ 0x80]);
        assert_eq!(image.decode(&[pixel ^ 0x80]), Some(pixel.into()));
    }
    assert_eq!(Encoding::F16.decode(&[0]), None);
    assert_eq!(Encoding::F32.decode(&[0; 5]), None);
}

#[test]
fn every_half_is_what_the_crate_half_says() {
    for bits in 0..=u16::MAX {
        let wanted = f16::from_bits(bits).to_f32();
        let got = Encoding::F16.decode(&bits.to_le_bytes()).unwrap();
        assert!(got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan(), "{bits:#x}");
        let again = u16::from_le_bytes(Encoding::F16.encode(got)[..].try_into().unwrap());
        assert!(again == bits || got.is_nan() && again == bits & 0x8000 | 0x7E00, "{bits:#x}");
    }
    // Each single between two halves, at the ends, in the middle and beside it.
    for bits in 0..0x7C00u16 {
        let (low, high) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits + 1).to_f32());
        let middle = if high.is_finite() { low + (high - low) / 2.0 } else { 65520.0 };
        let (below, above) = (f32::from_bits(middle.to_bits() - 1), middle.next_up());
        for value in [low, low.next_up(), below, middle, above, high] {
            for value in [value, -value] {
                let wanted = f16::from_f32(value).to_bits().to_le_bytes();
                assert_eq!(Encoding::F16.encode(value)[..], wanted, "{value}");
            }
        }
    }
}

#[test]
fn texts_go_round_and_others_are_refused() {
    for text in ["f32", "f16", "i8:0.5:0", "i8:0.0078125:-128"] {
        let encoding: Encoding = text.parse().unwrap();
        assert_eq!(std::string::ToString::to_string(&encoding), text);
    }
    assert_eq!("i8:0.5".parse(), Ok(i8(0.5, 0)));
    for text in [
        "", "f64", "f16:1", "i8", "i8:", "i8:0", "i8:-1", "i8:NaN", "i8:inf", "i8:1:128",
        "i8:1:0:0",
    ] {
        assert_eq!(text.parse::<Encoding>(), Err(NoEncoding), "{text}");
    }
}

#[test]
fn lists_go_round_and_damage_is_named() {
    let tensors = [
        TensorEncoding { place: Place::Input(0), encoding: Encoding::F16 },
        TensorEncoding { place: Place::Output(1), encoding: i8(0.5, -128) },
        TensorEncoding { place: Place::Input(7), encoding: Encoding::F32 },
    ];
    let mut list = [0; ENCODINGS_BYTES_MAX];
    let n = write_encodings(&tensors, &mut list).unwrap();
    assert_eq!(list[..n], [0, 1, 0x81, 2, 0, 0, 0, 0x3F, 0x80, 7, 0]);
    let read: Result<Vec<_>, _> = Encodings::new(&list[..n]).collect();
    assert_eq!(read.unwrap(), tensors);
    let first = |bytes: &[u8]| Encodings::new(bytes).find_map(Result::err);
    let (place, cut) = (Place::Output(1), Some(EncodingsError::CutShort));
    assert_eq!(first(&[0]), cut);
    assert_eq!(first(&[0, 2, 0, 0, 0, 0x3F]), cut);
    assert_eq!(first(&[0x81, 3]), Some(EncodingsError::UnknownEncoding { place, number: 3 }));
    let scale = BadScale { bits: 0 };
    assert_eq!(first(&[0x81, 2, 0, 0, 0, 0, 0]), Some(EncodingsError::BadScale { place, scale }));
    let many = [tensors[1]; 17];
    let max = ENCODINGS_BYTES_MAX;
    assert_eq!(write_encodings(&many[..16], &mut list), Ok(max));
    assert_eq!(write_encodings(&many, &mut list), Err(EncodingsError::TooLong { max }));
}

fn encodings() -> impl Strategy<Value = Encoding> {
    let scale = (f32::MIN_POSITIVE..=f32::MAX).prop_map(|scale| Scale::new(scale).unwrap());
    let small = (0.0001f32..10.0).prop_map(|scale| Scale::new(scale).unwrap());
    let i8 = |scale: BoxedStrategy<Scale>| {
        (scale, any::<i8>()).prop_map(|(scale, zero_point)| Encoding::I8 { scale, zero_point })
    };
    prop_oneof![Just(Encoding::F32), Just(Encoding::F16), i8(scale.boxed()), i8(small.boxed()),]
}

proptest! {
    #[test]
    fn no_number_is_further_off_than_half_a_step(encoding in encodings(), bits: u32, x in -1000f32..1000.0) {
        for value in [f32::from_bits(bits), x] {
            let element = encoding.encode(value);
            prop_assert_eq!(element.len(), encoding.element_bytes());
            let back = encoding.decode(&element).unwrap();
            // What was decoded comes out the same.
            let again = encoding.encode(back);
            match encoding {
                Encoding::F32 => prop_assert_eq!(back.to_bits(), value.to_bits()),
                Encoding::F16 if value.is_nan() => prop_assert!(back.is_nan()),
                Encoding::F16 if value.abs() >= 65520.0 => {
                    prop_assert_eq!(back, f32::INFINITY.copysign(value));
                }
                Encoding::F16 => {
                    // Eleven bits, or half the least subnormal.
                    let bound = (value.abs() / 2048.0).max(2f32.powi(-25));
                    prop_assert!((back - value).abs() <= bound, "{value} {back}");
                    prop_assert_eq!(again, element);
                }
                Encoding::I8 { zero_point, .. } if value.is_nan() => {
                    prop_assert_eq!(&*element, &[zero_point as u8]);
                }
                Encoding::I8 { scale, zero_point } => {
                    let (scale, zero_point) = (f64::from(scale.get()), f64::from(zero_point));
                    let exact = f64::from(value) / scale + zero_point;
                    let nearest = exact.clamp(-128.0, 127.0);
                    let got = f64::from(element[0] as i8);
                    // The quotient is rounded once, to a single.
                    prop_assert!((got - nearest).abs() <= 0.5 + 1e-4, "{value} {got} {nearest}");
                    if back.is_finite() {
                        prop_assert_eq!(again, element);
                    }
                }
            }
        }
    }

    #[test]
    fn pieces_and_slices_and_bytes_agree(
        encoding in encodings(),
        bits in proptest::collection::vec(any::<u32>(), 0..200),
        offset in 0usize..40,
    ) {
        let values: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
        let streamed: Vec<u8> = encoding.bytes(values.iter().copied()).collect();
        let mut slice = std::vec![0; values.len() * 4 + 3];
        let n = encoding.encode_slice(&values, &mut slice);
        prop_assert_eq!(&slice[..n], &streamed[..]);
        // In place, from behind.
        let plain: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut bytes = std::vec![0xEE; offset];
        bytes.extend(&plain);
        encode_in_place(encoding, &mut bytes, offset, offset / 2, values.len());
        prop_assert_eq!(&bytes[offset / 2..][..streamed.len()], &streamed[..]);
        // Back, by the byte and as a whole.
        let mut decoder = ElementDecoder::new(encoding);
        let one_by_one: Vec<u32> =
            streamed.iter().filter_map(|&byte| decoder.push(byte)).map(f32::to_bits).collect();
        let mut decoded = std::vec![0f32; values.len()];
        prop_assert_eq!(encoding.decode_slice(&streamed, &mut decoded), values.len());
        let decoded: Vec<u32> = decoded.into_iter().map(f32::to_bits).collect();
        prop_assert_eq!(&one_by_one, &decoded);
        let mut le = std::vec![0; plain.len()];
        prop_assert_eq!(decode_le(encoding, &streamed, &mut le), (streamed.len(), plain.len()));
        let le: Vec<u32> = le.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        prop_assert_eq!(le, decoded);
    }

    #[test]
    fn arbitrary_lists_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..130)) {
        let entries: Vec<_> = Encodings::new(&bytes).collect();
        // An error ends the list; what was read is written the same.
        let whole: Option<Vec<_>> = entries.iter().map(|entry| entry.ok()).collect();
        prop_assert!(entries.iter().rev().skip(1).all(Result::is_ok));
        if let Some(tensors) = whole && bytes.len() <= ENCODINGS_BYTES_MAX {
            let mut list = [0; ENCODINGS_BYTES_MAX];
            let n = write_encodings(&tensors, &mut list).unwrap();
            prop_assert_eq!(&list[..n], &bytes[..]);
        }
    }
}
