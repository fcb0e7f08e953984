// SPDX-License-Identifier: Apache-2.0
//! Handlers and the controllers that are registered with them.

use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cluster::Cluster;

use super::*;
use crate::run_fn;

fn cluster() -> Cluster {
    let nowhere = "http://127.0.0.1:1".parse().unwrap();
    Cluster::new(kube::Config::new(nowhere)).unwrap()
}

fn add(handlers: &Handlers<ConfigMap>, name: &str) {
    let content = |_, _, _| std::future::ready(Ok::<_, BoxError>(Action::await_change()));
    handlers.add(name, content).unwrap().forever();
}

#[tokio::test]
async fn guarantee_4_handlers_know_their_controller_before_the_manager_can_run_it() {
    let handlers = Handlers::new();
    add(&handlers, "early");
    let manager = Manager::builder().cluster(cluster()).build().await.unwrap();
    let calling = Calling::new(&handlers);
    let mut replays = None;
    let added = Controller::of::<ConfigMap>("maps").add_known_to(&manager, calling, |controller| {
        handlers.know(controller);
        add(&handlers, "late");
        replays = Some(controller.0.replays());
        // The manager does not have this name yet.
        manager.add(run_fn("maps", async |_| Ok(()))).unwrap();
    });
    assert!(matches!(added, Err(AddError::DuplicateName { .. })));
    let replays = *replays.unwrap().borrow();
    assert_eq!(
        replays, 1,
        "all objects are enqueued for the handler that was added late"
    );
}

#[tokio::test]
async fn controllers_that_are_gone_are_forgotten() {
    let (handlers, cluster) = (Handlers::<ConfigMap>::new(), cluster());
    for _ in 0..100 {
        drop(handlers.build(&cluster, Controller::of::<ConfigMap>("maps")));
    }
    let _staying = handlers.build(&cluster, Controller::of::<ConfigMap>("maps"));
    assert_eq!(handlers.list().controllers.len(), 1);
}
