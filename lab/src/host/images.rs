//! The initramfs of L1, the emulated machine, and of L2, the guest that is measured.
//!
//! Both have the lab's kernel, which `./x lab` has unpacked: the test guest's has neither KVM nor e1000.

use std::path::Path;

use anyhow::Result;
use testing::image::Tree;

use super::Lab;

/// KVM, what shares files with the host, what the kernel's own servers of I/O need.
const L1_MODULES: [&str; 11] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "kvm-amd",
    "tun",
    "tap",
    "bridge",
    "vhost_net",
    "null_blk",
    "brd",
];
/// What its devices need, the emulated ones too.
const L2_MODULES: [&str; 6] =
    ["virtio_pci", "virtio_blk", "virtio_net", "ata_piix", "sd_mod", "e1000"];
const L2_FOLDERS: [&str; 6] = ["etc", "run", "tmp", "www", "var/lib/nginx", "var/log/nginx"];
/// What is served in L2.
const PAGES: [(&str, usize); 2] = [("www/1k", 1024), ("www/8k", 8192)];

impl Lab {
    /// L1: busybox, and modules for KVM and 9p.
    pub(super) fn pack_l1(&self) -> Result<()> {
        self.progress.say("packing L1: busybox, and modules for KVM and 9p");
        let mut tree = self.tree("l1", &L1_MODULES)?;
        tree.file(&guest("l1_init"), "init")?;
        tree.pack(&self.folder.join("l1.cpio"))
    }

    /// L2: modules for its devices, the lab, and servers.
    pub(super) fn pack_l2(&self) -> Result<()> {
        let mut tree = self.tree("l2", &L2_MODULES)?;
        tree.file(&guest("l2_init"), "init")?;
        let nginx = self.downloaded("nginx/usr/sbin/nginx")?;
        for (program, at) in [(&self.program(), "bin/lab"), (&nginx, "usr/sbin/nginx")] {
            tree.file(program, at)?;
            tree.libraries(program)?;
        }
        tree.program(Path::new("/usr/bin/memcached"))?;
        for folder in L2_FOLDERS {
            std::fs::create_dir_all(tree.folder().join(folder))?;
        }
        tree.file(&guest("l2_nginx.conf"), "etc/nginx.conf")?;
        std::fs::write(tree.folder().join("etc/passwd"), "root:x:0:0::/:/bin/sh\n")?;
        std::fs::write(tree.folder().join("etc/group"), "root:x:0:\n")?;
        for (page, bytes) in PAGES {
            std::fs::write(tree.folder().join(page), "x".repeat(bytes))?;
        }
        tree.pack(&self.folder.join("l2.cpio"))
    }

    fn tree(&self, name: &str, modules: &[&str]) -> Result<Tree> {
        let folder = self.folder.join(format!("{name}.tree"));
        let mut tree = Tree::new(&folder, &self.downloaded("kernel")?)?;
        tree.file(Path::new("/bin/busybox"), "bin/busybox")?;
        tree.modules("modules", modules)?;
        Ok(tree)
    }
}

/// A file that is for a guest.
fn guest(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest").join(name)
}
