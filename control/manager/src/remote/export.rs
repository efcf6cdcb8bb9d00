//! A device that a link's clients may have: a disk, or a NIC of a port.
//!
//! At one shard at a time. Not here: what opening and letting go takes (`lends`, `lent_nics`), nor the life of the loan of a
//! disk (`control::shard::Loan`).

use std::time::Instant;

use control::shard::Loan;
use sidecore::AttachmentMemory;

use super::clients::Who;
use crate::disk::sync::DiskSync;

/// Begins the name of a NIC among devices: no disk has such a name.
const OF_NIC: &str = "nic:";

/// It.
pub(super) struct Export {
    /// Its name: a disk's own, or [`on_the_wire`].
    name: String,
    what: What,
    /// At which shard it is, or was.
    had: Option<Had>,
    /// Since when it is being let go of.
    left_at: Option<Instant>,
    /// The latest that it was opened with.
    generation: u64,
    /// No client may have it any more. Its number is nobody else's.
    is_removed: bool,
}

/// What a client has of a disk, and how far it is with letting it go.
pub(super) type Lent = Loan<Held, DiskSync>;

enum What {
    /// That device of this daemon.
    Disk(u32, Lent),
    /// A port of a switch.
    Nic(Plug),
}

/// Where the link's end of a NIC's port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plug {
    /// There is no port yet.
    None,
    /// At that shard.
    At(usize),
    /// On its way from that shard.
    From(usize),
}

/// What a disk needs while a client has it.
pub(super) struct Held {
    pub(super) memory: AttachmentMemory,
    /// Where its ring goes on.
    pub(super) base: u32,
    /// Its sidecore does not take its queue, and is not asked again.
    pub(super) is_refused: bool,
}

/// Where a device is, or was when its lease ended and nobody has had it since.
#[derive(Clone, Debug)]
pub(super) struct Had {
    shard: usize,
    who: Option<Who>,
    bytes: usize,
    /// It is open, or being let go of.
    is_here: bool,
    /// Nothing of it is remembered at its shard when it was let go of.
    is_released: bool,
}

/// What a NIC is called among devices.
pub(super) fn on_the_wire(name: &str) -> String {
    format!("{OF_NIC}{name}")
}

impl Export {
    pub(super) fn of_disk(name: String, device: u32, generation: u64) -> Export {
        let what = What::Disk(device, Loan::default());
        Export { name, what, had: None, left_at: None, generation, is_removed: false }
    }

