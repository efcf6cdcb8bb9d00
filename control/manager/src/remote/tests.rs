//! What operators and guests are promised of links and of disks that go by them: a daemon that is linked with itself.

mod handed;
mod shown;
mod wire;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use config::api::{Answer, Call, DiskState, DiskView, ErrorKind, LinkView, NicState};
use config::spec::DiskSpec;
use remote::handshake::public_key;

use crate::simulated::{Asked, Heard};
use crate::trial::vmm::{FLUSH, READ, Vmm, WRITE, dial};
use crate::trial::{Trial, refused};
use wire::OnGround;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// An IOhost's end that lends `d`, and a client's by which `r` is that disk.
const LENDS: &str = "[[link]]\nid = \"out\"\nrole = \"iohost\"\nudp = \"10.0.0.1:7447\"\nsecurity = \"none\"\nlease_s = 4\n\
                     [[link.client]]\nname = \"me\"\ndisks = [\"d\"]\n";
const LENT: &str = "[[disk]]\nid = \"d\"\nbackend = \"memory\"\nsize = \"1M\"\n";
const USES: &str = "[[link]]\nid = \"in\"\nrole = \"client\"\niohosts = [\"10.0.0.1:7447\"]\nsecurity = \"none\"\n";
const USED: &str = "[[disk]]\nid = \"r\"\nlink = \"in\"\nremote = \"d\"\n";

fn linked() -> (OnGround, Trial) {
    let ground = OnGround::new();
    let mut trial = Trial::of(&format!("{LENDS}{LENT}{USES}{USED}"));
    trial.pass(ms(100));
    (ground, trial)
}

fn links(trial: &mut Trial) -> Vec<LinkView> {
    match trial.ask(Call::ListLinks) {
        Ok(Answer::Links(list)) => list.links,
        other => panic!("{other:?}"),
    }
}

fn link(trial: &mut Trial, id: &str) -> LinkView {
    links(trial).into_iter().find(|link| link.id == id).expect("a link")
}

/// The disk of that name once it has a socket: what goes by a link comes by and by.
fn open(trial: &mut Trial, id: &str) -> DiskView {
    for _ in 0..100 {
        let disk = trial.disk(id);
        if disk.problem.is_none() && dial(&trial.socket(id)).is_some() {
            return disk;
        }
        trial.pass(ms(100));
    }
    panic!("it does not open: {:?}", trial.disk(id).problem)
}

fn answered(asked: &mut Asked) -> bool {
    match asked.hear() {
        Heard::Answer(_) => true,
        Heard::Nothing => false,
        Heard::Nobody => panic!("nobody answers"),
    }
}

#[test]
fn a_client_and_its_iohost_find_each_other_and_say_so() {
    let (_ground, mut trial) = linked();
    let (out, into) = (link(&mut trial, "out"), link(&mut trial, "in"));
    assert_eq!((out.problem.as_deref(), into.problem.as_deref()), (None, None));
    assert_eq!((out.sessions, into.sessions), (1, 1));
    assert_eq!(into.peer.as_deref(), Some("10.0.0.1:7447"));
    assert_eq!(out.addresses, ["10.0.0.1:7447"]);
    assert_eq!((out.frames_dropped, into.frames_dropped), (0, 0));
    // What a disk is, its IOhost says; whom it lends one has no socket for a guest of its own.
    let (lent, used) = (trial.disk("d"), open(&mut trial, "r"));
    assert_eq!((used.state, used.size_bytes), (DiskState::Waiting, lent.size_bytes));
    assert_eq!((used.link.as_deref(), used.remote.as_deref()), (Some("in"), Some("d")));
    assert!(dial(&trial.socket("d")).is_none());
}

#[test]
fn a_guest_s_disk_is_that_of_the_iohost() {
    let (_ground, mut trial) = linked();
    open(&mut trial, "r");
    let mut vmm = Vmm::served(&mut trial, "r", 1);
    for (kind, fill) in [(WRITE, 5), (FLUSH, 0), (READ, 0)] {
        assert_eq!(does(&mut trial, &mut vmm, kind, 9, fill), Some(0));
    }
    assert_eq!(vmm.guest.data(0), [5; 512]);
    let lent = trial.disk("d");
    assert_eq!((lent.state, lent.queues_attached), (DiskState::Running, 1));
    assert_eq!(lent.counters.writes, 1, "{:?}", lent.counters);
    // It comes to rest when its guest has gone, and is where it was for the next one.
    drop(vmm);
    trial.pass(ms(100));
    let mut vmm = Vmm::served(&mut trial, "r", 1);
    assert_eq!(does(&mut trial, &mut vmm, READ, 9, 0), Some(0));
    assert_eq!(vmm.guest.data(0), [5; 512]);
}

