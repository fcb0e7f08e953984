// SPDX-License-Identifier: Apache-2.0
//! Servers behind a proxy.

use std::{env, net::SocketAddr, process::Stdio, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Config;
use steersman_cache::{InformerOptions, Scope};
use steersman_cluster::{Cluster, ConnectError};
use steersman_core::{ObjectKey, error_chain};
use steersman_testing::{Fixture, eventually};
use tokio::net::TcpListener;

use crate::{
    proxy_server::{Protocol, ProxyServer, USER, tls},
    support::{config_map, key},
};

fn config(fixture: &Fixture) -> Config {
    fixture.endpoint().config(fixture.admin()).unwrap()
}

fn address(fixture: &Fixture) -> SocketAddr {
    let url = fixture.endpoint().url();
    url.trim_start_matches("https://")
        .trim_end_matches('/')
        .parse()
        .unwrap()
}

async fn cluster(fixture: &Fixture, config: Config) -> Result<Cluster, ConnectError> {
    let here = Scope::all().namespace(fixture.namespace());
    Cluster::builder("far")
        .config(config)
        .field_manager("tester")
        .request_timeout(Duration::from_secs(10))
        .cache(|cache| cache.defaults(here, InformerOptions::default()))
        .build()
        .await
}

// C1
#[steersman_testing::test]
async fn reaches_a_server_through_each_kind_of_proxy(fixture: Fixture) {
    let (acceptor, trusted) = tls();
    for (scheme, protocol) in [
        ("http", Protocol::Http),
        ("socks5", Protocol::Socks5),
        ("https", Protocol::Https(acceptor)),
    ] {
        let proxy = ProxyServer::start(protocol, address(&fixture)).await;
        let mut config = config(&fixture);
        config.proxy_url = Some(format!("{scheme}://{USER}@{}", proxy.address).parse().unwrap());
        config.root_cert.as_mut().unwrap().push(trusted.clone());
        let cluster = cluster(&fixture, config).await.unwrap();
        let client = cluster.client();
        client.create(&config_map(&fixture, scheme, "1")).await.unwrap();
        // From the cache, whose connections are separate.
        assert!(
            client
                .get::<ConfigMap>(&key(&fixture, scheme))
                .await
                .unwrap()
                .is_some()
        );
        let asked = proxy.asked();
        assert!(asked.len() >= 2, "{asked:?}");
        assert!(
            asked.iter().all(|host| *host == address(&fixture).to_string()),
            "{asked:?}"
        );
    }
}

// C1
#[steersman_testing::test]
async fn an_error_names_the_proxy_and_a_repaired_proxy_is_used(fixture: Fixture) {
    for (scheme, protocol) in [("http", Protocol::Http), ("socks5", Protocol::Socks5)] {
        // A port that nothing listens on.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let mut config = config(&fixture);
        config.proxy_url = Some(format!("{scheme}://{USER}@{at}").parse().unwrap());
        let cluster = cluster(&fixture, config.clone()).await.unwrap();
        let live = cluster.live();
        let error = live.get::<ConfigMap>(&key(&fixture, "a")).await.unwrap_err();
        let text = error_chain(&error);
        let expected =
            format!("cannot connect through the proxy {scheme}://{at} of `proxy-url` of the kubeconfig: ");
        assert!(text.contains(&expected) && text.contains("refused"), "{text}");
        let state = cluster.state().to_string();
        assert!(state.contains(&expected), "{state}");
        for text in [text, format!("{error:?}"), state, format!("{cluster:?}")] {
            assert!(!text.contains("hunt"), "{text}");
        }
        let _proxy = ProxyServer::start_at(at, protocol, address(&fixture)).await;
        assert!(
            live.get::<ConfigMap>(&key(&fixture, "a"))
                .await
                .unwrap()
                .is_none()
        );

        // A proxy that rejects the credentials.
        config.proxy_url = Some(format!("{scheme}://me:wrong@{at}").parse().unwrap());
        let cluster = self::cluster(&fixture, config).await.unwrap();
        let error = cluster
            .live()
            .get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap_err();
        let text = error_chain(&error);
        assert!(text.contains(&expected) && !text.contains("wrong"), "{text}");
    }
}

// C1
#[steersman_testing::test]
async fn a_proxy_that_hangs_is_an_error_within_the_connect_timeout(fixture: Fixture) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let mut config = config(&fixture);
    config.proxy_url = Some(format!("http://{at}").parse().unwrap());
    config.connect_timeout = Some(Duration::from_millis(200));
    let cluster = cluster(&fixture, config).await.unwrap();
    let error = cluster
        .live()
        .get::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap_err();
    let text = error_chain(&error);
    let expected =
        format!("no connection through the proxy http://{at} of `proxy-url` of the kubeconfig within 200ms");
    assert!(text.contains(&expected), "{text}");
}

// C1
#[steersman_testing::test]
async fn an_unusable_proxy_url_is_an_error(fixture: Fixture) {
    let mut config = config(&fixture);
    config.proxy_url = Some("ftp://me:hunter2@proxy:21".parse().unwrap());
    let error = cluster(&fixture, config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Config { .. }), "{error:?}");
    let text = error_chain(&error);
    assert!(
        text.contains("unusable proxy URL in `proxy-url` of the kubeconfig: unknown scheme"),
        "{text}"
    );
    assert!(!format!("{text} {error:?}").contains("hunter2"), "{error:?}");
}

