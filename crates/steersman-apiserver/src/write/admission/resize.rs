// SPDX-License-Identifier: Apache-2.0
//! The admission plugin `PersistentVolumeClaimResize`: only bound claims of classes that allow it can grow.

use serde_json::Value;

use super::forbidden;
use crate::{
    handler::Target,
    quantity::amount::Amount,
    resource::at,
    state::Context,
    status::Result,
    store::{Object, metadata_of},
};

/// Checks a change of a claim.
pub(super) fn check(cx: &Context<'_>, target: &Target, old: &Object, object: &Object) -> Result<()> {
    let size = |claim: &Object| {
        let size = at(claim, &["spec", "resources", "requests", "storage"]).and_then(Value::as_str);
        size.and_then(Amount::parse).unwrap_or_default()
    };
    if size(object) <= size(old) {
        return Ok(());
    }
    if at(old, &["status", "phase"]).and_then(Value::as_str) != Some("Bound") {
        return Err(forbidden(
            target,
            "Only bound persistent volume claims can be expanded",
        ));
    }
    let (class, before) = (class(object), class(old));
    let found = cx.find("storage.k8s.io", "storageclasses", class);
    let can_grow = found.is_some_and(|found| {
        found.object().get("allowVolumeExpansion") == Some(&Value::Bool(true)) && class == before
    });
    if can_grow {
        return Ok(());
    }
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    Err(forbidden(target, why))
}

/// Returns the class of a claim; empty if it has none.
fn class(claim: &Object) -> &str {
    let annotations = metadata_of(claim).get("annotations");
    let named =
        annotations.and_then(|annotations| annotations.get("volume.beta.kubernetes.io/storage-class"));
    let class = named.or_else(|| at(claim, &["spec", "storageClassName"]));
    class.and_then(Value::as_str).unwrap_or_default()
}
