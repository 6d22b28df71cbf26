//! When inferences arrived, and of how many rows: the last ones, in a ring of fixed memory.
//!
//! The I/O thread writes; any thread reads. Payloads are kept if that is asked for, of one model, the
//! last ones that fit into a ring of bytes.

use crate::limits::{ARRIVALS_ENTRIES_MAX, ARRIVALS_PAYLOAD_BYTES_MAX};
use crate::sys::sync::{AtomicU64, Ordering};
use crate::units::{ModelId, Nanos, Rows};
use std::sync::{Mutex, MutexGuard};

/// One inference that arrived, whether it was accepted or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// When its head was read.
    pub at: Nanos,
    /// The model.
    pub model: ModelId,
    /// Its rows.
    pub rows: Rows,
}

/// The ring. One writer.
#[derive(Debug)]
pub struct Arrivals {
    /// Instant, and model and rows in one word.
    entries: Box<[(AtomicU64, AtomicU64)]>,
    /// Arrivals so far, those that were overwritten included.
    count: AtomicU64,
    /// Payloads. The I/O thread has the lock to itself until somebody reads, and never waits for it: a
    /// payload that comes meanwhile is not kept.
    payloads: Option<Mutex<Payloads>>,
}

/// The last payloads of a model, in a ring of bytes.
#[derive(Debug)]
struct Payloads {
    model: ModelId,
    bytes: Box<[u8]>,
    /// Bytes so far, those that were overwritten included.
    written: u64,
    /// By place of the arrival in the ring of arrivals.
    places: Box<[Option<Place>]>,
}

/// Where a payload begins, counted from the first byte ever written, and of which arrival it is.
#[derive(Debug, Clone, Copy)]
struct Place {
    arrival: u64,
    start: u64,
    len: usize,
}

impl Payloads {
    fn keep(&mut self, arrival: u64, payload: &[u8]) {
        let at = (arrival % self.places.len() as u64) as usize;
        if payload.len() > self.bytes.len() {
            return;
        }
        self.places[at] = Some(Place { arrival, start: self.written, len: payload.len() });
        let from = (self.written % self.bytes.len() as u64) as usize;
        let first = payload.len().min(self.bytes.len() - from);
        self.bytes[from..from + first].copy_from_slice(&payload[..first]);
        self.bytes[..payload.len() - first].copy_from_slice(&payload[first..]);
        self.written += payload.len() as u64;
    }

    /// The payload of an arrival, unless it was not kept, or was overwritten.
    fn get(&self, arrival: u64) -> Option<Vec<u8>> {
        let place = self.places[(arrival % self.places.len() as u64) as usize]?;
        let len = self.bytes.len() as u64;
        if place.arrival != arrival || self.written - place.start > len {
            return None;
        }
        let from = (place.start % len) as usize;
        let first = place.len.min(self.bytes.len() - from);
        let mut payload = self.bytes[from..from + first].to_vec();
        payload.extend_from_slice(&self.bytes[..place.len - first]);
        Some(payload)
    }
}

impl Arrivals {
    /// A ring of `entries`, at least 1 and at most [`ARRIVALS_ENTRIES_MAX`].
    pub fn new(entries: usize) -> Arrivals {
        let entries = entries.clamp(1, ARRIVALS_ENTRIES_MAX);
        let empty = |_| (AtomicU64::new(0), AtomicU64::new(0));
        let entries = (0..entries).map(empty).collect();
        Arrivals { entries, count: AtomicU64::new(0), payloads: None }
    }

    /// The same with the payloads of `model`, the last ones that fit into `bytes`, at least 1 and at most
    /// [`ARRIVALS_PAYLOAD_BYTES_MAX`]. A payload that is longer is not kept.
    pub fn with_payloads(mut self, model: ModelId, bytes: usize) -> Arrivals {
        let bytes = vec![0; bytes.clamp(1, ARRIVALS_PAYLOAD_BYTES_MAX)].into();
        let places = vec![None; self.entries.len()].into();
        self.payloads = Some(Mutex::new(Payloads { model, bytes, written: 0, places }));
        self
    }

    /// Arrivals so far.
    pub fn total(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Notes an arrival, and returns its number. Called by the I/O thread only.
    pub(super) fn note(&self, arrived: Arrived) -> u64 {
        let count = self.count.load(Ordering::Relaxed);
        let (at, what) = &self.entries[(count % self.entries.len() as u64) as usize];
        at.store(arrived.at.0, Ordering::Relaxed);
        what.store(u64::from(arrived.model.0) << 16 | u64::from(arrived.rows.0), Ordering::Relaxed);
        // Release, with the acquire of readers: they see whole entries below the count.
        self.count.store(count + 1, Ordering::Release);
        count
    }

    /// Keeps the payload of arrival `number`, of `model`. Called by the I/O thread only.
    pub(super) fn keep(&self, number: u64, model: ModelId, payload: &[u8]) {
        let Some(Ok(mut payloads)) = self.payloads.as_ref().map(Mutex::try_lock) else { return };
        if payloads.model == model {
            payloads.keep(number, payload);
        }
    }

    fn payloads(&self) -> Option<MutexGuard<'_, Payloads>> {
        Some(self.payloads.as_ref()?.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// [`read`](Self::read), each with its payload where it was kept.
    pub fn read_with_payloads(&self) -> Vec<(Arrived, Option<Vec<u8>>)> {
        let (first, read) = self.numbered();
        let payloads = self.payloads();
        let payload = |n: usize| payloads.as_ref()?.get(first + n as u64);
        read.into_iter().enumerate().map(|(n, arrived)| (arrived, payload(n))).collect()
    }

    /// The arrivals that are still there, oldest first. Those that may have been overwritten while
    /// this read are left out.
    pub fn read(&self) -> Vec<Arrived> {
        self.numbered().1
    }

    /// The number of the first one that is still there, and all from there on.
    fn numbered(&self) -> (u64, Vec<Arrived>) {
        let len = self.entries.len() as u64;
        let end = self.total();
        let start = end.saturating_sub(len);
        let mut read: Vec<Arrived> = (start..end)
            .map(|n| {
                let (at, what) = &self.entries[(n % len) as usize];
                let what = what.load(Ordering::Acquire);
                Arrived {
                    at: Nanos(at.load(Ordering::Acquire)),
                    model: ModelId((what >> 16) as u16),
                    rows: Rows(what as u16),
                }
            })
            .collect();
        // The writer may be in the middle of one more than it has counted.
        let now = self.total();
        let lost = if now == end { 0 } else { (now + 1 - len.min(now + 1)).saturating_sub(start) };
        let lost = (lost as usize).min(read.len());
        read.drain(..lost);
        (start + lost as u64, read)
    }
}

#[cfg(test)]
mod tests;
