//! The kernel's texts, and processes that live, end and have ended.

use std::process::{Command, Stdio};

use super::{Holder, Kind, Lock, holder_in, is_killed, lives, parse, runs};

#[test]
fn lines_of_the_table_of_locks() {
    let lock = |kind, exclusive, pid, is_ours| Lock {
        kind,
        exclusive,
        pid,
        file: "fe:00:77".into(),
        is_ours,
        byte: None,
    };
    let of_byte = |lock, byte| Lock { byte: Some(byte), ..lock };
    let (flock, bytes) = (Kind::Flock, Kind::Bytes);
    let cases = [
        ("1: FLOCK  ADVISORY  WRITE 215 fe:00:77 0 EOF", lock(flock, true, Some(215), false)),
        ("2: FLOCK  ADVISORY  READ 215 fe:00:77 0 EOF", lock(flock, false, Some(215), false)),
        ("3: OFDLCK ADVISORY  WRITE -1 fe:00:77 0 EOF", lock(bytes, true, None, false)),
        ("4: OFDLCK ADVISORY  READ -1 fe:00:77 100 101", lock(bytes, false, None, false)),
        ("5: POSIX  ADVISORY  WRITE 9 fe:00:77 0 0", of_byte(lock(bytes, true, Some(9), false), 0)),
        (
            "6: OFDLCK ADVISORY  WRITE -1 fe:00:77 0 9223372036854775806",
            lock(bytes, true, None, true),
        ),
        ("7: FLOCK  ADVISORY  WRITE 0 fe:00:77 0 EOF", lock(flock, true, None, false)),
        (
            "8: OFDLCK ADVISORY  WRITE -1 fe:00:77 9223372036854775807 EOF",
            lock(Kind::Owner, true, None, false),
        ),
        (
            "9: OFDLCK ADVISORY  READ -1 fe:00:77 4611686018427387904 4611686018427387904",
            of_byte(lock(bytes, false, None, false), 1 << 62),
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(parse(line), Some(expected), "{line}");
    }
    for line in ["", "1:", "1: -> FLOCK ADVISORY WRITE 7 fe:00:77 0 EOF", "1: LEASE ACTIVE READ 7"]
    {
        assert_eq!(parse(line), None, "{line}");
    }
}

#[test]
fn threads_that_run_and_threads_that_end() {
    let stat = |state: &str, flags: u32| format!("7 (a) b) {state} 1 7 7 0 -1 {flags} 0 0 0 0");
    assert!(runs(&stat("S", 0x40_0040)) && runs(&stat("R", 0)) && runs(&stat("D", 0)));
    // Waiting for its io_uring after a kill, ending, ended, gone.
    assert!(!runs(&stat("D", 0x40_0548)) && !runs(&stat("D", 0x40_0044)));
    assert!(!runs(&stat("Z", 0)) && !runs(&stat("X", 0)));
    assert!(!runs("") && !runs("7 (a"));
    assert!(is_killed("Name:\ta\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
    assert!(is_killed("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000101\n"));
    assert!(is_killed("SigPnd:\t0000000000000000\nCoreDumping:\t1\n"));
    assert!(!is_killed("SigPnd:\t0000000000000200\nShdPnd:\t0000000000000000\n"));
}

#[test]
fn a_process_lives_until_it_was_killed() {
    assert!(lives(std::process::id()));
    let mut child =
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat");
    assert!(lives(child.id()));
    let expected =
        format!("process {} (cat) holds it; stop that process or give another image", child.id());
    assert_eq!(Holder::Living(child.id()).to_string(), expected);
    child.kill().expect("killed");
    // The signal is on its way, it is ending, or it is a zombie; not reaped yet.
    let looks = (0..100_000).take_while(|_| lives(child.id())).count();
    assert!(looks < 100_000, "a zombie lives");
    child.wait().expect("ended");
    assert!(!lives(child.id()));
}

/// Where no process may be looked into, only who has locked parts of an image may be QEMU.
#[test]
fn who_cannot_be_seen_with_a_flock_is_no_program_that_locks_parts() {
    let of = |line: &str, kind| holder_in(line, kind, |lock| lock.kind == kind, |_| None);
    let of_a_container = of("7: FLOCK  ADVISORY  WRITE 0 fe:00:77 0 EOF", Kind::Flock);
    assert_eq!(of_a_container, Holder::Ended(None));
    let of_bytes = of("4: OFDLCK ADVISORY  WRITE -1 fe:00:77 100 101", Kind::Bytes);
    assert_eq!(of_bytes, Holder::Hidden);
    let of_a_sidecore =
        of("8: OFDLCK ADVISORY  WRITE -1 fe:00:77 9223372036854775807 EOF", Kind::Owner);
    assert_eq!(of_a_sidecore, Holder::Ended(None));
}

#[test]
fn each_holder_is_told_in_words() {
    let own = Holder::Living(std::process::id()).to_string();
    assert!(own.contains("this daemon serves it already"), "{own}");
    let ended = Holder::Ended(Some(4242)).to_string();
    assert!(ended.contains("process 4242, which has ended"), "{ended}");
    let heir = Holder::Heir { maker: 4242, pid: std::process::id() }.to_string();
    assert!(heir.starts_with(&format!("process {} (", std::process::id())), "{heir}");
    assert!(heir.contains("holds it if that has taken over from process 4242"), "{heir}");
    let unseen = Holder::Ended(None).to_string();
    assert!(unseen.contains("cannot be seen from here"), "{unseen}");
    // Nobody is sent to look for requests that hang, or told to wait.
    let hidden = Holder::Hidden.to_string();
    assert!(hidden.starts_with("a process that may not be looked into from here"), "{hidden}");
    assert!(!hidden.contains("requests") && !hidden.contains("tried again"), "{hidden}");
}
