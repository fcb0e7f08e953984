// SPDX-License-Identifier: Apache-2.0
//! Polls discovery for kinds that the watches do not decide.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::BoxStream};
use steersman_cache::Resource;
use steersman_core::{Clock, MonotonicTime, Presence, PresenceStatus};

use super::unknown;
use crate::{Mapper, ResourceQuery, mapper::Renewed};

/// Polls in rounds and stores errors.
pub(super) struct Discovery {
    mapper: Mapper,
    /// Time of the last answer or failure.
    at: Option<MonotonicTime>,
    /// Errors by group, with the time of each. A server that is polled group by group can answer for one group and fail
    /// for another.
    troubles: BTreeMap<String, (MonotonicTime, Arc<str>)>,
    round: Option<BoxStream<'static, Renewed>>,
}

/// Minimum time of the answers that count for a kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    /// Time when the kind was left to discovery.
    at: MonotonicTime,
    /// Maximum age of an answer at that time.
    grace: Duration,
}

impl Since {
    /// For a kind that is left to discovery now. A polled answer counts for one interval. For a kind that is known to
    /// be present, an answer from before it was present does not count.
    pub(super) fn now(now: MonotonicTime, told: &PresenceStatus, interval: Duration) -> Self {
        let grace = if told.is_present() {
            Duration::ZERO
        } else {
            interval
        };
        Self { at: now, grace }
    }

    fn counts(self, answered: MonotonicTime) -> bool {
        answered + self.grace >= self.at
    }
}

impl Discovery {
    pub(super) fn new(mapper: Mapper) -> Self {
        Self {
            mapper,
            at: None,
            troubles: BTreeMap::new(),
            round: None,
        }
    }

    /// Discards all answers.
    pub(super) fn forget(&mut self) {
        self.at = None;
        self.troubles.clear();
    }

    /// Returns the time of the next round at this interval.
    pub(super) fn next(&self, interval: Duration) -> MonotonicTime {
        self.at.map_or(MonotonicTime::default(), |at| at + interval)
    }

    pub(super) fn is_asking(&self) -> bool {
        self.round.is_some()
    }

    /// Starts a round for these groups.
    pub(super) fn ask(&mut self, groups: BTreeSet<String>) {
        self.troubles.retain(|group, _| groups.contains(group));
        self.round = Some(self.mapper.renew(groups).boxed());
    }

    /// Waits for the next answer, or for the end of the round. Without a round it never returns.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub(super) async fn answered(&mut self, clock: &dyn Clock) {
        let Some(round) = &mut self.round else {
            return std::future::pending().await;
        };
        let renewed = round.next().await;
        let now = clock.now();
        self.at = Some(now);
        let Some(Renewed { groups, answer }) = renewed else {
            self.round = None;
            return;
        };
        for group in groups {
            match &answer {
                Ok(()) => self.troubles.remove(&group),
                Err(trouble) => self.troubles.insert(group, (now, Arc::clone(trouble))),
            };
        }
    }

    /// Returns the presence of a kind and whether it is namespaced, or `None` before there is an answer that counts.
    pub(super) fn says(&self, resource: &Resource, since: Since) -> Option<(PresenceStatus, Option<bool>)> {
        self.at?;
        let in_doubt =
            |why: &str| unknown(format!("cannot determine whether {resource} is installed: {why}"));
        if let Some((at, trouble)) = self.troubles.get(resource.group())
            && since.counts(*at)
        {
            return Some((in_doubt(trouble), None));
        }
        let ask = ResourceQuery::plural(resource.group(), resource.plural()).version(resource.version());
        let answered = self.mapper.asked(&ask)?;
        if !since.counts(answered) {
            return None;
        }
        let presence_status = match self.mapper.presence(&ask) {
            Presence::Present => PresenceStatus::new(Presence::Present, format!("{resource} is served")),
            Presence::Absent => PresenceStatus::new(Presence::Absent, format!("{resource} is not served")),
            Presence::Unknown => in_doubt("discovery has no information about its group"),
        };
        let known = self.mapper.known(&ask);
        Some((presence_status, known.map(|known| known.is_namespaced())))
    }
}
