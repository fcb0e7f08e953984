// SPDX-License-Identifier: Apache-2.0
//! Runs the hooks of a phase, without the server's lock.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::Value;

use super::{
    Admit, Attributes, GroupVersionKind, Outcome, Phase,
    hook::{Call, Hook},
    in_process::AdmissionRequest,
    review::{self, Unpatched},
    selection,
};
use crate::{
    crd::conversion::{convert_one, has_webhook},
    policy::matching::Matched,
    server::Inner,
    status::{Failure, Result},
    store::Object,
};

/// Why a hook did not admit a write.
enum Rejection {
    /// The hook denied it, or the server failed.
    Final(Failure),
    /// The hook could not be called, or its response is not valid: subject to the failure policy.
    Call(String),
}

/// The answer of a hook.
struct Admitted {
    /// The changed object, in the stored form.
    object: Option<Object>,
    warnings: Vec<String>,
    verdict: std::result::Result<(), Rejection>,
}

impl Admitted {
    fn rejected(rejection: Rejection) -> Self {
        Self {
            object: None,
            warnings: Vec::new(),
            verdict: Err(rejection),
        }
    }
}

impl Admit {
    /// Runs the hooks of the phase that select the write.
    pub(crate) async fn run(&self, server: &Arc<Inner>) -> Outcome {
        match self.phase {
            Phase::Mutate | Phase::Reinvoke => self.mutate(server).await,
            Phase::Validate => self.validate(server).await,
        }
    }

    /// Calls the mutating hooks one after the other. Each gets the object as the one before left it.
    async fn mutate(&self, server: &Arc<Inner>) -> Outcome {
        let mut attributes = Attributes::clone(&self.attributes);
        let mut outcome = Outcome {
            calls: self.calls.clone(),
            ..Outcome::default()
        };
        let is_again = self.phase == Phase::Reinvoke;
        for hook in self.hooks.iter() {
            if is_again && !outcome.calls.outdated.contains(&hook.key()) {
                continue;
            }
            let (matched, shown) = match self.select(server, hook, &attributes).await {
                Ok(Some(selected)) => selected,
                Ok(None) => continue,
                Err(failure) => return outcome.failed(failure),
            };
            let answer = self.call(server, hook, &shown, &matched).await;
            outcome.warnings.extend(answer.warnings);
            if let Some(object) = answer.object {
                let shown = attributes.kind.shown(&attributes.target, &object);
                if attributes.object.as_ref() != Some(&shown) {
                    outcome.calls.outdate();
                    attributes.object = Some(shown);
                }
                outcome.object = Some(object);
            }
            if hook.reinvokes {
                outcome.calls.current.push(hook.key());
            }
            match answer.verdict {
                Ok(()) => {}
                Err(Rejection::Call(_)) if hook.ignores_failure => {}
                Err(rejection) => return outcome.failed(rejection.failure(hook)),
            }
        }
        outcome
    }

    /// Calls the validating hooks at once. The first rejection to arrive is the answer.
    async fn validate(&self, server: &Arc<Inner>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut selected = Vec::new();
        for hook in self.hooks.iter() {
            match self.select(server, hook, &self.attributes).await {
                Ok(Some((matched, shown))) => selected.push((hook, matched, shown)),
                Ok(None) => {}
                Err(failure) => return outcome.failed(failure),
            }
        }
        let mut calls: FuturesUnordered<_> = selected
            .iter()
            .map(|(hook, matched, shown)| async move {
                let answer = self.call(server, hook, shown, matched).await;
                (hook, answer)
            })
            .collect();
        let mut failure = None;
        while let Some((hook, answer)) = calls.next().await {
            outcome.warnings.extend(answer.warnings);
            match answer.verdict {
                Ok(()) => {}
                Err(Rejection::Call(_)) if hook.ignores_failure => {}
                Err(rejection) => drop(failure.get_or_insert_with(|| rejection.failure(hook))),
            }
        }
        match failure {
            Some(failure) => outcome.failed(failure),
            None => outcome,
        }
    }
}

impl Admit {
    /// Decides whether a hook is called. Returns the version through which it is selected, and the write with its objects
    /// in that version if a conversion webhook is needed for that.
    async fn select(
        &self,
        server: &Arc<Inner>,
        hook: &Hook,
        attributes: &Attributes,
    ) -> Result<Option<(Matched, Attributes)>> {
        let namespace = self.namespace.as_deref();
        let Some(matched) = selection::select(hook, attributes, &self.equivalents, namespace) else {
            return Ok(None);
        };
        let mut shown = attributes.clone();
        let versions = (attributes.target.version, matched.version);
        if has_webhook(&matched.resource) && attributes.kind == GroupVersionKind::of(&attributes.target) {
            for object in [&mut shown.object, &mut shown.old_object].into_iter().flatten() {
                if let Value::Object(fields) = object {
                    let converted = convert_one(server, &matched.resource, versions, fields.clone()).await;
                    let converted = converted.map_err(|failure| Failure::internal(failure.message()))?;
                    *object = GroupVersionKind::of(&matched).shown(&matched, &converted);
                }
            }
        }
        let is_met = selection::meets_conditions(hook, &shown, &matched)?;
        Ok(is_met.then_some((matched, shown)))
    }

