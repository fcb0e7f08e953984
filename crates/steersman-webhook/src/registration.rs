// SPDX-License-Identifier: Apache-2.0
//! Registration objects: webhook configurations, and the conversion of CRDs.
//!
//! They are kept by server-side apply: fields of other managers survive, and what is no longer declared disappears.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::{
    api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement,
};
use kube::api::Patch;
use serde::Serialize;
use serde_json::{Value, json};
use steersman_cluster::{Client, Error, Kind};
use steersman_core::ObjectKey;

use crate::{
    admission::{AdmissionWebhook, FailurePolicy},
    certificates::{authority::parse_bundle, rotation::Published},
    conversion::AnyConversion,
    rule::Rule,
};

/// Path of all conversions, as in controller-runtime.
pub(crate) const CONVERSION_PATH: &str = "/convert";

/// Selects what the leader writes to registration objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Registration {
    /// Creates the webhook configurations, and keeps everything that the declarations name. The CRDs must exist; only their
    /// `spec.conversion` is written.
    #[default]
    Apply,
    /// Writes only `caBundle` into objects that exist, for manifests that another tool applies. The configurations have the
    /// name of the webhooks, and the webhooks have the declared names. The manifests must omit `caBundle`.
    CaBundle,
}

/// How API servers reach the webhooks.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Service { name: String, port: u16 },
    Url(String),
}

/// Everything that is declared.
#[derive(Clone, Debug)]
pub(crate) struct Declarations {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) target: Target,
    pub(crate) mode: Registration,
    pub(crate) admission: Vec<AdmissionWebhook>,
    pub(crate) conversions: Arc<[AnyConversion]>,
}

/// A registration object.
#[derive(Clone, Debug)]
enum Object {
    Mutating,
    Validating,
    Crd(String),
}

/// Registration objects as they are on the server.
#[derive(Debug)]
pub(crate) struct Live(Vec<(Object, Option<Value>)>);

impl Declarations {
    /// Names that the serving certificate is valid for.
    pub(crate) fn names(&self) -> Vec<String> {
        match &self.target {
            Target::Service { name, .. } => {
                let service = format!("{name}.{}", self.namespace);
                vec![
                    format!("{service}.svc"),
                    format!("{service}.svc.cluster.local"),
                    service,
                ]
            }
            Target::Url(url) => {
                let uri = url.parse::<http::Uri>().ok();
                let host = uri.as_ref().and_then(http::Uri::host).unwrap_or("localhost");
                vec![host.trim_matches(['[', ']']).to_owned()]
            }
        }
    }

    /// Warns of declarations that can make a cluster unusable.
    pub(crate) fn warn(&self) {
        for webhook in self.admission.iter().filter(|webhook| can_block_pods(webhook)) {
            tracing::warn!(
                webhook = webhook.name,
                hint = "set `FailurePolicy::Ignore`, or restrict it with `.namespace_selector()` or `.object_selector()`",
                "webhook for Pods has the failure policy `Fail`: without a replica, no Pod starts"
            );
        }
    }

    /// Reads the registration objects.
    pub(crate) async fn read(&self, client: &Client) -> Result<Live, Error> {
        let mut live = vec![
            (
                Object::Mutating,
                get::<MutatingWebhookConfiguration>(client, &self.name).await?,
            ),
            (
                Object::Validating,
                get::<ValidatingWebhookConfiguration>(client, &self.name).await?,
            ),
        ];
        for conversion in &*self.conversions {
            let found = get::<CustomResourceDefinition>(client, &conversion.crd).await?;
            live.push((Object::Crd(conversion.crd.clone()), found));
        }
        Ok(Live(live))
    }

    /// Returns the bundles of the webhooks that are registered.
    pub(crate) fn published(&self, live: &Live) -> Published {
        let bundles = self
            .registered(live)
            .into_iter()
            .map(|(_, bundle)| parse_bundle(&bundle));
        Published {
            bundles: bundles.collect(),
        }
    }

