//! Another image under the name of a device: nothing is asked of it before it is the same again, or accepted.

use super::*;

const CHANGED: Refusal = Refusal::Changed;

/// Bound to image 7, with a write that was flushed.
fn on_an_image() -> (Pair, u16) {
    let mut pair = Pair::new(1000);
    pair.image = 7;
    let one = pair.client.attach(SPEC).expect("a place");
    pair.greet();
    pair.run(10 * MS);
    pair.write(one, 0, b'a', 512);
    pair.ask(one, Op::Flush, 0, 0);
    pair.run(10 * MS);
    assert_eq!(pair.finished().len(), 2);
    assert_eq!(pair.stands[&one].map(|kept| kept.image), Some(7), "whoever keeps it is told");
    pair.executed.clear();
    (pair, one)
}

/// The IOhost begins anew, with that image.
fn restart(pair: &mut Pair, image: u64) {
    let generation = pair.kept_generation;
    (pair.host, pair.image) = (host(generation), image);
    pair.greet();
    pair.run(50 * MS);
}

#[test]
fn requests_wait_until_the_image_is_the_same_again() {
    let (mut pair, one) = on_an_image();
    restart(&mut pair, 8);
    assert_eq!(pair.events.last(), Some(&Event::Refused { attachment: one, why: CHANGED }));
    pair.write(one, 0, b'b', 512);
    pair.ask(one, Op::Read, 0, 512);
    pair.run(5 * SECOND);
    // News of it is none of its guest's.
    let told = pair.events.len();
    pair.host.update(0, SIZE as u64 / 2, 3);
    pair.run(SECOND);
    assert_eq!(pair.events.len(), told, "{:?}", pair.events);
    // A session that ends changes nothing.
    pair.greet();
    pair.run(SECOND);
    assert_eq!(pair.events.last(), Some(&Event::Refused { attachment: one, why: CHANGED }));
    restart(&mut pair, 9);
    assert!(pair.executed.is_empty() && pair.finished().is_empty(), "{:?}", pair.executed);
    restart(&mut pair, 7);
    assert_eq!(pair.finished(), [(98, Status::Ok, 0), (0, Status::Ok, b'b')]);
    assert!(matches!(pair.events.last(), Some(Event::Bound { .. })));
    assert_eq!(pair.host.counts().violations, 0);
    assert_eq!(pair.client.counts().violations, 0);
}

#[test]
fn who_accepts_it_goes_on_with_what_is_there_and_is_on_that_from_then_on() {
    for accepts_first in [false, true] {
        let (mut pair, one) = on_an_image();
        if accepts_first {
            // Before it is known that there is another one: it has no session.
            pair.is_cut = [true; 2];
            pair.run(5 * SECOND);
            pair.is_cut = [false; 2];
            pair.client.accept(one);
        }
        restart(&mut pair, 8);
        pair.write(one, 0, b'b', 512);
        pair.client.accept(one);
        pair.run(50 * MS);
        assert_eq!((pair.finished(), pair.writes()), (vec![(98, Status::Ok, 0)], b"b".to_vec()));
        assert_eq!(pair.stands[&one].map(|kept| kept.image), Some(8));
        restart(&mut pair, 7);
        assert_eq!(pair.events.last(), Some(&Event::Refused { attachment: one, why: CHANGED }));
    }
}

/// What is accepted while all is well is not accepted in advance.
#[test]
fn there_is_nothing_to_accept_of_what_is_served() {
    let (mut pair, one) = on_an_image();
    pair.client.accept(one);
    restart(&mut pair, 8);
    assert_eq!(pair.events.last(), Some(&Event::Refused { attachment: one, why: CHANGED }));
}

#[test]
fn who_gives_it_back_is_on_the_image_before_and_the_iohost_lets_go() {
    let (mut pair, one) = on_an_image();
    let before = pair.stands[&one];
    restart(&mut pair, 8);
    pair.write(one, 0, b'b', 512);
    pair.client.release(one);
    pair.run(50 * MS);
    assert_eq!(pair.finished(), [(98, Status::IoError, 0)]);
    assert_eq!(pair.events.last(), Some(&Event::Over { attachment: one, why: Over::Changed }));
    assert_eq!(pair.stands[&one].map(|kept| (kept.image, kept.verifier)), {
        before.map(|kept| (kept.image, kept.verifier))
    });
    assert!(pair.executed.is_empty());
    // Another client may have it at once.
    pair.client = client(9, None);
    let other = pair.client.attach(SPEC).expect("a place");
    pair.greet();
    pair.run(50 * MS);
    assert!(pair.client.is_bound(other), "{:?}", pair.events);
}

/// One that was released while nobody was there is not asked for anything of its guest's either.
#[test]
fn what_was_given_back_meanwhile_is_over() {
    let (mut pair, one) = on_an_image();
    pair.is_cut = [true; 2];
    pair.write(one, 0, b'b', 512);
    pair.run(5 * SECOND);
    pair.client.release(one);
    pair.is_cut = [false; 2];
    restart(&mut pair, 8);
    assert_eq!(pair.events.last(), Some(&Event::Over { attachment: one, why: Over::Changed }));
    assert_eq!((pair.finished(), pair.writes()), (vec![(98, Status::IoError, 0)], vec![]));
    assert_eq!(pair.stands[&one].map(|kept| kept.image), Some(7));
}

/// An end of an earlier version, or an image that is known by nothing that lasts.
#[test]
fn what_is_not_known_is_served_and_forgets_nothing() {
    let (mut pair, one) = on_an_image();
    for (image, know_images) in [(0, [true; 2]), (8, [true, false]), (8, [false, true])] {
        pair.know_images = know_images;
        restart(&mut pair, image);
        pair.write(one, 0, b'b', 512);
        pair.run(50 * MS);
        assert_eq!(pair.finished(), [(98, Status::Ok, 0)]);
        assert_eq!(pair.stands[&one].map(|kept| kept.image), Some(7));
    }
    pair.know_images = [true; 2];
    restart(&mut pair, 8);
    assert_eq!(pair.events.last(), Some(&Event::Refused { attachment: one, why: CHANGED }));
}

/// One that an earlier daemon of its guest was on, and one that was settled.
#[test]
fn a_successor_expects_the_image_of_its_predecessor() {
    for settles in [false, true] {
        let (mut pair, one) = on_an_image();
        if settles {
            pair.client.release(one);
            pair.run(50 * MS);
            let kept = pair.stands[&one];
            assert_eq!(kept.map(|kept| (kept.verifier, kept.image)), Some((None, 7)));
        }
        let standing = pair.stands[&one];
        pair.client = client(9, None);
        let again = pair.client.attach_again(SPEC, standing).expect("a place");
        restart(&mut pair, 8);
        pair.run(2 * SECOND);
        assert_eq!(pair.events.last(), Some(&Event::Refused { attachment: again, why: CHANGED }));
        restart(&mut pair, 7);
        assert!(pair.client.is_bound(again), "{:?}", pair.events);
    }
}
