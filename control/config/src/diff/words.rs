//! What a NIC or an uplink is set to, in words of a list of changes. Disks say it themselves (`plan::service`).

use std::fmt;

use crate::plan::{NicPlan, UplinkPlan, VlanPlan};
use crate::spec::{Redirect, Spoof};

/// A NIC: how it is served, which frames it has, and what else is not as usual.
pub(super) fn write_nic(f: &mut fmt::Formatter<'_>, nic: &NicPlan, addresses: u16) -> fmt::Result {
    write!(f, "{}", nic.service)?;
    write_rules(f, (&nic.vlan, addresses, nic.spoof))?;
    write!(f, ", link {}", nic.carrier)?;
    if nic.redirect != Redirect::Off {
        write!(f, ", redirect {}", nic.redirect)?;
    }
    if !nic.vcpus.is_empty() {
        write!(f, ", vcpus {}", list(&nic.vcpus))?;
    }
    nic.qmp.iter().try_for_each(|qmp| write!(f, ", qmp {qmp}"))
}

/// An uplink: the same.
pub(super) fn write_uplink(
    f: &mut fmt::Formatter<'_>,
    uplink: &UplinkPlan,
    addresses: u16,
) -> fmt::Result {
    write!(f, "share {} and policy {}", uplink.share, uplink.policy)?;
    write_rules(f, (&uplink.vlan, addresses, uplink.spoof))?;
    uplink.mac.iter().try_for_each(|mac| write!(f, ", mac {mac}"))
}

fn write_rules(
    f: &mut fmt::Formatter<'_>,
    (vlan, addresses, spoof): (&VlanPlan, u16, Spoof),
) -> fmt::Result {
    match vlan {
        VlanPlan::None => write!(f, ", tags as they are")?,
        VlanPlan::Access(vlan) => write!(f, ", vlan {vlan}")?,
        VlanPlan::Trunk { native, allowed } => {
            write!(f, ", trunk {}", list(allowed))?;
            native.iter().try_for_each(|native| write!(f, ", native {native}"))?;
        }
    }
    write!(f, ", {addresses} addresses")?;
    if spoof != Spoof::Allow {
        write!(f, ", spoof {spoof}")?;
    }
    Ok(())
}

fn list(numbers: &[u16]) -> String {
    numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use crate::Change;
    use crate::plan::load;

    #[test]
    fn what_is_set_is_told_of_nics_and_uplinks() {
        let host = cpus::HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 };
        let plan = |text: &str| load(text, "f", "/etc", &host, None).expect("a plan");
        let of = |uplink: &str, nic: &str| {
            plan(&format!(
                "switch = [{{ id = \"s\", uplink = [{{ tap = \"t\", {uplink} }}] }}]\n\
                 nic = [{{ id = \"n\", switch = \"s\", {nic} }}]"
            ))
        };
        let nic = "trunk = [4, 5], native = 4, spoof = \"deny\", link = \"down\", redirect = \"auto\", \
                   vcpus = [1], limit_packets = 9";
        let (before, after) = (of("", ""), of("vlan = 5", nic));
        let said = |from, to| -> Vec<String> {
            crate::diff(from, to).changes.iter().map(Change::to_string).collect()
        };
        assert_eq!(
            said(&before, &after),
            [
                "set uplink t of switch s to share 100 and policy adaptive, vlan 5, 8192 addresses",
                "set nic n to share 100 and policy adaptive, calls may wait 64 us, at most 9 packets/s, bursts of 100 ms, \
                 trunk 4,5, native 4, 1024 addresses, spoof deny, link down, redirect auto, vcpus 1",
            ]
        );
        // Back to what is usual.
        assert_eq!(
            said(&after, &before),
            [
                "set uplink t of switch s to share 100 and policy adaptive, tags as they are, 8192 addresses",
                "set nic n to share 100 and policy adaptive, calls may wait 64 us, tags as they are, 1024 addresses, \
                 link up",
            ]
        );
    }
}
