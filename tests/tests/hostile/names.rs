//! Names that another user can change: images, sockets, state and keys in folders of that user, with what it
//! would take to lead the daemon elsewhere. It goes on, and says why it does not follow.
//!
//! They are done as root, since the daemon is; otherwise they are skipped.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use testing::daemon::{Daemon, await_that};
use testing::frontend::FrontendSpec;
use testing::lacking::left_out;

const MALLORY: u32 = 54_321;
const SECRET: &[u8; 4096] = &[0x5e; 4096];
const ONE: &str = "[[disk]]\nid = \"ram\"\nbackend = \"memory\"\nsize = \"4M\"\n";

/// A daemon, and a folder of another user in its own.
struct Site {
    daemon: Daemon,
}

impl Site {
    fn start(name: &str, rest: &str) -> Result<Option<Site>> {
        Site::start_told(name, "", rest)
    }

    fn start_told(name: &str, lines: &str, rest: &str) -> Result<Option<Site>> {
        if !rustix::process::geteuid().is_root() {
            left_out("files of other users are made by root alone");
            return Ok(None);
        }
        let daemon = Daemon::with(name, &format!("{ONE}{rest}")).daemon(lines).start()?;
        let site = Site { daemon };
        fs::create_dir(site.at("mallory"))?;
        chown(site.at("mallory"), Some(MALLORY), Some(MALLORY))?;
        fs::write(site.at("secret"), SECRET)?;
        fs::set_permissions(site.at("secret"), Permissions::from_mode(0o600))?;
        Ok(Some(site))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.daemon.dir().join(name)
    }

    /// An image of the other user.
    fn image(&self, name: &str) -> Result<PathBuf> {
        let path = self.at("mallory").join(name);
        fs::write(&path, vec![1; 1 << 20])?;
        chown(&path, Some(MALLORY), Some(MALLORY))?;
        Ok(path)
    }

    /// Asks for a disk, and does not wait for the answer.
    fn post(&self, body: &str) -> Result<UnixStream> {
        let mut stream = UnixStream::connect(self.at("api.sock"))?;
        let head = "POST /v1/disks HTTP/1.1\r\nHost: sidecore\r\nContent-Type: application/json\r\n\
                    Connection: close\r\n";
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        std::io::Write::write_all(&mut stream, request.as_bytes())?;
        Ok(stream)
    }

    fn is_refused(&self, line: &str, words: &[&str]) -> Result<()> {
        let said = self.daemon.refuses(&format!("disk add bad {line}"))?;
        for word in words {
            ensure!(said.contains(word), "`{line}` says {said:?}, and not {word:?}");
        }
        Ok(())
    }

    /// Nothing of root's was touched, and the daemon serves.
    fn finish(&mut self) -> Result<()> {
        ensure!(fs::read(self.at("secret"))? == SECRET, "the secret was written to");
        self.daemon.frontend("ram", &FrontendSpec::default())?;
        self.daemon.is_alive()
    }
}

#[test]
fn an_image_of_another_user_takes_a_word_and_leads_nowhere_else() -> Result<()> {
    let Some(mut site) = Site::start("names-image", "")? else { return Ok(()) };
    let own = site.image("own.raw")?;
    let uid = MALLORY.to_string();
    let path = format!("--path {}", own.display());
    site.is_refused(&path, &["mallory", &uid, "`--allow-user-folder`"])?;
    site.daemon.ask(&format!("disk add own {path} --allow-user-folder"))?;
    site.daemon.frontend("own", &FrontendSpec::default())?;
    ensure!(site.daemon.shown("own", "allow_user_folder")? == true);
    // A link to root's file, to a folder, to nothing, a second name of root's file, root's file itself.
    let dangling = site.at("made-by-mallory");
    symlink(site.at("secret"), site.at("mallory/link.raw"))?;
    symlink(site.at("."), site.at("mallory/out"))?;
    symlink(&dangling, site.at("mallory/dangling.raw"))?;
    fs::hard_link(site.at("secret"), site.at("mallory/second.raw"))?;
    symlink("/proc/sys/kernel/core_pattern", site.at("mallory/sysctl.raw"))?;
    let pattern = fs::read("/proc/sys/kernel/core_pattern")?;
    for (name, word) in [
        ("link.raw", "is not followed"),
        ("out/secret", "is not followed"),
        ("dangling.raw", "is not followed"),
        ("sysctl.raw", "is not followed"),
        ("second.raw", "belongs to user 0"),
        ("missing.raw", "nothing is made in a folder of user"),
    ] {
        let path = site.at("mallory").join(name);
        let line = format!("--path {} --size 1M --allow-user-folder", path.display());
        site.is_refused(&line, &[name.split('/').next().unwrap_or(name), word])?;
    }
    ensure!(!dangling.exists() && !site.at("mallory/missing.raw").exists(), "something was made");
    ensure!(fs::read("/proc/sys/kernel/core_pattern")? == pattern, "a sysctl was written");
    // By root's own name nothing of the kernel's either.
    let line = "--path /proc/sys/kernel/core_pattern --size 1M";
    site.is_refused(line, &["the kernel's own"])?;
    ensure!(fs::read("/proc/sys/kernel/core_pattern")? == pattern, "a sysctl was written");
    site.finish()
}

