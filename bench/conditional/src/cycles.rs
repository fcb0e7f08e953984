// SPDX-License-Identifier: Apache-2.0
//! Memory of the operator after many installs, each with a thousand objects.

use std::process::Stdio;

use bench_protocol::participant::{Start, Told, lifeline, resident_mb, rounded, say, variable};
use bench_stage::Server;
use serde_json::Value;
use steersman_testing::{Endpoint, Identity};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{ChildStdout, Command},
};

use crate::{operator::Operator, widgets::Widgets, words};

/// Argument that runs the program as the operator, in a separate process.
pub(crate) const WORD: &str = "--operate";

const OBJECTS: usize = 1000;

/// Environment variable with address and credentials of the operator.
const SERVER: &str = "BENCH_SERVER";

pub(crate) async fn run(server: &Server, cycles: usize) -> Result<(), String> {
    let told = serde_json::json!({"endpoint": server.endpoint(), "identity": server.admin()});
    let mut child = Command::new(std::env::current_exe().map_err(words)?)
        .arg(WORD)
        .env(SERVER, told.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(words)?;
    let out = child.stdout.take().ok_or("the operator says nothing")?;
    let mut lines = BufReader::new(out).lines();
    let client = server.endpoint().client(server.admin()).map_err(words)?;
    let widgets = Widgets::new(client);
    heard(&mut lines, "rests").await?;
    let (start, mut readings, mut tasks) = (Start::now(), Vec::new(), Vec::new());
    for _ in 0..cycles {
        let mut definition = widgets.install().await?;
        widgets.apply_many(OBJECTS).await?;
        heard(&mut lines, "reconciled").await?;
        widgets.uninstall().await?;
        definition.gone().await?;
        let resident: f64 = heard(&mut lines, "resident ").await?.parse().map_err(words)?;
        readings.push(resident);
        let alive: usize = heard(&mut lines, "tasks ").await?.parse().map_err(words)?;
        tasks.push(alive);
    }
    // One-time allocations are done after the first fifth.
    let mut steady = readings.split_off(readings.len().div_ceil(5));
    steady.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (steady.first(), steady.last()) else {
        return Err("there were too few installs".to_owned());
    };
    // There is one of each reading.
    let (tasks_before, tasks_after) = (tasks[tasks.len() / 5], tasks[tasks.len() - 1]);
    let plateau = steady[steady.len() / 2];
    Told::new("conditional", server.who(), cycles)
        .row(start.taken())
        .with("case", "installs of 1,000 objects")
        .with("resident_mb", rounded(plateau))
        .with("least_mb", rounded(*least))
        .with("most_mb", rounded(*most))
        .with("tasks_before", tasks_before)
        .with("tasks_after", tasks_after)
        .print();
    if *most > plateau * 1.1 || *least < plateau * 0.9 {
        return Err(format!(
            "memory is not flat: {least} to {most} MB around {plateau} MB"
        ));
    }
    // Connections that are kept for the next request come and go. A task for each install would be more of them.
    if tasks_after > tasks_before + cycles / 2 {
        return Err(format!(
            "tasks are left behind: {tasks_before} became {tasks_after}"
        ));
    }
    Ok(())
}

/// Returns the rest of the line after this prefix.
async fn heard(lines: &mut Lines<BufReader<ChildStdout>>, beginning: &str) -> Result<String, String> {
    let line = lines.next_line().await.map_err(words)?.unwrap_or_default();
    let rest = line.strip_prefix(beginning);
    rest.map(str::to_owned)
        .ok_or_else(|| format!("the operator said `{line}` and not `{beginning}`"))
}

/// Is the operator, until stdin ends.
pub(crate) async fn operate() -> Result<(), String> {
    let _driver = lifeline();
    let told: Value = serde_json::from_str(&variable(SERVER)).map_err(words)?;
    let endpoint: Endpoint = serde_json::from_value(told["endpoint"].clone()).map_err(words)?;
    let identity: Identity = serde_json::from_value(told["identity"].clone()).map_err(words)?;
    let operator = Operator::start(endpoint.config(&identity).map_err(words)?).await?;
    say("rests");
    loop {
        operator.reconciled(OBJECTS).await;
        say("reconciled");
        operator.rests().await;
        operator.forget();
        say(&format!("resident {}", resident_mb()));
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        say(&format!("tasks {tasks}"));
    }
}
