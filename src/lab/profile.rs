//! Where the server's process spends its CPU time: stacks that Linux' `perf` samples from outside.
//!
//! Nothing is built into the server for it: no signal handler on a worker, no allocation, no cost when
//! nobody looks. Stacks are unwound by the tables that every build has anyway (no frame pointers are
//! needed), and named by the program's symbols, so the program must not be stripped. What can't be had
//! is a [`ProfileError`] that says what is missing; a profile without samples is one too.
//!
//! The stacks of a repeat are kept folded, one line each, as flame graph tools read them:
//! `thread;outermost;...;innermost COUNT`. A thread's number is dropped (`cl-worker-2` is
//! `cl-worker`), and so are the hashes of symbols, so that two builds can be compared.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Samples of each busy core per second: not a divisor of what timers commonly run at.
pub const SAMPLES_PER_S: u32 = 499;
/// Bytes of the stack that are copied with each sample; deeper callers are cut off.
const STACK_BYTES: u32 = 8 * 1024;
/// Most data that the profiler keeps; it ends when it has so much.
const DATA_MAX: &str = "256M";
/// Parts of a stack that are kept.
const FRAMES_MAX: usize = 128;
/// How often a profiler that starts or ends is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long it may take to fail at its start.
const START_LOOKS: u32 = 20;

/// Why there is no profile.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProfileError {
    /// The profiler is not installed.
    NoPerf,
    /// The server's process is not one of this machine.
    Elsewhere,
    /// The profiler said no.
    Refused {
        /// What was tried.
        doing: &'static str,
        /// Its words.
        text: String,
    },
    /// The profiler could not be run, or its files not be read.
    Io {
        /// What was tried.
        doing: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// It ran and saw nothing.
    Nothing,
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileError::NoPerf => f.write_str(
                "there is no program `perf` on this machine (in Debian it is the package linux-perf)",
            ),
            ProfileError::Elsewhere => f.write_str(
                "the server's process is not one of this machine, or it does not tell its number",
            ),
            ProfileError::Refused { doing, text } => {
                write!(f, "perf could not {doing}: {text}")?;
                if ["ermission", "ermitted", "paranoid"].iter().any(|word| text.contains(word)) {
                    f.write_str(
                        " (run as the server's user, with kernel.perf_event_paranoid at most 2)",
                    )?;
                }
                Ok(())
            }
            ProfileError::Io { doing, source } => write!(f, "perf could not {doing}: {source}"),
            ProfileError::Nothing => {
                f.write_str("perf took no sample: the server used next to no CPU time")
            }
        }
    }
}

impl std::error::Error for ProfileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ProfileError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Sampled stacks and how often each was seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stacks(BTreeMap<String, u64>);

impl Stacks {
    /// Samples in all.
    pub fn samples(&self) -> u64 {
        self.0.values().sum()
    }

    /// Each stack, outermost first with its thread in front, and its samples.
    pub fn iter(&self) -> impl Iterator<Item = (impl Iterator<Item = &str>, u64)> {
        self.0.iter().map(|(stack, count)| (stack.split(';'), *count))
    }

    /// One line a stack.
    pub fn text(&self) -> String {
        self.0.iter().map(|(stack, count)| format!("{stack} {count}\n")).collect()
    }

    /// Reads [`text`](Self::text) back.
    ///
    /// # Errors
    /// The number of the first line, from 1, that is none.
    pub fn parse(text: &str) -> Result<Stacks, usize> {
        let mut stacks = Stacks::default();
        for (n, line) in text.lines().enumerate() {
            let parsed =
                line.rsplit_once(' ').and_then(|(s, count)| Some((s, count.parse().ok()?)));
            let (stack, count) =
                parsed.filter(|(s, _): &(&str, u64)| !s.is_empty()).ok_or(n + 1)?;
            *stacks.0.entry(stack.into()).or_default() += count;
        }
        Ok(stacks)
    }

    /// From what `perf script -F comm,tid,ip,sym,dso` prints, of the threads that `keep` names.
    pub fn of_script(text: &str, keep: impl Fn(&str) -> bool) -> Stacks {
        let mut stacks = Stacks::default();
        for sample in text.split("\n\n") {
            let mut lines = sample.lines().skip_while(|line| line.trim().is_empty());
            // The name may hold spaces, the number after it does not.
            let Some((thread, _)) = lines.next().and_then(|head| head.trim().rsplit_once(' '))
            else {
                continue;
            };
            let thread = thread.trim();
            if !keep(thread) {
                continue;
            }
            let mut frames: Vec<String> = lines.filter_map(function).take(FRAMES_MAX).collect();
            // The end of a stack that could not be unwound says nothing.
            while frames.last().is_some_and(|name| name == UNKNOWN) {
                frames.pop();
            }
            // What starts a thread is the same for all.
            if let Some(at) = frames.iter().rposition(|name| name.contains(THREAD_BEGINS)) {
                frames.truncate(at);
            }
            let mut stack = thread_name(thread);
            for frame in frames.iter().rev() {
                stack.push(';');
                stack.push_str(frame);
            }
            *stacks.0.entry(stack).or_default() += 1;
        }
        stacks
    }
}

