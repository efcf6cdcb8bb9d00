//! The command by which this machine's own kernel has disks and NICs of an IOhost.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What `client` is told.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidecore link key this.key                           the public half is for the IOhost
  sidecore client --iohost 10.0.0.1:7447 --iohost-key KEY --key-file this.key --disk db
  sidecore client --iohost 02:00:00:00:00:01 --interface eth1 --security none --disk db --nic web
  sidecore client --config /etc/sidecore/sidecore.toml

Each disk becomes a /dev/vdX, each NIC an interface (`ls /sys/bus/vdpa/devices/db/virtio*/*`). It
runs `sidecore serve` as its child, and starts it again if it dies; what the kernel asks
meanwhile waits. A disk is there when its IOhost has said what it is, and goes when it is removed
there.

It takes root, and the kernel's modules vdpa, vduse and virtio_vdpa. On SIGTERM it takes its
devices away and ends; a disk that is mounted is served until it is not. A second SIGTERM takes
it away all the same, a third one leaves the devices as they are: then what the kernel asks
waits until `sidecore client` is started again, as it does after a kill -9.")]
pub(crate) struct ClientArgs {
    /// The IOhosts, as address:port, or with --interface their Ethernet addresses; the second is
    /// tried when the first is silent.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required_unless_present = "config")]
    pub(crate) iohost: Vec<String>,
    /// The public key of the IOhosts.
    #[arg(long, value_name = "KEY")]
    pub(crate) iohost_key: Option<String>,
    /// The file with this machine's private key, as `sidecore link key` makes it.
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// `none`: no keys, nothing sealed, for a cable that nobody else can reach.
    #[arg(long, value_name = "SECURITY", conflicts_with_all = ["iohost_key", "key_file"])]
    pub(crate) security: Option<String>,
    /// The interface of a link without IP.
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,
    /// Bytes of the longest packet on the way [default: 1500].
    #[arg(long, value_name = "BYTES")]
    pub(crate) mtu: Option<u16>,
    /// Seconds after which requests to a silent IOhost fail; without it they wait.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) fail_after_s: Option<u32>,
    /// A disk, by its name at the IOhost, or as NAME=NAME-THERE.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) disk: Vec<String>,
    /// A NIC, likewise.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) nic: Vec<String>,
    /// Cpus of the sidecores.
    #[arg(long, value_name = "CPUS", default_value = "auto")]
    pub(crate) cpus: String,
    /// A folder of its own, in memory.
    #[arg(long, value_name = "DIR", default_value = "/run/sidecore-client")]
    pub(crate) dir: PathBuf,
    /// The file of an ordinary daemon, each of whose disks and NICs this kernel is to have; they
    /// need `allow_unsealed_memory = true`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["iohost", "disk", "nic", "iohost_key",
          "key_file", "security", "interface", "mtu", "fail_after_s", "cpus"])]
    pub(crate) config: Option<PathBuf>,
}

/// Asks the kernel's bus of vDPA devices.
#[derive(Subcommand, Debug)]
pub(crate) enum VdpaCommand {
    /// Put a device on it.
    #[command(hide = true)]
    Add {
        /// Its name.
        name: String,
    },
    /// Take a device off it.
    #[command(hide = true)]
    Del {
        /// Its name.
        name: String,
    },
}
