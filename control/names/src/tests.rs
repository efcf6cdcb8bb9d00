//! Each way in which another user could lead the daemon elsewhere, done by that user in folders of a test's own.
//!
//! Files of another user are made by root: as somebody else these tests are skipped, and say so.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, XattrFlags, mknodat, setxattr};
use rustix::io::Errno;
use tempfile::TempDir;

use super::*;

const MALLORY: u32 = 54_321;
const BOB: u32 = 54_322;

/// A folder of root's with one of another user in it, or nothing where that cannot be made.
struct Site {
    root: TempDir,
}

impl Site {
    fn new() -> Option<Site> {
        if !rustix::process::geteuid().is_root() {
            let said = b"skipped: files of other users are made by root alone\n";
            // Past the harness, in one piece; `./x test` counts it.
            let _ = std::io::stderr().write_all(said);
            return None;
        }
        let root = tempfile::tempdir().expect("a folder");
        let site = Site { root };
        fs::create_dir(site.at("mallory")).expect("a folder");
        chown(site.at("mallory"), Some(MALLORY), Some(MALLORY)).expect("given away");
        Some(site)
    }

    fn at(&self, name: &str) -> PathBuf {
        // Without links, as the messages have it.
        self.root.path().canonicalize().expect("it is there").join(name)
    }

