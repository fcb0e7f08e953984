// SPDX-License-Identifier: Apache-2.0
//! Service account tokens: JSON web tokens that this server signs and verifies.
//!
//! They are signed with HMAC instead of the real server's RSA, so that a seed gives the same tokens. They are only as
//! secret as the seed: use them in tests only.

use std::time::SystemTime;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;
use serde_json::{Value, json};

use super::unix;
use crate::random::Random;

/// The issuer and the default audience.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc";

/// The account that a token is issued for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The object that the token is bound to; deleting it invalidates the token.
    pub(crate) bound: Option<Bound>,
    /// The node of the Pod that the token is bound to, if it has one.
    pub(crate) node: Option<(String, String)>,
}

/// An object that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The plural: `pods`, `secrets` or `nodes`.
    pub(crate) resource: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Kinds that tokens can be bound to: their plural, and their name in claims.
pub(crate) const BOUND_KINDS: [(&str, &str); 3] = [("pods", "pod"), ("secrets", "secret"), ("nodes", "node")];

/// The content of a token that this server signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) account: Account,
    pub(crate) audiences: Vec<String>,
    pub(crate) id: String,
    pub(crate) has_expired: bool,
}

/// Signs and verifies tokens.
pub(crate) struct Signer(hmac::Key);

impl Signer {
    pub(crate) fn new(random: &mut Random) -> Self {
        let mut secret = [0; 32];
        random.fill(&mut secret);
        Self(hmac::Key::new(hmac::HMAC_SHA256, &secret))
    }

    /// Signs a token for an account, valid from now until `expires`.
    pub(crate) fn sign(
        &self,
        account: &Account,
        audiences: &Value,
        id: &str,
        now: SystemTime,
        expires: SystemTime,
    ) -> String {
        let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": "steersman"}).to_string());
        let mut claims = json!({
            "aud": audiences, "exp": unix(expires), "iat": unix(now), "nbf": unix(now), "iss": ISSUER, "jti": id,
            "kubernetes.io": {"namespace": account.namespace, "serviceaccount": {"name": account.name, "uid": account.uid}},
            "sub": format!("system:serviceaccount:{}:{}", account.namespace, account.name),
        });
        let place = &mut claims["kubernetes.io"];
        if let Some((name, uid)) = &account.node {
            place["node"] = json!({"name": name, "uid": uid});
        }
        if let Some(bound) = &account.bound
            && let Some((_, claim)) = BOUND_KINDS.iter().find(|(plural, _)| *plural == bound.resource)
        {
            place[*claim] = json!({"name": bound.name, "uid": bound.uid});
        }
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = hmac::sign(&self.0, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// Verifies a token; returns `None` if this server did not sign it.
    pub(crate) fn verify(&self, token: &str, now: SystemTime) -> Option<Claims> {
        let (signed, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        hmac::verify(&self.0, signed.as_bytes(), &signature).ok()?;
        let claims: Value =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(signed.split_once('.')?.1).ok()?).ok()?;
        let text = |pointer: &str| claims.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let reference = |claim: &str| {
            let part = |field: &str| text(&format!("/kubernetes.io/{claim}/{field}"));
            Some((part("name")?, part("uid")?))
        };
        let bound = BOUND_KINDS.iter().find_map(|(plural, claim)| {
            let (name, uid) = reference(claim)?;
            let resource = (*plural).to_owned();
            Some(Bound { resource, name, uid })
        });
        let is_of_pod = bound.as_ref().is_some_and(|bound| bound.resource == "pods");
        let audiences = claims["aud"].as_array().into_iter().flatten();
        Some(Claims {
            has_expired: claims["exp"].as_i64()? <= unix(now),
            audiences: audiences.filter_map(Value::as_str).map(str::to_owned).collect(),
            id: text("/jti")?,
            account: Account {
                namespace: text("/kubernetes.io/namespace")?,
                name: text("/kubernetes.io/serviceaccount/name")?,
                uid: text("/kubernetes.io/serviceaccount/uid")?,
                node: reference("node").filter(|_| is_of_pod),
                bound,
            },
        })
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_token_is_known_until_it_expires_and_not_if_it_was_changed() {
        let signer = Signer::new(&mut Random::new(1));
        let account = Account {
            namespace: "default".to_owned(),
            name: "a".to_owned(),
            uid: "u".to_owned(),
            bound: Some(Bound {
                resource: "pods".to_owned(),
                name: "p".to_owned(),
                uid: "v".to_owned(),
            }),
            node: Some(("n".to_owned(), "w".to_owned())),
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let later = now + Duration::from_secs(600);
        let token = signer.sign(&account, &json!([ISSUER]), "id", now, later);
        let claims = signer.verify(&token, now).unwrap();
        assert_eq!(claims.account, account);
        assert!(!claims.has_expired);
        assert!(signer.verify(&token, later).unwrap().has_expired);
        assert_eq!(signer.verify(&token.replace('.', "x."), now), None);
        for bad in ["", ".", "..", "a.b.c", "%"] {
            assert_eq!(signer.verify(bad, now), None, "{bad}");
        }
    }
}
