// SPDX-License-Identifier: Apache-2.0
//! The demo as it looks on a terminal.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod command;

use std::{
    fs::File,
    io::Read,
    os::fd::OwnedFd,
    process::{Child, Stdio},
};

use command::Place;
use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

const COLUMNS: usize = 60;

/// Content of a terminal: lines; the cursor is in the last one.
#[derive(Debug, Default)]
struct Screen {
    lines: Vec<String>,
    at: usize,
    /// An escape that has begun.
    escape: Option<String>,
    /// Number of lines.
    escapes: usize,
    /// Lines that were there once, whether they still are or not.
    seen: Vec<String>,
}

impl Screen {
    fn show(&mut self, text: &str) {
        for character in text.chars() {
            self.put(character);
        }
    }

    fn put(&mut self, character: char) {
        if let Some(mut escape) = self.escape.take() {
            escape.push(character);
            if character == '[' || !character.is_ascii_alphabetic() {
                self.escape = Some(escape);
            } else {
                self.obey(&escape);
            }
            return;
        }
        self.lines
            .resize_with(self.lines.len().max(self.at + 1), String::new);
        match character {
            '\x1b' => self.escape = Some(String::new()),
            // All lines here are written from their beginning to their end.
            '\r' => {}
            '\n' => {
                self.seen.push(self.lines[self.at].clone());
                self.at += 1;
            }
            other => self.lines[self.at].push(other),
        }
    }

    fn obey(&mut self, escape: &str) {
        self.escapes += 1;
        let (number, command) = escape[1..].split_at(escape.len() - 2);
        match command {
            "A" => self.at -= number.parse::<usize>().unwrap(),
            "J" => self.lines.truncate(self.at),
            // Colours take no room.
            "m" => {}
            _ => panic!("{escape:?} is not known here"),
        }
    }
}

/// A demo on a separate terminal.
struct OnTerminal {
    child: Child,
    terminal: File,
    screen: Screen,
}

impl OnTerminal {
    fn start(place: &Place, arguments: &[&str]) -> Self {
        Self::start_with(place, arguments, |_| Stdio::null())
    }

    /// With standard error where it is said, given the terminal.
    fn start_with(place: &Place, arguments: &[&str], errors: impl FnOnce(&OwnedFd) -> Stdio) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = openpt(flags).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let theirs: OwnedFd = ioctl_tiocgptpeer(&terminal, flags).unwrap();
        let size = Winsize {
            ws_row: 50,
            ws_col: COLUMNS as u16,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&theirs, size).unwrap();
        let mut command = place.command(arguments);
        let errors = errors(&theirs);
        let child = command
            .stdin(Stdio::null())
            .stdout(theirs)
            .stderr(errors)
            .spawn()
            .unwrap();
        Self {
            child,
            terminal: File::from(terminal),
            screen: Screen::default(),
        }
    }

    /// Looks on until something has been seen, or to the end.
    fn watch(&mut self, until: Option<&str>) {
        let is_seen =
            |screen: &Screen| until.is_some_and(|what| screen.seen.iter().any(|line| line.contains(what)));
        let mut waiting = Vec::new();
        let mut bytes = [0; 4096];
        while !is_seen(&self.screen) {
            // A terminal whose other end is closed gives an error.
            let Ok(count @ 1..) = self.terminal.read(&mut bytes) else {
                assert!(until.is_none(), "not seen: {until:?} in {:#?}", self.screen);
                return;
            };
            waiting.extend_from_slice(&bytes[..count]);
            // A character may come in two pieces.
            let whole = match std::str::from_utf8(&waiting) {
                Ok(text) => text.len(),
                Err(error) => error.valid_up_to(),
            };
            let rest = waiting.split_off(whole);
            self.screen.show(std::str::from_utf8(&waiting).unwrap());
            waiting = rest;
        }
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn redraws_progress_and_clears_it_at_the_end() {
    let place = Place::new();
    let mut demo = OnTerminal::start(&place, &["demo"]);
    demo.watch(Some("two: stands by, warm"));
    demo.watch(Some("3/7"));
    kill_process(Pid::from_child(&demo.child), Signal::INT).unwrap();
    demo.watch(None);
    assert_eq!(demo.child.wait().unwrap().code(), Some(130));

    let Screen { lines, seen, .. } = &demo.screen;
    let of_scene =
        |line: &&String| line.starts_with("     replicas  ") || line.starts_with("     webs      ");
    let drawn: Vec<_> = seen.iter().filter(of_scene).collect();
    assert!(
        drawn.iter().any(|line| line.contains("of 20 ready")),
        "{drawn:#?}"
    );
    assert!(
        drawn.iter().all(|line| line.chars().count() < COLUMNS),
        "{drawn:#?}"
    );
    assert!(!lines.iter().any(|line| of_scene(&line)), "{lines:#?}");
    for line in ["1/7  ", "2/7  ", "3/7  "] {
        assert_eq!(
            lines.iter().filter(|found| found.starts_with(line)).count(),
            1,
            "{lines:#?}"
        );
    }
    place.is_left_clean();
}

#[test]
fn measurements_on_a_terminal_are_permanent() {
    let place = Place::new();
    let mut demo = OnTerminal::start_with(&place, &["demo", "--json"], |terminal| {
        terminal.try_clone().unwrap().into()
    });
    demo.watch(Some("2/7"));
    demo.watch(Some("3/7"));
    kill_process(Pid::from_child(&demo.child), Signal::INT).unwrap();
    demo.watch(None);

    let Screen { lines, seen, .. } = &demo.screen;
    assert!(seen.iter().any(|line| line.starts_with("     replicas  ")));
    for measure in ["leads", "warm", "applied_to_children", "applied_to_ready"] {
        let is_it = |line: &&String| line.contains(&format!("\"measure\":\"{measure}\""));
        assert_eq!(lines.iter().filter(is_it).count(), 1, "{measure} in {lines:#?}");
    }
    place.is_left_clean();
}

#[test]
fn plain_lines_on_a_terminal_have_no_escapes_and_no_scene() {
    let place = Place::new();
    let mut demo = OnTerminal::start(&place, &["demo", "--plain"]);
    demo.watch(Some("2/7"));
    demo.watch(Some("the step took"));
    kill_process(Pid::from_child(&demo.child), Signal::INT).unwrap();
    demo.watch(None);
    assert_eq!(demo.screen.escapes, 0, "{:#?}", demo.screen);
    assert!(!demo.screen.seen.iter().any(|line| line.contains("replicas  ")));
}
