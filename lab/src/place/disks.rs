//! Disks of the guests: what is below them, and who serves them.

use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags};

use super::configurations::{Configuration, Server, Site};
use super::daemon::{self, words};
use super::modules;
use super::network::Seat;
use crate::children::Children;

/// What is below a disk. Neither is a device, which nobody here measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// The kernel's null_blk, one for all guests: costs nothing.
    Null,
    /// A RAM disk for each guest, as ELVIS has it.
    Ram,
}

impl Backing {
    fn of(self, seat: Seat) -> String {
        match self {
            Backing::Null => "/dev/nullb0".to_string(),
            Backing::Ram => format!("/dev/ram{}", seat.0),
        }
    }

    /// Loads what makes the devices, if they are not there.
    fn have(self, guests: usize) -> Result<()> {
        let module = match self {
            Backing::Null => modules::NULL_BLK,
            Backing::Ram => modules::BRD,
        };
        for seat in (0..guests).map(Seat) {
            let path = self.of(seat);
            modules::need(module, Path::new(&path))?;
            // What somebody has mounted is not written over.
            rustix::fs::open(&path, OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty())
                .with_context(|| format!("{path} is not free: the lab writes over it"))?;
        }
        Ok(())
    }
}

/// Starts what serves; gives QEMU's options of each guest.
pub(super) fn serve(
    configuration: &Configuration,
    site: &Site<'_>,
    children: &mut Children,
) -> Result<Vec<Vec<String>>> {
    site.backing.have(site.guests)?;
    let seats = || (0..site.guests).map(Seat);
    let own = |device: &str, more: &[&str]| -> Vec<Vec<String>> {
        let of = |seat| {
            let drive = format!(
                "if=none,id=d,file={},format=raw,cache=none,aio=native",
                site.backing.of(seat)
            );
            words(more.iter().copied().chain(["-drive", &drive, "-device", device]))
        };
        seats().map(of).collect()
    };
    Ok(match configuration.server {
        Server::Qemu { iothread: false } => own("virtio-blk-pci,drive=d", &[]),
        Server::Qemu { iothread: true } => {
            own("virtio-blk-pci,drive=d,iothread=t", &["-object", "iothread,id=t"])
        }
        Server::Ide => own("ide-hd,drive=d", &[]),
        Server::StorageDaemon => {
            start_storage_daemon(configuration, site, children)?;
            seats().map(|seat| vhost_user(&socket(site, seat))).collect()
        }
        Server::Sidecore { .. } => {
            let section = |seat: Seat| {
                let path = site.backing.of(seat);
                format!("[[disk]]\nid = \"d{}\"\npath = \"{path}\"\ncache = \"direct\"\n", seat.0)
            };
            let sections: String = seats().map(section).collect();
            let server = configuration.server;
            let sockets = daemon::start_sidecore(site, server, &sections, "d", children)?;
            sockets.iter().map(|socket| vhost_user(socket)).collect()
        }
        Server::E1000
        | Server::Vhost { .. }
        | Server::Unmoderated
        | Server::Quota { .. }
        | Server::Pairs { .. } => {
            bail!("{} has no disks", configuration.name)
        }
    })
}

fn socket(site: &Site<'_>, seat: Seat) -> std::path::PathBuf {
    site.dir.join(format!("disk{}.sock", seat.0))
}

fn start_storage_daemon(
    configuration: &Configuration,
    site: &Site<'_>,
    children: &mut Children,
) -> Result<()> {
    let mut command = daemon::on_server("qemu-storage-daemon", configuration, site.cpus);
    for seat in (0..site.guests).map(Seat) {
        let (number, file) = (seat.0, site.backing.of(seat));
        let node = format!(
            "driver=host_device,node-name=d{number},filename={file},cache.direct=on,aio=native"
        );
        let export = format!(
            "type=vhost-user-blk,id=x{number},node-name=d{number},writable=on,addr.type=unix,addr.path={}",
            socket(site, seat).display()
        );
        command.args(["--blockdev", &node, "--export", &export]);
    }
    children.start("qemu-storage-daemon", &site.dir.join("server.log"), &command)?;
    (0..site.guests).try_for_each(|seat| daemon::await_socket(&socket(site, Seat(seat)), children))
}

fn vhost_user(socket: &Path) -> Vec<String> {
    let chardev = format!("socket,id=c,path={}", socket.display());
    words(["-chardev", &chardev, "-device", "vhost-user-blk-pci,chardev=c"])
}
