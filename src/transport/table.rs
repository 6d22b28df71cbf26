//! The requests that the I/O thread holds: by slot, and by deadline.

use super::Served;
use super::instants::Instants;
use crate::queue::{Completion, Done, Ticket};
use crate::units::{Micros, Nanos, RequestId};

/// A request that was handed to a queue.
#[derive(Debug)]
struct Entry {
    ticket: Option<Ticket>,
    held: Held,
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

/// One entry for each slot of each model, so nothing here grows; and the deadlines of those that have one,
/// which a request leaves when it ends.
#[derive(Debug)]
pub(super) struct Table {
    bases: Box<[u32]>,
    entries: Box<[Entry]>,
    deadlines: Instants,
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
            entries: (0..end).map(|_| Entry { ticket: None, held }).collect(),
            deadlines: Instants::new(end as usize),
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
        *entry = Entry { ticket: Some(ticket), held };
        self.held += 1;
        if deadline != Nanos(u64::MAX) {
            self.deadlines.set(at, deadline);
        }
        at
    }
    /// Takes a request out.
    pub fn remove(&mut self, at: u32) -> Option<(Ticket, Held)> {
        self.deadlines.remove(at);
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
        self.deadlines.first().map(|(_, deadline)| deadline)
    }
    /// A request whose deadline has passed.
    pub fn expired(&self, now: Nanos) -> Option<u32> {
        self.deadlines.first().filter(|(_, deadline)| *deadline <= now).map(|(at, _)| at)
    }
}
