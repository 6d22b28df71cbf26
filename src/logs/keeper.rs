//! Where lines go, and the thread that takes records out of the rings.

use super::file::{Batch, LogFile};
use super::line::{Body, Format, Line, Wall};
use super::panics::Panics;
use super::printer::{self, Printer};
use super::table::{Level, Table};
use crate::limits::{LOG_PRINT_PIECE_BYTES, PRINT_PATIENCE_MS_MAX};
use crate::sys::clock;
use crate::sys::records::{self, Found, ThreadName};
use crate::sys::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use crate::units::Nanos;
use std::panic::PanicHookInfo;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the thread sleeps after it found records, and the longest sleep where it finds none: those
/// who serve never wake it, since that would be a system call of theirs.
const SLEEP: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(160));

/// Where lines go.
#[derive(Debug)]
pub struct Output {
    /// Prints lines, each with its end.
    print: fn(&str),
    /// Who prints them from the start of a keeper on: until then, whoever has one does.
    printer: OnceLock<Arc<Printer>>,
    /// Panics that the keeper will tell.
    panics: Panics,
    settings: Mutex<Settings>,
    /// Events that were taken out of the rings and can't be read; none, if all is well.
    unread_total: AtomicU64,
    /// The instant from which on no reader is waited for, in nanoseconds.
    patience_ends: AtomicU64,
}

#[derive(Debug)]
struct Settings {
    format: Format,
    file: Option<LogFile>,
}

/// What was told and what was not, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Records that went into rings.
    pub records_total: u64,
    /// Records that found their ring full.
    pub lost_total: u64,
    /// Records and messages that the log file should hold and does not.
    pub unwritten_total: u64,
    /// Records that can't be read.
    pub unread_total: u64,
    /// Lines that were not printed, since nobody read fast enough.
    pub unprinted_total: u64,
    /// Bytes of the log file; absent where there is none.
    pub file_bytes: Option<u64>,
}

impl Output {
    /// An output that prints lines with `print`, as text.
    pub const fn new(print: fn(&str)) -> Output {
        Output {
            print,
            printer: OnceLock::new(),
            panics: Panics::new(),
            settings: Mutex::new(Settings { format: Format::Text, file: None }),
            unread_total: AtomicU64::new(0),
            patience_ends: AtomicU64::new(u64::MAX),
        }
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(|e| e.into_inner())
    }

    #[cfg(test)]
    pub(super) fn with_file_for_test(&self, f: impl FnOnce(&mut LogFile)) {
        f(self.settings().file.as_mut().expect("there is a file"));
    }

    /// Prints lines so from now on.
    pub fn set_format(&self, format: Format) {
        self.settings().format = format;
    }

    /// Has events go into this file from now on, in place of being printed, and messages besides.
    pub fn set_file(&self, file: LogFile) {
        self.settings().file = Some(file);
    }

    /// Prints lines, each with its end. Waits for the reader only where there is no keeper yet.
    fn deliver(&self, format: Format, lines: &str) {
        match self.printer.get() {
            Some(printer) => printer.print(format, lines),
            None => (self.print)(lines),
        }
    }

    /// Whether lines are printed by a thread of their own, so that [`say`](Self::say) and
    /// [`message`](Self::message) wait for no reader. So from the start of a [`Keeper`] on.
    pub fn is_kept(&self) -> bool {
        self.printer.get().is_some()
    }

    /// Prints a line as it is.
    pub fn say(&self, text: &str) {
        let format = self.settings().format;
        self.deliver(format, &format!("{text}\n"));
    }

    /// Has the program end: from the instant `at` on no reader is waited for.
    pub fn end_by(&self, at: Nanos) {
        self.patience_ends.store(at.0, Ordering::Relaxed);
    }

    /// How long a reader who takes nothing is waited for, from now on: [`PRINT_PATIENCE_MS_MAX`], or what is left
    /// of it before the [end](Self::end_by).
    pub fn patience(&self) -> Duration {
        let end = Nanos(self.patience_ends.load(Ordering::Relaxed));
        let left = Duration::from_nanos(end.since(clock::now()).0);
        left.min(Duration::from_millis(PRINT_PATIENCE_MS_MAX))
    }

    /// Waits until what was said is printed, for a reader who takes it, at most [`patience`](Self::patience) for
    /// each few kilobytes. Whether it is.
    pub fn flush(&self) -> bool {
        self.printer.get().is_none_or(|printer| printer.finish(|| self.patience()))
    }

    /// Takes a panic of the calling thread, for the keeper to tell: for a panic hook, where
    /// [`is_kept`](Self::is_kept). False: it is a panic of those who would tell it.
    pub fn panicked(&self, panic: &PanicHookInfo<'_>) -> bool {
        let thread = std::thread::current();
        if matches!(thread.name(), Some(NAME | printer::NAME)) {
            return false;
        }
        self.panics.note(panic);
        true
    }

    /// Takes a message of the calling thread.
    pub fn message(&self, level: Level, text: &str) {
        let thread = std::thread::current();
        self.tell(clock::now(), level, thread.name().unwrap_or("?"), text);
    }

    fn tell(&self, at: Nanos, level: Level, thread: &str, text: &str) {
        let mut line = String::new();
        let mut settings = self.settings();
        let format = settings.format;
        Line { at, level, thread, body: Body::Message(text) }.print(format, Wall::now(), &mut line);
        if let Some(file) = &mut settings.file {
            let mut batch = Batch::default();
            batch.message(at, level, thread, text);
            file.write(std::iter::empty(), &batch);
        }
        drop(settings);
        self.deliver(format, &line);
    }

