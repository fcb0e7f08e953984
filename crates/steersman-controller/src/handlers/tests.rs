// SPDX-License-Identifier: Apache-2.0
//! Handlers and the controllers that they know.

use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cluster::Cluster;

use super::*;
use crate::BoxRunnable;

fn cluster() -> Cluster {
    let nowhere = "http://127.0.0.1:1".parse().unwrap();
    Cluster::new(kube::Config::new(nowhere)).unwrap()
}

fn add(handlers: &Handlers<ConfigMap>, name: &str) {
    let content = |_, _, _| std::future::ready(Ok::<_, BoxError>(Action::await_change()));
    handlers.add(name, content).unwrap().forever();
}

/// Adds a handler while it takes a controller in.
struct Busy(Handlers<ConfigMap>, Cluster);

impl Host for Busy {
    fn cluster(&self) -> Result<Cluster, HostError> {
        Ok(self.1.clone())
    }

    fn add(&self, _: BoxRunnable) -> Result<(), HostError> {
        // From here on it could run.
        add(&self.0, "late");
        Ok(())
    }
}

#[tokio::test]
async fn guarantee_4_one_that_comes_while_a_host_takes_the_controller_in_is_not_missed() {
    let handlers = Handlers::new();
    add(&handlers, "early");
    let host = Busy(handlers.clone(), cluster());
    let controller = handlers
        .add_to(&host, Controller::of::<ConfigMap>("maps"))
        .unwrap();
    let replays = controller.0.replays();
    assert_eq!(*replays.borrow(), 1, "it looks at everything again");
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
