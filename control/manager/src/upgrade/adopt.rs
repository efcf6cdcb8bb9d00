//! What an heir makes of an estate: front-ends of devices that are open here, and rings where they stood.
//!
//! Nothing that a guest notices: that its devices are served is the loop's to begin. Not here: words of the
//! predecessor (`heir`), and what comes, checked (`estate`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tracing::warn;
use vhost_user::{Frame, Framer, Refused, Reject};

use super::error::{AdoptError, HeirError};
use super::estate::{ConnectionEstate, DeviceEstate, Estate, Parcel};
use super::wire::{DeviceWords, RingWords, WITH_LOST};
use crate::bounds::Bounds;
use crate::devices::Devices;
use crate::devices::connection::Connection;
use crate::devices::device::Device;
use crate::devices::front_end::FrontEndError;
use crate::devices::kind::Kind;
use crate::devices::lent::Lent;
use crate::devices::queue::Known;
use crate::devices::queue::left::Left;
use crate::devices::start::PLACE_LOST;
use crate::poll::{Poll, Token};
use crate::turn::Turn;

/// An estate, and what is made of it.
pub(crate) struct Adopting<'a> {
    pub(crate) estate: &'a mut Estate,
    pub(crate) turn: &'a mut Turn,
    pub(crate) devices: &'a mut Devices,
    pub(crate) bounds: &'a mut Bounds,
    pub(crate) poll: &'a Poll,
}

impl Adopting<'_> {
    /// An upgrade is nothing that a guest notices; what the file has no more, or as another device, is taken
    /// from its guest by a reload.
    ///
    /// # Errors
    /// A device that a guest runs and that is not here.
    pub(crate) fn refuse_if_taken_from_guest(&mut self) -> Result<(), HeirError> {
        let estate = &mut *self.estate;
        // Of one that a link serves from now on, no guest of this machine has anything.
        let here = self.devices.values().filter(|device| !device.is_exported());
        let plans = here.map(|device| device.plan());
        let here = plans.filter(|plan| estate.device_of(plan).is_some());
        let here: BTreeSet<String> = here.map(|plan| plan.id().to_string()).collect();
        let is_run =
            |device: &DeviceEstate| device.connections.iter().any(|connection| connection.runs);
        let lost = |(id, device): &(&String, &DeviceEstate)| is_run(device) && !here.contains(*id);
        match estate.devices.iter().find(lost) {
            Some((id, _)) => Err(HeirError::InUse(id.clone())),
            None => Ok(()),
        }
    }

    /// Takes the front-ends of every device that was told of and is open here.
    ///
    /// # Errors
    /// A device that could not be served, and why.
    pub(crate) fn adopt(&mut self) -> Result<(), HeirError> {
        self.turn.tick();
        // What they have was granted before.
        self.bounds.be_lenient(true);
        let devices = self.devices.values().map(|device| (device.number(), device.plan()));
        for (number, plan) in devices.collect::<Vec<_>>() {
            let told = self.estate.device_of(&plan);
            // It begins anew.
            let Some(told) = told else { continue };
            let Some(device) = self.devices.get_mut(number) else {
                self.turn.defects.note("device to adopt");
                continue;
            };
            let wrong = |source| HeirError::Device { name: plan.name(), source };
            go_on_as(device, &told.words, self.turn.now()).map_err(wrong)?;
            if device.is_exported() {
                // Who is connected and runs nothing is let go of with the estate.
                continue;
            }
            for connection in std::mem::take(&mut told.connections) {
                self.adopt_connection(number, connection).map_err(wrong)?;
            }
        }
        Ok(())
    }

    fn adopt_connection(
        &mut self,
        number: u32,
        estate: ConnectionEstate,
    ) -> Result<(), AdoptError> {
        let id = self.devices.number_connection();
        let Some(device) = self.devices.get_mut(number) else {
            self.turn.defects.note("device to adopt");
            return Ok(());
        };
        let ConnectionEstate { runs, socket, told, unread, unsent, untold } = estate;
        let mut connection = device.new_connection(socket, self.bounds, self.turn.now());
        connection.front_end.may_run = runs;
        let is_first = !device.connections().values().any(Connection::has_promised_place);
        connection.take_place(if is_first {
            None
        } else {
            self.bounds.claim_connection(device.facts().rings)
        });
        let lend = |(bytes, fds): Parcel| {
            let fds = fds.into_iter().map(|fd| Lent::new(fd, device.closer()));
            (bytes, fds.collect::<Vec<Lent>>())
        };
        connection.front_end.is_replayed = true;
        let replayed = replay(&mut connection, told.into_iter().map(lend));
        connection.front_end.is_replayed = false;
        if (device.facts().allow_unsealed_memory || connection.front_end.has_sealed.get())
            && replayed.is_err()
        {
            // It may be cutting its memory off; that must not keep the others from being taken over.
            self.estate.doomed.push(connection);
            return Ok(());
        }
        if let Err(why) = replayed {
            // Its destructor would shut down the connection, which is the predecessor's as well: it stays until the end of
            // this process, which is near.
            self.estate.doomed.push(connection);
            return Err(why);
        }
        connection.go_on();
        let (unread, unsent) = (unread.into_iter().map(lend), unsent.into_iter().map(lend));
        connection.frames.go_on(unread, unsent.collect());
        if let Some(channel) = &mut connection.front_end.channel {
            let untold = untold.into_iter().map(|(bytes, _)| (bytes, Vec::new()));
            channel.go_on(std::iter::empty(), untold.collect());
        }
        if let Err(error) = self.poll.add(connection.frames.socket(), Token::Connection(number, id))
        {
            self.estate.doomed.push(connection);
            return Err(AdoptError::Watch(error));
        }
        device.adopt(id, connection, runs);
        Ok(())
    }

    /// Puts every ring where it stood, and what ports have counted.
    pub(crate) fn place_rings(&mut self) {
        for device in self.devices.values() {
            let Some(nic) = device.nic() else { continue };
            if let Some(told) = self.estate.device_of(&device.plan()) {
                nic.counters().go_on_from(&told.counters);
            }
        }
        for ring in std::mem::take(&mut self.estate.rings) {
            let number = self.devices.number_of(&ring.device);
            let Some(device) = number.and_then(|number| self.devices.get_mut(number)) else {
                continue;
            };
            if self.estate.device_of(&device.plan()).is_none() {
                // Devices that are made otherwise here begin anew.
                continue;
            }
            if ring.base.is_none() {
                self.estate.gone.insert(device.number());
            }
            if let Some(asked_ns) = ring.asked_ns {
                self.estate.moments.asked.push((device.number(), ring.queue, asked_ns));
            }
            place_ring(device, ring, self.estate.format);
        }
    }
}

