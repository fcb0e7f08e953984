// SPDX-License-Identifier: Apache-2.0
//! The path by which generated code names the kit.
//!
//! A user depends on `steersman`, which re-exports the kit, or on `steersman-kit`. A macro cannot ask the compiler which of the two
//! exists, so it looks into the manifest of the crate that it expands in.

use std::{env, fs, path::Path};

use syn::parse_quote;

/// Returns the path from the attribute, or `::steersman_kit` or `::steersman::kit` according to the manifest.
pub(crate) fn kit_path(from_attribute: Option<syn::Path>) -> syn::Path {
    from_attribute.unwrap_or_else(|| {
        if manifest().is_none_or(|manifest| names_the_kit(&manifest)) {
            parse_quote!(::steersman_kit)
        } else {
            parse_quote!(::steersman::kit)
        }
    })
}

fn manifest() -> Option<String> {
    let directory = env::var_os("CARGO_MANIFEST_DIR")?;
    fs::read_to_string(Path::new(&directory).join("Cargo.toml")).ok()
}

/// Whether the manifest is that of the kit, or has a dependency on it under its own name.
fn names_the_kit(manifest: &str) -> bool {
    const KIT: &str = "steersman-kit";
    manifest.lines().map(str::trim).any(|line| {
        let is_key = line
            .strip_prefix(KIT)
            .is_some_and(|rest| rest.trim_start().starts_with(['=', '.']));
        let is_table = line
            .strip_prefix('[')
            .is_some_and(|rest| rest.contains("dependencies") && rest.ends_with(&format!(".{KIT}]")));
        let is_package = line
            .strip_prefix("name")
            .is_some_and(|rest| rest.trim_start_matches([' ', '=']) == format!("\"{KIT}\""));
        is_key || is_table || is_package
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_on_the_kit_is_found_in_every_form() {
        for line in [
            "steersman-kit = \"0.1\"",
            "steersman-kit.workspace = true",
            "  steersman-kit={ path = \"x\" }",
            "[dependencies.steersman-kit]",
            "[dev-dependencies.steersman-kit]",
            "name = \"steersman-kit\"",
        ] {
            assert!(names_the_kit(&format!("[package]\n{line}\n")), "{line}");
        }
    }

    #[test]
    fn another_dependency_is_not_the_kit() {
        for line in [
            "steersman = \"0.1\"",
            "steersman-kit-derive = \"0.1\"",
            "kit = { package = \"steersman-kit\" }",
            "# steersman-kit",
            "[dependencies.steersman-kit-derive]",
            "name = \"steersman-kit-derive\"",
        ] {
            assert!(!names_the_kit(line), "{line}");
        }
    }
}
