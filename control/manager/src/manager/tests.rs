//! What the loop promises whoever waits for it: nothing is forgotten, and it rests when there is nothing to do.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use config::api::{Answer, Call, DiskState};
use config::plan::DevicePlan;
use control::mode::Mode;
use guest_memory::{Health, Loss};
use rustix::fs::{FlockOperation, flock};
use vhost_user::message::RingState;
use vhost_user::{LogArea, Message, bits};

use crate::calls::removal;
use crate::opening::not_open::NotOpen;
use crate::opening::shut::Shut;
use crate::rooms::Timer;
use crate::simulated::Launchers;
use crate::state::StateFile;
use crate::trial::vmm::{self, FLUSH, Guest, READ, Vmm, WRITE, dial};
use crate::trial::{Trial, refused};
use crate::upgrade::guard::{Predecessor, Probation};
use crate::upgrade::predecessor::Upgrade;
use crate::upgrade::succession::Succession;

const MEMORY: &str = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\nqueues = 2\n";
const CALLS: &str = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\nmode = \"connect\"\n\
                     socket = \"{}/run/vmm.sock\"\n";
const MIGRATABLE: &str =
    "[[disk]]\nid = \"a\"\npath = \"{}/a.img\"\nsize = \"1M\"\nmigratable = true\n";

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn a_guest_is_served_and_the_loop_rests_when_it_is_idle() {
    let mut trial = Trial::of(MEMORY);
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    assert_eq!(vmm.does(&mut trial, WRITE, 3, 7), Some(0));
    assert_eq!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0));
    assert_eq!(vmm.does(&mut trial, READ, 3, 0), Some(0));
    assert_eq!(vmm.guest.data(0), [7; 512]);
    trial.pass(ms(10_000));
    let before = trial.turns;
    trial.pass(ms(10_000));
    // Ten looks at loads a second, and a few of once a second.
    assert!(trial.turns - before < 150, "{} turns in 10 s", trial.turns - before);
    let shown = trial.disk("a");
    assert_eq!((shown.queues_attached, shown.state), (2, DiskState::Running));
}

#[test]
fn a_daemon_without_guests_is_hardly_awake() {
    let mut trial = Trial::of(MEMORY);
    trial.pass(ms(1_000));
    let before = trial.turns;
    trial.pass(ms(60_000));
    assert!(trial.turns - before < 10, "{} turns in a minute", trial.turns - before);
}

/// A daemon that has just taken over.
fn watched(trial: &mut Trial) -> Predecessor {
    let manager = trial.manager();
    let now = manager.rooms.turn.tick();
    let (probation, predecessor) = Probation::watched(&manager.rooms.poll, now);
    manager.succession = Succession::OnProbation(probation);
    predecessor
}

/// A guest that comes meanwhile waits for its image, which an heir is to find where it was told that it is.
#[test]
fn who_came_while_an_heir_was_expected_is_served_when_no_launcher_starts_one() {
    let mut trial = Trial::of(MIGRATABLE);
    let (_silent, launcher) = Launchers::begin().expect("launchers");
    let manager = trial.manager();
    let asked = Upgrade::ask(Some(&launcher), manager.rooms.turn.tick()).expect("it is asked");
    manager.succession = Succession::Upgrading(asked);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    vmm.guest.request(0, READ, 0, 0);
    trial.pass(ms(1_000));
    assert_eq!((trial.manager().mode(), vmm.guest.status(0)), (Mode::HeirExpected, None));
    trial.pass(ms(10_000));
    assert_eq!((trial.manager().mode(), vmm.guest.status(0)), (Mode::Serving, Some(0)));
}

/// One that was not served when it was handed over would be begun anew by a predecessor that takes it back.
#[test]
fn a_ring_that_nobody_served_starts_when_the_process_before_can_take_nothing_back() {
    let mut trial = Trial::of(MIGRATABLE);
    let (_silent, launcher) = Launchers::begin().expect("launchers");
    let manager = trial.manager();
    let asked = Upgrade::ask(Some(&launcher), manager.rooms.turn.tick()).expect("it is asked");
    manager.succession = Succession::Upgrading(asked);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    vmm.guest.request(0, READ, 0, 0);
    let predecessor = watched(&mut trial);
    trial.rooms().turn.touch(0);
    trial.pass(ms(900));
    assert_eq!((trial.manager().mode(), vmm.guest.status(0)), (Mode::OnProbation, None));
    let image = std::fs::File::open(trial.path("a.img")).expect("an image");
    flock(&image, FlockOperation::NonBlockingLockExclusive).expect("nobody has taken it");
    drop(image);
    trial.pass(ms(200));
    assert!(predecessor.is_let_go());
    assert_eq!((trial.manager().mode(), vmm.guest.status(0)), (Mode::Serving, Some(0)));
}

