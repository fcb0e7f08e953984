// SPDX-License-Identifier: Apache-2.0
//! The manual page, generated from the definition of the command line. Help and completions have the same source.

use std::io::{self, Write};

use clap::{Arg, Command, CommandFactory};

use crate::{
    args::Args,
    exit::{End, Outcome, OutputError},
};

/// Writes the manual page to standard output.
pub(crate) fn main() -> Outcome {
    let page = render(&mut Args::command());
    io::stdout()
        .write_all(page.as_bytes())
        .map_err(OutputError::from)?;
    Ok(End::Done)
}

/// Returns the page in the macros of man(7).
fn render(command: &mut Command) -> String {
    command.build();
    let name = command.get_name();
    let version = command.get_version().unwrap_or_default();
    let mut page = format!(
        ".TH {} 1 \"\" \"{name} {}\" \"User Commands\"\n",
        name.to_uppercase(),
        escape(version)
    );
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    page += &format!(".SH NAME\n{name} \\- {}\n", escape(about.trim_end_matches('.')));
    page += &format!(".SH SYNOPSIS\n.B {name}\n.I COMMAND\n[\\fIOPTIONS\\fR]\n");
    page += ".SH COMMANDS\n";
    let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
    for one in visible.filter(|one| one.get_name() != "help") {
        page += &subcommand(name, one);
    }
    page += ".SH OPTIONS\n";
    page += &arguments(command);
    page += &after_help(command, ".SH");
    page
}

fn subcommand(program: &str, command: &Command) -> String {
    let mut section = format!(".SS {program} {}\n", escape(command.get_name()));
    if let Some(about) = command.get_about() {
        section += &format!("{}.\n", escape(about.to_string().trim_end_matches('.')));
    }
    section += &arguments(command);
    section + &after_help(command, ".PP\n.B")
}

/// Returns the arguments as a list with hanging text. Subcommands do not repeat `--help`.
fn arguments(command: &Command) -> String {
    let is_root = command.get_subcommands().next().is_some();
    let shown = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set() && (is_root || argument.get_id() != "help"));
    shown
        .map(|argument| format!(".TP\n{}\n{}\n", flag(argument), escape(&description(argument))))
        .collect()
}

/// Returns an argument as it is written on the command line, in bold and italic.
fn flag(argument: &Arg) -> String {
    let names = [
        argument.get_short().map(|short| format!("-{short}")),
        argument.get_long().map(|long| format!("--{long}")),
    ];
    let names: Vec<String> = names
        .into_iter()
        .flatten()
        .map(|name| format!("\\fB{}\\fR", escape(&name)))
        .collect();
    let takes_value = argument.get_action().takes_values();
    let values = argument.get_value_names().unwrap_or_default().iter();
    let values = values.map(|name| format!("\\fI{}\\fR", escape(name)));
    let words = [names.join(", ")].into_iter().filter(|names| !names.is_empty());
    words
        .chain(values.filter(|_| takes_value))
        .collect::<Vec<_>>()
        .join(" ")
}

fn description(argument: &Arg) -> String {
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let mut sentences = vec![help.trim_end_matches('.').to_owned()];
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect();
    if argument.get_action().takes_values() && !values.is_empty() {
        sentences.push(format!("One of: {}", values.join(", ")));
    }
    let defaults: Vec<_> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    if argument.get_action().takes_values() && !defaults.is_empty() {
        sentences.push(format!("Default: {}", defaults.join(", ")));
    }
    sentences.join(". ") + "."
}

/// Returns the text after the options. A line such as `Examples:` is a heading; indented lines keep their breaks.
fn after_help(command: &Command, heading: &str) -> String {
    let text = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    if text.is_empty() {
        return text;
    }
    // Ends the hanging text of the last argument.
    let mut page = ".PP\n".to_owned();
    let mut is_literal = false;
    for line in text.lines() {
        let indented = line.starts_with("  ");
        if indented != is_literal {
            page += if indented { ".PP\n.nf\n" } else { ".fi\n" };
            is_literal = indented;
        }
        match line.strip_suffix(':') {
            Some(title) if !indented => page += &format!("{heading} {}\n", escape(&title.to_uppercase())),
            _ if line.is_empty() => page += ".PP\n",
            _ => page += &format!("{}\n", escape(line.trim_start_matches("  "))),
        }
    }
    if is_literal {
        page += ".fi\n";
    }
    page
}

/// Escapes text: a backslash and a dash have a meaning for roff, and so does a dot or quote at the beginning of a line.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let is_control = text.starts_with(['.', '\'']);
    if is_control { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_what_roff_would_interpret() {
        assert_eq!(escape("--a \\ b"), "\\-\\-a \\e b");
        assert_eq!(escape(".nf"), "\\&.nf");
        assert_eq!(escape("'quoted'"), "\\&'quoted'");
    }

    #[test]
    fn names_every_visible_command_and_option() {
        let page = render(&mut Args::command());
        let mut definition = Args::command();
        definition.build();
        for command in definition.get_subcommands() {
            let heading = format!(".SS steersman {}\n", escape(command.get_name()));
            let is_shown = !command.is_hide_set() && command.get_name() != "help";
            assert_eq!(page.contains(&heading), is_shown, "{heading}");
            let options = command.get_arguments().filter_map(Arg::get_long);
            for option in options.filter(|name| is_shown && *name != "help") {
                let option = format!("\\fB\\-\\-{}\\fR", escape(option));
                assert!(page.contains(&option), "{option}");
            }
        }
    }

    #[test]
    fn describes_values_and_defaults() {
        let page = render(&mut Args::command());
        for part in [
            "\\fB\\-\\-port\\fR \\fIPORT\\fR\n",
            "Default: 0.\n",
            "One of: bash, ",
            ".SH EXIT CODES\n",
            ".PP\nThe demo starts ",
            "\\fB\\-h\\fR, \\fB\\-\\-help\\fR\n",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!(page.matches(".nf\n").count(), page.matches(".fi\n").count());
    }
}