/// Seen in the wild of a test: while the guest is away, a link to root's file is put in the image's place.
#[test]
fn a_link_in_the_images_place_is_not_followed_when_the_guest_or_the_daemon_comes_back() -> Result<()>
{
    let disk = "[[disk]]\nid = \"vm\"\npath = \"mallory/vm.raw\"\nallow_user_folder = true\n\
                migratable = true\n";
    let Some(mut site) = Site::start("names-swap", "")? else { return Ok(()) };
    let image = site.image("vm.raw")?;
    site.daemon.configure(&format!("{ONE}{disk}"))?;
    site.daemon.ask("reload")?;
    // The first guest goes, and with it the locks.
    drop(site.daemon.frontend("vm", &FrontendSpec::default())?);
    await_that("the locks to go", || Ok(site.daemon.shown("vm", "locked")? == false))?;
    fs::rename(&image, site.at("mallory/aside.raw"))?;
    symlink(site.at("secret"), &image)?;
    let guest = site.daemon.frontend("vm", &FrontendSpec::default())?;
    await_that("it is said why the guest waits", || {
        let shown = site.daemon.ask("show vm")?;
        let problem = shown["problem"].as_str().unwrap_or_default();
        Ok(shown["state"] == "waiting" && problem.contains("is not followed"))
    })?;
    drop(guest);
    site.daemon.stop()?;
    site.daemon.start_again()?;
    let shown = site.daemon.ask("show vm")?;
    let problem = shown["problem"].as_str().unwrap_or_default();
    ensure!(shown["state"] == "failed" && problem.contains("is not followed"), "{shown}");
    site.finish()
}

#[test]
fn an_administrators_links_are_followed() -> Result<()> {
    let Some(mut site) = Site::start("names-links", "")? else { return Ok(()) };
    fs::create_dir(site.at("by-id"))?;
    fs::write(site.at("images/real.raw"), vec![1; 1 << 20])?;
    symlink("../images/real.raw", site.at("by-id/wwn-1"))?;
    symlink(site.at("by-id/wwn-1"), site.at("vm.raw"))?;
    site.daemon.ask("disk add vm --path vm.raw")?;
    site.daemon.frontend("vm", &FrontendSpec::default())?;
    // The same, made by somebody else.
    symlink(site.at("images/real.raw"), site.at("gift.raw"))?;
    rustix::fs::chownat(
        rustix::fs::CWD,
        site.at("gift.raw"),
        Some(rustix::fs::Uid::from_raw(MALLORY)),
        None,
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )?;
    site.is_refused("--path gift.raw", &["gift.raw is a link of user", "is not followed"])?;
    site.finish()
}

