// SPDX-License-Identifier: Apache-2.0
//! Reads from the API server, bypassing the cache.
//!
//! This module does not use `kube::Api`: the right constructor depends on the type's scope, and `kube::Api` logs content that
//! it cannot decode, which can be a secret.

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

/// Timeout for a silent server.
const SILENCE: Duration = Duration::from_secs(30);
const LIMIT: usize = 64 << 20;

/// Characters that would end or split a path segment.
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

/// Gets the object of this name, or `None` if it does not exist.
pub(super) async fn get(
    context: &InformerContext,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<Object>>, WatchError> {
    let path = format!(
        "{}/{}",
        resource.path(namespace),
        utf8_percent_encode(name, NOT_IN_A_NAME)
    );
    let mut response = match send(context, &path).await? {
        Err(refusal) if refusal.is_about(name) => return Ok(None),
        answer => answer.map_err(|refusal| refusal.error())?,
    };
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        bytes.extend_from_slice(&chunk);
    }
    match Object::from_slice(&bytes) {
        Ok(object) => Ok(Some(Arc::new(object))),
        Err(error) => Err(WatchError::InvalidResponse {
            reason: error.to_string(),
        }),
    }
}

/// Lists the objects that `query` selects.
pub(super) async fn list(
    context: &InformerContext,
    resource: &Resource,
    query: &Query,
) -> Result<Vec<Arc<Object>>, WatchError> {
    let path = resource.path(query.wanted_namespace().unwrap_or_default());
    let (mut found, mut token) = (Vec::new(), String::new());
    loop {
        let answer = send(context, &format!("{path}?{}", parameters(query, &token))).await?;
        let mut response = answer.map_err(|refusal| refusal.error())?;
        let mut splitter = ListSplitter::new(LIMIT).of(resource);
        let mut item = |item: Result<Arc<Object>, _>| match item {
            Ok(object) if query.matches(&object) && found.len() < query.limited() => found.push(object),
            Ok(_) => {}
            Err(error) => tracing::warn!(%resource, %error, "skipping invalid object"),
        };
        while let Some(chunk) = response.chunk().await? {
            splitter.push(&chunk, &mut item)?;
        }
        token = splitter.finish(&mut item)?.continue_token;
        // A page can have fewer objects than the limit although more follow.
        if token.is_empty() || found.len() >= query.limited() {
            return Ok(found);
        }
    }
}

/// Encodes the parts of a query that a server supports, with the token of the last page.
fn parameters(query: &Query, token: &str) -> String {
    let mut parameters = Serializer::new(String::new());
    let selector = query.label_selector();
    if !selector.selects_all() {
        parameters.append_pair("labelSelector", &selector.to_string());
    }
    // With an index, the server's limit would count objects that the index leaves out.
    if !query.has_index() && query.limited() < usize::MAX {
        parameters.append_pair("limit", &query.limited().to_string());
    }
    if !token.is_empty() {
        parameters.append_pair("continue", token);
    }
    parameters.finish()
}

async fn send(context: &InformerContext, path: &str) -> Result<Result<Response, Refusal>, WatchError> {
    let request = Request::get(path)
        .header(header::ACCEPT, "application/json")
        .header(header::ACCEPT_ENCODING, "identity")
        .body(Body::empty())
        .map_err(|error| WatchError::Rejected {
            code: 400,
            reason: error.to_string(),
        })?;
    Response::or_refusal(context.client(), request, context.clock(), SILENCE).await
}
