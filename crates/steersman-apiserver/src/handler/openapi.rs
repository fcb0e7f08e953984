// SPDX-License-Identifier: Apache-2.0
//! OpenAPI v3: one document for each group and version, which kubectl uses to explain, validate and patch.
//!
//! # Guarantees
//! 1. The hash in a document's URL changes with its content, so that clients can cache the document for ever.
//! 2. Every served kind has a schema; custom kinds have the schema of their CRD.
//! 3. A document is built when it is requested, not before.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    sync::{Arc, LazyLock},
    time::Duration,
};

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::{Call, Reply};
use crate::{
    resource::{Resource, Version, api_version, at},
    schema::definitions,
    state::Context,
    status::{Failure, Result},
};

/// Written by `data/generate.py`.
static DESCRIPTIONS: &[u8] = include_bytes!("../../data/descriptions.json.gz");

/// Descriptions of definitions and of their fields.
static TEXTS: LazyLock<BTreeMap<String, BTreeMap<String, String>>> = LazyLock::new(|| {
    let mut text = Vec::new();
    let read = flate2::read::GzDecoder::new(DESCRIPTIONS).read_to_end(&mut text);
    read.expect("the generated descriptions are compressed");
    serde_json::from_slice(&text).expect("the generated descriptions are JSON")
});

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// Cache lifetime of a document: one year.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// Handles `/openapi/v2` with an empty document. Current clients request version 2 only if version 3 does not have a
/// kind.
pub(crate) fn version_2(call: &Call) -> Reply {
    let protobuf = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    if call.header("accept").contains("protobuf") {
        let mut reply = Reply::text("");
        reply.headers.push(("content-type", protobuf.to_owned()));
        return reply;
    }
    let info = json!({"title": "Kubernetes", "version": "v1.37.1"});
    Reply::json(
        StatusCode::OK,
        &json!({"swagger": "2.0", "info": info, "paths": {}}),
    )
}

/// Handles `/openapi/v3`.
pub(crate) fn index(cx: &Context<'_>) -> Reply {
    let served: BTreeSet<(&str, &str)> = kinds(cx)
        .map(|(resource, version)| (resource.group.as_str(), version.name.as_str()))
        .collect();
    let paths: Map<String, Value> = served
        .into_iter()
        .map(|(group, version)| {
            let path = path(group, version);
            let url = format!("/openapi/v3/{path}?hash={}", hash(cx, group, version));
            (path, json!({"serverRelativeURL": url}))
        })
        .collect();
    Reply::json(StatusCode::OK, &json!({"paths": paths}))
}

/// Handles `/openapi/v3/api/v1` and `/openapi/v3/apis/{group}/{version}`.
pub(crate) fn document(cx: &Context<'_>, call: &Call, path: &str) -> Result<Reply> {
    let parts: Vec<&str> = path.split('/').collect();
    let (group, version) = match parts[..] {
        ["api", version] => ("", version),
        ["apis", group, version] => (group, version),
        _ => return Err(Failure::unknown_path()),
    };
    let of_group = |resource: &Resource, known: &Version| resource.group == group && known.name == version;
    let served: Vec<_> = kinds(cx)
        .filter(|(resource, version)| of_group(resource, version))
        .collect();
    if served.is_empty() {
        return Err(Failure::unknown_path());
    }
    let hash = hash(cx, group, version);
    if let Some(asked) = call.query.filled("hash")
        && asked != hash
    {
        let mut reply = Reply::text("");
        reply.code = StatusCode::MOVED_PERMANENTLY;
        reply
            .headers
            .push(("location", format!("/openapi/v3/{path}?hash={hash}")));
        return Ok(reply);
    }
    let mut document = Document::default();
    for (resource, version) in served {
        document.add(cx, resource, version);
    }
    let mut reply = Reply::json(StatusCode::OK, &document.finish());
    let expires = cx.now + LIFETIME;
    reply.headers.extend([
        ("etag", format!("\"{hash}\"")),
        ("cache-control", "public, immutable".to_owned()),
        ("expires", crate::clock::http_date(expires)),
        ("vary", "Accept".to_owned()),
    ]);
    Ok(reply)
}

fn kinds<'a>(cx: &'a Context<'_>) -> impl Iterator<Item = (&'a Arc<Resource>, &'a Version)> + use<'a> {
    cx.state.registry.all().iter().flat_map(|resource| {
        let versions = resource.versions.iter().filter(|version| version.served);
        versions.map(move |version| (resource, version))
    })
}

