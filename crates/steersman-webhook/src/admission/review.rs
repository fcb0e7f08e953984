// SPDX-License-Identifier: Apache-2.0
//! The bodies of `AdmissionReview` in `admission.k8s.io/v1`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use json_patch::Patch;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use steersman_cache::without_content;

use super::{AdmissionRequest, AdmissionResponse};
use crate::handler::{Failure, undecodable};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Value>,
}

/// Decodes the body of a review.
pub(crate) fn decode(body: &[u8]) -> Result<AdmissionRequest, Failure> {
    let review: Review = serde_json::from_slice(body).map_err(|error| {
        Failure::bad_request(format!(
            "the body is not an AdmissionReview: {}",
            without_content(&error)
        ))
    })?;
    if (&*review.api_version, &*review.kind) != (API_VERSION, KIND) {
        return Err(Failure::bad_request(format!(
            "expected {KIND} in {API_VERSION}, got {:?} in {:?}; set `admissionReviewVersions: [v1]`",
            review.kind, review.api_version
        )));
    }
    let request = review.request.unwrap_or_default();
    let request: AdmissionRequest = serde_path_to_error::deserialize(request)
        .map_err(|error| Failure::bad_request(format!("cannot decode `request`: {}", undecodable(&error))))?;
    if request.uid.is_empty() {
        return Err(Failure::bad_request("`request.uid` is empty"));
    }
    Ok(request)
}

/// Encodes the response to a review.
pub(crate) fn encode(uid: &str, response: &AdmissionResponse, patch: Option<&Patch>) -> Value {
    let mut body = Map::new();
    body.insert("uid".to_owned(), json!(uid));
    body.insert("allowed".to_owned(), json!(response.denial.is_none()));
    if let Some(denial) = &response.denial {
        let mut status = json!({
            "status": "Failure",
            "message": denial.message,
            "reason": denial.reason,
            "code": denial.code,
        });
        if let Some(details) = &denial.details {
            status["details"] = details.clone();
        }
        body.insert("status".to_owned(), status);
    } else if let Some(patch) = patch.filter(|patch| !patch.is_empty()) {
        body.insert("patchType".to_owned(), json!("JSONPatch"));
        let patch = json!(patch).to_string();
        body.insert("patch".to_owned(), json!(STANDARD.encode(patch)));
    }
    if !response.warnings.is_empty() {
        body.insert("warnings".to_owned(), json!(response.warnings));
    }
    if !response.audit_annotations.is_empty() {
        body.insert("auditAnnotations".to_owned(), json!(response.audit_annotations));
    }
    json!({"apiVersion": API_VERSION, "kind": KIND, "response": body})
}
