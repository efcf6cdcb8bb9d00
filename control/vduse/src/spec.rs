//! What a device is, and what of that the kernel and the daemon are told.
//!
//! Not what becomes of it (`device`).

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use vhost_user::InflightArea;

use crate::front_end::{FrontEnd, Lost};
use crate::{Error, tried};

/// Entries of each queue at most.
pub(crate) const QUEUE_SIZE: u16 = 256;
/// Queues of a device at most: those of a disk (docs/config.md).
pub(crate) const QUEUES_MAX: u32 = 64;
/// Bytes of a disk's config space that the daemon has.
const DISK_CONFIG: usize = 60;

/// Of virtio: addresses are not the machine's own. VDUSE asks for it, and the daemon must not hear of it.
pub(crate) const ACCESS_PLATFORM: u64 = 1 << 33;
/// What VDUSE or this version cannot do: packed rings, resets of one ring.
const NEITHER: u64 = 1 << 34 | 1 << 40;
/// Of disks: a cache that the driver switches on and off.
const NOT_FOR_DISKS: u64 = 1 << 11;
/// Of NICs: a control queue and all that needs it, which is several pairs of queues, too.
const NOT_FOR_NICS: u64 =
    1 << 2 | 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 23;
/// Of NICs, what is in their config space here: MTU, address, carrier.
const NIC_CONFIG: u64 = 1 << 3 | 1 << 5 | 1 << 16;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `virtio-blk`; its config space is the daemon's.
    Disk,
    /// `virtio-net` with one pair of queues.
    Nic {
        /// Its address.
        mac: [u8; 6],
        /// Largest IP packet, bytes.
        mtu: u16,
    },
}

/// A device that is wanted.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its name, in the kernel as in the daemon.
    pub name: String,
    /// The daemon's socket for it.
    pub socket: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// A folder in memory (tmpfs), which says which of the kernel's devices are ours and has what is in flight of each.
    pub folder: PathBuf,
    /// A program that does [`crate::ask`] as `PROGRAM vdpa add|del NAME`.
    pub program: PathBuf,
}

impl Spec {
    pub(crate) fn mark(&self) -> PathBuf {
        self.folder.join(format!("{}.inflight", self.name))
    }

    pub(crate) fn device_id(&self) -> u32 {
        match self.kind {
            Kind::Disk => 2,
            Kind::Nic { .. } => 1,
        }
    }

    /// What the driver is offered.
    pub(crate) fn features(&self, offered: u64) -> u64 {
        let not = match self.kind {
            Kind::Disk => NOT_FOR_DISKS,
            Kind::Nic { .. } => NOT_FOR_NICS,
        };
        offered & !not & !NEITHER | self.own_features()
    }

    /// Of these, what is no matter of the daemon.
    pub(crate) fn own_features(&self) -> u64 {
        match self.kind {
            Kind::Disk => ACCESS_PLATFORM,
            Kind::Nic { .. } => ACCESS_PLATFORM | NIC_CONFIG,
        }
    }

    pub(crate) fn queues(&self, front: &FrontEnd) -> u32 {
        match self.kind {
            Kind::Disk => front.queues.clamp(1, QUEUES_MAX),
            Kind::Nic { .. } => 2,
        }
    }

    pub(crate) fn config(&self, front: &mut FrontEnd) -> Result<Vec<u8>, Lost> {
        match self.kind {
            Kind::Disk => front.config(DISK_CONFIG),
            // Address, carrier, pairs of queues, MTU.
            Kind::Nic { mac, mtu } => Ok([&mac[..], &[1, 0, 1, 0], &mtu.to_le_bytes()].concat()),
        }
    }

    /// The file with what is in flight, for a device that has that; as large as the daemon wants it.
    pub(crate) fn record(
        &self,
        front: &mut FrontEnd,
        queues: u16,
    ) -> Result<Option<(InflightArea, File)>, Error> {
        let lost = |error: Lost| Error::Daemon(error.to_string());
        let size = match self.kind {
            Kind::Disk => front.record_size(queues, QUEUE_SIZE).map_err(lost)?,
            Kind::Nic { .. } => None,
        };
        let Some(size) = size else { return Ok(None) };
        let keep = || -> std::io::Result<File> {
            let file = OpenOptions::new().read(true).write(true).open(self.mark())?;
            // Zeroes, which is nothing in flight, where there was no record.
            file.set_len(size)?;
            Ok(file)
        };
        let file = keep().map_err(tried("the record of what is in flight"))?;
        let area = InflightArea { size, offset: 0, queues, queue_size: QUEUE_SIZE, padded: false };
        Ok(Some((area, file)))
    }

    pub(crate) fn ask_bus(&self, verb: &str) -> Result<Child, Error> {
        let mut command = Command::new(&self.program);
        command.args(["vdpa", verb, &self.name]).stdin(Stdio::null()).stderr(Stdio::piped());
        command.spawn().map_err(tried("the process that asks the bus"))
    }
}

