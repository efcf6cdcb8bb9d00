//! What devices are made of, word by word.

use super::*;
use crate::plan::load;
use cpus::HostCpus;

fn made(words: &[(&str, &str)]) -> MadeOf {
    words.iter().map(|(name, word)| (name.to_string(), word.to_string())).collect()
}

fn text_of(made: &MadeOf) -> String {
    let words = made.iter().map(|(name, word)| format!("{name}={word}"));
    words.collect::<Vec<_>>().join("; ")
}

const OF_EACH_KIND: &str = r#"
[[switch]]
id = "s"
[[disk]]
id = "f"
path = "/f.img"
cache = "direct"
socket = "/f.sock"
mode = "connect"
serial = "S"
block_size = 4096
[[disk]]
id = "m"
backend = "memory"
size = "1M"
socket = "/m.sock"
[[nic]]
id = "n0"
socket = "/n0"
mac = "02:00:00:00:00:01"
switch = "s"
[[nic]]
id = "n1"
socket = "/n1"
mac = "02:00:00:00:00:02"
tap = "t0"
[[nic]]
id = "n2"
socket = "/n2"
mac = "02:00:00:00:00:03"
interface = "e0"
via = "xdp"
[[nic]]
id = "n3"
socket = "/n3"
mac = "02:00:00:00:00:04"
null = "generate"
size = 60
rate = 7
"#;

#[test]
fn the_words_are_those_of_the_programs_before() {
    let host = HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 };
    let plan =
        load(OF_EACH_KIND, "f", "/etc", &host, None).unwrap_or_else(|refusal| panic!("{refusal}"));
    let disks = plan.disks.iter().map(made_of_disk);
    let found: Vec<String> = disks.map(|made| text_of(&made)).collect();
    assert_eq!(
        found,
        [
            "allow_unsealed_memory=false; block_size=4096; cache=Direct; kind=disk; migratable=false; \
             mode=Connect; queues=1; readonly=false; serial=S; socket=/f.sock; source=/f.img",
            "allow_unsealed_memory=false; block_size=as the image has it; cache=; kind=disk; \
             migratable=false; mode=Listen; queues=1; readonly=false; serial=m; socket=/m.sock; \
             source=memory",
        ]
    );
    let peers: Vec<String> = plan.nics.iter().map(|nic| made_of_nic(nic)["peer"].clone()).collect();
    assert_eq!(
        peers,
        [
            r#"Switch("s")"#,
            r#"Host(Tap { name: "t0" })"#,
            r#"Host(Interface { name: "e0", via: Xdp })"#,
            "Host(Null(Generate { size: 60, rate: 7 }))",
        ]
    );
    assert_eq!(
        text_of(&made_of_nic(&plan.nics[0])),
        "allow_unsealed_memory=false; guest_offloads=true; kind=nic; mac=02:00:00:00:00:01; \
         mode=Listen; mtu=1500; peer=Switch(\"s\"); queues=1; socket=/n0"
    );
    for (host, words) in [
        (
            HostPlan::Remote { link: "l".into(), name: "n".into() },
            "Remote { link: \"l\", name: \"n\" }",
        ),
        (HostPlan::Lent { name: "n".into() }, "Lent { name: \"n\" }"),
        (HostPlan::Null(NullPlan::Drop), "Null(Drop)"),
        (HostPlan::Null(NullPlan::Echo), "Null(Echo)"),
    ] {
        assert_eq!(peer_words(&NicPeer::Host(host)), format!("Host({words})"));
    }
}

#[test]
fn what_a_guest_was_told_stays_the_same_also_where_one_side_had_no_word_for_it() {
    let old = made(&[("kind", "disk"), ("gone", "1")]);
    let now = made(&[("kind", "disk"), ("block_size", AS_THE_IMAGE), ("other", "2")]);
    assert!(is_made_of(&old, &now) && is_made_of(&now, &old));
    let large = made(&[("kind", "disk"), ("block_size", "4096")]);
    assert!(!is_made_of(&old, &large), "a program without a word for it had the image's");
    assert!(!is_made_of(&now, &large) && !is_made_of(&large, &now));
    assert!(is_made_of(&large, &large));
    let card = |offloads| made(&[("kind", "nic"), ("guest_offloads", offloads)]);
    assert!(is_made_of(&made(&[("kind", "nic")]), &card("true")));
    assert!(!is_made_of(&made(&[("kind", "nic")]), &card("false")));
}
