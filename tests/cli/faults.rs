//! A server whose surroundings fail: nobody reads what it says, descriptors run out, models panic.

use crate::serve::{UNPINNED, get};
use crate::support::{Ran, Scratch, Server, ends, model, program, run};
use corelane::client::{Client, Options};
use corelane::units::{DType, Rows};
use corelane::wire::HealthKind;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

fn client(server: &Server) -> Client {
    let address = server.address("unix").parse().unwrap();
    Client::connect(&address, Options::default()).unwrap()
}

/// More lines than a pipe and the server's own room hold together.
fn fill_the_log(server: &Server, name: &str) {
    let mut client = client(server);
    let model = client.open(name).unwrap();
    for _ in 0..100 {
        let tickets: Vec<_> =
            (0..40).map(|_| client.submit(&model, Rows(1), &[0; 4]).unwrap()).collect();
        for ticket in tickets {
            client.wait(ticket).unwrap();
        }
    }
}

#[test]
fn a_server_whose_log_nobody_reads_drains_all_the_same() {
    let scratch = Scratch::new();
    let (fake, socket) = (scratch.fake("echo", 0, "max_queue_size = 200"), scratch.path("s.sock"));
    let mut args = vec!["--model", &fake, "--unix", &socket, "--log", "trace"];
    args.extend(UNPINNED);
    let (mut server, mut stderr) = Server::start_unread(&args);
    fill_the_log(&server, "echo");
    let stats = client(&server).stats().unwrap();
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["models"][0]["inference_request_success"], 4_000);
    server.signal(Signal::TERM);
    assert_eq!(server.ends(), Some(0), "it hangs");
    let ended = server.end();
    assert_eq!(ended.json()[0]["drained"], true, "{ended:?}");
    // What found room is there.
    let mut err = String::new();
    stderr.read_to_string(&mut err).unwrap();
    assert!(err.contains("ready on unix:"), "{err}");
}

#[test]
fn a_second_signal_ends_a_server_whose_log_nobody_reads() {
    let scratch = Scratch::new();
    let fake = scratch.fake("echo", 0, "max_queue_size = 200");
    let slow = scratch.fake("slow", 1_000_000, "max_batch_size = 1");
    let socket = scratch.path("s.sock");
    let mut args = vec!["--model", &fake, &slow, "--unix", &socket, "--log", "trace"];
    args.extend(UNPINNED);
    let (mut server, _stderr) = Server::start_unread(&args);
    fill_the_log(&server, "echo");
    let mut client = client(&server);
    let slow = client.open("slow").unwrap();
    for _ in 0..30 {
        client.submit(&slow, Rows(1), &[0; 4]).unwrap();
    }
    client.ping().unwrap();
    server.signal(Signal::TERM);
    // One after the other: two signals of one kind at once are one.
    while client.health(HealthKind::Ready).unwrap() {}
    server.signal(Signal::INT);
    assert_eq!(server.ends(), Some(6), "it hangs");
    let last = &server.end().json()[0];
    assert_eq!((&last["drained"], &last["accepted"]), (&false.into(), &4_030.into()), "{last}");
    assert!(last["left"].as_u64().unwrap() > 0, "{last}");
}

/// A pipe that takes nothing more. Its reader must live, or writing would be an error.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while std::io::Write::write(&mut writer, &[b'.'; 4096]).is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn a_server_whose_outputs_both_are_full_serves_and_ends() {
    let scratch = Scratch::new();
    let (fake, socket) = (scratch.fake("echo", 0, ""), scratch.path("s.sock"));
    let (_reader, writer) = full_pipe();
    let mut args = vec!["serve", "--model", &fake, "--unix", &socket, "--log", "info"];
    args.extend(UNPINNED);
    let mut child =
        (program().args(args)).stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
    let address = format!("unix:{socket}").parse().unwrap();
    let mut client = loop {
        match Client::connect(&address, Options::default()) {
            Ok(client) => break client,
            Err(error) => assert!(child.try_wait().unwrap().is_none(), "it ended: {error}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    while !client.health(HealthKind::Ready).unwrap() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let echo = client.open("echo").unwrap();
    client.infer(&echo, Rows(1), &[1; 4]).unwrap();
    drop(client);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(ends(&mut child), Some(0), "it hangs");
}

#[test]
fn a_stop_before_it_is_ready_is_told() {
    let scratch = Scratch::new();
    // Warming up takes longer than the test.
    let (fake, socket) = (scratch.fake("long", 60_000_000, ""), scratch.path("s.sock"));
    let mut args = vec!["serve", "--model", &fake, "--unix", &socket, "--log", "error"];
    args.extend(UNPINNED);
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let mut child = (program().args(&args))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // From when its thread for signals is there it hears them.
        let hears = || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
            let names =
                tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
            names.flatten().any(|name| name.trim() == "cl-signals")
        };
        while !hears() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(ends(&mut child), Some(0), "asked for, so no failure");
        let ended = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(ended.stdout).unwrap(), "", "it never was ready");
        let told = format!("corelane: stopped by {name} before it was ready; it served nothing\n");
        assert_eq!(String::from_utf8(ended.stderr).unwrap(), told);
    }
}

