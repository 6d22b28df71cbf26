//! `corelane serve`: ready, answering, full, and going down.

use crate::support::{Scratch, Server, model, program, run};
use crate::{check_answer, difference};
use corelane::client::serial::{Port, SerialRequest};
use corelane::client::{Address, Client, ClientError, Options};
use corelane::sys::terminal::{hold_open, pseudo_terminal};
use corelane::units::{DType, Micros, Rows};
use corelane::wire::ErrorCode;
use corelane::wire::link::LinkOptions;
use rustix::io::Errno;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// What every server of these tests is started with: it must run beside its neighbours.
pub const UNPINNED: [&str; 2] = ["--unpinned", "1"];

#[test]
fn readers_may_leave() {
    let scratch = Scratch::new();
    let (mlp, socket) = (model("mlp"), scratch.path("s.sock"));
    let server = Server::start(&[&["--model", &mlp, "--unix", &socket], &UNPINNED[..]].concat());
    let ended = server.stop_unread();
    assert!(ended.code == 0 && !ended.err.contains("panic"), "{ended:?}");
    for args in [&["inspect", &mlp][..], &["infer", &mlp, "--json"], &["board"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = program().args(args).stdout(writer).output().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        assert_eq!((ended.status.code(), err.as_str()), (Some(0), ""), "{args:?}");
    }
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = program().args(["inspect", &mlp]).stdout(full).output().unwrap();
    let err = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{err}");
    assert!(err.starts_with("corelane: printing: "), "{err}");
}

#[test]
fn a_server_answers_on_both_transports_and_tells_its_state() {
    let scratch = Scratch::new();
    let (mlp, socket) = (model("mlp"), scratch.path("s.sock"));
    let resnet8 = model("resnet8");
    let mut args = vec!["--model", &mlp, &resnet8, "--unix", &socket, "--tcp", "127.0.0.1:0"];
    args.extend(["--metrics", "127.0.0.1:0"]);
    args.extend(UNPINNED);
    let server = Server::start(&args);
    let ready = &server.ready;
    assert_eq!(ready["addresses"][0], format!("unix:{socket}"));
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let names: Vec<_> = ready["models"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    assert_eq!(names, ["mlp", "resnet8"]);
    assert_eq!(ready["workers"], serde_json::json!([{ "worker": 0, "core": null }]));
    for model in ready["models"].as_array().unwrap() {
        assert_eq!(model["golden_rows"], 4);
        assert_eq!(model["workers"], serde_json::json!([0]));
        assert!(model["memory"]["slot_bytes"].as_u64().unwrap() > 0);
    }
    for kind in ["weight_bytes", "staging_bytes", "slot_bytes"] {
        let of = |v: &serde_json::Value| v["memory"][kind].as_u64().unwrap();
        let sum: u64 = ready["models"].as_array().unwrap().iter().map(of).sum();
        assert_eq!(of(ready), sum, "{kind}");
    }
    for kind in ["unix", "tcp"] {
        let address = server.address(kind);
        for (name, dir) in [("mlp", &mlp), ("resnet8", &resnet8)] {
            let input = format!("{dir}/golden/batch4/input_0.npy");
            let ran = run(&["infer", name, &input, "--connect", &address, "--json"]).ok();
            check_answer(&ran.json()[0], name, 4);
            let golden = format!("{dir}/golden/batch4/output_0.npy");
            assert!(difference(&ran.json()[0]["outputs"][0], &golden) <= 1e-5);
            let ran = run(&["infer", name, &input, "--rows", "--connect", &address, "--json"]).ok();
            assert_eq!(ran.json().len(), 4);
        }
        let input = format!("{mlp}/golden/input_0.npy");
        run(&["infer", "nothing", &input, "--connect", &address]).says(5, "unknown_model");
        let wrong = format!("{resnet8}/golden/input_0.npy");
        run(&["infer", "mlp", &wrong, "--connect", &address]).says(5, "takes the shape");
        let ran =
            run(&["infer", "mlp", &input, "--priority", "9", "--connect", &address, "--json"]);
        assert_eq!(ran.says(5, "bad_priority").json()[0]["error"]["number"], 203);
    }
    check_stats(&server);
    check_metrics(ready["metrics"].as_str().unwrap());
    let ended = server.stop().ok();
    let drained = &ended.json()[0];
    assert_eq!(drained["drained"], true);
    assert_eq!(drained["accepted"], 20);
    assert_eq!(drained["answered"], 20);
    assert!(!std::path::Path::new(&socket).exists(), "the socket file is gone");
}

#[test]
fn labels_are_told_of_served_models_too() {
    let scratch = Scratch::new();
    let (magika, socket) = (model("magika"), scratch.path("s.sock"));
    let server = Server::start(&[&["--model", &magika, "--unix", &socket][..], &UNPINNED].concat());
    let (address, input) = (server.address("unix"), format!("{magika}/golden/input_0.npy"));
    let infer =
        |labels: &str| run(&["infer", "magika", &input, "--connect", &address, "--labels", labels]);
    // By the model's directory, or by a file.
    for labels in [magika.clone(), format!("{magika}/labels.txt")] {
        assert!(infer(&labels).ok().out.contains("row 0: python 0.9"), "{labels}");
    }
    infer("/nowhere/labels").says(2, "the labels /nowhere/labels: ");
    infer(&scratch.write("empty", "")).says(2, "there must be labels");
    server.stop().ok();
}

#[test]
fn float_tensors_travel_encoded_where_that_is_asked_for() {
    let scratch = Scratch::new();
    let (mlp, socket) = (model("mlp"), scratch.path("s.sock"));
    let mut args = vec!["--model", &mlp, "--unix", &socket];
    args.extend(UNPINNED);
    let server = Server::start(&args);
    let address = server.address("unix");
    let input = format!("{mlp}/golden/batch4/input_0.npy");
    let golden = format!("{mlp}/golden/batch4/output_0.npy");
    let ask = |encoding: &str| {
        run(&["infer", "mlp", &input, "--encoding", encoding, "--connect", &address, "--json"])
    };
    let ran = ask("x=f16").ok();
    check_answer(&ran.json()[0], "mlp", 4);
    let off = difference(&ran.json()[0]["outputs"][0], &golden);
    assert!(off > 0.0 && off <= 1e-2, "{off}");
    ask("z=f16").says(5, "there is no tensor \"z\"");
    ask("x=i8:0").says(2, "is no encoding; write");
    ask("x").says(2, "write NAME=f16");
    // In process nothing travels.
    run(&["infer", &mlp, "--encoding", "x=f16"]).says(2, "--connect");
    server.stop().ok();
}

fn check_stats(server: &Server) {
    let address = server.address("unix");
    let ran = run(&["stats", "--connect", &address, "--json"]).ok();
    let stats = &ran.json()[0];
    assert_eq!(stats["schema"], 1);
    assert_eq!(stats["ready"], true);
    assert!(stats["hot_path_allocations_total"].is_u64());
    for model in stats["models"].as_array().unwrap() {
        assert_eq!(model["accepted"], 10);
        assert_eq!(model["inference_request_success"], 10);
        assert_eq!(model["inference_count"], 16);
        assert_eq!(model["queued"], 0);
        let sum = |key: &str| -> u64 {
            model[key].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum()
        };
        let runs = model["exec_count"].as_u64().unwrap();
        assert_eq!(sum("batch_closed"), runs);
        assert_eq!(sum("batch_ran"), runs);
        for (stage, count) in [
            ("queue", 10),
            ("request", 10),
            ("compute_input", runs),
            ("compute_infer", runs),
            ("compute_output", runs),
        ] {
            assert_eq!(model[stage]["count"], count, "{stage}");
            for key in ["sum_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"] {
                assert!(model[stage][key].is_u64(), "{stage} {key}");
            }
        }
        for reason in ["queue_full", "deadline_unmeetable", "deadline_expired", "bad_priority"] {
            assert!(model["inference_request_failure"][reason].is_u64(), "{reason}");
        }
    }
    let worker = &stats["workers"][0];
    assert!(worker["busy_ns"].as_u64().unwrap() > 0);
    assert!(["idle", "parked"].contains(&worker["state"].as_str().unwrap()));
    let text = run(&["stats", "--connect", &address]).ok().out;
    for part in
        ["ready, up ", "mlp (", "compute_infer", "batches closed by: ", "worker 0, unpinned"]
    {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

pub fn get(url: &str, path: &str) -> String {
    let host = url.strip_prefix("http://").unwrap().split('/').next().unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn check_metrics(url: &str) {
    let text = get(url, "/metrics");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("corelane_inference_request_success{model=\"mlp\"} 10\n"), "{body}");
    assert!(body.contains("# TYPE corelane_inference_request_failure counter\n"), "{body}");
    // Every line is a comment, or a name, labels, and a number.
    for line in body.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            assert!(comment.starts_with("HELP corelane_") || comment.starts_with("TYPE corelane_"));
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("corelane_"), "{line}");
        assert!(value.parse::<u64>().is_ok(), "{line}");
    }
    assert!(get(url, "/other").contains(" 404 "));
}

#[test]
fn a_configuration_file_does_the_same() {
    let scratch = Scratch::new();
    let fake = scratch.fake("echo", 0, "");
    assert!(fake.ends_with("echo"));
    let file = scratch.write(
        "corelane.toml",
        "[runtime]\npin = false\nworkers = 2\nidle = { spin_us = 5 }\n\
         [[model]]\npath = 'echo'\nname = 'one'\nmax_queue_size = 3\n\
         [[model]]\npath = 'echo'\nname = 'two'\n\
         [listen]\nunix = 'c.sock'\nunix_mode = 0o640\n[log]\nlevel = 'warn'\n",
    );
    let server = Server::start(&["--config", &file]);
    assert_eq!(server.address("unix"), format!("unix:{}", scratch.path("c.sock")));
    let mode = std::fs::metadata(scratch.path("c.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(server.ready["models"][0]["name"], "one");
    assert_eq!(server.ready["models"][0]["max_queue_size"], 3);
    assert_eq!(server.ready["models"][1]["name"], "two");
    assert_eq!(server.ready["workers"].as_array().unwrap().len(), 2);
    let input = scratch.npy("x.npy", DType::U8, &[2, 4], &[1, 2, 3, 4, 5, 6, 7, 8]);
    let ran = run(&["infer", "two", &input, "--connect", &server.address("unix"), "--json"]).ok();
    let data = ran.json()[0]["outputs"][0]["data"].clone();
    assert_eq!(data, serde_json::json!([1, 2, 3, 4, 5, 6, 7, 8]));
    let ended = server.stop().ok();
    assert_eq!(ended.err, "", "nothing to warn of");
}

#[test]
fn workers_are_on_the_cores_asked_for() {
    let scratch = Scratch::new();
    let fake = scratch.fake("echo", 0, "");
    let allowed = corelane::sys::affinity::allowed().unwrap();
    let core = allowed.last().unwrap().to_string();
    let socket = scratch.path("s.sock");
    let server = Server::start(&["--model", &fake, "--unix", &socket, "--cores", &core]);
    let wanted: u64 = core.parse().unwrap();
    assert_eq!(server.ready["workers"], serde_json::json!([{ "worker": 0, "core": wanted }]));
    // What was obtained, as the kernel tells it.
    let pid = server.ready["pid"].as_u64().unwrap();
    let mut cores = std::collections::BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        };
        cores.insert(field("Name:"), field("Cpus_allowed_list:"));
    }
    assert_eq!(cores["cl-worker-0"], core);
    if allowed.len() > 1 {
        let first = allowed[0].to_string();
        assert_eq!(server.ready["io_core"], allowed[0].0);
        assert_eq!(cores["cl-io"], first);
        // Housekeeping stays off the worker's core.
        for name in ["cl-stats", "corelane"] {
            let list = &cores[name];
            assert!(!list.split(',').any(|c| *c == core), "{name} on {list}");
        }
    }
    server.stop().ok();
}

#[test]
fn addresses_in_use_are_refused_and_dead_sockets_taken_over() {
    let scratch = Scratch::new();
    let fake = scratch.fake("echo", 0, "");
    let socket = scratch.path("s.sock");
    let mut args = vec!["--model", &fake, "--unix", &socket, "--tcp", "127.0.0.1:0"];
    args.extend(UNPINNED);
    let server = Server::start(&args);
    run(&["serve", "--model", &fake, "--unpinned", "1", "--unix", &socket])
        .says(4, "is in use by a live server");
    let tcp = server.address("tcp").replace("tcp:", "");
    run(&["serve", "--model", &fake, "--unpinned", "1", "--tcp", &tcp]).says(4, "in use");
    run(&[
        "serve",
        "--model",
        &fake,
        "--unpinned",
        "1",
        "--unix",
        &scratch.path("b.sock"),
        "--metrics",
        &tcp,
    ])
    .says(4, "metrics on 127.0.0.1:");
    // Killed, it leaves its socket; the next one takes it over.
    server.signal(Signal::KILL);
    drop(server);
    assert!(std::path::Path::new(&socket).exists());
    let mut args = vec!["--model", &fake, "--unix", &socket];
    args.extend(UNPINNED);
    Server::start(&args).stop().ok();
    let file = scratch.write("file", "not a socket");
    run(&["serve", "--model", &fake, "--unpinned", "1", "--unix", &file])
        .says(4, "is not a socket");
}

#[test]
fn other_machines_need_an_option_and_a_key() {
    let scratch = Scratch::new();
    let fake = scratch.fake("echo", 0, "");
    let serve = |more: &[&str]| {
        let mut args = vec!["serve", "--model", &fake, "--unpinned", "1"];
        args.extend(more);
        run(&args)
    };
    let key = scratch.write("key", "sixteen bytes or more of key\n");
    serve(&["--tcp", "0.0.0.0:0"]).says(3, "is not a loopback address");
    serve(&["--tcp", "0.0.0.0:0", "--non-loopback"]).says(3, "pre-shared key");
    serve(&["--tcp", "0.0.0.0:0", "--psk-file", &key]).says(3, "--non-loopback");
    let unix = scratch.path("s.sock");
    serve(&["--unix", &unix, "--metrics", "0.0.0.0:0"]).says(3, "read by other machines");
    let short = scratch.write("short", "abc");
    serve(&["--tcp", "127.0.0.1:0", "--psk-file", &short]).says(3, "key file");
    let mut args = vec!["--model", &fake, "--tcp", "127.0.0.1:0", "--psk-file", &key];
    args.extend(UNPINNED);
    let server = Server::start(&args);
    let address = server.address("tcp");
    let input = scratch.npy("x.npy", DType::U8, &[1, 4], &[1, 2, 3, 4]);
    run(&["infer", "echo", &input, "--connect", &address, "--psk-file", &key]).ok();
    run(&["stats", "--connect", &address, "--psk-file", &key]).ok();
    run(&["stats", "--connect", &address]).says(5, "pre-shared key");
    let wrong = scratch.write("wrong", "another key of sixteen or more");
    run(&["stats", "--connect", &address, "--psk-file", &wrong]).says(5, "auth_failed");
    server.stop().ok();
}

/// Clients keep requests in flight while the server is told to stop: what it accepted is what they
/// got answers for.
#[test]
fn a_stop_under_load_loses_nothing() {
    let scratch = Scratch::new();
    let fake = scratch.fake("busy", 300, "max_batch_size = 4\nmax_queue_size = 512");
    let socket = scratch.path("s.sock");
    let mut args = vec!["--model", &fake, "--unix", &socket, "--tcp", "127.0.0.1:0"];
    args.extend(UNPINNED);
    let server = Server::start(&args);
    let (answers, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let addresses = [server.address("unix"), server.address("tcp")];
    let ended = std::thread::scope(|scope| {
        for n in 0..4u8 {
            let address: Address = addresses[usize::from(n) % 2].parse().unwrap();
            let (answers, refused) = (&answers, &refused);
            scope.spawn(move || load(&address, n, answers, refused));
        }
        while answers.load(Ordering::Relaxed) < 200 {
            std::thread::yield_now();
        }
        server.stop()
    });
    let ended = ended.ok();
    let drained = &ended.json()[0];
    assert_eq!(drained["drained"], true);
    assert_eq!(drained["left"], 0);
    assert_eq!(drained["failed"], 0);
    let answers = answers.load(Ordering::Relaxed);
    assert_eq!(drained["accepted"], answers, "accepted and received ({refused:?} were refused)");
    assert_eq!(drained["answered"], answers);
}

/// Keeps sixteen requests in flight until the server goes, and checks every answer's bytes.
fn load(address: &Address, client: u8, answers: &AtomicU64, refused: &AtomicU64) {
    let mut connection = Client::connect(address, Options::default()).unwrap();
    let model = connection.open("busy").unwrap();
    let mut sent = std::collections::HashMap::new();
    let mut going = true;
    for n in 0u32.. {
        while going && sent.len() < 16 {
            let row = [client, n as u8, sent.len() as u8, 1];
            match connection.submit(&model, Rows(1), &row) {
                Ok(ticket) => assert!(sent.insert(ticket, row).is_none()),
                Err(_) => going = false,
            }
        }
        match connection.wait_any() {
            Ok((ticket, Ok(answer))) => {
                assert_eq!(
                    Some(&answer.payload[..]),
                    sent.remove(&ticket).as_ref().map(|r| &r[..])
                );
                answers.fetch_add(1, Ordering::Relaxed);
            }
            Ok((ticket, Err(error))) => {
                assert!(sent.remove(&ticket).is_some());
                assert_eq!(error.code(), Some(ErrorCode::ShuttingDown), "{error}");
                refused.fetch_add(1, Ordering::Relaxed);
                going = false;
            }
            // Whatever was sent after the server stopped reading was never accepted.
            Err(ClientError::Closed | ClientError::ShuttingDown | ClientError::Io(_)) => return,
            Err(ClientError::Session(_)) => return,
            Err(ClientError::Server(error)) => {
                assert_eq!(error.code(), Some(ErrorCode::ShuttingDown), "{error}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The line of a microcontroller whose other end a server has.
struct Line {
    fd: std::os::fd::OwnedFd,
    _held: std::os::fd::OwnedFd,
}

impl Line {
    fn new() -> (Line, String) {
        let (fd, path) = pseudo_terminal().unwrap();
        rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::NONBLOCK).unwrap();
        let held = hold_open(fd.as_fd()).unwrap();
        (Line { fd, _held: held }, format!("{}:921600", path.display()))
    }
}

impl Port for Line {
    type Error = Errno;
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        match rustix::io::read(&self.fd, into) {
            Err(Errno::AGAIN | Errno::IO) => Ok(0),
            result => result,
        }
    }
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        match rustix::io::write(&self.fd, bytes) {
            Err(Errno::AGAIN | Errno::IO) => Ok(0),
            result => result,
        }
    }
    fn idle(&mut self, micros: u64) {
        std::thread::sleep(std::time::Duration::from_micros(micros.min(200)));
    }
}

struct Time(std::time::Instant);

impl embedded_time::Clock for Time {
    type T = u64;
    const SCALING_FACTOR: embedded_time::fraction::Fraction =
        embedded_time::fraction::Fraction::new(1, 1_000_000);
    fn try_now(&self) -> Result<embedded_time::Instant<Self>, embedded_time::clock::Error> {
        Ok(embedded_time::Instant::new(self.0.elapsed().as_micros() as u64))
    }
}

type SerialClient = corelane::client::serial::SerialClient<Time, [u8; 512], [u8; 1024]>;

fn serial_client() -> SerialClient {
    let clock = Time(std::time::Instant::now());
    SerialClient::new(clock, LinkOptions::new(921_600), [0; 512], [0; 1024], 1).unwrap()
}

#[test]
fn a_term_signal_loses_nothing_that_serial_lines_have_in_flight() {
    const LINES: usize = 2;
    const WITHIN: Micros = Micros(30_000_000);
    let scratch = Scratch::new();
    let fake = scratch.fake("busy", 300_000, "batch_sizes = [1]");
    let socket = scratch.path("s.sock");
    let (lines, paths): (Vec<Line>, Vec<String>) = (0..LINES).map(|_| Line::new()).unzip();
    let mut args = vec!["--model", &fake, "--unix", &socket];
    for path in &paths {
        args.extend(["--serial", path]);
    }
    args.extend(UNPINNED);
    let server = Server::start(&args);
    let accepted = |stats: &serde_json::Value| stats["models"][0]["accepted"].as_u64().unwrap();
    let stats = || run(&["stats", "--connect", &server.address("unix"), "--json"]).ok().json();
    std::thread::scope(|scope| {
        for (at, mut line) in lines.into_iter().enumerate() {
            scope.spawn(move || {
                let mut client = serial_client();
                let model = client.open(&mut line, "busy", WITHIN).unwrap();
                let row = [at as u8 + 1, 2, 3, 4];
                let (request, mut got) = (SerialRequest::row(WITHIN), [0; 4]);
                let answer = client.infer(&mut line, &model, request, row, &mut |at, bytes| {
                    got[at..at + bytes.len()].copy_from_slice(bytes);
                });
                answer.expect("what was accepted is answered");
                assert_eq!(got, row);
            });
        }
        while accepted(&stats()[0]) < LINES as u64 {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        // What the command line shows of the links.
        let stats = &stats()[0];
        let transport = &stats["extra"]["transport"];
        for counter in ["link_received_bytes_total", "link_sent_bytes_total"] {
            assert!(transport[counter].as_u64().unwrap() > 0, "{counter} in {transport}");
        }
        for counter in ["link_oversize_total", "link_crc_error_total"] {
            assert_eq!(transport[counter], 0, "{counter} in {transport}");
        }
        for counter in ["link_resync_total", "link_retransmit_total"] {
            assert!(transport[counter].is_u64(), "{counter} in {transport}");
        }
        server.signal(Signal::TERM);
    });
    let ended = server.end().ok();
    let drained = &ended.json()[0];
    assert_eq!(drained["drained"], true);
    assert_eq!(drained["accepted"], LINES);
    assert_eq!(drained["answered"], LINES);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let scratch = Scratch::new();
    // Warming up takes four runs, so this is ready after a moment, but a request outlasts the test.
    let fake = scratch.fake("long", 1_000_000, "max_batch_size = 1");
    let socket = scratch.path("s.sock");
    let mut args = vec!["--model", &fake, "--unix", &socket];
    args.extend(UNPINNED);
    let server = Server::start(&args);
    let mut client =
        Client::connect(&server.address("unix").parse().unwrap(), Options::default()).unwrap();
    let model = client.open("long").unwrap();
    for _ in 0..30 {
        client.submit(&model, Rows(1), &[1, 2, 3, 4]).unwrap();
    }
    client.ping().unwrap(); // the requests before it were taken in
    server.signal(Signal::TERM);
    std::thread::sleep(std::time::Duration::from_millis(300));
    server.signal(Signal::INT);
    let ended = server.end();
    assert_eq!(ended.code, 6, "{ended:?}");
    let last = &ended.json()[0];
    assert_eq!((&last["drained"], &last["accepted"]), (&false.into(), &30.into()), "{last}");
    let left = last["left"].as_u64().unwrap();
    assert_eq!(last["answered"].as_u64().unwrap() + left, 30, "{last}");
    let said = format!("stopped by a second signal, with {left} accepted requests without answer");
    assert!(left > 0 && ended.err.contains(&said), "{}", ended.err);
}

#[test]
fn a_drain_that_takes_too_long_says_what_is_left() {
    let scratch = Scratch::new();
    scratch.fake("long", 400_000, "max_batch_size = 1");
    let file = scratch.write(
        "corelane.toml",
        "[runtime]\npin = false\ndrain_timeout_ms = 100\n[[model]]\npath = 'long'\n\
         [listen]\nunix = 's.sock'\n",
    );
    let server = Server::start(&["--config", &file]);
    let mut client =
        Client::connect(&server.address("unix").parse().unwrap(), Options::default()).unwrap();
    let model = client.open("long").unwrap();
    for _ in 0..4 {
        client.submit(&model, Rows(1), &[1, 2, 3, 4]).unwrap();
    }
    client.ping().unwrap();
    let ended = server.stop().says(6, " accepted requests without answer and 0 answers that ");
    assert_eq!(ended.json()[0]["drained"], false);
    assert!(ended.json()[0]["left"].as_u64().unwrap() >= 1);
}

#[test]
fn a_second_signal_after_the_last_answer_is_a_clean_end() {
    let scratch = Scratch::new();
    let (fake, socket) = (scratch.fake("echo", 0, ""), scratch.path("s.sock"));
    let server = Server::start(&[&["--model", &fake, "--unix", &socket], &UNPINNED[..]].concat());
    let mut client =
        Client::connect(&server.address("unix").parse().unwrap(), Options::default()).unwrap();
    let model = client.open("echo").unwrap();
    client.infer(&model, Rows(1), &[1, 2, 3, 4]).unwrap();
    server.signal(Signal::TERM);
    // Until it has said goodbye; now it waits for this end to be closed, which it is not.
    while client.ping().is_ok() {}
    server.signal(Signal::TERM);
    server.signal(Signal::INT);
    let ended = server.end().ok();
    let last = &ended.json()[0];
    assert_eq!(
        (&last["drained"], &last["answered"], &last["left"]),
        (&true.into(), &1.into(), &0.into())
    );
    assert!(!ended.err.contains("stopped"), "{}", ended.err);
    drop(client);
}

#[test]
fn a_terminal_that_is_gone_twice_drains_once() {
    let scratch = Scratch::new();
    let (fake, socket) =
        (scratch.fake("slow", 300_000, "max_batch_size = 1"), scratch.path("s.sock"));
    let args = [&["--model", &fake, "--unix", &socket], &UNPINNED[..]].concat();
    let server = Server::start_with(&args, &[("NOTIFY_SOCKET", "")]);
    let mut client =
        Client::connect(&server.address("unix").parse().unwrap(), Options::default()).unwrap();
    let model = client.open("slow").unwrap();
    let tickets: Vec<_> =
        (0..4).map(|_| client.submit(&model, Rows(1), &[1, 2, 3, 4]).unwrap()).collect();
    client.ping().unwrap();
    server.signal(Signal::HUP);
    // The first of them is answered in the drain.
    client.wait(tickets[0]).unwrap();
    server.signal(Signal::HUP);
    // Together with which some send this.
    server.signal(Signal::TERM);
    for &ticket in &tickets[1..] {
        client.wait(ticket).unwrap();
    }
    drop(client);
    assert_eq!(server.end().ok().json()[0]["answered"], 4);
}

#[test]
fn answers_that_nobody_reads_are_told_at_the_end() {
    let scratch = Scratch::new();
    let tensor =
        |name: &str, len| format!("[{{ name = '{name}', dtype = 'uint8', shape = [{len}] }}]");
    scratch.write(
        "wide/manifest.toml",
        format!(
            "engine = 'fake'\nmax_batch_size = 1\n[fake]\ninputs = {}\noutputs = {}\ncompute_us = 0\n",
            tensor("x", 4),
            tensor("y", 500_000)
        ),
    );
    let file = scratch.write(
        "corelane.toml",
        "[runtime]\npin = false\ndrain_timeout_ms = 200\n[[model]]\npath = 'wide'\n\
         [listen]\nunix = 's.sock'\n",
    );
    let server = Server::start(&["--config", &file]);
    let address = server.address("unix");
    let mut client = Client::connect(&address.parse().unwrap(), Options::default()).unwrap();
    let model = client.open("wide").unwrap();
    for n in 0..12 {
        client.submit(&model, Rows(1), &[n; 4]).unwrap();
    }
    let answered = || {
        let stats = run(&["stats", "--connect", &address, "--json"]).ok();
        stats.json()[0]["models"][0]["inference_request_success"].clone()
    };
    while answered() != 12 {}
    let ended = server.stop().says(6, "with 0 accepted requests without answer and ");
    let last = &ended.json()[0];
    assert_eq!(
        (&last["drained"], &last["answered"], &last["left"]),
        (&false.into(), &12.into(), &0.into())
    );
    let unread = last["unread"].as_u64().unwrap();
    let said = format!(" and {unread} answers that their clients did not take");
    assert!(unread > 0 && ended.err.contains(&said), "{}", ended.err);
    assert!(ended.err.contains(" is closed with "), "{}", ended.err);
    // What was not given up is there to be read.
    let read = std::iter::from_fn(|| client.wait_any().ok()).count() as u64;
    assert_eq!(read + unread, 12);
}

#[test]
fn a_service_manager_hears_of_readiness_life_and_end() {
    let scratch = Scratch::new();
    let (notify, socket) = (scratch.path("notify.sock"), scratch.path("s.sock"));
    let manager = std::os::unix::net::UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    let heard = || {
        let mut bytes = [0; 256];
        let n = manager.recv(&mut bytes).expect("a word from the server");
        String::from_utf8(bytes[..n].to_vec()).unwrap()
    };
    // A second in one batch, beats every tenth of one.
    let slow = scratch.fake("slow", 1_000_000, "batch_sizes = [1]");
    let mut args = vec!["--model", &slow, "--unix", &socket];
    args.extend(UNPINNED);
    let environment = [("NOTIFY_SOCKET", notify.as_str()), ("WATCHDOG_USEC", "200000")];
    let server = Server::start_with(&args, &environment);
    assert_eq!(heard(), "READY=1\nSTATUS=serving");
    for _ in 0..3 {
        assert_eq!(heard(), "WATCHDOG=1");
    }
    let mut client =
        Client::connect(&server.address("unix").parse().unwrap(), Options::default()).unwrap();
    let model = client.open("slow").unwrap();
    client.infer(&model, Rows(1), &[0; 4]).unwrap();
    server.signal(Signal::TERM);
    let mut last = String::new();
    while !last.starts_with("STOPPING=1") {
        last = heard();
    }
    // While the worker stayed in its batch there was no beat, but a reason.
    server.end().says(0, "worker 0 is in the same batch as before");
}

#[test]
fn a_model_that_can_not_be_served_stops_the_server_or_not_as_configured() {
    let scratch = Scratch::new();
    let good = scratch.fake("good", 0, "");
    scratch.write("broken/model.onnx", "not a model");
    scratch.write("broken/manifest.toml", "file = 'model.onnx'\n");
    let config = |name: &str, models: &[&str], more: &str| {
        let models: String = models.iter().map(|m| format!("[[model]]\npath = '{m}'\n")).collect();
        let text = format!("{models}[listen]\nunix = 's.sock'\n[runtime]\npin = false\n{more}");
        scratch.write(name, text)
    };
    let others = "on_load_error = 'serve_others'\n";
    let file = config("stop.toml", &["good", "broken"], "");
    run(&["serve", "--config", &file]).says(3, "broken");
    let file = config("none.toml", &["broken"], others);
    run(&["serve", "--config", &file]).says(3, "no model can be served");
    let file = config("some.toml", &["broken", "good"], others);
    let server = Server::start(&["--config", &file]);
    let names = |v: &serde_json::Value| -> Vec<String> {
        v["models"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap().into()).collect()
    };
    assert_eq!(names(&server.ready), ["good"]);
    let missing = &server.ready["not_served"];
    assert_eq!(missing.as_array().unwrap().len(), 1);
    assert!(missing[0]["path"].as_str().unwrap().ends_with("broken"), "{missing}");
    assert!(!missing[0]["reason"].as_str().unwrap().is_empty());
    let address = server.address("unix");
    let stats = run(&["stats", "--connect", &address, "--json"]).ok().json()[0].clone();
    assert_eq!(stats["extra"]["not_served"], *missing);
    let input = scratch.npy("x.npy", DType::U8, &[1, 4], &[1, 2, 3, 4]);
    run(&["infer", "good", &input, "--connect", &address]).ok();
    run(&["infer", "broken", &input, "--connect", &address]).says(5, "unknown_model");
    assert!(server.stop().ok().err.contains("broken is not served: "), "{good}");
}
