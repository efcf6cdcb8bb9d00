//! Which HTTP request is which call: one table for the server, the description and the tests.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::api::{
    ApiError, Call, DaemonView, DiskList, DiskView, ErrorKind, GroupList, GroupView, LinkList,
    NicList, NicView, ReloadView, SidecoreList, SwitchList, SwitchView, UpgradeView, VersionView,
};
use crate::plan::api_error;
use crate::read;
use crate::spec::{
    DiskChange, DiskMove, DiskResize, DiskSpec, GroupChange, GroupSpec, LinkChange, NicChange,
    NicMove, NicSpec, SwitchSpec,
};

/// What a request asks for; also OpenAPI's `operationId`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is described by its route's summary")]
pub enum Operation {
    ListDisks,
    AddDisk,
    ShowDisk,
    ChangeDisk,
    RemoveDisk,
    ResizeDisk,
    ClearDisk,
    AcceptDisk,
    MoveDisk,
    ListNics,
    AddNic,
    ShowNic,
    ChangeNic,
    RemoveNic,
    MoveNic,
    SetLink,
    ListSwitches,
    AddSwitch,
    ShowSwitch,
    RemoveSwitch,
    ListLinks,
    ListGroups,
    AddGroup,
    ShowGroup,
    ChangeGroup,
    RemoveGroup,
    ListSidecores,
    Reload,
    Upgrade,
    ShowDaemon,
    Version,
}

/// HTTP methods that the API uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are HTTP's own")]
pub enum Method {
    Get,
    Post,
    Patch,
    Delete,
}

/// Makes the schema of a body or an answer.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// One request that the API has.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// What it asks for.
    pub operation: Operation,
    /// Its method.
    pub method: Method,
    /// Its path; `{id}` stands for a device's name.
    pub path: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// The schema of its body, if it has one.
    pub body: Option<SchemaOf>,
    /// Status of success.
    pub success: u16,
    /// The schema of its answer.
    pub answer: SchemaOf,
    /// Statuses of refusal beside those that any request can get.
    pub refusals: &'static [u16],
}

