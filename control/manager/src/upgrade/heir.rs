//! A start with an estate: another daemon serves, and this process is to take over from it.
//!
//! Until YOURS nothing that guests, front-ends or other processes could notice is done: no ring, disk or
//! frame is touched, nothing is opened by name, and a refusal ends the process at once, without its
//! destructors, since what it holds is shared. Not here: what comes, checked (`estate`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use backend::net::HostOpenError;
use backend::{Grain, Handles, Inherited, Limits};
use config::diff::{is_made_of, made_of};
use config::plan::DevicePlan;
use control::upgrade::Taking;
use rustix::fs::{Mode, OFlags};

use super::channel::{Channel, SEND_TIME_MAX};
use super::error::HeirError;
use super::estate::{DeviceEstate, Estate, Progress};
use super::wire::{FORMATS, FromHeir};
use crate::defects::Defects;
use crate::ending;
use crate::network::Network;
use crate::network::host_ports::TapQueue;
use crate::network::plugs::Home;
use crate::sockets;

/// Between two words of a predecessor; the longest is its wait for slow disks.
const HEAR_TIME_MAX: Duration = Duration::from_secs(30);
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// This process's end of the channel to its predecessor.
#[derive(Debug)]
pub struct Heir {
    channel: Channel,
    taking: Taking,
}