#[test]
fn the_metrics_outlive_a_want_of_descriptors() {
    let scratch = Scratch::new();
    let (mlp, socket) = (model("mlp"), scratch.path("s.sock"));
    let mut args = vec!["--model", &mlp, "--unix", &socket, "--metrics", "127.0.0.1:0"];
    args.extend(UNPINNED);
    let server = Server::start(&args);
    let url = server.ready["metrics"].as_str().unwrap().to_owned();
    let host = url.strip_prefix("http://").unwrap().split('/').next().unwrap();
    get(&url, "/metrics");
    let none_left = Rlimit { current: Some(3), maximum: Some(4096) };
    let before = prlimit(Some(server.pid()), Resource::Nofile, none_left).unwrap();
    // Nobody is let in; the endpoint has to see that, and to go on.
    let waiting: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(host).unwrap()).collect();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let enough = Rlimit { current: Some(4096), maximum: before.maximum.map(|max| max.min(4096)) };
    prlimit(Some(server.pid()), Resource::Nofile, enough).unwrap();
    assert!(get(&url, "/metrics").contains(" 200 OK"));
    drop(waiting);
    server.stop().ok();
}

fn limited(descriptors: u32, args: &[&str]) -> Ran {
    let output = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit -n {descriptors}; exec \"$0\" \"$@\""))
        .arg(program().get_program())
        .args(args)
        .output()
        .unwrap();
    Ran {
        code: output.status.code().expect("an exit code, not a signal"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn connections_need_descriptors() {
    let scratch = Scratch::new();
    scratch.fake("echo", 0, "");
    let config = |connections: u32| {
        scratch.write(
            "corelane.toml",
            format!(
                "[runtime]\npin = false\n[[model]]\npath = 'echo'\n[listen]\nunix = 's.sock'\n\
                 connections_max = {connections}\n"
            ),
        )
    };
    let refused = limited(100, &["serve", "--config", &config(256)]);
    let ran = refused.says(3, "256 connections need about ");
    assert!(ran.err.contains("this process may have 100; raise that"), "{}", ran.err);
    // A soft limit is raised as far as the hard one goes.
    let file = config(2);
    let mut soft = std::process::Command::new("sh");
    soft.arg("-c").arg("ulimit -S -n 20; exec \"$0\" \"$@\"").arg(program().get_program());
    let server = Server::start_command(soft.args(["serve", "--config", &file]));
    client(&server).ping().unwrap();
    server.stop().ok();
    run(&["serve", "--config", &config(0)]).says(3, "connections_max");
}

#[test]
fn a_panic_of_a_worker_is_told_once_with_its_place() {
    let scratch = Scratch::new();
    let (fake, socket) = (scratch.fake("echo", 0, ""), scratch.path("s.sock"));
    let mut args = vec!["--model", &fake, "--unix", &socket];
    args.extend(UNPINNED);
    let server = Server::start(&args);
    let input = scratch.npy("x.npy", DType::U8, &[1, 4], &[221, 0, 0, 0]);
    run(&["infer", "echo", &input, "--connect", &server.address("unix")]).says(5, "model_panicked");
    let err = server.stop().ok().err;
    let told: Vec<&str> = err.lines().filter(|l| l.contains("panicked at ")).collect();
    assert_eq!(told.len(), 1, "{err}");
    assert!(told[0].contains(" ERROR cl-worker-0: panicked at "), "{err}");
    assert!(told[0].contains("src/engine/fake/"), "{err}");
}

#[test]
fn a_record_is_private_and_overwrites_nothing_unasked() {
    let scratch = Scratch::new();
    let (fake, socket) = (scratch.fake("echo", 0, ""), scratch.path("s.sock"));
    let (trace, log) = (scratch.path("trace"), scratch.path("log"));
    let mut args = vec!["--model", &fake, "--unix", &socket, "--out", &trace, "--payloads", "1"];
    args.extend(["--log-file", &log]);
    args.extend(UNPINNED);
    let input = scratch.npy("x.npy", DType::U8, &[1, 4], &[1, 2, 3, 4]);
    let record = |args: &[&str]| {
        let server = Server::start_as("record", args);
        run(&["infer", "echo", &input, "--connect", &server.address("unix")]).ok();
        server.stop().ok();
    };
    record(&args);
    let files: Vec<_> = std::fs::read_dir(scratch.path("")).unwrap().map(|e| e.unwrap()).collect();
    let made: Vec<_> = files
        .iter()
        .filter(|file| {
            let name = file.file_name().into_string().unwrap();
            name.starts_with("trace") || name.starts_with("log")
        })
        .collect();
    assert_eq!(made.len(), 3, "trace, payloads and log: {files:?}");
    for file in &made {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
    }
    let before = std::fs::read(&trace).unwrap();
    run(&[&["record"], &args[..]].concat()).says(2, "is there already; --force overwrites it");
    assert_eq!(std::fs::read(&trace).unwrap(), before);
    std::fs::set_permissions(&trace, std::fs::Permissions::from_mode(0o644)).unwrap();
    record(&[&args[..], &["--force"]].concat());
    assert_eq!(std::fs::metadata(&trace).unwrap().permissions().mode() & 0o777, 0o600);
    // One that serves nothing leaves nothing.
    let none = scratch.path("none");
    run(&["record", "--model", "/nowhere", "--unix", &socket, "--out", &none]).says(3, "/nowhere");
    assert!(!std::path::Path::new(&none).exists());
}
