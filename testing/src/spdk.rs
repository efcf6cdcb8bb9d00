//! SPDK, which no Debian has: where it was built, its vhost target as a server of one disk, and the
//! huge pages that it needs.
//!
//! Not its client, which is `client::bdevperf`. A build of SPDK is named by `SPDK=DIR`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::server::{DiskSetup, Medium, Server, Who};
use crate::slots::SECTOR_SIZE;

/// Memory of bdevperf, MiB.
pub(crate) const CLIENT_MIB: u64 = 256;
/// Memory of the vhost target besides its RAM disk, MiB.
const TARGET_MIB: u64 = 512;
/// What its devices are called, with sectors of 512 bytes.
const DEVICES: &str = include_str!("spdk/devices.json");

/// A folder where SPDK was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spdk {
    dir: PathBuf,
}

impl Spdk {
    /// The one that the environment names.
    ///
    /// # Errors
    /// It names none, or there is none; what to do is in the message.
    pub fn named() -> Result<Spdk> {
        Spdk::if_named()?.context("no SPDK is named: SPDK=DIR, the folder where it was built")
    }

    /// The same, or nothing where none is named.
    ///
    /// # Errors
    /// There is none where the environment says.
    pub fn if_named() -> Result<Option<Spdk>> {
        let dir = std::env::var_os("SPDK").filter(|dir| !dir.is_empty());
        dir.map(|dir| Spdk::at(Path::new(&dir))).transpose()
    }

    fn at(dir: &Path) -> Result<Spdk> {
        let spdk = Spdk { dir: dir.to_owned() };
        for program in [spdk.vhost(), spdk.bdevperf()] {
            ensure!(
                program.is_file(),
                "{} is not there: SPDK=DIR names a folder where `./configure && make` was run",
                program.display()
            );
        }
        Ok(spdk)
    }

    /// Its vhost target.
    pub fn vhost(&self) -> PathBuf {
        self.dir.join("build/bin/vhost")
    }

    /// Its load generator.
    pub fn bdevperf(&self) -> PathBuf {
        self.dir.join("build/examples/bdevperf")
    }

    /// Its vhost target with one disk, polling on `core`.
    ///
    /// # Errors
    /// There are too few huge pages, or the system's errors.
    pub fn serve(&self, dir: &Path, core: u16, disk: &DiskSetup) -> Result<Server> {
        let memory_mib = target_mib(disk);
        may_have(memory_mib)?;
        let file = dir.join("vhost.json");
        std::fs::write(&file, target_file(disk)?.to_string())?;
        let words = target_words(dir, core, memory_mib, &file);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Server::start(Who::Spdk, dir, &core.to_string(), &self.vhost(), &words)
    }

    /// Whether bdevperf has the huge pages that it needs.
    ///
    /// # Errors
    /// It has not; what to do is in the message.
    pub fn may_load() -> Result<()> {
        may_have(CLIENT_MIB)
    }

    /// Whether the target with a RAM disk and bdevperf have them together.
    ///
    /// # Errors
    /// They have not; what to do is in the message.
    pub fn may_be_measured(ram_disk_bytes: u64) -> Result<()> {
        may_have(CLIENT_MIB + TARGET_MIB + (ram_disk_bytes >> 20))
    }
}

fn target_mib(disk: &DiskSetup) -> u64 {
    match disk.medium {
        Medium::Memory(_) => TARGET_MIB + (disk.size_bytes >> 20),
        _ => TARGET_MIB,
    }
}

/// The subsystems that it begins with: a device, and a controller whose socket is named as all
/// servers' are.
fn target_file(disk: &DiskSetup) -> Result<Value> {
    let DiskSetup { id, medium, size_bytes, .. } = disk;
    let devices: Value = serde_json::from_str(DEVICES).context("the table of SPDK's devices")?;
    let (kind, name, value) = match medium {
        Medium::Null => ("null", "num_blocks", json!(size_bytes / SECTOR_SIZE)),
        Medium::Memory(_) => ("memory", "num_blocks", json!(size_bytes / SECTOR_SIZE)),
        // It opens with O_DIRECT where the file system can do that.
        Medium::File(path) | Medium::Direct(path) => ("file", "filename", json!(path)),
    };
    let mut device = devices[kind].clone();
    device["params"][name] = value;
    let controller = json!({ "ctrlr": format!("{id}.sock"), "dev_name": device["params"]["name"] });
    Ok(json!({ "subsystems": [
        { "subsystem": "bdev", "config": [device] },
        { "subsystem": "vhost_blk",
          "config": [{ "method": "vhost_create_blk_controller", "params": controller }] },
    ] }))
}

