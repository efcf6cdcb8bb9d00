//! One link: resolved from its spec, and compared with its neighbours. What it and devices must agree about: `agreement`.

use core::fmt;
use core::net::SocketAddr;
use std::collections::HashSet;

use super::names::{self, Named, Origin, PATH_MAX, check_bounds, check_interface};
use crate::key;
use crate::mac::{MAC_HINT, Mac};
use crate::mistake::{Mistake, Path};
use crate::size::Size;
use crate::spec::{
    DISKS_MAX, FAIL_AFTER_S, IOHOSTS_MAX, KEEP_BYTES, KEEP_DEFAULT, LEASE_DEFAULT_S, LEASE_S,
    LINK_CLIENTS_MAX, LINK_MEMORY_DEFAULT, LINK_MEMORY_MIN, LINK_MTU, LINK_SIDECORES,
    LINK_XDP_MTU_MAX, LINKS_MAX, LinkClientSpec, LinkRole, LinkSecurity, LinkSpec, NICS_MAX, Via,
};

mod agreement;

pub(super) use agreement::{check_disks, check_nics};

/// One link, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPlan {
    /// Its name.
    pub id: String,
    /// Where it was declared: always in the file.
    pub origin: Origin,
    /// Bytes of the longest IP packet, 700 to 9,000.
    pub mtu: u16,
    /// The file with this end's private key; `None` where security is `none`.
    pub key_file: Option<String>,
    /// What only one of the two ends has.
    pub end: LinkEnd,
}

/// What only one of the two ends has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// Disks of this daemon are served to others.
    Iohost {
        /// Where clients send to.
        listen: LinkAt,
        /// Seconds after which a silent client loses what it has, 1 to 600.
        lease_s: u32,
        /// Bytes for what clients have outstanding.
        memory_bytes: u64,
        /// Sidecores that serve it at most, 1 to 16.
        sidecores: usize,
        /// Who may come, and what each may have. Where security is `none` there is one, without a key.
        clients: Vec<LinkClientPlan>,
    },
    /// Disks of others are served here.
    Client {
        /// The interface, if that is without IP: then the IOhosts are stations.
        interface: Option<LinkInterface>,
        /// In the order in which they are tried: 1 to 8.
        iohosts: Vec<LinkPeer>,
        /// Their public key; `None` where security is `none`.
        iohost_key: Option<[u8; key::KEY_BYTES]>,
        /// Seconds of silence after which requests fail; `None`: they wait.
        fail_after_s: Option<u32>,
        /// Bytes of writes of each disk that are kept until they are flushed.
        keep_bytes: u32,
    },
}

/// Where an IOhost's link is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkAt {
    /// An address and port of UDP.
    Udp(SocketAddr),
    /// An interface, without IP.
    Interface(LinkInterface),
}

/// An interface that a link is on, without IP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkInterface {
    /// Its name.
    pub name: String,
    /// How frames come and go.
    pub via: Via,
}

/// Where a client sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPeer {
    /// An address and port of UDP.
    Udp(SocketAddr),
    /// A station of the interface's Ethernet.
    Station(Mac),
}

impl fmt::Display for LinkAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkAt::Udp(address) => address.fmt(f),
            LinkAt::Interface(on) => f.write_str(&on.name),
        }
    }
}

impl fmt::Display for LinkPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkPeer::Udp(address) => address.fmt(f),
            LinkPeer::Station(mac) => mac.fmt(f),
        }
    }
}

/// One client of an IOhost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkClientPlan {
    /// For messages.
    pub name: String,
    /// Its public key; `None` where security is `none`.
    pub key: Option<[u8; key::KEY_BYTES]>,
    /// The disks that it may have, each a disk of this plan.
    pub disks: Vec<String>,
    /// The NICs that it may have, by the names of switches' uplinks.
    pub nics: Vec<String>,
}

impl LinkPlan {
    /// Which end it is.
    pub fn role(&self) -> LinkRole {
        match self.end {
            LinkEnd::Iohost { .. } => LinkRole::Iohost,
            LinkEnd::Client { .. } => LinkRole::Client,
        }
    }

    /// Its clients; none of a client's own.
    pub fn clients(&self) -> &[LinkClientPlan] {
        match &self.end {
            LinkEnd::Iohost { clients, .. } => clients,
            LinkEnd::Client { .. } => &[],
        }
    }

