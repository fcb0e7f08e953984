// SPDX-License-Identifier: Apache-2.0
//! Discovery: legacy and aggregated documents, the version, the list of paths.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::{Call, Reply, negotiate::accepted};
use crate::{
    apiservice,
    resource::{Resource, Version, api_version},
    state::Context,
    status::{Failure, Result},
};

/// Cached aggregated discovery documents, valid until the set of served kinds changes.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    core: Option<Entry>,
    groups: Option<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    /// The registry state that the cache was built from.
    of: (u64, usize),
    body: Bytes,
    etag: String,
}

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Returns the version of the real server that this server imitates.
pub(crate) fn version() -> Value {
    json!({
        "major": "1", "minor": "37", "emulationMajor": "1", "emulationMinor": "37", "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "36", "gitVersion": "v1.37.1+steersman", "gitCommit": "", "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": platform(),
    })
}

/// Returns operating system and architecture under Go's names.
fn platform() -> String {
    let system = match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    };
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    };
    format!("{system}/{architecture}")
}

/// Handles `/api`.
pub(crate) fn core(cx: &mut Context<'_>, call: &Call) -> Result<Reply> {
    if wants_aggregated(call) {
        return Ok(aggregated(cx, call, true));
    }
    let address = json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:443"}]);
    let body = json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": address});
    Ok(Reply::json(StatusCode::OK, &body))
}

/// Handles `/apis`.
pub(crate) fn groups(cx: &mut Context<'_>, call: &Call) -> Result<Reply> {
    if wants_aggregated(call) {
        return Ok(aggregated(cx, call, false));
    }
    let groups: Vec<Value> = group_versions(cx)
        .into_iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, versions)| group_json(&name, &versions))
        .collect();
    Ok(Reply::json(
        StatusCode::OK,
        &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
    ))
}

/// Handles `/apis/{group}`.
pub(crate) fn group(cx: &mut Context<'_>, group: &str) -> Result<Reply> {
    let all = group_versions(cx);
    let (name, versions) = all
        .iter()
        .find(|(name, _)| name == group && !name.is_empty())
        .ok_or_else(Failure::unknown_path)?;
    let mut body = group_json(name, versions);
    body["kind"] = json!("APIGroup");
    body["apiVersion"] = json!("v1");
    Ok(Reply::json(StatusCode::OK, &body))
}

/// Handles `/api/v1` and `/apis/{group}/{version}`.
pub(crate) fn group_version(cx: &mut Context<'_>, group: &str, version: &str) -> Result<Reply> {
    if let Some(failure) = apiservice::unavailable(cx, group, version) {
        return Err(failure);
    }
    let mut resources = Vec::new();
    for resource in cx
        .state
        .registry
        .all()
        .iter()
        .filter(|resource| resource.group == group)
    {
        if let Some(version) = resource.version(version).filter(|version| version.served) {
            legacy(resource, version, &mut resources);
        }
    }
    if resources.is_empty() {
        let known = cx.state.registry.has_builtin_group(group);
        return Err(if known {
            Failure::unknown_resource()
        } else {
            Failure::unknown_path()
        });
    }
    let mut body = json!({"kind": "APIResourceList", "groupVersion": api_version(group, version), "resources": resources});
    if !group.is_empty() {
        body["apiVersion"] = json!("v1");
    }
    Ok(Reply::json(StatusCode::OK, &body))
}

/// Handles `/`.
pub(crate) fn paths(cx: &Context<'_>) -> Value {
    let mut paths: Vec<String> = [
        "/api", "/api/v1", "/apis", "/apis/", "/healthz", "/livez", "/readyz", "/version",
    ]
    .map(str::to_owned)
    .to_vec();
    for (group, versions) in group_versions(cx) {
        if !group.is_empty() {
            paths.push(format!("/apis/{group}"));
            paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
        }
    }
    paths.sort();
    json!({"paths": paths})
}

/// Returns all groups in order of preference with their served versions, the preferred version first.
fn group_versions(cx: &Context<'_>) -> Vec<(String, Vec<String>)> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    let mut note = |group: &str, version: &str| match groups.iter_mut().find(|(known, _)| known == group) {
        Some((_, versions)) => {
            if !versions.iter().any(|known| known == version) {
                versions.push(version.to_owned());
            }
        }
        None => groups.push((group.to_owned(), vec![version.to_owned()])),
    };
    for resource in cx.state.registry.all() {
        for version in resource.versions.iter().filter(|version| version.served) {
            note(&resource.group, &version.name);
        }
    }
    for (group, version) in apiservice::remote(cx) {
        note(&group, &version);
    }
    for (_, versions) in &mut groups {
        versions.sort_by(|a, b| priority(b).cmp(&priority(a)).then_with(|| a.cmp(b)));
    }
    groups
}

/// Ranks a version: `v2`, `v1`, `v1beta2`, `v1beta1`, `v1alpha1`, then all other names.
fn priority(version: &str) -> (u8, u64, u64) {
    let number = |text: &str| text.parse::<u64>().ok();
    let Some(rest) = version.strip_prefix('v') else {
        return (0, 0, 0);
    };
    for (stage, rank) in [("alpha", 1), ("beta", 2)] {
        if let Some((major, minor)) = rest.split_once(stage) {
            return number(major)
                .zip(number(minor))
                .map_or((0, 0, 0), |(major, minor)| (rank, major, minor));
        }
    }
    number(rest).map_or((0, 0, 0), |major| (3, major, 0))
}

