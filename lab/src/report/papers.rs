//! What each experiment is of, and what the papers found in theirs: numbers, with where they stand.
//!
//! ELVIS: "Efficient and scalable paravirtual I/O system" (2013). ES2: "Efficient and responsive event path" (2017).
//! vRIO: "Paravirtual remote I/O" (2016). kvm-guest-io: reducing exits by profiling and simplifying the guest (2009).
//! Data only; how ours are put beside them is in `beside`. Used by the report.

use super::columns::{Column, DOORBELLS, EXITS, IN_GUEST, OF_REACHABLE, P50, P99, RATE, TO_USER};

/// An experiment of the lab.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// The figures and tables it mirrors.
    pub(super) of: &'static str,
    /// What one sees in it.
    pub(super) sees: &'static str,
    pub(super) numbers: &'static [Number],
}

/// What a paper found.
#[derive(Debug)]
pub(super) struct Number {
    pub(super) what: &'static str,
    pub(super) said: &'static str,
    pub(super) source: &'static str,
    pub(super) here: Here,
}

/// Which of our values stands beside it.
#[derive(Debug)]
pub(super) enum Here {
    /// None is like it.
    Nothing,
    /// Of a load: Sidecore's and the baseline's, or their ratio if it is a time.
    Value(&'static str, Column),
    /// Of a load: the part of the baseline's exits that are doorbells.
    Doorbells(&'static str),
    /// Of a load: one configuration's count.
    Of(&'static str, &'static str, Column),
    /// Of a load: one configuration's time in parts of another's.
    Between(&'static str, [&'static str; 2], Column),
}

const fn number(
    what: &'static str,
    said: &'static str,
    source: &'static str,
    here: Here,
) -> Number {
    Number { what, said, source, here }
}

/// All experiments, in the order in which they are reported; `./x lab --help` has the same.
pub(super) const MIRRORS: &[Mirror] = &[
    SMOKE,
    EXITS_BY_CAUSE,
    QUOTA,
    BLOCK_GUESTS,
    NET_GUESTS,
    MIXED,
    ABLATION,
    MERGED,
    SERVERS,
    REDIRECT,
];

/// The one of this name.
pub(super) fn mirror(name: &str) -> Option<&'static Mirror> {
    MIRRORS.iter().find(|mirror| mirror.name == name)
}

const SMOKE: Mirror = Mirror {
    name: "smoke",
    title: "A request at a time",
    of: "vRIO, table 3; ES2, II.B",
    sees: "What one request to a disk and one datagram there and back cost in exits: a doorbell each, unless a \
           sidecore looks for itself.",
    numbers: &[
        number(
            "exits of the guest's own for a request and its reply, baseline",
            "3 (ELVIS, vRIO: 0)",
            "vRIO, table 3",
            Here::Value("net.udp_rr", EXITS),
        ),
        number(
            "exits of one I/O transaction with a virtual device",
            "at least 3: request, interrupt, its end",
            "ES2, II.B",
            Here::Value("blk.randread.qd1", EXITS),
        ),
    ],
};

