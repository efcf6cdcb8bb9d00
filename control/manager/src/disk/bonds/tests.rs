//! What is kept of images, and what cannot be read.

use super::*;
use crate::disk::image::Verdict;

fn of_state(folder: &Path) -> Bonds {
    Bonds::in_folder(folder.to_str().expect("text"))
}

fn image(name: &str) -> Image {
    let text = format!(
        r#"{{"name":"{name}","boot":"b","bytes":512,"what":{{"kind":"file","device":[8,1],"inode":7}}}}"#
    );
    serde_json::from_str(&text).expect("an image")
}

/// Another file.
fn other(name: &str) -> Image {
    let text = serde_json::to_string(&image(name)).expect("text");
    serde_json::from_str(&text.replace("\"inode\":7", "\"inode\":8")).expect("an image")
}

fn none(_: &str) -> bool {
    false
}

#[test]
fn what_is_kept_is_found_by_the_next_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bonds = of_state(folder.path());
    assert_eq!(bonds.of("vm1", "/s1").0, Remembered::Nothing);
    bonds.keep("vm1", Some("/s1"), &image("/a"), none).expect("kept");
    bonds.keep("vm1.new", Some("/s2"), &image("/b"), none).expect("kept");
    let mut again = of_state(folder.path());
    assert_eq!(again.of("vm1", "/s1").0, Remembered::Image(image("/a")));
    assert_eq!(again.of("vm1.new", "/s2").0, Remembered::Image(image("/b")));
    again.forget("vm1", "/s1").expect("forgotten");
    again.forget("vm1", "/s1").expect("nothing to forget");
    assert_eq!(again.of("vm1", "/s1").0, Remembered::Nothing);
}

#[test]
fn what_cannot_be_read_is_not_taken_for_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bonds = of_state(folder.path());
    bonds.keep("vm1", Some("/s1"), &image("/a"), none).expect("kept");
    let path = folder.path().join("images/vm1");
    let text = std::fs::read_to_string(&path).expect("text");
    for damaged in [
        String::new(),
        text[..text.len() / 2].to_string(),
        text.replace("\"version\":1", "\"version\":2"),
        text.replace(FORMAT, "sidecore-state"),
        "x".repeat(1 << 20),
    ] {
        std::fs::write(&path, &damaged).expect("written");
        let bonds = of_state(folder.path());
        let found = bonds.of("vm1", "/s1").0;
        assert!(matches!(found, Remembered::Unreadable(_)), "{found:?}");
        let bond = Bond::new(None, (found, true));
        assert!(matches!(bond.judge("vm1", 0, true), Verdict::Other(_)), "a running driver");
        assert_eq!(bond.judge("vm1", 0, false), Verdict::Remember);
    }
}

#[test]
fn only_so_many_are_kept_and_of_those_that_are_there_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let images = folder.path().join("images");
    std::fs::create_dir_all(&images).expect("a folder");
    for number in 0..FILES_MAX {
        std::fs::write(images.join(format!("d{number}")), "").expect("written");
    }
    let mut bonds = of_state(folder.path());
    bonds.keep("vm1", Some("/s1"), &image("/a"), |id| id != "d77").expect("kept");
    assert_eq!(std::fs::read_dir(&images).expect("entries").count(), FILES_MAX);
    assert_eq!(bonds.of("vm1", "/s1").0, Remembered::Image(image("/a")));
    assert_eq!(bonds.of("d77", "/s77").0, Remembered::Nothing);
}

#[test]
fn the_state_of_a_daemon_that_remembered_nothing_is_told_from_a_new_one() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(!of_state(folder.path()).may_have_missed(true), "there is nothing yet");
    std::fs::write(folder.path().join("disks.json"), "").expect("written");
    let mut bonds = of_state(folder.path());
    assert!(bonds.may_have_missed(false) && bonds.may_have_missed(true));
    bonds.begin();
    assert!(!bonds.may_have_missed(false), "a disk that is added later");
    assert!(bonds.may_have_missed(true), "one that others had until now");
    assert!(!of_state(folder.path()).may_have_missed(true), "the next daemon");
}

