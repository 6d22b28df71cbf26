//! What came of requests to reload.

use super::Io;

impl Io {
    /// Gives the answer that is there to who asked, if it is still there.
    pub(super) fn take_reloads(&mut self) {
        let Some(reload) = &mut self.core.reload else { return };
        let Some((at, number)) = reload.done() else { return };
        let conn = &mut self.conns[at as usize];
        reload.give(|page| conn.reloaded(number, page));
        self.mark(at);
    }
}
