//! Two namespaces and the pairs of interfaces between them: this program once more, in the one, with servers in the other.
//!
//! Not what is measured there. The namespaces go with [`Wires`], or with the next start after a kill.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result, ensure};
use testing::namespace::Namespace;

use crate::guests::{need_root, say};

/// The servers' address.
pub(super) const AT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 2));
/// Links without IP, each on a pair of its own, and those to somebody outside, for each way to an IOhost one.
const PAIRS: [&str; 6] = ["packet", "xdp", "out0", "out1", "out2", "out3"];

/// Measures all of it with pairs of each MTU, one after the other.
///
/// # Errors
/// The caller is not root, or one of them failed; the others were measured all the same.
pub(super) fn measure_with(mtus: &[u16]) -> Result<()> {
    need_root("remote", "makes namespaces")?;
    Namespace::sweep();
    let mut failed = Vec::new();
    for mtu in mtus {
        say(&format!("remote: interfaces of MTU {mtu}"));
        let wires = Wires::lay(*mtu)?;
        let mut again = wires.here.command(&std::env::current_exe()?.display().to_string());
        again.args(std::env::args_os().skip(1)).args(["--inside", wires.there.netns()]);
        again.args(["--mtu", &mtu.to_string()]).current_dir(std::env::current_dir()?);
        if !again.status().context("starting setpriv")?.success() {
            failed.push(mtu.to_string());
        }
    }
    ensure!(failed.is_empty(), "failed with MTU {}: read what is said above", failed.join(", "));
    Ok(())
}

struct Wires {
    here: Namespace,
    there: Namespace,
}

impl Wires {
    fn lay(mtu: u16) -> Result<Wires> {
        let (here, there) = (Namespace::new("here")?, Namespace::new("there")?);
        here.pair("wire", &there, "wire")?;
        for (space, address) in [(&here, "10.78.0.1"), (&there, &AT.to_string())] {
            space.ip(&format!("link set dev wire mtu {mtu}"))?;
            space.add_address(&format!("{address}/24"), "wire")?;
        }
        for name in PAIRS {
            here.pair(name, &there, name)?;
            here.ip(&format!("link set dev {name} mtu {mtu}"))?;
            there.ip(&format!("link set dev {name} mtu {mtu} address 02:00:00:78:00:02"))?;
        }
        // One whose ends are both here.
        here.pair("near", &here, "nigh")?;
        here.ip(&format!("link set dev near mtu {mtu}"))?;
        here.ip(&format!("link set dev nigh mtu {mtu} address 02:00:00:78:00:04"))?;
        Ok(Wires { here, there })
    }
}
