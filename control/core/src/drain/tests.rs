//! The table of states and events, and every way that a drain can go.

use std::collections::HashSet;

use super::*;

const LONG: Nanos = Nanos(15_000 * MS);

/// A drain in each state that has one.
fn states() -> Vec<(&'static str, Drain)> {
    let out = Drain::default();
    let mut frozen = out.clone();
    assert!(frozen.freeze());
    let mut coming = frozen.clone();
    assert!(coming.bring(LONG, Nanos(0)));
    let mut home = coming.clone();
    while home.step().is_some() {
        home.done(true, Nanos(0));
    }
    let mut failed = coming.clone();
    while failed.step().is_some() {
        failed.done(false, Nanos(0));
    }
    let mut late = failed.clone();
    late.thaw(Nanos(0));
    let mut going = home.clone();
    going.thaw(Nanos(0));
    [out, frozen, coming, home, failed, late, going]
        .into_iter()
        .zip(["out", "frozen", "coming", "home", "failed", "late ports", "going"])
        .map(|(drain, name)| (name, drain))
        .collect()
}

fn name(drain: &Drain) -> &'static str {
    match drain.state {
        State::Out => "out",
        State::Frozen => "frozen",
        State::Coming(..) => "coming",
        State::Home => "home",
        State::Failed(_) => "failed",
        State::LatePorts(_) => "late ports",
        State::Going(_) => "going",
    }
}

#[test]
fn every_state_answers_every_event() {
    let table = [
        // state, whether it is frozen, after freeze, bring, thaw, and a step that is done
        ("out", false, "frozen", "out", "going", "out"),
        ("frozen", true, "frozen", "coming", "late ports", "frozen"),
        ("coming", true, "coming", "coming", "late ports", "coming"),
        ("home", true, "home", "home", "going", "home"),
        ("failed", true, "failed", "failed", "late ports", "failed"),
        ("late ports", true, "late ports", "late ports", "late ports", "going"),
        ("going", false, "going", "going", "going", "going"),
    ];
    for ((state, is_frozen, freeze, bring, thaw, done), (name_of, drain)) in
        table.into_iter().zip(states())
    {
        assert_eq!((name(&drain), drain.is_frozen(), name_of), (state, is_frozen, state));
        let after = |event: &dyn Fn(&mut Drain)| {
            let mut drain = drain.clone();
            event(&mut drain);
            (name(&drain), drain)
        };
        let (is, _) = after(&|drain| assert_eq!(drain.freeze(), state == "out"));
        assert_eq!(is, freeze, "{state}, freeze");
        let (is, _) = after(&|drain| assert_eq!(drain.bring(LONG, Nanos(0)), state == "frozen"));
        assert_eq!(is, bring, "{state}, bring");
        let (is, thawed) = after(&|drain| drain.thaw(Nanos(0)));
        assert_eq!((is, thawed.is_frozen()), (thaw, is == "late ports"), "{state}, thaw");
        let (is, _) = after(&|drain| drain.done(true, Nanos(0)));
        assert_eq!(is, done, "{state}, done");
        // Nobody has asked which are late.
        let (is, same) = after(&|drain| drain.are_late(BTreeSet::from([1]), Nanos(0)));
        assert_eq!((is, same), (state, drain.clone()), "{state}, late disks");
    }
}

/// What a drain does when all goes well, as one line.
fn course(drain: &mut Drain) -> String {
    let mut all = Vec::new();
    while let Some(step) = drain.step() {
        all.push(match step {
            Step::FetchSlow(..) => "fetch slow".to_string(),
            Step::Fetch(wave, _) => format!("fetch {wave:?}"),
            Step::Fence(_) => "fence".to_string(),
            Step::CatchUp(_) => "catch up".to_string(),
            Step::Look => "look".to_string(),
            Step::AwaitPorts(_) => "await ports".to_string(),
            Step::Send(wave) => format!("send {wave:?}"),
        });
        drain.done(true, Nanos(0));
    }
    all.join(", ")
}

#[test]
fn senders_come_first_and_go_last() {
    let mut drain = Drain::default();
    assert!(drain.freeze() && drain.bring(LONG, Nanos(0)));
    assert_eq!(
        course(&mut drain),
        "fetch Senders, fence, fetch Ways, fence, fetch Rest, fetch Links"
    );
    assert!(drain.is_home() && drain.is_frozen());
    drain.thaw(Nanos(0));
    assert_eq!(
        course(&mut drain),
        "send Links, send Receivers, fence, send Ways, fence, send Rest"
    );
    assert_eq!(drain, Drain::default());
    // Given up before anybody was asked.
    assert!(drain.freeze());
    drain.thaw(Nanos(0));
    assert_eq!(
        course(&mut drain),
        "await ports, send Links, send Receivers, fence, send Ways, fence, send Rest"
    );
}

