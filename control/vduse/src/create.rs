//! Devices of `/dev/vduse`: made, found again, looked at, ended.
//!
//! Not what is served in them (`device`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::abi::{self, DeviceConfig};
use crate::{Error, sys, tried};

const CONTROL: &str = "/dev/vduse/control";
/// `virtio_vdpa` makes virtio devices of what is on the bus; without it nothing would be seen.
const MODULES: [&str; 3] = ["vdpa", "vduse", "virtio_vdpa"];

/// Whether this kernel has VDUSE, and we may use it; loads its modules if need be.
///
/// # Errors
/// What is missing, in words.
pub fn need_vduse() -> Result<(), Error> {
    let is_there =
        || Path::new(CONTROL).exists() && Path::new("/sys/bus/vdpa/drivers/virtio_vdpa").exists();
    if !is_there() {
        for module in MODULES {
            // Its words are of no use beside ours below.
            let _ = Command::new("modprobe").arg(module).output();
        }
    }
    if !is_there() {
        return Err(Error::NoVduse(
            "this kernel has no VDUSE: it takes the modules vdpa, vduse and virtio_vdpa (Linux 5.15 for disks, 6.10 \
             for NICs; CONFIG_VDPA_USER, CONFIG_VIRTIO_VDPA; Debian's `cloud` kernels leave them out)"
                .to_string(),
        ));
    }
    open_control().map(|_| ())
}

pub(crate) fn open_control() -> Result<File, Error> {
    let control = OpenOptions::new().read(true).write(true).open(CONTROL);
    let control = control.map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            Error::NoVduse(format!("{CONTROL} is not ours to open: run this as root"))
        }
        _ => Error::NoVduse(format!("{CONTROL}: {error}")),
    })?;
    sys::call(&control, &mut abi::set_api_version()).map_err(tried("VDUSE's version 0"))?;
    Ok(control)
}

pub(crate) fn exists(name: &str) -> bool {
    node(name).exists()
}

/// Whether it is on the bus, where the driver has it.
pub(crate) fn is_on_bus(name: &str) -> bool {
    on_bus(name).exists()
}

fn node(name: &str) -> PathBuf {
    Path::new("/dev/vduse").join(name)
}

fn on_bus(name: &str) -> PathBuf {
    Path::new("/sys/bus/vdpa/devices").join(name)
}

pub(crate) fn create(control: &File, config: &DeviceConfig<'_>) -> Result<(), Error> {
    let name = || config.name.to_string();
    let mut request = abi::create_dev(config).ok_or_else(|| Error::Name(name()))?;
    let refused = |error: io::Error| match (error.raw_os_error(), config.device_id) {
        (Some(libc::EEXIST), _) => Error::Taken(name()),
        (Some(libc::EINVAL), 1) => Error::NoVduse(
            "this kernel refuses a NIC by VDUSE: it takes Linux 6.10 or newer".to_string(),
        ),
        (Some(libc::EPERM), 1) => Error::NoVduse("a NIC by VDUSE takes CAP_NET_ADMIN".to_string()),
        _ => Error::Kernel { what: "a device of VDUSE", error },
    };
    sys::call(control, &mut request).map(|_| ()).map_err(refused)
}

pub(crate) fn destroy(control: &File, name: &str) -> Result<(), Error> {
    let mut request = abi::destroy_dev(name).ok_or_else(|| Error::Name(name.to_string()))?;
    sys::call(control, &mut request).map(|_| ()).map_err(tried("to end a device of VDUSE"))
}

pub(crate) fn open(name: &str) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    options.open(node(name)).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => Error::Served(name.to_string()),
        _ => Error::Kernel { what: "the device in /dev/vduse", error },
    })
}

/// What the kernel made of a device, such as `vda`, if somebody has that open for himself: a file system that is
/// mounted, swap, a volume of something larger. Of NICs nobody can say so.
pub fn in_use(name: &str) -> Option<String> {
    let devices = fs::read_dir(on_bus(name)).ok()?.flatten();
    let disks = devices.filter_map(|device| fs::read_dir(device.path().join("block")).ok());
    let names = disks.flat_map(|disks| disks.flatten()).map(|disk| disk.file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    names.into_iter().find(|disk| {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let opened =
            rustix::fs::open(Path::new("/dev").join(disk), flags, rustix::fs::Mode::empty());
        matches!(opened, Err(Errno::BUSY))
    })
}