const EXITS_BY_CAUSE: Mirror = Mirror {
    name: "exits",
    title: "Exits by cause, one guest",
    of: "ES2, table I and figure 5; ELVIS, 4.3; vRIO, table 3",
    sees: "How often a guest stops for an operation, and why. The papers count a second, on hardware; here an operation \
           is the measure. Their interrupts are posted: calls into a running guest, which cost exits here, cost none \
           there.",
    numbers: &[
        number(
            "TCP sent, vhost-net: exits for I/O requests, of all",
            "53.6% (70,082 of 130,840 a second)",
            "ES2, table I",
            Here::Doorbells("net.tcp_send_256"),
        ),
        number(
            "the same: interrupts delivered, ended; others",
            "15.5%, 29.3%; 1.6%",
            "ES2, table I",
            Here::Nothing,
        ),
        number(
            "the same with posted interrupts: exits for I/O requests",
            "85,018 a second, others 964",
            "ES2, table I",
            Here::Nothing,
        ),
        number(
            "TCP sent, 1024 B: time in guest, baseline to ES2",
            "70% to 97.5% (about 120k to under 10k exits/s)",
            "ES2, VI.C, figure 5a",
            Here::Value("net.tcp_send_1024", OF_REACHABLE),
        ),
        number(
            "UDP sent, 1024 B: time in guest, baseline to ES2",
            "68.5% to 99.7% (to under 1k exits/s)",
            "ES2, VI.C, figure 5a",
            Here::Value("net.udp_send_1024", OF_REACHABLE),
        ),
        number(
            "UDP sent, 256 B: exits for I/O requests, baseline to ES2",
            "100k to under 0.1k a second",
            "ES2, VI.B, figure 4a",
            Here::Value("net.udp_send_256", DOORBELLS),
        ),
        number(
            "TCP received: time in guest, baseline to posted interrupts",
            "91.1% to 94.8%",
            "ES2, VI.C, figure 5b",
            Here::Value("net.tcp_receive_1024", IN_GUEST),
        ),
        number(
            "UDP received: time in guest with posted interrupts; exits for I/O requests",
            "above 99%; none",
            "ES2, VI.C, figure 5b",
            Here::Value("net.udp_receive_1024", IN_GUEST),
        ),
        number(
            "TCP stream, 64 B writes, one guest: exits, baseline to ELVIS",
            "142k to under 800 a second, 500 of them timers",
            "ELVIS, 4.3",
            Here::Value("net.tcp_send_256", EXITS),
        ),
        number(
            "exits of the guest's own for a request and its reply, baseline",
            "3 (ELVIS, vRIO: 0)",
            "vRIO, table 3",
            Here::Value("net.udp_rr", EXITS),
        ),
    ],
};

const QUOTA: Mirror = Mirror {
    name: "quota",
    title: "The quota of policy es2",
    of: "ES2, figure 4",
    sees: "How many exits are left when a visit that takes so many frames goes on polling: fewer with a smaller quota, \
           which more visits reach.",
    numbers: &[
        number(
            "UDP, 256 B: exits for I/O requests without a quota",
            "100k a second",
            "ES2, VI.B, figure 4a",
            Here::Nothing,
        ),
        number(
            "the same, quota 32",
            "under 10k a second",
            "ES2, VI.B, figure 4a",
            Here::Of("net.udp_send_256", "es2-quota-32", DOORBELLS),
        ),
        number(
            "the same, quota 16",
            "under 1k a second",
            "ES2, VI.B, figure 4a",
            Here::Of("net.udp_send_256", "es2-quota-16", DOORBELLS),
        ),
        number(
            "the same, quota 8 (their choice) and below; 1024 B about as 256 B",
            "under 0.1k a second",
            "ES2, VI.B, figure 4a",
            Here::Of("net.udp_send_256", "es2-quota-8", DOORBELLS),
        ),
        number(
            "TCP, quota 4 (their choice) and 2; more with each greater one to 64",
            "under 10k a second",
            "ES2, VI.B, figure 4b",
            Here::Of("net.tcp_send_256", "es2-quota-4", DOORBELLS),
        ),
    ],
};

const BLOCK_GUESTS: Mirror = Mirror {
    name: "block-guests",
    title: "Disks of 1, 2 and 4 guests",
    of: "ELVIS, figure 6",
    sees: "Four threads that read and four that write 4 KiB at random in each guest, on RAM disks, all served by one \
           core: whether more guests get more done, and how long each waits.",
    numbers: &[
        number(
            "1 guest: operations, ELVIS and baseline",
            "21,613 and 18,715 a second",
            "ELVIS, 4.5, figure 6",
            Here::Value("blk.guests1.mixed4k", RATE),
        ),
        number(
            "1 guest: latency, ELVIS and baseline",
            "0.3 and 0.4 ms",
            "ELVIS, 4.5, figure 6",
            Here::Value("blk.guests1.mixed4k", P50),
        ),
        number(
            "14 guests: operations of each, ELVIS and baseline",
            "21,613 and 8,862 a second (2.4x)",
            "ELVIS, 4.5, figure 6",
            Here::Value("blk.guests4.mixed4k", RATE),
        ),
        number(
            "14 guests: latency, ELVIS and baseline",
            "0.3 and 0.8 ms",
            "ELVIS, 4.5, figure 6",
            Here::Value("blk.guests4.mixed4k", P50),
        ),
    ],
};