/// Everything the API has.
pub const ROUTES: [Route; 31] = [
    Route {
        operation: Operation::ListDisks,
        method: Method::Get,
        path: "/v1/disks",
        summary: "Every disk, without its queues.",
        body: None,
        success: 200,
        answer: schema_of::<DiskList>,
        refusals: &[],
    },
    Route {
        operation: Operation::AddDisk,
        method: Method::Post,
        path: "/v1/disks",
        summary: "Make a disk. It survives a restart of the daemon and disturbs no other disk.",
        body: Some(schema_of::<DiskSpec>),
        success: 201,
        answer: schema_of::<DiskView>,
        refusals: &[409, 422],
    },
    Route {
        operation: Operation::ShowDisk,
        method: Method::Get,
        path: "/v1/disks/{id}",
        summary: "One disk with its queues.",
        body: None,
        success: 200,
        answer: schema_of::<DiskView>,
        refusals: &[404],
    },
    Route {
        operation: Operation::ChangeDisk,
        method: Method::Patch,
        path: "/v1/disks/{id}",
        summary: "Change a disk made through the API while it runs.",
        body: Some(schema_of::<DiskChange>),
        success: 200,
        answer: schema_of::<DiskView>,
        refusals: &[404, 409, 422],
    },
    Route {
        operation: Operation::RemoveDisk,
        method: Method::Delete,
        path: "/v1/disks/{id}",
        summary: "Remove a disk made through the API. Its image stays; the answer is the disk as it \
                  last was.",
        body: None,
        success: 200,
        answer: schema_of::<DiskView>,
        refusals: &[404, 409],
    },
    Route {
        operation: Operation::ResizeDisk,
        method: Method::Post,
        path: "/v1/disks/{id}/resize",
        summary: "Give a disk made through the API another capacity; its guest is told.",
        body: Some(schema_of::<DiskResize>),
        success: 200,
        answer: schema_of::<DiskView>,
        refusals: &[404, 409, 422],
    },
    Route {
        operation: Operation::ClearDisk,
        method: Method::Post,
        path: "/v1/disks/{id}/clear",
        summary: "Say that a disk which could not make data stable has been seen to: its flushes may \
                  succeed again.",
        body: None,
        success: 200,
        answer: schema_of::<DiskView>,
        refusals: &[404, 409],
    },
    Route {
        operation: Operation::AcceptDisk,
        method: Method::Post,
        path: "/v1/disks/{id}/accept",
        summary: "Have the guest of a disk, wherever it was declared, go on with the image that is there, \
                  though it was on another one.",
        body: None,
        success: 200,
        answer: schema_of::<DiskView>,
        refusals: &[404, 409, 422],
    },
    Route {
        operation: Operation::MoveDisk,
        method: Method::Post,
        path: "/v1/disks/{id}/move",
        summary: "Move queues of a running disk, wherever it was declared, to another sidecore, or let \
                  them go. Answered when they are there; 503 if their requests did not end in time, and they \
                  are served where they were.",
        body: Some(schema_of::<DiskMove>),
        success: 200,
        answer: schema_of::<DiskView>,
        refusals: &[404, 422],
    },
    Route {
        operation: Operation::ListNics,
        method: Method::Get,
        path: "/v1/nics",
        summary: "Every NIC, without its queues.",
        body: None,
        success: 200,
        answer: schema_of::<NicList>,
        refusals: &[],
    },
    Route {
        operation: Operation::AddNic,
        method: Method::Post,
        path: "/v1/nics",
        summary: "Make a NIC. It survives a restart of the daemon and disturbs no other.",
        body: Some(schema_of::<NicSpec>),
        success: 201,
        answer: schema_of::<NicView>,
        refusals: &[409, 422],
    },
    Route {
        operation: Operation::ShowNic,
        method: Method::Get,
        path: "/v1/nics/{id}",
        summary: "One NIC with its queues.",
        body: None,
        success: 200,
        answer: schema_of::<NicView>,
        refusals: &[404],
    },
    Route {
        operation: Operation::ChangeNic,
        method: Method::Patch,
        path: "/v1/nics/{id}",
        summary: "Change a NIC made through the API while it runs.",
        body: Some(schema_of::<NicChange>),
        success: 200,
        answer: schema_of::<NicView>,
        refusals: &[404, 409, 422],
    },
    Route {
        operation: Operation::RemoveNic,
        method: Method::Delete,
        path: "/v1/nics/{id}",
        summary: "Remove a NIC made through the API; the answer is the NIC as it last was.",
        body: None,
        success: 200,
        answer: schema_of::<NicView>,
        refusals: &[404, 409],
    },
    Route {
        operation: Operation::SetLink,
        method: Method::Post,
        path: "/v1/nics/{id}/link",
        summary: "Take a NIC's cable out or put it in, wherever the NIC was declared. It \
                  stays so over a restart if the NIC was made through the API.",
        body: Some(schema_of::<LinkChange>),
        success: 200,
        answer: schema_of::<NicView>,
        refusals: &[404, 409],
    },
    Route {
        operation: Operation::MoveNic,
        method: Method::Post,
        path: "/v1/nics/{id}/move",
        summary: "Move a NIC of a switch with all its queues, wherever it was declared, to another \
                  sidecore, or let it go. Answered when it is there; 503 if frames on their way did not arrive in \
                  time, and it is served where it was.",
        body: Some(schema_of::<NicMove>),
        success: 200,
        answer: schema_of::<NicView>,
        refusals: &[404, 422],
    },
    Route {
        operation: Operation::ListSwitches,
        method: Method::Get,
        path: "/v1/switches",
        summary: "Every switch with its ports.",
        body: None,
        success: 200,
        answer: schema_of::<SwitchList>,
        refusals: &[],
    },
    Route {
        operation: Operation::AddSwitch,
        method: Method::Post,
        path: "/v1/switches",
        summary: "Make a switch. It survives a restart of the daemon.",
        body: Some(schema_of::<SwitchSpec>),
        success: 201,
        answer: schema_of::<SwitchView>,
        refusals: &[409, 422],
    },
    Route {
        operation: Operation::ShowSwitch,
        method: Method::Get,
        path: "/v1/switches/{id}",
        summary: "One switch with its ports and its table of addresses.",
        body: None,
        success: 200,
        answer: schema_of::<SwitchView>,
        refusals: &[404],
    },
    Route {
        operation: Operation::RemoveSwitch,
        method: Method::Delete,
        path: "/v1/switches/{id}",
        summary: "Remove a switch made through the API, with its uplinks. One that still has \
                  NICs stays.",
        body: None,
        success: 200,
        answer: schema_of::<SwitchView>,
        refusals: &[404, 409],
    },
    Route {
        operation: Operation::ListLinks,
        method: Method::Get,
        path: "/v1/links",
        summary: "Every link, with its sessions, what it lost, and its disks.",
        body: None,
        success: 200,
        answer: schema_of::<LinkList>,
        refusals: &[],
    },
    Route {
        operation: Operation::ListGroups,
        method: Method::Get,
        path: "/v1/groups",
        summary: "Every group, with its members and what they used.",
        body: None,
        success: 200,
        answer: schema_of::<GroupList>,
        refusals: &[],
    },
    Route {
        operation: Operation::AddGroup,
        method: Method::Post,
        path: "/v1/groups",
        summary: "Make a group of disks and NICs that have a limit together. It survives a restart of \
                  the daemon.",
        body: Some(schema_of::<GroupSpec>),
        success: 201,
        answer: schema_of::<GroupView>,
        refusals: &[409, 422],
    },
    Route {
        operation: Operation::ShowGroup,
        method: Method::Get,
        path: "/v1/groups/{id}",
        summary: "One group, with its members and what they used.",
        body: None,
        success: 200,
        answer: schema_of::<GroupView>,
        refusals: &[404],
    },
    Route {
        operation: Operation::ChangeGroup,
        method: Method::Patch,
        path: "/v1/groups/{id}",
        summary: "Give a group made through the API another limit, which holds at once.",
        body: Some(schema_of::<GroupChange>),
        success: 200,
        answer: schema_of::<GroupView>,
        refusals: &[404, 409, 422],
    },
    Route {
        operation: Operation::RemoveGroup,
        method: Method::Delete,
        path: "/v1/groups/{id}",
        summary: "Remove a group made through the API. One that has members stays.",
        body: None,
        success: 200,
        answer: schema_of::<GroupView>,
        refusals: &[404, 409],
    },
    Route {
        operation: Operation::ListSidecores,
        method: Method::Get,
        path: "/v1/sidecores",
        summary: "Every sidecore.",
        body: None,
        success: 200,
        answer: schema_of::<SidecoreList>,
        refusals: &[],
    },
    Route {
        operation: Operation::Reload,
        method: Method::Post,
        path: "/v1/reload",
        summary: "Read the configuration file again; a mistake in it changes nothing.",
        body: None,
        success: 200,
        answer: schema_of::<ReloadView>,
        refusals: &[409, 422],
    },
    Route {
        operation: Operation::Upgrade,
        method: Method::Post,
        path: "/v1/upgrade",
        summary: "Have a new process of the program, as it is installed now, take over with everything \
                  that is served. If it cannot, this one goes on.",
        body: None,
        success: 200,
        answer: schema_of::<UpgradeView>,
        refusals: &[409, 422],
    },
    Route {
        operation: Operation::ShowDaemon,
        method: Method::Get,
        path: "/v1/daemon",
        summary: "The daemon itself: what it has given up, and what devices are promised of it.",
        body: None,
        success: 200,
        answer: schema_of::<DaemonView>,
        refusals: &[],
    },
    Route {
        operation: Operation::Version,
        method: Method::Get,
        path: "/v1/version",
        summary: "Which program answers.",
        body: None,
        success: 200,
        answer: schema_of::<VersionView>,
        refusals: &[],
    },
];

