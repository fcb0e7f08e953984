// SPDX-License-Identifier: Apache-2.0
//! Users whose permissions a test grants and revokes.

use std::{fmt, time::Duration};

use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    authorization::v1::SelfSubjectAccessReview,
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time;

use crate::{Endpoint, Identity, token};

/// Polling interval while waiting for a change of permissions.
const REVIEW_POLL: Duration = Duration::from_millis(10);

/// A service account of the test's namespace, with a token and, at first, no permissions.
///
/// Service accounts rather than fixed users: there are as many as tests want, and operators run as one.
#[derive(Clone)]
pub struct User {
    identity: Identity,
    namespace: String,
    account: String,
    endpoint: Endpoint,
    admin: Client,
}

/// A granted permission. It stays when this is dropped; [`Grant::revoke`] ends it.
#[derive(Debug)]
#[must_use = "keep it to revoke the permission, or say `let _ =`"]
pub struct Grant {
    name: String,
    review: SelfSubjectAccessReview,
    user: User,
}

impl User {
    pub(crate) async fn create(
        name: &str,
        namespace: &str,
        endpoint: Endpoint,
        admin: Client,
    ) -> Result<Self, kube::Error> {
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
        accounts
            .create(
                &PostParams::default(),
                &object(json!({"metadata": {"name": name}})),
            )
            .await?;
        let request: TokenRequest =
            object(json!({"metadata": {}, "spec": {"audiences": [], "expirationSeconds": 86400}}));
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await?;
        let answer = serde_json::to_value(answer).map_err(kube::Error::SerdeError)?;
        let token = answer
            .pointer("/status/token")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let identity = Identity::new(format!("system:serviceaccount:{namespace}:{name}"), token);
        Ok(Self {
            identity,
            namespace: namespace.to_owned(),
            account: name.to_owned(),
            endpoint,
            admin,
        })
    }

    /// Returns name and token.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns a client for this user.
    ///
    /// # Panics
    /// When the client cannot be created, which ends the test.
    #[must_use]
    pub fn client(&self) -> Client {
        self.endpoint
            .client(&self.identity)
            .expect("the endpoint made a client before")
    }

    /// Grants `verbs` on `resources` of `group`, in all namespaces, and waits until the server acts on it.
    ///
    /// # Errors
    /// When the server rejects it.
    ///
    /// # Cancel safety
    /// If dropped midway, it is unknown whether the permission was granted.
    pub async fn grant(&self, group: &str, resources: &[&str], verbs: &[&str]) -> Result<Grant, kube::Error> {
        let name = format!("{}-{}-{}", self.namespace, self.account, token::random());
        let role: ClusterRole = object(json!({
            "metadata": {"name": name},
            "rules": [{"apiGroups": [group], "resources": resources, "verbs": verbs}],
        }));
        Api::all(self.admin.clone())
            .create(&PostParams::default(), &role)
            .await?;
        let binding: ClusterRoleBinding = object(json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": self.account, "namespace": self.namespace}],
        }));
        Api::all(self.admin.clone())
            .create(&PostParams::default(), &binding)
            .await?;
        let attributes = json!({"group": group, "resource": resources.first(), "verb": verbs.first()});
        let review = object(json!({"metadata": {}, "spec": {"resourceAttributes": attributes}}));
        self.wait_until(&review, true).await?;
        Ok(Grant {
            name,
            review,
            user: self.clone(),
        })
    }

    /// The server's authorizer watches for changes, so they take a moment.
    async fn wait_until(&self, review: &SelfSubjectAccessReview, allowed: bool) -> Result<(), kube::Error> {
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client());
        loop {
            let answer = reviews.create(&PostParams::default(), review).await?;
            if answer.status.is_some_and(|status| status.allowed == allowed) {
                return Ok(());
            }
            time::sleep(REVIEW_POLL).await;
        }
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Grant {
    /// Revokes the permission and waits until the server acts on it. Other grants of the same permission stay.
    ///
    /// # Errors
    /// When the server rejects it.
    ///
    /// # Cancel safety
    /// If dropped midway, it is unknown whether the permission was revoked.
    pub async fn revoke(self) -> Result<(), kube::Error> {
        let admin = self.user.admin.clone();
        Api::<ClusterRoleBinding>::all(admin.clone())
            .delete(&self.name, &DeleteParams::default())
            .await?;
        Api::<ClusterRole>::all(admin)
            .delete(&self.name, &DeleteParams::default())
            .await?;
        self.user.wait_until(&self.review, false).await
    }
}

/// Decodes JSON of this file as a typed object. The optional fields of k8s-openapi's types depend on the version that
/// the user chooses; JSON is the same for all.
fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("the object in this file has the fields of its kind")
}
