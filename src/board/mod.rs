//! Boards: what a device is made of, which of its cores do what, and whether the machine that this
//! runs on agrees.
//!
//! A [`Board`] is a TOML file of facts with sources. Those under `boards/` are part of the program, so
//! that `--board rpi5` works on a device without files. A [`Machine`] is what `/proc` and `/sys` say;
//! it is read from a root directory, so that tests build trees of their own. [`identify`] finds the
//! board of a machine, and [`check`] compares a board's plan with the machine: what was `wanted`, what
//! can be `got`, and each difference by name.
//!
//! A fact that is not known is absent, and told as not published. Figures of other engines carry their source;
//! ours appear only where they were measured on the board itself.

mod check;
mod identify;
mod machine;
mod parse;
mod text;

pub use check::{Check, CorePlan, Difference, check};
pub use identify::{Found, HowFound, identify, resolve};
pub use machine::{Cpu, CpuId, Machine, core_kinds};
pub use text::{describe, describe_machine, kernel_arguments, slices_command};

use crate::limits::BOARD_FILE_BYTES_MAX;
use crate::toml_errors::{TomlError, nearest};
use crate::units::CoreId;
use std::fmt;
use std::path::{Path, PathBuf};

macro_rules! embedded {
    ($($name:literal)+) => {
        /// The boards that are part of the program: name and file.
        pub const EMBEDDED: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../boards/", $name, ".toml"))),)+];
    };
}

embedded! {
    "beagleplay" "generic-x86_64" "imx8mp" "jetson-orin-nano" "jetson-orin-nx" "jetson-orin-nx-8gb"
    "rk3588" "rpi-zero-2w" "rpi3" "rpi4" "rpi5" "stm32mp157"
}

/// Cores of one kind that share a clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Name of the core, such as `Cortex-A76`.
    pub core_type: String,
    /// Implementer and part of the processor's id register (MIDR).
    pub id: CpuId,
    /// The cores, as the kernel numbers them.
    pub cores: Vec<CoreId>,
    /// Highest frequency.
    pub frequency_max_mhz: Option<u64>,
    /// `capacity-dmips-mhz` of the device tree: speed at the same clock, against the others.
    pub capacity_dmips_mhz: Option<u64>,
    /// Instruction cache of a core.
    pub l1i_kib: Option<u64>,
    /// Data cache of a core.
    pub l1d_kib: Option<u64>,
    /// Second cache, of a core or of the cluster.
    pub l2_kib: Option<u64>,
    /// Whether the cluster shares its second cache.
    pub l2_shared: Option<bool>,
    /// Instruction sets, as `/proc/cpuinfo` names them.
    pub features: Vec<String>,
}

/// The board's memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// Sizes that it is sold with.
    pub sizes_mib: Vec<u64>,
    /// Kind, such as `LPDDR4-3200`.
    pub kind: Option<String>,
    /// Last cache before memory, of all cores.
    pub l3_kib: Option<u64>,
    /// What the runtime should get along with, all models together.
    pub budget_mib: u64,
}

/// How to build for the board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// Target triple.
    pub target: String,
    /// Oldest glibc that a program built for it must start on, such as `2.31` (Debian 11); `None`: that of
    /// the cross compiler.
    pub glibc: Option<String>,
    /// The compiler's name of the processor; code built with it runs on all cores of the board.
    pub cpu: Option<String>,
    /// Target features that the triple does not imply.
    pub features: Vec<String>,
    /// The emulator's name of the nearest processor.
    pub emulator_cpu: Option<String>,
}

/// A serial port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uart {
    /// Its device file.
    pub device: String,
    /// Where it comes out.
    pub what: String,
}

/// A published figure of another engine on this board.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// The engine.
    pub engine: String,
    /// The model.
    pub model: String,
    /// The kind of core that it ran on, as the clusters name it.
    pub core_type: String,
    /// The precision that it computed in, as far as the source tells.
    pub precision: String,
    /// Threads.
    pub threads: u64,
    /// Milliseconds for one row.
    pub ms: f64,
    /// Where it is published.
    pub source: String,
}

/// A figure of this runtime on this board.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The model.
    pub model: String,
    /// Median milliseconds for one row on one worker.
    pub ms: f64,
    /// Version, and how it was measured.
    pub how: String,
}

