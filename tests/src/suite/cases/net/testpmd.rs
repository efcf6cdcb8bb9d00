//! DPDK's virtio-user driver in front of a switch: a foreign driver, without a VM. It polls.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testing::bed::Bed;
use testing::daemon::{Daemon, await_that, pause};
use testing::namespace::Namespace;
use testing::place::{Place, end_of};
use testing::testpmd::{Mode, Side, Testpmd, TestpmdSpec};

use super::{Nic, daemon, nics, switches};

const LAN: &str = "[[switch]]\nid = \"lan\"\n[[switch.uplink]]\ntap = \"lan0\"\n";
/// DPDK does not seal its memory.
const ON_LAN: &str = "switch = \"lan\"\nallow_unsealed_memory = true";
const FOREIGN: Nic = Nic::new(1, "foreign", ON_LAN).mtu(9000);
const FROM: Nic = Nic::new(1, "from", ON_LAN);
const TO: Nic = Nic::new(2, "to", ON_LAN);
/// The core that it polls on; the daemon finds another one.
const CORE: u16 = 1;
/// How long frames are sent as fast as they can be.
const FLOOD: Duration = Duration::from_millis(500);
/// A form of ring and buffer.
struct Form {
    name: &'static str,
    packed: bool,
    mergeable: bool,
    in_order: bool,
    more: &'static str,
}

/// A form: packed, merged buffers, in order.
const fn form(name: &'static str, [packed, mergeable, in_order]: [bool; 3]) -> Form {
    Form { name, packed, mergeable, in_order, more: "" }
}

const FORMS: [Form; 8] = [
    form("split", [false, true, false]),
    form("split-single", [false, false, false]),
    form("split-in-order", [false, true, true]),
    form("split-in-order-single", [false, false, true]),
    form("packed", [true, true, false]),
    form("packed-single", [true, false, false]),
    form("packed-in-order", [true, true, true]),
    Form { more: ",vectorized=1", ..form("packed-vectorized", [true, false, true]) },
];

impl Form {
    fn started(&self, bed: &Bed, daemon: &Daemon, nic: Nic, spec: Started) -> Result<Testpmd> {
        let driver = TestpmdSpec::new(Side::VirtioUser, spec.mode, &daemon.socket(nic.id), CORE);
        let driver = TestpmdSpec {
            packed: self.packed,
            mergeable: self.mergeable,
            in_order: self.in_order,
            device_options: format!(",mac={}{}", nic.mac(), self.more),
            options: spec.options,
            ..driver
        };
        let name = format!("{}-{}", self.name, nic.id);
        let mut testpmd = Testpmd::start(bed.folder(), &name, &driver)?;
        testpmd.command("start")?;
        Ok(testpmd)
    }
}

/// What it does, and with which options.
struct Started {
    mode: Mode,
    options: String,
}

/// Each form of ring and buffer: testpmd answers pings that come through a switch and its uplink, and
/// ping looks at every byte that comes back.
pub(super) fn rings(bed: &Bed) -> Result<()> {
    let host = Namespace::new("host")?;
    let mut served = daemon("testpmd", &host, &format!("{LAN}{}", nics(&[FOREIGN])))?;
    host.ip("link set lan0 mtu 9000")?;
    host.address("lan0", 0, 100)?;
    for form in &FORMS {
        if bed.wants(form.name) {
            let counts = answers_pings(bed, form, &served, &host);
            bed.check(&format!("{}-counts", form.name), counts);
        }
    }
    served.stop()
}