const NET_GUESTS: Mirror = Mirror {
    name: "net-guests",
    title: "NICs of 1, 2 and 4 guests",
    of: "ELVIS, figures 4 and 5",
    sees: "A datagram there and back, and a TCP stream, in each guest, all served by one core: whether the answer comes \
           later with more guests, and whether more guests send more.",
    numbers: &[
        number(
            "UDP there and back: ELVIS less than baseline, 1 guest",
            "by 8 us",
            "ELVIS, 4.4, figure 5",
            Here::Value("net.guests1.udp_rr", P50),
        ),
        number(
            "the same, several guests",
            "by up to 28 us",
            "ELVIS, 4.4, figure 5",
            Here::Value("net.guests4.udp_rr", P50),
        ),
        number(
            "TCP stream, 64 B writes, 1 guest: ELVIS and baseline",
            "1.45 and 1.08 Gb/s (1.34x)",
            "ELVIS, 4.6",
            Here::Value("net.guests1.tcp_send_1024", RATE),
        ),
        number(
            "throughput of 1 to 14 guests, ELVIS more than baseline",
            "by 6% to 200%",
            "ELVIS, 4.3, figure 4",
            Here::Value("net.guests4.tcp_send_1024", RATE),
        ),
    ],
};

const MIXED: Mirror = Mirror {
    name: "mixed",
    title: "Guests that stream beside guests that wait for answers",
    of: "ELVIS, figure 7",
    sees: "One guest waits for datagrams to come back, beside 0 to 3 that send a TCP stream, all served by one core: \
           whether streams keep their rate, and the other its latency.",
    numbers: &[
        number(
            "7 guests, 1 to 6 of them stream: a stream loses, ELVIS and baseline",
            "0-32% and 16-52%",
            "ELVIS, 4.6, figure 7",
            Here::Value("mixed.streams1.stream", RATE),
        ),
        number(
            "the same: a datagram there and back takes longer, ELVIS and baseline",
            "by 28-45 us and 29-129 us",
            "ELVIS, 4.6, figure 7",
            Here::Value("mixed.streams1.udp_rr", P50),
        ),
    ],
};

const ABLATION: Mirror = Mirror {
    name: "ablation",
    title: "What each part of it brings",
    of: "ELVIS, figure 8",
    sees: "The mixed load, 1 and 2 streams: with the kernel's own placing of threads, with each thread on its CPU, with \
           one thread for all queues that waits for doorbells, and with one that looks for itself.",
    numbers: &[
        number(
            "TCP stream: fine-grained scheduling alone, of baseline",
            "1.4x-2.7x",
            "ELVIS, 4.7, figure 8",
            Here::Between("mixed.streams2.stream", ["sidecore-notify", "vhost-net-unpinned"], RATE),
        ),
        number(
            "the same with polling and exitless replies, more than 1 guest",
            "3x",
            "ELVIS, 4.7, figure 8",
            Here::Between("mixed.streams2.stream", ["sidecore", "vhost-net-unpinned"], RATE),
        ),
        number(
            "the same, 1 guest, of baseline with affinity",
            "1.33x",
            "ELVIS, 4.7, figure 8",
            Here::Between("mixed.streams1.stream", ["sidecore", "vhost-net"], RATE),
        ),
    ],
};

