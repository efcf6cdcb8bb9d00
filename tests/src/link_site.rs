//! Keys and files of two daemons with a link between them: an IOhost, and a client whose disk `root` is its `db`.
//!
//! Not here: what is done with them. Used by the tests of links.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, bail, ensure};
use testing::daemon::sidecore_binary;
use testing::scratch::Scratch;

/// Bytes of the image.
pub const IMAGE_BYTES: u64 = 16 << 20;

/// A port that nobody has, and that the kernel gives nobody who asks for any. Processes begin their search apart.
///
/// # Errors
/// None is left.
pub fn free_port() -> Result<u16> {
    // Below what `ip_local_port_range` begins with.
    const PORTS: std::ops::Range<u16> = 8000..32_000;
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    for _ in 0..count {
        let next = ASKED.fetch_add(1, Ordering::Relaxed);
        let place = std::process::id().wrapping_mul(16).wrapping_add(next) % count;
        let port = PORTS.start + u16::try_from(place)?;
        if UdpSocket::bind(("0.0.0.0", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no UDP port is free from {} to {}", PORTS.start, PORTS.end)
}

/// A key of its own in `folder`: the file, and the public half.
///
/// # Errors
/// The system's, and what the program says.
pub fn key(folder: &Path, name: &str) -> Result<(PathBuf, String)> {
    let file = folder.join(name);
    let made = Command::new(sidecore_binary()?).args(["link", "key"]).arg(&file).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok((file, String::from_utf8(made.stdout)?.trim().to_string()))
}

/// Keys of two machines, and the image that the first one has.
#[derive(Debug)]
pub struct Site {
    folder: Scratch,
    iohost: (PathBuf, String),
    client: (PathBuf, String),
}

impl Site {
    /// In a folder of that name in `parent`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(parent: &Path, name: &str) -> Result<Site> {
        let folder = Scratch::new(parent, &format!("{name}-site"))?;
        std::fs::File::create(folder.path().join("db.raw"))?.set_len(IMAGE_BYTES)?;
        let iohost = key(folder.path(), "iohost.key")?;
        let client = key(folder.path(), "client.key")?;
        Ok(Site { folder, iohost, client })
    }

    /// Where all of it is.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The image.
    pub fn image(&self) -> PathBuf {
        self.folder.path().join("db.raw")
    }

    /// The client's key.
    pub fn client_key(&self) -> &Path {
        &self.client.0
    }

    /// The IOhost's file.
    pub fn iohost(&self, port: u16) -> String {
        format!(
            "[[disk]]\nid = \"db\"\npath = \"{}\"\n[[link]]\nid = \"rack\"\nrole = \"iohost\"\nudp = \
             \"127.0.0.1:{port}\"\nlease_s = 1\nkey_file = \"{}\"\n[[link.client]]\nname = \
             \"host7\"\nkey = \"{}\"\ndisks = [\"db\"]\n",
            self.image().display(),
            self.iohost.0.display(),
            self.client.1
        )
    }

    /// The client's.
    pub fn client(&self, ports: &[u16]) -> String {
        let iohosts: Vec<String> =
            ports.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
        format!(
            "[[disk]]\nid = \"root\"\nlink = \"rack\"\nremote = \"db\"\nqueues = 2\n[[link]]\nid = \
             \"rack\"\nrole = \"client\"\niohosts = [{}]\nkey_file = \"{}\"\niohost_key = \"{}\"\n",
            iohosts.join(", "),
            self.client.0.display(),
            self.iohost.1
        )
    }
}

/// The same file without keys.
pub fn plain(file: &str) -> String {
    let is_key = |line: &&str| line.starts_with("key = ") || line.starts_with("iohost_key = ");
    let line = |line: &str| match line.starts_with("key_file = ") {
        true => "security = \"none\"\n".to_string(),
        false => format!("{line}\n"),
    };
    file.lines().filter(|line| !is_key(line)).map(line).collect()
}
