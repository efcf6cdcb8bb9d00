//! Sockets given to other users, as root; the steps in between are seen from the outside.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use config::spec::SocketMode;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::*;

fn socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

fn rights(owner: Option<&str>, group: Option<&str>, mode: SocketMode) -> Rights {
    let written = SocketRights {
        owner: owner.map(str::to_string),
        group: group.map(str::to_string),
        mode,
        lets_all_in: false,
    };
    Rights::of(&written, &mut Accounts::default()).unwrap()
}

fn place(path: &Path) -> SocketPlace {
    SocketPlace::find(path, Purpose::Socket).unwrap()
}

fn bound(rights: &Rights, path: &Path) -> Result<(), RightsError> {
    rights.bind(socket(), &SocketPlace::find(path, Purpose::Socket)?)
}

/// Whoever else can change what is there, or on the way.
fn is_about_its_folder(error: &RightsError) -> bool {
    matches!(error, RightsError::Folder(why) | RightsError::Name(why) if why.errno().is_none())
}

fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        // Past the harness, in one piece; `./x test` counts it.
        let _ = std::io::stderr().write_all(b"skipped: giving sockets away needs root\n");
    }
    is_root
}

/// Owner, group and mode.
fn seen(path: &Path) -> (u32, u32, u32) {
    let stat = std::fs::symlink_metadata(path).unwrap();
    (stat.uid(), stat.gid(), stat.mode() & 0o7777)
}

fn folder(mode: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    folder
}

#[test]
fn a_socket_that_names_nobody_is_its_owner_s_alone_whatever_the_folder() {
    let (own, group) = (geteuid().as_raw(), getegid().as_raw());
    for mode in [0o700, 0o1777] {
        let folder = folder(mode);
        let path = folder.path().join("s");
        Rights::own().bind(socket(), &place(&path)).unwrap();
        assert_eq!(seen(&path), (own, group, 0o600));
    }
}

#[test]
fn a_socket_is_given_away_and_taken_back_in_place() {
    if !is_root() {
        return;
    }
    let folder = folder(0o755);
    let path = folder.path().join("s");
    rights(Some("1007"), Some("1008"), SocketMode::Group).bind(socket(), &place(&path)).unwrap();
    assert_eq!(seen(&path), (1007, 1008, 0o660));
    let inode = std::fs::symlink_metadata(&path).unwrap().ino();
    for (owner, group, mode, expected) in [
        (Some("1009"), Some("1008"), SocketMode::Owner, (1009, 1008, 0o600)),
        (None, Some("1010"), SocketMode::Group, (0, 1010, 0o660)),
        (Some("1007"), None, SocketMode::Owner, (1007, 0, 0o600)),
        (None, None, SocketMode::Owner, (0, 0, 0o600)),
    ] {
        rights(owner, group, mode).put(&path).unwrap();
        assert_eq!(seen(&path), expected);
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().ino(), inode);
    }
}

/// An ACL by which that user may open it, as `setfacl -m u:UID:rw` or, with `default`, a folder for what is made in it.
fn let_in(uid: u32, path: &Path, default: bool) {
    let entries = [(1u16, 6u16, u32::MAX), (2, 6, uid), (4, 0, u32::MAX), (16, 6, u32::MAX)];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, may, whose) in entries.into_iter().chain([(32, 0, u32::MAX)]) {
        acl.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
        acl.extend(whose.to_le_bytes());
    }
    let name = if default { "system.posix_acl_default" } else { ACL };
    rustix::fs::setxattr(path, name, &acl, rustix::fs::XattrFlags::empty()).unwrap();
}

fn acl_of(path: &Path) -> bool {
    has_acl(&found(&place(path)).unwrap())
}

