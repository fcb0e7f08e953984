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

mod hook;
mod in_process;
mod review;
mod run;
mod selection;

use std::{sync::Arc, time::SystemTime};

use serde_json::{Value, json};

use crate::{
    auth::Identity,
    crd::conversion::Conversion,
    handler::{self, Call, Reply, Target, patch::whole},
    policy::matching,
    resource::api_version,
    server::Inner,
    state::Context,
    status::{Failure, Result},
    store::{Object, Stored},
};

pub(crate) use hook::{Call as HookCall, Hook, Hooks, InProcess, is_configuration, refresh};
pub use in_process::{AdmissionDenied, AdmissionRequest};

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

    /// Returns an object of this kind as clients see it. Objects of the resource's kind are in the stored form.
    fn shown(&self, target: &Target, object: &Object) -> Value {
        if *self == Self::of(target) {
            return whole(target, object);
        }
        let mut object = object.clone();
        let api_version = api_version(&self.group, &self.version);
        object.insert("apiVersion".to_owned(), Value::from(api_version));
        object.insert("kind".to_owned(), Value::from(self.kind.clone()));
        Value::Object(object)
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
    /// The kind of the objects, if it is not that of the resource. They are then not stored in this form.
    pub(crate) kind: Option<&'a GroupVersionKind>,
    pub(crate) dry_run: bool,
}

impl<'a> Write<'a> {
    pub(crate) fn create(target: &'a Target, object: &'a Object, dry_run: bool) -> Self {
        Self {
            operation: Operation::Create,
            target,
            object: Some(object),
            old: None,
            kind: None,
            dry_run,
        }
    }

    pub(crate) fn update(target: &'a Target, old: &'a Object, object: &'a Object, dry_run: bool) -> Self {
        Self {
            operation: Operation::Update,
            target,
            object: Some(object),
            old: Some(old),
            kind: None,
            dry_run,
        }
    }

    pub(crate) fn delete(target: &'a Target, old: &'a Object, dry_run: bool) -> Self {
        Self {
            operation: Operation::Delete,
            target,
            object: None,
            old: Some(old),
            kind: None,
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
        let kind = match self.kind {
            Some(kind) => kind.clone(),
            None => GroupVersionKind::of(self.target),
        };
        let shown = |object: &Object| kind.shown(self.target, object);
        Attributes {
            operation: self.operation,
            target: self.target.clone(),
            object: self.object.map(shown),
            old_object: self.old.map(shown),
            kind,
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

/// Work that a request waits for without the lock.
#[derive(Debug)]
pub(crate) enum Task {
    Admit(Admit),
    Convert(Conversion),
}

/// The hooks that an admission phase waits for.
#[derive(Debug)]
pub(crate) struct Admit {
    pub(crate) phase: Phase,
    pub(crate) attributes: Arc<Attributes>,
    /// The namespace of the request, for selectors.
    pub(crate) namespace: Option<Arc<Stored>>,
    /// The requested resource in its other versions and groups.
    pub(crate) equivalents: Vec<Target>,
    pub(crate) hooks: Arc<[Arc<Hook>]>,
    /// The rounds before this one.
    pub(crate) calls: Calls,
}

/// The hooks with `reinvocationPolicy: IfNeeded` that were called, by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    /// Those that were called before a later hook or plugin changed the object.
    pub(crate) outdated: Vec<String>,
    /// Those after which nothing changed the object.
    pub(crate) current: Vec<String>,
}

impl Calls {
    /// Notes that the object changed.
    pub(crate) fn outdate(&mut self) {
        self.outdated.append(&mut self.current);
    }
}

/// A phase of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Mutate,
    /// The second round of mutating hooks, for those that ask for it if the object changed after their call.
    Reinvoke,
    Validate,
}

/// The result of [`Admit`].
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The object that mutating hooks changed, in the stored form.
    pub(crate) object: Option<Object>,
    pub(crate) warnings: Vec<String>,
    pub(crate) calls: Calls,
    pub(crate) verdict: Result<()>,
}

impl Default for Outcome {
    fn default() -> Self {
        Self {
            object: None,
            warnings: Vec::new(),
            calls: Calls::default(),
            verdict: Ok(()),
        }
    }
}

/// The request that a handler admits.
#[derive(Debug)]
pub(crate) struct Admission<'a> {
    call: &'a Call,
    pub(crate) progress: &'a mut Progress,
}

