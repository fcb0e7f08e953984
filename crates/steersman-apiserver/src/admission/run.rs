// SPDX-License-Identifier: Apache-2.0
//! Runs the hooks of a phase, without the server's lock.

use std::sync::Arc;

use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::Value;

use super::{
    Admit, Attributes, Outcome, Phase,
    hook::{Call, Hook},
    in_process::AdmissionRequest,
    review::{self, Unpatched},
    selection,
};
use crate::{
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

/// What a hook answered.
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
            let selected = selection::select(hook, &attributes, &self.equivalents, self.namespace.as_deref());
            let matched = match selected {
                Ok(Some(matched)) => matched,
                Ok(None) => continue,
                Err(failure) => return outcome.failed(failure),
            };
            let answer = call(server, hook, &attributes, &matched, self.phase).await;
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
            match selection::select(
                hook,
                &self.attributes,
                &self.equivalents,
                self.namespace.as_deref(),
            ) {
                Ok(Some(matched)) => selected.push((hook, matched)),
                Ok(None) => {}
                Err(failure) => return outcome.failed(failure),
            }
        }
        let mut calls: FuturesUnordered<_> = selected
            .iter()
            .map(|(hook, matched)| async move {
                let answer = call(server, hook, &self.attributes, matched, self.phase).await;
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

/// Calls one hook.
async fn call(
    server: &Arc<Inner>,
    hook: &Hook,
    attributes: &Attributes,
    matched: &Matched,
    phase: Phase,
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
            let answer = client.post(server, &sent, Some(hook.timeout)).await;
            let response = answer
                .and_then(|answer| review::check_version(hook.review, &answer).map(|()| answer))
                .map_err(|error| format!("failed to call webhook: {error}"))
                .and_then(|answer| {
                    let response = review::response(hook.review, &uid, phase, &answer);
                    response.map_err(|error| format!("received invalid webhook response: {error}"))
                });
            match response {
                Ok(response) => admitted(hook, attributes, matched, &request, response),
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
                Ok(()) => changed(attributes, matched, object, Vec::new()),
            }
        }
        Call::Validating(closure) => match closure(&AdmissionRequest::new(request)) {
            Err(denied) => Admitted::rejected(Rejection::Final(denied.failure(&hook.name))),
            Ok(()) => changed(attributes, matched, None, Vec::new()),
        },
    }
}

/// Reads a valid response and applies its patch.
fn admitted(
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
        return changed(attributes, matched, None, response.warnings);
    }
    let object = request.get("object").filter(|object| !object.is_null());
    match review::patched(object, &response, &hook.name) {
        Ok(object) => changed(attributes, matched, object, response.warnings),
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
fn changed(
    attributes: &Attributes,
    matched: &Matched,
    object: Option<Value>,
    warnings: Vec<String>,
) -> Admitted {
    let decoded: Result<Option<Object>> = object
        .map(|object| selection::from_version(attributes, matched, object))
        .transpose();
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
