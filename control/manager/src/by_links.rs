//! What links have others do, who lie above them or beside.
//!
//! Links say it in order, and it is done at once. Not here: links (`remote`).

use config::api::Answer;
use control::mode::Mode;

use crate::calls::removal::remove_device;
use crate::disk::locks::Taken;
use crate::remote::Remote;
use crate::remote::around::{Around, Next};
use crate::rooms::Rooms;

impl Rooms {
    /// Links, and what they reach. What they want of others is done by [`Rooms::have_links`].
    fn links(&mut self) -> (&mut Remote, Around<'_>) {
        let Rooms { remote, turn, devices, cores, bonds, poll, plan, network, unsynced, .. } = self;
        let next = Vec::new();
        let around = Around { turn, devices, cores, bonds, poll, plan, network, unsynced, next };
        (remote, around)
    }

    /// Opens the ports that are due, unless all ends, and brings the links' ends of those that were opened to their links.
    pub(crate) fn open_ports(&mut self, mode: Mode) {
        if mode.is_stopping() {
            return;
        }
        for (number, host) in self.network.due(self.turn.now()) {
            let is_there = self.remote.link_is_there(&host, &self.plan);
            let (network, mut around) = self.network();
            network.open_uplink(number, is_there, &mut around);
        }
        let Rooms { network, turn, plan, .. } = self;
        network.take_left_taps_away(turn.now(), |name| plan.is_on(name));
        for (number, end) in self.network.take_ends() {
            self.have_links(mode, |remote, around| remote.plug_into_link(number, end, around));
        }
    }

    /// Links, for operators.
    pub(crate) fn show_links(&self) -> Answer {
        let has_port = |port| self.network.uplink(port).is_some();
        self.remote.show((&self.devices, &self.shut), self.turn.now(), has_port)
    }

    /// Has links do something, and then does what they want of others.
    pub(crate) fn have_links<T>(
        &mut self,
        mode: Mode,
        act: impl FnOnce(&mut Remote, &mut Around<'_>) -> T,
    ) -> T {
        let (remote, mut around) = self.links();
        let done = act(remote, &mut around);
        around.next.into_iter().for_each(|next| self.do_for_links(next, mode));
        done
    }

    /// Hears what links have said while another process was about to take over.
    pub(crate) fn hear_links_later(&mut self, mode: Mode) {
        for said in self.remote.take_later() {
            // What one of them wants of others is done before the next is heard.
            self.have_links(mode, |remote, around| remote.hear_host(said, mode, around));
        }
    }

    fn do_for_links(&mut self, next: Next, mode: Mode) {
        match next {
            Next::Open(opening) => {
                let (device, taken) = (opening.device, self.locks().take(opening.device));
                if taken == Taken::Resized {
                    self.have_links(mode, |remote, around| remote.tell_clients(device, around));
                }
                let is_here = taken != Taken::Not;
                self.have_links(mode, |remote, around| {
                    remote.open_for_client(opening, is_here, around);
                });
            }
            Next::Remove(device) => remove_device(device, None, self, mode),
            Next::RetryShut => self.shut.retry_all(self.turn.now()),
        }
    }
}
