// SPDX-License-Identifier: Apache-2.0
//! Guarantees of `RealServer`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    env,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use rustix::process::{Pid, Signal, getpid, kill_process, test_kill_process};
use serde_json::json;
use steersman_testing::{Endpoint, Identity, RealServer};

/// Set in the copy of this test that has to die.
const VICTIM: &str = "STEERSMAN_TEST_VICTIM";

mod on_real {
    use super::*;

    #[tokio::test]
    async fn guarantee_1_a_started_server_answers() {
        let server = RealServer::builder().start().await.unwrap();
        let client = server.endpoint().client(server.admin()).unwrap();
        let version = client.apiserver_version().await.unwrap();
        assert_eq!(
            version.git_version,
            format!("v{}", steersman_assets::KUBERNETES_VERSION)
        );
    }

    #[tokio::test]
    async fn guarantee_2_dropping_the_handle_leaves_nothing() {
        let server = RealServer::builder().start().await.unwrap();
        let (ids, dir) = (server.process_ids(), server.dir().to_path_buf());
        assert_eq!(ids.len(), 2);
        drop(server);
        assert_gone(&ids, &dir).await;
    }

    /// Runs itself once more as a process that starts a server and then dies without a chance to clean up.
    #[tokio::test]
    async fn guarantee_2_a_killed_process_leaves_nothing() {
        if env::var_os(VICTIM).is_some() {
            let server = RealServer::builder().start().await.unwrap();
            let ids: Vec<String> = server.process_ids().iter().map(u32::to_string).collect();
            println!("\nvictim {} {}", ids.join(","), server.dir().display());
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        let mut victim = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "on_real::guarantee_2_a_killed_process_leaves_nothing",
                "--nocapture",
            ])
            .env(VICTIM, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(victim.stdout.take().unwrap());
        let line = output
            .lines()
            .map_while(Result::ok)
            .find(|line| line.starts_with("victim "));
        let line = line.expect("the victim starts a server and says so");
        let (ids, dir) = line["victim ".len()..].split_once(' ').unwrap();
        let ids: Vec<u32> = ids.split(',').map(|id| id.parse().unwrap()).collect();
        assert!(!victim.wait().unwrap().success(), "it was killed");
        assert_gone(&ids, Path::new(dir)).await;
    }

    /// Runs itself once more as a test that fails.
    #[tokio::test]
    async fn a_failed_test_shows_the_log_of_its_server() {
        if env::var_os(VICTIM).is_some() {
            let _server = RealServer::builder().start().await.unwrap();
            panic!("on purpose");
        }
        let failed = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "on_real::a_failed_test_shows_the_log_of_its_server",
                "--nocapture",
            ])
            .env(VICTIM, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&failed.stderr);
        let (_, log) = said
            .split_once("the last lines that the real kube-apiserver logged")
            .unwrap_or_else(|| panic!("no log in {said}"));
        assert!(log.lines().count() > 10, "{log}");
        assert!(!failed.status.success());
    }

    #[tokio::test]
    async fn guarantee_4_address_and_data_survive_a_restart() {
        let mut server = RealServer::builder().start().await.unwrap();
        let url = server.endpoint().url().to_owned();
        let client = server.endpoint().client(server.admin()).unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(client, "default");
        let map = serde_json::from_value(json!({"metadata": {"name": "kept"}})).unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();

        server.stop();
        maps.get("kept").await.unwrap_err();
        let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
        TcpListener::bind(("127.0.0.1", port)).unwrap_err();
        server.restart().await.unwrap();

        assert_eq!(server.endpoint().url(), url);
        maps.get("kept").await.unwrap();
    }

    #[tokio::test]
    async fn a_stalled_server_answers_after_it_resumes() {
        let server = RealServer::builder().start().await.unwrap();
        let client = server.endpoint().client(server.admin()).unwrap();
        server.stall();
        let asked = client.apiserver_version();
        tokio::pin!(asked);
        let waited = tokio::time::timeout(Duration::from_millis(300), &mut asked).await;
        assert!(waited.is_err(), "a stalled server keeps silent");
        server.resume();
        asked.await.unwrap();
    }

    #[tokio::test]
    async fn a_controller_manager_collects_children_and_namespaces() {
        let server = RealServer::builder().controller_manager().start().await.unwrap();
        let client = server.endpoint().client(server.admin()).unwrap();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let object = serde_json::from_value(json!({"metadata": {"name": "short-lived"}})).unwrap();
        namespaces.create(&PostParams::default(), &object).await.unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(client, "short-lived");
        let parent = serde_json::from_value(json!({"metadata": {"name": "parent"}})).unwrap();
        let parent = maps.create(&PostParams::default(), &parent).await.unwrap();
        let child = serde_json::from_value(json!({"metadata": {"name": "child", "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "parent", "uid": parent.metadata.uid}
        ]}}));
        maps.create(&PostParams::default(), &child.unwrap())
            .await
            .unwrap();

        maps.delete("parent", &DeleteParams::background()).await.unwrap();
        eventually(async || maps.get_opt("child").await.unwrap().is_none()).await;
        namespaces
            .delete("short-lived", &DeleteParams::default())
            .await
            .unwrap();
        eventually(async || namespaces.get_opt("short-lived").await.unwrap().is_none()).await;
    }

    #[tokio::test]
    async fn a_port_in_use_is_an_error_of_one_sentence() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = RealServer::builder().port(port).start().await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "127.0.0.1:{port} is taken by another program: name another port, or none to get a free one"
            )
        );
    }

    #[tokio::test]
    async fn an_ended_program_is_an_error_with_its_last_output() {
        let error = RealServer::builder()
            .flag("--no-such-flag")
            .start()
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("kube-apiserver ended with exit status: 1"),
            "{error}"
        );
        assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
    }

    #[tokio::test]
    async fn a_full_disk_is_an_error_of_one_sentence() {
        // Filling a real disk would harm the neighbours.
        let (_dir, assets) = assets_on_a_full_disk();
        let error = RealServer::builder()
            .assets(assets)
            .start()
            .await
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("the disk is full at "), "{error}");
    }
}

