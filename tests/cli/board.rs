//! Boards and real-time options from outside.

use crate::support::{Scratch, Server, run};

/// Wherever these tests run, this board is something else.
fn another_board() -> &'static str {
    if cfg!(target_arch = "x86_64") { "rpi5" } else { "generic-x86_64" }
}

#[test]
fn boards_are_listed_shown_and_given_as_files() {
    let list = run(&["board", "--list"]).ok().out;
    let names: Vec<&str> = list.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(names, corelane::board::names());
    for name in names {
        let ran = run(&["board", name]);
        assert!(ran.out.contains(&format!("({name})")) && ran.out.contains("wanted"), "{ran:?}");
    }
    let file = run(&["board", "rpi5", "--file"]).ok().out;
    let scratch = Scratch::new();
    let mine = scratch.write("mine.toml", file);
    let ran = run(&["board", &mine]);
    assert!(ran.out.contains("Raspberry Pi 5 (mine)"), "{ran:?}");
    run(&["board", "rpi9"]).says(3, "there is no board \"rpi9\"; did you mean");
    let wrong = scratch.write("wrong.toml", "title = 1\n");
    run(&["board", &wrong]).says(3, "wrong.toml, line 1: `architecture` is missing");
}

#[test]
fn a_board_that_this_is_not_is_an_error_unless_adapted_to() {
    let scratch = Scratch::new();
    let (fake, socket) = (scratch.fake("m", 10, ""), scratch.path("s.sock"));
    let args = ["--model", &fake, "--unix", &socket, "--board", another_board()];
    run(&[&["serve"][..], &args].concat()).says(3, "this machine is not as board");
    let server = Server::start(&[&args[..], &["--board-mismatch", "adapt"]].concat());
    let board = &server.ready["board"];
    assert_eq!(board["board"], another_board());
    assert!(!board["differences"].as_array().unwrap().is_empty(), "{board}");
    let got = board["got_workers"].as_array().unwrap();
    let cores: Vec<_> =
        server.ready["workers"].as_array().unwrap().iter().map(|w| &w["core"]).collect();
    assert_eq!(got.iter().collect::<Vec<_>>(), cores);
    let stats = run(&["stats", "--connect", &server.address("unix"), "--json"]).ok();
    assert_eq!(&stats.json()[0]["extra"]["board"], board);
    server.stop().says(0, "");
}

#[test]
fn a_board_and_cores_are_not_given_together() {
    let scratch = Scratch::new();
    let (fake, socket) = (scratch.fake("m", 10, ""), scratch.path("s.sock"));
    let args = ["serve", "--model", &fake, "--unix", &socket, "--board", "auto", "--cores", "0"];
    run(&args).says(2, "cannot be used with");
    run(&args[..6]).says(2, "a value is required for '--board");
}

#[test]
fn real_time_options_are_told_as_wanted_and_got() {
    let scratch = Scratch::new();
    scratch.fake("m", 10, "");
    let config = |realtime: &str| {
        scratch.write(
            "c.toml",
            format!(
                "[runtime]\npin = false\n[realtime]\n{realtime}\n[[model]]\npath = 'm'\n\
                 [listen]\nunix = 's.sock'\n"
            ),
        )
    };
    // Each may be refused here, and then is told as refused.
    let file = config(
        "timer_slack_ns = 2000\nscheduler = 'rr'\npriority = 3\nlock_memory = true\n\
         cpu_dma_latency_us = 5\ntransparent_huge_pages = 'off'\nrefused = 'run_on'",
    );
    let server = Server::start(&["--config", &file]);
    let stats = run(&["stats", "--connect", &server.address("unix"), "--json"]).ok();
    let outcomes = stats.json()[0]["extra"]["realtime"].clone();
    let outcomes = outcomes.as_array().unwrap();
    let told = |thread: &str, option: &str, wanted: &str| {
        let one = outcomes.iter().find(|o| o["thread"] == thread && o["option"] == option);
        let one = one.unwrap_or_else(|| panic!("{thread} {option} in {outcomes:?}"));
        assert_eq!(one["wanted"], wanted);
        (one["granted"].as_bool().unwrap(), one["got"].as_str().unwrap().to_string())
    };
    for thread in ["cl-worker-0", "cl-io"] {
        let (granted, got) = told(thread, "scheduler", "rr 3");
        assert_eq!(granted, got == "rr 3", "{got}");
        // A thread with a real-time policy has none.
        let slack = if granted { "0" } else { "2000" };
        assert_eq!(told(thread, "timer_slack_ns", "2000"), (true, slack.into()));
    }
    // What the process has is held against what the kernel says of it.
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", server.pid().as_raw_nonzero())).unwrap();
    let value = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.map(|rest| rest.trim_start_matches(':').trim().to_string())
    };
    let (granted, got) = told("", "lock_memory", "all");
    let locked = value("VmLck").unwrap();
    assert_eq!(granted, !got.starts_with("0 KiB"), "{got}");
    assert_eq!(granted, !locked.starts_with("0 "), "{got}, the kernel says {locked}");
    let (granted, got) = told("", "cpu_dma_latency_us", "5");
    assert_eq!(granted, got == "5", "{got}");
    assert!(granted || got.starts_with("as the system has it (/dev/cpu_dma_latency"), "{got}");
    let (granted, got) = told("", "transparent_huge_pages", "off");
    assert_eq!(granted, got == "off", "{got}");
    // Kernels before 5.0 don't say.
    if let Some(enabled) = value("THP_enabled") {
        assert_eq!(granted, enabled == "0", "{got}, the kernel says {enabled}");
    }
    assert_eq!(outcomes.len(), 7, "{outcomes:?}");
    server.stop().says(0, "");
    let file = config("cpu_dma_latency_us = 5\ntransparent_huge_pages = 'off'");
    // Where the file may be written, this would serve until it is stopped.
    if std::fs::OpenOptions::new().write(true).open("/dev/cpu_dma_latency").is_err() {
        let wanted = "cpu_dma_latency_us: 5 is wanted, got as the system has it";
        run(&["serve", "--config", &file]).says(3, wanted);
    }
}
