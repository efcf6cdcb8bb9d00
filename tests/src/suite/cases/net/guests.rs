//! The networks of two guests: a plain one; one end without offloads and mergeable buffers; several
//! queue pairs, packed, MTU 9000; a trunk against two access ports; and a link that is taken away.

use anyhow::{Result, bail};
use testing::bed::Bed;
use testing::daemon::Daemon;
use testing::place::{Place, end_of, until, until_listened};
use testing::traffic::{same_bytes, tcp, udp};

/// All of them.
pub(super) fn all(bed: &Bed, daemon: &Daemon, one: &dyn Place, two: &dyn Place) -> Result<()> {
    plain_network(bed, one, two)?;
    without_offloads(bed, one, two);
    wide_network(bed, one, two);
    vlan_network(bed, one, two)?;
    carrier(bed, daemon, one, two)
}

/// Requests of memcslap's four clients together.
const REQUESTS: u32 = 400;

fn plain_network(bed: &Bed, one: &dyn Place, two: &dyn Place) -> Result<()> {
    bed.check("ping", one.asked("ping -q -c 5 -i 0.05 -W 60 10.9.0.2"));
    bed.check("ping-v6", one.asked("ping -q -c 5 -i 0.05 -W 60 fd09:0::2"));
    bed.check("ping-fragments", one.asked("ping -q -c 5 -i 0.05 -W 60 -s 20000 10.9.0.2"));
    bed.check("tcp-one-to-two", tcp(one, "10.9.0.2"));
    bed.check("tcp-two-to-one", tcp(one, "10.9.0.2 -R"));
    bed.check("tcp-v6", tcp(one, "fd09:0::2"));
    bed.check("udp-one-to-two", udp(one, "10.9.0.2"));
    bed.check("udp-two-to-one", udp(one, "10.9.0.2 -R"));
    bed.check("bytes-one-to-two", same_bytes(one, two, "10.9.0.2"));
    bed.check("bytes-two-to-one", same_bytes(two, one, "10.9.0.1"));
    two.run(&format!(
        "memcached -u root -m 64 -d
        sockperf server -i 10.9.0.2 --tcp -p 7000 >/dev/null 2>&1 &
        sockperf server -i 10.9.0.2 -p 7001 >/dev/null 2>&1 &
        {}; {}; {}",
        until_listened(11211),
        until_listened(7000),
        until("grep -q :1B59 /proc/net/udp"),
    ))?;
    bed.check("memcached-set", memcached(one, "set", "cmd_set"));
    bed.check("memcached-get", memcached(one, "get", "get_hits"));
    bed.check("tcp-rr", request_response(one, "--tcp -p 7000"));
    bed.check("udp-rr", request_response(one, "-p 7001"));
    Ok(())
}

/// Requests of four clients, and as many in the server's own counter (memcslap itself is content without a
/// server).
fn memcached(one: &dyn Place, test: &str, counter: &str) -> Result<String> {
    let each = REQUESTS / 4;
    let line = format!(
        "memcslap --servers=10.9.0.2 --concurrency=4 --execute-number={each} \
            --initial-load={REQUESTS} --test={test}
        printf 'stats\\nquit\\n' | nc 10.9.0.2 11211"
    );
    let (mut served, mut said) = (0, String::new());
    // It has a patience of its own: on a machine that stands still some requests are counted by the next one.
    for _ in 0..3 {
        said = one.does(&line)?.1;
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("STAT {counter} ")));
        served = line.and_then(|number| number.trim().parse::<u32>().ok()).unwrap_or(0);
        if served >= REQUESTS / 40 * 39 {
            return Ok(format!("{served} served"));
        }
    }
    bail!("the server counted {served}: {}", end_of(&said))
}

/// One request and its answer after the other.
fn request_response(one: &dyn Place, words: &str) -> Result<String> {
    let mut said = String::new();
    // A machine that stands still for the whole time has no answer to count.
    for seconds in [1, 10, 60] {
        let words = format!("sockperf ping-pong -i 10.9.0.2 -t {seconds} {words}");
        said = one.does(&words)?.1;
        let latency = said.lines().find_map(|line| line.split_once("Summary: Latency is "));
        if let Some((_, latency)) = latency {
            return Ok(format!("one way {latency}"));
        }
    }
    bail!("{}", end_of(&said))
}

