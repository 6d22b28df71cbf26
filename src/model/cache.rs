//! The compiled cache: a model's plan, packed weights and verdict in one file, for the next start.
//!
//! A file is used only if everything that it depends on is what it was: the model file (its hash), what
//! the manifest says of compiling and checking, the goldens, this version of the crate and of the engine's
//! sources, the instruction set. Otherwise the model is compiled as if there were none, and the file is
//! replaced. It is written beside its place and renamed, so that no reader ever sees a part of one.
//!
//! Layout, little-endian: a header of `HEADER_BYTES` (`"corelane"`, format `u32`, 4 zero bytes, four
//! `u64` lengths, the checksum `u64`, 8 zero bytes), then what the lengths are of: the facts it depends on,
//! the verdict, the program, and, at the next multiple of 64, the weights. Weights are used where the
//! file is mapped.
//!
//! The checksum finds damage, not malice: a cache is code, in effect, and is trusted like the program
//! itself. So a file that somebody else owns, or may write, is not used.

use crate::engine::Engine;
use crate::engine::image::Image;
use crate::engine::plan;
use crate::limits::NPY_FILE_BYTES_MAX;
use crate::model::check::{self, Checked};
use crate::model::manifest::Manifest;
use crate::sys::files;
use crate::sys::region::{self, Region, Wish};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes before the facts.
const HEADER_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"corelane";
/// Changes with the layout of the file.
const FORMAT: u32 = 3;
/// Of a file that is read piece by piece.
const PIECE_BYTES: usize = 1 << 20;
/// Where the checksum lies; it covers everything else.
const SUM_AT: usize = 48;

/// What came of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// None was asked for.
    Off,
    /// The model comes from it.
    Used,
    /// The model was compiled, and is in it now.
    Written,
    /// The model was compiled, and is not in it.
    NotKept,
}

/// Whether a model came from the cache, and if not why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheStatus {
    /// What came of it.
    pub state: CacheState,
    /// The file.
    pub file: Option<PathBuf>,
    /// Why it was not used, or not kept. None where there simply was no file yet.
    pub reason: Option<String>,
}

impl CacheStatus {
    /// No cache.
    pub const OFF: CacheStatus = CacheStatus { state: CacheState::Off, file: None, reason: None };
}

/// Names and values of everything that a file depends on.
type Facts = Vec<(String, String)>;

/// What was found when the model was compiled.
#[derive(Debug, Serialize, Deserialize)]
struct Verdict {
    checked: Checked,
    /// Each output for one made-up row, which is computed again at every start.
    sample: Vec<Vec<u8>>,
}

/// A file's name ends so, after the first digits of its model file's hash.
const SUFFIX: &str = ".plan";
const SHA256_DIGITS: usize = 12;

/// One model's place in a cache directory.
pub struct Cache {
    path: PathBuf,
    facts: Facts,
}

/// What a file gave.
pub struct Hit {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// What was found when it was compiled.
    pub checked: Checked,
}

