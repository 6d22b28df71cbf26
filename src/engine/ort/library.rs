//! Which file is ONNX Runtime's shared library, and whether it can be opened, found out in bounded
//! time before any of its code runs in this process.
//!
//! 1. [`find`]: the configured path, else `ORT_DYLIB_PATH`, else the file beside the program.
//! 2. [`probe`] reads the file (`elf`): a shared library, for this machine, that exports
//!    `OrtGetApiBase`, with a version (its symbol version) in the range.
//! 3. `probe` lets another process load it: a library that hangs, crashes or lacks something that
//!    it needs does so there, and is ended there after [`LIBRARY_TRIAL_MS_MAX`].
//!
//! # Versions
#![doc = include_str!("versions.md")]

use super::elf::{self, ElfError};
use super::settings::Provider;
use crate::limits::LIBRARY_TRIAL_MS_MAX;
use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Oldest version that will do: the one whose interface is asked for.
pub const VERSION_MIN: Version = Version { major: 1, minor: 17, patch: 0 };
/// Newest version that was tried. A newer one of the same major version keeps the interface that is
/// asked for, by ONNX Runtime's own promise; `doctor` says that it was not tried.
pub const VERSION_TRIED_MAX: Version = Version { major: 1, minor: 32, patch: 0 };
/// The environment's variable that names the library.
pub const VARIABLE: &str = "ORT_DYLIB_PATH";
/// What every ONNX Runtime library exports.
const ENTRY: &str = "OrtGetApiBase";
/// How symbol versions of ONNX Runtime begin.
const VERSION_PREFIX: &str = "VERS_";
/// How long a library may take to load.
const PATIENCE: Duration = Duration::from_millis(LIBRARY_TRIAL_MS_MAX);
/// Programs that do nothing, to load the library into.
const IDLE_PROGRAMS: [&str; 2] = ["/bin/true", "/usr/bin/true"];
/// Longest message of the system's loader that is kept, in bytes.
const LOADER_TEXT_BYTES_MAX: u64 = 4096;

/// A version of ONNX Runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 1, so far.
    pub major: u32,
    /// The version of the interface.
    pub minor: u32,
    /// Repairs.
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Version {
    /// Reads `1.32.0`, or `1.32`.
    pub fn parse(text: &str) -> Option<Version> {
        let mut parts = text.split('.').map(|part| part.parse::<u32>().ok());
        let (major, minor) = (parts.next()??, parts.next()??);
        let patch = parts.next().unwrap_or(Some(0))?;
        parts.next().is_none().then_some(Version { major, minor, patch })
    }

    /// Whether the interface that is asked for is in it.
    pub fn is_supported(self) -> bool {
        self.major == VERSION_MIN.major && self >= VERSION_MIN
    }
}

/// Who named the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundBy {
    /// `runtime.onnxruntime` of the configuration.
    Configuration,
    /// [`VARIABLE`].
    Environment,
    /// It lies beside the program.
    Program,
}

impl FoundBy {
    /// A sentence's end.
    pub const fn text(self) -> &'static str {
        match self {
            FoundBy::Configuration => "named by the configuration",
            FoundBy::Environment => "named by ORT_DYLIB_PATH",
            FoundBy::Program => "beside the program",
        }
    }
}

/// What the trial in another process showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trial {
    /// It loads.
    Loads,
    /// It was not tried; why.
    Skipped(&'static str),
}

/// A library that can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// The file.
    pub path: PathBuf,
    /// Who named it.
    pub found_by: FoundBy,
    /// Its version.
    pub version: Version,
    /// What the trial showed.
    pub trial: Trial,
}

