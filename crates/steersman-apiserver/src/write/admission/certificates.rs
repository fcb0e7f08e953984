// SPDX-License-Identifier: Apache-2.0
//! The admission plugins `CertificateApproval`, `CertificateSigning`, `CertificateSubjectRestriction` and
//! `ClusterTrustBundleAttest`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::forbidden;
use crate::{
    admission,
    auth::{authorize::Attributes, rbac},
    handler::Target,
    resource::at,
    state::Context,
    status::Result,
    store::{Object, metadata_of},
};

/// The signer whose certificates authenticate clients.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// The DER form of the attribute type `organizationName`.
const ORGANIZATION: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x0a];

/// Checks a write of a certificate signing request or of a trust bundle.
pub(super) fn check(cx: &Context<'_>, target: &Target, old: Option<&Object>, object: &Object) -> Result<()> {
    let resource = &target.resource;
    if resource.group != "certificates.k8s.io" {
        return Ok(());
    }
    match (resource.plural.as_str(), target.subresource.as_str(), old) {
        ("certificatesigningrequests", "", None) => check_subject(target, object),
        ("certificatesigningrequests", "approval", Some(old)) => {
            check_signer(cx, target, "approve", signer(old), "approve requests with")
        }
        ("certificatesigningrequests", "status", Some(old)) => {
            let is_same = |field: &str| at(old, &["status", field]) == at(object, &["status", field]);
            if is_same("certificate") && is_same("conditions") {
                return Ok(());
            }
            check_signer(cx, target, "sign", signer(old), "sign requests with")
        }
        ("clustertrustbundles", "", old) => {
            let name = signer(object);
            if name.is_empty() || old.is_some_and(|old| differs_in_references_only(old, object)) {
                return Ok(());
            }
            check_signer(cx, target, "attest", name, "attest for")
        }
        _ => Ok(()),
    }
}

fn signer(object: &Object) -> &str {
    let name = at(object, &["spec", "signerName"]).and_then(Value::as_str);
    name.unwrap_or_default()
}

fn differs_in_references_only(old: &Object, object: &Object) -> bool {
    let rest = |object: &Object| {
        let mut metadata = metadata_of(object).clone();
        metadata.retain(|key, _| {
            !matches!(
                key.as_str(),
                "ownerReferences" | "finalizers" | "managedFields" | "generation" | "resourceVersion"
            )
        });
        (metadata, object.get("spec").cloned())
    };
    rest(old) == rest(object)
}

/// Checks that the user is allowed to act for a signer, or for all signers of its domain.
fn check_signer(cx: &Context<'_>, target: &Target, verb: &str, signer: &str, action: &str) -> Result<()> {
    let Some(user) = admission::user(cx).filter(|_| cx.state.settings.rbac) else {
        return Ok(());
    };
    let domain = signer.split('/').next().unwrap_or_default();
    let is_allowed = [signer.to_owned(), format!("{domain}/*")]
        .into_iter()
        .any(|name| {
            let attributes = Attributes {
                verb: verb.to_owned(),
                group: "certificates.k8s.io".to_owned(),
                resource: "signers".to_owned(),
                name,
                ..Attributes::default()
            };
            rbac::allows(cx, user, &attributes).is_some()
        });
    if is_allowed {
        return Ok(());
    }
    let why = format!("user not permitted to {action} signerName {signer:?}");
    Err(forbidden(target, &why))
}

/// Rejects requests for certificates of the group `system:masters`, which is allowed everything.
fn check_subject(target: &Target, object: &Object) -> Result<()> {
    if signer(object) != CLIENT_SIGNER {
        return Ok(());
    }
    let request = at(object, &["spec", "request"]).and_then(Value::as_str);
    let der = request.and_then(der).unwrap_or_default();
    if organizations(&der).any(|name| name == b"system:masters") {
        let why = format!("use of {CLIENT_SIGNER} signer with system:masters group is not allowed");
        return Err(forbidden(target, &why));
    }
    Ok(())
}

/// Returns the content of a PEM block that is encoded in base64.
fn der(request: &str) -> Option<Vec<u8>> {
    let pem = String::from_utf8(STANDARD.decode(request).ok()?).ok()?;
    let lines = pem.lines().filter(|line| !line.starts_with("-----"));
    STANDARD.decode(lines.map(str::trim).collect::<String>()).ok()
}

/// Returns the values of all attributes `organizationName`.
fn organizations(der: &[u8]) -> impl Iterator<Item = &[u8]> {
    let starts = der.windows(ORGANIZATION.len()).enumerate();
    let starts = starts.filter(|(_, window)| *window == ORGANIZATION);
    starts.filter_map(|(start, _)| {
        // A tag, a length of one byte, and the text.
        let [_, length, text @ ..] = &der[start + ORGANIZATION.len()..] else {
            return None;
        };
        text.get(..usize::from(*length))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_organizations_in_a_request() {
        let mut der = vec![0x30, 0x20];
        for name in ["team", "system:masters"] {
            der.extend(ORGANIZATION);
            der.extend([0x0c, u8::try_from(name.len()).unwrap()]);
            der.extend(name.as_bytes());
        }
        let found: Vec<&[u8]> = organizations(&der).collect();
        assert_eq!(found, [b"team".as_slice(), b"system:masters"]);
        der.truncate(der.len() - 1);
        assert_eq!(organizations(&der).count(), 1);
    }
}