    fn tell_panics(&self) {
        while let Some(note) = self.panics.take() {
            let text = match note.times {
                1 => note.text.as_str().to_owned(),
                times => format!("{} ({times} times)", note.text),
            };
            self.tell(note.at, Level::Error, &note.thread, &text);
        }
        match self.panics.take_missed() {
            0 => {}
            missed => self.message(Level::Error, &format!("{missed} more panics")),
        }
    }

    /// What was told and what was not.
    pub fn counts(&self) -> Counts {
        let totals = records::totals();
        let settings = self.settings();
        Counts {
            records_total: totals.told,
            lost_total: totals.lost,
            unwritten_total: settings.file.as_ref().map_or(0, LogFile::unwritten_total),
            unread_total: self.unread_total.load(Ordering::Relaxed),
            unprinted_total: self.printer.get().map_or(0, |printer| printer.lost_total()),
            file_bytes: settings.file.as_ref().map(LogFile::bytes),
        }
    }

    /// Takes all records out of the rings; how many there were.
    fn take(&self, table: &Table) -> usize {
        self.tell_panics();
        let mut taken = Taken::default();
        records::drain(|thread, found| taken.add(thread, found));
        if taken.entries.is_empty() {
            return 0;
        }
        let now = clock::now();
        // Each thread's own are in order; a record that can't be read has no time.
        let at = |entry: &Entry| match entry.what {
            What::Record { from, to } => {
                taken.bytes.get(from + 2..to.min(from + 10)).map_or(now, |at| {
                    Nanos(at.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte)))
                })
            }
            What::Lost(_) => now,
        };
        let mut entries: Vec<(Nanos, &Entry)> = taken.entries.iter().map(|e| (at(e), e)).collect();
        entries.sort_by_key(|(at, _)| *at);
        let mut lines = String::new();
        let mut batch = Batch::default();
        let mut settings = self.settings();
        let (format, wall) = (settings.format, Wall::now());
        let to_file = settings.file.is_some();
        for (at, entry) in &entries {
            let thread = &taken.threads[entry.thread];
            match (entry.what, to_file) {
                (What::Record { from, to }, true) => {
                    batch.event(thread.number, &taken.bytes[from..to]);
                    if batch.is_long()
                        && let Some(file) = &mut settings.file
                    {
                        file.write(taken.threads.iter(), &std::mem::take(&mut batch));
                    }
                }
                (What::Record { from, to }, false) => match table.read(&taken.bytes[from..to]) {
                    Ok(told) => {
                        Line::event(&thread.name, told).print(format, wall, &mut lines);
                    }
                    Err(_) => {
                        self.unread_total.fetch_add(1, Ordering::Relaxed);
                    }
                },
                (What::Lost(n), true) => batch.lost(thread.number, *at, n),
                (What::Lost(n), false) => {
                    Line::lost(&thread.name, *at, n).print(format, wall, &mut lines);
                }
            }
        }
        if let Some(file) = &mut settings.file
            && !batch.is_empty()
        {
            file.write(taken.threads.iter(), &batch);
        }
        drop(settings);
        // In pieces, so that where there is room for some, some are printed.
        let mut rest = lines.as_str();
        while !rest.is_empty() {
            let most = rest.floor_char_boundary(LOG_PRINT_PIECE_BYTES);
            let end = rest[..most].rfind('\n').or_else(|| rest.find('\n'));
            let (piece, after) = rest.split_at(end.map_or(rest.len(), |at| at + 1));
            self.deliver(format, piece);
            rest = after;
        }
        entries.len()
    }
}

/// What was taken out of the rings, before anything is done with it: so the rings' readers are held
/// only for copying.
#[derive(Default)]
struct Taken {
    threads: Vec<ThreadName>,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

struct Entry {
    /// Position among the threads.
    thread: usize,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Record { from: usize, to: usize },
    Lost(u64),
}

impl Taken {
    fn add(&mut self, thread: &ThreadName, found: Found<'_>) {
        if self.threads.last() != Some(thread) {
            self.threads.push(thread.clone());
        }
        let what = match found {
            Found::Record(record) => {
                let from = self.bytes.len();
                self.bytes.extend(record);
                What::Record { from, to: self.bytes.len() }
            }
            Found::Lost(records) => What::Lost(records),
        };
        self.entries.push(Entry { thread: self.threads.len() - 1, what });
    }
}

/// The keeper's thread.
const NAME: &str = "cl-log";

/// The thread `cl-log`. Dropping it takes what is left in the rings, ends it, and waits for the reader of
/// its lines as [`Output::flush`] does.
#[derive(Debug)]
pub struct Keeper {
    output: &'static Output,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread, which inherits the cores of the calling one.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(output: &'static Output, table: Table) -> std::io::Result<Keeper> {
        if !output.is_kept() {
            // Another keeper that starts at the same time sets one too; the loser's thread has nothing
            // to do.
            let _ = output.printer.set(Printer::start(output.print)?);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = stop.clone();
        let thread = std::thread::Builder::new().name(NAME.into()).spawn(move || {
            let mut sleep = SLEEP.0;
            // Acquire, with the release of the drop: what was told before it is then taken.
            while !theirs.load(Ordering::Acquire) {
                sleep = match output.take(&table) {
                    0 => SLEEP.1.min(sleep * 2),
                    _ => SLEEP.0,
                };
                std::thread::park_timeout(sleep);
            }
            output.take(&table);
        })?;
        Ok(Keeper { output, stop, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It ends by itself; a panic of it has been printed.
            let _ = thread.join();
        }
        self.output.flush();
    }
}
