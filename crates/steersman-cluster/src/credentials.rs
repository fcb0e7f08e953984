// SPDX-License-Identifier: Apache-2.0
//! Credentials of a cluster, which change while the program runs.
//!
//! # Guarantees
//! 1. Files (the token, the client certificate and its key, the CA) are read again after a minute, at once when the
//!    server answers 401, and after a failed connection. If a file cannot be read, its last content is used.
//! 2. An exec plugin runs again one minute before its credentials expire, and when the server answers 401. It runs once
//!    for all requests, has a timeout, and is killed with its children after it.
//! 3. A changed certificate or CA applies to new connections. Open connections, and so watches, are not closed.
//! 4. A request that the server answers with 401 is sent once more if the credentials have changed.
//! 5. Logs, errors and the state of the cluster name the file, the field or the plugin whose credentials the server
//!    rejects. They never show the credentials.

mod exec;
mod plugin;
mod plugin_calls;
mod tls_files;
mod token_file;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::HeaderValue;
use kube::{Config, config::AuthInfo};
use steersman_core::{Clock, MonotonicTime, Mutex};

pub(crate) use self::token_file::{TokenError, TokenFile};
use self::{exec::Exec, tls_files::TlsFiles};
pub use self::{plugin::PluginError, plugin_calls::PluginCallCount, tls_files::CertificateError};

/// Interval of warnings about rejected credentials.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Credentials of a cluster that this crate renews. Others are a part of the configuration.
pub(crate) struct Credentials {
    clock: Arc<dyn Clock>,
    token: Option<TokenFile>,
    exec: Option<Arc<Exec>>,
    tls: Option<TlsFiles>,
    /// Place that the credentials are from, as errors name it.
    place: Arc<str>,
    warned: Mutex<Option<MonotonicTime>>,
}

/// Credentials of one attempt.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Presented {
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) tls: TlsVersion,
    run: u64,
}

/// Number of the certificates that new connections use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsVersion {
    files: u64,
    exec: u64,
}

impl TlsVersion {
    /// Returns the newer number of each part.
    pub(crate) fn newest(self, other: Self) -> Self {
        Self {
            files: self.files.max(other.files),
            exec: self.exec.max(other.exec),
        }
    }

    #[cfg(test)]
    pub(crate) fn of(files: u64, exec: u64) -> Self {
        Self { files, exec }
    }
}

/// There are no credentials for a request, so it was not sent.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no credentials: {0}")]
pub(crate) struct NoCredentials(Arc<PluginError>);

/// The credentials of a configuration cannot be used.
#[derive(Debug)]
pub(crate) enum InvalidCredentials {
    Token(PathBuf, TokenError),
    Plugin(String, PluginError),
    Certificate(CertificateError),
}

/// An extension of a 401 answer: the place that the rejected credentials are from.
#[derive(Clone, Debug)]
pub(crate) struct RejectedCredentials(pub(crate) Arc<str>);

