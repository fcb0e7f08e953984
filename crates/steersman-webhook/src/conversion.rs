// SPDX-License-Identifier: Apache-2.0
//! Conversion of objects between the versions of a CRD, through a hub.
//!
//! # Guarantees
//! 1. An object of one spoke is converted to another through the hub.
//! 2. The metadata stays as the API server sent it, except labels and annotations, which a conversion can change. A conversion
//!    that leaves `metadata.name` empty changes no metadata at all.
//! 3. All objects of a review are converted, or none: the answer names the object and the cause.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use steersman_cache::without_content;
use steersman_cluster::Kind;

use crate::handler::{Answering, Failure, undecodable};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

/// Declares the versions of a CRD: a hub, and spokes that convert from and to it.
///
/// ```
/// mod v1alpha1 {
/// #   use kube::CustomResource;
/// #   use schemars::JsonSchema;
/// #   use serde::{Deserialize, Serialize};
///     #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
///     #[kube(group = "example.com", version = "v1alpha1", kind = "Web", namespaced)]
///     pub struct WebSpec { pub size: i32 }
/// }
/// mod v1 {
/// #   use kube::CustomResource;
/// #   use schemars::JsonSchema;
/// #   use serde::{Deserialize, Serialize};
///     #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
///     #[kube(group = "example.com", version = "v1", kind = "Web", namespaced)]
///     pub struct WebSpec { pub replicas: i32 }
/// }
///
/// impl From<v1alpha1::Web> for v1::Web {
///     fn from(old: v1alpha1::Web) -> Self {
///         Self { metadata: old.metadata, spec: v1::WebSpec { replicas: old.spec.size } }
///     }
/// }
///
/// impl From<v1::Web> for v1alpha1::Web {
///     fn from(new: v1::Web) -> Self {
///         Self { metadata: new.metadata, spec: v1alpha1::WebSpec { size: new.spec.replicas } }
///     }
/// }
///
/// let conversion = steersman_webhook::Conversion::hub::<v1::Web>().spoke::<v1alpha1::Web>();
/// ```
#[must_use = "add it to `Webhooks`"]
pub struct Conversion<H = ()> {
    versions: Vec<Version<H>>,
}

/// One version, with its way to the hub and back.
struct Version<H> {
    api_version: String,
    to_hub: fn(Value) -> Result<H, String>,
    from_hub: fn(H) -> Result<Value, String>,
}

impl Conversion {
    /// Begins with the hub: the version that all others convert from and to. It is usually the stored one.
    pub fn hub<H: Kind + Serialize>() -> Conversion<H> {
        Conversion {
            versions: vec![Version {
                api_version: H::api_version(&()).into_owned(),
                to_hub: decode,
                from_hub: |hub| encode(&hub),
            }],
        }
    }
}

impl<H: Kind + Serialize> Conversion<H> {
    /// Adds another version.
    pub fn spoke<S: Kind + Serialize + From<H> + Into<H>>(mut self) -> Self {
        self.versions.push(Version {
            api_version: S::api_version(&()).into_owned(),
            to_hub: |spoke| Ok(decode::<S>(spoke)?.into()),
            from_hub: |hub| encode(&S::from(hub)),
        });
        self
    }

    fn convert(&self, object: &Value, desired: &str) -> Result<Value, String> {
        let version = |api_version: &str| {
            let mut versions = self.versions.iter();
            let found = versions.find(|version| version.api_version == api_version);
            found.ok_or_else(|| {
                let known: Vec<&str> = self
                    .versions
                    .iter()
                    .map(|version| &*version.api_version)
                    .collect();
                format!(
                    "version {api_version:?} is unknown; known are {}",
                    known.join(", ")
                )
            })
        };
        let present = text(object, "apiVersion");
        let (from, to) = (version(present)?, version(desired)?);
        if present == desired {
            return Ok(object.clone());
        }
        let mut converted = (to.from_hub)((from.to_hub)(object.clone())?)?;
        converted["apiVersion"] = json!(desired);
        converted["kind"] = object["kind"].clone();
        keep_metadata(&mut converted, object);
        Ok(converted)
    }
}

impl<H> fmt::Debug for Conversion<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let versions = self.versions.iter().map(|version| &version.api_version);
        f.debug_set().entries(versions).finish()
    }
}