    /// Returns the webhooks that are registered, with their bundles as PEM.
    pub(crate) fn registered(&self, live: &Live) -> Vec<(String, Vec<u8>)> {
        let decoded = |config: &Value| {
            let text = config["caBundle"].as_str().unwrap_or_default();
            STANDARD.decode(text).unwrap_or_default()
        };
        let mut all = Vec::new();
        for (object, live) in &live.0 {
            let Some(live) = live else { continue };
            match object {
                Object::Crd(crd) => {
                    let conversion = &live["spec"]["conversion"];
                    if conversion["strategy"] == "Webhook" {
                        all.push((crd.clone(), decoded(&conversion["webhook"]["clientConfig"])));
                    }
                }
                Object::Mutating | Object::Validating => {
                    for webhook in self.admission_of(object) {
                        if let Some(live) = by_name(&live["webhooks"], &webhook.name) {
                            all.push((webhook.name.clone(), decoded(&live["clientConfig"])));
                        }
                    }
                }
            }
        }
        all
    }

    /// Returns the declared webhooks and CRDs that are not registered.
    pub(crate) fn unregistered(&self, live: &Live) -> Vec<String> {
        let registered = self.registered(live);
        let is_missing = |name: &String| registered.iter().all(|(one, _)| one != name);
        let admission = self.admission.iter().map(|webhook| webhook.name.clone());
        // A CRD that is not installed is called by no API server.
        let installed = live.0.iter().filter_map(|(object, live)| match (object, live) {
            (Object::Crd(name), Some(_)) => Some(name.clone()),
            _ => None,
        });
        admission.chain(installed).filter(is_missing).collect()
    }

    /// Applies the objects that differ from the declarations. With `is_first`, applies all, so that what an earlier version
    /// declared disappears. An object that cannot be applied does not keep the others from it; the first error is returned.
    pub(crate) async fn apply(
        &self,
        client: &Client,
        live: &Live,
        bundle: Option<&str>,
        is_first: bool,
    ) -> Result<(), Error> {
        let client = client.field_manager(&format!("{}-webhooks", self.name)).force();
        let mut result = Ok(());
        for (object, live) in &live.0 {
            let Some(desired) = self.desired(object, live.as_ref(), bundle) else {
                continue;
            };
            let is_kept = live.as_ref().is_some_and(|live| contains(live, &desired));
            if !is_first && (is_kept || desired == json!({"webhooks": []})) {
                continue;
            }
            let applied = match object {
                Object::Mutating => apply::<MutatingWebhookConfiguration>(&client, &self.name, desired).await,
                Object::Validating => {
                    apply::<ValidatingWebhookConfiguration>(&client, &self.name, desired).await
                }
                Object::Crd(name) => apply::<CustomResourceDefinition>(&client, name, desired).await,
            };
            result = result.and(applied);
        }
        result
    }

