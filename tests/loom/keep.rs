//! Models of `queue::keep`.

use super::*;
use corelane::queue::keep::Keep;

/// A queue as far as its memory goes: read by whoever has something of it, written by who frees it.
struct Kept {
    keep: Keep,
    memory: SharedCell<u32>,
}

// SAFETY: loom watches each access and fails the model if two of them race.
unsafe impl Sync for Kept {}
// SAFETY: as above.
unsafe impl Send for Kept {}

impl Kept {
    fn new(slots: usize) -> Arc<Self> {
        Arc::new(Kept { keep: Keep::new(slots), memory: SharedCell::new(0) })
    }

    fn touch(&self) {
        // SAFETY: loom has checked that nobody writes meanwhile.
        assert_eq!(self.memory.with(|p| unsafe { *p }), 0, "freed already");
    }

    /// Frees it if `last` says so; what was done with it must have been before.
    fn let_go(&self, last: bool) {
        if last {
            // SAFETY: loom has checked that nobody reaches it now, nor later.
            self.memory.with_mut(|p| unsafe { *p += 1 });
        }
    }

    fn give_back(&self, slot: u32) {
        self.touch();
        self.let_go(self.keep.give_back(slot));
    }

    fn drop_owner(&self) {
        self.touch();
        self.let_go(self.keep.drop_owner());
    }

    fn is_freed(&self) -> bool {
        // SAFETY: as in `touch`.
        self.memory.with(|p| unsafe { *p }) == 1
    }
}

/// The only owner goes, while `away` of `slots` slots are given back by another thread.
fn owner_goes(slots: usize, away: usize) {
    let kept = Kept::new(slots);
    let leased: Vec<u32> = (0..away).map(|_| kept.keep.lease().unwrap()).collect();
    let client = {
        let kept = kept.clone();
        thread::spawn(move || leased.into_iter().for_each(|slot| kept.give_back(slot)))
    };
    kept.drop_owner();
    client.join().unwrap();
    assert!(kept.is_freed());
}

#[test]
fn keep_queue_is_freed_once_by_whoever_is_the_last() {
    check(|| owner_goes(2, 1));
    check(|| owner_goes(3, 2));
}

#[test]
fn keep_queue_without_a_free_slot_is_freed_too() {
    check(|| owner_goes(1, 1));
}

#[test]
fn keep_owners_go_at_the_same_time() {
    check(|| {
        let kept = Kept::new(1);
        kept.keep.add_owner();
        let other = {
            let kept = kept.clone();
            thread::spawn(move || kept.drop_owner())
        };
        kept.drop_owner();
        other.join().unwrap();
        assert!(kept.is_freed());
    });
}

#[test]
fn keep_requests_outlive_owners_and_others_requests() {
    check(|| {
        let kept = Kept::new(2);
        kept.keep.add_owner();
        let client = |kept: Arc<Kept>| {
            move || {
                let slot = kept.keep.lease().expect("one for each");
                kept.drop_owner();
                // The queue may have no owner from here on.
                kept.give_back(slot);
            }
        };
        let other = thread::spawn(client(kept.clone()));
        client(kept.clone())();
        other.join().unwrap();
        assert!(kept.is_freed());
    });
}

#[test]
fn keep_owner_that_stays_keeps_the_queue() {
    check(|| {
        let kept = Kept::new(1);
        kept.keep.add_owner();
        let other = {
            let kept = kept.clone();
            thread::spawn(move || {
                if let Some(slot) = kept.keep.lease() {
                    kept.give_back(slot);
                }
                kept.drop_owner();
            })
        };
        if let Some(slot) = kept.keep.lease() {
            kept.give_back(slot);
        }
        other.join().unwrap();
        assert!(!kept.is_freed());
        assert_eq!(kept.keep.lease(), Some(0), "the slot is there");
        kept.give_back(0);
        kept.drop_owner();
        assert!(kept.is_freed());
    });
}
