//! Two namespaces and a veth pair: what traffic finds where nothing is wrong, and that it finds what is.

use super::*;
use crate::lacking::left_out;
use crate::namespace::Namespace;

#[test]
fn everything_goes_over_a_veth_pair_and_what_does_not_is_found() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        left_out("a network namespace needs root");
        return Ok(());
    }
    let (one, two) = (Namespace::new("one")?, Namespace::new("two")?);
    one.pair("end0", &two, "end1")?;
    one.address("end0", 0, 1)?;
    two.address("end1", 0, 2)?;
    one.asked("ping -q -c 3 -i 0.05 10.9.0.2")?;
    serve(&two)?;
    tcp(&one, "10.9.0.2 -P 2")?;
    tcp(&one, "fd09:0::2 -R")?;
    udp(&one, "10.9.0.2 -R")?;
    same_bytes(&one, &two, "10.9.0.2")?;
    same_bytes(&two, &one, "10.9.0.1")?;
    let mut lines = Lines::new();
    lines.open(&one, &two, "10.9.0.2")?;
    lines.open(&two, &one, "10.9.0.1")?;
    let load = Load::start(&one, "10.9.0.2")?;
    lines.go_on()?;
    load.end()?;
    two.run("printf 9 | dd of=stream-7101 conv=notrunc bs=1")?;
    let ends = lines.end();
    let names: Vec<&str> = ends.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["lines one to two", "lines two to one"]);
    assert!(ends[0].1.is_err(), "a line that came twice is not found");
    assert!(ends[1].1.is_ok(), "{:?}", ends[1].1);
    one.ip("link set end0 down")?;
    assert!(tcp(&one, "10.9.0.2 --connect-timeout 300").is_err());
    Ok(())
}
