//! No request that waits is ended by an upgrade, a resize or a reload, unless an operator insists.

use std::collections::BTreeMap;
use std::time::Duration;

use config::api::{ApiError, Call, ErrorKind};
use config::spec::{BackendKind, DiskResize};
use config::{DiskSpec, Size};

use crate::poll::Token;
use crate::simulated::{Heard, Launchers};
use crate::trial::Trial;
use crate::trial::vmm::{Guest, Vmm};
use crate::upgrade::channel::Channel;
use crate::upgrade::wire::{FORMATS, FromHeir};

const DISK: &str = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\n";
const MIB: u64 = 1 << 20;

/// One whose guest's front-end keeps a record, or keeps none.
fn served(trial: &mut Trial, id: &str, keeps: bool) -> Vmm {
    let mut vmm = Vmm::connect(trial, id, Guest::new(1)).expect("somebody listens");
    vmm.introduce(trial);
    vmm.bring_memory(trial);
    if keeps {
        vmm.bring_record(trial);
    }
    vmm.start(trial, 0);
    vmm
}

/// So many of its requests wait, as its sidecore says.
fn wait(trial: &mut Trial, id: &str, count: u64) {
    let devices = &mut trial.rooms().devices;
    let device = devices.named_mut(id).expect("it is open");
    let queue = device.queues_mut().first().expect("a queue");
    let said = BTreeMap::from([("waiting_full".to_string(), count)]);
    queue.counters().go_on_from(&said);
}

fn told(why: &ApiError, begins: &str) {
    assert_eq!(why.kind, ErrorKind::Conflict, "{}", why.error);
    assert!(why.error.starts_with(begins), "{}", why.error);
    assert!(why.error.contains("would end with an error: they are in no in-flight record"));
    assert!(why.hint.contains("make room") && why.hint.contains("`--force`"), "{}", why.hint);
}

/// A launcher of that daemon, which is asked by its operator.
fn launchers(trial: &mut Trial) -> Launchers {
    let (launchers, launcher) = Launchers::begin().expect("launchers");
    let rooms = trial.rooms();
    for (at, end) in launcher.ends().enumerate() {
        rooms.poll.add(end, Token::Launcher(at as u32)).expect("it is heard");
    }
    rooms.options.launcher = Some(launcher);
    launchers
}

#[test]
fn what_begins_to_wait_while_an_heir_starts_is_ended_by_no_upgrade() {
    let mut trial = Trial::of(DISK);
    let _vmm = served(&mut trial, "a", false);
    let mut launchers = launchers(&mut trial);
    let mut asked = trial.asks(Call::Upgrade { force: false });
    trial.rest();
    let at = launchers.asked().expect("a launcher is asked");
    wait(&mut trial, "a", 2);
    let (pid, mut heir) = (trial.begin_process(), None);
    launchers.answer(at, &mut |input| {
        heir = Some(Channel::of(input));
        Ok(pid)
    });
    trial.rest();
    assert!(matches!(asked.hear(), Heard::Nothing));
    let hello = FromHeir::Hello { version: "1".to_string(), formats: FORMATS.to_vec() };
    let heir = heir.expect("it was started");
    heir.send(&hello, &[], Duration::ZERO).expect("it is heard");
    let why = trial.answer(asked).expect_err("requests wait");
    told(&why, "the daemon was not replaced: 2 requests that wait of disk \"a\" would");
    assert!(trial.rooms().devices.values().all(|it| it.waiting_unrecorded() == 2), "they wait on");
    // Of those that wait already nobody starts an heir.
    let why = trial.ask(Call::Upgrade { force: false }).expect_err("requests wait");
    told(&why, "the daemon was not replaced: 2 requests that wait of disk \"a\" would");
    assert_eq!(launchers.asked(), None);
}

#[test]
fn a_resize_ends_what_waits_in_no_record_only_for_who_insists() {
    for keeps in [true, false] {
        let mut trial = Trial::of(DISK);
        let backend = Some(BackendKind::Memory);
        let spec = DiskSpec { backend, size: Some(Size(MIB)), ..DiskSpec::new("b") };
        trial.ask(Call::AddDisk { spec, force: false }).expect("it is added");
        let _vmm = served(&mut trial, "b", keeps);
        wait(&mut trial, "b", 1);
        let resize = |size, force| {
            let resize = DiskResize { size: Size(size) };
            Call::ResizeDisk { id: "b".to_string(), resize, force }
        };
        let asked = trial.ask(resize(2 * MIB, false));
        match keeps {
            true => drop(asked.expect("its record has it")),
            false => {
                let why = asked.expect_err("a request waits");
                told(&why, "the disk is not resized: 1 request that waits of disk \"b\" would");
                assert_eq!(trial.disk("b").size_bytes, Some(MIB));
                trial.ask(resize(2 * MIB, true)).expect("it is insisted on");
            }
        }
        assert_eq!(trial.disk("b").size_bytes, Some(2 * MIB));
    }
}

#[test]
fn a_reload_that_resizes_says_what_it_ends_and_does_it_for_who_insists() {
    let mut trial = Trial::of(DISK);
    let _vmm = served(&mut trial, "a", false);
    wait(&mut trial, "a", 3);
    let larger = DISK.replace("1M", "2M");
    let effects = trial.dry(&larger).expect("it is told");
    let resize = effects.iter().find(|effect| effect.needs_force).expect("it is refused");
    assert!(!resize.guest_loses, "{effects:?}");
    assert!(resize.what.contains("3 requests that wait of disk \"a\" would"), "{effects:?}");
    let why = trial.reload(&larger, false).expect_err("requests wait");
    told(&why, "it would resize disks: 3 requests that wait of disk \"a\" would");
    assert_eq!(trial.disk("a").size_bytes, Some(MIB));
    // What stops no queue is done.
    let limited = format!("{DISK}limit_iops = 9\n");
    trial.reload(&limited, false).expect("nothing ends by it");
    trial.reload(&larger, true).expect("it is insisted on");
    assert_eq!(trial.disk("a").size_bytes, Some(2 * MIB));
}
