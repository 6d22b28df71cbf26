//! Records of bytes, from each thread that serves to one that prints: a single-producer single-consumer
//! ring a thread.
//!
//! A record is made in parts on its thread: [`begin`], [`append`], [`commit`]. It goes into the thread's
//! own ring as a whole, or is lost and counted; nothing is waited for, no lock is taken, and nothing is
//! allocated after [`open`]. A reader takes whole records from all rings with [`drain`].
//!
//! The ring of a thread that ended is kept until it is empty.

use super::sync::{Arc, AtomicU64, Ordering};
use crate::limits::{LOG_RECORD_BYTES_MAX, LOG_RING_BYTES_MIN};
use ringbuf::traits::{Consumer, Observer, Producer, Split};
use ringbuf::{HeapCons, HeapProd, HeapRb};
use std::cell::{Cell, RefCell};
use std::sync::{Mutex, MutexGuard};

/// Bytes of a record's length, before it in the ring.
const LENGTH_BYTES: usize = 2;
const _: () = assert!(LOG_RECORD_BYTES_MAX <= u16::MAX as usize);

/// What a thread and the reader share beside the ring.
#[derive(Debug, Default)]
struct Counts {
    /// Records that went into the ring; written by its thread only.
    told: AtomicU64,
    /// Records that did not; written by its thread only.
    lost: AtomicU64,
}

/// Adds to a counter that only the calling thread writes.
fn bump(counter: &AtomicU64) {
    // Relaxed: a statistic, paired with nothing.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// The record that a thread makes. Of cells, since it is written in small parts, each of which would
/// else ask whether somebody else is writing.
struct Record {
    /// How many are being made, one inside the other: only the outermost is kept.
    depth: Cell<u32>,
    /// The record so far, after room for its length.
    bytes: [Cell<u8>; LENGTH_BYTES + LOG_RECORD_BYTES_MAX],
    len: Cell<usize>,
    /// It does not fit.
    cut: Cell<bool>,
}

impl Record {
    fn restart(&self, len: usize) {
        self.len.set(len);
        self.cut.set(false);
    }

    #[inline(always)]
    fn add(&self, bytes: &[u8]) {
        let len = self.len.get();
        match self.bytes.get(len..len + bytes.len()) {
            Some(to) => {
                for (to, from) in to.iter().zip(bytes) {
                    to.set(*from);
                }
                self.len.set(len + bytes.len());
            }
            None => self.cut.set(true),
        }
    }

    /// Runs `f` on what was made.
    fn whole<T>(&self, f: impl FnOnce(&[u8]) -> T) -> T {
        let whole = &self.bytes[..self.len.get()];
        let (from, len) = (whole.as_ptr().cast::<u8>(), whole.len());
        // SAFETY: a `Cell<u8>` lies as its byte does. Only this thread reaches the cells, and `f` is one
        // of those below, which write none.
        f(unsafe { std::slice::from_raw_parts(from, len) })
    }
}

/// The thread's end of its ring.
struct Outlet {
    ring: HeapProd<u8>,
    counts: Arc<Counts>,
    /// Room in the ring, at least: asked of it only when this is used up.
    room: usize,
}

impl Outlet {
    fn push(&mut self, record: &Record) {
        let len = record.len.get();
        if self.room < len {
            self.room = self.ring.vacant_len();
        }
        // As a whole or not at all: the reader never sees a part.
        if record.cut.get() || self.room < len {
            return bump(&self.counts.lost);
        }
        for (to, from) in record.bytes.iter().zip(((len - LENGTH_BYTES) as u16).to_le_bytes()) {
            to.set(from);
        }
        self.room -= record.whole(|whole| self.ring.push_slice(whole));
        bump(&self.counts.told);
    }
}

thread_local! {
    // Two: the first needs no destructor, so that it is reached without a question.
    static RECORD: Record = const {
        Record {
            depth: Cell::new(0),
            bytes: [const { Cell::new(0) }; LENGTH_BYTES + LOG_RECORD_BYTES_MAX],
            len: Cell::new(0),
            cut: Cell::new(false),
        }
    };
    static OUTLET: RefCell<Option<Outlet>> = const { RefCell::new(None) };
}

/// Runs `f` on the thread's outlet; one that has none, or is just ending, leaves `f` out.
#[inline(always)]
fn with_outlet(f: impl FnOnce(&mut Outlet)) {
    let _ = OUTLET.try_with(|outlet| {
        if let Ok(mut outlet) = outlet.try_borrow_mut()
            && let Some(outlet) = &mut *outlet
        {
            f(outlet);
        }
    });
}

/// Begins a record of the calling thread. Inside another record of it (from within what is being
/// told): counted as lost, and the outer one is not disturbed.
#[inline]
pub fn begin() {
    RECORD.with(|record| {
        let outer = record.depth.get();
        record.depth.set(outer + 1);
        if outer == 0 {
            record.restart(LENGTH_BYTES);
        }
    });
}

/// Adds bytes to the record that was begun.
#[inline]
pub fn append(bytes: &[u8]) {
    RECORD.with(|record| {
        if record.depth.get() != 1 {
            return;
        }
        // Numbers, which most parts are, are copied without a call.
        match *bytes {
            [a] => record.add(&[a]),
            [a, b] => record.add(&[a, b]),
            [a, b, c, d] => record.add(&[a, b, c, d]),
            [a, b, c, d, e, f, g, h] => record.add(&[a, b, c, d, e, f, g, h]),
            _ => record.add(bytes),
        }
    });
}

/// Ends the record that was begun: it is in the ring, or lost.
#[inline]
pub fn commit() {
    RECORD.with(|record| {
        let depth = record.depth.get();
        match depth {
            0 => return,
            1 => with_outlet(|outlet| outlet.push(record)),
            _ => with_outlet(|outlet| bump(&outlet.counts.lost)),
        }
        record.depth.set(depth - 1);
    });
}

/// The record that `f` makes on the calling thread, which has no ring yet; `None` if it makes none, or
/// one over the limit.
pub fn capture(f: impl FnOnce()) -> Option<Vec<u8>> {
    RECORD.with(|record| record.restart(0));
    f();
    RECORD.with(|record| {
        let made = record.len.get() >= LENGTH_BYTES && !record.cut.get();
        made.then(|| record.whole(|whole| whole[LENGTH_BYTES..].to_vec()))
    })
}

/// The reader's end of a thread's ring.
struct Lane {
    thread: ThreadName,
    ring: HeapCons<u8>,
    counts: Arc<Counts>,
    /// Losses that the reader was told of.
    lost_told: u64,
}

/// A thread with a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadName {
    /// Its number among those that had rings; later threads have higher ones.
    pub number: u32,
    /// Its name.
    pub name: String,
}