/// Restores the metadata that the API server requires to stay.
fn keep_metadata(converted: &mut Value, original: &Value) {
    let name = converted.pointer("/metadata/name").and_then(Value::as_str);
    let is_carried = name.is_some_and(|name| !name.is_empty());
    let changed = std::mem::replace(&mut converted["metadata"], original["metadata"].clone());
    let (Value::Object(kept), true) = (&mut converted["metadata"], is_carried) else {
        return;
    };
    for field in ["labels", "annotations"] {
        match changed.get(field) {
            Some(value) => kept.insert(field.to_owned(), value.clone()),
            None => kept.remove(field),
        };
    }
}

fn decode<K: DeserializeOwned>(object: Value) -> Result<K, String> {
    let decoded = serde_path_to_error::deserialize(object);
    decoded.map_err(|error| format!("cannot decode it: {}", undecodable(&error)))
}

fn encode<K: Serialize>(object: &K) -> Result<Value, String> {
    serde_json::to_value(object).map_err(|error| format!("cannot encode it: {error}"))
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

type ConvertFn = Arc<dyn Fn(&Value, &str) -> Result<Value, String> + Send + Sync>;

/// A conversion without its type.
#[derive(Clone)]
pub(crate) struct AnyConversion {
    group: String,
    kind: String,
    /// Name of the CRD.
    pub(crate) crd: String,
    convert: ConvertFn,
}

impl AnyConversion {
    pub(crate) fn new<H: Kind + Serialize>(conversion: Conversion<H>) -> Self {
        let (group, kind, plural) = (H::group(&()), H::kind(&()), H::plural(&()));
        Self {
            crd: format!("{plural}.{group}"),
            group: group.into_owned(),
            kind: kind.into_owned(),
            convert: Arc::new(move |object, desired| conversion.convert(object, desired)),
        }
    }

    fn is_of(&self, object: &Value) -> bool {
        let group = text(object, "apiVersion")
            .rsplit_once('/')
            .map(|(group, _)| group);
        group.unwrap_or_default() == self.group && text(object, "kind") == self.kind
    }
}

impl fmt::Debug for AnyConversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyConversion").field(&self.crd).finish()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Request>,
}

#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    uid: String,
    #[serde(rename = "desiredAPIVersion", default)]
    desired: String,
    #[serde(default)]
    objects: Vec<Value>,
}

/// Answers the body of a review.
pub(crate) fn answer(conversions: &[AnyConversion], body: &[u8]) -> Answering {
    Box::pin(std::future::ready(review(conversions, body)))
}

fn review(conversions: &[AnyConversion], body: &[u8]) -> Result<Value, Failure> {
    let review: Review = serde_json::from_slice(body).map_err(|error| {
        Failure::bad_request(format!(
            "the body is not a ConversionReview: {}",
            without_content(&error)
        ))
    })?;
    if (&*review.api_version, &*review.kind) != (API_VERSION, KIND) {
        return Err(Failure::bad_request(format!(
            "expected {KIND} in {API_VERSION}, got {:?} in {:?}; set `conversionReviewVersions: [v1]`",
            review.kind, review.api_version
        )));
    }
    let request = review.request.filter(|request| !request.uid.is_empty());
    let Request {
        uid,
        desired,
        objects,
    } = request.ok_or_else(|| Failure::bad_request("`request.uid` is empty"))?;
    let converted: Result<Vec<Value>, String> = objects
        .iter()
        .map(|object| convert(conversions, object, &desired))
        .collect();
    let response = match converted {
        Ok(objects) => {
            json!({"uid": uid, "convertedObjects": objects, "result": {"status": "Success"}})
        }
        Err(message) => {
            tracing::warn!(error = message, "conversion failed");
            let result = json!({"status": "Failure", "message": message});
            json!({"uid": uid, "convertedObjects": [], "result": result})
        }
    };
    Ok(json!({"apiVersion": API_VERSION, "kind": KIND, "response": response}))
}

fn convert(conversions: &[AnyConversion], object: &Value, desired: &str) -> Result<Value, String> {
    let metadata = |field: &str| text(&object["metadata"], field).to_owned();
    let named = |cause: String| {
        let (kind, version) = (text(object, "kind"), text(object, "apiVersion"));
        let (namespace, name) = (metadata("namespace"), metadata("name"));
        let slash = if namespace.is_empty() { "" } else { "/" };
        format!("cannot convert {kind} {namespace}{slash}{name} from {version} to {desired}: {cause}")
    };
    let conversion = conversions.iter().find(|conversion| conversion.is_of(object));
    let conversion = conversion.ok_or_else(|| named("this operator does not convert the kind".to_owned()))?;
    (conversion.convert)(object, desired).map_err(named)
}

#[cfg(test)]
mod tests;
