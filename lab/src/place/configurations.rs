//! Who serves the guest's device, and how it is started.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::children::Children;
use super::{SERVER_CPU, waiting};
use crate::orders::PEER_PORT;

/// This side's address on the guest's network, and its tap.
pub(crate) const PEER: &str = "10.77.0.1";
const TAP: &str = "lab0";
const MAC: &str = "52:54:00:00:00:02";
/// The disk of all configurations: the kernel's null_blk, so that nobody measures a device.
const BACKING: &str = "/dev/nullb0";
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// What a load needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Disk,
    Nic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Qemu {
        iothread: bool,
    },
    Ide,
    StorageDaemon,
    Vhost {
        busy_us: u32,
    },
    Sidecore {
        policy: &'static str,
    },
    /// `es2` with this quota of frames, instead of 8.
    Quota {
        frames: u32,
    },
}

/// One way to serve a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Configuration {
    /// As in rows.
    pub(crate) name: &'static str,
    pub(crate) device: Device,
    server: Server,
}

const fn disk(name: &'static str, server: Server) -> Configuration {
    Configuration { name, device: Device::Disk, server }
}

const fn nic(name: &'static str, server: Server) -> Configuration {
    Configuration { name, device: Device::Nic, server }
}

/// For the choice of a quota (ES2, figure 4).
pub(crate) const QUOTAS: &[Configuration] = &[
    nic("es2-quota-2", Server::Quota { frames: 2 }),
    nic("es2-quota-4", Server::Quota { frames: 4 }),
    nic("es2-quota-8", Server::Quota { frames: 8 }),
    nic("es2-quota-16", Server::Quota { frames: 16 }),
    nic("es2-quota-32", Server::Quota { frames: 32 }),
    nic("es2-quota-64", Server::Quota { frames: 64 }),
];

/// `sidecore` is the one of the papers: a core of its own that polls. The other policies decide by time,
/// which is not time where the place is emulated.
pub(crate) const CONFIGURATIONS: &[Configuration] = &[
    disk("qemu", Server::Qemu { iothread: false }),
    disk("qemu-iothread", Server::Qemu { iothread: true }),
    disk("qemu-storage-daemon", Server::StorageDaemon),
    disk("ide", Server::Ide),
    disk("sidecore", Server::Sidecore { policy: "poll" }),
    disk("sidecore-adaptive", Server::Sidecore { policy: "adaptive" }),
    disk("sidecore-es2", Server::Sidecore { policy: "es2" }),
    disk("sidecore-notify", Server::Sidecore { policy: "notify" }),
    nic("vhost-net", Server::Vhost { busy_us: 0 }),
    nic("vhost-net-busy", Server::Vhost { busy_us: 50 }),
    nic("qemu", Server::Qemu { iothread: false }),
    nic("sidecore", Server::Sidecore { policy: "poll" }),
    nic("sidecore-adaptive", Server::Sidecore { policy: "adaptive" }),
    nic("sidecore-es2", Server::Sidecore { policy: "es2" }),
    nic("sidecore-notify", Server::Sidecore { policy: "notify" }),
];

