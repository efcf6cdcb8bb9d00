//! Ports of a client whose NIC is another machine's: each has its number on the link for as long as it is there.
//!
//! Whether a NIC is this machine's is a life of its own: free while no guest is at its rings, wanted, leaving. Not here: the
//! asking itself (`nics`), nor an IOhost's ports, which are exports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use backend::link::NicCounters;
use config::api::LinkNicView;

use super::waits::Waits;

/// Those of one link, by the number of the port.
#[derive(Default)]
pub(super) struct Ports(BTreeMap<u32, Port>);

/// A port whose frames go by a link.
struct Port {
    counted: Counted,
    number: u16,
    /// Which NIC it is asked for as.
    device: u64,
    hold: Hold,
    waits: Waits,
    /// What its IOhost said is wrong, in which words the log has it.
    wrong: Option<&'static str>,
}

/// What operators are shown of a port.
pub(super) struct Counted {
    /// What it is called.
    pub(super) id: String,
    pub(super) counters: Arc<NicCounters>,
}

/// Whether a NIC is this machine's: it is while its guest runs on it here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// No guest is at its rings. Its frames are dropped.
    Free,
    /// It is asked for, or had.
    Wanted,
    /// It is given back: its IOhost has not let go yet.
    Leaving,
}

/// What is to be done of a NIC whose guest began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// It is to be asked for by that number, as that device.
    Attach(u16, u64),
    /// It is to be given back.
    Release(u16),
}

impl Counted {
    pub(super) fn view(&self) -> LinkNicView {
        let seen = self.counters.snapshot();
        LinkNicView {
            id: self.id.clone(),
            in_use: seen.is_up,
            frames_out: seen.sent,
            frames_in: seen.came,
            frames_dropped: seen.dropped,
        }
    }
}

impl Ports {
    /// A port was opened, which has that number on its link.
    pub(super) fn plug_in(
        &mut self,
        port: u32,
        (number, device): (u16, u64),
        counted: Counted,
        silent_since: Option<Instant>,
    ) {
        let (hold, waits) = (Hold::Free, Waits::since(silent_since));
        self.0.insert(port, Port { counted, number, device, hold, waits, wrong: None });
    }

    /// Ports that have gone.
    pub(super) fn gone(&self, is_there: impl Fn(u32) -> bool) -> Vec<u32> {
        self.0.keys().copied().filter(|port| !is_there(*port)).collect()
    }

    pub(super) fn has(&self, port: u32) -> bool {
        self.0.contains_key(&port)
    }

    /// A port is no more, or is opened anew. Its number, and what is to be done of that: it is free now, or (true) when its
    /// IOhost has let go. Nothing: its link says when.
    pub(super) fn forget(&mut self, port: u32) -> Option<(u16, bool)> {
        let Port { number, hold, .. } = self.0.remove(&port)?;
        match hold {
            Hold::Free => Some((number, false)),
            Hold::Wanted => Some((number, true)),
            Hold::Leaving => None,
        }
    }

    /// Follows the guest at the rings of a port's NIC, which is idle or not.
    pub(super) fn follow(&mut self, port: u32, is_idle: bool, now: Instant) -> Option<Wish> {
        let Port { number, device, hold, waits, wrong, .. } = self.0.get_mut(&port)?;
        match *hold {
            Hold::Free if !is_idle => {
                *hold = Hold::Wanted;
                waits.ask(now);
                Some(Wish::Attach(*number, *device))
            }
            Hold::Wanted if is_idle => {
                (*hold, *wrong) = (Hold::Leaving, None);
                waits.end_asking();
                Some(Wish::Release(*number))
            }
            _ => None,
        }
    }

    /// Nothing is left of what a NIC was asked for by. False: the number is no port's any more.
    pub(super) fn is_given_back(&mut self, port: u32, number: u16) -> bool {
        let its = self.0.get_mut(&port).filter(|port| port.number == number);
        its.map(|port| {
            // A link that is taken back from a process that died may say so again of one that was asked for since.
            if port.hold == Hold::Leaving {
                port.hold = Hold::Free;
            }
        })
        .is_some()
    }

    /// Whether a port wants what its number is for: it is not given back, nor was another's.
    pub(super) fn is_wanted(&self, port: u32, number: u16) -> bool {
        let its = self.0.get(&port);
        its.is_some_and(|port| port.number == number && port.hold == Hold::Wanted)
    }

    /// Its IOhost has said what is wrong with it, or that nothing is: that is the answer. Whether it is news.
    pub(super) fn hear(&mut self, port: u32, wrong: Option<&'static str>) -> bool {
        let Some(port) = self.0.get_mut(&port) else { return false };
        port.waits.end_asking();
        std::mem::replace(&mut port.wrong, wrong) != wrong
    }

