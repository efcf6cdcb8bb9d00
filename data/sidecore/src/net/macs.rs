//! Who was learned where, for people: a table that control brings and a sidecore fills.

use switch::Mac;

use crate::net::port::BridgeId;

/// Asked of each sidecore by [`crate::Command::ShowMacs`]; their answers together are the bridge's.
/// Its room is taken by control; what does not fit is left out.
#[derive(Debug)]
pub struct MacTable {
    /// Of which bridge.
    pub bridge: BridgeId,
    /// Who asked, for control.
    pub token: u64,
    entries: Vec<Mac>,
    room: usize,
}

impl MacTable {
    /// An empty table with room for `room` addresses.
    pub fn new(bridge: BridgeId, token: u64, room: usize) -> Box<MacTable> {
        Box::new(MacTable { bridge, token, entries: Vec::with_capacity(room), room })
    }

    /// What was found.
    pub fn entries(&self) -> &[Mac] {
        &self.entries
    }

    /// Fills it from `found`, as far as there is room.
    pub(crate) fn fill(&mut self, found: impl Iterator<Item = Mac>) {
        self.entries.clear();
        self.entries.extend(found.take(self.room));
    }
}
