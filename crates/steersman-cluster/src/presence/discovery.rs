// SPDX-License-Identifier: Apache-2.0
//! What discovery says of kinds that are left to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::BoxStream};
use steersman_cache::Resource;
use steersman_core::{Clock, MonotonicTime, Presence, Sighting};

use super::unknown;
use crate::{Mapper, ResourceQuery, mapper::Renewed};

/// Asks in rounds, and remembers what was in the way.
pub(super) struct Discovery {
    mapper: Mapper,
    /// When the server answered or failed to, last.
    at: Option<MonotonicTime>,
    /// What is in the way of whom, by group, and since when. A server that is asked group by group may answer for one of
    /// them and not for another.
    troubles: BTreeMap<String, (MonotonicTime, Arc<str>)>,
    round: Option<BoxStream<'static, Renewed>>,
}

/// Which answers count for a kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    /// When the kind was left to discovery.
    at: MonotonicTime,
    /// How old an answer may have been then.
    grace: Duration,
}

impl Since {
    /// For a kind that is left to discovery now. What is asked at an interval counts for so long. A kind that is known to
    /// be there does not go by an answer from before it was.
    pub(super) fn now(now: MonotonicTime, told: &Sighting, interval: Duration) -> Self {
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

    /// What was said does not count any more.
    pub(super) fn forget(&mut self) {
        self.at = None;
        self.troubles.clear();
    }

    /// When to ask, at this interval.
    pub(super) fn next(&self, interval: Duration) -> MonotonicTime {
        self.at.map_or(MonotonicTime::default(), |at| at + interval)
    }

    pub(super) fn is_asking(&self) -> bool {
        self.round.is_some()
    }

    /// Asks about these groups.
    pub(super) fn ask(&mut self, groups: BTreeSet<String>) {
        self.troubles.retain(|group, _| groups.contains(group));
        self.round = Some(self.mapper.renew(groups).boxed());
    }

    /// Waits for the next answer, or for the end of the round; without one for ever.
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

    /// What is said about a kind, and whether its objects are in namespaces; nothing before there is an answer that counts.
    pub(super) fn says(&self, resource: &Resource, since: Since) -> Option<(Sighting, Option<bool>)> {
        self.at?;
        let in_doubt = |why: &str| unknown(format!("whether {resource} is installed cannot be told: {why}"));
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
        let sighting = match self.mapper.presence(&ask) {
            Presence::Present => Sighting::new(Presence::Present, format!("{resource} is served")),
            Presence::Absent => Sighting::new(Presence::Absent, format!("{resource} is not served")),
            Presence::Unknown => in_doubt("discovery does not tell of its group"),
        };
        let known = self.mapper.known(&ask);
        Some((sighting, known.map(|known| known.is_namespaced())))
    }
}
