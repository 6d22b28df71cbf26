//! The oldest kernel that the program runs on, as far as a newer one can show it: without the system calls
//! that came later.
//!
//! By their numbers on x86-64; what the program asks for there it asks for on ARM, too.
#![cfg(target_arch = "x86_64")]

use crate::support::{Scratch, Server, model, root, run};
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::Command;

/// `userfaultfd`, of Linux 4.3. The number before is `execveat`, of 3.19; no version between has a call of
/// its own, so that Linux 4.1 has all calls below and none from here on.
const FIRST_REFUSED: &str = "323";

/// What runs programs so; `None` where it can't be had, told why.
fn old_kernel(scratch: &Scratch) -> Option<PathBuf> {
    let program = PathBuf::from(scratch.path("old_kernel"));
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    match cc.arg(root().join("tests/cli/old_kernel.c")).status() {
        Ok(status) => assert!(status.success(), "tests/cli/old_kernel.c is not compiled"),
        Err(e) => {
            println!("skipped: no C compiler: {e}");
            return None;
        }
    }
    let tried = Command::new(&program).args([FIRST_REFUSED, "/bin/true"]).output().unwrap();
    if tried.status.code() == Some(98) {
        println!("skipped: {}", String::from_utf8_lossy(&tried.stderr));
        return None;
    }
    assert!(tried.status.success(), "{tried:?}");
    Some(program)
}

#[test]
fn no_system_call_after_linux_4_1_is_needed() {
    let scratch = Scratch::new();
    let Some(old_kernel) = old_kernel(&scratch) else { return };
    let on_old = |args: &[&str]| {
        let mut command = Command::new(&old_kernel);
        command.args([FIRST_REFUSED, env!("CARGO_BIN_EXE_corelane")]).args(args);
        command
    };
    let ran = |args: &[&str]| {
        let output = on_old(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mlp = model("mlp");
    let answer = ran(&["infer", &mlp, "--json"]);
    let outputs =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["outputs"].clone();
    assert_eq!(outputs(&answer), outputs(&run(&["infer", &mlp, "--json"]).ok().out));
    assert!(ran(&["board", "--list"]).contains("rpi5"));
    ran(&["inspect", &mlp]);
    // It looks into much, and says by its code whether it found something amiss.
    let doctor = on_old(&["doctor"]).output().unwrap();
    assert_eq!(doctor.status.code(), Some(run(&["doctor"]).code), "{doctor:?}");

    // What a server has: sockets, workers, real-time options, a cache, a log file, and reloads.
    let config = scratch.write(
        "c.toml",
        format!(
            "cache = 'cache'\n[runtime]\npin = false\nworkers = 2\nmodel_control_mode = 'explicit'\n\
             [realtime]\nscheduler = 'rr'\ntimer_slack_ns = 2000\nlock_memory = true\n\
             transparent_huge_pages = 'off'\nrefused = 'run_on'\n\
             [log]\nfile = 'log'\n\
             [[model]]\npath = {mlp:?}\n\
             [listen]\nunix = 's.sock'\ntcp = '127.0.0.1:0'\n"
        ),
    );
    let args = ["serve", "--config", &config];
    let server = Server::start_command(&mut on_old(&args));
    for kind in ["unix", "tcp"] {
        let address = server.address(kind);
        let served = ran(&["infer", "--connect", &address, "mlp", "--json", &golden(&mlp)]);
        assert_eq!(outputs(&served), outputs(&answer), "{kind}");
    }
    let address = server.address("unix");
    ran(&["reload", "--connect", &address]);
    assert!(
        ran(&["stats", "--connect", &address, "--json"]).contains("model_reload_success_total")
    );
    server.signal(Signal::TERM);
    server.end().says(0, "");
}

fn golden(model: &str) -> String {
    format!("{model}/golden/input_0.npy")
}
