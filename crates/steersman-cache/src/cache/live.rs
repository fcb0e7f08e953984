// SPDX-License-Identifier: Apache-2.0
//! Reading past the cache.
//!
//! Not by `kube::Api`: which of its constructors is right depends on the type's scope, and it logs what it cannot decode,
//! which may be a secret.

use std::{sync::Arc, time::Duration};

use form_urlencoded::Serializer;
use http::{Request, header};
use kube::client::Body;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::{
    InformerContext, Object, Query, Resource, WatchError,
    response::{Refusal, Response},
    wire::list::ListSplitter,
};

/// So long a server may be silent.
const SILENCE: Duration = Duration::from_secs(30);
const LIMIT: usize = 64 << 20;

/// What would be taken for another part of the address.
const NOT_IN_A_NAME: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\');

/// The object of this name, or nothing if there is none.
pub(super) async fn get(
    surroundings: &InformerContext,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<Object>>, WatchError> {
    let path = format!(
        "{}/{}",
        resource.path(namespace),
        utf8_percent_encode(name, NOT_IN_A_NAME)
    );
    let mut response = match send(surroundings, &path).await? {
        Err(refusal) if refusal.is_about(name) => return Ok(None),
        answer => answer.map_err(|refusal| refusal.trouble())?,
    };
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        bytes.extend_from_slice(&chunk);
    }
    match Object::from_slice(&bytes) {
        Ok(object) => Ok(Some(Arc::new(object))),
        Err(error) => Err(WatchError::Undecodable {
            reason: error.to_string(),
        }),
    }
}

/// The objects that `query` selects.
pub(super) async fn list(
    surroundings: &InformerContext,
    resource: &Resource,
    query: &Query,
) -> Result<Vec<Arc<Object>>, WatchError> {
    let path = resource.path(query.wanted_namespace().unwrap_or_default());
    let (mut found, mut token) = (Vec::new(), String::new());
    loop {
        let answer = send(surroundings, &format!("{path}?{}", parameters(query, &token))).await?;
        let mut response = answer.map_err(|refusal| refusal.trouble())?;
        let mut splitter = ListSplitter::new(LIMIT).of(resource);
        let mut item = |item: Result<Arc<Object>, _>| match item {
            Ok(object) if query.matches(&object) && found.len() < query.limited() => found.push(object),
            Ok(_) => {}
            Err(error) => tracing::warn!(%resource, %error, "an object cannot be read and is left out"),
        };
        while let Some(chunk) = response.chunk().await? {
            splitter.push(&chunk, &mut item)?;
        }
        token = splitter.finish(&mut item)?.continue_token;
        // A page may have less than was asked for, although there is more.
        if token.is_empty() || found.len() >= query.limited() {
            return Ok(found);
        }
    }
}

/// As much of a query as a server knows about, from where the last page ended.
fn parameters(query: &Query, token: &str) -> String {
    let mut parameters = Serializer::new(String::new());
    let selector = query.label_selector();
    if !selector.selects_all() {
        parameters.append_pair("labelSelector", &selector.to_string());
    }
    // Of those that it would give, some may not be in the index.
    if !query.has_index() && query.limited() < usize::MAX {
        parameters.append_pair("limit", &query.limited().to_string());
    }
    if !token.is_empty() {
        parameters.append_pair("continue", token);
    }
    parameters.finish()
}

async fn send(surroundings: &InformerContext, path: &str) -> Result<Result<Response, Refusal>, WatchError> {
    let request = Request::get(path)
        .header(header::ACCEPT, "application/json")
        .header(header::ACCEPT_ENCODING, "identity")
        .body(Body::empty())
        .map_err(|error| WatchError::Refused {
            code: 400,
            reason: error.to_string(),
        })?;
    Response::or_refusal(surroundings.client(), request, surroundings.clock(), SILENCE).await
}
