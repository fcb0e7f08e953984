// SPDX-License-Identifier: Apache-2.0
//! The admission plugin `ValidatingAdmissionPolicy`: policies in CEL, which bindings apply to writes.
//!
//! # Guarantees
//! 1. A policy without a binding has no effect. Neither has a binding without its policy.
//! 2. Policies do not see writes of policies and bindings.
//! 3. Without bindings, a write takes one look at an empty list.
//! 4. A policy with an expression that this server cannot evaluate is rejected when it is created.
//!
//! # Differences from kube-apiserver
//! A policy applies from the next request on; the real server takes up to a second. If several policies deny a write,
//! the answer names the first by name; the real server picks one at random.

pub(crate) mod authorization;
pub(crate) mod compiled;
pub(crate) mod matching;
mod params;
pub(crate) mod type_check;
pub(crate) mod verdict;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    admission::{self, Attributes, Write},
    handler::patch::whole,
    state::Context,
    status::{Failure, Result},
    store::{Object, Stored},
};

use compiled::Compiled;
use matching::Matched;
use params::ParamKind;
use verdict::{Denial, Inputs};

const GROUP: &str = "admissionregistration.k8s.io";

/// The policies with bindings, as of the last change to any of them.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    hooks: Arc<[Hook]>,
    is_stale: bool,
}

/// A policy and its bindings.
#[derive(Debug)]
struct Hook {
    name: String,
    spec: Value,
    compiled: Compiled,
    bindings: Vec<Binding>,
}

#[derive(Debug)]
struct Binding {
    name: String,
    spec: Value,
}

impl Policies {
    /// Notes a write of an object of this group and kind.
    pub(crate) fn note(&mut self, group: &str, plural: &str) {
        if group == GROUP && plural.starts_with("validatingadmissionpolic") {
            self.is_stale = true;
        }
    }

    fn is_empty(&self) -> bool {
        self.hooks.is_empty() && !self.is_stale
    }
}

/// Returns the policies that have bindings, in the order of their names.
fn hooks(cx: &mut Context<'_>) -> Arc<[Hook]> {
    if cx.state.policies.is_stale {
        let spec = |stored: &Stored| stored.object().get("spec").cloned().unwrap_or_default();
        let bindings: Vec<Binding> = cx
            .all(GROUP, "validatingadmissionpolicybindings")
            .map(|stored| Binding {
                name: stored.text("name"),
                spec: spec(stored),
            })
            .collect();
        let mut hooks: Vec<Hook> = cx
            .all(GROUP, "validatingadmissionpolicies")
            .map(|stored| {
                let spec = spec(stored);
                Hook {
                    name: stored.text("name"),
                    compiled: Compiled::default(),
                    spec,
                    bindings: Vec::new(),
                }
            })
            .collect();
        for binding in bindings {
            if let Some(hook) = hooks
                .iter_mut()
                .find(|hook| binding.spec["policyName"] == hook.name.as_str())
            {
                hook.bindings.push(binding);
            }
        }
        hooks.retain(|hook| !hook.bindings.is_empty());
        for hook in &mut hooks {
            hook.compiled = Compiled::of(&hook.spec);
        }
        cx.state.policies = Policies {
            hooks: hooks.into(),
            is_stale: false,
        };
    }
    Arc::clone(&cx.state.policies.hooks)
}

/// Returns true if policies do not apply to writes of this kind.
fn is_exempt(write: &Write<'_>) -> bool {
    let resource = &write.target.resource;
    resource.group == GROUP
        && matches!(
            resource.plural.as_str(),
            "validatingadmissionpolicies"
                | "validatingadmissionpolicybindings"
                | "mutatingadmissionpolicies"
                | "mutatingadmissionpolicybindings"
        )
}

/// Evaluates all policies on a write.
///
/// # Errors
/// Returns the first denial.
pub(crate) fn check(cx: &mut Context<'_>, write: Write<'_>) -> Result<()> {
    if cx.state.policies.is_empty() || is_exempt(&write) {
        return Ok(());
    }
    let hooks = hooks(cx);
    let Some(attributes) = admission::attributes(cx, write) else {
        return Ok(());
    };
    let namespace = namespace_of(cx, &attributes);
    let mut evaluation = Evaluation {
        cx,
        attributes: &attributes,
        namespace: namespace.as_ref(),
        denials: Vec::new(),
        warnings: Vec::new(),
    };
    hooks.iter().for_each(|hook| evaluation.apply(hook));
    let Evaluation {
        denials, warnings, ..
    } = evaluation;
    cx.warnings.extend(warnings);
    match denials.into_iter().next() {
        Some((message, denial)) => {
            let of = attributes.target.resource.qualified();
            let name = &attributes.target.name;
            Err(Failure::denied_by_policy(of, name, &message, &denial.reason))
        }
        None => Ok(()),
    }
}

/// Returns the namespace of a write; for a Namespace, the stored one.
fn namespace_of(cx: &Context<'_>, attributes: &Attributes) -> Option<Value> {
    let stored = cx.find("", "namespaces", attributes.namespace())?;
    let mut namespace = Object::clone(&stored.object());
    if let Some(Value::Object(metadata)) = namespace.get_mut("metadata") {
        metadata.retain(|key, _| key != "managedFields" && key != "ownerReferences");
    }
    Some(Value::Object(namespace))
}

/// The evaluation of all policies on one write.
struct Evaluation<'a, 'b> {
    cx: &'a Context<'b>,
    attributes: &'a Attributes,
    namespace: Option<&'a Value>,
    /// Messages of denials, with the denials.
    denials: Vec<(String, Denial)>,
    warnings: Vec<String>,
}

