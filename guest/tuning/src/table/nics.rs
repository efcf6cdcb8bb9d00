//! Rules about NICs.

use crate::rule::{Condition, Rule, Setting, Subject, Test, Way, Wish};
use crate::value::Form;

/// VIRTIO_NET_F_NOTF_COAL: virtio 1.3, 5.1.3.
const NOTF_COAL: usize = 53;
/// What a feature of an offload is set to.
const ON: Wish = Wish::Is("on");

const fn offload(place: &'static str) -> Setting {
    Setting { place, form: Form::Word, wish: ON, beside: &[] }
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "nic-queues",
        looks_at: "the pairs of queues that each virtio NIC uses",
        wish: "one for each vCPU, as far as the device has them",
        why: "vCPUs that share a pair wait for its lock, and its interrupts all come to one of them",
        costs: "an exit for each call of another vCPU. Not in the paper, whose guests had one vCPU",
        price: "none",
        not_when: "the device has no more",
        elsewhere: "on the host, give the NIC more `queues` (sidecore nic show NAME) and QEMU's netdev queues=, and start the guest again",
        subject: Subject::Nic,
        way: Way::Apply,
        conditions: &[],
        settings: &[Setting {
            place: "ethtool:{name}:combined",
            form: Form::Number,
            wish: Wish::Vcpus(Some("ethtool:{name}:combined-max")),
            // The driver spreads queues over vCPUs anew.
            beside: &[
                "proc/irq/{irq}/smp_affinity_list",
                "sys/class/net/{name}/queues/{queue}/xps_cpus",
            ],
        }],
    },
    Rule {
        name: "nic-offloads",
        looks_at: "what each virtio NIC leaves to the host: checksums, segmentation, merging",
        wish: "on, whatever the device offers",
        why: "a frame of 64 KiB that goes as one costs one descriptor chain; cut up by the guest it costs 45, and as many looks, copies and sums",
        costs: "Paper, 4.2: segmentation offload lessens the packets that are processed, checksum offload the guest's load; no number",
        price: "none",
        not_when: "the device does not offer it",
        elsewhere: "on the host, let the device offer it (QEMU: csum=on,host_tso4=on,host_tso6=on)",
        subject: Subject::Nic,
        way: Way::Apply,
        conditions: &[],
        settings: &[
            offload("ethtool:{name}:feature-tx-checksum-ip-generic"),
            offload("ethtool:{name}:feature-tx-scatter-gather"),
            offload("ethtool:{name}:feature-tx-tcp-segmentation"),
            offload("ethtool:{name}:feature-tx-tcp6-segmentation"),
            offload("ethtool:{name}:feature-tx-generic-segmentation"),
            offload("ethtool:{name}:feature-rx-gro"),
        ],
    },
    Rule {
        name: "gro-timers",
        looks_at: "whether a NIC's interrupts stay off for a while after a poll (napi_defer_hard_irqs, gro_flush_timeout)",
        wish: "2 empty polls, 20,000 ns apart",
        why: "frames that come soon after others are found by the next poll, without an interrupt; each interrupt is an exit, or two, where the host cannot post it",
        costs: "Paper, 3.2.2: the interrupt's handling by NAPI costs; without it streams and request-response gain more than 60% (figure 9)",
        price: "timers of the guest's own, and up to 20 us for a frame that comes alone",
        not_when: "it is not named: it depends on the load",
        elsewhere: "",
        subject: Subject::Nic,
        way: Way::Named,
        conditions: &[],
        settings: &[
            Setting {
                place: "sys/class/net/{name}/gro_flush_timeout",
                form: Form::Number,
                wish: Wish::AtLeast(20_000),
                beside: &[],
            },
            Setting {
                place: "sys/class/net/{name}/napi_defer_hard_irqs",
                form: Form::Number,
                wish: Wish::AtLeast(2),
                beside: &[],
            },
        ],
    },
    Rule {
        name: "nic-coalescing",
        looks_at: "how long the device may wait before it interrupts (ethtool -c: rx-usecs, tx-usecs)",
        wish: "at least 20 us",
        why: "frames of that time share an interrupt, and each interrupt is an exit, or two, where the host cannot post it",
        costs: "Paper, 3.2.2: interrupts by the frame are what NAPI is against; figure 9",
        price: "up to 20 us for a frame that comes alone",
        not_when: "it is not named, or the device has no VIRTIO_NET_F_NOTF_COAL",
        elsewhere: "",
        subject: Subject::Nic,
        way: Way::Named,
        conditions: &[Condition {
            test: Test::Feature("sys/class/net/{name}/device/features", NOTF_COAL),
            otherwise: "the device cannot wait by itself (no VIRTIO_NET_F_NOTF_COAL): the host's NIC does for it (sidecore nic show)",
        }],
        settings: &[
            Setting {
                place: "ethtool:{name}:rx-usecs",
                form: Form::Number,
                wish: Wish::AtLeast(20),
                beside: &[],
            },
            Setting {
                place: "ethtool:{name}:tx-usecs",
                form: Form::Number,
                wish: Wish::AtLeast(20),
                beside: &[],
            },
        ],
    },
    Rule {
        name: "irq-affinity",
        looks_at: "which vCPU takes the interrupts of each queue of a virtio NIC with several",
        wish: "the one of the queue's number",
        why: "a frame that is taken on another vCPU than it is wanted on has to be passed on: a call between vCPUs is an exit, and one to wake who is called",
        costs: "two exits for each call. Not in the paper, whose guests had one vCPU",
        price: "none where flows are many",
        not_when: "irqbalance runs, which would move them again",
        elsewhere: "",
        subject: Subject::NicInterrupt,
        way: Way::Apply,
        conditions: &[Condition {
            test: Test::NoProcess("irqbalance"),
            otherwise: "irqbalance runs and would move it: stop it, or give it --banirq= for this one",
        }],
        settings: &[Setting {
            place: "proc/irq/{irq}/smp_affinity_list",
            form: Form::Cpus,
            wish: Wish::OwnVcpu,
            beside: &[],
        }],
    },
    Rule {
        name: "emulated-nic",
        looks_at: "the drivers of NICs that are no virtio NICs",
        wish: "no e1000, rtl8139 or other emulated one",
        why: "each frame takes several accesses of registers, and each is an exit",
        costs: "Paper, table 2: ioread16, iowrite16, ioread32 and ioread8 make 75% of the time outside in netperf",
        price: "none",
        not_when: "never; it is only said",
        elsewhere: "on the host, give the guest a virtio NIC instead (sidecore nic add NAME --print qemu)",
        subject: Subject::OtherNic,
        way: Way::Told,
        conditions: &[],
        settings: &[Setting {
            place: "sys/class/net/{name}/device/driver",
            form: Form::LinkEnd,
            wish: Wish::NoneOf(&[
                "e1000", "e1000e", "8139cp", "8139too", "pcnet32", "ne2k-pci", "tulip",
            ]),
            beside: &[],
        }],
    },
];
