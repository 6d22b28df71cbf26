//! Panics, noted where they happen and told by the thread `cl-log`: writing them on standard error could
//! hold the thread that panicked, which may be a worker that goes on.

use crate::limits::{PANIC_TEXT_BYTES_MAX, PANICS_COUNT_MAX};
use crate::sys::clock;
use crate::units::Nanos;
use heapless::{Deque, String};
use std::fmt::Write;
use std::panic::PanicHookInfo;
use std::sync::{Mutex, MutexGuard};

/// Longest name of a thread that is kept, in bytes; the system's own limit.
const THREAD_NAME_BYTES_MAX: usize = 16;

/// Panics that were not told yet, in fixed memory.
#[derive(Debug)]
pub(super) struct Panics(Mutex<Noted>);

#[derive(Debug)]
struct Noted {
    notes: Deque<Note, PANICS_COUNT_MAX>,
    /// Panics for which there was no room.
    missed: u64,
}

/// What a thread panicked with.
#[derive(Debug, Clone)]
pub(super) struct Note {
    pub at: Nanos,
    pub thread: String<THREAD_NAME_BYTES_MAX>,
    pub text: String<PANIC_TEXT_BYTES_MAX>,
    /// How many times the same was noted.
    pub times: u64,
}

/// Adds what fits, cut at a character.
fn push<const N: usize>(to: &mut String<N>, text: &str) {
    let room = N - to.len();
    // It fits now.
    let _ = to.push_str(&text[..text.floor_char_boundary(room)]);
}

/// Writes as [`push`] does.
struct Cut<'a, const N: usize>(&'a mut String<N>);

impl<const N: usize> Write for Cut<'_, N> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        push(self.0, text);
        Ok(())
    }
}

impl Panics {
    pub const fn new() -> Panics {
        Panics(Mutex::new(Noted { notes: Deque::new(), missed: 0 }))
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes a panic of the calling thread, without the heap. The same one again is only counted.
    pub fn note(&self, panic: &PanicHookInfo<'_>) {
        let mut thread = String::new();
        push(&mut thread, std::thread::current().name().unwrap_or("?"));
        let mut text = String::new();
        let said = panic.payload_as_str().unwrap_or("a value that is no text");
        // A cut text is no error.
        let _ = match panic.location() {
            Some(at) => write!(Cut(&mut text), "panicked at {at}: {said}"),
            None => write!(Cut(&mut text), "panicked: {said}"),
        };
        let mut noted = self.noted();
        let same = |note: &&mut Note| note.thread == thread && note.text == text;
        if let Some(note) = noted.notes.iter_mut().find(same) {
            note.times += 1;
            return;
        }
        let note = Note { at: clock::now(), thread, text, times: 1 };
        if noted.notes.push_back(note).is_err() {
            noted.missed += 1;
        }
    }

    /// Takes the oldest.
    pub fn take(&self) -> Option<Note> {
        self.noted().notes.pop_front()
    }

    /// Panics that found no room since this was last asked.
    pub fn take_missed(&self) -> u64 {
        std::mem::take(&mut self.noted().missed)
    }
}
