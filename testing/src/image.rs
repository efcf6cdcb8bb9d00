//! Guests' images: a folder with busybox, scripts, programs and kernel modules, packed as an initramfs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::vm::{Kernel, build_folder};

/// What guests' scripts run besides busybox.
const PROGRAMS: [&str; 15] = [
    "/usr/bin/fio",
    "/usr/bin/cksum",
    "/usr/sbin/mkfs.ext4",
    "/usr/sbin/e2fsck",
    "/usr/sbin/blkdiscard",
    "/usr/sbin/fstrim",
    "/usr/bin/sync",
    "/usr/bin/sqlite3",
    "/usr/bin/ip",
    "/usr/bin/ping",
    "/usr/sbin/ethtool",
    "/usr/bin/iperf3",
    "/usr/bin/sockperf",
    "/usr/bin/memcached",
    "/usr/bin/memcslap",
];
/// Modules that guests need and Debian's cloud kernel has not built in.
const MODULES: [&str; 6] =
    ["virtio_pci", "virtio_blk", "virtio_net", "8021q", "af_packet", "crc32c-intel"];
/// Of the libraries that fio names those of storage that no guest here has, and with them all that these need: nine tenths
/// of the guest's bytes, and most of the time in which a fio starts there.
const HOLLOW: [&str; 8] = [
    "libgfapi.so.0",
    "libibverbs.so.1",
    "libnbd.so.0",
    "libpmem.so.1",
    "libpmemblk.so.1",
    "librados.so.2",
    "librbd.so.1",
    "librdmacm.so.1",
];
/// Where these are in the tree, which the guest's linker looks at last.
const LIBRARIES: &str = "usr/lib";
/// The folder that `init` loads modules from.
const LOADED: &str = "modules";

/// A folder that is to become an initramfs.
#[derive(Debug)]
pub struct Tree {
    folder: PathBuf,
    /// Its modules' kernel package, unpacked.
    kernel: PathBuf,
}

