//! What operators and guests are promised of the size of a disk.

use std::time::Duration;

use config::api::{Call, DiskView, ErrorKind};
use config::spec::{BackendKind, DiskResize};
use config::{DiskSpec, Size};

use crate::trial::vmm::{FLUSH, READ, Vmm, WRITE};
use crate::trial::{Trial, disk_in, refused};

const FILE: &str = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\n";
const MIB: u64 = 1 << 20;

fn resize(size: u64, force: bool) -> Call {
    Call::ResizeDisk { id: "b".to_string(), resize: DiskResize { size: Size(size) }, force }
}

fn resized(trial: &mut Trial, size: u64, force: bool) -> Result<DiskView, (ErrorKind, String)> {
    match trial.ask(resize(size, force)) {
        Ok(answer) => Ok(disk_in(answer)),
        refusal => Err(refused(refusal)),
    }
}

/// One with a disk `b` that was made through the API.
fn with_disk(is_file: bool) -> Trial {
    let mut trial = Trial::of(FILE);
    let path = trial.path("b.img").display().to_string();
    let backend = if is_file { BackendKind::File } else { BackendKind::Memory };
    let path = is_file.then_some(path);
    let spec =
        DiskSpec { backend: Some(backend), path, size: Some(Size(MIB)), ..DiskSpec::new("b") };
    trial.ask(Call::AddDisk { spec, force: false }).expect("it is added");
    trial
}

fn len(trial: &Trial) -> u64 {
    std::fs::metadata(trial.path("b.img")).expect("an image").len()
}

#[test]
fn a_disk_grows_under_its_guest_and_is_as_large_after_a_restart() {
    for is_file in [true, false] {
        let mut trial = with_disk(is_file);
        let mut vmm = Vmm::served(&mut trial, "b", 1);
        let behind = MIB / 512;
        assert_ne!(vmm.does(&mut trial, WRITE, behind, 1), Some(0), "it is behind the end");
        let grown = resized(&mut trial, 2 * MIB, false).expect("it is resized");
        assert_eq!(grown.size_bytes, Some(2 * MIB));
        assert_eq!(vmm.does(&mut trial, WRITE, behind, 1), Some(0));
        assert!(!vmm.is_cut_off(&mut trial));
        if is_file {
            assert_eq!(len(&trial), 2 * MIB);
        }
        let mut again = Trial::start(FILE, trial.die()).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(again.disk("b").size_bytes, Some(2 * MIB));
    }
}

/// What its guest is on has the size that the operator gave it, also for the daemon that comes next: it would hold a
/// disk that is shorter than remembered for one that lost something.
#[test]
fn a_guest_whose_disk_was_cut_goes_on_after_a_crash() {
    let mut trial = with_disk(true);
    let mut vmm = Vmm::served(&mut trial, "b", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 3, 7), Some(0));
    resized(&mut trial, MIB / 2, true).expect("he insists");
    vmm.guest.rings[0].base = 1;
    let mut again = Trial::start(FILE, trial.die()).unwrap_or_else(|why| panic!("{why}"));
    let mut vmm = Vmm::connect(&again, "b", vmm.hang_up()).expect("it listens");
    vmm.begin(&mut again);
    assert_eq!(again.disk("b").problem, None);
    assert_eq!(vmm.does(&mut again, READ, 3, 0), Some(0));
    assert_eq!(vmm.guest.data(0), [7; 512]);
}

#[test]
fn a_disk_is_cut_only_where_no_guest_is_or_its_operator_insists() {
    let mut trial = with_disk(true);
    let mut vmm = Vmm::served(&mut trial, "b", 1);
    let (kind, why) = resized(&mut trial, MIB / 2, false).expect_err("a guest uses it");
    assert_eq!(kind, ErrorKind::Conflict);
    assert_eq!(
        why,
        "a guest uses disk \"b\", which has 1M and would have 512K: it loses what is behind; make its file \
         systems and partitions smaller and stop it first; `--force` (`force=true` in the API) does it all the same"
    );
    assert_eq!((len(&trial), trial.disk("b").size_bytes), (MIB, Some(MIB)));
    let cut = resized(&mut trial, MIB / 2, true).expect("he insists");
    assert_eq!(
        (cut.size_bytes, len(&trial)),
        (Some(MIB / 2), MIB),
        "what is behind is kept for him"
    );
    assert_eq!(vmm.does(&mut trial, READ, 0, 0), Some(0));
    assert_ne!(vmm.does(&mut trial, READ, MIB / 512 - 1, 0), Some(0));
    drop(vmm.hang_up());
    trial.rest();
    resized(&mut trial, MIB / 4, false).expect("no guest is there");
}

#[test]
fn what_no_disk_can_have_is_refused_and_the_disk_is_as_it_was() {
    let mut trial = with_disk(true);
    let cases = [
        (0, ErrorKind::Refused),
        (MIB + 1, ErrorKind::Refused),
        (MIB + 511, ErrorKind::Refused),
        (u64::MAX / 512 * 512, ErrorKind::Refused),
    ];
    for (size, kind) in cases {
        let (found, why) = resized(&mut trial, size, true).expect_err("it is refused");
        assert_eq!(found, kind, "{size}: {why}");
        assert_eq!((len(&trial), trial.disk("b").size_bytes), (MIB, Some(MIB)));
    }
    // More than the whole file system of the image: its guest would meet the end of that.
    let (kind, why) = resized(&mut trial, 1 << 50, false).expect_err("no file system has that");
    assert_eq!(kind, ErrorKind::Conflict);
    assert!(
        why.starts_with("disk \"b\" would have 1024T, and the whole file system of its image has ")
    );
    let of_file = Call::ResizeDisk {
        id: "a".to_string(),
        resize: DiskResize { size: Size(MIB) },
        force: true,
    };
    let (kind, why) = refused(trial.ask(of_file));
    assert_eq!(kind, ErrorKind::Conflict);
    assert!(why.starts_with("disk \"a\" is declared in sidecore.toml, line 8; "), "{why}");
}