/// Has a request done, however long its frames take.
fn does(trial: &mut Trial, vmm: &mut Vmm, kind: u32, sector: u64, fill: u8) -> Option<u8> {
    vmm.guest.request(0, kind, sector, fill);
    ends(trial, vmm)
}

fn ends(trial: &mut Trial, vmm: &mut Vmm) -> Option<u8> {
    for _ in 0..100 {
        trial.pass(ms(10));
        let status = vmm.guest.status(0);
        if status.is_some() {
            return status;
        }
    }
    None
}

/// Nothing that a guest wrote is lost or done twice by a network that is cut; its requests wait.
#[test]
fn requests_wait_for_an_iohost_that_is_silent_and_end_when_it_is_heard() {
    let (ground, mut trial) = linked();
    open(&mut trial, "r");
    let mut vmm = Vmm::served(&mut trial, "r", 1);
    assert_eq!(does(&mut trial, &mut vmm, WRITE, 1, 1), Some(0));
    for time in [500, 20_000] {
        ground.cut(true);
        vmm.guest.request(0, WRITE, 2, 7);
        trial.pass(ms(time));
        assert_eq!(vmm.guest.status(0), None, "it waits");
        ground.cut(false);
        trial.pass(ms(3_000));
        assert_eq!(ends(&mut trial, &mut vmm), Some(0), "after {time} ms");
    }
    assert_eq!(does(&mut trial, &mut vmm, READ, 2, 0), Some(0));
    assert_eq!(vmm.guest.data(0), [7; 512]);
}

#[test]
fn a_silence_that_is_longer_than_a_lease_is_told_at_both_ends_and_forgotten() {
    let (ground, mut trial) = linked();
    open(&mut trial, "r");
    let mut vmm = Vmm::served(&mut trial, "r", 1);
    assert_eq!(does(&mut trial, &mut vmm, WRITE, 1, 1), Some(0));
    ground.cut(true);
    vmm.guest.request(0, READ, 1, 0);
    trial.pass(ms(20_000));
    // Its lease is over: the disk is nobody's at its IOhost, who has it free for the next one.
    assert_eq!(link(&mut trial, "out").sessions, 0);
    assert_eq!(trial.disk("d").queues_attached, 0);
    let why = trial.disk("r").problem.expect("a reason");
    assert!(why.contains("10.0.0.1:7447") || why.contains("IOhost"), "{why}");
    ground.cut(false);
    assert_eq!(ends(&mut trial, &mut vmm).or_else(|| ends(&mut trial, &mut vmm)), Some(0));
    assert_eq!((link(&mut trial, "out").sessions, link(&mut trial, "in").sessions), (1, 1));
    assert_eq!(trial.disk("r").problem, None);
    assert_eq!(trial.disk("d").queues_attached, 1);
}

#[test]
fn a_socket_that_is_not_to_be_had_is_tried_again_each_second() {
    let ground = OnGround::new();
    ground.0.is_full.set(true);
    let mut trial = Trial::of(&format!("{LENDS}{LENT}{USES}{USED}"));
    for id in ["out", "in"] {
        let why = link(&mut trial, id).problem.expect("a reason");
        assert!(why.contains("udp "), "{why}");
    }
    let why = trial.disk("r").problem.expect("a reason");
    assert!(!why.is_empty());
    let before = trial.turns;
    trial.pass(ms(10_000));
    assert!(trial.turns - before < 150, "{} turns in 10 s", trial.turns - before);
    ground.0.is_full.set(false);
    trial.pass(ms(3_000));
    assert!(links(&mut trial).iter().all(|link| link.problem.is_none()));
    open(&mut trial, "r");
}

