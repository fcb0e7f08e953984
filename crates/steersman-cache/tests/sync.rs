// SPDX-License-Identifier: Apache-2.0
//! The store equals the state of the server with every list method.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret},
    rbac::v1::Role,
};
use kube::{Api, core::DynamicObject};
use serde_json::{Value, json};
use steersman_cache::{
    Informer, InformerOptions, Query, ReflectorOptions, Representation, Resource, StoreOptions, Transform,
};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Cut, Fault, Injected, Matching},
};
use support::{
    Heard, Maps, config_maps, context, custom, define, here, informer, informer_with, is_list, names,
    parameter, requests, say, served, through, value,
};

// R121
#[steersman_testing::test]
async fn the_store_follows_the_server(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["a", "b"]).await;
    let informer = informer(&fixture, &context(fixture.client()));
    let heard = Heard::default();
    let registration = informer.handle("test", heard.handler());
    registration.synced().await;
    assert_eq!(names(&informer), ["a", "b"]);

    maps.create("c").await;
    maps.set("a", "second").await;
    maps.delete("b").await;
    let said = heard.count(5).await;
    assert_eq!(said[2..], ["added c", "updated a", "deleted b"]);
    assert_eq!(names(&informer), ["a", "c"]);
    let stored = informer.store().get_as::<ConfigMap>(fixture.namespace(), "a");
    assert_eq!(value(&stored.unwrap().unwrap()), "second");
    let stats = informer.stats();
    assert_eq!(
        (stats.objects, stats.events, stats.lists, stats.watches),
        (2, 5, 1, 1)
    );
    assert!(stats.synced && stats.invalid == 0 && stats.bytes > 0);
}

// R123
#[steersman_testing::test]
async fn a_list_in_pages_gives_the_same_store_as_a_streamed_one(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["a", "b", "c", "d", "e", "f", "g"]).await;
    let proxy = fixture.proxy().await;
    let streamed = informer(&fixture, &context(fixture.client()));
    let options = ReflectorOptions::default().streaming(false).page_size(3);
    let paged = informer_with(&fixture, &through(&fixture, &proxy), options);
    streamed.synced().await;
    paged.synced().await;

    let whole = |informer: &Informer| -> Vec<ConfigMap> {
        names(informer)
            .iter()
            .map(|name| informer.store().get(fixture.namespace(), name).unwrap())
            .map(|object| object.decode().unwrap())
            .collect()
    };
    assert_eq!(whole(&paged).len(), 7);
    assert_eq!(whole(&paged), whole(&streamed));
    // The watch behind the pages has been asked for, or will be.
    let pages: Vec<_> = requests(&proxy, "configmaps")
        .into_iter()
        .filter(is_list)
        .collect();
    assert_eq!(pages.len(), 3);
    assert!(
        pages
            .iter()
            .all(|page| parameter(page, "limit").as_deref() == Some("3"))
    );
    let continued: Vec<bool> = pages
        .iter()
        .map(|page| parameter(page, "continue").is_some())
        .collect();
    assert_eq!(continued, [false, true, true]);

    let heard = Heard::default();
    let _registration = paged.handle("test", heard.handler());
    maps.create("h").await;
    assert_eq!(heard.count(8).await[7], "added h");
}

