//! VDUSE's numbers and structures (`linux/vduse.h`), as bytes.
//!
//! Pure: no call is made here (`sys`). What the kernel says is read with its bounds checked.

use std::marker::PhantomData;

/// Longest name of a device, bytes, with its end.
const NAME_BYTES: usize = 256;
/// Bytes of a message of the kernel, and of an answer.
pub(crate) const MESSAGE_BYTES: usize = 152;
/// Where the part of a message begins that depends on its kind.
const MESSAGE_BODY: usize = 24;
/// Alignment of rings, bytes: a page of every machine that we run on.
const RING_ALIGN: u32 = 4096;

/// One kind of ioctl.
pub(crate) trait Op {
    const NUMBER: u32;
    /// It answers with a descriptor.
    const GIVES_FD: bool = false;
}

const fn number(direction: u32, size: u32, nr: u32) -> u32 {
    direction << 30 | size << 16 | 0x81 << 8 | nr
}
const WRITE: u32 = 1;
const READ: u32 = 2;

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = ($direction:expr, $size:expr, $nr:expr) $(gives $fd:literal)?;)*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name;
        impl Op for $name {
            const NUMBER: u32 = number($direction, $size, $nr);
            $(const GIVES_FD: bool = $fd;)?
        }
    )* };
}

ops! {
    /// Which version of the interface is spoken.
    SetApiVersion = (WRITE, 8, 0x01);
    /// Makes a device.
    CreateDev = (WRITE, 336, 0x02);
    /// Ends one that no bus and no process has.
    DestroyDev = (WRITE, 256, 0x03);
    /// A descriptor of the memory that the driver's addresses name, and for which of them.
    IotlbGetFd = (READ | WRITE, 32, 0x10) gives true;
    /// The features that the driver took.
    GetFeatures = (READ, 8, 0x11);
    /// Bytes of the config space.
    SetConfig = (WRITE, 8, 0x12);
    /// The driver is told of them.
    InjectConfigIrq = (0, 0, 0x13);
    /// The largest size of a queue.
    VqSetup = (WRITE, 32, 0x14);
    /// Where the driver has put a queue.
    VqGetInfo = (READ | WRITE, 48, 0x15);
    /// Where its kicks go.
    VqSetupKickfd = (WRITE, 8, 0x16);
    /// The driver is called.
    VqInjectIrq = (WRITE, 4, 0x17);
}

/// The bytes of one ioctl: at least as many as its number says, and those that a length among them announces.
#[derive(Debug)]
pub(crate) struct Request<O> {
    bytes: Vec<u8>,
    op: PhantomData<O>,
}

