// SPDX-License-Identifier: Apache-2.0
//! Who a replica is, and where.

use std::{
    hash::{BuildHasher, RandomState},
    io,
};

/// Where a Pod finds the namespace that it is in.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The host's name and a random number, as others do it: no two processes are the same, also on one host.
pub(super) fn of_process() -> String {
    // Each has keys of its own, which the system draws by chance.
    let number = || RandomState::new().hash_one(0_u8);
    let (high, low) = (number(), number());
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

pub(super) fn pod_namespace() -> io::Result<String> {
    let text = std::fs::read_to_string(NAMESPACE_FILE)?;
    match text.trim() {
        "" => Err(io::Error::other(format!("{NAMESPACE_FILE} is empty"))),
        namespace => Ok(namespace.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