    /// Returns the fields of an object that this operator owns, or None if it owns none.
    fn desired(&self, object: &Object, live: Option<&Value>, bundle: Option<&str>) -> Option<Value> {
        if let Object::Crd(_) = object {
            // A CRD that is not installed cannot be created from its conversion.
            let live = live?;
            let mut webhook = json!({"clientConfig": self.client_config(CONVERSION_PATH, bundle)});
            if self.mode == Registration::CaBundle {
                // The API server rejects a bundle beside another strategy.
                let is_called = live["spec"]["conversion"]["strategy"] == "Webhook";
                return bundle
                    .filter(|_| is_called)
                    .map(|_| json!({"spec": {"conversion": {"webhook": webhook}}}));
            }
            webhook["conversionReviewVersions"] = json!(["v1"]);
            return Some(json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}}));
        }
        let declared: Vec<&AdmissionWebhook> = self.admission_of(object).collect();
        let webhooks: Vec<Value> = if self.mode == Registration::CaBundle {
            bundle?;
            let live = &live?["webhooks"];
            let exist = declared
                .iter()
                .filter(|webhook| by_name(live, &webhook.name).is_some());
            exist
                .map(|webhook| json!({"name": webhook.name, "clientConfig": self.client_config(&webhook.path, bundle)}))
                .collect()
        } else {
            declared
                .iter()
                .map(|webhook| self.webhook(webhook, bundle))
                .collect()
        };
        // An object that exists without declared webhooks is from an earlier version.
        (!webhooks.is_empty() || live.is_some()).then(|| json!({"webhooks": webhooks}))
    }

    fn admission_of(&self, object: &Object) -> impl Iterator<Item = &AdmissionWebhook> {
        let is_mutating = matches!(object, Object::Mutating);
        self.admission
            .iter()
            .filter(move |webhook| webhook.is_mutating == is_mutating)
    }

    fn webhook(&self, webhook: &AdmissionWebhook, bundle: Option<&str>) -> Value {
        let conditions = webhook.match_conditions.iter();
        let conditions = conditions.map(|(name, expression)| json!({"name": name, "expression": expression}));
        let mut selector = webhook.namespace_selector.clone();
        if !webhook.includes_own_namespace {
            selector
                .match_expressions
                .get_or_insert_default()
                .push(LabelSelectorRequirement {
                    key: "kubernetes.io/metadata.name".to_owned(),
                    operator: "NotIn".to_owned(),
                    values: Some(vec![self.namespace.clone()]),
                });
        }
        json!({
            "name": webhook.name,
            "admissionReviewVersions": ["v1"],
            "clientConfig": self.client_config(&webhook.path, bundle),
            "rules": webhook.rules.iter().map(Rule::to_json).collect::<Vec<_>>(),
            "failurePolicy": webhook.failure_policy.as_str(),
            "matchPolicy": "Equivalent",
            "sideEffects": webhook.side_effects,
            "timeoutSeconds": webhook.timeout_seconds,
            "namespaceSelector": selector,
            "objectSelector": webhook.object_selector,
            "matchConditions": conditions.collect::<Vec<_>>(),
        })
    }

    fn client_config(&self, path: &str, bundle: Option<&str>) -> Value {
        let mut config = match (&self.target, self.mode) {
            (_, Registration::CaBundle) => json!({}),
            (Target::Service { name, port }, _) => {
                json!({"service": {"namespace": self.namespace, "name": name, "port": port, "path": path}})
            }
            (Target::Url(url), _) => json!({"url": format!("{}{path}", url.trim_end_matches('/'))}),
        };
        if let Some(bundle) = bundle {
            config["caBundle"] = json!(STANDARD.encode(bundle));
        }
        config
    }
}

/// Returns whether no Pod starts while the webhook has no replica.
fn can_block_pods(webhook: &AdmissionWebhook) -> bool {
    let is_about_pods = webhook.rules.iter().any(Rule::is_about_pods);
    is_about_pods && webhook.failure_policy == FailurePolicy::Fail
}

async fn get<K: Kind + Serialize>(client: &Client, name: &str) -> Result<Option<Value>, Error> {
    let found = client.live().get::<K>(&ObjectKey::new("", name)).await?;
    // An object that was decoded can be encoded.
    Ok(found.and_then(|found| serde_json::to_value(&*found).ok()))
}

async fn apply<K: Kind>(client: &Client, name: &str, mut desired: Value) -> Result<(), Error> {
    desired["apiVersion"] = json!(K::api_version(&()));
    desired["kind"] = json!(K::kind(&()));
    desired["metadata"] = json!({"name": name});
    let applied = client
        .patch::<K>(&ObjectKey::new("", name), &Patch::Apply(desired))
        .await;
    applied.map(drop)
}

fn by_name<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    list.as_array()?.iter().find(|one| one["name"] == name)
}

/// Returns whether `live` has everything that `desired` has. Elements of lists are compared by name where they have one.
fn contains(live: &Value, desired: &Value) -> bool {
    match (live, desired) {
        (_, Value::Object(desired)) => desired.iter().all(|(key, desired)| {
            let is_empty = matches!(desired, Value::Array(list) if list.is_empty())
                || matches!(desired, Value::Object(map) if map.is_empty());
            live.get(key).map_or(is_empty, |live| contains(live, desired))
        }),
        (Value::Array(live), Value::Array(desired)) => {
            live.len() == desired.len()
                && live
                    .iter()
                    .zip(desired)
                    .all(|(live, desired)| contains(live, desired))
                || !desired.is_empty()
                    && desired.iter().all(|desired| {
                        let name = desired.get("name");
                        let mut named = live
                            .iter()
                            .filter(|live| name.is_some() && live.get("name") == name);
                        named.next().is_some_and(|live| contains(live, desired))
                    })
        }
        _ => live == desired,
    }
}

#[cfg(test)]
mod tests;
