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
    use proptest::prelude::*;

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

    #[test]
    fn what_is_missing_is_said_beside_the_kernel_s_word() {
        for (code, is_missing) in [(libc::ENOENT, true), (libc::ENODEV, true), (libc::EPERM, false)]
        {
            let error = explain(io::Error::from_raw_os_error(code), "no VDUSE");
            assert_eq!(error.to_string().starts_with("no VDUSE: "), is_missing, "{error}");
        }
    }

    proptest! {
        /// Whatever a datagram has in it.
        #[test]
        fn any_datagram_is_an_answer_or_none(bytes in prop::collection::vec(0u8..8, 0..80), is_error in any::<bool>()) {
            let mut bytes = bytes;
            if is_error && bytes.len() > 5 {
                bytes[4..6].copy_from_slice(&ERROR.to_ne_bytes());
            }
            let is_error = bytes.get(4..6) == Some(&ERROR.to_ne_bytes()[..]);
            match read(&bytes) {
                Ok(Heard::Done) => prop_assert!(is_error && bytes[16..20] == [0; 4]),
                Ok(Heard::Family(family)) => {
                    prop_assert!(!is_error);
                    let named = [&FAMILY_ID.to_ne_bytes()[..], &family.to_ne_bytes()].concat();
                    prop_assert!(bytes[22..].windows(4).any(|part| part == named));
                }
                Ok(Heard::Other) => prop_assert!(!is_error && bytes.len() > 5),
                // Words of the kernel, or too few bytes for any.
                Err(error) => prop_assert!(is_error || error.raw_os_error().is_none()),
            }
        }

        /// Names and lengths, as the kernel checks them.
        #[test]
        fn any_name_is_one_attribute(name in "[a-z]{0,255}", command in any::<u8>(), family in any::<u16>()) {
            let bytes = message(family, command, &[(MANAGEMENT_NAME, "vduse"), (DEV_NAME, &name)]);
            let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
            prop_assert_eq!((bytes.len() % 4, half(0) as usize, half(2)), (0, bytes.len(), 0));
            prop_assert_eq!((half(4), bytes[16]), (family, command));
            let at = 20 + 12;
            prop_assert_eq!((half(20), half(22), half(at), half(at + 2)), (10, 2, name.len() as u16 + 5, 4));
            prop_assert_eq!(&bytes[at + 4..at + 4 + name.len()], name.as_bytes());
            prop_assert!(bytes[at + 4 + name.len()..].iter().all(|byte| *byte == 0));
        }
    }
}
