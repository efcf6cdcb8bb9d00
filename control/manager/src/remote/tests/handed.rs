//! What an upgrade leaves of links whose new process ends at once, and when that process is alone with them.

use super::super::link::OneLink;
use backend::{Disk, Vet};

use super::*;
use crate::disk::images::{ImageNames, source_of};
use crate::manager::Manager;
use crate::rooms::Rooms;
use crate::upgrade::guard::{Predecessor, Probation};
use crate::upgrade::links::LinkEstate;
use crate::upgrade::predecessor::what_must_end;
use crate::upgrade::succession::Succession;

const IMAGE: &str = "[[disk]]\nid = \"d\"\npath = \"{}/d.img\"\nsize = \"1M\"\n";

/// It has just taken over.
fn watched(trial: &mut Trial) -> Predecessor {
    let manager = trial.manager();
    let now = manager.rooms.turn.tick();
    let (probation, predecessor) = Probation::watched(&manager.rooms.poll, now);
    manager.succession = Succession::OnProbation(probation);
    predecessor
}

/// A client that is given a disk by a process of which its predecessor takes all back would write to an image that the
/// predecessor gives to a guest.
#[test]
fn probation_ends_before_another_machine_is_heard() {
    let ground = OnGround::new();
    ground.cut(true);
    let mut trial = Trial::of(&format!("{LENDS}{LENT}{USES}{USED}"));
    trial.pass(ms(100));
    let predecessor = watched(&mut trial);
    ground.send("10.0.0.9:9", "10.0.0.1:7447", &[0; 64]);
    trial.pass(ms(300));
    assert!(!predecessor.is_let_go(), "nobody was heard");
    assert_eq!(link(&mut trial, "out").sessions, 0);
    ground.cut(false);
    trial.pass(ms(650));
    assert!(predecessor.is_let_go(), "a client was");
    assert_eq!(link(&mut trial, "out").sessions, 1);
}

/// Nobody has gone on with sessions and slots where they stood, nor with an image that a client has.
#[test]
fn links_are_taken_back_with_all_else() {
    for lent in [LENT, IMAGE] {
        let _ground = OnGround::new();
        let mut trial = Trial::of(&format!("{LENDS}{lent}{USES}{USED}"));
        trial.pass(ms(100));
        open(&mut trial, "r");
        let mut vmm = Vmm::served(&mut trial, "r", 1);
        for fill in 1..4 {
            assert_eq!(does(&mut trial, &mut vmm, WRITE, 9, fill), Some(0));
            trial.amid(Manager::hand_over_in_vain);
            assert_eq!(does(&mut trial, &mut vmm, READ, 9, 0), Some(0));
            assert_eq!(vmm.guest.data(0), [fill; 512]);
            let lent = trial.disk("d");
            assert_eq!((lent.state, lent.counters.writes), (DiskState::Running, fill.into()));
        }
        trial.pass(ms(10_000));
        assert_eq!(does(&mut trial, &mut vmm, FLUSH, 0, 0), Some(0));
    }
}

/// A file system that is slow when a disk is taken back holds up who has it, and breaks nothing.
#[test]
fn a_disk_that_is_taken_back_waits_for_its_image() {
    let _ground = OnGround::new();
    let mut trial = Trial::of(&format!("{LENDS}{IMAGE}{USES}{USED}"));
    trial.pass(ms(100));
    open(&mut trial, "r");
    let mut vmm = Vmm::served(&mut trial, "r", 1);
    assert_eq!(does(&mut trial, &mut vmm, WRITE, 9, 7), Some(0));
    trial.slow(ms(13_000));
    trial.amid(Manager::hand_over_in_vain);
    trial.slow(ms(0));
    assert_eq!(does(&mut trial, &mut vmm, READ, 9, 0), None, "from what image?");
    trial.pass(ms(13_000));
    assert_eq!(ends(&mut trial, &mut vmm), Some(0));
    assert_eq!(vmm.guest.data(0), [7; 512]);
    assert_eq!(does(&mut trial, &mut vmm, FLUSH, 0, 0), Some(0));
}

