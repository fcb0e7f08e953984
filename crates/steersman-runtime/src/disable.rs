// SPDX-License-Identifier: Apache-2.0
//! Disables controllers from the command line.

/// The flag.
const FLAG: &str = "--disable-controllers";

/// Returns the names after `--disable-controllers`, for [`ManagerBuilder::disable`](crate::ManagerBuilder::disable):
/// comma-separated, after `=` or as the next argument, also several times. Ignores all other arguments, so it works with
/// any argument parser.
///
/// ```
/// use steersman_runtime::disabled_by_args;
///
/// let arguments = ["operator", "--disable-controllers=web,cache", "-v", "--disable-controllers", "mirror"];
/// assert_eq!(disabled_by_args(arguments), ["web", "cache", "mirror"]);
/// ```
///
/// In a program:
///
/// ```no_run
/// # async fn example() -> Result<(), steersman_runtime::BuildError> {
/// use steersman_runtime::{Manager, disabled_by_args};
///
/// let manager = Manager::builder().disable(disabled_by_args(std::env::args())).build().await?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn disabled_by_args<A: AsRef<str>>(arguments: impl IntoIterator<Item = A>) -> Vec<String> {
    let mut names = Vec::new();
    let mut add = |list: &str| {
        let named = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.extend(named.map(str::to_owned));
    };
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_ref().strip_prefix(FLAG) {
            Some("") => {
                if let Some(list) = arguments.next() {
                    add(list.as_ref());
                }
            }
            Some(rest) => {
                if let Some(list) = rest.strip_prefix('=') {
                    add(list);
                }
            }
            None => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_arguments_are_not_touched() {
        assert_eq!(
            disabled_by_args(["--disable-controllers-soon=a", "x", "--disable-controllers"]),
            Vec::<String>::new()
        );
        assert_eq!(disabled_by_args(["--disable-controllers", " a, ,b "]), ["a", "b"]);
    }
}
