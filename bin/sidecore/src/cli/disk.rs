//! The commands of disks.
//!
//! Not here: what they do (`crate::disk`).

use clap::{Args, Subcommand};
use config::Size;
use config::spec::{DiskChange, DiskMove, DiskSpec};

use super::show::PrintArgs;
use super::stage::{StageCommand, TraceArgs};

#[derive(Subcommand, Debug)]
pub(crate) enum DiskCommand {
    /// Make a disk. It survives a restart of the daemon.
    Add(AddArgs),
    /// List the disks.
    #[command(
        alias = "list",
        after_help = "Examples:\n  sidecore disk ls\n  sidecore disk ls --json"
    )]
    Ls,
    /// Show one disk with its queues.
    #[command(after_help = "\
Examples:
  sidecore disk show vm1-root
  sidecore disk show vm1-root --print qemu --memory 4G")]
    Show {
        /// Name of the disk.
        id: String,
        #[command(flatten)]
        print: PrintArgs,
    },
    /// Remove a disk. Its image stays.
    #[command(
        alias = "remove",
        after_help = "\
Examples:
  sidecore disk rm vm1-root
  sidecore disk rm vm1-root --force                    also while a guest uses it"
    )]
    Rm {
        /// Name of the disk.
        id: String,
        /// Do it also while a guest uses the disk.
        #[arg(long)]
        force: bool,
    },
    /// Give a disk another capacity; its guest is told.
    #[command(after_help = "\
A smaller one is refused while a guest uses the disk, and so is one that is larger than the
file system of its image, and any while requests wait that would end with an error, since the
front-end keeps no record of them; --force does it.

Examples:
  sidecore disk resize vm1-root 20G
  sidecore disk resize vm1-root 21474836480 --json
  sidecore disk resize vm1-root 10G --force            also under its guest")]
    Resize {
        /// Name of the disk.
        id: String,
        /// The new capacity, such as 20G (powers of 1024); a multiple of 512 bytes.
        #[arg(value_parser = config::number::size)]
        size: Size,
        /// Do it also when it is smaller and a guest uses the disk, and when it is larger than the image's file system.
        #[arg(long)]
        force: bool,
    },
    /// Let a disk flush again that could not make data stable. Check its data first.
    #[command(after_help = "\
The kernel tells of lost data once. A disk that was told so refuses every flush, also
after a restart of the daemon, until this command says that you know what was lost:
check the file system in the guest (or restore a backup), then clear the disk.

Examples:
  sidecore disk clear vm1-root")]
    Clear {
        /// Name of the disk.
        id: String,
    },
    /// Have the guest of a disk go on with the image that is there, though it was on another one.
    #[command(after_help = "\
A guest whose driver was running is served only from the image that it was on. When
another one is there (another `path`, a restored file, another disk of the IOhost), its
requests wait, and `sidecore show` says which image it was on and which one is there.
Put the right image back, or restart the guest. This command says that both hold the
same data; if they do not, the guest's file system is destroyed.

Examples:
  sidecore show vm1-root
  sidecore disk accept vm1-root")]
    Accept {
        /// Name of the disk.
        id: String,
    },
    /// Move queues of a running disk to another sidecore.
    #[command(after_help = "\
Its guest goes on: nothing is lost, and the queue stands still for less than a millisecond
if the sidecores have their cpus to themselves. A queue whose requests take longer to end
stays where it is; try again. Any disk can be moved, also one that the configuration file
declares. `sidecore show` says where its queues are, `sidecore sidecores` what each
sidecore has to do.

They stay there, whatever the loads, until they are moved again, are let go, or their
front-end starts them anew; meanwhile that sidecore is not parked. `--to auto` lets them go:
they are where they were, and may be moved by the loads from then on.

Examples:
  sidecore disk move vm1-root --to 1
  sidecore disk move vm1-data --queue 3 --to 0
  sidecore disk move vm1-data --to auto")]
    Move {
        /// Name of the disk.
        id: String,
        #[command(flatten)]
        wish: DiskMove,
    },
    /// Add, change and remove stages: what is done to requests of a disk on their way.
    #[command(
        subcommand,
        after_help = "\
Examples:
  sidecore disk stage add vm1-root trace
  sidecore disk stage ls vm1-root
  sidecore disk stage rm vm1-root trace

A stage that the configuration file declares is changed there; then `sidecore reload`."
    )]
    Stage(StageCommand),
    /// Show requests of a disk that has the stage `trace`, as they end.
    Trace(TraceArgs),
    /// Change a disk while it runs.
    #[command(
        override_usage = "sidecore disk set [OPTIONS] <ID>",
        after_help = "\
Examples:
  sidecore disk set vm1-root --share 200
  sidecore disk set vm1-root --policy poll
  sidecore disk set vm1-root --limit-iops 2000 --limit-bytes 100M
  sidecore disk set vm1-root --limit-iops 0 --group tenant1"
    )]
    Set {
        /// Name of the disk.
        id: String,
        #[command(flatten)]
        change: DiskChange,
    },
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidecore disk add vm1-root --path vm1.img --print qemu
  sidecore disk add vm1-data --path /dev/vg0/vm1 --queues 4 --serial DATA1
  sidecore disk add vm2-root --path golden.img --readonly --print libvirt
  sidecore disk add scratch --backend memory --size 1G --print qemu
  sidecore disk add vm3-root --path vm3.img --size 20G      make the image if it is not there

A --size that is smaller than the image is refused, since its guest would see the first part
of it alone, and so is one that makes it longer than its whole file system; --force does it.")]
pub(crate) struct AddArgs {
    #[command(flatten)]
    pub(crate) disk: DiskSpec,
    /// Make it also where its image is longer than `--size`, or its file system smaller.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) print: PrintArgs,
}
