//! The table of decisions, and which images are one.

use super::*;

const LABEL: &str = "00112233445566778899aabbccddeeff";

fn file(device: (u32, u32), inode: u64, birth: Option<i64>, label: Option<&str>) -> What {
    What::File { device, inode, birth_ns: birth, label: label.map(str::to_string) }
}

fn block(number: u32, names: &[(&str, &str)], sequence: Option<u64>) -> What {
    let names = names.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
    What::Block { device: (8, number), names, sequence, bytes: 4096 }
}

fn image(name: &str, what: What) -> Image {
    Image { name: name.to_string(), boot: "b1".to_string(), bytes: 4096, cut_to: None, what }
}

fn found(image: &Image) -> Found {
    Found { image: image.clone(), was_bytes: Some(image.bytes) }
}

#[test]
fn a_running_driver_is_served_from_the_same_image_alone() {
    let one = image("/a", file((8, 1), 7, Some(5), Some(LABEL)));
    let renamed = Image { name: "/b".to_string(), ..one.clone() };
    let other = image("/b", file((8, 1), 8, Some(6), None));
    let (is_on, there) = (Some(&one), found(&one));
    let rows = [
        (None, Some(&there), false, Verdict::Remember),
        (None, Some(&there), true, Verdict::Remember),
        (is_on, Some(&there), false, Verdict::Same),
        (is_on, Some(&there), true, Verdict::Same),
        (is_on, Some(&found(&renamed)), true, Verdict::Remember),
        (is_on, Some(&found(&other)), false, Verdict::Remember),
        (is_on, None, true, Verdict::Same),
        (None, None, true, Verdict::Same),
    ];
    for (at, (remembered, found, was_running, verdict)) in rows.into_iter().enumerate() {
        assert_eq!(judge("vm1", remembered, found, was_running), verdict, "row {at}");
    }
    let Verdict::Other(why) = judge("vm1", is_on, Some(&found(&other)), true) else {
        panic!("it is served from another image");
    };
    assert_eq!(
        why.to_string(),
        "its guest was on /a (inode 7, label 00112233), and /b (inode 8) is another image: its requests \
         wait; put that image back, or start the guest anew; `sidecore disk accept vm1` has it go on with \
         what is there, which destroys data unless both hold the same"
    );
}

#[test]
fn another_kind_of_disk_is_another_image() {
    let remote = |disk: &str, number| What::Remote {
        link: "rack".to_string(),
        disk: disk.to_string(),
        number,
    };
    let kinds = [
        What::Null,
        What::Memory,
        file((8, 1), 7, Some(5), None),
        block(1, &[], None),
        remote("a", 1),
        remote("a", 2),
        remote("b", 1),
    ];
    for (at, one) in kinds.iter().enumerate() {
        for (beside, other) in kinds.iter().enumerate() {
            assert_eq!(one.is_same(other, true), at == beside, "{one:?} {other:?}");
        }
    }
}

#[test]
fn a_disk_of_an_iohost_that_says_nothing_of_its_image_is_known_by_its_name() {
    let remote = |number| What::Remote { link: "rack".to_string(), disk: "a".to_string(), number };
    assert!(remote(0).is_same(&remote(7), true) && remote(7).is_same(&remote(0), false));
    let one = image("a of link rack", remote(7));
    assert_eq!((one.told_number(), one.told(8).told_number()), (Some(7), Some(8)));
    assert_eq!(serde_json::from_str::<Image>(&serde_json::to_string(&one).unwrap()).unwrap(), one);
    let before =
        r#"{"name":"a","boot":"b","bytes":512,"what":{"kind":"remote","link":"rack","disk":"a"}}"#;
    assert_eq!(serde_json::from_str::<Image>(before).unwrap().told_number(), Some(0));
}

