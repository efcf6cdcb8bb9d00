//! A guest that is at work while it moves between two daemons: `fio --verify` in a file system, lines and iperf3 both
//! ways.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use testing::bed::{Bed, tests_all};
use testing::fio;
use testing::namespace::Namespace;
use testing::place::Place;
use testing::traffic::{Lines, Load, serve};
use testing::vm::{Boot, Compared, Guest, Move, Moved, NicOptions, Vm, has_kvm};

use super::announced::Listener;
use super::site::{MAC, Site, letter, other};

/// Addresses of the guest and of the host on the bridge.
const GUEST: &str = "10.9.0.1";
pub(super) const HOST: &str = "10.9.0.100";
/// Pages that QEMU itself may lose in a move without KVM (docs/decisions/0010-migration.md).
const LOST_MAX: usize = 64;
/// A page that is lost as often in a few moves is not lost by chance.
const OFTEN: usize = 3;
/// More, and an emulated guest's memory goes over for longer than it takes to write it.
const LOAD_RATE: &str = "5M";

/// What the guest's disk and NIC are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Devices {
    /// The daemons', with split rings.
    Split,
    /// The daemons', with packed rings.
    Packed,
    /// QEMU's own, on the same image and the same bridge.
    Qemu,
}

/// The guest, and where it is.
pub(super) struct Moving {
    guest: Guest,
    side: Cell<usize>,
    site: Site,
    folder: PathBuf,
    devices: Devices,
    /// Of the last VM.
    number: Cell<usize>,
    /// What came of the moves to the other side.
    moves: RefCell<Vec<Moved>>,
    /// How often memories were compared, and how often each page was lost.
    compared: Cell<usize>,
    lost: RefCell<BTreeMap<u64, usize>>,
}

impl Moving {
    /// A guest at daemon `a`, with fio at work. Its VMs have numbers from `first` on.
    pub(super) fn new(folder: &Path, devices: Devices, first: usize) -> Result<Moving> {
        let site = Site::new(folder)?;
        let vm = Vm::boot(folder, boot(&site, 0, first, devices)?)?;
        let guest = Guest::new("guest", vm);
        guest.run(&format!("ip link set eth0 up; ip addr add {GUEST}/24 dev eth0"))?;
        serve(&guest)?;
        fio::file_system(&guest)?;
        fio::begin(&guest, if tests_all() { 8 } else { 4 })?;
        Ok(Moving {
            guest,
            side: Cell::new(0),
            site,
            folder: folder.to_path_buf(),
            devices,
            number: Cell::new(first),
            moves: RefCell::default(),
            compared: Cell::new(0),
            lost: RefCell::default(),
        })
    }

    pub(super) fn guest(&self) -> &Guest {
        &self.guest
    }

    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The side that it is at.
    pub(super) fn side(&self) -> usize {
        self.side.get()
    }

    /// Starts the next QEMU on that side; what the guest says goes on there.
    pub(super) fn next_vm(&self, side: usize, incoming: &str, stopped: bool) -> Result<Vm> {
        let number = self.number.get() + 1;
        self.number.set(number);
        let boot =
            boot(&self.site, side, number, self.devices)?.after(self.guest.vm().name(), incoming);
        Vm::start(&self.folder, if stopped { boot.qemu(["-S"]) } else { boot })
    }

    /// Starts a QEMU on the other side that waits for it.
    pub(super) fn destination(&self, stopped: bool) -> Result<Vm> {
        self.next_vm(other(self.side()), "defer", stopped)
    }

    /// It is in that VM now.
    pub(super) fn is_in(&self, vm: Vm, side: usize) {
        self.guest.moved(vm);
        self.side.set(side);
    }

    /// Moves it to the other daemon. With `compares` the memories are compared before it goes on.
    pub(super) fn moves(&self, bed: &Bed, name: &str, compares: bool) -> Result<()> {
        let to = self.destination(compares)?;
        let listener = Listener::new(self.site.host(), MAC)?;
        let moved = Move::new(&self.guest.vm(), &to).make().with_context(|| name.to_string())?;
        ensure!(moved.is_completed(), "{name}: {moved}");
        if compares {
            bed.check(&format!("{name}-nobody"), self.site.nobody_has());
            self.remembers(bed, name, &to)?;
        }
        let stopped_us = moved.stopped_us().context("nobody told when the guest stopped")?;
        bed.check(&format!("{name}-announced"), listener.end(stopped_us));
        self.is_in(to, other(self.side()));
        self.moves.borrow_mut().push(moved);
        Ok(())
    }

    /// Whether what the guest knew is what it remembers in `to`, where it has not run; then it goes on. What QEMU itself
    /// has lost the guest gets from where it was, otherwise its own faults could not be told from a daemon's.
    pub(super) fn remembers(&self, bed: &Bed, name: &str, to: &Vm) -> Result<()> {
        let found = to.remembers(&self.guest.vm(), if has_kvm() { 0 } else { LOST_MAX })?;
        self.compared.set(self.compared.get() + 1);
        for page in found.different() {
            *self.lost.borrow_mut().entry(*page).or_default() += 1;
        }
        bed.check(&format!("{name}-memory"), alike(found));
        to.goes_on()
    }

