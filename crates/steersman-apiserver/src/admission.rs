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

mod attributes;
mod hook;
mod in_process;
mod review;
mod run;
mod selection;

use std::{sync::Arc, time::SystemTime};

use crate::{
    auth::Identity,
    crd::conversion::Conversion,
    handler::{self, Call, Reply, Target, timeout::Limit},
    policy::matching,
    server::Inner,
    state::Context,
    status::{Failure, Result},
    store::{Object, Stored},
};

pub(crate) use attributes::{Attributes, GroupVersionKind, Operation, Write};
pub(crate) use hook::{Call as HookCall, Hook, Hooks, InProcess, is_configuration, refresh, warnings};
pub use in_process::{AdmissionDenied, AdmissionRequest};

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
    /// The deadline of the request; `None` for a stream.
    pub(crate) deadline: Option<SystemTime>,
}

/// The hooks with `reinvocationPolicy: IfNeeded` that were called, by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    /// Hooks that a later hook or plugin made outdated by a change of the object.
    pub(crate) outdated: Vec<String>,
    /// Hooks that saw the last change of the object.
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
                // Boxed, so that requests without webhooks do not carry the space that a call needs.
                let outcome = Box::pin(task.run(server)).await;
                let name = &task.attributes.target.name;
                self.answers
                    .retain(|(phase, known, _)| *phase != task.phase || known.target.name != *name);
                self.answers
                    .push((task.phase, Arc::clone(&task.attributes), outcome));
            }
            Task::Convert(conversion) => {
                let result = Box::pin(conversion.run(server)).await;
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
    let deadline = Limit::of(admission.call).map(|limit| admission.call.received + limit.duration);
    let task = Admit {
        phase,
        deadline,
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
