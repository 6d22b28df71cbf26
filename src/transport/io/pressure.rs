//! What is taken from those who keep others waiting: slots whose payloads don't come, and places of
//! connections that don't say hello.

use super::{Io, Way};
use crate::limits::{CONNECTIONS_NOT_TCP_PERCENT, PRESSURE_GRACE_MS};
use crate::transport::bump;
use crate::units::{ModelId, Nanos};

/// How long a connection may owe its hello while others wait for its place.
const GRACE: Nanos = Nanos(PRESSURE_GRACE_MS * 1_000_000);
/// How long nobody is asked again after nobody had a slot to give.
const ASK_PAUSE: Nanos = Nanos(1_000_000);

impl Io {
    /// Takes back the slot whose payload is furthest behind, if there is one.
    pub(super) fn ask_for_slot(&mut self, model: ModelId) {
        let now = self.core.now;
        let behind = (0..self.high).filter_map(|at| {
            let conn = &self.conns[at as usize];
            Some((conn.link.as_ref().and(conn.behind_since(model, now))?, at))
        });
        match behind.min() {
            Some((_, at)) => {
                self.conns[at as usize].give_slot_up(&self.core);
                self.mark(at);
            }
            None => self.core.ask_again = now.after(ASK_PAUSE),
        }
    }

    /// A place for a connection from a socket; else how many there are, and how many there may be.
    pub(super) fn place(&mut self, way: Way) -> Result<u16, (u64, u64)> {
        let all = self.conns.len();
        // TCP leaves some to others, if there are others; sockets leave one to each serial port.
        let share = match (way, &self.unix) {
            (Way::Tcp, Some(_)) if all > 1 => (all * CONNECTIONS_NOT_TCP_PERCENT / 100).max(1),
            _ => 0,
        };
        let (mine, mine_max) = (usize::from(self.open[way as usize]), all - share);
        let ports = self.serial.len().min(all - 1);
        let kept = ports.saturating_sub(self.open[Way::Serial as usize].into());
        if mine >= mine_max {
            if !self.evict_stranger(|other| other == way) {
                return Err((mine as u64, mine_max as u64));
            }
        } else if self.free.len() <= kept
            && !self.evict_stranger(|other| matches!(other, Way::Unix | Way::Tcp))
        {
            return Err(((all - self.free.len()) as u64, (all - kept) as u64));
        }
        self.free.pop().ok_or((all as u64, all as u64))
    }

    /// Closes the connection that has owed its hello longest. Whether there was one that had its time.
    fn evict_stranger(&mut self, of: impl Fn(Way) -> bool) -> bool {
        let now = self.core.now;
        let strangers = (0..self.high).filter(|&at| {
            let conn = &self.conns[at as usize];
            let is = conn.link.is_some() && of(conn.door) && conn.is_stranger();
            is && conn.since.after(GRACE) <= now
        });
        let Some(at) = strangers.min_by_key(|&at| self.conns[at as usize].since) else {
            return false;
        };
        let conn = &mut self.conns[at as usize];
        conn.evict(&self.core);
        // As much as its socket takes; nothing more is owed to it.
        let _ = conn.flush(&self.core);
        self.close(at);
        bump(&self.core.control.counters.strangers_evicted_total, 1);
        true
    }
}
