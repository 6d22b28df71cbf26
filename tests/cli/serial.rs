//! A server at the other end of a serial line of this machine: two pseudo-terminals, and a cable.

use crate::serve::UNPINNED;
use crate::support::{Scratch, Server, model, run};
use crate::{check_answer, difference};
use corelane::sys::terminal::{hold_open, pseudo_terminal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Joins two serial devices until it is dropped.
struct Cable {
    /// What a server and a client open.
    ends: [String; 2],
    _held: [OwnedFd; 2],
    pulled: Arc<AtomicBool>,
    carrier: Option<JoinHandle<()>>,
}

impl Cable {
    fn new() -> Cable {
        let masters = [pseudo_terminal().unwrap(), pseudo_terminal().unwrap()];
        let ends = [0, 1].map(|i| masters[i].1.display().to_string());
        let masters = masters.map(|(master, _)| master);
        let held = [0, 1].map(|i| hold_open(masters[i].as_fd()).unwrap());
        let pulled = Arc::new(AtomicBool::new(false));
        let seen = pulled.clone();
        let carrier = std::thread::spawn(move || carry(&masters, &seen));
        Cable { ends, _held: held, pulled, carrier: Some(carrier) }
    }
    fn address(&self, end: usize) -> String {
        format!("{}:921600", self.ends[end])
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.pulled.store(true, Ordering::Relaxed);
        let ended = self.carrier.take().map(JoinHandle::join);
        assert!(ended.is_some_and(|e| e.is_ok()) || std::thread::panicking());
    }
}

fn carry(masters: &[OwnedFd; 2], pulled: &AtomicBool) {
    let soon = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let mut bytes = [0; 512];
    while !pulled.load(Ordering::Relaxed) {
        let mut polled = [0, 1].map(|i| PollFd::new(&masters[i], PollFlags::IN));
        match poll(&mut polled, Some(&soon)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("{error}"),
        }
        let ready = polled.map(|p| p.revents().contains(PollFlags::IN));
        for (from, _) in ready.into_iter().enumerate().filter(|(_, ready)| *ready) {
            let n = rustix::io::read(&masters[from], &mut bytes).unwrap();
            let mut rest = &bytes[..n];
            while !rest.is_empty() {
                let n = rustix::io::write(&masters[1 - from], rest).unwrap();
                rest = &rest[n..];
            }
        }
    }
}

fn serve(model: &str, cable: &Cable) -> Server {
    let port = cable.address(0);
    let mut args = vec!["--model", model, "--serial", &port];
    args.extend(UNPINNED);
    Server::start(&args)
}

#[test]
fn a_server_is_asked_over_a_serial_line() {
    let mlp = model("mlp");
    let cable = Cable::new();
    let line = format!("serial:{}", cable.address(1));
    let server = serve(&mlp, &cable);
    let input = format!("{mlp}/golden/batch4/input_0.npy");
    let golden = format!("{mlp}/golden/batch4/output_0.npy");
    let ran = run(&["infer", "mlp", &input, "--connect", &line, "--json"]).ok();
    check_answer(&ran.json()[0], "mlp", 4);
    assert!(difference(&ran.json()[0]["outputs"][0], &golden) <= 1e-5);
    // Rows in flight together, one after the other, and encoded.
    let ran = run(&["infer", "mlp", &input, "--rows", "--connect", &line, "--json"]).ok();
    assert_eq!(ran.json().len(), 4);
    let ran = run(&["infer", "mlp", &input, "--repeat", "3", "--connect", &line]).ok();
    assert!(ran.out.contains("3 answers, closed loop"), "{ran:?}");
    run(&["infer", "mlp", &input, "--encoding", "x=f16", "--connect", &line]).ok();
    run(&["infer", "nothing", &input, "--connect", &line]).says(5, "unknown_model");
    let stats = run(&["stats", "--connect", &line, "--json"]).ok();
    let transport = &stats.json()[0]["extra"]["transport"];
    assert!(transport["link_received_bytes_total"].as_u64() > Some(0), "{stats:?}");
    // One line carries one connection.
    let load = ["load", "--model", "mlp", "--rate", "10", "--duration", "1", "--connect", &line];
    run(&load).says(2, "one connection");
    server.stop().ok();
}

#[test]
fn lines_that_are_none_are_told() {
    let scratch = Scratch::new();
    let infer = |address: &str| run(&["infer", "mlp", "x.npy", "--connect", address]);
    infer("serial:/dev/ttyS1").says(2, "write DEVICE:BAUD");
    infer("serial:/dev/ttyS1:12").says(2, "at least 300 baud");
    infer("serial:/nowhere/tty:9600").says(4, "/nowhere/tty:9600");
    let file = scratch.write("file", "");
    infer(&format!("serial:{file}:9600")).says(4, "no serial device");
    // A server has it: it is nobody else's.
    let cable = Cable::new();
    let mlp = model("mlp");
    let server = serve(&mlp, &cable);
    infer(&format!("serial:{}", cable.address(0))).says(4, "another process has it open");
    server.stop().ok();
}
