// SPDX-License-Identifier: Apache-2.0
//! Credentials of an `auth-provider` of the kubeconfig, such as `oidc`. kube refreshes them.

use std::fmt;

use http::Request;
use kube::{
    Client, Config,
    client::{Body, ConfigExt, middleware::AuthLayer},
};
use tower::{BoxError, Layer, service_fn};

/// Layer that adds the credentials to requests. All clients of a cluster share it.
pub(super) struct AuthProvider(AuthLayer);

impl AuthProvider {
    /// Takes the provider out of a configuration. A provider with a command, such as `gcp`, blocks until it returns.
    pub(super) fn take(config: &mut Config) -> Result<Option<Self>, kube::Error> {
        if config.auth_info.auth_provider.is_none() {
            return Ok(None);
        }
        let layer = config.auth_layer()?;
        // kube prefers the provider to all of these.
        let auth = &mut config.auth_info;
        (auth.auth_provider, auth.username, auth.password) = (None, None, None);
        (auth.token, auth.token_file) = (None, None);
        Ok(layer.map(Self))
    }

    /// Returns a client that sends the credentials. Requires the context of a tokio runtime.
    pub(super) fn authorize(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let unauthorized = service_fn(move |request: Request<Body>| {
            let client = client.clone();
            async move { client.send(request).await.map_err(BoxError::from) }
        });
        Client::new(self.0.layer(unauthorized), namespace)
    }
}

impl fmt::Debug for AuthProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AuthProvider").finish_non_exhaustive()
    }
}
