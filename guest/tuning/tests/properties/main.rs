//! Apply and undo in made-up guests: whatever the guest, and wherever it is interrupted, what is taken back is as it was.

mod made_up;

use made_up::{Crash, MadeUp};
use proptest::prelude::*;
use tuning::change::{End, Outcome, apply_rules, undo};
use tuning::check::{State, changes, check};
use tuning::guest::{Guest, Scope};
use tuning::journal::{Journal, Refusal};
use tuning::table::{is_beside, rules, setting};
use tuning::trial::{self, Verdict};
use tuning::{Place, System};

fn all_rules() -> Vec<String> {
    rules().map(|rule| rule.name.to_owned()).collect()
}

fn opened(system: &mut dyn System) -> Result<(Guest, Journal), Refusal> {
    let guest = Guest::look(system, Scope::Tree);
    let (journal, _) = Journal::open(system, &guest.boot)?;
    Ok((guest, journal))
}

fn applied(system: &mut dyn System, named: &[String]) -> Result<Vec<Outcome>, Refusal> {
    let (guest, mut journal) = opened(system)?;
    apply_rules(system, &mut journal, &guest, named)
}

fn undone(system: &mut dyn System, is_forced: bool) -> Result<Vec<Outcome>, Refusal> {
    let (guest, mut journal) = opened(system)?;
    undo(system, &mut journal, &guest, 1, is_forced)
}

/// A guest in which every rule that sets something has something to set.
fn untouched() -> MadeUp {
    MadeUp::guest(2)
        .file("sys/devices/system/clocksource/clocksource0/current_clocksource", "acpi_pm\n")
        .file("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc acpi_pm\n")
        .file("proc/sys/kernel/nmi_watchdog", "1\n")
        .file("proc/sys/kernel/soft_watchdog", "1\n")
        .file("sys/devices/system/cpu/cpuidle/current_driver", "haltpoll\n")
        .file("sys/devices/system/cpu/cpuidle/current_governor", "menu\n")
        .file("sys/devices/system/cpu/cpuidle/available_governors", "menu haltpoll\n")
        .file("sys/module/haltpoll/parameters/guest_halt_poll_ns", "0\n")
        .disk("vda", "[mq-deadline] kyber none\n", "75000\n", "1\n")
        .disk("vdb", "[none] mq-deadline\n", "0\n", "2\n")
        .nic("eth0", 1, 2)
}

fn guests() -> impl Strategy<Value = MadeUp> {
    let scheduler = prop::sample::select(vec![
        "[mq-deadline] kyber none\n",
        "mq-deadline [kyber] none\n",
        "[none] mq-deadline\n",
        "none\n",
        "mq-deadline none [bfq]\n",
        "[mq-deadline]\n",
    ]);
    let number = || prop::sample::select(vec!["0\n", "1\n", "2\n", "75000\n", "-1\n", "x\n", ""]);
    let clock =
        prop::sample::select(vec!["tsc\n", "acpi_pm\n", "hpet\n", "kvm-clock\n", "refined\n"]);
    let disks = prop::collection::vec((scheduler, number(), number()), 0..4);
    let watchdogs = (number(), number());
    (1u32..5, disks, watchdogs, clock, 0u32..5).prop_map(
        |(vcpus, disks, watchdogs, clock, pairs)| {
            let mut made = MadeUp::guest(vcpus)
                .file("proc/sys/kernel/nmi_watchdog", watchdogs.0)
                .file("proc/sys/kernel/soft_watchdog", watchdogs.1)
                .file("sys/devices/system/clocksource/clocksource0/current_clocksource", clock)
                .file(
                    "sys/devices/system/clocksource/clocksource0/available_clocksource",
                    "tsc hpet\n",
                );
            for (at, (scheduler, wbt, affinity)) in disks.into_iter().enumerate() {
                made = made.disk(&format!("vd{at}"), scheduler, wbt, affinity);
            }
            if pairs > 0 { made.nic("eth0", pairs, 4) } else { made }
        },
    )
}

fn crashes() -> impl Strategy<Value = Crash> {
    prop_oneof![any::<u8>().prop_map(Crash::Before), Just(Crash::After)]
}

