//! The requests that the I/O thread holds: by slot, and by deadline.

use super::Served;
use crate::queue::{Completion, Done, Ticket};
use crate::units::{Micros, Nanos, RequestId};

/// Not in the heap.
const NOWHERE: u32 = u32::MAX;

/// A request that was handed to a queue.
#[derive(Debug)]
struct Entry {
    ticket: Option<Ticket>,
    held: Held,
    /// Position in the heap of deadlines.
    heap: u32,
}

/// What is known of a request besides its ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub conn: u16,
    pub request: RequestId,
    pub submitted_at: Nanos,
    /// The deadline that was asked for, or the model's default; 0: none.
    pub allowed: Micros,
    /// The connection's view that the answer travels by, if it travels encoded.
    pub view: Option<u8>,
}

/// One entry for each slot of each model, so nothing here grows; and a binary heap of the entries
/// with a deadline, in which each knows its position, so that a request leaves it when it ends.
#[derive(Debug)]
pub(super) struct Table {
    bases: Box<[u32]>,
    entries: Box<[Entry]>,
    heap: Vec<u32>,
    held: usize,
}

impl Table {
    pub fn new(models: &[Served]) -> Self {
        let mut bases = Vec::with_capacity(models.len());
        let mut end = 0;
        for model in models {
            bases.push(end);
            end += model.queue.slots() as u32;
        }
        let held = Held {
            conn: 0,
            request: RequestId(0),
            submitted_at: Nanos(0),
            allowed: Micros(0),
            view: None,
        };
        Table {
            bases: bases.into(),
            entries: (0..end).map(|_| Entry { ticket: None, held, heap: NOWHERE }).collect(),
            heap: Vec::with_capacity(end as usize),
            held: 0,
        }
    }
    /// Requests held.
    pub fn held(&self) -> usize {
        self.held
    }
    /// Keeps a request of the `model`-th model; returns where.
    pub fn insert(&mut self, model: usize, ticket: Ticket, held: Held) -> u32 {
        let at = self.bases[model] + ticket.index();
        let deadline = ticket.deadline();
        let entry = &mut self.entries[at as usize];
        debug_assert!(entry.ticket.is_none(), "a leased slot has no ticket");
        *entry = Entry { ticket: Some(ticket), held, heap: NOWHERE };
        self.held += 1;
        if deadline != Nanos(u64::MAX) {
            let position = self.heap.len();
            self.heap.push(at);
            self.entries[at as usize].heap = position as u32;
            self.sift_up(position);
        }
        at
    }
    /// Takes a request out.
    pub fn remove(&mut self, at: u32) -> Option<(Ticket, Held)> {
        // The heap compares deadlines of tickets, so the entry leaves it with its ticket in place.
        self.forget_deadline(at);
        let entry = &mut self.entries[at as usize];
        let ticket = entry.ticket.take()?;
        self.held -= 1;
        Some((ticket, entry.held))
    }
    /// Puts back a ticket that [`remove`](Self::remove) gave, without its deadline.
    pub fn restore(&mut self, at: u32, ticket: Ticket) {
        self.entries[at as usize].ticket = Some(ticket);
        self.held += 1;
    }
    /// The answer that a worker announced, if the request is still held and really done; and where the
    /// request was.
    pub fn done(&mut self, completion: Completion) -> Option<(u32, Done, Held)> {
        let base = *self.bases.get(completion.model.0 as usize)?;
        self.done_at(base + completion.slot)
    }
    fn done_at(&mut self, at: u32) -> Option<(u32, Done, Held)> {
        if !self.entries[at as usize].ticket.as_ref().is_some_and(Ticket::is_done) {
            return None;
        }
        let (ticket, held) = self.remove(at)?;
        match ticket.into_done() {
            Ok(done) => Some((at, done, held)),
            Err(ticket) => {
                self.restore(at, ticket);
                None
            }
        }
    }
    /// Looks at every request held, for the rare answer that nobody announced.
    pub fn find_done(&mut self) -> Option<(u32, Done, Held)> {
        if self.held == 0 {
            return None;
        }
        (0..self.entries.len() as u32).find_map(|at| self.done_at(at))
    }
    /// The earliest deadline.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.heap.first().map(|&at| self.deadline(at))
    }
    /// A request whose deadline has passed.
    pub fn expired(&self, now: Nanos) -> Option<u32> {
        self.heap.first().copied().filter(|&at| self.deadline(at) <= now)
    }

    fn deadline(&self, at: u32) -> Nanos {
        self.entries[at as usize].ticket.as_ref().map_or(Nanos(0), Ticket::deadline)
    }
    fn forget_deadline(&mut self, at: u32) {
        let position = std::mem::replace(&mut self.entries[at as usize].heap, NOWHERE);
        if position == NOWHERE {
            return;
        }
        let position = position as usize;
        self.heap.swap_remove(position);
        if let Some(&moved) = self.heap.get(position) {
            self.entries[moved as usize].heap = position as u32;
            self.sift_up(position);
            self.sift_down(self.entries[moved as usize].heap as usize);
        }
    }
    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.entries[self.heap[a] as usize].heap = a as u32;
        self.entries[self.heap[b] as usize].heap = b as u32;
    }
    fn sift_up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.deadline(self.heap[parent]) <= self.deadline(self.heap[at]) {
                return;
            }
            self.swap(at, parent);
            at = parent;
        }
    }
    fn sift_down(&mut self, mut at: usize) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len()
                    && self.deadline(self.heap[child]) < self.deadline(self.heap[least])
                {
                    least = child;
                }
            }
            if least == at {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }
}