/// A frame whose function has no name.
const UNKNOWN: &str = "[unknown]";
/// The standard library's mark between what starts a thread and what it does.
const THREAD_BEGINS: &str = "__rust_begin_short_backtrace";

/// The function in a line of a stack: an address, a symbol as the linker knows it, and the file that
/// holds it in brackets.
fn function(line: &str) -> Option<String> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (symbol, file) = rest.rsplit_once(" (").unwrap_or((rest, ""));
    let file = file.trim_end_matches(')').rsplit('/').next().unwrap_or("");
    // A symbol of a shared library may carry its version.
    let symbol = symbol.trim().split("@@").next().unwrap_or("");
    let name = match (symbol, file) {
        (UNKNOWN | "", "" | UNKNOWN) => UNKNOWN.into(),
        (UNKNOWN | "", file) => format!("[{}]", file.trim_matches(['[', ']'])),
        (symbol, file) if file.starts_with("[kernel") => format!("{symbol} [kernel]"),
        (symbol, _) => format!("{:#}", rustc_demangle::demangle(symbol)),
    };
    // It has a meaning in the folded text.
    Some(name.replace(';', ","))
}

/// The name without the number of one among several alike.
fn thread_name(name: &str) -> String {
    name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-').replace(';', ",")
}

/// Samples a process until it is told to end.
#[derive(Debug)]
pub struct Profiler {
    program: PathBuf,
    child: Child,
    data: PathBuf,
}

impl Profiler {
    /// Begins with the process `pid`; its data lies in `dir` meanwhile.
    ///
    /// # Errors
    /// There is no profiler, or it may not look at this process.
    pub fn start(pid: u32, dir: &Path) -> Result<Profiler, ProfileError> {
        Profiler::start_by(Path::new("perf"), pid, dir)
    }

    /// The same by another program.
    fn start_by(program: &Path, pid: u32, dir: &Path) -> Result<Profiler, ProfileError> {
        let doing = "start";
        let data = dir.join("perf.data");
        let child = Command::new(program)
            .args(["record", "-q", "-e", "cpu-clock", "-F", &SAMPLES_PER_S.to_string()])
            .args(["--call-graph", &format!("dwarf,{STACK_BYTES}"), "--max-size", DATA_MAX])
            .args(["-p", &pid.to_string(), "-o"])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| match source.kind() {
                std::io::ErrorKind::NotFound => ProfileError::NoPerf,
                _ => ProfileError::Io { doing, source },
            })?;
        let mut profiler = Profiler { program: program.into(), child, data };
        for _ in 0..START_LOOKS {
            std::thread::sleep(LOOK_EVERY);
            if profiler.ended()?.is_some() {
                return Err(ProfileError::Refused { doing, text: profiler.words() });
            }
        }
        Ok(profiler)
    }

    fn ended(&mut self) -> Result<Option<std::process::ExitStatus>, ProfileError> {
        self.child.try_wait().map_err(|source| ProfileError::Io { doing: "be waited for", source })
    }

    /// What it complained of, in a line.
    fn words(&mut self) -> String {
        let mut bytes = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            // What could be read is better than nothing.
            let _ = stderr.take(4096).read_to_end(&mut bytes);
        }
        told(&bytes)
    }

    /// Ends it, and names what it saw in the threads that `keep` names.
    ///
    /// # Errors
    /// It failed meanwhile, its data can't be read, or there is no sample.
    pub fn finish(mut self, keep: impl Fn(&str) -> bool) -> Result<Stacks, ProfileError> {
        let doing = "sample the process";
        let died = self.ended()?.is_some();
        if !died && let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::INT);
        }
        // It ends by the signal that it was told to end by; what counts is what it wrote.
        let text = self.words();
        self.child.wait().map_err(|source| ProfileError::Io { doing, source })?;
        if std::fs::metadata(&self.data).map_or(0, |m| m.len()) == 0 {
            return Err(ProfileError::Refused { doing, text });
        }
        let doing = "read its data";
        let script = Command::new(&self.program)
            // Without inlined functions: for them it would start a program for every address.
            .args(["script", "--no-inline", "--no-demangle", "-F", "comm,tid,ip,sym,dso", "-i"])
            .arg(&self.data)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| ProfileError::Io { doing, source })?;
        let stacks = Stacks::of_script(&String::from_utf8_lossy(&script.stdout), keep);
        match stacks.samples() {
            0 if !script.status.success() => {
                Err(ProfileError::Refused { doing, text: told(&script.stderr) })
            }
            0 => Err(ProfileError::Nothing),
            _ => Ok(stacks),
        }
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // After `finish` there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.data);
        let _ = std::fs::remove_file(self.data.with_extension("data.old"));
    }
}

/// The first line with words in it.
fn told(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().map(str::trim).find(|line| line.contains(char::is_alphabetic));
    line.unwrap_or("it did not say why").into()
}

#[cfg(test)]
mod tests;
