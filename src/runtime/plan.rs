//! From a board to the cores of workers and I/O.

use crate::board::{BoardError, Difference, Machine, check, resolve};
use crate::config::{Config, Workers};
use crate::units::CoreId;
use std::fmt;

/// What to do where the machine is not as the board says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BoardMismatch {
    /// It is an error that names each difference.
    #[default]
    Error,
    /// The plan is cut down to what there is, and `stats` says so.
    Adapt,
}

/// A board's plan on this machine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PlannedBoard {
    /// The board's short name.
    pub board: String,
    /// Its whole name.
    pub title: String,
    /// How it was found.
    pub found: String,
    /// Cores that the board wants for workers.
    pub wanted_workers: Vec<CoreId>,
    /// Cores that workers get.
    pub got_workers: Vec<CoreId>,
    /// Core that the board wants for I/O.
    pub wanted_io: Option<CoreId>,
    /// Core that I/O gets.
    pub got_io: Option<CoreId>,
    /// What is not as the board says.
    pub differences: Vec<String>,
}

/// Why a board can't be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum PlanError {
    /// There is no such board.
    Board(BoardError),
    /// The machine is not as the board says.
    Mismatch {
        /// The board's name.
        board: String,
        /// In what.
        differences: Vec<Difference>,
    },
    /// No core of this machine can have a worker.
    NoCores {
        /// The board's name.
        board: String,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Board(error) => error.fmt(f),
            PlanError::Mismatch { board, differences } => {
                let all: Vec<String> = differences.iter().map(Difference::to_string).collect();
                write!(
                    f,
                    "this machine is not as board {board} says: {}; name the cores, or take what \
                     there is (--board-mismatch adapt)",
                    all.join("; ")
                )
            }
            PlanError::NoCores { board } => {
                write!(f, "board {board}: no core of this machine can have a worker")
            }
        }
    }
}

impl std::error::Error for PlanError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PlanError::Board(error) => Some(error),
            _ => None,
        }
    }
}

/// The cores that the board `asked` (`auto`, a name, or a file) plans on `machine`.
///
/// # Errors
/// No such board; differences, with [`BoardMismatch::Error`]; or no core at all.
pub fn plan_board(
    asked: &str,
    machine: &Machine,
    mismatch: BoardMismatch,
) -> Result<PlannedBoard, PlanError> {
    let found = resolve(asked, machine).map_err(PlanError::Board)?;
    let check = check(&found.board, machine);
    let board = found.board.name.clone();
    if mismatch == BoardMismatch::Error && !check.differences.is_empty() {
        return Err(PlanError::Mismatch { board, differences: check.differences });
    }
    if check.got.workers.is_empty() {
        return Err(PlanError::NoCores { board });
    }
    Ok(PlannedBoard {
        board,
        title: found.board.title,
        found: found.how.to_string(),
        differences: check.differences.iter().map(Difference::to_string).collect(),
        wanted_workers: check.wanted.workers,
        got_workers: check.got.workers,
        wanted_io: check.wanted.io,
        got_io: check.got.io,
    })
}

/// Takes the cores of workers and I/O from the board's plan, where the configuration names a board, and says
/// in the log what was found and what differs.
///
/// # Errors
/// Those of [`plan_board`].
pub fn take_board(
    config: &mut Config,
    machine: &Machine,
) -> Result<Option<PlannedBoard>, PlanError> {
    let Some(asked) = &config.board else { return Ok(None) };
    let planned = plan_board(asked, machine, config.board_mismatch)?;
    event!(info, "board {}: {}, {}", planned.board, planned.title, planned.found);
    for difference in &planned.differences {
        event!(warn, "board {}: {}", planned.board, difference);
    }
    config.workers = Workers::Cores(planned.got_workers.clone());
    config.io_core = planned.got_io;
    Ok(Some(planned))
}