#[test]
fn a_disk_that_a_client_may_not_have_waits_and_says_why_and_comes_when_it_may() {
    let ground = OnGround::new();
    let other = format!("{LENT}{}", LENT.replace("\"d\"", "\"e\""));
    let text = |disks: &str| format!("{}{other}{USES}{USED}", LENDS.replace("\"d\"", disks));
    let mut trial = Trial::of(&text("\"e\""));
    trial.pass(ms(3_000));
    let shown = trial.disk("r");
    assert_eq!(shown.state, DiskState::Waiting);
    let why = shown.problem.expect("a reason");
    assert!(why.contains("has no disk") || why.contains("no such disk"), "{why}");
    assert!(dial(&trial.socket("r")).is_none());
    trial.reload(&text("\"d\", \"e\""), false).expect("it is done");
    open(&mut trial, "r");
    drop(ground);
}

#[test]
fn a_lent_disk_that_grows_grows_for_its_client() {
    for has_guest in [true, false] {
        let _ground = OnGround::new();
        let lent =
            |size: &str| format!("[[disk]]\nid = \"d\"\npath = \"{{}}/d.img\"\nsize = {size:?}\n");
        let mut trial = Trial::of(&format!("{LENDS}{}{USES}{USED}", lent("1M")));
        open(&mut trial, "r");
        let mut vmm = has_guest.then(|| Vmm::served(&mut trial, "r", 1));
        let text = format!("{LENDS}{}{USES}{USED}", lent("2M"));
        trial.reload(&text, true).expect("it is done");
        trial.pass(ms(5_000));
        assert_eq!(trial.disk("d").size_bytes, Some(2 << 20));
        if let Some(vmm) = &mut vmm {
            assert_eq!(trial.disk("r").size_bytes, Some(2 << 20), "it is told at once");
            // The last sector that there is now.
            assert_eq!(does(&mut trial, vmm, WRITE, 4095, 3), Some(0));
            assert!(!vmm.is_cut_off(&mut trial));
        } else {
            // Whoever comes next is.
            let mut vmm = Vmm::served(&mut trial, "r", 1);
            assert_eq!(does(&mut trial, &mut vmm, WRITE, 4095, 3), Some(0));
            assert_eq!(trial.disk("r").size_bytes, Some(2 << 20));
        }
    }
}

/// Whoever reaches its port can send anything.
#[test]
fn what_strangers_send_is_dropped_and_counted_and_disturbs_nobody() {
    let (ground, mut trial) = linked();
    open(&mut trial, "r");
    let mut vmm = Vmm::served(&mut trial, "r", 1);
    let before = link(&mut trial, "out");
    for length in 0..200 {
        let frame: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
        ground.send("10.9.9.9:1", "10.0.0.1:7447", &frame);
        trial.rest();
    }
    trial.pass(ms(1_000));
    let after = link(&mut trial, "out");
    assert!(after.frames_dropped >= before.frames_dropped + 190, "{}", after.frames_dropped);
    assert_eq!((after.sessions, after.problem), (1, None));
    assert_eq!(does(&mut trial, &mut vmm, WRITE, 1, 1), Some(0));
}

#[test]
fn a_disk_of_a_link_stays_with_it_and_an_operator_who_removes_it_is_answered() {
    let (_ground, mut trial) = linked();
    open(&mut trial, "r");
    let _vmm = Vmm::served(&mut trial, "r", 1);
    let wish = config::spec::DiskMove { to: config::Target::Sidecore(0), queue: None };
    let (_, why) = refused(trial.ask(Call::MoveDisk { id: "r".to_string(), wish }));
    assert!(
        why.starts_with("the queues of disk \"r\" are where its link is; they stay there"),
        "{why}"
    );
    // One more by the same link, for a disk that is not lent, is removed though nobody ever answered for it.
    let spec: DiskSpec =
        serde_json::from_value(serde_json::json!({"id": "x", "link": "in"})).expect("a disk");
    let mut adds = trial.asks(Call::AddDisk { spec, force: false });
    trial.pass(ms(20_000));
    assert!(answered(&mut adds));
    let mut removes = trial.asks(Call::RemoveDisk { id: "x".to_string(), force: false });
    trial.pass(ms(1_000));
    assert!(answered(&mut removes));
    assert_eq!(trial.disk("r").queues_attached, 1);
}