const CHILD: &str = "STEERSMAN_TEST_IN_ENVIRONMENT";

/// Connects as the environment says, in a separate process. It does nothing in the process of the other tests.
#[tokio::test]
async fn connects_as_the_environment_says() {
    if env::var_os(CHILD).is_none() {
        return;
    }
    let cluster = Cluster::builder("environment").build().await;
    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(error) => panic!("not built: {}", error_chain(&error)),
    };
    let found = cluster
        .live()
        .get::<Namespace>(&ObjectKey::new("", "default"))
        .await;
    match found {
        Ok(found) => println!("found: {}", found.is_some()),
        Err(error) => panic!("not found: {}", error_chain(&error)),
    }
}

/// Runs the function above with this environment, and returns whether it passed, and its output.
async fn run(kubeconfig: &str, variables: &[(&str, String)]) -> (bool, String) {
    let mut command = tokio::process::Command::new(env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "proxies::connects_as_the_environment_says",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null());
    for name in ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_ascii_lowercase());
    }
    let command = command.envs(variables.iter().map(|(name, value)| (name, value)));
    let output = command.output().await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

// C1: names of the servers are not loopback addresses, which are never reached through a proxy.
#[steersman_testing::test]
async fn uses_the_proxy_of_the_environment_except_for_hosts_in_no_proxy(fixture: Fixture) {
    let proxy = ProxyServer::start(Protocol::Http, address(&fixture)).await;
    let socks = ProxyServer::start(Protocol::Socks5, address(&fixture)).await;
    let url = fixture.endpoint().url();
    let mut kubeconfig: serde_json::Value =
        serde_json::from_str(&fixture.endpoint().kubeconfig(fixture.admin())).unwrap();
    let loopback = kubeconfig.to_string();
    kubeconfig["clusters"][0]["cluster"]["server"] = "https://api.cluster.invalid:6443".into();
    kubeconfig["clusters"][0]["cluster"]["tls-server-name"] = "localhost".into();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let far = file("far", kubeconfig.to_string());
    let http = format!("http://{USER}@{}", proxy.address);

    for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
        let before = proxy.asked().len();
        let (passed, output) = run(&far, &[(name, http.clone())]).await;
        assert!(passed && output.contains("found: true"), "{name}: {output}");
        assert!(proxy.asked()[before..].contains(&"api.cluster.invalid:6443".to_owned()));
    }
    let url_of_socks = format!("socks5h://{USER}@{}", socks.address);
    let (passed, output) = run(&far, &[("all_proxy", url_of_socks)]).await;
    assert!(passed, "{output}");
    assert_eq!(socks.asked(), ["api.cluster.invalid:6443"]);

    // Without the proxy, the host cannot be found; and the host of the proxy does not matter.
    let before = proxy.asked().len();
    let exempt = [
        ("HTTPS_PROXY", http.clone()),
        ("no_proxy", ".cluster.invalid".to_owned()),
    ];
    let (passed, output) = run(&far, &exempt).await;
    assert!(!passed && output.contains("not found: "), "{output}");
    assert_eq!(proxy.asked().len(), before);
    let other = [
        ("HTTPS_PROXY", http.clone()),
        ("NO_PROXY", "127.0.0.0/8,localhost".to_owned()),
    ];
    assert!(run(&far, &other).await.0);

    // A kubeconfig for a loopback address works as without the variable.
    let near = file("near", loopback);
    let before = proxy.asked().len();
    let (passed, output) = run(&near, &[("HTTPS_PROXY", http)]).await;
    assert!(passed, "{url}: {output}");
    assert_eq!(proxy.asked().len(), before);

    let (passed, output) = run(&far, &[("HTTPS_PROXY", "ftp://me:hunter2@a b".to_owned())]).await;
    assert!(
        !passed && output.contains("unusable proxy URL in the environment variable HTTPS_PROXY"),
        "{output}"
    );
    assert!(!output.contains("hunter2"), "{output}");
}

// C1, C2
#[steersman_testing::test]
async fn a_watch_through_a_proxy_delivers_changes(fixture: Fixture) {
    let proxy = ProxyServer::start(Protocol::Http, address(&fixture)).await;
    let mut config = config(&fixture);
    config.proxy_url = Some(format!("http://{USER}@{}", proxy.address).parse().unwrap());
    let cluster = cluster(&fixture, config).await.unwrap();
    let client = cluster.client();
    assert!(
        client
            .get::<ConfigMap>(&key(&fixture, "late"))
            .await
            .unwrap()
            .is_none()
    );
    let direct = self::cluster(&fixture, self::config(&fixture)).await.unwrap();
    direct
        .live()
        .create(&config_map(&fixture, "late", "1"))
        .await
        .unwrap();
    eventually("the change to arrive", async || {
        client.get::<ConfigMap>(&key(&fixture, "late")).await.unwrap()
    })
    .await;
}
