//! A stock guest on a VM host whose disk and NIC IOhost `a` has. In the middle of fio --verify that one's daemon is killed
//! and started again, and then killed for good; `b`, which has the same image and stood by, takes over. The
//! guest only waits. `./x demo remote` shows it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use testing::bed::{Bed, tests_all};
use testing::clock::now_ns;
use testing::daemon::{Daemon, pause};
use testing::fio;
use testing::load::Random;
use testing::namespace::Namespace;
use testing::place::Place;
use testing::traffic;
use testing::vm::{Boot, NicOptions, Vm, has_kvm};
use testing::wire::{Bad, Wire, netem, netem_lost};

use super::must;
use super::world::{self, GUEST, IoHost, Keys, LAN, PORT, address};
use crate::suite::host::program;

const MAC: &str = "52:54:00:51:00:01";
/// More requests than are under way: who has done so many serves the guest.
const BUSY: u64 = 300;
const BAD: Bad = Bad { loss_percent: 1, double_percent: 1, delay_us: 500 };

/// The case.
///
/// # Errors
/// A step failed, without which the others are nothing.
pub fn guest(bed: &Bed) -> Result<()> {
    let mut world = World::new(bed, tests_all())?;
    world.work(bed)?;
    world.end(bed)
}

/// What is between the VM host and an IOhost.
#[derive(Debug)]
enum Way {
    /// Nothing is lost.
    Good,
    /// The kernel loses frames, at both ends.
    Netem,
    /// A process loses datagrams.
    Relay(Wire),
}

/// The guest, its VM host, and two IOhosts. What dies first stands first.
#[derive(Debug)]
pub struct World {
    vm: Vm,
    vm_host: Daemon,
    a: IoHost,
    b: IoHost,
    ways: [Way; 2],
    /// Where the VM host sends what is for `a`, and for `b`.
    peers: [String; 2],
    image: PathBuf,
    host: Namespace,
    _lan: Namespace,
    random: Random,
}

impl World {
    /// All of it but IOhost `b`'s daemon; the guest takes orders. If it is `lossy`, frames on the way are lost, doubled
    /// and late: by the kernel where it can, otherwise by a relay.
    ///
    /// # Errors
    /// Something does not start.
    pub fn new(bed: &Bed, lossy: bool) -> Result<World> {
        let keys = Keys::new(bed.folder());
        let image = bed.folder().join("db.img");
        let (host, lan) = (Namespace::new("vmhost")?, world::lan()?);
        let file = iohost_file(&keys, &image.display().to_string())?;
        let mut a = IoHost::new("a", &lan, file.clone())?;
        let b = IoHost::new("b", &lan, file)?;
        a.join(&host, 1)?;
        b.join(&host, 2)?;
        let (way_a, peer_a) = lay(bed, lossy, &host, &a, 1)?;
        let (way_b, peer_b) = lay(bed, lossy, &host, &b, 2)?;
        let peers = [peer_a, peer_b];
        let at = address(1, 1);
        bed.say(format!(
            "starting IOhost a at {at}, which has the image and a switch, and the VM host's daemon, which has neither"
        ));
        a.start()?;
        let vm_host = world::vm_host("vmhost", &host, &vm_host_file(&keys, &peers)?)?;
        let accelerator = if has_kvm() { "kvm" } else { "tcg" };
        bed.say(format!(
            "booting a guest on the VM host ({accelerator}); its disk is 'db' of IOhost a, its NIC a port of the switch \
             there"
        ));
        let boot = Boot::new("vm1")
            .disk(world::await_socket(&vm_host, "root")?, "num-queues=2")
            .nic(world::await_socket(&vm_host, "vm1-net")?, &NicOptions::new(MAC));
        let vm = Vm::boot(bed.folder(), boot)?;
        vm.run(&format!("ip addr add {GUEST}/24 dev eth0; ip link set eth0 up"))?;
        let ways = [way_a, way_b];
        let random = Random(now_ns());
        Ok(World { vm, vm_host, a, b, ways, peers, image, host, _lan: lan, random })
    }

