//! Sockets of a link as its plan has them, and how long a frame they carry.
//!
//! Not here: how frames come and go (`backend::link`). Called by `link`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use backend::link::{LinkOpenError, LinkShards, LinkSocket, LinkSource};
use config::plan::{LinkAt, LinkEnd, LinkPeer, LinkPlan};
use config::spec::Via;
use tracing::warn;

use super::error::{InheritError, SocketError};

/// Frames that the other end may have under way to one of our sockets, whose buffers hold as many.
pub(super) const RING_FRAMES: u32 = 512;
/// Headers of IP and UDP, bytes: of version 4, and of version 6.
const HEADERS_BYTES: [u16; 2] = [28, 48];
/// What goes before a frame where there is no IP: its length.
const ETHERNET_BYTES: u16 = 2;

/// Opens so many at most.
///
/// # Errors
/// The system's; or they carry too little.
pub(super) fn open(plan: &LinkPlan, shards: usize) -> Result<LinkShards, SocketError> {
    let opened = open_shards(&source_of(plan), shards)?;
    match longest(&opened) < usize::from(frame_bytes(plan)) {
        true => Err(SocketError::Mtu {
            carries: longest(&opened) + usize::from(ETHERNET_BYTES),
            mtu: plan.mtu,
        }),
        false => Ok(opened),
    }
}

/// That one can be had, as the first of them is at a start. It is closed again.
///
/// # Errors
/// As [`open`].
pub(crate) fn check(plan: &LinkPlan) -> Result<(), SocketError> {
    open(plan, 1).map(drop)
}

/// What a link goes on with, of the sockets of a process before this one. `None`: an IOhost's, for which that one still
/// has what it needs.
///
/// # Errors
/// They can be neither kept nor made anew, or carry too little.
pub(super) fn inherit(
    plan: &LinkPlan,
    shards: usize,
    sockets: Vec<OwnedFd>,
) -> Result<Option<LinkShards>, InheritError> {
    let source = source_of(plan);
    // Another address, or another interface: it is opened anew, and begins with what is known all the same.
    let inherited = inherit_shards(&source, sockets).or_else(|why| {
        warn!(link = plan.id, "its sockets are made anew: {why}");
        open_shards(&source, shards)
    });
    let is_iohost = matches!(plan.end, LinkEnd::Iohost { .. });
    let mut sockets = match inherited {
        Err(error) if error.why.may_pass() && is_iohost => return Ok(None),
        inherited => inherited?,
    };
    if longest(&sockets) < usize::from(frame_bytes(plan)) {
        return Err(InheritError::Mtu);
    }
    sockets.sockets.truncate(shards.max(1));
    Ok(Some(sockets))
}

fn open_shards(source: &LinkSource, shards: usize) -> Result<LinkShards, LinkOpenError> {
    #[cfg(any(test, feature = "simulated"))]
    if let Some(machine) = crate::simulated::machine() {
        return machine.open_link(source, shards);
    }
    LinkShards::open(source, shards)
}

fn inherit_shards(source: &LinkSource, sockets: Vec<OwnedFd>) -> Result<LinkShards, LinkOpenError> {
    #[cfg(any(test, feature = "simulated"))]
    if let Some(machine) = crate::simulated::machine() {
        return machine.inherit_link(source, sockets);
    }
    LinkShards::inherit(source, sockets)
}

/// Where its sockets are: a client's of UDP at any port, of the kind that its IOhosts have.
fn source_of(plan: &LinkPlan) -> LinkSource {
    if let Some(on) = plan.interface() {
        let name = on.name.clone();
        return match on.via {
            Via::Packet => LinkSource::Interface { name },
            Via::Xdp => LinkSource::Xdp { name },
        };
    }
    let has_v6 = |iohosts: &[LinkPeer]| {
        iohosts.iter().any(|peer| matches!(peer, LinkPeer::Udp(at) if at.is_ipv6()))
    };
    let bind = match &plan.end {
        LinkEnd::Iohost { listen: LinkAt::Udp(address), .. } => *address,
        LinkEnd::Client { iohosts, .. } if has_v6(iohosts) => {
            SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0)
        }
        _ => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
    };
    LinkSource::Udp { bind }
}

/// Bytes of the longest frame that a link's sockets carry.
fn longest(opened: &LinkShards) -> usize {
    opened.sockets.first().map_or(0, LinkSocket::frame_bytes)
}

/// Bytes of the longest frame that fits into a packet on a link's way.
pub(super) fn frame_bytes(plan: &LinkPlan) -> u16 {
    let is_v4 = match &plan.end {
        LinkEnd::Iohost { listen, .. } => matches!(listen, LinkAt::Udp(SocketAddr::V4(_))),
        LinkEnd::Client { iohosts, .. } => {
            iohosts.iter().all(|peer| matches!(peer, LinkPeer::Udp(SocketAddr::V4(_))))
        }
    };
    let before = match plan.interface() {
        Some(_) => ETHERNET_BYTES,
        None => HEADERS_BYTES[usize::from(!is_v4)],
    };
    plan.mtu.saturating_sub(before)
}

#[cfg(test)]
mod tests {
    use config::plan::{LinkInterface, Origin};

    use super::*;

    /// Of an Ethernet frame IPv4 leaves 1,472 bytes, of which three have 4 KiB; of IPv6's 1,452 it takes four.
    #[test]
    fn frames_are_as_long_as_the_links_addresses_leave_room_for() {
        let with = |end| {
            frame_bytes(&LinkPlan {
                id: "rack".to_string(),
                origin: Origin::File { file: "sidecore.toml".to_string(), line: 1 },
                mtu: 1500,
                key_file: None,
                end,
            })
        };
        let client = |iohosts: &[&str]| {
            let peers = iohosts.iter().map(|at| LinkPeer::Udp(at.parse().expect("an address")));
            with(LinkEnd::Client {
                interface: None,
                iohosts: peers.collect(),
                iohost_key: None,
                fail_after_s: None,
                keep_bytes: 0,
            })
        };
        assert_eq!(client(&["10.0.0.1:7447", "10.0.0.2:7447"]), 1472);
        assert_eq!(client(&["[fd00::1]:7447"]), 1452);
        assert_eq!(client(&["10.0.0.1:7447", "[fd00::2]:7447"]), 1452);
        let iohost = |listen| {
            with(LinkEnd::Iohost {
                listen,
                lease_s: 10,
                memory_bytes: 0,
                sidecores: 1,
                clients: Vec::new(),
            })
        };
        let udp = |at: &str| LinkAt::Udp(at.parse().expect("an address"));
        assert_eq!(iohost(udp("0.0.0.0:7447")), 1472);
        assert_eq!(iohost(udp("[::]:7447")), 1452);
        let on = LinkInterface { name: "eth1".to_string(), via: Via::Packet };
        assert_eq!(iohost(LinkAt::Interface(on)), 1498);
    }
}
