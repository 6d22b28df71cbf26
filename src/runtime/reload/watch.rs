//! Which models' files changed, without reading them.

use super::Reloader;
use crate::runtime::ModelSource;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a file is known by: its place, node, length, and when it changed.
type Stamp = (PathBuf, u64, u64, i64, i64);

/// Looks at the files of a runtime's models from time to time.
pub struct Watch {
    reloader: Reloader,
    models: Vec<Watched>,
}

struct Watched {
    name: String,
    source: ModelSource,
    /// As it was when it was last found at rest.
    known: Vec<Stamp>,
    /// As it was at the last look.
    seen: Vec<Stamp>,
}

impl Watch {
    /// Of all models that were read from files, as they are now.
    pub fn new(reloader: Reloader) -> Watch {
        let from_files = |m: &super::ServedModel| {
            let source = m.setup().source.clone()?;
            let known = stamps(&source);
            Some(Watched { name: m.name.clone(), seen: known.clone(), known, source })
        };
        let models = reloader.shared.models.iter().filter_map(from_files).collect();
        Watch { reloader, models }
    }

    /// The models whose files have changed since they were last told of, and are as they were at the last
    /// look: what is still being written is told of when it is done.
    pub fn changed(&mut self) -> Vec<String> {
        let mut changed = Vec::new();
        for model in &mut self.models {
            let now = stamps(&model.source);
            let at_rest = now == model.seen;
            model.seen = now;
            if at_rest && model.seen != model.known {
                model.known.clone_from(&model.seen);
                changed.push(model.name.clone());
            }
        }
        changed
    }

    /// Reloads those that have [`changed`](Self::changed). What came of it is counted and told in the log.
    pub fn look(&mut self) {
        for name in self.changed() {
            let _ = self.reloader.reload(&name);
        }
    }
}

/// All files of a model's directory, or the one file that it is.
fn stamps(source: &ModelSource) -> Vec<Stamp> {
    let mut found = Vec::new();
    let path = &source.entry.path;
    let is_manifest = path.extension().is_some_and(|e| e == "toml");
    let place = if is_manifest { path.parent().unwrap_or(path) } else { path };
    collect(place, 2, &mut found);
    found.sort();
    found
}

fn collect(path: &Path, depth: usize, found: &mut Vec<Stamp>) {
    let Ok(meta) = std::fs::metadata(path) else { return };
    if !meta.is_dir() {
        found.push((path.into(), meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec()));
        return;
    }
    let Ok(entries) = std::fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        if depth > 0 || !entry.path().is_dir() {
            collect(&entry.path(), depth.saturating_sub(1), found);
        }
    }
}