/// A server leaves kind and version out of the items of a list; the store adds them, from lists and from watches.
#[steersman_testing::test]
async fn an_object_is_equal_by_list_and_watch(fixture: Fixture) {
    Maps::of(&fixture)
        .create_with("a", json!({"tier": "front"}))
        .await;
    let gadgets = define(&fixture, "Gadget").await;
    let api = served(&fixture, &gadgets).await;
    api.create(&Default::default(), &custom(&gadgets, "a"))
        .await
        .unwrap();
    let context = context(fixture.client());
    for (resource, scope) in [
        (config_maps(), here(&fixture)),
        (config_maps(), here(&fixture).metadata_only()),
        (gadgets.clone(), here(&fixture)),
        (gadgets.clone(), here(&fixture).metadata_only()),
    ] {
        let [streamed, paged] = [true, false].map(|streaming| {
            let options = ReflectorOptions::default().streaming(streaming);
            let options = InformerOptions::default().reflector(options);
            Informer::start(&context, resource.clone(), scope.clone(), options)
        });
        streamed.synced().await;
        paged.synced().await;
        let read = |informer: &Informer| informer.store().get(fixture.namespace(), "a").unwrap();
        let (streamed, paged) = (read(&streamed), read(&paged));
        assert_eq!(
            String::from_utf8_lossy(streamed.bytes()),
            String::from_utf8_lossy(paged.bytes()),
            "{resource}, {scope:?}"
        );
        let dynamic: DynamicObject = paged.decode().unwrap();
        assert_eq!(dynamic, streamed.decode::<DynamicObject>().unwrap());
        let types = dynamic.types.unwrap();
        let expected = if paged.is_metadata_only() {
            ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadata")
        } else {
            (resource.api_version(), resource.kind())
        };
        assert_eq!((types.api_version, types.kind.as_str()), expected);
        if resource == config_maps() && !paged.is_metadata_only() {
            let typed: ConfigMap = paged.decode().unwrap();
            assert_eq!(typed, streamed.decode::<ConfigMap>().unwrap());
            assert_eq!(value(&typed), "first");
        }
    }
}

/// A server writes such a watch as one gzip member after the other.
#[steersman_testing::test]
async fn reads_a_compressed_stream_after_its_first_member(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["a", "b"]).await;
    let proxy = fixture.proxy().await;
    let options = ReflectorOptions::default().compressed(true);
    let informer = informer_with(&fixture, &through(&fixture, &proxy), options);
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    maps.create("c").await;
    maps.delete("a").await;
    assert_eq!(heard.count(4).await[2..], ["added c", "deleted a"]);
    assert_eq!(requests(&proxy, "configmaps").len(), 1, "by the one request");
}

#[steersman_testing::test]
async fn a_compressed_list_gives_the_same_store(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    for name in ["a", "b", "c"] {
        maps.create(name).await;
        maps.set(name, &name.repeat(100_000)).await;
    }
    let proxy = fixture.proxy().await;
    let options = ReflectorOptions::default().streaming(false).compressed(true);
    let informer = informer_with(&fixture, &through(&fixture, &proxy), options);
    informer.synced().await;
    let list = requests(&proxy, "configmaps").remove(0);
    assert!(list.bytes < 100_000, "it was compressed: {}", list.bytes);
    for name in ["a", "b", "c"] {
        let stored = informer.store().get_as::<ConfigMap>(fixture.namespace(), name);
        assert_eq!(value(&stored.unwrap().unwrap()), name.repeat(100_000));
    }
}

// R144
#[steersman_testing::test]
async fn sends_namespace_and_selectors_to_the_server(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    for (name, tier) in [("a", "front"), ("b", "front"), ("c", "back")] {
        maps.create_with(name, json!({"tier": tier})).await;
    }
    let proxy = fixture.proxy().await;
    let context = through(&fixture, &proxy);
    let scope = here(&fixture).labels("tier=front").fields("metadata.name!=b");
    let informer = Informer::start(&context, config_maps(), scope, InformerOptions::default());
    informer.synced().await;
    assert_eq!(names(&informer), ["a"]);

    let [asked] = requests(&proxy, "configmaps").try_into().unwrap();
    let path = format!("/api/v1/namespaces/{}/configmaps", fixture.namespace());
    assert_eq!(asked.path, path);
    assert_eq!(parameter(&asked, "labelSelector").as_deref(), Some("tier=front"));
    assert_eq!(
        parameter(&asked, "fieldSelector").as_deref(),
        Some("metadata.name!=b")
    );
}

// R144
#[steersman_testing::test]
async fn an_object_that_leaves_the_selector_is_deleted_from_the_store(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_with("a", json!({"tier": "front"})).await;
    let scope = here(&fixture).labels("tier=front");
    let context = context(fixture.client());
    let informer = Informer::start(&context, config_maps(), scope, InformerOptions::default());
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;

    for tier in ["back", "front"] {
        let patch = kube::api::Patch::Merge(json!({"metadata": {"labels": {"tier": tier}}}));
        maps.0.patch("a", &Default::default(), &patch).await.unwrap();
    }
    assert_eq!(heard.count(3).await, ["initial a", "deleted a", "added a"]);
}

