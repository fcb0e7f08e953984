// SPDX-License-Identifier: Apache-2.0
//! Identity and namespace of a replica, and names of leases.

use std::{io, path::Path};

use steersman_core::Random;

/// File with the namespace of a Pod.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Returns the host name and a random number, as client-go users do: unique for each process, also on one host.
pub(super) fn of_process() -> String {
    let (high, low) = (
        Random::from_entropy().next_u64(),
        Random::from_entropy().next_u64(),
    );
    let uuid = format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        (low >> 48) & 0x3fff | 0x8000,
        low & 0xffff_ffff_ffff,
    );
    format!("{}_{uuid}", host())
}

#[cfg(unix)]
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
pub(crate) fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "unknown".to_owned())
}

/// Maximum length of an object name.
const NAME_MAX: usize = 253;
/// Maximum length of each part in a name with a hash.
const PART_MAX: usize = 100;

/// Returns the lease name of one runnable: the names of election and runnable, separated by `--`. If that is not a valid
/// object name, or other parts could give the same name, the result has the usable part of both names and a hash of both.
/// So different parts have different names, and all replicas use the same name.
pub(super) fn lease_of(election: &str, runnable: &str) -> String {
    let plain = format!("{election}--{runnable}");
    if !election.contains("--") && !election.ends_with('-') && is_plain(runnable) && plain.len() <= NAME_MAX {
        return plain;
    }
    let kept: String = runnable
        .chars()
        .map(|one| one.to_ascii_lowercase())
        .filter(|one| is_alphanumeric(*one))
        .take(PART_MAX)
        .collect();
    let cut: String = election.chars().take(PART_MAX).collect();
    let cut = cut.trim_end_matches(|one| !is_alphanumeric(one));
    format!("{cut}--{kept}-{:016x}", hash_of(&[election, runnable]))
}

/// Returns true if a runnable's name is valid after the separator, and does not look like a name with a hash.
fn is_plain(name: &str) -> bool {
    let hash = name.rsplit('-').next().unwrap_or_default();
    let is_made_up = hash.len() == 16 && hash.chars().all(|one| one.is_ascii_hexdigit());
    name.starts_with(is_alphanumeric)
        && name.ends_with(is_alphanumeric)
        && name.chars().all(|one| is_alphanumeric(one) || "-.".contains(one))
        && !["..", ".-", "-.", "--"].iter().any(|odd| name.contains(odd))
        && !is_made_up
}

fn is_alphanumeric(character: char) -> bool {
    character.is_ascii_lowercase() || character.is_ascii_digit()
}

/// FNV-1a: equal in every replica and build, unlike the hashes of the standard library.
fn hash_of(parts: &[&str]) -> u64 {
    // No text has this byte, so different parts never give the same bytes.
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

pub(super) fn pod_namespace() -> io::Result<String> {
    namespace_in(Path::new(NAMESPACE_FILE))
}

fn namespace_in(file: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(file)?;
    match text.trim() {
        "" => Err(io::Error::other(format!("{} is empty", file.display()))),
        namespace => Ok(namespace.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // D19
    #[test]
    fn names_of_leases_are_valid_and_different_whatever_their_parts() {
        assert_eq!(lease_of("op", "web"), "op--web");
        assert_eq!(lease_of("op", "web.v1-beta"), "op--web.v1-beta");
        let long = "a".repeat(400);
        let made_up = lease_of("op", "Web");
        let looks_made_up = made_up.strip_prefix("op--").unwrap();
        let parts = [
            ("op", "web"),
            ("op-", "web"),
            ("op", "-web"),
            ("op", "web-x"),
            ("op-web", "x"),
            ("op--web", "x"),
            ("op", "web--x"),
            ("op", "Web"),
            ("op", "wEb"),
            ("op", "web_"),
            ("op", "web..v1"),
            ("op", "web-"),
            ("op", "Wägen"),
            ("op", "_"),
            ("op", looks_made_up),
            ("op", &long),
            ("op", &long[1..]),
            (&long[..250], "web"),
            (&long[..249], "web"),
        ];
        let names: std::collections::BTreeSet<_> = parts
            .iter()
            .map(|(election, name)| lease_of(election, name))
            .collect();
        assert_eq!(names.len(), parts.len(), "{names:?}");
        for name in names {
            let is_valid = name.chars().all(|one| is_alphanumeric(one) || "-.".contains(one));
            assert!(
                is_valid && name.len() <= NAME_MAX && name.ends_with(is_alphanumeric),
                "{name}"
            );
        }
    }

    #[test]
    fn the_namespace_of_a_pod_is_read_from_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("namespace");
        assert_eq!(namespace_in(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&file, "operators\n").unwrap();
        assert_eq!(namespace_in(&file).unwrap(), "operators");
        std::fs::write(&file, " \n").unwrap();
        let error = namespace_in(&file).unwrap_err().to_string();
        assert!(error.ends_with("namespace is empty"), "{error}");
    }

    #[test]
    fn two_processes_have_two_identities_on_one_host() {
        let (one, other) = (of_process(), of_process());
        assert_ne!(one, other);
        let (host, uuid) = one.rsplit_once('_').unwrap();
        assert!(!host.is_empty());
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
    }
}
