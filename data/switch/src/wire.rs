//! A wire: what goes in at one end comes out at the other.
//!
//! No learning, no VLANs, whatever the addresses. Called by `bridge`.

use crate::bridge::Verdict;
use crate::reason::DropReason;
use crate::rules::{BadPort, PortId};
use crate::vlan::{Egress, VlanId};

const ENDS: usize = 2;

/// Up to two ports; the numbers are ascending and beside them is whether the link is up.
#[derive(Debug)]
pub(crate) struct Wire {
    ports: Vec<PortId>,
    up: Vec<bool>,
}

impl Wire {
    pub(crate) fn new() -> Wire {
        Wire { ports: Vec::with_capacity(ENDS), up: Vec::with_capacity(ENDS) }
    }

    pub(crate) fn set_port(&mut self, port: PortId, is_up: bool) -> Result<(), BadPort> {
        match self.ports.binary_search(&port) {
            Ok(at) => {
                if let Some(up) = self.up.get_mut(at) {
                    *up = is_up;
                }
            }
            Err(_) if self.ports.len() == ENDS => return Err(BadPort::Full),
            Err(at) => {
                self.ports.insert(at, port);
                self.up.insert(at, is_up);
            }
        }
        Ok(())
    }

    pub(crate) fn remove_port(&mut self, port: PortId) {
        if let Ok(at) = self.ports.binary_search(&port) {
            self.ports.remove(at);
            self.up.remove(at);
        }
    }

    #[inline]
    pub(crate) fn decide(&self, from: PortId, head: &[u8]) -> Verdict {
        match self.is_up(from) {
            None => return Verdict::Drop(DropReason::NoPort),
            Some(false) => return Verdict::Drop(DropReason::CarrierDown),
            Some(true) if head.len() < frame::FRAME_MIN as usize => {
                return Verdict::Drop(DropReason::Runt);
            }
            Some(true) => {}
        }
        let Some(other) = self.ports.iter().find(|port| **port != from) else {
            return Verdict::Drop(DropReason::NoPort);
        };
        match self.is_up(*other) {
            Some(true) => Verdict::To { port: *other, vlan: VlanId::NONE },
            _ => Verdict::Drop(DropReason::CarrierDown),
        }
    }

    #[inline]
    pub(crate) fn egress(&self, to: PortId) -> Egress {
        match self.is_up(to) {
            Some(true) => Egress::Keep,
            Some(false) => Egress::Refuse(DropReason::CarrierDown),
            None => Egress::Refuse(DropReason::NoPort),
        }
    }

    pub(crate) fn ports(&self) -> &[PortId] {
        &self.ports
    }

    fn is_up(&self, port: PortId) -> Option<bool> {
        let at = self.ports.iter().position(|one| *one == port)?;
        self.up.get(at).copied()
    }
}
