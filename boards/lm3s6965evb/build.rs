//! Puts the goldens of two models into the firmware, as raw little-endian bytes, and names the linker's
//! scripts.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

const MODELS: [&str; 2] = ["mlp", "dscnn_kws"];

/// Elements of an array of f32 in NumPy's format, version 1, as they lie in the file, and the length of
/// its first axis.
fn elements(path: &Path) -> (Vec<u8>, usize) {
    println!("cargo::rerun-if-changed={}", path.display());
    let file = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let wrong = |what: &str| -> ! { panic!("{}: {what}", path.display()) };
    let (magic, rest) = file.split_at(8);
    if magic != b"\x93NUMPY\x01\x00" {
        wrong("not an array of NumPy's format 1.0");
    }
    let (len, rest) = rest.split_at(2);
    let (header, data) = rest.split_at(usize::from(u16::from_le_bytes([len[0], len[1]])));
    let header = str::from_utf8(header).unwrap_or_else(|_| wrong("its header is no text"));
    if !header.contains("'descr': '<f4'") || !header.contains("'fortran_order': False") {
        wrong("not little-endian f32 in C order");
    }
    let shape = header.split_once("'shape': (").and_then(|(_, rest)| rest.split_once(','));
    match shape.map(|(rows, _)| rows.parse()) {
        Some(Ok(rows)) => (data.to_vec(), rows),
        _ => wrong("its shape can't be read"),
    }
}

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let mut table = String::from("pub const GOLDENS: &[Golden] = &[\n");
    for model in MODELS {
        let golden = here.join("../../models").join(model).join("golden");
        for (n, dir) in [golden.clone(), golden.join("batch4")].iter().enumerate() {
            let mut rows = [0; 2];
            for (what, rows) in ["input", "output"].iter().zip(&mut rows) {
                let (bytes, axis) = elements(&dir.join(format!("{what}_0.npy")));
                *rows = axis;
                let file = out.join(format!("{model}_{n}_{what}"));
                fs::write(&file, bytes).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            }
            assert_eq!(rows[0], rows[1], "{}: rows of input and output", dir.display());
            let bytes = |what| {
                format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{model}_{n}_{what}\"))")
            };
            let (rows, input, output) = (rows[0], bytes("input"), bytes("output"));
            writeln!(
                table,
                "    Golden {{ model: {model:?}, rows: {rows}, input: {input}, output: {output} }},"
            )
            .expect("a text has room");
        }
    }
    table.push_str("];\n");
    fs::write(out.join("golden.rs"), table).expect("the output directory can be written");

    println!("cargo::rerun-if-changed=memory.x");
    println!("cargo::rustc-link-search={}", here.display());
    for script in ["link.x", "defmt.x"] {
        println!("cargo::rustc-link-arg-bins=-T{script}");
    }
}
