use super::*;
use crate::engine::kernels::AlignedBuf;

#[derive(Serialize, Deserialize)]
struct Program {
    #[serde(with = "shared")]
    first: Arc<AlignedBuf>,
    #[serde(with = "shared")]
    second: Arc<AlignedBuf>,
    #[serde(with = "shared_list")]
    list: Vec<Arc<AlignedBuf>>,
    name: String,
}

fn program() -> Program {
    let a = Arc::new(AlignedBuf::from_slice(&[1.0, 2.0, f32::NAN]));
    let b = Arc::new(AlignedBuf::from_slice(&[4.0; 40]));
    Program { first: a.clone(), second: b.clone(), list: vec![b, a], name: "both".into() }
}

#[test]
fn what_is_shared_stays_shared_and_lies_in_the_block() {
    let program = program();
    let image = Image::of(&program).unwrap();
    // A line for the first, three for the second, each once.
    assert_eq!(image.weights().len(), 4 * BUFFER_ALIGN_BYTES);
    let read: Program = image.read().unwrap();
    assert_eq!(read.name, "both");
    assert_eq!(read.first[..2], [1.0, 2.0]);
    assert!(read.first[2].is_nan());
    assert_eq!(read.second[..], [4.0; 40]);
    assert!(Arc::ptr_eq(&read.first, &read.list[1]));
    assert!(Arc::ptr_eq(&read.second, &read.list[0]));
    let block = image.weights().as_ptr_range();
    assert!(block.contains(&read.second.as_ptr().cast()));
}

#[test]
fn writing_to_a_view_leaves_the_block_alone() {
    let program = program();
    let image = Image::of(&program).unwrap();
    let read: Program = image.read().unwrap();
    let mut copy = (*read.second).clone();
    copy[0] = 9.0;
    assert_eq!((copy[0], read.second[0]), (9.0, 4.0));
}

#[test]
fn a_view_outside_the_block_is_refused() {
    let image = Image::of(&program()).unwrap();
    let short = Image { region: Arc::new(Region::zeroed(64).unwrap()), len: 64, ..image.clone() };
    assert!(short.read::<Program>().is_err());
    let shifted = Image { from: 4, ..image };
    assert!(shifted.read::<Program>().is_err());
}

#[test]
fn weights_are_encoded_in_an_image_only() {
    let program = program();
    assert!(postcard::to_extend(&program, Vec::new()).is_err());
    let image = Image::of(&program).unwrap();
    assert!(postcard::from_bytes::<Program>(&image.description).is_err());
}
