//! NICs of the guests: their taps, and who serves them; and the other end of their loads.

use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;

use anyhow::{Result, bail};

use super::configurations::{Configuration, PAIRS, Server, Site};
use super::daemon::{self, STARTS_WITHIN, words};
use super::network::{Seat, ip};
use super::tracing::is_emulated;
use crate::children::Children;
use crate::orders::PEER_PORT;
use crate::waiting;

/// Starts what serves; gives QEMU's options of each guest.
pub(super) fn serve(
    configuration: &Configuration,
    site: &Site<'_>,
    children: &mut Children,
) -> Result<Vec<Vec<String>>> {
    let seats = || (0..site.guests).map(Seat);
    let is_sidecore = matches!(
        configuration.server,
        Server::Sidecore { .. } | Server::Unmoderated | Server::Quota { .. } | Server::Pairs { .. }
    );
    for seat in seats() {
        // Of the configuration before.
        let _ = ip(&format!("link del {}", seat.tap()));
        if !is_sidecore {
            ip(&format!("tuntap add {} mode tap", seat.tap()))?;
        }
    }
    let options = match configuration.server {
        Server::Vhost { busy_us } => {
            let busy = if busy_us > 0 { format!(",poll-us={busy_us}") } else { String::new() };
            let more = format!(",vhost=on{busy}");
            seats().map(|seat| on_tap(seat, &more, "virtio-net-pci")).collect()
        }
        Server::Qemu { .. } => {
            seats().map(|seat| on_tap(seat, ",vhost=off", "virtio-net-pci")).collect()
        }
        Server::E1000 => seats().map(|seat| on_tap(seat, ",vhost=off", "e1000")).collect(),
        Server::Sidecore { .. }
        | Server::Unmoderated
        | Server::Quota { .. }
        | Server::Pairs { .. } => by_sidecore(configuration.server, site, children)?,
        Server::Ide | Server::StorageDaemon => bail!("{} has no NICs", configuration.name),
    };
    for seat in seats() {
        ip(&format!("addr add {}/24 dev {}", seat.place(), seat.tap()))?;
        ip(&format!("link set {} up", seat.tap()))?;
    }
    Ok(options)
}

/// Starts the daemon; gives QEMU's options of each guest.
fn by_sidecore(
    server: Server,
    site: &Site<'_>,
    children: &mut Children,
) -> Result<Vec<Vec<String>>> {
    let seats = || (0..site.guests).map(Seat);
    let mut more = match server {
        // ES2, whose quotas these are, calls after each visit.
        Server::Unmoderated | Server::Quota { .. } => "moderate_us = 0\n",
        _ if is_emulated() => MODERATE_EMULATED,
        _ => "",
    }
    .to_string();
    let (mut queues, mut vectors) = (String::new(), String::new());
    if let Server::Pairs { redirect } = server {
        more += &format!("queues = {PAIRS}\nredirect = \"{redirect}\"\n");
        queues = format!(",queues={PAIRS}");
        // Of each pair two, one for changes of the device and one for its commands.
        vectors = format!(",mq=on,vectors={}", 2 * PAIRS + 2);
    }
    let section = |seat: Seat| {
        let (tap, mac) = (seat.tap(), seat.mac());
        format!("[[nic]]\nid = \"n{}\"\ntap = \"{tap}\"\nmac = \"{mac}\"\n{more}", seat.0)
    };
    let sections: String = seats().map(section).collect();
    let sockets = daemon::start_sidecore(site, server, &sections, "n", children)?;
    let of = |(seat, socket): (Seat, &std::path::PathBuf)| {
        let chardev = format!("socket,id=c,path={}", socket.display());
        let device = format!("virtio-net-pci,netdev=n,mac={}{vectors}", seat.mac());
        let netdev = format!("vhost-user,id=n,chardev=c{queues}");
        words(["-chardev", &chardev, "-netdev", &netdev, "-device", &device])
    };
    Ok(seats().zip(&sockets).map(of).collect())
}

/// In so long an emulated guest sends some dozens of frames, as one on a processor does in the daemon's default of 64 us.
const MODERATE_EMULATED: &str = "moderate_us = 1000\n";

fn on_tap(seat: Seat, more: &str, model: &str) -> Vec<String> {
    let netdev = format!("tap,id=n,ifname={},script=no,downscript=no{more}", seat.tap());
    words(["-netdev", &netdev, "-device", &format!("{model},netdev=n,mac={}", seat.mac())])
}

/// Starts the other end of network loads, one for all guests, which comes before what serves on the same CPU.
///
/// # Errors
/// It does not start.
pub(crate) fn start_peer(site: &Site<'_>, children: &mut Children) -> Result<()> {
    let own = std::env::current_exe()?;
    let mut command = Command::new("chrt");
    command.args(["-f", "1", "taskset", "-c", &site.cpus.peer.to_string()]);
    command.arg(own).args(["peer", &Ipv4Addr::UNSPECIFIED.to_string()]);
    children.start("peer", &site.dir.join("peer.log"), &command)?;
    waiting::until("the peer", STARTS_WITHIN, || {
        children.are_alive()?;
        Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, PEER_PORT + 3)).ok())
    })?;
    Ok(())
}