#[test]
fn a_guest_is_known_by_its_socket_and_otherwise_by_its_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bonds = of_state(folder.path());
    let of = |bonds: &Bonds, id: &str, socket: &str| match bonds.of(id, socket) {
        (Remembered::Image(image), is_its_own) => (image.name, is_its_own),
        (other, _) => (format!("{other:?}"), true),
    };
    let known = |name: &str, is_its_own| (name.to_string(), is_its_own);
    bonds.keep("one", Some("/s1"), &image("/a"), none).expect("kept");
    bonds.keep("two", Some("/s2"), &image("/b"), none).expect("kept");
    bonds.keep("exported", None, &image("/c"), none).expect("kept");
    for _ in 0..2 {
        assert_eq!(of(&bonds, "one", "/s1"), known("/a", true));
        // Two disks swap their sockets: guests do not.
        assert_eq!(of(&bonds, "one", "/s2"), known("/b", false));
        assert_eq!(of(&bonds, "two", "/s1"), known("/a", false));
        // A disk has another name, or another socket.
        assert_eq!(of(&bonds, "renamed", "/s1"), known("/a", false));
        assert_eq!(of(&bonds, "one", "/new"), known("/a", false));
        assert_eq!(of(&bonds, "exported", "/new"), known("/c", false));
        assert_eq!(of(&bonds, "new", "/new").0, "Nothing");
        bonds = of_state(folder.path());
    }
    // It was noted under its new name: the old one has that socket no more.
    bonds.keep("renamed", Some("/s1"), &image("/a"), none).expect("kept");
    for _ in 0..2 {
        assert_eq!(of(&bonds, "renamed", "/s1"), known("/a", true));
        assert_eq!(of(&bonds, "two", "/s1"), known("/a", false));
        assert_eq!(of(&bonds, "one", "/elsewhere"), known("/a", false));
        bonds = of_state(folder.path());
    }
    bonds.forget("two", "/s1").expect("forgotten");
    assert_eq!(of(&bonds, "two", "/s1").0, "Nothing");
    assert_eq!(of(&bonds, "renamed", "/s1").0, "Nothing");
}

/// Two disks swap their sockets; the one guest begins anew before the other one comes back.
#[test]
fn what_a_guest_was_on_is_known_though_its_disk_has_another_guest() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bonds = of_state(folder.path());
    let on = |bonds: &Bonds, id: &str, socket: &str| bonds.of(id, socket);
    let image_of = |name| Remembered::Image(image(name));
    bonds.keep("one", Some("/s1"), &image("/a"), none).expect("kept");
    bonds.keep("two", Some("/s2"), &image("/b"), none).expect("kept");
    bonds.keep("one", Some("/s2"), &image("/a"), none).expect("kept");
    for _ in 0..2 {
        assert_eq!(on(&bonds, "two", "/s1"), (image_of("/a"), false), "whose disk is another's");
        assert_eq!(on(&bonds, "one", "/s2"), (image_of("/a"), true));
        bonds = of_state(folder.path());
    }
    // A guest of a third socket parts from the disk: what is known by the other one stays.
    bonds.forget("one", "/s3").expect("forgotten");
    assert_eq!(on(&bonds, "one", "/s2"), (image_of("/a"), false));
    // So it does when the disk is exported.
    bonds.keep("two", Some("/s4"), &image("/b"), none).expect("kept");
    bonds.keep("two", None, &image("/c"), none).expect("kept");
    assert_eq!(on(&bonds, "new", "/s4"), (image_of("/b"), false));
    // It begins anew: what it was on is over.
    bonds.keep("two", Some("/s1"), &image("/c"), none).expect("kept");
    for _ in 0..2 {
        assert_eq!(on(&bonds, "two", "/s1"), (image_of("/c"), true));
        bonds = of_state(folder.path());
    }
    let left = std::fs::read_dir(folder.path().join("images")).expect("a folder").count();
    assert_eq!(left, 3, "two, and of two sockets");
}

