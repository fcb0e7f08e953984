// SPDX-License-Identifier: Apache-2.0
use super::*;

fn find(server: &str, url: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Proxy>, InvalidProxy> {
    let mut config = Config::new(server.parse().unwrap());
    config.proxy_url = url.map(|url| url.parse().unwrap());
    Proxy::find(&config, |name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn shown(server: &str, url: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
    find(server, url, variables)
        .unwrap()
        .map(|proxy| proxy.to_string())
}

const SERVER: &str = "https://10.96.0.1:443";

// C1
#[test]
fn guarantee_1_the_kubeconfig_precedes_the_environment() {
    let of_kubeconfig = Some("socks5://bastion".to_owned() + ":1080 of `proxy-url` of the kubeconfig");
    let environment = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", "*")];
    assert_eq!(
        shown(SERVER, Some("socks5://bastion:1080"), &environment),
        of_kubeconfig
    );
    for (server, variables, expected) in [
        (
            SERVER,
            &[("HTTPS_PROXY", "http://a:1"), ("https_proxy", "http://b:1")][..],
            "a:1 of the environment variable HTTPS_PROXY",
        ),
        (
            SERVER,
            &[("HTTPS_PROXY", ""), ("https_proxy", "http://b:1")],
            "b:1 of the environment variable https_proxy",
        ),
        (
            SERVER,
            &[("HTTP_PROXY", "http://a:1"), ("ALL_PROXY", "http://b:1")],
            "b:1 of the environment variable ALL_PROXY",
        ),
        (
            SERVER,
            &[("all_proxy", "b:1")],
            "b:1 of the environment variable all_proxy",
        ),
        (
            "http://api",
            &[("HTTPS_PROXY", "http://a:1"), ("http_proxy", "http://b:1")],
            "b:1 of the environment variable http_proxy",
        ),
    ] {
        assert_eq!(shown(server, None, variables), Some(format!("http://{expected}")));
    }
    assert_eq!(shown(SERVER, None, &[("HTTP_PROXY", "http://a:1")]), None);
    let cgi = [("HTTP_PROXY", "http://a:1"), ("REQUEST_METHOD", "GET")];
    assert_eq!(shown("http://api", None, &cgi), None);
}

// C1: kube copies HTTPS_PROXY into its configuration, and applies NO_PROXY to the host of the proxy.
#[test]
fn guarantee_2_no_proxy_decides_by_the_server() {
    let proxy = "http://proxy:3128";
    for (url, exempt, expected) in [
        (Some(proxy), "10.0.0.0/8", false),
        (None, "10.0.0.0/8", false),
        (None, "10.96.0.1:443", false),
        (Some(proxy), "proxy", true),
        (None, "10.96.0.1:6443", true),
    ] {
        let found = shown(SERVER, url, &[("HTTPS_PROXY", proxy), ("no_proxy", exempt)]);
        assert_eq!(found.is_some(), expected, "{exempt}");
    }
    assert_eq!(
        shown("https://127.0.0.1:6443", None, &[("HTTPS_PROXY", proxy)]),
        None
    );
    assert_eq!(
        shown("https://localhost:6443", Some(proxy), &[("HTTPS_PROXY", proxy)]),
        None
    );
    assert!(shown("https://127.0.0.1:6443", Some(proxy), &[]).is_some());
}

// C1
#[test]
fn guarantee_3_output_shows_no_credentials() {
    let proxy = find(SERVER, Some("http://me:hunt%40er2@proxy:3128"), &[])
        .unwrap()
        .unwrap();
    assert_eq!(proxy.user(), Some(("me".to_owned(), "hunt@er2".to_owned())));
    assert_eq!(proxy.authorization().unwrap(), "Basic bWU6aHVudEBlcjI=");
    for text in [
        proxy.to_string(),
        format!("{proxy:?}"),
        format!("{:?}", proxy.authorization()),
    ] {
        assert!(
            !text.contains("hunt") && !text.contains("me:") && !text.contains("bWU6"),
            "{text}"
        );
    }
    for url in [
        "http://me:hunter2@",
        "ftp://me:hunter2@proxy",
        "http://me:hunter2@proxy:x",
        "me:hunter2@a b",
    ] {
        let error = find(SERVER, None, &[("HTTPS_PROXY", url)]).unwrap_err();
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}

// C1
#[test]
fn guarantee_4_an_unusable_url_is_an_error_that_names_its_place() {
    for url in [
        "ftp://proxy",
        "http://",
        "http://:3128",
        "http://proxy:99999",
        "http://a b",
        "//",
    ] {
        let error = find(SERVER, None, &[("https_proxy", url)]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("the environment variable https_proxy: "),
            "{error}"
        );
    }
    let error = find(SERVER, Some("ftp://proxy"), &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "unusable proxy URL in `proxy-url` of the kubeconfig: unknown scheme; use a URL such as `http://proxy:3128` or \
         `socks5://proxy:1080`"
    );
}

#[test]
fn default_ports_are_those_of_go() {
    for (url, expected) in [
        ("http://proxy", "http://proxy:80/"),
        ("https://proxy/", "https://proxy:443/"),
        ("socks5h://proxy", "http://proxy:1080/"),
        ("http://[fd00::1]:3128", "http://[fd00::1]:3128/"),
        ("proxy:3128", "http://proxy:3128/"),
    ] {
        let proxy = Proxy::parse(url, Origin::Kubeconfig).unwrap();
        assert_eq!(proxy.address, expected, "{url}");
    }
}
