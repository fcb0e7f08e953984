// SPDX-License-Identifier: Apache-2.0
//! Who may read metrics: the API server knows.
//!
//! # Guarantees
//! 1. A request goes on only if the API server knows its token and allows its bearer the path and method.
//! 2. What was learned is remembered: an identity for 1 min, a permission for 5 min, a refusal for 30 s. Failures to ask
//!    are not.
//! 3. Tokens are kept nowhere: memories are found by digests.
//! 4. A question that is not answered within 10 s has failed.

mod memory;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::Full;
use kube::Client;
use serde_json::{Value, json};
use steersman_core::Clock;

use crate::{
    Handler, Request,
    serve::{causes, decoded, text},
};
use memory::{Digest, Memory, digest};

/// How long the API server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

const IDENTITY_AGE: Duration = Duration::from_secs(60);
const PERMISSION_AGE: Duration = Duration::from_secs(300);
const REFUSAL_AGE: Duration = Duration::from_secs(30);

/// Stands before handlers and asks the API server about those who come.
pub(super) struct Door {
    client: Client,
    clock: Arc<dyn Clock>,
    identities: Memory<Option<Arc<Bearer>>>,
    permissions: Memory<bool>,
}

/// Somebody whom the API server knows.
struct Bearer {
    /// As a TokenReview shows it: `username`, `uid`, `groups` and `extra`.
    info: Value,
    digest: Digest,
}

/// A question to the API server. Which fields are optional in k8s-openapi's types depends on the version that the user
/// chooses; JSON is the same for all.
#[derive(Clone, Copy, Debug)]
struct Review {
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
}

const TOKEN: Review = Review {
    api_version: "authentication.k8s.io/v1",
    kind: "TokenReview",
    plural: "tokenreviews",
};

const ACCESS: Review = Review {
    api_version: "authorization.k8s.io/v1",
    kind: "SubjectAccessReview",
    plural: "subjectaccessreviews",
};

/// Why nobody passes.
enum Refusal {
    Unknown,
    Forbidden(String),
    /// What the client is told, and what the log is.
    Failed(String, AskError),
}

/// The API server did not say whether somebody may pass.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(
        "the API server did not answer a {0}: does this program have the ClusterRole `system:auth-delegator`?"
    )]
    Refused(&'static str, #[source] kube::Error),
    #[error("the API server did not answer a {0} within {PATIENCE:?}")]
    TimedOut(&'static str),
    #[error("the answer to a {0} makes no sense")]
    Nonsense(&'static str),
}

impl Door {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self {
            client,
            clock: Arc::clone(&clock),
            identities: Memory::new(Arc::clone(&clock)),
            permissions: Memory::new(clock),
        }
    }

    /// The handler, behind the door.
    pub(super) fn before(door: &Arc<Self>, handler: Handler) -> Handler {
        let door = Arc::clone(door);
        handler.behind(move |request: Request| {
            let door = Arc::clone(&door);
            async move {
                let verb = request.method().as_str().to_lowercase();
                let path = decoded(request.uri().path());
                match door.admit(request.headers(), &verb, &path).await {
                    Ok(()) => Ok(request),
                    Err(refusal) => Err(refusal.answer()),
                }
            }
        })
    }

    async fn admit(&self, headers: &HeaderMap, verb: &str, path: &str) -> Result<(), Refusal> {
        let token = bearer_token(headers).ok_or(Refusal::Unknown)?;
        let failed = |error| Refusal::Failed("Authentication failed\n".to_owned(), error);
        let bearer = self.identify(token).await.map_err(failed)?;
        let bearer = bearer.ok_or(Refusal::Unknown)?;
        let name = bearer.name();
        let failed = |error| Refusal::Failed(format!("Authorization for user {name} failed\n"), error);
        if self.may(&bearer, verb, path).await.map_err(failed)? {
            Ok(())
        } else {
            let denied = format!("Authorization denied for user {name}\n");
            Err(Refusal::Forbidden(denied))
        }
    }

    async fn identify(&self, token: &str) -> Result<Option<Arc<Bearer>>, AskError> {
        let key = digest([token.as_bytes()]);
        if let Some(known) = self.identities.recall(&key) {
            return Ok(known);
        }
        let status = self.ask(TOKEN, &json!({"token": token})).await?;
        let bearer = match status.get("authenticated") {
            Some(Value::Bool(true)) => Some(Arc::new(Bearer::of(&status)?)),
            _ => None,
        };
        self.identities.remember(key, bearer.clone(), IDENTITY_AGE);
        Ok(bearer)
    }

    async fn may(&self, bearer: &Bearer, verb: &str, path: &str) -> Result<bool, AskError> {
        let key = digest([&bearer.digest, verb.as_bytes(), path.as_bytes()]);
        if let Some(known) = self.permissions.recall(&key) {
            return Ok(known);
        }
        let mut spec = json!({"user": bearer.name(), "nonResourceAttributes": {"path": path, "verb": verb}});
        for name in ["uid", "groups", "extra"] {
            if let Some(value) = bearer.info.get(name) {
                spec[name] = value.clone();
            }
        }
        let status = self.ask(ACCESS, &spec).await?;
        let allowed = status.get("allowed") == Some(&Value::Bool(true));
        let age = if allowed { PERMISSION_AGE } else { REFUSAL_AGE };
        self.permissions.remember(key, allowed, age);
        Ok(allowed)
    }

    /// The status that the API server gives to a question.
    async fn ask(&self, review: Review, spec: &Value) -> Result<Value, AskError> {
        let Review {
            api_version,
            kind,
            plural,
        } = review;
        let body = json!({"apiVersion": api_version, "kind": kind, "metadata": {}, "spec": spec});
        let request = http::Request::post(format!("/apis/{api_version}/{plural}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .expect("a fixed path makes a request");
        let answer = tokio::select! {
            biased;
            answer = self.client.request::<Value>(request) => answer.map_err(|error| AskError::Refused(kind, error))?,
            () = self.clock.sleep_until(self.clock.now() + PATIENCE) => return Err(AskError::TimedOut(kind)),
        };
        answer.get("status").cloned().ok_or(AskError::Nonsense(kind))
    }
}

impl Bearer {
    fn of(status: &Value) -> Result<Self, AskError> {
        let info = status
            .get("user")
            .cloned()
            .ok_or(AskError::Nonsense(TOKEN.kind))?;
        let digest = digest([info.to_string().as_bytes()]);
        Ok(Self { info, digest })
    }

    fn name(&self) -> &str {
        self.info
            .get("username")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }
}

impl Refusal {
    /// The words are those of controller-runtime.
    fn answer(self) -> http::Response<Full<Bytes>> {
        match self {
            Self::Unknown => {
                let mut response = text(StatusCode::UNAUTHORIZED, "Unauthorized\n");
                let challenge = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
                response
            }
            Self::Forbidden(denied) => text(StatusCode::FORBIDDEN, denied),
            Self::Failed(told, error) => {
                tracing::warn!(
                    error = causes(&error),
                    "a request for metrics could not be authorized"
                );
                text(StatusCode::INTERNAL_SERVER_ERROR, told)
            }
        }
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .trim()
        .split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
