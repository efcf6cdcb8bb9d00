//! A daemon with every kind of device, port, link and option is replaced again and again under verified load: nothing
//! fails, no frame between guests is lost, no tap's link changes, nothing is warned of. The same while sidecores have no
//! processor for milliseconds. How many upgrades are given up then depends on the machine's speed: it is printed
//! (`given_up`) and not judged, and whether one is given up or not, everything goes on.
//!
//! `UPGRADES` says how often (5 unless told), `STARVED` how often one is tried without a processor (2 unless told; 10 with
//! `--all`). Every system call that a list lacks ends the daemon
//! (`SIDECORE_CONFINE=strict`, as in all these tests). Needs root, for interfaces and a loop device.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testing::daemon::{BUSY, Daemon, await_that, await_within, is_busy};
use testing::frontend::{Frontend, FrontendSpec};
use testing::net_frontend::{Nic, NicSpec, frames};
use testing::own_network::{in_namespace, ip};
use testing::scratch::Scratch;
use testing::slots::{Kind, STATUS_OK};
use testing::timing::often;
use testing::verified::Load;
use tests::link_site::free_port;
use tests::mounts::Loop;
use tests::single::Single;
use tests::starved::Starved;
use tests::traffic::{self, LONGEST, Traffic};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

/// A busy machine refuses one attempt after the other.
const UPGRADED: Duration = Duration::from_secs(600);
/// Disks that guests write and read back.
const WRITTEN: [&str; 10] = [
    "file",
    "page",
    "ram",
    "block",
    "migratable",
    "limited",
    "grouped",
    "dialled",
    "far-udp",
    "far-eth",
];
/// Interfaces in pairs: what one end sends the other one gets.
const CABLES: [(&str, &str); 6] =
    [("v0", "v1"), ("v2", "v3"), ("v4", "v5"), ("v6", "v7"), ("e0", "e1"), ("e2", "e3")];

/// In one bridge.
const TAPS: [&str; 3] = ["lan-tap", "up-tap", "many-tap"];

/// How often each tap has got or lost its carrier, as the kernel counts it.
fn carrier_changes() -> Result<[u32; TAPS.len()]> {
    let mut changes = [0; TAPS.len()];
    for (tap, count) in TAPS.iter().zip(&mut changes) {
        // Not in /sys, which is of another network namespace.
        let shown = testing::own_network::ip_says(&format!("-j -s -s link show {tap}"))?;
        let shown: serde_json::Value = serde_json::from_str(&shown)?;
        let changes = shown[0]["stats64"]["tx"]["carrier_changes"].as_u64();
        *count = changes.with_context(|| format!("no count: {shown}"))? as u32;
    }
    Ok(changes)
}

fn mac(number: u16) -> String {
    frames::mac(number).map(|byte| format!("{byte:02x}")).join(":")
}

fn address_of(interface: &str) -> Result<String> {
    let shown = testing::own_network::ip_says(&format!("-o link show {interface}"))?;
    let address = shown.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next());
    Ok(address.with_context(|| shown.clone())?.to_string())
}