struct Lanes {
    lanes: Vec<Lane>,
    next: u32,
    /// Records told and lost by threads that ended.
    ended: Totals,
}

static LANES: Mutex<Lanes> =
    Mutex::new(Lanes { lanes: Vec::new(), next: 0, ended: Totals { told: 0, lost: 0 } });

fn lanes() -> MutexGuard<'static, Lanes> {
    LANES.lock().unwrap_or_else(|e| e.into_inner())
}

/// Records since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Those that went into rings.
    pub told: u64,
    /// Those for which there was no room.
    pub lost: u64,
}

/// Gives the calling thread a ring of `bytes`; it is brought within bounds. The second call on a thread
/// changes nothing.
pub fn open(bytes: usize) {
    let _ = OUTLET.try_with(|outlet| {
        let mut outlet = outlet.borrow_mut();
        if outlet.is_some() {
            return;
        }
        let (ring, reader) = HeapRb::new(bytes.max(LOG_RING_BYTES_MIN)).split();
        let counts = Arc::<Counts>::default();
        *outlet = Some(Outlet { ring, counts: counts.clone(), room: 0 });
        let thread = std::thread::current();
        let mut all = lanes();
        let number = all.next;
        all.next = number.wrapping_add(1);
        let thread = ThreadName { number, name: thread.name().unwrap_or("?").into() };
        all.lanes.push(Lane { thread, ring: reader, counts, lost_told: 0 });
    });
}

/// What a drain finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'a> {
    /// A record.
    Record(&'a [u8]),
    /// So many records were lost since the last time that it was told.
    Lost(u64),
}

/// Takes every record out of all rings, thread by thread, in order. Only one thread at a time: another
/// waits, as does [`open`]; threads that serve never do.
pub fn drain(mut each: impl FnMut(&ThreadName, Found<'_>)) {
    let mut all = lanes();
    let Lanes { lanes, ended, .. } = &mut *all;
    lanes.retain_mut(|lane| {
        // Asked first: what was written before the end is then seen.
        let over = !lane.ring.write_is_held();
        let mut record = [0; LOG_RECORD_BYTES_MAX];
        let mut length = [0; LENGTH_BYTES];
        while lane.ring.pop_slice(&mut length) == LENGTH_BYTES {
            let record = &mut record[..u16::from_le_bytes(length) as usize];
            lane.ring.pop_slice(record);
            each(&lane.thread, Found::Record(record));
        }
        let lost = lane.counts.lost.load(Ordering::Relaxed);
        if lost != lane.lost_told {
            each(&lane.thread, Found::Lost(lost.wrapping_sub(lane.lost_told)));
            lane.lost_told = lost;
        }
        if over {
            ended.told += lane.counts.told.load(Ordering::Relaxed);
            ended.lost += lost;
        }
        !over
    });
}

/// Records of all threads so far.
pub fn totals() -> Totals {
    let all = lanes();
    all.lanes.iter().fold(all.ended, |sum, lane| Totals {
        told: sum.told + lane.counts.told.load(Ordering::Relaxed),
        lost: sum.lost + lane.counts.lost.load(Ordering::Relaxed),
    })
}

#[cfg(test)]
#[path = "records_tests.rs"]
pub(crate) mod tests;
