//! `docs/config.md` and `docs/api.md`, made of the same schemas as everything else.

use std::fmt::Write as _;

use schemars::{JsonSchema, schema_for};
use serde_json::{Map, Value};

use crate::openapi;
use crate::routes::{ROUTES, Takes};
use crate::schema::words_of;
use crate::spec::{
    DaemonSpec, DiskSpec, ElvisSpec, Es2Spec, GroupSpec, LinkClientSpec, LinkSpec, NicSpec,
    SidecoresSpec, StageSpec, SwitchSpec, UplinkSpec,
};

mod reload;

const MADE: &str =
    "<!-- Made by `sidecore docs DIR`, which writes it anew: what is changed here is lost. -->";

/// Where a path begins, everywhere.
const PATHS: &str = "A path that does not begin with `/` begins in the folder of the file that it is written in; on the \
                     command line, in the folder in which the command is run. The API takes whole paths alone.";

/// The text of `docs/config.md`.
pub fn config_markdown() -> String {
    let mut text = format!(
        "# The configuration file\n\n{MADE}\n\n\
         One TOML file says what the daemon serves. `sidecore serve --config FILE --check` checks \
         it, `sidecore reload` puts a changed one into force. A mistake is refused whole, before \
         anything changes, with its line and what would be right. The fields of `[[disk]]` are also \
         the body of `POST /v1/disks` and the options of `sidecore disk add`; so are those of \
         `[[switch]]`, `[[nic]]` and `[[group]]`.\n\n\
         Sizes are bytes, or a whole number with K, M, G or T (powers of 1024, also as KB or KiB): \
         `\"10G\"`. A disk, \
         a switch, a NIC or a group is declared here or made through the API, and each keeps to its \
         source: what the file declares is changed by editing the file. What the file declares is on a \
         switch and in a group of the file; what the API made may be on either.\n\n{PATHS} Two sockets \
         are one if they lead to one folder and end in one name, however they are spelled: by `..`, `//` or a \
         link. No two devices have one socket.\n\n{}\n",
        reload::MEANING
    );
    section::<DaemonSpec>(&mut text, "[daemon]");
    section::<SidecoresSpec>(&mut text, "[sidecores]");
    section::<Es2Spec>(&mut text, "[sidecores.es2]");
    section::<ElvisSpec>(&mut text, "[sidecores.elvis]");
    section::<DiskSpec>(&mut text, "[[disk]]");
    section::<StageSpec>(&mut text, "[[disk.stage]]");
    section::<GroupSpec>(&mut text, "[[group]]");
    section::<SwitchSpec>(&mut text, "[[switch]]");
    section::<UplinkSpec>(&mut text, "[[switch.uplink]]");
    section::<NicSpec>(&mut text, "[[nic]]");
    section::<LinkSpec>(&mut text, "[[link]]");
    section::<LinkClientSpec>(&mut text, "[[link.client]]");
    text.push_str(
        "\n## A whole file\n\n```toml\n[sidecores]\ncpus = \"2-3\"\n\n[[disk]]\nid = \
         \"vm1-root\"\npath = \"/srv/vm1.img\"\nqueues = 4\n\n[[disk]]\nid = \
         \"vm1-scratch\"\nbackend = \"memory\"\nsize = \"1G\"\n\n[[switch]]\nid = \
         \"lan\"\n\n[[switch.uplink]]\ntap = \"lan0\"\n\n[[nic]]\nid = \"vm1-net\"\nswitch = \
         \"lan\"\nmac = \"52:54:00:12:34:56\"\nqueues = 4\n```\n",
    );
    text
}

/// The text of `docs/api.md`.
pub fn api_markdown() -> String {
    let mut text = format!(
        "# The API\n\n{MADE}\n\n\
         HTTP over the Unix socket that `[daemon] api` names. Whoever may write to the socket may do \
         everything: it is its owner's alone (mode 0600) unless `api_owner`, `api_group` and `api_mode` say \
         otherwise. At that of `api_read` every GET is answered but `/v1/reload` and those of `trace`, and the rest is refused \
         with 403. One request a connection, whole within 5 s; bodies \
         and answers are JSON, bodies of at most 64 KiB. `/openapi.json` describes all of this for \
         programs. The log has a line for each request that changes something: what, and which user's \
         process asked.\n\n```sh\ncurl --unix-socket /run/sidecore/api.sock \
         http://sidecore/v1/disks\ncurl --unix-socket /run/sidecore/api.sock \
         http://sidecore/v1/disks \\\n    -d '{{\"id\": \"vm1-root\", \"path\": \
         \"/srv/vm1.img\"}}'\n```\n\n\
         {PATHS}\n\n\
         A refusal has status 4xx or 5xx and says what was wrong and what to do: `{{\"error\": ..., \
         \"hint\": ...}}`. Nothing was changed then, but where `hint` says that it is kept: what a disk that \
         does not answer has to end first comes about when it does (503).\n\n\
         ## Requests\n\n| request | body | answer | refused with |\n|---|---|---|---|\n"
    );
    let mut generator = openapi::generator();
    for route in &ROUTES {
        let mut name = |schema: crate::routes::SchemaOf| {
            let schema = schema(&mut generator);
            let target = schema.as_value()["$ref"].as_str().unwrap_or_default().to_string();
            let name = target.rsplit('/').next().unwrap_or_default().to_string();
            format!("[{name}](#{})", name.to_lowercase())
        };
        let body = route.body.map(&mut name).unwrap_or_default();
        let answer = name(route.answer);
        let refusals: Vec<String> = openapi::USUAL_REFUSALS
            .iter()
            .chain(route.refusals)
            .map(|status| status.to_string())
            .collect();
        let method = route.method.word().to_uppercase();
        let query = route.query.iter().map(|one| {
            let value = if one.takes == Takes::Truth { "true" } else { ".." };
            format!(" `?{}={value}`: {}", one.name, one.summary)
        });
        let query: String = query.collect();
        let _ = writeln!(
            text,
            "| `{method} {}`: {}{query} | {body} | {} {answer} | {} |",
            route.path,
            route.summary,
            route.success,
            refusals.join(", ")
        );
    }
    text.push_str("\n| status | means |\n|---|---|\n");
    for status in [200, 201, 400, 403, 404, openapi::WRONG_METHOD, 408, 409, 413, 422, 500, 503] {
        let _ = writeln!(text, "| {status} | {} |", openapi::meaning(status));
    }
    let _ = generator.subschema_for::<crate::api::ApiError>();
    let link = |name: &str| format!("[{name}](#{})", name.to_lowercase());
    let types = Types { definitions: generator.take_definitions(true), link };
    for (name, schema) in &types.definitions {
        if schema["properties"].is_object() {
            let _ = write!(text, "\n## {name}\n\n");
            fields(&mut text, schema, &types, None);
        }
    }
    text
}

