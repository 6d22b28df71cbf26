//! Every expected value here is what the Python package `magika` 1.0.3 gives.

use super::*;

/// The label, or a hash of the features (`h = h * 31 + feature`, modulo 2^32).
fn digest(content: &[u8]) -> String {
    match features(content) {
        Features::Told(label) => label.into(),
        Features::Ask(features) => {
            assert_eq!(features.len(), FEATURES_LEN);
            let hash = |h: u32, f: &i32| h.wrapping_mul(31).wrapping_add(*f as u32);
            features.iter().fold(0u32, hash).to_string()
        }
    }
}

fn count(n: usize, step: usize, modulus: usize) -> Vec<u8> {
    (0..n).map(|i| (i * step % modulus) as u8).collect()
}

#[test]
fn features_are_those_of_the_package() {
    let spaces = |n: usize| vec![b' '; n];
    let lines = |n: usize| vec![b'\n'; n];
    let cases: &[(&str, &[Vec<u8>], &str)] = &[
        ("nothing", &[], "empty"),
        ("three letters", &[b"abc".to_vec()], "txt"),
        ("two bytes", &[b"\xff\xfe".to_vec()], "unknown"),
        ("few between spaces", &[spaces(20), b"abc   ".to_vec()], "txt"),
        ("few bytes after lines", &[lines(20), b"\xff\xff".to_vec()], "unknown"),
        ("just enough", &[b"12345678".to_vec()], "3077686536"),
        ("enough with a space at the end", &[b"1234567 ".to_vec()], "1153814944"),
        ("every white space", &[b"\x0b\x0c\r\n\t hello world \x0b\x0c\x1c".to_vec()], "3590455499"),
        ("one end", &[count(1024, 1, 251)], "3579076500"),
        ("one more", &[count(1025, 1, 251)], "1717631316"),
        (
            "spaces reach almost to the end of the block",
            &[spaces(4090), b"abcdefghijk".to_vec(), vec![b'x'; 100]],
            "txt",
        ),
        (
            "spaces leave enough of the block",
            &[spaces(4080), b"abcdefghijk".to_vec(), vec![b'x'; 100]],
            "1437480216",
        ),
        ("more than a block", &[count(5000, 7, 256)], "117769216"),
        ("lines at the end", &[count(5000, 7, 256), lines(4000)], "3913741136"),
        (
            "nothing but lines in the last block",
            &[b"hello world, this is it".to_vec(), lines(5000)],
            "2999957459",
        ),
    ];
    for (name, parts, wanted) in cases {
        assert_eq!(digest(&parts.concat()), *wanted, "{name}");
    }
}

#[test]
fn low_scores_are_told_as_text_or_unknown() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/magika/config.min.json");
    let rules = Rules::read(Path::new(file)).unwrap();
    assert_eq!(rules.told("rust", 0.5), "rust");
    assert_eq!(rules.told("rust", 0.49), "txt");
    assert_eq!(rules.told("markdown", 0.74), "txt");
    assert_eq!(rules.told("markdown", 0.75), "markdown");
    assert_eq!(rules.told("png", 0.4), "unknown");
    assert_eq!(rules.told("randombytes", 0.9), "unknown");
    assert_eq!(rules.told("randomtxt", 0.9), "txt");
    assert_eq!(rules.told("randombytes", 0.1), "unknown");
}

#[test]
fn text_labels_are_labels_of_the_model() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/magika/labels.txt");
    let labels = std::fs::read_to_string(file).unwrap();
    for text in TEXT_LABELS.split_whitespace() {
        assert!(labels.lines().any(|label| label == text), "{text}");
    }
    assert_eq!(TEXT_LABELS.split_whitespace().count(), 113);
}
