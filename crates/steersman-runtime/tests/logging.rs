// SPDX-License-Identifier: Apache-2.0
//! Log lines, and what changes them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    env, io,
    process::Command,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use steersman_runtime::{FilterError, LogFormat, LogHandle, Logging, LoggingError};
use tracing::{Dispatch, dispatcher::with_default};

/// Keeps what is written.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The last line, without its time.
    fn last(&self) -> Value {
        let mut line: Value = serde_json::from_str(self.text().lines().last().unwrap()).unwrap();
        let time = line.as_object_mut().unwrap().remove("ts").unwrap();
        let time = time.as_str().unwrap();
        assert!(
            time.len() == 27 && time.ends_with('Z') && time.as_bytes()[10] == b'T',
            "{time}"
        );
        line
    }
}

fn log(logging: Logging) -> (Dispatch, LogHandle, Written) {
    let written = Written::default();
    let writer = written.clone();
    let (dispatch, handle) = logging.writer(move || writer.clone()).build().unwrap();
    (dispatch, handle, written)
}

#[test]
fn guarantee_1_a_json_line_is_flat_and_has_the_names_that_people_expect() {
    let (dispatch, _, written) = log(Logging::new());
    with_default(&dispatch, || {
        let error = io::Error::other("gone");
        tracing::info!(target: "webs", web = "front", attempt = 3, fast = true, ratio = 0.5, error = &error as &dyn std::error::Error, "reconciled {}", 1);
    });
    let expected = json!({
        "level": "info", "logger": "webs", "msg": "reconciled 1",
        "web": "front", "attempt": 3, "fast": true, "ratio": 0.5, "error": "gone",
    });
    assert_eq!(written.last(), expected);
    // The important fields are first, for readers of the raw line.
    let text = written.text();
    let start = text
        .find("\",\"level\":\"info\",\"logger\":\"webs\",\"msg\":\"reconciled 1\",\"web\":")
        .unwrap();
    assert_eq!(&text[..7], "{\"ts\":\"");
    assert_eq!(start, 7 + 27);
}

#[test]
fn guarantee_1_fields_of_spans_are_among_those_of_the_event() {
    let (dispatch, _, written) = log(Logging::new());
    with_default(&dispatch, || {
        let outer = tracing::info_span!("controller", controller = "web", name = "outer");
        let _outer = outer.enter();
        let inner = tracing::info_span!("reconcile", name = "inner", late = tracing::field::Empty);
        let _inner = inner.enter();
        inner.record("late", 1);
        inner.record("late", 2);
        tracing::warn!(target: "webs", name = "event", msg = "field", "text");
    });
    let expected = json!({
        "level": "warn", "logger": "webs", "msg": "text", "name": "event", "controller": "web", "late": 2,
    });
    assert_eq!(written.last(), expected);
}

#[test]
fn a_json_line_is_one_line_whatever_is_in_it() {
    let (dispatch, _, written) = log(Logging::new());
    with_default(&dispatch, || {
        tracing::info!(target: "webs", text = "a\n\"b\"", nothing = f64::NAN, "one\ntwo");
    });
    assert_eq!(written.text().lines().count(), 1);
    let expected =
        json!({"level": "info", "logger": "webs", "msg": "one\ntwo", "text": "a\n\"b\"", "nothing": "NaN"});
    assert_eq!(written.last(), expected);
}

#[test]
fn guarantee_1_text_is_for_people() {
    let (dispatch, _, written) = log(Logging::new().format(LogFormat::Text));
    with_default(
        &dispatch,
        || tracing::info!(target: "webs", web = "front", "reconciled"),
    );
    let text = written.text();
    assert!(text.ends_with(" INFO webs: reconciled web=\"front\"\n"), "{text}");
}

// R117
#[test]
fn guarantee_2_the_filter_changes_while_the_program_runs() {
    let (dispatch, handle, written) = log(Logging::new());
    with_default(&dispatch, || {
        let say = |text: &str| {
            tracing::debug!(target: "webs", "{text}");
            written.text().contains(text)
        };
        assert_eq!(handle.filter(), "info");
        assert!(!say("first"));
        handle.set_filter("debug").unwrap();
        assert!(say("second"));
        handle.set_filter("webs=warn,debug").unwrap();
        assert!(!say("third"));
        handle.set_filter("info,webs=debug").unwrap();
        assert!(say("fourth"));
    });
}

#[test]
fn guarantee_3_a_filter_that_makes_no_sense_changes_nothing() {
    let (_dispatch, handle, _) = log(Logging::new().filter("warn"));
    let error = handle.set_filter("webs=loud").unwrap_err();
    assert!(matches!(error, FilterError::Invalid { .. }));
    assert!(
        error
            .to_string()
            .starts_with("`webs=loud` is not a valid log filter: ")
    );
    assert_eq!(handle.filter(), "warn");
    assert!(Logging::new().filter("webs=loud").build().is_err());
    assert!(matches!(handle.set_filter(" "), Err(FilterError::Empty)));
}

