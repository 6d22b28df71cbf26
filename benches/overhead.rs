//! `cargo bench --bench overhead`: the same as `corelane bench overhead`, whose output it is.
use std::process::Command;

fn main() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_corelane"));
    let status = bench.args(["bench", "overhead"]).status();
    std::process::exit(status.ok().and_then(|s| s.code()).unwrap_or(1));
}