#[test]
fn nothing_is_left_of_disks_that_go() {
    let (_ground, mut trial) = linked();
    let before = trial.daemon.bounds();
    open(&mut trial, "r");
    let vmm = Vmm::served(&mut trial, "r", 1);
    let without = format!("{LENDS}{LENT}{USES}");
    trial.reload(&without, true).expect("it is done");
    drop(vmm);
    trial.pass(ms(2_000));
    // Of two links each has a shard's load, and no queue any more.
    assert_eq!(trial.daemon.loads().iter().sum::<usize>(), 2);
    assert_eq!(trial.disk("d").queues_attached, 0, "it was given back");
    assert_eq!(trial.daemon.devices(), 1);
    assert!(trial.daemon.bounds().descriptors.promised < before.descriptors.promised);
    trial.reload(&format!("{without}{USED}"), true).expect("it is done");
    open(&mut trial, "r");
}

/// Private keys, each of one byte again and again, in files of the trial's folder, and what of them others know.
fn keys(folder: &tempfile::TempDir) -> [String; 3] {
    [("host", 3), ("client", 5), ("stranger", 7)].map(|(name, byte)| {
        let hex = |key: [u8; 32]| key.map(|byte| format!("{byte:02x}")).concat();
        let file = folder.path().join(name);
        std::fs::write(&file, hex([byte; 32])).expect("a file");
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("set");
        hex(public_key(&[byte; 32]).expect("a key"))
    })
}

/// Both ends with keys: that of the client, whom the IOhost takes for its client, and whom that takes for its IOhost.
fn sealed(own: &str, client: &str, iohost: &str) -> String {
    let lends = LENDS.replace("security = \"none\"", "key_file = \"{}/host\"");
    let lends = lends.replace("name = \"me\"", &format!("name = \"me\"\nkey = {client:?}"));
    let keys = format!("key_file = \"{{}}/{own}\"\niohost_key = {iohost:?}");
    format!("{lends}{LENT}{}{USED}", USES.replace("security = \"none\"", &keys))
}

#[test]
fn a_link_with_keys_is_between_those_who_have_them_and_nobody_else() {
    let folder = crate::trial::folder();
    let [host, client, stranger] = keys(&folder);
    let cases = [
        ("client", &client, &host, true),
        // Its key is none of a client's, and it takes another machine for its IOhost.
        ("stranger", &client, &host, false),
        ("client", &stranger, &host, false),
        ("client", &client, &stranger, false),
    ];
    for (own, of_client, of_host, is_one) in cases {
        let _ground = OnGround::new();
        let text = sealed(own, of_client, of_host);
        let mut trial = Trial::start(&text, std::rc::Rc::clone(&folder)).expect("it starts");
        trial.pass(ms(5_000));
        let sessions = (link(&mut trial, "out").sessions, link(&mut trial, "in").sessions);
        assert_eq!(sessions, if is_one { (1, 1) } else { (0, 0) }, "{own}");
        if is_one {
            open(&mut trial, "r");
            let mut vmm = Vmm::served(&mut trial, "r", 1);
            assert_eq!(does(&mut trial, &mut vmm, WRITE, 1, 1), Some(0));
        } else {
            let shown = trial.disk("r");
            assert_eq!(shown.state, DiskState::Waiting);
            assert!(shown.problem.is_some(), "{own}");
            let iohost = link(&mut trial, "out");
            assert!(iohost.hellos_refused > 0, "{own}");
            assert!(iohost.frames_dropped >= iohost.hellos_refused, "{own}");
            // What is for another IOhost's key cannot be read: where it came from is told, and not proven, so that it is
            // no problem.
            let (reason, is_problem) = match *of_host == host {
                true => ("a stranger", true),
                false => ("made with another `security`, or for another IOhost's key", false),
            };
            let problem = iohost.problem.unwrap_or_default();
            let is_told = problem.contains(&format!("was refused: {reason}; "));
            assert_eq!((is_told, problem.is_empty()), (is_problem, !is_problem), "{problem}");
            let told: Vec<_> = iohost.refusals.iter().map(|it| it.reason.as_str()).collect();
            assert!(matches!(told[..], [told] if told.starts_with(reason)), "{told:?}");
            let refusal = &iohost.refusals[0];
            assert_eq!(refusal.count, iohost.hellos_refused);
            assert!(refusal.from.as_ref().is_some_and(|from| from.starts_with("10.0.0.")));
            assert!(refusal.ago_s.is_some_and(|ago| ago < 5), "{refusal:?}");
            // An operator who adds its key to the file has it come by itself.
            let right = sealed(own, &public_of(own, &folder), &host);
            if *of_host == host {
                trial.reload(&right, false).expect("it is done");
                trial.pass(ms(20_000));
                assert_eq!(link(&mut trial, "in").sessions, 1, "{own}");
            }
        }
    }
}

