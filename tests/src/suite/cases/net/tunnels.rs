//! Two namespaces, each behind a packet socket of one switch, and tunnels between them: what a kernel wraps and
//! leaves uncut it labels with what is inside.

use anyhow::Result;
use testing::bed::Bed;
use testing::namespace::Namespace;
use testing::place::Place;
use testing::traffic::same_bytes;

use super::daemon;

const LAN: &str = "[[switch]]\nid = \"lan\"\n[[switch.uplink]]\ninterface = \"up0\"\n\
                   [[switch.uplink]]\ninterface = \"up1\"\n";

/// The one that has IPv6 underneath.
const V6: &str = "vxlan-v6";
/// A name, and `ip`'s words for the kind.
const TUNNELS: [(&str, &str); 8] = [
    ("vxlan", "vxlan id 5 dstport 4789"),
    ("vxlan-sums", "vxlan id 6 dstport 4790 udpcsum"),
    (V6, "vxlan id 7 dstport 4791"),
    ("geneve", "geneve id 8"),
    ("gretap", "gretap"),
    ("gre", "gre"),
    ("ipip", "ipip"),
    ("sit", "sit"),
];

/// Long segments through each of them, both ways.
pub(super) fn tunnels(bed: &Bed) -> Result<()> {
    let host = Namespace::new("host")?;
    let ends = [Namespace::new("here")?, Namespace::new("there")?];
    for (number, end) in ends.iter().enumerate() {
        host.pair(&format!("up{number}"), end, &format!("out{number}"))?;
        end.address(&format!("out{number}"), 0, 1 + number as u8)?;
    }
    let mut served = daemon("tunnels", &host, LAN)?;
    let [here, there] = &ends;
    bed.check("underlay", here.asked("ping -q -c 5 -i 0.05 -W 60 10.9.0.2"));
    for (number, (name, kind)) in (1..).zip(TUNNELS) {
        let under = if name == V6 { "fd09:0::" } else { "10.9.0." };
        let made = laid(number, under, kind, here, 1, 2)
            .and_then(|()| laid(number, under, kind, there, 2, 1));
        if let Err(error) = made {
            bed.skipped(name, format!("this kernel has none: {error:#}"));
            continue;
        }
        for (end, own) in [(here, 1), (there, 2)] {
            end.add_address(&format!("10.10.{number}.{own}/24"), &format!("t{number}"))?;
            end.ip(&format!("link set t{number} mtu 1400 up"))?;
        }
        let (near, far) = (format!("10.10.{number}.1"), format!("10.10.{number}.2"));
        let ping = here.asked(&format!("ping -q -c 3 -i 0.05 -W 60 {far}"));
        bed.check(&format!("{name}-ping"), ping);
        bed.check(&format!("{name}-bytes"), same_bytes(here, there, &far));
        bed.check(&format!("{name}-bytes-back"), same_bytes(there, here, &near));
    }
    served.stop()
}

/// One end of it, if the kernel has such.
fn laid(number: u32, under: &str, kind: &str, end: &Namespace, own: u32, other: u32) -> Result<()> {
    // Of geneve only the far end is said.
    let local =
        if kind.starts_with("geneve") { String::new() } else { format!("local {under}{own}") };
    end.ip(&format!("link add t{number} type {kind} {local} remote {under}{other}"))
}