/// Programs that only say that the disk is full.
fn assets_on_a_full_disk() -> (tempfile::TempDir, steersman_assets::Assets) {
    let dir = tempfile::tempdir().unwrap();
    for name in ["etcd", "kube-apiserver"] {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/on-a-full-disk");
        std::os::unix::fs::symlink(program, dir.path().join(name)).unwrap();
    }
    let environment = steersman_assets::Environment::empty().with_assets(dir.path());
    let assets = steersman_assets::find_in(&environment).unwrap();
    (dir, assets)
}

/// Runs itself once more where no program can be found, the watchdog included.
#[tokio::test]
async fn guarantee_2_without_a_watchdog_there_is_no_directory() {
    if env::var_os(VICTIM).is_some() {
        let (_dir, assets) = assets_on_a_full_disk();
        let error = RealServer::builder().assets(assets).start().await.unwrap_err();
        // The text contains the cause.
        let said = steersman_assets::describe(&error);
        assert!(said.starts_with("cannot run sh: "), "{said}");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let copy = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "guarantee_2_without_a_watchdog_there_is_no_directory",
            "--nocapture",
        ])
        .envs([(VICTIM, "1"), ("PATH", "/nowhere")])
        .env("TMPDIR", place.path())
        .output()
        .unwrap();
    assert!(copy.status.success(), "{}", String::from_utf8_lossy(&copy.stderr));
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_kubeconfig_names_server_and_user() {
    let endpoint = Endpoint::new("https://127.0.0.1:1", "authority");
    let text = endpoint.kubeconfig(&Identity::new("me", "secret"));
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        value.pointer("/clusters/0/cluster/server").unwrap(),
        "https://127.0.0.1:1"
    );
    assert_eq!(
        value
            .pointer("/clusters/0/cluster/certificate-authority-data")
            .unwrap(),
        "YXV0aG9yaXR5"
    );
    assert_eq!(value.pointer("/users/0/user/token").unwrap(), "secret");
}

#[test]
fn debug_output_contains_no_token() {
    let shown = format!("{:?}", Identity::new("me", "secret"));
    assert!(shown.contains("me") && !shown.contains("secret"), "{shown}");
}

async fn assert_gone(ids: &[u32], dir: &Path) {
    let alive = |id: &u32| test_kill_process(Pid::from_raw(i32::try_from(*id).unwrap()).unwrap()).is_ok();
    eventually(async || !ids.iter().any(alive)).await;
    let ending = PathBuf::from(format!("{}.ending", dir.display()));
    eventually(async || !dir.exists() && !ending.exists()).await;
}

/// Waits for a condition; the limit is that of a hang, not of a slow machine.
async fn eventually(mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..6000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it has not come true within a minute");
}
