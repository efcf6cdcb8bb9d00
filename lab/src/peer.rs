//! The other end of network loads: echo and sink, for datagrams and connections.

use std::net::IpAddr;

/// Serves until it is ended.
///
/// # Errors
/// A port cannot be had.
pub fn serve(_address: IpAddr) -> anyhow::Result<()> {
    anyhow::bail!("not yet")
}