#[test]
fn clients_are_told_the_same_number_of_one_image_whatever_was_learnt_since() {
    let number = |what: What| image("/a", what).number();
    let one = number(file((8, 1), 7, Some(5), None));
    assert_eq!(one, number(file((9, 9), 7, Some(5), Some(LABEL))), "labelled, after a boot");
    let others = [
        file((8, 1), 7, Some(6), None),
        file((8, 1), 8, Some(5), None),
        file((8, 1), 7, None, Some(LABEL)),
        block(1, &[("dm", "LVM-a")], None),
        block(1, &[("dm", "LVM-b")], None),
    ];
    let mut all: Vec<u64> = others.into_iter().map(number).chain([one]).collect();
    all.sort_unstable();
    all.dedup();
    assert!(all.len() == 6 && !all.contains(&0), "{all:?}");
    for unknown in [file((8, 1), 7, None, None), block(1, &[], Some(3)), What::Memory, What::Null] {
        assert_eq!(number(unknown), 0);
    }
}

#[test]
fn a_file_is_known_by_its_inode_birth_and_label() {
    let one = file((8, 1), 7, Some(5), Some(LABEL));
    let other_label = "f".repeat(32);
    let same = [
        // Its attributes were lost with a copy of its file system's tree, or never written.
        (file((8, 1), 7, Some(5), None), true),
        // NFS, btrfs and overlay have another number at each mount; any device after a boot.
        (file((8, 2), 7, Some(5), Some(LABEL)), false),
    ];
    for (other, same_boot) in same {
        assert!(one.is_same(&other, same_boot) && other.is_same(&one, same_boot), "{other:?}");
    }
    let anonymous = |minor| file((0, minor), 7, Some(5), Some(LABEL));
    assert!(anonymous(40).is_same(&anonymous(41), true));
    let others = [
        // The number of a removed file, used again.
        file((8, 1), 7, Some(6), None),
        file((8, 1), 8, Some(5), Some(LABEL)),
        // Written over in place by a copy that brought its attributes along.
        file((8, 1), 7, Some(5), Some(&other_label)),
        // A copy of the whole file system, mounted beside it.
        file((8, 2), 7, Some(5), Some(LABEL)),
    ];
    for other in others {
        assert!(!one.is_same(&other, true) && !other.is_same(&one, true), "{other:?}");
    }
    // Where there are no birth times, a labelled file does not lose its label.
    let old = file((8, 1), 7, None, Some(LABEL));
    assert!(!old.is_same(&file((8, 1), 7, None, None), true));
    // What says nothing but its number is the same within one boot, on the same device.
    let bare = |device| file(device, 7, None, None);
    assert!(bare((0, 40)).is_same(&bare((0, 40)), true));
    assert!(!bare((0, 40)).is_same(&bare((0, 41)), true));
    assert!(!bare((0, 40)).is_same(&bare((0, 40)), false));
}

#[test]
fn a_device_is_known_by_its_names_and_otherwise_by_its_number_in_one_boot() {
    let volume = |number, uuid: &str, sequence| block(number, &[("dm", uuid)], sequence);
    assert!(volume(1, "LVM-a", Some(3)).is_same(&volume(1, "LVM-a", Some(3)), true));
    assert!(volume(1, "LVM-a", Some(3)).is_same(&volume(9, "LVM-a", Some(4)), true));
    assert!(volume(1, "LVM-a", Some(3)).is_same(&volume(9, "LVM-a", None), false));
    assert!(!volume(1, "LVM-a", Some(3)).is_same(&volume(1, "LVM-b", Some(4)), true));
    let looped = |sequence| block(0, &[("loop", "/srv/a.img")], sequence);
    assert!(looped(Some(3)).is_same(&looped(Some(3)), true));
    assert!(
        !looped(Some(3)).is_same(&looped(Some(4)), true),
        "set up on another file of that name"
    );
    let part = |start| block(1, &[("wwid", "naa.5"), ("start", start)], Some(3));
    assert!(!part("2048").is_same(&part("4096"), true));
    let nameless = |number, sequence| block(number, &[], sequence);
    assert!(nameless(1, Some(3)).is_same(&nameless(1, Some(3)), true));
    assert!(!nameless(1, Some(3)).is_same(&nameless(1, Some(4)), true));
    assert!(!nameless(1, None).is_same(&nameless(2, None), true));
}

