//! What an operator changes while guests run: refused whole when it cannot be done, refused when a guest
//! would lose by it unless the operator insists, and said before it is done.

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testing::daemon::{Daemon, await_that};
use testing::frontend::{Frontend, FrontendSpec};
use testing::net_frontend::{Header, Nic, NicSpec, frames};
use testing::slots::{Kind, STATUS_OK};
use tests::mounts::{Loop, Mount};
use tests::single::Single;

const WITHIN: Duration = Duration::from_secs(60);
/// A disk with a guest, one beside it, and a NIC with a guest.
const FILE: &str = r#"
[[disk]]
id = "vm"
path = "images/vm.raw"
size = "4M"
[[disk]]
id = "other"
path = "images/other.raw"
size = "4M"
[[switch]]
id = "lan"
[[nic]]
id = "card"
switch = "lan"
"#;

/// A guest of a disk, which notices when its disk goes.
struct Guest {
    frontend: Frontend,
    single: Single,
}

impl Guest {
    fn of(daemon: &Daemon, id: &str) -> Result<Guest> {
        let spec = FrontendSpec::linux();
        let mut frontend = daemon.frontend(id, &spec)?;
        let single = Single::new(&mut frontend)?;
        Ok(Guest { frontend, single })
    }

    fn works(&mut self) -> Result<()> {
        self.single.exercise(self.frontend.queue(0), 7).context("its guest cannot go on")
    }

    /// Whether block `block` has what [`Single::exercise`] wrote there.
    fn finds(&mut self, block: u64) -> Result<bool> {
        let ended = self.single.send(self.frontend.queue(0), Kind::Read, block)?;
        ensure!(ended.status == STATUS_OK, "{ended:?}");
        Ok(self.single.compare(block).is_ok())
    }
}

fn write(daemon: &Daemon, text: &str) -> Result<()> {
    daemon.configure(text)
}

/// What became of one thing in an answer to a reload.
fn effect<'a>(view: &'a Value, id: &str) -> Result<&'a Value> {
    let mut effects = view["effects"].as_array().into_iter().flatten();
    effects.find(|effect| effect["id"] == id).with_context(|| format!("nothing of {id}: {view}"))
}

/// Also with `--force`: what is new is opened before the old one goes.
#[test]
fn a_reload_whose_new_image_socket_or_interface_does_not_open_takes_nothing_from_a_guest()
-> Result<()> {
    let mut daemon = Daemon::start("under-typo", FILE)?;
    let mut guest = Guest::of(&daemon, "vm")?;
    guest.works()?;
    let at = |name: &str| daemon.dir().join("images").join(name);
    std::fs::create_dir(at("folder"))?;
    ensure!(Command::new("mkfifo").arg(at("pipe")).status()?.success(), "mkfifo");
    std::fs::write(at("empty.raw"), "")?;
    std::fs::write(at("small.raw"), [0; 4096])?;
    std::fs::hard_link(at("other.raw"), at("another-name.raw"))?;
    // Another process has it.
    std::fs::write(at("held.raw"), vec![0; 1 << 20])?;
    let holder = Daemon::start(
        "under-holder",
        &format!("[[disk]]\nid = \"held\"\npath = \"{}\"\n", at("held.raw").display()),
    )?;
    let _taken = UnixListener::bind(daemon.dir().join("taken.sock"))?;
    let vm = "path = \"images/vm.raw\"\nsize = \"4M\"";
    let lan = "id = \"card\"\nswitch = \"lan\"";
    for (old, new, said) in [
        (vm, "path = \"images/wm.raw\"", "No such file"),
        (vm, "path = \"images/folder\"", "neither a regular file nor a block device"),
        (vm, "path = \"images/pipe\"", "neither a regular file nor a block device"),
        (vm, "path = \"images/empty.raw\"", "has 0 bytes"),
        (vm, "path = \"images/small.raw\"\nreadonly = true\nsize = \"1M\"", "it is read-only"),
        (vm, "path = \"no/such/folder/vm.raw\"\nsize = \"4M\"", "No such file"),
        (vm, "path = \"images/held.raw\"", "holds it"),
        (vm, "path = \"images/another-name.raw\"", "disk \"other\""),
        // The same image, which it has itself until it goes.
        (vm, "path = \"images/vm.raw\"\nreadonly = true\nsize = \"8M\"", "it is read-only"),
        (vm, "path = \"images/vm.raw\"\nsize = \"8388607T\"\nserial = \"NEW\"", "vm.raw"),
        // In place, but not possible.
        (vm, "path = \"images/vm.raw\"\nsize = \"8388607T\"", "vm.raw"),
        (vm, "path = \"images/vm.raw\"\nsize = \"4M\"\nsocket = \"taken.sock\"", "taken.sock"),
        (lan, "id = \"card\"\ninterface = \"sc-absent\"", "sc-absent"),
        (lan, "id = \"card\"\ntap = \"lo\"", "cannot open tap lo: the interface"),
        (
            "[[switch]]\nid = \"lan\"",
            "[[switch]]\nid = \"lan\"\n[[switch.uplink]]\ninterface = \"sc-absent\"",
            "sc-absent",
        ),
    ] {
        ensure!(FILE.contains(old), "{old}");
        write(&daemon, &FILE.replace(old, new))?;
        // Who else holds an image is known only by opening it.
        let lines = ["reload --force", "reload --dry-run"];
        let told = if new.contains("held.raw") { &lines[..1] } else { &lines[..] };
        for line in told {
            let refused = daemon.refuses(line)?;
            ensure!(refused.contains(said), "`{line}` for {new:?} says {refused}");
            ensure!(refused.contains("nothing was changed"), "`{line}` for {new:?}: {refused}");
            guest.works().with_context(|| format!("after `{line}` for {new:?}"))?;
        }
        let shown = daemon.ask("show vm")?;
        ensure!(shown["state"] == "running" && shown["problem"].is_null(), "{new:?}: {shown}");
        ensure!(shown["size_bytes"] == 4 << 20, "{new:?}: {shown}");
    }
    ensure!(!at("wm.raw").exists(), "an image was made");
    drop(holder);
    // And what is right is done.
    write(&daemon, &FILE.replace("id = \"other\"\n", "id = \"other\"\nshare = 7\n"))?;
    daemon.ask("reload")?;
    guest.works()?;
    daemon.is_alive()
}

