//! Power cuts of a disk with a guest's file system, and what each of them leaves of the guest's records (reliability
//! W1).
//!
//! An image is made of what the disk may hold at a moment, `e2fsck` replays its journal and must find nothing else, and
//! every record that the guest had been promised must be in it. Not here: the guest (`file_system`).

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testing::load::Random;
use testing::scratch::Scratch;

use crate::fuse_disk::Survivors;
use crate::ledger::SECTOR_SIZE;
use crate::mounts::Mount;
use crate::suite::host::output_of;

/// Kinds of records, as the guest calls them.
const KINDS: [&str; 5] = ["created", "appended", "renamed", "inserted", "logged"];

/// What the guest said, and when that was read.
pub(super) struct Told {
    pub(super) moment: u64,
    pub(super) text: String,
}

/// What becomes of the writes that no sync covers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
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
    pub(super) const ALL: [Loss; 4] = [Loss::All, Loss::Sectors, Loss::Blocks, Loss::None];
}

/// Cuts the power of one disk.
pub(super) struct Cutter<'a> {
    pub(super) survivors: &'a Survivors,
    pub(super) size_bytes: u64,
    pub(super) told: &'a [Told],
    /// Where images are made.
    pub(super) folder: &'a Path,
}

impl Cutter<'_> {
    /// Cuts the power at `moment` and gives how many records were looked for.
    pub(super) fn cut(&self, moment: u64, how: Loss, random: &mut Random) -> Result<u64> {
        let image = self.folder.join("image");
        std::fs::write(&image, self.image(moment, how, random))?;
        let replayed = Command::new("e2fsck").arg("-p").arg(&image).output()?;
        let said = String::from_utf8_lossy(&replayed.stdout);
        let is_mended = replayed.status.code().is_some_and(|code| code <= 1);
        ensure!(is_mended, "replaying the journal gave {}: {said}", replayed.status);
        output_of(Command::new("e2fsck").args(["-f", "-n"]).arg(&image))
            .context("after the journal was replayed")?;
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
        let said = output_of(
            Command::new("sqlite3").args(["-batch", "-bail"]).arg(&database).arg(&query),
        )?;
        ensure!(said.trim() == format!("ok\n{rows}"), "{name}, with {rows} rows synced: {said}");
        Ok(())
    }
}

/// What tests/guest/scripts/power.sh writes for a number.
fn lines(word: &str, number: u64) -> String {
    format!("{word} {number}\n").repeat((number * 37 % 400 + 1) as usize)
}
