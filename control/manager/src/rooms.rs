//! What is served, and with what: all rooms of control, each with its own state.
//!
//! Not here: the loop, and what is under way (`manager`).

use std::io;
use std::time::Instant;

use config::Plan;
use config::api::{ApiError, ErrorKind};
use config::plan::{DevicePlan, DiskPlan};
use config::spec::DiskMove;
use control::mode::Mode;
use control::timers::Timers;
use sidecore::{MoveId, QueueKey, Stay};
use tracing::warn;

use crate::bounds::Bounds;
use crate::calls::stages;
use crate::calls::waiting::WaitingCalls;
use crate::defects::{found, late};
use crate::devices::Devices;
use crate::disk::bonds::Bonds;
use crate::disk::bonds::Images;
use crate::disk::locks::Locks;
use crate::disk::looks;
use crate::disk::staging;
use crate::disk::unsynced::Unsynced;
use crate::disk::watch::Watch;
use crate::front_ends::FrontEnds;
use crate::front_ends::beginnings;
use crate::guests::{self, Guests};
use crate::network::Network;
use crate::network::nic_views::NicViews;
use crate::network::switch_calls::SwitchCalls;
use crate::network::travel::Travel;
use crate::network::uplink::Uplink;
use crate::opening::openers::Openers;
use crate::opening::shut::ShutDevices;
use crate::options::Options;
use crate::poll::Poll;
use crate::remote::Remote;
use crate::service::{Groups, Services};
use crate::sidecores::Cores;
use crate::sidecores::around::Around;
use crate::sidecores::balance::{self, Relief};
use crate::sidecores::moves::Moves;
use crate::state::{FolderLooks, StateFile};
use crate::turn::{EverySecond, Turn};
use crate::upgrade::adopt::Adopting;
use crate::upgrade::bequest::Bequest;
use crate::upgrade::estate::Estate;

pub(crate) struct Rooms {
    pub(crate) turn: Turn,
    pub(crate) poll: Poll,
    pub(crate) options: Options,
    pub(crate) plan: Plan,
    pub(crate) state: StateFile,
    /// Operators who ask how its folder is.
    pub(crate) folder: FolderLooks,
    pub(crate) unsynced: Unsynced,
    pub(crate) bonds: Bonds,
    pub(crate) watch: Watch,
    pub(crate) cores: Cores,
    pub(crate) devices: Devices,
    /// Switches, wires, and ports that lead to the host.
    pub(crate) network: Network,
    pub(crate) remote: Remote,
    /// The meters of the plan's groups.
    pub(crate) groups: Groups,
    /// Devices of the plan that are not open.
    pub(crate) shut: ShutDevices,
    /// Images of these that are being opened.
    pub(crate) openers: Openers,
    /// Operators' calls that wait for images and queues.
    pub(crate) waiting: WaitingCalls,
    pub(crate) moves: Moves,
    /// What devices are promised of what this process may have.
    pub(crate) bounds: Bounds,
    /// What a predecessor serves, until this process does.
    pub(crate) estate: Option<Estate>,
    /// Front-ends that have not come to a request.
    pub(crate) beginnings: EverySecond,
    /// Disks whose guests may have been given errors.
    pub(crate) failures: EverySecond,
    /// Which of their vCPUs run.
    pub(crate) guests: Guests,
}

/// Whose time it is that has come, in the order in which it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Succession,
    Lock,
    Knock,
    Loads,
    Macs,
    Beginnings,
    Devices,
    /// Of what each turn goes on with.
    Turn,
}