#[test]
fn who_is_let_in_beside_stays_until_the_rights_change() {
    if !is_root() {
        return;
    }
    let folder = folder(0o755);
    let path = folder.path().join("s");
    let [own, given] = [None, Some("1007")].map(|name| rights(name, None, SocketMode::Owner));
    for before in [&own, &given] {
        before.bind(socket(), &place(&path)).unwrap();
        assert!(!acl_of(&path));
        let_in(1011, &path, false);
        assert_eq!(seen(&path), (before.uid, 0, 0o660));
        before.keep(&path).unwrap();
        assert_eq!((acl_of(&path), seen(&path)), (true, (before.uid, 0, 0o660)), "an heir's");
        // Who is named now is alone.
        let after = rights(Some("1008"), None, SocketMode::Owner);
        after.keep(&path).unwrap();
        assert_eq!((acl_of(&path), seen(&path)), (false, (1008, 0, 0o600)));
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_acl_of_a_folder_is_for_sockets_that_name_nobody() {
    if !is_root() {
        return;
    }
    let folder = folder(0o755);
    let path = folder.path().join("s");
    let_in(1011, folder.path(), true);
    let shared = rights(None, None, SocketMode::Group);
    shared.bind(socket(), &place(&path)).unwrap();
    assert_eq!((acl_of(&path), seen(&path)), (true, (0, 0, 0o660)));
    for put in [Rights::put, Rights::keep] {
        put(&shared, &path).unwrap();
        assert!(acl_of(&path));
    }
    std::fs::remove_file(&path).unwrap();
    rights(Some("1007"), None, SocketMode::Owner).bind(socket(), &place(&path)).unwrap();
    assert_eq!((acl_of(&path), seen(&path)), (false, (1007, 0, 0o600)));
}

#[test]
fn a_folder_that_gives_its_group_still_does() {
    if !is_root() {
        return;
    }
    let folder = folder(0o755);
    std::os::unix::fs::chown(folder.path(), None, Some(1008)).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o2750)).unwrap();
    let path = folder.path().join("s");
    rights(None, None, SocketMode::Group).bind(socket(), &place(&path)).unwrap();
    assert_eq!(seen(&path), (0, 1008, 0o660));
    rights(Some("1007"), None, SocketMode::Owner).put(&path).unwrap();
    assert_eq!(seen(&path), (1007, 1008, 0o600));
}

#[test]
fn nothing_is_given_away_where_others_can_put_a_name() {
    if !is_root() {
        return;
    }
    let given = rights(Some("1007"), None, SocketMode::Owner);
    for (mode, owner) in [(0o1777, 0), (0o770, 0), (0o755, 1007)] {
        let folder = folder(mode);
        std::os::unix::fs::chown(folder.path(), Some(owner), Some(1007)).unwrap();
        let path = folder.path().join("s");
        let error = bound(&given, &path).unwrap_err();
        assert!(is_about_its_folder(&error), "{mode:o}: {error}");
        assert!(std::fs::symlink_metadata(&path).is_err(), "nothing is left");
    }
}

#[test]
fn whom_a_folder_s_acl_lets_write_is_another() {
    if !is_root() {
        return;
    }
    let folder = folder(0o755);
    let_in(1011, folder.path(), false);
    let at = SocketPlace::find(&folder.path().join("s"), Purpose::Socket);
    assert!(matches!(at.map(drop), Err(Refused::Writable { mode: 0o660, .. })));
    let given = rights(Some("1007"), None, SocketMode::Owner);
    let checked = given.check_place(&folder.path().join("s"));
    assert!(matches!(checked, Err(RightsError::Folder(Refused::Writable { .. }))));
}

#[test]
fn what_is_no_socket_of_ours_keeps_its_owner() {
    if !is_root() {
        return;
    }
    let folder = folder(0o755);
    let [path, other] = ["s", "other"].map(|name| folder.path().join(name));
    let given = rights(Some("1007"), None, SocketMode::Owner);
    std::fs::write(&other, "root's").unwrap();
    symlink(&other, &path).unwrap();
    assert!(given.put(&path).is_err());
    std::fs::remove_file(&path).unwrap();
    std::fs::hard_link(&other, &path).unwrap();
    assert!(matches!(given.put(&path), Err(RightsError::Name(Refused::Kind { .. }))));
    assert_eq!(seen(&other).0, 0);
    std::fs::remove_file(&path).unwrap();
    Rights::own().bind(socket(), &place(&path)).unwrap();
    std::fs::hard_link(&path, folder.path().join("second")).unwrap();
    assert!(matches!(given.put(&path), Err(RightsError::Second)));
}

