//! What a client keeps of a device from one attachment to the next: a flush must not end well that covers what is gone.

use super::*;

/// The attachment is over or forgotten, the storage is in `boot`, and the device is attached again: how a flush ends.
fn flush_after(pair: &mut Pair, one: u16, boot: u64) -> Vec<(u64, Status, u8)> {
    let standing = pair.stands.remove(&one).flatten();
    pair.client.detach(one);
    (pair.host, pair.verifier.boot, pair.is_cut) = (host(1), boot, [false; 2]);
    let again = pair.client.attach_again(SPEC, standing).expect("a place");
    pair.greet();
    pair.ask(again, Op::Flush, 0, 0);
    pair.run(50 * MS);
    pair.finished()
}

#[test]
fn a_release_that_nobody_confirmed_leaves_what_was_not_flushed_to_the_next_attachment() {
    for (boot, flushes, expected) in
        [(1, false, Status::Ok), (2, false, Status::IoError), (2, true, Status::Ok)]
    {
        let mut pair = Pair::new(1000);
        pair.client = client(2, Some(1200 * MS));
        let one = pair.client.attach(SPEC).expect("a place");
        pair.greet();
        pair.run(10 * MS);
        pair.write(one, 0, b'a', 512);
        pair.run(10 * MS);
        if flushes {
            pair.ask(one, Op::Flush, 0, 0);
            pair.run(10 * MS);
        }
        pair.finished();
        pair.is_cut = [true; 2];
        pair.client.release(one);
        pair.run(5 * SECOND);
        assert_eq!(pair.events.last(), Some(&Event::Over { attachment: one, why: Over::Silent }));
        let kept = pair.stands[&one].expect("it is not settled");
        assert_eq!((kept.is_unflushed, kept.is_lost), (!flushes, false));
        assert_eq!(flush_after(&mut pair, one, boot), [(0, expected, 0)], "{boot} {flushes}");
    }
}

#[test]
fn a_release_that_synced_leaves_nothing_to_keep() {
    for syncs in [true, false] {
        let (mut pair, one) = Pair::bound(1000);
        pair.syncs = syncs;
        pair.write(one, 0, b'a', 512);
        pair.run(10 * MS);
        assert!(pair.stands[&one].is_some_and(|kept| kept.is_unflushed), "while it is bound");
        pair.finished();
        pair.client.release(one);
        pair.run(50 * MS);
        assert_eq!(pair.stands[&one].is_none(), syncs);
        let expected = if syncs { Status::Ok } else { Status::IoError };
        assert_eq!(flush_after(&mut pair, one, 2), [(0, expected, 0)]);
    }
}

/// A flush that failed for good does so in each later attachment, until whoever uses the device says that he knows.
#[test]
fn a_loss_is_kept_until_it_is_forgiven() {
    let (mut pair, one) = Pair::bound(1000);
    pair.write(one, 0, b'a', 512);
    pair.run(10 * MS);
    pair.finished();
    assert_eq!(flush_after(&mut pair, one, 2), [(0, Status::IoError, 0)]);
    // Released and synced: what is gone does not come back by that.
    pair.client.release(one);
    pair.run(50 * MS);
    assert_eq!(pair.events.last(), Some(&Event::Over { attachment: one, why: Over::Unsynced }));
    assert_eq!(flush_after(&mut pair, one, 2), [(0, Status::IoError, 0)]);
    pair.client.forgive(one);
    pair.ask(one, Op::Flush, 0, 0);
    pair.run(50 * MS);
    assert_eq!(pair.finished(), [(0, Status::Ok, 0)]);
    pair.client.release(one);
    pair.run(50 * MS);
    assert_eq!(pair.stands[&one], None);
}

/// Never bound, and so no word of its IOhost: what was kept before is kept on.
#[test]
fn an_attachment_that_was_never_bound_settles_nothing() {
    let (mut pair, one) = Pair::bound(1000);
    pair.write(one, 0, b'a', 512);
    pair.run(10 * MS);
    let kept = pair.stands[&one];
    pair.is_cut = [true; 2];
    let again = pair.client.attach_again(SPEC, kept).expect("a place");
    pair.client.release(again);
    pair.run(10 * MS);
    assert_eq!(pair.events.last(), Some(&Event::Over { attachment: again, why: Over::Released }));
    assert_eq!(pair.stands[&again], kept);
}

#[test]
fn other_contents_are_noticed_by_the_next_attachment_too() {
    let (mut pair, one) = Pair::bound(1000);
    let standing = pair.stands[&one];
    pair.client.detach(one);
    pair.run(10 * MS);
    pair.verifier.contents += 1;
    let again = pair.client.attach_again(SPEC, standing).expect("a place");
    pair.write(again, 0, b'a', 512);
    pair.run(50 * MS);
    let changed = |attachment| Event::Refused { attachment, why: Refusal::Changed };
    assert_eq!(pair.events.last(), Some(&changed(again)));
    assert_eq!((pair.finished(), pair.writes()), (vec![], vec![]));
    // Who gives it back and comes again is told once more.
    pair.client.release(again);
    pair.run(50 * MS);
    assert_eq!(pair.finished(), [(97, Status::IoError, 0)]);
    let standing = pair.stands[&again];
    assert_eq!(standing.and_then(|kept| kept.verifier), Some(Verifier { boot: 1, contents: 2 }));
    pair.client.detach(again);
    let again = pair.client.attach_again(SPEC, standing).expect("a place");
    pair.run(50 * MS);
    assert_eq!(pair.events.last(), Some(&changed(again)));
    // Who accepts it goes on with what is there.
    pair.client.accept(again);
    pair.ask(again, Op::Flush, 0, 0);
    pair.run(50 * MS);
    assert_eq!(pair.finished(), [(0, Status::Ok, 0)]);
    assert_eq!(pair.stands[&again].and_then(|kept| kept.verifier), Some(pair.verifier));
}
