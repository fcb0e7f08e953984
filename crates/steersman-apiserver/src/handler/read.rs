// SPDX-License-Identifier: Apache-2.0
//! The get and list verbs.

use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;

use super::{
    Call, Content, ListContent, Reply, Target,
    options::{Continue, ListOptions, Match},
    representation,
};
use crate::{
    crd::conversion,
    state::Context,
    status::{Failure, Result},
    store::{Object, Stored, Unreadable},
};

const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
const INCONSISTENT_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.";

/// Handles a GET of one object.
pub(crate) fn get(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let representation = representation(call, target)?;
    if let Some(text) = call.query.filled("resourceVersion") {
        let refused = |_| {
            Failure::unclassified(format!(
                "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
            ))
        };
        let revision: u64 = text.parse().map_err(refused)?;
        if revision > cx.state.store.revision() {
            return Ok(Reply::content(Content::Wait(revision)));
        }
    }
    let stored = cx
        .state
        .store
        .get(target.resource.storage, &target.key())
        .ok_or_else(|| target.not_found())?;
    if representation.is_by_webhook() {
        let stored = Arc::clone(stored);
        let object = conversion::read_as(cx, target, &stored)?;
        return Ok(Reply::bytes(StatusCode::OK, representation.whole_object(&object)));
    }
    Ok(Reply::bytes(StatusCode::OK, representation.whole(stored)))
}

/// Handles a list, or one page of it.
pub(crate) fn list(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let representation = representation(call, target)?;
    let options = ListOptions::parse(
        &call.query,
        &target.resource,
        target.version(),
        &target.name,
        false,
    )?;
    let store = &cx.state.store;
    let token = options
        .continuation
        .as_deref()
        .map(Continue::decode)
        .transpose()?;
    let revision = match (&token, options.revision, options.revision_match) {
        (Some(token), ..) => u64::try_from(token.rv).unwrap_or_else(|_| store.revision()),
        (None, Some(revision), Some(Match::Exact)) => revision,
        (None, Some(revision), None) if revision > 0 && options.limit.is_some() => revision,
        (None, Some(revision), _) if revision > store.revision() => {
            return Ok(Reply::content(Content::Wait(revision)));
        }
        _ => store.revision(),
    };
    let readable = if cx.state.compaction.has_expired(revision) {
        Err(Unreadable::Compacted)
    } else {
        store.readable(revision)
    };
    match (readable, &token) {
        (Ok(()), _) => {}
        (Err(Unreadable::Future), _) => return Ok(Reply::content(Content::Wait(revision))),
        (Err(Unreadable::Compacted), None) => {
            return Err(Failure::expired(
                "The resourceVersion for the provided list is too old.",
            ));
        }
        (Err(Unreadable::Compacted), Some(token)) if token.rv < 0 => {
            return Err(Failure::expired(INCONSISTENT_EXPIRED));
        }
        (Err(Unreadable::Compacted), Some(token)) => {
            return Err(Failure::expired_continue(
                CONTINUE_EXPIRED,
                token.at_latest().encode(),
            ));
        }
    }
    // The real server answers a list with `resourceVersion=0` from its watch cache, which does not paginate.
    let limit = options
        .limit
        .filter(|_| token.is_some() || options.revision != Some(0));
    let page = page(cx, target, &options, token.as_ref(), revision, limit);
    let mut metadata = Object::new();
    metadata.insert("resourceVersion".to_owned(), Value::from(revision.to_string()));
    if let Some(last) = page.last_of_more {
        let rv = i64::try_from(revision).unwrap_or(i64::MAX);
        metadata.insert(
            "continue".to_owned(),
            Value::from(Continue::after(&last, rv).encode()),
        );
        if options.selector.is_empty() {
            metadata.insert("remainingItemCount".to_owned(), Value::from(page.remaining));
        }
    }
    Ok(Reply::content(Content::List(Box::new(ListContent {
        representation,
        metadata,
        items: page.items,
    }))))
}

struct Page {
    items: Vec<Arc<Stored>>,
    /// The last scanned key without prefix, if more keys follow it.
    last_of_more: Option<String>,
    remaining: usize,
}

fn page(
    cx: &Context<'_>,
    target: &Target,
    options: &ListOptions,
    token: Option<&Continue>,
    revision: u64,
    limit: Option<usize>,
) -> Page {
    let prefix = target.resource.prefix(&target.namespace);
    let after = token.map(|token| format!("{prefix}{}", token.start));
    let mut page = Page {
        items: Vec::new(),
        last_of_more: None,
        remaining: 0,
    };
    let mut last: Option<Arc<str>> = None;
    let see = |key: &Arc<str>, stored: &Arc<Stored>| {
        if limit.is_some_and(|limit| page.items.len() >= limit) {
            page.remaining += 1;
            return;
        }
        last = Some(Arc::clone(key));
        if options.selector.sees(stored) {
            page.items.push(Arc::clone(stored));
        }
    };
    let storage = target.resource.storage;
    cx.state
        .store
        .visit(storage, &prefix, after.as_deref(), revision, see);
    if page.remaining > 0 {
        page.last_of_more = last.map(|last| last.strip_prefix(prefix.as_str()).unwrap_or(&last).to_owned());
    }
    page
}