    /// The guest works, `a` is killed and started again, and then for good; `b` takes over.
    ///
    /// # Errors
    /// A step failed, without which the others are nothing.
    pub fn work(&mut self, bed: &Bed) -> Result<()> {
        self.talks(bed, "at a");
        must(bed, "mkfs.ext4 and mount", fio::file_system(&self.vm))?;
        fio::begin(&self.vm, 8)?;
        must(bed, "a serves fio --verify", self.is_busy(&self.a))?;

        let killed = self.kill_a(bed, "and started again")?;
        self.a.start()?;
        let served = self.a.await_requests(0).map(|()| format!("served again after {killed}"));
        must(bed, "a killed -9 and back", served)?;
        bed.say(format!("IOhost a serves the guest again after {killed}"));
        must(bed, "a serves fio --verify again", self.is_busy(&self.a))?;
        self.talks(bed, "at a that is back");

        let at = address(2, 1);
        bed.say(format!("starting IOhost b at {at}, with the same image"));
        self.b.start()?;
        must(bed, "b stands by", self.b_stands_by())?;
        let killed = self.kill_a(bed, "for good; b has waited for the image's lock")?;
        let served = self.b.await_requests(0).map(|()| format!("served after {killed}"));
        must(bed, "b has taken over", served)?;
        bed.say(format!("IOhost b serves the guest after {killed}"));
        must(bed, "b serves fio --verify", self.is_busy(&self.b))?;
        self.talks(bed, "at b");
        bed.check("remote status names b", self.status_names_b());
        Ok(())
    }

    /// At some moment of what the guest does.
    fn kill_a(&mut self, bed: &Bed, words: &str) -> Result<Since> {
        pause(Duration::from_millis(100 + self.random.below(900)));
        let pid = self.a.daemon()?.pid();
        bed.say(format!("kill -9 {pid}: IOhost a's daemon is gone, {words}"));
        self.a.kill()?;
        Ok(Since(now_ns()))
    }

    /// Guest and network talk to one another; checks end with `when`.
    fn talks(&self, bed: &Bed, when: &str) {
        let vm = &self.vm;
        bed.check(&format!("ping {when}"), world::ping(vm));
        bed.check(&format!("ping of 1500 bytes {when}"), world::ping_of_1500(vm));
        bed.check(&format!("iperf3 guest to lan {when}"), traffic::tcp(vm, LAN));
        let back = traffic::tcp(vm, &format!("{LAN} -R"));
        bed.check(&format!("iperf3 lan to guest {when}"), back);
    }

    /// The guest is in the midst of its load, and that IOhost serves it.
    fn is_busy(&self, iohost: &IoHost) -> Result<&'static str> {
        let before = iohost.requests()?;
        match iohost.await_requests(before + BUSY) {
            Ok(()) => Ok(""),
            Err(error) => {
                let found =
                    fio::is_right(&self.vm).err().unwrap_or_else(|| error.context("fio waits"));
                Err(found.context(self.vm_host.last_words()))
            }
        }
    }

    fn b_stands_by(&self) -> Result<&'static str> {
        let locked = |iohost: &IoHost| iohost.daemon()?.shown("db", "locked");
        let locks = [locked(&self.a)?, locked(&self.b)?];
        ensure!(locks == [true, false], "who has the lock, a and b: {locks:?}");
        Ok("a has the lock")
    }

    fn status_names_b(&self) -> Result<String> {
        let link = world::link_of(&self.vm_host)?;
        let peer = &self.peers[1];
        let is_b = link["sessions"] == 1 && link["peer"] == peer.as_str();
        ensure!(is_b, "not one session with {peer}: {link}");
        Ok(peer.clone())
    }

    /// What both ends of the link say of it, as an operator sees it.
    ///
    /// # Errors
    /// A daemon does not answer.
    pub fn status(&self) -> Result<[(&'static str, String); 2]> {
        let b = self.b.daemon()?;
        Ok([
            ("the VM host (client of the link)", self.vm_host.says("remote status")?),
            ("b (IOhost)", b.says("remote status")?),
        ])
    }

    /// The guest is off, and its image is whole.
    ///
    /// # Errors
    /// A machine does not end in order.
    pub fn end(self, bed: &Bed) -> Result<()> {
        let World { vm, mut vm_host, a, mut b, ways, image, host, .. } = self;
        bed.check("fio --verify in the guest", fio::end(&vm));
        bed.check("e2fsck in the guest", fio::file_system_is_whole(&vm));
        let errors = vm_host.shown("root", "counters").map(|counters| counters["errors"].clone());
        bed.same("requests with an error: 0", errors?.as_u64(), Some(0));
        vm.off()?;
        vm_host.stop()?;
        b.stop()?;
        lost(bed, ways, &host, [a.place(), b.place()])?;
        // By the host's own tools.
        let is_whole = host.asked(&format!("e2fsck -f -n {}", image.display()));
        bed.check("e2fsck of the image", is_whole);
        Ok(())
    }
}

