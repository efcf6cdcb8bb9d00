//! What drivers do to a NIC while it works: smaller rings, other numbers of pairs, offloads off and on, an
//! XDP program; and DHCP by raw sockets. QEMU serves the control queue, and tells the daemon little of it.

use anyhow::Result;
use testing::bed::Bed;
use testing::place::{Place, until};
use testing::traffic::{Load, same_bytes, tcp};

/// Of `one`: eth4 is on network 5, and eth5, whose frames come finished, on network 6.
pub(super) fn all(bed: &Bed, one: &dyn Place, two: &dyn Place) -> Result<()> {
    let reset = "! grep -E '^.{40}1' /sys/bus/virtio/devices/*/features";
    bed.check("no-ring-reset", one.asked(reset));
    let load = Load::start(one, "10.9.5.2")?;
    bed.check("ring-sizes-refused", one.asked("! ethtool -G eth4 rx 64 tx 64"));
    let ping = "ping -q -c 5 -i 0.05 -W 60 10.9.5.2";
    bed.check("ping-after-sizes", one.asked(ping));
    for pairs in [2, 1, 2] {
        let change = one.asked(&format!("ethtool -L eth4 combined {pairs} && {ping}"));
        bed.check(&format!("pairs-{pairs}"), change);
    }
    offloads_change(bed, one, two)?;
    bed.check("driver-load", load.end());
    xdp_attached(bed, one, two);
    dhcp_by_raw_sockets(bed, one, two)
}

/// Each of a driver's own, off and on again; what it cannot change it says.
fn offloads_change(bed: &Bed, one: &dyn Place, two: &dyn Place) -> Result<()> {
    one.does(
        "for feature in tx sg tso gso rx gro rx-gro-hw; do
            ethtool -K eth4 $feature off; ping -q -c 3 -i 0.05 -W 60 10.9.5.2 >/dev/null
            ethtool -K eth4 $feature on
        done",
    )?;
    bed.check("features-bytes", same_bytes(one, two, "10.9.5.2"));
    bed.check("features-bytes-back", same_bytes(two, one, "10.9.5.1"));
    Ok(())
}

/// Where receive offloads are offered Linux refuses; where they are withheld it attaches, and TCP goes on.
fn xdp_attached(bed: &Bed, one: &dyn Place, two: &dyn Place) {
    bed.check("xdp-refused", one.asked_in_vain("xdp_pass eth4 </dev/null"));
    bed.check("xdp-refused-bytes", same_bytes(two, one, "10.9.5.1"));
    let attach = format!(
        "mkfifo /tmp/hold; xdp_pass eth5 <>/tmp/hold >/tmp/xdp 2>&1 &
        {}",
        until("grep -q attached /tmp/xdp")
    );
    bed.check("xdp-attached", one.asked(&attach));
    bed.check("xdp-tcp", tcp(one, "10.9.6.2"));
    bed.check("xdp-tcp-back", tcp(one, "10.9.6.2 -R"));
    bed.check("xdp-bytes", same_bytes(one, two, "10.9.6.2"));
    bed.check("xdp-bytes-back", same_bytes(two, one, "10.9.6.1"));
}

/// The server sends by a UDP socket, whose checksum its NIC may leave undone; the client reads by a raw one.
fn dhcp_by_raw_sockets(bed: &Bed, one: &dyn Place, two: &dyn Place) -> Result<()> {
    two.run(
        "ethtool -K eth5 tx on; mkdir -p /var/lib/misc /var/run
        printf 'start 10.9.5.50\\nend 10.9.5.60\\ninterface eth5\\n' >/tmp/udhcpd
        printf 'lease_file /tmp/leases\\npidfile /tmp/dhcp\\n' >>/tmp/udhcpd
        : >/tmp/leases; busybox udhcpd -f /tmp/udhcpd >/tmp/udhcpd-said 2>&1 &",
    )?;
    let asks = "busybox udhcpc -i eth4 -n -q -f -t 30 -T 2 -s /bin/true >/tmp/udhcpc 2>&1
        cat /tmp/udhcpc
        grep -q 'lease of 10.9.5.5[0-9] obtained\\|lease of 10.9.5.60 obtained' /tmp/udhcpc";
    bed.check("dhcp", one.asked(asks));
    Ok(())
}
