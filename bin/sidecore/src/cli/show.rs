//! What one disk or NIC is shown with, and printed for.

use clap::Args;
use config::Size;

use crate::vmm::Vmm;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidecore show vm1-root
  sidecore show vm1-root --json | jq .counters.latency_p99_ns
  sidecore show vm1-root --print qemu --memory 4G
  sidecore show vm1-net

BUSY is what a queue took of its sidecore's time at the daemon's last look, which is not older
than a second.

P50 and P99 of a disk: half, and 99 of 100, of its requests took no longer, from when the
daemon took them from the ring to their completion. Waiting in the ring, also for a limit, is
not in them.

held, and HELD of each queue, is that: how often a queue had something and had to wait for a
limit, and how long, since the disk or NIC was made. A guest whose held grows by about the
time that goes by has more to do than it is allowed. What comes for a NIC does not wait: what
is too much is dropped, as over_limit. MULTICAST are frames to a multicast address, or to all.")]
pub(crate) struct ShowArgs {
    /// Name of the disk or NIC.
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) print: PrintArgs,
}

#[derive(Args, Debug)]
pub(crate) struct PrintArgs {
    /// Print what gives the device to a guest, to be pasted into that VMM's command line or file.
    #[arg(long, value_enum, value_name = "VMM")]
    pub(crate) print: Option<Vmm>,
    /// The guest's memory in what `--print` prints; the same as the VMM is given otherwise.
    #[arg(long, value_name = "SIZE", default_value = "2G", requires = "print",
          value_parser = guest_memory)]
    pub(crate) memory: Size,
}

/// A size that a guest can have.
fn guest_memory(text: &str) -> Result<Size, String> {
    let size = config::number::size(text).map_err(|refused| refused.to_string())?;
    match size.0 >= 1 << 20 {
        true => Ok(size),
        false => Err("a guest has at least 1M of memory".to_string()),
    }
}
