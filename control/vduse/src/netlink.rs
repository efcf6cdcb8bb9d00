//! `vdpa dev add` and `del`: puts a device of VDUSE on the kernel's vDPA bus, and takes it off.
//!
//! A call of the kernel that returns when the driver has looked at the device, or has let go of it: it waits for that
//! device's I/O. So it is made in a process of its own, which holds nothing that belongs to the device (`device`).

use std::io;

use rustix::net::netlink::GENERIC;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// The family that knows the others (`linux/genetlink.h`).
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Of `linux/vdpa.h`.
const DEV_NEW: u8 = 3;
const DEV_DEL: u8 = 4;
const MANAGEMENT_NAME: u16 = 2;
const DEV_NAME: u16 = 4;
/// Of `linux/netlink.h`.
const REQUEST_AND_ACK: u16 = 1 | 4;
const ERROR: u16 = 2;
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;

/// What is asked of the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Put the device on it.
    Add,
    /// Take the device off.
    Remove,
}

/// Asks, and waits for the driver.
///
/// # Errors
/// The kernel's, with what it means here.
pub fn ask(verb: Verb, name: &str) -> io::Result<()> {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(GENERIC))?;
    let talk = |bytes: &[u8]| -> io::Result<Option<u16>> {
        send(&socket, bytes, SendFlags::empty())?;
        let mut answer = [0; 8192];
        let mut id = None;
        // An answer, if one was asked for, and the acknowledgement.
        for _ in 0..4 {
            let (bytes, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
            match read(&answer[..bytes])? {
                Heard::Family(family) => id = Some(family),
                Heard::Done => return Ok(id),
                Heard::Other => {}
            }
        }
        Err(io::Error::other("the kernel does not come to an end"))
    };
    let family = talk(&message(CONTROLLER, GET_FAMILY, &[(FAMILY_NAME, "vdpa")]));
    let family =
        family.map_err(|error| explain(error, "the kernel has no vDPA (`modprobe vdpa`)"))?;
    let family = family.ok_or_else(|| io::Error::other("the kernel does not name its vDPA"))?;
    let named = (DEV_NAME, name);
    let (bytes, missing) = match verb {
        Verb::Add => (
            message(family, DEV_NEW, &[(MANAGEMENT_NAME, "vduse"), named]),
            "VDUSE is not there (`modprobe vduse`)",
        ),
        Verb::Remove => (message(family, DEV_DEL, &[named]), "there is no such device"),
    };
    talk(&bytes).map(|_| ()).map_err(|error| explain(error, missing))
}

fn explain(error: io::Error, missing: &str) -> io::Error {
    let is_missing = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV));
    if is_missing { io::Error::new(error.kind(), format!("{missing}: {error}")) } else { error }
}

fn message(family: u16, command: u8, attributes: &[(u16, &str)]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes.extend([command, 1, 0, 0]);
    for (kind, text) in attributes {
        bytes.extend((text.len() as u16 + 5).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(text.as_bytes());
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&family.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST_AND_ACK.to_ne_bytes());
    bytes
}

#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Family(u16),
    Done,
    Other,
}

/// One datagram of the kernel: its first message.
fn read(bytes: &[u8]) -> io::Result<Heard> {
    let short = || io::Error::other("the kernel's answer is too short");
    let half = |at: usize| Some(u16::from_ne_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    if half(4).ok_or_else(short)? == ERROR {
        let code = bytes.get(HEADER..HEADER + 4).and_then(|code| code.try_into().ok());
        return match i32::from_ne_bytes(code.ok_or_else(short)?) {
            0 => Ok(Heard::Done),
            code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        };
    }
    let mut at = HEADER + GENERIC_HEADER;
    while let (Some(length), Some(kind)) = (half(at), half(at + 2)) {
        if kind == FAMILY_ID {
            return half(at + 4).map(Heard::Family).ok_or_else(short);
        }
        at += usize::from(length.max(4)).next_multiple_of(4);
    }
    Ok(Heard::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_as_the_kernel_reads_it() {
        let bytes = message(0x1234, DEV_DEL, &[(DEV_NAME, "db")]);
        assert_eq!(bytes.len(), 28);
        assert_eq!((bytes[0], &bytes[4..6]), (28, &0x1234u16.to_ne_bytes()[..]));
        assert_eq!(bytes[16..], [4, 1, 0, 0, 7, 0, 4, 0, b'd', b'b', 0, 0]);
    }

    #[test]
    fn answers_are_read_whatever_they_are() {
        let family = |attributes: &[u8]| [&[0; HEADER + GENERIC_HEADER], attributes].concat();
        let named = family(&[7, 0, 2, 0, b'a', b'b', 0, 0, 6, 0, 1, 0, 30, 0, 0, 0]);
        assert_eq!(read(&named).unwrap(), Heard::Family(30));
        // A length of nothing goes on all the same.
        assert_eq!(read(&family(&[0; 64])).unwrap(), Heard::Other);
        let error = |code: i32| {
            let mut bytes = vec![0; HEADER];
            bytes[4] = 2;
            bytes.extend(code.to_ne_bytes());
            bytes
        };
        assert_eq!(read(&error(0)).unwrap(), Heard::Done);
        assert_eq!(read(&error(-libc::EEXIST)).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        for cut in 0..named.len() {
            let _ = read(&named[..cut]);
        }
        assert!(read(&error(0)[..HEADER]).is_err() && read(&[]).is_err());
    }
}
