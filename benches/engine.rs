//! `cargo bench --bench engine`: the `plan` engine beside the `tract` engine over `models/`, by
//! `corelane bench engine`, in turns.
use std::process::Command;

fn main() {
    let models = std::fs::read_dir("models").expect("models/ is in the working directory");
    let mut dirs: Vec<_> = models.flatten().map(|entry| entry.path()).collect();
    dirs.sort();
    let mut failed = false;
    for dir in dirs {
        for engine in ["plan", "tract"] {
            let mut bench = Command::new(env!("CARGO_BIN_EXE_corelane"));
            bench.args(["bench", "engine"]).arg(&dir).args(["--engine", engine]);
            failed |= !bench.status().is_ok_and(|s| s.success());
        }
    }
    std::process::exit(failed.into());
}
