// SPDX-License-Identifier: Apache-2.0
//! Service account token in a file that changes.
//!
//! It does not use kube's layer, which reads the file once a minute: if the token is revoked earlier, requests fail
//! with 401 until then. This module reads the file again after a 401.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use http::HeaderValue;
use steersman_core::{MonotonicTime, Mutex};

/// Time for which a token is used without reading the file. Kubelets write a new token long before the old one expires.
const FRESH: Duration = Duration::from_secs(60);

pub(crate) struct TokenFile {
    path: PathBuf,
    known: Mutex<CachedToken>,
}

struct CachedToken {
    header: HeaderValue,
    read: MonotonicTime,
}

/// The token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the token file {} cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the token file {} does not hold a token", path.display())]
    Content { path: PathBuf },
}

impl TokenFile {
    pub(crate) fn read(path: PathBuf, now: MonotonicTime) -> Result<Self, TokenError> {
        let header = read(&path)?;
        let known = Mutex::new(CachedToken { header, read: now });
        Ok(Self { path, known })
    }

    /// Returns the token as a header value.
    pub(super) fn header(&self, now: MonotonicTime) -> HeaderValue {
        let known = self.known.lock();
        if now.saturating_since(known.read) < FRESH {
            return known.header.clone();
        }
        drop(known);
        self.reload(now)
    }

    /// Reads the file again and returns its token. If the file is missing, the last token is used: some containers
    /// remove the file after the program has started (<https://github.com/kubernetes/kubernetes/issues/68164>).
    pub(super) fn reload(&self, now: MonotonicTime) -> HeaderValue {
        let read = read(&self.path);
        let mut known = self.known.lock();
        known.read = now;
        match read {
            Ok(header) => known.header = header,
            Err(error) => tracing::warn!(%error, "cannot reload the token; using the last one"),
        }
        known.header.clone()
    }
}

fn read(path: &Path) -> Result<HeaderValue, TokenError> {
    let path = path.to_owned();
    let token = match std::fs::read_to_string(&path) {
        Ok(token) => token,
        Err(source) => return Err(TokenError::Read { path, source }),
    };
    let token = token.trim();
    let header = bearer(token).filter(|_| !token.is_empty());
    header.ok_or(TokenError::Content { path })
}

/// Returns a token as a header value, which logs do not show.
pub(super) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenFile").field(&self.path).finish()
    }
}