#[test]
fn each_wait_has_its_end() {
    let (mut drain, now) = (Drain::default(), Nanos(7 * MS));
    assert!(drain.freeze() && drain.bring(LONG, now));
    assert_eq!(drain.step(), Some(Step::Fetch(Wave::Senders, Nanos(57 * MS))));
    drain.done(false, Nanos(57 * MS));
    assert_eq!(drain.step(), Some(Step::CatchUp(Nanos(1_057 * MS))));
    drain.done(true, Nanos(60 * MS));
    assert_eq!(drain.step(), Some(Step::Look));
    drain.are_late(BTreeSet::from([3]), Nanos(60 * MS));
    assert_eq!(drain.step(), Some(Step::AwaitPorts(Nanos(1_060 * MS))));
    while !matches!(drain.step(), Some(Step::FetchSlow(..))) {
        drain.done(true, Nanos(12_000 * MS));
    }
    // What is left of the whole.
    assert_eq!(drain.step(), Some(Step::FetchSlow(BTreeSet::from([3]), LONG)));
    drain.done(false, LONG);
    assert_eq!(drain.step(), Some(Step::Fetch(Wave::Senders, LONG)));
    // It ends when its time is over, whatever tries are left.
    while drain.step().is_some() {
        drain.done(true, LONG);
        if matches!(drain.step(), Some(Step::Fence(_))) {
            drain.done(false, LONG);
        }
    }
    assert_eq!(drain.failed(), Some(&BTreeSet::from([3])));
}

/// What whoever drives it sees: which parts are with sidecores, and which roads may have frames on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Seen {
    back: [bool; 3],
    fenced: [bool; 2],
    withheld: BTreeSet<u32>,
    ever_late: BTreeSet<u32>,
    tries: u8,
    unfenced: bool,
}

impl Seen {
    /// Looks at a step that is taken, with that end.
    fn see(&mut self, drain: &Drain, step: &Step, is_done: bool) {
        assert!(
            drain.is_frozen() || matches!(step, Step::Send(_) | Step::Fence(_)),
            "{step:?} while all is served"
        );
        match step {
            Step::FetchSlow(slow, _) => assert_eq!(slow, &self.ever_late, "asked beforehand"),
            Step::Fetch(Wave::Senders, _) => {
                self.tries += 1;
                assert_eq!(self.withheld, self.ever_late, "who was late has its five seconds");
                (self.back, self.fenced) = ([is_done, false, false], [false; 2]);
            }
            Step::Fetch(Wave::Ways, _) => {
                assert!(self.back[0] && self.fenced[0], "a way is gone that frames are on");
                self.back[1] = is_done;
            }
            Step::Fetch(Wave::Rest, _) => {
                assert!(self.back[1] && self.fenced[1], "a receiver is gone that frames are for");
                self.back[2] = is_done;
            }
            Step::Fetch(Wave::Links, _) => assert!(self.back[2], "a link goes before its disks"),
            Step::Fetch(Wave::Receivers, _) => panic!("receivers come with the rest"),
            Step::Fence(_) => match std::mem::take(&mut self.unfenced) {
                true => {}
                false => self.fenced[usize::from(self.back[1])] = is_done,
            },
            Step::Send(wave) => {
                assert!(!self.unfenced, "{wave:?} before those that they send to");
                let asks = is_done && matches!(wave, Wave::Receivers | Wave::Ways);
                self.unfenced = asks;
                if *wave == Wave::Links {
                    self.withheld = drain.withheld().cloned().unwrap_or_default();
                }
            }
            Step::CatchUp(_) | Step::Look | Step::AwaitPorts(_) => {}
        }
    }
}

#[test]
fn every_way_that_a_drain_can_go_ends_and_no_frame_finds_nobody() {
    let mut first = Drain::default();
    assert!(first.freeze() && first.bring(LONG, Nanos(0)));
    let mut todo = vec![(first, Seen::default())];
    let mut met: HashSet<(Drain, Seen)> = HashSet::new();
    let (mut homes, mut failures) = (0, 0);
    while let Some((drain, seen)) = todo.pop() {
        if !met.insert((drain.clone(), seen.clone())) {
            continue;
        }
        // It may be given up wherever it is.
        if drain.is_frozen() && !matches!(drain.state, State::LatePorts(_)) {
            let mut given_up = drain.clone();
            given_up.thaw(Nanos(0));
            todo.push((given_up, Seen { unfenced: false, ..seen.clone() }));
        }
        let Some(step) = drain.step() else {
            homes += u32::from(drain.is_home());
            if let Some(late) = drain.failed() {
                failures += 1;
                assert!(late.is_subset(&seen.ever_late));
            }
            assert!(seen.tries <= ROUNDS_MAX);
            assert!(!drain.is_home() || drain.failed().is_none());
            if drain == Drain::default() {
                assert_eq!(seen.withheld, BTreeSet::new(), "a disk that nobody serves any more");
            }
            continue;
        };
        // Moments: at once, and when the time of the whole is over.
        for now in [Nanos(0), LONG] {
            if step == Step::Look {
                for late in [vec![], vec![0], vec![1], vec![0, 1]] {
                    let late: BTreeSet<u32> = late.into_iter().collect();
                    let (mut drain, mut seen) = (drain.clone(), seen.clone());
                    seen.ever_late.extend(&late);
                    drain.are_late(late, now);
                    todo.push((drain, seen));
                }
                continue;
            }
            for is_done in [true, false] {
                let (mut drain, mut seen) = (drain.clone(), seen.clone());
                seen.see(&drain, &step, is_done);
                drain.done(is_done, now);
                todo.push((drain, seen));
            }
        }
    }
    assert!(homes > 0 && failures > 0, "{homes} homes, {failures} failures");
    assert!(met.len() > 500, "{} states", met.len());
}