/// Nobody is told that what it wrote is stable before that is so, nor is a disk left without its locks.
#[test]
fn a_disk_that_is_let_go_while_it_is_taken_back_is_made_stable_first() {
    let _ground = OnGround::new();
    let mut trial = Trial::of(&format!("{LENDS}{IMAGE}{USES}{USED}"));
    let number = trial.rooms().devices.number_of("d").expect("a disk");
    let stands = |trial: &mut Trial| {
        let rooms = trial.rooms();
        let disk = rooms.devices.disk(number).expect("a disk");
        (disk.locks.is_here(), rooms.remote.is_clients(number))
    };
    trial.pass(ms(100));
    open(&mut trial, "r");
    let mut vmm = Vmm::served(&mut trial, "r", 1);
    assert_eq!(does(&mut trial, &mut vmm, WRITE, 9, 7), Some(0));
    drop(vmm);
    trial.slow(ms(13_000));
    trial.amid(Manager::hand_over_in_vain);
    trial.slow(ms(0));
    trial.reload(&format!("{LENDS}{IMAGE}{USES}"), true).expect("the client has it no more");
    trial.pass(ms(1_000));
    assert_eq!(stands(&mut trial), (false, true), "it is not stable yet");
    trial.pass(ms(14_000));
    assert_eq!(stands(&mut trial), (true, false));
    // Of one that nobody has, either.
    trial.slow(ms(13_000));
    trial.amid(Manager::hand_over_in_vain);
    trial.slow(ms(0));
    assert_eq!(stands(&mut trial), (false, false));
    trial.pass(ms(14_000));
    assert_eq!(stands(&mut trial), (true, false));
}

/// Gives it up for a process that died, and knows it by its name alone, as one that is no file; `change` says what has that
/// name by then.
fn give_up_by_name(trial: &mut Trial, number: u32, change: impl Fn(&Trial)) {
    let plan = trial.rooms().devices.disk(number).expect("a disk").plan.clone();
    let by_name = Disk::look(&source_of(&plan), &ImageNames::of(&plan), Vet::Raw).expect("seen");
    change(trial);
    trial.amid(Manager::hand_over_in_vain);
    let disk = trial.rooms().devices.disk_mut(number).expect("a disk");
    assert!(disk.locks.is_fenced());
    disk.disk = by_name;
}

/// A client that goes on with what it had is served from that alone.
#[test]
fn what_has_the_name_of_an_image_that_a_client_has_is_not_served_to_it() {
    for is_kept in [true, false] {
        let _ground = OnGround::new();
        let mut trial = Trial::of(&format!("{LENDS}{IMAGE}{USES}{USED}"));
        let number = trial.rooms().devices.number_of("d").expect("a disk");
        trial.pass(ms(100));
        open(&mut trial, "r");
        let mut vmm = Vmm::served(&mut trial, "r", 1);
        assert_eq!(does(&mut trial, &mut vmm, WRITE, 9, 7), Some(0));
        let replace = |trial: &Trial| {
            std::fs::rename(trial.path("d.img"), trial.path("old.img")).expect("moved");
            std::fs::write(trial.path("d.img"), vec![9; 1 << 20]).expect("another image");
        };
        if is_kept {
            replace(&trial);
            trial.amid(Manager::hand_over_in_vain);
        } else {
            trial.slow(ms(200));
            give_up_by_name(&mut trial, number, replace);
        }
        trial.slow(ms(0));
        if is_kept {
            assert_eq!(does(&mut trial, &mut vmm, READ, 9, 0), Some(0));
            assert_eq!(vmm.guest.data(0), [7; 512]);
        } else {
            trial.pass(ms(3_000));
            let shown = trial.disk("d");
            assert_eq!(shown.queues_attached, 0, "it waits for its image");
            let why = shown.problem.unwrap_or_default();
            assert!(why.contains("is another image than the one that was served"), "{why}");
        }
        drop(vmm);
        trial.pass(ms(10_000));
        assert!(!trial.rooms().remote.is_clients(number), "nobody has it: {is_kept}");
        let locks = &trial.rooms().devices.disk(number).expect("a disk").locks;
        assert_eq!(locks.is_here(), is_kept, "it is not said to be stable");
        let there = std::fs::read(trial.path("d.img")).expect("another image");
        assert!(there.iter().all(|byte| *byte == 9), "nothing is written to it");
    }
}