impl Evaluation<'_, '_> {
    /// Evaluates one policy.
    fn apply(&mut self, hook: &Hook) {
        let registry = &self.cx.state.registry;
        let constraints = &hook.spec["matchConstraints"];
        let Some(matched) = matching::matched(constraints, self.attributes, self.namespace, registry) else {
            return;
        };
        let kind = match &hook.spec["paramKind"] {
            Value::Null => None,
            kind => match ParamKind::find(registry, kind) {
                Ok(kind) => Some(kind),
                Err(why) => {
                    return self.misconfigured(hook, None, &format!("failed to configure policy: {why}"));
                }
            },
        };
        for binding in &hook.bindings {
            let resources = &binding.spec["matchResources"];
            let selects = |resources| matching::matched(resources, self.attributes, self.namespace, registry);
            if !resources.is_null() && selects(resources).is_none() {
                continue;
            }
            let reference = &binding.spec["paramRef"];
            let params = match &kind {
                Some(kind) if !reference.is_null() => {
                    match kind.collect(self.cx, reference, self.attributes.namespace()) {
                        Ok(found) => found.into_iter().map(Some).collect(),
                        Err(why) => {
                            let why = format!("failed to configure binding: {why}");
                            self.misconfigured(hook, Some(binding), &why);
                            continue;
                        }
                    }
                }
                _ => vec![None],
            };
            for params in params {
                self.evaluate(hook, binding, &matched, params.as_ref());
            }
        }
    }

    /// Denies the write for a mistake in the configuration, if the policy fails closed.
    fn misconfigured(&mut self, hook: &Hook, binding: Option<&Binding>, why: &str) {
        if hook.spec["failurePolicy"] != "Ignore" {
            let denial = Denial::invalid(why.to_owned());
            self.deny(hook, binding, denial);
        }
    }

    fn deny(&mut self, hook: &Hook, binding: Option<&Binding>, denial: Denial) {
        let policy = &hook.name;
        let why = &denial.message;
        let message = match binding {
            Some(Binding { name, .. }) => {
                format!("ValidatingAdmissionPolicy '{policy}' with binding '{name}' denied request: {why}")
            }
            None => format!("ValidatingAdmissionPolicy '{policy}' denied request: {why}"),
        };
        self.denials.push((message, denial));
    }

    /// Evaluates the expressions of a policy with one set of parameters.
    fn evaluate(&mut self, hook: &Hook, binding: &Binding, matched: &Matched, params: Option<&Value>) {
        let is_namespace = self.attributes.target.resource.is("", "namespaces");
        let objects = [&self.attributes.object, &self.attributes.old_object];
        let [object, old] = objects.map(|object| {
            object
                .as_ref()
                .map(|object| in_version(object, self.attributes, matched))
        });
        let request = request(self.attributes, matched);
        let inputs = Inputs {
            object: object.as_ref(),
            old_object: old.as_ref(),
            request: &request,
            params,
            namespace: self.namespace.filter(|_| !is_namespace),
        };
        let fails_closed = hook.spec["failurePolicy"] != "Ignore";
        let verdict = verdict::evaluate(&hook.compiled, &inputs, fails_closed);
        for denial in verdict.failed {
            for action in compiled::list(&binding.spec, "validationActions") {
                match action.as_str() {
                    Some("Deny") => self.deny(hook, Some(binding), denial.clone()),
                    Some("Warn") => self.warnings.push(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                        hook.name, binding.name, denial.message
                    )),
                    // Nothing shows audit annotations.
                    _ => {}
                }
            }
        }
        for denial in verdict.annotation_errors {
            self.deny(hook, Some(binding), denial);
        }
    }
}

/// Returns an object in the version through which a policy selected it.
pub(crate) fn in_version(object: &Value, attributes: &Attributes, matched: &Matched) -> Value {
    let target = &attributes.target;
    let is_same = target.version == matched.version && target.resource.group == matched.resource.group;
    match object {
        Value::Object(fields) if !is_same => {
            let mut fields = fields.clone();
            crate::conversion::to_storage(&target.resource, target.version, &mut fields);
            whole(matched, &fields)
        }
        other => other.clone(),
    }
}

/// Returns the `request` of expressions.
pub(crate) fn request(attributes: &Attributes, matched: &Matched) -> Value {
    let asked = &attributes.target;
    let resource = |target: &Matched| {
        json!({
            "group": target.resource.group, "version": target.version().name, "resource": target.resource.plural,
        })
    };
    let kind = &attributes.kind;
    let kind_of = |target: &Matched| {
        let is_same = target.version == asked.version && target.resource.group == asked.resource.group;
        match is_same {
            true => json!({"group": kind.group, "version": kind.version, "kind": kind.kind}),
            false => json!({
                "group": target.resource.group, "version": target.version().name, "kind": target.resource.kind,
            }),
        }
    };
    let mut request = json!({
        "uid": "",
        "kind": kind_of(matched),
        "resource": resource(matched),
        "requestKind": kind_of(asked),
        "requestResource": resource(asked),
        "operation": attributes.operation.name(),
        "userInfo": attributes.user.info(),
        "dryRun": attributes.dry_run,
        "options": attributes.options,
    });
    let texts = [
        ("subResource", asked.subresource.as_str()),
        ("requestSubResource", asked.subresource.as_str()),
        ("name", asked.name.as_str()),
        ("namespace", attributes.namespace()),
    ];
    for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        request[key] = json!(text);
    }
    request
}
