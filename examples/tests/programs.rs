// SPDX-License-Identifier: Apache-2.0
//! Every example runs and says what it is meant to show.

use std::process::Command;

fn wire_shows_a_cut_watch_and_a_lost_answer(arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_wire")).args(arguments).output();
    let output = output.expect("the example was built with this test");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("the connection broke"), "{text}");
    assert!(text.contains("the object is on the server: true"), "{text}");
}

mod wire {
    use super::*;

    #[test]
    fn on_embedded() {
        wire_shows_a_cut_watch_and_a_lost_answer(&[]);
    }

    #[test]
    fn on_real() {
        wire_shows_a_cut_watch_and_a_lost_answer(&["--real"]);
    }
}
