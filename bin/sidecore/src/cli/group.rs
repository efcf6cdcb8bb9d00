//! The commands about groups.
//!
//! As for disks: the options are the fields of the configuration file.

use clap::Subcommand;
use config::spec::{GroupChange, GroupSpec};

#[derive(Subcommand, Debug)]
pub(crate) enum GroupCommand {
    /// Make a group. It survives a restart of the daemon.
    #[command(after_help = "\
Examples:
  sidecore group add tenant1 --limit-iops 5000
  sidecore group add tenant1 --limit-bytes 1G --limit-packets 200000 --limit-burst-ms 20

`sidecore disk set` and `sidecore nic set` put disks and NICs into it, with --group.")]
    Add(GroupSpec),
    /// List the groups.
    #[command(alias = "list", after_help = "Examples:\n  sidecore group ls")]
    Ls,
    /// Remove a group that nothing is in.
    #[command(
        alias = "remove",
        after_help = "\
Examples:
  sidecore group rm tenant1
  sidecore disk set vm1-root --group=                  takes a disk out before"
    )]
    Rm {
        /// Name of the group.
        id: String,
    },
    /// Give a group another limit. It holds at once.
    #[command(
        override_usage = "sidecore group set [OPTIONS] <ID>",
        after_help = "\
Examples:
  sidecore group set tenant1 --limit-iops 8000
  sidecore group set tenant1 --limit-bytes 0           no limit of bytes any more"
    )]
    Set {
        /// Name of the group.
        id: String,
        #[command(flatten)]
        change: GroupChange,
    },
    /// Show one group: its limit, its members, and what they use. Without a name, list the groups.
    #[command(after_help = "\
Examples:
  sidecore group show
  sidecore group show tenant1
  sidecore group show tenant1 --json | jq .used.requests

What is used is that of the last quarter of a second, as a rate. --json prints totals of the
members instead, since each of them was made. `held` says how often their queues had something
and had to wait for the group's limit, and how long all of them together: with several queues
that may be more than the time that went by. What comes for a NIC does not wait: it is
dropped.")]
    Show {
        /// Name of the group.
        id: Option<String>,
    },
}
