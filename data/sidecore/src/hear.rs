//! Both ends of a pass: what others have to say to a sidecore, and what it has to say to them.
//!
//! Not how that travels (`inbox`, `net::parcel`, `moves`, `link`). Called by `sidecore`; `rest` looks, too.

use schedule::{Clock, Nanos};

use crate::places::Tenant;
use crate::rest::Woke;
use crate::served::Role;
use crate::sidecore::{Progress, Sidecore};

impl Sidecore {
    /// The first step of a pass: what was put off and is due, then what came, from control, other sidecores,
    /// guests and links. Bounded for each of them.
    #[inline]
    pub(crate) fn hear(&mut self, now: Nanos, clock: &impl Clock, progress: &mut Progress) {
        self.clock_answered(now);
        if !self.calls.delayed().is_empty() {
            self.call_put_off(now);
        }
        if self.io.stalled_due() <= now.0 {
            self.look_at_stalled(now);
        }
        progress.commands = self.take_arrivals(now);
        progress.commands += self.take_commands(now, clock);
        self.depart_drained(now);
        if self.rest.is_to_look(now) {
            progress.kicks = self.look(now);
        }
        self.hear_roads(now);
        self.go_on_relocating(now);
        progress.linked = self.receive_links(now);
        self.schedule.begin(now);
    }

    /// The last step: queues go, to another sidecore or to control, and with them what control is told; then
    /// frames of links.
    #[inline]
    pub(crate) fn tell(&mut self, now: Nanos, progress: &mut Progress) {
        self.depart_drained(now);
        self.let_go(now);
        progress.linked += self.send_links(now);
        self.counters.requests.add(progress.requests.into());
        if self.sampling.has_looks() {
            self.end_sample(!progress.is_idle());
        }
    }

    /// Looks for kicks, completions and commands.
    pub(crate) fn look(&mut self, now: Nanos) -> u32 {
        self.rest.look(now);
        self.hear_woken(now)
    }

    /// Waits for one of them.
    pub(crate) fn sleep(&mut self, now: Nanos) {
        let at_most_ns = self.next_due().map(|due| due.since(now));
        if self.rest.sleep(at_most_ns, now) {
            // Nobody is called while it sleeps.
            self.alarm.stop();
        }
    }

    /// Takes what was found, at a time that is not before it was: how many kicks.
    pub(crate) fn hear_woken(&mut self, now: Nanos) -> u32 {
        let mut kicks = 0;
        while let Some(woke) = self.rest.next() {
            match woke {
                Woke::Inbox => self.inbox.reset(),
                Woke::Completions => self.io.acknowledge(),
                // The next pass takes them.
                Woke::Link => {}
                Woke::Kick { queue, epoch } => kicks += self.kicked(queue, epoch, now),
            }
        }
        self.counters.kicks.add(kicks.into());
        kicks
    }

    /// Somebody kicked the queue at this place, or a host port there has a frame: how many kicks that is.
    pub(crate) fn kicked(&mut self, queue: u16, epoch: u32, now: Nanos) -> u32 {
        let Some(place) = self.places.get_mut(usize::from(queue)) else { return 0 };
        if place.epoch != epoch {
            return 0;
        }
        match &mut place.tenant {
            Tenant::Queue(served) => {
                let ring = &mut served.ring;
                ring.counters.kicks.add(1);
                if ring.leaving {
                    return 0;
                }
                if let Role::Receive(receive) = &mut served.role {
                    // The pass that follows looks at whoever waited for it.
                    receive.kicked(ring);
                    return 1;
                }
                if self.schedule.kicked(queue, now) && !ring.health.is_lost() {
                    ring.queue.disarm();
                }
            }
            Tenant::Host(host) if host.is_muted => {
                // Not a frame, then, but an error, of which only a receive tells more. What waited is lost
                // with it.
                self.net.lose_kept(host);
            }
            Tenant::Host(_) => {
                // While it is polled, its descriptor says so at each look.
                if !self.schedule.kicked(queue, now) {
                    return 0;
                }
            }
            Tenant::Road(_) | Tenant::Empty => return 0,
        }
        1
    }
}
