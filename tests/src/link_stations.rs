//! The two ends of a wire without IP: a pair of interfaces in a test's own namespace (`own_network`), one for the VM host
//! and one for the IOhost.

use anyhow::{Context, Result};
use serde_json::Value;
use testing::own_network::{ip, ip_says};

/// How a link reaches its interface, and what protects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Packet sockets, sealed.
    Packet,
    /// Packet sockets, without keys.
    PlainPacket,
    /// AF_XDP: in the interface's driver, where that cannot, in the stack. Sealed.
    Xdp,
}

impl Via {
    /// As it stands in a daemon's file.
    pub fn word(self) -> &'static str {
        if self == Via::Xdp { "xdp" } else { "packet" }
    }
}

/// A pair of interfaces; it goes with its namespace.
#[derive(Debug)]
pub struct Stations {
    mtu: u32,
    via: Via,
}

impl Stations {
    /// The VM host's interface.
    pub const HERE: &str = "vmhost";
    /// The IOhost's.
    pub const THERE: &str = "iohost";

    /// Makes it in this process's namespace, with that MTU and so many queues at each end.
    ///
    /// # Errors
    /// The system's.
    pub fn new(via: Via, mtu: u32, queues: u32) -> Result<Stations> {
        let (here, there) = (Stations::HERE, Stations::THERE);
        let end = format!("mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
        ip("link set lo up")?;
        ip(&format!("link add {here} {end} type veth peer name {there} {end}"))?;
        ip(&format!("link set {here} up"))?;
        ip(&format!("link set {there} up"))?;
        Ok(Stations { mtu, via })
    }

    /// Its MTU.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// How a link reaches it.
    pub fn via(&self) -> Via {
        self.via
    }

    /// The address of the IOhost's station.
    ///
    /// # Errors
    /// There is none.
    pub fn address(&self) -> Result<String> {
        let said = ip_says(&format!("-json link show {}", Stations::THERE))?;
        let shown: Value = serde_json::from_str(&said)?;
        let address = shown[0]["address"].as_str();
        Ok(address.with_context(|| format!("no address in {said}"))?.to_string())
    }

    /// Where the IOhost listens, as lines of its link.
    pub fn at(&self) -> String {
        format!(
            "via = \"{}\"\ninterface = \"{}\"\nmtu = {}",
            self.via.word(),
            Self::THERE,
            self.mtu
        )
    }
}
