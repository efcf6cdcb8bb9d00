//! The options of `exits`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::shared;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidecore exits --vm vm1                              a VM of QEMU's -name; addresses alone
  sidecore exits --vm 4711 --for 30s --kallsyms vm1.kallsyms
  sidecore exits --vm vm1-root --map System.map --base 0xffffffff9a000000
  sidecore exits --vm vm1 --kallsyms vm1.kallsyms --flame vm1.svg
  sidecore exits --vm vm1 --json | jq -r '.rows[] | [.function, .exits] | @tsv'

--kallsyms is the guest's /proc/kallsyms, read there by root after it was started. --map is the
System.map of its kernel, and --base the address of its `_text`, which differs at each start
unless the guest has `nokaslr`.

TIME is how long the host was at work for these exits; SHARE is of all such time. Not in it:
`halted`, the vCPU had nothing to do; `displaced`, it could run and had no processor. RULE is
what `sidecore-tune check` (a program for guests, docs/tune.md) looks at for such a row. In
brackets: [anywhere] is of reasons that have nothing to do with where the guest was; [low] is
user space, firmware or a 32-bit kernel; [nested] is the guest's own guests. Needs root,
tracefs, and KVM on x86; it asks the daemon for disks and NICs alone.")]
pub(crate) struct ExitsArgs {
    /// Whose exits: a process's number, QEMU's -name, or a disk or NIC of this daemon. Where a VM and
    /// another one's device have one name, the number is asked for.
    #[arg(long, value_name = "WHO")]
    pub(crate) vm: String,
    /// For how long they are counted, such as 500ms, 10s or 2m.
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = shared::timeout)]
    pub(crate) time: Duration,
    /// The guest's /proc/kallsyms; `-` is the standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "map")]
    pub(crate) kallsyms: Option<PathBuf>,
    /// The System.map of the guest's kernel.
    #[arg(long, value_name = "FILE", requires = "base")]
    pub(crate) map: Option<PathBuf>,
    /// Where the guest's kernel lies: the address of its `_text`, in hexadecimal.
    #[arg(long, value_name = "ADDRESS", requires = "map", value_parser = address)]
    pub(crate) base: Option<u64>,
    /// Also a flame graph, an SVG file that browsers show; one that is there is not overwritten.
    #[arg(long, value_name = "FILE")]
    pub(crate) flame: Option<PathBuf>,
}

fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let address = u64::from_str_radix(digits, 16).ok().filter(|_| is_plain);
    // Kernels lie in the upper half.
    address
        .filter(|address| address >> 63 == 1)
        .ok_or_else(|| "an address of a kernel is wanted, such as 0xffffffff9a000000".to_string())
}
