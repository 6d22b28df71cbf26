//! Which board a machine is.

use super::{Board, BoardError, EMBEDDED, Machine};

/// How a board was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HowFound {
    /// It was named.
    Named,
    /// By an entry of the device tree's `compatible`.
    Compatible(
        /// The entry.
        String,
    ),
    /// By the device tree's `model`.
    Model(
        /// The model.
        String,
    ),
    /// Nothing named it; it stands for its architecture.
    Architecture,
}

impl std::fmt::Display for HowFound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HowFound::Named => f.write_str("as asked for"),
            HowFound::Compatible(entry) => write!(f, "by the device tree's compatible {entry:?}"),
            HowFound::Model(model) => write!(f, "by the device tree's model {model:?}"),
            HowFound::Architecture => f.write_str("by its architecture alone"),
        }
    }
}

/// A board, and how it was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The board.
    pub board: Board,
    /// How.
    pub how: HowFound,
}

/// The board of `machine`, among those that are part of the program.
///
/// The device tree lists what it is compatible with from the board to the SoC: the first entry that a
/// board names decides, then the model, then the processor's architecture. A machine that shows no device
/// tree (a container often has none) is not guessed by its cores, since many boards share them; the error
/// names the boards whose cores are the same.
///
/// # Errors
/// No board fits.
pub fn identify(machine: &Machine) -> Result<Found, BoardError> {
    let mut boards = Vec::with_capacity(EMBEDDED.len());
    for (name, _) in EMBEDDED {
        boards.push(Board::read(name)?);
    }
    for entry in &machine.compatible {
        if let Some(board) = boards.iter().find(|b| b.compatible.contains(entry)) {
            let how = HowFound::Compatible(entry.clone());
            return Ok(Found { board: board.clone(), how });
        }
    }
    if let Some(model) = &machine.model {
        let named = |b: &&Board| b.model_prefix.iter().any(|prefix| model.starts_with(prefix));
        if let Some(board) = boards.iter().find(named) {
            return Ok(Found { board: board.clone(), how: HowFound::Model(model.clone()) });
        }
    }
    if let Some(board) =
        boards.iter().find(|b| b.fallback && b.architecture == machine.architecture)
    {
        return Ok(Found { board: board.clone(), how: HowFound::Architecture });
    }
    // In the order of the boards, which is that of their names.
    let named = EMBEDDED.iter().zip(&boards);
    let alike = named.filter(|(_, board)| same_cores(board, machine)).map(|((name, _), _)| *name);
    Err(BoardError::Unidentified { machine: machine.summary(), alike: alike.collect() })
}

/// Whether the machine has the board's cores, each by its number and its id, and no others. A core that is
/// off shows no id.
fn same_cores(board: &Board, machine: &Machine) -> bool {
    let count = board.clusters.iter().map(|cluster| cluster.cores.len()).sum::<usize>();
    let on = &machine.cpus;
    board.architecture == machine.architecture
        && count == machine.present.len()
        && !on.is_empty()
        && on.iter().all(|cpu| {
            cpu.id.is_some() && cpu.id == board.cluster_of(cpu.core).map(|cluster| cluster.id)
        })
}

/// The board that `asked` names: `auto`, a name, or a file.
///
/// # Errors
/// No such board, a file that is wrong, or a machine that `auto` does not know.
pub fn resolve(asked: &str, machine: &Machine) -> Result<Found, BoardError> {
    match asked {
        "auto" => identify(machine),
        _ => Board::read(asked).map(|board| Found { board, how: HowFound::Named }),
    }
}
