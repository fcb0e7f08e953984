// SPDX-License-Identifier: Apache-2.0
//! Conversion webhooks: objects are stored in one version, and a webhook converts them to the others.
//!
//! # Guarantees
//! 1. Of the metadata, a webhook can change labels and annotations only.
//! 2. The objects of a list, or of a batch of watch events, are converted by one call.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    handler::Target,
    resource::{Resource, at},
    schema::{fill, prune},
    server::Inner,
    state::Context,
    status::{Failure, Result},
    store::{Object, Stored, metadata_of},
    webhook::Client,
};

/// The conversion webhook of a CRD.
#[derive(Clone, Debug)]
pub(crate) struct Converter {
    client: Option<Client>,
    /// The version of the review: `v1` or `v1beta1`.
    review: &'static str,
}

impl Converter {
    /// Reads the webhook of a CRD; `None` if the CRD has none.
    pub(super) fn of(definition: &Object) -> Option<Arc<Self>> {
        let conversion = at(definition, &["spec", "conversion"])?;
        if conversion.get("strategy") != Some(&json!("Webhook")) {
            return None;
        }
        let versions = conversion.pointer("/webhook/conversionReviewVersions");
        let mut versions = versions.and_then(Value::as_array).into_iter().flatten();
        let known = versions.find_map(|version| match version.as_str()? {
            "v1" => Some("v1"),
            "v1beta1" => Some("v1beta1"),
            _ => None,
        });
        Some(Arc::new(Self {
            client: conversion.pointer("/webhook/clientConfig").and_then(Client::of),
            review: known.unwrap_or("v1"),
        }))
    }
}

/// A conversion of objects of one kind, all in the same version.
#[derive(Clone, Debug)]
pub(crate) struct Conversion {
    converter: Arc<Converter>,
    resource: Arc<Resource>,
    from: usize,
    to: usize,
    objects: Vec<Object>,
}

impl Conversion {
    /// Returns true if both convert the same objects to the same version.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.from == other.from && self.to == other.to && self.objects == other.objects
    }

    fn api_version(&self, version: usize) -> String {
        self.resource.api_version(&self.resource.versions[version].name)
    }

    /// Calls the webhook.
    pub(crate) async fn run(&self, server: &Arc<Inner>) -> Result<Vec<Object>> {
        let result = self.call(server).await;
        let of = format!("{}, Kind={}", self.api_version(self.from), self.resource.kind);
        result.map_err(|why| Failure::unclassified(format!("conversion webhook for {of} {why}")))
    }

    async fn call(&self, server: &Arc<Inner>) -> std::result::Result<Vec<Object>, String> {
        let failed = |why: String| format!("failed: {why}");
        let (from, to) = (self.api_version(self.from), self.api_version(self.to));
        let whole = |object: &Object| {
            let mut object = object.clone();
            object.insert("apiVersion".to_owned(), json!(from));
            object.insert("kind".to_owned(), json!(self.resource.kind));
            object
        };
        let objects: Vec<Object> = self.objects.iter().map(whole).collect();
        let uid = server.lock().random.uid();
        let review = format!("apiextensions.k8s.io/{}", self.converter.review);
        let request = json!({"uid": uid, "desiredAPIVersion": to, "objects": objects});
        let sent = json!({
            "kind": "ConversionReview", "apiVersion": review, "request": request,
            "response": {"uid": "", "convertedObjects": null, "result": {"metadata": {}}},
        });
        let Some(client) = &self.converter.client else {
            return Err(failed(
                "webhook configuration must have either service or URL".to_owned(),
            ));
        };
        let answer = client.post(server, &sent, None).await.map_err(failed)?;
        let converted = self.response(&answer, &uid).map_err(failed)?;
        if converted.len() != objects.len() {
            return Err(format!(
                "returned {} objects, expected {}",
                converted.len(),
                objects.len()
            ));
        }
        let pairs = self.objects.iter().zip(converted);
        pairs
            .map(|(original, converted)| self.checked(original, converted, &to))
            .collect()
    }

    /// Returns the objects of a valid response.
    fn response(&self, review: &Value, uid: &str) -> std::result::Result<Vec<Value>, String> {
        let text = |pointer: &str| {
            review
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let is_strict = self.converter.review == "v1";
        let (api_version, kind) = (text("/apiVersion"), text("/kind"));
        if is_strict && (api_version != "apiextensions.k8s.io/v1" || kind != "ConversionReview") {
            return Err(format!(
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {api_version}, Kind={kind}"
            ));
        }
        let Some(response) = review.get("response").filter(|response| response.is_object()) else {
            return Err("no response provided".to_owned());
        };
        if is_strict && text("/response/uid") != uid {
            return Err(format!(
                "expected response.uid={uid:?}, got {:?}",
                text("/response/uid")
            ));
        }
        let status = text("/response/result/status");
        if status != "Success" {
            let message = text("/response/result/message");
            return Err(if message.is_empty() {
                format!("response.result.status was '{status}', not 'Success'")
            } else {
                message.to_owned()
            });
        }
        let objects = response.get("convertedObjects").and_then(Value::as_array);
        Ok(objects.cloned().unwrap_or_default())
    }

    /// Checks a converted object and restores its metadata, except labels and annotations.
    fn checked(&self, original: &Object, converted: Value, to: &str) -> std::result::Result<Object, String> {
        let Value::Object(mut converted) = converted else {
            return Err("returned invalid object at index 0: not an object".to_owned());
        };
        let taken = |converted: &mut Object, key: &str| match converted.remove(key) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        let version = taken(&mut converted, "apiVersion");
        if version != to {
            return Err(format!(
                "returned invalid object at index 0: invalid groupVersion (expected {to}, received {version})"
            ));
        }
        let (kind, expected) = (taken(&mut converted, "kind"), &self.resource.kind);
        if kind != *expected {
            return Err(format!(
                "returned invalid object at index 0: invalid kind (expected {expected}, received {kind})"
            ));
        }
        let field = |object: &Object, key: &str| {
            let text = metadata_of(object).get(key).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        for (key, shown) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
            let (before, after) = (field(original, key), field(&converted, key));
            if before != after {
                return Err(format!(
                    "returned invalid object: must have the same {shown}: {before} != {after}"
                ));
            }
        }
        let Some(Value::Object(given)) = converted.remove("metadata") else {
            return Err("returned invalid metadata: missing metadata in converted object".to_owned());
        };
        let mut metadata = metadata_of(original).clone();
        for key in ["labels", "annotations"] {
            match given
                .get(key)
                .filter(|value| value.as_object().is_some_and(|map| !map.is_empty()))
            {
                Some(value) => metadata.insert(key.to_owned(), value.clone()),
                None => metadata.remove(key),
            };
        }
        converted.insert("metadata".to_owned(), Value::Object(metadata));
        let schema = &self.resource.versions[self.to].schema;
        prune::prune(schema, &mut converted, &mut Vec::new());
        fill::drop_nulls_of(schema, &mut converted);
        Ok(converted)
    }
}