/// What the daemon that is replaced serves: all that a file can have.
fn everything([block, read]: [&Path; 2], [lends, uses]: [u16; 2], peer: &str) -> String {
    let file = |id: &str, more: &str| {
        format!("[[disk]]\nid = \"{id}\"\npath = \"images/{id}.raw\"\nsize = \"4M\"\n{more}\n")
    };
    let nic = |id: &str, number: u16, more: &str| {
        format!("[[nic]]\nid = \"{id}\"\nmac = \"{}\"\nmtu = 3000\n{more}\n", mac(number))
    };
    let disks = [
        file("file", "queues = 4"),
        file("page", "cache = \"page\"\npolicy = \"es2\""),
        file("migratable", "migratable = true"),
        file(
            "limited",
            "limit_iops = 100000\nlimit_bytes = \"1G\"\nlatency_target_us = 500\nmoderate_us = 20",
        ),
        file("grouped", "group = \"tenant\"\nshare = 300\npolicy = \"elvis\""),
        file("dialled", "mode = \"connect\"\nsocket = \"dialled.sock\""),
        format!("[[disk]]\nid = \"read\"\npath = \"{}\"\nreadonly = true\n", read.display()),
        file("lent", ""),
        file("lent-eth", ""),
        "[[disk]]\nid = \"ram\"\nbackend = \"memory\"\nsize = \"4M\"\npolicy = \"poll\"\n"
            .to_string(),
        "[[disk]]\nid = \"none\"\nbackend = \"null\"\nsize = \"4M\"\npolicy = \"notify\"\n"
            .to_string(),
        format!("[[disk]]\nid = \"block\"\npath = \"{}\"\n", block.display()),
        "[[disk]]\nid = \"far-udp\"\nlink = \"uses-udp\"\nremote = \"lent\"\n".to_string(),
        "[[disk]]\nid = \"far-eth\"\nlink = \"uses-eth\"\nremote = \"lent-eth\"\n".to_string(),
    ];
    let nics = [
        nic("one", 1, "switch = \"lan\"\nvlan = 7\nlimit_packets = 1000000"),
        nic("two", 2, "switch = \"lan\"\nvlan = 7\ngroup = \"tenant\"\nspoof = \"deny\""),
        nic("three", 3, "switch = \"bridged\""),
        nic("four", 4, "tap = \"up-tap\"\nredirect = \"always\""),
        // A kernel that learns a flow moves it to another queue, so that its frames may change their order.
        nic("many", 12, "tap = \"many-tap\"\nqueues = 4"),
        nic("packet", 5, "interface = \"v4\""),
        nic("xdp", 6, "interface = \"v6\"\nvia = \"xdp\"").replace("mtu = 3000\n", ""),
        nic("drop", 7, "null = \"drop\""),
        nic("echo", 8, "null = \"echo\""),
        nic("made", 9, "null = \"generate\"\nrate = 100"),
        nic("far-nic", 10, "by_link = \"uses-udp\"\nremote = \"port\""),
        nic("still", 11, "switch = \"lan\"\nlink = \"down\""),
    ];
    let switches = "[[switch]]\nid = \"lan\"\n[[switch.uplink]]\ninterface = \"v0\"\n\
                    [[switch.uplink]]\ninterface = \"v2\"\nvia = \"xdp\"\ntrunk = [7, 8]\n\
                    [[switch.uplink]]\nremote = \"web\"\n\
                    [[switch]]\nid = \"bridged\"\n[[switch.uplink]]\ntap = \"lan-tap\"\n";
    let links = format!(
        "[[link]]\nid = \"lends-udp\"\nrole = \"iohost\"\nudp = \"127.0.0.1:{lends}\"\nsecurity = \"none\"\n\
         [[link.client]]\nname = \"peer\"\ndisks = [\"lent\"]\nnics = [\"web\"]\n\
         [[link]]\nid = \"lends-eth\"\nrole = \"iohost\"\ninterface = \"e0\"\nsecurity = \"none\"\n\
         [[link.client]]\nname = \"peer\"\ndisks = [\"lent-eth\"]\n\
         [[link]]\nid = \"uses-udp\"\nrole = \"client\"\niohosts = [\"127.0.0.1:{uses}\"]\nsecurity = \"none\"\n\
         [[link]]\nid = \"uses-eth\"\nrole = \"client\"\ninterface = \"e2\"\niohosts = [\"{peer}\"]\nsecurity = \
         \"none\"\n"
    );
    let group = "[[group]]\nid = \"tenant\"\nlimit_iops = 100000\nlimit_packets = 1000000\n";
    format!("{group}{switches}{}{}{links}", disks.concat(), nics.concat())
}