impl Credentials {
    /// Takes the credentials that change out of a configuration. Blocks until the exec plugin returns, if there is one.
    pub(crate) fn take(
        config: &mut Config,
        timeout: Duration,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, InvalidCredentials> {
        let place = place(&config.auth_info).into();
        let tls = TlsFiles::read(config, clock.now()).map_err(InvalidCredentials::Certificate)?;
        let token = take_token(&mut config.auth_info, clock)?;
        let exec = match take_exec(&mut config.auth_info) {
            Some(exec) => {
                let command = exec.command.clone().unwrap_or_default();
                let started = Exec::start(exec, timeout, Arc::clone(clock));
                Some(started.map_err(|error| InvalidCredentials::Plugin(command, error))?)
            }
            None => None,
        };
        Ok(Self {
            clock: Arc::clone(clock),
            token,
            exec,
            tls,
            place,
            warned: Mutex::default(),
        })
    }

    /// Credentials of a service in this process: none.
    pub(crate) fn none(clock: &Arc<dyn Clock>) -> Self {
        Self {
            clock: Arc::clone(clock),
            token: None,
            exec: None,
            tls: None,
            place: "no credentials".into(),
            warned: Mutex::default(),
        }
    }

    /// Reports whether taking the credentials of a configuration blocks.
    pub(crate) fn block(auth: &AuthInfo) -> bool {
        auth.exec.is_some() || auth.auth_provider.is_some()
    }

    /// Returns the place that the credentials are from, such as `token file /var/run/…/token`.
    pub(crate) fn place(&self) -> &Arc<str> {
        &self.place
    }

    /// Returns the number of calls of the exec plugin by outcome.
    pub(crate) fn plugin_calls(&self) -> Vec<PluginCallCount> {
        self.exec
            .as_ref()
            .map_or_else(Vec::new, |exec| exec.calls().all())
    }

    /// Reports whether the credentials can change.
    pub(crate) fn can_change(&self) -> bool {
        self.token.is_some() || self.exec.is_some() || self.tls.is_some()
    }

    /// Returns the credentials for an attempt.
    pub(crate) async fn current(&self) -> Result<Presented, NoCredentials> {
        if let Some(exec) = &self.exec {
            exec.current().await.map_err(NoCredentials)?;
        }
        Ok(self.presented())
    }

    /// Reads the credentials again after the server rejected these. Returns them if they have changed.
    pub(crate) async fn rejected(&self, old: &Presented) -> Option<Presented> {
        if let Some(token) = &self.token {
            token.reload(self.clock.now());
        }
        self.connection_failed();
        if let Some(exec) = &self.exec {
            exec.rejected(old.run).await;
        }
        let new = self.presented();
        let is_new = new.authorization != old.authorization || new.tls != old.tls;
        is_new.then_some(new)
    }

    /// Reads the files of TLS before the next request: the reason can be a new certificate.
    pub(crate) fn connection_failed(&self) {
        if let Some(tls) = &self.tls {
            tls.expire();
        }
    }

    /// Logs that the server rejected the credentials, once a minute.
    pub(crate) fn warn_rejected(&self) {
        let now = self.clock.now();
        let mut warned = self.warned.lock();
        if warned.is_none_or(|last| now.saturating_since(last) >= WARN_EVERY) {
            *warned = Some(now);
            drop(warned);
            tracing::warn!(credentials = %self.place, "the server rejects the credentials (401 Unauthorized)");
        }
    }

    /// Puts the current certificates into a configuration.
    pub(crate) fn apply(&self, config: &mut Config) {
        if let Some(tls) = &self.tls {
            tls.apply(config);
        }
        let exec = self.exec.as_ref().map(|exec| exec.known().returned);
        if let Some((certificate, key)) = exec.as_ref().and_then(|returned| returned.certificate.as_ref()) {
            config.auth_info.client_certificate_data = Some(STANDARD.encode(certificate));
            config.auth_info.client_key_data = Some(STANDARD.encode(key).into());
        }
    }

    /// Returns the number of the certificates, without renewing them.
    pub(crate) fn tls_version(&self) -> TlsVersion {
        self.presented().tls
    }

    fn presented(&self) -> Presented {
        let now = self.clock.now();
        let exec = self.exec.as_ref().map(|exec| exec.known());
        let from_exec = exec
            .as_ref()
            .and_then(|known| known.returned.authorization.clone());
        Presented {
            authorization: self.token.as_ref().map(|token| token.header(now)).or(from_exec),
            tls: TlsVersion {
                files: self.tls.as_ref().map_or(0, |tls| tls.version(now)),
                exec: exec.as_ref().map_or(0, |known| known.certificate),
            },
            run: exec.map_or(0, |known| known.run),
        }
    }
}

/// Describes the credentials that kube would use.
fn place(auth: &AuthInfo) -> String {
    if let Some(provider) = &auth.auth_provider {
        return format!("auth provider `{}`", provider.name);
    }
    if auth.username.is_some() && auth.password.is_some() {
        return "user name and password of the configuration".to_owned();
    }
    if auth.token.is_some() {
        return "token of the configuration".to_owned();
    }
    if let Some(file) = &auth.token_file {
        return format!("token file {file}");
    }
    if let Some(exec) = &auth.exec {
        return format!("exec plugin `{}`", exec.command.as_deref().unwrap_or_default());
    }
    match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(_), _) => "client certificate of the configuration (`client-certificate-data`)".to_owned(),
        (None, Some(file)) => format!("client certificate {file}"),
        (None, None) => "no credentials in the configuration".to_owned(),
    }
}

/// Reports whether kube uses a token file or an exec plugin: these fields precede them.
fn is_by_file_or_plugin(auth: &AuthInfo) -> bool {
    auth.token.is_none()
        && (auth.username.is_none() || auth.password.is_none())
        && auth.auth_provider.is_none()
}

fn take_token(auth: &mut AuthInfo, clock: &Arc<dyn Clock>) -> Result<Option<TokenFile>, InvalidCredentials> {
    let is_used = is_by_file_or_plugin(auth);
    let Some(file) = auth.token_file.take_if(|_| is_used) else {
        return Ok(None);
    };
    // The file takes precedence over an exec plugin.
    auth.exec = None;
    let path = PathBuf::from(file);
    match TokenFile::read(path.clone(), clock.now()) {
        Ok(token) => Ok(Some(token)),
        Err(error) => Err(InvalidCredentials::Token(path, error)),
    }
}

/// kube would run the plugin for each client, and use its certificate even beside a token.
fn take_exec(auth: &mut AuthInfo) -> Option<kube::config::ExecConfig> {
    let is_used = is_by_file_or_plugin(auth);
    auth.exec.take().filter(|_| is_used)
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}
