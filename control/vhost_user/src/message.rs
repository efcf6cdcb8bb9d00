//! Every message of a front-end: from payload to meaning and back.
//!
//! Forms and sizes are checked here; whether a number makes sense now is `session`'s matter. A
//! payload has the machine's byte order, since it never leaves the machine.

use crate::frame;
use crate::refusal::Reason;

mod wire;

use wire::Reader;
pub(crate) use wire::Wire;

/// Bytes of the config space that one message carries at most.
pub const CONFIG_SIZE_MAX: usize = 256;
/// Regions in one table at most: as many as rust-vmm's front-ends send (the specification asks for
/// 8; whoever has more uses memory slots).
pub const TABLE_REGIONS_MAX: usize = frame::FDS_MAX;

/// One region of guest memory, as the front-end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Guest address of the first byte.
    pub gpa: u64,
    /// Bytes.
    pub size: u64,
    /// The front-end's own address of it.
    pub user: u64,
    /// Where it begins in its file, bytes.
    pub offset: u64,
}

/// Where the three parts of a ring are, in front-end addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table (split) or ring (packed).
    pub descriptors: u64,
    /// Available ring, or driver event structure.
    pub driver: u64,
    /// Used ring, or device event structure.
    pub device: u64,
    /// Guest address of the used ring, for the log.
    pub log: u64,
    /// Writes to the used ring are to be logged (`VHOST_VRING_F_LOG`).
    pub logged: bool,
}

/// A dirty log in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogArea {
    /// Bytes.
    pub size: u64,
    /// Where it begins in its file, bytes.
    pub offset: u64,
}

/// An in-flight record in a file, for `queues` queues one behind the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InflightArea {
    /// Bytes; 0 in a request for one.
    pub size: u64,
    /// Where it begins in its file, bytes.
    pub offset: u64,
    /// Queues.
    pub queues: u16,
    /// Entries of each.
    pub queue_size: u16,
    /// The payload had the C padding that rust-vmm's front-ends send; answer alike.
    pub padded: bool,
}

/// A part of the config space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigSpan {
    /// First byte.
    pub offset: u32,
    /// Bytes asked for.
    pub size: u32,
    /// 0, or 1 in a live migration.
    pub flags: u32,
    /// The bytes that came; of no meaning in `GET_CONFIG`.
    pub bytes: Vec<u8>,
}

/// A queue and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingState {
    /// Queue.
    pub queue: u32,
    /// What about it.
    pub value: u32,
}

/// A queue and whether a descriptor comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFd {
    /// Queue.
    pub queue: u32,
    /// One descriptor comes along. Without: poll instead (kick), or make no calls.
    pub has_fd: bool,
}

/// An Ethernet address, in the first six of the eight bytes that carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacAddress {
    /// The address.
    pub bytes: [u8; 6],
    /// What came behind it; 0 when the message makes sense.
    pub rest: u16,
}

