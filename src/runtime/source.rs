//! Where a model comes from, so that it can be read again.

use super::ModelSetup;
use crate::config::ModelEntry;
use crate::model::version::version_hash;
use crate::model::{LoadedModel, Manifest, ModelError, ReadModel};
use std::path::PathBuf;

/// Where a model comes from, and what is to differ from its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSource {
    /// Where it is, and what differs.
    pub entry: ModelEntry,
    /// Directory of compiled caches.
    pub cache_dir: Option<PathBuf>,
    /// The manifest file that it was loaded by: without it, another load would be by the defaults.
    described_by: Option<PathBuf>,
}

impl ModelSource {
    /// The model in `path`, a directory with a manifest, a manifest, or a bare `.onnx` file, as its manifest
    /// says.
    pub fn new(path: impl Into<PathBuf>) -> ModelSource {
        Self::of(ModelEntry::new(path), None)
    }

    /// The model of an entry of the configuration, with this directory of compiled caches.
    pub fn of(entry: ModelEntry, cache_dir: Option<PathBuf>) -> ModelSource {
        ModelSource { entry, cache_dir, described_by: None }
    }

    /// What the manifest says now, with the differences in it.
    ///
    /// # Errors
    /// Those of [`Manifest::read`] and [`ModelEntry::apply`]; `Io`, where the model was loaded by a manifest
    /// that is gone.
    pub fn manifest(&self) -> Result<Manifest, ModelError> {
        if let Some(path) = &self.described_by {
            let what = "the manifest";
            let io = |source| ModelError::Io { path: path.clone(), what, source };
            std::fs::metadata(path).map_err(io)?;
        }
        let mut manifest = Manifest::read(&self.entry.path)?;
        self.entry.apply(&mut manifest)?;
        manifest.cache_dir.clone_from(&self.cache_dir);
        Ok(manifest)
    }

    /// What is there now: the model file is read, but not loaded.
    pub(super) fn read(&self) -> Result<ReadModel, ModelError> {
        ReadModel::new(self.manifest()?)
    }

    /// Loads and verifies the model.
    ///
    /// # Errors
    /// Every kind of [`ModelError`].
    pub fn load(&self) -> Result<ModelSetup, ModelError> {
        self.load_read(self.read()?, None)
    }

    /// The same of what was read, for a queue of this size if the manifest says nothing of it. Its hash is made
    /// last: what changed meanwhile shows in it.
    pub(super) fn load_read(
        &self,
        read: ReadModel,
        max_queue_size: Option<u32>,
    ) -> Result<ModelSetup, ModelError> {
        let manifest = read.manifest().clone();
        let mut loaded = LoadedModel::of(read)?;
        let hash = version_hash(&manifest, loaded.sha256.as_deref());
        loaded.manifest.max_queue_size = loaded.manifest.max_queue_size.or(max_queue_size);
        let mut setup = ModelSetup::from(loaded);
        let file = self.entry.path.join(Manifest::FILE);
        let described_by = file.is_file().then_some(file);
        setup.source = Some(ModelSource { described_by, ..self.clone() });
        setup.version_hash = Some(hash);
        Ok(setup)
    }
}
