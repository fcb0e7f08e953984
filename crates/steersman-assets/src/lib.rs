// SPDX-License-Identifier: Apache-2.0
//! Finds or builds the binaries of a real Kubernetes API server.
//!
//! Tests that compare with a real server need `kube-apiserver` and `etcd`, and some need `kube-controller-manager` and
//! `kubectl`. This crate searches in envtest's directory (`KUBEBUILDER_ASSETS`), then in the user's cache directory,
//! and can build them there from Go modules.
//!
//! # Guarantees
//! 1. `KUBEBUILDER_ASSETS` takes precedence. If it is set but wrong, that is an error; it is never ignored.
//! 2. The result of [`find`] is complete: an interrupted build is never mistaken for a finished one.
//! 3. An interrupted build resumes at the point where it stopped, and two concurrent builds wait for each other.
//! 4. Nothing is written outside the cache directory and Go's own caches.
//!
//! # Example
//! ```no_run
//! let assets = steersman_assets::find_or_build(&mut |step| eprintln!("{step}"))?;
//! println!("{}", assets.kube_apiserver().display());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod environment;
mod from_source;

pub use environment::Environment;
pub use from_source::{BuildError, Progress};

use std::{
    error::Error,
    path::{Path, PathBuf},
};

/// Version of `kube-apiserver`, `kube-controller-manager` and `kubectl` that is built.
pub const KUBERNETES_VERSION: &str = "1.37.1";
/// Version of `etcd` that is built.
pub const ETCD_VERSION: &str = "3.7.3";

/// Environment variable of envtest with the directory of the binaries.
pub const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// A directory that holds at least `kube-apiserver` and `etcd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assets {
    dir: PathBuf,
}

impl Assets {
    /// Returns the directory, as a value for `KUBEBUILDER_ASSETS`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of `kube-apiserver`.
    #[must_use]
    pub fn kube_apiserver(&self) -> PathBuf {
        self.dir.join("kube-apiserver")
    }

    /// Returns the path of `etcd`.
    #[must_use]
    pub fn etcd(&self) -> PathBuf {
        self.dir.join("etcd")
    }

    /// Returns the path of `kube-controller-manager`, which has the controllers for garbage collection, namespaces and
    /// others; envtest's archives do not contain it.
    #[must_use]
    pub fn kube_controller_manager(&self) -> Option<PathBuf> {
        self.optional("kube-controller-manager")
    }

    /// Returns the path of `kubectl`.
    #[must_use]
    pub fn kubectl(&self) -> Option<PathBuf> {
        self.optional("kubectl")
    }

    fn optional(&self, name: &str) -> Option<PathBuf> {
        Some(self.dir.join(name)).filter(|path| path.is_file())
    }

    /// Returns the first required binary that `dir` lacks.
    fn missing_in(dir: &Path) -> Option<&'static str> {
        ["kube-apiserver", "etcd"]
            .into_iter()
            .find(|name| !dir.join(name).is_file())
    }
}

/// The binaries were not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// `KUBEBUILDER_ASSETS` is set, but to a directory without the binaries.
    #[error(
        "{ASSETS_VARIABLE} is {}, which has no {missing}: set it to a directory that holds kube-apiserver and etcd, \
         or unset it to use those that `cargo xtask kube` builds",
        dir.display()
    )]
    WrongVariable {
        /// Value of the variable.
        dir: PathBuf,
        /// The first missing binary.
        missing: &'static str,
    },
    /// No binaries are built yet.
    #[error(
        "no kube-apiserver is built in {}: run `cargo xtask kube` in a clone of Steersman, or set {ASSETS_VARIABLE} to a \
         directory that holds kube-apiserver and etcd; `cargo test on_embedded` leaves those tests out that need one",
        dir.display()
    )]
    NotBuilt {
        /// Directory of the built binaries.
        dir: PathBuf,
    },
    /// There is no directory to search.
    #[error(
        "neither {ASSETS_VARIABLE} nor XDG_CACHE_HOME nor HOME is set, so there is no place to look for kube-apiserver"
    )]
    NoCacheDirectory,
}

/// Finds the binaries: `KUBEBUILDER_ASSETS` first, then earlier builds. Takes milliseconds.
///
/// # Errors
/// When the variable is wrong, or nothing is built.
pub fn find() -> Result<Assets, FindError> {
    find_in(&Environment::of_process())
}

/// Same as [`find`], in the given environment.
///
/// # Errors
/// Same as [`find`].
pub fn find_in(environment: &Environment) -> Result<Assets, FindError> {
    if let Some(dir) = environment.assets() {
        return match Assets::missing_in(dir) {
            None => Ok(Assets {
                dir: dir.to_path_buf(),
            }),
            Some(missing) => Err(FindError::WrongVariable {
                dir: dir.to_path_buf(),
                missing,
            }),
        };
    }
    let dir = environment.built_dir().ok_or(FindError::NoCacheDirectory)?;
    match Assets::missing_in(&dir) {
        None => Ok(Assets { dir }),
        Some(_) => Err(FindError::NotBuilt { dir }),
    }
}

/// Finds the binaries, or builds them: about ten minutes on two cores the first time, milliseconds afterwards.
///
/// # Errors
/// When the variable is wrong, when Go is missing, or when the build fails.
pub fn find_or_build(progress: &mut dyn FnMut(Progress)) -> Result<Assets, BuildError> {
    find_or_build_in(&Environment::of_process(), progress)
}

/// Same as [`find_or_build`], in the given environment.
///
/// # Errors
/// Same as [`find_or_build`].
pub fn find_or_build_in(
    environment: &Environment,
    progress: &mut dyn FnMut(Progress),
) -> Result<Assets, BuildError> {
    match find_in(environment) {
        Ok(assets) => Ok(assets),
        Err(FindError::NotBuilt { dir }) => from_source::build(environment, dir, progress),
        Err(error) => Err(BuildError::Find(error)),
    }
}

/// Returns an error and its sources in one line.
///
/// ```
/// let error = steersman_assets::find_in(&steersman_assets::Environment::empty()).unwrap_err();
/// assert!(steersman_assets::describe(&error).starts_with(&error.to_string()));
/// ```
#[must_use]
pub fn describe(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
