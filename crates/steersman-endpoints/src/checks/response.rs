// SPDX-License-Identifier: Apache-2.0
//! Responses to probes.

use std::{collections::BTreeSet, fmt::Write as _};

use futures::future::join_all;
use http::StatusCode;

use super::{CheckError, Checks, Entry};
use crate::{
    HttpResponse,
    handler::{not_found, text_response},
    routes::percent_decoded,
};

/// Runs one check, or all if the name is empty.
pub(super) async fn respond(checks: &Checks, name: &str, query: &str) -> HttpResponse {
    let entries = checks.entries();
    let name = percent_decoded(name.trim_end_matches('/'));
    if name.is_empty() {
        return list(entries, checks, query).await;
    }
    let found = entries.iter().find(|(known, _)| *known == name);
    match found {
        Some((_, entry)) => single((entry.check)().await),
        None if entries.is_empty() && name == "ping" => single(Ok(())),
        None => not_found(),
    }
}

fn single(result: Result<(), CheckError>) -> HttpResponse {
    match result {
        Ok(()) => text_response(StatusCode::OK, "ok"),
        Err(error) => {
            let body = format!("internal server error: {}\n", error.full_text());
            text_response(StatusCode::INTERNAL_SERVER_ERROR, body)
        }
    }
}

async fn list(mut entries: Vec<(String, Entry)>, checks: &Checks, query: &str) -> HttpResponse {
    entries.retain(|(_, entry)| !entry.is_hidden);
    let mut excluded: BTreeSet<String> = BTreeSet::new();
    let mut verbose = false;
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "exclude" => {
                excluded.insert(value.into_owned());
            }
            "verbose" => verbose = true,
            _ => {}
        }
    }
    // `None` marks an excluded check.
    let running = entries.into_iter().map(|(name, entry)| {
        let is_excluded = excluded.remove(&name);
        async move {
            let result = if is_excluded {
                None
            } else {
                Some((entry.check)().await)
            };
            (name, result)
        }
    });
    let mut results = join_all(running).await;
    if results.is_empty() {
        results.push(("ping".to_owned(), Some(Ok(()))));
    }

    let mut body = String::new();
    let mut failed = false;
    for (name, result) in &results {
        // Writing to a string cannot fail.
        let _ = match result {
            None => writeln!(body, "[+]{name} excluded: ok"),
            Some(Ok(())) => writeln!(body, "[+]{name} ok"),
            Some(Err(error)) => {
                failed = true;
                tracing::debug!(check = name, error = error.full_text(), "health check failed");
                writeln!(body, "[-]{name} failed: {}", error.public_text())
            }
        };
    }
    if !excluded.is_empty() {
        let unknown: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
        let unknown = unknown.join(",");
        let _ = writeln!(
            body,
            "warn: some health checks cannot be excluded: no matches for {unknown}"
        );
    }
    let details = verbose.then(|| checks.details());
    for line in details.into_iter().flatten() {
        let _ = writeln!(body, "{line}");
    }
    match (failed, verbose) {
        (true, _) => text_response(StatusCode::INTERNAL_SERVER_ERROR, body + "healthz check failed\n"),
        (false, true) => text_response(StatusCode::OK, body + "healthz check passed\n"),
        (false, false) => text_response(StatusCode::OK, "ok"),
    }
}
