//! When each connection must be looked at: what it costs depends on the timers that expire and not on how
//! many connections there are.
//!
//! Most timers never ring: a frame is whole long before it is called half sent. So an entry is only a
//! lower bound. Setting a timer later, or not at all, leaves its entry as it is; when that comes up, the
//! connection is asked, and the entry goes, or goes to where it belongs.

use super::instants::Instants;
use crate::units::Nanos;

/// One timer for each connection.
#[derive(Debug)]
pub(super) struct Timers(Instants);

impl Timers {
    /// Timers of `count` connections, at most [`u16::MAX`]; none is set.
    pub fn new(count: usize) -> Self {
        debug_assert!(count <= usize::from(u16::MAX));
        Timers(Instants::new(count))
    }
    /// A lower bound of the instant at which the next timer rings.
    pub fn next(&self) -> Option<Nanos> {
        self.0.first().map(|(_, at)| at)
    }
    /// A connection's timer rings at `at`, or not at all.
    pub fn set(&mut self, conn: u16, at: Option<Nanos>) {
        let Some(at) = at else { return };
        if self.0.get(conn.into()).is_none_or(|known| at < known) {
            self.0.set(conn.into(), at);
        }
    }
    /// Takes out a connection whose entry has come up. Whether its timer rings, it must be asked; then
    /// its timer is [set](Self::set) anew.
    pub fn take(&mut self, now: Nanos) -> Option<u16> {
        let (conn, _) = self.0.first().filter(|(_, at)| *at <= now)?;
        self.0.remove(conn);
        Some(conn as u16)
    }
}

#[cfg(test)]
mod tests;