/// Takes what is known of the device besides its rings and descriptors.
fn go_on_as(device: &mut Device, words: &DeviceWords, now: Instant) -> Result<(), AdoptError> {
    let closed_for = Duration::from_millis(words.closed_for_ms.min(60_000));
    if !closed_for.is_zero() {
        let until = now + closed_for;
        device.shut_out(until);
    }
    match (device.kind_mut(), &words.disk, &words.nic) {
        (Kind::Disk(parts), Some(disk), None) => {
            parts.live.set_writeback(disk.writeback);
            Ok(())
        }
        (Kind::Nic(parts), None, Some(nic)) => {
            parts.live().set_up(nic.is_up);
            parts.live().set_mac(nic.mac);
            match parts.live().set_mtu(parts.shape(), nic.mtu.into()) {
                true => Ok(()),
                false => Err(AdoptError::Mtu(nic.mtu)),
            }
        }
        _ => Err(AdoptError::Kind),
    }
}

/// Whether nobody knows where a ring stands. A program that has no word for that says it in its problem alone.
fn says_lost(ring: &RingWords, format: u32) -> bool {
    let says = |problem: &String| problem.starts_with(PLACE_LOST);
    let is_unserved = ring.asked_ns.is_none();
    ring.is_lost || format < WITH_LOST && is_unserved && ring.problem.as_ref().is_some_and(says)
}

