// SPDX-License-Identifier: Apache-2.0
//! Directories from the process's environment, as a value that a test can construct.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use crate::{ASSETS_VARIABLE, ETCD_VERSION, KUBERNETES_VERSION};

/// Directories that the search uses.
#[derive(Clone, Debug)]
pub struct Environment {
    assets: Option<PathBuf>,
    cache: Option<PathBuf>,
    go: PathBuf,
}

impl Environment {
    /// Creates an environment without any setting, with `go` from the PATH.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            assets: None,
            cache: None,
            go: PathBuf::from("go"),
        }
    }

    /// Reads the environment variables of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let set = |name: &str| {
            env::var_os(name)
                .filter(|value: &OsString| !value.is_empty())
                .map(PathBuf::from)
        };
        let platform = if cfg!(target_os = "macos") {
            "Library/Caches"
        } else {
            ".cache"
        };
        Self {
            assets: set(ASSETS_VARIABLE),
            cache: set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(platform))),
            ..Self::empty()
        }
    }

    /// Sets the value of `KUBEBUILDER_ASSETS`.
    #[must_use]
    pub fn with_assets(mut self, dir: impl Into<PathBuf>) -> Self {
        self.assets = Some(dir.into());
        self
    }

    /// Sets the user's cache directory.
    #[must_use]
    pub fn with_cache(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cache = Some(dir.into());
        self
    }

    /// Sets the Go command for builds.
    #[must_use]
    pub fn with_go(mut self, program: impl Into<PathBuf>) -> Self {
        self.go = program.into();
        self
    }

    pub(crate) fn go(&self) -> &Path {
        &self.go
    }

    pub(crate) fn assets(&self) -> Option<&Path> {
        self.assets.as_deref()
    }

    /// Returns the directory of this pair of versions, which contains everything that is built.
    pub(crate) fn version_dir(&self) -> Option<PathBuf> {
        let name = format!("kube-{KUBERNETES_VERSION}-etcd-{ETCD_VERSION}");
        Some(self.cache.as_ref()?.join("steersman").join(name))
    }

    /// Returns the directory of finished binaries. A rename creates it, so it is complete or absent.
    pub(crate) fn built_dir(&self) -> Option<PathBuf> {
        Some(self.version_dir()?.join("bin"))
    }
}