    /// The moves so far.
    pub(super) fn made(&self) -> Vec<Moved> {
        self.moves.borrow().clone()
    }

    /// Traffic both ways.
    pub(super) fn traffic(&self) -> Result<Traffic<'_>> {
        let (guest, host): (&Guest, &Namespace) = (&self.guest, self.site.host());
        let mut lines = Lines::new();
        lines.open(host, guest, GUEST)?;
        lines.open(guest, host, HOST)?;
        Ok(Traffic { lines, load: Load::begin(host, GUEST, LOAD_RATE)?, moving: self })
    }

    /// The daemon that it is at has its image, and nobody else.
    pub(super) fn one_writer(&self, bed: &Bed, check: &str) {
        if self.devices != Devices::Qemu {
            bed.check(check, self.site.one_writer(self.side()));
        }
    }

    /// The work was right to its end, and the disk is whole.
    pub(super) fn end(self, bed: &Bed) -> Result<()> {
        let rounds = fio::end(&self.guest);
        bed.check("verify", rounds.map(|rounds| format!("{rounds}, {} VMs", self.number.get())));
        bed.check("fsck", fio::file_system_is_whole(&self.guest));
        self.one_writer(bed, "writer");
        let lost = self.lost.borrow();
        let often: Vec<&u64> =
            lost.iter().filter(|(_, times)| **times >= OFTEN).map(|(at, _)| at).collect();
        let told = format!("{} compares, {} pages lost by QEMU", self.compared.get(), lost.len());
        bed.check(
            "memory",
            if often.is_empty() {
                Ok(told)
            } else {
                Err(anyhow!("{told}; again and again {often:?}"))
            },
        );
        drop(lost);
        self.guest.off()?;
        self.site.stop()
    }

    /// What there is to know when something is wrong.
    pub(super) fn told(&self) -> String {
        let words = "cat /proc/interrupts /proc/net/dev; ip addr; ps";
        let guest =
            self.guest.does(words).map_or_else(|error| format!("{error:#}"), |(_, said)| said);
        let host =
            self.site.host().does("ip -s link; ss -tn").map(|(_, said)| said).unwrap_or_default();
        format!(
            "at daemon {}\n{}\nguest: {guest}\nhost: {host}",
            letter(self.side()),
            self.site.told()
        )
    }
}

fn alike(found: Compared) -> Result<Compared> {
    ensure!(found.is_alike(), "{found}");
    Ok(found)
}

fn boot(site: &Site, side: usize, number: usize, devices: Devices) -> Result<Boot> {
    let boot = Boot::new(&format!("vm{number}"));
    let more = match devices {
        Devices::Qemu => return own_devices(boot, site, number),
        Devices::Split => "",
        Devices::Packed => "packed=on",
    };
    let mut nic = NicOptions::new(MAC);
    nic.properties = more.to_string();
    let disk =
        if more.is_empty() { "num-queues=2".to_string() } else { format!("num-queues=2,{more}") };
    let daemon = site.daemon(side);
    Ok(boot.disk(daemon.socket("root"), &disk).nic(daemon.socket("net"), &nic))
}

fn own_devices(boot: Boot, site: &Site, number: usize) -> Result<Boot> {
    let (tap, host) = (format!("tap{number}"), site.host());
    host.ip(&format!("tuntap add {tap} mode tap vnet_hdr"))?;
    host.ip(&format!("link set {tap} up master lan"))?;
    let image = site.image().display();
    let file = format!(
        "driver=file,node-name=file,filename={image},cache.direct=on,aio=io_uring,discard=unmap"
    );
    let netdev = format!("tap,id=n,ifname={tap},script=no,downscript=no,vhost=off");
    let nic = format!("virtio-net-pci,netdev=n,mac={MAC},vectors=0");
    let words = [
        ["-blockdev", &file],
        ["-blockdev", "driver=raw,node-name=raw,file=file,cache.direct=on,discard=unmap"],
        ["-device", "virtio-blk-pci,drive=raw,num-queues=2"],
        ["-netdev", &netdev],
        ["-device", &nic],
    ];
    Ok(boot.qemu(words.concat()).through(&host.through()))
}

/// Lines and iperf3 both ways between the guest and the host.
pub(super) struct Traffic<'a> {
    lines: Lines<'a>,
    load: Load<'a>,
    moving: &'a Moving,
}

impl Traffic<'_> {
    /// All lines go on.
    pub(super) fn goes_on(&self, bed: &Bed, check: &str) -> Result<()> {
        let goes_on = bed.check(check, self.lines.go_on());
        ensure!(goes_on, "the guest stands still after {check}");
        Ok(())
    }

    /// Each line came once and in order, and nothing was wrong so far.
    pub(super) fn end(self, bed: &Bed) -> Result<()> {
        self.goes_on(bed, "streams")?;
        bed.check("load", self.load.end());
        for (name, result) in self.lines.end() {
            bed.check(
                if name.starts_with("lines host") { "lines-in" } else { "lines-out" },
                result,
            );
        }
        let right = bed.check("verify", fio::is_right(self.moving.guest()));
        ensure!(right, anyhow!("what fio reads is not what it wrote"));
        Ok(())
    }
}
