//! `wait = "line"`: refused where the processor cannot, and no reason to lose or delay anything where it
//! can.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use anyhow::{Context, Result, ensure};
use testing::daemon::{Daemon, pause};
use testing::frontend::FrontendSpec;
use testing::lacking::left_out;
use testing::slots::{Kind, STATUS_OK};
use tests::single::Single;

const DISK: &str = "[[disk]]\nid = \"d\"\nbackend = \"memory\"\nsize = \"1M\"\npolicy = \"poll\"\n";
/// Requests that are waited for, one by one.
const ROUNDS: u64 = 10_000;

#[test]
fn a_sidecore_waits_on_a_line_only_where_it_can() -> Result<()> {
    let mut daemon = Daemon::start("waiting", DISK)?;
    let host = daemon.ask("doctor")?;
    let mut checks = host["checks"].as_array().context("no checks")?.iter();
    let check = checks.find(|check| check["name"] == "waiting on a line").context("no row")?;
    let can = !check["found"].to_string().contains("neither");

    let file = daemon.dir().join("sidecore.toml");
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(&file, text.replace("[sidecores]\n", "[sidecores]\nwait = \"line\"\n"))?;
    if !can {
        let said = daemon.refuses("reload")?;
        let wanted = "sidecores.wait: this processor has neither WAITPKG (umwait) nor MONITORX";
        ensure!(said.contains(wanted), "{said}");
        daemon.is_alive()?;
        left_out("this processor has neither WAITPKG nor MONITORX");
        return Ok(());
    }
    let answer = daemon.ask("reload")?.to_string();
    ensure!(answer.contains("sidecores.wait"), "{answer}");
    daemon.stop()?;
    daemon.start_again()?;
    let spec = FrontendSpec::linux();
    let mut frontend = daemon.frontend("d", &spec)?;
    let single = Single::new(&mut frontend)?;
    single.exercise(frontend.queue(0), 1)?;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let ended = single.send(frontend.queue(0), Kind::Read, 1)?;
        ensure!(ended.status == STATUS_OK, "{ended:?}");
        took.push(ended.took_ns);
    }
    single.compare(1)?;
    took.sort_unstable();
    println!("waiting on a line: half of the answers within {} ns", took[took.len() / 2]);
    // Asleep for long, and then awake for somebody.
    pause(std::time::Duration::from_millis(100));
    single.exercise(frontend.queue(0), 2)?;
    daemon.is_alive()
}