proptest! {
    #[test]
    fn undo_after_apply_is_the_identity(made in guests(), is_named in any::<bool>()) {
        let mut system = made.clone();
        let named = if is_named { all_rules() } else { Vec::new() };
        for outcome in applied(&mut system, &named).unwrap() {
            prop_assert!(outcome.end.is_good(), "{:?}", outcome);
        }
        for place in &system.written {
            prop_assert!(setting(place).is_some(), "{} was written", place);
        }
        undone(&mut system, false).unwrap();
        prop_assert_eq!(system.kept(), made.kept());
    }

    #[test]
    fn undo_after_two_crashes_is_the_identity(
        made in guests(), at in 0usize..60, crash in crashes(), again in 0usize..60, other in crashes(),
    ) {
        let mut system = MadeUp { crash: Some((at, crash)), ..made.clone() };
        let _ = applied(&mut system, &all_rules());
        let mut system = MadeUp { crash: Some((again, other)), ..system.revived() };
        let _ = undone(&mut system, false);
        let mut system = system.revived();
        for outcome in undone(&mut system, false).unwrap() {
            prop_assert!(outcome.end.is_good(), "{:?}", outcome);
        }
        prop_assert_eq!(system.kept(), made.kept());
    }

    #[test]
    fn apply_after_a_crash_goes_on_and_undo_is_the_identity(
        made in guests(), at in 0usize..60, crash in crashes(),
    ) {
        let mut system = MadeUp { crash: Some((at, crash)), ..made.clone() };
        let _ = applied(&mut system, &all_rules());
        let mut system = system.revived();
        applied(&mut system, &all_rules()).unwrap();
        let mut whole = made.clone();
        applied(&mut whole, &all_rules()).unwrap();
        prop_assert_eq!(&system.files, &whole.files);
        undone(&mut system, false).unwrap();
        prop_assert_eq!(system.kept(), made.kept());
    }

    #[test]
    fn hostile_files_are_looked_at_and_left(
        made in guests(), bytes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 24),
    ) {
        let mut system = made;
        for (file, bytes) in system.files.values_mut().zip(bytes.iter().cycle()) {
            file.clone_from(bytes);
        }
        let before = system.kept();
        let _ = applied(&mut system, &all_rules());
        undone(&mut system, false).unwrap();
        prop_assert_eq!(system.parameters, before.1);
        prop_assert_eq!(system.journal, before.2);
    }

    #[test]
    fn hostile_journals_are_refused_or_change_only_settings(
        made in guests(), text in "[ -~\n]{0,300}", old in "[ -~]{0,20}", path in "[a-z/.]{0,40}",
    ) {
        let place = format!("{{\"record\":\"write\",\"number\":1,\"rule\":\"r\",\"device\":null,\
            \"place\":\"/{path}\",\"old\":{old:?},\"new\":\"x\",\"beside\":[[\"/{path}\",\"1\"]]}}\n");
        let begin = "{\"record\":\"journal\",\"version\":1,\"boot\":\"6b9f\"}\n";
        for journal in [text.clone(), format!("{begin}{place}"), format!("{begin}{text}")] {
            let mut system = MadeUp { journal: journal.into_bytes(), ..made.clone() };
            let _ = undone(&mut system, true);
            for place in &system.written {
                prop_assert!(setting(place).is_some(), "{} was written", place);
            }
        }
    }
}

#[test]
fn every_rule_that_sets_something_does_in_the_untouched_guest() {
    let mut system = untouched();
    let outcomes = applied(&mut system, &all_rules()).unwrap();
    let set: Vec<&str> = outcomes.iter().map(|outcome| outcome.rule.as_str()).collect();
    for rule in rules().filter(|rule| rule.way != tuning::rule::Way::Told) {
        assert!(set.contains(&rule.name), "{} is not set: {outcomes:#?}", rule.name);
    }
    assert!(outcomes.iter().all(|outcome| outcome.end.is_good()), "{outcomes:#?}");
    assert!(outcomes.iter().any(|outcome| outcome.end == End::Came), "{outcomes:#?}");
    assert_eq!(system.text("sys/block/vda/queue/scheduler"), "mq-deadline kyber [none]");
    assert_eq!(system.text("proc/irq/25/smp_affinity_list"), "1");
    let guest = Guest::look(&mut system, Scope::Tree);
    let left = changes(&check(&mut system, &guest), &all_rules());
    assert!(left.is_empty(), "{left:#?}");
}