fn place_ring(device: &mut Device, ring: RingWords, format: u32) {
    let is_lost = says_lost(&ring, format);
    let RingWords { queue: index, base, is_hearsay, failed, .. } = ring;
    let RingWords { violation, problem, left, was_attached, place, asked_ns, counters, .. } = ring;
    let Some(queue) = device.queue_mut(index) else {
        return warn!(device = device.facts().id, queue = index, "there is no such queue");
    };
    queue.counters().go_on_from(&counters);
    let again = place.map(|place| (place.sidecore, place.by_hand));
    let why = problem.clone().filter(|_| is_lost && format < WITH_LOST);
    let known = Known { was_attached, again, left, violation, problem };
    queue.go_on_as(known, asked_ns.is_some());
    // It has no front-end that runs it, or had none when this was told.
    let Some(connection) = device.runner().and_then(|id| device.connection_mut(id)) else {
        return;
    };
    let Some(base) = base else { return };
    // Where its front-end said that it stands, it may not have been served yet.
    if connection.session.base(index) != Some(base) {
        connection.session.stopped_at(index, base);
    }
    if is_hearsay {
        connection.session.served_elsewhere(index);
    }
    let at = connection.session.set_up(index).filter(|_| is_lost).map(|facts| Left::lost(&facts));
    if is_lost {
        connection.session.lost(index);
    }
    if failed {
        connection.session.failed(index);
    }
    if let Some(((at, why), queue)) = at.zip(why).zip(device.queue_mut(index)) {
        queue.lose_place(at, why);
    }
}

/// Has a front-end say again what it said.
fn replay(
    connection: &mut Connection,
    told: impl Iterator<Item = (Vec<u8>, Vec<Lent>)>,
) -> Result<(), AdoptError> {
    for told in told {
        let frame = frame_of(told)?;
        let refused = |reject: Reject<Refused<FrontEndError>>| AdoptError::Refused(reject.reason);
        let message = connection.session.parse(&frame).map_err(|reject| refused(reject.into()))?;
        // What it would answer was answered long ago.
        connection
            .session
            .apply(message, frame.fds, false, &mut connection.front_end)
            .map_err(refused)?;
    }
    Ok(())
}

