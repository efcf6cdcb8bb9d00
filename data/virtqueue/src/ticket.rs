//! The right and the duty to complete one chain.

/// Owed for one chain that was taken; spent by [`crate::Queue::complete`].
///
/// Neither `Clone` nor `Copy`. A debug build panics when one is dropped unspent.
#[must_use = "a chain that was taken is owed a completion"]
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    id: u16,
    descriptors: u16,
    entry: u16,
}

impl Ticket {
    /// `entry` stands for the chain in a packed ring's in-flight record.
    #[inline]
    pub(crate) fn new(id: u16, descriptors: u16, entry: u16) -> Ticket {
        Ticket { id, descriptors, entry }
    }

    /// Head of the chain (split) or its buffer id (packed).
    #[inline]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Ring entries that the chain took (packed).
    pub(crate) fn descriptors(&self) -> u16 {
        self.descriptors
    }

    /// Gives up the completion: for a queue that is torn down with its guest.
    pub fn forfeit(self) {
        self.spend();
    }

    /// The id, how many ring entries the chain took (packed), and its entry in the record.
    #[inline]
    pub(crate) fn spend(self) -> (u16, u16, u16) {
        let parts = (self.id, self.descriptors, self.entry);
        #[cfg(debug_assertions)]
        std::mem::forget(self);
        parts
    }
}

#[cfg(debug_assertions)]
impl Drop for Ticket {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("ticket {} dropped without completion", self.id);
        }
    }
}