#[test]
fn an_image_that_was_cut_off_is_not_made_longer_under_a_guest() {
    let one = image("/a", file((8, 1), 7, Some(5), Some(LABEL)));
    let cut = Found { image: one.clone(), was_bytes: Some(1024) };
    assert!(matches!(judge("vm1", Some(&one), Some(&cut), true), Verdict::Other(_)));
    assert_eq!(judge("vm1", Some(&one), Some(&cut), false), Verdict::Remember);
    // It was made as long as before when it was opened, and the next daemon finds nothing wrong.
    let known = one.cut(&cut).expect("news");
    assert!(matches!(judge("vm1", Some(&known), Some(&found(&one)), true), Verdict::Other(_)));
    assert_eq!(judge("vm1", Some(&known), Some(&found(&one)), false), Verdict::Remember);
    assert_eq!((known.cut(&cut), one.cut(&found(&one))), (None, None));
    let other = image("/b", file((8, 1), 8, Some(6), None));
    assert_eq!(one.cut(&Found { image: other, was_bytes: Some(1024) }), None);
    let longer = found(&one).resized(8192);
    assert_eq!(judge("vm1", Some(&one), Some(&longer), true), Verdict::Remember);
}

#[test]
fn an_identity_is_read_as_it_was_written() {
    let label = Some(LABEL);
    for what in [
        What::Null,
        What::Memory,
        file((8, 1), u64::MAX, Some(i64::MIN), label),
        file((0, 1), 0, None, None),
        block(1, &[("dm", "LVM-x")], Some(u64::MAX)),
        What::Remote { link: "rack".to_string(), disk: "d".to_string(), number: 3 },
    ] {
        let one = image("/a", what);
        let text = serde_json::to_string(&one).expect("text");
        assert_eq!(serde_json::from_str::<Image>(&text).expect(&text), one);
    }
}

#[test]
fn a_guest_that_waits_is_told_what_to_do() {
    let (id, found) = (|| "vm1".to_string(), || Box::new(image("/a", What::Null)));
    let all = [
        (
            ImageRefused::Smaller { id: id(), bytes: 8192, found: found() },
            "its guest was on 8K of /a, and would have 4K: `size` is smaller than it was; put it \
             back and `sidecore reload`, or start the guest anew; `sidecore disk accept vm1` has it go on \
             without what is behind",
        ),
        (
            ImageRefused::Cut { id: id(), bytes: 4096, found: found(), left: 512 },
            "its guest was on 4K of /a, which was cut to 512 bytes: restore it, and then, or to \
             go on with what is there, `sidecore disk accept vm1`; or start the guest anew",
        ),
        (
            ImageRefused::Unreadable { id: id(), why: "/s/vm1: damaged".to_string() },
            "which image its guest was on cannot be read (/s/vm1: damaged): put that file back; or start the \
             guest anew; or, if this is its image, `sidecore disk accept vm1`",
        ),
        (
            ImageRefused::Replaced { path: "/a".to_string() },
            "what is at /a now is not what is open here, for which its guest waits: `sidecore reload` opens \
             what is there",
        ),
        (
            ImageRefused::MemoryLost,
            "its guest used this RAM disk before it was made here, or in another daemon, and what it wrote \
             is not here: restart the guest",
        ),
        (
            ImageRefused::WasEmpty { path: "/a".to_string() },
            "its guest used this disk before it was opened here, and /a was missing or empty then: stop the \
             daemon, put the image back and start it; or restart the guest with the empty one",
        ),
    ];
    for (refused, text) in all {
        assert_eq!(refused.to_string(), text);
    }
}
