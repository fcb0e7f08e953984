// SPDX-License-Identifier: Apache-2.0
//! Faults: what goes wrong between clients and real servers, on purpose and repeatably.
//!
//! # Guarantees
//! 1. A fault strikes exactly the calls that its [`When`] matches, counted in the order in which they arrive.
//! 2. A conflict is a real one: somebody else's write comes first, and watchers see it.
//! 3. A write whose response is lost has been applied.
//!
//! # Example
//! ```
//! use steersman_apiserver::{ApiServer, fault::{Effect, When}};
//!
//! let server = ApiServer::builder().build();
//! // The second update of any lease is applied, but its writer never hears of it.
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

/// Which calls a fault strikes. Everything that is not said matches.
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
    /// Every call for objects.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// Calls of this verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    #[must_use]
    pub fn verb(verb: impl Into<String>) -> Self {
        Self {
            verb: Some(verb.into()),
            ..Self::default()
        }
    }

    /// Only for this resource: `pods`, or `deployments.apps` if the group matters.
    #[must_use]
    pub fn resource(mut self, resource: impl Into<String>) -> Self {
        self.resource = Some(resource.into());
        self
    }

    /// Only in this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Only for the object of this name. A create is for the name in its body, if it has one: not a generated one.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only for this user.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Only from the n-th matching call on, counted from 1; and only that one, unless [`Self::times`] says more.
    #[must_use]
    pub fn nth(mut self, nth: usize) -> Self {
        self.nth = nth;
        self.times.get_or_insert(1);
        self
    }

    /// At most this many calls. The default is all of them, or one after [`Self::nth`].
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

/// What happens to a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Effect {
    /// 429 with a `Retry-After` header.
    TooManyRequests {
        /// What the header says.
        retry_after_seconds: u64,
    },
    /// The call fails with this status code (400–599) and does nothing.
    Fail {
        /// The code.
        code: u16,
    },
    /// The call is served, but its response never arrives: the connection breaks.
    LoseResponse,
    /// Somebody else changes the object first, so that a conditional write meets a real conflict.
    Race,
    /// The call is served after this time on the server's clock.
    Delay(Duration),
    /// The body comes in pieces of this many bytes, with this time on the server's clock before each.
    SlowBody {
        /// Bytes in a piece.
        bytes: usize,
        /// Time before each piece.
        pause: Duration,
    },
    /// The watch is cut after this many events.
    CutWatch {
        /// How many events come before the cut.
        after: usize,
        /// How it is cut.
        how: Cut,
    },
    /// The watch begins, but nothing comes until [`Faults::resume_watches`].
    PauseWatch,
}

/// What a call is about, as far as faults care.
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

/// The name of an object that is to be created; empty if it cannot be read.
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
    /// The effects that strike a call; each call counts once.
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

    /// Takes hold of a watch that begins.
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

/// Somebody else writes to the object that a call names.
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

/// The faults of a running server.
#[derive(Clone)]
pub struct Faults {
    server: Arc<Inner>,
}

impl Faults {
    pub(crate) fn new(server: Arc<Inner>) -> Self {
        Self { server }
    }

    /// Lets `effect` strike from now on.
    pub fn inject(&self, when: When, effect: Effect) {
        self.server.lock().faults.rules.push(Rule {
            when,
            effect,
            seen: 0,
            struck: 0,
        });
    }

    /// Forgets all faults that were injected; watches that are paused stay so.
    pub fn clear(&self) {
        self.server.lock().faults.rules.clear();
    }

    /// Cuts all running watches that match, now.
    pub fn cut_watches(&self, when: &When, how: Cut) {
        self.server
            .lock()
            .faults
            .levers(when)
            .for_each(|lever| lever.cut(0, how));
    }

    /// Holds back the events of all running watches that match.
    pub fn pause_watches(&self, when: &When) {
        self.server
            .lock()
            .faults
            .levers(when)
            .for_each(|lever| lever.pause(true));
    }

    /// Lets paused watches go on; nothing was lost meanwhile, unless the log was compacted.
    pub fn resume_watches(&self, when: &When) {
        self.server
            .lock()
            .faults
            .levers(when)
            .for_each(|lever| lever.pause(false));
    }

    /// How many watches are running that match.
    #[must_use]
    pub fn watches(&self, when: &When) -> usize {
        self.server
            .lock()
            .faults
            .levers(when)
            .filter(|lever| !lever.is_dead())
            .count()
    }

    /// Forgets the past: lists at, and watches from, older revisions get 410.
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

/// Whose calls are struck, as a shorthand.
impl From<&Identity> for When {
    fn from(identity: &Identity) -> Self {
        Self::any().user(identity.name())
    }
}