    /// Calls one hook.
    async fn call(
        &self,
        server: &Arc<Inner>,
        hook: &Hook,
        attributes: &Attributes,
        matched: &Matched,
    ) -> Admitted {
        if attributes.dry_run && hook.has_side_effects {
            let message = format!("admission webhook {:?} does not support dry run", hook.name);
            return Admitted::rejected(Rejection::Final(Failure::bad_request(message)));
        }
        let uid = server.lock().random.uid();
        let request = review::request(attributes, matched, &uid);
        match &hook.call {
            Call::Webhook(Some(client)) => {
                let sent = review::review(hook.review, &request);
                let answer = client.post(server, &sent, Some(self.timeout(server, hook))).await;
                let response = answer
                    .and_then(|answer| review::check_version(hook.review, &answer).map(|()| answer))
                    .map_err(|error| format!("failed to call webhook: {error}"))
                    .and_then(|answer| {
                        let response = review::response(hook.review, &uid, self.phase, &answer);
                        response.map_err(|error| format!("received invalid webhook response: {error}"))
                    });
                match response {
                    Ok(response) => admitted(server, hook, attributes, matched, &request, response).await,
                    Err(why) => Admitted::rejected(Rejection::Call(why)),
                }
            }
            Call::Webhook(None) => {
                let why = "could not get REST client: webhook configuration must have either service or URL";
                Admitted::rejected(Rejection::Call(why.to_owned()))
            }
            Call::Mutating(closure) => {
                let mut object = request.get("object").cloned().filter(|object| !object.is_null());
                let request = AdmissionRequest::new(request);
                let verdict = match &mut object {
                    Some(object) => closure(&request, object),
                    None => Ok(()),
                };
                match verdict {
                    Err(denied) => Admitted::rejected(Rejection::Final(denied.failure(&hook.name))),
                    Ok(()) => changed(server, attributes, matched, object, Vec::new()).await,
                }
            }
            Call::Validating(closure) => match closure(&AdmissionRequest::new(request)) {
                Err(denied) => Admitted::rejected(Rejection::Final(denied.failure(&hook.name))),
                Ok(()) => changed(server, attributes, matched, None, Vec::new()).await,
            },
        }
    }

    /// Returns the timeout of a call: that of the hook, but not more than the request has left.
    fn timeout(&self, server: &Arc<Inner>, hook: &Hook) -> Duration {
        let left = |deadline: SystemTime| deadline.duration_since(server.clock.now()).unwrap_or_default();
        self.deadline
            .map_or(hook.timeout, |deadline| hook.timeout.min(left(deadline)))
    }
}

impl Outcome {
    fn failed(mut self, failure: Failure) -> Self {
        self.verdict = Err(failure);
        self
    }
}

impl Rejection {
    fn failure(self, hook: &Hook) -> Failure {
        match self {
            Self::Final(failure) => failure,
            Self::Call(why) => Failure::internal(format!("failed calling webhook {:?}: {why}", hook.name)),
        }
    }
}

/// Reads a valid response and applies its patch.
async fn admitted(
    server: &Arc<Inner>,
    hook: &Hook,
    attributes: &Attributes,
    matched: &Matched,
    request: &Value,
    response: review::Response,
) -> Admitted {
    if !response.allowed {
        let denial = response.denial(&hook.name);
        return Admitted {
            warnings: response.warnings,
            ..Admitted::rejected(Rejection::Final(denial))
        };
    }
    if response.patch.is_empty() {
        return changed(server, attributes, matched, None, response.warnings).await;
    }
    let object = request.get("object").filter(|object| !object.is_null());
    match review::patched(object, &response, &hook.name) {
        Ok(object) => changed(server, attributes, matched, object, response.warnings).await,
        Err(Unpatched::Call(why)) => Admitted {
            warnings: response.warnings,
            ..Admitted::rejected(Rejection::Call(why))
        },
        Err(Unpatched::Server(why)) => Admitted {
            warnings: response.warnings,
            ..Admitted::rejected(Rejection::Final(Failure::internal(why)))
        },
    }
}

/// Decodes the object that a hook returned.
async fn changed(
    server: &Arc<Inner>,
    attributes: &Attributes,
    matched: &Matched,
    object: Option<Value>,
    warnings: Vec<String>,
) -> Admitted {
    let decoded = match object {
        Some(object) => decoded(server, attributes, matched, object).await.map(Some),
        None => Ok(None),
    };
    match decoded {
        Ok(object) => Admitted {
            object,
            warnings,
            verdict: Ok(()),
        },
        Err(failure) => Admitted {
            warnings,
            ..Admitted::rejected(Rejection::Final(failure))
        },
    }
}

/// Decodes an object from the version that a hook got to the requested one.
async fn decoded(
    server: &Arc<Inner>,
    attributes: &Attributes,
    matched: &Matched,
    object: Value,
) -> Result<Object> {
    let object = selection::from_version(attributes, matched, object)?;
    if attributes.kind != GroupVersionKind::of(&attributes.target) {
        return Ok(object);
    }
    let versions = (matched.version, attributes.target.version);
    let converted = convert_one(server, &matched.resource, versions, object).await;
    converted.map_err(|failure| Failure::internal(failure.message()))
}
