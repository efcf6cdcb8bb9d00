//! A start with an estate: another daemon serves, and this process is to take over from it.
//!
//! Until YOURS nothing that guests, front-ends or other processes could notice is done: no ring, disk or
//! frame is touched, nothing is opened by name, and a refusal ends the process at once, without its
//! destructors, since what it holds is shared. Not here: what comes, checked (`estate`).

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use backend::net::HostOpenError;
use backend::{Grain, Handles, Inherited, Limits};
use config::Size;
use rustix::fs::{Mode, OFlags};
use tracing::{info, warn};
use vhost_user::{Frame, Framer, Refused, Reject};

use super::bequest::{is_made_of, made_of};
use super::channel::Channel;
use super::error::{AdoptError, HeirError};
use super::estate::{ConnectionEstate, DeviceEstate, Estate, Parcel, Progress};
use super::pause::Moments;
use super::wire::{DeviceWords, FORMATS, FromHeir, RingWords, WITH_GUARD};
use crate::clock::machine_ns;
use crate::defects::found;
use crate::device::{Connection, Device};
use crate::front_end::FrontEndError;
use crate::idle_peers::Beginning;
use crate::kind::{DevicePlan, Kind};
use crate::lent::Lent;
use crate::manager::Manager;
use crate::network::Network;
use crate::network::announce::has_stayed;
use crate::network::host_ports::TapQueue;
use crate::poll::Token;
use crate::queue::Known;
use crate::remote::Remote;
use crate::sockets;

/// Between two words of a predecessor; the longest is its wait for slow disks.
const HEAR_TIME_MAX: Duration = Duration::from_secs(30);
const SEND_TIME_MAX: Duration = Duration::from_secs(2);
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// This process's end of the channel to its predecessor.
#[derive(Debug)]
pub struct Heir(Channel);

