// SPDX-License-Identifier: Apache-2.0
//! The admission pipeline: the place in a write where webhooks, policies and in-process hooks run.
//!
//! A write is handled under the server's lock, and webhooks wait for the network, so they cannot run there. A handler
//! that reaches an admission phase with work to do therefore records the work in its [`Progress`], stops without a
//! change to the state, and releases the lock. The server does the work and handles the request again. The handler finds
//! the answer for the same input and continues.
//!
//! # Guarantees
//! 1. A phase runs again if its input changed meanwhile, because another request changed the stored object: as the real
//!    server's `GuaranteedUpdate`, which repeats admission for each attempt.
//! 2. Each attempt of a request has the same time, uids and generated names.
//! 3. Without hooks a phase takes one look at an empty list.
//!
//! # Order
//! As in kube-apiserver: mutating plugins, mutating hooks, validation, validating plugins, validating policies,
//! validating hooks, quota.

use std::{sync::Arc, time::SystemTime};

use serde_json::{Value, json};

use crate::{
    auth::Identity,
    handler::{self, Call, Reply, Target, patch::whole},
    resource::api_version,
    state::Context,
    status::{Failure, Result},
    store::{Object, Stored},
};

/// The operation that is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// A group, version and kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupVersionKind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
}

impl GroupVersionKind {
    pub(crate) fn of(target: &Target) -> Self {
        Self {
            group: target.resource.group.clone(),
            version: target.version().name.clone(),
            kind: target.resource.kind.clone(),
        }
    }

    pub(crate) fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }
}

/// The write that is admitted, as hooks see it.
#[derive(Clone, Debug)]
pub(crate) struct Attributes {
    pub(crate) operation: Operation,
    /// The requested resource, subresource, namespace and name. The name is empty before it is generated.
    pub(crate) target: Target,
    /// The kind of the object; for subresources such as `scale` it differs from the kind of the resource.
    pub(crate) kind: GroupVersionKind,
    /// The new object in the requested version, with `apiVersion` and `kind`. Empty for deletions.
    pub(crate) object: Option<Value>,
    /// The stored object in the requested version, with `apiVersion` and `kind`. Empty for creates.
    pub(crate) old_object: Option<Value>,
    /// The options of the request, such as `CreateOptions`.
    pub(crate) options: Value,
    pub(crate) dry_run: bool,
    pub(crate) user: Identity,
}

impl Attributes {
    /// Returns the namespace of the request; for a Namespace, its name.
    pub(crate) fn namespace(&self) -> &str {
        if self.target.resource.is("", "namespaces") {
            &self.target.name
        } else {
            &self.target.namespace
        }
    }

    /// Returns true if both are the same write of the same objects.
    fn is_same(&self, other: &Self) -> bool {
        self.operation == other.operation
            && self.target.name == other.target.name
            && self.kind == other.kind
            && self.object == other.object
            && self.old_object == other.old_object
    }
}

/// A write before its [`Attributes`] are needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write<'a> {
    pub(crate) operation: Operation,
    pub(crate) target: &'a Target,
    /// In the stored form.
    pub(crate) object: Option<&'a Object>,
    /// In the stored form.
    pub(crate) old: Option<&'a Object>,
    pub(crate) dry_run: bool,
}

impl<'a> Write<'a> {
    pub(crate) fn create(target: &'a Target, object: &'a Object, dry_run: bool) -> Self {
        Self {
            operation: Operation::Create,
            target,
            object: Some(object),
            old: None,
            dry_run,
        }
    }

    pub(crate) fn update(target: &'a Target, old: &'a Object, object: &'a Object, dry_run: bool) -> Self {
        Self {
            operation: Operation::Update,
            target,
            object: Some(object),
            old: Some(old),
            dry_run,
        }
    }

    pub(crate) fn delete(target: &'a Target, old: &'a Object, dry_run: bool) -> Self {
        Self {
            operation: Operation::Delete,
            target,
            object: None,
            old: Some(old),
            dry_run,
        }
    }

    fn attributes(self, call: &Call) -> Attributes {
        let options = match self.operation {
            Operation::Create => options(call, "CreateOptions"),
            Operation::Update => options(call, "UpdateOptions"),
            Operation::Delete => crate::handler::delete::shown_options(call),
            Operation::Connect => Value::Null,
        };
        Attributes {
            operation: self.operation,
            target: self.target.clone(),
            kind: GroupVersionKind::of(self.target),
            object: self.object.map(|object| whole(self.target, object)),
            old_object: self.old.map(|old| whole(self.target, old)),
            options,
            dry_run: self.dry_run,
            user: call.identity.clone(),
        }
    }
}

/// Returns the options of a create or update.
fn options(call: &Call, kind: &str) -> Value {
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    let dry_run: Vec<&str> = call.query.all("dryRun").collect();
    if !dry_run.is_empty() {
        options["dryRun"] = json!(dry_run);
    }
    for key in ["fieldManager", "fieldValidation"] {
        if let Some(value) = call.query.filled(key) {
            options[key] = json!(value);
        }
    }
    options
}

/// Work that an admission phase waits for.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) phase: Phase,
    pub(crate) attributes: Arc<Attributes>,
    /// The namespace of the request, for selectors.
    pub(crate) namespace: Option<Arc<Stored>>,
}