/// The one message that bytes are.
fn frame_of((bytes, mut fds): (Vec<u8>, Vec<Lent>)) -> Result<Frame<Lent>, AdoptError> {
    let mut rest = &bytes[..];
    let frame = Framer::default().push(&mut rest, &mut fds)?;
    frame.filter(|_| rest.is_empty()).ok_or(AdoptError::NotOneFrame)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use config::plan::load;
    use cpus::HostCpus;

    use super::*;
    use crate::clock::now;
    use crate::devices::device_plan::Facts;
    use crate::devices::start::RingError;
    use crate::disk::DiskParts;
    use crate::disk::bonds::Bonds;
    use crate::opening::openers::{Openers, Patience};
    use crate::upgrade::bequest::ring_words;
    use config::diff::made_of;
    use config::plan::DevicePlan;

    /// A disk of nothing.
    fn device() -> Device {
        let text = "[daemon]\nrun_dir = \"/run\"\n[sidecores]\ncpus = \"0\"\n[[disk]]\nid = \"a\"\n\
                    backend = \"null\"\nsize = \"1M\"\n";
        let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
        let plan = load(text, "file", "/", &host, None).expect("a plan").disks.remove(0);
        let (facts, bonds) = (Facts::from(&plan), Bonds::in_folder("/nowhere"));
        let parts =
            DiskParts::open(plan, (false, false), &bonds, &mut Openers::default(), Patience::First);
        Device::new(0, facts, Kind::Disk(parts.expect("a disk of nothing")))
    }

    /// What is told of it, with a connection that runs it or does not.
    fn told(plan: &DevicePlan, runs: bool) -> Estate {
        let (near, _) = UnixStream::pair().expect("a connection");
        let words = DeviceWords {
            id: plan.id().to_string(),
            made_of: made_of(plan),
            socket: "/run/a.sock".to_string(),
            handles: Vec::new(),
            closed_for_ms: 0,
            disk: None,
            nic: None,
        };
        let device = DeviceEstate {
            words,
            listener: None,
            handles: None,
            connections: vec![ConnectionEstate::new(runs, OwnedFd::from(near))],
            counters: Default::default(),
        };
        let mut estate = Estate::default();
        estate.devices.insert(plan.id().to_string(), device);
        estate
    }

    #[test]
    fn no_guest_loses_its_disk_to_a_link_by_an_upgrade() {
        let table =
            [(false, false, true), (false, true, true), (true, false, true), (true, true, false)];
        for (is_exported, runs, is_taken_over) in table {
            let mut device = device();
            let mut estate = told(&device.plan(), runs);
            if is_exported {
                device.export();
            }
            let mut devices = Devices::default();
            devices.insert(0, device);
            let (mut turn, poll) = (Turn::begin(now()), Poll::new().expect("a set"));
            let mut bounds = Bounds::of_this_process(1, 0, 0);
            let mut adopting = Adopting {
                estate: &mut estate,
                turn: &mut turn,
                devices: &mut devices,
                bounds: &mut bounds,
                poll: &poll,
            };
            let refused = adopting.refuse_if_taken_from_guest();
            assert_eq!(refused.is_ok(), is_taken_over, "{is_exported} {runs}: {refused:?}");
        }
    }

    /// An older program would start it where it stood once.
    #[test]
    fn a_ring_whose_place_is_lost_is_so_in_another_process_or_stopped_in_an_older_one() {
        let bounds = Bounds::of_this_process(1, 0, 0);
        let with_guest = || {
            let (mut device, (near, _)) = (device(), UnixStream::pair().expect("a connection"));
            let connection = device.new_connection(OwnedFd::from(near), &bounds, now());
            device.adopt(0, connection, true);
            device
        };
        let mut before = with_guest();
        before.connection_mut(0).expect("its front-end").session.lost(0);
        for (format, stands) in [(WITH_LOST - 1, (false, true)), (WITH_LOST, (true, false))] {
            let (ring, mut after) = (ring_words(&before, format).remove(0), with_guest());
            let said = serde_json::to_string(&ring).expect("words");
            assert_eq!(
                said.contains("is_lost"),
                stands.0,
                "an older program refuses what it does not know"
            );
            place_ring(&mut after, ring, format);
            let session = &after.connection(0).expect("its front-end").session;
            assert_eq!((session.is_lost(0), session.has_failed(0)), stands, "format {format}");
        }
    }

    /// It knew of nothing but a start that was given up, and its heir is not to begin where the ring stood once.
    #[test]
    fn a_ring_that_an_older_program_says_is_lost_is_so_for_its_heir() {
        let bounds = Bounds::of_this_process(1, 0, 0);
        let words = RingError::PlaceLost.to_string();
        let others = RingError::PackedLost.to_string();
        for (problem, is_lost) in [(&words, true), (&others, false)] {
            let (mut device, (near, _)) = (device(), UnixStream::pair().expect("a connection"));
            let connection = device.new_connection(OwnedFd::from(near), &bounds, now());
            device.adopt(0, connection, true);
            let mut ring = ring_words(&device, WITH_LOST - 1).remove(0);
            (ring.problem, ring.was_attached) = (Some(problem.clone()), true);
            place_ring(&mut device, ring, WITH_LOST - 1);
            let session = &device.connection(0).expect("its front-end").session;
            assert_eq!(session.is_lost(0), is_lost, "{problem}");
        }
    }

    /// Who stops it before it is served anew, and goes on elsewhere without its record, would have requests done twice.
    #[test]
    fn a_ring_that_a_dead_process_served_is_hearsay_in_another_process_too() {
        let bounds = Bounds::of_this_process(1, 0, 0);
        let with_guest = || {
            let (mut device, (near, _)) = (device(), UnixStream::pair().expect("a connection"));
            let connection = device.new_connection(OwnedFd::from(near), &bounds, now());
            device.adopt(0, connection, true);
            device
        };
        for (is_hearsay, format, stands) in [
            (false, WITH_LOST - 1, (Some(5), true)),
            (false, WITH_LOST, (Some(5), true)),
            (true, WITH_LOST - 1, (Some(0), false)),
            (true, WITH_LOST, (Some(5), false)),
        ] {
            let mut before = with_guest();
            let session = &mut before.connection_mut(0).expect("its front-end").session;
            session.stopped_at(0, 5);
            if is_hearsay {
                session.served_elsewhere(0);
            }
            let (ring, mut after) = (ring_words(&before, format).remove(0), with_guest());
            let said = serde_json::to_string(&ring).expect("words");
            assert_eq!(said.contains("is_hearsay"), is_hearsay && format >= WITH_LOST);
            place_ring(&mut after, ring, format);
            let session = &after.connection(0).expect("its front-end").session;
            let found = (session.base(0), session.was_served(0));
            assert_eq!(found, stands, "{is_hearsay} in format {format}");
        }
    }
}