impl Configuration {
    pub(crate) fn machine(&self) -> &'static str {
        if self.server == Server::Ide { "pc" } else { "q35" }
    }

    /// The disk as the guest names it.
    pub(crate) fn disk(&self) -> &'static str {
        if self.server == Server::Ide { "/dev/sda" } else { "/dev/vda" }
    }

    /// Starts the serving side; gives QEMU's options for the device.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn serve(
        &self,
        sidecore: &Path,
        dir: &Path,
        children: &mut Children,
    ) -> Result<Vec<String>> {
        match self.device {
            Device::Disk => self.serve_disk(sidecore, dir, children),
            Device::Nic => self.serve_nic(sidecore, dir, children),
        }
    }

    fn serve_disk(
        &self,
        sidecore: &Path,
        dir: &Path,
        children: &mut Children,
    ) -> Result<Vec<String>> {
        let drive = format!("if=none,id=d,file={BACKING},format=raw,cache=none,aio=native");
        let socket = dir.join("disk.sock");
        Ok(match self.server {
            Server::Qemu { iothread: false } => {
                words(&["-drive", &drive, "-device", "virtio-blk-pci,drive=d"])
            }
            Server::Qemu { iothread: true } => words(&[
                "-object",
                "iothread,id=t",
                "-drive",
                &drive,
                "-device",
                "virtio-blk-pci,drive=d,iothread=t",
            ]),
            Server::Ide => words(&["-drive", &drive, "-device", "ide-hd,drive=d"]),
            Server::StorageDaemon => {
                let node = format!(
                    "driver=host_device,node-name=d,filename={BACKING},cache.direct=on,aio=native"
                );
                let export = format!(
                    "type=vhost-user-blk,id=x,node-name=d,writable=on,addr.type=unix,addr.path={}",
                    socket.display()
                );
                let mut command = on_server("qemu-storage-daemon");
                command.args(["--blockdev", &node, "--export", &export]);
                children.start("qemu-storage-daemon", &dir.join("server.log"), &mut command)?;
                await_socket(&socket, children)?;
                vhost_user_disk(&socket)
            }
            Server::Sidecore { .. } => {
                let disk =
                    format!("[[disk]]\nid = \"d\"\npath = \"{BACKING}\"\ncache = \"direct\"\n");
                let socket =
                    start_sidecore(sidecore, dir, &policy_of(self.server), &disk, "d", children)?;
                vhost_user_disk(&socket)
            }
            _ => Vec::new(),
        })
    }

    fn serve_nic(
        &self,
        sidecore: &Path,
        dir: &Path,
        children: &mut Children,
    ) -> Result<Vec<String>> {
        let _ = ip(&["link", "del", TAP]);
        let own_tap = !matches!(self.server, Server::Sidecore { .. } | Server::Quota { .. });
        if own_tap {
            ip(&["tuntap", "add", TAP, "mode", "tap"])?;
        }
        let tap = |more: &str| format!("tap,id=n,ifname={TAP},script=no,downscript=no{more}");
        let virtio = format!("virtio-net-pci,netdev=n,mac={MAC}");
        let options = match self.server {
            Server::Vhost { busy_us } => {
                let busy = if busy_us > 0 { format!(",poll-us={busy_us}") } else { String::new() };
                words(&["-netdev", &tap(&format!(",vhost=on{busy}")), "-device", &virtio])
            }
            Server::Sidecore { .. } | Server::Quota { .. } => {
                let nic = format!("[[nic]]\nid = \"n\"\ntap = \"{TAP}\"\nmac = \"{MAC}\"\n");
                let socket =
                    start_sidecore(sidecore, dir, &policy_of(self.server), &nic, "n", children)?;
                words(&[
                    "-chardev",
                    &format!("socket,id=c,path={}", socket.display()),
                    "-netdev",
                    "vhost-user,id=n,chardev=c",
                    "-device",
                    &virtio,
                ])
            }
            _ => words(&["-netdev", &tap(",vhost=off"), "-device", &virtio]),
        };
        ip(&["addr", "add", &format!("{PEER}/24"), "dev", TAP])?;
        ip(&["link", "set", TAP, "up"])?;
        Ok(options)
    }
}

/// Starts the other end of network loads, which comes before what serves on the same CPU.
pub(crate) fn peer(children: &mut Children) -> Result<()> {
    let own = std::env::current_exe()?;
    let mut command = Command::new("chrt");
    command.args(["-f", "1", "taskset", "-c", &SERVER_CPU.to_string()]);
    command.arg(own).args(["peer", PEER]);
    let log = std::env::temp_dir().join("sidecore-lab-peer.log");
    children.start("peer", &log, &mut command)?;
    waiting::until("the peer", STARTS_WITHIN, || {
        children.are_alive()?;
        // Its last port.
        Ok(TcpStream::connect((PEER, PEER_PORT + 3)).ok())
    })?;
    Ok(())
}

/// Its lines in `[sidecores]`.
fn policy_of(server: Server) -> String {
    match server {
        Server::Sidecore { policy } => format!("policy = \"{policy}\"\n"),
        Server::Quota { frames } => {
            format!("policy = \"es2\"\nes2 = {{ quota_nic = {frames} }}\n")
        }
        _ => String::new(),
    }
}

fn start_sidecore(
    program: &Path,
    dir: &Path,
    policy: &str,
    device: &str,
    id: &str,
    children: &mut Children,
) -> Result<std::path::PathBuf> {
    let at = dir.display();
    let config = format!(
        "[daemon]\napi = \"{at}/api.sock\"\nrun_dir = \"{at}/run\"\nstate_dir = \"{at}/state\"\n\n\
         [sidecores]\ncpus = \"{SERVER_CPU}\"\n{policy}\n{device}"
    );
    let file = dir.join("sidecore.toml");
    std::fs::write(&file, config)?;
    for folder in ["run", "state"] {
        std::fs::create_dir_all(dir.join(folder))?;
    }
    let mut command = Command::new(program);
    command.args(["serve", "--config"]).arg(&file);
    children.start("sidecore", &dir.join("server.log"), &mut command)?;
    let socket = dir.join("run").join(format!("{id}.sock"));
    await_socket(&socket, children)?;
    Ok(socket)
}

fn await_socket(socket: &Path, children: &mut Children) -> Result<()> {
    waiting::until(&socket.display().to_string(), STARTS_WITHIN, || {
        children.are_alive()?;
        Ok(socket.exists().then_some(()))
    })
}

fn on_server(program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &SERVER_CPU.to_string(), program]);
    command
}

fn vhost_user_disk(socket: &Path) -> Vec<String> {
    let chardev = format!("socket,id=c,path={}", socket.display());
    words(&["-chardev", &chardev, "-device", "vhost-user-blk-pci,chardev=c"])
}

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output().context("ip")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "ip {}: {}", arguments.join(" "), said.trim());
    Ok(())
}
