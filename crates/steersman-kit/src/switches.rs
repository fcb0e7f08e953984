// SPDX-License-Identifier: Apache-2.0
//! Switches: annotations by which a person suspends an object, requests a reconcile, or only observes.
//!
//! # Guarantees
//! 1. A suspended object and its children are not written, except for the condition that says so. Its deletion works as always.
//! 2. A new token of the reconcile-now switch applies every child again, once, and is then in the status.
//! 3. No child, apply set or [external resource](crate::ExternalResource) of an observed object is written, and no finalizer is
//!    added. The status names the children that would be written. Its deletion works as always.
//! 4. While a switch is on, the status has a condition of the name of its annotation, and a metric counts the object.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kube::core::ObjectMeta;
use steersman_cluster::ClusterName;
use steersman_core::Mutex;
use steersman_runtime::{Declarations, Request};

use crate::{ConditionSet, ConditionStatus, Conditions, ObservedAt};

/// Names of the annotations that switch the work on an object; see [`Managed::switches`](crate::Managed::switches).
///
/// | annotation | effect |
/// |---|---|
/// | `steersman.dev/suspend: "true"` | nothing is reconciled until it is removed; deletion works |
/// | `steersman.dev/reconcile-now: <token>` | a new token reconciles the object and applies all children again |
/// | `steersman.dev/observe-only: "true"` | the status is computed, and no child is written |
///
/// A switch is on if the annotation has any value but `false` and the empty one.
///
/// ```
/// use steersman_kit::Switches;
///
/// let own_names = Switches::new().suspend("example.com/paused").no_observe_only();
/// # let _ = own_names;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches {
    suspend: Option<String>,
    reconcile_now: Option<String>,
    observe_only: Option<String>,
}

impl Switches {
    /// Annotation that suspends an object.
    pub const SUSPEND: &'static str = "steersman.dev/suspend";
    /// Annotation that requests a reconcile. Its value is a token, such as the time of the request.
    pub const RECONCILE_NOW: &'static str = "steersman.dev/reconcile-now";
    /// Annotation of an object whose children are not written.
    pub const OBSERVE_ONLY: &'static str = "steersman.dev/observe-only";

    /// All switches, with their default names.
    #[must_use]
    pub fn new() -> Self {
        Self {
            suspend: Some(Self::SUSPEND.to_owned()),
            reconcile_now: Some(Self::RECONCILE_NOW.to_owned()),
            observe_only: Some(Self::OBSERVE_ONLY.to_owned()),
        }
    }

    /// No switches: annotations have no effect.
    #[must_use]
    pub fn none() -> Self {
        Self {
            suspend: None,
            reconcile_now: None,
            observe_only: None,
        }
    }

    /// Name of the annotation that suspends an object.
    #[must_use]
    pub fn suspend(mut self, annotation: impl Into<String>) -> Self {
        self.suspend = Some(annotation.into());
        self
    }

    /// Name of the annotation that requests a reconcile.
    #[must_use]
    pub fn reconcile_now(mut self, annotation: impl Into<String>) -> Self {
        self.reconcile_now = Some(annotation.into());
        self
    }

    /// Name of the annotation of an object whose children are not written.
    #[must_use]
    pub fn observe_only(mut self, annotation: impl Into<String>) -> Self {
        self.observe_only = Some(annotation.into());
        self
    }

    /// Objects cannot be suspended.
    #[must_use]
    pub fn no_suspend(mut self) -> Self {
        self.suspend = None;
        self
    }

    /// Annotations do not request a reconcile.
    #[must_use]
    pub fn no_reconcile_now(mut self) -> Self {
        self.reconcile_now = None;
        self
    }

    /// Objects cannot be observed only.
    #[must_use]
    pub fn no_observe_only(mut self) -> Self {
        self.observe_only = None;
        self
    }

    /// Reads the switches of an object.
    pub(crate) fn of(&self, object: &ObjectMeta) -> Switched {
        let empty = BTreeMap::new();
        let annotations = object.annotations.as_ref().unwrap_or(&empty);
        let value = |key: &Option<String>| annotations.get(key.as_deref()?).cloned();
        let is_on = |key: &Option<String>| value(key).is_some_and(|value| !matches!(&*value, "" | "false"));
        Switched {
            is_suspended: is_on(&self.suspend),
            is_observed: is_on(&self.observe_only),
            token: value(&self.reconcile_now).filter(|token| !token.is_empty()),
        }
    }

    /// Returns true if a condition reports one of these switches.
    pub(crate) fn is_condition(&self, name: &str) -> bool {
        [&self.suspend, &self.observe_only]
            .into_iter()
            .any(|key| key.as_deref() == Some(name))
    }

    /// Sets the conditions of the switches that are on, and removes the others. `withheld` names the writes of an observed object.
    pub(crate) fn report<S: ConditionSet>(
        &self,
        on: &Switched,
        withheld: &[String],
        conditions: &mut Conditions<S>,
        at: ObservedAt,
    ) {
        let suspend = self.suspend.as_deref().filter(|_| on.is_suspended);
        let observe = self.observe_only.as_deref().filter(|_| on.is_observed);
        let is_on = |name: &str| suspend.or(observe) == Some(name);
        conditions.retain_named(|name| is_on(name) || !self.is_condition(name));
        let (name, reason, message) = match (suspend, observe, withheld) {
            (Some(name), _, _) => {
                let message = "nothing is reconciled until the annotation of this name is removed";
                (name, "Suspended", message.to_owned())
            }
            (None, Some(name), []) => (name, "ObserveOnly", "no child would be written".to_owned()),
            (None, Some(name), some) => (name, "ObserveOnly", format!("not written: {}", some.join(", "))),
            (None, None, _) => return,
        };
        conditions.set_other(name, ConditionStatus::True, reason, &message, at);
    }
}