/// Why there is no library that can be used. Each names the file, and what would be right.
#[derive(Debug)]
#[non_exhaustive]
pub enum LibraryError {
    /// Nothing names one, and none lies beside the program.
    NotFound {
        /// The program's directory.
        beside: PathBuf,
    },
    /// The file can't be read.
    Io {
        /// The file.
        path: PathBuf,
        /// Who named it.
        found_by: FoundBy,
        /// Why.
        source: std::io::Error,
    },
    /// It is no shared library.
    NotALibrary {
        /// The file.
        path: PathBuf,
        /// What it is; a sentence's end.
        what: String,
    },
    /// It is for another machine.
    Machine {
        /// The file.
        path: PathBuf,
        /// What it is for.
        found: String,
        /// What this program runs on.
        wanted: &'static str,
    },
    /// It is a shared library, but not ONNX Runtime.
    NotOnnxRuntime {
        /// The file.
        path: PathBuf,
    },
    /// Its version is not in the range, or it does not say which it is.
    Version {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: Option<Version>,
    },
    /// The system's loader can't load it.
    Loader {
        /// The file.
        path: PathBuf,
        /// What the loader said.
        said: String,
    },
    /// Loading it ended the process that tried.
    Crashes {
        /// The file.
        path: PathBuf,
        /// The version found.
        version: Version,
        /// How the process ended.
        status: ExitStatus,
    },
    /// Loading it takes too long.
    Hangs {
        /// The file.
        path: PathBuf,
        /// The version found.
        version: Version,
        /// How long was waited.
        waited: Duration,
    },
    /// It could not be opened in this process.
    Open {
        /// The file.
        path: PathBuf,
        /// The version found.
        version: Version,
        /// What was said.
        said: String,
    },
    /// Another library is open already; a process has one.
    Another {
        /// The one that is open.
        open: PathBuf,
        /// The one that is asked for.
        wanted: PathBuf,
    },
    /// This program was built without the feature `ort`.
    NotBuilt,
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tried = VERSION_TRIED_MAX;
        match self {
            LibraryError::NotFound { beside } => write!(
                f,
                "no ONNX Runtime library: set runtime.onnxruntime in the configuration, or \
                 {VARIABLE}, to libonnxruntime.so (the Python package onnxruntime has it in \
                 onnxruntime/capi), or put it into {}",
                beside.display()
            ),
            LibraryError::Io { path, found_by, source } => {
                write!(f, "{} ({}) can't be read: {source}", path.display(), found_by.text())
            }
            LibraryError::NotALibrary { path, what } => {
                write!(f, "{} {what}; give ONNX Runtime's libonnxruntime.so", path.display())
            }
            LibraryError::Machine { path, found, wanted } => {
                write!(f, "{} is a library for {found}; this is {wanted}", path.display())
            }
            LibraryError::NotOnnxRuntime { path } => write!(
                f,
                "{} is a shared library, but not ONNX Runtime (it has no {ENTRY})",
                path.display()
            ),
            LibraryError::Version { path, found } => {
                match found {
                    Some(found) => write!(f, "{} is ONNX Runtime {found}", path.display())?,
                    None => write!(f, "{} does not say its version", path.display())?,
                }
                write!(
                    f,
                    "; versions from {}.{} on within {}.x are supported (tried up to {tried})",
                    VERSION_MIN.major, VERSION_MIN.minor, VERSION_MIN.major
                )
            }
            LibraryError::Loader { path, said } => {
                write!(f, "{} can't be loaded: {said}", path.display())
            }
            LibraryError::Crashes { path, version, status } => write!(
                f,
                "{} (ONNX Runtime {version}) ends the process that loads it: {status}",
                path.display()
            ),
            LibraryError::Hangs { path, version, waited } => write!(
                f,
                "{} (ONNX Runtime {version}) was still being loaded after {} ms",
                path.display(),
                waited.as_millis()
            ),
            LibraryError::Open { path, version, said } => {
                write!(f, "{} (ONNX Runtime {version}) can't be opened: {said}", path.display())
            }
            LibraryError::Another { open, wanted } => write!(
                f,
                "{} is asked for, but this process has opened {}; one process has one ONNX Runtime",
                wanted.display(),
                open.display()
            ),
            LibraryError::NotBuilt => f.write_str(
                "this program was built without ONNX Runtime; build it with --features ort",
            ),
        }
    }
}

impl std::error::Error for LibraryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LibraryError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The file that is to be used: `configured`, else [`VARIABLE`], else the one beside the program. What is
/// named must be right; the next place is not tried instead.
///
/// # Errors
/// `NotFound`, or `Io` where the file that is named is not there.
pub fn find(configured: Option<&Path>) -> Result<(PathBuf, FoundBy), LibraryError> {
    let variable = std::env::var_os(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
    let named = match (configured, variable) {
        (Some(path), _) => Some((path.to_path_buf(), FoundBy::Configuration)),
        (None, Some(path)) => Some((path, FoundBy::Environment)),
        (None, None) => None,
    };
    if let Some((path, found_by)) = named {
        // Absolute: a bare name would make the loader search other places.
        return match std::fs::canonicalize(&path) {
            Ok(path) => Ok((path, found_by)),
            Err(source) => Err(LibraryError::Io { path, found_by, source }),
        };
    }
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent).unwrap_or(Path::new(".")).to_path_buf();
    match beside_program(&beside) {
        Some(path) => Ok((path, FoundBy::Program)),
        None => Err(LibraryError::NotFound { beside }),
    }
}

/// `libonnxruntime.so` in `dir`, else the newest `libonnxruntime.so.VERSION`.
fn beside_program(dir: &Path) -> Option<PathBuf> {
    const NAME: &str = "libonnxruntime.so";
    let plain = dir.join(NAME);
    if plain.exists() {
        return std::fs::canonicalize(plain).ok();
    }
    let versioned = std::fs::read_dir(dir).ok()?.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let version = name.strip_prefix(NAME)?.strip_prefix('.')?;
        let version: Vec<u32> =
            version.split('.').map(|n| n.parse().ok()).collect::<Option<_>>()?;
        Some((version, entry.path()))
    });
    std::fs::canonicalize(versioned.max()?.1).ok()
}

/// Finds the library and makes sure that it can be opened, without opening it in this process. Takes
/// at most [`LIBRARY_TRIAL_MS_MAX`], and the time to read a few tables.
///
/// # Errors
/// Every kind of [`LibraryError`] but `Open`, `Another` and `NotBuilt`.
pub fn probe(configured: Option<&Path>) -> Result<Library, LibraryError> {
    let (path, found_by) = find(configured)?;
    let version = inspect(&path, found_by)?;
    let trial = trial(&path, None, version, PATIENCE)?;
    Ok(Library { path, found_by, version, trial })
}