/// One that was made before the refusal stays, and is named.
#[test]
fn an_image_that_a_refused_reload_has_made_goes_again() -> Result<()> {
    let daemon = Daemon::start("under-made", FILE)?;
    let at = |name: &str| daemon.dir().join("images").join(name);
    std::fs::write(at("held.raw"), vec![0; 1 << 20])?;
    // Another process has it, which only opening it tells.
    let _holder = Daemon::start(
        "under-made-holder",
        &format!("[[disk]]\nid = \"held\"\npath = \"{}\"\n", at("held.raw").display()),
    )?;
    let new = "[[disk]]\nid = \"new\"\npath = \"images/new.raw\"\nsize = \"4M\"\n\
               [[disk]]\nid = \"then\"\npath = \"images/held.raw\"\n";
    write(&daemon, &format!("{FILE}{new}"))?;
    let refused = daemon.refuses("reload")?;
    ensure!(refused.contains("holds it") && refused.contains("nothing was changed"), "{refused}");
    // That may take as long as its file system wants, for which nobody waits.
    await_that("the new image to go", || Ok(!at("new.raw").exists()))?;
    ensure!(at("held.raw").metadata()?.len() == 1 << 20, "{refused}");
    Ok(())
}

/// It has its old image until it goes, so it is opened last; its socket is looked at before.
#[test]
fn a_disk_that_is_made_anew_on_its_image_has_a_socket_that_can_be_made() -> Result<()> {
    let daemon = Daemon::start("under-remade", FILE)?;
    let mut guest = Guest::of(&daemon, "vm")?;
    guest.works()?;
    std::fs::write(daemon.dir().join("file.sock"), "precious")?;
    let vm = "size = \"4M\"\n[[disk]]";
    ensure!(FILE.contains(vm), "{FILE}");
    for socket in ["/proc/vm.sock", "file.sock"] {
        let new = format!("size = \"4M\"\nsocket = \"{socket}\"\n[[disk]]");
        write(
            &daemon,
            &format!("{}[[nic]]\nid = \"new\"\nswitch = \"lan\"\n", FILE.replace(vm, &new)),
        )?;
        let refused = daemon.refuses("reload --force")?;
        ensure!(refused.contains(socket) && refused.contains("nothing was changed"), "{refused}");
        guest.works().with_context(|| format!("after {socket}"))?;
        daemon.refuses("nic show new")?;
    }
    ensure!(std::fs::read_to_string(daemon.dir().join("file.sock"))? == "precious", "it is gone");
    Ok(())
}

