//! That it is known how large a disk was before it was removed, whoever heard of that.

use std::path::Path;

use config::api::{Answer, Call, DiskList};
use config::spec::{DiskResize, DiskSpec};
use config::{Origin, Plan, Size};
use random::Random;

use super::{Answered, Operator};
use crate::file::{self, File};

const SMALL: u64 = file::SECTORS * 512;
const LARGE: u64 = SMALL + 4096;

fn add(bytes: u64) -> Call {
    let spec = file::disk("a3", Path::new("/lives"), &mut Random::new(0, 0));
    Call::AddDisk { spec: DiskSpec { size: Some(Size(bytes)), ..spec }, force: true }
}

fn resize(bytes: u64) -> Call {
    let resize = DiskResize { size: Size(bytes) };
    Call::ResizeDisk { id: "a3".into(), resize, force: false }
}

fn remove() -> Call {
    Call::RemoveDisk { id: "a3".into(), force: true }
}

/// A plan with that disk, or without.
fn plan(bytes: Option<u64>) -> Plan {
    let mut file = File::new(Path::new("/lives"), 0, 1, 0, &mut Random::new(0, 0));
    if let Some(Call::AddDisk { spec, .. }) = bytes.map(add) {
        file.spec.disk.push(spec);
    }
    let mut plan = file.load(None).expect("a plan");
    plan.disks.iter_mut().for_each(|disk| disk.origin = Origin::Api);
    plan
}

/// It was asked for, and done.
fn done(operator: &mut Operator, call: Call) {
    operator.note(&Answered {
        call,
        at_ns: 0,
        answer: Ok(Answer::Disks(DiskList { disks: Vec::new() })),
    });
}

#[test]
fn how_large_a_disk_was_is_known_when_it_is_gone() {
    let mut operator = Operator::default();
    done(&mut operator, add(SMALL));
    done(&mut operator, resize(LARGE));
    assert_eq!(operator.bytes_before("a3"), 0);
    done(&mut operator, remove());
    assert_eq!(operator.bytes_before("a3"), LARGE);
    done(&mut operator, add(SMALL));
    done(&mut operator, remove());
    assert_eq!(operator.bytes_before("a3"), SMALL);
}

#[test]
fn a_removal_and_an_addition_that_nobody_heard_of_are_found() {
    let mut operator = Operator::default();
    done(&mut operator, add(SMALL));
    operator.lost = vec![resize(LARGE), remove()];
    let found = operator.find_all(&plan(None)).expect("what may be there");
    assert!(found.smaller.is_empty() && found.added.is_empty());
    assert_eq!(operator.bytes_before("a3"), LARGE);
    operator.lost = vec![add(SMALL)];
    let found = operator.find_all(&plan(Some(SMALL))).expect("what may be there");
    let added: Vec<_> = found.added.iter().map(|spec| spec.id.as_str()).collect();
    assert_eq!(added, ["a3"]);
    let found = operator.find_all(&plan(Some(SMALL))).expect("what is there");
    assert!(found.added.is_empty(), "it is known by now");
}
