// SPDX-License-Identifier: Apache-2.0
use steersman_cache::Resource;
use steersman_core::ObjectKey;

use super::*;

fn refused(code: u16, reason: &str, message: &str) -> Error {
    refused_because(code, reason, message, "")
}

fn refused_because(code: u16, reason: &str, message: &str, cause: &str) -> Error {
    let maps = Resource::new("", "v1", "ConfigMap", "configmaps");
    let mut status = Status::failure(message, reason).with_code(code);
    let causes = serde_json::json!([{"reason": cause, "field": ".data"}]);
    let details = serde_json::json!({"name": "front", "causes": causes});
    status.details = serde_json::from_value(details).unwrap();
    let refusal = ApiError {
        code,
        status,
        retry_after: None,
        credentials: None,
    };
    let call = Operation::on("update", &maps, &ObjectKey::new("web", "front"));
    Error::refused(call, refusal)
}

// R161
#[test]
fn classifies_rejections_by_code_and_reason() {
    let conflict = refused(409, "Conflict", "the object has been modified");
    assert!(conflict.is_conflict() && !conflict.is_already_exists());
    let message = "Apply failed with 1 conflict";
    let applied = refused_because(409, "Conflict", message, "FieldManagerConflict");
    assert!(applied.is_apply_conflict() && !applied.is_conflict());
    assert!(
        applied
            .to_string()
            .ends_with("take these fields over with `force`, or leave them out")
    );
    let exists = refused(409, "AlreadyExists", "there is one");
    assert!(exists.is_already_exists() && !exists.is_conflict());
    assert!(refused(403, "Forbidden", "").is_forbidden());
    let not_found = refused(404, "NotFound", "");
    assert!(not_found.is_not_found() && !not_found.is_absent());
}

#[test]
fn may_be_applied_unless_the_server_rejected_the_write() {
    assert!(refused(504, "Timeout", "").may_be_applied());
    assert!(!refused(409, "Conflict", "").may_be_applied());
    let maps = Resource::new("", "v1", "ConfigMap", "configmaps");
    let timed_out = |verb| Error::TimedOut {
        call: Box::new(Operation::on(verb, &maps, &ObjectKey::new("web", "front"))),
        source: TimedOut {
            limit: Duration::from_secs(1),
        },
    };
    assert!(timed_out("update").may_be_applied());
    assert!(!timed_out("get").may_be_applied());
}

#[test]
fn the_message_names_verb_kind_key_and_server_message() {
    let error = refused(409, "Conflict", "the object has been modified");
    assert_eq!(
        error.to_string(),
        "cannot update configmaps/v1 web/front: the object has been modified (409 Conflict)"
    );
}
