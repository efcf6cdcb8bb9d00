//! Who was learned where, for people: a table that control brings and a sidecore fills.

use switch::{Bridge, Mac};

use crate::net::port::BridgeId;

/// Buckets of a bridge's table that one command looks at: 2,048 places take about 4 us, and 4 commands are taken in a
/// pass. The largest table has 32,768 buckets, which are 0.5 ms.
const BUCKETS: usize = 256;

/// Asked of each sidecore by [`crate::Command::ShowMacs`]; their answers together are the bridge's.
/// Its room is taken by control; what does not fit is left out. A sidecore gives it back with a piece more, until it
/// [is whole](Self::is_whole).
#[derive(Debug)]
pub struct MacTable {
    /// Of which bridge.
    pub bridge: BridgeId,
    /// Who asked, for control.
    pub token: u64,
    entries: Vec<Mac>,
    room: usize,
    /// The first bucket that was not looked at.
    next: usize,
    is_whole: bool,
}

impl MacTable {
    /// An empty table with room for `room` addresses.
    pub fn new(bridge: BridgeId, token: u64, room: usize) -> Box<MacTable> {
        let entries = Vec::with_capacity(room);
        Box::new(MacTable { bridge, token, entries, room, next: 0, is_whole: false })
    }

    /// What was found.
    pub fn entries(&self) -> &[Mac] {
        &self.entries
    }

    /// Whether there is nothing more to find.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Fills it with a piece of what the bridge has, as far as there is room.
    pub(crate) fn fill(&mut self, bridge: &Bridge, now_ns: u64) {
        let those = self.next..self.next.saturating_add(BUCKETS);
        let room = self.room.saturating_sub(self.entries.len());
        self.next = those.end;
        self.entries.extend(bridge.macs_in(those, now_ns).take(room));
        self.is_whole = self.next >= bridge.buckets() || self.entries.len() >= self.room;
    }

    /// There is no such bridge any more.
    pub(crate) fn end(&mut self) {
        self.is_whole = true;
    }
}
