// SPDX-License-Identifier: Apache-2.0
//! Manifests of an operator, computed from what it declares.
//!
//! [`Operator`] is the description of the program, [`Values`] are the choices of the person who deploys it.
//! [`Operator::yaml`], [`Operator::kustomize`] and [`Operator::helm`] are the three forms.
//!
//! ```
//! use steersman_core::Permission;
//! use steersman_manifests::{Operator, Values};
//!
//! let permission = Permission::new("apps", "deployments", "controller `web`").verbs(["list", "watch"]);
//! let operator = Operator::new("web-operator").permissions([permission]);
//! let yaml = operator.yaml("web-system", &Values::default());
//! assert!(yaml.contains("kind: ClusterRole"));
//! ```
//!
//! # Guarantees
//! 1. The same description and values give the same bytes.
//! 2. Rules contain the declared verbs and nothing else. With [`Values::watch_namespaces`], permissions on namespaced resources
//!    are Roles in those namespaces.
//! 3. The Pod fits a namespace that enforces the Pod Security level Restricted, with a read-only root file system.
//! 4. [`write_files`] overwrites generated files, and never a [file to edit](File::is_for_editing) that exists.

mod deployment;
mod files;
mod helm;
mod kustomize;
mod network;
mod operator;
mod rbac;
mod target;
mod values;
mod yaml;

pub use files::{File, WriteError, write_files};
pub use operator::Operator;
pub use values::{Image, Values};

/// Port of `/healthz` and `/readyz` in the Deployment.
pub const HEALTH_PORT: u16 = 8081;

/// Port of `/metrics` in the Deployment.
pub const METRICS_PORT: u16 = 8443;
