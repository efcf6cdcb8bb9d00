//! `bench tap`: a real guest's NIC on a tap, served by Sidecore and by QEMU itself (user-space virtio-net), in one run.
//!
//! iperf3 with a namespace behind the tap. Both guests run all the time, and rounds take turns, so that what the
//! machine does meanwhile meets both. Rows: `tap.{tcp,udp}.{out,in}.mbps`; `out` is what the guest sends, and UDP is
//! what arrived.

use anyhow::Result;
use testing::daemon::Daemon;
use testing::namespace::Namespace;
use testing::place::Place;
use testing::report::{ROUNDS_MIN, Row};
use testing::scratch::Scratch;
use testing::server::Who;
use testing::traffic;
use testing::vm::{Boot, NicOptions, Vm, has_kvm};

use crate::guests::{Rounds, megabits, need_root, say};

/// What iperf3 is told in the guest, and the unit of what comes of it.
const LOADS: [(&str, &str); 4] = [
    ("tcp.out.mbps", ""),
    ("tcp.in.mbps", "-R"),
    ("udp.out.mbps", "-u -b 0 -l 1448"),
    ("udp.in.mbps", "-u -b 0 -l 1448 -R"),
];
/// Who serves a guest's NIC. The guest has a network of its own, `10.9.N.0/24`.
const GUESTS: [Who; 2] = [Who::Sidecore, Who::Qemu];

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Shorter rounds.
    #[arg(long)]
    quick: bool,
}

/// The guests, and what is behind their taps. Ended in this order.
struct World {
    guests: Vec<Vm>,
    daemon: Daemon,
    _host: Namespace,
    _folder: Scratch,
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>> {
    need_root("tap", "makes a namespace and taps")?;
    let seconds = if options.quick { 2 } else { 4 };
    let mut world = World::start()?;
    let mut rounds = Rounds::default();
    for round in 1..=ROUNDS_MIN {
        for (number, who) in GUESTS.into_iter().enumerate() {
            for (what, words) in LOADS {
                let words = format!("-t {seconds} -c 10.9.{number}.100 {words}");
                let (rate, _) = megabits(&world.guests[number], &words)?;
                rounds.add(what, who, rate);
            }
        }
        say(&format!("tap: round {round} of {ROUNDS_MIN}"));
    }
    world.daemon.stop()?;
    Ok(rounds.rows("tap", GUESTS, &LOADS.map(|(what, _)| (what, "Mbit/s"))))
}

impl World {
    fn start() -> Result<World> {
        Namespace::sweep();
        let folder = Scratch::new(&std::env::temp_dir(), "tap")?;
        let host = Namespace::new("host")?;
        let mac = |number: usize| format!("52:54:00:51:00:{:02x}", number + 1);
        let devices =
            format!("[[nic]]\nid = \"sidecore\"\nmac = \"{}\"\ntap = \"tapsidecore\"\n", mac(0));
        let daemon =
            Daemon::with("tap-daemon", &devices).cpus("auto").through(&host.through()).start()?;
        host.ip("tuntap add tapqemu mode tap vnet_hdr")?;
        let mut guests = Vec::new();
        for (number, who) in GUESTS.into_iter().enumerate() {
            let name = who.word();
            host.ip(&format!("link set tap{name} up"))?;
            host.add_address(&format!("10.9.{number}.100/24"), &format!("tap{name}"))?;
            let told = format!(
                "cd /sys/class/net/tap{name}; echo mtu $(cat mtu), queue $(cat tx_queue_len)"
            );
            say(&format!("tap{name}: {}", host.run(&told)?.trim()));
            let (boot, mac) = (Boot::new(name).parallel(), mac(number));
            let boot = match who {
                Who::Qemu => boot.qemu(of_qemu(&mac)).through(&host.through()),
                _ => boot.nic(daemon.socket(name), &NicOptions::new(&mac)),
            };
            guests.push(Vm::start(folder.path(), boot)?);
        }
        traffic::serve(&host)?;
        for (number, guest) in guests.iter().enumerate() {
            guest.ready()?;
            guest.run(&format!(
                "ip link set eth0 up; ip addr add 10.9.{number}.1/24 dev eth0; ping -q -c 1 -W 5 10.9.{number}.100"
            ))?;
        }
        Ok(World { guests, daemon, _host: host, _folder: folder })
    }
}

/// QEMU's own NIC on the other tap; without KVM it has no MSI-X either.
fn of_qemu(mac: &str) -> [String; 4] {
    let vectors = if has_kvm() { "" } else { ",vectors=0" };
    [
        "-netdev".to_owned(),
        "tap,id=n0,ifname=tapqemu,script=no,downscript=no,vhost=off,queues=1".to_owned(),
        "-device".to_owned(),
        format!("virtio-net-pci,id=dn0,netdev=n0,mac={mac}{vectors}"),
    ]
}
