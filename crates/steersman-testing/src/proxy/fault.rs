// SPDX-License-Identifier: Apache-2.0
//! Faults of requests.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

use super::{Matching, record::Exchange};

/// Fault for a matching request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub(super) Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Answer { code: u16, retry_after: Option<u64> },
    Respond(Arc<Respond>),
    Initializing,
    ErrorEvent { code: u16 },
    DropResponse,
    Delay(Duration),
    DelayAnswer(Duration),
    Stall,
    CutAfterLines { lines: usize, cut: Cut },
}

/// A literal response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Respond {
    pub(super) code: u16,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

/// Way to cut a response that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cut {
    /// It ends cleanly, as when the server closes a watch after its timeout.
    Clean,
    /// The connection breaks between two lines.
    Abrupt,
    /// The connection breaks in the middle of the next line.
    MidLine,
}

impl Fault {
    /// Answers with this status and the body that an API server sends with it. The server does not see the request.
    #[must_use]
    pub fn answer(code: u16) -> Self {
        Self(Kind::Answer {
            code,
            retry_after: None,
        })
    }

    /// Answers with this status and a `Retry-After` header. The server does not see the request.
    #[must_use]
    pub fn answer_retry_after(code: u16, seconds: u64) -> Self {
        Self(Kind::Answer {
            code,
            retry_after: Some(seconds),
        })
    }

    /// Answers with exactly this status, content type and body, like a gateway that is not an API server. The server
    /// does not see the request.
    #[must_use]
    pub fn respond(code: u16, content_type: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self(Kind::Respond(Arc::new(Respond {
            code,
            content_type: content_type.into(),
            body: body.into(),
        })))
    }

    /// Answers 429, like a server that still initializes the watch cache of a kind.
    #[must_use]
    pub fn initializing() -> Self {
        Self(Kind::Initializing)
    }

    /// Answers 200 and one `ERROR` event with this code, as a server sends 410 for a watch.
    #[must_use]
    pub fn error_event(code: u16) -> Self {
        Self(Kind::ErrorEvent { code })
    }

    /// Lets the server process the request, then breaks the connection instead of answering.
    #[must_use]
    pub fn drop_response() -> Self {
        Self(Kind::DropResponse)
    }

    /// Delays the request by this time.
    #[must_use]
    pub fn delay(time: Duration) -> Self {
        Self(Kind::Delay(time))
    }

    /// Lets the server process the request, and delays the answer by this time.
    #[must_use]
    pub fn delay_answer(time: Duration) -> Self {
        Self(Kind::DelayAnswer(time))
    }

    /// Holds the answer, or the rest of it, until the handle is dropped.
    #[must_use]
    pub fn stall() -> Self {
        Self(Kind::Stall)
    }

    /// Cuts the answer after this many lines.
    #[must_use]
    pub fn cut_after_lines(lines: usize, cut: Cut) -> Self {
        Self(Kind::CutAfterLines { lines, cut })
    }
}

/// An active fault. It ends when this is dropped.
#[derive(Debug)]
#[must_use = "the fault ends when this drops"]
pub struct Injected {
    rule: Arc<Rule>,
    faults: Arc<Mutex<Rules>>,
    released: watch::Sender<bool>,
}

#[derive(Debug)]
pub(super) struct Rule {
    /// Number of the rule, in the order of injection.
    number: usize,
    matching: Matching,
    pub(super) fault: Fault,
    /// Number of matching requests, including those outside of `first` and `after`.
    seen: AtomicUsize,
    hits: watch::Sender<usize>,
    released: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
pub(super) struct Faults(Arc<Mutex<Rules>>);

#[derive(Debug, Default)]
struct Rules {
    in_force: Vec<Arc<Rule>>,
    /// Number of rules ever injected.
    count: usize,
}

/// Decision at the arrival of a request.
#[derive(Debug)]
pub(super) struct Arrival {
    /// The rule that applies to it.
    pub(super) rule: Option<Arc<Rule>>,
    /// Number of the first rule that was injected later.
    later: usize,
}

impl Injected {
    /// Returns the number of requests that it was applied to.
    #[must_use]
    pub fn hits(&self) -> usize {
        *self.rule.hits.borrow()
    }

    /// Waits until it was applied at least once.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn hit(&self) {
        self.hit_times(1).await;
    }

    /// Waits until it was applied at least `times`.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn hit_times(&self, times: usize) {
        // The sender exists as long as `self`.
        let _ = self.rule.hits.subscribe().wait_for(|hits| *hits >= times).await;
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        lock(&self.faults)
            .in_force
            .retain(|rule| rule.number != self.rule.number);
        self.released.send_replace(true);
    }
}

impl Faults {
    pub(super) fn inject(&self, matching: Matching, fault: Fault) -> Injected {
        let (released, receiver) = watch::channel(false);
        let mut rules = lock(&self.0);
        let rule = Arc::new(Rule {
            number: rules.count,
            matching,
            fault,
            seen: AtomicUsize::new(0),
            hits: watch::Sender::new(0),
            released: receiver,
        });
        rules.count += 1;
        rules.in_force.push(Arc::clone(&rule));
        drop(rules);
        Injected {
            rule,
            faults: Arc::clone(&self.0),
            released,
        }
    }

    /// Selects the rule for a request that has just arrived.
    pub(super) fn on_arrival(&self, exchange: &Exchange) -> Arrival {
        let rules = lock(&self.0);
        let mut in_force = rules.in_force.iter();
        let rule = in_force.find(|rule| rule.matching.matches(exchange) && rule.is_due());
        if let Some(rule) = rule {
            rule.hits.send_modify(|hits| *hits += 1);
        }
        Arrival {
            rule: rule.map(Arc::clone),
            later: rules.count,
        }
    }

    /// Returns the stall for a stream that is under way: one that was injected after its request. Checking a stream
    /// does not count as a use.
    pub(super) fn stall(&self, exchange: &Exchange, arrival: &Arrival) -> Option<Arc<Rule>> {
        let rules = lock(&self.0);
        rules
            .in_force
            .iter()
            .find(|rule| {
                rule.number >= arrival.later && rule.fault.0 == Kind::Stall && rule.matching.matches(exchange)
            })
            .map(Arc::clone)
    }
}

impl Rule {
    /// Counts a matching request, and returns whether `first` and `after` include it.
    fn is_due(&self) -> bool {
        let before = self.seen.fetch_add(1, Ordering::Relaxed);
        let end = self
            .matching
            .take
            .map_or(usize::MAX, |take| self.matching.skip.saturating_add(take));
        (self.matching.skip..end).contains(&before)
    }

    /// Waits until the handle is dropped.
    pub(super) async fn released(&self) {
        // A closed channel means the same.
        let _ = self.released.clone().wait_for(|released| *released).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
