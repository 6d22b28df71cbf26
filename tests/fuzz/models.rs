//! Model files that are damaged: by bytes, and by structure, so that most are still decoded. Each loads
//! and runs, or is refused by a typed error. A panic in our own code counts as a failure even where it
//! is caught; one of the graph library's that is caught is told as an error, and printed by nobody.

use crate::Random;
use corelane::engine::kernels::Isa;
use corelane::engine::{self, EngineKind, LoadRequest};
use corelane::model::check;
use std::cell::RefCell;
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

#[path = "../engine/onnx.rs"]
#[allow(dead_code)] // the tests of engines use the rest of it
mod onnx;
#[path = "zoo.rs"]
mod zoo;

/// Mutants, unless the environment says otherwise (`CORELANE_FUZZ_MODELS`).
const MUTANTS: u64 = 400;
/// Arena that a mutant may have; what is larger is refused, not run.
const ARENA_BYTES_MAX: usize = 64 << 20;

thread_local! {
    /// Where this thread panicked, since it was last asked.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Notes where every panic is, also those that are caught.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The library's own hook is in place after this, so ours comes first.
        let _ = load(EngineKind::Plan, b"nothing");
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            PANICS.with_borrow_mut(|panics| panics.push(place));
            before(panic);
        }));
    });
}

fn load(kind: EngineKind, bytes: &[u8]) -> Result<Box<dyn engine::Engine>, engine::EngineError> {
    engine::load(
        kind,
        &LoadRequest {
            bytes,
            batch_sizes: &[1, 2],
            bind_axes: &[],
            bind_inputs: &[],
            arena_bytes_max: ARENA_BYTES_MAX,
            isa: Isa::detect(),
        },
    )
}

/// What became of a file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum End {
    /// It loads, and a row runs.
    Runs,
    /// It loads, and a row fails by a typed error.
    Fails,
    /// It is refused.
    Refused,
}

/// Loads a file and runs a row; where our own code panicked, if it did.
fn attempt(kind: EngineKind, bytes: &[u8]) -> (End, Vec<String>) {
    watch();
    PANICS.with_borrow_mut(Vec::clear);
    let end = std::panic::catch_unwind(|| match load(kind, bytes) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            End::Refused
        }
        Ok(engine) => {
            let rows = engine.signature().inputs.iter().chain(&engine.signature().outputs);
            assert!(rows.clone().all(|t| t.row_bytes() > 0));
            match check::sample(&*engine) {
                Ok(_) => End::Runs,
                Err(_) => End::Fails,
            }
        }
    });
    let mut ours = PANICS.take();
    // A dependency is compiled under the path of its registry, a crate of the compiler under its own.
    ours.retain(|place| place.starts_with("src/") || place.starts_with("tests/"));
    match end {
        Ok(end) => (end, ours),
        Err(_) => (End::Fails, [ours, vec!["a panic that nobody caught".into()]].concat()),
    }
}

/// A field of a message.
#[derive(Clone)]
struct Field {
    number: u64,
    value: Value,
}

#[derive(Clone)]
enum Value {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    Bytes(Vec<u8>),
    Message(Vec<Field>),
}

/// The kind of message that a field of a kind of message holds, where mutation goes on inside.
fn inner(kind: &str, number: u64) -> Option<&'static str> {
    Some(match (kind, number) {
        ("model", 7) => "graph",
        ("model", 8) => "opset",
        ("graph", 1) => "node",
        ("graph", 5) => "tensor",
        ("graph", 11..=13) => "value",
        ("node", 5) => "attribute",
        ("attribute", 5) => "tensor",
        ("attribute", 6) => "graph",
        ("value", 2) => "type",
        ("type", 1) => "tensor type",
        ("tensor type", 2) => "shape",
        ("shape", 1) => "dim",
        _ => return None,
    })
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 127) << shift;
        if first & 128 == 0 {
            return Some(value);
        }
    }
    None
}