    /// The interface that it is on, if that is without IP.
    pub fn interface(&self) -> Option<&LinkInterface> {
        match &self.end {
            LinkEnd::Iohost { listen: LinkAt::Interface(on), .. } => Some(on),
            LinkEnd::Client { interface, .. } => interface.as_ref(),
            LinkEnd::Iohost { .. } => None,
        }
    }

    /// The address and UDP port that it listens at, if it does.
    pub fn udp(&self) -> Option<SocketAddr> {
        match self.end {
            LinkEnd::Iohost { listen: LinkAt::Udp(address), .. } => Some(address),
            _ => None,
        }
    }

    fn named(&self) -> Named<'_> {
        Named { kind: "link", id: &self.id, origin: &self.origin, socket: None }
    }
}

/// The links of a file. `line_of` says where each begins.
pub(super) fn resolve_all(
    specs: &[LinkSpec],
    folder: &str,
    origin: impl Fn(&Path) -> Origin,
    mistakes: &mut Vec<Mistake>,
) -> Vec<LinkPlan> {
    if specs.len() > LINKS_MAX {
        let wrong = format!("{} links are too many", specs.len());
        let at = Path::item("link", LINKS_MAX);
        mistakes.push(Mistake::new(at, wrong, format!("at most {LINKS_MAX}")));
        return Vec::new();
    }
    let mut links: Vec<LinkPlan> = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let at = Path::item("link", index);
        let Some(link) = resolve(spec, folder, origin(&at), &at, mistakes) else { continue };
        let others: Vec<Named<'_>> = links.iter().map(LinkPlan::named).collect();
        link.named().clashes(&others, None, &at, mistakes);
        if let LinkEnd::Iohost { listen, .. } = &link.end
            && let Some(other) = links.iter().find(|other| listens_at(other, listen))
        {
            let wrong = format!("{listen} is where {} listens", other.named().text());
            let (field, right) = match listen {
                LinkAt::Udp(_) => ("udp", "give each link an address or a port of its own"),
                LinkAt::Interface(_) => ("interface", "give each link an interface of its own"),
            };
            mistakes.push(Mistake::new(at.key(field), wrong, right));
        } else if let Some(other) = links.iter().find(|other| shares_program(&link, other)) {
            let wrong = format!("{} goes by AF_XDP on the same interface", other.named().text());
            let right = "an interface has one XDP program: give each an interface of its own, or let one go via \"packet\"";
            mistakes.push(Mistake::new(at.key("via"), wrong, right));
        }
        links.push(link);
    }
    links
}

/// Whether both would attach a program to one interface.
fn shares_program(link: &LinkPlan, other: &LinkPlan) -> bool {
    let on = link.interface().filter(|on| on.via == Via::Xdp);
    on.is_some() && other.interface() == on
}

/// The names of links that are written and came to nothing.
pub(super) fn mistaken<'a>(specs: &'a [LinkSpec], links: &[LinkPlan]) -> HashSet<&'a str> {
    let is_none = |spec: &&LinkSpec| links.iter().all(|link| link.id != spec.id);
    specs.iter().filter(is_none).map(|spec| spec.id.as_str()).collect()
}

fn listens_at(link: &LinkPlan, at: &LinkAt) -> bool {
    let LinkEnd::Iohost { listen, .. } = &link.end else { return false };
    let (mine, theirs) = match (listen, at) {
        (LinkAt::Udp(mine), LinkAt::Udp(theirs)) => (mine, theirs),
        (LinkAt::Interface(mine), LinkAt::Interface(theirs)) => return mine.name == theirs.name,
        _ => return false,
    };
    let (one, other) = (mine.ip(), theirs.ip());
    let overlaps = one == other || one.is_unspecified() || other.is_unspecified();
    overlaps && mine.port() == theirs.port()
}

