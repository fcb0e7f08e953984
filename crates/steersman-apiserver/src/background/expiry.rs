// SPDX-License-Identifier: Apache-2.0
//! Expiry of Events after one hour.
//!
//! No timer runs for this: the next request or step removes expired Events, so that an idle server does nothing.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use crate::{resource::Resource, state::Context};

/// Lifetime of an Event, as on the real server.
const LIFETIME: Duration = Duration::from_secs(3600);

/// Events in the order of their expiry.
#[derive(Debug, Default)]
pub(crate) struct Expiry(VecDeque<(SystemTime, String, u64)>);

impl Expiry {
    /// Records a write of an Event; a later write of the same Event extends its lifetime.
    pub(crate) fn note(&mut self, resource: &Resource, key: &str, revision: u64, now: SystemTime) {
        if resource.plural == "events" && resource.custom.is_none() {
            self.0.push_back((now + LIFETIME, key.to_owned(), revision));
        }
    }
}

/// Removes the expired Events.
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
