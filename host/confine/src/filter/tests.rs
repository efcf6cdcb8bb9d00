//! The filters, run as the kernel runs them: every number, and the arguments that matter.

use std::io::Write;
use std::time::Instant;

use super::*;
use crate::Landlock;
use crate::calls::FATAL;

const KINDS: [Kind; 7] = [
    Kind::Sidecore,
    Kind::Control,
    Kind::Api,
    Kind::Closer,
    Kind::Parting,
    Kind::Greeter,
    Kind::Opener,
];
/// Numbers that are looked at; the newest call of Linux 6.18 is below.
const NUMBERS: std::ops::Range<i64> = 0..600;
const PID: u32 = 4711;

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const EPERM: u32 = 0x0005_0001;

/// What a process of these capabilities was told.
fn confined(capabilities: CapabilitySet) -> Confined {
    let (mode, landlock) = (Mode::On, Landlock::Off);
    Confined { mode, capabilities, speaks_ip: false, landlock, files: None, pid: PID }
}

fn of(kind: Kind, capabilities: CapabilitySet) -> BpfProgram {
    let rules = rules(kind, &confined(capabilities)).unwrap();
    program(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow).unwrap()
}

/// What the kernel answers a call with: the classic instructions that filters have, on `seccomp_data`.
fn answer(program: &BpfProgram, number: i64, arguments: [u64; 6]) -> u32 {
    let architecture: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
    let mut data = Vec::new();
    data.extend((number as u32).to_ne_bytes());
    data.extend(architecture.to_ne_bytes());
    data.extend(0u64.to_ne_bytes());
    arguments.iter().for_each(|argument| data.extend(argument.to_ne_bytes()));
    let (mut at, mut held) = (0, 0u32);
    loop {
        let it = &program[at];
        at += 1;
        let jump = |holds: bool| usize::from(if holds { it.jt } else { it.jf });
        match it.code {
            0x20 => held = u32::from_ne_bytes(data[it.k as usize..][..4].try_into().unwrap()),
            0x54 => held &= it.k,
            0x05 => at += it.k as usize,
            0x15 => at += jump(held == it.k),
            0x25 => at += jump(held > it.k),
            0x35 => at += jump(held >= it.k),
            0x06 => return it.k,
            code => panic!("an instruction {code:#x}"),
        }
    }
}

fn says(kind: Kind, number: i64, arguments: [u64; 6]) -> u32 {
    answer(&of(kind, CapabilitySet::all()), number, arguments)
}

#[test]
fn no_list_has_a_call_that_kills_and_none_has_one_that_no_thread_makes() {
    for kind in KINDS {
        let program = of(kind, CapabilitySet::all());
        for call in FATAL {
            assert_eq!(answer(&program, *call, [0; 6]), EPERM, "{kind:?} may call {call}");
        }
        for call in [libc::SYS_msgget, libc::SYS_shmget, libc::SYS_io_setup, libc::SYS_mknodat] {
            assert_eq!(answer(&program, call, [0; 6]), EPERM, "{kind:?} may call {call}");
        }
    }
}

#[test]
fn the_process_s_filter_kills_these_and_lets_all_others_go_on() {
    let rules: Rules = FATAL.iter().map(|call| (*call, Vec::new())).collect();
    let program = program(rules, SeccompAction::Allow, SeccompAction::KillProcess).unwrap();
    for number in NUMBERS {
        let expected = if FATAL.contains(&number) { KILL } else { ALLOW };
        assert_eq!(answer(&program, number, [0; 6]), expected, "{number}");
    }
    let ours = [libc::SYS_execve, libc::SYS_ptrace, libc::SYS_mount, libc::SYS_process_vm_writev];
    assert!(ours.iter().all(|call| FATAL.contains(call)));
}

#[test]
fn a_sidecore_opens_nothing_and_makes_no_thread() {
    for call in [libc::SYS_openat, libc::SYS_socket, libc::SYS_connect, libc::SYS_clone3] {
        assert_eq!(says(Kind::Sidecore, call, [0; 6]), EPERM, "{call}");
    }
    assert_eq!(says(Kind::Sidecore, libc::SYS_clone, [0; 6]), EPERM);
    assert_eq!(says(Kind::Sidecore, libc::SYS_bpf, [0; 6]), EPERM);
    for call in [libc::SYS_write, libc::SYS_io_uring_enter, libc::SYS_epoll_pwait] {
        assert_eq!(says(Kind::Sidecore, call, [0; 6]), ALLOW, "{call}");
    }
}