impl Default for Switches {
    fn default() -> Self {
        Self::new()
    }
}

/// Switches of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Switched {
    pub(crate) is_suspended: bool,
    pub(crate) is_observed: bool,
    /// Value of the annotation that requests a reconcile.
    pub(crate) token: Option<String>,
}

/// The objects whose switches are on, and the handled tokens. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SwitchBoard(Arc<Board>);

#[derive(Debug, Default)]
struct Board {
    objects: Mutex<HashMap<Request, Switched>>,
    handled: AtomicU64,
}

impl SwitchBoard {
    /// Notes the switches of an object. Returns true if its children have to be applied again: it is not observed any more, or
    /// its token is new. `handled` is the token in its status.
    pub(crate) fn note(&self, object: &Request, on: &Switched, handled: Option<&str>) -> bool {
        let mut objects = self.0.objects.lock();
        let before = match *on == Switched::default() {
            true => objects.remove(object),
            false => objects.insert(object.clone(), on.clone()),
        };
        drop(objects);
        let before = before.unwrap_or_default();
        let is_new = on.token.is_some() && before.token != on.token && handled != on.token.as_deref();
        if is_new && !on.is_suspended {
            self.0.handled.fetch_add(1, Ordering::Relaxed);
        }
        is_new || before.is_observed && !on.is_observed
    }

    pub(crate) fn forget(&self, object: &Request) {
        self.0.objects.lock().remove(object);
    }

    pub(crate) fn forget_cluster(&self, cluster: &ClusterName) {
        self.0
            .objects
            .lock()
            .retain(|object, _| object.cluster() != cluster);
    }

    /// Declares the metrics of the switches.
    pub(crate) fn declare(&self, declarations: &mut Declarations) {
        let gauge = |switch: fn(&Switched) -> bool| {
            let board = self.clone();
            move || {
                let objects = board.0.objects.lock();
                objects.values().filter(|on| switch(on)).count() as f64
            }
        };
        let (name, help) = ("steersman_switched_objects", "Objects whose switch is on");
        let suspended = gauge(|on| on.is_suspended);
        declarations.gauge(name, help, Some(("switch", "suspend")), suspended);
        let observed = gauge(|on| on.is_observed);
        declarations.gauge(name, help, Some(("switch", "observe-only")), observed);
        let board = self.clone();
        declarations.counter(
            "steersman_reconcile_now_handled",
            "Requests by annotation to reconcile an object that were handled",
            None,
            move || board.0.handled.load(Ordering::Relaxed),
        );
    }
}

#[cfg(test)]
mod tests {
    use steersman_core::ObjectKey;

    use super::*;

    fn annotated(pairs: &[(&str, &str)]) -> ObjectMeta {
        let pairs = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ObjectMeta {
            annotations: Some(pairs.collect()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn a_switch_is_on_with_any_value_but_false() {
        let is_suspended = |value| {
            Switches::new()
                .of(&annotated(&[(Switches::SUSPEND, value)]))
                .is_suspended
        };
        assert!(is_suspended("true") && is_suspended("since Monday"));
        assert!(!is_suspended("false") && !is_suspended(""));
        let other = Switches::new().suspend("example.com/paused");
        assert!(!other.of(&annotated(&[(Switches::SUSPEND, "true")])).is_suspended);
        assert!(
            other
                .of(&annotated(&[("example.com/paused", "true")]))
                .is_suspended
        );
        let all = [
            (Switches::SUSPEND, "1"),
            (Switches::OBSERVE_ONLY, "1"),
            (Switches::RECONCILE_NOW, "1"),
        ];
        assert_eq!(Switches::none().of(&annotated(&all)), Switched::default());
    }

    #[test]
    fn guarantee_2_a_token_is_new_once() {
        let board = SwitchBoard::default();
        let object = Request::new(ClusterName::default(), ObjectKey::new("web", "one"));
        let token = |value: &str| Switched {
            token: Some(value.to_owned()),
            ..Switched::default()
        };
        assert!(board.note(&object, &token("1"), None));
        assert!(!board.note(&object, &token("1"), None));
        assert!(board.note(&object, &token("2"), Some("1")));
        board.forget(&object);
        assert!(!board.note(&object, &token("2"), Some("2")), "after a restart");
        assert_eq!(board.0.handled.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn children_are_applied_again_when_an_object_is_not_observed_any_more() {
        let board = SwitchBoard::default();
        let object = Request::new(ClusterName::default(), ObjectKey::new("web", "one"));
        let observed = Switched {
            is_observed: true,
            ..Switched::default()
        };
        assert!(!board.note(&object, &observed, None));
        assert!(board.note(&object, &Switched::default(), None));
        assert!(!board.note(&object, &Switched::default(), None));
        assert!(board.0.objects.lock().is_empty());
    }
}