/// Declares the messages: number, name, fields, and how many descriptors come with each.
macro_rules! messages {
    ($($(#[$doc:meta])* $id:literal $name:ident $wire:literal $(($field:ty))?,)*) => {
        /// One message of a front-end, without its descriptors.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Message {
            $($(#[$doc])* $name $(($field))?,)*
        }

        impl Message {
            /// Its number.
            pub fn id(&self) -> u32 {
                match self { $(messages!(@any $name $($field)?) => $id,)* }
            }

            /// Its name in the specification.
            pub fn name(&self) -> &'static str {
                match self { $(messages!(@any $name $($field)?) => $wire,)* }
            }

            /// The name of a message by its number.
            pub fn name_of(id: u32) -> Option<&'static str> {
                match id { $($id => Some($wire),)* _ => None }
            }

            /// Reads the payload of message `id`.
            ///
            /// # Errors
            /// [`Reason::Unknown`], or [`Reason::PayloadSize`] and [`Reason::Value`] when the
            /// payload is not one of that message.
            pub fn parse(id: u32, payload: &[u8]) -> Result<Message, Reason> {
                let mut reader = Reader::new(payload);
                let (message, name) = match id {
                    $($id => (messages!(@read reader $name $($field)?), $wire),)*
                    _ => return Err(Reason::Unknown(id)),
                };
                let wrong = Reason::PayloadSize { message: name, size: payload.len() };
                let message = message.ok_or(wrong.clone())?;
                if reader.is_empty() { message.check() } else { Err(wrong) }
            }

            /// The message as a front-end sends it: header and payload.
            pub fn emit(&self, need_reply: bool) -> Vec<u8> {
                #[allow(unused_mut, reason = "not every message has a payload")]
                let mut payload = Vec::new();
                match self { $(messages!(@bind $name field $($field)?) => {
                    messages!(@write payload field $($field)?);
                })* }
                frame::request(self.id(), need_reply, &payload)
            }
        }
    };
    (@any $name:ident) => { Message::$name };
    (@any $name:ident $field:ty) => { Message::$name(_) };
    (@bind $name:ident $var:ident) => { Message::$name };
    (@bind $name:ident $var:ident $field:ty) => { Message::$name($var) };
    (@read $reader:ident $name:ident) => { Some(Message::$name) };
    (@read $reader:ident $name:ident $field:ty) => {
        <$field as Wire>::read(&mut $reader).map(Message::$name)
    };
    (@write $payload:ident $var:ident) => {};
    (@write $payload:ident $var:ident $field:ty) => { <$field as Wire>::write($var, &mut $payload) };
}

messages! {
    /// Which virtio features are offered?
    1 GetFeatures "GET_FEATURES",
    /// These are taken.
    2 SetFeatures "SET_FEATURES" (u64),
    /// The connection begins.
    3 SetOwner "SET_OWNER",
    /// Deprecated; stops every ring.
    4 ResetOwner "RESET_OWNER",
    /// The whole guest memory, a descriptor for each region.
    5 SetMemTable "SET_MEM_TABLE" (Vec<MemoryRegion>),
    /// Where to log writes.
    6 SetLogBase "SET_LOG_BASE" (LogArea),
    /// Whom to tell of logged writes; kept and not used, as by every back-end.
    7 SetLogFd "SET_LOG_FD",
    /// Entries of a ring.
    8 SetVringNum "SET_VRING_NUM" (RingState),
    /// Where a ring is.
    9 SetVringAddr "SET_VRING_ADDR" ((u32, RingAddresses)),
    /// Where a ring goes on.
    10 SetVringBase "SET_VRING_BASE" (RingState),
    /// Stop a ring; where did it stop?
    11 GetVringBase "GET_VRING_BASE" (RingState),
    /// Start a ring; kicks come here.
    12 SetVringKick "SET_VRING_KICK" (RingFd),
    /// Calls go here.
    13 SetVringCall "SET_VRING_CALL" (RingFd),
    /// A ring's failure is told here.
    14 SetVringErr "SET_VRING_ERR" (RingFd),
    /// Which protocol features are offered?
    15 GetProtocolFeatures "GET_PROTOCOL_FEATURES",
    /// These are taken.
    16 SetProtocolFeatures "SET_PROTOCOL_FEATURES" (u64),
    /// How many queues are there?
    17 GetQueueNum "GET_QUEUE_NUM",
    /// Serve a ring, or do not.
    18 SetVringEnable "SET_VRING_ENABLE" (RingState),
    /// A guest that was migrated here has this address; the network is to learn it.
    19 SendRarp "SEND_RARP" (MacAddress),
    /// The guest sends and takes packets of at most so many bytes.
    20 NetSetMtu "NET_SET_MTU" (u64),
    /// The channel from back-end to front-end.
    21 SetBackendReqFd "SET_BACKEND_REQ_FD",
    /// Read the config space.
    24 GetConfig "GET_CONFIG" (ConfigSpan),
    /// Write the config space.
    25 SetConfig "SET_CONFIG" (ConfigSpan),
    /// Make a record for what is in flight.
    31 GetInflightFd "GET_INFLIGHT_FD" (InflightArea),
    /// Use this record.
    32 SetInflightFd "SET_INFLIGHT_FD" (InflightArea),
    /// Reset the device.
    34 ResetDevice "RESET_DEVICE",
    /// How many regions can there be?
    36 GetMaxMemSlots "GET_MAX_MEM_SLOTS",
    /// One more region, and its descriptor.
    37 AddMemReg "ADD_MEM_REG" (MemoryRegion),
    /// One region less.
    38 RemMemReg "REM_MEM_REG" (MemoryRegion),
}

impl Message {
    /// Checks how many descriptors came along.
    ///
    /// # Errors
    /// [`Reason::Descriptors`].
    pub fn check_fds(&self, count: usize) -> Result<(), Reason> {
        let right = match self {
            Message::SetMemTable(regions) => count == regions.len(),
            Message::SetVringKick(ring) | Message::SetVringCall(ring) => {
                count == usize::from(ring.has_fd)
            }
            Message::SetVringErr(ring) => count == usize::from(ring.has_fd),
            Message::SetLogBase(_) | Message::SetLogFd | Message::SetBackendReqFd => count == 1,
            Message::SetInflightFd(_) | Message::AddMemReg(_) => count == 1,
            // Older front-ends send one; it is closed unused, as the specification asks.
            Message::RemMemReg(_) => count <= 1,
            _ => count == 0,
        };
        if right { Ok(()) } else { Err(Reason::Descriptors { message: self.name(), count }) }
    }

    /// What a size alone does not show.
    fn check(self) -> Result<Message, Reason> {
        match &self {
            Message::SetVringEnable(state) if state.value > 1 => {
                Err(Reason::Value { message: self.name(), value: state.value.into() })
            }
            _ => Ok(self),
        }
    }
}

/// The bytes of a payload, for replies.
pub(crate) fn payload(wire: &impl Wire) -> Vec<u8> {
    let mut payload = Vec::new();
    wire.write(&mut payload);
    payload
}

/// The configuration change that a back-end announces on its own channel.
pub(crate) fn config_change() -> Vec<u8> {
    const CONFIG_CHANGE_MSG: u32 = 2;
    frame::request(CONFIG_CHANGE_MSG, false, &[])
}

#[cfg(test)]
mod tests;
