//! The `corelane` program: argument parsing and printing. What it does is in the library.

mod args;
mod bench;
mod bench_target;
mod board;
mod build;
mod compare;
mod contention;
mod demo;
mod device;
mod doctor;
mod endpoint;
mod exit;
mod hot;
mod infer;
mod inspect;
mod link;
mod load;
mod logger;
mod logs;
mod magika;
mod models;
mod out;
mod progress;
mod ready;
mod record;
mod reload;
mod saturate;
mod serve;
mod stats;
mod stop;
mod supervisor;
mod target;
mod tensors;
mod tune;

use clap::Parser;
use corelane::sys::alloc::CountingAllocator;
use exit::Code;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    logger::tell_panics();
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap knows where each goes.
            let code = if error.use_stderr() { Code::Usage } else { Code::Ok };
            let _ = error.print();
            return ExitCode::from(code as u8);
        }
    };
    logger::install(cli.log.unwrap_or(log::LevelFilter::Warn), cli.log_format);
    models::set_state_dir(cli.state_dir.as_deref());
    let outcome = match &cli.command {
        args::Command::Demo(args) => demo::run(args),
        args::Command::Serve(args) => serve::run(args, cli.log, cli.log_format),
        args::Command::Record(args) => record::run(args, cli.log, cli.log_format),
        args::Command::Infer(args) => infer::run(args),
        args::Command::Inspect(args) => inspect::run(args),
        args::Command::Stats(args) => stats::run(args),
        args::Command::Reload(args) => reload::run(args),
        args::Command::Logs(args) => logs::run(args),
        args::Command::Board(args) => board::run(args),
        args::Command::Bench(command) => bench::run(command),
        args::Command::Load(args) => load::run(args),
        args::Command::Saturate(args) => saturate::run(args),
        args::Command::Tune(args) => tune::run(args),
        args::Command::Compare(args) => compare::run(args),
        args::Command::History(args) => compare::history(args),
        args::Command::Doctor(args) => doctor::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::from(Code::Ok as u8),
        Err(exit) => {
            if !exit.message.is_empty() {
                logger::last_words(&exit.message);
            }
            ExitCode::from(exit.code as u8)
        }
    }
}