/// Killed at every step of applying, and at every step of undoing what that left.
#[test]
fn undo_after_a_crash_at_every_step_is_the_identity() {
    let mut whole = untouched();
    applied(&mut whole, &all_rules()).unwrap();
    let mut tried = 0;
    for at in 0..whole.steps {
        for crash in [Crash::Before(0), Crash::Before(128), Crash::Before(255), Crash::After] {
            let mut system = MadeUp { crash: Some((at, crash)), ..untouched() };
            let _ = applied(&mut system, &all_rules());
            assert!(system.is_dead);
            let broken = system.revived();
            let mut system = broken.clone();
            undone(&mut system, false).unwrap();
            assert_eq!(system.kept(), untouched().kept(), "{crash:?} at {at}");
            for again in 0..system.steps {
                let mut system = MadeUp { crash: Some((again, crash)), ..broken.clone() };
                let _ = undone(&mut system, false);
                assert!(system.is_dead);
                let mut system = system.revived();
                undone(&mut system, false).unwrap();
                assert_eq!(system.kept(), untouched().kept(), "{crash:?} at {at}, {again}");
                tried += 1;
            }
        }
    }
    assert!(tried > 1000, "{tried}");
}

#[test]
fn apply_twice_is_apply_once() {
    let mut system = untouched();
    applied(&mut system, &all_rules()).unwrap();
    let once = system.kept();
    assert_eq!(applied(&mut system, &all_rules()).unwrap(), []);
    assert_eq!(system.kept(), once);
}

#[test]
fn what_others_changed_since_is_left_unless_it_is_forced() {
    let mut system = untouched();
    applied(&mut system, &[]).unwrap();
    let path = "sys/block/vda/queue/scheduler";
    system.set(path, "mq-deadline [kyber] none\n");
    system.set("sys/block/vda/queue/nr_requests", "32\n");
    let outcomes = undone(&mut system, false).unwrap();
    let theirs: Vec<&Outcome> = outcomes.iter().filter(|it| it.end == End::Others).collect();
    assert_eq!(theirs.len(), 1, "{outcomes:#?}");
    assert_eq!(
        theirs[0].say,
        "somebody has set kyber since: it is left (--force puts mq-deadline back)"
    );
    assert_eq!(system.text(path), "mq-deadline [kyber] none");
    let outcomes = undone(&mut system, true).unwrap();
    assert_eq!(outcomes.len(), 1);
    assert_eq!(system.kept(), untouched().kept());
}

#[test]
fn what_others_changed_beside_a_setting_is_left_and_said() {
    let mut system = untouched();
    applied(&mut system, &["block-scheduler".to_owned()]).unwrap();
    system.set("sys/block/vda/queue/nr_requests", "32\n");
    let outcomes = undone(&mut system, false).unwrap();
    let say = "beside it these are not as they were: /sys/block/vda/queue/nr_requests";
    assert_eq!((outcomes[0].end, outcomes[0].say.as_str()), (End::Restored, say));
}

#[test]
fn a_rule_is_made_whole_or_not_at_all() {
    let refused = "/sys/class/net/eth0/napi_defer_hard_irqs".to_owned();
    let mut system = MadeUp { refused: [refused].into(), ..untouched() };
    let outcomes = applied(&mut system, &["gro-timers".to_owned()]).unwrap();
    let ends: Vec<End> = outcomes.iter().map(|outcome| outcome.end).collect();
    assert_eq!(ends, [End::TakenBack, End::Failed]);
    assert_eq!(outcomes[1].say, "it cannot be written: Invalid argument");
    assert_eq!(system.kept(), untouched().kept());
}

#[test]
fn a_device_that_came_under_an_old_name_is_not_touched() {
    let mut system = untouched();
    applied(&mut system, &[]).unwrap();
    system.set("sys/block/vda/diskseq", "19\n");
    let outcomes = undone(&mut system, false).unwrap();
    let disk = outcomes.iter().find(|outcome| outcome.rule == "block-scheduler").unwrap();
    assert_eq!((disk.end, disk.say.as_str()), (End::Gone, "vda is gone, or is another device now"));
    assert_eq!(system.text("sys/block/vda/queue/scheduler"), "mq-deadline kyber [none]");
}

#[test]
fn a_journal_of_an_earlier_start_says_nothing_of_this_one() {
    let mut system = untouched();
    applied(&mut system, &[]).unwrap();
    let mut started = MadeUp { journal: system.journal.clone(), ..untouched() };
    started.set("proc/sys/kernel/random/boot_id", "another\n");
    assert_eq!(undone(&mut started, false).unwrap(), []);
    assert_eq!(started.journal, b"");
    assert_eq!(started.written, []);
}

