// SPDX-License-Identifier: Apache-2.0
//! How the command ends: one place where errors become text and codes.

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

use steersman_runtime::Signal;

use crate::terminal::Paint;

/// What a command comes to.
pub(crate) type Outcome = Result<End, Box<dyn Error + Send + Sync>>;

/// An end that is no failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All was done.
    Done,
    /// It was told to end before.
    Interrupted(Signal),
}

/// What a command says could not be written.
#[derive(Debug, thiserror::Error)]
#[error("the output cannot be written")]
pub(crate) struct OutputError(#[from] io::Error);

/// Says what went wrong, and gives the code that the help documents.
pub(crate) fn code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Interrupted(Signal::Interrupt)) => ExitCode::from(130),
        Ok(End::Interrupted(_)) => ExitCode::from(143),
        // Whoever read the output has seen enough.
        Err(error) if is_closed_output(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, nobody is left to tell.
            let _ = write_causes(&mut io::stderr(), &*error);
            ExitCode::FAILURE
        }
    }
}

fn write_causes(to: &mut impl Write, error: &(dyn Error + 'static)) -> io::Result<()> {
    writeln!(to, "{} {error}", Paint::stderr().red("error:"))?;
    let causes = std::iter::successors(error.source(), |&error| error.source());
    for cause in causes {
        writeln!(to, "  because: {cause}")?;
    }
    Ok(())
}

/// Other pipes may break as well, such as a connection to a server; those are failures.
fn is_closed_output(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<OutputError>())
        .any(|OutputError(error)| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("a step did not come true")]
    struct Step<E: Error + 'static>(#[source] E);

    #[test]
    fn only_a_broken_pipe_of_the_output_is_no_failure() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed_output(&OutputError(broken())));
        assert!(is_closed_output(&Step(OutputError(broken()))));
        assert!(!is_closed_output(&Step(broken())), "a connection, perhaps");
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(!is_closed_output(&OutputError(full)));
    }
}
