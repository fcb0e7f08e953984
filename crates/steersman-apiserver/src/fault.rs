// SPDX-License-Identifier: Apache-2.0
//! Fault injection: reproducible failures between clients and the server.
//!
//! # Guarantees
//! 1. A fault affects exactly the calls that its [`When`] matches, counted in the order of arrival.
//! 2. A conflict is a real one: another write happens first, and watches see it.
//! 3. A write whose response is lost has been applied.
//!
//! # Example
//! ```
//! use steersman_apiserver::{ApiServer, fault::{Effect, When}};
//!
//! let server = ApiServer::builder().build();
//! // The second update of any lease is applied, but the client gets no response.
//! server.faults().inject(When::verb("update").resource("leases").nth(2), Effect::LoseResponse);
//! ```

pub(crate) mod control;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{
    auth::Identity,
    handler::{Call, decode},
    route::Verb,
    server::Inner,
    state::Context,
    store::Object,
};

pub use control::Cut;
use control::{Control, Lever};

/// Selects the calls that a fault affects. A property that is not set matches every call.
#[derive(Clone, Debug, Default)]
pub struct When {
    verb: Option<String>,
    resource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    user: Option<String>,
    nth: usize,
    times: Option<usize>,
}

impl When {
    /// Matches every call for resources.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// Matches calls with this verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    #[must_use]
    pub fn verb(verb: impl Into<String>) -> Self {
        Self {
            verb: Some(verb.into()),
            ..Self::default()
        }
    }

    /// Matches only this resource: `pods`, or `deployments.apps` with a group.
    #[must_use]
    pub fn resource(mut self, resource: impl Into<String>) -> Self {
        self.resource = Some(resource.into());
        self
    }

    /// Matches only this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Matches only the object with this name. For a create, this is the name in the body, if there is one; a generated
    /// name never matches.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Matches only this user.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Matches from the n-th such call on, counted from 1. Only that call, unless [`Self::times`] sets more.
    #[must_use]
    pub fn nth(mut self, nth: usize) -> Self {
        self.nth = nth;
        self.times.get_or_insert(1);
        self
    }

    /// Limits the number of affected calls. Default: unlimited, or one after [`Self::nth`].
    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.times = Some(times);
        self
    }

    fn matches(&self, about: &About) -> bool {
        let fits =
            |wanted: &Option<String>, actual: &str| wanted.as_deref().is_none_or(|wanted| wanted == actual);
        let resource = self
            .resource
            .as_deref()
            .is_none_or(|wanted| wanted == about.resource || wanted == about.qualified);
        fits(&self.verb, about.verb)
            && resource
            && fits(&self.namespace, &about.namespace)
            && fits(&self.name, &about.name)
            && fits(&self.user, &about.user)
    }
}

/// Effect of a fault on a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Effect {
    /// Responds with 429 and a `Retry-After` header.
    TooManyRequests {
        /// Value of the header.
        retry_after_seconds: u64,
    },
    /// Fails the call with this status code (400–599); the call has no effect.
    Fail {
        /// Status code.
        code: u16,
    },
    /// Serves the call, then breaks the connection before the response arrives.
    LoseResponse,
    /// Writes the object first, so that a conditional write meets a real conflict.
    Race,
    /// Serves the call after this time on the server's clock.
    Delay(Duration),
    /// Sends the body in chunks of this many bytes, with a pause on the server's clock before each.
    SlowBody {
        /// Bytes in a chunk.
        bytes: usize,
        /// Pause before each chunk.
        pause: Duration,
    },
    /// Cuts the watch after this many events.
    CutWatch {
        /// Number of events before the cut.
        after: usize,
        /// Way to end the watch.
        how: Cut,
    },
    /// Starts the watch, but sends nothing until [`Faults::resume_watches`].
    PauseWatch,
}

/// The attributes of a call that faults match on.
#[derive(Clone, Debug)]
struct About {
    verb: &'static str,
    resource: String,
    qualified: String,
    namespace: String,
    name: String,
    user: String,
}

impl About {
    fn of(call: &Call) -> Option<Self> {
        let (verb, path) = call.resource_request()?;
        Some(Self {
            verb: verb.name(),
            qualified: if path.group.is_empty() {
                path.resource.clone()
            } else {
                format!("{}.{}", path.resource, path.group)
            },
            resource: path.resource,
            namespace: path.namespace,
            name: if verb == Verb::Create && path.name.is_empty() {
                name_in_body(call)
            } else {
                path.name
            },
            user: call.identity.name().to_owned(),
        })
    }
}