#[cfg(test)]
mod tests {
    use std::thread::JoinHandle;

    use super::*;
    use crate::front_end::tests::{CONFIG, Place, Told, connected};

    fn spec(kind: Kind) -> Spec {
        let (folder, program) = (PathBuf::from("/run/x"), PathBuf::from("/bin/x"));
        Spec { name: "a".to_string(), socket: PathBuf::from("/s"), kind, folder, program }
    }

    /// What VDUSE refuses (`features_is_valid` in vduse_dev.c).
    #[test]
    fn the_kernel_is_offered_only_what_it_takes() {
        let disk = spec(Kind::Disk).features(u64::MAX);
        assert!(disk & 1 << 33 != 0 && disk & 1 << 11 == 0 && disk & 1 << 34 == 0);
        assert!(disk & 1 << 12 != 0 && disk & 1 << 9 != 0, "several queues, flush");
        let nic = spec(Kind::Nic { mac: [2; 6], mtu: 1500 });
        let offered = nic.features(u64::MAX);
        assert!(
            offered & 1 << 33 != 0 && offered & (1 << 17 | 1 << 22) == 0 && offered & 1 << 32 != 0
        );
        assert_eq!(nic.features(0), 1 << 33 | 1 << 3 | 1 << 5 | 1 << 16);
    }

    fn of_daemon(kind: Kind) -> (Place, JoinHandle<Told>, FrontEnd, Spec) {
        let (place, daemon, front) = connected(0);
        let spec = Spec { folder: place.folder(), socket: place.socket(), ..spec(kind) };
        (place, daemon, front, spec)
    }

    const NIC: Kind = Kind::Nic { mac: [2, 1, 2, 3, 4, 5], mtu: 9000 };

    #[test]
    fn a_disk_s_config_space_is_the_daemon_s_and_a_nic_s_is_its_own() {
        let (_place, daemon, mut front, disk) = of_daemon(Kind::Disk);
        assert_eq!(disk.config(&mut front).unwrap(), [CONFIG; 60]);
        assert_eq!((disk.device_id(), disk.queues(&front)), (2, 3));
        let nic = spec(NIC);
        // Address, carrier, one pair, MTU: little-endian, whatever the machine.
        let expected = [2, 1, 2, 3, 4, 5, 1, 0, 1, 0, 0x28, 0x23];
        assert_eq!(nic.config(&mut front).unwrap(), expected);
        assert_eq!((nic.device_id(), nic.queues(&front)), (1, 2));
        for (offered, taken) in [(0, 1), (1, 1), (64, 64), (65, 64), (u32::MAX, 64)] {
            front.queues = offered;
            assert_eq!(disk.queues(&front), taken, "of {offered}");
        }
        drop(front);
        daemon.join().unwrap();
    }

    #[test]
    fn a_disk_s_record_is_as_long_as_the_daemon_wants_it_and_keeps_what_it_has() {
        let (_place, daemon, mut front, disk) = of_daemon(Kind::Disk);
        let no_folder = disk.record(&mut front, 2).unwrap_err().to_string();
        assert!(no_folder.starts_with("the record of what is in flight: "), "{no_folder}");
        std::fs::write(disk.mark(), [7; 10]).unwrap();
        let (area, file) = disk.record(&mut front, 2).unwrap().expect("a disk's");
        let size = 2 * 256 * 16;
        let expected = InflightArea { size, queues: 2, queue_size: 256, ..Default::default() };
        assert_eq!((area, file.metadata().unwrap().len()), (expected, size));
        let kept = std::fs::read(disk.mark()).unwrap();
        assert_eq!((&kept[..10], kept[10..].iter().all(|byte| *byte == 0)), (&[7; 10][..], true));
        // More than the daemon has room for: none, of no bytes, which it refuses then.
        let none = disk.record(&mut front, 200).unwrap().map(|(area, _)| area.size);
        assert_eq!(none, Some(0));
        assert!(spec(NIC).record(&mut front, 2).unwrap().is_none());
        drop(front);
        daemon.join().unwrap();
    }

    #[test]
    fn the_bus_is_asked_by_a_process_of_its_own() {
        let spec = Spec { program: PathBuf::from("/nowhere/at/all"), ..spec(Kind::Disk) };
        let said = spec.ask_bus("add").unwrap_err().to_string();
        assert!(said.starts_with("the process that asks the bus: "), "{said}");
        // One that says what it does not find.
        let spec = Spec { program: PathBuf::from("ls"), ..spec };
        let said = spec.ask_bus("del").unwrap().wait_with_output().unwrap();
        let said = String::from_utf8(said.stderr).unwrap();
        assert!(
            ["vdpa", "del", "a"].iter().all(|word| said.contains(&format!("{word}'"))),
            "{said}"
        );
        assert_eq!(spec.mark(), PathBuf::from("/run/x/a.inflight"));
    }
}
