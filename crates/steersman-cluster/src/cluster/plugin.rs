// SPDX-License-Identifier: Apache-2.0
//! Credentials from an exec plugin, such as `aws eks get-token`.
//!
//! kube runs a plugin twice for each client, on the thread that creates it, and a cluster has three clients. This
//! module runs it once and shares the result. If the token has an expiry, kube renews it one minute before, on a
//! blocking thread, for all clients at once.
//!
//! # Not promised
//! * If a plugin returns a certificate, kube also runs it for each client, because kube does not expose the
//!   certificate. Such a certificate is not renewed.
//! * A token without an expiry is not renewed, even if the server rejects it.

use std::fmt;

use http::Request;
use kube::{
    Client, Config,
    client::{Body, ConfigExt, middleware::AuthLayer},
    config::AuthInfo,
};
use tower::{BoxError, Layer, service_fn};

/// Credentials that a plugin returned.
pub(super) struct Plugin(AuthLayer);

impl Plugin {
    /// Reports whether an exec plugin is configured.
    pub(super) fn is_named(auth: &AuthInfo) -> bool {
        auth.exec.is_some() || auth.auth_provider.is_some()
    }

    /// Runs the exec plugin, if one is configured, and waits for it. If it returns credentials that are sent with
    /// requests, this removes the plugin from the configuration.
    pub(super) fn run(config: &mut Config) -> Result<Option<Self>, kube::Error> {
        if !Self::is_named(&config.auth_info) {
            return Ok(None);
        }
        let Some(layer) = config.auth_layer()? else {
            return Ok(None);
        };
        // kube builds the layer from all of these fields.
        let auth = &mut config.auth_info;
        (auth.exec, auth.auth_provider) = (None, None);
        (auth.username, auth.password) = (None, None);
        (auth.token, auth.token_file) = (None, None);
        Ok(Some(Self(layer)))
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

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Plugin").finish_non_exhaustive()
    }
}