#[test]
fn arguments_decide_where_a_call_can_do_good_and_harm() {
    let control = |call, at: usize, value: u64| {
        let mut arguments = [0; 6];
        arguments[at] = value;
        says(Kind::Control, call, arguments)
    };
    let thread = 0x003d_0f00;
    assert_eq!(control(libc::SYS_clone, 0, thread), ALLOW);
    assert_eq!(control(libc::SYS_clone, 0, libc::SIGCHLD as u64), EPERM, "a process");
    assert_eq!(control(libc::SYS_clone, 0, thread | libc::CLONE_NEWUSER as u64), EPERM);
    assert_eq!(control(libc::SYS_socket, 0, libc::AF_UNIX as u64), ALLOW);
    assert_eq!(control(libc::SYS_socket, 0, libc::AF_XDP as u64), ALLOW);
    assert_eq!(control(libc::SYS_socket, 0, libc::AF_INET as u64), EPERM);
    assert_eq!(control(libc::SYS_ioctl, 1, libc::TUNSETIFF), ALLOW);
    assert_eq!(control(libc::SYS_ioctl, 1, libc::TIOCSTI), EPERM);
    assert_eq!(control(libc::SYS_prctl, 0, libc::PR_SET_NAME as u64), ALLOW);
    assert_eq!(control(libc::SYS_prctl, 0, libc::PR_SET_DUMPABLE as u64), EPERM);
    for kind in KINDS {
        for call in [libc::SYS_mmap, libc::SYS_mprotect] {
            let code = (libc::PROT_READ | libc::PROT_EXEC) as u64;
            let data = (libc::PROT_READ | libc::PROT_WRITE) as u64;
            assert_eq!(says(kind, call, [0, 0, code, 0, 0, 0]), EPERM, "{kind:?} {call}");
            assert_eq!(says(kind, call, [0, 0, data, 0, 0, 0]), ALLOW, "{kind:?} {call}");
        }
        assert_eq!(says(kind, libc::SYS_tgkill, [PID.into(), 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(says(kind, libc::SYS_tgkill, [1, 0, 0, 0, 0, 0]), EPERM, "{kind:?}");
    }
}

#[test]
fn a_process_without_rights_to_networks_has_no_calls_for_them() {
    let program = of(Kind::Control, CapabilitySet::DAC_OVERRIDE);
    let socket = |family: i32| answer(&program, libc::SYS_socket, [family as u64, 0, 0, 0, 0, 0]);
    assert_eq!(socket(libc::AF_UNIX), ALLOW);
    assert_eq!(socket(libc::AF_PACKET), EPERM);
    assert_eq!(socket(libc::AF_XDP), EPERM);
    assert_eq!(answer(&program, libc::SYS_bpf, [0; 6]), EPERM);
}

#[test]
fn a_process_with_links_may_speak_ip_and_nothing_more() {
    let with_links = Confined { speaks_ip: true, ..confined(CapabilitySet::DAC_OVERRIDE) };
    for (kind, said) in [(Kind::Control, ALLOW), (Kind::Sidecore, EPERM), (Kind::Greeter, EPERM)] {
        let rules = rules(kind, &with_links).unwrap();
        let refuse = SeccompAction::Errno(libc::EPERM as u32);
        let program = program(rules, refuse, SeccompAction::Allow).unwrap();
        let socket =
            |family: i32| answer(&program, libc::SYS_socket, [family as u64, 0, 0, 0, 0, 0]);
        assert_eq!(socket(libc::AF_INET), said);
        assert_eq!(socket(libc::AF_INET6), said);
        assert_eq!(socket(libc::AF_PACKET), EPERM);
    }
}

#[test]
fn threads_that_control_makes_later_find_their_list_in_its_own() {
    let control = of(Kind::Control, CapabilitySet::all());
    for kind in [Kind::Closer, Kind::Parting, Kind::Greeter, Kind::Api] {
        let theirs = of(kind, CapabilitySet::all());
        for number in NUMBERS.filter(|number| answer(&theirs, *number, [0; 6]) == ALLOW) {
            assert_eq!(answer(&control, number, [0; 6]), ALLOW, "{kind:?} {number}");
        }
    }
}

/// For the record: `cargo test -p confine --release -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn what_a_filter_costs() {
    let measured = |what: &str| {
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let mut least = u128::MAX;
        for _ in 0..20 {
            let begun = Instant::now();
            for _ in 0..100_000 {
                rustix::io::write(&fd, &1u64.to_ne_bytes()).unwrap();
            }
            least = least.min(begun.elapsed().as_nanos() / 100_000);
        }
        let line = format!("{what}: a write to an eventfd takes {least} ns\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
    };
    let run = |what: &'static str, confine: fn()| {
        std::thread::spawn(move || {
            confine();
            measured(what);
        })
        .join()
        .unwrap();
    };
    run("without filters", || ());
    run("with the process's", || process().unwrap());
    run("with a sidecore's too", || {
        process().unwrap();
        thread(Kind::Sidecore, &confined(CapabilitySet::all())).unwrap();
    });
}

/// A signal is told of by whichever thread it reaches, over a pair of sockets, and none may be lost: SIGTERM is one.
#[test]
fn every_thread_may_tell_of_a_signal() {
    for kind in KINDS {
        let program = of(kind, CapabilitySet::empty());
        let answer = answer(&program, libc::SYS_sendto, [7, 0, 1, 0, 0, 0]);
        assert_eq!(answer, ALLOW, "{kind:?}");
    }
}
