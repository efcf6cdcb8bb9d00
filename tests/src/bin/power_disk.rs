//! A disk for a guest with a file system, and what each power cut leaves of its records (reliability W1).
//!
//! `power_disk RESULTS OVER BYTES page|direct CUTS SEED`: mounts a [`FuseDisk`] and prints `disk PATH`. While a guest
//! works on it, the lines that the guest writes to RESULTS (tests/guest/scripts/power.sh) are put into the order of the
//! disk's own log, each at the moment when it was read, which is later than when the guest said it. When the file OVER
//! is there, the power is cut at as many moments: an image is made of what the disk may hold then, `e2fsck` replays its
//! journal and must find nothing else, and every record that the guest had been promised must be in it. At last the same
//! is done as if no sync had counted, which must lose something: otherwise nothing was shown.
//!
//! Started by x.d/test/durable.sh. Not here: the guest and the daemon.
#![expect(clippy::disallowed_macros, reason = "a program of the tests prints what it found")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testing::daemon::pause;
use testing::load::Random;
use testing::scratch::Scratch;
use tests::fuse_disk::{FuseDisk, FuseDiskSpec, Survivors};
use tests::ledger::{Order, SECTOR_SIZE};
use tests::mounts::Mount;

const LOOK: Duration = Duration::from_millis(1);
/// Kinds of records, as the guest calls them.
const KINDS: [&str; 5] = ["created", "appended", "renamed", "inserted", "logged"];
/// Cuts that are made as if no sync had counted.
const CONTROLS: u64 = 8;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [results, over, size_bytes, cache, cuts, seed] = &arguments[..] else {
        bail!("power_disk RESULTS OVER BYTES page|direct CUTS SEED");
    };
    let (size_bytes, cuts) = (size_bytes.parse()?, cuts.parse::<u64>()?);
    let order = Order::default();
    let writeback_cache = cache == "page";
    let disk = FuseDisk::mount(
        "power-fs",
        &FuseDiskSpec { size_bytes, writeback_cache, order: order.clone() },
    )?;
    println!("disk {}", disk.path().display());
    let told = listen(Path::new(results), Path::new(over), &order)?;
    let begun = told.iter().find(|told| told.text == "begun").context("it has not begun")?.moment;
    let end = told.last().map_or(begun, |told| told.moment);
    let journal = disk.journal();
    let scratch = Scratch::new(Path::new("/dev/shm"), "power-fs")?;
    let survivors = journal.survivors();
    let random = &mut Random(seed.parse::<u64>()?.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let cutter = Cutter { survivors: &survivors, size_bytes, told: &told, folder: scratch.path() };
    let mut records = 0;
    for number in 0..cuts {
        let moment = begun + 1 + random.below(end - begun);
        let how = Loss::ALL[(number % Loss::ALL.len() as u64) as usize];
        records += cutter.cut(moment, how, random).with_context(|| {
            format!("cut {number}, {how:?}, at {moment} of {begun} to {end}, seed {seed}")
        })?;
    }
    let (writes, syncs) = (journal.writes().len(), journal.stabilizations());
    let forgetful = journal.without_syncs_from(begun).survivors();
    let cutter = Cutter { survivors: &forgetful, ..cutter };
    let mut lost = 0;
    for _ in 0..CONTROLS {
        lost += u64::from(cutter.cut(end, Loss::All, random).is_err());
    }
    ensure!(lost > 0, "{CONTROLS} cuts of a disk that does not sync have lost nothing either");
    println!(
        "power-fs: seed {seed}, {cache}: {writes} writes and {syncs} syncs of the host's disk; {cuts} cuts, each clean after its \
         journal; {records} records looked for, 0 lost. Without syncs {lost} of {CONTROLS} cuts lose some"
    );
    Ok(())
}

/// What the guest said, and when that was read.
struct Told {
    moment: u64,
    text: String,
}

/// Everything that the guest says is ready, until the file `over` is there.
fn listen(results: &Path, over: &Path, order: &Order) -> Result<Vec<Told>> {
    let mut told = Vec::new();
    let mut read = 0;
    loop {
        let is_over = over.exists();
        // Not there before the guest is.
        let text = std::fs::read_to_string(results).unwrap_or_default();
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        for line in text.get(read..whole).unwrap_or_default().lines() {
            if let Some(text) = line.strip_prefix("READY ") {
                told.push(Told { moment: order.next(), text: text.to_owned() });
            }
        }
        read = whole.max(read);
        if is_over {
            return Ok(told);
        }
        pause(LOOK);
    }
}

/// What becomes of the writes that no sync covers.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// All are lost.
    All,
    /// None: only what had not reached the disk.
    None,
    /// Any sectors.
    Sectors,
    /// Any blocks of 4 KiB.
    Blocks,
}

impl Loss {
    const ALL: [Loss; 4] = [Loss::All, Loss::Sectors, Loss::Blocks, Loss::None];
}

struct Cutter<'a> {
    survivors: &'a Survivors,
    size_bytes: u64,
    told: &'a [Told],
    folder: &'a Path,
}

