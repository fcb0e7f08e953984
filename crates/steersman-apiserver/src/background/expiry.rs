// SPDX-License-Identifier: Apache-2.0
//! Events live for an hour.
//!
//! No timer runs for this: what has expired goes when the next request or step is served, so that a server that nobody
//! asks anything does nothing.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use crate::{resource::Resource, state::Context};

/// As in the real server.
const LIFETIME: Duration = Duration::from_secs(3600);

/// Events in the order in which they expire.
#[derive(Debug, Default)]
pub(crate) struct Expiry(VecDeque<(SystemTime, String, u64)>);

impl Expiry {
    /// Takes note of a write of an event; a later one of the same event lets it live longer.
    pub(crate) fn note(&mut self, resource: &Resource, key: &str, revision: u64, now: SystemTime) {
        if resource.plural == "events" && resource.custom.is_none() {
            self.0.push_back((now + LIFETIME, key.to_owned(), revision));
        }
    }
}

/// Removes the events whose time has come.
pub(crate) fn expire(cx: &mut Context<'_>) {
    while let Some((at, ..)) = cx.state.expiry.0.front() {
        if *at > cx.now {
            return;
        }
        let Some((_, key, revision)) = cx.state.expiry.0.pop_front() else {
            return;
        };
        let Some(events) = cx.state.registry.find("", "events").cloned() else {
            return;
        };
        let current = cx.state.store.get(events.storage, &key);
        if current.is_some_and(|stored| stored.revision == revision) {
            cx.remove(&events, &key);
        }
    }
}
