//! `corelane logs`: a log file, printed.

use crate::args::LogsArgs;
use crate::exit::{Code, Exit, Outcome};
use crate::out;
use corelane::logs::{Format, ReadError, Reader};
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};

/// Runs the command.
pub fn run(args: &LogsArgs) -> Outcome {
    let name = args.file.display();
    let unreadable = |e: &dyn std::fmt::Display| {
        Exit::new(Code::Usage, format_args!("the log file {name}: {e}"))
    };
    let file = File::open(&args.file).map_err(|e| unreadable(&e))?;
    let mut reader = Reader::open(BufReader::new(file)).map_err(|e| unreadable(&e))?;
    let format = if args.json { Format::Json } else { Format::Text };
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut text = String::new();
    let wall = reader.wall();
    let end = loop {
        let line = match reader.next() {
            Ok(Some(line)) => line,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        if args.level.is_some_and(|most| line.level.number() > most as u8) {
            continue;
        }
        text.clear();
        line.print(format, wall, &mut text);
        out.write_all(text.as_bytes()).unwrap_or_else(|error| out::end(&error));
    };
    out.flush().unwrap_or_else(|error| out::end(&error));
    match end {
        Ok(()) => Ok(()),
        // A copy of a file that is being written ends so: no failure, but it is said.
        Err(error @ ReadError::Cut { .. }) => {
            eprintln!("corelane: the log file {name}: {error}; it may still be written");
            Ok(())
        }
        Err(error) => Err(unreadable(&error)),
    }
}