/// Returns the name of an object to create; empty if it cannot be parsed.
fn name_in_body(call: &Call) -> String {
    let body = decode::value(call, "", &mut Vec::new()).unwrap_or_default();
    let name = body.pointer("/metadata/name").and_then(Value::as_str);
    name.unwrap_or_default().to_owned()
}

#[derive(Debug)]
struct Rule {
    when: When,
    effect: Effect,
    seen: usize,
    struck: usize,
}

/// All faults of a server.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    rules: Vec<Rule>,
    watches: Vec<(About, Lever)>,
    races: u64,
}

impl Rules {
    /// Returns the effects on a call; each call counts once.
    pub(crate) fn strike(&mut self, call: &Call) -> Vec<Effect> {
        if self.rules.is_empty() {
            return Vec::new();
        }
        let Some(about) = About::of(call) else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        for rule in self.rules.iter_mut().filter(|rule| rule.when.matches(&about)) {
            rule.seen += 1;
            if rule.seen >= rule.when.nth && rule.when.times.is_none_or(|times| rule.struck < times) {
                rule.struck += 1;
                effects.push(rule.effect.clone());
            }
        }
        effects
    }

    /// Registers a new watch, so that faults can control it.
    pub(crate) fn hold(&mut self, call: &Call, effects: &[Effect]) -> Control {
        let (lever, control) = control::pair();
        for effect in effects {
            match effect {
                Effect::CutWatch { after, how } => lever.cut(*after, *how),
                Effect::PauseWatch => lever.pause(true),
                _ => {}
            }
        }
        self.watches.retain(|(_, lever)| !lever.is_dead());
        if let Some(about) = About::of(call) {
            self.watches.push((about, lever));
        }
        control
    }

    fn levers(&self, when: &When) -> impl Iterator<Item = &Lever> {
        self.watches
            .iter()
            .filter(|(about, _)| when.matches(about))
            .map(|(_, lever)| lever)
    }
}

/// Writes to the object that a call names, as another client would.
pub(crate) fn race(cx: &mut Context<'_>, call: &Call) {
    let Some((_, path)) = call.resource_request() else {
        return;
    };
    let Some(resource) = cx.state.registry.find(&path.group, &path.resource).cloned() else {
        return;
    };
    let key = resource.key(&path.namespace, &path.name);
    let Some(stored) = cx.state.store.get(resource.storage, &key).cloned() else {
        return;
    };
    cx.state.faults.races += 1;
    let mut object = Object::clone(&stored.object());
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        annotations["steersman.dev/race"] = json!(cx.state.faults.races.to_string());
    }
    cx.put(&resource, &key, object);
}

/// Controls the faults of a running server.
#[derive(Clone)]
pub struct Faults {
    server: Arc<Inner>,
}

impl Faults {
    pub(crate) fn new(server: Arc<Inner>) -> Self {
        Self { server }
    }

    /// Injects `effect` into matching calls from now on.
    pub fn inject(&self, when: When, effect: Effect) {
        self.server.lock().faults.rules.push(Rule {
            when,
            effect,
            seen: 0,
            struck: 0,
        });
    }

    /// Removes all injected faults; paused watches stay paused.
    pub fn clear(&self) {
        self.server.lock().faults.rules.clear();
    }

    /// Cuts all running watches that match.
    pub fn cut_watches(&self, when: &When, how: Cut) {
        self.server
            .lock()
            .faults
            .levers(when)
            .for_each(|lever| lever.cut(0, how));
    }

    /// Pauses the events of all running watches that match.
    pub fn pause_watches(&self, when: &When) {
        self.server
            .lock()
            .faults
            .levers(when)
            .for_each(|lever| lever.pause(true));
    }

    /// Resumes paused watches. No event is lost, unless the log was compacted meanwhile.
    pub fn resume_watches(&self, when: &When) {
        self.server
            .lock()
            .faults
            .levers(when)
            .for_each(|lever| lever.pause(false));
    }

    /// Counts the running watches that match.
    #[must_use]
    pub fn watches(&self, when: &When) -> usize {
        self.server
            .lock()
            .faults
            .levers(when)
            .filter(|lever| !lever.is_dead())
            .count()
    }

    /// Compacts the log: lists at, and watches from, older revisions get 410.
    pub fn compact(&self) {
        let mut state = self.server.lock();
        let revision = state.store.revision();
        state.store.compact(revision);
    }
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faults")
    }
}

/// Matches the calls of an identity.
impl From<&Identity> for When {
    fn from(identity: &Identity) -> Self {
        Self::any().user(identity.name())
    }
}
