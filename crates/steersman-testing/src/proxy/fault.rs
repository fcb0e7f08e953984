// SPDX-License-Identifier: Apache-2.0
//! What can be broken, and for whom.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

use super::record::Exchange;

/// Which requests a fault is for. Everything that is said must hold.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Matching {
    method: Option<String>,
    path: Option<String>,
    query: Option<String>,
    identity: Option<String>,
    watch: Option<bool>,
    skip: usize,
    take: Option<usize>,
}

impl Matching {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests by this HTTP method.
    pub fn method(method: impl Into<String>) -> Self {
        Self {
            method: Some(method.into()),
            ..Self::default()
        }
    }

    /// Watches.
    pub fn watches() -> Self {
        Self {
            watch: Some(true),
            ..Self::default()
        }
    }

    /// Reads that are not watches: gets and lists.
    pub fn reads() -> Self {
        Self {
            method: Some("GET".to_owned()),
            watch: Some(false),
            ..Self::default()
        }
    }

    /// Only where the path contains this.
    pub fn path(mut self, part: impl Into<String>) -> Self {
        self.path = Some(part.into());
        self
    }

    /// Only where the query contains this.
    pub fn query(mut self, part: impl Into<String>) -> Self {
        self.query = Some(part.into());
        self
    }

    /// Only requests of the identity with this name, which must have been announced.
    pub fn identity(mut self, name: impl Into<String>) -> Self {
        self.identity = Some(name.into());
        self
    }

    /// Only the first `count` of those that match.
    pub fn first(mut self, count: usize) -> Self {
        self.take = Some(count);
        self
    }

    /// Only those after the first `count` that match.
    pub fn after(mut self, count: usize) -> Self {
        self.skip = count;
        self
    }

    pub(super) fn matches(&self, exchange: &Exchange) -> bool {
        let within =
            |part: &Option<String>, whole: &str| part.as_deref().is_none_or(|part| whole.contains(part));
        self.method
            .as_deref()
            .is_none_or(|method| method.eq_ignore_ascii_case(&exchange.method))
            && within(&self.path, &exchange.path)
            && within(&self.query, &exchange.query)
            && self.watch.is_none_or(|watch| watch == exchange.is_watch())
            && (self.identity.is_none() || self.identity == exchange.identity)
    }
}

/// What happens to a request that matches.
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

/// A response word for word.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Respond {
    pub(super) code: u16,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

/// How a response that is under way is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cut {
    /// It ends in good order, as when the server's time limit for a watch is over.
    Clean,
    /// The connection breaks between two lines.
    Abrupt,
    /// The connection breaks in the middle of the next line.
    MidLine,
}

impl Fault {
    /// Answers with this status and the body that an API server sends with it; the server sees nothing.
    #[must_use]
    pub fn answer(code: u16) -> Self {
        Self(Kind::Answer {
            code,
            retry_after: None,
        })
    }

    /// Answers with this status and a `Retry-After` header; the server sees nothing.
    #[must_use]
    pub fn answer_retry_after(code: u16, seconds: u64) -> Self {
        Self(Kind::Answer {
            code,
            retry_after: Some(seconds),
        })
    }

    /// Answers with exactly this status, content type and body, as a gateway does that is not an API server. The server does not
    /// see the request.
    #[must_use]
    pub fn respond(code: u16, content_type: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self(Kind::Respond(Arc::new(Respond {
            code,
            content_type: content_type.into(),
            body: body.into(),
        })))
    }

    /// Answers 429 as a server does that still fills the memory from which it answers watches of a kind.
    #[must_use]
    pub fn initializing() -> Self {
        Self(Kind::Initializing)
    }

    /// Answers 200 and one `ERROR` event with this code, which is how a server says 410 to a watch.
    #[must_use]
    pub fn error_event(code: u16) -> Self {
        Self(Kind::ErrorEvent { code })
    }

    /// Lets the server do it, then breaks the connection instead of answering.
    #[must_use]
    pub fn drop_response() -> Self {
        Self(Kind::DropResponse)
    }

    /// Holds the request back for this time.
    #[must_use]
    pub fn delay(time: Duration) -> Self {
        Self(Kind::Delay(time))
    }

    /// Lets the server do it, and holds the answer back for this time.
    #[must_use]
    pub fn delay_answer(time: Duration) -> Self {
        Self(Kind::DelayAnswer(time))
    }

    /// Holds the answer back, or what is left of it, until the handle drops.
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

/// A fault in force. It ends when this drops.
#[derive(Debug)]
#[must_use = "the fault ends when this drops"]
pub struct Injected {
    rule: Arc<Rule>,
    faults: Arc<Mutex<Rules>>,
    released: watch::Sender<bool>,
}

#[derive(Debug)]
pub(super) struct Rule {
    /// Rules are counted in the order in which they were injected.
    number: usize,
    matching: Matching,
    pub(super) fault: Fault,
    /// How many requests matched, those outside of `first` and `after` included.
    seen: AtomicUsize,
    hits: watch::Sender<usize>,
    released: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
pub(super) struct Faults(Arc<Mutex<Rules>>);

#[derive(Debug, Default)]
struct Rules {
    in_force: Vec<Arc<Rule>>,
    /// How many there ever were.
    count: usize,
}

/// What was decided when a request arrived.
#[derive(Debug)]
pub(super) struct Arrival {
    /// The rule that took it.
    pub(super) rule: Option<Arc<Rule>>,
    /// The number of the first rule that did not exist then.
    later: usize,
}

impl Injected {
    /// How many requests it was used on.
    #[must_use]
    pub fn hits(&self) -> usize {
        *self.rule.hits.borrow()
    }

    /// Waits until it was used at least once.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn hit(&self) {
        self.hit_times(1).await;
    }

    /// Waits until it was used at least `times`.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn hit_times(&self, times: usize) {
        // The sender lives as long as `self`.
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

    /// Decides about a request that has just arrived.
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

    /// The stall for a stream that is under way: one that came later than its request. How often a stream is looked at
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
    /// Counts a request that matches, and says whether it is among those that are meant.
    fn is_due(&self) -> bool {
        let before = self.seen.fetch_add(1, Ordering::Relaxed);
        let end = self
            .matching
            .take
            .map_or(usize::MAX, |take| self.matching.skip.saturating_add(take));
        (self.matching.skip..end).contains(&before)
    }

    /// Waits until the handle is gone.
    pub(super) async fn released(&self) {
        // A closed channel says the same.
        let _ = self.released.clone().wait_for(|released| *released).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
