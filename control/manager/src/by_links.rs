//! What links have others do, who lie above them or beside.
//!
//! Links say it in order, and it is done at once. Not here: links (`remote`).

use config::api::Answer;

use crate::follow::Taken;
use crate::manager::Manager;
use crate::remote::Remote;
use crate::remote::around::{Around, Next};
use crate::rooms::Rooms;

impl Rooms {
    /// Links, and what they reach.
    pub(crate) fn links(&mut self) -> (&mut Remote, Around<'_>) {
        let Rooms { remote, turn, devices, cores, bonds, poll, plan, network, unsynced, .. } = self;
        let next = Vec::new();
        let around = Around { turn, devices, cores, bonds, poll, plan, network, unsynced, next };
        (remote, around)
    }
}

impl Rooms {
    /// Links, for operators.
    pub(crate) fn show_links(&self) -> Answer {
        let has_port = |port| self.network.uplink(port).is_some();
        self.remote.show(&self.devices, self.turn.now(), has_port)
    }
}

impl Manager {
    /// Has links do something, and then does what they want of others.
    pub(crate) fn links<T>(&mut self, act: impl FnOnce(&mut Remote, &mut Around<'_>) -> T) -> T {
        let (remote, mut around) = self.rooms.links();
        let done = act(remote, &mut around);
        around.next.into_iter().for_each(|next| self.do_for_links(next));
        done
    }

    /// Hears what links have said while another process was about to take over.
    pub(crate) fn hear_links_later(&mut self) {
        for said in self.rooms.remote.take_later() {
            let mode = self.mode();
            // What one of them wants of others is done before the next is heard.
            self.links(|remote, around| remote.hear_link(said, mode, around));
        }
    }

    fn do_for_links(&mut self, next: Next) {
        match next {
            Next::Open(opening) => {
                let taken = self.rooms.locks().take(opening.device);
                if taken == Taken::Resized {
                    self.links(|remote, around| remote.tell_clients(opening.device, around));
                }
                let is_here = taken != Taken::Not;
                self.links(|remote, around| remote.open_for_client(opening, is_here, around));
            }
            Next::Remove(device) => self.remove_device(device, None),
            Next::RetryShut => self.rooms.shut.retry_all(self.rooms.turn.now()),
        }
    }
}
