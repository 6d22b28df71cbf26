//! Loading models for all commands, and the lab's `synthetic` one by its name.

use crate::exit::{Code, Exit};
use corelane::config::ModelEntry;
use corelane::lab::synthetic::{self, Origin};
use corelane::model::{LoadedModel, Manifest, ModelError};
use corelane::runtime::{ModelSetup, ModelSource};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// `--state-dir`, where it is given.
static STATE_DIR: OnceLock<PathBuf> = OnceLock::new();

/// Notes `--state-dir`.
pub fn set_state_dir(dir: Option<&Path>) {
    if let Some(dir) = dir {
        // Called once, at the start.
        let _ = STATE_DIR.set(dir.to_path_buf());
    }
}

/// The manifest of a model directory or file, or of the model `synthetic`.
pub fn manifest(path: &Path) -> Result<Manifest, Exit> {
    let config = |e: &dyn std::fmt::Display| Exit::new(Code::Config, e);
    if path != Path::new(synthetic::NAME) {
        return Manifest::read(path).map_err(|e| config(&e));
    }
    let asked = STATE_DIR.get().map(PathBuf::as_path);
    let variable = |name: &str| std::env::var_os(name);
    let file = synthetic::state_file(asked, variable).map_err(|e| config(&e))?;
    let (size, origin) = synthetic::size(&file).map_err(|e| config(&e))?;
    if let Origin::Measured { why } = origin {
        let text = format!(
            "model {}: sized to core {}, {} rounds a millisecond, kept in {}",
            synthetic::NAME,
            size.core,
            size.rounds_per_ms,
            file.display()
        );
        match why {
            Some(why) => log::warn!("{text}; the size there did not do: {why}"),
            None => log::info!("{text}"),
        }
    }
    size.manifest().map_err(|e| config(&e))
}

/// Loads and verifies a model as its manifest and `entry` say, from `cache` if it is there.
pub fn load(entry: &ModelEntry, cache: Option<&Path>) -> Result<ModelSetup, Exit> {
    let config = |e: ModelError| Exit::new(Code::Config, e);
    let cache_dir = cache.map(Path::to_path_buf);
    let setup = if entry.path == Path::new(synthetic::NAME) {
        let mut manifest = manifest(&entry.path)?;
        entry.apply(&mut manifest).map_err(config)?;
        manifest.cache_dir = cache_dir;
        LoadedModel::load(manifest).map_err(config)?.into()
    } else {
        ModelSource::of(entry.clone(), cache_dir).load().map_err(config)?
    };
    let batching = setup.inspection.as_ref().map(|i| &i.batching);
    if let Some(reason) = batching.and_then(|b| b.reason.as_ref()) {
        log::warn!("model {}: batching is off: {reason}", setup.name);
    }
    Ok(setup)
}