impl Rooms {
    /// What is due without an event, and when.
    pub(crate) fn timers(&self, mode: Mode) -> Timers<Timer, Instant> {
        let Rooms { turn, state, cores, devices, shut, watch, network, remote, .. } = self;
        let Rooms { beginnings, failures, guests, waiting, folder, .. } = self;
        let mut timers = Timers::default();
        if !(mode.is_inheriting() || mode.has_heir()) {
            timers.set(Timer::Turn, state.seen.look_at());
        }
        if !mode.is_stopping() && !mode.may_be_taken_back() {
            timers.set(Timer::Turn, shut.due_at());
        }
        if !mode.is_stopping() {
            timers.set(Timer::Turn, network.due_at());
            timers.set(Timer::Turn, remote.due_at());
        }
        timers.set(Timer::Turn, waiting.due_at());
        timers.set(Timer::Turn, folder.due_at());
        timers.set(Timer::Turn, guests.due_at(turn.now()));
        timers.set(Timer::Lock, state.lock_due_at());
        timers.set(Timer::Knock, cores.due_at());
        timers.set(Timer::Loads, cores.look_at().filter(|_| mode.may_move()));
        timers.set(Timer::Macs, network.answers_at());
        timers.set(Timer::Turn, watch.due_at());
        timers.set(Timer::Beginnings, beginnings.due_at(beginnings::is_any(devices)));
        timers.set(Timer::Turn, failures.due_at(looks::is_any(devices)));
        timers.set(Timer::Devices, devices.values().filter_map(|device| device.due_at(mode)));
        timers
    }

    /// Keeps what was made through the API, and which images were there.
    ///
    /// # Errors
    /// What the file system said; what was kept before still is.
    pub(crate) fn keep(&mut self) -> io::Result<()> {
        let Rooms { state, plan, devices, .. } = self;
        state.keep(plan, &devices.images())
    }

    /// Whether the image of that disk was there once, so that it is not made anew.
    pub(crate) fn was_there(&self, plan: &DiskPlan) -> bool {
        self.state.seen.has(plan, &self.plan)
    }

    /// Keeps which images are there after something was opened, or was planned otherwise.
    pub(crate) fn keep_images(&mut self, mode: Mode) {
        let now = self.turn.now();
        if mode.is_inheriting() || mode.has_heir() || !self.state.seen.look(now) {
            return;
        }
        self.devices.are_told();
        if self.state.has_kept(&self.plan, &self.devices.images()) {
            return;
        }
        if let Err(error) = self.keep()
            && self.state.seen.not_kept(now)
        {
            warn!(
                "that images of disks are there cannot be kept: one that is missing when the daemon starts again may \
                 be made anew, empty: {error}; make room in `state_dir`, and make it writable"
            );
        }
    }

    /// Puts another plan in the place of that of the device of its name.
    pub(crate) fn set_plan(&mut self, plan: DevicePlan) {
        if let Some(device) = self.devices.named_mut(plan.id())
            && device.set_plan(&plan, &mut self.turn.defects)
        {
            self.turn.touch(device.number());
        }
        self.shut.set_plan(&plan);
        self.plan.replace(plan);
    }

    /// The same of a disk of which nothing but the stages is another.
    pub(crate) fn set_stages(&mut self, plan: DiskPlan) {
        if let Some(device) = self.devices.named_mut(&plan.id)
            && device.set_stages(&plan)
        {
            self.turn.touch(device.number());
        }
        let plan = DevicePlan::Disk(plan);
        self.shut.set_plan(&plan);
        self.plan.replace(plan);
    }

    /// Has queues of a device get the stages of its plan that have others. Whoever waits for that is answered when none
    /// has.
    pub(crate) fn restage(&mut self, number: u32, mode: Mode) {
        let now = self.turn.now();
        let Some(device) = self.devices.get_mut(number) else { return late("device") };
        let disk = device.disk_and_queues();
        match disk.and_then(|(disk, queues)| staging::restages(disk, queues, mode, now)) {
            Some(queues) => {
                let (moves, mut around) = self.moves();
                moves.restage(number, &queues, &mut around);
            }
            None => stages::are_there(number, self),
        }
    }

    /// Looks at guests, and asks their VMMs. Gives the NICs whose ports are to be told.
    pub(crate) fn look_at_guests(&mut self) -> Vec<u32> {
        let mut told = self.guests.look(&mut self.turn, &mut self.devices);
        let (guests, mut around) = self.guests();
        told.extend(guests.inquire(&mut around));
        told
    }