/// A typing error in `path` where the disk has a `size`: an empty image would be made.
#[test]
fn an_image_that_would_be_made_empty_is_said_before() -> Result<()> {
    let daemon = Daemon::start("under-empty", FILE)?;
    write(&daemon, &FILE.replace("images/vm.raw", "images/wm.raw"))?;
    let said = daemon.ask("reload --dry-run")?;
    let what = effect(&said, "vm")?["what"].as_str().unwrap_or_default();
    ensure!(what.contains("its image is missing: an empty one is made"), "{said}");
    ensure!(!daemon.dir().join("images/wm.raw").exists(), "it was made");
    // Where none can be made the dry run says what the reload says.
    write(&daemon, &FILE.replace("images/vm.raw", "/proc/vm.raw"))?;
    for line in ["reload --dry-run", "reload --force"] {
        let refused = daemon.refuses(line)?;
        ensure!(refused.contains("cannot be made"), "`{line}`: {refused}");
    }
    Ok(())
}

#[test]
fn two_disks_swap_their_images_and_an_image_goes_to_another_name() -> Result<()> {
    let mut daemon = Daemon::start("under-swap", FILE)?;
    let (mut vm, other) = (Guest::of(&daemon, "vm")?, Guest::of(&daemon, "other")?);
    vm.works()?;
    let swapped =
        FILE.replace("vm.raw", "x").replace("other.raw", "vm.raw").replace("/x\"", "/other.raw\"");
    write(&daemon, &swapped)?;
    let refused = daemon.refuses("reload")?;
    ensure!(refused.contains("disk \"vm\"") && refused.contains("disk \"other\""), "{refused}");
    vm.works()?;
    daemon.ask("reload --force")?;
    drop((vm, other));
    let (mut vm, mut other) = (Guest::of(&daemon, "vm")?, Guest::of(&daemon, "other")?);
    ensure!(!vm.finds(7)?, "vm has its old image");
    ensure!(other.finds(7)?, "other has not the image of vm");
    drop((vm, other));
    // The image that `other` has now goes to a disk of a new name.
    let renamed = swapped.replace("id = \"other\"", "id = \"third\"");
    write(&daemon, &renamed)?;
    daemon.ask("reload --force")?;
    ensure!(Guest::of(&daemon, "third")?.finds(7)?, "third has not the image of other");
    daemon.refuses("show other")?;
    daemon.is_alive()
}

/// No VMM finds the socket missing: it is the same one.
#[test]
fn a_disk_that_is_made_anew_keeps_the_socket_that_its_vmm_comes_back_to() -> Result<()> {
    let daemon = Daemon::start("under-socket", FILE)?;
    let mut guest = Guest::of(&daemon, "vm")?;
    guest.works()?;
    let before = std::fs::metadata(daemon.socket("vm"))?.ino();
    std::fs::copy(daemon.dir().join("images/vm.raw"), daemon.dir().join("images/copy.raw"))?;
    write(&daemon, &FILE.replace("images/vm.raw", "images/copy.raw"))?;
    let done = daemon.ask("reload --force")?;
    ensure!(effect(&done, "vm")?["action"] == "remade", "{done}");
    ensure!(std::fs::metadata(daemon.socket("vm"))?.ino() == before, "another socket");
    drop(guest);
    ensure!(Guest::of(&daemon, "vm")?.finds(7)?, "not the copy");
    Ok(())
}

/// What one sends the other one gets.
fn reaches(port: &mut Nic, card: &mut Nic) -> Result<()> {
    let frame = frames::small(frames::mac(1), [0xff; 6]);
    ensure!(port.pair(0).send(&Header::default(), &frame, &[])?, "no slot is free");
    await_that("the frame to arrive", || {
        Ok(card.pair(0).receive()?.is_some_and(|got| got.bytes == frame))
    })
}

