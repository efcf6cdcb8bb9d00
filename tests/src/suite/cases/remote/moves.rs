//! A guest whose disk and NIC are an IOhost's moves between two VM hosts, and takes both along.

use anyhow::{Context, Result, anyhow, ensure};
use testing::bed::Bed;
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that};
use testing::fio;
use testing::namespace::Namespace;
use testing::place::Place;
use testing::traffic::Lines;
use testing::vm::{Boot, Guest, Move, NicOptions, Vm, has_kvm};

use super::must;
use super::world::{self, GUEST, IoHost, Keys, LAN, PORT, address};

const MAC: &str = "52:54:00:51:00:78";
/// So many pages of a guest QEMU's emulation loses itself in some moves (docs/decisions/0010-migration.md).
const LOST_MAX: usize = 16;
/// Far less than the lease, which a guest waits for that takes nothing along.
const STILL_MS: u64 = 100_000;
const LEASE_S: u64 = 120;

/// The case: there and back, with `--all` ten times.
///
/// # Errors
/// A step failed, without which the others are nothing.
pub(super) fn moves(bed: &Bed) -> Result<()> {
    let lan = world::lan()?;
    let mut site = Site::new(bed, &lan)?;
    let guest = site.boot(bed)?;
    let mut lines = Lines::new();
    lines.open(&lan, &guest, GUEST)?;
    lines.open(&guest, &lan, LAN)?;
    let mut still = Vec::new();
    for number in 1..=bed.often(2, 20) {
        let name = format!("move-{number}");
        let moved = site.migrate(bed, &name, &guest)?;
        let start = now_ns();
        must(bed, &format!("{name}-lines"), lines.go_on().map_err(|error| site.told(error)))?;
        still.push(moved.unwrap_or((now_ns() - start) / 1_000_000));
        must(bed, &format!("{name}-taken-along"), site.has_taken_along())?;
        bed.check(&format!("{name}-verify"), fio::is_right(&guest));
    }
    bed.check("fio --verify", fio::end(&guest));
    for (check, result) in lines.end() {
        bed.check(&check, result);
    }
    bed.check("e2fsck in the guest", fio::file_system_is_whole(&guest));
    let longest = still.iter().max().copied().unwrap_or(u64::MAX);
    let told = format!("{} moves; the guest went on within {still:?} ms", still.len());
    // A machine that emulates guests beside other work: seconds, not two minutes, as it would be if a lease had to end.
    bed.check("pause", if longest < STILL_MS { Ok(told) } else { Err(anyhow!(told)) });
    guest.off()?;
    site.hosts.into_iter().try_for_each(|(mut daemon, _)| daemon.stop())?;
    site.store.stop()
}

/// An IOhost, and two VM hosts that may both have its disk and its NIC. What dies first stands first.
struct Site {
    hosts: [(Daemon, Namespace); 2],
    /// Of the hosts, the one that the guest is at.
    at: usize,
    store: IoHost,
    moves: u64,
}