#[test]
fn a_folder_that_cannot_be_read_lets_no_driver_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bonds = of_state(folder.path());
    bonds.keep("vm1", Some("/s1"), &image("/a"), none).expect("kept");
    let images = folder.path().join("images");
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(&images, mode(0o777)).expect("a mode");
    let mut bonds = of_state(folder.path());
    for (id, socket) in [("vm1", "/s1"), ("vm2", "/s2")] {
        let found = bonds.of(id, socket).0;
        let Remembered::Unreadable(why) = &found else { panic!("{found:?}") };
        assert!(why.contains("images"), "{why}");
        assert!(matches!(Bond::new(None, (found, true)).judge(id, 0, true), Verdict::Other(_)));
    }
    std::fs::set_permissions(&images, mode(0o700)).expect("a mode");
    // What is kept from here on is known.
    bonds.keep("vm2", Some("/s2"), &image("/b"), none).expect("kept");
    assert_eq!(bonds.of("vm2", "/s2").0, Remembered::Image(image("/b")));
    assert_eq!(of_state(folder.path()).of("vm1", "/s1").0, Remembered::Image(image("/a")));
}

#[test]
fn what_is_known_by_a_socket_is_kept_under_the_name_of_the_disk() {
    let there = |name: &str| {
        let mut found = Bond::new(None, (Remembered::Nothing, true));
        found.find(Some(crate::disk::image::Found { image: image(name), was_bytes: None }));
        found
    };
    let mut bond = there("/a");
    assert_eq!(bond.judge("vm1", 0, true), Verdict::Remember);
    bond.begin(0, &Verdict::Remember, || None);
    assert_eq!(bond.take_unkept(), Some(image("/a")));
    // Its other rings are judged as the first one was, and nothing is kept for them.
    assert_eq!(bond.judge("vm1", 0, true), Verdict::Remember);
    bond.begin(0, &Verdict::Remember, || None);
    assert_eq!(bond.take_unkept(), None);
    assert_eq!(bond.judge("vm1", 1, true), Verdict::Same);
    let found = crate::disk::image::Found { image: image("/a"), was_bytes: None };
    let mut bond = Bond::new(Some(found), (Remembered::Image(image("/a")), false));
    assert_eq!(bond.judge("vm1", 0, true), Verdict::Remember);
    bond.begin(0, &Verdict::Remember, || None);
    assert_eq!(bond.judge("vm1", 0, true), Verdict::Same);
}

/// A daemon that took over while its guest was paused, and the image away, has nothing else to go by.
#[test]
fn an_image_that_comes_back_is_held_against_what_its_guest_was_on() {
    let found = |image| Some(crate::disk::image::Found { image, was_bytes: None });
    let on_a = || Bond::new(None, (Remembered::Image(image("/a")), true));
    assert!(on_a().find(found(other("/a"))), "another file of that name");
    assert!(!on_a().find(found(image("/a"))) && !on_a().find(None));
    assert!(!Bond::new(None, (Remembered::Nothing, true)).find(found(image("/a"))));
    let mut bond = on_a();
    assert!(!bond.find(found(image("/a"))) && bond.find(found(other("/a"))), "the second time");
}

/// The first guest of a disk has nothing remembered before it; another image under the same connection is another one.
#[test]
fn a_front_end_that_stays_is_judged_by_what_its_guest_is_on() {
    let found = |image| Some(crate::disk::image::Found { image, was_bytes: None });
    let mut bond = Bond::new(found(image("/a")), (Remembered::Nothing, true));
    bond.begin(3, &Verdict::Remember, || None);
    assert!(!bond.find(found(image("/a"))));
    assert_eq!(bond.judge("vm1", 3, true), Verdict::Remember, "its other rings");
    assert!(bond.find(found(other("/a"))));
    assert!(matches!(bond.judge("vm1", 3, true), Verdict::Other(_)));
}

