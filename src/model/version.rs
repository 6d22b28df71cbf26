//! Which version of a model its files are: one hash over all that loading it depends on.

use crate::model::cache;
use crate::model::load::sha256_hex;
use crate::model::manifest::Manifest;

/// The hash of the version that `manifest` describes and whose model file has the hash `sha256`, in lower
/// case hexadecimal: what the manifest says (not how it says it), labels, model file and goldens. Files that loading
/// reads anyway go in by a checksum, since this is made at each start, also of models that stay as they are: statistics
/// tell which version serves.
pub fn version_hash(manifest: &Manifest, sha256: Option<&str>) -> String {
    // Where compiled models are kept changes nothing.
    let plain = Manifest { cache_dir: None, ..manifest.clone() };
    let half = manifest.ort_settings().fp16_file;
    let half = half.map(|path| cache::file_checksum(&path).unwrap_or_default());
    let goldens = cache::goldens(manifest);
    sha256_hex(format!("{plain:?} {sha256:?} {half:?} {goldens:016x}").as_bytes())
}
