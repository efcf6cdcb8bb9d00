//! Losses, timers and the window, frame by frame.

use super::*;

const FRAME: usize = 1000;
const MS: u64 = 1_000_000;

#[derive(Default)]
struct Seen {
    taken: Vec<u64>,
    lost: Vec<u64>,
}

impl Fate for Seen {
    fn taken(&mut self, mark: Mark) {
        self.taken.push(mark.turn);
    }

    fn lost(&mut self, mark: Mark) {
        self.lost.push(mark.turn);
    }
}

fn send(flight: &mut Flight, now: u64) -> u64 {
    let counter = flight.next();
    let mut note = Note::new();
    note.bytes = FRAME as u32;
    note.add(Mark { turn: counter, ..NO_MARK });
    flight.spend(now, Some(&note));
    counter
}

fn ack(flight: &mut Flight, counters: &[u64], now: u64) -> Seen {
    let mut seen = Seen::default();
    for counter in counters {
        flight.acked(counter / 64, 1 << (counter % 64), now, &mut seen).expect("was sent");
    }
    flight.settle(true, now, &mut seen);
    seen
}

#[test]
fn the_window_opens_and_is_halved_once_a_round() {
    let mut flight = Flight::new(FRAME, 0);
    while flight.has_room(u64::MAX) {
        send(&mut flight, 0);
    }
    assert_eq!(flight.next(), 10);
    ack(&mut flight, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], MS);
    while flight.has_room(u64::MAX) {
        send(&mut flight, MS);
    }
    assert_eq!(flight.next(), 30, "slow start doubles");
    let seen = ack(&mut flight, &[14, 15, 16, 17], 2 * MS);
    assert_eq!(seen.lost, [10, 11, 12, 13], "three later ones are known");
    assert_eq!(flight.window, 12 * FRAME as u64, "halved, once");
    let seen = ack(&mut flight, &[29], 2 * MS);
    assert_eq!(seen.lost, (18..=26).collect::<Vec<_>>());
    assert!(flight.window >= 12 * FRAME as u64, "all of that round has been paid for");
    // What was lost may have come after all.
    assert_eq!(ack(&mut flight, &[10], 3 * MS).taken, [10]);
}

#[test]
fn credit_bounds_what_is_sent() {
    let mut flight = Flight::new(FRAME, 0);
    for first in [0, 104] {
        while flight.has_room(4) {
            send(&mut flight, 0);
        }
        assert_eq!(flight.next(), first + 4);
        ack(&mut flight, &[first, first + 1, first + 2, first + 3], MS);
        // Acknowledgements of ours spend counters, and none of it.
        (0..100).for_each(|_| flight.spend(MS, None));
    }
    assert!(flight.has_room(0), "one may always go: it asks for more");
}

/// N11: acknowledged but never sent; numbers at their end; the same twice, and backwards.
#[test]
fn n11_an_acknowledgement_of_what_was_never_sent_is_an_error() {
    let mut flight = Flight::new(FRAME, 0);
    for _ in 0..5 {
        send(&mut flight, 0);
    }
    let mut seen = Seen::default();
    for (block, mask) in
        [(0, 1 << 5), (0, 1 << 63), (1, 1), (u64::MAX, 1), (u64::MAX / 64, u64::MAX)]
    {
        assert!(flight.acked(block, mask, 0, &mut seen).is_err(), "{block} {mask}");
    }
    assert!(seen.taken.is_empty());
    assert_eq!(ack(&mut flight, &[4, 4, 3, 4], 1).taken, [4, 3]);
    assert_eq!(ack(&mut flight, &[2, 1, 2], 2).taken, [2, 1]);
}

#[test]
fn the_timer_begins_at_ten_milliseconds_and_doubles_with_every_second_ring() {
    let mut flight = Flight::new(FRAME, 0);
    let mut seen = Seen::default();
    let mut at = 0;
    for wait in [10, 15, 20, 30] {
        send(&mut flight, at);
        assert_eq!(flight.due(), Some(at + wait * MS));
        assert_eq!(flight.rang(at + wait * MS - 1, &mut seen), Rang::Nothing);
        at += wait * MS;
        assert_eq!(flight.rang(at, &mut seen), Rang::Probe);
    }
    // The oldest three times, then all that is under way.
    assert_eq!(seen.lost, [0, 0, 0, 0, 1, 2, 3]);
    assert_eq!(flight.due(), None, "nothing is under way");
    // A late acknowledgement is a sample, and ends the doubling.
    ack(&mut flight, &[3], at + MS);
    let stats = flight.stats(7);
    assert_eq!((flight.backoff(), stats.round_trip_ns, stats.credit_frames), (0, 31 * MS, 7));
}