#[test]
fn what_takes_a_disk_or_a_nic_from_its_guest_is_refused_unless_its_operator_insists() -> Result<()>
{
    let mut daemon = Daemon::start("under-force", FILE)?;
    daemon.ask("disk add made --backend memory --size 4M")?;
    daemon.ask("nic add port --switch lan")?;
    let mut of_file = Guest::of(&daemon, "vm")?;
    let mut of_api = Guest::of(&daemon, "made")?;
    let nic = |id: &str| Nic::connect(&daemon.socket(id), NicSpec::default());
    let (mut card, mut port) = (nic("card")?, nic("port")?);
    for line in ["disk rm made", "nic rm port", "disk resize made 2M"] {
        let refused = daemon.refuses(line)?;
        ensure!(
            refused.contains("a guest uses") && refused.contains("--force"),
            "{line}: {refused}"
        );
    }
    of_api.works()?;
    let removed = FILE.split("[[disk]]\nid = \"other\"").nth(1).context("a second disk")?;
    let removed = format!("[[disk]]\nid = \"other\"{removed}");
    let vm = "path = \"images/vm.raw\"\nsize = \"4M\"";
    for (text, action, id) in [
        (removed.clone(), "removed", "vm"),
        (FILE.replace(vm, "path = \"images/vm.raw\"\nserial = \"NEW\""), "remade", "vm"),
        (FILE.replace(vm, "path = \"images/vm.raw\"\nsize = \"2M\""), "changed", "vm"),
        (FILE.replace("id = \"card\"", "id = \"card\"\nmtu = 9000"), "remade", "card"),
        (FILE.split("[[nic]]").next().unwrap_or_default().to_string(), "removed", "card"),
    ] {
        write(&daemon, &text)?;
        let dry = daemon.ask("reload --dry-run")?;
        let its = effect(&dry, id)?;
        ensure!(dry["dry_run"] == true && its["action"] == action, "{dry}");
        ensure!(its["guest"] == true && its["guest_loses"] == true, "{dry}");
        let refused = daemon.refuses("reload")?;
        ensure!(refused.contains("it would take from guests what they use"), "{refused}");
        ensure!(refused.contains("--force") && refused.contains(id), "{refused}");
        of_file.works().with_context(|| format!("{id} {action}"))?;
    }
    // Nobody insists by a signal.
    let lines = || daemon.last_words().matches("it would take from guests").count();
    let before = lines();
    kill_process(Pid::from_raw(daemon.pid() as i32).context("no pid")?, Signal::HUP)?;
    await_that("a line in the log", || Ok(lines() > before))?;
    of_file.works()?;
    // What a guest does not notice needs no word; and says that it keeps it.
    write(&daemon, &FILE.replace(vm, "path = \"images/vm.raw\"\nsize = \"8M\"\nshare = 9"))?;
    let dry = daemon.ask("reload --dry-run")?;
    ensure!(effect(&dry, "vm")?["guest_loses"] == false, "{dry}");
    ensure!(daemon.shown("vm", "share")? == 100, "a dry run changed something");
    daemon.ask("reload")?;
    ensure!(daemon.shown("vm", "share")? == 9 && daemon.shown("vm", "size_bytes")? == 8 << 20);
    of_file.works()?;
    reaches(&mut port, &mut card)?;
    // Whoever insists gets it.
    for line in ["disk resize made 2M --force", "disk rm made --force", "nic rm port --force"] {
        daemon.ask(line)?;
    }
    drop((of_api, port));
    write(&daemon, &removed)?;
    daemon.ask("reload --force")?;
    daemon.refuses("show vm")?;
    // With no guest there is nobody to ask for.
    drop((of_file, card));
    await_that("the card to be without a guest", || {
        Ok(daemon.shown("card", "state")? == "waiting")
    })?;
    write(&daemon, "")?;
    daemon.ask("reload")?;
    daemon.is_alive()
}

#[test]
fn a_size_that_its_medium_cannot_have_is_refused() -> Result<()> {
    let daemon = Daemon::start("under-medium", "")?;
    let mount = Mount::tmpfs(&daemon.dir().join("small"), 8 << 20)?;
    let image = mount.path().join("vm.raw");
    daemon.ask(&format!("disk add vm --path {} --size 4M", image.display()))?;
    let mut guest = Guest::of(&daemon, "vm")?;
    let refused = daemon.refuses("disk resize vm 16M")?;
    ensure!(refused.contains("whole file system") && refused.contains("--force"), "{refused}");
    ensure!(guest.frontend.capacity_sectors()? == (4 << 20) / 512);
    daemon.ask("disk resize vm 8M")?;
    daemon.ask("disk resize vm 16M --force")?;
    ensure!(guest.frontend.capacity_sectors()? == (16 << 20) / 512);
    guest.works()?;
    drop(guest);
    daemon.ask("disk rm vm --force")?;

    let backing = daemon.dir().join("images/loop.raw");
    std::fs::write(&backing, vec![0; 1 << 20])?;
    let device = Loop::over(&backing, 512)?;
    daemon.ask(&format!("disk add dev --path {}", device.path().display()))?;
    daemon.ask(&format!(
        "disk add long --path {} --size 1M",
        daemon.dir().join("long.raw").display()
    ))?;
    for force in ["", " --force"] {
        let refused = daemon.refuses(&format!("disk resize dev 2M{force}"))?;
        ensure!(refused.contains("grow the device first"), "{refused}");
        let refused = daemon.refuses(&format!("disk resize long 8388607T{force}"))?;
        ensure!(refused.contains("long.raw"), "{refused}");
    }
    ensure!(daemon.shown("dev", "size_bytes")? == 1 << 20);
    daemon.ask("disk rm dev")?;
    Ok(())
}

