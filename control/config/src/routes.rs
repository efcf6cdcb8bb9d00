//! Which HTTP request is which call: one table for the server, the description and the tests.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::api::{ApiError, Call, ErrorKind};
use crate::plan::api_error;
use crate::read;
use crate::spec::{LinkChange, StageKind};

mod query;
mod table;

use query::Query;
pub use table::ROUTES;

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
    ListStages,
    SetStage,
    RemoveStage,
    ReadTrace,
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
    ShowReload,
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
    Put,
    Patch,
    Delete,
}

/// Makes the schema of a body or an answer.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A word behind `?` in the path of a request.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub takes: Takes,
    /// What it does: one that is true or false, when it is `true`.
    pub summary: &'static str,
}

/// What a word behind `?` in the path of a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// `true` or `false`.
    Truth,
    /// From where a trace is read.
    Cursor,
}

/// Does what would take a device, or a part of one, from the guest that uses it.
pub const FORCE: Parameter = Parameter {
    name: "force",
    takes: Takes::Truth,
    summary: "Do it also where a guest loses by it. Without it that is refused.",
};

/// Does an upgrade by which requests that wait end, or with a new disk that does not fit. What takes a device from a guest,
/// it does not.
pub const FORCE_UPGRADE: Parameter = Parameter {
    name: "force",
    takes: Takes::Truth,
    summary: "Do it also where requests that wait end with an error, and where a new disk does not fit its image. Without \
              it that is refused. What takes a device from a guest is refused always.",
};

/// From where a trace is read.
pub const CURSOR: Parameter = Parameter {
    name: "cursor",
    takes: Takes::Cursor,
    summary: "From where to read: `cursor` of the answer before, or `now`. Without it, from the oldest request that is \
              kept.",
};

/// One request that the API has.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// What it asks for.
    pub operation: Operation,
    /// Its method.
    pub method: Method,
    /// Its path; `{id}` stands for a device's name, `{kind}` for a stage's kind.
    pub path: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// The schema of its body, if it has one.
    pub body: Option<SchemaOf>,
    /// What may follow `?` in its path.
    pub query: &'static [Parameter],
    /// Status of success.
    pub success: u16,
    /// The schema of its answer.
    pub answer: SchemaOf,
    /// Statuses of refusal beside those that any request can get.
    pub refusals: &'static [u16],
}

impl Route {
    /// Whether it is there for those who only look: it shows what is so, and takes no more than that. What a
    /// reload would do is an operator's question: the answer reads and opens files. So is which blocks of its disk a
    /// guest asks for.
    pub fn is_shown(&self) -> bool {
        let is_operators = [Operation::ShowReload, Operation::ReadTrace].contains(&self.operation);
        self.method == Method::Get && !is_operators
    }
}

impl Operation {
    /// What may follow `?` in its path.
    fn query(self) -> &'static [Parameter] {
        let mut routes = ROUTES.iter();
        routes.find(|route| route.operation == self).map_or(&[], |route| route.query)
    }

    /// The call that a request makes. `names`, `query` and `body` are what the path and the request carry; all are
    /// checked here, and whoever needs no name or body ignores it. The first name is a device's, the next a stage's.
    ///
    /// # Errors
    /// What is wrong in them.
    pub fn call(self, names: &[&str], query: &str, body: &[u8]) -> Result<Call, ApiError> {
        let id = names.first().copied().unwrap_or_default().to_string();
        let kind = || {
            let name = names.get(1).copied().unwrap_or_default();
            StageKind::named(name).ok_or_else(|| ApiError::no_such_stage(name))
        };
        let Query { force, cursor } = Query::read(query, self.query())?;
        Ok(match self {
            Operation::ListDisks => Call::ListDisks,
            Operation::AddDisk => Call::AddDisk { spec: body_of(body)?, force },
            Operation::ShowDisk => Call::ShowDisk { id },
            Operation::ChangeDisk => Call::ChangeDisk { id, change: body_of(body)? },
            Operation::RemoveDisk => Call::RemoveDisk { id, force },
            Operation::ResizeDisk => Call::ResizeDisk { id, resize: body_of(body)?, force },
            Operation::ClearDisk => Call::ClearDisk { id },
            Operation::AcceptDisk => Call::AcceptDisk { id },
            Operation::MoveDisk => Call::MoveDisk { id, wish: body_of(body)? },
            Operation::ListStages => Call::ListStages { id },
            Operation::SetStage => Call::SetStage { id, kind: kind()?, change: body_of(body)? },
            Operation::RemoveStage => Call::RemoveStage { id, kind: kind()? },
            Operation::ReadTrace => Call::ReadTrace { id, from: cursor },
            Operation::ListNics => Call::ListNics,
            Operation::AddNic => Call::AddNic(body_of(body)?),
            Operation::ShowNic => Call::ShowNic { id },
            Operation::ChangeNic => Call::ChangeNic { id, change: body_of(body)? },
            Operation::RemoveNic => Call::RemoveNic { id, force },
            Operation::MoveNic => Call::MoveNic { id, wish: body_of(body)? },
            Operation::SetLink => {
                let LinkChange { link: carrier } = body_of(body)?;
                Call::SetCarrier { id, carrier }
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
            Operation::ShowReload => Call::ShowReload,
            Operation::Reload => Call::Reload { force },
            Operation::Upgrade => Call::Upgrade { force },
            Operation::ShowDaemon => Call::ShowDaemon,
            Operation::Version => Call::Version,
        })
    }
}