fn path(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

/// Returns the hash of a document's content. Built-in kinds never change; custom kinds have an edition number.
fn hash(cx: &Context<'_>, group: &str, version: &str) -> String {
    let mut text = api_version(group, version);
    for (resource, known) in kinds(cx) {
        if resource.group == group && known.name == version {
            text += &format!(" {} {}", resource.plural, resource.edition());
        }
    }
    let digest = ring::digest::digest(&ring::digest::SHA512, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect()
}

#[derive(Default)]
struct Document {
    paths: Map<String, Value>,
    schemas: BTreeMap<String, Value>,
}

impl Document {
    fn add(&mut self, cx: &Context<'_>, resource: &Resource, version: &Version) {
        let kind = json!({"group": resource.group, "kind": resource.kind, "version": version.name});
        let name = match (&resource.custom, &version.schema.reference) {
            (Some(custom), _) => {
                let name = custom_name(resource, version);
                let schema = custom_schema(cx, &custom.definition, version).unwrap_or_default();
                self.include(OBJECT_META);
                self.schemas.insert(name.clone(), schema);
                name
            }
            (None, Some(name)) => {
                self.include(name);
                name.clone()
            }
            (None, None) => return,
        };
        if let Some(Value::Object(schema)) = self.schemas.get_mut(&name) {
            let kinds = schema
                .entry("x-kubernetes-group-version-kind")
                .or_insert_with(|| json!([]));
            if let Value::Array(kinds) = kinds {
                kinds.push(kind.clone());
            }
        }
        self.include(DELETE_OPTIONS);
        self.describe(resource, version, &name, &kind);
    }

    /// Adds a definition and every definition that it refers to.
    fn include(&mut self, name: &str) {
        if self.schemas.contains_key(name) {
            return;
        }
        let Some(schema) = definitions::text(name).and_then(|text| serde_json::from_str(text).ok()) else {
            return;
        };
        let mut references = Vec::new();
        let schema = publish(schema, TEXTS.get(name), &mut references);
        self.schemas.insert(name.to_owned(), schema);
        for reference in references {
            self.include(&reference);
        }
    }

    /// Adds the operations of a kind.
    fn describe(&mut self, resource: &Resource, version: &Version, schema: &str, kind: &Value) {
        let base = format!("/{}", path(&resource.group, &version.name));
        let all = if resource.namespaced {
            format!("{base}/namespaces/{{namespace}}/{}", resource.plural)
        } else {
            format!("{base}/{}", resource.plural)
        };
        let one = format!("{all}/{{name}}");
        let body = json!({"$ref": format!("#/components/schemas/{schema}")});
        for verb in &resource.verbs {
            let (path, method, action) = match verb.as_str() {
                "create" => (&all, "post", "post"),
                "list" => (&all, "get", "list"),
                "deletecollection" => (&all, "delete", "deletecollection"),
                "get" => (&one, "get", "get"),
                "update" => (&one, "put", "put"),
                "patch" => (&one, "patch", "patch"),
                "delete" => (&one, "delete", "delete"),
                _ => continue,
            };
            let operation = operation(action, &body, kind, resource.custom.is_some());
            let entry = self.paths.entry(path.clone()).or_insert_with(|| json!({}));
            entry[method] = operation;
        }
    }

    fn finish(self) -> Value {
        json!({
            "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.37.1"},
            "paths": self.paths, "components": {"schemas": self.schemas},
        })
    }
}

fn operation(action: &str, body: &Value, kind: &Value, custom: bool) -> Value {
    let parameters: &[&str] = match action {
        "post" | "put" => &["dryRun", "fieldManager", "fieldValidation"],
        "patch" => &["dryRun", "fieldManager", "fieldValidation", "force"],
        "delete" => &["dryRun", "gracePeriodSeconds", "propagationPolicy"],
        "list" => &[
            "continue",
            "fieldSelector",
            "labelSelector",
            "limit",
            "resourceVersion",
            "watch",
        ],
        _ => &[],
    };
    let parameter = |name: &&str| {
        let kind = match *name {
            "force" | "watch" => "boolean",
            "limit" | "gracePeriodSeconds" => "integer",
            _ => "string",
        };
        json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
    };
    let parameters: Vec<Value> = parameters.iter().map(parameter).collect();
    let answer = json!({"description": "OK", "content": {"application/json": {"schema": body}}});
    let mut operation = json!({
        "parameters": parameters, "responses": {"200": answer},
        "x-kubernetes-action": action, "x-kubernetes-group-version-kind": kind,
    });
    let content = |types: &[&str], schema: &Value| -> Value {
        types
            .iter()
            .map(|media| ((*media).to_owned(), json!({"schema": schema})))
            .collect::<Map<_, _>>()
            .into()
    };
    let patch = json!({"type": "object"});
    let content = match action {
        "post" | "put" => content(&["application/json", "application/yaml"], body),
        "patch" if custom => content(&PATCHES[..3], &patch),
        "patch" => content(&PATCHES, &patch),
        _ => return operation,
    };
    operation["requestBody"] = json!({"content": content, "required": true});
    operation
}

const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// Returns a definition in its published form: adds descriptions and removes extensions that only this server reads.
fn publish(schema: Value, texts: Option<&BTreeMap<String, String>>, references: &mut Vec<String>) -> Value {
    let Value::Object(mut schema) = schema else {
        return schema;
    };
    let text = |field: &str| texts.and_then(|texts| texts.get(field)).cloned();
    if let Some(text) = text("") {
        schema.insert("description".to_owned(), json!(text));
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (name, property) in properties {
            let mut own = publish(property.take(), None, references);
            if let Some(text) = text(name) {
                own["description"] = json!(text);
            }
            *property = refer(own);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(key).filter(|inner| inner.is_object()) {
            *inner = refer(publish(inner.take(), None, references));
        }
    }
    schema.remove("x-go");
    if let Some(Value::String(name)) = schema.get_mut("$ref") {
        references.push(name.clone());
        *name = format!("#/components/schemas/{name}");
    }
    Value::Object(schema)
}

/// Moves a `$ref` with siblings into `allOf`, since OpenAPI allows no siblings of a `$ref`.
fn refer(mut schema: Value) -> Value {
    let Some(fields) = schema.as_object_mut().filter(|fields| fields.len() > 1) else {
        return schema;
    };
    if let Some(reference) = fields.remove("$ref") {
        fields.insert("allOf".to_owned(), json!([{"$ref": reference}]));
    }
    schema
}

/// Names a custom kind as the real server does: the reversed group, then version and kind.
fn custom_name(resource: &Resource, version: &Version) -> String {
    let group: Vec<&str> = resource.group.rsplit('.').collect();
    format!("{}.{}.{}", group.join("."), version.name, resource.kind)
}

fn custom_schema(cx: &Context<'_>, definition: &str, version: &Version) -> Option<Value> {
    let definition = cx
        .find("apiextensions.k8s.io", "customresourcedefinitions", definition)?
        .object();
    let versions = at(&definition, &["spec", "versions"])?.as_array()?;
    let own = versions.iter().find(|own| own["name"] == version.name)?;
    let mut schema = own.pointer("/schema/openAPIV3Schema").cloned()?;
    if schema.get("x-kubernetes-preserve-unknown-fields").is_some() && schema.get("properties").is_none() {
        return Some(schema);
    }
    let texts = TEXTS.get("io.k8s.api.core.v1.Pod");
    let text = |field: &str| {
        texts
            .and_then(|texts| texts.get(field))
            .cloned()
            .unwrap_or_default()
    };
    let properties = schema
        .as_object_mut()?
        .entry("properties")
        .or_insert_with(|| json!({}));
    for field in ["apiVersion", "kind"] {
        properties[field] = json!({"type": "string", "description": text(field)});
    }
    let metadata = json!({"$ref": format!("#/components/schemas/{OBJECT_META}")});
    properties["metadata"] = json!({"description": text("metadata"), "allOf": [metadata]});
    Some(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarantee_2_published_schemas_refer_only_to_published_schemas() {
        let mut document = Document::default();
        document.include("io.k8s.api.apps.v1.Deployment");
        let text = json!(document.schemas).to_string();
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(document.schemas.contains_key(name), "{name}");
        }
        let replicas = &document.schemas["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]["replicas"];
        assert!(
            replicas["description"]
                .as_str()
                .unwrap()
                .starts_with("Number of desired pods")
        );
        assert_eq!(replicas["format"], "int32");
    }
}
