//! The API's description as OpenAPI 3.1, made of the routes and the types' own schemas.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::api::ApiError;
use crate::routes::{Method, ROUTES, Route, Takes};

/// Statuses that every request can get.
pub const USUAL_REFUSALS: [u16; 4] = [400, 408, 413, 503];

/// Status of a request by a method that its path does not have, which is none of [`ROUTES`].
pub const WRONG_METHOD: u16 = 405;

/// The whole document. `version` is the program's.
pub fn document(version: &str) -> Value {
    let mut generator = generator();
    let error = generator.subschema_for::<ApiError>();
    let mut paths: Map<String, Value> = Map::new();
    for route in &ROUTES {
        let operation = operation(route, &mut generator, error.as_value());
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.word()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sidecore",
            "version": version,
            "description": "Disks, NICs, switches, groups and sidecores of one host, over a Unix socket. One request a \
                            connection; bodies of at most 64 KiB.",
            "license": { "name": "Apache-2.0" },
        },
        "paths": paths,
        "components": { "schemas": generator.take_definitions(true) },
    })
}

/// The schemas of all that the API carries, by name; and the generator's settings for them.
pub(crate) fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator()
}

fn operation(route: &Route, generator: &mut SchemaGenerator, error: &Value) -> Value {
    let content = |schema: &Value| json!({ "application/json": { "schema": schema } });
    let mut responses = Map::new();
    let answer = (route.answer)(generator);
    responses.insert(
        route.success.to_string(),
        json!({ "description": meaning(route.success), "content": content(answer.as_value()) }),
    );
    for status in USUAL_REFUSALS.iter().chain(route.refusals) {
        let refusal = json!({ "description": meaning(*status), "content": content(error) });
        responses.insert(status.to_string(), refusal);
    }
    let mut operation = json!({
        "operationId": format!("{:?}", route.operation),
        "summary": route.summary,
        "responses": responses,
    });
    let names = [("id", "Its name."), ("kind", "Kind of the stage.")];
    let names = names.into_iter().filter(|(name, _)| route.path.contains(&format!("{{{name}}}")));
    let names = names.map(|(name, described)| {
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": described,
            "schema": { "type": "string" },
        })
    });
    let query = route.query.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "in": "query",
            "required": false,
            "description": parameter.summary,
            "schema": match parameter.takes {
                Takes::Truth => json!({ "type": "boolean", "default": false }),
                Takes::Cursor => json!({ "type": "string" }),
            },
        })
    });
    let parameters: Vec<Value> = names.chain(query).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = route.body {
        let body = body(generator);
        operation["requestBody"] = json!({ "required": true, "content": content(body.as_value()) });
    }
    operation
}

/// What a status means here.
pub fn meaning(status: u16) -> &'static str {
    match status {
        200 => "Done.",
        201 => "Made.",
        400 => {
            "Not a request that this API has, or a body with mistakes, such as a key that is there twice."
        }
        403 => "The socket of `api_read` only shows, and not what a trace has recorded.",
        404 => "There is no such disk, NIC, switch or group.",
        405 => {
            "The path is there, but not by this method. `PUT` is for stages of disks alone: what else is there is changed \
                by `PATCH`, and made by `POST`."
        }
        408 => {
            "The body was not whole within 5 s. A connection whose header is not is closed, without an \
                answer."
        }
        409 => "Does not go with what is there: taken, declared in the file, or used by a guest.",
        413 => "The body is too long.",
        422 => "Well formed, but not possible.",
        503 => "Not now; the same request may do later.",
        _ => "The daemon's or the host's fault.",
    }
}

impl Method {
    /// In lower case, as OpenAPI writes it.
    pub fn word(self) -> &'static str {
        match self {
            Method::Get => "get",
            Method::Post => "post",
            Method::Put => "put",
            Method::Patch => "patch",
            Method::Delete => "delete",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reference of the document must lead somewhere in it.
    fn check_references(document: &Value, at: &Value) {
        match at {
            Value::Object(fields) => {
                if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
                    let pointer = target.strip_prefix('#').unwrap();
                    assert!(document.pointer(pointer).is_some(), "{target} leads nowhere");
                }
                fields.values().for_each(|value| check_references(document, value));
            }
            Value::Array(items) => items.iter().for_each(|item| check_references(document, item)),
            _ => {}
        }
    }

    #[test]
    fn the_document_is_whole() {
        let document = document("0.0.0");
        check_references(&document, &document);
        let operations: usize = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .map(|path| path.as_object().unwrap().len())
            .sum();
        assert_eq!(operations, ROUTES.len());
        let disk = &document["components"]["schemas"]["DiskSpec"];
        assert_eq!(disk["properties"]["queues"]["maximum"], 64);
        assert_eq!(disk["additionalProperties"], false);
        assert_eq!(
            document["paths"]["/v1/disks/{id}"]["patch"]["requestBody"]["content"]["application/json"]
                ["schema"]["$ref"],
            "#/components/schemas/DiskChange"
        );
        let error = &document["components"]["schemas"]["ApiError"];
        assert_eq!(error["required"], json!(["error", "hint"]));
    }
}
