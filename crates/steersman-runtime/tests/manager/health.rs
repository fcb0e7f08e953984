// SPDX-License-Identifier: Apache-2.0
//! The probes of a manager.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use steersman_endpoints::Tls;
use steersman_runtime::{BoxError, BuildError, Manager, RunContext, RunPolicy, RunnableStatus, run_fn};
use support::{HERE, get};

// R65, R66
#[tokio::test]
async fn verbose_readiness_lists_the_status_of_runnables_below_the_checks() {
    let manager = Manager::builder()
        .without_cluster()
        .health(HERE)
        .build()
        .await
        .unwrap();
    let sweeper = run_fn("sweeper", async |cx: RunContext| -> Result<(), BoxError> {
        cx.stop().requested().await;
        Ok(())
    });
    manager.add(sweeper.with_policy(RunPolicy::AllReplicas)).unwrap();
    let run = manager.run_until(async {
        let is_ready = |standing: &RunnableStatus| *standing == RunnableStatus::Ready;
        let standings = manager.statuses();
        standings
            .when(|all| all.get("sweeper").is_some_and(is_ready))
            .await;
        let probe = async |path| get(manager.addresses().health.unwrap(), path).await;
        let checks = "[+]caches ok\n[+]runnables ok\n[+]warm ok\n";
        assert_eq!(probe("/readyz").await.parts(), (200, "ok"));
        assert_eq!(
            probe("/readyz?verbose").await.parts(),
            (
                200,
                &*format!("{checks}runnable sweeper: ready\nhealthz check passed\n")
            )
        );
        let database = manager.readyz_check("database", || async { Err::<(), _>("blech") });
        let _database = database.unwrap();
        let checks = "[+]caches ok\n[-]database failed: reason withheld\n[+]runnables ok\n[+]warm ok\n";
        assert_eq!(
            probe("/readyz").await.parts(),
            (500, &*format!("{checks}healthz check failed\n"))
        );
        assert_eq!(
            probe("/readyz?verbose").await.parts(),
            (
                500,
                &*format!("{checks}runnable sweeper: ready\nhealthz check failed\n")
            )
        );
        let ping = "[+]ping ok\nhealthz check passed\n";
        assert_eq!(probe("/healthz?verbose").await.parts(), (200, ping));
    });
    run.await.unwrap();
}

#[tokio::test]
async fn probes_are_served_at_the_paths_that_the_builder_names() {
    let manager = Manager::builder()
        .without_cluster()
        .health(HERE)
        .liveness_path("/livez")
        .readiness_path("/probes/ready")
        .build()
        .await
        .unwrap();
    let run = manager.run_until(async {
        let probe = async |path| get(manager.addresses().health.unwrap(), path).await;
        assert_eq!(probe("/livez").await.parts(), (200, "ok"));
        assert_eq!(probe("/livez/ping").await.parts(), (200, "ok"));
        assert_eq!(probe("/probes/ready").await.parts(), (200, "ok"));
        assert_eq!(probe("/healthz").await.parts().0, 404);
        assert_eq!(probe("/readyz").await.parts().0, 404);
    });
    run.await.unwrap();
}

#[tokio::test]
async fn a_path_for_both_probes_or_without_a_slash_is_an_error() {
    for (live, ready) in [("/health", "/health"), ("live", "/ready"), ("/live", "/ready?")] {
        let builder = Manager::builder().without_cluster().health(HERE);
        let built = builder.liveness_path(live).readiness_path(ready).build().await;
        assert!(
            matches!(built, Err(BuildError::Route(_))),
            "{live} {ready}: {built:?}"
        );
    }
}

// C6
#[tokio::test]
async fn probes_are_served_over_tls() {
    let manager = Manager::builder()
        .without_cluster()
        .health(HERE)
        .health_tls(Tls::self_signed().unwrap())
        .build()
        .await
        .unwrap();
    let run = manager.run_until(async {
        let address = manager.addresses().health.unwrap();
        let mut config = kube::Config::new(format!("https://{address}").parse().unwrap());
        config.accept_invalid_certs = true;
        let client = kube::Client::try_from(config).unwrap();
        let request = http::Request::get("/healthz").body(Vec::new()).unwrap();
        assert_eq!(client.request_text(request).await.unwrap(), "ok");
    });
    run.await.unwrap();
}
