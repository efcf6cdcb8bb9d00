//! What an operator is shown of a disk that its IOhost gave up is what its guest's requests do, as long as they do it.

use super::*;

/// A second disk, since an IOhost whose client may have nothing lends to nobody.
const OTHER: &str = "[[disk]]\nid = \"e\"\nbackend = \"memory\"\nsize = \"1M\"\n";
/// What the client's end of a link has besides, and how large the disk is.
fn text(disks: &str, more: &str, size: &str) -> String {
    let lends = LENDS.replace("\"d\"", disks);
    let lent = format!("[[disk]]\nid = \"d\"\npath = \"{{}}/d.img\"\nsize = {size:?}\n");
    format!("{lends}{lent}{OTHER}{USES}{more}{USED}")
}

fn given() -> String {
    text("\"d\", \"e\"", "", "1M")
}

fn taken() -> String {
    text("\"e\"", "", "1M")
}

/// Of whom nothing is left, neither plan nor image.
fn removed() -> String {
    let text = taken();
    let (from, to) = (text.find("[[disk]]\nid = \"d\"").expect("it"), text.find(OTHER));
    format!("{}{}", &text[..from], &text[to.expect("the other")..])
}

fn began(text: &str) -> (OnGround, Trial, Vmm) {
    let ground = OnGround::new();
    let mut trial = Trial::of(text);
    open(&mut trial, "r");
    let mut vmm = Vmm::served(&mut trial, "r", 1);
    assert_eq!(does(&mut trial, &mut vmm, WRITE, 1, 7), Some(0));
    assert_eq!(shown(&mut trial), (DiskState::Running, None));
    (ground, trial, vmm)
}

fn shown(trial: &mut Trial) -> (DiskState, Option<String>) {
    let disk = trial.disk("r");
    // A list, and what is shown of its link, say the same.
    let Ok(Answer::Disks(list)) = trial.ask(Call::ListDisks) else { panic!("a list") };
    let listed = list.disks.into_iter().find(|it| it.id == "r").expect("it");
    assert_eq!((listed.state, &listed.problem), (disk.state, &disk.problem));
    let of_link = link(trial, "in").disks.into_iter().find(|it| it.id == "r").expect("it");
    assert_eq!(of_link.problem, disk.problem);
    (disk.state, disk.problem)
}

/// The state is `failed`, that is the reason, and a request fails.
fn fails(trial: &mut Trial, vmm: &mut Vmm, reason: &str) {
    let (state, problem) = shown(trial);
    assert_eq!(state, DiskState::Failed, "{problem:?}");
    assert!(problem.as_ref().is_some_and(|why| why.contains(reason)), "{problem:?}");
    assert_eq!(does(trial, vmm, READ, 1, 0), Some(1), "it fails");
}

/// The state is `waiting`, that is the reason, and a request that a guest may have made has not ended.
fn waits(trial: &mut Trial, vmm: Option<&mut Vmm>, reason: &str) {
    let (state, problem) = shown(trial);
    assert_eq!(state, DiskState::Waiting, "{problem:?}");
    assert!(problem.as_ref().is_some_and(|why| why.contains(reason)), "{problem:?}");
    if let Some(vmm) = vmm {
        assert_eq!(vmm.guest.status(0), None, "it waits");
    }
}

#[test]
fn what_was_taken_away_from_a_guest_fails_until_that_guest_is_another_one() {
    for without in [taken(), removed()] {
        let (ground, mut trial, mut vmm) = began(&given());
        trial.reload(&without, true).expect("it is done");
        trial.pass(ms(100));
        fails(&mut trial, &mut vmm, "its IOhost has given it up");
        // Whatever becomes of the IOhost.
        ground.cut(true);
        trial.pass(ms(20_000));
        fails(&mut trial, &mut vmm, "its IOhost has given it up");
        ground.cut(false);
        trial.pass(ms(20_000));
        assert_eq!(link(&mut trial, "in").sessions, 1, "there is another session");
        fails(&mut trial, &mut vmm, "its IOhost has given it up");
        trial.reload(&given(), true).expect("it is done");
        trial.pass(ms(5_000));
        fails(&mut trial, &mut vmm, "has it again");
        // The guest resets its disk: that is another one.
        vmm.stop(&mut trial, 0);
        trial.pass(ms(1_000));
        vmm.start(&mut trial, 0);
        assert_eq!(does(&mut trial, &mut vmm, READ, 1, 0), Some(0));
        assert_eq!(shown(&mut trial), (DiskState::Running, None));
    }
}