fn decode(kind: &'static str, mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = vec![];
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let number = key >> 3;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut bytes)?),
            1 => {
                let (word, rest) = bytes.split_first_chunk()?;
                bytes = rest;
                Value::Fixed64(*word)
            }
            5 => {
                let (word, rest) = bytes.split_first_chunk()?;
                bytes = rest;
                Value::Fixed32(*word)
            }
            2 => {
                let len = varint(&mut bytes)? as usize;
                let (body, rest) = bytes.split_at_checked(len)?;
                bytes = rest;
                match inner(kind, number).and_then(|kind| decode(kind, body)) {
                    Some(fields) => Value::Message(fields),
                    None => Value::Bytes(body.to_vec()),
                }
            }
            _ => return None,
        };
        fields.push(Field { number, value });
    }
    Some(fields)
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 128 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

fn encode(fields: &[Field]) -> Vec<u8> {
    let mut out = vec![];
    for field in fields {
        let key = |wire: u64| field.number << 3 | wire;
        let mut body = |bytes: &[u8]| {
            put(&mut out, key(2));
            put(&mut out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        };
        match &field.value {
            Value::Bytes(bytes) => body(bytes),
            Value::Message(fields) => body(&encode(fields)),
            Value::Varint(value) => {
                put(&mut out, key(0));
                put(&mut out, *value);
            }
            Value::Fixed64(word) => {
                put(&mut out, key(1));
                out.extend_from_slice(word);
            }
            Value::Fixed32(word) => {
                put(&mut out, key(5));
                out.extend_from_slice(word);
            }
        }
    }
    out
}

/// Names that the files use, to be put in each other's places, and operators.
const WORDS: [&str; 32] = [
    "x",
    "y",
    "w",
    "",
    "axis",
    "axes",
    "perm",
    "pads",
    "strides",
    "dilations",
    "group",
    "keepdims",
    "Softmax",
    "Transpose",
    "Pad",
    "Reshape",
    "Concat",
    "Slice",
    "Gather",
    "Conv",
    "MatMul",
    "Tile",
    "Expand",
    "ReduceSum",
    "Squeeze",
    "Unsqueeze",
    "Resize",
    "Split",
    "Range",
    "If",
    "LSTM",
    "auto_pad",
];

const NUMBERS: [u64; 16] =
    [0, 1, 2, 3, 4, 7, 9, 11, 16, 255, 1 << 20, 1 << 31, 1 << 40, u64::MAX, u64::MAX - 1, 1 << 63];

fn some<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

/// Changes one place below `fields`.
fn mutate(random: &mut Random, fields: &mut Vec<Field>) {
    if fields.is_empty() {
        return;
    }
    let at = random.below(fields.len() as u64) as usize;
    if let Value::Message(inside) = &mut fields[at].value
        && random.below(8) != 0
    {
        return mutate(random, inside);
    }
    match random.below(8) {
        0 => drop(fields.remove(at)),
        1 => {
            let again = fields[at].clone();
            let to = random.below(fields.len() as u64 + 1) as usize;
            fields.insert(to, again);
        }
        2 => {
            let other = random.below(fields.len() as u64) as usize;
            if fields[at].number == fields[other].number {
                fields.swap(at, other);
            } else {
                fields[at].number = 1 + random.below(20);
            }
        }
        _ => match &mut fields[at].value {
            Value::Varint(value) if random.below(2) == 0 => *value = some(random, &NUMBERS),
            Value::Varint(value) => *value = value.wrapping_add(random.below(5)).wrapping_sub(2),
            Value::Fixed32(word) => {
                let values = [f32::NAN, f32::INFINITY, 0.0, -1.0, 1e30];
                *word = some(random, &values).to_le_bytes();
            }
            Value::Fixed64(word) => *word = some(random, &NUMBERS).to_le_bytes(),
            Value::Bytes(bytes) if bytes.len() % 8 == 0 && random.below(2) == 0 => {
                // Perhaps a list of integers.
                let words = bytes.len() / 8;
                if words > 0 {
                    let word = random.below(words as u64) as usize;
                    bytes[word * 8..][..8].copy_from_slice(&some(random, &NUMBERS).to_le_bytes());
                }
            }
            Value::Bytes(bytes) if random.below(3) == 0 => {
                *bytes = some(random, &WORDS).as_bytes().to_vec();
            }
            Value::Bytes(bytes) => {
                let len = bytes.len() as u64;
                match random.below(3) {
                    0 if len > 0 => bytes[random.below(len) as usize] = random.next() as u8,
                    1 => bytes.truncate(random.below(len + 1) as usize),
                    _ => bytes.push(random.next() as u8),
                }
            }
            Value::Message(inside) => {
                let len = inside.len() as u64;
                inside.truncate(random.below(len + 1) as usize);
            }
        },
    }
}

/// Sound files, the small ones more often.
fn sound() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = zoo::models();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["mlp", "dscnn_kws"] {
        let file = root.join("models").join(name).join("model.onnx");
        files.push((name.into(), std::fs::read(file).unwrap()));
    }
    files
}

