use super::*;
use crate::engine::kernels::Isa;
use crate::model::LoadedModel;
use crate::model::manifest::Manifest;

/// A copy of a small model with its goldens, and a cache directory, in a temporary directory.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path =
            std::env::temp_dir().join(format!("corelane-cache-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/mlp");
        let to = path.join("mlp");
        std::fs::create_dir_all(to.join("golden")).unwrap();
        for file in ["model.onnx", "manifest.toml", "golden/input_0.npy", "golden/output_0.npy"] {
            std::fs::copy(from.join(file), to.join(file)).unwrap();
        }
        Place(path)
    }

    fn manifest(&self) -> Manifest {
        let mut manifest = Manifest::read(&self.0.join("mlp")).unwrap();
        manifest.cache_dir = Some(self.0.join("cache"));
        manifest
    }

    fn load(&self) -> LoadedModel {
        LoadedModel::load(self.manifest()).unwrap()
    }

    fn file(&self) -> PathBuf {
        let mut files = std::fs::read_dir(self.0.join("cache")).unwrap();
        let file = files.next().unwrap().unwrap().path();
        assert!(files.next().is_none(), "one file, and nothing half written beside it");
        file
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn answers(model: &LoadedModel) -> Vec<Vec<u8>> {
    check::sample(&*model.engine).unwrap()
}

#[test]
fn the_second_start_comes_from_the_file_and_answers_the_same() {
    let place = Place::new("second");
    let first = place.load();
    assert_eq!((first.cache.state, &first.cache.reason), (CacheState::Written, &None));
    let file = place.file();
    assert_eq!(first.cache.file.as_ref(), Some(&file));
    let second = place.load();
    assert_eq!((second.cache.state, &second.cache.reason), (CacheState::Used, &None));
    assert_eq!(answers(&first), answers(&second));
    let (a, b) = (first.engine.describe(), second.engine.describe());
    assert_eq!(a, b);
    assert_eq!(first.engine.signature(), second.engine.signature());
    assert_eq!(first.golden_rows, second.golden_rows);
    assert_eq!(first.golden_difference, second.golden_difference);
    assert_eq!(first.batching, second.batching);
    assert_eq!(first.manifest, second.manifest);
    assert!(first.golden_rows > 0);
}

#[test]
fn a_change_of_anything_it_depends_on_compiles_again() {
    let place = Place::new("change");
    place.load();
    let again = |what: &str, manifest: Manifest| {
        let model = LoadedModel::load(manifest).unwrap();
        assert_eq!(model.cache.state, CacheState::Written, "{what}");
        let why = model.cache.reason.unwrap_or_default();
        assert!(why.contains(what), "{what}: {why}");
    };
    let mut fewer = place.manifest();
    fewer.limit_batches(2);
    again("batch sizes", fewer);
    let mut tolerant = place.manifest();
    tolerant.tolerance = 1e-3;
    again("batch sizes", tolerant.clone());
    tolerant.tolerance = 1e-2;
    again("tolerance", tolerant);
    let mut portable = place.manifest();
    portable.isa = Some(Isa::Portable);
    if Isa::detect() != Isa::Portable {
        place.load();
        again("instruction set", portable);
    }
    let golden = place.0.join("mlp/golden/output_0.npy");
    place.load();
    let mut bytes = std::fs::read(&golden).unwrap();
    // The last bit of the last value: within the tolerance still.
    *bytes.last_mut().unwrap() ^= 0;
    let at = bytes.len() - 4;
    bytes[at] ^= 1;
    std::fs::write(&golden, bytes).unwrap();
    again("goldens", place.manifest());
    assert_eq!(place.load().cache.state, CacheState::Used);
}

/// Facts that no test can change in earnest: another processor, another version.
#[test]
fn a_file_of_another_processor_or_version_is_not_used() {
    let place = Place::new("other");
    let model = place.load();
    let manifest = place.manifest();
    let sha256 = model.sha256.clone().unwrap();
    for (name, value) in [
        ("instruction set", "another"),
        ("crate version", "0.0.1"),
        ("engine sources", "0"),
        ("processor", "vax 32"),
    ] {
        let mut cache = Cache::of(&manifest, &sha256).unwrap();
        cache.facts.iter_mut().find(|f| f.0 == name).unwrap().1 = value.into();
        cache.write(&*model.engine, &checked(&model)).unwrap();
        let next = place.load();
        assert_eq!(next.cache.state, CacheState::Written, "{name}");
        let why = next.cache.reason.unwrap();
        assert!(why.contains(name) && why.contains(value), "{why}");
        assert_eq!(place.load().cache.state, CacheState::Used, "{name}: it was replaced");
    }
}

fn checked(model: &LoadedModel) -> Checked {
    Checked {
        golden_rows: model.golden_rows,
        golden_difference: model.golden_difference,
        max_difference: model.batching.max_difference,
        refused: None,
        unproven: None,
    }
}

/// Bytes changed one by one (the header and the description all of them, the weights in steps), and the
/// file cut: never used, and never a panic.
#[test]
fn a_damaged_file_is_never_used() {
    let place = Place::new("damage");
    let model = place.load();
    let cache = Cache::of(&place.manifest(), model.sha256.as_ref().unwrap()).unwrap();
    let good = std::fs::read(place.file()).unwrap();
    assert!(Parts::of(&good).is_ok());
    let weights = good.len() - Parts::of(&good).unwrap().weights.len();
    let places = (0..weights).chain((weights..good.len()).step_by(61)).chain([good.len() - 1]);
    let mut bytes = good.clone();
    let mut tried = 0;
    for at in places {
        for flip in [1u8, 0x80, 0xFF] {
            bytes[at] ^= flip;
            assert!(Parts::of(&bytes).is_err(), "byte {at} ^ {flip:#x} goes unseen");
            bytes[at] ^= flip;
            tried += 1;
        }
    }
    assert!(tried > 1000);
    for len in (0..HEADER_BYTES + 1).chain((HEADER_BYTES..good.len()).step_by(997)) {
        assert!(Parts::of(&good[..len]).is_err(), "{len} of {} bytes", good.len());
    }
    let longer = [&good[..], &[0; 64]].concat();
    assert!(Parts::of(&longer).is_err());
    // Through the file system, a few of them.
    for (damage, what) in
        [(&good[..good.len() / 2], "length"), (&longer, "length"), (&[], "mapped")]
    {
        std::fs::write(place.file(), damage).unwrap();
        let why = cache.read(&place.manifest()).err().unwrap();
        assert!(why.contains(what), "{why}");
    }
    let next = place.load();
    assert_eq!(next.cache.state, CacheState::Written);
    assert_eq!(answers(&next), answers(&model));
    assert_eq!(std::fs::read(place.file()).unwrap(), good, "the same file again");
}

/// Contents that no longer fit the code, under a checksum that is right: an error, not a panic.
#[test]
fn contents_that_make_no_sense_are_errors() {
    let place = Place::new("senseless");
    let model = place.load();
    let cache = Cache::of(&place.manifest(), model.sha256.as_ref().unwrap()).unwrap();
    let good = std::fs::read(place.file()).unwrap();
    let parts = Parts::of(&good).unwrap();
    let seal = |facts: &[u8], verdict: &[u8], program: &[u8], weights: &[u8]| {
        let mut head = header(&[facts.len(), verdict.len(), program.len(), weights.len()]);
        let mut body = [facts, verdict, program].concat();
        body.resize(body.len().next_multiple_of(HEADER_BYTES), 0);
        let sum = checksum(&[&head[..SUM_AT], &body, weights]);
        head[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        [&head[..], &body, weights].concat()
    };
    let Parts { facts, verdict, program, weights } = parts;
    assert_eq!(seal(facts, verdict, program, weights), good);
    for bytes in [
        seal(&[], verdict, program, weights),
        seal(facts, &[0xFF; 9], program, weights),
        seal(facts, verdict, &program[..program.len() / 2], weights),
        seal(facts, verdict, &[], weights),
        seal(facts, verdict, program, &weights[..64]),
    ] {
        std::fs::write(place.file(), bytes).unwrap();
        assert!(cache.read(&place.manifest()).is_err());
    }
    // Weights that are someone else's give another answer than the sample.
    let mut other = weights.to_vec();
    other.iter_mut().for_each(|b| *b ^= 0x40);
    std::fs::write(place.file(), seal(facts, verdict, program, &other)).unwrap();
    let why = cache.read(&place.manifest()).err().unwrap();
    assert!(why.contains("another answer"), "{why}");
}

#[test]
fn a_file_that_others_may_write_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new("mode");
    place.load();
    std::fs::set_permissions(place.file(), std::fs::Permissions::from_mode(0o666)).unwrap();
    let model = place.load();
    assert_eq!(model.cache.state, CacheState::Written);
    let why = model.cache.reason.unwrap();
    assert!(why.contains("666"), "{why}");
    assert_eq!(place.load().cache.state, CacheState::Used);
}

#[test]
fn a_directory_that_can_not_be_written_leaves_the_model_served() {
    let place = Place::new("unwritable");
    let mut manifest = place.manifest();
    // A file where a directory should be.
    manifest.cache_dir = Some(place.0.join("mlp/model.onnx"));
    let model = LoadedModel::load(manifest).unwrap();
    assert_eq!(model.cache.state, CacheState::NotKept);
    assert!(model.cache.reason.unwrap().contains("model.onnx"));
}

#[test]
fn engines_without_a_plan_keep_nothing_and_say_so() {
    let place = Place::new("tract");
    let mut manifest = place.manifest();
    manifest.engine = crate::engine::EngineKind::Tract;
    let model = LoadedModel::load(manifest).unwrap();
    assert_eq!(model.cache.state, CacheState::NotKept);
    assert!(model.cache.reason.unwrap().contains("tract"));
}

#[test]
fn the_checksum_sees_every_bit_and_the_order_of_parts() {
    let mut bytes = [7u8; 100];
    let sum = checksum(&[&bytes]);
    for bit in 0..800 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(checksum(&[&bytes]), sum, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert_ne!(checksum(&[b"ab", b"c"]), checksum(&[b"a", b"bc"]));
    assert_ne!(checksum(&[b"a", b"b"]), checksum(&[b"b", b"a"]));
    assert_ne!(checksum(&[b"a"]), checksum(&[b"a", b""]));
    assert_ne!(checksum(&[b"a"]), checksum(&[b"a\0"]));
}
