//! A scratch directory, the program as a child, and a server that ends with its test.

use corelane::model::npy::{self, Array};
use corelane::units::DType;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn model(name: &str) -> String {
    root().join("models").join(name).display().to_string()
}

/// A directory of its own that is gone afterwards.
pub struct Scratch(PathBuf);

static SCRATCHES: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    pub fn new() -> Scratch {
        let n = SCRATCHES.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("corelane-cli-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    }
    pub fn npy(&self, name: &str, dtype: DType, shape: &[usize], data: &[u8]) -> String {
        let array = Array { dtype, shape: shape.into(), data: data.into() };
        self.write(name, npy::write(&array))
    }
    /// A model that computes nothing but takes its time, four bytes in and out; a first byte of 238
    /// is an error, 221 a panic.
    pub fn fake(&self, name: &str, compute_us: u64, more: &str) -> String {
        let tensor = |name: &str| format!("[{{ name = '{name}', dtype = 'uint8', shape = [4] }}]");
        self.write(
            &format!("{name}/manifest.toml"),
            format!(
                "engine = 'fake'\n{more}\n[fake]\ninputs = {}\noutputs = {}\n\
                 compute_us = {compute_us}\nerror_marker = 238\npanic_marker = 221\n",
                tensor("x"),
                tensor("y")
            ),
        );
        self.path(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a run of the program came to.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Holds the exit code, and that standard error says `part`.
    #[track_caller]
    pub fn says(self, code: i32, part: &str) -> Ran {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.contains(part), "no {part:?} in {self:?}");
        self
    }
    #[track_caller]
    pub fn ok(self) -> Ran {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }
    #[track_caller]
    pub fn json(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        self.out.lines().map(parse).collect()
    }
}

pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corelane"));
    command.stdin(Stdio::null());
    command
}

pub fn run(args: &[&str]) -> Ran {
    let output = program().args(args).output().unwrap();
    Ran {
        code: output.status.code().expect("an exit code, not a signal"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A program's exit code, if it ends by itself within a time that only a hang exceeds.
pub fn ends(child: &mut Child) -> Option<i32> {
    for _ in 0..3_000 {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let _ = child.kill();
    None
}

/// A server that is ready.
pub struct Server {
    child: Child,
    out: BufReader<Box<dyn Read + Send + Sync>>,
    err: Option<std::thread::JoinHandle<String>>,
    pub ready: Value,
}

impl Server {
    /// A server whose standard error nobody reads; the end of the pipe that could.
    pub fn start_unread(args: &[&str]) -> (Server, std::process::ChildStderr) {
        Server::spawn("serve", args, &[])
    }
    pub fn start(args: &[&str]) -> Server {
        Server::start_by("serve", args, &[])
    }
    /// The same with more in its environment.
    pub fn start_with(args: &[&str], environment: &[(&str, &str)]) -> Server {
        Server::start_by("serve", args, environment)
    }
    /// A server by another command that serves.
    pub fn start_as(command: &str, args: &[&str]) -> Server {
        Server::start_by(command, args, &[])
    }
    fn start_by(command: &str, args: &[&str], environment: &[(&str, &str)]) -> Server {
        Server::read_along(Server::spawn(command, args, environment))
    }
    /// A server by any command.
    pub fn start_command(command: &mut Command) -> Server {
        Server::read_along(Server::spawn_command(command))
    }
    fn read_along(spawned: (Server, std::process::ChildStderr)) -> Server {
        let (mut server, mut stderr) = spawned;
        // Read as it comes: a full pipe would lose lines.
        server.err = Some(std::thread::spawn(move || {
            let mut err = String::new();
            stderr.read_to_string(&mut err).unwrap();
            err
        }));
        server
    }
    fn spawn(
        command: &str,
        args: &[&str],
        environment: &[(&str, &str)],
    ) -> (Server, std::process::ChildStderr) {
        Server::spawn_command(program().arg(command).args(args).envs(environment.iter().copied()))
    }
    fn spawn_command(command: &mut Command) -> (Server, std::process::ChildStderr) {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out: Box<dyn Read + Send + Sync> = Box::new(child.stdout.take().unwrap());
        let mut out = BufReader::new(out);
        let mut stderr = child.stderr.take().unwrap();
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut err = String::new();
            stderr.read_to_string(&mut err).unwrap();
            panic!("the server ended: {err}");
        }
        let ready: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(ready["ready"], true);
        (Server { child, out, err: None, ready }, stderr)
    }
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).unwrap()
    }
    /// As [`ends`].
    pub fn ends(&mut self) -> Option<i32> {
        ends(&mut self.child)
    }
    /// Its address that begins so.
    pub fn address(&self, kind: &str) -> String {
        let all = self.ready["addresses"].as_array().unwrap();
        let texts = all.iter().map(|a| a.as_str().unwrap());
        texts.into_iter().find(|a| a.starts_with(kind)).expect("the address").into()
    }
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }
    /// Waits for its end: exit code, the lines that were left on standard output, standard error.
    pub fn end(mut self) -> Ran {
        let mut out = String::new();
        self.out.read_to_string(&mut out).unwrap();
        let err = self.err.take().map(|err| err.join().unwrap()).unwrap_or_default();
        let code = self.child.wait().unwrap().code().expect("an exit code, not a signal");
        Ran { code, out, err }
    }
    /// Leaves its standard output, as a supervisor does that has read the ready line.
    pub fn stop_unread(mut self) -> Ran {
        self.out = BufReader::new(Box::new(std::io::empty()));
        self.stop()
    }
    pub fn stop(self) -> Ran {
        self.signal(Signal::TERM);
        self.end()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After `end` there is nothing to kill; after a failed test there is.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
