//! The packaged unit under systemd, in an emulated machine with this one's root, of which it changes nothing.
//!
//! In the machine `tests/guest/service/init` comes first; `tests/guest/service/run` tries the unit as an operator does.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testing::bed::{Bed, Need};
use testing::clock::now_ns;
use testing::daemon::pause;
use testing::daemon::sidecore_binary;
use testing::image::Tree;
use testing::vm::{EMULATION, build_folder, has_kvm, model, record, short};

use crate::suite::host::{output_of, program};
use crate::suite::{Case, Group};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "service",
    "the packaged unit under systemd: start, upgrade, reload, clock set back, death, wrong file, a \
     link, another user, stop (root)",
    &[Case::run("", service).needs(&[Need::Root]).within(1000).usually(73)],
);

/// What `tests/guest/service/run` tries.
const CHECKS: [&str; 15] = [
    "starts",
    "doctor",
    "answers",
    "upgrade",
    "same-connection",
    "upgraded-again",
    "same-connection-again",
    "reload",
    "wall-clock",
    "killed",
    "wrong-file",
    "links",
    "unprivileged",
    "unprivileged-upgrade",
    "stop",
];
/// Its kernel is the lab's, of Debian's newest: the guests' has no 9p.
const KERNEL: &str = "lab";
const MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];
/// The longest that the machine may run.
const END: Duration = Duration::from_secs(900);
const LOOK: Duration = Duration::from_millis(50);

/// From the machine's start to its end; each thing that it tried is a check.
fn service(bed: &Bed) -> Result<()> {
    let out = bed.folder().join("out");
    std::fs::create_dir(&out)?;
    if bed.judges_times() {
        // Times are judged there as here.
        File::create(out.join("judge"))?;
    }
    std::fs::copy(sidecore_binary()?, out.join("sidecore"))?;
    let strip = &mut Command::new("strip");
    output_of(strip.arg("-o").arg(out.join("clock_client")).arg(program("clock_client")?))?;
    let disk = "[[disk]]\nid = \"vm1\"\nbackend = \"memory\"\nsize = \"8M\"\n";
    std::fs::write(out.join("sidecore.toml"), disk)?;
    bed.say("a machine with systemd");
    let ended = run(bed, &mut start(bed, &out)?, &out.join("results"));
    for name in ["sidecore", "clock_client"] {
        std::fs::remove_file(out.join(name))?;
    }
    let results = std::fs::read_to_string(out.join("results")).unwrap_or_default();
    let results: Vec<String> = results.lines().map(String::from).collect();
    record(&results, bed, "");
    if results.last().is_none_or(|line| line != "END") {
        let said = |name: &str| {
            short(&std::fs::read_to_string(bed.folder().join(name)).unwrap_or_default())
        };
        let how = ended.map_or_else(|error| format!("{error:#}"), |()| "QEMU has ended".to_owned());
        bail!(
            "the machine did not come to its end: {how}; its console: {}; QEMU: {}",
            said("service.console"),
            said("qemu")
        );
    }
    let is_tried = |name: &str| results.iter().any(|l| l.starts_with(&format!("RESULT {name} ")));
    let untried: Vec<&&str> = CHECKS.iter().filter(|name| !is_tried(name)).collect();
    ensure!(untried.is_empty(), "the machine has not tried {untried:?}");
    Ok(())
}

/// Starts the machine, with `out` as the folder that it shares.
fn start(bed: &Bed, out: &Path) -> Result<Child> {
    let kernel = build_folder().join(KERNEL);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = std::fs::canonicalize(root)?;
    let initramfs = bed.folder().join("initramfs.cpio");
    let mut tree = Tree::new(&bed.folder().join("tree"), &kernel.join("kernel"))?;
    tree.file(Path::new("/bin/busybox"), "bin/busybox")?;
    tree.file(&root.join("tests/guest/service/init"), "init")?;
    tree.modules("modules", &MODULES)?;
    tree.pack(&initramfs)?;
    let said = File::create(bed.folder().join("qemu"))?;
    let words = format!(
        "console=ttyS0 quiet mitigations=off no_timer_check cryptomgr.notests panic=-1 \
         systemd.show_status=false service.root={} service.out={}",
        root.display(),
        out.display()
    );
    let accelerator = if has_kvm() { "kvm" } else { EMULATION };
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-name", "service"])
        .args(["-accel", accelerator, "-cpu", &model(), "-smp", "2", "-m", "1500"])
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .arg("-kernel")
        .arg(kernel.join("vmlinuz"))
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", &words])
        .arg("-serial")
        .arg(format!("file:{}", bed.folder().join("service.console").display()))
        .args(["-virtfs", &share("/", "root", ",readonly=on,multidevs=remap")])
        .args(["-virtfs", &share(&out.display().to_string(), "out", "")])
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said)
        .spawn()
        .context("starting QEMU by setpriv (Debian: apt-get install qemu-system-x86)")
}

/// A folder of the host's, under that name in the machine.
fn share(folder: &str, name: &str, more: &str) -> String {
    format!("local,path={folder},mount_tag={name},security_model=none{more}")
}

/// Waits for the machine's end, and says what it has tried.
fn run(bed: &Bed, machine: &mut Child, results: &Path) -> Result<()> {
    let (start, mut count) = (now_ns(), 0);
    loop {
        let said = std::fs::read_to_string(results).unwrap_or_default();
        let tried = said.lines().count();
        if tried > count {
            count = tried;
            bed.say(said.lines().last().unwrap_or_default());
        }
        if let Some(status) = machine.try_wait()? {
            return if status.success() { Ok(()) } else { bail!("QEMU ended with {status}") };
        }
        if u128::from(now_ns() - start) > END.as_nanos() {
            machine.kill()?;
            machine.wait()?;
            bail!("it still ran after {} s", END.as_secs());
        }
        pause(LOOK);
    }
}
