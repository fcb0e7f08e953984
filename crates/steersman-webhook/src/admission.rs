// SPDX-License-Identifier: Apache-2.0
//! Declarations of admission webhooks, and the reviews that they answer.
//!
//! # Guarantees
//! 1. A denial is the answer of your code, or of a malformed object. Everything else that goes wrong (an error or a panic of your
//!    code, a timeout, a body that is no review) is an HTTP error, so that the `failurePolicy` decides.
//! 2. A patch contains only the changes of your code; see [`AdmissionResponse::with_object`]. Without changes there is no patch.
//! 3. A review of a resource that no rule of the webhook names is denied, and your code is not called.

mod request;
mod response;
pub(crate) mod review;

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use json_patch::Patch;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Serialize, de::DeserializeOwned};
use steersman_cluster::Kind;
use steersman_core::error_chain;
use steersman_kit::{Defaults, Validate, ValidationReport};
use steersman_runtime::BoxError;

pub use request::{AdmissionOperation, AdmissionRequest};
pub use response::AdmissionResponse;

use crate::{
    handler::{Answering, Failure},
    patch::changes,
    rule::Rule,
};

type Reviewing = Pin<Box<dyn Future<Output = Result<Reviewed, BoxError>> + Send>>;

/// The answer to a review.
struct Reviewed {
    response: AdmissionResponse,
    patch: Option<Patch>,
}

/// Declares an admission webhook: a function, and the requests that the API server sends to it.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use steersman_webhook::{AdmissionRequest, AdmissionResponse, AdmissionWebhook, FailurePolicy, Rule};
///
/// let locked = AdmissionWebhook::validating("locked.maps.example.com", async |request: AdmissionRequest<ConfigMap>| {
///     let locked = request.old_object.and_then(|map| map.metadata.annotations?.remove("example.com/locked"));
///     Ok(match locked {
///         Some(reason) => AdmissionResponse::deny(format!("the ConfigMap is locked: {reason}")),
///         None => AdmissionResponse::allow(),
///     })
/// })
/// .rule(Rule::of::<ConfigMap>())
/// .failure_policy(FailurePolicy::Ignore);
/// ```
#[derive(Clone)]
#[must_use = "add it to `Webhooks`"]
pub struct AdmissionWebhook {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) is_mutating: bool,
    pub(crate) rules: Vec<Rule>,
    pub(crate) failure_policy: FailurePolicy,
    pub(crate) timeout_seconds: u8,
    pub(crate) namespace_selector: LabelSelector,
    pub(crate) object_selector: LabelSelector,
    pub(crate) match_conditions: Vec<(String, String)>,
    pub(crate) side_effects: &'static str,
    pub(crate) includes_own_namespace: bool,
    review: Arc<dyn Fn(AdmissionRequest) -> Reviewing + Send + Sync>,
}

/// Selects what the API server does if a webhook fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// The request fails.
    #[default]
    Fail,
    /// The request continues without the webhook.
    Ignore,
}

impl FailurePolicy {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Fail => "Fail",
            Self::Ignore => "Ignore",
        }
    }
}

