// SPDX-License-Identifier: Apache-2.0
//! Help, version and errors of the command.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod command;

use command::{Place, said};

fn out(arguments: &[&str]) -> String {
    let output = Place::new().run(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", said(&output));
    assert!(output.stderr.is_empty(), "{arguments:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_has_examples_and_exit_codes_and_hides_internal_commands() {
    let help = out(&["--help"]);
    for part in [
        "demo",
        "serve",
        "completions",
        "man",
        "Examples:",
        "Exit codes:",
        "130",
    ] {
        assert!(help.contains(part), "{help}");
    }
    for hidden in ["replica", "caretaker"] {
        let commands = help.split("Examples:").next().unwrap();
        assert!(
            !commands.lines().any(|line| line.trim_start().starts_with(hidden)),
            "{help}"
        );
    }
    assert!(!help.contains('\x1b'), "no colour where nobody sees it");
    for command in ["demo", "serve", "completions", "man"] {
        let help = out(&[command, "--help"]);
        assert!(help.contains("Example"), "{help}");
    }
}

#[test]
fn invalid_arguments_exit_with_2_and_a_hint() {
    for arguments in [&["demmo"][..], &["serve", "--prot", "1"], &[]] {
        let output = Place::new().run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
        assert!(said(&output).contains("Usage: steersman"), "{}", said(&output));
    }
    let output = Place::new().run(&["demmo"]);
    assert!(said(&output).contains("'demo'"), "{}", said(&output));
}

#[test]
fn a_closed_output_is_not_an_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Place::new()
        .command(&["completions", "bash"])
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(output.stderr.is_empty(), "{}", said(&output));
}

#[test]
fn completions_contain_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = out(&["completions", shell]);
        assert!(
            script.contains("demo") && script.contains("kubeconfig"),
            "{shell}"
        );
    }
}

#[test]
fn the_manual_page_has_what_the_help_has() {
    let page = out(&["man"]).replace("\\-", "-");
    assert!(page.starts_with(".TH STEERSMAN 1 "), "{page}");
    for command in ["demo", "serve", "completions", "man"] {
        let help = out(&[command, "--help"]);
        let options = help.split_whitespace().filter(|word| word.starts_with("--"));
        for option in options.filter(|option| !option.starts_with("--help")) {
            let option = option.trim_end_matches(|c: char| !c.is_alphanumeric());
            assert!(page.contains(option), "{command}: {option}");
        }
    }
    for hidden in ["steersman replica", "steersman caretaker", "\x1b"] {
        assert!(!page.contains(hidden), "{hidden}");
    }
}

#[test]
fn prints_the_version_of_the_crate() {
    assert_eq!(
        out(&["--version"]),
        format!("steersman {}\n", env!("CARGO_PKG_VERSION"))
    );
}