impl Operation {
    /// The call that a request makes. `id` and `body` are what the path and the request carry;
    /// both are checked here, and whoever needs none ignores them.
    pub fn call(self, id: &str, body: &[u8]) -> Result<Call, ApiError> {
        let id = id.to_string();
        Ok(match self {
            Operation::ListDisks => Call::ListDisks,
            Operation::AddDisk => Call::AddDisk(body_of(body)?),
            Operation::ShowDisk => Call::ShowDisk { id },
            Operation::ChangeDisk => Call::ChangeDisk { id, change: body_of(body)? },
            Operation::RemoveDisk => Call::RemoveDisk { id },
            Operation::ResizeDisk => Call::ResizeDisk { id, resize: body_of(body)? },
            Operation::ClearDisk => Call::ClearDisk { id },
            Operation::AcceptDisk => Call::AcceptDisk { id },
            Operation::MoveDisk => Call::MoveDisk { id, wish: body_of(body)? },
            Operation::ListNics => Call::ListNics,
            Operation::AddNic => Call::AddNic(body_of(body)?),
            Operation::ShowNic => Call::ShowNic { id },
            Operation::ChangeNic => Call::ChangeNic { id, change: body_of(body)? },
            Operation::RemoveNic => Call::RemoveNic { id },
            Operation::MoveNic => Call::MoveNic { id, wish: body_of(body)? },
            Operation::SetLink => {
                let LinkChange { link } = body_of(body)?;
                Call::SetLink { id, link }
            }
            Operation::ListSwitches => Call::ListSwitches,
            Operation::AddSwitch => Call::AddSwitch(body_of(body)?),
            Operation::ShowSwitch => Call::ShowSwitch { id },
            Operation::RemoveSwitch => Call::RemoveSwitch { id },
            Operation::ListLinks => Call::ListLinks,
            Operation::ListGroups => Call::ListGroups,
            Operation::AddGroup => Call::AddGroup(body_of(body)?),
            Operation::ShowGroup => Call::ShowGroup { id },
            Operation::ChangeGroup => Call::ChangeGroup { id, change: body_of(body)? },
            Operation::RemoveGroup => Call::RemoveGroup { id },
            Operation::ListSidecores => Call::ListSidecores,
            Operation::Reload => Call::Reload,
            Operation::Upgrade => Call::Upgrade,
            Operation::ShowDaemon => Call::ShowDaemon,
            Operation::Version => Call::Version,
        })
    }
}

