//! The commands about NICs and switches.
//!
//! As for disks: the options are the fields of the configuration file.

use clap::{Args, Subcommand};
use config::spec::{Carrier, NicChange, NicMove, NicSpec, SwitchSpec};

use super::PrintArgs;

#[derive(Subcommand, Debug)]
pub(crate) enum NicCommand {
    /// Make a NIC. It survives a restart of the daemon.
    Add(Box<NicAddArgs>),
    /// List the NICs.
    #[command(
        alias = "list",
        after_help = "Examples:\n  sidecore nic ls\n  sidecore nic ls --json"
    )]
    Ls,
    /// Remove a NIC. Its guest loses the card.
    #[command(
        alias = "remove",
        after_help = "\
Examples:
  sidecore nic rm vm1-net
  sidecore nic rm vm1-net --force                      also while a guest uses it"
    )]
    Rm {
        /// Name of the NIC.
        id: String,
        /// Do it also while a guest uses the NIC.
        #[arg(long)]
        force: bool,
    },
    /// Change a NIC while it runs: its share, policy, latency target, moderation of calls, redirection,
    /// limit, group, VLANs and addresses.
    #[command(
        override_usage = "sidecore nic set [OPTIONS] <ID>",
        after_help = "\
What else a NIC has, its guest learned when it connected: remove the NIC and add it again.

Examples:
  sidecore nic set vm1-net --share 200
  sidecore nic set vm1-net --limit-packets 100000 --limit-bytes 125000000
  sidecore nic set vm1-net --limit-packets 0 --group tenant1
  sidecore nic set vm1-net --moderate-us 200           fewer interrupts while it sends
  sidecore nic set vm1-net --moderate-us 0             no call for sent frames waits
  sidecore nic set vm1-net --vlan 20
  sidecore nic set vm1-net --trunk 10,20 --native 1
  sidecore nic set vm1-net --spoof deny
  sidecore nic set vm1-net --vlan 0                    no rule about VLANs any more"
    )]
    Set {
        /// Name of the NIC.
        id: String,
        #[command(flatten)]
        change: NicChange,
    },
    /// Take a NIC's cable out, or put it in. Its guest sees the carrier go and come.
    #[command(after_help = "\
Down, its VMM is cut off, and the NIC is `waiting`: QEMU needs `reconnect=1`, with which the
carrier is back about a second after `up`. Until then nobody uses the NIC, as the daemon sees it:
`nic rm` and `reload` take it away without --force, and its VMM would never find it again.

A NIC that the configuration file declares follows the file again after a restart.

Examples:
  sidecore nic link vm1-net down
  sidecore nic link vm1-net up")]
    Link {
        /// Name of the NIC.
        id: String,
        /// Whether the cable is in from now on.
        #[arg(value_enum)]
        state: Carrier,
    },
    /// Move a NIC of a switch to another sidecore, with all its queues.
    #[command(after_help = "\
Its guest goes on: no frame is lost, doubled or overtaken, and its queues stand still for less
than a millisecond if the sidecores have their cpus to themselves. Frames for it, and broadcasts
of its switch, wait for as long in the rings of their senders. If that is not enough, it stays
where it is; try again. Any NIC of a switch can be moved, also one that the configuration file
declares; one that is wired to the host cannot. `sidecore nic show` says where it is,
`sidecore sidecores` what each has to do.

It stays there, whatever the loads, until it is moved again, is let go, or its front-end goes;
meanwhile that sidecore is not parked. `--to auto` lets it go: it is where it was, and may be
moved by the loads from then on.

Examples:
  sidecore nic move vm1-net --to 1
  sidecore nic move vm1-net --to auto")]
    Move {
        /// Name of the NIC.
        id: String,
        #[command(flatten)]
        wish: NicMove,
    },
    /// Show one NIC with its queues and what its port dropped.
    #[command(after_help = "\
Examples:
  sidecore nic show vm1-net
  sidecore nic show vm1-net --json | jq .counters.drops
  sidecore nic show vm1-net --print libvirt --memory 4G")]
    Show {
        /// Name of the NIC.
        id: String,
        #[command(flatten)]
        print: PrintArgs,
    },
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidecore nic add vm1-net --switch lan --print qemu
  sidecore nic add vm1-net --switch lan --vlan 10 --queues 4 --mac 52:54:00:12:34:56
  sidecore nic add vm2-net --tap vm2 --print libvirt
  sidecore nic add vm3-net --interface eth1 --via xdp --print qemu
  sidecore nic add meter --null generate --size 1514 --rate 100000")]
pub(crate) struct NicAddArgs {
    #[command(flatten)]
    pub(crate) nic: NicSpec,
    #[command(flatten)]
    pub(crate) print: PrintArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SwitchCommand {
    /// Make a switch. It survives a restart of the daemon.
    #[command(after_help = "\
Examples:
  sidecore switch add lan
  sidecore switch add lan --uplink tap=lan0
  sidecore switch add lan --uplink interface=eth1,trunk=10+20,native=1 --uplink tap=mgmt,vlan=10
  sidecore switch add big --macs-max 32768 --ageing-s 60")]
    Add(SwitchSpec),
    /// List the switches.
    #[command(alias = "list", after_help = "Examples:\n  sidecore switch ls")]
    Ls,
    /// Remove a switch that has no NIC left, and its uplinks.
    #[command(alias = "remove", after_help = "Examples:\n  sidecore switch rm lan")]
    Rm {
        /// Name of the switch.
        id: String,
    },
    /// Show one switch: its ports, what they counted, and its table of addresses. Without a name, list
    /// the switches.
    #[command(after_help = "\
Examples:
  sidecore switch show
  sidecore switch show lan
  sidecore switch show lan --json | jq '.macs[] | select(.port == \"vm1-net\")'")]
    Show {
        /// Name of the switch.
        id: Option<String>,
    },
}
