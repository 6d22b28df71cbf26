//! Which version of a model its files are: one hash over all that loading it depends on.

use crate::engine::EngineKind;
use crate::limits::MODEL_FILE_BYTES_MAX;
use crate::model::cache;
use crate::model::error::ModelError;
use crate::model::load::sha256_hex;
use crate::model::manifest::Manifest;
use crate::sys::files;
use std::path::Path;

/// The hash of the version that `manifest` describes and whose model file has the hash `sha256`, in lower
/// case hexadecimal: what the manifest says (not how it says it), labels, model file and goldens.
pub fn version_hash(manifest: &Manifest, sha256: Option<&str>) -> String {
    // Where compiled models are kept changes nothing.
    let plain = Manifest { cache_dir: None, ..manifest.clone() };
    let half = manifest.ort_settings().fp16_file;
    let half = half.map(|path| file_hash(&path).unwrap_or_default());
    let goldens = cache::goldens(manifest);
    sha256_hex(format!("{plain:?} {sha256:?} {half:?} {goldens:016x}").as_bytes())
}

/// The hash of the version that is there now, for which the model file is read, but not loaded.
///
/// # Errors
/// `Io`, where the model file can't be read.
pub fn present_hash(manifest: &Manifest) -> Result<String, ModelError> {
    let sha256 = match manifest.engine {
        EngineKind::Fake => None,
        _ => Some(file_hash(&manifest.file).map_err(|source| ModelError::Io {
            path: manifest.file.clone(),
            what: "the model file",
            source,
        })?),
    };
    Ok(version_hash(manifest, sha256.as_deref()))
}

fn file_hash(path: &Path) -> std::io::Result<String> {
    Ok(sha256_hex(&files::read(path, MODEL_FILE_BYTES_MAX)?))
}
