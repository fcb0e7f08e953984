// SPDX-License-Identifier: Apache-2.0
//! Dependencies: their sources, licences and minimum versions of Rust, without a further tool.
//!
//! `cargo deny` also reads the texts of licences and the database of advisories. This check makes sure that `deny.toml` is right
//! on a machine without that tool.

use serde_json::Value;
use toml::Table;

use super::{licenses, output};
use crate::{
    Failure, root,
    step::{cargo, command},
};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Environment variable by which a build chooses the Kubernetes version of `k8s-openapi`, if no feature does.
pub(super) const VERSION_VARIABLE: &str = "K8S_OPENAPI_ENABLED_VERSION";

pub(super) fn check() -> Result<(), Failure> {
    let host = output(command("rustc").arg("-vV")).unwrap_or_default();
    let host = host.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or("cannot read the host from `rustc -vV`")?;
    // Without other platforms, whose crates an offline machine does not have.
    let metadata = metadata(&["--filter-platform", host])?;
    let problems = problems(&metadata, &allowed_licenses()?, &rust_version()?);
    if problems.is_empty() {
        return Ok(());
    }
    Err(format!(
        "dependencies have problems:\n  {}",
        problems.join("\n  ")
    ))
}

/// Returns `rust-version` of the workspace.
pub(super) fn rust_version() -> Result<String, Failure> {
    let manifest = table("Cargo.toml")?;
    let version = || {
        manifest
            .get("workspace")?
            .get("package")?
            .get("rust-version")?
            .as_str()
    };
    version()
        .map(str::to_owned)
        .ok_or_else(|| "Cargo.toml has no `rust-version` in `[workspace.package]`".to_owned())
}

/// Returns the Kubernetes version of the feature `latest` of `k8s-openapi`, such as `1.37`.
pub(super) fn latest_kubernetes() -> Result<String, Failure> {
    let lock = output(cargo().args([
        "tree",
        "--package",
        "k8s-openapi",
        "--depth",
        "0",
        "--format",
        "{f}",
    ]));
    let features = lock.unwrap_or_default();
    let version = features
        .split([',', '\n'])
        .find_map(|name| name.strip_prefix("v1_"));
    let version = version.ok_or("cannot read the Kubernetes version of k8s-openapi from `cargo tree`")?;
    Ok(format!("1.{version}"))
}

pub(super) fn metadata(arguments: &[&str]) -> Result<Value, Failure> {
    let mut metadata = cargo();
    metadata
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(arguments);
    let result = metadata
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !result.status.success() {
        return Err(format!(
            "`cargo metadata` failed: {}",
            String::from_utf8_lossy(&result.stderr)
        ));
    }
    serde_json::from_slice(&result.stdout).map_err(|error| format!("cannot read `cargo metadata`: {error}"))
}

fn allowed_licenses() -> Result<Vec<String>, Failure> {
    let deny = table("deny.toml")?;
    let allowed = deny
        .get("licenses")
        .and_then(|licenses| licenses.get("allow")?.as_array());
    let allowed = allowed.ok_or("deny.toml has no list `allow` in `[licenses]`")?;
    Ok(allowed
        .iter()
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect())
}

fn table(name: &str) -> Result<Table, Failure> {
    let text =
        std::fs::read_to_string(root().join(name)).map_err(|error| format!("cannot read {name}: {error}"))?;
    text.parse()
        .map_err(|error| format!("cannot read {name}: {error}"))
}

fn problems(metadata: &Value, allowed: &[String], rust_version: &str) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    // Crates of the workspace have no source.
    let foreign = packages.filter(|package| !package["source"].is_null());
    let mut found = Vec::new();
    for package in foreign {
        let name = package["name"].as_str().unwrap_or_default();
        if package["source"] != CRATES_IO {
            found.push(format!(
                "{name}: comes from {}, not from crates.io",
                package["source"]
            ));
        }
        let license = package["license"].as_str().unwrap_or_default();
        if !licenses::is_allowed(license, allowed) {
            found.push(format!(
                "{name}: deny.toml does not allow its licence `{license}`"
            ));
        }
        let minimum = package["rust_version"].as_str().unwrap_or("1.0");
        if parts(minimum) > parts(rust_version) {
            found.push(format!(
                "{name}: needs Rust {minimum}; `rust-version` is {rust_version}"
            ));
        }
    }
    found
}

/// Returns major, minor and patch version.
fn parts(version: &str) -> [u32; 3] {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    [0; 3].map(|_| numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_a_foreign_source_a_licence_and_a_newer_rust() {
        let metadata = serde_json::json!({"packages": [
            {"name": "ours", "source": null, "license": null, "rust_version": "9.0"},
            {"name": "fine", "source": CRATES_IO, "license": "GPL-3.0-only OR MIT", "rust_version": "1.90.1"},
            {"name": "git", "source": "git+https://example.com/a", "license": "MIT", "rust_version": null},
            {"name": "copyleft", "source": CRATES_IO, "license": "GPL-3.0-only", "rust_version": null},
            {"name": "newer", "source": CRATES_IO, "license": "MIT", "rust_version": "1.92"},
        ]});
        let problems = problems(&metadata, &["MIT".to_owned()], "1.91");
        let names: Vec<&str> = problems
            .iter()
            .filter_map(|line| line.split(':').next())
            .collect();
        assert_eq!(names, ["git", "copyleft", "newer"], "{problems:?}");
    }

    #[test]
    fn the_version_of_the_types_is_known() {
        let version = latest_kubernetes().unwrap();
        assert!(version.starts_with("1.") && version.len() == 4, "{version}");
    }

    #[test]
    fn dependencies_have_allowed_licences_sources_and_versions_of_rust() {
        check().unwrap_or_else(|failure| panic!("{failure}"));
    }
}
