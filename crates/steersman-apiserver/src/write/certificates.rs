// SPDX-License-Identifier: Apache-2.0
//! Fields of CertificateSigningRequests that the server sets.

use serde_json::Value;

use crate::{admission, state::Context, store::Object};

/// Sets the author of a new request.
pub(super) fn prepare_create(cx: &Context<'_>, object: &mut Object) {
    forget_managers(object);
    let Some(Value::Object(spec)) = object.get_mut("spec") else {
        return;
    };
    let user = admission::user(cx).map(|user| user.info()).unwrap_or_default();
    for field in ["username", "uid", "groups", "extra"] {
        match user.get(field) {
            Some(value) => spec.insert(field.to_owned(), value.clone()),
            None => spec.remove(field),
        };
    }
}

/// Sets the times of the conditions that an update of the status adds.
pub(super) fn prepare_update(cx: &Context<'_>, old: &Object, object: &mut Object) {
    forget_managers(object);
    let before: Vec<Value> = old
        .get("status")
        .and_then(|status| status["conditions"].as_array())
        .cloned()
        .unwrap_or_default();
    let conditions = object
        .get_mut("status")
        .and_then(|status| status.get_mut("conditions"));
    let conditions = conditions.and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        if condition["lastUpdateTime"].is_null() {
            condition["lastUpdateTime"] = cx.timestamp();
        }
        if condition["lastTransitionTime"].is_null() {
            let is_same = |known: &&Value| {
                known["type"] == condition["type"]
                    && known["status"] == condition["status"]
                    && !known["lastTransitionTime"].is_null()
            };
            let known = before.iter().find(is_same);
            let time = known.map_or_else(|| cx.timestamp(), |known| known["lastTransitionTime"].clone());
            condition["lastTransitionTime"] = time;
        }
    }
}

/// The real server keeps no managed fields of this kind.
fn forget_managers(object: &mut Object) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
    }
}
