//! Where TensorRT keeps its engines: one directory for each thing that they depend on.
//!
//! An engine takes minutes to build, and is for one model, one precision, one GPU, one driver and one
//! version of the library. TensorRT's file names tell some of that; a directory named by all of it makes
//! sure that another machine, or the next version, finds none of the others. An engine is code: a directory
//! that somebody else owns, or may write, is not used.
//!
//! Not run on a machine with a GPU yet; the directory's name and its making are tested everywhere.

use super::gpu::Gpu;
use super::settings::Precision;
use sha2::Digest;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What engines depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key<'a> {
    /// The model file's bytes, as they are given to the library.
    pub model: &'a [u8],
    /// The library's version.
    pub library: String,
    /// The precision that is asked for.
    pub precision: Precision,
    /// Which GPU is asked for.
    pub device: u32,
    /// All GPUs: the library numbers them in an order of its own, so that a change of any counts.
    pub gpus: &'a [Gpu],
    /// Values of the variables that change how GPUs are numbered.
    pub numbering: [Option<String>; 2],
}

/// The variables of [`Key::numbering`].
pub const NUMBERING: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];

impl Key<'_> {
    /// The directory below `root`: of the model's hash, for people, and a hash of everything.
    pub fn directory(&self, root: &Path) -> PathBuf {
        let model = hex(&sha2::Sha256::digest(self.model));
        let mut facts = vec![
            model.clone(),
            self.library.clone(),
            self.precision.name().into(),
            self.device.to_string(),
        ];
        for gpu in self.gpus {
            facts.extend([gpu.name.clone(), gpu.driver.clone()]);
        }
        for variable in &self.numbering {
            facts.push(variable.as_ref().map_or_else(|| "-".into(), |v| format!("={v}")));
        }
        // With its length before each, no two lists give the same bytes.
        let mut all = sha2::Sha256::new();
        for fact in &facts {
            all.update((fact.len() as u64).to_le_bytes());
            all.update(fact);
        }
        root.join(format!("tensorrt-{}-{}", &model[..12], &hex(&all.finalize())[..16]))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Makes the directory, for this user alone, or makes sure that it is one's own.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub fn prepare(dir: &Path) -> Result<(), String> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|e| format!("{} can't be made: {e}", dir.display()))?;
    let meta = std::fs::symlink_metadata(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let me = rustix::process::geteuid().as_raw();
    if !meta.is_dir() || meta.uid() != me || meta.mode() & 0o022 != 0 {
        return Err(format!(
            "{}: user {} owns it and its mode is {:o}; it must be a directory of user {me}'s own, and \
             no others' to write",
            dir.display(),
            meta.uid(),
            meta.mode() & 0o777
        ));
    }
    Ok(())
}

/// How many engines a directory has.
pub fn engines(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|e| e.path().extension().is_some_and(|x| x == "engine")).count()
}

#[cfg(test)]
mod tests;