fn resolve(
    spec: &LinkSpec,
    folder: &str,
    origin: Origin,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<LinkPlan> {
    let before = mistakes.len();
    names::check_id(&spec.id, &at.key("id"), mistakes);
    check_fields(spec, at, mistakes);
    check_bounds(spec.mtu.into(), LINK_MTU, &at.key("mtu"), mistakes);
    if let Some(interface) = &spec.interface {
        check_interface(interface, &at.key("interface"), mistakes);
    }
    check_via(spec, at, mistakes);
    let key_file = resolve_key_file(spec, folder, at, mistakes);
    let end = match spec.role {
        LinkRole::Iohost => iohost(spec, at, mistakes),
        LinkRole::Client => client(spec, at, mistakes),
    };
    if mistakes.len() > before {
        return None;
    }
    Some(LinkPlan { id: spec.id.clone(), origin, mtu: spec.mtu, key_file, end: end? })
}

fn check_via(spec: &LinkSpec, at: &Path, mistakes: &mut Vec<Mistake>) {
    if spec.via.is_some() && spec.interface.is_none() {
        let wrong = "there is `via`, but no `interface`";
        let right = "take `via` out, or name an `interface`";
        mistakes.push(Mistake::new(at.key("via"), wrong, right));
    } else if spec.via == Some(Via::Xdp) && spec.mtu > LINK_XDP_MTU_MAX {
        let wrong = format!("{} is too large for via = \"xdp\"", spec.mtu);
        let right = format!("at most {LINK_XDP_MTU_MAX}, or via = \"packet\"");
        mistakes.push(Mistake::new(at.key("mtu"), wrong, right));
    }
}

/// The interface of a link, as it was written.
fn interface(spec: &LinkSpec) -> Option<LinkInterface> {
    let name = spec.interface.clone()?;
    Some(LinkInterface { name, via: spec.via.unwrap_or_default() })
}

/// Refuses what only the other end has.
fn check_fields(spec: &LinkSpec, at: &Path, mistakes: &mut Vec<Mistake>) {
    let LinkSpec { role, .. } = spec;
    let given = [
        ("udp", spec.udp.is_some(), LinkRole::Iohost),
        ("lease_s", spec.lease_s.is_some(), LinkRole::Iohost),
        ("memory", spec.memory.is_some(), LinkRole::Iohost),
        ("sidecores", spec.sidecores.is_some(), LinkRole::Iohost),
        ("client", !spec.client.is_empty(), LinkRole::Iohost),
        ("iohosts", !spec.iohosts.is_empty(), LinkRole::Client),
        ("iohost_key", spec.iohost_key.is_some(), LinkRole::Client),
        ("fail_after_s", spec.fail_after_s.is_some(), LinkRole::Client),
        ("keep", spec.keep.is_some(), LinkRole::Client),
    ];
    for (name, is_given, owner) in given {
        if is_given && owner != *role {
            let wrong = format!("a link with role \"{role}\" has no `{name}`");
            let right = format!("take `{name}` out, or make the role \"{owner}\"");
            mistakes.push(Mistake::new(at.key(name), wrong, right));
        }
    }
}

fn resolve_key_file(
    spec: &LinkSpec,
    folder: &str,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<String> {
    match (spec.security, &spec.key_file) {
        (LinkSecurity::Noise, Some(written)) => {
            names::absolute_file(written, Some(folder), PATH_MAX, &at.key("key_file"), mistakes)
        }
        (LinkSecurity::Noise, None) => {
            let right = "make one with `sidecore link key FILE` and name it with `key_file`; on a cable that \
                         nobody else can reach, write security = \"none\"";
            mistakes.push(Mistake::new(at.clone(), "the link has no key", right));
            None
        }
        (LinkSecurity::None, given) => {
            for (name, is_given) in
                [("key_file", given.is_some()), ("iohost_key", spec.iohost_key.is_some())]
            {
                if is_given {
                    let wrong = format!("with security = \"none\" there is no `{name}`");
                    let right = format!("take `{name}` out, or take `security` out");
                    mistakes.push(Mistake::new(at.key(name), wrong, right));
                }
            }
            None
        }
    }
}

fn iohost(spec: &LinkSpec, at: &Path, mistakes: &mut Vec<Mistake>) -> Option<LinkEnd> {
    let listen = match (&spec.udp, &spec.interface) {
        (Some(written), None) => address(written, &at.key("udp"), mistakes).map(LinkAt::Udp),
        (None, Some(_)) => interface(spec).map(LinkAt::Interface),
        (Some(_), Some(_)) => {
            let wrong = "`udp` and `interface` are two ways";
            mistakes.push(Mistake::new(at.key("interface"), wrong, "make a link of each"));
            None
        }
        (None, None) => {
            let right = "add `udp`: the address and port that clients send to, such as \"0.0.0.0:7447\"; or `interface`, \
                 for an Ethernet without IP";
            mistakes.push(Mistake::new(at.clone(), "the IOhost listens nowhere", right));
            None
        }
    };
    let lease_s = spec.lease_s.unwrap_or(LEASE_DEFAULT_S);
    check_bounds(lease_s, LEASE_S, &at.key("lease_s"), mistakes);
    let Size(memory_bytes) = spec.memory.unwrap_or(Size(LINK_MEMORY_DEFAULT));
    if memory_bytes < LINK_MEMORY_MIN {
        let wrong = format!("{} is too little memory", Size(memory_bytes));
        let right = format!("at least {}", Size(LINK_MEMORY_MIN));
        mistakes.push(Mistake::new(at.key("memory"), wrong, right));
    }
    let sidecores = spec.sidecores.unwrap_or(LINK_SIDECORES.1);
    check_bounds(sidecores, LINK_SIDECORES, &at.key("sidecores"), mistakes);
    let (clients, sidecores) = (clients(spec, at, mistakes), sidecores as usize);
    Some(LinkEnd::Iohost { listen: listen?, lease_s, memory_bytes, sidecores, clients })
}

fn clients(spec: &LinkSpec, at: &Path, mistakes: &mut Vec<Mistake>) -> Vec<LinkClientPlan> {
    let list = at.key("client");
    let most = match spec.security {
        LinkSecurity::Noise => LINK_CLIENTS_MAX,
        LinkSecurity::None => 1,
    };
    if spec.client.len() > most {
        let wrong = format!("{} clients are too many", spec.client.len());
        let right = match spec.security {
            LinkSecurity::Noise => format!("at most {most}"),
            LinkSecurity::None => {
                "without keys clients cannot be told apart: name one, and all disks with \
                                   it"
                .to_string()
            }
        };
        mistakes.push(Mistake::new(list.index(most), wrong, right));
        return Vec::new();
    }
    if spec.client.is_empty() {
        let right = "add [[link.client]] with `name`, `key` and `disks`";
        mistakes.push(Mistake::new(at.clone(), "the IOhost has no clients", right));
    }
    let mut made: Vec<LinkClientPlan> = Vec::new();
    for (index, one) in spec.client.iter().enumerate() {
        let at = list.index(index);
        let Some(client) = one_client(one, spec.security, &at, mistakes) else { continue };
        if made.iter().any(|other| other.name == client.name) {
            let wrong = format!("there are two clients {:?}", client.name);
            mistakes.push(Mistake::new(at.key("name"), wrong, "give each a name of its own"));
        } else if let Some(other) = made.iter().find(|it| it.key.is_some() && it.key == client.key)
        {
            let wrong = format!("the key is that of client {:?}", other.name);
            let right = "give each machine a key of its own, or name its disks in one place";
            mistakes.push(Mistake::new(at.key("key"), wrong, right));
        }
        made.push(client);
    }
    made
}

fn one_client(
    spec: &LinkClientSpec,
    security: LinkSecurity,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<LinkClientPlan> {
    let before = mistakes.len();
    names::check_id(&spec.name, &at.key("name"), mistakes);
    let key = match (security, &spec.key) {
        (LinkSecurity::Noise, Some(written)) => public_key(written, &at.key("key"), mistakes),
        (LinkSecurity::Noise, None) => {
            let wrong = format!("client {:?} has no key", spec.name);
            let right = "add `key`: what `sidecore link key` prints on that machine";
            mistakes.push(Mistake::new(at.clone(), wrong, right));
            None
        }
        (LinkSecurity::None, Some(_)) => {
            let wrong = "with security = \"none\" there is no `key`";
            let right = "take `key` out, or take `security` out";
            mistakes.push(Mistake::new(at.key("key"), wrong, right));
            None
        }
        (LinkSecurity::None, None) => None,
    };
    let most = [("disks", spec.disks.len(), DISKS_MAX), ("nics", spec.nics.len(), NICS_MAX)];
    for (what, count, most) in most {
        if count > most {
            let wrong = format!("{count} {what} are too many");
            mistakes.push(Mistake::new(at.key(what).index(most), wrong, format!("at most {most}")));
        }
    }
    let (disks, nics) = (spec.disks.clone(), spec.nics.clone());
    (mistakes.len() == before).then(|| LinkClientPlan { name: spec.name.clone(), key, disks, nics })
}

fn client(spec: &LinkSpec, at: &Path, mistakes: &mut Vec<Mistake>) -> Option<LinkEnd> {
    let list = at.key("iohosts");
    let mut iohosts = Vec::new();
    for (index, written) in spec.iohosts.iter().enumerate().take(IOHOSTS_MAX) {
        iohosts.extend(peer(written, spec.interface.is_some(), &list.index(index), mistakes));
    }
    if spec.iohosts.is_empty() {
        let right = "add `iohosts`, such as [\"10.0.0.1:7447\"]";
        mistakes.push(Mistake::new(at.clone(), "the client knows no IOhost", right));
    }
    if spec.iohosts.len() > IOHOSTS_MAX {
        let wrong = format!("{} IOhosts are too many", spec.iohosts.len());
        let right = format!("at most {IOHOSTS_MAX}");
        mistakes.push(Mistake::new(list.index(IOHOSTS_MAX), wrong, right));
    }
    for (index, iohost) in iohosts.iter().enumerate() {
        if matches!(iohost, LinkPeer::Udp(at) if at.ip().is_unspecified()) {
            let wrong = format!("{iohost} is no address that can be sent to");
            mistakes.push(Mistake::new(list.index(index), wrong, "name the IOhost's own address"));
        }
    }
    let iohost_key = match (spec.security, &spec.iohost_key) {
        (LinkSecurity::Noise, Some(written)) => {
            Some(public_key(written, &at.key("iohost_key"), mistakes)?)
        }
        (LinkSecurity::Noise, None) => {
            let right = "add `iohost_key`: what `sidecore link key` prints at the IOhost";
            mistakes.push(Mistake::new(at.clone(), "the IOhost's key is not known", right));
            None
        }
        (LinkSecurity::None, _) => None,
    };
    if let Some(fail_after_s) = spec.fail_after_s {
        check_bounds(fail_after_s, FAIL_AFTER_S, &at.key("fail_after_s"), mistakes);
    }
    let keep_bytes = kept(spec.keep, &at.key("keep"), mistakes);
    let (interface, fail_after_s) = (interface(spec), spec.fail_after_s);
    Some(LinkEnd::Client { interface, iohosts, iohost_key, fail_after_s, keep_bytes })
}

fn kept(written: Option<Size>, at: &Path, mistakes: &mut Vec<Mistake>) -> u32 {
    let Size(bytes) = written.unwrap_or(Size(KEEP_DEFAULT));
    let (least, most) = KEEP_BYTES;
    if bytes != 0 && !(least..=most).contains(&bytes) {
        let wrong = format!("{} is not a size for what is kept", Size(bytes));
        let right = format!("{} to {}, or 0 for nothing", Size(least), Size(most));
        mistakes.push(Mistake::new(at.clone(), wrong, right));
    }
    u32::try_from(bytes).unwrap_or(0)
}

/// One IOhost as a client names it.
fn peer(
    written: &str,
    is_station: bool,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<LinkPeer> {
    if !is_station {
        return address(written, at, mistakes).map(LinkPeer::Udp);
    }
    match written.parse::<Mac>().and_then(Mac::check) {
        Ok(mac) => Some(LinkPeer::Station(mac)),
        Err(error) => {
            mistakes.push(Mistake::new(at.clone(), error.to_string(), MAC_HINT));
            None
        }
    }
}

fn address(written: &str, at: &Path, mistakes: &mut Vec<Mistake>) -> Option<SocketAddr> {
    match written.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => Some(address),
        _ => {
            let wrong = format!("{written:?} is not an address with a port");
            let right =
                "write such as \"10.0.0.1:7447\" or \"[fd00::1]:7447\"; names are not looked up";
            mistakes.push(Mistake::new(at.clone(), wrong, right));
            None
        }
    }
}

fn public_key(
    written: &str,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<[u8; key::KEY_BYTES]> {
    let found = key::parse(written).filter(|key| *key != [0; key::KEY_BYTES]);
    if found.is_none() {
        let wrong = "that is no public key";
        let right = "a key has 64 hexadecimal digits, as `sidecore link key` prints them";
        mistakes.push(Mistake::new(at.clone(), wrong, right));
    }
    found
}

#[cfg(test)]
mod tests;