impl Heir {
    /// Over this process's standard input, which is then free for nothing else.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn from_stdin() -> io::Result<Heir> {
        let channel = Channel::of(io::stdin().as_fd().try_clone_to_owned()?);
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        Ok(Heir(channel))
    }

    /// Tells the predecessor that it has to go on, and ends this process.
    pub fn refuse(&self, why: &str) -> ! {
        let why: String = why.chars().take(4096).collect();
        let _ = self.say(&FromHeir::Refused { why });
        // Destructors would shut down connections that are the predecessor's as well.
        std::process::exit(1)
    }

    /// Says what this program is, and takes all but where rings stand.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn receive_estate(&self, version: &str) -> Result<Estate, HeirError> {
        let hello = FromHeir::Hello { version: version.to_string(), formats: FORMATS.to_vec() };
        self.say(&hello)?;
        let mut estate = Estate::default();
        self.take_until(&mut estate, Progress::Devices)?;
        Ok(estate)
    }

    /// Says that it could serve, and takes where rings stand.
    ///
    /// # Errors
    /// What is wrong with that, or that the predecessor goes on.
    pub(crate) fn receive_rings(&self, estate: &mut Estate) -> Result<(), HeirError> {
        self.say(&FromHeir::Ready {})?;
        self.take_until(estate, Progress::Flipped)
    }

    /// Says that it has all, and waits until the predecessor has let go, or has ended.
    ///
    /// # Errors
    /// The predecessor goes on.
    pub(crate) fn receive_leave(&self, estate: &mut Estate) -> Result<(), HeirError> {
        match self.say(&FromHeir::Taken {}) {
            Ok(()) => {}
            // What it served is ours then.
            Err(error) if has_ended(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        // However long it takes: one that was stopped may let go when it is continued, and whoever had given up
        // by then would leave nobody. It says so, ends this process, or ends.
        match self.0.receive(FOREVER) {
            Ok(None) => Ok(()),
            Ok(Some(packet)) => match estate.take(&packet.bytes, packet.fds)? {
                Progress::Yours => Ok(()),
                other => Err(HeirError::NoLeave(other)),
            },
            Err(error) => Err(error.into()),
        }
    }

    fn take_until(&self, estate: &mut Estate, until: Progress) -> Result<(), HeirError> {
        loop {
            let packet = self.0.receive(HEAR_TIME_MAX)?.ok_or(HeirError::Gone)?;
            match estate.take(&packet.bytes, packet.fds)? {
                Progress::More => {}
                progress if progress == until => return Ok(()),
                came => return Err(HeirError::OutOfOrder { came, awaited: until }),
            }
        }
    }

    pub(super) fn channel(&self) -> &Channel {
        &self.0
    }

    pub(super) fn say(&self, word: &FromHeir) -> io::Result<()> {
        self.0.send(word, &[], SEND_TIME_MAX)
    }
}

impl Estate {
    /// The device of that plan, if the predecessor serves it and it is the same.
    pub(crate) fn device_of(&mut self, plan: &DevicePlan) -> Option<&mut DeviceEstate> {
        let device = self.devices.get_mut(plan.id())?;
        is_made_of(&device.words.made_of, &made_of(plan)).then_some(device)
    }

    /// The queues of that tap.
    fn take_tap(&mut self, name: &str) -> Vec<(u16, TapQueue)> {
        let named = |(tap, _): &&(String, u16)| tap == name;
        let keys: Vec<(String, u16)> = self.taps.keys().filter(named).cloned().collect();
        let taken = keys.into_iter().filter_map(|key| Some((key.1, self.taps.remove(&key)?)));
        taken.collect()
    }

    /// Has uplinks take over what they have counted, and the queues of taps, before the predecessor lets go: their
    /// carrier stays, and what cannot be taken refuses the upgrade.
    ///
    /// # Errors
    /// Which tap, and why.
    pub(crate) fn pass_uplinks_on(&mut self, network: &mut Network) -> Result<(), HostOpenError> {
        for uplink in network.uplinks_mut() {
            if let Some(counted) = self.uplinks.get(&uplink.lasting_name()) {
                uplink.count_on(counted);
            }
            let queues = uplink.tap().map(|name| self.take_tap(name));
            uplink.inherit(queues.unwrap_or_default())?;
        }
        Ok(())
    }
}

impl Manager {
    /// An upgrade is nothing that a guest notices; what the file has no more, or as another device, is taken
    /// from its guest by a reload.
    ///
    /// # Errors
    /// A device that a guest runs and that is not here.
    pub(crate) fn refuse_if_taken_from_guest(&mut self) -> Result<(), HeirError> {
        let Some(estate) = &mut self.rooms.estate else { return Ok(()) };
        let plans = self.rooms.devices.values().map(|device| device.kind.plan());
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
        self.rooms.turn.tick();
        // What they have was granted before.
        self.rooms.bounds.be_lenient(true);
        let devices = self.rooms.devices.values().map(|device| (device.number, device.kind.plan()));
        for (number, plan) in devices.collect::<Vec<_>>() {
            let told = self.rooms.estate.as_mut().and_then(|estate| estate.device_of(&plan));
            // It begins anew.
            let Some(told) = told else { continue };
            let Some(device) = self.rooms.devices.get_mut(number) else {
                self.rooms.turn.defects.note("device to adopt");
                continue;
            };
            let wrong = |source| HeirError::Device { name: plan.name(), source };
            device.go_on_as(&told.words, self.rooms.turn.now()).map_err(wrong)?;
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
        let id = self.rooms.devices.number_connection();
        let Some(device) = self.rooms.devices.get_mut(number) else {
            self.rooms.turn.defects.note("device to adopt");
            return Ok(());
        };
        let ConnectionEstate { runs, socket, told, unread, unsent, untold } = estate;
        let mut connection =
            device.new_connection(socket, &self.rooms.bounds, self.rooms.turn.now());
        connection.beginning = Beginning::over();
        connection.front_end.may_run = runs;
        let is_first = device.connections.values().all(|connection| connection.extra.is_some());
        connection.extra =
            if is_first { None } else { self.rooms.bounds.claim_connection(device.facts.rings) };
        let lend = |(bytes, fds): Parcel| {
            let fds = fds.into_iter().map(|fd| Lent::new(fd, &device.closer));
            (bytes, fds.collect::<Vec<Lent>>())
        };
        connection.front_end.is_replayed = true;
        let replayed = replay(&mut connection, told.into_iter().map(lend));
        connection.front_end.is_replayed = false;
        if (device.facts.allow_unsealed_memory || connection.front_end.has_sealed.get())
            && let (Err(_), Some(estate)) = (&replayed, &mut self.rooms.estate)
        {
            // It may be cutting its memory off; that must not keep the others from being taken over.
            estate.doomed.push(connection);
            return Ok(());
        }
        if let Err(why) = replayed {
            // Its destructor would shut down the connection, which is the predecessor's as well.
            std::mem::forget(connection);
            return Err(why);
        }
        let (unread, unsent) = (unread.into_iter().map(lend), unsent.into_iter().map(lend));
        connection.frames.go_on(unread, unsent.collect());
        if let Some(channel) = &mut connection.front_end.channel {
            let untold = untold.into_iter().map(|(bytes, _)| (bytes, Vec::new()));
            channel.go_on(std::iter::empty(), untold.collect());
        }
        if let Err(error) =
            self.rooms.poll.add(connection.frames.socket(), Token::Connection(number, id))
        {
            std::mem::forget(connection);
            return Err(AdoptError::Watch(error));
        }
        if runs {
            device.runner = Some(id);
        }
        // Whoever it connected to is here.
        device.call_nobody();
        device.connections.insert(id, connection);
        Ok(())
    }

    /// Puts every ring where it stood, and what ports have counted.
    pub(crate) fn place_rings(&mut self) {
        let estate =
            found!(self.rooms.turn.defects, &mut self.rooms.estate, "estate of a predecessor");
        for device in self.rooms.devices.values() {
            let Some(nic) = device.kind.nic() else { continue };
            if let Some(told) = estate.device_of(&device.kind.plan()) {
                nic.counters.go_on_from(&told.counters);
            }
        }
        for ring in std::mem::take(&mut estate.rings) {
            // Devices that are made otherwise here begin anew.
            let adopted = self
                .rooms
                .devices
                .number_of(&ring.device)
                .and_then(|n| self.rooms.devices.get_mut(n));
            let known = self.rooms.estate.as_mut().zip(adopted);
            if let Some((estate, device)) = known
                && estate.device_of(&device.kind.plan()).is_some()
            {
                if ring.base.is_none() {
                    estate.gone.insert(device.number);
                }
                if let Some(asked_ns) = ring.asked_ns {
                    estate.moments.asked.push((device.number, ring.queue, asked_ns));
                }
                device.place_ring(ring);
            }
        }
    }

    /// The predecessor has let go: all begins, and it is told how long that took.
    pub(crate) fn take_over(&mut self, heir: Heir) {
        let left = self.rooms.turn.tick();
        self.rooms.network.take_over(left);
        self.rooms.state.note_holder(&self.rooms.plan.daemon.api);
        self.rooms.bounds.be_lenient(false);
        let gone = self.rooms.estate.as_mut().map(|estate| {
            estate.doomed.clear();
            std::mem::take(&mut estate.gone)
        });
        for number in gone.unwrap_or_default() {
            let runner = self.rooms.devices.get(number).and_then(|device| device.runner);
            if let Some(id) = runner {
                self.front_ends().close(number, id, "it was gone when another process took over");
            }
        }
        self.rooms.devices.values_mut().for_each(has_stayed);
        self.rooms.shut.retry_all(self.rooms.turn.now());
        let failed =
            self.rooms.estate.as_mut().map(|estate| std::mem::take(&mut estate.sync_failed));
        let failed = failed.unwrap_or_default();
        for number in
            failed.iter().filter_map(|id| self.rooms.devices.number_of(id)).collect::<Vec<_>>()
        {
            if let Some(disk) = self.rooms.devices.get(number).and_then(|device| device.kind.disk())
            {
                disk.disk.assume_sync_failed();
            }
            self.rooms.note_unsynced(number);
        }
        self.links(Remote::open_inherited_links);
        self.send_all_out();
        self.resize_as_planned();
        self.open_ports();
        self.rooms.cores.flush();
        let moments = self.rooms.estate.as_mut().map(|estate| std::mem::take(&mut estate.moments));
        let moments = Moments { left_ns: machine_ns(left), ..moments.unwrap_or_default() };
        let pause = self.measure_pause(&moments);
        // Who has ended meanwhile has no operator who would ask.
        let _ = heir.say(&FromHeir::Serving { pause });
        let format = self.rooms.estate.as_ref().map_or(0, |estate| estate.format);
        self.be_watched(heir, format >= WITH_GUARD);
        let early = |device: &Device| {
            let connections =
                device.connections.iter().filter(|(_, connection)| connection.frames.has_early());
            connections.map(|(id, _)| (device.number, *id)).collect::<Vec<_>>()
        };
        let early: Vec<(u32, u32)> = self.rooms.devices.values().flat_map(early).collect();
        if !early.is_empty() {
            // What they say is known to no other process.
            self.settle_for_good();
        }
        for (number, id) in early {
            self.front_ends().serve(number, id, false);
        }
        let estate =
            found!(self.rooms.turn.defects, self.rooms.estate.take(), "estate of a predecessor");
        if estate.devices.values().any(DeviceEstate::is_left) {
            // They are gone for good.
            self.settle_for_good();
        }
        for (id, device) in estate.devices.into_iter().filter(|(_, device)| device.is_left()) {
            info!(device = id, "the configuration has it no more, or as another; it is gone");
            device.remove_socket();
        }
        let connections = self.rooms.devices.iter();
        let all = connections
            .flat_map(|(number, device)| device.connections.keys().map(|id| (*number, *id)));
        for (number, id) in all.collect::<Vec<_>>() {
            self.front_ends().watch(number, id);
        }
    }
}

impl Manager {
    /// A size that the file has anew since.
    fn resize_as_planned(&mut self) {
        let changed = |device: &Device| {
            let disk = device.kind.disk()?;
            let wanted = disk.plan.source.size_bytes()?;
            (wanted != disk.disk.size_bytes()).then_some((device.number, wanted))
        };
        let changed: Vec<(u32, u64)> = self.rooms.devices.values().filter_map(changed).collect();
        for (number, size) in changed {
            self.resize_to_plan(number, Size(size));
        }
    }
}

impl DeviceEstate {
    /// What a disk is made of, once.
    pub(crate) fn take_disk(&mut self) -> Option<(Handles<OwnedFd>, Inherited)> {
        let disk = self.words.disk.as_ref()?;
        let facts = Inherited {
            size_bytes: disk.size_bytes,
            physical_block_size: disk.physical_block_size,
            grain: disk.grain.map_or_else(Grain::default, |words| {
                let [alignment_offset, io_min, io_best, discard] = words;
                Grain { alignment_offset, io_min, io_best, discard }
            }),
            limits: Limits {
                discard_sectors_max: disk.discard_sectors_max,
                zeroes_sectors_max: disk.zeroes_sectors_max,
            },
            was_empty: disk.was_empty,
            at_once: disk.at_once,
        };
        Some((self.handles.take()?, facts))
    }

    /// Nobody took it.
    fn is_left(&self) -> bool {
        self.listener.is_some() || self.handles.is_some()
    }

    /// Takes its socket away, if it is not a VMM's.
    fn remove_socket(&self) {
        if self.listener.is_some() {
            sockets::remove(Path::new(&self.words.socket));
        }
    }
}

impl Device {
    /// Takes what is known of the device besides its rings and descriptors.
    fn go_on_as(&mut self, words: &DeviceWords, now: Instant) -> Result<(), AdoptError> {
        let closed_for = Duration::from_millis(words.closed_for_ms.min(60_000));
        if !closed_for.is_zero() {
            let until = now + closed_for;
            self.shut_out(until);
        }
        match (&mut self.kind, &words.disk, &words.nic) {
            (Kind::Disk(parts), Some(disk), None) => {
                parts.live.set_writeback(disk.writeback);
                Ok(())
            }
            (Kind::Nic(parts), None, Some(nic)) => {
                parts.live.set_up(nic.is_up);
                parts.live.set_mac(nic.mac);
                match parts.live.set_mtu(&parts.shape, nic.mtu.into()) {
                    true => Ok(()),
                    false => Err(AdoptError::Mtu(nic.mtu)),
                }
            }
            _ => Err(AdoptError::Kind),
        }
    }

    fn place_ring(&mut self, ring: RingWords) {
        let RingWords { queue: index, base, failed, violation, problem, .. } = ring;
        let RingWords { left, was_attached, place, counters, .. } = ring;
        let Some(queue) = self.queues.get_mut(usize::from(index)) else {
            return warn!(device = self.facts.id, queue = index, "there is no such queue");
        };
        queue.counters().go_on_from(&counters);
        let again = place.map(|place| (place.sidecore, place.by_hand));
        queue.go_on_as(Known { was_attached, again, left, violation, problem });
        // It has no front-end that runs it, or had none when this was told.
        let Some(connection) = self.runner.and_then(|id| self.connections.get_mut(&id)) else {
            return;
        };
        let Some(base) = base else { return };
        // Where its front-end said that it stands, it may not have been served yet.
        if connection.session.base(index) != Some(base) {
            connection.session.stopped_at(index, base);
        }
        if failed {
            connection.session.failed(index);
        }
    }
}

/// Whether the other end of a channel is gone, by what the kernel said to a send.
fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
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