#[test]
fn names_that_nobody_has_are_told() {
    let of = |owner: Option<&str>, group: Option<&str>| {
        let written = SocketRights {
            owner: owner.map(str::to_string),
            group: group.map(str::to_string),
            mode: SocketMode::Owner,
            lets_all_in: false,
        };
        Rights::of(&written, &mut Accounts::default()).map_err(|error| error.to_string())
    };
    let error = of(Some("no-such-user"), None).unwrap_err();
    assert!(error.starts_with("there is no user \"no-such-user\" in /etc/passwd; "), "{error}");
    let error = of(None, Some("no-such-group")).unwrap_err();
    assert!(error.starts_with("there is no group \"no-such-group\" in /etc/group; "), "{error}");
    assert_eq!(of(Some("root"), Some("4711")).unwrap().gid, Some(4711));
}

#[test]
fn no_step_of_the_way_is_one_that_others_can_change() {
    if !is_root() {
        return;
    }
    let given = rights(Some("1007"), None, SocketMode::Owner);
    let top = folder(0o755);
    let [theirs, safe] = ["theirs", "safe"].map(|name| top.path().join(name));
    for path in [&theirs, &safe] {
        std::fs::create_dir(path).unwrap();
        std::fs::create_dir(path.join("run")).unwrap();
    }
    std::os::unix::fs::chown(&theirs, Some(1007), None).unwrap();
    // Its folder is root's, and may be another one in a moment; a link in the place of a folder is as much.
    symlink(safe.join("run"), theirs.join("link")).unwrap();
    for way in ["theirs/run/s", "theirs/link/s", "safe/../theirs/run/s"] {
        let path = top.path().join(way);
        let error = bound(&given, &path).unwrap_err();
        assert!(is_about_its_folder(&error), "{}: {error}", path.display());
        assert!(std::fs::symlink_metadata(path).is_err(), "nothing is made");
    }
    // Root's own link is followed, as /var/run is.
    symlink("../safe/run", safe.join("own")).unwrap();
    given.bind(socket(), &place(&safe.join("own/s"))).unwrap();
    assert_eq!(seen(&safe.join("run/s")), (1007, 0, 0o600));
    // In a folder like /tmp anybody may have put a link.
    let open = folder(0o1777);
    let link = open.path().join("link");
    symlink(safe.join("run"), &link).unwrap();
    given.put(&link.join("s")).unwrap();
    std::os::unix::fs::lchown(&link, Some(1007), None).unwrap();
    let other = rights(Some("1008"), None, SocketMode::Owner);
    let error = other.put(&link.join("s")).unwrap_err();
    assert!(is_about_its_folder(&error), "{error}");
    symlink("loop", safe.join("loop")).unwrap();
    let error = bound(&given, &safe.join("loop/s")).unwrap_err();
    let is_loop = matches!(&error, RightsError::Name(why) if why.errno() == Some(Errno::LOOP));
    assert!(is_loop, "{error}");
}

#[test]
fn what_takes_a_right_that_is_missing_is_known_before() {
    if !is_root() {
        return;
    }
    let folder = folder(0o755);
    let path = folder.path().join("s");
    let checked = |owner: Option<&str>, group: Option<&str>| {
        let rights = rights(owner, group, SocketMode::Group);
        rights.check_may_give(&path).map_err(|error| error.to_string())
    };
    let own_group = getegid().as_raw().to_string();
    let without_the_right = || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::CHOWN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        for is_there in [false, true] {
            assert_eq!(checked(None, None), Ok(()), "{is_there}");
            assert_eq!(checked(None, Some(&own_group)), Ok(()), "{is_there}");
            let refused = checked(Some("1007"), None).unwrap_err();
            let expected = "giving it to user 1007 takes CAP_CHOWN, which the daemon has not; ";
            assert!(refused.starts_with(expected), "{refused}");
            assert!(checked(None, Some("1008")).unwrap_err().contains("to group 1008 takes"));
            if !is_there {
                Rights::own().bind(socket(), &place(&path)).unwrap();
            }
        }
        std::fs::remove_file(&path).unwrap();
    };
    // Capabilities are a thread's.
    std::thread::scope(|scope| scope.spawn(without_the_right).join().unwrap());
    rights(Some("1007"), None, SocketMode::Owner).bind(socket(), &place(&path)).unwrap();
    assert_eq!(checked(Some("1009"), None), Ok(()), "with the right");
    let back = || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::CHOWN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let refused = checked(None, None).unwrap_err();
        assert!(refused.starts_with("giving it to its own user takes CAP_CHOWN"), "{refused}");
    };
    std::thread::scope(|scope| scope.spawn(back).join().unwrap());
}
