//! The tables of states and events of a device, the refused ones too.

use super::*;

const NOW: Nanos = Nanos(100);
const LATER: Nanos = Nanos(200);

type Made = fn() -> Door<char>;

fn none() -> Door<char> {
    Door::default()
}

fn listening() -> Door<char> {
    let mut door = none();
    assert_eq!(door.open('l'), None);
    door
}

fn paused() -> Door<char> {
    let mut door = listening();
    assert_eq!(door.pause(LATER), Some(&'l'));
    door
}

fn retry() -> Door<char> {
    let mut door = none();
    door.retry(Due::Listen, LATER);
    door
}

fn connecting() -> Door<char> {
    let mut door = none();
    door.called(LATER);
    door.connect(NOW);
    door
}

fn off() -> Door<char> {
    let mut door = listening();
    assert_eq!(door.turn_off(), Some('l'));
    door
}

/// By its name, whether it listens, what is due and when.
fn name(door: &Door<char>) -> &'static str {
    match door.state {
        State::None => "none",
        State::Listening(_) => "listening",
        State::Paused(..) => "paused",
        State::Retry(_) => "retry",
        State::Connecting(_) => "connecting",
        State::Exported => "exported",
        State::Off => "off",
    }
}

#[test]
fn every_door_goes_where_the_table_says() {
    let made: [Made; 7] = [none, listening, paused, retry, connecting, off, Door::<char>::exported];
    let table = [
        ["listening", "none", "none", "retry", "connecting", "none", "off", "none"],
        ["listening", "paused", "listening", "listening", "listening", "none", "off", "listening"],
        ["paused", "paused", "listening", "paused", "paused", "none", "off", "listening"],
        ["listening", "retry", "retry", "retry", "connecting", "none", "off", "none"],
        ["connecting", "connecting", "connecting", "retry", "connecting", "none", "off", "none"],
        ["listening", "off", "off", "retry", "connecting", "none", "off", "off"],
        ["exported"; 8],
    ];
    let events: [fn(&mut Door<char>); 8] = [
        |door| {
            let _ = door.open('n');
        },
        |door| {
            let _ = door.pause(LATER);
        },
        |door| {
            let _ = door.resume();
        },
        |door| door.retry(Due::Listen, LATER),
        |door| door.connect(NOW),
        |door| {
            let _ = door.close();
        },
        |door| {
            let _ = door.turn_off();
        },
        |door| {
            let _ = door.take_due(LATER);
        },
    ];
    for (make, row) in made.into_iter().zip(table) {
        for (event, (at, expected)) in events.into_iter().zip(row.into_iter().enumerate()) {
            let mut door = make();
            let before = name(&door);
            event(&mut door);
            assert_eq!(name(&door), expected, "{before}, event {at}");
        }
    }
}

#[test]
fn a_listener_is_given_back_once_and_none_is_lost() {
    for (make, has) in [(none as Made, false), (listening, true), (paused, true), (off, false)] {
        assert_eq!(make().listener().is_some(), has);
        let mut door = make();
        let refused = door.open('n');
        assert_eq!(refused, has.then_some('n'), "one that listens keeps its own");
        let own = if has { 'l' } else { 'n' };
        assert_eq!((door.close(), door.close()), (Some(own), None));
        assert!(door.is_closed());
    }
    assert_eq!(Door::exported().open('n'), Some('n'));
    assert_eq!(connecting().open('n'), Some('n'), "who calls does not listen");
}

#[test]
fn what_is_due_is_told_once_and_not_before() {
    for (make, due) in
        [(paused as Made, Due::Accept), (retry, Due::Listen), (connecting, Due::Connect)]
    {
        let mut door = make();
        assert_eq!((door.due(), door.take_due(NOW)), (Some(LATER), None));
        assert_eq!((door.take_due(LATER), door.take_due(LATER)), (Some(due), None));
    }
    for make in [none, listening, off, Door::<char>::exported] {
        assert_eq!((make().due(), make().take_due(LATER)), (None, None));
    }
}

#[test]
fn a_front_end_that_hangs_up_is_not_called_in_a_loop() {
    let mut door = none();
    door.connect(NOW);
    assert_eq!((door.due(), door.take_due(NOW)), (Some(NOW), Some(Due::Connect)));
    door.called(LATER);
    door.connect(NOW);
    assert_eq!(door.due(), Some(LATER));
    // Its cable was out meanwhile.
    door.turn_off();
    door.connect(NOW);
    assert_eq!(door.due(), Some(LATER));
    door.stay();
    assert_eq!((door.due(), door.is_closed()), (None, true));
}

#[test]
fn who_made_a_sidecore_wait_shuts_the_door_in_whatever_state_it_is() {
    for make in [none, listening, paused, retry, connecting, off] {
        let mut door = make();
        assert_eq!(door.shut_until(NOW), None);
        let before = name(&door);
        door.shut_out(LATER);
        assert_eq!((door.shut_until(NOW), door.shut_until(LATER)), (Some(LATER), None));
        assert_eq!(name(&door), before);
        door.stay();
        door.close();
        door.connect(NOW);
        assert_eq!(door.due(), Some(LATER), "nor is one called");
    }
}

#[test]
fn a_device_that_goes_is_gone_when_its_queues_are_back() {
    use Existence::{Going, Open, Restarting};
    for (before, restarted, after_back, is_gone) in [
        (Open, Restarting, Open, false),
        (Restarting, Restarting, Open, false),
        (Going, Going, Going, true),
    ] {
        let mut one = before;
        one.restart();
        assert_eq!(one, restarted);
        let mut one = before;
        assert_eq!((one.back(), one), (is_gone, after_back));
        let mut one = before;
        one.go();
        assert_eq!(one, Going);
    }
}
