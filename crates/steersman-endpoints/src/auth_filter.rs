// SPDX-License-Identifier: Apache-2.0
//! Authenticates and authorizes HTTP requests by asking the API server.
//!
//! # Guarantees
//! 1. A request passes only if its user is known, and the API server authorizes the user for the path and the method
//!    (SubjectAccessReview). The user is that of the client certificate, verified with the client CA of the server. Without a
//!    certificate, the API server authenticates the bearer token (TokenReview).
//! 2. Results are cached: identities for 1 min, permissions for 5 min, denials for 30 s. Failed reviews are not cached. The
//!    keys are digests, so the cache contains no tokens.
//! 3. A review fails if the API server does not respond within 10 s.

mod cache;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use steersman_core::{Clock, error_chain};

use crate::{
    BoxError, HttpHandler, HttpRequest, HttpResponse,
    handler::text_response,
    routes::percent_decoded,
    tls::{CertificateUser, ClientCertificate},
};
use cache::{Cache, Digest, digest};

/// Time limit of one review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

const IDENTITY_TTL: Duration = Duration::from_secs(60);
const PERMISSION_TTL: Duration = Duration::from_secs(300);
const DENIAL_TTL: Duration = Duration::from_secs(30);

/// Sends a request to the API server and returns the JSON of a successful response.
pub(crate) type SendFn = Arc<dyn Fn(http::Request<Vec<u8>>) -> SendFuture + Send + Sync>;
pub(crate) type SendFuture = Pin<Box<dyn Future<Output = Result<Value, BoxError>> + Send>>;

/// Protects handlers. All of them share one cache.
pub(crate) struct AuthFilter {
    send: SendFn,
    clock: Arc<dyn Clock>,
    identities: Cache<Option<Arc<User>>>,
    permissions: Cache<bool>,
}

/// An authenticated user.
struct User {
    /// `username`, `uid`, `groups` and `extra` of the TokenReview, or `username` and `groups` of the certificate.
    info: Value,
    digest: Digest,
}

/// A kind of review. Reviews are plain JSON, because the optional fields of k8s-openapi's types depend on the Kubernetes
/// version that the user selects.
#[derive(Clone, Copy, Debug)]
struct Review {
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
}

const TOKEN_REVIEW: Review = Review {
    api_version: "authentication.k8s.io/v1",
    kind: "TokenReview",
    plural: "tokenreviews",
};

const SUBJECT_ACCESS_REVIEW: Review = Review {
    api_version: "authorization.k8s.io/v1",
    kind: "SubjectAccessReview",
    plural: "subjectaccessreviews",
};

/// The reason why a request does not pass.
enum Rejection {
    Unauthorized,
    Forbidden {
        message: String,
    },
    /// The client gets the message, the log the error.
    ReviewFailed {
        message: String,
        error: ReviewError,
    },
}

