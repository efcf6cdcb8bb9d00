//! Where a frame of a link came from or goes: an address and port, or a station of a wire.
//!
//! Small and plain, since every frame has one. Made by control (what an operator wrote) and by `socket`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::sys::datagrams::{NAME_BYTES, Name};

/// Bytes of the longest: kind, IPv6 address, scope, port.
const BYTES_MAX: usize = 23;
const IPV4: u8 = 4;
const IPV6: u8 = 6;
const STATION: u8 = 1;

/// An end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// Its kind, then what it is, then zeroes.
    bytes: [u8; BYTES_MAX],
    len: u8,
}

impl Address {
    /// A port of an IP address. An IPv4 address in IPv6's clothes is the IPv4 address.
    pub fn udp(at: SocketAddr) -> Address {
        let port = at.port().to_be_bytes();
        match (at.ip().to_canonical(), at) {
            (IpAddr::V4(ip), _) => Address::of(&[&[IPV4], &ip.octets(), &port]),
            (IpAddr::V6(ip), SocketAddr::V6(at)) => {
                Address::of(&[&[IPV6], &ip.octets(), &at.scope_id().to_be_bytes(), &port])
            }
            (IpAddr::V6(ip), _) => Address::of(&[&[IPV6], &ip.octets(), &[0; 4], &port]),
        }
    }

    /// A station of the wire that a link is bound to.
    pub fn station(mac: [u8; 6]) -> Address {
        Address::of(&[&[STATION], &mac])
    }

    /// The same bytes for the same end, and for no other one.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Whether both may be one sender's, whatever port it takes, and of IPv6 whatever address of a network.
    pub fn is_one_sender(&self, other: &Address) -> bool {
        let known = |address: &Address| match address.bytes[0] {
            IPV4 => 5,
            IPV6 => 9,
            _ => BYTES_MAX,
        };
        self.bytes[..known(self)] == other.bytes[..known(other)]
    }

    /// The port of an IP address, if it is one.
    pub fn as_udp(&self) -> Option<SocketAddr> {
        let (kind, rest) = self.as_bytes().split_first()?;
        let (ip, port): (IpAddr, &[u8]) = match *kind {
            IPV4 => {
                let (ip, port) = rest.split_first_chunk::<4>()?;
                (Ipv4Addr::from(*ip).into(), port)
            }
            IPV6 => {
                let (ip, rest) = rest.split_first_chunk::<16>()?;
                let (scope, port) = rest.split_first_chunk::<4>()?;
                let port = u16::from_be_bytes(*port.first_chunk()?);
                let (ip, scope) = (Ipv6Addr::from(*ip), u32::from_be_bytes(*scope));
                return Some(std::net::SocketAddrV6::new(ip, port, 0, scope).into());
            }
            _ => return None,
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(*port.first_chunk()?)))
    }

    /// The station of a wire, if it is one.
    pub fn as_station(&self) -> Option<[u8; 6]> {
        let (kind, rest) = self.as_bytes().split_first()?;
        if *kind == STATION { rest.first_chunk().copied() } else { None }
    }

    fn of(parts: &[&[u8]]) -> Address {
        let mut address = Address { bytes: [0; BYTES_MAX], len: 0 };
        for part in parts {
            let at = usize::from(address.len);
            if let Some(place) = address.bytes.get_mut(at..at + part.len()) {
                place.copy_from_slice(part);
                address.len += part.len() as u8;
            }
        }
        address
    }

    /// As the kernel wants it: for a station the one on interface `index`, with frames of `kind`; for a socket
    /// of IPv6 an IPv4 address in its clothes. `None` when a socket like that cannot reach it.
    pub(super) fn name(&self, of: Family) -> Option<Name> {
        let mut name = Name::default();
        let mut put = |bytes: &[u8]| {
            let at = name.len as usize;
            if let Some(place) = name.bytes.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
                name.len += bytes.len() as u32;
            }
        };
        match of {
            Family::Station { index, kind } => {
                let mac = self.as_station()?;
                put(&(libc::AF_PACKET as u16).to_ne_bytes());
                put(&kind.to_be_bytes());
                put(&index.to_ne_bytes());
                put(&[0, 0, 0, 6]);
                put(&mac);
                put(&[0, 0]);
            }
            Family::Ipv4 => {
                let SocketAddr::V4(at) = self.as_udp()? else { return None };
                put(&(libc::AF_INET as u16).to_ne_bytes());
                put(&at.port().to_be_bytes());
                put(&at.ip().octets());
                put(&[0; 8]);
            }
            Family::Ipv6 => {
                let at = self.as_udp()?;
                let (ip, scope) = match at {
                    SocketAddr::V4(at) => (at.ip().to_ipv6_mapped(), 0),
                    SocketAddr::V6(at) => (*at.ip(), at.scope_id()),
                };
                put(&(libc::AF_INET6 as u16).to_ne_bytes());
                put(&at.port().to_be_bytes());
                put(&[0; 4]);
                put(&ip.octets());
                put(&scope.to_ne_bytes());
            }
        }
        Some(name)
    }

    /// What the kernel wrote. `None` for another kind, for a port that nothing can be sent to, and for a frame that was not for this host alone.
    pub(super) fn of_name(name: &Name) -> Option<Address> {
        let bytes = name.bytes.get(..(name.len as usize).min(NAME_BYTES))?;
        let (family, rest) = bytes.split_first_chunk::<2>()?;
        let port = rest.first_chunk::<2>().map(|port| u16::from_be_bytes(*port));
        match i32::from(u16::from_ne_bytes(*family)) {
            libc::AF_INET => {
                let ip: [u8; 4] = *rest.get(2..)?.first_chunk()?;
                let port = port.filter(|port| *port > 0);
                Some(Address::udp(SocketAddr::new(Ipv4Addr::from(ip).into(), port?)))
            }
            libc::AF_INET6 => {
                let ip: [u8; 16] = *rest.get(6..)?.first_chunk()?;
                let port = port.filter(|port| *port > 0);
                let scope = u32::from_ne_bytes(*rest.get(22..)?.first_chunk()?);
                let at = std::net::SocketAddrV6::new(Ipv6Addr::from(ip), port?, 0, scope);
                Some(Address::udp(at.into()))
            }
            libc::AF_PACKET => {
                let (is_for_us, len) = (*rest.get(8)? == libc::PACKET_HOST, *rest.get(9)?);
                let mac: [u8; 6] = *rest.get(10..)?.first_chunk()?;
                (is_for_us && len == 6).then(|| Address::station(mac))
            }
            _ => None,
        }
    }
}