/// Returns the version in which an object is stored: the storage version of the CRD when the object was written.
pub(crate) fn version_of(resource: &Resource, stored: &Stored) -> usize {
    let written = resource
        .custom
        .as_ref()
        .and_then(|custom| custom.written.get(&stored.edition));
    let index = written.and_then(|name| resource.versions.iter().position(|version| version.name == *name));
    index.unwrap_or(resource.strategy.storage_version)
}

fn converter(resource: &Resource) -> Option<&Arc<Converter>> {
    resource.custom.as_ref()?.converter.as_ref()
}

/// Returns true if a webhook converts objects of this kind to or from some version.
pub(crate) fn has_webhook(resource: &Resource) -> bool {
    converter(resource).is_some()
}

/// Returns a stored object with the defaults of its version, as the real server reads it.
fn read(resource: &Resource, stored: &Stored) -> Object {
    let mut object = Object::clone(&stored.object());
    let schema = &resource.versions[version_of(resource, stored)].schema;
    prune::prune(schema, &mut object, &mut Vec::new());
    fill::drop_nulls_of(schema, &mut object);
    fill::defaults_of(schema, &mut object);
    object
}

/// Returns a stored object in the requested version.
pub(crate) fn read_as(cx: &mut Context<'_>, target: &Target, stored: &Stored) -> Result<Object> {
    let object = read(&target.resource, stored);
    let from = version_of(&target.resource, stored);
    convert(cx, target, from, target.version, object)
}

/// Returns an object of the requested version in the version in which it is stored, and converted back, as the real
/// server shows it.
pub(crate) fn write_as(cx: &mut Context<'_>, target: &Target, object: &Object) -> Result<(Object, Object)> {
    let storage = target.resource.strategy.storage_version;
    let stored = convert(cx, target, target.version, storage, object.clone())?;
    let shown = convert(cx, target, storage, target.version, stored.clone())?;
    Ok((stored, shown))
}

/// Converts one object. The handler stops until the webhook has answered.
fn convert(cx: &mut Context<'_>, target: &Target, from: usize, to: usize, object: Object) -> Result<Object> {
    let Some(converter) = converter(&target.resource).filter(|_| from != to) else {
        return Ok(object);
    };
    let Some(admission) = &mut cx.admission else {
        // Background work reads metadata only, which is the same in all versions.
        return Ok(object);
    };
    let conversion = Conversion {
        converter: Arc::clone(converter),
        resource: Arc::clone(&target.resource),
        from,
        to,
        objects: vec![object],
    };
    match admission.progress.converted(&conversion) {
        Some(converted) => converted.map(|mut objects| objects.pop().unwrap_or_default()),
        None => Err(admission.progress.wait_for(conversion)),
    }
}

/// Converts stored objects to a version, by one call for each version in which they are stored.
pub(crate) async fn convert_all(
    server: &Arc<Inner>,
    resource: &Arc<Resource>,
    to: usize,
    items: &[Arc<Stored>],
) -> Result<Vec<Arc<Stored>>> {
    let mut objects: Vec<Object> = items.iter().map(|stored| read(resource, stored)).collect();
    let Some(converter) = converter(resource) else {
        return Ok(items.to_vec());
    };
    for from in (0..resource.versions.len()).filter(|from| *from != to) {
        let of_version =
            |(index, stored): (usize, &Arc<Stored>)| (version_of(resource, stored) == from).then_some(index);
        let indexes: Vec<usize> = items.iter().enumerate().filter_map(of_version).collect();
        if indexes.is_empty() {
            continue;
        }
        let conversion = Conversion {
            converter: Arc::clone(converter),
            resource: Arc::clone(resource),
            from,
            to,
            objects: indexes.iter().map(|index| objects[*index].clone()).collect(),
        };
        for (index, object) in indexes.into_iter().zip(conversion.run(server).await?) {
            objects[index] = object;
        }
    }
    let converted = objects.into_iter().zip(items);
    Ok(converted
        .map(|(object, stored)| Arc::new(Stored::new(object, stored.revision, stored.edition)))
        .collect())
}
