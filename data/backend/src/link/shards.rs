//! The sockets of an IOhost's link that has several shards: one address for all, and the kernel gives each the frames of
//! the sessions that it has made.
//!
//! Not a socket itself (`socket`), nor what the kernel is told (`sys::steer`). Opened by control, all at once, and each
//! moved to its sidecore.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{bind, sockopt};

use super::kernel::LENGTH_BYTES;
use super::socket::{datagram_socket, station_socket};
use super::xdp::{self, Station};
use super::{LinkOpenError, LinkSocket, LinkSource, LinkWhy};
use crate::sys::steer::{begin_fan_out, join_fan_out, steer_datagrams};

/// The sockets of a link.
#[derive(Debug)]
pub struct LinkShards {
    /// By shard. At least one.
    pub sockets: Vec<LinkSocket>,
    /// Why there are not as many as were asked for: this kernel does not steer.
    pub refused: Option<LinkOpenError>,
}

impl LinkShards {
    /// Opens so many sockets, or one where the kernel refuses to steer.
    ///
    /// # Errors
    /// [`LinkOpenError`], with what helps: not even one.
    pub fn open(source: &LinkSource, shards: usize) -> Result<LinkShards, LinkOpenError> {
        // Whoever joins an address with `SO_REUSEPORT` takes frames of those who are there: another daemon must not.
        let alone = LinkSocket::open(source)?;
        if shards < 2 {
            return Ok(LinkShards { sockets: vec![alone], refused: None });
        }
        let (at, opened) = match source {
            LinkSource::Udp { bind } => {
                let at = alone.local().unwrap_or(*bind);
                drop(alone);
                (format!("udp {bind}"), open_datagrams(at, shards))
            }
            LinkSource::Interface { name } => {
                drop(alone);
                (format!("interface {name}"), open_stations(name, shards))
            }
            LinkSource::Xdp { name } => {
                drop(alone);
                (format!("interface {name}"), open_queues(name, shards))
            }
        };
        match opened {
            Ok(sockets) => Ok(LinkShards { sockets, refused: None }),
            // Somebody was quicker: another attempt may do.
            Err(why @ LinkWhy::InUse) => Err(LinkOpenError { at, why }),
            Err(why) => {
                let refused = Some(LinkOpenError { at, why });
                Ok(LinkShards { sockets: vec![LinkSocket::open(source)?], refused })
            }
        }
    }
}

impl LinkShards {
    /// The sockets of a link that another process had, by shard: the kernel steers to them already, and frames that came
    /// meanwhile wait in them.
    ///
    /// # Errors
    /// They are no sockets of that address, or its interface is gone.
    pub fn inherit(
        source: &LinkSource,
        sockets: Vec<OwnedFd>,
    ) -> Result<LinkShards, LinkOpenError> {
        let at = match source {
            LinkSource::Udp { bind } => format!("udp {bind}"),
            LinkSource::Interface { name } | LinkSource::Xdp { name } => {
                format!("interface {name}")
            }
        };
        let of = |socket| LinkSocket::inherit(source, socket);
        let sockets: Result<Vec<LinkSocket>, LinkWhy> = sockets.into_iter().map(of).collect();
        match sockets {
            Ok(sockets) => Ok(LinkShards { sockets, refused: None }),
            Err(why) => Err(LinkOpenError { at, why }),
        }
    }
}

fn open_datagrams(at: SocketAddr, shards: usize) -> Result<Vec<LinkSocket>, LinkWhy> {
    let failed = |what| move |errno| LinkWhy::os(what, "nothing", errno);
    let mut sockets = Vec::with_capacity(shards);
    for _ in 0..shards {
        let (socket, family) = datagram_socket(at)?;
        sockopt::set_socket_reuseport(&socket, true).map_err(failed("share its address"))?;
        bind(&socket, &at).map_err(failed("bind to it"))?;
        sockets.push((socket, family));
    }
    if let Some((first, _)) = sockets.first() {
        steer_datagrams(first.as_fd(), shards as u32).map_err(failed("steer frames"))?;
    }
    let of_port = |(socket, family)| LinkSocket::of_port(socket, family);
    Ok(sockets.into_iter().map(of_port).collect())
}

fn open_stations(name: &str, shards: usize) -> Result<Vec<LinkSocket>, LinkWhy> {
    Ok(fan_out(name, shards)?.into_iter().map(LinkSocket::of_station).collect())
}

/// Each shard has the queue of its number, if there is one, and its packet socket for what comes by others.
fn open_queues(name: &str, shards: usize) -> Result<Vec<LinkSocket>, LinkWhy> {
    xdp::open(fan_out(name, shards)?)
}

/// Packet sockets of one interface, each of which has the frames of its shard.
fn fan_out(name: &str, shards: usize) -> Result<Vec<Station>, LinkWhy> {
    let failed = |what| move |errno| LinkWhy::os(what, "CAP_NET_RAW", errno);
    let (mut sockets, mut group) = (Vec::with_capacity(shards), None);
    for _ in 0..shards {
        let station = station_socket(name)?;
        match group {
            None => {
                let head = LENGTH_BYTES as u32;
                let begun = begin_fan_out(station.0.as_fd(), head, shards as u32);
                group = Some(begun.map_err(failed("steer frames"))?);
            }
            Some(group) => {
                join_fan_out(station.0.as_fd(), group).map_err(failed("steer frames"))?
            }
        }
        sockets.push(station);
    }
    Ok(sockets)
}