/// Where the image does not come, whoever lets the disk go is told so, by and by, and no upgrade waits for that.
#[test]
fn a_disk_that_is_let_go_whose_image_is_gone_is_not_said_to_be_stable_and_no_upgrade_waits() {
    for slow in [Duration::ZERO, ms(200_000)] {
        let _ground = OnGround::new();
        let mut trial = Trial::of(&format!("{LENDS}{IMAGE}{USES}{USED}"));
        let number = trial.rooms().devices.number_of("d").expect("a disk");
        trial.pass(ms(100));
        open(&mut trial, "r");
        let mut vmm = Vmm::served(&mut trial, "r", 1);
        assert_eq!(does(&mut trial, &mut vmm, WRITE, 9, 7), Some(0));
        // It is missing, or its file system does not answer.
        trial.slow(slow.max(ms(200)));
        let image = trial.path("d.img");
        give_up_by_name(&mut trial, number, |trial| {
            std::fs::rename(trial.path("d.img"), trial.path("gone.img")).expect("moved away");
        });
        drop(vmm);
        trial.pass(ms(10_000));
        if !slow.is_zero() {
            let waits = what_must_end(trial.rooms());
            assert_eq!(waits.as_deref(), Some("disk \"d\", which its client gives back"));
            trial.pass(ms(65_000));
        }
        assert_eq!(what_must_end(trial.rooms()), None);
        assert!(!trial.rooms().remote.is_clients(number), "nobody has it");
        let locks = &trial.rooms().devices.disk(number).expect("a disk").locks;
        assert!(locks.is_fenced(), "it is taken when it comes");
        trial.slow(Duration::ZERO);
        std::fs::rename(trial.path("gone.img"), &image).expect("it is put back");
        trial.pass(slow + ms(5_000));
        let mut vmm = Vmm::served(&mut trial, "r", 1);
        assert_eq!(does(&mut trial, &mut vmm, READ, 9, 0), Some(0));
        assert_eq!(vmm.guest.data(0), [7; 512]);
    }
}

/// No thread is left for that. It is tried again each second, for as long as any front-end waits.
#[test]
fn a_disk_that_cannot_be_made_stable_now_is_let_go_when_it_can_be_or_is_not_said_to_be() {
    for (waits_s, migratable) in [(5, ""), (65, ""), (5, "migratable = true\n")] {
        let _ground = OnGround::new();
        let mut trial = Trial::of(&format!("{LENDS}{IMAGE}{migratable}{USES}{USED}"));
        let number = trial.rooms().devices.number_of("d").expect("a disk");
        trial.pass(ms(100));
        open(&mut trial, "r");
        let mut vmm = Vmm::served(&mut trial, "r", 1);
        assert_eq!(does(&mut trial, &mut vmm, WRITE, 9, 7), Some(0));
        trial.spend_threads(true);
        drop(vmm);
        trial.pass(ms(waits_s * 1_000));
        assert_eq!(trial.rooms().remote.is_clients(number), waits_s < 60);
        let shown = trial.disk("d").problem;
        let why = "what was written cannot be made stable now: ";
        assert_eq!(shown.is_some_and(|shown| shown.starts_with(why)), waits_s < 60);
        trial.spend_threads(false);
        trial.pass(ms(2_000));
        assert!(!trial.rooms().remote.is_clients(number));
        assert_eq!(trial.disk("d").problem, None);
        let mut vmm = Vmm::served(&mut trial, "r", 1);
        assert_eq!(does(&mut trial, &mut vmm, READ, 9, 0), Some(0));
        assert_eq!(vmm.guest.data(0), [7; 512]);
    }
}

/// Its number is not another's before its link says that it is free, whatever the next one wants.
#[test]
fn what_a_predecessor_gave_back_without_a_word_keeps_its_number_until_it_is_free() {
    for is_there in [true, false] {
        let _ground = OnGround::new();
        let mut trial = Trial::of(&format!("{LENDS}{IMAGE}{USES}{USED}"));
        trial.pass(ms(100));
        open(&mut trial, "r");
        let mut vmm = Vmm::served(&mut trial, "r", 1);
        assert_eq!(does(&mut trial, &mut vmm, WRITE, 9, 7), Some(0));
        let number = trial.rooms().devices.number_of("r").expect("a disk");
        trial.amid(|manager| {
            manager.go_on_with_link("in", |rooms, mut estate| {
                let parts = rooms.devices.disk_mut(number).and_then(|disk| disk.remote.as_mut());
                let parts = parts.expect("a link's");
                assert_eq!(parts.availability_mut().release(), Some(1), "one was for a look");
                let words = estate.parts[0].words.client.as_mut().expect("a client's");
                assert_eq!(words.disks.len(), 1);
                words.disks.clear();
                if !is_there {
                    parts.be_called("another");
                }
                let key = parts.link();
                let known = rooms.remote.known().map(|(id, words)| (id.to_string(), words));
                let known = known.collect();
                rooms.remote.link(key).expect("a link").begin_anew();
                rooms.remote.know_as_before(None, &known);
                let LinkEstate { id, sockets, parts } = estate;
                rooms.remote.inherit_link(&id, sockets, parts).expect("it makes sense");
            });
        });
        trial
            .rooms()
            .devices
            .disk_mut(number)
            .and_then(|disk| disk.remote.as_mut())
            .expect("it")
            .be_called("d");
        trial.pass(ms(3_000));
        assert_eq!(does(&mut trial, &mut vmm, READ, 9, 0), Some(0));
        assert_eq!(vmm.guest.data(0), [7; 512]);
        let using = trial.rooms().remote.links.iter_mut().find_map(OneLink::using).expect("it");
        let numbers: Vec<u16> = using.disks().map(|(number, ..)| number).collect();
        assert_eq!(numbers.len(), 1, "{numbers:?}");
    }
}

