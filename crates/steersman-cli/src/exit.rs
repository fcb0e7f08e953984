// SPDX-License-Identifier: Apache-2.0
//! Exit codes: the one place where errors become text and codes.

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

use steersman_runtime::Signal;

use crate::terminal::Paint;

/// Result of a command.
pub(crate) type Outcome = Result<End, Box<dyn Error + Send + Sync>>;

/// Successful end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The command is complete.
    Done,
    /// A signal stopped it early.
    Interrupted(Signal),
}

/// The output of a command cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the output")]
pub(crate) struct OutputError(#[from] io::Error);

/// Prints the error, and returns the exit code that the help documents.
pub(crate) fn code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Interrupted(Signal::Interrupt)) => ExitCode::from(130),
        Ok(End::Interrupted(_)) => ExitCode::from(143),
        // The reader of the output closed it.
        Err(error) if is_closed_output(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, the error cannot be reported.
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

/// Reports whether the error is a closed output. Other pipes can break as well, such as a connection to a server; those
/// are failures.
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
    fn only_a_broken_pipe_of_the_output_is_a_success() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed_output(&OutputError(broken())));
        assert!(is_closed_output(&Step(OutputError(broken()))));
        assert!(!is_closed_output(&Step(broken())), "a connection, perhaps");
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(!is_closed_output(&OutputError(full)));
    }
}