    /// Nothing is kept of who had it: there is nothing that a second owner could harm.
    pub(super) fn of_nic(name: &str) -> Export {
        let (name, what) = (on_the_wire(name), What::Nic(Plug::None));
        Export { name, what, had: None, left_at: None, generation: 0, is_removed: false }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What the NIC is called that it is.
    pub(super) fn nic(&self) -> Option<&str> {
        self.name.strip_prefix(OF_NIC)
    }

    /// The device whose disk it is.
    pub(super) fn device(&self) -> Option<u32> {
        match &self.what {
            What::Disk(device, _) => Some(*device),
            What::Nic(_) => None,
        }
    }

    /// The disk was opened anew.
    pub(super) fn is_device(&mut self, number: u32) {
        if let What::Disk(device, _) = &mut self.what {
            *device = number;
        }
    }

    pub(super) fn loan(&self) -> Option<&Lent> {
        match &self.what {
            What::Disk(_, loan) => Some(loan),
            What::Nic(_) => None,
        }
    }

    pub(super) fn loan_mut(&mut self) -> Option<&mut Lent> {
        match &mut self.what {
            What::Disk(_, loan) => Some(loan),
            What::Nic(_) => None,
        }
    }

    pub(super) fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// No client may have it any more. Whether one has it.
    pub(super) fn remove(&mut self) -> bool {
        self.is_removed = true;
        self.is_had()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// It was opened with that one: with the latest, in all.
    pub(super) fn raise(&mut self, generation: u64) -> u64 {
        self.generation = self.generation.max(generation);
        self.generation
    }
}

/// Who has it, and where.
impl Export {
    /// Whether a client has it, or it is kept for one.
    pub(super) fn is_had(&self) -> bool {
        self.had.as_ref().is_some_and(|had| had.is_here)
    }

    /// Whether a client has it, or had it last.
    pub(super) fn is_of(&self, who: &Who) -> bool {
        self.had.as_ref().is_some_and(|had| had.who.as_ref() == Some(who))
    }

    /// Who has it.
    pub(super) fn holder(&self) -> Option<&Who> {
        self.had.as_ref().filter(|had| had.is_here)?.who.as_ref()
    }

    /// The shard where it is, or was.
    pub(super) fn shard(&self) -> Option<usize> {
        self.had.as_ref().map(|had| had.shard)
    }

    /// Who had it last.
    pub(super) fn last(&self) -> Option<&Who> {
        self.had.as_ref()?.who.as_ref()
    }

    /// Bytes that its client has outstanding at most.
    pub(super) fn bytes(&self) -> usize {
        self.had.as_ref().filter(|had| had.is_here).map_or(0, |had| had.bytes)
    }

    /// A client is to have it at that shard. Who had it before.
    pub(super) fn give(&mut self, shard: usize, who: Option<Who>, bytes: usize) -> Option<Had> {
        self.left_at = None;
        self.had.replace(Had { shard, who, bytes, is_here: true, is_released: false })
    }

    /// Whoever was to have it does not get it.
    pub(super) fn take_back(&mut self, before: Option<Had>) {
        self.had = before;
    }

    /// In a process before this one it was at that shard.
    pub(super) fn go_on_at(&mut self, shard: usize, who: Option<Who>, is_here: bool) {
        // Its memory is made when its client is back.
        self.had = Some(Had { shard, who, bytes: 0, is_here, is_released: false });
    }

    /// It is to be let go of; nothing of it is remembered then, or what its client did is.
    pub(super) fn leave(&mut self, is_released: bool, now: Instant) {
        self.left_at.get_or_insert(now);
        if let Some(had) = &mut self.had {
            had.is_released = is_released;
        }
    }

    /// Since when it is being let go of.
    pub(super) fn left_at(&self) -> Option<Instant> {
        self.left_at
    }

    /// It was let go of: the shard where it was.
    pub(super) fn is_nowhere(&mut self) -> Option<usize> {
        self.left_at = None;
        let had = self.had.as_mut()?;
        had.is_here = false;
        let (shard, is_released) = (had.shard, had.is_released);
        if is_released {
            self.had = None;
        }
        Some(shard)
    }
}

/// The link's end of a NIC's port.
impl Export {
    /// Its port is at that shard.
    pub(super) fn plug_in(&mut self, shard: usize) {
        self.what = What::Nic(Plug::At(shard));
    }

    /// It is to be at that shard: the one that it is to be pulled out of. Nothing: it is there, or on its way to whoever has
    /// it then.
    pub(super) fn pull_out(&mut self, to: usize) -> Option<usize> {
        let What::Nic(Plug::At(from)) = self.what else { return None };
        (from != to).then(|| self.what = What::Nic(Plug::From(from)))?;
        Some(from)
    }

    /// It was pulled out: the shard where it goes. Nothing: its port has a newer one already.
    pub(super) fn is_pulled_out(&mut self) -> Option<usize> {
        let What::Nic(Plug::From(from)) = self.what else { return None };
        let shard = self.shard().unwrap_or(from);
        self.plug_in(shard);
        Some(shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Who = ([7; 32], None);

    #[test]
    fn whoever_lets_go_again_has_done_so_since_the_first_time() {
        let [now, later] = [1, 2].map(|ns| sidecore::instant_of(schedule::Nanos(ns)));
        let mut export = Export::of_disk("db".to_string(), 3, 5);
        export.give(1, Some(WHO), 4096);
        export.leave(false, now);
        export.leave(true, later);
        assert_eq!(export.left_at(), Some(now));
        export.is_nowhere();
        assert_eq!(export.left_at(), None);
        export.leave(true, later);
        export.give(1, Some(WHO), 4096);
        assert_eq!(export.left_at(), None);
    }

    #[test]
    fn a_device_is_remembered_at_its_shard_until_its_client_gives_it_back() {
        let now = sidecore::instant_of(schedule::Nanos(1));
        let mut export = Export::of_disk("db".to_string(), 3, 5);
        assert!(export.give(1, Some(WHO), 4096).is_none());
        assert_eq!((export.holder(), export.shard(), export.bytes()), (Some(&WHO), Some(1), 4096));
        export.leave(false, now);
        assert_eq!(export.is_nowhere(), Some(1));
        assert_eq!((export.is_had(), export.bytes(), export.holder()), (false, 0, None));
        assert!(export.is_of(&WHO), "its slots are remembered there");
        let before = export.give(0, None, 1);
        export.take_back(before);
        assert_eq!((export.is_had(), export.shard()), (false, Some(1)));
        export.leave(true, now);
        assert_eq!((export.is_nowhere(), export.shard()), (Some(1), None));
        assert_eq!(export.is_nowhere(), None);
        assert_eq!([export.raise(4), export.raise(6)], [5, 6]);
    }

    #[test]
    fn the_end_of_a_port_follows_the_client_that_has_its_nic() {
        let mut export = Export::of_nic("eth");
        assert_eq!((export.nic(), export.device()), (Some("eth"), None));
        assert_eq!(export.pull_out(1), None, "there is none");
        export.plug_in(0);
        assert_eq!(export.pull_out(0), None, "it is there");
        export.give(1, None, 0);
        assert_eq!(export.pull_out(1), Some(0));
        assert_eq!(export.pull_out(2), None, "it is on its way");
        export.give(2, None, 0);
        assert_eq!(export.is_pulled_out(), Some(2));
        assert_eq!(export.is_pulled_out(), None, "another end came since");
    }
}