/// A board.
#[derive(Debug, Clone, PartialEq)]
pub struct Board {
    /// Short name: the file's.
    pub name: String,
    /// Whole name.
    pub title: String,
    /// System on a chip.
    pub soc: String,
    /// `aarch64`, `armv7` or `x86_64`.
    pub architecture: String,
    /// Where the facts are from.
    pub sources: Vec<String>,
    /// Entries of the device tree's `compatible`, any of which names this board; the most specific
    /// board wins.
    pub compatible: Vec<String>,
    /// Beginnings of the device tree's `model`.
    pub model_prefix: Vec<String>,
    /// Whether it is taken for any machine of its architecture that nothing else names.
    pub fallback: bool,
    /// Clusters, in the order of their cores. Empty for a machine that is not known before it is seen.
    pub clusters: Vec<Cluster>,
    /// Memory.
    pub memory: Memory,
    /// What the cores are for; `None`: every usable one but the first has a worker.
    pub cores: Option<CorePlan>,
    /// How to build for it.
    pub build: Build,
    /// Serial ports.
    pub uarts: Vec<Uart>,
    /// File with the temperature in thousandths of a degree.
    pub thermal_file: Option<String>,
    /// File with the worker cores' frequency in kHz.
    pub frequency_file: Option<String>,
    /// File that tells of throttling.
    pub throttled_file: Option<String>,
    /// Figures of other engines.
    pub references: Vec<Reference>,
    /// Figures of this one.
    pub measured: Vec<Measured>,
}

/// Why there is no board.
#[derive(Debug)]
#[non_exhaustive]
pub enum BoardError {
    /// The file can't be read.
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in the file is wrong.
    Toml(TomlError),
    /// No board of that name is part of the program, and no file is called so.
    Unknown {
        /// The name asked for.
        name: String,
        /// The nearest name, if one is near.
        nearest: Option<&'static str>,
    },
    /// `auto` found nothing that it knows.
    Unidentified {
        /// What the machine says of itself.
        machine: String,
        /// Names of the boards whose cores are the machine's: it may be one of them, or another with the
        /// same processor.
        alike: Vec<&'static str>,
    },
}

impl fmt::Display for BoardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BoardError::Io { path, source } => {
                write!(f, "the board file {} can't be read: {source}", path.display())
            }
            BoardError::Toml(error) => error.fmt(f),
            BoardError::Unknown { name, nearest: Some(nearest) } => {
                write!(f, "there is no board {name:?}; did you mean {nearest:?}?")
            }
            BoardError::Unknown { name, nearest: None } => {
                write!(f, "there is no board {name:?}; there are {}", names().join(", "))?;
                f.write_str(", or give a file's path")
            }
            BoardError::Unidentified { machine, alike } => {
                write!(f, "no known board fits this machine ({machine}); ")?;
                if !alike.is_empty() {
                    write!(f, "boards with the same cores: {}; ", alike.join(", "))?;
                }
                write!(f, "give a name ({}) or a file", names().join(", "))
            }
        }
    }
}

impl std::error::Error for BoardError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BoardError::Io { source, .. } => Some(source),
            BoardError::Toml(error) => Some(error),
            _ => None,
        }
    }
}

impl From<TomlError> for BoardError {
    fn from(error: TomlError) -> Self {
        BoardError::Toml(error)
    }
}

/// Names of the boards that are part of the program.
pub fn names() -> Vec<&'static str> {
    EMBEDDED.iter().map(|(name, _)| *name).collect()
}

impl Board {
    /// A board that is part of the program, or a file: what has a `/` or ends in `.toml` is a path.
    ///
    /// # Errors
    /// No such name, or the file can't be read or is wrong.
    pub fn read(name_or_path: &str) -> Result<Board, BoardError> {
        if let Some((name, text)) = EMBEDDED.iter().find(|(name, _)| *name == name_or_path) {
            return Ok(Board::parse(name, &format!("boards/{name}.toml"), text)?);
        }
        if !name_or_path.contains('/') && !name_or_path.ends_with(".toml") {
            let nearest = nearest(name_or_path, EMBEDDED.iter().map(|(name, _)| *name));
            let nearest = nearest.and_then(|n| names().into_iter().find(|name| *name == n));
            return Err(BoardError::Unknown { name: name_or_path.into(), nearest });
        }
        let path = Path::new(name_or_path);
        let failed = |source| BoardError::Io { path: path.into(), source };
        let bytes = machine::read_bounded(path, BOARD_FILE_BYTES_MAX).map_err(failed)?;
        let text = String::from_utf8(bytes)
            .map_err(|e| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, e)))?;
        let name = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        Ok(Board::parse(&name, name_or_path, &text)?)
    }

    /// The cluster that a core belongs to.
    pub fn cluster_of(&self, core: CoreId) -> Option<&Cluster> {
        self.clusters.iter().find(|c| c.cores.contains(&core))
    }
}

#[cfg(test)]
mod tests;
