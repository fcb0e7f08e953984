// SPDX-License-Identifier: Apache-2.0
//! Discovery requests.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use steersman_cache::Resource;

use super::{
    Mapping,
    table::{Answer, Source, Version},
};
use crate::transport::{SendError, Transport};

/// Accepts aggregated discovery, or the older format.
const LIST: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
const PLAIN: &str = "application/json";

/// A discovery request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("no answer to discovery at {path}")]
    Send {
        path: String,
        #[source]
        source: SendError,
    },
    #[error("the server answered discovery at {path} with {code}")]
    Refused { path: String, code: u16 },
    #[error("cannot decode the answer to discovery at {path}")]
    Decode {
        path: String,
        #[source]
        source: serde_json::Error,
    },
}

impl Failure {
    /// Returns the error and its sources in one line.
    pub(super) fn to_text(&self) -> Arc<str> {
        steersman_core::error_chain(self).into()
    }
}

/// An answer of a server.
enum Fetched {
    Body { json: Bytes, tag: Option<String> },
    Same,
    Absent,
}

/// Sends a discovery request, with the ETag of the last answer.
pub(super) async fn ask(
    transport: &Transport,
    source: &Source,
    tag: Option<String>,
) -> Result<Answer, Failure> {
    let path = match source {
        Source::Core => "/api".to_owned(),
        Source::Groups => "/apis".to_owned(),
        Source::Group(group) => return one_group(transport, group).await,
    };
    let (json, tag) = match fetch(transport, &path, LIST, tag).await? {
        Fetched::Body { json, tag } => (json, tag),
        Fetched::Same => return Ok(Answer::Same),
        Fetched::Absent => return Err(Failure::Refused { path, code: 404 }),
    };
    match decode(&path, &json)? {
        Document::All { items } => Ok(Answer::All {
            groups: items.into_iter().map(GroupItem::versions).collect(),
            tag,
        }),
        Document::Core { versions } => {
            let versions = all_versions(transport, "", &versions).await?;
            let groups = vec![(String::new(), versions)];
            Ok(Answer::All { groups, tag: None })
        }
        Document::Groups {} => Ok(Answer::NoList),
    }
}

/// Requests one group in the older format: its versions, and the resources of each.
async fn one_group(transport: &Transport, group: &str) -> Result<Answer, Failure> {
    let path = format!("/apis/{group}");
    let versions = match fetch(transport, &path, PLAIN, None).await? {
        Fetched::Body { json, .. } => decode::<LegacyGroup>(&path, &json)?.names(),
        Fetched::Absent | Fetched::Same => Vec::new(),
    };
    let versions = all_versions(transport, group, &versions).await?;
    let groups = vec![(group.to_owned(), versions)];
    Ok(Answer::All { groups, tag: None })
}

async fn all_versions(transport: &Transport, group: &str, names: &[String]) -> Result<Vec<Version>, Failure> {
    let mut versions = Vec::new();
    for name in names {
        let path = match group {
            "" => format!("/api/{name}"),
            group => format!("/apis/{group}/{name}"),
        };
        let fetched = fetch(transport, &path, PLAIN, None).await;
        let list = match fetched {
            Ok(Fetched::Body { json, .. }) => decode::<LegacyList>(&path, &json),
            Ok(Fetched::Absent | Fetched::Same) => continue,
            // If a fence rejects the request or it times out, the next request fails in the same way.
            Err(error @ Failure::Send { .. }) => return Err(error),
            Err(error) => Err(error),
        };
        let is_stale = list.is_err();
        versions.push(Version {
            name: name.clone(),
            mappings: list.map(|list| list.mappings(group, name)).unwrap_or_default(),
            is_stale,
        });
    }
    Ok(versions)
}

async fn fetch(
    transport: &Transport,
    path: &str,
    accept: &'static str,
    tag: Option<String>,
) -> Result<Fetched, Failure> {
    let unsent = |source| Failure::Send {
        path: path.to_owned(),
        source,
    };
    let mut request = Request::new(Body::empty());
    // A group that cannot be part of a path exists on no server.
    let Ok(uri) = path.parse() else {
        return Ok(Fetched::Absent);
    };
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    if let Some(tag) = tag.and_then(|tag| HeaderValue::try_from(tag).ok()) {
        headers.insert(header::IF_NONE_MATCH, tag);
    }
    let response = transport.send(request).await.map_err(unsent)?;
    match response.status() {
        StatusCode::NOT_MODIFIED => return Ok(Fetched::Same),
        StatusCode::NOT_FOUND => return Ok(Fetched::Absent),
        code if !code.is_success() => {
            return Err(Failure::Refused {
                path: path.to_owned(),
                code: code.as_u16(),
            });
        }
        _ => {}
    }
    let tag = response.headers().get(header::ETAG);
    let tag = tag.and_then(|tag| tag.to_str().ok()).map(str::to_owned);
    let body = response.into_body().collect().await.map_err(unsent)?;
    Ok(Fetched::Body {
        json: body.to_bytes(),
        tag,
    })
}

