//! Two guests that are booted once for all that takes two. Each part of the case has NICs of its own.

use anyhow::Result;
use testing::bed::Bed;
use testing::namespace::Namespace;
use testing::place::{Place, until_listened};
use testing::vm::{Boot, Vm};

use super::{Nic, daemon, nics, part, switches};
use super::{drivers, guests, killed};

/// Neither segments nor checksums are taken, in single buffers.
const NONE: &str =
    "guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,mrg_rxbuf=off";
/// Attaches no XDP to a NIC with receive offloads.
const FIXED: &str = "ctrl_guest_offloads=off";

/// The NICs of `one`, eth0 and on.
const ONE: [Nic; 6] = [
    Nic::new(1, "one-lan", "switch = \"lan\""),
    Nic::new(2, "one-bare", "switch = \"bare\""),
    Nic::new(3, "one-wide", "switch = \"wide\"").queues(2).mtu(9000).properties("packed=on"),
    Nic::new(4, "one-trunk", "switch = \"vlans\"\ntrunk = [10, 20]"),
    Nic::new(5, "one-drivers", "switch = \"drivers\"").queues(2).properties(FIXED),
    Nic::new(6, "one-finished", "switch = \"finished\"\nguest_offloads = false")
        .queues(2)
        .properties(FIXED),
];
/// Those of `two`. An `ethN` of it is 10.9.N.2, and who is on its network 10.9.N.1.
const TWO: [Nic; 7] = [
    Nic::new(11, "two-lan", "switch = \"lan\""),
    Nic::new(12, "two-bare", "switch = \"bare\"").properties(NONE),
    Nic::new(13, "two-wide", "switch = \"wide\"").queues(2).mtu(9000).properties("packed=on"),
    Nic::new(14, "two-ten", "switch = \"vlans\"\nvlan = 10"),
    Nic::new(15, "two-twenty", "switch = \"vlans\"\nvlan = 20"),
    Nic::new(16, "two-drivers", "switch = \"drivers\"").queues(2),
    Nic::new(17, "two-finished", "switch = \"finished\""),
];
const SWITCHES: [&str; 6] = ["lan", "bare", "wide", "vlans", "drivers", "finished"];
/// Which of two's networks an `ethN` of `one` is on. Its trunk has no addresses of its own.
const NETWORKS: [(usize, u8); 6] = [(0, 0), (1, 1), (2, 2), (4, 5), (5, 6), (6, killed::NETWORK)];

/// Two guests in four networks for `guests`, in two for `drivers`, and in one of another daemon for `killed`.
pub(super) fn pair(bed: &Bed) -> Result<()> {
    let host = Namespace::new("host")?;
    let devices = switches(&SWITCHES) + &nics(&ONE) + &nics(&TWO);
    let mut served = daemon("pair", &host, &devices)?;
    let mut mortal = killed::daemon_to_kill(&host)?;
    let (mut one, mut two) = (Boot::new("one"), Boot::new("two"));
    for nic in &ONE {
        one = nic.plugged(one, &served);
    }
    for nic in &TWO {
        two = nic.plugged(two, &served);
    }
    let one = Vm::start(bed.folder(), killed::ONE.plugged(one, &mortal))?;
    let two = Vm::start(bed.folder(), killed::TWO.plugged(two, &mortal))?;
    one.ready()?;
    two.ready()?;
    addressed(&one, 1, NETWORKS.into_iter())?;
    addressed(&two, 2, (0..8).zip(0..))?;
    part(bed, "guests", |bed| guests::all(bed, &served, &one, &two))?;
    part(bed, "drivers", |bed| drivers::all(bed, &one, &two))?;
    part(bed, "killed", |bed| killed::all(bed, &mut mortal, &host, &one, &two))?;
    one.off()?;
    two.off()?;
    mortal.stop()?;
    served.stop()
}

/// Gives a guest's `ethN` on network K 10.9.K.HOST and fd09:K::HOST, and starts its iperf3 server.
pub(super) fn addressed(
    guest: &Vm,
    host: u8,
    networks: impl Iterator<Item = (usize, u8)>,
) -> Result<()> {
    let mut words = String::new();
    for (nic, network) in networks {
        words += &format!(
            "ip link set eth{nic} up; ip addr add 10.9.{network}.{host}/24 dev eth{nic}
            ip addr add fd09:{network}::{host}/64 dev eth{nic} nodad\n"
        );
    }
    words += &format!("iperf3 -s -D; {}", until_listened(5201));
    Place::run(guest, &words).map(drop)
}
