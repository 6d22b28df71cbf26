//! When each connection must be looked at: a heap in fixed memory, so that what it costs depends on the
//! timers that expire and not on how many connections there are.
//!
//! Most timers never ring: a frame is whole long before it is called half sent. So an entry is only a
//! lower bound. Setting a timer later, or not at all, leaves its entry as it is; when that comes up, the
//! connection is asked, and the entry goes, or goes to where it belongs.

use crate::units::Nanos;

/// Not in the heap.
const NOWHERE: u16 = u16::MAX;

/// One timer for each connection.
#[derive(Debug)]
pub(super) struct Timers {
    /// Connections, the one with the earliest instant first.
    heap: Vec<u16>,
    /// By connection.
    entries: Box<[Entry]>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    at: Nanos,
    /// Position in the heap.
    place: u16,
}

impl Timers {
    /// Timers of `count` connections, at most [`u16::MAX`]; none is set.
    pub fn new(count: usize) -> Self {
        debug_assert!(count <= usize::from(NOWHERE));
        let entry = Entry { at: Nanos(0), place: NOWHERE };
        Timers { heap: Vec::with_capacity(count), entries: vec![entry; count].into() }
    }
    /// A lower bound of the instant at which the next timer rings.
    pub fn next(&self) -> Option<Nanos> {
        self.heap.first().map(|&conn| self.entries[conn as usize].at)
    }
    /// A connection's timer rings at `at`, or not at all.
    pub fn set(&mut self, conn: u16, at: Option<Nanos>) {
        let Some(at) = at else { return };
        let entry = &mut self.entries[conn as usize];
        if entry.place == NOWHERE {
            *entry = Entry { at, place: self.heap.len() as u16 };
            self.heap.push(conn);
        } else if at < entry.at {
            entry.at = at;
        } else {
            return;
        }
        self.sift_up(self.entries[conn as usize].place as usize);
    }
    /// Takes out a connection whose entry has come up. Whether its timer rings, it must be asked; then
    /// its timer is [set](Self::set) anew.
    pub fn take(&mut self, now: Nanos) -> Option<u16> {
        let conn = *self.heap.first()?;
        if self.entries[conn as usize].at > now {
            return None;
        }
        self.entries[conn as usize].place = NOWHERE;
        self.heap.swap_remove(0);
        if let Some(&moved) = self.heap.first() {
            self.entries[moved as usize].place = 0;
            self.sift_down(0);
        }
        Some(conn)
    }

    fn at(&self, place: usize) -> Nanos {
        self.entries[self.heap[place] as usize].at
    }
    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.entries[self.heap[a] as usize].place = a as u16;
        self.entries[self.heap[b] as usize].place = b as u16;
    }
    fn sift_up(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.at(parent) <= self.at(place) {
                return;
            }
            self.swap(place, parent);
            place = parent;
        }
    }
    fn sift_down(&mut self, mut place: usize) {
        loop {
            let mut least = place;
            for child in [2 * place + 1, 2 * place + 2] {
                if child < self.heap.len() && self.at(child) < self.at(least) {
                    least = child;
                }
            }
            if least == place {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }
}

#[cfg(test)]
mod tests;
