// SPDX-License-Identifier: Apache-2.0
//! `AdmissionReview`: the request to a webhook, and its response.

use serde_json::{Value, json};

use super::{Attributes, Phase, selection::in_version};
use crate::{
    jsonpatch,
    policy::{self, matching::Matched},
    status::Failure,
};

/// Builds the `request` of a review.
pub(crate) fn request(attributes: &Attributes, matched: &Matched, uid: &str) -> Value {
    let shown = |object: &Option<Value>| {
        object
            .as_ref()
            .map(|object| in_version(attributes, matched, object))
    };
    let mut request = policy::request(attributes, matched);
    request["uid"] = json!(uid);
    request["object"] = json!(shown(&attributes.object));
    request["oldObject"] = json!(shown(&attributes.old_object));
    request
}

/// Builds a review.
pub(crate) fn review(version: &str, request: &Value) -> Value {
    json!({"kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{version}"), "request": request})
}

/// The valid response of a webhook.
#[derive(Debug, Default)]
pub(crate) struct Response {
    pub(crate) allowed: bool,
    /// The JSON patch; empty if the webhook changes nothing.
    pub(crate) patch: Vec<u8>,
    patch_type: String,
    pub(crate) warnings: Vec<String>,
    /// A `Status`.
    result: Option<Value>,
}

/// Checks that a response has the version of the request.
///
/// # Errors
/// Returns the error of the real server's decoder.
pub(crate) fn check_version(version: &str, review: &Value) -> Result<(), String> {
    let given = review.get("apiVersion").and_then(Value::as_str);
    let other = given.and_then(|given| given.strip_prefix("admission.k8s.io/"));
    match other {
        Some(other @ ("v1" | "v1beta1")) if other != version => Err(format!(
            "converting ({other}.AdmissionReview) to ({version}.AdmissionReview): unknown conversion"
        )),
        _ => Ok(()),
    }
}

/// Reads the response in a review.
///
/// # Errors
/// Returns the real server's text about a response that is not valid.
pub(crate) fn response(version: &str, uid: &str, phase: Phase, review: &Value) -> Result<Response, String> {
    let text = |key: &str| review.get(key).and_then(Value::as_str).unwrap_or_default();
    let given = review.get("response").filter(|response| response.is_object());
    let Some(given) = given else {
        return Err("webhook response was absent".to_owned());
    };
    let field = |key: &str| given.get(key).and_then(Value::as_str).unwrap_or_default();
    let patch = decoded(field("patch"));
    let kind = given.get("patchType").and_then(Value::as_str);
    let is_strict = version == "v1";
    if is_strict {
        if field("uid") != uid {
            return Err(format!("expected response.uid={uid:?}, got {:?}", field("uid")));
        }
        let (api_version, found) = (text("apiVersion"), text("kind"));
        if api_version != "admission.k8s.io/v1" || found != "AdmissionReview" {
            let api_version = if api_version.contains('/') {
                api_version.to_owned()
            } else {
                format!("/{api_version}")
            };
            return Err(format!(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {api_version}, Kind={found}"
            ));
        }
        check_patch(phase, &patch, kind)?;
    }
    let warnings = given.get("warnings").and_then(Value::as_array);
    let warnings = warnings.into_iter().flatten().filter_map(Value::as_str);
    Ok(Response {
        allowed: given.get("allowed").and_then(Value::as_bool).unwrap_or_default(),
        patch_type: kind.filter(|_| is_strict).unwrap_or("JSONPatch").to_owned(),
        patch: if phase == Phase::Validate {
            Vec::new()
        } else {
            patch
        },
        warnings: warnings.map(str::to_owned).collect(),
        result: given.get("status").filter(|status| status.is_object()).cloned(),
    })
}

fn check_patch(phase: Phase, patch: &[u8], kind: Option<&str>) -> Result<(), String> {
    let complaint = match (phase, patch.is_empty(), kind) {
        (Phase::Validate, false, _) => "validating webhook may not return response.patch",
        (Phase::Validate, true, Some(_)) => "validating webhook may not return response.patchType",
        (Phase::Validate, true, None) => return Ok(()),
        (_, false, None) => "webhook returned response.patch but not response.patchType",
        (_, true, Some(_)) => "webhook returned response.patchType but not response.patch",
        (_, false, Some("")) => "webhook returned invalid response.patchType of \"\"",
        (_, false, Some(_)) | (_, true, None) => return Ok(()),
    };
    Err(complaint.to_owned())
}

fn decoded(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    let decoded = base64::engine::general_purpose::STANDARD.decode(text);
    decoded.unwrap_or_default()
}

impl Response {
    /// Returns the failure of a write that the webhook denied.
    pub(crate) fn denial(&self, webhook: &str) -> Failure {
        let empty = json!({});
        let status = self.result.as_ref().unwrap_or(&empty);
        let text = |key: &str| {
            status
                .get(key)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let denied = format!("admission webhook {webhook:?} denied the request");
        let message = match text("message").or(text("reason")) {
            Some(why) => format!("{denied}: {why}"),
            None => format!("{denied} without explanation"),
        };
        Failure::of_status(status, message)
    }
}

/// Applies the patch of a response.
///
/// # Errors
/// Returns [`Unpatched`], which says whether the failure policy applies.
pub(crate) fn patched(
    object: Option<&Value>,
    response: &Response,
    webhook: &str,
) -> Result<Option<Value>, Unpatched> {
    let undecodable =
        |error: String| Unpatched::Call(format!("received undecodable patch in webhook response: {error}"));
    let operations = crate::json::parse(&response.patch, &mut Vec::new()).map_err(undecodable)?;
    let Value::Array(operations) = operations else {
        let found = crate::handler::decode::go_kind(&operations);
        return Err(undecodable(format!(
            "json: cannot unmarshal {found} into Go value of type jsonpatch.Patch"
        )));
    };
    if operations.is_empty() {
        return Ok(None);
    }
    let Some(object) = object else {
        return Err(Unpatched::Server(format!(
            "admission webhook {webhook:?} attempted to modify the object, which is not supported for this operation"
        )));
    };
    if response.patch_type != "JSONPatch" {
        return Err(Unpatched::Call(format!(
            "unsupported patch type {:?}",
            response.patch_type
        )));
    }
    let patched = jsonpatch::apply(object, &operations).map_err(Unpatched::Server)?;
    Ok(Some(patched))
}

/// A patch that cannot be applied.
#[derive(Debug)]
pub(crate) enum Unpatched {
    /// The call failed: subject to the failure policy.
    Call(String),
    /// An internal error.
    Server(String),
}
