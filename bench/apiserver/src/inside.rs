// SPDX-License-Identifier: Apache-2.0
//! The embedded server within this process, on one thread: what a test pays.

use bench_protocol::participant::{Start, peak_mb, resident_mb};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use steersman_apiserver::{ApiServer, Service};
use tower_service::Service as _;

use crate::cases::{Counts, MAPS, map, print};

const WHO: &str = "steersman, in process";

pub(crate) async fn run(counts: Counts) -> Result<(), String> {
    let start = Start::now();
    let server = ApiServer::builder().build();
    report("start", 1, start, false);
    let start = Start::now();
    drop(ApiServer::builder().rbac(true).build());
    report("start of another, with RBAC", 1, start, false);

    let mut service = server.service();
    let start = Start::now();
    for index in 0..counts.objects {
        send(&mut service, post(index)?).await?;
    }
    report("create", counts.objects, start, true);
    let start = Start::now();
    let request = Request::get(MAPS)
        .body(Full::default())
        .map_err(|error| error.to_string())?;
    send(&mut service, request).await?;
    report("list", counts.objects, start, false);

    let mut watches = Vec::new();
    for _ in 0..counts.watchers {
        let path = format!("{MAPS}?watch=1&resourceVersion={}", server.revision());
        let request = Request::get(path).body(Full::<Bytes>::default());
        let response = service.call(request.map_err(|error| error.to_string())?).await;
        watches.push(response.map_err(|error| error.to_string())?.into_body());
    }
    let start = Start::now();
    for index in 0..counts.events {
        send(&mut service, post(counts.objects + index)?).await?;
    }
    for watch in &mut watches {
        let mut seen = 0;
        while seen < counts.events {
            let frame = watch.frame().await.ok_or("a watch ended early")?;
            let bytes = frame
                .map_err(|error| error.to_string())?
                .into_data()
                .unwrap_or_default();
            seen += bytes.iter().filter(|byte| **byte == b'\n').count();
        }
    }
    report("100 watchers", counts.watchers * counts.events, start, true);
    Ok(())
}

fn report(case: &str, n: usize, start: Start, per_second: bool) {
    let taken = start.taken();
    let rate = f64::from(u32::try_from(n).unwrap_or(u32::MAX)) / taken.wall.as_secs_f64();
    let mut more = vec![("resident_mb", resident_mb())];
    if per_second {
        more.push(("per_s", rate));
    }
    print(WHO, case, n, taken, peak_mb(), &more);
}

fn post(index: usize) -> Result<Request<Full<Bytes>>, String> {
    Request::post(MAPS)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(map(index))))
        .map_err(|error| error.to_string())
}

async fn send(service: &mut Service, request: Request<Full<Bytes>>) -> Result<(), String> {
    let response = service.call(request).await.map_err(|error| error.to_string())?;
    let status = response.status();
    response
        .into_body()
        .collect()
        .await
        .map_err(|error| error.to_string())?;
    if status.is_success() {
        Ok(())
    } else {
        Err(format!("a request was answered {status}"))
    }
}