#[test]
fn a_folder_that_others_may_write_is_no_place_for_an_image() -> Result<()> {
    let Some(mut site) = Site::start("names-shared", "")? else { return Ok(()) };
    fs::create_dir(site.at("shared"))?;
    fs::write(site.at("shared/a.raw"), vec![1; 1 << 20])?;
    for (mode, word) in [(0o777, "chmod g-w,o-w"), (0o757, "chmod g-w,o-w")] {
        fs::set_permissions(site.at("shared"), Permissions::from_mode(mode))?;
        site.is_refused("--path shared/a.raw --allow-user-folder", &["shared", word])?;
    }
    fs::set_permissions(site.at("shared"), Permissions::from_mode(0o1777))?;
    site.daemon.ask("disk add ours --path shared/a.raw")?;
    site.daemon.ask("disk rm ours")?;
    chown(site.at("shared/a.raw"), Some(MALLORY), None)?;
    site.is_refused("--path shared/a.raw --allow-user-folder", &["every user may make names"])?;
    site.finish()
}

/// A FIFO, a device that never ends, and a folder, where an image, a key, a number and state are read.
#[test]
fn nothing_endless_or_silent_is_read() -> Result<()> {
    let Some(mut site) = Site::start("names-endless", "")? else { return Ok(()) };
    let fifo = site.at("fifo");
    ensure!(Command::new("mkfifo").arg(&fifo).status()?.success(), "mkfifo");
    site.is_refused("--path fifo --size 1M", &["neither a regular file nor a block device"])?;
    symlink("/dev/zero", site.at("zero"))?;
    site.is_refused("--path zero --size 1M", &["neither a regular file nor a block device"])?;
    for device in ["/dev/null", "/dev/watchdog", "/dev/tty"] {
        if Path::new(device).exists() {
            let line = format!("--path {device} --size 1M");
            site.is_refused(&line, &["neither a regular file nor a block device"])?;
        }
    }
    for file in ["zero", "fifo"] {
        let said = site.daemon.refuses(&format!("link key {file}"))?;
        ensure!(said.contains("not a file"), "{said}");
    }
    // At its start, too: it ends with words, or leaves the disk out.
    site.daemon.stop()?;
    let kept = site.at("state/disks.json");
    for endless in [&fifo, &site.at("zero")] {
        let _ = fs::remove_file(&kept);
        symlink(endless, &kept)?;
        let said = site.daemon.refuses("serve --config sidecore.toml")?;
        ensure!(said.contains("disks.json is a link, not a file"), "{said}");
    }
    fs::remove_file(&kept)?;
    site.daemon.start_again()?;
    site.finish()
}

/// What holds a lease while it lives, taken by the only interpreter that every test machine has.
struct Lease(Child);