/// Set in the copy of this test that has a log of its own.
const COPY: &str = "STEERSMAN_TEST_LOGGING";

/// Runs a test once more in a process of its own, since a process has one log and one environment. Gives what it wrote to standard
/// error.
fn stderr_of_a_copy(test: &str, filter: &str) -> String {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(COPY, "1")
        .env("RUST_LOG", filter)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn errors_of_a_copy_with(filter: &str) -> Vec<Value> {
    let errors = stderr_of_a_copy("guarantee_4_one_call_in_main_sets_up_the_log", filter);
    errors
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

// D24
#[test]
fn guarantee_5_a_panic_is_one_line_with_the_fields_of_its_spans() {
    if env::var_os(COPY).is_some() {
        Logging::from_env().install().unwrap();
        let span = tracing::info_span!("reconcile", key = "web/front");
        let panicked = span.in_scope(|| std::panic::catch_unwind(|| panic!("out of {}", "order")));
        assert!(panicked.is_err());
        return;
    }
    let text = stderr_of_a_copy(
        "guarantee_5_a_panic_is_one_line_with_the_fields_of_its_spans",
        "info",
    );
    let [line] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(
        (&line["level"], &line["msg"]),
        (&json!("error"), &json!("panicked"))
    );
    assert_eq!(
        (&line["panic"], &line["key"]),
        (&json!("out of order"), &json!("web/front"))
    );
    assert!(
        line["location"].as_str().unwrap().contains("logging.rs:"),
        "{line}"
    );
    assert_eq!(line["backtrace"], Value::Null);
}

fn panics_and_recovers() {
    let panicked = std::panic::catch_unwind(|| panic!("out of {}", "order"));
    assert!(panicked.is_err());
}

/// Returns true for the panic message of the standard library.
fn is_plain_panic(text: &str) -> bool {
    text.contains("panicked at ") && text.contains("out of order") && !text.contains('{')
}

// D24
#[test]
fn guarantee_5_a_panic_that_the_filter_drops_is_written_as_text() {
    if env::var_os(COPY).is_some() {
        Logging::from_env().install().unwrap();
        return panics_and_recovers();
    }
    let text = stderr_of_a_copy(
        "guarantee_5_a_panic_that_the_filter_drops_is_written_as_text",
        "my_operator=debug",
    );
    assert!(is_plain_panic(&text), "{text}");
}

// D24
#[test]
fn guarantee_5_the_panic_hook_can_be_disabled() {
    if env::var_os(COPY).is_some() {
        Logging::from_env().panics(false).install().unwrap();
        return panics_and_recovers();
    }
    let text = stderr_of_a_copy("guarantee_5_the_panic_hook_can_be_disabled", "info");
    assert!(is_plain_panic(&text), "{text}");
}

// D24
#[test]
fn guarantee_6_the_verifier_of_certificates_is_heard_at_debug_only() {
    if env::var_os(COPY).is_some() {
        let handle = Logging::from_env().install().unwrap();
        log::error!(target: "rustls_platform_verifier::verification::others", "UnknownIssuer");
        handle.set_filter("debug").unwrap();
        log::error!(target: "rustls_platform_verifier::verification::others", "heard");
        return;
    }
    let text = stderr_of_a_copy(
        "guarantee_6_the_verifier_of_certificates_is_heard_at_debug_only",
        "info",
    );
    assert!(
        !text.contains("UnknownIssuer") && text.contains("heard"),
        "{text}"
    );
}

// R117
#[test]
fn guarantee_4_one_call_in_main_sets_up_the_log() {
    if env::var_os(COPY).is_some() {
        let handle = Logging::from_env().filter("warn").install().unwrap();
        assert!(matches!(Logging::new().install(), Err(LoggingError::Twice(_))));
        tracing::info!(target: "webs", filter = handle.filter(), "told");
        log::warn!(target: "others", "{} told", "also");
        return;
    }
    let lines = errors_of_a_copy_with("webs=info,warn");
    let [ours, others] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    let part = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
    assert_eq!(
        (part(ours, "msg"), part(ours, "logger")),
        ("told".to_owned(), "webs".to_owned())
    );
    assert_eq!(part(ours, "filter"), "webs=info,warn");
    let expected = json!({"ts": others["ts"], "level": "warn", "logger": "others", "msg": "also told"});
    assert_eq!(*others, expected);
    // Set to nothing is not set: the program's own default holds.
    assert_eq!(errors_of_a_copy_with("").len(), 1);
}

#[test]
fn a_handle_of_an_ended_log_is_an_error() {
    let (dispatch, handle, _) = log(Logging::new());
    drop(dispatch);
    assert!(matches!(handle.set_filter("debug"), Err(FilterError::Ended)));
    assert_eq!(handle.filter(), "");
}