fn decode<'a, T: Deserialize<'a>>(path: &str, json: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(json).map_err(|source| Failure::Decode {
        path: path.to_owned(),
        source,
    })
}

/// The answer at `/api` and `/apis`.
#[derive(Deserialize)]
#[serde(tag = "kind")]
enum Document {
    #[serde(rename = "APIGroupDiscoveryList")]
    All {
        #[serde(default)]
        items: Vec<GroupItem>,
    },
    #[serde(rename = "APIVersions")]
    Core { versions: Vec<String> },
    #[serde(rename = "APIGroupList")]
    Groups {},
}

#[derive(Deserialize)]
struct GroupItem {
    #[serde(default)]
    metadata: GroupMeta,
    #[serde(default)]
    versions: Vec<VersionItem>,
}

#[derive(Default, Deserialize)]
struct GroupMeta {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct VersionItem {
    version: String,
    #[serde(default)]
    resources: Vec<ResourceItem>,
    #[serde(default)]
    freshness: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceItem {
    resource: String,
    response_kind: Option<ResponseKind>,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    subresources: Vec<SubresourceItem>,
}

#[derive(Deserialize)]
struct ResponseKind {
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
struct SubresourceItem {
    subresource: String,
}

impl GroupItem {
    fn versions(self) -> (String, Vec<Version>) {
        let group = self.metadata.name;
        let versions = self.versions.into_iter().map(|version| Version {
            is_stale: version.freshness == "Stale",
            mappings: version
                .resources
                .into_iter()
                .map(|resource| Arc::new(resource.mapping(&group, &version.version)))
                .collect(),
            name: version.version,
        });
        let versions = versions.collect();
        (group, versions)
    }
}

impl ResourceItem {
    fn mapping(self, group: &str, version: &str) -> Mapping {
        let kind = self.response_kind.map(|kind| kind.kind).unwrap_or_default();
        let subresources = self.subresources.into_iter().map(|one| one.subresource);
        let namespaced = self.scope == "Namespaced";
        Mapping {
            resource: Resource::new(group, version, &kind, &self.resource).namespaced(namespaced),
            namespaced,
            verbs: self.verbs,
            subresources: subresources.collect(),
        }
    }
}

/// A group in the older format.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LegacyGroup {
    #[serde(default)]
    versions: Vec<LegacyVersion>,
    preferred_version: Option<LegacyVersion>,
}

#[derive(Deserialize)]
struct LegacyVersion {
    version: String,
}

#[derive(Deserialize)]
struct LegacyList {
    #[serde(default)]
    resources: Vec<LegacyResource>,
}

#[derive(Deserialize)]
struct LegacyResource {
    name: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    verbs: Vec<String>,
}

impl LegacyGroup {
    /// Returns the names of the versions, the preferred one first.
    fn names(self) -> Vec<String> {
        let preferred = self.preferred_version.map(|version| version.version);
        let mut names: Vec<_> = self.versions.into_iter().map(|version| version.version).collect();
        names.sort_by_key(|name| preferred.as_ref() != Some(name));
        names
    }
}

impl LegacyList {
    /// Returns the resources with their subresources, which the server lists as separate entries such as `pods/status`.
    fn mappings(self, group: &str, version: &str) -> Vec<Arc<Mapping>> {
        let mut mappings = Vec::new();
        let mut subresources: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for resource in self.resources {
            match resource.name.split_once('/') {
                Some((parent, name)) => {
                    let names = subresources.entry(parent.to_owned()).or_default();
                    names.push(name.to_owned());
                }
                None => mappings.push(Mapping {
                    resource: Resource::new(group, version, &resource.kind, &resource.name)
                        .namespaced(resource.namespaced),
                    namespaced: resource.namespaced,
                    verbs: resource.verbs,
                    subresources: Vec::new(),
                }),
            }
        }
        for mapping in &mut mappings {
            mapping.subresources = subresources.remove(mapping.resource.plural()).unwrap_or_default();
        }
        mappings.into_iter().map(Arc::new).collect()
    }
}