/// A moment, shown as the time since then.
struct Since(u64);

impl std::fmt::Display for Since {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ms", (now_ns() - self.0) / 1_000_000)
    }
}

/// Both IOhosts have one image. Its lock is with the one that serves it, and the other one stands by.
fn iohost_file(keys: &Keys, image: &str) -> Result<String> {
    let disk =
        format!("[[disk]]\nid = \"db\"\npath = \"{image}\"\nsize = \"256M\"\nmigratable = true\n");
    let switch = world::switch("vm1-net", &format!("mac = \"{MAC}\"\nspoof = \"deny\"\n"));
    let link = world::link_at_iohost(keys, "")?;
    let client = world::client_of_link(keys, "vmhost", "\"db\"", "\"vm1-net\"")?;
    Ok(disk + &switch + &link + &client)
}

fn vm_host_file(keys: &Keys, peers: &[String]) -> Result<String> {
    let devices = format!(
        "[[nic]]\nid = \"vm1-net\"\nby_link = \"rack\"\nmac = \"{MAC}\"\n\
         [[disk]]\nid = \"root\"\nlink = \"rack\"\nremote = \"db\"\nqueues = 2\n"
    );
    Ok(devices + &world::link_at_client(keys, "vmhost", peers)?)
}

/// The way to an IOhost, and where the VM host sends what is for it.
fn lay(
    bed: &Bed,
    lossy: bool,
    host: &Namespace,
    iohost: &IoHost,
    network: u8,
) -> Result<(Way, String)> {
    let to = format!("{}:{PORT}", address(network, 1));
    if !lossy {
        return Ok((Way::Good, to));
    }
    let ends = ends(host, iohost.place(), network);
    let mut by_kernel = true;
    for (place, interface) in &ends {
        by_kernel = by_kernel && netem(place, interface, BAD)?;
    }
    let percent = BAD.loss_percent;
    if by_kernel {
        bed.say(format!("netem loses {percent}% of frames both ways"));
        return Ok((Way::Netem, to));
    }
    bed.say(format!("this kernel has no netem: {percent}% of datagrams are lost by bad_wire"));
    let from = format!("127.0.0.1:{}", 7000 + u16::from(network));
    let program = program("bad_wire")?;
    let program = host.command(&program.display().to_string());
    Ok((Way::Relay(Wire::lay_by(program, &from, &to, network.into(), BAD)?), from))
}

/// Both ends of the pair between the VM host and an IOhost.
fn ends<'a>(
    host: &'a Namespace,
    iohost: &'a Namespace,
    network: u8,
) -> [(&'a Namespace, String); 2] {
    let name = iohost.name();
    [(host, format!("to-{name}")), (iohost, format!("to-{network}"))]
}

/// What was lost on the way is told, and was something.
fn lost(bed: &Bed, ways: [Way; 2], host: &Namespace, iohosts: [&Namespace; 2]) -> Result<()> {
    let (mut lost, mut told) = (0, Vec::new());
    for (network, (way, iohost)) in (1..).zip(ways.into_iter().zip(iohosts)) {
        match way {
            Way::Good => return Ok(()),
            Way::Netem => {
                for (place, interface) in &ends(host, iohost, network) {
                    lost += netem_lost(place, interface)?;
                }
                told = vec![format!("netem lost {lost}")];
            }
            Way::Relay(wire) => {
                let said = wire.end()?;
                // It says `TAKEN datagrams, LOST lost, ..`.
                let number = said.split(' ').nth(2).and_then(|word| word.parse::<u64>().ok());
                lost += number.with_context(|| format!("bad_wire said {said:?}"))?;
                told.push(format!("bad_wire: {}: {said}", iohost.name()));
            }
        }
    }
    let told = told.join("; ");
    bed.check("frames-lost", if lost > 0 { Ok(told) } else { Err(anyhow!("none was: {told}")) });
    Ok(())
}