#[test]
fn the_sound_files_run() {
    for (name, bytes) in sound() {
        for kind in [EngineKind::Plan, EngineKind::Tract] {
            if let Err(error) = load(kind, &bytes) {
                panic!("{name} with {}: {error}", kind.name());
            }
            assert_eq!(attempt(kind, &bytes), (End::Runs, vec![]), "{name} {}", kind.name());
        }
        let fields = decode("model", &bytes).expect("a message");
        assert!(encode(&fields) == bytes, "{name} is not encoded as it was");
    }
}

/// Files that made our own code panic once, by damage to the sound ones.
#[test]
fn found_models() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/found");
    let files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(!files.is_empty());
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        for kind in [EngineKind::Plan, EngineKind::Tract] {
            let (_, ours) = attempt(kind, &bytes);
            assert!(ours.is_empty(), "{} with {}: {ours:?}", file.display(), kind.name());
        }
    }
}

#[test]
fn damaged_models() {
    let mutants = std::env::var("CORELANE_FUZZ_MODELS").ok().and_then(|n| n.parse().ok());
    let mutants: u64 = mutants.unwrap_or(MUTANTS);
    let seed = std::env::var("CORELANE_FUZZ_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(9);
    let files = sound();
    let mut random = Random(seed);
    let mut ends = [0u64; 3];
    let mut failures = vec![];
    let mut slowest = (Duration::ZERO, 0, String::new());
    for n in 0..mutants {
        let (name, bytes) = &files[random.below(files.len() as u64) as usize];
        let mut bytes = bytes.clone();
        if random.below(8) == 0 {
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
            }
        } else {
            let mut fields = decode("model", &bytes).expect("a message");
            for _ in 0..1 + random.below(3) {
                mutate(&mut random, &mut fields);
            }
            bytes = encode(&fields);
        }
        let kind = if random.below(4) == 0 { EngineKind::Tract } else { EngineKind::Plan };
        // Kept while it is tried: what ends the process is found there.
        let kept = std::env::var_os("CORELANE_FUZZ_KEEP").map(std::path::PathBuf::from);
        if let Some(dir) = &kept {
            std::fs::write(dir.join("current.onnx"), &bytes).unwrap();
        }
        let begin = Instant::now();
        let (end, ours) = attempt(kind, &bytes);
        let took = begin.elapsed();
        if took > slowest.0 {
            slowest = (took, n, name.clone());
        }
        ends[end as usize] += 1;
        if !ours.is_empty() {
            if let Some(dir) = &kept {
                std::fs::write(dir.join(format!("{n}.onnx")), &bytes).unwrap();
            }
            failures.push(format!("mutant {n} of {name} (seed {seed}, {}): {ours:?}", kind.name()));
        }
    }
    println!(
        "models: {mutants} mutants, {} run, {} fail when run, {} refused; slowest {slowest:?}",
        ends[0], ends[1], ends[2]
    );
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(ends[0] > 0 && ends[2] > 0, "{ends:?}");
}
