//! Connects to the socket that its argument names, and hands the connection over by its standard input, a socket: to the
//! daemon it is this process's.
//!
//! Run by `tests/frontend/image_identity.rs`.
#![forbid(unsafe_code)]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

fn main() -> Result<()> {
    let socket = std::env::args_os().nth(1).context("which socket?")?;
    let connection = UnixStream::connect(socket)?;
    let fds = [connection.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(control.push(SendAncillaryMessage::ScmRights(&fds)), "no room for a descriptor");
    sendmsg(std::io::stdin(), &[IoSlice::new(b"d")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