fn section<T: JsonSchema>(text: &mut String, header: &str) {
    let schema = schema_for!(T).to_value();
    let _ = write!(text, "\n## `{header}`\n\n");
    let definitions = schema["$defs"].as_object().cloned().unwrap_or_default();
    // Only a switch and the policies have tables of their own.
    let link = |name: &str| match name {
        "Es2Spec" => "[table](#sidecoreses2)".to_string(),
        "ElvisSpec" => "[table](#sidecoreselvis)".to_string(),
        "LinkClientSpec" => "[tables](#linkclient)".to_string(),
        "StageSpec" => "[tables](#diskstage)".to_string(),
        _ => "[tables](#switchuplink)".to_string(),
    };
    fields(text, &schema, &Types { definitions, link }, Some(header));
}

/// The types that fields refer to.
struct Types {
    definitions: Map<String, Value>,
    /// How a table of its own is shown, by the name of its type.
    link: fn(&str) -> String,
}

/// The table of a type's fields. Those of the file, below a header, have a column more.
fn fields(text: &mut String, schema: &Value, types: &Types, header: Option<&str>) {
    if let Some(described) = schema["description"].as_str() {
        let _ = write!(text, "{}\n\n", one_line(described));
    }
    text.push_str(match header {
        Some(_) => "| field | type | default | reload | what |\n|---|---|---|---|---|\n",
        None => "| field | type | default | what |\n|---|---|---|---|\n",
    });
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let default = match &field["default"] {
            _ if required.contains(&Value::from(name.as_str())) => "required".to_string(),
            Value::Null => String::new(),
            value => format!("`{value}`"),
        };
        let what = field["description"].as_str().map(one_line).unwrap_or_default();
        let (kind, words) = kind_of(field, types);
        let reload = header.map(|header| format!(" {} |", reload::at_reload(header, name).word()));
        let reload = reload.unwrap_or_default();
        let _ = writeln!(text, "| `{name}` | {kind} | {default} |{reload} {what}{words} |");
    }
}

/// The type of a field in words, and the meaning of its values if it is an enum.
fn kind_of(field: &Value, types: &Types) -> (String, String) {
    let choices = field["anyOf"].as_array();
    let some = choices.and_then(|all| all.iter().find(|one| one["type"] != "null"));
    let field = some.unwrap_or(field);
    if let Some(name) = field["$ref"].as_str().and_then(|target| target.rsplit('/').next()) {
        return match types.definitions.get(name) {
            Some(target) if words_of(target).is_some() => words_kind(target),
            Some(target) if target["properties"].is_object() => ((types.link)(name), String::new()),
            Some(target) => (kind_of(target, types).0, String::new()),
            None => (name.to_string(), String::new()),
        };
    }
    match field["format"].as_str() {
        Some("size") => return ("size".to_string(), String::new()),
        Some("target") => return ("number, or `\"auto\"`".to_string(), String::new()),
        Some("mac") => return ("Ethernet address".to_string(), String::new()),
        _ => {}
    }
    let plain = match &field["type"] {
        Value::String(one) => one.clone(),
        Value::Array(several) => several
            .iter()
            .filter_map(Value::as_str)
            .filter(|one| *one != "null")
            .collect::<Vec<_>>()
            .join(" or "),
        _ => String::new(),
    };
    let kind = match plain.as_str() {
        "integer" => match (field["minimum"].as_u64(), field["maximum"].as_u64()) {
            (Some(least @ 1..), Some(most)) => format!("{least} to {most}"),
            // The most that the type holds is no bound.
            (Some(0), Some(most)) if ![0xff, 0xffff, 0xffff_ffff].contains(&most) => {
                format!("0 to {most}")
            }
            _ => "number".to_string(),
        },
        "string" => "text".to_string(),
        "boolean" => "true, false".to_string(),
        "array" if field["items"]["type"] == "integer" => {
            format!("list of numbers, {}", kind_of(&field["items"], types).0)
        }
        "array" => format!("list of {}", kind_of(&field["items"], types).0),
        _ => plain,
    };
    (kind, String::new())
}

fn words_kind(target: &Value) -> (String, String) {
    let mut words = String::new();
    let mut kinds = Vec::new();
    for choice in target["oneOf"].as_array().into_iter().flatten() {
        let word = choice["const"].as_str().unwrap_or_default();
        let what = choice["description"].as_str().map(one_line).unwrap_or_default();
        kinds.push(format!("`\"{word}\"`"));
        let _ = write!(words, "<br>`{word}`: {what}");
    }
    (kinds.join(", "), words)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
