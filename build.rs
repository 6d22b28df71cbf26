//! Tells the crate which sources its engine was built from, and at which optimisation.
//!
//! A compiled cache holds what the engine's code lays out, down to the order of fields, so a cache is good
//! for the very sources that wrote it, and the version alone does not name them while they are worked on.

use std::path::{Path, PathBuf};

/// What decides how a cache is laid out, and what its numbers mean.
const SOURCES: [&str; 4] =
    ["src/engine", "src/units.rs", "src/model/signature.rs", "src/model/cache.rs"];

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if !path.is_dir() {
        files.push(path.to_path_buf());
        return;
    }
    let entries = std::fs::read_dir(path).expect("the sources are readable");
    for entry in entries {
        collect(&entry.expect("the sources are readable").path(), files);
    }
}

fn main() {
    let mut files = Vec::new();
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
        collect(Path::new(source), &mut files);
    }
    // Which defmt statements of the command are compiled. Its own default leaves out all but errors, and
    // ours are chosen when the command runs. Not for a microcontroller, whose firmware chooses.
    println!("cargo::rerun-if-env-changed=DEFMT_LOG");
    if std::env::var_os("CARGO_FEATURE_HOT_LOG").is_some()
        && std::env::var_os("DEFMT_LOG").is_none()
    {
        println!("cargo::rustc-env=DEFMT_LOG=trace");
    }
    files.sort();
    // FNV-1a.
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    for file in &files {
        let text = std::fs::read(file).expect("the sources are readable");
        for byte in file.to_string_lossy().bytes().chain([0]).chain(text) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
        }
    }
    println!("cargo::rustc-env=CORELANE_ENGINE_SOURCES={hash:016x}");
    // A piece of work that is sized to the machine is sized to the optimiser too.
    let level = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!("cargo::rustc-env=CORELANE_OPT_LEVEL={level}");
}