fn group_json(group: &str, versions: &[String]) -> Value {
    let version = |version: &String| json!({"groupVersion": api_version(group, version), "version": version});
    json!({"name": group, "versions": versions.iter().map(version).collect::<Vec<_>>(), "preferredVersion": versions.first().map(version)})
}

fn legacy(resource: &Resource, version: &Version, out: &mut Vec<Value>) {
    let mut row = json!({
        "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
        "kind": resource.kind, "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        row["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        row["categories"] = json!(resource.categories);
    }
    if resource.verbs.iter().any(|verb| verb == "list") && resource.plural != "componentstatuses" {
        row["storageVersionHash"] = json!(storage_hash(resource));
    }
    out.push(row);
    for sub in &version.subresources {
        let mut row = json!({
            "name": format!("{}/{}", resource.plural, sub.name), "singularName": "", "namespaced": resource.namespaced,
            "kind": sub.kind, "verbs": sub.verbs,
        });
        for (key, value) in [("group", &sub.group), ("version", &sub.version)] {
            if !value.is_empty() {
                row[key] = json!(value);
            }
        }
        out.push(row);
    }
}

/// Returns the storage version hash, by which clients see if two versions share one storage.
fn storage_hash(resource: &Resource) -> String {
    use base64::Engine as _;
    let version = resource.storage_version().name.as_str();
    let (group, version) = match (resource.group.as_str(), resource.kind.as_str()) {
        // The real server stores these kinds in an older version, or in that of another group.
        ("apiextensions.k8s.io", _) => ("apiextensions.k8s.io", "v1beta1"),
        ("events.k8s.io", _) => ("", "v1"),
        ("autoscaling", _) => ("autoscaling", "v2"),
        (group, _) => (group, version),
    };
    let digest = ring::digest::digest(
        &ring::digest::SHA256,
        format!("{group}/{version}/{}", resource.kind).as_bytes(),
    );
    base64::engine::general_purpose::STANDARD.encode(&digest.as_ref()[..8])
}

fn wants_aggregated(call: &Call) -> bool {
    let wanted = |accept: &super::negotiate::Accepted<'_>| {
        accept.is_json()
            && accept.parameter("g") == Some("apidiscovery.k8s.io")
            && accept.parameter("v") == Some("v2")
            && accept.parameter("as") == Some("APIGroupDiscoveryList")
    };
    let mut types = accepted(call.header("accept"));
    types
        .find(|accept| wanted(accept) || accept.is_json() && accept.parameter("as").is_none())
        .is_some_and(|accept| wanted(&accept))
}

fn aggregated(cx: &mut Context<'_>, call: &Call, core: bool) -> Reply {
    let of = (cx.state.registry.generation(), apiservice::remote(cx).count());
    let cached = if core {
        &cx.state.discovery.core
    } else {
        &cx.state.discovery.groups
    };
    let entry = match cached {
        Some(entry) if entry.of == of => entry.clone(),
        _ => build(cx, of, core),
    };
    let mut reply = if call.header("if-none-match").contains(&entry.etag) {
        Reply::bytes(StatusCode::NOT_MODIFIED, Bytes::new())
    } else {
        Reply::bytes(StatusCode::OK, entry.body.clone())
    };
    reply.headers.push(("content-type", AGGREGATED.to_owned()));
    reply.headers.push(("etag", entry.etag.clone()));
    reply.headers.push(("vary", "Accept".to_owned()));
    let cache = &mut cx.state.discovery;
    if core {
        cache.core = Some(entry)
    } else {
        cache.groups = Some(entry)
    }
    reply
}

fn build(cx: &Context<'_>, of: (u64, usize), core: bool) -> Entry {
    let remote: Vec<(String, String)> = apiservice::remote(cx).collect();
    let groups = group_versions(cx)
        .into_iter()
        .filter(|(name, _)| name.is_empty() == core);
    let items: Vec<Value> = groups
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    if remote.contains(&(group.clone(), version.clone())) {
                        return json!({"version": version, "freshness": "Stale"});
                    }
                    let resources = cx.state.registry.all().iter().filter(|resource| resource.group == group);
                    let served = resources.filter_map(|resource| Some(modern(resource, resource.version(version).filter(|version| version.served)?)));
                    json!({"version": version, "resources": served.collect::<Vec<_>>(), "freshness": "Current"})
                })
                .collect();
            let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let body = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}).to_string();
    let digest = ring::digest::digest(&ring::digest::SHA512, body.as_bytes());
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    Entry {
        of,
        body: Bytes::from(body),
        etag: format!("\"{hex}\""),
    }
}

fn modern(resource: &Resource, version: &Version) -> Value {
    let kind =
        |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    // Built-in kinds omit group and version if they equal those of the list.
    let own = if resource.custom.is_some() {
        kind(&resource.group, &version.name, &resource.kind)
    } else {
        kind("", "", &resource.kind)
    };
    let mut row = json!({
        "resource": resource.plural, "responseKind": own, "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular, "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        row["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        row["categories"] = json!(resource.categories);
    }
    let subresources = version.subresources.iter().map(|sub| {
        let of = if sub.group.is_empty() && resource.custom.is_some() {
            kind(&resource.group, &version.name, &sub.kind)
        } else {
            kind(&sub.group, &sub.version, &sub.kind)
        };
        json!({"subresource": sub.name, "responseKind": of, "verbs": sub.verbs})
    });
    let subresources: Vec<Value> = subresources.collect();
    if !subresources.is_empty() {
        row["subresources"] = json!(subresources);
    }
    row
}