impl Site {
    fn new(bed: &Bed, lan: &Namespace) -> Result<Site> {
        let keys = Keys::new(bed.folder());
        let image = bed.folder().join("db.img");
        std::fs::File::create(&image)?.set_len(128 << 20)?;
        let file = store_file(&keys, &image.display().to_string())?;
        let mut store = IoHost::new("store", lan, file)?;
        let host = |name: &'static str, network: u8| -> Result<(Namespace, String)> {
            let place = Namespace::new(name)?;
            store.join(&place, network)?;
            let peer = format!("{}:{PORT}", address(network, 1));
            Ok((place, vm_host_file(&keys, name, peer)?))
        };
        let places = [host("a", 1)?, host("b", 2)?];
        store.start()?;
        let start = |(place, file): (Namespace, String)| -> Result<(Daemon, Namespace)> {
            Ok((world::vm_host(&format!("vmhost-{}", place.name()), &place, &file)?, place))
        };
        let [a, b] = places;
        Ok(Site { hosts: [start(a)?, start(b)?], at: 0, store, moves: 0 })
    }

    /// The daemon that the guest is at, and the other one.
    fn here_and_there(&self) -> [&Daemon; 2] {
        [&self.hosts[self.at].0, &self.hosts[1 - self.at].0]
    }

    fn vm(&self, daemon: &Daemon) -> Result<Boot> {
        Ok(Boot::new(&format!("vm{}", self.moves))
            .disk(world::await_socket(daemon, "root")?, "num-queues=2")
            .nic(world::await_socket(daemon, "net")?, &NicOptions::new(MAC)))
    }

    /// A guest at the first host, with fio --verify on its disk.
    fn boot(&self, bed: &Bed) -> Result<Guest> {
        let [here, _] = self.here_and_there();
        let guest = Guest::new("guest", Vm::boot(bed.folder(), self.vm(here)?)?);
        guest.run(&format!("ip link set eth0 up; ip addr add {GUEST}/24 dev eth0"))?;
        fio::file_system(&guest)?;
        must(bed, "ping at the first host", world::ping(&guest))?;
        fio::begin(&guest, 4)?;
        Ok(guest)
    }

    /// To the other host: for how many milliseconds the guest stood still.
    ///
    /// QEMU's emulation loses pages of some guests. So memories are compared before the guest goes on, otherwise one that
    /// is broken by that could not be told from one that a daemon has broken. Then it is not known for how long it would
    /// have stood still.
    fn migrate(&mut self, bed: &Bed, name: &str, guest: &Guest) -> Result<Option<u64>> {
        self.moves += 1;
        let mut boot = self.vm(self.here_and_there()[1])?.after(guest.vm().name(), "defer");
        let compares = !has_kvm();
        if compares {
            boot = boot.qemu(["-S"]);
        }
        let to = Vm::start(bed.folder(), boot)?;
        let moved = Move::new(&guest.vm(), &to).make()?;
        ensure!(moved.is_completed(), "{name}: {moved}");
        if compares {
            bed.check(&format!("{name}-nobody"), self.nobody_has());
            let compared = to.remembers(&guest.vm(), LOST_MAX)?;
            let alike = compared.is_alike();
            let check = format!("{name}-memory");
            bed.check(&check, if alike { Ok(compared) } else { Err(anyhow!("{compared}")) });
            to.goes_on()?;
        }
        guest.moved(to);
        self.at = 1 - self.at;
        Ok(moved.pause_ms().filter(|_| !compares))
    }

    /// While the guest waits, neither VM host has its disk.
    fn nobody_has(&self) -> Result<&'static str> {
        let [here, there] = self.here_and_there();
        let all = || Ok([has(here, "disks")?, has(there, "disks")?]);
        await_state(all, [false, false])
    }

    /// The disk and the NIC are at the guest's host, and not at the other one.
    fn has_taken_along(&self) -> Result<&'static str> {
        let [here, there] = self.here_and_there();
        let all = || {
            Ok([has(here, "disks")?, has(here, "nics")?, has(there, "disks")?, has(there, "nics")?])
        };
        await_state(all, [true, true, false, false])
    }

    fn told(&self, error: anyhow::Error) -> anyhow::Error {
        let [here, _] = self.here_and_there();
        let store = self.store.daemon().map(Daemon::last_words).unwrap_or_default();
        error.context(format!("the VM host: {}\nthe IOhost: {store}", here.last_words()))
    }
}

/// Whether a VM host has the disk (`disks`) or the NIC (`nics`) of its link.
fn has(host: &Daemon, what: &str) -> Result<bool> {
    let link = world::link_of(host)?;
    link[what][0]["in_use"].as_bool().with_context(|| format!("no {what} in {link}"))
}

/// What is shown is looked at ten times a second.
fn await_state<const N: usize>(
    look: impl Fn() -> Result<[bool; N]>,
    wanted: [bool; N],
) -> Result<&'static str> {
    let mut last = None;
    let waited = await_that("it", || {
        let now = look()?;
        last = Some(now);
        Ok(now == wanted)
    });
    waited.with_context(|| format!("in use, here and there: {last:?}, wanted {wanted:?}"))?;
    Ok("")
}

/// Both VM hosts may have the disk and the NIC. The lease is longer than a move may take: what waited for its end
/// would be noticed.
fn store_file(keys: &Keys, image: &str) -> Result<String> {
    let mut file = format!("[[disk]]\nid = \"db\"\npath = \"{image}\"\n");
    file += &world::switch("net", &format!("mac = \"{MAC}\"\nspoof = \"deny\"\n"));
    file += &world::link_at_iohost(keys, &format!("lease_s = {LEASE_S}\n"))?;
    for name in ["a", "b"] {
        file += &world::client_of_link(keys, name, "\"db\"", "\"net\"")?;
    }
    Ok(file)
}

fn vm_host_file(keys: &Keys, name: &str, peer: String) -> Result<String> {
    let devices = format!(
        "[[disk]]\nid = \"root\"\nlink = \"rack\"\nremote = \"db\"\nqueues = 2\n\
         [[nic]]\nid = \"net\"\nby_link = \"rack\"\nmac = \"{MAC}\"\n"
    );
    Ok(devices + &world::link_at_client(keys, name, &[peer])?)
}