fn body_of<T: JsonSchema + serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    read::json(body).map_err(|mistakes| {
        let mut refusal = api_error(ErrorKind::Malformed, &mistakes);
        if refusal.hint.is_empty() {
            refusal.hint = "/openapi.json describes every request and its body".to_string();
        }
        refusal
    })
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{TARGET_HINT, Target};

    fn refusal(operation: Operation, body: &str) -> (u16, String, String) {
        let error = operation.call("vm1", body.as_bytes()).unwrap_err();
        (error.kind.status(), error.error, error.hint)
    }

    #[test]
    fn bodies_become_calls() {
        let call = Operation::AddDisk.call("", br#"{"id":"a","path":"/a.img","size":"1G"}"#);
        let spec = DiskSpec {
            path: Some("/a.img".into()),
            size: Some(crate::Size(1 << 30)),
            ..DiskSpec::new("a")
        };
        assert_eq!(call.unwrap(), Call::AddDisk(spec));
        let call = Operation::ChangeDisk.call("a", br#"{"policy":"poll"}"#).unwrap();
        let change =
            DiskChange { policy: Some(crate::spec::Policy::Poll), ..DiskChange::default() };
        assert_eq!(call, Call::ChangeDisk { id: "a".into(), change });
        let call = Operation::ResizeDisk.call("a", br#"{"size":1024}"#).unwrap();
        let resize = DiskResize { size: crate::Size(1024) };
        assert_eq!(call, Call::ResizeDisk { id: "a".into(), resize });
        let call = Operation::MoveDisk.call("a", br#"{"to":"auto","queue":1}"#).unwrap();
        let wish = DiskMove { to: Target::Auto, queue: Some(1) };
        assert_eq!(call, Call::MoveDisk { id: "a".into(), wish });
        let call = Operation::MoveNic.call("a", br#"{"to":3}"#).unwrap();
        let wish = NicMove { to: Target::Sidecore(3) };
        assert_eq!(call, Call::MoveNic { id: "a".into(), wish });
    }

    #[test]
    fn a_move_to_nowhere_says_where_to() {
        for (body, said) in [
            (r#"{"to":"one"}"#, "to: \"one\" is no sidecore"),
            (r#"{"to":-1}"#, "to: \"-1\" is no sidecore"),
            (r#"{"to":70000}"#, "to: \"70000\" is no sidecore"),
            (r#"{"to":[1]}"#, "to: a sidecore is needed here, not a list"),
        ] {
            let wanted = (400, said.to_string(), TARGET_HINT.to_string());
            assert_eq!(refusal(Operation::MoveNic, body), wanted);
        }
    }

    #[test]
    fn bad_bodies_are_refused_with_every_mistake() {
        assert_eq!(
            refusal(Operation::AddDisk, "{\"id\":7,\"queue\":2,\"backend\":\"nul\"}"),
            (
                400,
                "id: a text is needed here, not a number; `queue` is not a field here; backend: \
                 \"nul\" is not possible here"
                    .to_string(),
                "write it between quotes; did you mean `queues`?; did you mean \"null\"? Possible: \
                 \"null\", \"memory\", \"file\", \"remote\""
                    .to_string()
            )
        );
        let (status, error, hint) = refusal(Operation::AddDisk, "{");
        assert_eq!(status, 400);
        assert!(error.starts_with("the body is not JSON: "), "{error}");
        assert_eq!(hint, "/openapi.json describes every request and its body");
        let (_, error, _) = refusal(Operation::ResizeDisk, "[]");
        assert_eq!(error, "a table is needed here, not a list");
        let (_, error, _) = refusal(Operation::AddDisk, &"[".repeat(60_000));
        assert!(error.starts_with("the body is not JSON: recursion limit exceeded"), "{error}");
    }
}