/// Makes sure that what `library` opens for `provider` can be loaded, with all that it needs of CUDA and
/// TensorRT, in as much time as [`probe`] takes. The processor's provider is in the library itself.
///
/// # Errors
/// `Io` where a file beside the library is not there, `Loader` with what it lacks, `Crashes`, `Hangs`.
pub fn probe_provider(library: &Library, provider: Provider) -> Result<(), LibraryError> {
    if provider == Provider::Cpu {
        return Ok(());
    }
    let beside = |name: &str| {
        let path = library.path.with_file_name(format!("libonnxruntime_providers_{name}.so"));
        match std::fs::metadata(&path) {
            Ok(_) => Ok(path),
            Err(source) => Err(LibraryError::Io { path, found_by: library.found_by, source }),
        }
    };
    // What every provider's library calls.
    let shared = beside("shared")?;
    trial(&beside(provider.name())?, Some(&shared), library.version, PATIENCE).map(drop)
}

/// What the file says of itself: ONNX Runtime of a version in the range, or why not.
fn inspect(path: &Path, found_by: FoundBy) -> Result<Version, LibraryError> {
    let path = || path.to_path_buf();
    let elf = elf::read(&path(), ENTRY).map_err(|error| match error {
        ElfError::Io(source) => LibraryError::Io { path: path(), found_by, source },
        ElfError::Not(what) => LibraryError::NotALibrary { path: path(), what },
        ElfError::Machine { found, wanted } => {
            LibraryError::Machine { path: path(), found, wanted }
        }
    })?;
    if !elf.exports {
        return Err(LibraryError::NotOnnxRuntime { path: path() });
    }
    let versions = elf.versions.iter().filter_map(|v| v.strip_prefix(VERSION_PREFIX));
    let found = versions.filter_map(Version::parse).max();
    match found.filter(|v| v.is_supported()) {
        Some(version) => Ok(version),
        None => Err(LibraryError::Version { path: path(), found }),
    }
}

/// Lets a program that does nothing load a library of a `version`, and another before it.
fn trial(
    path: &Path,
    before: Option<&Path>,
    version: Version,
    patience: Duration,
) -> Result<Trial, LibraryError> {
    let mut preload = OsString::new();
    for path in before.into_iter().chain([path]) {
        preload.push(if preload.is_empty() { "" } else { ":" });
        preload.push(path);
    }
    // The loader separates paths by these.
    if path.to_str().is_none_or(|p| p.contains([' ', ':'])) {
        return Ok(Trial::Skipped("its path has a blank or a colon"));
    }
    let Some(program) = IDLE_PROGRAMS.iter().find(|p| Path::new(p).exists()) else {
        return Ok(Trial::Skipped("this system has no program `true`"));
    };
    let spawned = Command::new(program)
        .env("LD_PRELOAD", preload)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else {
        return Ok(Trial::Skipped("the system gives no process to try it in"));
    };
    let status = wait(&mut child, patience);
    let said = child.stderr.take().map(|pipe| said(pipe, LOADER_TEXT_BYTES_MAX));
    let said = said.unwrap_or_default();
    let path = path.to_path_buf();
    match status {
        None => Err(LibraryError::Hangs { path, version, waited: patience }),
        Some(_) if said.contains("LD_PRELOAD cannot be preloaded") => {
            // The reason is in brackets behind the name.
            let reason = said.rsplit_once("preloaded (").and_then(|(_, r)| r.rsplit_once(')'));
            let said = reason.map_or(said.as_str(), |(reason, _)| reason).to_string();
            Err(LibraryError::Loader { path, said })
        }
        Some(status) if status.success() => Ok(Trial::Loads),
        // The loader ends a program that it can't start with 127; its reason is behind the names.
        Some(status) if status.code() == Some(127) && !said.is_empty() => {
            let reason = said.split_once("shared libraries: ").map_or(&*said, |(_, reason)| reason);
            Err(LibraryError::Loader { path, said: reason.to_string() })
        }
        Some(status) => Err(LibraryError::Crashes { path, version, status }),
    }
}

/// What is in `pipe` of a process that has ended, without the white space around it; at most `bytes_max`.
/// Does not wait for more: processes that it left behind may hold the other end.
pub(super) fn said(pipe: impl Read + AsFd, bytes_max: u64) -> String {
    let mut said = Vec::new();
    let flags = rustix::fs::fcntl_getfl(&pipe).map(|flags| flags | OFlags::NONBLOCK);
    if flags.is_ok_and(|flags| rustix::fs::fcntl_setfl(&pipe, flags).is_ok()) {
        // Keeps what was read before there is an error: that no more is there now.
        let _ = pipe.take(bytes_max).read_to_end(&mut said);
    }
    String::from_utf8_lossy(&said).trim().to_string()
}

/// Waits for `child`, and ends it when the patience is over.
pub(super) fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            // An error of waiting: treat it as one that does not end.
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