/// The progress of one request through admission, kept between its attempts.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The time of the first attempt, and so of all attempts.
    began: Option<SystemTime>,
    /// The random numbers of earlier attempts.
    tape: Vec<u64>,
    answers: Vec<(Phase, Arc<Attributes>, Outcome)>,
    conversions: Vec<(Conversion, Result<Vec<Object>>)>,
    pending: Option<Task>,
    /// The objects of a deletecollection, and how many of them are deleted.
    collection: Option<(Vec<Arc<Stored>>, usize)>,
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

    /// Returns the objects of a deletecollection and the number of those that earlier attempts deleted.
    pub(crate) fn take_collection(&mut self) -> Option<(Vec<Arc<Stored>>, usize)> {
        self.collection.take()
    }

    /// Keeps the progress of a deletecollection if it stopped for a hook.
    pub(crate) fn keep_collection(&mut self, items: Vec<Arc<Stored>>, deleted: usize) {
        if self.pending.is_some() {
            self.collection = Some((items, deleted));
        }
    }

    /// Returns the work that the last attempt stopped for.
    pub(crate) fn take_pending(&mut self) -> Option<Task> {
        self.pending.take()
    }

    /// Does the work that the last attempt stopped for, and records the result. An earlier result of the same phase is
    /// dropped.
    pub(crate) async fn advance(&mut self, server: &Arc<Inner>, task: Task) {
        match task {
            Task::Admit(task) => {
                let outcome = task.run(server).await;
                let name = &task.attributes.target.name;
                self.answers
                    .retain(|(phase, known, _)| *phase != task.phase || known.target.name != *name);
                self.answers
                    .push((task.phase, Arc::clone(&task.attributes), outcome));
            }
            Task::Convert(conversion) => {
                let result = conversion.run(server).await;
                self.conversions.push((conversion, result));
            }
        }
    }

    /// Returns the result of a conversion, if the webhook has answered.
    pub(crate) fn converted(&self, conversion: &Conversion) -> Option<Result<Vec<Object>>> {
        let known = self
            .conversions
            .iter()
            .find(|(known, _)| known.is_same(conversion));
        known.map(|(_, result)| result.clone())
    }

    /// Requests a conversion; returns the failure that stops the handler.
    pub(crate) fn wait_for(&mut self, conversion: Conversion) -> Failure {
        self.pending = Some(Task::Convert(conversion));
        Failure::suspended()
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
///
/// If a hook changes the object, `plugins` run again on it, and after them the hooks that ask for a second round.
pub(crate) fn mutate(
    cx: &mut Context<'_>,
    write: Write<'_>,
    plugins: impl FnOnce(&mut Context<'_>, &mut Object) -> Result<()>,
) -> Result<Option<Object>> {
    let Some(first) = run(cx, Phase::Mutate, write, Calls::default())? else {
        return Ok(None);
    };
    let Some(changed) = first.object else {
        return Ok(None);
    };
    let mut object = changed.clone();
    plugins(cx, &mut object)?;
    let mut calls = first.calls;
    if object != changed {
        calls.outdate();
    }
    if calls.outdated.is_empty() {
        return Ok(Some(object));
    }
    let write = Write {
        object: Some(&object),
        ..write
    };
    let second = run(cx, Phase::Reinvoke, write, calls)?;
    Ok(second.and_then(|second| second.object).or(Some(object)))
}

/// Runs the validating phase on a valid object: policies, which need no network, and then the hooks.
pub(crate) fn validate(cx: &mut Context<'_>, write: Write<'_>) -> Result<()> {
    crate::policy::check(cx, write)?;
    run(cx, Phase::Validate, write, Calls::default()).map(|_| ())
}

/// Runs all phases on an object that is not stored in this form, such as a Scale or a Binding. Returns the object as the
/// mutating hooks leave it.
pub(crate) fn admit(cx: &mut Context<'_>, write: Write<'_>) -> Result<Option<Object>> {
    let changed = mutate(cx, write, |_, _| Ok(()))?;
    let object = changed.as_ref().or(write.object);
    validate(cx, Write { object, ..write })?;
    Ok(changed)
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
fn run(cx: &mut Context<'_>, phase: Phase, write: Write<'_>, calls: Calls) -> Result<Option<Outcome>> {
    let hooks = match phase {
        Phase::Mutate | Phase::Reinvoke => &cx.state.hooks.mutating,
        Phase::Validate => &cx.state.hooks.validating,
    };
    if hooks.is_empty() || hook::is_exempt(&write.target.resource) {
        return Ok(None);
    }
    let equivalents = matching::equivalents(write.target, &cx.state.registry);
    // Selectors and conditions are evaluated later.
    let selects =
        |hook: &Arc<Hook>| selection::by_rules(hook, write.operation, write.target, &equivalents).is_some();
    if !hooks.iter().any(selects) {
        return Ok(None);
    }
    let hooks = Arc::clone(hooks);
    let (Some(admission), Some(attributes)) = (&cx.admission, attributes(cx, write)) else {
        return Ok(None);
    };
    if let Some(outcome) = admission.progress.answer(phase, &attributes).cloned() {
        cx.warnings.extend(outcome.warnings.iter().cloned());
        outcome.verdict.clone()?;
        return Ok(Some(outcome));
    }
    let namespace = cx.find("", "namespaces", attributes.namespace()).cloned();
    let task = Admit {
        phase,
        attributes: Arc::new(attributes),
        namespace,
        equivalents,
        hooks,
        calls,
    };
    if let Some(admission) = &mut cx.admission {
        admission.progress.pending = Some(Task::Admit(task));
    }
    Err(Failure::suspended())
}
