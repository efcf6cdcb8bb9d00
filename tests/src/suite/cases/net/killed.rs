//! TCP connections between guests and with the host live on when the daemon is killed, again and again.

use anyhow::Result;
use testing::bed::Bed;
use testing::daemon::Daemon;
use testing::namespace::Namespace;
use testing::place::Place;
use testing::traffic::{Lines, Load};

use super::{Nic, daemon, nics};

/// Split rings: where a packed one was, only its old daemon knew (0006).
pub(super) const ONE: Nic = Nic::new(21, "one", "switch = \"lan\"");
/// The other guest's.
pub(super) const TWO: Nic = Nic::new(22, "two", "switch = \"lan\"");
/// The network that they are on with the host, 10.9.7.0/24.
pub(super) const NETWORK: u8 = 7;

/// A daemon that may be killed, with a tap by which the host is on its switch.
pub(super) fn daemon_to_kill(host: &Namespace) -> Result<Daemon> {
    let lan = "[[switch]]\nid = \"lan\"\n[[switch.uplink]]\ntap = \"lan0\"\n";
    let daemon = daemon("killed", host, &format!("{lan}{}", nics(&[ONE, TWO])))?;
    host.address("lan0", NETWORK, 100)?;
    Ok(daemon)
}

/// Three kills, while lines go to and fro and iperf3 goes both ways.
pub(super) fn all(
    bed: &Bed,
    daemon: &mut Daemon,
    host: &Namespace,
    one: &dyn Place,
    two: &dyn Place,
) -> Result<()> {
    let mut lines = Lines::new();
    lines.open(one, two, "10.9.7.2")?;
    lines.open(two, one, "10.9.7.1")?;
    lines.open(one, host, "10.9.7.100")?;
    lines.open(host, two, "10.9.7.2")?;
    bed.check("flows", lines.go_on());
    let load = Load::start(one, "10.9.7.2")?;
    for round in 1..=3 {
        daemon.kill()?;
        daemon.start_again()?;
        bed.check(&format!("kill-{round}"), lines.go_on());
    }
    bed.check("load-lives", load.end());
    for (check, outcome) in lines.end() {
        bed.check(&check, outcome);
    }
    Ok(())
}
