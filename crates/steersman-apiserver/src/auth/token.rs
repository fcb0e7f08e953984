// SPDX-License-Identifier: Apache-2.0
//! Service account tokens: JSON web tokens that this server signs and knows again.
//!
//! They are signed with HMAC instead of the real server's RSA, so that a seed gives the same tokens. They are as
//! secret as the seed, which is enough for tests and for nothing else.

use std::time::SystemTime;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;
use serde_json::{Value, json};

use super::unix;
use crate::random::Random;

/// The issuer and the default audience.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc";

/// The account that a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Makes and checks tokens.
pub(crate) struct Signer(hmac::Key);

impl Signer {
    pub(crate) fn new(random: &mut Random) -> Self {
        let mut secret = [0; 32];
        random.fill(&mut secret);
        Self(hmac::Key::new(hmac::HMAC_SHA256, &secret))
    }

    /// A token for an account, from now until `expires`.
    pub(crate) fn sign(
        &self,
        account: &Account,
        audiences: &Value,
        id: &str,
        now: SystemTime,
        expires: SystemTime,
    ) -> String {
        let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": "steersman"}).to_string());
        let claims = json!({
            "aud": audiences, "exp": unix(expires), "iat": unix(now), "nbf": unix(now), "iss": ISSUER, "jti": id,
            "kubernetes.io": {"namespace": account.namespace, "serviceaccount": {"name": account.name, "uid": account.uid}},
            "sub": format!("system:serviceaccount:{}:{}", account.namespace, account.name),
        });
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = hmac::sign(&self.0, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// Whose token this is, if it is one of ours and has not expired.
    pub(crate) fn verify(&self, token: &str, now: SystemTime) -> Option<Account> {
        let (signed, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        hmac::verify(&self.0, signed.as_bytes(), &signature).ok()?;
        let claims: Value =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(signed.split_once('.')?.1).ok()?).ok()?;
        if claims["exp"].as_i64()? <= unix(now) {
            return None;
        }
        let text = |pointer: &str| claims.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Some(Account {
            namespace: text("/kubernetes.io/namespace")?,
            name: text("/kubernetes.io/serviceaccount/name")?,
            uid: text("/kubernetes.io/serviceaccount/uid")?,
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
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let token = signer.sign(
            &account,
            &json!([ISSUER]),
            "id",
            now,
            now + Duration::from_secs(600),
        );
        assert_eq!(signer.verify(&token, now), Some(account));
        assert_eq!(signer.verify(&token, now + Duration::from_secs(600)), None);
        assert_eq!(signer.verify(&token.replace('.', "x."), now), None);
        for bad in ["", ".", "..", "a.b.c", "%"] {
            assert_eq!(signer.verify(bad, now), None, "{bad}");
        }
    }
}
