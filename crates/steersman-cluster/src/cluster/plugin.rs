// SPDX-License-Identifier: Apache-2.0
//! Credentials that a program gives, such as `aws eks get-token`.
//!
//! kube runs it twice for each client that is made, on the thread that makes it, and a cluster has three clients. Here it
//! is run once, and what comes of it is shared. A token that says when it ends is renewed by kube a minute before that, on a
//! thread for such things, for all clients at once.
//!
//! # Not promised
//! * A program that gives a certificate is run by kube for each client besides: nobody else is shown what it gives. Such a
//!   certificate is not renewed.
//! * A token that does not say when it ends is not renewed, also if the server refuses it.

use std::fmt;

use http::Request;
use kube::{
    Client, Config,
    client::{Body, ConfigExt, middleware::AuthLayer},
    config::AuthInfo,
};
use tower::{BoxError, Layer, service_fn};

/// What a program gave.
pub(super) struct Plugin(AuthLayer);

impl Plugin {
    /// Whether a program is named.
    pub(super) fn is_named(auth: &AuthInfo) -> bool {
        auth.exec.is_some() || auth.auth_provider.is_some()
    }

    /// Runs the program, if one is named, and waits for it. If it gives what can be sent with requests, it is not named in
    /// the configuration any more.
    pub(super) fn run(config: &mut Config) -> Result<Option<Self>, kube::Error> {
        if !Self::is_named(&config.auth_info) {
            return Ok(None);
        }
        let Some(layer) = config.auth_layer()? else {
            return Ok(None);
        };
        // The layer is what kube makes of all these.
        let auth = &mut config.auth_info;
        (auth.exec, auth.auth_provider) = (None, None);
        (auth.username, auth.password) = (None, None);
        (auth.token, auth.token_file) = (None, None);
        Ok(Some(Self(layer)))
    }

    /// A client that sends the credentials. It needs a runtime around.
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
