//! Moves back and forth; moves that are called off in each phase; and the death of either daemon in the middle.

use anyhow::{Result, ensure};
use serde_json::json;
use testing::bed::Bed;
use testing::vm::{Move, Phase, has_kvm};

use super::moving::{Moving, Traffic};
use super::site::other;

/// Bytes a second, so that the memory is on its way for as long as a daemon needs to come back.
const SLOW: u64 = 30_000_000;

/// The phases in which a migration is cancelled.
const PHASES: [Phase; 4] = [Phase::Setup, Phase::Active, Phase::Late, Phase::Switchover];

/// Back and forth. In some the memories are compared, without KVM in all.
pub(super) fn moves(bed: &Bed, moving: &Moving, traffic: &Traffic<'_>) -> Result<()> {
    for number in 1..=bed.often(2, 100) {
        let name = format!("move-{number}");
        moving.moves(bed, &name, !has_kvm() || number % 10 == 2)?;
        bed.check(&name, Ok(""));
        traffic.goes_on(bed, &format!("streams-{number}"))?;
        // At the move that it came of, not at the end.
        ensure!(is_right(moving), "what fio reads after {name} is not what it wrote");
    }
    let made = moving.made();
    let of = |what: fn(&testing::vm::Moved) -> Option<u64>| {
        super::spread(made.iter().filter_map(what).collect())
    };
    let report = json!({
        "moved": made.len(), "pause_ms": of(|moved| moved.pause_ms()),
        "downtime_ms": of(|moved| Some(moved.downtime_ms())), "total_ms": of(|moved| Some(moved.total_ms())),
    });
    bed.passed("moves", report);
    Ok(())
}

fn is_right(moving: &Moving) -> bool {
    testing::fio::is_right(moving.guest()).is_ok()
}

/// Cancelled in each phase, and the destination's QEMU killed.
pub(super) fn called_off(bed: &Bed, moving: &Moving, traffic: &Traffic<'_>) -> Result<()> {
    let killed: &[Phase] =
        if bed.often(0, 1) > 0 { &PHASES } else { &[Phase::Active, Phase::Switchover] };
    for _ in 0..bed.often(1, 5) {
        for phase in PHASES {
            not_moved(bed, moving, traffic, ("cancel", phase), None)?;
        }
        for phase in killed {
            not_moved(bed, moving, traffic, ("kill", *phase), Some(&|| Ok(())))?;
        }
    }
    moving.moves(bed, "afterwards", true)
}

/// What is done besides.
type Act<'a> = &'a dyn Fn() -> Result<()>;

/// A migration in whose phase the destination's QEMU is killed, after `act`, or which is cancelled, does not take place; the
/// guest goes on where it is.
fn not_moved(
    bed: &Bed,
    moving: &Moving,
    traffic: &Traffic<'_>,
    (what, phase): (&str, Phase),
    act: Option<Act<'_>>,
) -> Result<()> {
    let name = format!("{what}-{}", word(phase));
    let to = moving.destination(false)?;
    let vm = moving.guest().vm();
    let whole = Move::new(&vm, &to);
    let made = match act {
        None => whole.cancelled_at(phase).make(),
        Some(act) => whole
            .at(phase, |_| {
                act()?;
                to.kill();
                Ok(())
            })
            .make(),
    };
    let called_off = made.and_then(|moved| {
        ensure!(moved.is_called_off(), "{moved}");
        Ok("")
    });
    bed.check(&name, called_off);
    drop((to, vm));
    traffic.goes_on(bed, &format!("{name}-streams"))?;
    moving.one_writer(bed, &format!("{name}-writer"));
    Ok(())
}

fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Setup => "setup",
        Phase::Active => "active",
        Phase::Late => "late",
        Phase::Switchover => "switchover",
    }
}

/// A daemon dies in the middle: the guest goes on, at one of both, without an error.
pub(super) fn deaths(bed: &Bed, moving: &Moving, traffic: &Traffic<'_>) -> Result<()> {
    let site = moving.site();
    for _ in 0..bed.often(1, 5) {
        for phase in [Phase::Active, Phase::Switchover] {
            // QEMU 7.2 does not connect again to the back-end of a disk that it has not started: who sees the daemon
            // die calls the migration off.
            let there = other(moving.side());
            not_moved(bed, moving, traffic, ("destination", phase), Some(&|| site.kill(there)))?;
            site.start_again(there)?;
            let name = format!("source-{}", word(phase));
            moved_on(bed, moving, &name, phase, &|| {
                site.restart(moving.side(), phase == Phase::Active)
            })?;
            traffic.goes_on(bed, &format!("{name}-streams"))?;
            moving.one_writer(bed, &format!("{name}-writer"));
        }
        // Nobody sees it: the guest waits at a disk that is not there, until it is moved on.
        let there = other(moving.side());
        moved_on(bed, moving, "destination-dead", Phase::Switchover, &|| site.kill(there))?;
        site.start_again(there)?;
        moving.moves(bed, "destination-dead-back", true)?;
        traffic.goes_on(bed, "destination-dead-streams")?;
        moving.one_writer(bed, "destination-dead-writer");
    }
    Ok(())
}

/// A migration in whose phase that is done takes place; the guest was nowhere else meanwhile.
fn moved_on(bed: &Bed, moving: &Moving, name: &str, phase: Phase, act: Act<'_>) -> Result<()> {
    let to = moving.destination(true)?;
    let moved = {
        let vm = moving.guest().vm();
        let mut whole = Move::new(&vm, &to);
        if phase == Phase::Active {
            whole = whole.slowly(SLOW);
        }
        whole.at(phase, |_| act()).make()?
    };
    ensure!(moved.is_completed(), "{name}: {moved}");
    bed.check(name, Ok(""));
    moving.remembers(bed, name, &to)?;
    moving.is_in(to, other(moving.side()));
    Ok(())
}
