//! Two daemons, `a` and `b`, that have one image, and whose switches are joined by a bridge.

use std::cell::{Ref, RefCell};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testing::daemon::{Daemon, await_that, pause};
use testing::namespace::Namespace;

/// The address of the guest's NIC.
pub(super) const MAC: &str = "52:54:00:51:00:77";
/// Bytes of the disk.
const DISK: u64 = 128 << 20;
/// QEMU's NIC is told of its connection, and then of what that says.
const TOLD: Duration = Duration::from_millis(300);

/// The daemons, and the network that they share.
pub(super) struct Site {
    // They end before what they run in.
    daemons: [RefCell<Daemon>; 2],
    host: Namespace,
    image: PathBuf,
}

/// The other one of two sides.
pub(super) fn other(side: usize) -> usize {
    1 - side
}

/// The name of a side.
pub(super) fn letter(side: usize) -> &'static str {
    ["a", "b"][side]
}

impl Site {
    /// Both serve the disk `root`, a new one, and the NIC `net`.
    pub(super) fn new(folder: &Path) -> Result<Site> {
        let host = Namespace::new("host")?;
        host.bridge("lan", &[])?;
        host.add_address("10.9.0.100/24", "lan")?;
        let image = folder.join("root.img");
        std::fs::File::create(&image)?.set_len(DISK)?;
        let start = |side: usize| -> Result<RefCell<Daemon>> {
            let file = format!(
                "[[disk]]\nid = \"root\"\npath = \"{}\"\nqueues = 2\nmigratable = true\n\
                 [[switch]]\nid = \"lan\"\n[[switch.uplink]]\ntap = \"{}\"\n\
                 [[nic]]\nid = \"net\"\nswitch = \"lan\"\nmac = \"{MAC}\"\n",
                image.display(),
                tap(side)
            );
            let name = format!("daemon-{}", letter(side));
            let daemon = Daemon::with(&name, &file).cpus("auto").through(&host.through());
            Ok(RefCell::new(daemon.start()?))
        };
        let site = Site { daemons: [start(0)?, start(1)?], host, image };
        site.bridge(0)?;
        site.bridge(1)?;
        Ok(site)
    }

    /// Where both daemons are, with the bridge `lan`.
    pub(super) fn host(&self) -> &Namespace {
        &self.host
    }

    /// The file of the disk.
    pub(super) fn image(&self) -> &Path {
        &self.image
    }

    pub(super) fn daemon(&self, side: usize) -> Ref<'_, Daemon> {
        self.daemons[side].borrow()
    }

    /// Its tap is a port of the bridge.
    fn bridge(&self, side: usize) -> Result<()> {
        self.host.ip(&format!("link set {} up master lan", tap(side)))
    }

    /// Ends a daemon as a crash does.
    pub(super) fn kill(&self, side: usize) -> Result<()> {
        self.daemons[side].borrow_mut().kill()
    }

    /// Starts one that was killed.
    pub(super) fn start_again(&self, side: usize) -> Result<()> {
        self.daemons[side].borrow_mut().start_again()?;
        self.bridge(side)
    }

    /// Kills the guest's daemon and starts it again. QEMU connects once more after a second, and the guest's requests
    /// are done; then it may go on. While its NIC has no back-end QEMU says that the cable is out, and takes that along.
    pub(super) fn restart(&self, side: usize, guest_runs: bool) -> Result<()> {
        self.kill(side)?;
        self.start_again(side)?;
        if guest_runs {
            self.await_locked(side, true)?;
        }
        await_that("a NIC that QEMU has again", || {
            Ok(self.daemon(side).ask("nic show net")?["state"] != "waiting")
        })?;
        pause(TOLD);
        Ok(())
    }

    /// Whether that daemon has the image.
    pub(super) fn has_image(&self, side: usize) -> Result<bool> {
        let locked = self.daemon(side).shown("root", "locked")?;
        locked.as_bool().with_context(|| format!("locked is {locked}"))
    }

    /// Waits until that daemon has the image, or has let go of it.
    pub(super) fn await_locked(&self, side: usize, wanted: bool) -> Result<()> {
        let what = format!(
            "daemon {} to {} the image",
            letter(side),
            ["release", "lock"][usize::from(wanted)]
        );
        await_that(&what, || Ok(self.has_image(side)? == wanted))
    }

    /// The daemon where the guest is has the image, the other one has not.
    pub(super) fn one_writer(&self, side: usize) -> Result<&'static str> {
        self.await_locked(side, true)?;
        // One that was killed has nothing.
        let other_has = self.daemons[other(side)].borrow_mut().is_alive().is_ok()
            && self.has_image(other(side))?;
        ensure!(!other_has, "both daemons have the image");
        Ok("")
    }

    /// Neither daemon has the image.
    pub(super) fn nobody_has(&self) -> Result<&'static str> {
        for side in [0, 1] {
            ensure!(
                !self.has_image(side)?,
                "daemon {} has the image while no guest runs",
                letter(side)
            );
        }
        Ok("")
    }

    /// What there is to know when something is wrong.
    pub(super) fn told(&self) -> String {
        let side = |side: usize| {
            let daemon = self.daemon(side);
            let shown =
                ["show root", "nic show net"].map(|line| daemon.ask(line).unwrap_or(Value::Null));
            format!("daemon {}: {shown:?}\n{}", letter(side), daemon.last_words())
        };
        format!("{}\n{}", side(0), side(1))
    }

    /// Ends both in order.
    pub(super) fn stop(self) -> Result<()> {
        self.daemons.into_iter().try_for_each(|daemon| daemon.into_inner().stop())
    }
}

fn tap(side: usize) -> String {
    format!("lan-{}", letter(side))
}
