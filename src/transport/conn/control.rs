//! Statistics, and requests to reload: who may ask, and what they are told.

use super::{Conn, Core, Door};
use crate::units::RequestId;
use crate::wire::{ErrorCode, Reply};

/// Where no user is known.
const NOBODY: u32 = u32::MAX;

/// What a peer may ask of the server itself, and has asked.
#[derive(Debug, Default)]
pub(in crate::transport) struct Power {
    /// The user at the other end, of a Unix socket.
    pub uid: Option<u32>,
    /// The request to reload that is not answered, and its number.
    reload: Option<(RequestId, u32)>,
}

impl Power {
    /// Whether a reload is still to be answered.
    pub fn is_waited_for(&self) -> bool {
        self.reload.is_some()
    }
}

impl Conn {
    /// Answers the question for statistics, if it was asked here.
    pub fn stats(&mut self, page: &[u8]) {
        let Some(id) = self.stats_for else { return };
        if self.replies.push(&Reply::Stats { id }, page) {
            self.stats_for = None;
        } else {
            // No room: a later page is for it.
            self.stats_missed = true;
        }
    }
    pub fn waits_for_stats(&self) -> bool {
        self.stats_for.is_some()
    }
    /// A request to reload the model of this name, or all.
    pub(super) fn reload(&mut self, core: &mut Core, (at, id): (u16, RequestId), name: &str) {
        let uid = self.power.uid.filter(|_| self.door == Door::Unix);
        let own = rustix::process::geteuid().as_raw();
        let ab = (uid.unwrap_or(NOBODY).into(), 0);
        if !uid.is_some_and(|uid| uid == own || uid == 0) {
            let text =
                format_args!("only user {own} and root may reload models, on the Unix socket");
            return self.error(core, Some(id), ErrorCode::NotAllowed, ab, text);
        }
        if core.reload.is_none() {
            let text = format_args!("model_control_mode is none; explicit lets models be reloaded");
            return self.error(core, Some(id), ErrorCode::NotAllowed, ab, text);
        }
        if core.draining {
            let text = format_args!("the server drains");
            return self.error(core, Some(id), ErrorCode::ShuttingDown, (0, 0), text);
        }
        if !name.is_empty() && self.find(core, id, name).is_none() {
            return;
        }
        if self.power.reload.is_some() {
            let text = format_args!("a reload is asked for already");
            return self.error(core, Some(id), ErrorCode::TooManyInFlight, (1, 1), text);
        }
        match core.reload.as_mut().map(|reload| reload.ask(at, name)) {
            Some(Ok(number)) => self.power.reload = Some((id, number)),
            Some(Err(waiting)) => {
                let ab = (waiting as u64, waiting as u64);
                let text = format_args!("{waiting} requests to reload wait already");
                self.error(core, Some(id), ErrorCode::TooManyInFlight, ab, text);
            }
            None => {}
        }
    }
    /// Tells what came of the reload with this number, if it was asked for here. False: there is no room yet.
    pub fn reloaded(&mut self, number: u32, page: &[u8]) -> bool {
        let Some((id, _)) = self.power.reload.filter(|(_, asked)| *asked == number) else {
            return true;
        };
        let told = self.replies.push(&Reply::Stats { id }, page);
        if told {
            self.power.reload = None;
        }
        told
    }
    /// The server drains: what comes of a reload is not told any more, nor is one waited for that is carried out.
    pub fn reload_is_not_waited_for(&mut self, core: &Core) {
        if let Some((id, _)) = self.power.reload.take() {
            let text = format_args!(
                "the server drains, and may end before the reload does; its next start reads the files anew"
            );
            self.error(core, Some(id), ErrorCode::ShuttingDown, (0, 0), text);
        }
    }
}