impl<O: Op> Request<O> {
    fn new(fields: &[&[u8]]) -> Request<O> {
        let mut bytes = fields.concat();
        bytes.resize(bytes.len().max((O::NUMBER >> 16 & 0x3fff) as usize), 0);
        Request { bytes, op: PhantomData }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(part(&self.bytes, at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(part(&self.bytes, at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(part(&self.bytes, at))
    }
}

/// `N` bytes at `at`; zeroes where there are none.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
    found.unwrap_or([0; N])
}

/// A name, with zeroes behind it; `None` if it is too long, or no name.
fn name_bytes(name: &str) -> Option<[u8; NAME_BYTES]> {
    let mut bytes = [0; NAME_BYTES];
    let is_name = !name.is_empty() && name.len() < NAME_BYTES && !name.contains(['\0', '/']);
    is_name.then(|| bytes[..name.len()].copy_from_slice(name.as_bytes()))?;
    Some(bytes)
}

pub(crate) fn set_api_version() -> Request<SetApiVersion> {
    Request::new(&[&0u64.to_ne_bytes()])
}

/// What a new device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceConfig<'a> {
    pub(crate) name: &'a str,
    /// Of virtio: 1 is a NIC, 2 a disk.
    pub(crate) device_id: u32,
    pub(crate) features: u64,
    pub(crate) queues: u32,
    /// The config space.
    pub(crate) config: &'a [u8],
}

pub(crate) fn create_dev(config: &DeviceConfig<'_>) -> Option<Request<CreateDev>> {
    let name = name_bytes(config.name)?;
    Some(Request::new(&[
        &name,
        &0u32.to_ne_bytes(),
        &config.device_id.to_ne_bytes(),
        &config.features.to_ne_bytes(),
        &config.queues.to_ne_bytes(),
        &RING_ALIGN.to_ne_bytes(),
        &[0; 13 * 4],
        &(config.config.len() as u32).to_ne_bytes(),
        config.config,
    ]))
}

pub(crate) fn destroy_dev(name: &str) -> Option<Request<DestroyDev>> {
    Some(Request::new(&[&name_bytes(name)?]))
}

pub(crate) fn iotlb_get_fd(first: u64) -> Request<IotlbGetFd> {
    Request::new(&[&0u64.to_ne_bytes(), &first.to_ne_bytes(), &u64::MAX.to_ne_bytes()])
}

/// A run of addresses of the driver, and where it is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IotlbEntry {
    pub(crate) offset: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Request<IotlbGetFd> {
    pub(crate) fn answer(&self) -> IotlbEntry {
        IotlbEntry { offset: self.u64(0), first: self.u64(8), last: self.u64(16) }
    }
}

pub(crate) fn get_features() -> Request<GetFeatures> {
    Request::new(&[])
}

impl Request<GetFeatures> {
    pub(crate) fn answer(&self) -> u64 {
        self.u64(0)
    }
}

pub(crate) fn set_config(bytes: &[u8]) -> Request<SetConfig> {
    Request::new(&[&0u32.to_ne_bytes(), &(bytes.len() as u32).to_ne_bytes(), bytes])
}

pub(crate) fn inject_config_irq() -> Request<InjectConfigIrq> {
    Request::new(&[])
}

pub(crate) fn vq_setup(index: u32, size_max: u16) -> Request<VqSetup> {
    Request::new(&[&index.to_ne_bytes(), &size_max.to_ne_bytes()])
}

pub(crate) fn vq_get_info(index: u32) -> Request<VqGetInfo> {
    Request::new(&[&index.to_ne_bytes()])
}

/// Where the driver has put a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueInfo {
    pub(crate) size: u32,
    pub(crate) descriptors: u64,
    pub(crate) driver: u64,
    pub(crate) device: u64,
    /// Where a split ring begins.
    pub(crate) available_index: u16,
    pub(crate) is_ready: bool,
}

impl Request<VqGetInfo> {
    pub(crate) fn answer(&self) -> QueueInfo {
        QueueInfo {
            size: self.u32(4),
            descriptors: self.u64(8),
            driver: self.u64(16),
            device: self.u64(24),
            available_index: self.u16(32),
            is_ready: self.bytes.get(40).is_some_and(|ready| *ready != 0),
        }
    }
}

pub(crate) fn vq_setup_kickfd(index: u32, fd: i32) -> Request<VqSetupKickfd> {
    Request::new(&[&index.to_ne_bytes(), &fd.to_ne_bytes()])
}

pub(crate) fn vq_inject_irq(index: u32) -> Request<VqInjectIrq> {
    Request::new(&[&index.to_ne_bytes()])
}

/// What the kernel asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Where does this queue stand?
    QueueState(u32),
    /// The driver's status is this; 0 is a reset.
    Status(u8),
    /// What these addresses name has changed.
    Iotlb { first: u64, last: u64 },
    /// Nothing that is known here.
    Unknown(u32),
}

/// A message of the kernel. Each has to be answered within half a minute, or the device is broken for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelMessage {
    pub(crate) id: u32,
    pub(crate) asked: Asked,
}

