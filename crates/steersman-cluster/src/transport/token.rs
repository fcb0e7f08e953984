// SPDX-License-Identifier: Apache-2.0
//! The token of a service account, which is a file that changes.
//!
//! Not by kube's layer, which reads the file anew once a minute: until then a token that was revoked earlier is answered
//! with 401. Here such an answer is a reason to look at the file.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::HeaderValue;
use steersman_core::MonotonicTime;

/// So long a token is used without looking at the file. Kubelets write a new one long before the old one ends.
const FRESH: Duration = Duration::from_secs(60);

pub(crate) struct TokenFile {
    path: PathBuf,
    known: Mutex<Known>,
}

struct Known {
    header: HeaderValue,
    read: MonotonicTime,
}

/// The file with the token is of no use.
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
        let known = Mutex::new(Known { header, read: now });
        Ok(Self { path, known })
    }

    /// The token as the value of a header.
    pub(super) fn header(&self, now: MonotonicTime) -> HeaderValue {
        let known = self.lock();
        if now.saturating_since(known.read) < FRESH {
            return known.header.clone();
        }
        drop(known);
        self.reload(now)
    }

    /// The token after another look at the file. If there is none, the last one is used: some remove the file after the
    /// program has started (<https://github.com/kubernetes/kubernetes/issues/68164>).
    pub(super) fn reload(&self, now: MonotonicTime) -> HeaderValue {
        let read = read(&self.path);
        let mut known = self.lock();
        known.read = now;
        match read {
            Ok(header) => known.header = header,
            Err(error) => tracing::warn!(%error, "going on with the last token"),
        }
        known.header.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path) -> Result<HeaderValue, TokenError> {
    let path = path.to_owned();
    let token = match std::fs::read_to_string(&path) {
        Ok(token) => token,
        Err(source) => return Err(TokenError::Read { path, source }),
    };
    let token = token.trim();
    match HeaderValue::try_from(format!("Bearer {token}")) {
        Ok(mut header) if !token.is_empty() => {
            header.set_sensitive(true);
            Ok(header)
        }
        _ => Err(TokenError::Content { path }),
    }
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenFile").field(&self.path).finish()
    }
}