/// What a socket's addresses are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Ipv4,
    Ipv6,
    Station { index: i32, kind: u16 },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.as_udp(), self.as_station()) {
            (Some(at), _) => write!(f, "{at}"),
            (None, Some([a, b, c, d, e, g])) => {
                write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
            }
            (None, None) => f.write_str("nowhere"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_same_however_it_came() {
        let at = |text: &str| Address::udp(text.parse().expect("an address"));
        for (text, family) in [
            ("10.1.2.3:7447", Family::Ipv4),
            ("10.1.2.3:7447", Family::Ipv6),
            ("[fe80::1]:9", Family::Ipv6),
        ] {
            let name = at(text).name(family).expect("a name");
            assert_eq!(Address::of_name(&name), Some(at(text)));
            assert_eq!(at(text).to_string(), text);
        }
        assert_eq!(at("[::ffff:10.1.2.3]:7447"), at("10.1.2.3:7447"));
        assert_eq!(at("[fe80::1]:9").name(Family::Ipv4), None);
        let scoped = std::net::SocketAddrV6::new("fe80::1".parse().expect("one"), 9, 0, 3);
        let name = Address::udp(scoped.into()).name(Family::Ipv6).expect("a name");
        assert_eq!(Address::of_name(&name), Some(Address::udp(scoped.into())));
        assert_ne!(Address::udp(scoped.into()).as_bytes(), at("[fe80::1]:9").as_bytes());
    }

    #[test]
    fn one_sender_has_many_ports_and_of_ipv6_many_addresses() {
        let at = |text: &str| Address::udp(text.parse().expect("an address"));
        let is_one = |a: &str, b: &str| at(a).is_one_sender(&at(b));
        assert!(is_one("10.1.2.3:7447", "10.1.2.3:9") && !is_one("10.1.2.3:9", "10.1.2.4:9"));
        assert!(is_one("[2001:db8::1]:1", "[2001:db8::2:1]:2"));
        assert!(!is_one("[2001:db8:0:1::1]:1", "[2001:db8::1]:1"));
        let [one, other] = [1, 2].map(|last| Address::station([2, 0, 0, 0, 0, last]));
        assert!(one.is_one_sender(&one) && !one.is_one_sender(&other));
        assert!(!one.is_one_sender(&at("10.1.2.3:9")));
    }

    #[test]
    fn a_station_is_known_by_frames_for_this_host_alone() {
        let station = Address::station([2, 0, 0, 0, 0, 0xfe]);
        assert_eq!(station.to_string(), "02:00:00:00:00:fe");
        let family = Family::Station { index: 3, kind: 0x88b5 };
        let mut name = station.name(family).expect("a name");
        assert_eq!(name.len, 20);
        assert_eq!(Address::of_name(&name), Some(station));
        // PACKET_BROADCAST
        name.bytes[10] = 1;
        assert_eq!(Address::of_name(&name), None);
        assert_eq!(station.name(Family::Ipv6), None);
    }
}