/// A dry run says it beside everything else; a reload refuses, and so does a check of the file.
#[test]
fn a_size_beyond_its_file_system_is_one_effect_of_a_dry_run() -> Result<()> {
    let mut daemon = Daemon::start("under-beyond", "")?;
    let mount = Mount::tmpfs(&daemon.dir().join("small"), 8 << 20)?;
    let image = mount.path().join("vm.raw").display().to_string();
    let of = |size: &str, more: &str| {
        format!("[[disk]]\nid = \"vm\"\npath = \"{image}\"\nsize = \"{size}\"\n{more}")
    };
    write(&daemon, &of("4M", ""))?;
    daemon.ask("reload")?;
    let new = "[[disk]]\nid = \"new\"\nbackend = \"memory\"\nsize = \"1M\"\n";
    write(&daemon, &of("16M", new))?;
    let dry = daemon.ask("reload --dry-run")?;
    let its = effect(&dry, "vm")?;
    ensure!(its["needs_force"] == true && its["guest_loses"] == false, "{dry}");
    let what = its["what"].as_str().unwrap_or_default();
    let expected = "resize disk vm to 16M; the whole file system of its image has 8M";
    ensure!(what == expected, "{dry}");
    ensure!(effect(&dry, "new")?["needs_force"] == false, "{dry}");
    let (status, answer) = http(&daemon, "GET", "/v1/reload", "")?;
    ensure!(status == 200, "{answer}");
    let refused = daemon.refuses("serve --config sidecore.toml --check")?;
    ensure!(refused.contains("would not reload it") && refused.contains(expected), "{refused}");
    let refused = daemon.refuses("reload")?;
    ensure!(refused.contains("whole file system") && refused.contains("--force"), "{refused}");
    ensure!(daemon.shown("vm", "size_bytes")? == 4 << 20);
    daemon.ask("reload --force")?;
    ensure!(daemon.shown("vm", "size_bytes")? == 16 << 20);
    // Before the file system goes.
    daemon.stop()
}

/// Sent as written: status and body.
fn http(daemon: &Daemon, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = UnixStream::connect(daemon.dir().join("api.sock"))?;
    stream.set_read_timeout(Some(WITHIN))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: s\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    let status = said.split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok((status.context("no status")?, said))
}

#[test]
fn what_is_asked_twice_or_of_no_route_does_nothing() -> Result<()> {
    let mut daemon = Daemon::start("under-api", FILE)?;
    let mut guest = Guest::of(&daemon, "vm")?;
    let null = r#"{"id":"n","backend":"null","size":"1G","id":"vm"}"#;
    let nested = r#"{"id":"s","uplink":[{"tap":"sc-a","tap":"sc-b"}]}"#;
    for (method, path, body, status, said) in [
        ("POST", "/v1/disks", null, 400, r#"the key \"id\" is there twice"#),
        ("POST", "/v1/switches", nested, 400, r#"the key \"tap\" is there twice"#),
        ("PUT", "/v1/disks/vm", "{}", 405, "PUT is not possible"),
        ("DELETE", "/v1/disks/vm?force=1", "", 400, "another value than true and false"),
        ("DELETE", "/v1/disks/vm?forced=true", "", 400, "is no parameter"),
        ("POST", "/v1/reload?dry_run=true", "", 400, "is no parameter"),
    ] {
        let (got, answer) = http(&daemon, method, path, body)?;
        ensure!(got == status && answer.contains(said), "{method} {path} {body}: {answer}");
    }
    let (status, answer) = http(&daemon, "GET", "/v1/reload", "")?;
    ensure!(status == 200 && answer.contains("\"dry_run\":true"), "{answer}");
    guest.works()?;
    daemon.is_alive()
}