impl AdmissionWebhook {
    /// Declares a mutating webhook made of an async function. `name` is a domain name of at least three parts, such as
    /// `defaults.webs.example.com`, and appears in errors of the API server. The webhook needs at least one
    /// [rule](Self::rule).
    ///
    /// Objects are decoded as `K`; use [`serde_json::Value`] for any object. The function changes the object with
    /// [`AdmissionResponse::with_object`]. It must have no side effects in a dry run.
    pub fn mutating<K, F, Fut>(name: impl Into<String>, mutate: F) -> Self
    where
        K: DeserializeOwned + Serialize + Send + 'static,
        F: Fn(AdmissionRequest<K>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<AdmissionResponse, BoxError>> + Send + 'static,
    {
        let review = move |request: AdmissionRequest| -> Reviewing {
            let decoded = request.decode::<K>();
            let (decoded, before) =
                match decoded.map(|decoded| (serde_json::to_value(&decoded.object), decoded)) {
                    Ok((Ok(before), decoded)) => (decoded, before),
                    Ok((Err(error), _)) => return Box::pin(std::future::ready(Err(error.into()))),
                    Err(error) => return bad_request(error.to_string()),
                };
            let mutating = mutate(decoded);
            Box::pin(async move {
                let response = mutating.await?;
                let patch = match (&response.changed, &request.object) {
                    (Some(after), Some(raw)) => Some(changes(raw, &before, after)),
                    _ => None,
                };
                Ok(Reviewed { response, patch })
            })
        };
        Self::new(name.into(), true, Arc::new(review))
    }

    /// Declares a validating webhook made of an async function. `name` is as for [`mutating`](Self::mutating).
    pub fn validating<K, F, Fut>(name: impl Into<String>, validate: F) -> Self
    where
        K: DeserializeOwned + Send + 'static,
        F: Fn(AdmissionRequest<K>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<AdmissionResponse, BoxError>> + Send + 'static,
    {
        let review = move |request: AdmissionRequest| -> Reviewing {
            let decoded = match request.decode::<K>() {
                Ok(decoded) => decoded,
                Err(error) => return bad_request(error.to_string()),
            };
            let validating = validate(decoded);
            Box::pin(async move {
                let response = validating.await?;
                Ok(Reviewed {
                    response,
                    patch: None,
                })
            })
        };
        Self::new(name.into(), false, Arc::new(review))
    }

    /// Declares the mutating webhook of a kind that has [`Defaults`], for creations and updates.
    pub fn defaults<K: Kind + Defaults + Serialize>() -> Self {
        let webhook = Self::mutating(webhook_name::<K>("default"), |request: AdmissionRequest<K>| {
            let response = match request.object {
                Some(mut object) => {
                    object.set_defaults();
                    AdmissionResponse::allow().with_object(&object)
                }
                None => Ok(AdmissionResponse::allow()),
            };
            std::future::ready(response.map_err(Into::into))
        });
        Self {
            path: kind_path::<K>("mutate"),
            side_effects: "None",
            ..webhook.rule(Rule::of::<K>())
        }
    }

    /// Declares the validating webhook of a kind that has [`Validate`], for creations, updates and deletions.
    pub fn validates<K: Kind + Validate>() -> Self {
        let name = webhook_name::<K>("validate");
        let webhook = Self::validating(name, |request: AdmissionRequest<K>| {
            let mut report = ValidationReport::new();
            match (&request.object, &request.old_object) {
                (Some(object), old) => object.validate(old.as_ref(), &mut report),
                (None, Some(old)) => old.validate_delete(&mut report),
                (None, None) => {}
            }
            let group = K::group(&());
            let dot = if group.is_empty() { "" } else { "." };
            let object = format!("{}{dot}{group} {:?}", K::kind(&()), request.name);
            std::future::ready(Ok(AdmissionResponse::validated(&report, &object)))
        });
        let all = [
            AdmissionOperation::Create,
            AdmissionOperation::Update,
            AdmissionOperation::Delete,
        ];
        Self {
            path: kind_path::<K>("validate"),
            side_effects: "None",
            ..webhook.rule(Rule::of::<K>().operations(all))
        }
    }

    fn new(
        name: String,
        is_mutating: bool,
        review: Arc<dyn Fn(AdmissionRequest) -> Reviewing + Send + Sync>,
    ) -> Self {
        let verb = if is_mutating { "mutate" } else { "validate" };
        Self {
            path: format!("/{verb}/{name}"),
            name,
            is_mutating,
            rules: Vec::new(),
            failure_policy: FailurePolicy::Fail,
            timeout_seconds: 10,
            namespace_selector: LabelSelector::default(),
            object_selector: LabelSelector::default(),
            match_conditions: Vec::new(),
            side_effects: "NoneOnDryRun",
            includes_own_namespace: false,
            review,
        }
    }

    /// Adds a rule: the API server sends the requests that it matches.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Path on the server. Default: `/mutate-<group>-<version>-<kind>` or `/validate-…` for traits, as controller-runtime has
    /// it; `/mutate/<name>` or `/validate/<name>` for functions.
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// Failure policy. Default: [`FailurePolicy::Fail`].
    pub fn failure_policy(mut self, policy: FailurePolicy) -> Self {
        self.failure_policy = policy;
        self
    }

    /// Time limit of a call, from 1 to 30 s; other values are clamped. Default: 10 s.
    pub fn timeout_seconds(mut self, seconds: u8) -> Self {
        self.timeout_seconds = seconds.clamp(1, 30);
        self
    }

    /// Restricts the webhook to namespaces with these labels. Default: all namespaces except that of the operator.
    pub fn namespace_selector(mut self, selector: LabelSelector) -> Self {
        self.namespace_selector = selector;
        self
    }

    /// Calls the webhook also for objects in the namespace of the operator. Without a replica, such objects cannot be
    /// written while the failure policy is `Fail`, perhaps not even the objects that a replica needs to start. Default: not
    /// called.
    pub fn include_own_namespace(mut self) -> Self {
        self.includes_own_namespace = true;
        self
    }

    /// Restricts the webhook to objects with these labels. Default: all objects.
    pub fn object_selector(mut self, selector: LabelSelector) -> Self {
        self.object_selector = selector;
        self
    }

    /// Adds a condition in CEL, which the API server evaluates before the call. Default: none.
    pub fn match_condition(mut self, name: impl Into<String>, expression: impl Into<String>) -> Self {
        self.match_conditions.push((name.into(), expression.into()));
        self
    }

    /// Answers the body of a review.
    pub(crate) fn answer(&self, body: &[u8]) -> Answering {
        let request = match review::decode(body) {
            Ok(request) => request,
            Err(failure) => return Box::pin(std::future::ready(Err(failure))),
        };
        let uid = request.uid.clone();
        let reviewing = if self.rules.iter().any(|rule| rule.is_about(&request)) {
            (self.review)(request)
        } else {
            bad_request(self.unexpected(&request))
        };
        Box::pin(async move {
            match reviewing.await {
                Ok(Reviewed { response, patch }) => Ok(review::encode(&uid, &response, patch.as_ref())),
                Err(error) => Err(Failure::internal(error_chain(&*error))),
            }
        })
    }

    fn unexpected(&self, request: &AdmissionRequest) -> String {
        let rules: Vec<String> = self.rules.iter().map(Rule::to_string).collect();
        let resource = &request.resource;
        format!(
            "webhook `{}` serves {}, not {}; correct the rules of its configuration",
            self.name,
            rules.join(", "),
            Rule::new(&*resource.group, &*resource.version, &*resource.resource)
        )
    }
}

fn bad_request(message: String) -> Reviewing {
    let response = AdmissionResponse::bad_request(message);
    Box::pin(std::future::ready(Ok(Reviewed {
        response,
        patch: None,
    })))
}

/// A name with at least three parts, as the API server demands.
fn webhook_name<K: Kind>(verb: &str) -> String {
    let group = K::group(&());
    let group = if group.is_empty() { "core" } else { &*group };
    format!("{verb}.{}.{group}", K::plural(&()))
}

/// The path that controller-runtime uses.
fn kind_path<K: Kind>(verb: &str) -> String {
    let group = K::group(&()).replace('.', "-");
    let kind = K::kind(&()).to_lowercase();
    format!("/{verb}-{group}-{}-{kind}", K::version(&()))
}

impl fmt::Debug for AdmissionWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionWebhook")
            .field("name", &self.name)
            .field("path", &self.path)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
