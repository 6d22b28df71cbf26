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
use std::cell::RefCell;
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

/// The record that a thread makes.
struct Record {
    /// How many are being made, one inside the other: only the outermost is kept.
    depth: u32,
    /// The record so far, after room for its length.
    bytes: [u8; LENGTH_BYTES + LOG_RECORD_BYTES_MAX],
    len: usize,
    /// It does not fit.
    cut: bool,
}

impl Record {
    #[inline(always)]
    fn add<const N: usize>(&mut self, bytes: [u8; N]) {
        match self.bytes.get_mut(self.len..self.len + N) {
            Some(to) => {
                to.copy_from_slice(&bytes);
                self.len += N;
            }
            None => self.cut = true,
        }
    }
}

/// The thread's end of its ring.
struct Outlet {
    ring: HeapProd<u8>,
    counts: Arc<Counts>,
}

impl Outlet {
    fn push(&mut self, record: &mut Record) {
        let whole = &mut record.bytes[..record.len];
        let len = (whole.len() - LENGTH_BYTES) as u16;
        whole[..LENGTH_BYTES].copy_from_slice(&len.to_le_bytes());
        // As a whole or not at all: the reader never sees a part.
        if record.cut || self.ring.vacant_len() < whole.len() {
            bump(&self.counts.lost);
        } else {
            self.ring.push_slice(whole);
            bump(&self.counts.told);
        }
    }
}

thread_local! {
    // Two: the first needs no destructor, so that it is reached without a question.
    static RECORD: RefCell<Record> = const {
        RefCell::new(Record {
            depth: 0,
            bytes: [0; LENGTH_BYTES + LOG_RECORD_BYTES_MAX],
            len: 0,
            cut: false,
        })
    };
    static OUTLET: RefCell<Option<Outlet>> = const { RefCell::new(None) };
}

/// Runs `f` on the thread's record.
#[inline(always)]
fn with_record(f: impl FnOnce(&mut Record)) {
    RECORD.with(|record| {
        // Never borrowed here: `f` calls nobody who would come back.
        if let Ok(mut record) = record.try_borrow_mut() {
            f(&mut record);
        }
    });
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
    with_record(|record| {
        record.depth += 1;
        if record.depth == 1 {
            (record.len, record.cut) = (LENGTH_BYTES, false);
        }
    });
}

/// Adds bytes to the record that was begun.
#[inline]
pub fn append(bytes: &[u8]) {
    with_record(|record| {
        if record.depth != 1 {
            return;
        }
        // Numbers, which most parts are, are copied without a call.
        match *bytes {
            [a] => record.add([a]),
            [a, b] => record.add([a, b]),
            [a, b, c, d] => record.add([a, b, c, d]),
            [a, b, c, d, e, f, g, h] => record.add([a, b, c, d, e, f, g, h]),
            _ => match record.bytes.get_mut(record.len..record.len + bytes.len()) {
                Some(to) => {
                    to.copy_from_slice(bytes);
                    record.len += bytes.len();
                }
                None => record.cut = true,
            },
        }
    });
}

/// Ends the record that was begun: it is in the ring, or lost.
#[inline]
pub fn commit() {
    with_record(|record| {
        match record.depth {
            0 => return,
            1 => with_outlet(|outlet| outlet.push(record)),
            _ => with_outlet(|outlet| bump(&outlet.counts.lost)),
        }
        record.depth -= 1;
    });
}

/// The record that `f` makes on the calling thread, which has no ring yet; `None` if it makes none, or
/// one over the limit.
pub fn capture(f: impl FnOnce()) -> Option<Vec<u8>> {
    with_record(|record| (record.len, record.cut) = (0, false));
    f();
    let mut captured = None;
    with_record(|record| {
        if record.len >= LENGTH_BYTES && !record.cut {
            captured = Some(record.bytes[LENGTH_BYTES..record.len].to_vec());
        }
    });
    captured
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
        *outlet = Some(Outlet { ring, counts: counts.clone() });
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
