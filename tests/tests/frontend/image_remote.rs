//! Which image a guest is on whose disk another machine has: when the IOhost hands out another one under the
//! same name, the guest waits, as with a disk of its own machine.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use testing::daemon::{Daemon, await_that};
use testing::frontend::{Frontend, FrontendSpec};
use testing::slots::{Kind, STATUS_OK};
use tests::link_site::{IMAGE_BYTES, Site, free_port};
use tests::single::Single;

const DISK: &str = "root";
/// A block that guests write.
const BLOCK: u64 = 3;

/// An IOhost with two images, its client, and a guest on the first one.
struct Bed {
    site: Site,
    iohost: Daemon,
    client: Daemon,
    guest: Frontend,
    port: u16,
}

impl Bed {
    fn start(name: &str) -> Result<Bed> {
        let (site, port) = (Site::new(Path::new(env!("CARGO_TARGET_TMPDIR")), name)?, free_port()?);
        let other = site.folder().join("other.raw");
        std::fs::write(other, vec![0xbb; IMAGE_BYTES as usize])?;
        let iohost = Daemon::start(&format!("{name}-iohost"), &site.iohost(port))?;
        let client =
            Daemon::with(&format!("{name}-client"), &site.client(&[port])).cpus("1").start()?;
        let guest = Bed::boot(&client)?;
        Ok(Bed { site, iohost, client, guest, port })
    }

    /// A VMM that starts fresh, and its guest's first requests.
    fn boot(client: &Daemon) -> Result<Frontend> {
        let spec = FrontendSpec { queues: 2, inflight: true, ..FrontendSpec::linux() };
        let mut guest = client.frontend(DISK, &spec)?;
        let single = Single::new(&mut guest)?;
        single.exercise(guest.queue(0), BLOCK)?;
        Ok(guest)
    }

    fn other(&self) -> PathBuf {
        self.site.folder().join("other.raw")
    }

    /// The IOhost is killed, and comes back with that image.
    fn restart_with(&mut self, image: &Path) -> Result<()> {
        self.iohost.kill()?;
        self.declare(image)?;
        self.iohost.start_again()
    }

    fn declare(&self, image: &Path) -> Result<()> {
        let (ours, theirs) = (self.site.image(), image.display().to_string());
        let text = self.site.iohost(self.port);
        self.iohost.configure(&text.replace(&ours.display().to_string(), &theirs))
    }

    /// The guest waits, with words, and the other image is as it was.
    fn waits(&mut self) -> Result<()> {
        let mut shown = serde_json::Value::Null;
        await_that("the guest to wait for its image", || {
            shown = self.client.ask(&format!("show {DISK}"))?;
            let problem = shown["problem"].as_str().unwrap_or_default();
            Ok(problem.contains("its guest was on another image of db of link rack"))
        })?;
        ensure!(shown["problem"].as_str().is_some_and(|text| text.contains("disk accept root")));
        ensure!(shown["state"] == "waiting", "{shown}");
        ensure!(shown["refusals"].as_u64() >= Some(1), "{shown}");
        let log = self.client.last_words();
        ensure!(log.contains("its guest was on another image"), "{log}");
        self.is_untouched()
    }

    fn is_untouched(&self) -> Result<()> {
        let bytes = std::fs::read(self.other())?;
        ensure!(bytes.iter().all(|byte| *byte == 0xbb), "the other image was written");
        Ok(())
    }

    /// The guest goes on, and finds what it wrote.
    fn goes_on(&mut self) -> Result<()> {
        let single = Single::new(&mut self.guest)?;
        let ended = single.send(self.guest.queue(0), Kind::Read, BLOCK)?;
        ensure!(ended.status == STATUS_OK, "{ended:?}: {}", self.client.ask("show root")?);
        single.compare(BLOCK)?;
        single.exercise(self.guest.queue(0), BLOCK + 1)?;
        let problem = self.client.shown(DISK, "problem")?;
        ensure!(problem.is_null(), "{problem}");
        Ok(())
    }

    fn stop(mut self) -> Result<()> {
        self.guest.disconnect()?;
        self.client.stop()?;
        self.iohost.stop()
    }
}

#[test]
fn a_guest_waits_for_its_image_at_the_iohost_and_goes_on_with_it() -> Result<()> {
    let mut bed = Bed::start("image-remote")?;
    let (own, other) = (bed.site.image(), bed.other());
    // The same image is no other one, whatever its name.
    let link = bed.site.folder().join("linked.raw");
    std::fs::hard_link(&own, &link)?;
    bed.restart_with(&link)?;
    bed.goes_on()?;
    bed.restart_with(&other)?;
    bed.waits()?;
    // So it is after a death of the guest's own daemon, and after an upgrade.
    bed.client.kill()?;
    bed.client.start_again()?;
    bed.guest.reconnect(bed.client.connect(DISK)?)?;
    bed.waits()?;
    bed.restart_with(&own)?;
    bed.goes_on()?;
    bed.is_untouched()?;
    bed.stop()
}

#[test]
fn what_was_settled_and_handed_over_is_remembered() -> Result<()> {
    let mut bed = Bed::start("image-remote-settled")?;
    let (own, other) = (bed.site.image(), bed.other());
    // Given back in order: nothing is owed, and the guest's driver runs on.
    bed.client.stop()?;
    bed.restart_with(&other)?;
    bed.client.start_again()?;
    bed.guest.reconnect(bed.client.connect(DISK)?)?;
    bed.waits()?;
    bed.restart_with(&own)?;
    bed.goes_on()?;
    bed.client.upgrade()?;
    bed.goes_on()?;
    bed.restart_with(&other)?;
    bed.waits()?;
    bed.restart_with(&own)?;
    bed.goes_on()?;
    bed.stop()
}

#[test]
fn what_its_operator_accepts_and_what_a_fresh_guest_finds_is_served() -> Result<()> {
    let mut bed = Bed::start("image-remote-accept")?;
    let (own, other) = (bed.site.image(), bed.other());
    let refused = bed.client.refuses(&format!("disk accept {DISK}"))?;
    ensure!(refused.contains("nothing to accept"), "{refused}");
    bed.restart_with(&other)?;
    bed.waits()?;
    bed.client.ask(&format!("disk accept {DISK}"))?;
    let single = Single::new(&mut bed.guest)?;
    single.exercise(bed.guest.queue(0), BLOCK)?;
    // It is on that one from now on.
    bed.restart_with(&own)?;
    await_that("the guest to wait", || Ok(bed.client.shown(DISK, "state")? == "waiting"))?;
    // A VMM that starts fresh is on whatever is there.
    bed.guest.disconnect()?;
    bed.guest = Bed::boot(&bed.client)?;
    bed.restart_with(&own)?;
    bed.goes_on()?;
    bed.stop()
}