// R144
#[steersman_testing::test]
async fn metadata_alone_has_no_data(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_with("a", json!({"tier": "front"})).await;
    let context = context(fixture.client());
    for options in [
        ReflectorOptions::default(),
        ReflectorOptions::default().streaming(false),
    ] {
        let options = InformerOptions::default().reflector(options);
        let scope = here(&fixture).metadata_only();
        let informer = Informer::start(&context, config_maps(), scope, options);
        informer.synced().await;
        let object = informer.store().get(fixture.namespace(), "a").unwrap();
        assert_eq!(object.label("tier").as_deref(), Some("front"));
        let whole: Value = serde_json::from_slice(object.bytes()).unwrap();
        assert_eq!(whole.get("data"), None);

        let heard = Heard::default();
        let _registration = informer.handle("test", heard.handler());
        maps.delete("a").await;
        maps.create_with("a", json!({"tier": "front"})).await;
        let said = heard.count(3).await;
        assert_eq!(said[said.len() - 2..], ["deleted a", "added a"]);
        for event in heard.events() {
            let whole: Value = serde_json::from_slice(event.object().bytes()).unwrap();
            assert_eq!(whole.get("data"), None, "{}", support::say(&event));
        }
    }
}

// R144
#[steersman_testing::test]
async fn events_do_not_contain_dropped_fields(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let store = StoreOptions::new().transform(Transform::drop_fields(["data"]));
    let informer = Informer::start(
        &context(fixture.client()),
        config_maps(),
        here(&fixture),
        InformerOptions::default().store(store),
    );
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    maps.set("a", "second").await;
    maps.delete("a").await;
    assert_eq!(heard.count(3).await, ["initial a", "updated a", "deleted a"]);
    for event in heard.events() {
        let whole: Value = serde_json::from_slice(event.object().bytes()).unwrap();
        assert_eq!(whole.get("data"), None, "{}", support::say(&event));
    }
}

#[steersman_testing::test]
async fn a_stalled_list_does_not_block_another_kind(fixture: Fixture) {
    Maps::of(&fixture).create("a").await;
    let proxy = fixture.proxy().await;
    let context = through(&fixture, &proxy);
    let stall = proxy.inject(Matching::any().path("/secrets"), Fault::stall());
    let secrets = Informer::start(
        &context,
        Resource::of::<Secret>(),
        here(&fixture),
        InformerOptions::default(),
    );
    stall.hit().await;
    let maps = informer(&fixture, &context);
    maps.synced().await;
    assert_eq!(maps.store().list(&Query::new()).len(), 1);
    assert!(!secrets.health().synced);
    drop(stall);
    secrets.synced().await;
}

/// The list of config maps as the server sends it, after `change`, instead of the next one; and that is asked for.
async fn relisted(fixture: &Fixture, proxy: &FaultProxy, change: impl Fn(String) -> String) -> [Injected; 2] {
    let path = format!("/api/v1/namespaces/{}/configmaps", fixture.namespace());
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let list = fixture.client().request_text(request).await.unwrap();
    let answer = Fault::respond(200, "application/json", change(list));
    let faults = [
        proxy.inject(Matching::reads().first(1), answer),
        proxy.inject(Matching::watches().first(1), Fault::error_event(410)),
    ];
    proxy.cut(&Matching::watches(), Cut::Clean);
    faults
}