impl Heir {
    /// Over this process's standard input, which is then free for nothing else.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn from_stdin() -> io::Result<Heir> {
        let channel = Channel::of(io::stdin().as_fd().try_clone_to_owned()?);
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        Ok(Heir { channel, taking: Taking::default() })
    }

    /// One that serves, and whose predecessor is at the other end.
    #[cfg(test)]
    pub(super) fn watched(channel: Channel) -> Heir {
        Heir { channel, taking: Taking::OnProbation }
    }

    /// Over that end of a channel.
    #[cfg(any(test, feature = "simulated"))]
    pub(crate) fn at(end: OwnedFd) -> Heir {
        Heir { channel: Channel::of(end), taking: Taking::default() }
    }

    /// Tells the predecessor that it has to go on, and ends this process.
    pub fn refuse(&self, why: &str) -> ! {
        let why: String = why.chars().take(4096).collect();
        let _ = self.say(&FromHeir::Refused { why });
        // Destructors would shut down connections that are the predecessor's as well.
        ending::exit(1)
    }

    /// Says what this program is.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn greet(&self, version: &str) -> Result<(), HeirError> {
        let hello = FromHeir::Hello { version: version.to_string(), formats: FORMATS.to_vec() };
        Ok(self.say(&hello)?)
    }

    /// Takes the next packet of what there is. Whether that is all.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn hear_estate(&mut self, estate: &mut Estate) -> Result<bool, HeirError> {
        self.take_one(estate, Progress::Devices)
    }

    /// Says that it could serve all.
    ///
    /// # Errors
    /// The predecessor goes on.
    pub(crate) fn say_ready(&mut self) -> Result<(), HeirError> {
        self.is_next(Taking::ready)?;
        Ok(self.say(&FromHeir::Ready {})?)
    }

    /// Takes the next packet of where rings stand. Whether that is all.
    ///
    /// # Errors
    /// What is wrong with that, or that the predecessor goes on.
    pub(crate) fn hear_rings(&mut self, estate: &mut Estate) -> Result<bool, HeirError> {
        let is_all = self.take_one(estate, Progress::Flipped)?;
        if is_all {
            self.is_next(Taking::flipped)?;
        }
        Ok(is_all)
    }

    /// Says that it has all. Whether it serves by that, since nobody else could.
    ///
    /// # Errors
    /// The predecessor goes on.
    pub(crate) fn say_taken(&mut self) -> Result<bool, HeirError> {
        match self.say(&FromHeir::Taken {}) {
            Ok(()) => Ok(false),
            Err(error) if has_ended(&error) => self.is_left_alone().map(|()| true),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the predecessor has let go, or has ended.
    ///
    /// # Errors
    /// The predecessor goes on.
    pub(crate) fn hear_leave(&mut self, estate: &mut Estate) -> Result<(), HeirError> {
        // However long it takes: one that was stopped may let go when it is continued, and whoever had given up
        // by then would leave nobody. It says so, ends this process, or ends.
        match self.channel.receive(FOREVER)? {
            None => self.is_left_alone(),
            Some(packet) => match estate.take(&packet.bytes, packet.fds)? {
                Progress::Yours => self.is_next(Taking::leave),
                other => Err(HeirError::NoLeave(other)),
            },
        }
    }

    /// Takes one packet. Whether it is the last one, up to there.
    fn take_one(&mut self, estate: &mut Estate, until: Progress) -> Result<bool, HeirError> {
        let Some(packet) = self.channel.receive(HEAR_TIME_MAX)? else {
            return self.is_left_alone().map(|()| true);
        };
        match estate.take(&packet.bytes, packet.fds)? {
            Progress::More => Ok(false),
            progress if progress == until => Ok(true),
            came => Err(HeirError::OutOfOrder { came, awaited: until }),
        }
    }

    fn is_next(&mut self, step: fn(&mut Taking) -> bool) -> Result<(), HeirError> {
        if step(&mut self.taking) { Ok(()) } else { Err(HeirError::Early) }
    }

    /// The predecessor has ended: what it served is this process's, if that knows where all stands.
    fn is_left_alone(&mut self) -> Result<(), HeirError> {
        if self.taking.left_alone() { Ok(()) } else { Err(HeirError::Gone) }
    }

    /// Tells the predecessor that it can take nothing back any more. One that has ended needs no word.
    pub(super) fn commit(&mut self) {
        if self.taking.commit() {
            let _ = self.say(&FromHeir::Committed {});
        }
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    pub(crate) fn say(&self, word: &FromHeir) -> io::Result<()> {
        self.channel.send(word, &[], SEND_TIME_MAX)
    }
}

impl Estate {
    /// The device of that plan, if the predecessor serves it and it is the same.
    pub(crate) fn device_of(&mut self, plan: &DevicePlan) -> Option<&mut DeviceEstate> {
        let device = self.devices.get_mut(plan.id())?;
        is_made_of(&device.words.made_of, &made_of(plan)).then_some(device)
    }

    /// Where the NIC of that plan is, if it is at one of the first `count` sidecores.
    pub(crate) fn home_of(&mut self, plan: &DevicePlan, count: usize) -> Option<Home> {
        let nic = self.device_of(plan)?.words.nic.as_ref().filter(|nic| nic.home < count)?;
        Some(Home { core: nic.home, by_hand: nic.by_hand })
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
    pub(crate) fn pass_uplinks_on(
        &mut self,
        network: &mut Network,
        defects: &mut Defects,
    ) -> Result<(), HostOpenError> {
        for uplink in network.uplinks_mut() {
            if let Some(counted) = self.uplinks.get(&uplink.lasting_name()) {
                uplink.count_on(counted);
            }
            let queues = uplink.tap().map(|name| self.take_tap(name));
            uplink.inherit(queues.unwrap_or_default(), defects)?;
        }
        Ok(())
    }
}

impl DeviceEstate {
    /// What a disk is made of, once, and whether its image was given up.
    pub(crate) fn take_disk(&mut self) -> Option<(Handles<OwnedFd>, Inherited, bool)> {
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
            mark: disk.mark,
        };
        Some((self.handles.take()?, facts, disk.is_fenced))
    }

    /// Nobody took it.
    pub(crate) fn is_left(&self) -> bool {
        self.listener.is_some() || self.handles.is_some()
    }

    /// Takes its socket away, if it is not a VMM's.
    pub(crate) fn remove_socket(&self) {
        if self.listener.is_some() {
            sockets::remove(Path::new(&self.words.socket));
        }
    }
}

/// Whether the other end of a channel is gone, by what the kernel said to a send.
fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}