impl Lease {
    fn on(path: &Path) -> Result<Lease> {
        let program = "import fcntl,os,signal,sys\n\
                       signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
                       fd = os.open(sys.argv[1], os.O_RDWR)\n\
                       fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
                       print('held', flush=True)\n\
                       sys.stdin.read()\n";
        let child = Command::new("python3")
            .args(["-c", program])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.context("python3, which takes a lease")?;
        let mut held = [0; 5];
        let out = child.stdout.as_mut().context("its output")?;
        std::io::Read::read_exact(out, &mut held).context("no lease")?;
        Ok(Lease(child))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whoever may open a file may have a lease on it, for which an open waits 45 s. The daemon does not.
#[test]
fn a_lease_is_asked_back_and_waited_for_by_nobody() -> Result<()> {
    let Some(mut site) = Site::start("names-lease", "")? else { return Ok(()) };
    let image = site.image("leased.raw")?;
    let lease = Lease::on(&image)?;
    site.daemon.ask(&format!("disk add leased --path {} --allow-user-folder", image.display()))?;
    let shown = site.daemon.ask("show leased")?;
    let problem = shown["problem"].as_str().unwrap_or_default();
    ensure!(shown["state"] == "waiting" && problem.contains("lease"), "{shown}");
    site.daemon.frontend("ram", &FrontendSpec::default())?;
    drop(lease);
    await_that("the image is open", || Ok(site.daemon.shown("leased", "problem")?.is_null()))?;
    site.daemon.frontend("leased", &FrontendSpec::default())?;
    site.finish()
}

#[test]
fn sockets_in_a_users_folder_are_made_and_found_without_his_links() -> Result<()> {
    let Some(mut site) = Site::start("names-sockets", "")? else { return Ok(()) };
    // Made in it, and gone with the disk.
    let socket = site.at("mallory/vm.sock");
    let line = |id: &str, more: &str| {
        format!("disk add {id} --backend null --size 1M --socket {} {more}", socket.display())
    };
    site.daemon.ask(line("vm", "").trim_end())?;
    ensure!(socket.symlink_metadata()?.uid() == 0 && socket.symlink_metadata()?.len() == 0);
    site.daemon.ask("disk rm vm")?;
    ensure!(socket.symlink_metadata().is_err(), "it was left");
    // A link there is not replaced, nor what it leads to.
    symlink(site.at("secret"), &socket)?;
    let said = site.daemon.refuses(line("vm", "").trim_end())?;
    ensure!(said.contains("is not a socket"), "{said}");
    ensure!(socket.is_symlink());
    fs::remove_file(&socket)?;
    // Connected to: only what that user listens on himself.
    let listener = UnixListener::bind(site.at("theirs.sock"))?;
    listener.set_nonblocking(true)?;
    symlink(site.at("theirs.sock"), &socket)?;
    site.daemon.ask(&line("vm", "--mode connect"))?;
    await_that("it is said why", || {
        let shown = site.daemon.ask("show vm")?.to_string();
        Ok(shown.contains("is not followed"))
    })?;
    ensure!(listener.accept().is_err(), "it was connected to");
    fs::remove_file(&socket)?;
    let own = UnixListener::bind(&socket)?;
    chown(&socket, Some(MALLORY), None)?;
    own.set_nonblocking(true)?;
    await_that("a connection", || Ok(own.accept().is_ok()))?;
    site.finish()
}

/// Many byte locks of somebody without any rights are looked through by nobody who is waited for.
#[test]
fn a_search_through_many_locks_does_not_hold_the_api_up() -> Result<()> {
    let Some(mut site) = Site::start("names-locks", "")? else { return Ok(()) };
    let image = site.image("locked.raw")?;
    let program = "import fcntl,os,sys\n\
                   fd = os.open(sys.argv[1], os.O_RDWR)\n\
                   fcntl.flock(fd, fcntl.LOCK_EX)\n\
                   other = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)\n\
                   [fcntl.lockf(other, fcntl.LOCK_EX, 1, 2 * at) for at in range(20000)]\n\
                   print('held', flush=True)\n\
                   sys.stdin.read()\n";
    let holder = Command::new("python3")
        .args(["-c", program])
        .args([&image, &site.at("mallory/other")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut holder = Lease(holder.context("python3, which takes locks")?);
    let mut held = [0; 5];
    std::io::Read::read_exact(holder.0.stdout.as_mut().context("output")?, &mut held)?;
    let pid = holder.0.id().to_string();
    let line = format!("--path {} --allow-user-folder", image.display());
    site.is_refused(&line, &["is in use", &pid])?;
    // Another call that was heard after it is done before it: when control searches itself, that never is.
    let mut number = 0;
    await_that("another call to be done while it searches", || {
        number += 1;
        let body = format!(
            "{{\"id\":\"held{number}\",\"path\":{:?},\"allow_user_folder\":true}}",
            image.display().to_string()
        );
        let searches = site.post(&body)?;
        let other = format!("{{\"id\":\"other{number}\",\"backend\":\"null\",\"size\":\"1M\"}}");
        let answers = [searches, site.post(&other)?].map(answer);
        let [refused, added] = answers;
        ensure!(refused?.contains(" 422 ") && added?.contains(" 201 "), "not as expected");
        let log = fs::read_to_string(site.at("log"))?;
        let at =
            |words: String| log.find(&words).with_context(|| format!("no {words:?} in the log"));
        let (asked, then) =
            (at(format!("disk add held{number} "))?, at(format!("disk add other{number} "))?);
        let (done, refused) = (
            at(format!("added disk=\"other{number}\""))?,
            at(format!("refused: disk add held{number} "))?,
        );
        Ok(asked < then && then < done && done < refused)
    })?;
    site.finish()
}

/// The whole answer of the API.
fn answer(mut stream: UnixStream) -> Result<String> {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text)?;
    Ok(text)
}