impl Cache {
    /// The place of the model of `manifest`, whose file has the hash `sha256`. None if it has no cache.
    pub fn of(manifest: &Manifest, sha256: &str) -> Option<Cache> {
        let dir = manifest.cache_dir.as_ref()?;
        let path = dir.join(format!("{}-{}{SUFFIX}", manifest.name, sha256.get(..SHA256_DIGITS)?));
        Some(Cache { path, facts: facts(manifest, sha256) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model as the file has it. `Ok(None)` if there is no file.
    ///
    /// # Errors
    /// Why the file can't be used.
    pub fn read(&self, manifest: &Manifest) -> Result<Option<Hit>, String> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(format!("it can't be opened: {e}")),
        };
        ours(&file)?;
        let len = file.metadata().map_err(|e| e.to_string())?.len();
        let len = usize::try_from(len).map_err(|_| "it is too long".to_string())?;
        let region = Region::file(&file, len).map_err(|e| format!("it can't be mapped: {e}"))?;
        let parts = Parts::of(region.as_slice())?;
        let facts: Facts = decode(parts.facts, "facts")?;
        if let Some(why) = differs(&facts, &self.facts) {
            return Err(why);
        }
        let Verdict { checked, sample } = decode(parts.verdict, "verdict")?;
        let description = parts.program.to_vec();
        let (from, weights) = (len - parts.weights.len(), parts.weights.len());
        let image = if region::options().huge_pages == Wish::Off {
            Image { description, region: Arc::new(region), from, len: weights }
        } else {
            // A file's pages are small ones.
            let mut own = Region::zeroed(weights).map_err(|e| e.to_string())?;
            if let Some(own) = own.as_mut_slice() {
                own.copy_from_slice(parts.weights);
            }
            Image { description, region: Arc::new(own), from: 0, len: weights }
        };
        let engine = plan::restore(&image).map_err(|e| e.to_string())?;
        let now = check::sample(&engine)?;
        if !check::alike(&engine, &sample, &now, manifest.tolerance) {
            return Err("a made-up row has another answer than when it was compiled".into());
        }
        Ok(Some(Hit { engine: Arc::new(engine), checked }))
    }

    /// Keeps a model that was compiled and checked.
    ///
    /// # Errors
    /// Why it can't be kept; what was there before is left.
    pub fn write(&self, engine: &dyn Engine, checked: &Checked) -> Result<(), String> {
        let image = engine.image()?;
        let verdict = Verdict { checked: checked.clone(), sample: check::sample(engine)? };
        let io = |e: io::Error| format!("{}: {e}", self.path.display());
        let encode = |e: postcard::Error| e.to_string();
        let facts = postcard::to_extend(&self.facts, Vec::new()).map_err(encode)?;
        let verdict = postcard::to_extend(&verdict, Vec::new()).map_err(encode)?;
        let mut head = header(&[facts.len(), verdict.len(), image.description.len(), image.len]);
        let mut body = [facts, verdict, image.description.clone()].concat();
        body.resize(body.len().next_multiple_of(HEADER_BYTES), 0);
        let sum = checksum(&[&head[..SUM_AT], &body, image.weights()]);
        head[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        if let Some(dir) = self.path.parent() {
            std::fs::create_dir_all(dir).map_err(io)?;
        }
        let beside = self.path.with_extension(format!("{}.new", std::process::id()));
        let written = (|| {
            let mut options = File::options();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
            for part in [&head[..], &body, image.weights()] {
                file.write_all(part)?;
            }
            // Else a power cut after the renaming could leave a name without contents.
            file.sync_all()?;
            std::fs::rename(&beside, &self.path)
        })();
        written.map_err(|e| {
            let _ = std::fs::remove_file(&beside);
            io(e)
        })?;
        self.remove_former();
        Ok(())
    }

    /// Removes what was kept for other files of this model, which each update would leave behind. Who has
    /// one mapped keeps it; one that stays costs room only.
    fn remove_former(&self) {
        let parts = |path: &Path| {
            let stem = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?;
            let (name, sha256) = stem.rsplit_once('-')?;
            let is_hash =
                sha256.len() == SHA256_DIGITS && sha256.bytes().all(|b| b.is_ascii_hexdigit());
            is_hash.then(|| name.to_owned())
        };
        let (Some(dir), mine) = (self.path.parent(), parts(&self.path)) else { return };
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let others = entries.map(|e| e.path()).filter(|p| *p != self.path && parts(p) == mine);
        others.for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Everything that compiling and checking depend on.
fn facts(manifest: &Manifest, sha256: &str) -> Facts {
    let mut facts: Facts = Vec::new();
    let mut fact = |name: &str, value: String| facts.push((name.into(), value));
    fact("crate version", env!("CARGO_PKG_VERSION").into());
    fact("engine sources", env!("CORELANE_ENGINE_SOURCES").into());
    fact("processor", format!("{} {}", std::env::consts::ARCH, usize::BITS));
    fact("instruction set", manifest.kernels().name().into());
    fact("model file", sha256.into());
    fact("engine", manifest.engine.name().into());
    fact("batch sizes", format!("{:?}", manifest.batch_sizes));
    fact("bound axes", format!("{:?}", manifest.bind_axes));
    fact("bound inputs", format!("{:?}", manifest.bind_inputs));
    fact("arena budget", manifest.arena_bytes_max.to_string());
    fact("tolerance", format!("{:e}", manifest.tolerance));
    fact("rows asserted independent", manifest.rows_independent.to_string());
    fact("goldens", format!("{:016x}", goldens(manifest)));
    facts
}

/// A checksum of all golden files, names included.
pub(super) fn goldens(manifest: &Manifest) -> u64 {
    let mut sum = 0u64;
    let Some(dir) = &manifest.dir else { return sum };
    let mut dirs = vec![dir.join("golden")];
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                dirs.push(path);
            } else if let Ok(bytes) = files::read(&path, NPY_FILE_BYTES_MAX) {
                let name = path.file_name().unwrap_or_default().as_encoded_bytes();
                sum = checksum(&[&sum.to_le_bytes(), name, &bytes]);
            }
        }
    }
    sum
}

/// A checksum of a file that may be large, read piece by piece.
pub(super) fn file_checksum(path: &Path) -> io::Result<u64> {
    let file = files::open(path)?;
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    let mut sum = 0u64;
    loop {
        piece.clear();
        if (&file).take(PIECE_BYTES as u64).read_to_end(&mut piece)? == 0 {
            return Ok(sum);
        }
        sum = checksum(&[&sum.to_le_bytes(), &piece]);
    }
}

/// The first fact that is not what it was.
fn differs(was: &Facts, is: &Facts) -> Option<String> {
    if was.len() != is.len() {
        return Some("it depends on other things".into());
    }
    let pair = was.iter().zip(is).find(|(was, is)| was != is)?;
    let ((_, was), (name, is)) = pair;
    Some(format!("it was made for {name} {was}, and now it is {is}"))
}

/// Whether a file is this user's (or root's), and nobody else may write it.
fn ours(file: &File) -> Result<(), String> {
    let meta = file.metadata().map_err(|e| e.to_string())?;
    let me = rustix::process::geteuid().as_raw();
    if !meta.is_file() || (meta.uid() != me && meta.uid() != 0) || meta.mode() & 0o022 != 0 {
        return Err(format!(
            "user {} owns it and its mode is {:o}; it must be user {me}'s own, and no others' to write",
            meta.uid(),
            meta.mode() & 0o777
        ));
    }
    Ok(())
}

/// The parts of a file whose lengths and checksum are right.
struct Parts<'a> {
    facts: &'a [u8],
    verdict: &'a [u8],
    program: &'a [u8],
    weights: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(bytes: &'a [u8]) -> Result<Parts<'a>, String> {
        let damaged = |what: &str| Err(format!("it is damaged: {what}"));
        let Some((head, body)) = bytes.split_at_checked(HEADER_BYTES) else {
            return damaged("shorter than its header");
        };
        if &head[..8] != MAGIC {
            return damaged("no cache file at all");
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let format = word(8) as u32;
        if format != FORMAT {
            return Err(format!("its format is {format}, this version reads {FORMAT}"));
        }
        let mut lens = [0usize; 4];
        for (i, len) in lens.iter_mut().enumerate() {
            *len = usize::try_from(word(16 + 8 * i)).unwrap_or(usize::MAX);
        }
        let described = lens[..3].iter().try_fold(0usize, |sum, &len| sum.checked_add(len));
        let padded = described.and_then(|n| n.checked_next_multiple_of(HEADER_BYTES));
        let whole = padded.and_then(|n| n.checked_add(lens[3]));
        let (Some(padded), true) = (padded, whole == Some(body.len())) else {
            return damaged("it has not the length that its header says");
        };
        let (text, weights) = body.split_at(padded);
        if word(SUM_AT) != checksum(&[&head[..SUM_AT], text, weights]) || word(56) != 0 {
            return damaged("its checksum is wrong");
        }
        let (facts, rest) = text.split_at(lens[0]);
        let (verdict, rest) = rest.split_at(lens[1]);
        Ok(Parts { facts, verdict, program: &rest[..lens[2]], weights })
    }
}

fn decode<'de, T: Deserialize<'de>>(bytes: &'de [u8], what: &str) -> Result<T, String> {
    postcard::from_bytes(bytes).map_err(|e| format!("its {what} can't be read: {e}"))
}

/// A header but for the checksum.
fn header(lens: &[usize; 4]) -> [u8; HEADER_BYTES] {
    let mut head = [0; HEADER_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    for (place, len) in head[16..SUM_AT].chunks_exact_mut(8).zip(lens) {
        place.copy_from_slice(&(*len as u64).to_le_bytes());
    }
    head
}

/// 64 bits of checksum over the parts and their lengths: four lanes of xor, multiply and rotate, as fast as
/// memory is read. Each step can be undone, so that no change within one word goes unseen.
fn checksum(parts: &[&[u8]]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let step = |lane: u64, word: u64| (lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let mut lanes = [1u64, 2, 3, 4];
    let mut block = |words: &[u8; 32]| {
        for (lane, word) in lanes.iter_mut().zip(words.as_chunks::<8>().0) {
            *lane = step(*lane, u64::from_le_bytes(*word));
        }
    };
    let mut len = 0u64;
    for part in parts {
        let (blocks, tail) = part.as_chunks::<32>();
        blocks.iter().for_each(&mut block);
        let mut last = [0; 32];
        last[..tail.len()].copy_from_slice(tail);
        block(&last);
        len = step(len, part.len() as u64);
    }
    lanes.into_iter().fold(len, step)
}

#[cfg(test)]
mod tests;