/// The daemon at the other end of each link.
fn peer(lends: u16, uses: u16, iohost: &str) -> String {
    format!(
        "[[disk]]\nid = \"lent\"\nbackend = \"memory\"\nsize = \"4M\"\n\
         [[disk]]\nid = \"lent-eth\"\nbackend = \"memory\"\nsize = \"4M\"\n\
         [[disk]]\nid = \"back-udp\"\nlink = \"uses-udp\"\nremote = \"lent\"\n\
         [[disk]]\nid = \"back-eth\"\nlink = \"uses-eth\"\nremote = \"lent-eth\"\n\
         [[switch]]\nid = \"lan\"\n[[switch.uplink]]\nremote = \"port\"\n\
         [[nic]]\nid = \"web\"\nby_link = \"uses-udp\"\n\
         [[link]]\nid = \"lends-udp\"\nrole = \"iohost\"\nudp = \"127.0.0.1:{uses}\"\nsecurity = \"none\"\n\
         [[link.client]]\nname = \"host\"\ndisks = [\"lent\"]\nnics = [\"port\"]\n\
         [[link]]\nid = \"lends-eth\"\nrole = \"iohost\"\ninterface = \"e3\"\nsecurity = \"none\"\n\
         [[link.client]]\nname = \"host\"\ndisks = [\"lent-eth\"]\n\
         [[link]]\nid = \"uses-udp\"\nrole = \"client\"\niohosts = [\"127.0.0.1:{lends}\"]\nsecurity = \"none\"\n\
         [[link]]\nid = \"uses-eth\"\nrole = \"client\"\ninterface = \"e1\"\niohosts = [\"{iohost}\"]\nsecurity = \
         \"none\"\n"
    )
}

fn ring(number: usize) -> FrontendSpec {
    let packed = number % 2 == 1;
    let (size, format) = if packed { (100, Format::Packed) } else { (128, Format::Split) };
    let ring = RingSpec { size, format, event_index: true, indirect_entries: 0 };
    FrontendSpec { ring, inflight: true, ..FrontendSpec::linux() }
}

/// Writes down what becomes of interfaces; ended when dropped.
struct Monitor {
    child: Child,
    log: std::path::PathBuf,
}

impl Monitor {
    fn start(folder: &Path) -> Result<Monitor> {
        let log = folder.join("links");
        let mut command = Command::new("ip");
        command
            .args(["-o", "-ts", "-d", "monitor", "link"])
            .stdout(File::create(&log)?)
            .stderr(Stdio::null());
        let monitor = Monitor { child: command.spawn().context("starting ip")?, log };
        // It listens once it has told of something.
        let mut mtu = 1400;
        await_that("ip monitor to listen", || {
            mtu += 1;
            ip(&format!("link set lo mtu {mtu}"))?;
            Ok(!monitor.said()?.is_empty())
        })?;
        Ok(monitor)
    }

    fn said(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }

    /// What was told of these interfaces.
    fn said_of(&self, names: &[&str]) -> Result<Vec<String>> {
        let of_them = |line: &&str| names.iter().any(|name| line.contains(&format!(": {name}")));
        Ok(self.said()?.lines().filter(of_them).map(str::to_string).collect())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nothing of it has a problem.
fn is_well(daemon: &Daemon) -> Result<()> {
    let all = daemon.ask("ls")?;
    let of = |list: &str| all[list].as_array().cloned().unwrap_or_default();
    let shown = of("disks").into_iter().chain(of("nics"));
    let shown: Vec<String> =
        shown.filter_map(|view| Some(format!("show {}", view["id"].as_str()?))).collect();
    ensure!(shown.len() > 20, "{all}");
    let switches = ["lan", "bridged"].map(|id| format!("switch show {id}"));
    for show in shown.iter().chain(&switches) {
        await_that(&format!("{show}: no problem"), || {
            let view = daemon.ask(show)?;
            let mut ports = view["ports"].as_array().into_iter().flatten();
            Ok(view["problem"].is_null() && ports.all(|port| port["problem"].is_null()))
        })
        .with_context(|| format!("{:?}\n{}", daemon.ask(show), daemon.last_words()))?;
    }
    Ok(())
}

/// It has warned of nothing since it had said so much.
fn has_not_warned(daemon: &Daemon, since: usize) -> Result<()> {
    let log = std::fs::read_to_string(daemon.dir().join("log"))?;
    let said = log.get(since..).unwrap_or_default();
    // Of what this host cannot do at all.
    let unseen = "which vCPUs run cannot be seen";
    let is_news = |line: &&str| {
        let is_grave = line.contains("WARN") || line.contains("ERROR");
        let is_late = BUSY.iter().any(|known| line.contains(known));
        is_grave && !line.contains(unseen) && !is_late
    };
    let news: Vec<&str> = said.lines().filter(is_news).collect();
    ensure!(news.is_empty(), "it warns of {news:#?}");
    Ok(())
}

#[test]
fn every_kind_of_device_port_and_link_is_taken_over() -> Result<()> {
    in_namespace(|| {
        lay_cables()?;
        every_kind()
    })
}

/// What ports have counted, for who looks for a frame.
fn lost(daemon: &Daemon, round: u64) -> String {
    let nics = ["one", "two", "three", "four"].map(|id| {
        let view = daemon.ask(&format!("nic show {id}")).unwrap_or_default();
        format!("{id}: {} {}\n", view["counters"], view["drops"])
    });
    let ports = daemon.ask("switch show bridged").unwrap_or_default();
    let of = |tap: &str| testing::own_network::ip_says(&format!("-s link show {tap}"));
    let kernel = ["lan-tap", "up-tap"].map(|tap| of(tap).unwrap_or_default());
    format!(
        "upgrade {round}\n{}{}\n{}{}",
        nics.concat(),
        ports["ports"],
        kernel.concat(),
        daemon.last_words()
    )
}

fn replace(daemon: &mut Daemon) -> Result<()> {
    await_within(UPGRADED, "an upgrade", || try_to_replace(daemon))
}

/// False: it was refused, since somebody was late.
fn try_to_replace(daemon: &mut Daemon) -> Result<bool> {
    // Once: `Daemon::upgrade` asks until it is done.
    match daemon.ask("upgrade") {
        Ok(done) => daemon.follow(&done).map(|_| true),
        Err(error) if is_busy(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn lay_cables() -> Result<()> {
    ip("link set lo up")?;
    for (one, other) in CABLES {
        ip(&format!("link add {one} type veth peer name {other}"))?;
        ip(&format!("link set {one} up"))?;
        ip(&format!("link set {other} up"))?;
    }
    ip("link add br0 type bridge")?;
    ip("link set br0 up")
}

/// All who use the daemon, and the one at the other end of its links.
struct Guests {
    loads: Vec<(&'static str, Load, Frontend)>,
    singles: Vec<(&'static str, Single, Frontend)>,
    frames: [[Traffic; 2]; 2],
    _quiet: Vec<Nic>,
}

impl Guests {
    fn start(daemon: &Daemon, other: &Daemon) -> Result<Guests> {
        let mut loads = Vec::new();
        let back = ["back-udp", "back-eth"].map(|id| (other, id));
        let all = WRITTEN.iter().map(|id| (daemon, *id)).chain(back);
        for (number, (daemon, id)) in all.enumerate() {
            let mut frontend = match id {
                // Not before somebody speaks there: the daemon soon gives up a connection that says nothing.
                "dialled" => {
                    let dialled = UnixListener::bind(daemon.socket(id))?;
                    Frontend::over(dialled.accept()?.0, ring(number))?
                }
                _ => daemon.frontend(id, &ring(number))?,
            };
            let (load, _) = Load::start(&mut frontend)?;
            load.await_requests(10).with_context(|| format!("{id}: {}", daemon.last_words()))?;
            loads.push((id, load, frontend));
        }
        let mut singles = Vec::new();
        for id in ["read", "none"] {
            let mut frontend = daemon.frontend(id, &ring(0))?;
            singles.push((id, Single::new(&mut frontend)?, frontend));
        }
        let quiet = ["many", "packet", "xdp", "drop", "echo", "made", "far-nic"];
        let quiet =
            quiet.iter().map(|id| daemon.nic(id, NicSpec::sending(1514))).collect::<Result<_>>()?;
        let guest = |id: &str| daemon.nic(id, NicSpec::sending(LONGEST));
        let lan = traffic::start([(guest("one")?, 1), (guest("two")?, 2)])?;
        let bridged = traffic::start([(guest("three")?, 3), (guest("four")?, 4)])?;
        let frames = [lan, bridged];
        for guest in frames.iter().flatten() {
            guest.await_frames(10)?;
        }
        Ok(Guests { loads, singles, frames, _quiet: quiet })
    }

    fn go_on(&mut self, daemon: &Daemon, round: u64) -> Result<()> {
        for (id, load, _) in &self.loads {
            load.await_requests(20).with_context(|| format!("{id}: {}", daemon.last_words()))?;
        }
        for guest in self.frames.iter().flatten() {
            let faults = || self.frames.iter().flatten().filter_map(Traffic::fault);
            let told = || faults().collect::<String>() + "\n" + &lost(daemon, round);
            guest.await_frames(20).with_context(told)?;
        }
        for (id, single, frontend) in &mut self.singles {
            let ended = single.send(frontend.queue(0), Kind::Read, 5)?;
            ensure!(ended.status == STATUS_OK, "{id}: {ended:?}");
        }
        Ok(())
    }

    /// Requests and frames.
    fn finish(self) -> Result<(u64, u64)> {
        let (mut requests, mut sent) = (0, 0);
        for (id, load, _frontend) in self.loads {
            requests += load.finish().context(id)?.requests;
        }
        for guests in self.frames {
            for done in traffic::finish(guests)? {
                ensure!(done.lost == 0, "{done:?}");
                sent += done.sent;
            }
        }
        Ok((requests, sent))
    }
}

fn every_kind() -> Result<()> {
    let wanted = often("UPGRADES", [5, 500])?;
    let starved = often("STARVED", [2, 10])?;
    let ports = [free_port()?, free_port()?];
    let [lends, uses] = ports;
    let backing = Scratch::new(&std::env::temp_dir(), "upgrade-kinds-block")?;
    File::create(backing.path().join("block"))?.set_len(4 << 20)?;
    let block = Loop::over(&backing.path().join("block"), 512)?;
    let read = backing.path().join("read.raw");
    File::create(&read)?.set_len(4 << 20)?;
    let folders = format!(
        "image_folders = [\"images\", \"{}\", \"{}\"]",
        block.path().display(),
        backing.path().display()
    );
    let text = everything([block.path(), &read], ports, &address_of("e3")?);
    let config = Daemon::with("upgrade-kinds", &text).daemon(&folders);
    let mut daemon = config.sidecores("cpus = \"0-1\"\nmin = 2").start()?;
    let text = peer(lends, uses, &address_of("e0")?);
    let mut other = Daemon::with("upgrade-kinds-peer", &text).cpus("1").start()?;
    // The bridge drops what is longer than the MTU of its way out; the NIC's own tap has that of the NIC.
    ip("link set lan-tap mtu 3000")?;
    for tap in TAPS {
        ip(&format!("link set {tap} master br0"))?;
    }
    let mut guests = Guests::start(&daemon, &other)?;
    is_well(&daemon)?;
    let since = std::fs::read_to_string(daemon.dir().join("log"))?.len();
    let monitor = Monitor::start(backing.path())?;
    let carriers = carrier_changes()?;
    for round in 0..wanted {
        replace(&mut daemon).with_context(|| format!("upgrade {round}"))?;
        if round % 10 == 4 {
            replace(&mut other).with_context(|| format!("the peer, upgrade {round}"))?;
        }
        guests.go_on(&daemon, round)?;
    }
    has_not_warned(&daemon, since)?;
    // It may be given up at any step then, with queues, links and ports partly here and partly there.
    let since = std::fs::read_to_string(daemon.dir().join("log"))?.len();
    let mut given_up = 0;
    for round in wanted..wanted + starved {
        let busy = Starved::start(&[0, 1], round)?;
        let is_done = try_to_replace(&mut daemon).with_context(|| format!("upgrade {round}"))?;
        drop(busy);
        given_up += u32::from(!is_done);
        guests.go_on(&daemon, round)?;
    }
    let events = monitor.said_of(&TAPS)?;
    // What was told late of how they began is no event: they have a carrier then.
    let is_down = |line: &&String| !line.contains("LOWER_UP") || line.contains("Deleted");
    let events: Vec<&String> = events.iter().filter(is_down).collect();
    ensure!(events.is_empty(), "links of taps changed: {events:#?}\n{}", daemon.last_words());
    let now = carrier_changes()?;
    ensure!(now == carriers, "carriers changed {carriers:?} times before and {now:?} after");
    is_well(&daemon)?;
    has_not_warned(&daemon, since)?;
    let (requests, sent) = guests.finish()?;
    println!(
        "{{\"upgrades\":{wanted},\"starved\":{starved},\"requests\":{requests},\"errors\":0,\"frames\":{sent},\"lost\":0,\"link_events\":0,\"given_up\":{given_up}}}"
    );
    daemon.stop()?;
    other.stop()
}