/// Nor does one whose image is here, and which waited for what an earlier front-end had left.
#[test]
fn a_ring_that_waited_when_it_was_handed_over_waits_until_the_process_before_is_let_go() {
    let mut trial = Trial::of(MEMORY);
    let mut first = Vmm::served(&mut trial, "a", 1);
    trial.stall(true);
    first.guest.request(0, READ, 0, 0);
    trial.rest();
    drop(first.hang_up());
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    vmm.guest.request(0, READ, 0, 0);
    let predecessor = watched(&mut trial);
    trial.stall(false);
    trial.pass(ms(900));
    assert_eq!((trial.disk("a").queues_attached, vmm.guest.status(0)), (0, None));
    assert!(!predecessor.is_let_go());
    trial.pass(ms(200));
    assert_eq!((trial.disk("a").queues_attached, vmm.guest.status(0)), (1, Some(0)));
}

/// And an image that nobody uses any more is not let go before.
#[test]
fn no_image_is_let_go_while_the_process_before_may_take_it_back() {
    let mut trial = Trial::of(MIGRATABLE);
    let _vmm = Vmm::served(&mut trial, "a", 1);
    let number = trial.rooms().devices.number_of("a").expect("a device");
    let _predecessor = watched(&mut trial);
    let manager = trial.manager();
    let id = manager.rooms.devices.get(number).and_then(|device| device.runner()).expect("one");
    // As one that was gone when it was handed over.
    manager.front_ends().close(number, id, "it was gone");
    trial.pass(ms(900));
    assert_eq!(trial.disk("a").locked, Some(true));
    trial.pass(ms(200));
    assert_eq!(trial.disk("a").locked, Some(false));
}

/// The predecessor could take all back as long as nobody has said anything that it does not know.
#[test]
fn probation_does_not_end_by_a_call_that_nobody_answers() {
    let mut trial = Trial::of(CALLS);
    trial.pass(ms(500));
    let predecessor = watched(&mut trial);
    // The second call of the front-end falls into it.
    trial.pass(ms(900));
    assert!(trial.disk("a").problem.is_some_and(|why| why.contains("nobody answers")));
    assert!(!predecessor.is_let_go(), "though nobody was there");
    trial.pass(ms(200));
    assert!(predecessor.is_let_go(), "its time is over");
    assert!(!predecessor.is_let_go(), "it is told once");
}

#[test]
fn probation_ends_before_a_front_end_that_answers_is_heard() {
    let mut trial = Trial::of(CALLS);
    trial.pass(ms(500));
    let predecessor = watched(&mut trial);
    let _vmm = UnixListener::bind(trial.path("run/vmm.sock")).expect("a socket");
    trial.pass(ms(400));
    assert!(!predecessor.is_let_go());
    trial.pass(ms(200));
    assert!(predecessor.is_let_go());
    let connections = trial.rooms().devices.values().map(|device| device.connections().len());
    assert_eq!(connections.sum::<usize>(), 1);
}

#[test]
fn probation_ends_before_whoever_connects_and_whoever_changes_is_heard() {
    let connects: fn(&mut Trial) = |trial| drop(dial(&trial.socket("a")).expect("it listens"));
    let changes: fn(&mut Trial) =
        |trial| drop(trial.ask(Call::RemoveDisk { id: "x".to_string(), force: false }));
    let shows: fn(&mut Trial) = |trial| drop(trial.ask(Call::ListDisks));
    for (does, ends) in [(connects, true), (changes, true), (shows, false)] {
        let mut trial = Trial::of(MEMORY);
        let predecessor = watched(&mut trial);
        does(&mut trial);
        trial.rest();
        assert_eq!(predecessor.is_let_go(), ends);
    }
}

/// Its last close may wait behind one that lingers for an hour.
#[test]
fn a_listener_that_is_closed_is_heard_no_more_though_somebody_waits_there() {
    let mut trial = Trial::of(MEMORY);
    trial.slow(ms(3_600_000));
    let waits = dial(&trial.socket("a")).expect("it listens");
    let rooms = trial.rooms();
    let number = rooms.devices.number_of("a").expect("a device");
    removal::begin(number, None, rooms, Mode::Serving);
    // It goes round without end if the listener is still heard.
    trial.rest();
    assert_eq!(trial.rooms().devices.len(), 0);
    assert!(!trial.daemon.has_events());
    assert!(dial(&trial.socket("a")).is_none(), "nobody comes there any more");
    drop(waits);
}