fn target_words(dir: &Path, core: u16, memory_mib: u64, file: &Path) -> Vec<String> {
    let place = |path: PathBuf| path.display().to_string();
    let core = format!("[{core}]");
    let memory = memory_mib.to_string();
    let [sockets, rpc] = [place(dir.to_owned()), place(dir.join("rpc.sock"))];
    let file = place(file.to_owned());
    let words = ["-m", &core, "-s", &memory, "-S", &sockets, "-r", &rpc, "--json", &file];
    let flags = ["--no-pci", "--single-file-segments", "--disable-cpumask-locks"];
    words.into_iter().chain(flags).map(str::to_owned).collect()
}

fn may_have(mib: u64) -> Result<()> {
    let text = std::fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    may_have_of(&text, mib)
}

/// Whether so much is free in huge pages of 2 MiB.
fn may_have_of(meminfo: &str, mib: u64) -> Result<()> {
    let number = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let free_mib = number("HugePages_Free:") * number("Hugepagesize:") / 1024;
    if free_mib < mib {
        let pages = mib / 2;
        bail!(
            "SPDK needs {mib} MiB of huge pages here, and {free_mib} are free: \
             `sudo sysctl vm.nr_hugepages={pages}` for that much, more for several"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn disk(medium: Medium) -> DiskSetup {
        let id = "bench".to_owned();
        DiskSetup { id, medium, size_bytes: 1 << 30, queues: 1, unsealed_memory: true }
    }

    #[test]
    fn a_folder_without_programs_is_told_apart() {
        let dir = Scratch::new(&std::env::temp_dir(), "spdk").unwrap();
        let said = Spdk::at(dir.path()).unwrap_err().to_string();
        assert!(said.ends_with("SPDK=DIR names a folder where `./configure && make` was run"));
        for program in ["build/bin/vhost", "build/examples/bdevperf"] {
            let path = dir.path().join(program);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let spdk = Spdk::at(dir.path()).unwrap();
        assert_eq!(spdk.bdevperf(), dir.path().join("build/examples/bdevperf"));
    }

    #[test]
    fn huge_pages_that_are_missing_are_told_with_what_to_do() {
        let has = "MemTotal: 1 kB\nHugePages_Free:      300\nHugepagesize:       2048 kB\n";
        assert!(may_have_of(has, 600).is_ok());
        let said = may_have_of(has, 768).unwrap_err().to_string();
        let expected = "SPDK needs 768 MiB of huge pages here, and 600 are free: \
             `sudo sysctl vm.nr_hugepages=384` for that much, more for several";
        assert_eq!(said, expected);
        assert!(may_have_of("", 1).is_err());
    }

    #[test]
    fn each_medium_has_its_device_and_the_controller_its_socket() {
        let image = || PathBuf::from("/srv/disk.raw");
        for (medium, method) in [
            (Medium::Null, "bdev_null_create"),
            (Medium::Memory(image()), "bdev_malloc_create"),
            (Medium::Direct(image()), "bdev_aio_create"),
        ] {
            let file = target_file(&disk(medium)).unwrap();
            let device = &file["subsystems"][0]["config"][0];
            assert_eq!(device["method"], method);
            assert_eq!(device["params"]["filename"].is_string(), method == "bdev_aio_create");
            let controller = &file["subsystems"][1]["config"][0]["params"];
            assert_eq!(controller["ctrlr"], "bench.sock");
            assert_eq!(controller["dev_name"], device["params"]["name"]);
        }
        let file = target_file(&disk(Medium::Null)).unwrap();
        assert_eq!(file["subsystems"][0]["config"][0]["params"]["num_blocks"], 2_097_152);
        assert_eq!(target_mib(&disk(Medium::Null)), 512);
        assert_eq!(target_mib(&disk(Medium::Memory(image()))), 1536);
    }

    #[test]
    fn the_target_runs_on_one_core_and_makes_its_socket_in_the_folder() {
        let words = target_words(Path::new("/run/a"), 0, 512, Path::new("/run/a/vhost.json"));
        let expected = "-m [0] -s 512 -S /run/a -r /run/a/rpc.sock --json /run/a/vhost.json \
            --no-pci --single-file-segments --disable-cpumask-locks";
        assert_eq!(words.join(" "), expected);
    }
}
