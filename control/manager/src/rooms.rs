//! What is served, and with what: all rooms of control, each with its own state.
//!
//! Not here: the loop, and what is under way (`manager`).

use std::time::Instant;

use config::Plan;
use control::mode::Mode;

use crate::balance::Balance;
use crate::begin::Options;
use crate::bonds::Bonds;
use crate::bounds::Bounds;
use crate::calls::waiting::Waiting;
use crate::cores::Cores;
use crate::devices::Devices;
use crate::front_ends::FrontEnds;
use crate::guests::{self, Guests};
use crate::moves::Moves;
use crate::network::Network;
use crate::network::taps::MadeTaps;
use crate::opening::openers::Openers;
use crate::opening::shut::ShutDevices;
use crate::poll::Poll;
use crate::remote::Remote;
use crate::service::Groups;
use crate::state::StateFile;
use crate::turn::Turn;
use crate::unsynced::Unsynced;
use crate::upgrade::estate::Estate;
use crate::watch::Watch;

pub(crate) struct Rooms {
    pub(crate) turn: Turn,
    pub(crate) poll: Poll,
    pub(crate) options: Options,
    pub(crate) plan: Plan,
    pub(crate) state: StateFile,
    pub(crate) unsynced: Unsynced,
    pub(crate) bonds: Bonds,
    pub(crate) watch: Watch,
    pub(crate) cores: Cores,
    pub(crate) balance: Balance,
    pub(crate) devices: Devices,
    /// Switches, wires, and ports that lead to the host.
    pub(crate) network: Network,
    pub(crate) taps: MadeTaps,
    pub(crate) remote: Remote,
    /// The meters of the plan's groups.
    pub(crate) groups: Groups,
    /// Devices of the plan that are not open.
    pub(crate) shut: ShutDevices,
    /// Images of these that are being opened.
    pub(crate) openers: Openers,
    /// Operators' calls that wait for images and queues.
    pub(crate) waiting: Waiting,
    pub(crate) moves: Moves,
    /// What devices are promised of what this process may have.
    pub(crate) bounds: Bounds,
    /// What a predecessor serves, until this process does.
    pub(crate) estate: Option<Estate>,
    /// When it was taken over, if it was.
    pub(crate) took_over_at: Option<Instant>,
    /// When front-ends are looked at next that have not come to a request.
    pub(crate) idle_peers_at: Instant,
    /// When disks are looked at next whose guests may have been given errors.
    pub(crate) failures_at: Instant,
    /// Which of their vCPUs run.
    pub(crate) guests: Guests,
}

impl Rooms {
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

    /// All front-ends.
    pub(crate) fn front_ends(&mut self, mode: Mode) -> FrontEnds<'_> {
        let Rooms { turn, devices, cores, poll, bounds, bonds, .. } = self;
        FrontEnds { turn, devices, cores, poll, bounds, bonds, mode }
    }

    fn guests(&mut self) -> (&mut Guests, guests::Around<'_>) {
        let Rooms { guests, turn, devices, poll, bounds, .. } = self;
        (guests, guests::Around { turn, devices, poll, bounds })
    }
}
