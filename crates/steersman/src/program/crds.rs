// SPDX-License-Identifier: Apache-2.0
//! Treatment of the CRDs of a program when it starts.
//!
//! # Guarantees
//! 1. A field of the compiled schema that the served schema does not have is named, because the server prunes it from every
//!    object without an error. With [`CrdPolicy::Check`] the program does not start.
//! 2. A CRD that is not installed is no error here: its controller waits for it, or reports it.
//! 3. A CRD that the program is not allowed to read is a warning.

use clap::ValueEnum;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Patch;
use serde_json::{Map, Value};
use steersman_cache::Resource;
use steersman_cluster::{Client, Cluster};
use steersman_core::{ObjectKey, error_chain};

use crate::Error;

/// Treatment of the CRDs of a program when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum CrdPolicy {
    /// Installs and updates the CRDs
    Install,
    /// Does not start if the server would drop a field that this program knows
    #[default]
    Check,
    /// As check, with a warning instead
    Warn,
    /// Does nothing: others manage the CRDs
    External,
}

/// The server would drop fields that the program knows.
#[derive(Debug, thiserror::Error)]
#[error(
    "the CRD {name} on the server is older than this program, and the server would drop {}: apply the output of the subcommand \
     `crds`, or set --crd-policy",
    fields.join(", ")
)]
pub(super) struct Outdated {
    pub(super) name: String,
    pub(super) fields: Vec<String>,
}

/// State of a CRD on the server.
pub(super) enum Served {
    Absent,
    Current,
    Outdated(Outdated),
}

/// Applies the policy.
pub(super) async fn enforce(
    policy: CrdPolicy,
    crds: &[Value],
    cluster: &Cluster,
    manager: &str,
) -> Result<(), Error> {
    if policy == CrdPolicy::External {
        return Ok(());
    }
    let client = cluster.live().field_manager(manager);
    for crd in crds {
        if policy == CrdPolicy::Install {
            install(&client, crd).await?;
            continue;
        }
        match served(&client, crd).await {
            Ok(Served::Current) => {}
            Ok(Served::Absent) => tracing::info!(crd = name(crd), "CRD is not installed"),
            Ok(Served::Outdated(outdated)) if policy == CrdPolicy::Check => return Err(outdated.into()),
            Ok(Served::Outdated(outdated)) => tracing::warn!(%outdated, "CRD is outdated"),
            Err(error) if error.is_forbidden() => {
                let error = error_chain(&error);
                tracing::warn!(crd = name(crd), error, "cannot check CRD; continuing");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn install(client: &Client, crd: &Value) -> Result<(), steersman_cluster::Error> {
    let key = ObjectKey::new("", name(crd));
    client
        .force()
        .of(&definitions())
        .patch(&key, &Patch::Apply(crd))
        .await?;
    tracing::info!(crd = name(crd), "installed CRD");
    Ok(())
}

/// Compares a CRD with that of the server.
pub(super) async fn served(client: &Client, crd: &Value) -> Result<Served, steersman_cluster::Error> {
    let key = ObjectKey::new("", name(crd));
    let Some(found) = client.of(&definitions()).get(&key).await? else {
        return Ok(Served::Absent);
    };
    let fields = pruned(crd, &found.data);
    Ok(match fields.is_empty() {
        true => Served::Current,
        false => Served::Outdated(Outdated {
            name: name(crd).to_owned(),
            fields,
        }),
    })
}

pub(super) fn to_json(crd: &CustomResourceDefinition) -> Value {
    serde_json::to_value(crd).expect("a CRD is JSON")
}

pub(super) fn name(crd: &Value) -> &str {
    crd["metadata"]["name"].as_str().unwrap_or_default()
}

pub(super) fn definitions() -> Resource {
    let resource = Resource::new(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    );
    resource.namespaced(false)
}

/// Returns the fields of a compiled CRD that a served one would prune, as paths after their version.
fn pruned(compiled: &Value, served: &Value) -> Vec<String> {
    let versions = |crd: &Value| crd["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let mut fields = Vec::new();
    let served = versions(served);
    for version in versions(compiled) {
        let label = version["name"].as_str().unwrap_or_default();
        let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
        match served.iter().find(|served| served["name"] == version["name"]) {
            Some(served) => collect(&schema(&version), &schema(served), label, &mut fields),
            None => fields.push(label.to_owned()),
        }
    }
    fields
}

fn collect(compiled: &Value, served: &Value, path: &str, fields: &mut Vec<String>) {
    if served["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    let none = Map::new();
    let properties = |schema: &Value| schema["properties"].as_object().cloned();
    for (name, compiled) in &properties(compiled).unwrap_or_default() {
        let path = format!("{path}.{name}");
        // A served map of any keys keeps all of them.
        let values = served
            .get("additionalProperties")
            .filter(|values| **values != false);
        match properties(served).as_ref().unwrap_or(&none).get(name).or(values) {
            Some(served) => collect(compiled, served, &path, fields),
            None => fields.push(path),
        }
    }
    for (inner, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if let (Some(compiled), Some(served)) = (compiled.get(inner), served.get(inner)) {
            collect(compiled, served, &format!("{path}{suffix}"), fields);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd(schema: &Value) -> Value {
        json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}})
    }

    #[test]
    fn guarantee_1_fields_that_the_server_would_prune_are_named() {
        let text = json!({"type": "string"});
        let of = |properties: Value| json!({"type": "object", "properties": properties});
        let compiled = of(json!({"spec": of(json!({
            "old": text, "new": text, "items": {"items": of(json!({"size": text}))},
            "free": of(json!({"any": text})),
        }))}));
        let served = of(json!({"spec": of(json!({
            "old": text, "items": {"items": of(json!({}))}, "other": text,
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }))}));
        assert_eq!(
            pruned(&crd(&compiled), &crd(&served)),
            ["v1.spec.items[].size", "v1.spec.new"]
        );
        assert_eq!(pruned(&crd(&compiled), &crd(&compiled)), Vec::<String>::new());
        let none = json!({"spec": {"versions": []}});
        assert_eq!(pruned(&crd(&compiled), &none), ["v1"]);
    }
}
