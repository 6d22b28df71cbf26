//! Readers of files: configuration, manifest, array, compiled cache. Sound files with damage: each is
//! read or refused with a reason, and never a panic.

use crate::{Random, inputs};
use corelane::config::Config;
use corelane::model::cache::Cache;
use corelane::model::check;
use corelane::model::npy::{self, Array};
use corelane::model::{LoadedModel, Manifest};
use corelane::units::DType;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A directory that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("corelane-fuzz-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Changes, cuts, doubles or inserts a few places; words of the format among what is inserted.
fn damage(random: &mut Random, bytes: &mut Vec<u8>, words: &[&str]) {
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        let to = (at + random.below(12) as usize).min(bytes.len());
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] = random.next() as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.drain(at..to)),
            3 => {
                let piece = bytes[at..to].to_vec();
                bytes.splice(at..at, piece);
            }
            4 if random.below(4) == 0 => bytes.truncate(at),
            _ => {
                let word = words[random.below(words.len() as u64) as usize];
                bytes.splice(at..at, word.bytes());
            }
        }
    }
}

const WORDS: [&str; 14] = [
    "0",
    "-1",
    "99999999999999999999",
    "1e400",
    "true",
    "\"",
    "'''",
    "[",
    "]",
    "[[model]]\n",
    "=",
    "\n",
    "{ a = 1 }",
    "\u{0}",
];

/// Counts what a reader made of many damaged texts; both must have happened.
fn texts(name: &str, seed: u64, sound: &[String], read: impl Fn(&str) -> bool) {
    let inputs = inputs() / 30;
    let mut random = Random(seed);
    let mut taken = 0;
    for n in 0..inputs {
        let mut bytes = sound[random.below(sound.len() as u64) as usize].clone().into_bytes();
        damage(&mut random, &mut bytes, &WORDS);
        let text = String::from_utf8_lossy(&bytes);
        let read = std::panic::AssertUnwindSafe(|| read(&text));
        match std::panic::catch_unwind(read) {
            Ok(read) => taken += u64::from(read),
            Err(_) => panic!("input {n} of {name} (seed {seed}): {text:?}"),
        }
    }
    println!("{name}: {inputs} inputs, {taken} read, {} refused", inputs - taken);
    assert!(taken > 0 && taken < inputs);
}

/// TOML blocks of the README that tell all keys, and a small file.
fn blocks(of: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let blocks: Vec<String> = readme
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .filter(|block| block.contains(of))
        .map(String::from)
        .collect();
    assert!(!blocks.is_empty(), "README has no block with {of:?}");
    blocks
}

#[test]
fn configurations() {
    let sound = blocks("[[model]]");
    texts("configuration", 5, &sound, |text| {
        match Config::parse("f.toml", text, Path::new("/b")) {
            Ok(_) => true,
            Err(error) => {
                assert!(error.to_string().contains("f.toml"), "{error}");
                false
            }
        }
    });
}

#[test]
fn manifests() {
    let scratch = Scratch::new("manifest");
    let file = scratch.0.join("manifest.toml");
    let sound: Vec<String> = ["mlp", "dscnn_kws", "magika"]
        .map(|name| std::fs::read_to_string(root().join("models").join(name).join("manifest.toml")))
        .map(Result::unwrap)
        .to_vec();
    texts("manifest", 6, &sound, |text| {
        std::fs::write(&file, text).unwrap();
        Manifest::read(&file).is_ok()
    });
}

#[test]
fn arrays() {
    let inputs = inputs() / 30;
    let array = |dtype: DType, shape: &[usize]| {
        let len = shape.iter().product::<usize>() * dtype.size_bytes();
        npy::write(&Array { dtype, shape: shape.into(), data: vec![7; len] })
    };
    let sound = [array(DType::F32, &[2, 3]), array(DType::I64, &[]), array(DType::Bool, &[0, 4])];
    let mut random = Random(7);
    let mut taken = 0;
    for n in 0..inputs {
        let mut bytes = sound[random.below(3) as usize].clone();
        damage(
            &mut random,
            &mut bytes,
            &["0", "(", "),", "'descr'", "18446744073709551615,", "True"],
        );
        match std::panic::catch_unwind(|| npy::read(&bytes)) {
            Ok(Ok(array)) => {
                taken += 1;
                // What is read is written so that it is read the same.
                assert_eq!(npy::read(&npy::write(&array)).unwrap(), array);
            }
            Ok(Err(error)) => assert!(!error.to_string().is_empty()),
            Err(_) => panic!("input {n}: {bytes:?}"),
        }
    }
    println!("arrays: {inputs} inputs, {taken} read, {} refused", inputs - taken);
    assert!(taken > 0 && taken < inputs);
}

#[test]
fn compiled_caches() {
    // Each is checked as a whole, so fewer.
    let inputs = inputs() / 500;
    let scratch = Scratch::new("cache");
    let mut manifest = Manifest::read(&root().join("models/mlp")).unwrap();
    manifest.cache_dir = Some(scratch.0.clone());
    let compiled = LoadedModel::load(manifest.clone()).unwrap();
    let file = compiled.cache.file.clone().expect("a cache file");
    let sha256 = manifest.sha256.clone().expect("the manifest has the hash");
    let cache = Cache::of(&manifest, &sha256).expect("a place");
    assert_eq!(cache.path(), file);
    let sound = std::fs::read(&file).unwrap();
    let answers = check::sample(&*compiled.engine).unwrap();
    let mut random = Random(8);
    for n in 0..inputs {
        let mut bytes = sound.clone();
        // Most of a file are weights: half of the damage is before them.
        match random.below(4) {
            0 => damage(&mut random, &mut bytes, &["\u{0}", "7"]),
            1 => bytes.truncate(random.below(sound.len() as u64) as usize),
            2 => bytes[random.below(64) as usize] ^= 1 << random.below(8),
            _ => {
                bytes[random.below(4_096.min(sound.len() as u64)) as usize] ^= 1 << random.below(8)
            }
        }
        std::fs::write(&file, &bytes).unwrap();
        match cache.read(&manifest) {
            Err(why) => assert!(!why.is_empty()),
            Ok(None) => panic!("input {n}: there is a file"),
            Ok(Some(hit)) => {
                assert!(bytes == sound, "input {n}: damage was taken");
                assert_eq!(check::sample(&*hit.engine).unwrap(), answers);
            }
        }
    }
    std::fs::write(&file, &sound).unwrap();
    assert!(cache.read(&manifest).unwrap().is_some(), "the sound file is taken");
    println!("compiled caches: {inputs} inputs of {} bytes", sound.len());
}
