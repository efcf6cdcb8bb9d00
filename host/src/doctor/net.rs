//! What NICs need of this host: taps, packet sockets, XDP sockets. Called by `examine`.

use super::{Check, State, check};
use crate::files::Files;

/// Capabilities, by their bits (include/uapi/linux/capability.h).
const CAP_NET_ADMIN: u64 = 1 << 12;
const CAP_NET_RAW: u64 = 1 << 13;
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_BPF: u64 = 1 << 39;

/// What this process may do, as the kernel's bits.
pub(super) fn capabilities(files: &Files) -> u64 {
    let status = files.text("proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// `tap = ".."`.
pub(super) fn taps(files: &Files) -> Check {
    let name = "taps";
    let lost = "no NIC or uplink with `tap`; switches between guests still work";
    if !files.exists("dev/net/tun") {
        let todo = "`modprobe tun`; in a container, give it the device /dev/net/tun";
        return check(name, State::Missing, "no /dev/net/tun", lost, todo);
    }
    match capabilities(files) & CAP_NET_ADMIN {
        0 => check(
            name,
            State::Warn,
            "/dev/net/tun, but not the right to make interfaces",
            "only taps that were made for this user (`ip tuntap add .. multi_queue vnet_hdr user ..`)",
            "run as root, or with AmbientCapabilities=CAP_NET_ADMIN",
        ),
        _ => check(name, State::Ok, "can be made", "guests reach this host", ""),
    }
}

/// `interface = ".."`, with `via = "packet"` and `via = "xdp"`.
pub(super) fn interfaces(files: &Files) -> Check {
    let name = "interfaces";
    let has = |needed: u64| capabilities(files) & needed == needed;
    if !has(CAP_NET_RAW | CAP_NET_ADMIN) {
        return check(
            name,
            State::Warn,
            "no right to packet sockets",
            "no NIC or uplink with `interface`; taps and switches may still work",
            "run as root, or with AmbientCapabilities=CAP_NET_RAW CAP_NET_ADMIN",
        );
    }
    let protocols = files.text("proc/net/protocols").unwrap_or_default();
    let xdp = protocols.lines().any(|line| line.split_whitespace().next() == Some("XDP"));
    let only_packet = "NICs and uplinks with `interface`, but not with `via = \"xdp\"`";
    if !xdp {
        let todo = "use a kernel built with CONFIG_XDP_SOCKETS, or leave `via` out";
        return check(name, State::Warn, "packet sockets; no XDP sockets", only_packet, todo);
    }
    if !has(CAP_BPF) && !has(CAP_SYS_ADMIN) {
        let todo = "run as root, or add CAP_BPF to AmbientCapabilities; or leave `via` out";
        let found = "packet sockets; no right to load XDP programs";
        return check(name, State::Warn, found, only_packet, todo);
    }
    check(name, State::Ok, "packet and XDP sockets", "guests reach the networks of this host", "")
}
