//! What is opened, refused, grown and shrunk.

use std::path::Path;

use crate::harness::{self, Bed, file, in_memory, kinds, on_disk};
use backend::{Backend, Cache, Disk, OpenError, ResizeError, Source, Waits};
use request::{Op, Status};

fn refusal(source: &Source) -> OpenError {
    match Disk::open(source) {
        Ok(disk) => panic!("{source:?} became {disk:?}"),
        Err(error) => error,
    }
}

#[test]
fn what_is_no_disk_is_refused_with_its_name() {
    let dir = on_disk();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("empty"), b"").expect("a file");
    std::fs::write(at("short"), [0; 1000]).expect("a file");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("a FIFO");
    let readonly = |name: &str, size_bytes| Source::File {
        path: at(name),
        size_bytes,
        readonly: true,
        cache: Cache::Auto,
        waits: Waits::default(),
    };
    let cases = [
        (file(&at("missing"), None, Cache::Auto), "cannot open"),
        (readonly("missing", Some(4096)), "cannot open"),
        (file(dir.path(), None, Cache::Auto), "cannot open"),
        (readonly("fifo", None), "neither a regular file nor a block device"),
        (file(&at("fifo"), None, Cache::Auto), "neither a regular file nor a block device"),
        (file(&at("empty"), None, Cache::Auto), "needs at least 512"),
        (readonly("short", Some(4096)), "it is read-only"),
        (file(&at("short"), Some(1000), Cache::Auto), "multiple of 512"),
        (Source::Memory { size_bytes: 0 }, "multiple of 512"),
        (Source::Null { size_bytes: u64::MAX }, "multiple of 512"),
    ];
    for (source, part) in cases {
        let text = refusal(&source).to_string();
        assert!(text.contains(part), "{source:?}: {text}");
        if let Source::File { path, .. } = &source
            && !text.contains("1000 bytes is not")
        {
            assert!(text.contains(path.to_str().expect("a name")), "{text}");
        }
    }
    assert!(!at("missing").exists(), "only a writable disk with a size is made");
}

#[test]
fn sizes_are_whole_sectors_of_what_is_there() {
    let dir = on_disk();
    let path = dir.path().join("odd");
    std::fs::write(&path, [7; 5000]).expect("a file");
    let refused =
        Disk::open(&file(&path, None, Cache::Auto)).map(|_| ()).map_err(|e| e.to_string());
    assert!(refused.is_err_and(|text| text.contains("5000 bytes, which is no multiple of 512")));
    let mut bed = Bed::new(&file(&path, Some(4608), Cache::Auto));
    assert_eq!(bed.disk.size_bytes(), 4608);
    assert_eq!(bed.disk.block_size(), 512);
    assert_eq!(bed.read(4096, 512), Ok(vec![7; 512]));
    assert_eq!(bed.read(4096, 1024), Err(Status::IoError));
    // The first bytes of a longer file; nothing is cut off.
    drop(bed);
    let mut bed = Bed::new(&file(&path, Some(1024), Cache::Page));
    assert_eq!(bed.disk.size_bytes(), 1024);
    assert_eq!(bed.write(1024, &[1; 512]), Status::IoError);
    assert_eq!(std::fs::metadata(&path).expect("facts").len(), 5000);
}

#[test]
fn a_read_only_disk_takes_no_write() {
    let dir = on_disk();
    let path = dir.path().join("image");
    std::fs::write(&path, [7; 8192]).expect("a file");
    for cache in [Cache::Auto, Cache::Page] {
        let source = Source::File {
            path: path.clone(),
            size_bytes: None,
            readonly: true,
            cache,
            waits: Waits::default(),
        };
        let mut bed = Bed::new(&source);
        assert!(bed.disk.is_readonly());
        assert_eq!(bed.disk.limits(), backend::Limits::default());
        for op in
            [Op::Write { sync: false }, Op::Discard, Op::WriteZeroes { unmap: true, sync: false }]
        {
            let span = bed.span(0, 4096);
            assert_eq!(bed.run(op, 0, 4096, &[span]), Status::IoError, "{op:?}");
        }
        assert_eq!(bed.run(Op::Flush, 0, 0, &[]), Status::Ok);
        assert_eq!(bed.read(4096, 4096), Ok(vec![7; 4096]));
    }
}

#[test]
fn nothing_outside_the_disk_is_reached() {
    let (_dirs, mut sources) = kinds(1 << 20);
    sources.push(("null", Source::Null { size_bytes: 1 << 20 }));
    for (name, source) in &sources {
        let mut bed = Bed::new(source);
        let span = bed.span(0, 4096);
        for offset in [(1 << 20) - 2048, 1 << 20, 1 << 40, u64::MAX - 4095, u64::MAX] {
            for op in [
                Op::Read,
                Op::Write { sync: false },
                Op::Discard,
                Op::WriteZeroes { unmap: false, sync: false },
            ] {
                let status = bed.run(op, offset, 4096, &[span]);
                assert_eq!(status, Status::IoError, "{name}: {op:?} at {offset:#x}");
            }
        }
        if *name == "null" {
            continue;
        }
        // A request that says less or more than its segments hold.
        for len in [512, 8192] {
            assert_eq!(bed.run(Op::Read, 0, len, &[span]), Status::IoError, "{name}");
        }
        // A buffer of another guest's map.
        let other = guest_memory::GuestMap::anonymous(2 * harness::MEMORY_BYTES).expect("memory");
        let foreign = other.span(harness::MEMORY_BYTES, 4096).expect("a span");
        assert_eq!(bed.run(Op::Read, 0, 4096, &[foreign]), Status::IoError, "{name}");
    }
}