    /// There is a session of its link, or none any more.
    pub(super) fn note_session(&mut self, is_there: bool, now: Instant) {
        for port in self.0.values_mut() {
            port.waits.note_session(is_there, port.hold == Hold::Wanted, now);
        }
    }

    pub(super) fn note_silence(&mut self, now: Instant) {
        self.0.values_mut().for_each(|port| port.waits.note_silence(now));
    }

    pub(super) fn note_heard(&mut self) {
        self.0.values_mut().for_each(|port| port.waits.note_heard());
    }

    /// Why frames of the NIC at that port are lost, as far as another machine goes.
    pub(super) fn hindered(&self, port: u32, now: Instant) -> Option<String> {
        let Port { waits, wrong, .. } = self.0.get(&port)?;
        let wrong = || wrong.map(|wrong| format!("{wrong}; its guest's frames are lost"));
        waits.text(now, "its guest's frames are lost").or_else(wrong)
    }

    /// For operators: those that are there.
    pub(super) fn views(&self, is_there: impl Fn(u32) -> bool) -> Vec<LinkNicView> {
        let its = self.0.iter().filter(|(port, _)| is_there(**port));
        its.map(|(_, port)| port.counted.view()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;

    const PORT: u32 = 3;

    fn ports(number: u16) -> Ports {
        let mut ports = Ports::default();
        let counted = Counted { id: "eth".to_string(), counters: Arc::default() };
        ports.plug_in(PORT, (number, 9), counted, None);
        ports
    }

    #[test]
    fn a_nic_is_asked_for_while_its_guest_runs_and_once_more_when_it_was_given_back() {
        let (mut ports, at) = (ports(7), now());
        assert_eq!(ports.follow(PORT, true, at), None);
        assert!(!ports.is_wanted(PORT, 7));
        assert_eq!(ports.follow(PORT, false, at), Some(Wish::Attach(7, 9)));
        assert_eq!(ports.follow(PORT, false, at), None);
        assert!(ports.is_wanted(PORT, 7) && !ports.is_wanted(PORT, 6));
        assert_eq!(ports.follow(PORT, true, at), Some(Wish::Release(7)));
        // Its IOhost has not let go yet: whoever wants it waits.
        assert_eq!(ports.follow(PORT, false, at), None);
        assert!(!ports.is_wanted(PORT, 7));
        assert!(!ports.is_given_back(PORT, 6) && !ports.is_given_back(PORT + 1, 7));
        assert!(ports.is_given_back(PORT, 7));
        assert_eq!(ports.follow(PORT, false, at), Some(Wish::Attach(7, 9)));
        // It is told of twice.
        assert!(ports.is_given_back(PORT, 7));
        assert_eq!(ports.follow(PORT, false, at), None);
        assert!(ports.is_wanted(PORT, 7));
    }

    /// Whatever its guest's front-end does: what its IOhost said stays until it says something else, or nobody wants it.
    #[test]
    fn what_its_iohost_said_of_a_nic_is_news_once_and_stays() {
        let (mut ports, at) = (ports(7), now());
        ports.follow(PORT, false, at);
        assert!(!ports.hear(PORT, None));
        assert!(ports.hear(PORT, Some("it has none")) && !ports.hear(PORT, Some("it has none")));
        let lost = "it has none; its guest's frames are lost";
        assert_eq!(ports.hindered(PORT, at).as_deref(), Some(lost));
        ports.note_session(false, at);
        let later = at + std::time::Duration::from_secs(2);
        assert!(ports.hindered(PORT, later).is_some_and(|why| why.contains("silent for 2 s")));
        ports.note_session(true, later);
        assert!(ports.hear(PORT, None));
        assert_eq!(ports.hindered(PORT, later), None);
        assert!(ports.hear(PORT, Some("it has none")));
        ports.follow(PORT, true, later);
        assert_eq!(ports.hindered(PORT, later), None);
    }

    #[test]
    fn the_number_of_a_port_that_goes_is_free_when_nobody_has_it() {
        let at = now();
        assert_eq!(ports(7).forget(PORT), Some((7, false)));
        let mut wanted = ports(7);
        wanted.follow(PORT, false, at);
        assert_eq!(wanted.forget(PORT), Some((7, true)));
        let mut leaving = ports(7);
        leaving.follow(PORT, false, at);
        leaving.follow(PORT, true, at);
        assert_eq!(leaving.forget(PORT), None);
        assert!(!leaving.has(PORT));
        assert_eq!(leaving.forget(PORT), None, "it has gone");
    }
}