impl Task {
    /// Runs the hooks of the phase that select the write.
    #[expect(clippy::unused_async, reason = "no hook waits yet")]
    pub(crate) async fn run(&self) -> Outcome {
        Outcome {
            object: None,
            warnings: Vec::new(),
            verdict: Ok(()),
        }
    }
}

/// A phase of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Mutate,
    Validate,
}

/// The result of a [`Task`].
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The object that mutating hooks changed, in the stored form.
    pub(crate) object: Option<Object>,
    pub(crate) warnings: Vec<String>,
    pub(crate) verdict: Result<()>,
}

/// The request that a handler admits.
#[derive(Debug)]
pub(crate) struct Admission<'a> {
    call: &'a Call,
    progress: &'a mut Progress,
}

/// The progress of one request through admission, kept between its attempts.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The time of the first attempt, and so of all attempts.
    began: Option<SystemTime>,
    /// The random numbers of earlier attempts.
    tape: Vec<u64>,
    answers: Vec<(Phase, Arc<Attributes>, Outcome)>,
    pending: Option<Task>,
}

impl Progress {
    /// Handles the request once more. Returns its warnings beside the reply: failures have warnings, too.
    pub(crate) fn attempt(&mut self, cx: &mut Context<'_>, call: &Call) -> (Result<Reply>, Vec<String>) {
        let now = cx.now;
        cx.state.random.start_tape(std::mem::take(&mut self.tape));
        let mut attempt = Context {
            state: &mut *cx.state,
            now: *self.began.get_or_insert(now),
            warnings: Vec::new(),
            admission: Some(Admission {
                call,
                progress: &mut *self,
            }),
        };
        let reply = handler::dispatch(&mut attempt, call);
        let warnings = attempt.warnings;
        self.tape = cx.state.random.take_tape();
        (reply, warnings)
    }

    /// Returns the work that the last attempt stopped for.
    pub(crate) fn take_pending(&mut self) -> Option<Task> {
        self.pending.take()
    }

    /// Records the result of a task; it replaces an earlier result of the same phase.
    pub(crate) fn record(&mut self, task: &Task, outcome: Outcome) {
        self.answers.retain(|(phase, known, _)| {
            *phase != task.phase || known.target.name != task.attributes.target.name
        });
        self.answers
            .push((task.phase, Arc::clone(&task.attributes), outcome));
    }

    fn answer(&self, phase: Phase, attributes: &Attributes) -> Option<&Outcome> {
        let known = |(known, input, _): &&(Phase, Arc<Attributes>, Outcome)| {
            *known == phase && input.is_same(attributes)
        };
        self.answers.iter().find(known).map(|(_, _, outcome)| outcome)
    }
}

/// Runs the mutating hooks on a new or updated object, in the stored form. Returns the changed object; `None` if no hook
/// changed it.
pub(crate) fn mutate(cx: &mut Context<'_>, write: Write<'_>) -> Result<Option<Object>> {
    Ok(run(cx, Phase::Mutate, write)?.and_then(|outcome| outcome.object))
}

/// Runs the validating phase on a valid object: policies, which need no network, and then the hooks.
pub(crate) fn validate(cx: &mut Context<'_>, write: Write<'_>) -> Result<()> {
    crate::policy::check(cx, write)?;
    run(cx, Phase::Validate, write).map(|_| ())
}

/// Returns a write as hooks and policies see it; `None` if no request asked for it.
pub(crate) fn attributes(cx: &Context<'_>, write: Write<'_>) -> Option<Attributes> {
    Some(write.attributes(cx.admission.as_ref()?.call))
}

/// Returns the user whose request is handled; `None` if no request asked for the write.
pub(crate) fn user<'a>(cx: &'a Context<'_>) -> Option<&'a Identity> {
    cx.admission.as_ref().map(|admission| &admission.call.identity)
}

/// Returns true if the handler stopped for a task, and so its failure is not the answer.
pub(crate) fn is_waiting(cx: &Context<'_>) -> bool {
    let admission = cx.admission.as_ref();
    admission.is_some_and(|admission| admission.progress.pending.is_some())
}

/// Returns the outcome of a phase, or stops the handler until there is one.
fn run(cx: &mut Context<'_>, phase: Phase, write: Write<'_>) -> Result<Option<Outcome>> {
    if !is_wanted(cx, phase, write) {
        return Ok(None);
    }
    let (Some(admission), Some(attributes)) = (&cx.admission, attributes(cx, write)) else {
        return Ok(None);
    };
    if let Some(outcome) = admission.progress.answer(phase, &attributes).cloned() {
        cx.warnings.extend(outcome.warnings.iter().cloned());
        outcome.verdict.clone()?;
        return Ok(Some(outcome));
    }
    let namespace = cx.find("", "namespaces", attributes.namespace()).cloned();
    let task = Task {
        phase,
        attributes: Arc::new(attributes),
        namespace,
    };
    if let Some(admission) = &mut cx.admission {
        admission.progress.pending = Some(task);
    }
    Err(Failure::suspended())
}

/// Returns true if a hook might select the write; selectors and conditions are evaluated later.
fn is_wanted(_cx: &Context<'_>, _phase: Phase, _write: Write<'_>) -> bool {
    false
}
