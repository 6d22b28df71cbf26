//! What `serve` logs, as lines and as a file, and `corelane logs`.

use crate::support::{Scratch, Server, model, run};
use serde_json::Value;

fn lines(text: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    text.lines().map(parse).collect()
}

/// Lines with this event.
#[cfg(feature = "hot-log")]
fn of<'a>(lines: &'a [Value], event: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == event).collect()
}

fn infer(server: &Server, times: usize) {
    let (mlp, address) = (model("mlp"), server.address("unix"));
    let input = format!("{mlp}/golden/batch4/input_0.npy");
    for _ in 0..times {
        run(&["infer", "mlp", &input, "--connect", &address, "--json"]).ok();
    }
}

fn log_stats(server: &Server) -> Value {
    let ran = run(&["stats", "--connect", &server.address("unix"), "--json"]).ok();
    ran.json()[0].clone()
}

#[test]
fn messages_are_printed_as_asked() {
    let scratch = Scratch::new();
    let (mlp, socket) = (model("mlp"), scratch.path("s.sock"));
    let args = ["--model", &mlp, "--unix", &socket, "--unpinned", "1", "--log", "info"];
    let text = Server::start(&args).stop().ok().err;
    let line = text.lines().find(|l| l.contains(" INFO  main: ready on unix:"));
    let (time, _) = line.unwrap_or_else(|| panic!("{text}")).split_once(' ').unwrap();
    // To the microsecond, in UTC.
    assert!(time.starts_with("20") && time.ends_with('Z') && time.len() == 27, "{time}");
    let json = Server::start(&[&args[..], &["--log-format", "json"]].concat()).stop().ok().err;
    let ready: Vec<Value> = lines(&json)
        .into_iter()
        .filter(|l| l["text"].as_str().unwrap().starts_with("ready on unix:"))
        .collect();
    assert_eq!(ready.len(), 1, "{json}");
    assert_eq!((&ready[0]["level"], &ready[0]["thread"]), (&"info".into(), &"main".into()));
    assert!(ready[0]["at_ns"].is_u64() && ready[0]["unix_ns"].is_u64());
    run(&["serve", "--model", &mlp, "--unix", &socket, "--log-format", "xml"])
        .says(2, "\"xml\" is no format; choose text or json");
}

#[test]
fn a_log_file_is_written_and_read_back() {
    let scratch = Scratch::new();
    let (mlp, socket, file) = (model("mlp"), scratch.path("s.sock"), scratch.path("log"));
    let args =
        ["--model", &mlp, "--unix", &socket, "--unpinned", "1", "--log", "debug", "--log-file"];
    let args = [&args[..], &[file.as_str()]].concat();
    let server = Server::start(&args);
    infer(&server, 3);
    assert!(log_stats(&server)["extra"]["log"]["file_bytes"].as_u64().unwrap() > 0);
    server.stop().ok();
    let text = run(&["logs", &file]).ok().out;
    assert!(text.contains(" INFO  main: ready on unix:"), "{text}");
    let all = lines(&run(&["logs", &file, "--json"]).ok().out);
    assert_eq!(all.len(), text.lines().count());
    let few = lines(&run(&["logs", &file, "--json", "--level", "warn"]).ok().out);
    assert!(few.iter().all(|l| l["level"] == "warn" || l["level"] == "error"));
    assert!(few.len() < all.len());
    #[cfg(feature = "hot-log")]
    {
        let ran = of(&all, "batch_ran");
        assert_eq!(ran.len(), 3, "{text}");
        for line in ran {
            assert_eq!((&line["rows"], &line["requests"]), (&4.into(), &1.into()), "{line}");
            assert_eq!(line["thread"], "cl-worker-0");
        }
    }
    // A second run keeps the first one's.
    Server::start(&args).stop().ok();
    assert_eq!(lines(&run(&["logs", &scratch.path("log.1"), "--json"]).ok().out), all);
    // Cut short, it is read as far as it goes.
    let bytes = std::fs::read(&file).unwrap();
    let cut = scratch.write("cut", &bytes[..bytes.len() - 3]);
    let ran = run(&["logs", &cut]).says(0, "it ends within what begins at byte");
    assert!(ran.out.lines().count() > 0);
}

#[test]
fn a_log_file_that_can_not_be_says_why() {
    let scratch = Scratch::new();
    let (mlp, socket) = (model("mlp"), scratch.path("s.sock"));
    let serve = |file: &str| {
        run(&["serve", "--model", &mlp, "--unix", &socket, "--unpinned", "1", "--log-file", file])
    };
    serve(&scratch.path("no/dir/log")).says(2, "no/dir/log can't be written: No such file");
    let notes = scratch.write("notes", "mine");
    serve(&notes).says(2, "is no log file of corelane; remove it or choose another");
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "mine");
    serve("/dev/null").says(2, "is no log file of corelane");
    let logs = |file: &str| run(&["logs", file]);
    logs(&scratch.path("none")).says(2, "No such file");
    logs(&notes).says(2, "it is no log file of corelane (serve --log-file makes one)");
    logs(&scratch.write("empty", "")).says(2, "it is empty");
    logs(&scratch.write("old", "corelog0\0\0\0\0")).says(2, "its layout is '0'; this version");
    logs(&scratch.write("half", "corelog1\0\0")).says(2, "it ends within what begins at byte 0");
}