/// The API server did not complete a review.
#[derive(Debug, thiserror::Error)]
enum ReviewError {
    #[error("cannot create a {0}; bind the ClusterRole `system:auth-delegator` to this program")]
    Request(&'static str, #[source] BoxError),
    #[error("cannot create a {0}: the API server did not respond within {REVIEW_TIMEOUT:?}")]
    TimedOut(&'static str),
    #[error("cannot decode the response to a {0}: a field is missing")]
    Malformed(&'static str),
}

impl AuthFilter {
    pub(crate) fn new(send: SendFn, clock: Arc<dyn Clock>) -> Self {
        Self {
            send,
            identities: Cache::new(Arc::clone(&clock)),
            permissions: Cache::new(Arc::clone(&clock)),
            clock,
        }
    }

    /// Returns a handler that only gets requests that pass the filter.
    pub(crate) fn protect(self: &Arc<Self>, handler: HttpHandler) -> HttpHandler {
        let filter = Arc::clone(self);
        handler.filtered(move |request: HttpRequest| {
            let filter = Arc::clone(&filter);
            async move {
                let verb = request.method().as_str().to_lowercase();
                let path = percent_decoded(request.uri().path());
                let certificate = request.extensions().get::<ClientCertificate>().cloned();
                match filter
                    .check(certificate.as_ref(), request.headers(), &verb, &path)
                    .await
                {
                    Ok(()) => Ok(request),
                    Err(rejection) => Err(rejection.response()),
                }
            }
        })
    }

    async fn check(
        &self,
        certificate: Option<&ClientCertificate>,
        headers: &HeaderMap,
        verb: &str,
        path: &str,
    ) -> Result<(), Rejection> {
        let user = match certificate.and_then(ClientCertificate::user) {
            Some(user) => Arc::new(User::from_certificate(&user)),
            None => self.user_of_token(headers).await?,
        };
        let name = user.name();
        let allowed = self.authorize(&user, verb, path).await;
        let allowed = allowed.map_err(|error| Rejection::ReviewFailed {
            message: format!("Authorization for user {name} failed\n"),
            error,
        })?;
        allowed.then_some(()).ok_or_else(|| Rejection::Forbidden {
            message: format!("Authorization denied for user {name}\n"),
        })
    }

    async fn user_of_token(&self, headers: &HeaderMap) -> Result<Arc<User>, Rejection> {
        let token = bearer_token(headers).ok_or(Rejection::Unauthorized)?;
        let user = self.authenticate(token).await;
        let user = user.map_err(|error| Rejection::ReviewFailed {
            message: "Authentication failed\n".to_owned(),
            error,
        })?;
        user.ok_or(Rejection::Unauthorized)
    }

    async fn authenticate(&self, token: &str) -> Result<Option<Arc<User>>, ReviewError> {
        let key = digest([token.as_bytes()]);
        if let Some(cached) = self.identities.get(&key) {
            return Ok(cached);
        }
        let status = self.review(TOKEN_REVIEW, &json!({"token": token})).await?;
        let user = match status.get("authenticated") {
            Some(Value::Bool(true)) => Some(Arc::new(User::from_status(&status)?)),
            _ => None,
        };
        self.identities.insert(key, user.clone(), IDENTITY_TTL);
        Ok(user)
    }

    async fn authorize(&self, user: &User, verb: &str, path: &str) -> Result<bool, ReviewError> {
        let key = digest([&user.digest, verb.as_bytes(), path.as_bytes()]);
        if let Some(cached) = self.permissions.get(&key) {
            return Ok(cached);
        }
        let mut spec = json!({"user": user.name(), "nonResourceAttributes": {"path": path, "verb": verb}});
        for name in ["uid", "groups", "extra"] {
            if let Some(value) = user.info.get(name) {
                spec[name] = value.clone();
            }
        }
        let status = self.review(SUBJECT_ACCESS_REVIEW, &spec).await?;
        let allowed = status.get("allowed") == Some(&Value::Bool(true));
        let ttl = if allowed { PERMISSION_TTL } else { DENIAL_TTL };
        self.permissions.insert(key, allowed, ttl);
        Ok(allowed)
    }

    /// Creates a review and returns its status.
    async fn review(&self, review: Review, spec: &Value) -> Result<Value, ReviewError> {
        let Review {
            api_version,
            kind,
            plural,
        } = review;
        let body = json!({"apiVersion": api_version, "kind": kind, "metadata": {}, "spec": spec});
        let request = http::Request::post(format!("/apis/{api_version}/{plural}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .expect("a constant path and header make a valid request");
        let response = tokio::select! {
            biased;
            response = (self.send)(request) => response.map_err(|error| ReviewError::Request(kind, error))?,
            () = self.clock.sleep_until(self.clock.now() + REVIEW_TIMEOUT) => return Err(ReviewError::TimedOut(kind)),
        };
        response
            .get("status")
            .cloned()
            .ok_or(ReviewError::Malformed(kind))
    }
}

impl User {
    fn from_status(status: &Value) -> Result<Self, ReviewError> {
        let info = status.get("user").cloned();
        let info = info.ok_or(ReviewError::Malformed(TOKEN_REVIEW.kind))?;
        Ok(Self::new(info))
    }

    /// As API servers do, adds the group of all authenticated users.
    fn from_certificate(user: &CertificateUser) -> Self {
        let groups = user.groups.iter().map(String::as_str);
        let groups: Vec<_> = groups.chain(["system:authenticated"]).collect();
        Self::new(json!({"username": user.name, "groups": groups}))
    }

    fn new(info: Value) -> Self {
        let digest = digest([info.to_string().as_bytes()]);
        Self { info, digest }
    }

    fn name(&self) -> &str {
        let name = self.info.get("username").and_then(Value::as_str);
        name.unwrap_or_default()
    }
}

impl Rejection {
    /// The texts are those of controller-runtime.
    fn response(self) -> HttpResponse {
        match self {
            Self::Unauthorized => {
                let mut response = text_response(StatusCode::UNAUTHORIZED, "Unauthorized\n");
                let challenge = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
                response
            }
            Self::Forbidden { message } => text_response(StatusCode::FORBIDDEN, message),
            Self::ReviewFailed { message, error } => {
                tracing::warn!(error = error_chain(&error), "failed to authorize HTTP request");
                text_response(StatusCode::INTERNAL_SERVER_ERROR, message)
            }
        }
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
