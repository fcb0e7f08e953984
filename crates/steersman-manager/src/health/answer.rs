// SPDX-License-Identifier: Apache-2.0
//! What probes are told.

use std::{collections::BTreeSet, fmt::Write as _};

use bytes::Bytes;
use futures::future::join_all;
use http::StatusCode;
use http_body_util::Full;

use super::{Checks, Entry, Unready};
use crate::serve::{decoded, not_found, text};

type Answer = http::Response<Full<Bytes>>;

/// Answers for one check, or for all if the name is empty.
pub(super) async fn answer(checks: &Checks, name: &str, query: &str) -> Answer {
    let all = checks.all();
    let name = decoded(name.trim_end_matches('/'));
    if name.is_empty() {
        return list(all, checks, query).await;
    }
    let found = all.iter().find(|(known, _)| *known == name);
    match found {
        Some((_, entry)) => one((entry.check)().await),
        None if all.is_empty() && name == "ping" => one(Ok(())),
        None => not_found(),
    }
}

fn one(result: Result<(), Unready>) -> Answer {
    match result {
        Ok(()) => text(StatusCode::OK, "ok"),
        Err(unready) => {
            let body = format!("internal server error: {}\n", unready.in_full());
            text(StatusCode::INTERNAL_SERVER_ERROR, body)
        }
    }
}

async fn list(mut all: Vec<(String, Entry)>, checks: &Checks, query: &str) -> Answer {
    all.retain(|(_, entry)| !entry.is_apart);
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
    let (skipped, asked): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, _)| excluded.remove(name));
    let results = join_all(
        asked
            .into_iter()
            .map(|(name, entry)| async move { (name, Some((entry.check)().await)) }),
    )
    .await;
    let mut lines: Vec<_> = skipped
        .into_iter()
        .map(|(name, _)| (name, None))
        .chain(results)
        .collect();
    if lines.is_empty() {
        lines.push(("ping".to_owned(), Some(Ok(()))));
    }
    lines.sort_by(|(one, _), (other, _)| one.cmp(other));

    let mut body = String::new();
    let mut failed = false;
    for (name, result) in &lines {
        // Writing to a string cannot fail.
        let _ = match result {
            None => writeln!(body, "[+]{name} excluded: ok"),
            Some(Ok(())) => writeln!(body, "[+]{name} ok"),
            Some(Err(unready)) => {
                failed = true;
                tracing::debug!(check = name, reason = unready.in_full(), "a health check failed");
                writeln!(body, "[-]{name} failed: {}", unready.shown())
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
    let remarks = verbose.then(|| checks.remarks());
    for remark in remarks.into_iter().flatten() {
        let _ = writeln!(body, "{remark}");
    }
    match (failed, verbose) {
        (true, _) => text(StatusCode::INTERNAL_SERVER_ERROR, body + "healthz check failed\n"),
        (false, true) => text(StatusCode::OK, body + "healthz check passed\n"),
        (false, false) => text(StatusCode::OK, "ok"),
    }
}