/// An acknowledgement that the other end repeats when its own timer rings says nothing of the way; neither do older frames
/// of the same one.
#[test]
fn only_a_first_acknowledgement_of_the_newest_frame_is_a_round_trip() {
    let mut flight = Flight::new(FRAME, 0);
    let mut seen = Seen::default();
    send(&mut flight, 0);
    flight.acked(0, 1, 50 * MS, &mut seen).expect("was sent");
    flight.settle(false, 50 * MS, &mut seen);
    assert_eq!(flight.stats(0).round_trip_ns, 0);
    send(&mut flight, 60 * MS);
    send(&mut flight, 70 * MS);
    ack(&mut flight, &[1, 2], 71 * MS);
    assert_eq!(flight.stats(0).round_trip_ns, MS);
}

/// A stall looks like losses. When everything has come after all, it has cost nothing.
#[test]
fn what_was_taken_for_lost_and_has_come_is_given_back() {
    let mut flight = Flight::new(FRAME, 0);
    (0..8).for_each(|_| _ = send(&mut flight, 0));
    ack(&mut flight, &[0, 1, 2, 3, 4, 5, 6, 7], MS);
    let before = flight.window;
    (0..8).for_each(|_| _ = send(&mut flight, MS));
    let mut seen = Seen::default();
    while flight.flying > 0 {
        let due = flight.due().expect("a timer");
        flight.rang(due, &mut seen);
    }
    assert_eq!((flight.window, flight.stats(0).frames_lost), (2 * FRAME as u64, 8));
    ack(&mut flight, &[8, 9, 10, 11, 12, 13, 14], 50 * MS);
    assert!(flight.window < before, "one is missing still");
    ack(&mut flight, &[15], 51 * MS);
    assert_eq!((flight.window, flight.stats(0).frames_lost), (before, 0));
    // The next loss is paid for as ever.
    (0..8).for_each(|_| _ = send(&mut flight, 60 * MS));
    ack(&mut flight, &[23], 61 * MS);
    assert!(flight.window < before, "{} of {before}", flight.window);
}

#[test]
fn the_tail_is_probed_after_two_round_trips() {
    let mut flight = Flight::new(FRAME, 0);
    send(&mut flight, 0);
    ack(&mut flight, &[0], 4 * MS);
    send(&mut flight, 10 * MS);
    send(&mut flight, 10 * MS);
    let due = flight.due().expect("a timer");
    assert_eq!(due, 10 * MS + 8 * MS + ACK_DELAY_NS);
    let mut seen = Seen::default();
    assert_eq!(flight.rang(due, &mut seen), Rang::Probe);
    assert_eq!(seen.lost, [1], "the oldest goes along");
    let probe = send(&mut flight, due);
    let seen = ack(&mut flight, &[probe], due + 4 * MS);
    assert_eq!(seen.lost, [1, 2], "sent long before what was acknowledged");
}

/// N16: frames that are under way for as long as one likes do not stop those after them.
#[test]
fn n16_a_frame_that_is_never_acknowledged_does_not_stop_the_others() {
    let mut flight = Flight::new(FRAME, 0);
    let mut now = 0;
    let mut seen = Seen::default();
    for _ in 0..5_000 {
        while flight.has_room(u64::MAX) && flight.flying < 4 {
            send(&mut flight, now);
        }
        // Only every third one is acknowledged; acknowledgements of ours spend counters between.
        flight.spend(now, None);
        let newest = flight.next() - 2;
        now += MS;
        let (block, mask) = (newest / 64, 1u64 << (newest % 64));
        if newest.is_multiple_of(3) {
            flight.acked(block, mask, now, &mut seen).expect("was sent");
            flight.settle(true, now, &mut seen);
        }
        // A probe goes beyond window and credit.
        if flight.rang(now, &mut seen) == Rang::Probe {
            send(&mut flight, now);
        }
    }
    let counts = (seen.taken.len(), seen.lost.len());
    assert!(counts.0 > 500 && counts.1 > 500, "{counts:?}");
    assert!(flight.bytes <= 8 * FRAME as u64, "{}", flight.bytes);
}
