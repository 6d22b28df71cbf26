use super::*;
use crate::units::Rows;
use crate::wire::{Encoding, Scale, Signature, Tensor, TensorEncoding};

/// What the walk makes of a signature: the model, or that it is damaged or not whole.
fn walked(bytes: &[u8], opening: &Opening<'_>) -> Result<SerialModel, BodyError> {
    let (mut walk, mut model) = (Walk::new(), SerialModel::new(1));
    for &byte in bytes {
        walk.take(byte, opening, &mut model)?;
    }
    if walk.is_whole() { Ok(model) } else { Err(BodyError) }
}

/// The same by way of the signature as a whole.
fn decoded(bytes: &[u8], opening: &Opening<'_>) -> Result<SerialModel, BodyError> {
    let signature = Signature::decode(bytes)?;
    let mut model = SerialModel::new(1);
    model.batched = signature.batched;
    for (outputs, tensors) in [(false, &signature.inputs), (true, &signature.outputs)] {
        for (at, tensor) in tensors.iter().enumerate() {
            let at = at as u8;
            let place = if outputs { Place::Output(at) } else { Place::Input(at) };
            let bytes = tensor.encoded_row_bytes(opening.encoding(place)).ok_or(BodyError)?;
            model.sizes(outputs).push(u32::try_from(bytes).map_err(|_| BodyError)?);
        }
    }
    Ok(model)
}

struct Lcg(u64);
impl Lcg {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

fn tensors(random: &mut Lcg) -> heapless::Vec<Tensor<'static>, TENSORS_MAX> {
    let names = ["", "x", "a name of a tensor", "\u{e4}"];
    (0..random.below(9))
        .map(|_| Tensor {
            name: names[random.below(4) as usize],
            dtype: DType::ALL[random.below(12) as usize],
            row_shape: (0..random.below(8)).map(|_| 1 + random.below(6) as u32).collect(),
        })
        .collect()
}

#[test]
fn a_walk_and_the_whole_signature_say_the_same() {
    let scale = Scale::new(0.5).unwrap();
    let encodings = [
        TensorEncoding { place: Place::Input(0), encoding: Encoding::F16 },
        TensorEncoding { place: Place::Output(1), encoding: Encoding::I8 { scale, zero_point: 0 } },
    ];
    let openings = [Opening::from("m"), Opening { name: "m", encodings: &encodings }];
    let mut random = Lcg(0xDECAF);
    let (mut sound, mut damaged) = (0, 0);
    for n in 0..40_000 {
        let signature = Signature {
            batched: random.below(2) == 0,
            inputs: tensors(&mut random),
            outputs: tensors(&mut random),
        };
        let mut bytes = [0; 1024];
        let len = signature.encode(&mut bytes).unwrap();
        let mut bytes = bytes[..len].to_vec();
        if n % 2 == 0 {
            let at = random.below(len as u64) as usize;
            match random.below(4) {
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes.truncate(at),
                2 => bytes.push(0),
                _ => bytes.insert(at, 0x80),
            }
        }
        let opening = &openings[n % 4 / 2];
        let (walked, decoded) = (walked(&bytes, opening), decoded(&bytes, opening));
        match (&walked, &decoded) {
            (Ok(_), Ok(_)) => sound += 1,
            (Err(_), Err(_)) => damaged += 1,
            // Names are passed over.
            (Ok(_), Err(_)) => {
                let text = String::from_utf8_lossy(&bytes);
                assert!(text.contains('\u{fffd}'), "{bytes:?}");
                continue;
            }
            // A number in more bytes than it needs, or one that a later 0 takes back.
            (Err(_), Ok(_)) => panic!("{bytes:?}"),
        }
        assert_eq!(walked, decoded, "{bytes:?}");
    }
    println!("{sound} sound, {damaged} damaged");
    assert!(sound > 10_000 && damaged > 1_000);
}

#[test]
fn rows_of_four_gigabytes_are_refused() {
    let tensor = |axes: &[u32]| Tensor {
        name: "x",
        dtype: DType::F32,
        row_shape: heapless::Vec::from_slice(axes).unwrap(),
    };
    let mut bytes = [0; 64];
    for (axes, fits) in [(&[1 << 15, 1 << 14][..], true), (&[1 << 15, 1 << 15], false)] {
        let inputs = heapless::Vec::from_iter([tensor(axes)]);
        let signature = Signature { batched: true, inputs, outputs: heapless::Vec::new() };
        let n = signature.encode(&mut bytes).unwrap();
        let model = walked(&bytes[..n], &Opening::from("m"));
        assert_eq!(model.is_ok(), fits, "{axes:?}");
        if let Ok(model) = model {
            assert_eq!(model.input_len(Rows(1)), 1 << 31);
            assert_eq!(model.output_len(Rows(1)), 0);
        }
    }
}