/// One that had it when it was taken away, which is reset and goes. Its requests wait from then on.
fn goes_after_that(trial: &mut Trial, mut vmm: Vmm) {
    trial.reload(&taken(), true).expect("it is done");
    trial.pass(ms(100));
    fails(trial, &mut vmm, "its IOhost has given it up");
    vmm.stop(trial, 0);
    trial.pass(ms(500));
    waits(trial, None, "no such disk");
    vmm.start(trial, 0);
    vmm.guest.request(0, READ, 1, 0);
    trial.pass(ms(5_000));
    waits(trial, Some(&mut vmm), "no such disk");
    drop(vmm);
    trial.pass(ms(500));
    waits(trial, None, "no such disk");
}

/// One that goes before it is taken away. Nobody tells a client that has no guest; it is told when one comes.
fn goes_before_that(trial: &mut Trial, vmm: Vmm) {
    drop(vmm);
    trial.pass(ms(1_000));
    trial.reload(&taken(), true).expect("it is done");
    trial.pass(ms(1_000));
    assert_eq!(shown(trial), (DiskState::Waiting, None));
}

#[test]
fn a_guest_that_comes_for_what_its_iohost_has_not_waits_and_says_so_whatever_its_vmm_does() {
    for was_there in [true, false] {
        let (ground, mut trial, vmm) = began(&given());
        match was_there {
            true => goes_after_that(&mut trial, vmm),
            false => goes_before_that(&mut trial, vmm),
        }
        let before = shown(&mut trial);
        // Another VMM comes, which is at no ring yet.
        let guest = crate::trial::vmm::Guest::new(1);
        let mut vmm = Vmm::connect(&trial, "r", guest).expect("a socket");
        trial.pass(ms(500));
        assert_eq!(shown(&mut trial).1, before.1);
        vmm.begin(&mut trial);
        vmm.guest.request(0, READ, 1, 0);
        trial.pass(ms(5_000));
        waits(&mut trial, Some(&mut vmm), "no such disk");
        ground.cut(true);
        trial.pass(ms(20_000));
        waits(&mut trial, Some(&mut vmm), "has been silent");
        ground.cut(false);
        trial.pass(ms(20_000));
        waits(&mut trial, Some(&mut vmm), "no such disk");
        trial.reload(&given(), true).expect("it is done");
        assert_eq!(ends(&mut trial, &mut vmm).or_else(|| ends(&mut trial, &mut vmm)), Some(0));
        assert_eq!(shown(&mut trial), (DiskState::Running, None));
    }
}

#[test]
fn requests_of_a_disk_that_became_smaller_fail_for_the_guest_that_has_it() {
    let (_ground, mut trial, mut vmm) = began(&text("\"d\", \"e\"", "", "1M"));
    std::fs::OpenOptions::new()
        .write(true)
        .open(trial.path("d.img"))
        .and_then(|image| image.set_len(512 << 10))
        .expect("it is cut");
    trial.reload(&text("\"d\", \"e\"", "", "512K"), true).expect("it is done");
    trial.pass(ms(5_000));
    fails(&mut trial, &mut vmm, "has made it smaller");
    vmm.stop(&mut trial, 0);
    trial.pass(ms(1_000));
    vmm.start(&mut trial, 0);
    assert_eq!(does(&mut trial, &mut vmm, READ, 1, 0), Some(0));
    assert_eq!(shown(&mut trial), (DiskState::Running, None));
}

/// That its IOhost is silent is why its requests do not end.
#[test]
fn whoever_waits_for_a_silent_iohost_is_told_that_and_not_of_the_requests_alone() {
    let (ground, mut trial, mut vmm) = began(&given());
    ground.cut(true);
    vmm.guest.request(0, READ, 1, 0);
    trial.pass(ms(10_000));
    // Its queue leaves, and the request does not end.
    drop(vmm);
    trial.pass(ms(5_000));
    waits(&mut trial, None, "its IOhost has been silent for ");
}