/// What could not be kept is kept later, and told of once.
#[test]
fn what_could_not_be_kept_is_tried_again() {
    let found = crate::disk::image::Found { image: image("/a"), was_bytes: None };
    let mut bond = Bond::new(Some(found), (Remembered::Nothing, true));
    bond.begin(3, &Verdict::Remember, || None);
    for is_news in [true, false] {
        let unkept = bond.take_unkept().expect("to be kept");
        assert_eq!(bond.kept(&unkept, Some("no room".to_string())), is_news);
        assert_eq!(bond.unkept_why(), Some("no room"));
    }
    let unkept = bond.take_unkept().expect("to be kept");
    assert!(!bond.kept(&unkept, None));
    assert_eq!(bond.unkept_why(), None);
    assert_eq!(bond.take_unkept(), None);
}

#[test]
fn what_an_iohost_has_said_holds_until_it_says_otherwise_whatever_rings_do() {
    let found = || Some(crate::disk::image::Found { image: image("/a"), was_bytes: None });
    let mut bond = Bond::new(found(), (Remembered::Image(image("/a")), true));
    bond.refuse_connection(0, "here".to_string());
    bond.begin(0, &Verdict::Same, || None);
    assert_eq!(bond.refused(), None, "it was served after all");
    bond.refuse_there("there".to_string());
    bond.begin(0, &Verdict::Same, || None);
    assert_eq!(bond.refused(), Some("there"), "another ring of the same guest");
    bond.forget_refusal();
    assert_eq!((bond.refused(), bond.refusals()), (None, 2));
    bond.refuse_there("there".to_string());
    assert!(bond.accept().is_some() && bond.refused().is_none());
}

/// A ring that nobody has used yet looks new, and the next one shows that the driver was running.
#[test]
fn a_guest_that_seemed_to_be_new_is_on_the_image_before() {
    let found = crate::disk::image::Found { image: other("/b"), was_bytes: None };
    let mut bond = Bond::new(Some(found), (Remembered::Image(image("/a")), true));
    let begun = bond.judge("vm1", 3, false);
    assert_eq!(begun, Verdict::Remember);
    bond.begin(3, &begun, || None);
    assert_eq!(bond.take_unkept(), Some(other("/b")));
    let Verdict::Other(why) = bond.judge("vm1", 3, true) else { panic!("it is served") };
    bond.refuse_connection(3, why.to_string());
    assert_eq!(bond.take_unkept(), Some(image("/a")), "what is kept is put right");
    // Whoever comes next is judged by that.
    assert!(matches!(bond.judge("vm1", 4, true), Verdict::Other(_)));
    assert_eq!(bond.judge("vm1", 4, false), Verdict::Remember);
}

/// One socket by two names: a swap that is written with the other ones is a swap all the same.
#[test]
fn a_socket_is_one_however_it_is_spelled() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("text").to_string();
    std::fs::create_dir(at("run")).expect("a folder");
    std::os::unix::fs::symlink("run", at("var")).expect("a link");
    let state = folder.path().join("state");
    let mut bonds = of_state(&state);
    bonds.keep("one", Some(&at("run/s1")), &image("/a"), none).expect("kept");
    bonds.keep("two", Some(&at("var/s2")), &image("/b"), none).expect("kept");
    for _ in 0..2 {
        for (id, socket, name) in [
            ("one", "var/s2", "/b"),
            ("one", "run/../run/s2", "/b"),
            ("two", "run/../var/s1", "/a"),
            ("two", "run//./s1", "/a"),
        ] {
            let found = bonds.of(id, &at(socket));
            assert_eq!(found, (Remembered::Image(image(name)), false), "{id} at {socket}");
        }
        assert!(bonds.of("one", &at("var/s1")).1 && bonds.of("two", &at("run/s2")).1);
        bonds = of_state(&state);
    }
    bonds.forget("new", &at("var/s1")).expect("forgotten");
    assert_eq!(bonds.of("new", &at("run/s1")).0, Remembered::Nothing);
}