fn public_of(name: &str, folder: &tempfile::TempDir) -> String {
    let own = super::read_key(&folder.path().join(name)).expect("a key");
    public_key(&own).expect("a key").map(|byte| format!("{byte:02x}")).concat()
}

#[test]
fn a_link_s_key_that_is_of_no_use_keeps_the_daemon_from_starting_and_says_why() {
    let folder = crate::trial::folder();
    let [host, client, _] = keys(&folder);
    let start = |text: &str| {
        let _ground = OnGround::new();
        match Trial::start(text, std::rc::Rc::clone(&folder)) {
            Ok(_) => panic!("it starts"),
            Err(why) => why.to_string(),
        }
    };
    let why = start(&sealed("nobody", &client, &host));
    assert!(why.contains("\"in\"") && why.contains("nobody"), "{why}");
    // Its own key for its IOhost's: it would be answered by nobody but itself.
    let why = start(&sealed("client", &client, &client));
    assert!(why.contains("\"in\""), "{why}");
    std::fs::set_permissions(folder.path().join("client"), Permissions::from_mode(0o644))
        .expect("set");
    let why = start(&sealed("client", &client, &host));
    assert!(why.contains("chmod 600"), "{why}");
}

/// A NIC of a switch of the IOhost, for the client's guest.
fn with_nic(nics: &str) -> String {
    let lends = LENDS.replace("disks = [\"d\"]", &format!("disks = [\"d\"]\nnics = {nics}"));
    let switch = "[[switch]]\nid = \"lan\"\n[[switch.uplink]]\nremote = \"n1\"\n[[switch.uplink]]\nremote = \"n2\"\n\
                  [[nic]]\nid = \"b\"\nswitch = \"lan\"\n";
    let nic = "[[nic]]\nid = \"c\"\nby_link = \"in\"\nremote = \"n1\"\n";
    format!("{lends}{LENT}{USES}{switch}{nic}")
}

#[test]
fn a_nic_by_a_link_is_at_the_switch_of_its_iohost_as_soon_as_it_may_be() {
    let _ground = OnGround::new();
    let mut trial = Trial::of(&with_nic("[\"n2\"]"));
    let (mut b, c) = (Vmm::of_nic(&mut trial, "b"), Vmm::of_nic(&mut trial, "c"));
    trial.pass(ms(3_000));
    let is_lost = |trial: &mut Trial| {
        let shown = trial.nic("c");
        let why = shown.problem.expect("a reason");
        assert!(why.contains("no such nic") && why.contains("frames are lost"), "{why}");
        shown.state
    };
    assert_eq!(is_lost(&mut trial), NicState::Failed);
    // Whatever its front-end does.
    drop(c);
    trial.pass(ms(100));
    let mut c = Vmm::of_nic(&mut trial, "c");
    trial.pass(ms(500));
    assert_eq!(is_lost(&mut trial), NicState::Failed);
    trial.reload(&with_nic("[\"n1\", \"n2\"]"), false).expect("it is done");
    trial.pass(ms(5_000));
    let shown = trial.nic("c");
    assert_eq!((shown.state, shown.problem), (NicState::Running, None));
    assert!(!c.is_cut_off(&mut trial));
    let from = trial.nic("c").mac.0;
    let frame = [&[0xff; 6][..], &from, &[0x88, 0xb5], &[9; 50]].concat();
    b.guest.offer(0);
    c.guest.transmit(1, &frame);
    trial.pass(ms(100));
    let heard = b.guest.frame(0);
    assert_eq!(heard.map(|frame| frame[6..12].to_vec()), Some(from.to_vec()));
    // It is not taken from its guest unawares.
    trial.write(&with_nic("[\"n2\"]"));
    for call in [Call::Reload { force: false }, Call::Upgrade { force: false }] {
        let (kind, why) = refused(trial.ask(call));
        assert_eq!(kind, ErrorKind::Conflict, "{why}");
        assert!(why.contains("would take from guests what they use: link \"out\""), "{why}");
    }
}
