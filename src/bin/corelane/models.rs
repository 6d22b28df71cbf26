//! Loading models for `serve`, `infer` and `demo`.

use crate::exit::{Code, Exit};
use corelane::config::ModelEntry;
use corelane::model::{LoadedModel, Manifest};
use corelane::runtime::ModelSetup;
use std::path::Path;

/// Loads and verifies a model as its manifest and `entry` say, from `cache` if it is there.
pub fn load(entry: &ModelEntry, cache: Option<&Path>) -> Result<ModelSetup, Exit> {
    let config = |e: &dyn std::fmt::Display| Exit::new(Code::Config, e);
    let mut manifest = Manifest::read(&entry.path).map_err(|e| config(&e))?;
    entry.apply(&mut manifest);
    manifest.cache_dir = cache.map(Path::to_path_buf);
    let model = LoadedModel::load(manifest).map_err(|e| config(&e))?;
    if let Some(reason) = &model.batching.reason {
        log::warn!("model {}: batching is off: {reason}", model.manifest.name);
    }
    Ok(model.into())
}