impl KernelMessage {
    /// `None` when there are too few bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<KernelMessage> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
        let word = |at| u32::from_ne_bytes(part(bytes, at));
        let asked = match word(0) {
            0 => Asked::QueueState(word(MESSAGE_BODY)),
            1 => Asked::Status(bytes[MESSAGE_BODY]),
            2 => Asked::Iotlb {
                first: u64::from_ne_bytes(part(bytes, MESSAGE_BODY)),
                last: u64::from_ne_bytes(part(bytes, MESSAGE_BODY + 8)),
            },
            other => Asked::Unknown(other),
        };
        Some(KernelMessage { id: word(4), asked })
    }

    /// The answer: done or not, and where a queue stands if that was asked.
    pub(crate) fn answer(&self, done: bool, stands_at: u16) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..4].copy_from_slice(&self.id.to_ne_bytes());
        bytes[4..8].copy_from_slice(&u32::from(!done).to_ne_bytes());
        if let Asked::QueueState(queue) = self.asked {
            bytes[MESSAGE_BODY..MESSAGE_BODY + 4].copy_from_slice(&queue.to_ne_bytes());
            bytes[MESSAGE_BODY + 4..MESSAGE_BODY + 6].copy_from_slice(&stands_at.to_ne_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `linux/vduse.h` has them, printed by a C program.
    #[test]
    fn numbers_are_the_kernel_s() {
        let ours = [
            SetApiVersion::NUMBER,
            CreateDev::NUMBER,
            DestroyDev::NUMBER,
            IotlbGetFd::NUMBER,
            GetFeatures::NUMBER,
            SetConfig::NUMBER,
            InjectConfigIrq::NUMBER,
            VqSetup::NUMBER,
            VqGetInfo::NUMBER,
            VqSetupKickfd::NUMBER,
            VqInjectIrq::NUMBER,
        ];
        let kernel: [u32; 11] = [
            0x40088101, 0x41508102, 0x41008103, 0xc0208110, 0x80088111, 0x40088112, 0x8113,
            0x40208114, 0xc0308115, 0x40088116, 0x40048117,
        ];
        assert_eq!(ours.map(|number| format!("{number:#x}")), kernel.map(|n| format!("{n:#x}")));
    }

    #[test]
    fn a_device_s_config_space_stands_behind_its_fields() {
        let config = DeviceConfig {
            name: "db",
            device_id: 2,
            features: 1 << 33,
            queues: 4,
            config: &[7; 60],
        };
        let mut request = create_dev(&config).unwrap();
        let bytes = request.bytes_mut();
        assert_eq!((bytes.len(), &bytes[..3]), (336 + 60, &b"db\0"[..]));
        assert_eq!((bytes[260], bytes[268], bytes[272], bytes[332]), (2, 2, 4, 60));
        assert!(bytes[336..].iter().all(|byte| *byte == 7));
        for name in ["", "a/b", "a\0", &"x".repeat(256)] {
            assert!(create_dev(&DeviceConfig { name, ..config.clone() }).is_none(), "{name:?}");
            assert!(destroy_dev(name).is_none());
        }
    }

    #[test]
    fn messages_are_read_and_answered() {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[4] = 9;
        bytes[24] = 3;
        let message = |kind: u8| {
            let mut bytes = bytes;
            bytes[0] = kind;
            KernelMessage::parse(&bytes).unwrap()
        };
        assert_eq!(message(0).asked, Asked::QueueState(3));
        assert_eq!(message(1), KernelMessage { id: 9, asked: Asked::Status(3) });
        assert_eq!(message(2).asked, Asked::Iotlb { first: 3, last: 0 });
        assert_eq!(message(7).asked, Asked::Unknown(7));
        let answer = message(0).answer(true, 0x1234);
        assert_eq!((answer[0], answer[4], answer[24]), (9, 0, 3));
        assert_eq!(answer[28..30], 0x1234u16.to_ne_bytes());
        assert_eq!(message(1).answer(false, 5)[4..], {
            let mut expected = [0; MESSAGE_BYTES - 4];
            expected[0] = 1;
            expected
        });
        assert_eq!(KernelMessage::parse(&bytes[1..]), None);
    }

    #[test]
    fn a_queue_s_place_is_read() {
        let mut request = vq_get_info(1);
        let bytes = request.bytes_mut();
        assert_eq!(bytes.len(), 48);
        (bytes[4], bytes[8], bytes[16], bytes[24], bytes[32], bytes[40]) = (128, 1, 2, 3, 4, 1);
        assert_eq!(
            request.answer(),
            QueueInfo {
                size: 128,
                descriptors: 1,
                driver: 2,
                device: 3,
                available_index: 4,
                is_ready: true,
            }
        );
    }

    /// Nothing of the kernel's answer is trusted to be long enough, nor any of its fields to make sense.
    #[test]
    fn every_request_is_as_long_as_its_number_says() {
        fn length<O: Op>(mut request: Request<O>) -> (usize, usize) {
            (request.bytes_mut().len(), (O::NUMBER >> 16 & 0x3fff) as usize)
        }
        let lengths = [
            length(set_api_version()),
            length(destroy_dev("a").unwrap()),
            length(iotlb_get_fd(1)),
            length(get_features()),
            length(inject_config_irq()),
            length(vq_setup(0, 256)),
            length(vq_get_info(0)),
            length(vq_setup_kickfd(0, 3)),
            length(vq_inject_irq(0)),
        ];
        for (at, (bytes, number)) in lengths.into_iter().enumerate() {
            assert_eq!(bytes, number, "of request {at}");
        }
        // The kernel copies as much from behind the fields as they say.
        for size in [0, 1, 60, 4096] {
            assert_eq!(length(set_config(&vec![0; size])).0, (8 + size).max(8));
        }
    }

    #[test]
    fn a_run_of_addresses_and_kicks_are_where_the_kernel_looks() {
        let mut request = iotlb_get_fd(0x1234);
        assert_eq!(
            request.bytes_mut()[8..24],
            [0x1234u64, u64::MAX].map(u64::to_ne_bytes).concat()
        );
        request.bytes_mut()[..24].copy_from_slice(&[7u64, 8, 9].map(u64::to_ne_bytes).concat());
        assert_eq!(request.answer(), IotlbEntry { offset: 7, first: 8, last: 9 });
        assert_eq!(vq_setup_kickfd(3, 9).bytes_mut(), [3u32, 9].map(u32::to_ne_bytes).concat());
        assert_eq!(vq_setup_kickfd(3, -1).bytes_mut()[4..], (-1i32).to_ne_bytes());
        assert_eq!(vq_setup(5, 256).bytes_mut()[..6], [5, 0, 0, 0, 0, 1]);
        let mut features = get_features();
        features.bytes_mut().copy_from_slice(&(1u64 << 33).to_ne_bytes());
        assert_eq!(features.answer(), 1 << 33);
    }
}
