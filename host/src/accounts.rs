//! The users and groups of this host, as `/etc/passwd` and `/etc/group` have them.
//!
//! Not by the C library: that would load code and make connections for it, which a confined process may
//! not. So users of a directory service (LDAP, `sssd`) have no name here; a number always works.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use crate::files::Files;

/// Longest file that is read, in bytes: a hundred thousand users.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// One user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name; for one that only a number names, that.
    pub name: String,
    /// The user's number.
    pub uid: u32,
    /// The number of the user's own group.
    pub gid: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    name: String,
    gid: u32,
    members: Vec<String>,
}

/// The users and groups of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    users: Vec<User>,
    groups: Vec<Group>,
    /// Places of names: the first line of one counts, as for the C library.
    users_by_name: HashMap<String, usize>,
    groups_by_name: HashMap<String, usize>,
}

impl Accounts {
    /// Those of this host.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn of_this_host() -> io::Result<Accounts> {
        Accounts::below(Path::new("/"))
    }

    /// Those of the host with that root folder.
    ///
    /// # Errors
    /// A file cannot be read, or has more than 16 MiB.
    pub fn below(root: &Path) -> io::Result<Accounts> {
        let files = Files::below(root);
        let text = |path: &str| files.whole(path, FILE_BYTES_MAX);
        Ok(Accounts::parse(&text("etc/passwd")?, &text("etc/group")?))
    }

    /// Of the texts of both files. Lines that make no sense are left out.
    fn parse(passwd: &str, group: &str) -> Accounts {
        let user = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?.to_string();
            let uid = number(fields.nth(1)?)?;
            Some(User { name, uid, gid: number(fields.next()?)? })
        };
        let group_of = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?.to_string();
            let gid = number(fields.nth(1)?)?;
            let members = fields.next().unwrap_or_default().split(',');
            let members = members.map(str::trim).filter(|member| !member.is_empty());
            Some(Group { name, gid, members: members.map(str::to_string).collect() })
        };
        let users: Vec<User> = passwd.lines().filter_map(user).collect();
        let groups: Vec<Group> = group.lines().filter_map(group_of).collect();
        let (mut users_by_name, mut groups_by_name) = (HashMap::new(), HashMap::new());
        for (at, user) in users.iter().enumerate() {
            users_by_name.entry(user.name.clone()).or_insert(at);
        }
        for (at, group) in groups.iter().enumerate() {
            groups_by_name.entry(group.name.clone()).or_insert(at);
        }
        Accounts { users, groups, users_by_name, groups_by_name }
    }

    /// The user of that name, or of that number; one that only has a number has no group but of the same
    /// number.
    pub fn user(&self, written: &str) -> Option<User> {
        if let Some(user) = self.users_by_name.get(written).and_then(|at| self.users.get(*at)) {
            return Some(user.clone());
        }
        let uid = number(written)?;
        let known = self.users.iter().find(|user| user.uid == uid).cloned();
        Some(known.unwrap_or(User { name: written.to_string(), uid, gid: uid }))
    }

    /// The number of the group of that name, or that number.
    pub fn group(&self, written: &str) -> Option<u32> {
        let named = self.groups_by_name.get(written).and_then(|at| self.groups.get(*at));
        named.map(|group| group.gid).or_else(|| number(written))
    }

    /// The name of a user, or the number.
    pub fn name_of_user(&self, uid: u32) -> String {
        let known = self.users.iter().find(|user| user.uid == uid);
        known.map_or_else(|| uid.to_string(), |user| user.name.clone())
    }

    /// The name of a group, or the number.
    pub fn name_of_group(&self, gid: u32) -> String {
        let known = self.groups.iter().find(|group| group.gid == gid);
        known.map_or_else(|| gid.to_string(), |group| group.name.clone())
    }

    /// The numbers of all groups that a user is in, the own one first.
    pub fn groups_of(&self, user: &User) -> Vec<u32> {
        let mut groups = vec![user.gid];
        for group in &self.groups {
            if group.members.contains(&user.name) && !groups.contains(&group.gid) {
                groups.push(group.gid);
            }
        }
        groups
    }

    /// The names of all users in a group, as their own one or as another.
    pub fn members_of(&self, gid: u32) -> Vec<String> {
        let own = self.users.iter().filter(|user| user.gid == gid).map(|user| user.name.clone());
        let mut members: Vec<String> = own.collect();
        for group in self.groups.iter().filter(|group| group.gid == gid) {
            for member in &group.members {
                if !members.contains(member) {
                    members.push(member.clone());
                }
            }
        }
        members
    }
}

/// A number that names a user or group; that of nobody in particular (-1) does not.
fn number(written: &str) -> Option<u32> {
    let digits = written.bytes().all(|byte| byte.is_ascii_digit());
    written.parse().ok().filter(|id| digits && *id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nlibvirt-qemu:x:64055:106:Qemu,,,:/var:/bin/sh\n\
                          vm7:x:1007:1007::/:/bin/false\n# a comment\n:x:3:3::/:\nodd:x:-1:3::/:\nnone:x:4294967295:3::/:\nshort:x\n";
    const GROUP: &str = "root:x:0:\nkvm:x:106:vm7, vm8\nvm7:x:1007:\nbad\n";

    #[test]
    fn names_and_numbers_find_users_and_their_groups() {
        let accounts = Accounts::parse(PASSWD, GROUP);
        let vm7 = accounts.user("vm7").unwrap();
        assert_eq!((vm7.uid, accounts.groups_of(&vm7)), (1007, vec![1007, 106]));
        assert_eq!(accounts.user("1007"), Some(vm7));
        assert_eq!(accounts.user("4711").map(|user| (user.uid, user.gid)), Some((4711, 4711)));
        assert_eq!(accounts.group("kvm"), Some(106));
        assert_eq!(accounts.group("12"), Some(12));
        for nobody in ["odd", "none", "short", "", "-1", "+5", "4294967295", "4294967296", "vm8 "] {
            assert_eq!(accounts.user(nobody), None, "{nobody:?}");
        }
        let twice = Accounts::parse("a:x:1:1::/:\na:x:2:2::/:\n", "g:x:3:\ng:x:4:\n");
        assert_eq!((twice.user("a").map(|user| user.uid), twice.group("g")), (Some(1), Some(3)));
        assert_eq!(accounts.members_of(106), ["libvirt-qemu", "vm7", "vm8"]);
        assert_eq!(accounts.name_of_user(64055), "libvirt-qemu");
        assert_eq!(
            (accounts.name_of_group(106), accounts.name_of_group(9)),
            ("kvm".into(), "9".into())
        );
    }

    #[test]
    fn a_file_of_any_length_is_bounded() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        std::fs::write(root.path().join("etc/passwd"), PASSWD).unwrap();
        assert!(Accounts::below(root.path()).is_err(), "there is no etc/group");
        std::fs::write(root.path().join("etc/group"), GROUP).unwrap();
        assert_eq!(Accounts::below(root.path()).unwrap(), Accounts::parse(PASSWD, GROUP));
        let endless = std::fs::File::create(root.path().join("etc/group")).unwrap();
        endless.set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(Accounts::below(root.path()).is_err());
    }
}
