//! Models that change under a running server, by signal, by command, and by themselves.

use crate::support::{Ran, Scratch, Server, program, run};
use corelane::units::DType;
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// A server of the model `echo`, which takes `compute_us`, with this in its `[runtime]`.
fn serve(scratch: &Scratch, more: &str, environment: &[(&str, &str)]) -> Server {
    scratch.fake("echo", 1, "");
    let text = format!(
        "[[model]]\npath = 'echo'\n[listen]\nunix = 's.sock'\ntcp = '127.0.0.1:0'\n[runtime]\n\
         pin = false\n{more}"
    );
    let file = scratch.write("corelane.toml", text);
    Server::start_with(&["--config", &file], environment)
}

fn stats(address: &str) -> Value {
    run(&["stats", "--connect", address, "--json"]).ok().json()[0]["models"][0].clone()
}

/// Waits for a state that a signal or a poll brings about; only a hang exceeds the patience.
fn until(address: &str, what: &str, so: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let now = stats(address);
        if so(&now) {
            return now;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("never happened: {what}: {}", stats(address));
}

fn answers(scratch: &Scratch, address: &str) {
    let input = scratch.npy("x.npy", DType::U8, &[1, 4], &[1, 2, 3, 4]);
    run(&["infer", "echo", &input, "--connect", address]).ok();
}

fn reload(address: &str, more: &[&str]) -> Ran {
    run(&[&["reload", "--connect", address], more].concat())
}

#[test]
fn a_signal_and_the_command_read_the_models_again() {
    let scratch = Scratch::new();
    let server = serve(&scratch, "model_control_mode = 'explicit'\n", &[]);
    let address = server.address("unix");
    let first = stats(&address);
    assert_eq!((&first["version"], &first["model_reload_error"]), (&1.into(), &Value::Null));
    assert_eq!(reload(&address, &[]).ok().out, "echo: nothing changed; version 1 serves\n");
    scratch.fake("echo", 2, "max_queue_delay_microseconds = 1");
    let done = reload(&address, &["echo", "--json"]).ok().json()[0].clone();
    assert_eq!((&done["model"], &done["changed"]), (&"echo".into(), &true.into()), "{done}");
    assert_eq!(done["version"], 2);
    let hash = done["version_hash"].as_str().unwrap();
    assert_eq!(stats(&address)["version_hash"], hash[..12]);
    answers(&scratch, &address);
    scratch.fake("echo", 3, "");
    let said = reload(&address, &[]).ok().out;
    assert!(said.starts_with("echo: version 3 (") && said.contains("serves after"), "{said}");
    scratch.fake("echo", 4, "");
    server.signal(Signal::HUP);
    until(&address, "version 4", |m| m["version"] == 4);
    // What is wrong is refused, and told everywhere.
    scratch.fake("echo", 5, "max_bath_size = 1");
    reload(&address, &["echo"]).says(5, "max_batch_size");
    server.signal(Signal::HUP);
    let failed = until(&address, "two failures", |m| m["model_reload_failure_total"]["load"] == 2);
    assert!(failed["model_reload_error"].as_str().unwrap().contains("max_bath_size"), "{failed}");
    scratch.fake("echo", 5, "max_queue_size = 3");
    let said = reload(&address, &["--json"]).says(5, "max_queue_size is 3, and was 64").json();
    assert_eq!((&said[0]["ok"], &said[0]["reason"]), (&false.into(), &"fixed".into()));
    answers(&scratch, &address);
    let text = run(&["stats", "--connect", &address]).ok().out;
    assert!(text.contains("version 4 (") && text.contains("fixed 1, load 2"), "{text}");
    // A reason that fits no frame is cut: what came of it is told all the same.
    scratch.fake("echo", 5, &format!("{} = 1", "k".repeat(70_000)));
    let said = reload(&address, &["--json"]).says(5, "line 2: unknown key `kkk");
    let error = said.json()[0]["error"].as_str().unwrap().to_string();
    assert!(error.ends_with(" bytes more"), "{}", &error[error.len() - 100..]);
    reload(&address, &["other"])
        .says(5, "unknown_model: no model is named \"other\"; there are: echo");
    reload(&address, &[""]).says(2, "a value is required");
    let tcp = server.address("tcp");
    reload(&tcp, &[]).says(5, "not_allowed");
    let ended = server.stop().ok();
    assert!(ended.err.contains("model echo: version 4 serves"), "{}", ended.err);
}

/// A signal that would let models be read again does not end a server that reads them just then.
#[test]
fn a_hang_up_while_models_are_loaded_ends_nothing() {
    let scratch = Scratch::new();
    // Two seconds of warming up.
    scratch.fake("echo", 100_000, "model_warmup = 20");
    let notify = scratch.path("notify.sock");
    let _manager = std::os::unix::net::UnixDatagram::bind(&notify).unwrap();
    // Sends it as soon as it is caught: the lowest bit of the mask.
    let hang_up = "(until grep -q '^SigCgt:.*[13579bdf]$' /proc/$$/status; do sleep 0.01; done; \
                   kill -HUP $$) & exec \"$@\"";
    for (mode, manager, said) in [
        ("explicit", "", "draining"),
        ("poll", "", "draining"),
        ("none", notify.as_str(), "SIGHUP changes nothing"),
    ] {
        let file = scratch.write(
            "corelane.toml",
            format!(
                "[[model]]\npath = 'echo'\n[listen]\nunix = 's.sock'\n[runtime]\npin = false\n\
                 model_control_mode = '{mode}'\n"
            ),
        );
        let mut command = Command::new("sh");
        command.args(["-c", hang_up, "sh"]).arg(program().get_program());
        command.args(["serve", "--config", &file]).env("NOTIFY_SOCKET", manager);
        let server = Server::start_command(&mut command);
        answers(&scratch, &server.address("unix"));
        let ended = server.stop().ok();
        assert!(ended.err.contains(said), "{mode}: {}", ended.err);
    }
}

#[test]
fn models_that_stay_do_so_whatever_comes() {
    let scratch = Scratch::new();
    let notify = scratch.path("notify.sock");
    let _manager = std::os::unix::net::UnixDatagram::bind(&notify).unwrap();
    let server = serve(&scratch, "", &[("NOTIFY_SOCKET", &notify)]);
    let address = server.address("unix");
    reload(&address, &[]).says(5, "model_control_mode is none");
    // A service manager's reload ends nothing.
    server.signal(Signal::HUP);
    answers(&scratch, &address);
    let ended = server.stop().ok();
    assert!(ended.err.contains("SIGHUP changes nothing"), "{}", ended.err);
    // The end of a terminal's session ends the server, as SIGTERM does.
    let server = serve(&scratch, "", &[("NOTIFY_SOCKET", "")]);
    server.signal(Signal::HUP);
    assert_eq!(server.end().ok().json()[0]["drained"], true);
}

#[test]
fn files_that_change_are_noticed_where_that_is_asked_for() {
    let scratch = Scratch::new();
    let settings = "model_control_mode = 'poll'\nrepository_poll_secs = 1\n";
    let server = serve(&scratch, settings, &[]);
    let address = server.address("unix");
    scratch.fake("echo", 2, "");
    until(&address, "version 2", |m| m["version"] == 2);
    scratch.fake("echo", 3, "nonsense = 1");
    let failed = until(&address, "a failure", |m| m["model_reload_failure_total"]["load"] == 1);
    assert_eq!(failed["version"], 2);
    answers(&scratch, &address);
    // As long as nothing changes it is not tried again; then it is.
    scratch.fake("echo", 4, "");
    let now = until(&address, "version 3", |m| m["version"] == 3);
    assert_eq!(now["model_reload_failure_total"]["load"], 1);
    server.stop().ok();
}