impl Tree {
    /// An empty one, for the kernel package that is unpacked in `kernel`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(folder: &Path, kernel: &Path) -> Result<Tree> {
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder)?;
        Ok(Tree { folder: folder.to_path_buf(), kernel: kernel.to_path_buf() })
    }

    /// What any guest has: busybox, `init`, the scripts, and the stock modules.
    ///
    /// # Errors
    /// Something of it is missing; what to install is in the message.
    pub fn guest(folder: &Path, kernel: &Path) -> Result<Tree> {
        let mut tree = Tree::bare(folder, kernel)?;
        tree.hollow_libraries(Path::new(PROGRAMS[0]))?;
        for program in PROGRAMS {
            tree.program(Path::new(program))?;
        }
        tree.own_programs()?;
        tree.modules(LOADED, &MODULES)?;
        Ok(tree)
    }

    /// The same without programs and modules.
    ///
    /// # Errors
    /// As [`Tree::guest`].
    pub fn bare(folder: &Path, kernel: &Path) -> Result<Tree> {
        let tree = Tree::new(folder, kernel)?;
        for name in ["bin", "sbin", "usr/bin", "usr/sbin", LOADED, "scripts", "dev", "etc"] {
            std::fs::create_dir_all(tree.folder.join(name))?;
        }
        let copied = std::fs::copy("/bin/busybox", tree.folder.join("bin/busybox"));
        copied.context("no /bin/busybox (Debian: apt-get install busybox-static)")?;
        let sources = sources();
        std::fs::copy(sources.join("init"), tree.folder.join("init"))?;
        for script in std::fs::read_dir(sources.join("scripts"))? {
            let script = script?;
            std::fs::copy(script.path(), tree.folder.join("scripts").join(script.file_name()))?;
        }
        File::create(tree.folder.join("etc/mtab"))?;
        File::create(tree.folder.join(LOADED).join("order"))?;
        Ok(tree)
    }

    /// A file at that place of the tree.
    ///
    /// # Errors
    /// The system's.
    pub fn file(&mut self, from: &Path, to: &str) -> Result<()> {
        let to = self.folder.join(to);
        std::fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        std::fs::copy(from, &to).with_context(|| format!("copying {}", from.display()))?;
        Ok(())
    }

    /// A program where the host has it, with the libraries that it names.
    ///
    /// # Errors
    /// It is not installed.
    pub fn program(&mut self, path: &Path) -> Result<()> {
        let inside = path.to_string_lossy();
        self.file(path, inside.trim_start_matches('/'))?;
        self.libraries(path)
    }

    /// A program of this project without debug information, at that place, with the libraries that it names.
    ///
    /// # Errors
    /// It is not built.
    pub fn stripped(&mut self, program: &Path, to: &str) -> Result<()> {
        let to = self.folder.join(to);
        std::fs::create_dir_all(to.parent().context("a program has a folder")?)?;
        let status = Command::new("strip").arg("-o").arg(&to).arg(program).status();
        let status = status.context("starting strip (Debian: apt-get install binutils)")?;
        ensure!(status.success(), "{} cannot be stripped: {status}", program.display());
        self.libraries(program)
    }

    /// One library in place of each of [`HOLLOW`]: it has all names that `program` does not find elsewhere, and ends who
    /// calls one of them.
    fn hollow_libraries(&self, program: &Path) -> Result<()> {
        let output = Command::new("nm").args(["-D", "--undefined-only"]).arg(program).output();
        let output = output.context("starting nm (Debian: apt-get install binutils)")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (mut source, mut versions) = (String::new(), BTreeMap::<&str, String>::new());
        for name in said.lines().filter_map(|line| line.trim().strip_prefix("U ")) {
            let (name, version) = name.split_once('@').unwrap_or((name, ""));
            if version.starts_with("GLIBC_") {
                continue;
            }
            source += &format!("void {name}(void) {{ __builtin_trap(); }}\n");
            if !version.is_empty() {
                *versions.entry(version).or_default() += &format!(" {name};");
            }
        }
        let versions: String =
            versions.iter().map(|(version, names)| format!("{version} {{{names} }};\n")).collect();
        let folder = self.folder.join(LIBRARIES);
        std::fs::create_dir_all(&folder)?;
        let [source_file, versions_file, hollow] =
            ["hollow.c", "hollow.map", "hollow.so"].map(|name| folder.join(name));
        std::fs::write(&source_file, source)?;
        std::fs::write(&versions_file, versions)?;
        let status = Command::new("cc")
            .args(["-O2", "-fno-builtin", "-shared", "-nostdlib", "-o"])
            .arg(&hollow)
            .arg(format!("-Wl,--version-script={}", versions_file.display()))
            .arg(&source_file)
            .status()
            .context("starting cc (Debian: apt-get install gcc)")?;
        ensure!(status.success(), "hollow libraries of {} do not compile", program.display());
        std::fs::remove_file(source_file)?;
        std::fs::remove_file(versions_file)?;
        for name in HOLLOW {
            symlink("hollow.so", folder.join(name))?;
        }
        Ok(())
    }

    /// The shared libraries of a program, where the host has them, but for those that are in the tree.
    ///
    /// # Errors
    /// The host lacks one.
    pub fn libraries(&mut self, program: &Path) -> Result<()> {
        let own = self.folder.join(LIBRARIES);
        let output = Command::new("ldd").arg(program).env("LD_LIBRARY_PATH", &own).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if let Some(lacking) = said.lines().find(|line| line.contains("not found")) {
            bail!(
                "{} lacks a library, whose Debian package is missing: {lacking}",
                program.display()
            );
        }
        for path in said.split_whitespace().filter(|word| word.starts_with('/')) {
            let is_there = Path::new(path).starts_with(&own);
            if !is_there && !self.folder.join(&path[1..]).exists() {
                self.file(Path::new(path), &path[1..])?;
            }
        }
        Ok(())
    }

    /// The programs of `tests/guest/programs`, built.
    fn own_programs(&mut self) -> Result<()> {
        for source in std::fs::read_dir(sources().join("programs"))? {
            let source = source?.path();
            let name = source.file_stem().context("a source has a name")?;
            let status = Command::new("cc")
                .args(["-O2", "-Wall", "-Werror", "-static", "-o"])
                .arg(self.folder.join("usr/bin").join(name))
                .arg(&source)
                .status()
                .context("starting cc (Debian: apt-get install gcc libc6-dev linux-libc-dev)")?;
            ensure!(status.success(), "{} does not compile", source.display());
        }
        Ok(())
    }

    /// Modules, and what they depend on, in a folder of the tree; its file `order` is the order of loading. `init`
    /// loads those of `modules`. A module that the kernel has built in is left out.
    ///
    /// # Errors
    /// The kernel has no such module.
    pub fn modules(&mut self, folder: &str, names: &[&str]) -> Result<()> {
        let built_in = self.built_in()?;
        let target = self.folder.join(folder);
        std::fs::create_dir_all(&target)?;
        let order = target.join("order");
        let mut loaded: Vec<String> =
            std::fs::read_to_string(&order).unwrap_or_default().lines().map(String::from).collect();
        for name in names {
            self.module(name, &target, &built_in, &mut loaded)?;
        }
        Ok(std::fs::write(
            order,
            loaded.iter().map(|name| format!("{name}\n")).collect::<String>(),
        )?)
    }

    fn module(
        &self,
        name: &str,
        target: &Path,
        built_in: &BTreeSet<String>,
        loaded: &mut Vec<String>,
    ) -> Result<()> {
        let name = name.replace('-', "_");
        if built_in.contains(&name) {
            return Ok(());
        }
        let folder = self.kernel.join("lib/modules");
        let found = find(&folder, &name)?;
        let Some(found) = found else {
            bail!("the kernel has no module {name}: look for its new name in {}", folder.display());
        };
        let file = found.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let plain = file.trim_end_matches(".xz").to_string();
        if loaded.contains(&plain) {
            return Ok(());
        }
        let to = target.join(&plain);
        if file.ends_with(".xz") {
            let out = File::create(&to)?;
            let status = Command::new("xz").arg("-dc").arg(&found).stdout(out).status();
            let status = status.context("starting xz (Debian: apt-get install xz-utils)")?;
            ensure!(status.success(), "{} cannot be unpacked", found.display());
        } else {
            std::fs::copy(&found, &to)?;
        }
        for need in dependencies(&std::fs::read(&to)?) {
            self.module(&need, target, built_in, loaded)?;
        }
        loaded.push(plain);
        Ok(())
    }

    /// The modules that this kernel has built in, with underscores.
    fn built_in(&self) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        let modules = self.kernel.join("lib/modules");
        let releases = std::fs::read_dir(&modules)
            .with_context(|| format!("no kernel is unpacked in {}", self.kernel.display()))?;
        for release in releases {
            let list = std::fs::read_to_string(release?.path().join("modules.builtin"));
            for line in list.unwrap_or_default().lines() {
                let file = line.rsplit('/').next().unwrap_or_default();
                names.insert(file.trim_end_matches(".ko").replace('-', "_"));
            }
        }
        Ok(names)
    }

    /// Packs it into `image` and removes the folder. Not compressed: under emulation unpacking takes longer than
    /// loading.
    ///
    /// # Errors
    /// `cpio` fails.
    pub fn pack(self, image: &Path) -> Result<()> {
        let part = image.with_extension("part");
        let mut find = Command::new("sh")
            .args(["-c", "find . -print0 | sort -z"])
            .current_dir(&self.folder)
            .stdout(Stdio::piped())
            .spawn()?;
        let names = find.stdout.take().context("find has an output")?;
        let status = Command::new("cpio")
            .args(["--null", "--quiet", "--create", "--format=newc", "--owner=0:0"])
            .current_dir(&self.folder)
            .stdin(names)
            .stdout(File::create(&part)?)
            .status()
            .context("starting cpio (Debian: apt-get install cpio)")?;
        ensure!(status.success() && find.wait()?.success(), "cpio: {status}");
        std::fs::rename(&part, image)?;
        Ok(std::fs::remove_dir_all(&self.folder)?)
    }

    /// Packs it as a second part after the initramfs `first`.
    ///
    /// # Errors
    /// As [`Tree::pack`].
    pub fn pack_after(self, first: &Path, image: &Path) -> Result<()> {
        if first == Kernel::stock().initramfs {
            pack_guest()?;
        }
        let more = image.with_extension("more");
        self.pack(&more)?;
        let mut out = File::create(image)?;
        for part in [first, &more] {
            std::io::copy(&mut File::open(part)?, &mut out)?;
        }
        Ok(std::fs::remove_file(more)?)
    }

    /// Makes a symbolic link in it.
    ///
    /// # Errors
    /// The system's.
    pub fn link(&mut self, target: &str, at: &str) -> Result<()> {
        Ok(symlink(target, self.folder.join(at))?)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Packs the stock guest beside its kernel, `build/guest/initramfs.cpio`, if what it is made of has changed.
///
/// # Errors
/// No kernel is unpacked there, or something of the guest is not installed.
pub fn pack_guest() -> Result<()> {
    let guest = build_folder().join("guest");
    // One at a time: programs of several cases may come here at once.
    let lock = File::create(guest.join("lock")).with_context(|| {
        format!("no kernel is unpacked in {} (./x test guest)", guest.display())
    })?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    let (image, stamp) = (guest.join("initramfs.cpio"), guest.join("initramfs.stamp"));
    let wanted = made_of(&guest)?;
    if image.exists() && std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    Tree::guest(&guest.join("tree"), &guest.join("kernel"))?.pack(&image)?;
    Ok(std::fs::write(stamp, wanted)?)
}

/// What the guest is made of, as a number: a change of any of it makes another.
fn made_of(guest: &Path) -> Result<String> {
    let mut hash = DefaultHasher::new();
    std::fs::read(guest.join("package")).context("no kernel was unpacked")?.hash(&mut hash);
    let mut files = vec![sources().join("init")];
    for folder in ["scripts", "programs"] {
        let entries = std::fs::read_dir(sources().join(folder))?;
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.sort();
    for file in files {
        std::fs::read(&file)?.hash(&mut hash);
    }
    for program in PROGRAMS.iter().chain(&["/bin/busybox"]) {
        let found = std::fs::metadata(program)
            .with_context(|| format!("the guest needs {program}, which is not installed"))?;
        (program, found.len(), found.modified()?).hash(&mut hash);
    }
    (MODULES, HOLLOW).hash(&mut hash);
    Ok(hash.finish().to_string())
}

/// The guest's own files in the repository.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/guest")
}

/// The file of a module, whichever way its name is spelled.
fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            if let Some(found) = find(&path, name)? {
                return Ok(Some(found));
            }
            continue;
        }
        let file = path.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
        let stem = file.strip_suffix(".xz").unwrap_or(&file).strip_suffix(".ko");
        if stem == Some(name) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// What a module says that it depends on (`depends=` of its section `.modinfo`).
fn dependencies(module: &[u8]) -> Vec<String> {
    const WORD: &[u8] = b"\0depends=";
    let Some(at) = module.windows(WORD.len()).position(|window| window == WORD) else {
        return Vec::new();
    };
    let rest = &module[at + WORD.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    let names = String::from_utf8_lossy(&rest[..end]).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_names_what_it_depends_on() {
        assert_eq!(dependencies(b"x\0depends=a,b_c\0y"), ["a", "b_c"]);
        assert!(dependencies(b"x\0depends=\0y").is_empty());
        assert!(dependencies(b"nothing").is_empty());
    }
}
