//! A guest that reaches the host's network, each way there is: a switch with a tap that is in a Linux bridge, a
//! tap of its own with two queues, an interface's packet socket, and its AF_XDP socket. Its first NIC is
//! as the daemon prints it.

use anyhow::{Context, Result, ensure};
use rustix::fd::OwnedFd;
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, recv, socket};
use serde_json::json;
use testing::bed::Bed;
use testing::namespace::Namespace;
use testing::place::Place;
use testing::timing::PATIENCE;
use testing::traffic::{same_bytes, serve, tcp, udp};
use testing::vm::{Boot, Vm, has_kvm};

use super::pair::addressed;
use super::{Nic, daemon, nics, part};
use crate::suite::cases::guest::shell_words;

/// The type of RARP's frames.
const RARP: u16 = 0x8035;
const LAN: &str = "[[switch]]\nid = \"lan\"\n[[switch.uplink]]\ntap = \"lan0\"\n";
/// eth1 and on in the guest, after the one that is pasted; the first is on network 0.
const NICS: [Nic; 4] = [
    Nic::new(1, "one-lan", "switch = \"lan\"").properties("guest_announce=off"),
    Nic::new(2, "one-tap", "tap = \"own0\"").queues(2),
    Nic::new(3, "one-packet", "interface = \"up2\"\nvia = \"packet\""),
    Nic::new(4, "one-xdp", "interface = \"up3\"\nvia = \"xdp\""),
];
/// The network of the pasted NIC.
const PASTED: u8 = 9;

/// One guest and a namespace that it reaches by the host's ports.
pub(super) fn outside(bed: &Bed) -> Result<()> {
    let (host, outside) = (Namespace::new("host")?, Namespace::new("outside")?);
    for port in 0..4 {
        host.pair(&format!("up{port}"), &outside, &format!("out{port}"))?;
        outside.address(&format!("out{port}"), port, 100)?;
    }
    outside.address("out0", PASTED, 100)?;
    // AF_XDP carries frames as they are: who sends without checksums there is not understood.
    outside.run("ethtool -K out3 tx off")?;
    let mut served = daemon("outside", &host, &format!("{LAN}{}", nics(&NICS)))?;
    // What the daemon has made is the operator's to use: in a bridge with the way out.
    host.bridge("bridge-lan0", &["lan0", "up0"])?;
    host.bridge("bridge-own0", &["own0", "up1"])?;
    serve(&outside)?;
    let printed =
        served.says("nic add pasted --switch lan --queues 2 --memory 512M --print qemu")?;
    let mut boot = Boot::new("one").pasted(shell_words(&printed)?);
    for nic in &NICS {
        boot = nic.plugged(boot, &served);
    }
    let one = Vm::boot(bed.folder(), boot)?;
    addressed(&one, 1, (0..5).zip([PASTED, 0, 1, 2, 3]))?;
    part(bed, "host-ports", |bed| {
        for (number, name) in ["uplink", "tap", "packet", "xdp"].into_iter().enumerate() {
            reaches(bed, name, number, &one, &outside);
        }
        bed.check("announced", announced(&one, &outside));
        Ok(())
    })?;
    part(bed, "pasted-nic", |bed| {
        pasted(bed, &printed, &one, &outside);
        Ok(())
    })?;
    one.off()?;
    served.stop()
}

/// Network `number`, both ways.
fn reaches(bed: &Bed, name: &str, number: usize, one: &dyn Place, outside: &dyn Place) {
    let (far, near) = (format!("10.9.{number}.100"), format!("10.9.{number}.1"));
    let ping = |to: &str| format!("ping -q -c 5 -i 0.05 -W 60 {to}");
    let check = |what: &str| format!("{name}-{what}");
    bed.check(&check("ping"), one.asked(&ping(&far)));
    bed.check(&check("ping-v6"), one.asked(&ping(&format!("fd09:{number}::100"))));
    bed.check(&check("ping-in"), outside.asked(&ping(&near)));
    bed.check(&check("tcp-out"), tcp(one, &far));
    bed.check(&check("tcp-in"), tcp(one, &format!("{far} -R")));
    bed.check(&check("udp-out"), udp(one, &far));
    bed.check(&check("udp-in"), udp(one, &format!("{far} -R")));
    bed.check(&check("bytes-out"), same_bytes(one, outside, &far));
    bed.check(&check("bytes-in"), same_bytes(outside, one, &near));
}

/// After a migration a VMM says where its guest is now, for a guest that cannot say it itself. QEMU is told
/// to say it without one.
fn announced(one: &Vm, outside: &Namespace) -> Result<&'static str> {
    let heard = outside.inside(listening)??;
    let often = json!({ "initial": 50, "max": 100, "rounds": 3, "step": 50 });
    one.qmp("announce-self", &often)?;
    let mut frame = [0; 2048];
    let heard = retry_on_intr(|| recv(&heard, &mut frame[..], RecvFlags::empty()));
    let (_, len) = heard.context("no RARP frame came")?;
    let frame: String = frame[..len].iter().map(|byte| format!("{byte:02x}")).collect();
    let wanted = format!("ffffffffffff{}{RARP:04x}", NICS[0].mac().replace(':', ""));
    ensure!(frame.starts_with(&wanted), "in place of a RARP frame ({wanted}..): {frame}");
    Ok("")
}

/// A socket on which the frames with the type of RARP arrive.
fn listening() -> Result<OwnedFd> {
    let protocol = u32::from(RARP.to_be()).try_into().ok().map(Protocol::from_raw);
    let socket = socket(AddressFamily::PACKET, SocketType::RAW, protocol)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    Ok(socket)
}

/// What is printed, pasted: a guest starts with it and reaches another.
fn pasted(bed: &Bed, printed: &str, one: &dyn Place, outside: &dyn Place) {
    if has_kvm() || printed.contains("vectors=0") {
        bed.passed("printed-for-this-host", "");
    } else {
        bed.failed("printed-for-this-host", format!("there is no KVM, and it prints: {printed}"));
    }
    bed.check("ring-sizes", one.asked("ethtool -g eth0 | grep -c '1024$' | grep -qx 4"));
    bed.check("two-pairs", one.asked("ethtool -L eth0 combined 2"));
    bed.check("ping", one.asked("ping -q -c 5 -i 0.05 -W 60 10.9.9.100"));
    bed.check("bytes-in", same_bytes(outside, one, "10.9.9.1"));
}