#[test]
fn of_a_disk_that_is_not_open_or_not_there_no_size_is_changed() {
    let trial = with_disk(true);
    let folder = trial.keep_folder();
    std::fs::rename(trial.path("b.img"), trial.path("aside.img")).expect("moved");
    drop(trial);
    let mut trial = Trial::start(FILE, folder).unwrap_or_else(|why| panic!("{why}"));
    let (kind, why) = resized(&mut trial, 2 * MIB, false).expect_err("it is not open");
    assert_eq!(kind, ErrorKind::Refused);
    assert!(why.starts_with("disk \"b\" is not open; "), "{why}");
    assert!(!trial.path("b.img").exists(), "a disk that was there once is not made again");
    trial.ask(Call::RemoveDisk { id: "b".to_string(), force: false }).expect("it goes");
    let (kind, _) = resized(&mut trial, 2 * MIB, false).expect_err("it is gone");
    assert_eq!(kind, ErrorKind::NotFound);
}

/// Control is not held up by a disk that does not answer, and the operator learns what became of it.
#[test]
fn a_size_is_given_up_when_the_queues_do_not_come_back() {
    let mut trial = with_disk(true);
    let mut vmm = Vmm::served(&mut trial, "b", 1);
    trial.stall(true);
    let began = trial.now();
    let asked = trial.asks(resize(2 * MIB, false));
    let second = trial.asks(resize(4 * MIB, false));
    let (kind, why) = refused(trial.answer(second));
    assert_eq!(kind, ErrorKind::Busy);
    assert_eq!(why, "it is being resized already; try again in a moment");
    let (kind, why) = refused(trial.answer(asked));
    assert_eq!(kind, ErrorKind::Busy);
    assert!(why.starts_with("disk \"b\" waits for "), "{why}");
    assert!(why.ends_with("; its size is as it was; try again when it answers"), "{why}");
    assert!((10_000_000_000..11_000_000_000).contains(&trial.now().since(began)));
    trial.stall(false);
    trial.pass(Duration::from_secs(1));
    let shown = trial.disk("b");
    assert_eq!((shown.size_bytes, shown.queues_attached, len(&trial)), (Some(MIB), 1, MIB));
    assert_eq!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0));
    resized(&mut trial, 2 * MIB, false).expect("it answers again");
}

#[test]
fn a_size_that_cannot_be_kept_is_not_given() {
    for is_file in [true, false] {
        let mut trial = with_disk(is_file);
        let mut vmm = Vmm::served(&mut trial, "b", 1);
        trial.break_state(true);
        let (kind, why) = resized(&mut trial, 2 * MIB, false).expect_err("it is not kept");
        assert_eq!(kind, ErrorKind::Internal);
        assert!(why.ends_with(crate::calls::UNDONE), "{why}");
        assert_eq!(trial.disk("b").size_bytes, Some(MIB));
        assert!(!is_file || len(&trial) == MIB);
        assert_ne!(vmm.does(&mut trial, WRITE, MIB / 512, 1), Some(0), "it is behind the end");
        assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
        trial.break_state(false);
        resized(&mut trial, 2 * MIB, false).expect("it can be kept again");
        let mut again = Trial::start(FILE, trial.die()).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(again.disk("b").size_bytes, Some(2 * MIB));
    }
}

/// What was kept before it was done would be done by the next start.
#[test]
fn a_size_that_is_not_given_is_not_kept_either() {
    let mut trial = with_disk(true);
    trial.slow(Duration::from_secs(30));
    resized(&mut trial, 2 * MIB, false).expect_err("its file system does not answer");
    let mut again = Trial::start(FILE, trial.die()).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!((again.disk("b").size_bytes, len(&again)), (Some(MIB), MIB));
}

#[test]
fn a_slow_file_system_is_told_of_and_may_still_make_the_image_longer() {
    let mut trial = with_disk(true);
    trial.slow(Duration::from_secs(30));
    let (kind, why) = resized(&mut trial, 2 * MIB, false).expect_err("it does not answer");
    assert_eq!(kind, ErrorKind::Busy);
    assert!(why.contains("its file system does not answer; ask again"), "{why}");
    trial.slow(Duration::ZERO);
    trial.pass(Duration::from_secs(40));
    resized(&mut trial, 2 * MIB, false).expect("it answers");
    assert_eq!(len(&trial), 2 * MIB);
}

/// The resize is overdue before the removal is, and long before the disk is gone.
#[test]
fn who_resizes_a_disk_that_somebody_else_removes_is_never_told_that_it_went_well() {
    let mut trial = with_disk(false);
    let _vmm = Vmm::served(&mut trial, "b", 1);
    trial.stall(true);
    let resize = trial.asks(resize(2 * MIB, true));
    trial.pass(Duration::from_secs(1));
    let remove = trial.asks(Call::RemoveDisk { id: "b".to_string(), force: true });
    let (kind, why) = refused(trial.answer(resize));
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(why.starts_with("there is no disk \"b\""), "{why}");
    trial.answer(remove).expect("it goes by itself");
    trial.stall(false);
    trial.pass(Duration::from_secs(1));
    let (kind, _) = refused(trial.ask(Call::ShowDisk { id: "b".to_string() }));
    assert_eq!(kind, ErrorKind::NotFound);
}