#[test]
#[cfg(feature = "hot-log")]
fn what_workers_and_io_thread_do_is_told_without_allocating() {
    let scratch = Scratch::new();
    let (mlp, socket) = (model("mlp"), scratch.path("s.sock"));
    let args = ["--model", &mlp, "--unix", &socket, "--unpinned", "1", "--log", "trace"];
    let server = Server::start(&[&args[..], &["--log-format", "json"]].concat());
    infer(&server, 2);
    let input = format!("{mlp}/golden/input_0.npy");
    run(&["infer", "none", &input, "--connect", &server.address("unix")]).says(5, "unknown_model");
    let stats = log_stats(&server);
    assert_eq!(stats["hot_path_allocations_total"], 0);
    let log = &stats["extra"]["log"];
    assert!(log["records_total"].as_u64().unwrap() > 4, "{log}");
    for none in ["lost_total", "unread_total", "unwritten_total"] {
        assert_eq!(log[none], 0, "{log}");
    }
    assert!(log["file_bytes"].is_null());
    let err = server.stop().ok().err;
    let lines = lines(&err);
    for (event, level, thread, times) in [
        ("worker_serves", "debug", "cl-worker-0", 1),
        ("request_read", "trace", "cl-io", 2),
        ("batch_ran", "debug", "cl-worker-0", 2),
        ("request_answered", "trace", "cl-worker-0", 2),
        ("connection_opened", "debug", "cl-io", 4),
        ("connection_closed", "debug", "cl-io", 4),
        ("request_refused", "debug", "cl-io", 1),
        ("draining", "info", "cl-io", 1),
    ] {
        let found = of(&lines, event);
        assert_eq!(found.len(), times, "{event} in {err}");
        for line in found {
            assert_eq!((&line["level"], &line["thread"]), (&level.into(), &thread.into()));
        }
    }
    let refused = of(&lines, "request_refused")[0];
    assert_eq!(refused["code"], "unknown_model");
    // Times are those of one clock for all threads.
    let at = |event: &str| of(&lines, event)[0]["at_ns"].as_u64().unwrap();
    assert!(at("request_read") < at("batch_ran"));
    assert!(at("batch_ran") < at("draining"));
}

#[test]
#[cfg(feature = "hot-log")]
fn what_finds_its_ring_full_is_counted_and_said() {
    let scratch = Scratch::new();
    let fake = scratch.fake("echo", 0, "max_queue_size = 200\n");
    let config = scratch.write(
        "corelane.toml",
        format!(
            "metrics = '127.0.0.1:0'\n[[model]]\npath = '{fake}'\n[runtime]\npin = false\n[listen]\n\
             unix = 's.sock'\n[log]\nlevel = 'trace'\nformat = 'json'\nring_bytes = 512\n"
        ),
    );
    let server = Server::start(&["--config", &config]);
    // More in a burst than a ring of 512 bytes holds: an event has 12 bytes at least.
    let address: corelane::client::Address = server.address("unix").parse().unwrap();
    let mut client = corelane::client::Client::connect(&address, Default::default()).unwrap();
    let echo = client.open("echo").unwrap();
    for _ in 0..50 {
        let sent: Vec<_> = (0..40)
            .map(|_| client.submit(&echo, corelane::units::Rows(1), &[0; 4]).unwrap())
            .collect();
        for ticket in sent {
            client.wait(ticket).unwrap();
        }
    }
    drop(client);
    let stats = log_stats(&server);
    let lost = stats["extra"]["log"]["lost_total"].as_u64().unwrap();
    assert!(lost > 0, "{stats}");
    let metrics = crate::serve::get(server.ready["metrics"].as_str().unwrap(), "/metrics");
    let told = metrics.lines().find_map(|l| l.strip_prefix("corelane_log_records_lost_total "));
    assert!(told.unwrap().parse::<u64>().unwrap() >= lost, "{metrics}");
    assert_eq!(stats["hot_path_allocations_total"], 0);
    assert_eq!(stats["models"][0]["inference_request_success"], 2_000, "all are answered");
    let lines = lines(&server.stop().ok().err);
    let said: u64 = of(&lines, "records_lost").iter().map(|l| l["records"].as_u64().unwrap()).sum();
    assert!(said >= lost, "{said} said, {lost} counted");
}
