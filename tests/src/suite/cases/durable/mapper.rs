//! The daemon itself in a guest, on dm-flakey and dm-log-writes, which this host may not have.
//!
//! Its front-end there is `tests/src/bin/dm_client.rs`, started by `tests/guest/scripts/mapper.sh`.

use std::path::Path;

use anyhow::{Context, Result};
use testing::bed::Bed;
use testing::daemon::Daemon;
use testing::daemon::sidecore_binary;
use testing::image::Tree;
use testing::vm::{Boot, Kernel, Vm, build_folder};

/// One guest with both.
pub(super) fn mapper(bed: &Bed) -> Result<()> {
    let image = bed.folder().join("mapper.cpio");
    // What it needs is a second part of the initramfs.
    let mut tree = Tree::new(&bed.folder().join("tree"), &build_folder().join("guest/kernel"))?;
    for program in ["/usr/sbin/dmsetup", "/usr/bin/setpriv"] {
        tree.program(Path::new(program)).context("Debian: apt-get install dmsetup util-linux")?;
    }
    tree.stripped(&sidecore_binary()?, "mapper/sidecore")?;
    tree.stripped(&crate::suite::host::program("dm_client")?, "mapper/dm_client")?;
    tree.modules("mapper/modules", &["dm-flakey", "dm-log-writes"])?;
    let stock = Kernel::stock();
    tree.pack_after(&stock.initramfs, &image)?;
    let memory =
        |id: &str| format!("[[disk]]\nid = \"{id}\"\nbackend = \"memory\"\nsize = \"64M\"\n");
    let mut daemon = Daemon::start("mapper", &(memory("data") + &memory("log")))?;
    let boot = Boot::new("one")
        .kernel(Kernel { initramfs: image, ..stock })
        .disk(daemon.socket("data"), "num-queues=1")
        .disk(daemon.socket("log"), "num-queues=1");
    let vm = Vm::boot(bed.folder(), boot)?;
    vm.script(bed, "mapper", &[])?;
    // dm-flakey makes the guest's own kernel complain: that is the case.
    vm.off_complaining()?;
    daemon.stop()
}
