// SPDX-License-Identifier: Apache-2.0
//! Admission hooks: webhooks from configurations, and closures of the test.

use std::{fmt, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::in_process::{MutatingHook, ValidatingHook};
use crate::{
    cel::expression::Expression,
    policy::compiled::conditions,
    resource::Resource,
    selector::Selector,
    state::{Context, State},
    webhook::Client,
};

/// All hooks, in the order in which they run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hooks {
    pub(crate) mutating: Arc<[Arc<Hook>]>,
    pub(crate) validating: Arc<[Arc<Hook>]>,
    /// The closures of the builder, which run before the webhooks.
    pub(crate) in_process: InProcess,
}

/// The hooks that the builder registered.
#[derive(Clone, Debug, Default)]
pub(crate) struct InProcess {
    pub(crate) mutating: Vec<Arc<Hook>>,
    pub(crate) validating: Vec<Arc<Hook>>,
}

/// One hook.
#[derive(Debug)]
pub(crate) struct Hook {
    pub(crate) name: String,
    /// The name of the configuration; empty for closures.
    pub(crate) configuration: String,
    /// As in the configuration.
    pub(crate) rules: Vec<Value>,
    pub(crate) namespaces: Selector,
    pub(crate) objects: Selector,
    pub(crate) conditions: Vec<Expression>,
    pub(crate) call: Call,
    pub(crate) ignores_failure: bool,
    /// True if a rule for one version of a resource selects requests for the others.
    pub(crate) is_equivalent: bool,
    pub(crate) reinvokes: bool,
    pub(crate) has_side_effects: bool,
    pub(crate) timeout: Duration,
    /// The version of the review: `v1` or `v1beta1`.
    pub(crate) review: &'static str,
}

/// What a hook calls.
pub(crate) enum Call {
    /// `None` if the configuration has no usable address.
    Webhook(Option<Client>),
    Mutating(MutatingHook),
    Validating(ValidatingHook),
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Webhook(client) => f.debug_tuple("Webhook").field(client).finish(),
            Self::Mutating(_) => f.write_str("Mutating"),
            Self::Validating(_) => f.write_str("Validating"),
        }
    }
}

impl Hook {
    /// Reads a webhook of a valid configuration.
    fn webhook(configuration: &str, webhook: &Value) -> Self {
        let text = |key: &str| webhook.get(key).and_then(Value::as_str).unwrap_or_default();
        let list = |key: &str| {
            webhook
                .get(key)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        };
        let versions = list("admissionReviewVersions");
        let known = versions.iter().find_map(|version| match version.as_str()? {
            "v1" => Some("v1"),
            "v1beta1" => Some("v1beta1"),
            _ => None,
        });
        let timeout = webhook.get("timeoutSeconds").and_then(Value::as_u64);
        Self {
            name: text("name").to_owned(),
            configuration: configuration.to_owned(),
            rules: list("rules"),
            namespaces: Selector::structured(&webhook["namespaceSelector"]),
            objects: Selector::structured(&webhook["objectSelector"]),
            conditions: conditions(webhook),
            call: Call::Webhook(webhook.get("clientConfig").and_then(Client::of)),
            ignores_failure: text("failurePolicy") == "Ignore",
            is_equivalent: text("matchPolicy") == "Equivalent",
            reinvokes: text("reinvocationPolicy") == "IfNeeded",
            has_side_effects: !matches!(text("sideEffects"), "None" | "NoneOnDryRun"),
            timeout: Duration::from_secs(timeout.unwrap_or(10)),
            review: known.unwrap_or("v1"),
        }
    }

    /// Creates a hook that calls a closure for every write.
    pub(crate) fn closure(name: String, call: Call) -> Self {
        Self {
            name,
            configuration: String::new(),
            rules: vec![
                json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}),
            ],
            namespaces: Selector::default(),
            objects: Selector::default(),
            conditions: Vec::new(),
            call,
            ignores_failure: false,
            is_equivalent: false,
            reinvokes: false,
            has_side_effects: false,
            timeout: Duration::from_secs(10),
            review: "v1",
        }
    }

    /// Returns a key that no other hook has.
    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.configuration, self.name)
    }
}

/// Returns true if the objects of this kind are webhook configurations.
pub(crate) fn is_configuration(resource: &Resource) -> bool {
    resource.group == GROUP && resource.plural.ends_with("webhookconfigurations")
}

/// Returns true if no hook is called for this kind, so that a broken hook can always be removed.
pub(crate) fn is_exempt(resource: &Resource) -> bool {
    let kinds = [
        "webhookconfigurations",
        "admissionpolicies",
        "admissionpolicybindings",
    ];
    resource.group == GROUP && kinds.iter().any(|kind| resource.plural.ends_with(kind))
}

const GROUP: &str = "admissionregistration.k8s.io";

/// Reads the configurations again.
pub(crate) fn refresh(state: &mut State) {
    let on = state.settings.webhooks;
    let webhooks = |state: &mut State, plural: &str| -> Vec<Arc<Hook>> {
        let cx = Context::of_server(state, std::time::SystemTime::UNIX_EPOCH);
        let configurations = cx.all(GROUP, plural).filter(|_| on);
        configurations
            .flat_map(|stored| {
                let name = stored.text("name");
                let object = stored.object();
                let webhooks = object.get("webhooks").and_then(Value::as_array);
                let webhooks = webhooks.into_iter().flatten();
                webhooks
                    .map(|webhook| Arc::new(Hook::webhook(&name, webhook)))
                    .collect::<Vec<_>>()
            })
            .collect()
    };
    let mutating = webhooks(state, "mutatingwebhookconfigurations");
    let validating = webhooks(state, "validatingwebhookconfigurations");
    let hooks = &mut state.hooks;
    let with = |closures: &[Arc<Hook>], webhooks: Vec<Arc<Hook>>| -> Arc<[Arc<Hook>]> {
        closures.iter().cloned().chain(webhooks).collect()
    };
    hooks.mutating = with(&hooks.in_process.mutating, mutating);
    hooks.validating = with(&hooks.in_process.validating, validating);
}
