// SPDX-License-Identifier: Apache-2.0
//! The binaries of a real Kubernetes API server: where they are, and how they are made.
//!
//! Tests that compare with the real thing need `kube-apiserver` and `etcd`, and some `kube-controller-manager`
//! and `kubectl`. This crate looks for them where envtest's users keep them (`KUBEBUILDER_ASSETS`), then in the
//! user's cache directory, and can build them there from Go modules.
//!
//! # Guarantees
//! 1. `KUBEBUILDER_ASSETS` is honoured first. If it is set but wrong, that is an error and never skipped over.
//! 2. What [`find`] returns is complete: a build that was interrupted is never taken for a finished one.
//! 3. An interrupted build goes on where it stopped, and two builds at once wait for each other.
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

/// The version of `kube-apiserver`, `kube-controller-manager` and `kubectl` that is built.
pub const KUBERNETES_VERSION: &str = "1.37.1";
/// The version of `etcd` that is built.
pub const ETCD_VERSION: &str = "3.7.3";

/// The variable by which envtest's users say where their binaries are.
pub const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// A directory that holds at least `kube-apiserver` and `etcd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assets {
    dir: PathBuf,
}

impl Assets {
    /// The directory itself, as `KUBEBUILDER_ASSETS` would name it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The API server.
    #[must_use]
    pub fn kube_apiserver(&self) -> PathBuf {
        self.dir.join("kube-apiserver")
    }

    /// Its storage.
    #[must_use]
    pub fn etcd(&self) -> PathBuf {
        self.dir.join("etcd")
    }

    /// The controllers for garbage collection, namespaces and the like; envtest's own archives do not have it.
    #[must_use]
    pub fn kube_controller_manager(&self) -> Option<PathBuf> {
        self.optional("kube-controller-manager")
    }

    /// The command line client.
    #[must_use]
    pub fn kubectl(&self) -> Option<PathBuf> {
        self.optional("kubectl")
    }

    fn optional(&self, name: &str) -> Option<PathBuf> {
        Some(self.dir.join(name)).filter(|path| path.is_file())
    }

    /// The first required binary that `dir` lacks.
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
        /// What the variable says.
        dir: PathBuf,
        /// The first binary that is not there.
        missing: &'static str,
    },
    /// Nothing was built yet.
    #[error(
        "no kube-apiserver is built in {}: run `cargo xtask kube` in a clone of Steersman, or set {ASSETS_VARIABLE} to a \
         directory that holds kube-apiserver and etcd; `cargo test on_embedded` leaves those tests out that need one",
        dir.display()
    )]
    NotBuilt {
        /// Where the binaries would be.
        dir: PathBuf,
    },
    /// There is no directory to look in.
    #[error(
        "neither {ASSETS_VARIABLE} nor XDG_CACHE_HOME nor HOME is set, so there is no place to look for kube-apiserver"
    )]
    NoCacheDirectory,
}

/// Finds the binaries: `KUBEBUILDER_ASSETS` first, then what was built before. Takes milliseconds.
///
/// # Errors
/// When the variable is wrong, or nothing is built.
pub fn find() -> Result<Assets, FindError> {
    find_in(&Environment::of_process())
}

/// As [`find`], in the given environment.
///
/// # Errors
/// As [`find`].
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

/// As [`find_or_build`], in the given environment.
///
/// # Errors
/// As [`find_or_build`].
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

/// An error with what caused it, in one line, for those who only see text.
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
