//! Rules about disks.

use crate::rule::{Condition, Rule, Setting, Subject, Test, Way, Wish};
use crate::value::Form;

const SCHEDULER: &str = "sys/block/{name}/queue/scheduler";
/// What the kernel sets anew when a scheduler comes or goes.
const BESIDE_SCHEDULER: &[&str] = &[
    "sys/block/{name}/queue/nr_requests",
    "sys/block/{name}/queue/wbt_lat_usec",
    "sys/block/{name}/queue/iosched/read_expire",
    "sys/block/{name}/queue/iosched/write_expire",
    "sys/block/{name}/queue/iosched/writes_starved",
    "sys/block/{name}/queue/iosched/front_merges",
    "sys/block/{name}/queue/iosched/fifo_batch",
    "sys/block/{name}/queue/iosched/async_depth",
    "sys/block/{name}/queue/iosched/prio_aging_expire",
    "sys/block/{name}/queue/iosched/read_lat_nsec",
    "sys/block/{name}/queue/iosched/write_lat_nsec",
];

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "block-scheduler",
        looks_at: "the scheduler of each virtio disk",
        wish: "none",
        why: "the host orders the requests of all guests anew; what this guest orders, it orders without knowing the disk, and holds requests back for it",
        costs: "Paper, 3.2.1: without a scheduler in the guest writes gain 6.01%, reads 5.64%",
        price: "no shares and priorities between this guest's own processes (ionice, io.weight)",
        not_when: "the scheduler is bfq: whoever chose that shares the disk by weights",
        elsewhere: "",
        subject: Subject::Disk,
        way: Way::Apply,
        conditions: &[Condition {
            test: Test::Not(SCHEDULER, Form::Choice, &["bfq"]),
            otherwise: "bfq was chosen, which shares the disk by weights",
        }],
        settings: &[Setting {
            place: SCHEDULER,
            form: Form::Choice,
            wish: Wish::OneOf(&["none"], SCHEDULER),
            beside: BESIDE_SCHEDULER,
        }],
    },
    Rule {
        name: "write-back-throttling",
        looks_at: "whether write-back waits for a latency target (wbt_lat_usec)",
        wish: "0: it does not",
        why: "it measures the host's disk through the host's cache and queues; writers that it stops halt, and are woken by a timer: exits that a bare disk's guest would not have",
        costs: "no number in the paper; its argument is 3.2.1's: what the guest schedules is scheduled again",
        price: "reads beside much write-back may wait longer",
        not_when: "it is not named: it depends on the load",
        elsewhere: "",
        subject: Subject::Disk,
        way: Way::Named,
        conditions: &[],
        settings: &[Setting {
            place: "sys/block/{name}/queue/wbt_lat_usec",
            form: Form::Number,
            wish: Wish::Is("0"),
            beside: &[],
        }],
    },
    Rule {
        name: "completion-affinity",
        looks_at: "where a request ends that another vCPU began (rq_affinity)",
        wish: "0: where its interrupt came, if there are fewer queues than vCPUs",
        why: "with 1 or 2 the vCPU that took the interrupt calls the one that asked: an exit for the call, and one to wake it",
        costs: "up to two exits for each request that ends elsewhere. Not in the paper, whose guests had one vCPU",
        price: "the one that asked finds less of the request in its cache",
        not_when: "it is not named, or the disk has a queue for each vCPU",
        elsewhere: "",
        subject: Subject::Disk,
        way: Way::Named,
        conditions: &[Condition {
            test: Test::FewQueues("sys/block/{name}/mq"),
            otherwise: "each vCPU has a queue: requests end where they began",
        }],
        settings: &[Setting {
            place: "sys/block/{name}/queue/rq_affinity",
            form: Form::Number,
            wish: Wish::Is("0"),
            beside: &[],
        }],
    },
    Rule {
        name: "disk-queues",
        looks_at: "the queues of each virtio disk",
        wish: "one for each vCPU",
        why: "vCPUs that share a queue wait for its lock, and an interrupt of it comes to one of them for all: the others are called",
        costs: "an exit for each request that ends on another vCPU. Not in the paper, whose guests had one vCPU",
        price: "memory of the host: docs/config.md, `queues`",
        not_when: "never; it is only said",
        elsewhere: "on the host, give the disk more `queues` (sidecore disk show NAME) and QEMU's device num-queues=, and start the guest again",
        subject: Subject::Disk,
        way: Way::Told,
        conditions: &[],
        settings: &[Setting {
            place: "sys/block/{name}/mq",
            form: Form::Count,
            wish: Wish::Vcpus(None),
            beside: &[],
        }],
    },
    Rule {
        name: "emulated-disk",
        looks_at: "disks that are no virtio disks",
        wish: "none behind an emulated IDE or SATA controller",
        why: "each request to such a controller takes a dozen accesses of ports or registers, and each is an exit",
        costs: "Paper, table 3: ioread8, iowrite8 and iowrite32 of libata are among the four that exit most in bonnie++; table 4: 126,914 exits by port I/O alone",
        price: "none",
        not_when: "never; it is only said",
        elsewhere: "on the host, give the guest this disk as a virtio disk (sidecore disk add NAME --print qemu)",
        subject: Subject::OtherDisk,
        way: Way::Told,
        conditions: &[],
        settings: &[Setting {
            place: "sys/block/{name}",
            form: Form::Link,
            wish: Wish::Without("/ata"),
            beside: &[],
        }],
    },
];
