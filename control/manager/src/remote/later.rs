//! What an IOhost's shards have said while another process was about to take over, and is heard when it has not.
//!
//! A shard asks to have a device opened, or let go of, once, and not again until it is answered. So no more waits than
//! there are devices at shards, and the ends of the sessions that asked. Not here: what has to wait (`remote`).

use backend::link::LinkKey;
use remote::iohost::HostEvent;
use sidecore::FromHost;

use crate::defects::Defects;

/// One word: of the shard at that sidecore.
pub(crate) type Said = (usize, LinkKey, FromHost);

/// All of it, in order.
#[derive(Default)]
pub(super) struct Later(Vec<Said>);

impl Later {
    /// Whether this is to be heard behind something that waits: what is said of a session, behind what it asked for.
    pub(super) fn is_behind(&self, (core, key): (usize, LinkKey), event: &HostEvent) -> bool {
        let its = match event {
            HostEvent::SessionBegan { session, .. } | HostEvent::SessionEnded { session } => {
                session
            }
            HostEvent::Open { .. } | HostEvent::LetGo { .. } => return false,
        };
        self.of(core, key)
            .any(|said| matches!(said, HostEvent::Open { session, .. } if session == its))
    }

    /// Keeps this.
    pub(super) fn keep(
        &mut self,
        (core, key): (usize, LinkKey),
        event: HostEvent,
        defects: &mut Defects,
    ) {
        if self.of(core, key).any(|said| is_same(said, &event)) {
            return defects.note("answer that a shard waits for before it asks again");
        }
        self.0.push((core, key, FromHost::Clients(event)));
    }

    /// A link was opened anew: what its shards said before is nobody's.
    pub(super) fn forget(&mut self, key: LinkKey) {
        self.0.retain(|(_, link, _)| *link != key);
    }

    /// To be heard now.
    pub(super) fn take(&mut self) -> Vec<Said> {
        std::mem::take(&mut self.0)
    }

    fn of(&self, core: usize, key: LinkKey) -> impl Iterator<Item = &HostEvent> {
        self.0.iter().filter_map(move |(at, link, said)| match said {
            FromHost::Clients(event) if (*at, *link) == (core, key) => Some(event),
            _ => None,
        })
    }
}

/// Whether a shard says both of one device, or of one session, and cannot have.
fn is_same(one: &HostEvent, other: &HostEvent) -> bool {
    let device = |event: &HostEvent| match event {
        HostEvent::Open { export, .. } | HostEvent::LetGo { export, .. } => Some(*export),
        HostEvent::SessionBegan { .. } | HostEvent::SessionEnded { .. } => None,
    };
    let ended = |event: &HostEvent| match event {
        HostEvent::SessionEnded { session } => Some(*session),
        _ => None,
    };
    let is_both = |one: Option<u64>, other: Option<u64>| one.is_some() && one == other;
    is_both(device(one).map(u64::from), device(other).map(u64::from))
        || is_both(ended(one).map(u64::from), ended(other).map(u64::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: (usize, LinkKey) = (1, LinkKey(0));

    fn open(export: u16, session: u32) -> HostEvent {
        let (slots, slot_bytes, generation, is_new) = (1, 512, 1, true);
        HostEvent::Open { export, slots, slot_bytes, session, generation, is_new }
    }

    #[test]
    fn a_session_s_end_waits_behind_what_it_asked_for_and_nothing_else_does() {
        let (mut later, mut defects) = (Later::default(), Defects::default());
        let ended = |session| HostEvent::SessionEnded { session };
        assert!(!later.is_behind(AT, &ended(7)));
        later.keep(AT, open(0, 7), &mut defects);
        assert!(later.is_behind(AT, &ended(7)));
        assert!(!later.is_behind(AT, &ended(8)), "it has asked for nothing");
        assert!(!later.is_behind((2, LinkKey(0)), &ended(7)), "another shard's");
        later.keep(AT, ended(7), &mut defects);
        let released = HostEvent::LetGo { export: 1, is_released: true };
        later.keep(AT, released, &mut defects);
        later.keep((2, LinkKey(0)), released, &mut defects);
        let said = later.take();
        assert!(matches!(
            said[..],
            [
                (1, _, FromHost::Clients(HostEvent::Open { .. })),
                (1, _, FromHost::Clients(HostEvent::SessionEnded { session: 7 })),
                (1, _, FromHost::Clients(HostEvent::LetGo { .. })),
                (2, _, FromHost::Clients(HostEvent::LetGo { .. })),
            ]
        ));
        assert!(later.take().is_empty());
        assert_eq!(defects.views(), []);
    }

    /// However long an heir takes, and whatever clients do: no more than one word of each device and each session.
    #[test]
    fn what_a_shard_says_twice_without_an_answer_is_a_defect_and_is_not_kept() {
        let (mut later, mut defects) = (Later::default(), Defects::default());
        for _ in 0..100 {
            later.keep(AT, open(0, 7), &mut defects);
            later.keep(AT, HostEvent::LetGo { export: 0, is_released: false }, &mut defects);
            later.keep(AT, HostEvent::SessionEnded { session: 7 }, &mut defects);
        }
        assert_eq!(later.take().len(), 2);
        assert_eq!(defects.views().len(), 1);
        later.keep(AT, open(0, 7), &mut defects);
        later.forget(LinkKey(0));
        assert!(later.take().is_empty());
    }
}