/// An image that an IOhost has lost is seen where its links are, too.
#[test]
fn a_disk_of_clients_that_is_not_open_is_listed_with_its_link() {
    let folder = {
        let (_ground, trial, vmm) = began(&given());
        drop(vmm);
        trial.die()
    };
    std::fs::remove_file(folder.path().join("d.img")).expect("it is removed");
    let _ground = OnGround::new();
    let mut trial = Trial::start(&given(), folder).expect("it starts");
    trial.pass(ms(3_000));
    let disks = link(&mut trial, "out").disks;
    let lost = disks.iter().find(|disk| disk.id == "d").expect("it is listed");
    assert!(!lost.in_use && lost.client.is_none());
    assert_eq!(lost.problem, trial.disk("d").problem);
    assert!(lost.problem.as_ref().is_some_and(|why| why.contains("d.img")), "{:?}", lost.problem);
}

#[test]
fn requests_fail_after_a_time_without_an_iohost_until_it_is_heard() {
    let ground = OnGround::new();
    let uses = USES.replace("security", "fail_after_s = 5\nsecurity");
    let mut trial = Trial::of(&format!("{LENDS}{LENT}{uses}{USED}"));
    open(&mut trial, "r");
    let mut vmm = Vmm::served(&mut trial, "r", 1);
    assert_eq!(does(&mut trial, &mut vmm, WRITE, 1, 7), Some(0));
    ground.cut(true);
    vmm.guest.request(0, READ, 1, 0);
    trial.pass(ms(10_000));
    waits(&mut trial, Some(&mut vmm), "has been silent");
    // The lease, a minute, and an eighth of both.
    trial.pass(ms(80_000));
    assert_eq!(vmm.guest.status(0), Some(1));
    fails(&mut trial, &mut vmm, "silent for longer than `fail_after_s`");
    // A guest that begins anew begins a time of its own.
    vmm.stop(&mut trial, 0);
    trial.pass(ms(1_000));
    vmm.start(&mut trial, 0);
    vmm.guest.request(0, READ, 1, 0);
    trial.pass(ms(1_000));
    waits(&mut trial, Some(&mut vmm), "has been silent");
    trial.pass(ms(90_000));
    assert_eq!(vmm.guest.status(0), Some(1));
    fails(&mut trial, &mut vmm, "silent for longer than `fail_after_s`");
    ground.cut(false);
    trial.pass(ms(20_000));
    assert_eq!(does(&mut trial, &mut vmm, READ, 1, 0), Some(0));
    assert_eq!(shown(&mut trial), (DiskState::Running, None));
}

#[test]
fn a_disk_that_a_link_lends_has_no_socket_open_or_not() {
    let _ground = OnGround::new();
    let missing = "[[disk]]\nid = \"d\"\npath = \"{}/d.img\"\n";
    let lends = LENDS.replace("\"d\"", "\"d\", \"e\"");
    let mut trial = Trial::of(&format!("{lends}{missing}{OTHER}"));
    for (id, state) in [("d", DiskState::Failed), ("e", DiskState::Waiting)] {
        let disk = trial.disk(id);
        assert_eq!((disk.state, disk.access.socket), (state, None), "{id}");
    }
}

/// A client's daemon that is started anew has asked nobody: its guests are other ones.
#[test]
fn a_client_that_is_started_anew_waits_for_what_its_iohost_has_not() {
    let (ground, mut trial, vmm) = began(&given());
    trial.reload(&taken(), true).expect("it is done");
    trial.pass(ms(1_000));
    let folder = trial.die();
    drop((vmm, ground));
    let _ground = OnGround::new();
    let mut trial = Trial::start(&taken(), folder).expect("it starts");
    trial.pass(ms(3_000));
    let disk = trial.disk("r");
    assert_eq!(disk.state, DiskState::Waiting);
    assert!(disk.problem.is_some_and(|why| why.contains("no such disk")));
    assert!(dial(&trial.socket("r")).is_none(), "its guest's VMM waits, and so do requests");
}