    /// A VMM that was asked has something to say.
    pub(crate) fn hear_vmm(&mut self, inquiry: u32) {
        let (guests, mut around) = self.guests();
        guests.hear(inquiry, &mut around);
    }

    /// What there is to hand over.
    pub(crate) fn bequest(&self) -> Bequest<'_> {
        let Rooms { devices, network, remote, turn, .. } = self;
        Bequest { devices, network, remote, now: turn.now() }
    }

    /// An estate, and what is made of it; nothing, where this process began alone.
    pub(crate) fn adopting(&mut self) -> Option<Adopting<'_>> {
        let Rooms { estate, turn, devices, bounds, poll, .. } = self;
        Some(Adopting { estate: estate.as_mut()?, turn, devices, bounds, poll })
    }

    /// All front-ends.
    pub(crate) fn front_ends(&mut self, mode: Mode) -> FrontEnds<'_> {
        let Rooms { turn, devices, cores, poll, bounds, bonds, .. } = self;
        FrontEnds { turn, devices, cores, poll, bounds, bonds, mode }
    }

    /// Looks at the loads of sidecores: what goes elsewhere.
    pub(crate) fn look_at_loads(&mut self) -> Vec<Relief> {
        let Rooms { cores, devices, guests, network, turn, .. } = self;
        guests.see_rivals(turn, devices);
        let uplinks = network.uplinks().map(Uplink::home);
        // Where it is not known nothing speaks against a sidecore.
        let lost = |core| guests.lost(core).unwrap_or(0);
        balance::look(cores, devices, lost, uplinks, turn.now())
    }

    /// The sidecore for a queue that starts: where it was before it was asked for, or wherever suits.
    pub(crate) fn place_again(
        &mut self,
        number: u32,
        was_at: Option<(usize, bool)>,
    ) -> Option<(usize, bool)> {
        let Rooms { cores, devices, turn, .. } = self;
        let device = found!(turn.defects, devices.get_mut(number), "device to place");
        cores.place_again(was_at, || device.memory_node(turn.now()))
    }

    /// Moves queues of a disk, as an operator wants: see [`Moves::bring`].
    ///
    /// # Errors
    /// They do not go there.
    pub(crate) fn move_queues(
        &mut self,
        id: &str,
        wish: &DiskMove,
    ) -> Result<Option<(u32, Vec<MoveId>)>, ApiError> {
        let Rooms { moves, turn, devices, cores, plan, .. } = self;
        moves.bring(id, wish, plan, &mut Around { turn, devices, cores })
    }

    /// Moves a queue to where there is more room for it.
    pub(crate) fn relieve(&mut self, key: QueueKey, to: usize) {
        let (moves, mut around) = self.moves();
        moves.relieve(key, to, &mut around);
    }

    /// The sidecore that a queue goes to is ready.
    pub(crate) fn move_is_prepared(&mut self, id: MoveId) {
        let (moves, mut around) = self.moves();
        moves.prepared(id, &mut around);
    }

    /// Something is at its new sidecore, or (with a reason) still at the old one: see [`Moves::is_over`].
    pub(crate) fn move_is_over(
        &mut self,
        id: MoveId,
        why: Option<Stay>,
    ) -> Option<(u32, Option<Stay>)> {
        let (moves, mut around) = self.moves();
        moves.is_over(id, why, &mut around)
    }

    fn moves(&mut self) -> (&mut Moves, Around<'_>) {
        let Rooms { moves, turn, devices, cores, .. } = self;
        (moves, Around { turn, devices, cores })
    }

    /// Disks whose locks follow their rings.
    pub(crate) fn locks(&mut self) -> Locks<'_> {
        let Rooms { turn, devices, poll, plan, bonds, openers, unsynced, watch, .. } = self;
        Locks { turn, devices, poll, plan, bonds, openers, unsynced, watch }
    }

    /// How queues are served, and what they are counted on.
    pub(crate) fn services(&mut self) -> Services<'_> {
        let Rooms { groups, plan, devices, turn, cores, .. } = self;
        Services { groups, plan, devices, turn, cores }
    }

    /// Images that are open.
    pub(crate) fn images(&mut self) -> Images<'_> {
        let Rooms { turn, devices, openers, bonds, remote, .. } = self;
        Images { turn, devices, openers, bonds, remote }
    }

    /// A queue of the device has begun to wait, or has ceased to, or is back.
    pub(crate) fn say_stalls(&mut self, number: u32) {
        // The sidecore that had it then may be heard after the one that it has moved to, and has gone home from.
        match self.devices.get_mut(number) {
            Some(device) => device.say_stalls(self.turn.now()),
            None => late("device"),
        }
    }

    /// The device of a disk.
    ///
    /// # Errors
    /// It is listed and not open, or there is none of that name.
    pub(crate) fn open_disk(&self, id: &str) -> Result<u32, ApiError> {
        if self.plan.disk(id).is_none() {
            return Err(self.plan.no_such_disk(id));
        }
        self.devices.number_of(id).ok_or_else(|| {
            let hint = "`sidecore show` says why; put that right first";
            ApiError::new(ErrorKind::Refused, format!("disk {id:?} is not open"), hint)
        })
    }

    /// A device has just lost data: that is marked.
    pub(crate) fn note_unsynced(&mut self, number: u32) {
        let Some(parts) = self.devices.disk(number) else { return late("disk") };
        if let Some(failure) = parts.disk.sync_failure_fd() {
            let _ = rustix::io::read(failure, &mut [0; 8]);
        }
        // Not when an operator was faster: cleared before this was heard.
        if parts.sync_failed() {
            self.mark_unsynced(number);
        }
    }

    /// The image of a device, if it is a disk, is about to be closed, and with it what tells that it has lost data: that
    /// may not have been heard, or could not be kept.
    pub(crate) fn hear_unsynced(&mut self, number: u32) {
        let disk = self.devices.disk(number);
        let is_unkept = disk.filter(|parts| parts.disk.sync_failed()).is_some_and(|parts| {
            let tells = |failure| rustix::io::read(failure, &mut [0; 8]).is_ok();
            let is_told = parts.disk.sync_failure_fd().is_some_and(tells);
            is_told || !self.unsynced.is_lost(&parts.plan) && !parts.disk.is_marked()
        });
        if is_unkept {
            self.mark_unsynced(number);
        }
    }

    /// That a device has lost data is kept.
    pub(crate) fn mark_unsynced(&mut self, number: u32) {
        let device =
            found!(self.turn.defects, self.devices.get(number), "device that has lost data");
        if device.is_exported() {
            self.remote.count_loss(&device.facts().id);
        }
        let disk = found!(self.turn.defects, device.disk(), "disk that has lost data");
        self.unsynced.mark(disk);
        self.watch.hurry(self.turn.now());
    }

    fn guests(&mut self) -> (&mut Guests, guests::Around<'_>) {
        let Rooms { guests, turn, devices, poll, bounds, .. } = self;
        (guests, guests::Around { turn, devices, poll, bounds })
    }

    /// The network, and what it reaches.
    pub(crate) fn network(&mut self) -> (&mut Network, Around<'_>) {
        let Rooms { network, turn, devices, cores, .. } = self;
        (network, Around { turn, devices, cores })
    }

    pub(crate) fn travel(&mut self) -> Travel<'_> {
        let Rooms { network, moves, plan, turn, devices, cores, .. } = self;
        let around = Around { turn, devices, cores };
        Travel { network, moves, plan, around }
    }

    pub(crate) fn switch_calls(&mut self) -> SwitchCalls<'_> {
        let Rooms { network, plan, state, turn, devices, cores, .. } = self;
        let around = Around { turn, devices, cores };
        SwitchCalls { network, plan, state, around }
    }

    pub(crate) fn nic_views(&self) -> NicViews<'_> {
        let Rooms { plan, devices, shut, network, guests, remote, turn, .. } = self;
        NicViews { plan, devices, shut, network, guests, remote, now: turn.now() }
    }
}
