// SPDX-License-Identifier: Apache-2.0
//! Tests that errors are recognised under any wrapper.

use std::error::Error;

use steersman_core::error_chain;

use super::*;

/// Has the wrapped error as its source.
#[derive(Debug, thiserror::Error)]
#[error("outer")]
struct From<E: Error + 'static>(#[from] E);

#[derive(Debug, thiserror::Error)]
#[error("outer")]
struct Source<E: Error + 'static> {
    #[source]
    cause: E,
}

/// Forwards `source()`: the wrapped error is not in the chain.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Transparent<E: Error + 'static>(#[from] E);

#[derive(Debug, thiserror::Error)]
#[error("outer")]
struct Shared<E: Error + 'static>(#[source] Arc<E>);

fn from<E: Error + Send + Sync + 'static>(error: E) -> BoxError {
    From::from(error).into()
}

fn source<E: Error + Send + Sync + 'static>(error: E) -> BoxError {
    Source { cause: error }.into()
}

fn transparent<E: Error + Send + Sync + 'static>(error: E) -> BoxError {
    Transparent(Transparent(error)).into()
}

fn anyhow<E: Error + Send + Sync + 'static>(error: E) -> BoxError {
    anyhow::Error::from(error).into()
}

fn anyhow_with_context<E: Error + Send + Sync + 'static>(error: E) -> BoxError {
    anyhow::Error::from(Transparent(error))
        .context("while creating it")
        .into()
}

fn boxed<E: Error + Send + Sync + 'static>(error: E) -> BoxError {
    Box::new(Transparent(Box::new(error)))
}

fn arc<E: Error + Send + Sync + 'static>(error: E) -> BoxError {
    Shared(Arc::new(Arc::new(error))).into()
}

const DELAY: Duration = Duration::from_secs(60);

fn conflict() -> kube::Error {
    kube::Error::Api(Box::new(Status::failure("it changed", "Conflict").with_code(409)))
}

fn recognises(
    terminal_error: impl Fn(Terminal) -> BoxError,
    delayed_error: impl Fn(RetryAfter) -> BoxError,
    kube_error: impl Fn(kube::Error) -> BoxError,
) {
    let error = terminal_error(terminal("x".parse::<u16>().unwrap_err()));
    assert!(
        is_terminal(&error) && !is_conflict(&error),
        "{}",
        error_chain(&*error)
    );
    assert!(caused_by::<std::num::ParseIntError>(&error).is_some());
    let text = error_chain(&*error);
    assert!(
        text.ends_with(": not retried until something changes: invalid digit found in string"),
        "{text}"
    );

    let error = delayed_error(retry_after("busy", DELAY));
    assert_eq!(requested_delay(&error), Some(DELAY), "{}", error_chain(&*error));
    assert!(!is_terminal(&error));

    let error = kube_error(conflict());
    assert!(
        is_conflict(&error) && !is_terminal(&error),
        "{}",
        error_chain(&*error)
    );
    let other = Status::failure("there is one", "AlreadyExists").with_code(409);
    assert!(!is_conflict(&kube_error(kube::Error::Api(Box::new(other)))));
}

macro_rules! recognised_under {
    ($($name:ident: $wrapped:ident;)*) => {$(
        // D21
        #[test]
        fn $name() {
            recognises($wrapped, $wrapped, $wrapped);
        }
    )*};
}

recognised_under! {
    terminal_and_conflict_are_recognised_under_from: from;
    terminal_and_conflict_are_recognised_under_source: source;
    terminal_and_conflict_are_recognised_under_transparent: transparent;
    terminal_and_conflict_are_recognised_under_anyhow: anyhow;
    terminal_and_conflict_are_recognised_under_anyhow_with_context: anyhow_with_context;
    terminal_and_conflict_are_recognised_under_box: boxed;
    terminal_and_conflict_are_recognised_under_arc: arc;
}
