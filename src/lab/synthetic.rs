//! The model `synthetic`: work on registers, sized once to the machine, so that a row alone takes
//! [`RUN_NS`] + [`ROW_NS`] on every machine, and a load level means the same on all of them.
//!
//! # Where the size is kept
//! In [`FILE`] in the first of these directories that is named: `--state-dir`, `CORELANE_STATE_DIR`,
//! `$XDG_STATE_HOME/corelane`, `$HOME/.local/state/corelane`. A file that is damaged, or is of another
//! machine, processor architecture, optimisation or loop, is measured anew and replaced; why is told
//! once. A core that is slowed by heat later does *not* change the size: it shows in the figures.

use crate::config::SYNTHETIC;
use crate::engine::fake::{FakeCompute, FakeFault, FakeWork, grind};
use crate::lab::system::SystemFiles;
use crate::limits::TEXT_FILE_BYTES_MAX;
use crate::model::manifest::FakeSection;
use crate::model::signature::{Signature, TensorSpec};
use crate::model::{Manifest, ModelError};
use crate::sys::{affinity, clock, files};
use crate::units::{CoreId, DType, Nanos};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// Its name, wherever a model's path is asked for.
pub const NAME: &str = SYNTHETIC;
/// The file that keeps its size.
pub const FILE: &str = "synthetic.json";
/// The variable that names the directory.
pub const VARIABLE: &str = "CORELANE_STATE_DIR";
/// Version of the file's layout.
pub const SCHEMA: u32 = 1;
/// What the file says it is.
pub const KIND: &str = "corelane-synthetic";
/// Version of the loop that is sized; another one takes another time.
const LOOP: u32 = 1;
/// Compute time of a run, besides its rows, in nanoseconds: what a batch shares.
pub const RUN_NS: u64 = 500_000;
/// Compute time of each row of a run, in nanoseconds.
pub const ROW_NS: u64 = 500_000;
/// Rows of the largest batch.
pub const BATCH_ROWS: usize = 8;
/// Values of a row: 256 bytes.
const VALUES: usize = 64;
/// A size beyond this is a damaged file.
const ROUNDS_PER_MS_MAX: u64 = 1_000_000_000;
/// Length of one turn of the sizing.
const TURN_NS: u64 = 2_000_000;
/// Turns; the shortest counts, since everything that disturbs makes a turn longer.
const TURNS: usize = 25;
/// Work before the first turn, so that the core has come to its frequency.
const WARM_NS: u64 = 100_000_000;

/// The size on a machine, as the file keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// [`SCHEMA`].
    pub schema: u32,
    /// [`KIND`].
    pub kind: String,
    /// Board or processor, as the machine names itself.
    pub machine: String,
    /// Processor architecture.
    pub architecture: String,
    /// The compiler's level of optimisation.
    pub optimisation: String,
    /// Version of the loop.
    pub loop_version: u32,
    /// The core that it was sized on.
    pub core: u16,
    /// Rounds of the loop that take a millisecond.
    pub rounds_per_ms: u64,
    /// When it was sized, in seconds since 1970.
    pub measured_unix_s: u64,
}

/// Where a size comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The file.
    Kept,
    /// It was measured now; why the file did not do, where there was one.
    Measured {
        /// What was wrong with the file.
        why: Option<String>,
    },
}

/// Why there is no size.
#[derive(Debug)]
#[non_exhaustive]
pub enum SyntheticError {
    /// No directory is named to keep it in.
    NoPlace,
    /// It can't be kept.
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No core to size it on.
    Affinity(affinity::AffinityError),
}

impl fmt::Display for SyntheticError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyntheticError::NoPlace => write!(
                f,
                "nowhere to keep the size of model {NAME}: give --state-dir DIR, or set {VARIABLE}, \
                 XDG_STATE_HOME or HOME"
            ),
            SyntheticError::Write { path, source } => write!(
                f,
                "the size of model {NAME} can't be kept in {}: {source}; give --state-dir DIR, or set \
                 {VARIABLE}",
                path.display()
            ),
            SyntheticError::Affinity(error) => write!(f, "model {NAME} can't be sized: {error}"),
        }
    }
}

impl std::error::Error for SyntheticError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SyntheticError::Write { source, .. } => Some(source),
            SyntheticError::Affinity(error) => Some(error),
            SyntheticError::NoPlace => None,
        }
    }
}

