//! Which rights a socket has, by what its device and `[daemon]` say.

use crate::plan::{Plan, load};
use cpus::HostCpus;

fn plan(daemon: &str, disk: &str) -> Result<Plan, String> {
    let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
    let text = format!("[daemon]\n{daemon}\n[[disk]]\nid = \"d\"\npath = \"/d\"\n{disk}\n");
    load(&text, "f", "/etc", &host, None).map_err(|refusal| refusal.to_string())
}

#[test]
fn a_device_says_it_or_daemon_does_or_it_is_the_owner_s_alone() {
    for (daemon, disk, expected) in [
        ("", "", None),
        ("", "socket_owner = \"a\"", Some("user a, mode 0600")),
        ("", "socket_group = \"g\"", Some("group g, mode 0660")),
        ("", "socket_group = \"g\"\nsocket_mode = \"0600\"", Some("group g, mode 0600")),
        ("socket_owner = \"a\"", "", Some("user a, mode 0600")),
        ("socket_owner = \"a\"", "socket_owner = \"b\"", Some("user b, mode 0600")),
        ("socket_group = \"g\"", "", Some("group g, mode 0660")),
        ("socket_group = \"g\"", "socket_mode = \"0600\"", Some("group g, mode 0600")),
        ("socket_group = \"g\"", "socket_owner = \"a\"", Some("user a, group g, mode 0660")),
        ("socket_mode = \"0600\"", "socket_group = \"g\"", Some("group g, mode 0660")),
        ("socket_mode = \"0660\"", "", Some("mode 0660")),
        ("socket_owner = \"1007\"", "", Some("user 1007, mode 0600")),
    ] {
        let plan = plan(daemon, disk).unwrap();
        let words = plan.disk("d").unwrap().rights.in_words();
        assert_eq!(words.as_deref(), expected, "{daemon} {disk}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    let long = format!("socket_owner = \"{}\"", "u".repeat(256));
    for (daemon, disk, wrong) in [
        ("api_mode = \"0666\"", "", "\"0666\" is not possible here"),
        ("socket_mode = \"0666\"", "", "\"0666\" is not possible here"),
        ("", "socket_mode = \"0666\"", "\"0666\" is not possible here"),
        ("api_mode = \"0640\"", "", "\"0640\""),
        ("api_mode = 384", "", "a word is needed here"),
        ("api_owner = \"\"", "", "\"\" is no name of a user"),
        ("api_group = \"a:b\"", "", "\"a:b\" is no name of a group"),
        ("", "socket_owner = \"a b\"", "\"a b\" is no name of a user"),
        ("", "socket_owner = \"../x\"", "\"../x\" is no name of a user"),
        ("", "socket_owner = \"4294967295\"", "\"4294967295\" is no name of a user"),
        ("", "socket_group = \"99999999999\"", "\"99999999999\" is no name of a group"),
        ("", long.as_str(), "is no name of a user"),
        ("", "mode = \"connect\"\nsocket_owner = \"a\"", "the socket is the VMM's"),
        ("api_read_mode = \"0666\"", "", "there is `api_read_mode`, but no `api_read`"),
        ("api_read = \"/run/sidecore/api.sock\"", "", "is the socket of the API"),
        ("api_read = \"/r\"", "socket = \"/r\"", "\"/r\" is the socket of the API"),
    ] {
        let refusal = plan(daemon, disk).unwrap_err();
        assert!(refusal.contains(wrong), "{daemon} {disk}: {refusal}");
    }
    let all = "api_read = \"/r\"\napi_read_mode = \"0666\"\napi_read_owner = \"0\"";
    let everyone = plan(all, "").unwrap().daemon.api_read_rights();
    assert_eq!(everyone.in_words().as_deref(), Some("user 0, mode 0666"));
}

#[test]
fn who_may_open_sockets_changes_at_a_reload_and_paths_do_not() {
    let running = plan("", "").unwrap();
    let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
    let text = "[daemon]\nrun_dir = \"/elsewhere\"\nsocket_owner = \"a\"\n[[disk]]\nid = \"d\"\npath = \"/d\"\n";
    let wanted = load(text, "f", "/etc", &host, Some(&running)).unwrap();
    let disk = wanted.disk("d").unwrap();
    assert_eq!(disk.socket, "/run/sidecore/d.sock");
    assert_eq!(disk.rights.owner.as_deref(), Some("a"));
    let changes = crate::diff(&running, &wanted).changes;
    let words: Vec<String> = changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        words,
        [
            "set who may open the socket of disk d: the daemon's own user, mode 0600 becomes user a, mode \
             0600"
        ]
    );
}
