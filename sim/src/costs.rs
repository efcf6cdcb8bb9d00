//! What things cost, nanoseconds; the same for all three ways to run a core.
//!
//! "Measured" is docs/performance.md, on two virtual cores of an AMD EPYC (Zen 4). "Assumed" has no
//! measurement of ours behind it; the reading in docs/scheduling says which conclusions hang on it.

/// A request of a visit, bytes apart. Measured: 17.3 M reads a second on `null` at depth 32.
pub(crate) const REQUEST_NS: u64 = 58;

/// 1,024 bytes of a request. Measured: a copy of 4 KiB out of a large buffer ran 2.08 M times a second.
pub(crate) const KIB_NS: u64 = 120;

/// A look at an empty ring: choosing it, and an index that its guest did not write meanwhile. Assumed.
pub(crate) const LOOK_NS: u64 = 40;

/// What a visit with work costs beyond its requests: the lines that both sides touch. Assumed, within
/// the measured round trip at depth 1 (0.26 us in fast minutes), which has the driver's turn in it too.
pub(crate) const VISIT_NS: u64 = 150;

/// A call: one write to an eventfd that is KVM's irqfd. Assumed: a short system call.
pub(crate) const CALL_NS: u64 = 500;

/// From a call to the guest's handler, with posted interrupts, which all three have. Assumed.
pub(crate) const REPLY_NS: u64 = 1_000;

/// A kick: the guest's exit, after which the eventfd is signalled. docs/decisions/0007, "2 us unless
/// told".
pub(crate) const KICK_NS: u64 = 2_000;

/// From a signal to the first step of a thread that slept on an idle core. Assumed; it is 3 to 10 us
/// on usual hosts, and more where cores sleep deeply.
pub(crate) const WAKE_NS: u64 = 5_000;

/// Of [`WAKE_NS`], what the core spends; the rest is its way out of idleness.
pub(crate) const WAKE_CPU_NS: u64 = 1_500;

/// Going to sleep: the system call, and the switch to the idle task. Assumed.
pub(crate) const SLEEP_NS: u64 = 1_000;

/// From one thread to another on a busy core, caches included. Assumed.
pub(crate) const SWITCH_NS: u64 = 1_500;

/// What a sidecore does in a pass besides visits: the clock, the inbox, the completion ring. Assumed.
pub(crate) const PASS_NS: u64 = 80;

/// A sidecore's look for kicks: `epoll_wait` that does not wait. Assumed.
pub(crate) const KICKS_NS: u64 = 400;

/// Asking for kicks, a fence, and looking again. Assumed.
pub(crate) const ARM_NS: u64 = 60;

/// Reading the clock. docs/decisions/0007.
pub(crate) const CLOCK_NS: u64 = 20;

/// A look at a watched ring between two pieces of a visit: a line that is in the cache. Assumed.
pub(crate) const WATCH_NS: u64 = 5;

/// How requests come to a sidecore, and what each costs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// A request, bytes apart.
    pub(crate) request_ns: u64,
    /// 1,024 bytes of one.
    pub(crate) kib_ns: u64,
    /// After a visit: telling the guest, or the socket.
    pub(crate) call_ns: u64,
    /// From there to the guest's handler.
    pub(crate) reply_ns: u64,
    /// From a request to a sidecore that sleeps, for which the guest's processor is held up.
    pub(crate) kick_ns: u64,
}

impl Way {
    /// A ring in the memory of this machine.
    pub(crate) const RING: Way = Way {
        request_ns: REQUEST_NS,
        kib_ns: KIB_NS,
        call_ns: CALL_NS,
        reply_ns: REPLY_NS,
        kick_ns: KICK_NS,
    };

    /// A link, MTU 9000, no sealing. Measured (docs/performance.md, "Disks of another machine"): 384,000
    /// reads of 4 KiB a second at depth 32, of which all time is laid at the IOhost, and 12.4 us more
    /// than a ring at depth 1, of which both ends' work is taken off. Their split into requests and
    /// bytes is assumed. A frame wakes the IOhost as a kick does, and holds up no guest.
    pub(crate) const LINK: Way =
        Way { request_ns: 1_600, kib_ns: 250, call_ns: 1_000, reply_ns: 7_000, kick_ns: 0 };

    /// What a request of so many bytes takes of its guest's processor where the client is in the guest,
    /// as vRIO's is: as much as of the IOhost, since both do the same to each frame.
    pub(crate) const fn client_ns(self, bytes: u64) -> u64 {
        self.request_ns + self.bytes_ns(bytes)
    }

    /// The same, with so much more to be done with each 1,024 bytes.
    pub(crate) const fn interposed(self, kib_ns: u64) -> Way {
        Way { kib_ns: self.kib_ns + kib_ns, ..self }
    }

    /// A request with its bytes.
    pub(crate) const fn request_ns(self, bytes: u64) -> u64 {
        self.request_ns + self.bytes_ns(bytes)
    }

    /// Bytes alone.
    pub(crate) const fn bytes_ns(self, bytes: u64) -> u64 {
        bytes * self.kib_ns / 1024
    }
}

/// 1,024 bytes of AES-256-XTS, as disks are encrypted. Measured: `openssl speed -bytes 4096`, 6.3 GB/s.
pub(crate) const AES_XTS_KIB_NS: u64 = 162;

/// 1,024 bytes of AES-256-CBC, each block of which waits for the one before. Measured: 0.99 GB/s. What
/// vRIO's experiment had is not said; its processors were of 2012.
pub(crate) const AES_CBC_KIB_NS: u64 = 1_038;
