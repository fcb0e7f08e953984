// SPDX-License-Identifier: Apache-2.0
//! Who a replica is, and where.

use std::{io, path::Path};

use steersman_core::Random;

/// Where a Pod finds the namespace that it is in.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The host's name and a random number, as others do it: no two processes are the same, also on one host.
pub(super) fn of_process() -> String {
    let (high, low) = (Random::by_chance().next_u64(), Random::by_chance().next_u64());
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
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "unknown".to_owned())
}

/// What the lease of one runnable is called: by the name of the election and its own, where a server takes that as the
/// name of an object. Otherwise what it does not take is left out, and a number tells it from others.
pub(super) fn lease_of(election: &str, runnable: &str) -> String {
    let may_be = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    let is_plain =
        runnable.ends_with(may_be) && runnable.chars().all(|one| may_be(one) || "-.".contains(one));
    if is_plain && !runnable.contains("..") && !runnable.contains(".-") && !runnable.contains("-.") {
        return format!("{election}-{runnable}");
    }
    let kept: String = runnable
        .chars()
        .map(|one| one.to_ascii_lowercase())
        .filter(|one| may_be(*one))
        .collect();
    format!("{election}-{kept}-{:08x}", number_of(runnable))
}

/// FNV-1a: the same in every replica, whatever it was compiled with, which the hashes of the standard library are not.
fn number_of(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |number, byte| {
        (number ^ u32::from(byte)).wrapping_mul(0x0100_0193)
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

    #[test]
    fn runnables_have_leases_of_different_names_that_a_server_takes() {
        assert_eq!(lease_of("op", "web"), "op-web");
        assert_eq!(lease_of("op", "web.v1-beta"), "op-web.v1-beta");
        let odd = ["Web", "wEb", "web_", "web..v1", "web-", "Wägen", "_"];
        let names: std::collections::BTreeSet<_> = odd.iter().map(|name| lease_of("op", name)).collect();
        assert_eq!(names.len(), odd.len(), "{names:?}");
        for name in names {
            let is_taken = |one: char| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '-';
            assert!(name.chars().all(is_taken), "{name}");
        }
    }

    #[test]
    fn the_namespace_of_a_pod_is_what_its_file_says() {
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
