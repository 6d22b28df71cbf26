//! When each of a number of things is due: a binary heap in fixed memory, in which each knows its place, so
//! that it is moved or taken out wherever it is.

use crate::units::Nanos;

/// Not in the heap.
const NOWHERE: u32 = u32::MAX;

/// An instant for each of the numbers below a count, or none.
#[derive(Debug)]
pub(super) struct Instants {
    /// Numbers, the one with the earliest instant first.
    heap: Vec<u32>,
    /// By number.
    entries: Box<[Entry]>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    at: Nanos,
    /// Position in the heap.
    place: u32,
}

impl Instants {
    /// None is set.
    pub fn new(count: usize) -> Self {
        let entry = Entry { at: Nanos(0), place: NOWHERE };
        Instants { heap: Vec::with_capacity(count), entries: vec![entry; count].into() }
    }
    /// The earliest, and whose it is.
    pub fn first(&self) -> Option<(u32, Nanos)> {
        self.heap.first().map(|&number| (number, self.entries[number as usize].at))
    }
    /// The instant of `number`.
    pub fn get(&self, number: u32) -> Option<Nanos> {
        let entry = self.entries[number as usize];
        (entry.place != NOWHERE).then_some(entry.at)
    }
    /// Sets the instant of `number`.
    pub fn set(&mut self, number: u32, at: Nanos) {
        let entry = &mut self.entries[number as usize];
        entry.at = at;
        if entry.place == NOWHERE {
            entry.place = self.heap.len() as u32;
            self.heap.push(number);
        }
        self.sift(number);
    }
    /// Takes the instant of `number` out, if it has one.
    pub fn remove(&mut self, number: u32) {
        let place = std::mem::replace(&mut self.entries[number as usize].place, NOWHERE);
        if place == NOWHERE {
            return;
        }
        self.heap.swap_remove(place as usize);
        if let Some(&moved) = self.heap.get(place as usize) {
            self.entries[moved as usize].place = place;
            self.sift(moved);
        }
    }

    fn at(&self, place: usize) -> Nanos {
        self.entries[self.heap[place] as usize].at
    }
    fn place(&self, number: u32) -> usize {
        self.entries[number as usize].place as usize
    }
    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.entries[self.heap[a] as usize].place = a as u32;
        self.entries[self.heap[b] as usize].place = b as u32;
    }
    /// Moves `number` to where it belongs.
    fn sift(&mut self, number: u32) {
        self.sift_up(self.place(number));
        self.sift_down(self.place(number));
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
    /// Asserts that the heap is one, and knows its places.
    #[cfg(test)]
    pub fn check(&self) {
        for (place, &number) in self.heap.iter().enumerate() {
            assert_eq!(self.entries[number as usize].place as usize, place);
            assert!(place == 0 || self.at((place - 1) / 2) <= self.at(place));
        }
        let inside = self.entries.iter().filter(|entry| entry.place != NOWHERE).count();
        assert_eq!(inside, self.heap.len());
    }
}
