//! The descriptors of one port that leads to the host: opened and taken away together.
//!
//! A tap at the end of a NIC's wire has as many queues as the NIC has pairs; all else has one. Called by
//! `uplinks`, and by whoever opens what a change asks for before anything is changed.

use std::os::fd::OwnedFd;

use backend::link::LinkNic;
use backend::net::{HostOpenError, HostPort, HostSource, NullMode, Silence, TAP_MTU_RANGE, Why};
use config::plan::{HostPlan, NicPlan, NullPlan};
use config::spec::Via;
use tracing::{info, warn};

use super::taps::MadeTaps;

/// A queue of a tap, and whether a daemon made that.
pub(crate) type TapQueue = (OwnedFd, bool);

/// In the order of their numbers.
#[derive(Debug, Default)]
pub(crate) struct HostPorts {
    ports: Vec<(u16, HostPort)>,
    /// Of a NIC of another machine: what its link is to have.
    end: Option<Box<LinkNic>>,
}

/// What a wire's end has to know of the NIC at the other one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest {
    mac: [u8; 6],
    /// MTU of a tap that is made, bytes.
    mtu: u16,
    /// Queues of a tap.
    pairs: u16,
}

impl From<&NicPlan> for Guest {
    fn from(plan: &NicPlan) -> Guest {
        let (least, most) = (*TAP_MTU_RANGE.start(), *TAP_MTU_RANGE.end());
        let mtu = plan.mtu.clamp(least, most);
        Guest { mac: plan.mac.0, mtu, pairs: plan.queues }
    }
}

impl From<Vec<(u16, HostPort)>> for HostPorts {
    fn from(ports: Vec<(u16, HostPort)>) -> HostPorts {
        HostPorts { ports, end: None }
    }
}

impl HostPorts {
    /// Opens what a plan names. May make a tap.
    ///
    /// # Errors
    /// Why not, and what to do; nothing is left open then.
    pub(crate) fn open(
        plan: &HostPlan,
        guest: Option<Guest>,
        taps: &MadeTaps,
    ) -> Result<HostPorts, HostOpenError> {
        if let HostPlan::Remote { name, .. } | HostPlan::Lent { name } = plan {
            return HostPorts::of_link(name);
        }
        let was_ours = matches!(plan, HostPlan::Tap { name } if taps.has(name));
        let first = open_port(&source_of(plan, 0, guest, taps))?;
        let HostPlan::Tap { name } = plan else { return Ok(HostPorts::of(first)) };
        if let Err(error) = taps.note(name, first.was_made()) {
            warn!(tap = name, %error, "whether it was made here cannot be kept: it stays when its port goes");
        }
        let mut ports = HostPorts::of(first);
        for queue in 1..guest.map_or(1, |guest| guest.pairs) {
            match open_port(&source_of(plan, queue, guest, taps)) {
                Ok(port) => ports.put(queue, port),
                Err(error) if matches!(error.why, Why::OneQueue) => {
                    info!(tap = name, "has one queue; all pairs of its NIC use that");
                    break;
                }
                Err(error) => {
                    // One from an earlier life stays, with its addresses and its place in a bridge.
                    if !was_ours {
                        ports.take_away(plan, taps);
                    }
                    return Err(error);
                }
            }
        }
        Ok(ports)
    }

    fn of(first: HostPort) -> HostPorts {
        HostPorts { ports: vec![(0, first)], end: None }
    }

    fn of_link(name: &str) -> Result<HostPorts, HostOpenError> {
        let made = LinkNic::new().map_err(|error| HostOpenError {
            kind: "remote nic",
            interface: name.to_string(),
            why: Why::Link(format!("no descriptor is left ({error})")),
        });
        let (end, port) = made?;
        Ok(HostPorts { end: Some(Box::new(end)), ..HostPorts::of(port) })
    }

    /// The link's end of a new port, once.
    pub(crate) fn take_end(&mut self) -> Option<Box<LinkNic>> {
        self.end.take()
    }