fn body_of<T: JsonSchema + serde::de::DeserializeOwned + 'static>(
    body: &[u8],
) -> Result<T, ApiError> {
    read::json(body).map_err(|mistakes| api_error(ErrorKind::Malformed, &mistakes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{DiskChange, DiskMove, DiskResize, DiskSpec, NicMove};
    use crate::target::{TARGET_HINT, Target};

    fn refusal(operation: Operation, body: &str) -> (u16, String, String) {
        let error = operation.call(&["vm1"], "", body.as_bytes()).unwrap_err();
        (error.kind.status(), error.error, error.hint)
    }

    #[test]
    fn bodies_become_calls() {
        let call = Operation::AddDisk.call(&[], "", br#"{"id":"a","path":"/a.img","size":"1G"}"#);
        let spec = DiskSpec {
            path: Some("/a.img".into()),
            size: Some(crate::Size(1 << 30)),
            ..DiskSpec::new("a")
        };
        assert_eq!(call.unwrap(), Call::AddDisk { spec, force: false });
        let call = Operation::ChangeDisk.call(&["a"], "", br#"{"policy":"poll"}"#).unwrap();
        let change =
            DiskChange { policy: Some(crate::spec::Policy::Poll), ..DiskChange::default() };
        assert_eq!(call, Call::ChangeDisk { id: "a".into(), change });
        let call = Operation::ResizeDisk.call(&["a"], "", br#"{"size":1024}"#).unwrap();
        let resize = DiskResize { size: crate::Size(1024) };
        assert_eq!(call, Call::ResizeDisk { id: "a".into(), resize, force: false });
        let call = Operation::MoveDisk.call(&["a"], "", br#"{"to":"auto","queue":1}"#).unwrap();
        let wish = DiskMove { to: Target::Auto, queue: Some(1) };
        assert_eq!(call, Call::MoveDisk { id: "a".into(), wish });
        let call = Operation::MoveNic.call(&["a"], "", br#"{"to":3}"#).unwrap();
        let wish = NicMove { to: Target::Sidecore(3) };
        assert_eq!(call, Call::MoveNic { id: "a".into(), wish });
    }

    #[test]
    fn what_follows_the_path_is_checked_like_a_body() {
        let call =
            |operation: Operation, query| operation.call(&["a"], query, b"").map_err(|e| e.error);
        let removes = |force| Ok(Call::RemoveDisk { id: "a".into(), force });
        assert_eq!(call(Operation::RemoveDisk, ""), removes(false));
        assert_eq!(call(Operation::RemoveDisk, "force"), removes(true));
        assert_eq!(call(Operation::RemoveDisk, "force=true"), removes(true));
        assert_eq!(call(Operation::RemoveDisk, "force=false&"), removes(false));
        assert_eq!(call(Operation::Reload, "force"), Ok(Call::Reload { force: true }));
        for (operation, query, said) in [
            (Operation::RemoveDisk, "dry_run", "`dry_run` is no parameter of this request"),
            (Operation::RemoveDisk, "Force", "`Force` is no parameter of this request"),
            (Operation::RemoveDisk, "force=1", "`force` has another value than true and false"),
            (Operation::RemoveDisk, "force=false&force=true", "`force` is given twice"),
            (Operation::ListDisks, "force", "`force` is no parameter of this request"),
        ] {
            assert_eq!(call(operation, query), Err(said.to_string()), "{query}");
        }
    }

    /// An upgrade never takes a device from a guest.
    #[test]
    fn what_force_does_is_said_of_each_that_takes_it() {
        for route in ROUTES {
            let force = route.query.iter().find(|parameter| parameter.name == "force");
            let takes = force.map(|force| force.summary.contains("where a guest loses by it"));
            assert_ne!(takes, Some(route.operation == Operation::Upgrade), "{}", route.path);
        }
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
                "write it between quotes: \"7\"; did you mean `queues`?; did you mean \"null\"? Possible: \
                 \"null\", \"memory\", \"file\", \"remote\""
                    .to_string()
            )
        );
        let (status, error, hint) = refusal(Operation::AddDisk, "{");
        assert_eq!(status, 400);
        assert!(error.starts_with("the body is not JSON: "), "{error}");
        assert_eq!(hint, "/openapi.json describes every request and its body");
        let (_, error, hint) = refusal(Operation::ResizeDisk, "[]");
        assert_eq!(hint, "write its fields in an object: {\"FIELD\": VALUE}");
        assert_eq!(error, "an object is needed here, not a list");
        let (_, error, _) = refusal(Operation::AddDisk, &"[".repeat(60_000));
        assert!(error.starts_with("the body is not JSON: recursion limit exceeded"), "{error}");
    }
}