/// The file: in `asked`, else where `variable` (the environment) says.
///
/// # Errors
/// `NoPlace`, if neither names a directory.
pub fn state_file(
    asked: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, SyntheticError> {
    // The base directory specification has relative paths ignored, and an empty variable is none.
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let own = || variable(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
    let dir = asked
        .map(Path::to_path_buf)
        .or_else(own)
        .or_else(|| Some(absolute("XDG_STATE_HOME")?.join("corelane")))
        .or_else(|| Some(absolute("HOME")?.join(".local/state/corelane")));
    Ok(dir.ok_or(SyntheticError::NoPlace)?.join(FILE))
}

impl Size {
    /// Of this machine and program, on `core`.
    fn here(core: CoreId, rounds_per_ms: u64) -> Size {
        Size {
            schema: SCHEMA,
            kind: KIND.into(),
            machine: SystemFiles::default().machine().name,
            architecture: std::env::consts::ARCH.into(),
            optimisation: env!("CORELANE_OPT_LEVEL").into(),
            loop_version: LOOP,
            core: core.0,
            rounds_per_ms,
            measured_unix_s: clock::unix_seconds(),
        }
    }

    /// Reads a file's text; why it does not do on this machine.
    ///
    /// # Errors
    /// A sentence.
    pub fn parse(text: &str) -> Result<Size, String> {
        let size: Size = serde_json::from_str(text).map_err(|e| format!("it is damaged: {e}"))?;
        let here = Size::here(CoreId(size.core), size.rounds_per_ms);
        let numbers = [
            ("schema", size.schema, here.schema),
            ("loop version", size.loop_version, here.loop_version),
        ];
        for (what, found, wanted) in numbers {
            if found != wanted {
                return Err(format!("its {what} is {found}, this version has {wanted}"));
            }
        }
        let texts = [
            ("kind", &size.kind, &here.kind),
            ("machine", &size.machine, &here.machine),
            ("architecture", &size.architecture, &here.architecture),
            ("optimisation", &size.optimisation, &here.optimisation),
        ];
        for (what, found, wanted) in texts {
            if found != wanted {
                return Err(format!("its {what} is {found:?}, here it is {wanted:?}"));
            }
        }
        if !(1..=ROUNDS_PER_MS_MAX).contains(&size.rounds_per_ms) {
            return Err(format!(
                "it has {} rounds a millisecond; 1 to {ROUNDS_PER_MS_MAX} are possible",
                size.rounds_per_ms
            ));
        }
        Ok(size)
    }

    /// Work of a run.
    pub fn work(&self) -> FakeWork {
        let rounds = |ns: u64| (self.rounds_per_ms as f64 * ns as f64 / 1e6).round() as u64;
        FakeWork { rounds_per_run: rounds(RUN_NS), rounds_per_row: rounds(ROW_NS) }
    }

    /// The model's manifest.
    ///
    /// # Errors
    /// None that this size could cause.
    pub fn manifest(&self) -> Result<Manifest, ModelError> {
        let tensor = |name: &str| TensorSpec {
            name: name.into(),
            dtype: DType::F32,
            row_shape: vec![VALUES],
        };
        let section = FakeSection {
            signature: Signature {
                inputs: vec![tensor("x")],
                outputs: vec![tensor("y")],
                batched: true,
            },
            compute: FakeCompute::default(),
            work: self.work(),
            fault: FakeFault::default(),
        };
        let mut manifest = Manifest::fake(NAME, section)?;
        manifest.limit_batches(BATCH_ROWS);
        Ok(manifest)
    }
}

/// Time of one turn.
fn turn(rounds: u64) -> u64 {
    let start = clock::now();
    std::hint::black_box(grind(rounds));
    clock::now().since(start).0.max(1)
}

/// Rounds that take a millisecond, on this thread's core.
fn measure() -> u64 {
    let mut rounds = 1000u64;
    let warm = clock::now().after(Nanos(WARM_NS));
    let mut ns = turn(rounds);
    while clock::now() < warm || ns < TURN_NS {
        if ns < TURN_NS {
            rounds *= 2;
        }
        ns = turn(rounds);
    }
    let least = (0..TURNS).map(|_| turn(rounds)).min().unwrap_or(ns);
    (u128::from(rounds) * 1_000_000 / u128::from(least)).clamp(1, u128::from(ROUNDS_PER_MS_MAX))
        as u64
}

/// The size on this machine: from `file`, else measured on the last allowed core (the kind that
/// workers run on) and kept there. Takes some 200 ms the first time.
///
/// # Errors
/// `Write`, where it can't be kept; `Affinity`, where the core can't be had.
pub fn size(file: &Path) -> Result<(Size, Origin), SyntheticError> {
    let why = match files::read_text(file, TEXT_FILE_BYTES_MAX) {
        Ok(text) => match Size::parse(&text) {
            Ok(size) => return Ok((size, Origin::Kept)),
            Err(why) => Some(why),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => Some(error.to_string()),
    };
    let write = |source| SyntheticError::Write { path: file.into(), source };
    // A place that can't be written is found before 200 ms are spent.
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir).map_err(write)?;
    }
    let allowed = affinity::allowed().map_err(SyntheticError::Affinity)?;
    let core = allowed.last().copied().unwrap_or(CoreId(0));
    let measured = std::thread::scope(|scope| {
        let thread = scope.spawn(|| affinity::pin(core).map(|_pinned| measure()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let size = Size::here(core, measured.map_err(SyntheticError::Affinity)?);
    let text = serde_json::to_string_pretty(&size).unwrap_or_default();
    // Whole or not at all: two programs may start at once.
    let part = file.with_extension(format!("part-{}", std::process::id()));
    let kept = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, file));
    if kept.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    kept.map_err(write)?;
    Ok((size, Origin::Measured { why }))
}

#[cfg(test)]
mod tests;