    fn file(&self, name: &str, owner: u32) -> PathBuf {
        fs::write(self.at(name), name).expect("a file");
        chown(self.at(name), Some(owner), Some(owner)).expect("given away");
        self.at(name)
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
}

fn image(path: &Path, user_folder: bool) -> Result<u64, Refused> {
    let opened = open_image(path, user_folder, OFlags::RDWR)?;
    Ok(File::from(opened).metadata().expect("facts").ino())
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("facts").ino()
}

#[test]
fn an_image_in_a_folder_of_another_user_takes_a_word_and_that_users_own_file() {
    let Some(site) = Site::new() else { return };
    let own = site.file("mallory/own.img", MALLORY);
    let foreign = Refused::Foreign {
        step: site.at("mallory"),
        uid: MALLORY,
        purpose: Purpose::Image { user_folder: false },
    };
    assert_eq!(image(&own, false), Err(foreign));
    assert_eq!(image(&own, true), Ok(inode(&own)));
    assert_eq!(kind_of_image(&own, true), Ok(Some(ImageKind::File { is_users: true })),);
    // What root or a third user has there was moved there, or linked.
    for (name, uid) in [("mallory/root.img", 0), ("mallory/bob.img", BOB)] {
        let file = site.file(name, uid);
        let refused = Refused::NotOwners { step: file.clone(), uid, owner: MALLORY };
        assert_eq!(image(&file, true), Err(refused));
    }
    let secret = site.file("secret", 0);
    fs::hard_link(&secret, site.at("mallory/second.img")).expect("a second name");
    assert!(matches!(image(&site.at("mallory/second.img"), true), Err(Refused::NotOwners { .. })));
    fs::create_dir(site.at("mallory/sub")).expect("a folder");
    chown(site.at("mallory/sub"), Some(BOB), None).expect("given away");
    let deep = site.file("mallory/sub/x", MALLORY);
    assert!(matches!(image(&deep, true), Err(Refused::NotOwners { .. })));
}

#[test]
fn links_of_another_user_are_not_followed_and_those_of_root_are() {
    let Some(site) = Site::new() else { return };
    let (bobs, roots) = (site.file("bob.img", BOB), site.file("root.img", 0));
    let own = site.file("mallory/own.img", MALLORY);
    for (name, target) in [("a", &bobs), ("b", &roots), ("c", &own), ("d", &site.at("mallory"))] {
        let link = site.at(&format!("mallory/{name}"));
        symlink(target, &link).expect("a link");
        assert!(matches!(image(&link, true), Err(Refused::Link { .. })), "{name}");
        // By the folder's owner or by root: it lies where that one can change it.
        rustix::fs::chownat(
            CWD,
            &link,
            Some(rustix::fs::Uid::from_raw(MALLORY)),
            None,
            rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        )
        .expect("given away");
        assert!(matches!(image(&link, true), Err(Refused::Link { .. })), "{name}");
        let through = link.join("own.img");
        assert!(matches!(image(&through, true), Err(Refused::Link { .. })), "{name}");
    }
    // An administrator's links: absolute, relative, of folders, one after the other.
    fs::create_dir(site.at("by-id")).expect("a folder");
    symlink("../root.img", site.at("by-id/one")).expect("a link");
    symlink(site.at("by-id/one"), site.at("two")).expect("a link");
    symlink("by-id", site.at("names")).expect("a link");
    for name in ["by-id/one", "two", "names/one", "names/../root.img", "names/../by-id/./one"] {
        assert_eq!(image(&site.at(name), false), Ok(inode(&roots)), "{name}");
    }
    // They do not help a user's file.
    symlink(site.at("mallory"), site.at("in")).expect("a link");
    assert!(matches!(image(&site.at("in/own.img"), false), Err(Refused::Foreign { .. })));
    assert_eq!(image(&site.at("in/own.img"), true), Ok(inode(&own)));
    // A link that somebody else has, even in a folder of root's.
    symlink(&roots, site.at("gift")).expect("a link");
    let (gift, nofollow) = (site.at("gift"), rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    rustix::fs::chownat(CWD, &gift, Some(rustix::fs::Uid::from_raw(BOB)), None, nofollow)
        .expect("given away");
    assert_eq!(image(&gift, true), Err(Refused::Link { step: gift.clone(), uid: BOB }));
    symlink("round", site.at("round")).expect("a link");
    let error = image(&site.at("round"), false).expect_err("round");
    assert_eq!(error.errno(), Some(Errno::LOOP));
}

#[test]
fn a_folder_that_several_may_write_is_refused_and_of_a_shared_one_only_our_own_names_count() {
    let Some(site) = Site::new() else { return };
    let file = site.file("mallory/own.img", MALLORY);
    chown(site.at("mallory"), Some(0), Some(BOB)).expect("taken back");
    for (bits, is_right) in [(0o755, true), (0o775, false), (0o757, false), (0o777, false)] {
        mode(&site.at("mallory"), bits);
        let opened = image(&file, true);
        let step = site.at("mallory");
        match is_right {
            true => assert_eq!(opened, Ok(inode(&file))),
            false => assert_eq!(opened, Err(Refused::Writable { step, mode: bits })),
        }
    }
    // Members of group 0 are administrators.
    chown(site.at("mallory"), Some(0), Some(0)).expect("a group");
    mode(&site.at("mallory"), 0o775);
    assert_eq!(image(&file, true), Ok(inode(&file)));
    // As in /tmp.
    mode(&site.at("mallory"), 0o1777);
    let in_shared = Refused::InShared { step: file.clone(), uid: MALLORY };
    assert_eq!(image(&file, true), Err(in_shared));
    let ours = site.file("mallory/ours.img", 0);
    assert_eq!(image(&ours, false), Ok(inode(&ours)));
    fs::hard_link(&ours, site.at("mallory/again")).expect("a second name");
    assert_eq!(image(&ours, false), Err(Refused::SecondName { step: ours }));
    fs::create_dir(site.at("mallory/theirs")).expect("a folder");
    chown(site.at("mallory/theirs"), Some(BOB), None).expect("given away");
    let theirs = site.file("mallory/theirs/x", BOB);
    assert!(matches!(image(&theirs, true), Err(Refused::InShared { .. })));
    // A user's folder in which others may write is no better.
    chown(site.at("mallory"), Some(MALLORY), Some(MALLORY)).expect("given away");
    mode(&site.at("mallory"), 0o775);
    assert!(matches!(image(&file, true), Err(Refused::Writable { .. })));
}

/// `user::rwx user:MALLORY:rwx group::r-x mask::rwx other::r-x` (acl(5); linux/posix_acl_xattr.h).
fn list_mallory(folder: &Path) {
    let mut list = 2_u32.to_le_bytes().to_vec();
    let nobody = u32::MAX;
    for (tag, rights, id) in [
        (0x01, 7, nobody),
        (0x02, 7, MALLORY),
        (0x04, 5, nobody),
        (0x10, 7, nobody),
        (0x20, 5, nobody),
    ] {
        list.extend(u16::to_le_bytes(tag));
        list.extend(u16::to_le_bytes(rights));
        list.extend(u32::to_le_bytes(id));
    }
    setxattr(folder, c"system.posix_acl_access", &list, XattrFlags::empty()).expect("a list");
}

/// The mode says that root's group may write, and nobody is in that; the list says who may.
#[test]
fn a_folder_that_a_list_lets_others_write_is_refused() {
    let Some(site) = Site::new() else { return };
    fs::create_dir(site.at("listed")).expect("a folder");
    let listed = site.file("listed/vm.img", 0);
    mode(&site.at("listed"), 0o775);
    assert!(image(&listed, false).is_ok(), "a group of root's alone");
    list_mallory(&site.at("listed"));
    let refused = Refused::Writable { step: site.at("listed"), mode: 0o775 };
    assert_eq!(image(&listed, false), Err(refused.clone()));
    assert_eq!(image(&listed, true), Err(refused.clone()));
    let own = make_folder(&site.at("listed"));
    assert_eq!(own, Err(refused));
}

#[test]
fn only_files_and_block_devices_are_images_and_nothing_is_waited_for() {
    let Some(site) = Site::new() else { return };
    let is = |name: &str| match image(&site.at(name), true) {
        Err(Refused::Kind { is, .. }) => is,
        other => panic!("{name}: {other:?}"),
    };
    mknodat(CWD, site.at("fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .expect("a FIFO");
    assert_eq!(is("fifo"), "a FIFO");
    assert_eq!(is("mallory"), "a folder");
    let _listener = UnixListener::bind(site.at("socket")).expect("a socket");
    assert_eq!(is("socket"), "a socket");
    symlink("/dev/zero", site.at("endless")).expect("a link");
    assert_eq!(is("endless"), "a character device");
    for path in ["/proc/sys/vm/swappiness", "/proc/self/mem", "/sys/kernel/uevent_helper"] {
        if Path::new(path).exists() {
            let error = image(Path::new(path), true).expect_err(path);
            assert!(matches!(error, Refused::Pseudo { .. }), "{path}: {error}");
            let made = open_or_make_image(Path::new(path), true, OFlags::RDONLY);
            let error = made.expect_err(path);
            assert!(matches!(error, Refused::Pseudo { .. }), "{path}: {error}");
        }
    }
    // A magic link leads where its text leads, and no further.
    let open = File::open(site.file("root.img", 0)).expect("a file");
    let magic = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    assert_eq!(image(Path::new(&magic), false), Ok(inode(&site.at("root.img"))));
}

#[test]
fn an_image_is_made_where_it_is_meant_and_never_through_a_link_of_others() {
    let Some(site) = Site::new() else { return };
    let make = |path: &Path| open_or_make_image(path, true, OFlags::RDWR);
    let (_, is_new) = make(&site.at("new.img")).expect("made");
    assert!(is_new);
    assert_eq!(fs::metadata(site.at("new.img")).expect("facts").mode() & 0o777, 0o600);
    let (_, is_new) = make(&site.at("new.img")).expect("and opened");
    assert!(!is_new);
    // A dangling link of another user, in each place.
    symlink(site.at("made-by-mallory"), site.at("mallory/new.img")).expect("a link");
    assert!(matches!(make(&site.at("mallory/new.img")), Err(Refused::Link { .. })));
    let missing = site.at("mallory/other.img");
    let refused = Refused::NotMade { step: missing.clone(), owner: MALLORY };
    assert_eq!(make(&missing).expect_err("not made"), refused);
    assert!(!site.at("made-by-mallory").exists() && !missing.exists());
    // An administrator's own.
    symlink("target.img", site.at("dangling.img")).expect("a link");
    make(&site.at("dangling.img")).expect("made");
    assert!(site.at("target.img").is_file());
    let error = make(&site.at("nowhere/x")).expect_err("no folder");
    assert!(error.is_missing());
    assert!(can_make_image(&site.at("nowhere/x"), true).expect_err("no folder").is_missing());
    assert!(can_make_image(&site.at("more.img"), true).expect("a folder of ours") > Some(0));
    assert!(!site.at("more.img").exists(), "nothing is made by that");
}

/// By a daemon of another user than root, in a folder of root's.
#[test]
fn where_no_image_can_be_made_that_is_found_before_and_said_alike() {
    let Some(site) = Site::new() else { return };
    mode(&site.at(""), 0o755);
    let path = site.at("new.img");
    let refused = Refused::NoNew { step: path.clone(), source: Errno::ACCESS };
    let above = Refused::Os { step: site.at("."), source: Errno::ACCESS };
    let folder = site.at("a/b");
    let asked = std::thread::spawn(move || {
        let bob = rustix::process::Uid::from_raw(BOB);
        rustix::thread::set_thread_res_uid(bob, bob, bob).expect("another user");
        let made = open_or_make_image(&path, false, OFlags::RDWR).map(drop);
        (can_make_image(&path, false).map(drop), made, may_make_in(&folder, Purpose::Socket))
    });
    let (before, then, socket) = asked.join().expect("a thread");
    assert_eq!([before, then], [Err(refused.clone()), Err(refused)]);
    assert_eq!(socket.map_err(|why| why.errno()), Err(above.errno()));
    assert_eq!(may_make_in(&site.at("a/b"), Purpose::Socket), Ok(()));
}

fn is_hidden(name: &std::ffi::OsStr) -> bool {
    name.to_string_lossy().starts_with('.')
}

/// What [`lock_bytes_of`] runs in a process of its own.
#[test]
#[ignore = "locks what another test names, until that test ends it"]
fn locks_bytes_until_it_is_ended() {
    let path = std::env::var_os("LOCKED_IMAGE").expect("named by who runs this");
    let image = fs::OpenOptions::new().read(true).write(true).open(path).expect("an image");
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::fcntl_lock(&image, lock).expect("nobody has it");
    std::io::Write::write_all(&mut std::io::stderr(), b"held\n").expect("somebody reads");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Another process that holds a lock of bytes, as QEMU does.
fn lock_bytes_of(path: &Path) -> std::process::Child {
    use std::io::{BufRead, BufReader};
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "--nocapture", "tests::locks_bytes_until_it_is_ended"])
        .env("LOCKED_IMAGE", path)
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("a process");
    let said = child.stderr.take().expect("a pipe");
    let held = BufReader::new(said).lines().map_while(Result::ok).any(|line| line == "held");
    assert!(held, "it has no lock");
    child
}

/// What somebody else may have by now stays.
#[test]
fn an_image_is_unmade_as_long_as_it_is_what_was_made_and_nobody_has_it() {
    let Some(site) = Site::new() else { return };
    let path = site.at("new.img");
    let make = || {
        let (made, is_new) = open_or_make_image(&path, true, OFlags::RDWR).expect("made");
        assert!(is_new);
        rustix::fs::ftruncate(&made, 1 << 20).expect("as long as asked for");
        let stat = rustix::fs::fstat(&made).expect("facts");
        (File::from(made), (stat.st_dev, stat.st_ino))
    };
    let unmake = |file| unmake_image(&path, true, file).expect("it can be looked at");
    let (made, file) = make();
    sync_image(&path, true).expect("it is stable, and locked or not");
    assert!(!unmake((file.0, file.1 + 1)), "another one");
    rustix::fs::flock(&made, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
    assert!(!unmake(file), "it is locked");
    drop(made);
    let mut others = lock_bytes_of(&path);
    assert!(!unmake(file), "QEMU and others lock bytes");
    others.kill().and_then(|()| others.wait()).expect("it ends");
    fs::hard_link(&path, site.at("other.img")).expect("a name");
    assert!(!unmake(file), "it has another name");
    fs::remove_file(site.at("other.img")).expect("a name");
    let written = fs::OpenOptions::new().write(true).open(&path);
    std::os::unix::fs::FileExt::write_all_at(&written.expect("open"), b"x", 9000).expect("data");
    assert!(!unmake(file), "it holds something");
    assert_eq!(fs::read(&path).expect("it is there")[9000], b'x');
    fs::remove_file(&path).expect("gone");
    let (_, file) = make();
    assert!(unmake(file) && !path.exists());
    assert!(!unmake(file), "nothing is there");
    let left = fs::read_dir(site.at("")).expect("a folder").flatten();
    let left: Vec<_> = left.map(|one| one.file_name()).filter(|name| is_hidden(name)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(sync_image(&path, true).expect_err("nothing is there").is_missing());
}

#[test]
fn files_of_the_daemons_own_are_short_its_own_and_replaced_whole() {
    let Some(site) = Site::new() else { return };
    let kept = Kept::in_folder(site.at("state"), 8);
    assert_eq!(kept.read("a").expect("nothing"), None);
    kept.remove("a").expect("nothing to remove");
    kept.replace("a", "one").expect("kept");
    kept.replace_for_good("a", "two").expect("kept");
    kept.overwrite("b", "three").expect("kept");
    kept.overwrite("b", "four").expect("kept");
    assert_eq!(kept.read("a").expect("read").as_deref(), Some("two"));
    assert_eq!(kept.read("b").expect("read").as_deref(), Some("foure"));
    kept.remove("a").expect("removed");
    assert_eq!(kept.read("a").expect("nothing"), None);
    for name in ["", ".", "..", "a/b"] {
        assert!(kept.read(name).is_err(), "{name}");
    }
    // Longer than it can be, endless, a FIFO, a link, of another user.
    fs::write(site.at("state/long"), "123456789").expect("a file");
    symlink("/dev/zero", site.at("state/zero")).expect("a link");
    let fifo = rustix::fs::FileType::Fifo;
    mknodat(CWD, site.at("state/fifo"), fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
    site.file("state/theirs", MALLORY);
    for name in ["long", "zero", "fifo", "theirs"] {
        kept.read(name).expect_err(name);
    }
    for name in ["zero", "fifo", "theirs"] {
        kept.overwrite(name, "x").expect_err(name);
    }
    assert_eq!(fs::read(site.at("state/theirs")).expect("read"), b"state/theirs");
    // A link in its place is replaced, not followed; so is one where the next text is written.
    let secret = site.file("secret", 0);
    symlink(&secret, site.at("state/link")).expect("a link");
    symlink(&secret, site.at("state/.link.new")).expect("a link");
    kept.replace("link", "x").expect("kept");
    assert_eq!(fs::read(&secret).expect("read"), b"secret");
    assert_eq!(fs::read(site.at("state/link")).expect("read"), b"x");
    // A state folder of somebody else.
    let theirs = Kept::in_folder(site.at("mallory"), 8);
    assert!(theirs.replace("a", "x").is_err() && theirs.overwrite("a", "x").is_err());
    assert!(theirs.read("a").is_err());
    assert!(make_folder(&site.at("mallory/new")).is_err());
    assert_eq!(fs::read_dir(site.at("mallory")).expect("a folder").count(), 0);
}

#[test]
fn a_lock_is_ones_until_it_is_closed_and_says_whose() {
    let Some(site) = Site::new() else { return };
    let kept = Kept::in_folder(site.at("state"), 8);
    let lock = |text: &str| kept.lock("lock", text).expect("a lock");
    let held = |text: &str| match lock(text) {
        Locking::Held(holder) => holder,
        Locking::Taken(_) => panic!("taken twice"),
    };
    let Locking::Taken(first) = lock("one, a long one\nmore") else { panic!("nobody has it") };
    assert_eq!(held("two"), "one, a long one");
    fs::write(site.at("state/lock"), "\u{1b}[1m\u{7}x").expect("written");
    assert_eq!(held("two"), "[1mx", "nothing that a terminal obeys");
    drop(first);
    let Locking::Taken(_second) = lock("two") else { panic!("it was closed") };
    assert_eq!(fs::read(site.at("state/lock")).expect("read"), b"two");
    // Of another user, a link, a FIFO.
    site.file("state/theirs", MALLORY);
    symlink(site.file("secret", 0), site.at("state/link")).expect("a link");
    let fifo = rustix::fs::FileType::Fifo;
    mknodat(CWD, site.at("state/fifo"), fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
    for name in ["theirs", "link", "fifo", "a/b", ".."] {
        kept.lock(name, "x").expect_err(name);
    }
    assert_eq!(fs::read(site.at("secret")).expect("read"), b"secret");
}

#[test]
fn a_text_is_read_of_a_file_of_ours_and_no_endless_one() {
    let Some(site) = Site::new() else { return };
    let key = site.file("key", 0);
    mode(&key, 0o640);
    assert_eq!(read_text(&key, 3), Ok(OwnText { text: "key".to_string(), mode: 0o640, uid: 0 }));
    assert_eq!(read_text(&key, 2), Err(Refused::TooLong { step: key, bytes_max: 2 }));
    symlink("/dev/zero", site.at("zero")).expect("a link");
    assert!(matches!(read_text(&site.at("zero"), 9), Err(Refused::Kind { .. })));
    site.file("mallory/key", MALLORY);
    assert!(matches!(read_text(&site.at("mallory/key"), 9), Err(Refused::Foreign { .. })));
    let theirs = site.file("theirs", MALLORY);
    assert!(matches!(read_text(&theirs, 9), Err(Refused::Foreign { .. })));
    assert!(read_text(&site.at("missing"), 9).expect_err("none").is_missing());
}

#[test]
fn a_socket_is_made_and_found_in_a_folder_of_a_user_but_never_through_his_links() {
    let Some(site) = Site::new() else { return };
    let bind = |path: &Path| SocketPlace::make(path, Purpose::Socket);
    let ours = bind(&site.at("run/vm1/a.sock")).expect("a place");
    assert_eq!(ours.address(), site.at("run/vm1/a.sock"));
    let theirs = bind(&site.at("mallory/a.sock")).expect("a place");
    let listener = UnixListener::bind(theirs.address()).expect("bound");
    assert!(site.at("mallory/a.sock").exists());
    // It is root's, which its user did not make.
    let found = theirs.taken().expect("a socket").expect("it is there");
    UnixStream::connect(found.address()).expect("the same one");
    assert!(matches!(Socket::find(&site.at("mallory/a.sock")), Err(Refused::NotOwners { .. })));
    chown(site.at("mallory/a.sock"), Some(MALLORY), None).expect("given away");
    let found = Socket::find(&site.at("mallory/a.sock")).expect("a socket");
    UnixStream::connect(found.address()).expect("the same one");
    // The folder is put aside and a link to another one in its place: it is the first one still.
    fs::rename(site.at("mallory"), site.at("aside")).expect("renamed");
    fs::create_dir(site.at("root")).expect("a folder");
    symlink(site.at("root"), site.at("mallory")).expect("a link");
    theirs.remove().expect("removed");
    assert!(!site.at("aside/a.sock").exists());
    let again = UnixListener::bind(theirs.address()).expect("bound");
    assert!(site.at("aside/a.sock").exists() && !site.at("root/a.sock").exists());
    drop((listener, again));
    for name in ["link", "file"] {
        let path = site.at(&format!("aside/{name}"));
        let _ = if name == "link" {
            symlink(site.at("run/vm1/a.sock"), &path)
        } else {
            fs::write(&path, "")
        };
        let place = bind(&path).expect("a place");
        assert!(matches!(place.taken(), Err(Refused::Kind { .. })), "{name}");
        assert!(place.remove().is_err() && path.symlink_metadata().is_ok(), "{name}");
        assert!(Socket::find(&path).is_err(), "{name}");
    }
    assert!(SocketPlace::make(&site.at("aside/a.sock"), Purpose::Own).is_err());
}

#[test]
fn a_place_is_ours_where_nobody_else_can_put_a_name() {
    let Some(site) = Site::new() else { return };
    let ours = |name: &str| {
        let place = SocketPlace::find(&site.at(name).join("s"), Purpose::Socket).expect("a place");
        place.check_ours()
    };
    fs::create_dir(site.at("own")).expect("a folder");
    assert_eq!(ours("own"), Ok(()));
    let step = site.at("mallory");
    let foreign = Refused::Foreign { step, uid: MALLORY, purpose: Purpose::Socket };
    assert_eq!(ours("mallory"), Err(foreign));
    // Each may make names there.
    mode(&site.at("own"), 0o1777);
    let step = site.at("own");
    assert_eq!(ours("own"), Err(Refused::Writable { step, mode: 0o1777 }));
}
