// SPDX-License-Identifier: Apache-2.0
//! Signals, sent to copies of this test.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    env,
    io::{BufRead, BufReader, Lines},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, getpid, kill_process};
use steersman_runtime::{InstallError, Manager, RunContext, Signals, run_fn};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

/// Set in the copy that gets signals, and says what it does with them.
const ROLE: &str = "STEERSMAN_TEST_SIGNALS";

/// Prefix of the output of a child process, to distinguish it from the output of the test harness.
const SAYS: &str = "copy: ";

#[expect(clippy::print_stdout, reason = "the test reads it")]
fn say(text: impl std::fmt::Display) {
    println!("\n{SAYS}{text}");
}

/// A copy of this test that only runs `copy`.
struct Copy {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Copy {
    fn start(role: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "copy", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut copy = Self { child, output };
        assert_eq!(copy.hear(), "ready");
        copy
    }

    fn hear(&mut self) -> String {
        let said = |line: String| line.strip_prefix(SAYS).map(str::to_owned);
        let mut lines = self.output.by_ref().map_while(Result::ok);
        lines.find_map(said).expect("the copy says something")
    }

    fn send(&self, signal: Signal) {
        let id = Pid::from_child(&self.child);
        kill_process(id, signal).unwrap();
    }

    fn exit_code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

/// A failed test leaves none behind.
impl Drop for Copy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Work of the child processes; does nothing in the test itself.
#[tokio::test]
async fn copy() {
    let Ok(role) = env::var(ROLE) else { return };
    if role == "failing" {
        return fail().await;
    }
    let mut signals = Signals::install().unwrap();
    assert!(matches!(Signals::install(), Err(InstallError::Twice)));
    if role == "dropping" {
        drop(signals);
        say("ready");
        return std::future::pending().await;
    }
    if role == "early" {
        // No task waits for it yet.
        kill_process(getpid(), Signal::TERM).unwrap();
    }
    say("ready");
    let signal = signals.stop().await;
    assert_eq!(signals.stop().await, signal);
    say(signal);
    match role.as_str() {
        // Not even the runtime continues.
        "hanging" => loop {
            thread::sleep(Duration::from_secs(3600));
        },
        _ => std::process::exit(7),
    }
}

/// Runs a manager in which something fails and something else needs a signal to end.
async fn fail() {
    let manager = Manager::builder().without_cluster().build().await.unwrap();
    let bad = run_fn("bad", async |_: RunContext| Err("not feeling like that".into()));
    manager.add(bad).unwrap();
    let slow = run_fn("slow", async |cx: RunContext| {
        // Beside those of the manager, which come first.
        let mut terminate = signal(SignalKind::terminate())?;
        cx.stop().requested().await;
        say("ready");
        terminate.recv().await;
        say("heard");
        terminate.recv().await;
        Ok(())
    });
    manager.add(slow).unwrap();
    let error = manager.run().await.unwrap_err();
    panic!("it was to be ended by the second signal: {error:?}");
}

// R76, R159
#[test]
fn guarantee_1_the_first_signal_lets_the_process_end_in_its_own_way() {
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let mut copy = Copy::start("graceful");
        copy.send(signal);
        assert_eq!(copy.hear(), name);
        assert_eq!(copy.exit_code(), Some(7));
    }
}

#[test]
fn guarantee_1_an_earlier_signal_is_received() {
    let mut copy = Copy::start("early");
    assert_eq!(copy.hear(), "SIGTERM");
    assert_eq!(copy.exit_code(), Some(7));
}

// R76, R159, D26
#[test]
fn guarantee_2_the_second_signal_ends_a_process_that_hangs() {
    for (first, second) in [
        (Signal::TERM, Signal::TERM),
        (Signal::INT, Signal::TERM),
        (Signal::TERM, Signal::INT),
    ] {
        let took = || {
            let mut copy = Copy::start("hanging");
            copy.send(first);
            copy.hear();
            let sent = Instant::now();
            copy.send(second);
            assert_eq!(copy.exit_code(), Some(1));
            sent.elapsed()
        };
        // A busy machine might not schedule the process within a second, so a slow attempt is repeated.
        let in_time = (0..5).any(|_| took() < Duration::from_secs(1));
        assert!(in_time, "{first:?}, {second:?}: never within 1 s");
    }
}

// R76, R159
#[test]
fn the_first_signal_lets_a_manager_wind_down_also_after_a_failure() {
    let mut copy = Copy::start("failing");
    copy.send(Signal::TERM);
    assert_eq!(copy.hear(), "heard");
    copy.send(Signal::TERM);
    assert_eq!(copy.exit_code(), Some(1));
}

#[test]
fn guarantee_4_one_signal_is_enough_after_all_handles_are_dropped() {
    let copy = Copy::start("dropping");
    copy.send(Signal::TERM);
    assert_eq!(copy.exit_code(), Some(1));
}

#[test]
fn without_a_runtime_it_is_an_error() {
    assert!(matches!(Signals::install(), Err(InstallError::NoRuntime)));
}