/// Another process knows before anybody speaks who is at which shard, and who has what.
#[test]
fn an_iohost_goes_on_with_whoever_was_there() {
    let _ground = OnGround::new();
    let mut trial = Trial::of(&format!("{LENDS}{IMAGE}{USES}{USED}"));
    trial.pass(ms(100));
    open(&mut trial, "r");
    let mut vmm = Vmm::served(&mut trial, "r", 1);
    assert_eq!(does(&mut trial, &mut vmm, WRITE, 9, 7), Some(0));
    let stands = |rooms: &mut Rooms| {
        let serving = rooms.remote.links.iter().find_map(OneLink::serving).expect("an IOhost's");
        let one = serving.exports().first().expect("an export");
        let there: Vec<_> = serving.assigned.at(0).copied().collect();
        (there, one.holder().copied(), one.shard(), one.generation())
    };
    let before = stands(trial.rooms());
    assert_eq!((before.0.len(), before.2, before.3 > 0), (1, Some(0), true));
    assert_eq!(before.0.first().copied(), before.1);
    assert_eq!(replaces_iohost(&mut trial, stands).1, before);
    trial.pass(ms(3_000));
    assert_eq!(does(&mut trial, &mut vmm, READ, 9, 0), Some(0));
    assert_eq!(vmm.guest.data(0), [7; 512]);
}

/// Another process goes on with the IOhost's end: what it was told, and what it has before it hears anybody.
fn replaces_iohost<T>(trial: &mut Trial, look: impl Fn(&mut Rooms) -> T) -> (Vec<u8>, T) {
    trial.amid(|manager| {
        let mut told = Vec::new();
        manager.go_on_with_link("out", |rooms, estate| {
            let key = rooms.remote.key_of("out").expect("it");
            rooms.remote.link(key).expect("a link").begin_anew();
            let LinkEstate { id, sockets, parts } = estate;
            told.clone_from(&parts[0].bytes);
            rooms.remote.inherit_link(&id, sockets, parts).expect("it makes sense");
        });
        (told, look(&mut manager.rooms))
    })
}

/// What its clients have done is in the hands of its shard, and is the next one's if nobody has spoken meanwhile.
#[test]
fn what_clients_have_done_goes_from_process_to_process() {
    let ground = OnGround::new();
    let mut trial = Trial::of(&format!("{LENDS}{LENT}{USES}{USED}"));
    trial.pass(ms(100));
    open(&mut trial, "r");
    let mut vmm = Vmm::served(&mut trial, "r", 1);
    assert_eq!(does(&mut trial, &mut vmm, WRITE, 9, 7), Some(0));
    ground.cut(true);
    let (first, ()) = replaces_iohost(&mut trial, |_| ());
    assert!(first.len() > 1_000, "its slots: {first:?}");
    trial.rest();
    assert_eq!(replaces_iohost(&mut trial, |_| ()).0, first);
    ground.cut(false);
    trial.pass(ms(10_000));
    assert_eq!(does(&mut trial, &mut vmm, READ, 9, 0), Some(0));
    assert_eq!(vmm.guest.data(0), [7; 512]);
}

/// Ports that lead to the host were closed for the process that took over, and are opened anew.
#[test]
fn a_nic_by_a_link_goes_on_when_it_is_taken_back() {
    let _ground = OnGround::new();
    let mut trial = Trial::of(&with_nic("[\"n1\", \"n2\"]"));
    let (mut b, mut c) = (Vmm::of_nic(&mut trial, "b"), Vmm::of_nic(&mut trial, "c"));
    trial.pass(ms(5_000));
    let from = trial.nic("c").mac.0;
    for fill in 0..3 {
        trial.amid(Manager::hand_over_in_vain);
        trial.pass(ms(5_000));
        let shown = trial.nic("c");
        assert_eq!((shown.state, shown.problem), (NicState::Running, None));
        b.guest.offer(0);
        c.guest.transmit(1, &[&[0xff; 6][..], &from, &[0x88, 0xb5], &[fill; 50]].concat());
        trial.pass(ms(100));
        let heard = b.guest.frame(0).expect("it is heard");
        assert_eq!((&heard[6..12], heard[14]), (&from[..], fill));
        assert!(c.guest.has_sent(1));
    }
}