// D2
#[steersman_testing::test]
async fn a_relist_refreshes_an_object_that_reads_differently_at_the_same_resource_version(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["a", "b"]).await;
    maps.set("a", "as stored").await;
    let proxy = fixture.proxy().await;
    let options = ReflectorOptions::default().streaming(false);
    let informer = informer_with(&fixture, &through(&fixture, &proxy), options);
    let heard = Heard::default();
    let registration = informer.handle("test", heard.handler());
    registration.synced().await;
    let before = informer.store().get(fixture.namespace(), "a").unwrap();
    // As after a definition has got another default.
    let change = |list: String| list.replace("as stored", "by default");
    let _faults = relisted(&fixture, &proxy, change).await;
    assert_eq!(heard.count(3).await[2], "updated a");
    let now = informer.store().get(fixture.namespace(), "a").unwrap();
    assert_eq!(now.resource_version(), before.resource_version());
    assert_eq!(value(&now.decode().unwrap()), "by default");
    // The next relist delivers the state of the server.
    let _faults = relisted(&fixture, &proxy, |list| list).await;
    assert_eq!(heard.count(4).await[3], "updated a", "b reads as before");
}

// D7
#[steersman_testing::test]
async fn follows_a_server_that_moved_backwards(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["a", "b"]).await;
    let proxy = fixture.proxy().await;
    let options = ReflectorOptions::default().streaming(false);
    let informer = informer_with(&fixture, &through(&fixture, &proxy), options);
    let heard = Heard::default();
    let registration = informer.handle("test", heard.handler());
    registration.synced().await;
    // The restored backup does not contain this change and this object.
    let far = |value: &mut Value| *value = json!("999999999999");
    let faults = relisted(&fixture, &proxy, |list| {
        let mut list: Value = serde_json::from_str(&list).unwrap();
        far(&mut list["metadata"]["resourceVersion"]);
        let items = list["items"].as_array_mut().unwrap();
        items.retain(|item| item["metadata"]["name"] == "a");
        items[0]["data"]["value"] = json!("lost");
        far(&mut items[0]["metadata"]["resourceVersion"]);
        let mut other = items[0].clone();
        other["metadata"]["name"] = json!("c");
        other["metadata"]["uid"] = json!("c");
        items.push(other);
        list.to_string()
    })
    .await;
    heard.count(5).await;
    assert_eq!(names(&informer), ["a", "c"]);
    drop(faults);

    let _expired = proxy.inject(Matching::watches().first(1), Fault::error_event(410));
    proxy.cut(&Matching::watches(), Cut::Clean);
    heard.count(8).await;
    assert_eq!(names(&informer), ["a", "b"]);
    let stored = informer.store().get_as::<ConfigMap>(fixture.namespace(), "a");
    assert_eq!(value(&stored.unwrap().unwrap()), "first");
    maps.set("a", "second").await;
    assert_eq!(heard.count(9).await[8], "updated a");
    assert_eq!(informer.health().error, None);
}

// D4
#[steersman_testing::test]
async fn stores_objects_whose_names_need_escapes(fixture: Fixture) {
    let roles: Api<Role> = Api::namespaced(fixture.client(), fixture.namespace());
    let create = async |name: &str| {
        let role = serde_json::from_value(json!({"metadata": {"name": name}, "rules": []})).unwrap();
        roles.create(&Default::default(), &role).await.unwrap();
    };
    create(r"CORP\admins").await;
    let (context, resource) = (context(fixture.client()), Resource::of::<Role>());
    let options = [
        InformerOptions::default(),
        InformerOptions::default().reflector(ReflectorOptions::default().streaming(false)),
        InformerOptions::default()
            .store(StoreOptions::new().representation(Representation::decoded::<Role>())),
    ];
    for (round, options) in options.into_iter().enumerate() {
        let informer = Informer::start(&context, resource.clone(), here(&fixture), options);
        let heard = Heard::default();
        let _registration = informer.handle("test", heard.handler());
        informer.synced().await;
        let created = format!(r#"say "{round}""#);
        create(&created).await;
        let expected = format!("added {created}");
        heard
            .until(|all| all.iter().any(|event| say(event) == expected))
            .await;
        for name in [r"CORP\admins", &created] {
            let stored = informer.store().get_as::<Role>(fixture.namespace(), name);
            assert_eq!(stored.unwrap().unwrap().metadata.name.as_deref(), Some(name));
        }
        assert!(
            informer
                .store()
                .get(fixture.namespace(), r"CORP\\admins")
                .is_none()
        );
        assert_eq!(informer.stats().invalid, 0);
    }
}
