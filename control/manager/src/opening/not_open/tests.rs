//! Each reason why a device is not open: whether it passes, and what an operator reads.

use backend::OpenError;
use config::plan::load;
use cpus::HostCpus;

use super::*;

fn plan(more: &str) -> DiskPlan {
    let text = format!("[[disk]]\nid = \"a\"\npath = \"/srv/a.img\"\n{more}");
    let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
    load(&text, "f", "/", &host, None).expect("a plan").disks.remove(0)
}

fn os(source: Errno) -> OpenError {
    OpenError::Os { what: "open", path: "/srv/a.img".into(), source }
}

#[test]
fn what_the_kernel_says_comes_with_what_to_do() {
    let put_back = "; correct `path`, put the image back, or for a new disk add a `size`: then an empty one is made";
    let make = "; correct `path`, or make what it names";
    let rights =
        "; the daemon's user must be able to read it, and to write it if it is not `readonly`";
    let nobody =
        "; the kernel lets nobody open it: see who else has it, and what the daemon's rights are";
    let writable = "; make it writable, or say `readonly` if its guest shall only read it";
    let few =
        "; the daemon has too few descriptors: raise `LimitNOFILE` in its unit, or `ulimit -Hn`";
    for (source, more, advice) in [
        (Errno::NOENT, "", put_back),
        (Errno::NOENT, "size = \"1M\"\n", make),
        (Errno::NOENT, "readonly = true\n", make),
        (Errno::ACCESS, "", rights),
        (Errno::PERM, "", writable),
        (Errno::PERM, "readonly = true\n", nobody),
        (Errno::ROFS, "", writable),
        (Errno::MFILE, "", few),
        (Errno::IO, "", ""),
    ] {
        let error = os(source);
        let why = NotOpen::new(&error, &plan(more));
        assert_eq!(why, NotOpen::Wrong(format!("{error}{advice}")), "{source:?} {more}");
        assert_eq!(why.obstacle(), Obstacle::Lasting);
    }
}

#[test]
fn who_has_an_image_decides_whether_it_is_waited_for() {
    let held = |holder| OpenError::Held {
        path: "/srv/a.img".into(),
        holder,
        may_land: false,
        is_marked: false,
    };
    let landing = |holder| OpenError::Held {
        path: "/srv/a.img".into(),
        holder,
        may_land: true,
        is_marked: false,
    };
    let own = std::process::id();
    let cases = [
        (held(Holder::Ended(Some(7))), Obstacle::Passing),
        (held(Holder::Ended(None)), Obstacle::Passing),
        (held(Holder::Heir { maker: 7, pid: 1 }), Obstacle::Passing),
        (held(Holder::Living(own)), Obstacle::Ours),
        (held(Holder::Living(1)), Obstacle::Living),
        (landing(Holder::Living(1)), Obstacle::Living),
        (landing(Holder::Ended(None)), Obstacle::Passing),
        (OpenError::Leased("/srv/a.img".into()), Obstacle::Passing),
        (OpenError::NotADisk("/srv/a.img".into()), Obstacle::Lasting),
        (OpenError::UsedByHost("/dev/sda".into()), Obstacle::Lasting),
        (OpenError::Empty { path: "/srv/a.img".into(), size_bytes: 0 }, Obstacle::Lasting),
    ];
    let kept = OpenError::Held {
        path: "/srv/a.img".into(),
        holder: Holder::Living(1),
        may_land: false,
        is_marked: true,
    };
    let words = kept.to_string();
    assert!(words.ends_with("says `sidecore disk clear` at that one"), "{words}");
    assert_eq!(NotOpen::new(&kept, &plan("")).obstacle(), Obstacle::Living);
    for (error, obstacle) in cases {
        let why = NotOpen::new(&error, &plan(""));
        assert_eq!(why.obstacle(), obstacle, "{error}");
        assert!(why.to_string().starts_with(&error.to_string()), "{why}");
    }
}

#[test]
fn of_what_nobody_knows_it_is_said_why_nobody_knows() {
    let late = NotOpen::not_yet(NotYet::Late, "/srv/a.img");
    assert_eq!(
        late.to_string(),
        "/srv/a.img is still being opened: its file system has not answered yet"
    );
    let none = NotOpen::not_yet(NotYet::NoThread, "/srv/a.img");
    let expected = "/srv/a.img is not being opened yet: no thread is free for it, since file systems of other disks do \
                    not answer; it is tried again";
    assert_eq!(none.to_string(), expected);
    assert_eq!((late.obstacle(), none.obstacle()), (Obstacle::Passing, Obstacle::Passing));
}

#[test]
fn a_refusal_says_what_its_reason_says_to_do_or_something_else() {
    let why = NotOpen::wrong("it is gone; put it back; or not");
    let refused = refused_with("disk \"a\"", &why, "name another one");
    assert_eq!(
        (refused.error.as_str(), refused.hint.as_str()),
        ("disk \"a\": it is gone", "put it back; or not")
    );
    let refused = refused_with("disk \"a\"", &NotOpen::wrong("it is gone"), "name another one");
    assert_eq!(
        (refused.error.as_str(), refused.hint.as_str()),
        ("disk \"a\": it is gone", "name another one")
    );
    assert_eq!(refused.kind, ErrorKind::Refused);
}