#[test]
fn a_journal_that_cannot_be_written_ends_it_before_anything_is_changed() {
    // A dead process stands for a full disk: nothing is noted any more.
    let mut system = MadeUp { crash: Some((0, Crash::Before(9))), ..untouched() };
    let refusal = applied(&mut system, &[]).unwrap_err();
    assert!(matches!(refusal, Refusal::Trouble(_)), "{refusal:?}");
    assert_eq!(system.written, []);
}

#[test]
fn what_the_device_or_others_decide_is_said_and_not_set() {
    let mut system = untouched()
        .file("proc/77/comm", "irqbalance\n")
        .file("proc/cmdline", "nohz=off root=/dev/vda1\n")
        .linked("sys/block/sda", "../devices/pci0/ata1/host0/block/sda")
        .linked("sys/block/sda/device/driver", "../../bus/scsi/drivers/sd")
        .linked("sys/class/net/eth1", "../../devices/pci0/net/eth1")
        .linked("sys/class/net/eth1/device/driver", "../../bus/pci/drivers/e1000");
    let guest = Guest::look(&mut system, Scope::Tree);
    let findings = check(&mut system, &guest);
    let state = |rule: &str| findings.iter().find(|it| it.rule == rule).map(|it| it.state);
    let irqs = findings.iter().filter(|it| it.rule == "irq-affinity").map(|it| it.state);
    assert_eq!(irqs.collect::<Vec<_>>(), [State::Good, State::Left]);
    for rule in ["kernel-words", "emulated-disk", "emulated-nic", "disk-queues"] {
        assert_eq!(state(rule), Some(State::Elsewhere), "{rule}");
    }
    let fixed = |it: &&tuning::check::Finding| it.is.as_deref() == Some("off-fixed");
    assert_eq!(findings.iter().find(fixed).map(|it| it.state), Some(State::Elsewhere));
    assert!(changes(&findings, &all_rules()).iter().all(|change| change.rule != "irq-affinity"));
}

/// Judges B by what it is: twice as good, where `is_better`.
fn tried(system: &mut MadeUp, is_better: bool) -> Result<trial::Trial, trial::Stop> {
    let (guest, mut journal) = opened(system)?;
    let changes = changes(&check(system, &guest), &["block-scheduler".to_owned()]);
    let mut samples = 0u32;
    let mut measure = |_: &mut dyn System| {
        samples += 1;
        // In turns: which one it is, the order of the seed says.
        let first = trial::order(3, 5)[(samples as usize - 1) / 2];
        let is_b = (samples % 2 == 1) == first;
        Ok(if is_b && is_better { 200.0 } else { 100.0 } + f64::from(samples))
    };
    trial::run(system, &mut journal, &guest, &changes, (5, 3), &mut measure)
}

#[test]
fn a_trial_keeps_what_is_better_and_nothing_else() {
    let mut system = untouched();
    let trial = tried(&mut system, false).unwrap();
    assert_eq!((trial.verdict, trial.kept), (Verdict::Alike, false));
    assert_eq!(system.kept(), untouched().kept());
    let trial = tried(&mut system, true).unwrap();
    assert_eq!((trial.verdict, trial.kept), (Verdict::Better, true));
    assert_eq!(system.text("sys/block/vda/queue/scheduler"), "mq-deadline kyber [none]");
    undone(&mut system, false).unwrap();
    assert_eq!(system.kept(), untouched().kept());
}

#[test]
fn a_trial_that_is_killed_at_any_step_is_undone() {
    let mut whole = untouched();
    tried(&mut whole, true).unwrap();
    for at in 0..whole.steps {
        for crash in [Crash::Before(100), Crash::After] {
            let mut system = MadeUp { crash: Some((at, crash)), ..untouched() };
            let _ = tried(&mut system, true);
            assert!(system.is_dead);
            let mut system = system.revived();
            undone(&mut system, false).unwrap();
            assert_eq!(system.kept(), untouched().kept(), "{crash:?} at {at}");
        }
    }
}

#[test]
fn what_is_beside_a_setting_is_only_what_the_table_says() {
    let scheduler = Place::of("sys/block/vda/queue/scheduler").unwrap();
    let setting = setting(&scheduler).unwrap();
    assert!(is_beside(setting, &Place::of("sys/block/vda/queue/nr_requests").unwrap()));
    assert!(!is_beside(setting, &Place::of("proc/sys/kernel/core_pattern").unwrap()));
}