impl Cutter<'_> {
    /// Cuts the power at `moment` and gives how many records were looked for.
    fn cut(&self, moment: u64, how: Loss, random: &mut Random) -> Result<u64> {
        let image = self.folder.join("image");
        std::fs::write(&image, self.image(moment, how, random))?;
        run("e2fsck", &[&"-p", &image], &[0, 1]).context("replaying the journal")?;
        run("e2fsck", &[&"-f", &"-n", &image], &[0]).context("after the journal was replayed")?;
        let tree = Mount::read_only(&image, &self.folder.join("tree"))?;
        let records = self.records(tree.path(), moment);
        drop(tree);
        std::fs::remove_dir(self.folder.join("tree"))?;
        records
    }

    /// What the disk may hold after it.
    fn image(&self, moment: u64, how: Loss, random: &mut Random) -> Vec<u8> {
        let mut bytes = vec![0; self.size_bytes as usize];
        let (mut block, mut chosen) = (u64::MAX, 0);
        for sector in self.survivors.sectors() {
            let held: Vec<&[u8]> = self.survivors.of(sector, moment).collect();
            let newest = held.len() - 1;
            if sector / 8 != block || matches!(how, Loss::Sectors) {
                (block, chosen) = (sector / 8, random.below(1 << 32));
            }
            let at = match how {
                Loss::All => 0,
                Loss::None => newest,
                // The same part of the way from the oldest to the newest for all of a block.
                Loss::Sectors | Loss::Blocks => ((chosen * held.len() as u64) >> 32) as usize,
            };
            let start = sector as usize * SECTOR_SIZE;
            if let Some(into) = bytes.get_mut(start..start + SECTOR_SIZE) {
                into.copy_from_slice(held[at]);
            }
        }
        bytes
    }

    /// The last record of a kind that the guest was promised before `moment`.
    fn promised(&self, kind: &str, moment: u64) -> u64 {
        let before = self.told.iter().take_while(|told| told.moment < moment);
        let numbers = before.filter_map(|told| told.text.strip_prefix(kind)?.trim().parse().ok());
        numbers.last().unwrap_or(0)
    }

    /// Each record that was promised is there, whole.
    fn records(&self, tree: &Path, moment: u64) -> Result<u64> {
        let [created, appended, renamed, inserted, logged] =
            KINDS.map(|kind| self.promised(kind, moment));
        for number in 1..=created {
            let found = std::fs::read_to_string(tree.join(format!("files/{number}")))
                .with_context(|| format!("file {number} of {created} that were synced"))?;
            ensure!(found == lines("file", number), "file {number} of {created} is not whole");
        }
        let log = std::fs::read(tree.join("log"))?;
        let expected: String = (1..=appended).map(|number| format!("line {number}\n")).collect();
        ensure!(
            log.starts_with(expected.as_bytes()),
            "of the log, {appended} lines were synced and {} bytes are there",
            log.len()
        );
        if renamed > 0 {
            let found = std::fs::read_to_string(tree.join("current"))?;
            let version = found.lines().next().and_then(|line| line.strip_prefix("version "));
            let version: u64 = version.context("nothing in the file that was renamed")?.parse()?;
            ensure!(version >= renamed, "version {version}, and {renamed} was synced");
            ensure!(found == lines("version", version), "version {version} is not whole");
        }
        self.rows(tree, "rows", &["", "-journal"], inserted)?;
        self.rows(tree, "wal", &["", "-wal"], logged)?;
        Ok(created + appended + renamed.min(1) + inserted + logged)
    }

    /// The database is whole after its own journal, and has the rows.
    fn rows(&self, tree: &Path, name: &str, files: &[&str], rows: u64) -> Result<()> {
        let to = Scratch::new(self.folder, name)?;
        for suffix in files {
            let file = format!("{name}.db{suffix}");
            if tree.join(&file).exists() {
                std::fs::copy(tree.join(&file), to.path().join(&file))?;
            }
        }
        let query = format!(
            "PRAGMA integrity_check; \
             SELECT count(*) FROM t WHERE n <= {rows} AND text = printf('%0700d', n)"
        );
        let database = to.path().join(format!("{name}.db"));
        let said = run("sqlite3", &[&"-batch", &"-bail", &database, &query], &[0])?;
        ensure!(said.trim() == format!("ok\n{rows}"), "{name}, with {rows} rows synced: {said}");
        Ok(())
    }
}

/// What tests/guest/scripts/power.sh writes for a number.
fn lines(word: &str, number: u64) -> String {
    format!("{word} {number}\n").repeat((number * 37 % 400 + 1) as usize)
}

fn run(program: &str, arguments: &[&dyn AsRef<std::ffi::OsStr>], good: &[i32]) -> Result<String> {
    let mut command = Command::new(program);
    arguments.iter().for_each(|argument| {
        command.arg(argument);
    });
    let output = command.output().with_context(|| format!("running {program}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let status = output.status.code().unwrap_or(-1);
    let complaints = String::from_utf8_lossy(&output.stderr);
    ensure!(good.contains(&status), "{program} gave {status}: {said}{complaints}");
    Ok(said.into_owned())
}
