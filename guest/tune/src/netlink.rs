//! A socket to the kernel's `ethtool` family. Nothing is kept between questions but the family's number.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use tuning::Trouble;
use tuning::ethtool::{self, REPLY_BYTES_MAX, Reply};

/// The kernel answers at once; this ends a wait for an answer that was lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// The socket.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    family: u16,
}

impl Netlink {
    /// Opens it.
    ///
    /// # Errors
    /// The kernel has no such family: [`Trouble::Absent`].
    pub(crate) fn open() -> Result<Netlink, Trouble> {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::RAW;
        let socket = socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::GENERIC));
        let socket = socket.map_err(trouble)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).map_err(trouble)?;
        let told = asked(&socket, &ethtool::family_request())?;
        let family = ethtool::family(&told).ok_or(Trouble::Absent)?;
        Ok(Netlink { socket, family })
    }

    /// A parameter's value.
    ///
    /// # Errors
    /// The NIC or its driver has none, or the kernel refuses.
    pub(crate) fn get(&self, nic: &str, parameter: &str) -> Result<String, Trouble> {
        let request = ethtool::get(self.family, nic, parameter).ok_or(Trouble::Absent)?;
        let told = asked(&self.socket, &request)?;
        ethtool::told(&told, parameter).ok_or(Trouble::Absent)
    }

    /// Sets a parameter.
    ///
    /// # Errors
    /// As [`Netlink::get`].
    pub(crate) fn set(&self, nic: &str, parameter: &str, value: &str) -> Result<(), Trouble> {
        let request = ethtool::set(self.family, nic, parameter, value).ok_or(Trouble::Absent)?;
        asked(&self.socket, &request).map(drop).map_err(|trouble| match trouble {
            Trouble::Absent => Trouble::Refused("the driver does not offer it".to_owned()),
            other => other,
        })
    }
}

/// Asks, and waits for the answer: attributes, or none where something was done.
fn asked(socket: &OwnedFd, request: &[u8]) -> Result<Vec<u8>, Trouble> {
    retry_on_intr(|| send(socket, request, SendFlags::empty())).map_err(trouble)?;
    let mut bytes = vec![0; REPLY_BYTES_MAX];
    let received = retry_on_intr(|| recv(socket, bytes.as_mut_slice(), RecvFlags::TRUNC));
    let (_, length) = received.map_err(trouble)?;
    if length > REPLY_BYTES_MAX {
        return Err(Trouble::TooLong);
    }
    match ethtool::reply(&bytes[..length]) {
        Some(Reply::Told(told)) => Ok(told.to_vec()),
        Some(Reply::Ended(0)) => Ok(Vec::new()),
        Some(Reply::Ended(error)) => Err(trouble(Errno::from_raw_os_error(error.wrapping_neg()))),
        None => Err(Trouble::Refused("gave an answer that is not understood".to_owned())),
    }
}

/// What an error means for a setting.
pub(crate) fn trouble(error: Errno) -> Trouble {
    match error {
        Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP | Errno::NOTDIR => Trouble::Absent,
        error => Trouble::Refused(std::io::Error::from(error).to_string()),
    }
}
