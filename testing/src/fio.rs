//! `fio --verify` in a guest's file system at `/mnt`: what is written is read back and compared, in rounds, until the
//! host says that it is enough.
//!
//! Not scripts of `tests/guest/scripts`, which begin and end by themselves. The guest may move meanwhile.

use anyhow::Result;

use crate::place::{Place, until};

/// Two jobs in each folder, with these kinds of requests: sizes by percent, flushed now and then, each byte compared.
fn job(folders: &[&str], megabytes: u32) -> String {
    let (jobs, folders) = (2 * folders.len(), folders.join(":"));
    format!(
        "fio --ioengine=libaio --direct=1 --directory={folders} --name=verify --rw=randwrite \
         --bssplit=512/5:4k/60:16k/20:64k/10:256k/5 --iodepth=32 --size={megabytes}m \
         --numjobs={jobs} --fsync=64 --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0"
    )
}

/// Makes a file system on the guest's first disk, at `/mnt`.
///
/// # Errors
/// It cannot be made.
pub fn file_system(place: &dyn Place) -> Result<&'static str> {
    place.asked("mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /mnt")
}

/// One round, to its end; two jobs of so many megabytes.
///
/// # Errors
/// It fails: what was read is not what was written, or cannot be read.
pub fn once(place: &dyn Place, megabytes: u32) -> Result<&'static str> {
    place.asked(&job(&["/mnt"], megabytes))
}

/// Begins rounds in the background.
///
/// # Errors
/// The place does not answer.
pub fn begin(place: &dyn Place, megabytes: u32) -> Result<()> {
    begin_in(place, &["/mnt"], megabytes)
}

/// Begins rounds in several folders at the same time, in the background.
///
/// # Errors
/// The place does not answer.
pub fn begin_in(place: &dyn Place, folders: &[&str], megabytes: u32) -> Result<()> {
    let job = job(folders, megabytes);
    place.run(&format!(
        "rm -f stop over bad rounds
        {{ while [ ! -e stop ]; do
            {job} --output=verify.out 2>verify.err || {{ date >bad; break; }}
            echo round >>rounds
        done; echo over >over; }} >/dev/null 2>&1 &"
    ))?;
    Ok(())
}

/// Looks whether all was right so far.
///
/// # Errors
/// It was not; what fio said.
pub fn is_right(place: &dyn Place) -> Result<&'static str> {
    place.asked("[ ! -e bad ] || { cat verify.out bad verify.err; exit 1; }")
}

/// Ends it after the round that is under way: how many there were.
///
/// # Errors
/// It does not end, or as [`is_right`].
pub fn end(place: &dyn Place) -> Result<String> {
    place.run(&format!("touch stop; {}", until("[ -e over ]")))?;
    is_right(place)?;
    Ok(format!("{} rounds", place.run("grep -c round rounds")?.trim()))
}

/// Unmounts, and looks whether the file system is whole.
///
/// # Errors
/// It is not.
pub fn file_system_is_whole(place: &dyn Place) -> Result<&'static str> {
    place.asked("umount /mnt && e2fsck -f -n /dev/vda")
}
