//! Hosts made of files.

use super::*;

/// A host's files in a temporary folder.
pub(crate) struct Tree(tempfile::TempDir);

impl Tree {
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Tree(folder)
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }
}

fn good() -> Probes {
    Probes {
        io_uring: Ok(()),
        kvm: Ok(()),
        nofile: (Some(1024), Some(1 << 20)),
        memlock: None,
        allowed_cpus: (0..64).collect(),
        ring_restrictions: Ok(()),
        landlock: Some(5),
    }
}

const GOOD_HOST: [(&str, &str); 12] = [
    ("proc/sys/kernel/seccomp/actions_avail", "kill_process kill_thread trap errno\n"),
    ("sys/module/kvm_intel/parameters/enable_apicv", "Y\n"),
    ("sys/devices/system/cpu/online", "0-3\n"),
    ("sys/devices/system/cpu/isolated", "2-3\n"),
    ("sys/devices/system/node/node0/cpulist", "0-3\n"),
    ("sys/kernel/btf/vmlinux", ""),
    ("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n"),
    ("dev/net/tun", ""),
    ("proc/net/protocols", "protocol  size sockets\nXDP 960 0\nPACKET 1 2\n"),
    ("proc/sys/vm/overcommit_memory", "0\n"),
    ("proc/sys/kernel/sched_autogroup_enabled", "0\n"),
    ("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   2097152 kB\n"),
];

fn of<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    checks.iter().find(|check| check.name == name).unwrap()
}

#[test]
fn a_good_host_has_nothing_to_do() {
    let tree = Tree::of(&GOOD_HOST);
    for check in examine(tree.root(), &good()) {
        assert_eq!((check.state, check.todo.as_str()), (State::Ok, ""), "{check:?}");
    }
}

#[test]
fn an_empty_host_is_told_what_to_do_about_everything_that_is_wrong() {
    let tree = Tree::of(&[]);
    let probes = Probes {
        io_uring: Err("Operation not permitted".into()),
        kvm: Err("No such file".into()),
        nofile: (Some(1024), Some(4096)),
        memlock: Some(64 << 10),
        allowed_cpus: vec![],
        ring_restrictions: Err("Invalid argument".into()),
        landlock: None,
    };
    let checks = examine(tree.root(), &probes);
    for check in &checks {
        assert_eq!(check.todo.is_empty(), check.state == State::Ok, "{check:?}");
        assert!(!check.found.is_empty() && !check.means.is_empty(), "{check:?}");
    }
    assert_eq!(of(&checks, "kvm").state, State::Missing);
    assert_eq!(of(&checks, "io_uring").found, "Operation not permitted");
    assert_eq!(
        of(&checks, "io_uring").todo,
        "install a kernel of 5.15 or newer with CONFIG_IO_URING"
    );
    assert_eq!(of(&checks, "nofile").state, State::Warn);
}

#[test]
fn kvm_without_a_processor_module_is_not_taken_for_kvm() {
    let tree = Tree::of(&[("sys/module/kvm/version", ""), ("sys/module/kvm_pvm/version", "")]);
    let checks = examine(tree.root(), &good());
    assert_eq!(of(&checks, "kvm").found, "kvm without kvm_intel or kvm_amd");
    assert!(!has_kvm(tree.root()));
    let device = ("dev/kvm", "");
    for (files, is_there) in [
        (&[device, ("sys/module/kvm/version", "")][..], false),
        (&[("sys/module/kvm_intel/version", "")][..], false),
        (&[device, ("sys/module/kvm_intel/version", "")][..], true),
        (&[device, ("sys/module/kvm_amd/version", "")][..], true),
    ] {
        assert_eq!(has_kvm(Tree::of(files).root()), is_there, "{files:?}");
    }
    assert_eq!(of(&checks, "posted interrupts").state, State::Missing);
}

#[test]
fn what_is_switched_off_is_named_with_its_switch() {
    let tree = Tree::of(&[
        ("sys/module/kvm_amd/parameters/avic", "N\n"),
        ("proc/sys/kernel/io_uring_disabled", "2\n"),
        ("proc/sys/kernel/sched_autogroup_enabled", "1\n"),
        ("proc/sys/vm/overcommit_memory", "2\n"),
        ("sys/kernel/btf/vmlinux", ""),
        ("proc/self/status", "CapEff:\t0000000000000000\n"),
    ]);
    let probes = Probes { io_uring: Err("no".into()), ..good() };
    let checks = examine(tree.root(), &probes);
    assert!(of(&checks, "posted interrupts").todo.contains("kvm_amd avic=1"));
    assert!(of(&checks, "io_uring").todo.contains("kernel.io_uring_disabled=0"));
    assert_eq!(of(&checks, "autogroup").state, State::Warn);
    assert!(of(&checks, "autogroup").todo.contains("kernel.sched_autogroup_enabled=0"));
    assert!(of(&checks, "overcommit").todo.contains("vm.overcommit_memory=0"));
    assert!(of(&checks, "ebpf").todo.contains("CAP_BPF"));
}

/// CAP_NET_ADMIN is bit 12, CAP_NET_RAW 13, CAP_BPF 39.
#[test]
fn what_nics_lack_is_named_with_what_still_works() {
    let host = |capabilities: &str, protocols: &str| {
        let status = format!("CapEff:\t{capabilities}\n");
        let tree = Tree::of(&[
            ("dev/net/tun", ""),
            ("proc/self/status", &status),
            ("proc/net/protocols", protocols),
        ]);
        examine(tree.root(), &good())
    };
    let checks = host("0000000000002000", "XDP 960 0");
    assert!(of(&checks, "taps").todo.contains("CAP_NET_ADMIN"));
    assert!(of(&checks, "interfaces").todo.contains("CAP_NET_RAW CAP_NET_ADMIN"));
    let checks = host("0000000000003000", "TCP 1 2\nNOXDP 3");
    assert_eq!(of(&checks, "taps").state, State::Ok);
    assert!(of(&checks, "interfaces").todo.contains("CONFIG_XDP_SOCKETS"));
    let checks = host("0000000000003000", "XDP 960 0");
    assert!(of(&checks, "interfaces").todo.contains("CAP_BPF"));
    assert_eq!(of(&host("0000008000003000", "XDP 960 0"), "interfaces").state, State::Ok);
    let checks = examine(Tree::of(&[]).root(), &good());
    assert!(of(&checks, "taps").todo.contains("modprobe tun"));
}

#[test]
fn odd_files_make_no_panic() {
    for odd in ["", "-1", "99999999999999999999999", "Y Y", "\0\u{fffd}", "CapEff:", "CapEff: zz"] {
        let files: Vec<(&str, &str)> = GOOD_HOST.iter().map(|(path, _)| (*path, odd)).collect();
        assert_eq!(examine(Tree::of(&files).root(), &good()).len(), 18);
    }
}

#[test]
fn this_host_can_be_examined() {
    assert_eq!(examine_this_host().len(), 18);
}
