//! Lines on their way to a reader who may be slow, or gone: one thread waits for him, and nobody else.

use super::line::{Format, Line, Wall};
use crate::limits::{LOG_PRINT_BYTES_MAX, LOG_PRINT_PIECE_BYTES};
use crate::sys::clock;
use crate::sys::sync::Arc;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// The thread's name, and that of lines about it.
pub(super) const NAME: &str = "cl-print";
/// Pieces for which [`Printer::finish`] waits at most, each with its patience: more than fit, since any two
/// neighbours are longer than one may be.
const PIECES_MAX: usize = 2 * (LOG_PRINT_BYTES_MAX / LOG_PRINT_PIECE_BYTES + 1);

/// The queue of lines, and its thread. The thread is never joined: it may wait for a reader for ever.
#[derive(Debug)]
pub(super) struct Printer {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: String,
    /// The thread prints a piece.
    printing: bool,
    /// Pieces printed so far.
    printed: u64,
    /// Lines that found no room, since that was last told.
    untold: u64,
    /// The same since the start.
    lost_total: u64,
}

impl Printer {
    /// Starts the thread, which inherits the cores of the calling one.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(print: fn(&str)) -> std::io::Result<Arc<Printer>> {
        let printer =
            Arc::new(Printer { queue: Mutex::new(Queue::default()), changed: Condvar::new() });
        let theirs = printer.clone();
        std::thread::Builder::new().name(NAME.into()).spawn(move || theirs.run(print))?;
        Ok(printer)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn run(&self, print: fn(&str)) {
        loop {
            let mut queue = self.queue();
            while queue.waiting.is_empty() {
                queue = self.changed.wait(queue).unwrap_or_else(|e| e.into_inner());
            }
            let piece = take_piece(&mut queue.waiting);
            queue.printing = true;
            drop(queue);
            print(&piece);
            let mut queue = self.queue();
            queue.printing = false;
            queue.printed += 1;
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Adds lines, each with its end, all or none of them; never waits for the reader.
    pub fn print(&self, format: Format, lines: &str) {
        let mut queue = self.queue();
        if queue.waiting.len() + lines.len() > LOG_PRINT_BYTES_MAX {
            let lost = lines.lines().count() as u64;
            queue.untold += lost;
            queue.lost_total += lost;
            return;
        }
        if queue.untold > 0 {
            let lost = std::mem::take(&mut queue.untold);
            Line::lost(NAME, clock::now(), lost).print(format, Wall::now(), &mut queue.waiting);
        }
        queue.waiting.push_str(lines);
        drop(queue);
        self.changed.notify_all();
    }

    /// Waits until all is printed; gives up when the reader takes no piece for as long as `patience` says then.
    /// Whether all is printed.
    pub fn finish(&self, patience: impl Fn() -> Duration) -> bool {
        let mut queue = self.queue();
        for _ in 0..PIECES_MAX {
            let printed = queue.printed;
            let (now, wait) = self
                .changed
                .wait_timeout_while(queue, patience(), |q| {
                    q.printed == printed && (q.printing || !q.waiting.is_empty())
                })
                .unwrap_or_else(|e| e.into_inner());
            queue = now;
            if !queue.printing && queue.waiting.is_empty() {
                return true;
            }
            if wait.timed_out() {
                return false;
            }
        }
        false
    }

    /// Lines that found no room.
    pub fn lost_total(&self) -> u64 {
        self.queue().lost_total
    }
}

/// Takes whole lines of up to a piece's length, or one longer line.
fn take_piece(waiting: &mut String) -> String {
    let most = waiting.floor_char_boundary(LOG_PRINT_PIECE_BYTES);
    let end = match waiting[..most].rfind('\n') {
        Some(at) => at + 1,
        None => waiting.find('\n').map_or(waiting.len(), |at| at + 1),
    };
    let rest = waiting.split_off(end);
    std::mem::replace(waiting, rest)
}
