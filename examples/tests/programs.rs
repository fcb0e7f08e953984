// SPDX-License-Identifier: Apache-2.0
//! Every example runs and says what it is meant to show.

use std::process::Command;

mod on_real {
    use super::*;

    #[test]
    fn wire_shows_a_cut_watch_and_a_lost_answer() {
        let output = Command::new(env!("CARGO_BIN_EXE_wire")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(text.contains("the connection broke"), "{text}");
        assert!(text.contains("the object is on the server: true"), "{text}");
    }
}