/// What is due at that time in that mode.
fn due(trial: &mut Trial, mode: Mode) -> Vec<Timer> {
    let rooms = trial.rooms();
    let now = rooms.turn.tick();
    rooms.timers(mode).due(now).into_iter().collect()
}

#[test]
fn loads_wake_nobody_while_an_heir_waits_or_the_end_is_waited_for() {
    let mut trial = Trial::of(MEMORY);
    let _vmm = Vmm::served(&mut trial, "a", 1);
    trial.pass(ms(1_000));
    // Time goes on, and no turn is given.
    trial.skip(ms(2_000));
    assert!(due(&mut trial, Mode::Serving).contains(&Timer::Loads));
    for mode in [Mode::HeirExpected, Mode::HeirWaits, Mode::Frozen, Mode::Stopping] {
        assert!(!due(&mut trial, mode).contains(&Timer::Loads), "{mode:?}");
    }
}

#[test]
fn locks_that_are_waited_for_wake_nobody_while_an_heir_waits() {
    let mut trial = Trial::of(MIGRATABLE);
    let elsewhere = std::fs::File::open(trial.path("a.img")).expect("an image");
    flock(&elsewhere, FlockOperation::NonBlockingLockExclusive).expect("nobody has it");
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    let shown = trial.disk("a");
    assert_eq!((shown.queues_attached, shown.state), (0, DiskState::Waiting));
    assert!(shown.problem.is_some_and(|why| why.starts_with("it waits for its image")));
    trial.skip(ms(5_000));
    assert!(due(&mut trial, Mode::Serving).contains(&Timer::Devices));
    for mode in [Mode::HeirExpected, Mode::HeirWaits, Mode::Frozen] {
        assert!(!due(&mut trial, mode).contains(&Timer::Devices), "{mode:?}");
    }
    // They come by themselves when they are free.
    flock(&elsewhere, FlockOperation::Unlock).expect("let go");
    trial.pass(ms(2_000));
    assert_eq!(trial.disk("a").queues_attached, 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
}

#[test]
fn what_is_touched_late_wakes_the_loop_once() {
    let mut trial = Trial::of(MEMORY);
    let number = trial.rooms().devices.number_of("a").expect("a device");
    assert!(trial.daemon.patience().is_none_or(|time| !time.is_zero()));
    trial.rooms().turn.touch(number);
    assert_eq!(trial.daemon.patience(), Some(Duration::ZERO));
    let before = trial.turns;
    trial.rest();
    assert_eq!(trial.turns - before, 1);
    assert!(trial.daemon.patience().is_none_or(|time| !time.is_zero()));
}

/// An heir of a program that hands no lock over keeps other daemons out from when its predecessor has ended.
#[test]
fn the_lock_of_the_state_is_taken_once_a_predecessor_has_let_it_go() {
    let mut trial = Trial::of(MEMORY);
    let folder = trial.path("state").display().to_string();
    let rooms = trial.rooms();
    let heirs = StateFile::of_an_heir(&folder, None, rooms.turn.tick());
    let predecessors = std::mem::replace(&mut rooms.state, heirs);
    trial.pass(ms(5_000));
    assert!(trial.rooms().state.lock_held().is_none(), "another process has it");
    drop(predecessors);
    trial.pass(ms(1_100));
    assert!(trial.rooms().state.lock_held().is_some(), "nobody else has it");
}

/// Nothing is settled while all stands still, so that nothing is to turn the loop for it.
#[test]
fn what_is_touched_while_all_stands_still_wakes_nobody_and_is_settled_afterwards() {
    let mut trial = Trial::of(MEMORY);
    let number = trial.rooms().devices.number_of("a").expect("a device");
    assert!(trial.manager().drain.freeze());
    trial.rooms().turn.touch(number);
    assert!(trial.daemon.patience().is_none_or(|time| !time.is_zero()));
    trial.manager().settle();
    assert!(trial.rooms().turn.has_touched());
}

const SWITCH: &str = "[[switch]]\nid = \"s\"\nmacs_max = 1024\n";

/// Whatever waits for switches to be gone, an upgrade for example, would wait for ever.
#[test]
fn a_switch_without_ports_that_is_replaced_goes_at_once() {
    let mut trial = Trial::of(&format!("{MEMORY}{SWITCH}"));
    let other = SWITCH.replace("1024", "2048");
    let done = trial.reload(&format!("{MEMORY}{other}"), false).expect("it is done");
    assert_eq!(done.changes.len(), 1, "{:?}", done.changes);
    assert!(!trial.rooms().network.is_losing_a_switch());
    let Ok(Answer::Switches(all)) = trial.ask(Call::ListSwitches) else { panic!("no list") };
    assert_eq!(all.switches.len(), 1);
}

#[test]
fn a_switch_with_a_nic_that_is_replaced_goes_when_the_nic_has_moved() {
    let nic = "[[nic]]\nid = \"n\"\nswitch = \"s\"\n";
    let mut trial = Trial::of(&format!("{MEMORY}{SWITCH}{nic}"));
    let mut vmm = Vmm::of_nic(&mut trial, "n");
    let other = SWITCH.replace("1024", "2048");
    trial.reload(&format!("{MEMORY}{other}{nic}"), false).expect("it is done");
    trial.pass(ms(100));
    assert!(!trial.rooms().network.is_losing_a_switch());
    assert_eq!(trial.nic("n").queues_attached, 2);
    assert!(!vmm.is_cut_off(&mut trial));
}

const LOST: &str = "[[disk]]\nid = \"b\"\npath = \"{}/b.img\"\n";

/// The answer must not depend on what came first.
#[test]
fn a_disk_that_a_reload_opens_is_told_of_however_long_that_takes() {
    for slow in [0, 300, 3_000] {
        let text = format!("{MEMORY}{LOST}");
        let mut trial = Trial::of(&text);
        assert_eq!(trial.disk("b").state, DiskState::Failed);
        std::fs::write(trial.path("b.img"), vec![0; 1 << 20]).expect("an image");
        trial.slow(ms(slow));
        let done = trial.reload(&text, false).expect("it is done");
        assert_eq!(done.changes, ["opened disk b"], "opened in {slow} ms");
        assert_eq!(trial.disk("b").problem, None);
    }
}

#[test]
fn a_disk_that_a_reload_cannot_open_yet_is_told_of_as_such() {
    let text = format!("{MEMORY}{LOST}");
    let mut trial = Trial::of(&text);
    std::fs::write(trial.path("b.img"), vec![0; 1 << 20]).expect("an image");
    trial.slow(ms(15_000));
    let (kind, why) = refused(trial.reload(&text, false));
    assert_eq!(kind, config::api::ErrorKind::Busy);
    assert!(why.starts_with("disk \"b\" is not open yet: "), "{why}");
    assert!(why.contains("everything else was done, and it is opened as soon as that can be"));
    trial.pass(ms(20_000));
    assert_eq!(trial.disk("b").problem, None);
}

#[test]
fn a_stop_has_queues_back_and_ends_though_a_front_end_is_silent() {
    let mut trial = Trial::of(MEMORY);
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    let silent = Vmm::connect(&trial, "a", Guest::new(0)).expect("it listens");
    trial.rest();
    trial.daemon.stop();
    assert!(!trial.has_ended());
    trial.rest();
    assert!(trial.has_ended());
    assert!(vmm.is_cut_off(&mut trial));
    assert!(!trial.socket("a").exists(), "who comes now is refused at once");
    drop(silent);
}

/// An operator's call must not be lost between two processes.
#[test]
fn whoever_waits_when_another_process_takes_over_is_told_to_ask_again() {
    let mut trial = Trial::of(MEMORY);
    let waiting = trial.asks(Call::ListDisks);
    trial.manager().answer_all_busy();
    let (kind, why) = refused(trial.answer(waiting));
    assert_eq!(kind, config::api::ErrorKind::Busy);
    assert_eq!(why, "another process is taking over from this daemon; ask again");
}

/// How the only front-end's guest memory is.
fn health(trial: &mut Trial) -> Health {
    let mut devices = trial.rooms().devices.values();
    let connections = devices.next().expect("a device").connections();
    let front_end = &connections.values().next().expect("a front-end").front_end;
    front_end.memory(false).expect("its memory").health().clone()
}

/// When the answer is there its guest may put something else where that request's data would land.
#[test]
fn no_ring_has_stopped_while_an_earlier_front_end_s_request_is_under_way() {
    let stop = Message::GetVringBase(RingState { queue: 0, value: 0 });
    let messages = [stop, Message::ResetDevice, Message::ResetOwner];
    for (message, blocks) in messages.iter().flat_map(|it| [(it, false), (it, true)]) {
        let mut trial = Trial::of(MEMORY);
        let mut vmm = Vmm::served(&mut trial, "a", 1);
        let health = health(&mut trial);
        trial.stall(true);
        vmm.guest.request(0, READ, 3, 0);
        let guest = vmm.hang_up();
        let mut next = Vmm::connect(&trial, "a", guest).expect("somebody listens");
        next.begin(&mut trial);
        assert!(next.send(message, &[]));
        assert_eq!(next.hear(&mut trial), None, "{message:?} waits");
        if blocks {
            // As of its sidecore, whose last call of it has waited.
            health.lose(Loss::Call);
        }
        trial.stall(false);
        assert!(next.hear(&mut trial).is_some(), "{message:?} is answered, call blocks: {blocks}");
        // The one before is not spared for having gone.
        let mut third = Vmm::connect(&trial, "a", Guest::new(0)).expect("somebody listens");
        assert_eq!(third.is_cut_off(&mut trial), blocks, "{message:?}");
    }
}

/// A migration would lose what that request writes: its queue knows of no log.
#[test]
fn no_log_has_begun_while_an_earlier_front_end_s_request_is_under_way() {
    let log = vmm::memory_file(true);
    let size = vmm::MEMORY / guest_memory::LOG_PAGE_SIZE / 8;
    let base = (Message::SetLogBase(LogArea { size, offset: 0 }), vec![&log]);
    let features = vmm::FEATURES | bits::PROTOCOL_FEATURES | bits::LOG_ALL;
    for (message, fds) in [base, (Message::SetFeatures(features), Vec::new())] {
        let mut trial = Trial::of(MEMORY);
        let mut vmm = Vmm::served(&mut trial, "a", 1);
        trial.stall(true);
        vmm.guest.request(0, READ, 3, 0);
        let guest = vmm.hang_up();
        let mut next = Vmm::connect(&trial, "a", guest).expect("somebody listens");
        next.begin(&mut trial);
        assert!(next.send(&message, &fds));
        assert_eq!(next.hear(&mut trial), None, "{message:?} waits");
        trial.stall(false);
        assert!(next.hear(&mut trial).is_some(), "{message:?} is answered");
    }
}

/// Its devices go already, and are to be there after the next start.
#[test]
fn whoever_changes_something_while_the_daemon_stops_is_refused_and_nothing_is_changed() {
    let mut trial = Trial::of("");
    let spec = config::spec::DiskSpec {
        backend: Some(config::spec::BackendKind::Memory),
        size: Some(config::Size(1 << 20)),
        ..config::spec::DiskSpec::new("a")
    };
    trial.ask(Call::AddDisk { spec, force: false }).expect("added");
    let kept = trial.path("state/disks.json");
    let before = std::fs::read_to_string(&kept).expect("kept");
    trial.manager().begin_stop();
    let asked = trial.asks(Call::RemoveDisk { id: "a".to_string(), force: true });
    let (kind, why) = refused(trial.answer(asked));
    assert_eq!((kind, &why[..27]), (config::api::ErrorKind::Busy, "the daemon is being stopped"));
    assert_eq!(std::fs::read_to_string(&kept).expect("kept"), before);
}

/// One that dies before leaves no image and no socket that nobody has planned.
#[test]
fn an_heir_makes_what_is_new_in_its_file_when_it_has_committed() {
    let mut trial = Trial::of(MEMORY);
    let (image, socket) = (trial.path("b.img"), trial.path("b.sock"));
    let (path, listens) = (image.display(), socket.display());
    let text =
        format!("[[disk]]\nid = \"b\"\npath = \"{path}\"\nsize = \"1M\"\nsocket = \"{listens}\"\n");
    let host = cpus::HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
    let plan = config::plan::load(&text, "f", "/etc", &host, None).expect("a plan");
    let predecessor = watched(&mut trial);
    let rooms = trial.rooms();
    let (why, now) = (NotOpen::Late("it is new".to_string()), rooms.turn.now());
    rooms.shut.insert(Shut::waiting_for(DevicePlan::Disk(plan.disks[0].clone()), &why, now));
    let before = trial.turns;
    trial.pass(ms(300));
    // Whoever only asks gives the loop a turn.
    trial.disk("a");
    trial.pass(ms(400));
    assert!(!predecessor.is_let_go() && !image.exists() && !socket.exists());
    assert!(trial.turns - before < 50, "{} turns", trial.turns - before);
    trial.pass(ms(600));
    assert!(predecessor.is_let_go() && image.exists() && socket.exists());
}