/// It has counted as many frames as pings were answered.
fn answers_pings(bed: &Bed, form: &Form, daemon: &Daemon, host: &Namespace) -> Result<String> {
    // Large frames take several buffers of 2 KiB; without mergeable ones nobody sends such. In packed
    // rings DPDK's driver sends them in tables whose first descriptor, the header's, it marks as one
    // to write to (vring_desc_init_indirect_packed): VIRTIO 2.8.7 forbids it, and the queue stops.
    let is_large = form.mergeable && !form.packed;
    let options = if is_large { "--enable-scatter --max-pkt-len=9018" } else { "" };
    let spec = Started { mode: Mode::IcmpEcho, options: options.to_owned() };
    let mut testpmd = form.started(bed, daemon, FOREIGN, spec)?;
    let name = form.name;
    // The first one asks for the address.
    let first = host.asked("ping -q -c 3 -i 0.2 -W 60 10.9.0.7");
    bed.check(&format!("{name}-answers"), first);
    // Each ring of 256 goes round, with its wrap bits.
    let count = bed.often(300, 1000);
    let mut sent = 0;
    for size in [56, 1472, 8900].iter().take(if is_large { 3 } else { 2 }) {
        bed.check(&format!("{name}-{size}"), all_come_back(host, *size, count));
        sent += count;
    }
    testpmd.command("stop")?;
    let counts = testpmd.counts()?;
    testpmd.quit()?;
    let told = format!("{} in, {} out", counts.received, counts.sent);
    ensure!(counts.received >= sent && counts.sent >= sent, "{sent} pings, but it counts {told}");
    Ok(told)
}

/// Pings as fast as they are answered: each comes back, with the bytes that were sent.
fn all_come_back(host: &Namespace, size: u32, count: u64) -> Result<String> {
    // With a deadline it goes on until so many have come back: more than that are sent where one is late.
    let said = host.run(&format!("ping -f -q -c {count} -w 120 -s {size} -p 5a 10.9.0.7"))?;
    ensure!(!said.contains("wrong data"), "{}", end_of(&said));
    let came = said.split_once(" received").and_then(|(head, _)| head.rsplit(' ').next());
    let came: u64 = came.and_then(|number| number.parse().ok()).unwrap_or(0);
    ensure!(came >= count, "{}", end_of(&said));
    await_that("an answer to each ping", || {
        let counted = host.run("grep Icmp: /proc/net/snmp")?;
        let (names, numbers) = counted.split_once('\n').context("no counters of ICMP")?;
        let number = |name: &str| {
            let mut both = names.split(' ').zip(numbers.trim_end().split(' '));
            both.find(|(found, _)| *found == name).map(|(_, number)| number)
        };
        let sent = number("OutEchos").context("no counter of pings")?;
        Ok(number("InEchoReps") == Some(sent))
    })?;
    Ok(format!("{came} came back"))
}

/// One sends as fast as it can, another receives: what does not arrive was counted as a drop.
pub(super) fn pair(bed: &Bed) -> Result<()> {
    let host = Namespace::new("host")?;
    let devices = switches(&["lan"]) + &nics(&[FROM, TO]);
    let mut served = daemon("testpmd-pair", &host, &devices)?;
    for form in [form("split", [false, true, true]), form("packed", [true, true, true])] {
        bed.check(form.name, pair_counts(bed, &form, &served));
    }
    served.stop()
}

fn pair_counts(bed: &Bed, form: &Form, daemon: &Daemon) -> Result<String> {
    let counted = |name: &str| {
        let counters = daemon.nic_view("to")?["counters"].take();
        counters[name].as_u64().with_context(|| format!("no {name} in {counters}"))
    };
    let dropped = counted("dropped_frames")?;
    let taker = Started { mode: Mode::RxOnly, options: String::new() };
    let mut taker = form.started(bed, daemon, TO, taker)?;
    let sender = Started { mode: Mode::TxOnly, options: format!("--eth-peer=0,{}", TO.mac()) };
    let mut sender = form.started(bed, daemon, FROM, sender)?;
    await_that("frames to be sent", || Ok(sender.counts()?.sent > 0))?;
    pause(FLOOD);
    sender.command("stop")?;
    let sent = sender.counts()?.sent;
    // What was on its way arrives, or is dropped.
    let over = await_that("the last frame", || {
        Ok(taker.counts()?.received + counted("dropped_frames")? - dropped >= sent)
    });
    taker.command("stop")?;
    let taken = taker.counts()?.received;
    let dropped = counted("dropped_frames")? - dropped;
    sender.quit()?;
    taker.quit()?;
    let told = format!("{sent} sent, {taken} received, {dropped} dropped for want of buffers");
    over.with_context(|| told.clone())?;
    ensure!(sent > 0 && taken > 0 && taken + dropped == sent, "{told}");
    Ok(told)
}
