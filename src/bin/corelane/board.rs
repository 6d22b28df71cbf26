//! `corelane board`: what a board is, what this machine is, and whether the one fits the other.

use crate::args::BoardArgs;
use crate::exit::{Code, Exit, Outcome};
use crate::out::{out, outln};
use corelane::board::{self, Board, EMBEDDED, Machine, check, describe, describe_machine, resolve};
use corelane::runtime::{BoardMismatch, plan_board};

/// Runs the command. A machine that is not as the board says ends it with the code of a wrong
/// configuration, after all is printed.
pub fn run(args: &BoardArgs) -> Outcome {
    if args.list {
        for name in board::names() {
            let title = Board::read(name).map_err(|e| Exit::new(Code::Failure, e))?.title;
            outln!("{name:<20} {title}");
        }
        return Ok(());
    }
    let machine = Machine::here();
    let found = resolve(&args.board, &machine).map_err(|e| Exit::new(Code::Config, e))?;
    if args.file {
        match EMBEDDED.iter().find(|(name, _)| *name == found.board.name) {
            Some((_, text)) => out!("{text}"),
            None => return Err(Exit::new(Code::Usage, "the board is a file already")),
        }
        return Ok(());
    }
    let check = check(&found.board, &machine);
    if args.json {
        let planned = plan_board(&args.board, &machine, BoardMismatch::Adapt)
            .map_err(|e| Exit::new(Code::Config, e))?;
        let text = serde_json::to_string(&planned).map_err(|e| Exit::new(Code::Failure, e))?;
        outln!("{text}");
    } else {
        out!("{}{}", describe_machine(&machine), describe(&found, &check));
    }
    if check.differences.is_empty() {
        return Ok(());
    }
    let text = format!(
        "this machine is not as board {} says: {}",
        found.board.name,
        check.differences_text()
    );
    Err(Exit::new(Code::Config, text))
}