#[test]
fn a_disk_grows_and_shrinks() {
    let (_dirs, sources) = kinds(1 << 20);
    for (name, source) in &sources {
        let mut bed = Bed::new(source);
        assert_eq!(bed.write(0, &[1; 4096]), Status::Ok, "{name}");
        assert_eq!(bed.write((1 << 20) - 4096, &[2; 4096]), Status::Ok, "{name}");
        let mut disk = bed.disk;
        drop(bed.backend);
        Disk::resize(&mut disk, 3 << 30).expect("grown");
        let mut bed = Bed::on(disk);
        assert_eq!(bed.disk.size_bytes(), 3 << 30);
        assert_eq!(bed.read(0, 4096), Ok(vec![1; 4096]), "{name}");
        assert_eq!(
            bed.read((1 << 20) - 4096, 8192).expect("a read")[4090..4100],
            [2, 2, 2, 2, 2, 2, 0, 0, 0, 0]
        );
        // Over the border between two mappings of a RAM disk.
        assert_eq!(bed.write((1 << 30) - 1024, &[3; 4096]), Status::Ok, "{name}");
        assert_eq!(bed.read((1 << 30) - 1024, 4096), Ok(vec![3; 4096]), "{name}");
        let span = bed.span(0, 4096);
        let zeroes = Op::WriteZeroes { unmap: true, sync: true };
        assert_eq!(bed.run(zeroes, (1 << 30) - 512, 1024, &[]), Status::Ok, "{name}");
        let got = bed.read((1 << 30) - 1024, 4096).expect("a read");
        assert_eq!((got[511], got[512], got[1535], got[1536]), (3, 0, 0, 3), "{name}");
        let mut disk = bed.disk;
        drop(bed.backend);
        Disk::resize(&mut disk, 512 << 10).expect("shrunk");
        let mut bed = Bed::on(disk);
        assert_eq!(bed.run(Op::Read, (1 << 20) - 4096, 4096, &[span]), Status::IoError, "{name}");
        let mut disk = bed.disk;
        drop(bed.backend);
        Disk::resize(&mut disk, 1 << 20).expect("grown again");
        let mut bed = Bed::on(disk);
        let kept = if *name == "memory" { 0 } else { 2 };
        assert_eq!(bed.read((1 << 20) - 4096, 4096), Ok(vec![kept; 4096]), "{name}");
        let refused = Disk::resize(&mut bed.disk, 1000);
        assert!(matches!(refused, Err(ResizeError::Size(1000))), "{name}: {refused:?}");
    }
}

#[test]
fn a_ram_disk_gives_memory_back() {
    let size_bytes = 64_u64 << 20;
    let mut bed = Bed::new(&Source::Memory { size_bytes });
    let resident = || -> u64 {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("smaps");
        let line = text.lines().find(|line| line.starts_with("Rss:")).expect("a line");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    };
    let block = vec![1; 8 << 20];
    for at in 0..8 {
        assert_eq!(bed.write(at * (8 << 20), &block), Status::Ok);
    }
    let full = resident();
    assert_eq!(bed.run(Op::Discard, 512, size_bytes - 1024, &[]), Status::Ok);
    let empty = resident();
    assert!(full - empty > 56 << 10, "{full} KiB before, {empty} KiB after");
    assert_eq!(bed.read(0, 512), Ok(vec![1; 512]));
    assert_eq!(bed.read(1 << 20, 512), Ok(vec![0; 512]));
}

#[test]
fn files_in_memory_answer_at_once_and_others_do_not() {
    let (disk, memory) = (on_disk(), in_memory());
    let open = |path: &Path, cache| {
        let disk = Disk::open(&file(&path.join("disk"), Some(1 << 20), cache)).expect("a disk");
        let backend = disk.backend();
        assert!(matches!(backend, Backend::File(_)));
        (disk.describe(), backend.answers_at_once())
    };
    for cache in [Cache::Auto, Cache::Direct, Cache::Page] {
        assert_eq!(open(memory.path(), cache), ("file, in memory", true));
    }
    assert_eq!(open(disk.path(), Cache::Page), ("file, page cache", false));
    let (direct, at_once) = open(disk.path(), Cache::Auto);
    assert!(["file, direct", "file, page cache"].contains(&direct) && !at_once);
}

/// Whoever keeps copies by their times, and another process that makes the image longer meanwhile, must not notice it.
#[test]
fn who_looks_at_an_image_or_opens_it_changes_nothing() {
    for dir in [on_disk(), in_memory()] {
        let path = dir.path().join("image");
        std::fs::write(&path, vec![7; 3 << 20]).expect("an image");
        let facts = || {
            let facts = std::fs::metadata(&path).expect("facts");
            (facts.modified().expect("a time"), facts.len())
        };
        let source = file(&path, None, Cache::Auto);
        let (names, vet) = (backend::KernelNames, backend::Vet::Raw);
        let before = facts();
        // Times of files go on with the kernel's ticks.
        let pass_a_tick = || {
            let other = dir.path().join("clock");
            let now = || {
                std::fs::write(&other, "x").expect("a file");
                std::fs::metadata(&other).and_then(|it| it.modified()).expect("a time")
            };
            let begun = now();
            while now() == begun {}
        };
        pass_a_tick();
        Disk::check(&source, &names, vet).expect("it could be opened");
        Disk::look(&source, &names, vet).expect("it can be looked at");
        assert_eq!(facts(), before, "looked at");
        let limits = Disk::open(&source).expect("it opens").limits();
        assert_eq!(facts(), before, "opened");
        let looked = Disk::look(&source, &names, vet).expect("it can be looked at").limits();
        assert_eq!(
            looked.discard_sectors_max, limits.discard_sectors_max,
            "a guest may move there"
        );
    }
}