    /// What another process had open, each with its number: all queues of one tap.
    ///
    /// # Errors
    /// A descriptor is of something else.
    pub(crate) fn inherit(
        name: &str,
        queues: impl Iterator<Item = (u16, TapQueue)>,
    ) -> Result<HostPorts, HostOpenError> {
        let mut ports = HostPorts::default();
        for (queue, (fd, made)) in queues {
            ports.put(queue, inherit_tap(name, fd, made)?);
        }
        Ok(ports)
    }

    fn put(&mut self, queue: u16, port: HostPort) {
        self.ports.push((queue, port));
        self.ports.sort_unstable_by_key(|(queue, _)| *queue);
    }

    /// Each with its number.
    pub(crate) fn into_ports(self) -> Vec<(u16, HostPort)> {
        self.ports
    }

    /// Closes what goes for good, and with it a tap that we made.
    pub(crate) fn take_away(self, plan: &HostPlan, taps: &MadeTaps) {
        self.ports.into_iter().for_each(|(_, port)| port.remove());
        if let HostPlan::Tap { name } = plan
            && let Err(error) = taps.note(name, false)
        {
            warn!(tap = name, %error, "that it is gone cannot be kept: one that is made of its name is taken for ours");
        }
    }
}

fn open_port(source: &HostSource) -> Result<HostPort, HostOpenError> {
    #[cfg(any(test, feature = "simulated"))]
    if let Some(machine) = crate::simulated::machine() {
        return machine.open_port(source);
    }
    HostPort::open(source)
}

/// Why no frame passes the interface of a port that is open, in words, if so. Asks the kernel.
pub(super) fn silent_because(plan: &HostPlan) -> Option<String> {
    let (name, kind) = match plan {
        HostPlan::Tap { name } => (name, "tap"),
        HostPlan::Interface { name, .. } => (name, "interface"),
        HostPlan::Null(_) | HostPlan::Remote { .. } | HostPlan::Lent { .. } => return None,
    };
    Some(match silence_of(name, kind == "tap")? {
        Silence::Down => {
            format!("{kind} {name} is down, and no frame passes: `ip link set dev {name} up`")
        }
        Silence::NoCarrier => {
            format!(
                "{kind} {name} has no carrier, and no frame passes: see to its cable or its other end"
            )
        }
    })
}

fn silence_of(name: &str, is_tap: bool) -> Option<Silence> {
    #[cfg(any(test, feature = "simulated"))]
    if let Some(machine) = crate::simulated::machine() {
        return machine.silence_of(name);
    }
    backend::net::silence_of(name, is_tap)
}

fn inherit_tap(name: &str, fd: OwnedFd, made: bool) -> Result<HostPort, HostOpenError> {
    #[cfg(any(test, feature = "simulated"))]
    if let Some(machine) = crate::simulated::machine() {
        return machine.inherit_tap(name, fd, made);
    }
    HostPort::inherit_tap(name, fd, made)
}

fn source_of(plan: &HostPlan, queue: u16, guest: Option<Guest>, taps: &MadeTaps) -> HostSource {
    match plan {
        HostPlan::Tap { name } => {
            let mtu = guest.map(|guest| guest.mtu);
            HostSource::Tap { name: name.clone(), queue, mtu, ours: taps.has(name) }
        }
        HostPlan::Interface { name, via: Via::Packet } => {
            HostSource::Packet { interface: name.clone() }
        }
        HostPlan::Interface { name, via: Via::Xdp } => {
            HostSource::Xdp { interface: name.clone(), queue: queue.into() }
        }
        // Opened with its link's end.
        HostPlan::Remote { .. } | HostPlan::Lent { .. } => {
            HostSource::Null { mode: NullMode::Drop }
        }
        HostPlan::Null(null) => HostSource::Null {
            mode: match null {
                NullPlan::Drop => NullMode::Drop,
                NullPlan::Echo => NullMode::Echo,
                NullPlan::Generate { size, rate } => {
                    let destination = guest.map_or([0xff; 6], |guest| guest.mac);
                    NullMode::Generate { size: *size, rate: *rate, destination }
                }
            },
        },
    }
}