/// Two takes neither segments nor checksums, in single buffers; one sends them, and then does not.
fn without_offloads(bed: &Bed, one: &dyn Place, two: &dyn Place) {
    let set = |to: &str| {
        one.asked(&format!("ethtool -K eth1 tx {to} sg {to} tso {to} gso {to} rx {to} gro {to}"))
    };
    bed.check("bare-ping", one.asked("ping -q -c 5 -i 0.05 -W 60 10.9.1.2"));
    bed.check("bare-tcp", tcp(one, "10.9.1.2"));
    bed.check("bare-tcp-back", tcp(one, "10.9.1.2 -R"));
    bed.check("bare-tcp-v6", tcp(one, "fd09:1::2"));
    bed.check("bare-bytes", same_bytes(one, two, "10.9.1.2"));
    bed.check("bare-bytes-back", same_bytes(two, one, "10.9.1.1"));
    bed.check("offloads-off", set("off"));
    bed.check("offloads-off-tcp", tcp(one, "10.9.1.2"));
    bed.check("offloads-off-bytes", same_bytes(one, two, "10.9.1.2"));
    bed.check("offloads-on", set("on"));
    bed.check("offloads-on-bytes", same_bytes(one, two, "10.9.1.2"));
}

fn wide_network(bed: &Bed, one: &dyn Place, two: &dyn Place) {
    bed.check("mtu-9000", one.asked("grep -qx 9000 /sys/class/net/eth2/mtu"));
    bed.check("ping-9000", one.asked("ping -q -c 5 -i 0.05 -W 60 -M do -s 8972 10.9.2.2"));
    let two_pairs = "ethtool -L eth2 combined 2 && [ -d /sys/class/net/eth2/queues/rx-1 ]";
    bed.check("two-pairs", one.asked(two_pairs));
    bed.check("two-pairs-there", two.asked("ethtool -L eth2 combined 2"));
    bed.check("wide-tcp", tcp(one, "10.9.2.2 -P 4"));
    bed.check("wide-tcp-back", tcp(one, "10.9.2.2 -P 4 -R"));
    bed.check("wide-bytes", same_bytes(one, two, "10.9.2.2"));
    bed.check("one-pair-again", one.asked("ethtool -L eth2 combined 1"));
    bed.check("one-pair-tcp", tcp(one, "10.9.2.2 -P 2"));
    bed.check("one-pair-bytes", same_bytes(one, two, "10.9.2.2"));
}

fn vlan_network(bed: &Bed, one: &dyn Place, two: &dyn Place) -> Result<()> {
    one.run(
        "ip link set eth3 up
        ip link add link eth3 name eth3.10 type vlan id 10; ip link set eth3.10 up
        ip link add link eth3 name eth3.20 type vlan id 20; ip link set eth3.20 up
        ip addr add 10.9.3.1/24 dev eth3.10; ip addr add 10.9.4.1/24 dev eth3.20",
    )?;
    bed.check("vlan-10", one.asked("ping -q -c 5 -i 0.05 -W 60 10.9.3.2"));
    bed.check("vlan-20", one.asked("ping -q -c 5 -i 0.05 -W 60 10.9.4.2"));
    bed.check("vlan-tcp", tcp(one, "10.9.3.2"));
    bed.check("vlan-tcp-back", tcp(one, "10.9.4.2 -R"));
    bed.check("vlan-bytes", same_bytes(one, two, "10.9.4.2"));
    // What is two's in VLAN 10 does not answer in VLAN 20.
    one.run(
        "ip addr flush dev eth3.20; ip addr flush dev eth3.10
        ip addr add 10.9.3.1/24 dev eth3.20",
    )?;
    let apart = one.asked_in_vain("ping -q -c 3 -i 0.2 -W 1 10.9.3.2");
    bed.check("vlans-are-apart", apart);
    Ok(())
}

/// The operator takes a link away and gives it back.
fn carrier(bed: &Bed, daemon: &Daemon, one: &dyn Place, two: &dyn Place) -> Result<()> {
    daemon.says("nic link two-lan down")?;
    bed.check("carrier-lost", two.comes_to("grep -qx 0 /sys/class/net/eth0/carrier"));
    bed.check("nothing-passes", one.asked_in_vain("ping -q -c 2 -i 0.2 -W 1 10.9.0.2"));
    daemon.says("nic link two-lan up")?;
    bed.check("carrier-back", two.comes_to("grep -qx 1 /sys/class/net/eth0/carrier"));
    bed.check("ping-after", one.asked("ping -q -c 5 -i 0.05 -W 60 10.9.0.2"));
    Ok(())
}