const MERGED: Mirror = Mirror {
    name: "merged",
    title: "Many I/O instructions, or one, for a request",
    of: "kvm-guest-io, 3.1 and table 4",
    sees: "An emulated IDE disk is told a request by one I/O port after the other, each an exit; a virtqueue by one \
           doorbell; a sidecore needs none.",
    numbers: &[
        number(
            "I/O instructions of an IDE request that one call takes the place of",
            "11",
            "kvm-guest-io, 3.1.1, figure 5",
            Here::Of("blk.randread.qd1", "ide", TO_USER),
        ),
        number(
            "exits of one such site, before and after",
            "111,050 to 17,226",
            "kvm-guest-io, table 4",
            Here::Value("blk.randread.qd1", EXITS),
        ),
        number(
            "exits of another, before and after",
            "15,864 to 2,343",
            "kvm-guest-io, table 4",
            Here::Nothing,
        ),
    ],
};

const SERVERS: Mirror = Mirror {
    name: "servers",
    title: "Servers under load",
    of: "ELVIS, figure 4; ES2, figures 8 and 9",
    sees: "Memcached and an HTTP server in the guest, asked by many connections at once.",
    numbers: &[
        number(
            "Memcached: answers, ES2 of baseline",
            "1.8x (posted interrupts alone 1.18x)",
            "ES2, VI.E, figure 8a",
            Here::Value("servers.memcached", RATE),
        ),
        number(
            "HTTP: answers, ES2 of baseline",
            "nearly 2x (posted interrupts alone 1.19x)",
            "ES2, VI.E, figure 8b",
            Here::Value("servers.http", RATE),
        ),
        number(
            "HTTP: connections are quick up to, baseline and ES2",
            "1,800 and 2,600 requests a second",
            "ES2, VI.E, figure 9",
            Here::Nothing,
        ),
        number(
            "Memcached, one guest: exits, baseline to ELVIS",
            "146k to under 800 a second",
            "ELVIS, 4.3",
            Here::Value("servers.memcached", EXITS),
        ),
        number(
            "HTTP, one guest: exits, baseline to ELVIS",
            "109k to under 800 a second",
            "ELVIS, 4.3",
            Here::Value("servers.http", EXITS),
        ),
        number(
            "1 to 14 guests: ELVIS more than baseline",
            "by 6% to 200%",
            "ELVIS, 4.3, figure 4",
            Here::Nothing,
        ),
    ],
};

const REDIRECT: Mirror = Mirror {
    name: "redirect",
    title: "Delivery to the vCPU that is running",
    of: "ES2, figure 7",
    sees: "What a datagram there and back takes, and what it costs in exits, of a guest whose busy vCPUs share one CPU. \
           ES2 sends the interrupt elsewhere, here the frame goes to another queue. Interrupts are posted there; here \
           the call of a vCPU that runs is an exit of its own, and of one that waits for the CPU it is none.",
    numbers: &[
        number(
            "ping each second: time there and back at most, baseline",
            "18 ms",
            "ES2, VI.D, figure 7",
            Here::Nothing,
        ),
        number(
            "the same with redirection",
            "under 0.5 ms",
            "ES2, VI.D, figure 7",
            Here::Between("redirect.udp_apart", ["sidecore-redirect", "sidecore-stay"], P99),
        ),
    ],
};

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_place_and_the_report_know_the_same_experiments() {
        let names: Vec<&str> = MIRRORS.iter().map(|mirror| mirror.name).collect();
        let command = crate::Arguments::command();
        let measure = command.find_subcommand("measure").expect("lab measure");
        let values = measure.get_positionals().flat_map(|argument| argument.get_possible_values());
        let of_place: Vec<String> = values.map(|value| value.get_name().to_string()).collect();
        assert_eq!(of_place, names);
    }

    #[test]
    fn each_number_says_where_it_stands() {
        for number in MIRRORS.iter().flat_map(|mirror| mirror.numbers) {
            let paper = number.source.split(',').next().unwrap_or_default();
            assert!(["ELVIS", "ES2", "vRIO", "kvm-guest-io"].contains(&paper), "{number:?}");
            assert!(number.said.contains(|letter: char| letter.is_ascii_digit()), "{number:?}");
        }
    }
}
