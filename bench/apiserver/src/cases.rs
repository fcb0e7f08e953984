// SPDX-License-Identifier: Apache-2.0
//! Cases for both servers, over HTTPS.

use std::time::Duration;

use bench_protocol::participant::{Start, Taken, rounded, say};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::json;

use crate::subject::Subject;

pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Number of connections that create objects before the list is measured.
const WRITERS: usize = 16;

/// Size of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) creates: usize,
    pub(crate) objects: usize,
    pub(crate) watchers: usize,
    pub(crate) events: usize,
    quick: bool,
}

impl Counts {
    pub(crate) fn new(quick: bool) -> Self {
        let (creates, objects, events) = if quick {
            (500, 2_000, 100)
        } else {
            (5_000, 100_000, 1_000)
        };
        Self {
            creates,
            objects,
            watchers: 100,
            events,
            quick,
        }
    }

    pub(crate) fn is_quick(self) -> bool {
        self.quick
    }
}

/// A small object.
pub(crate) fn map(index: usize) -> String {
    format!(r#"{{"metadata":{{"name":"map-{index:06}","labels":{{"app":"x"}}}},"data":{{"key":"value"}}}}"#)
}

/// Prints a row.
pub(crate) fn print(who: &str, case: &str, n: usize, taken: Taken, peak_mb: f64, more: &[(&str, f64)]) {
    let mut row = json!({
        "bench": "apiserver", "who": who, "n": n, "wall_s": rounded(taken.wall.as_secs_f64()),
        "cpu_s": rounded(taken.cpu.as_secs_f64()), "peak_mb": rounded(peak_mb), "case": case,
    });
    for (name, value) in more {
        row[*name] = json!(rounded(*value));
    }
    say(&row.to_string());
}

struct Clocks<'a> {
    subject: &'a Subject,
    start: Start,
    cpu: Duration,
}

impl<'a> Clocks<'a> {
    fn start(subject: &'a Subject) -> Self {
        Self {
            subject,
            start: Start::now(),
            cpu: subject.cpu(),
        }
    }

    /// Prints the row of a case; CPU is that of the server, without this process.
    fn print(self, case: &str, n: usize, per_second: bool) {
        let mut taken = self.start.taken();
        taken.cpu = self.subject.cpu().saturating_sub(self.cpu);
        let rate = f64::from(u32::try_from(n).unwrap_or(u32::MAX)) / taken.wall.as_secs_f64();
        let rate: &[(&str, f64)] = if per_second { &[("per_s", rate)] } else { &[] };
        let resident = [("resident_mb", self.subject.memory_mb("VmRSS:"))];
        let more: Vec<(&str, f64)> = rate.iter().chain(&resident).copied().collect();
        print(
            self.subject.who,
            case,
            n,
            taken,
            self.subject.memory_mb("VmHWM:"),
            &more,
        );
    }
}

/// Runs all cases on a server.
pub(crate) async fn run(subject: &Subject, counts: Counts) -> Result<(), String> {
    let client = || {
        subject
            .server
            .endpoint()
            .client(subject.server.admin())
            .map_err(|error| error.to_string())
    };
    let mut started = subject.started;
    started.cpu = subject.cpu();
    let resident = [("resident_mb", subject.memory_mb("VmRSS:"))];
    print(
        subject.who,
        "start",
        1,
        started,
        subject.memory_mb("VmHWM:"),
        &resident,
    );

    let one = client()?;
    let clocks = Clocks::start(subject);
    for index in 0..counts.creates {
        create(&one, index).await?;
    }
    clocks.print("create, one connection", counts.creates, true);

    let writers = (0..WRITERS).map(|_| client()).collect::<Result<Vec<_>, _>>()?;
    let rest = counts.creates..counts.objects;
    let count = rest.len();
    let clocks = Clocks::start(subject);
    stream::iter(rest.map(|index| {
        let client = writers[index % WRITERS].clone();
        async move { create(&client, index).await }
    }))
    .buffer_unordered(WRITERS)
    .try_collect::<()>()
    .await?;
    clocks.print("create, 16 connections", count, true);

    let clocks = Clocks::start(subject);
    let bytes = get(&one, MAPS).await?.len();
    clocks.print("list", counts.objects, false);
    if bytes < counts.objects * 100 {
        return Err(format!("{} answered a list of {bytes} bytes only", subject.who));
    }
    fan_out(subject, counts, &one, client).await
}

/// Every watcher sees every event.
async fn fan_out(
    subject: &Subject,
    counts: Counts,
    one: &Client,
    client: impl Fn() -> Result<Client, String>,
) -> Result<(), String> {
    let list: serde_json::Value = serde_json::from_slice(&get(one, &format!("{MAPS}?limit=1")).await?)
        .map_err(|error| error.to_string())?;
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let mut watches = Vec::new();
    for _ in 0..counts.watchers {
        let request = Request::get(format!("{MAPS}?watch=1&resourceVersion={revision}")).body(Body::empty());
        let response = client()?.send(request.map_err(|error| error.to_string())?).await;
        watches.push(response.map_err(|error| error.to_string())?.into_body());
    }
    let clocks = Clocks::start(subject);
    let seen = stream::iter(watches).map(|mut body| async move {
        let mut seen = 0;
        while seen < counts.events {
            let frame = body.frame().await.ok_or("a watch ended early")?;
            let bytes = frame
                .map_err(|_| "a watch broke")?
                .into_data()
                .unwrap_or_default();
            seen += bytes.iter().filter(|byte| **byte == b'\n').count();
        }
        Ok::<(), String>(())
    });
    let writes = async {
        for index in 0..counts.events {
            create(one, counts.objects + index).await?;
        }
        Ok::<(), String>(())
    };
    let readers = seen.buffer_unordered(counts.watchers).try_collect::<()>();
    futures::try_join!(writes, readers)?;
    clocks.print("100 watchers", counts.watchers * counts.events, true);
    Ok(())
}

async fn create(client: &Client, index: usize) -> Result<(), String> {
    let request = Request::post(MAPS)
        .header("content-type", "application/json")
        .body(Body::from(map(index).into_bytes()));
    let response = client.send(request.map_err(|error| error.to_string())?).await;
    let response = response.map_err(|error| error.to_string())?;
    let status = response.status();
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|error| error.to_string())?;
    if status == 201 {
        Ok(())
    } else {
        Err(format!("a create was answered {status}: {:?}", body.to_bytes()))
    }
}

async fn get(client: &Client, path: &str) -> Result<Bytes, String> {
    let request = Request::get(path)
        .body(Body::empty())
        .map_err(|error| error.to_string())?;
    let response = client.send(request).await.map_err(|error| error.to_string())?;
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|error| error.to_string())?;
    Ok(body.to_bytes())
}
