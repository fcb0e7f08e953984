// SPDX-License-Identifier: Apache-2.0
//! Time until the controller follows its kind.

use std::time::Duration;

use bench_protocol::participant::{Row, Start, Taken, Told, percentile, rounded};
use bench_stage::Server;
use steersman_testing::{FaultProxy, proxy::Exchange};

use crate::{operator::Operator, widgets::Widgets, words};

/// Times of one case, in microseconds.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    fn add(&mut self, taken: Duration) {
        self.0.push(u64::try_from(taken.as_micros()).unwrap_or(u64::MAX));
    }

    fn print(mut self, told: &Told, taken: Taken, case: &str) {
        self.0.sort_unstable();
        let ms = |percent| rounded(percentile(&self.0, percent) as f64 / 1e3);
        let row: Row = told.row(taken).with("case", case);
        row.with("p50_ms", ms(50)).with("p99_ms", ms(99)).print();
    }
}

pub(crate) async fn run(server: &Server, rounds: usize) -> Result<(), String> {
    let proxy = FaultProxy::start(server.endpoint()).await.map_err(words)?;
    let client = server.endpoint().client(server.admin()).map_err(words)?;
    let config = proxy.endpoint().config(server.admin()).map_err(words)?;
    let (widgets, operator) = (Widgets::new(client), Operator::start(config).await?);
    let (mut listed, mut reconciled, mut closed) = (Times::default(), Times::default(), Times::default());
    let whole = Start::now();
    for _ in 0..rounds {
        let mut definition = widgets.install().await?;
        definition.established().await?;
        let established = Start::now();
        let first = async {
            operator.reconciled(1).await;
            established.taken().wall
        };
        let list = async {
            operator.listed().await;
            established.taken().wall
        };
        let (list, first, applied) = tokio::join!(list, first, widgets.apply("one"));
        applied?;
        listed.add(list);
        reconciled.add(first);

        widgets.uninstall().await?;
        definition.gone().await?;
        let gone = Start::now();
        let is_open = |one: &Exchange| one.path.ends_with("/widgets") && one.is_watch() && one.is_open();
        proxy
            .wait_for(|all| (!all.iter().any(is_open)).then_some(()))
            .await;
        closed.add(gone.taken().wall);
        operator.rests().await;
        operator.forget();
        proxy.forget_ended();
    }
    let told = Told::new("conditional", server.who(), rounds);
    listed.print(&told, whole.taken(), "established → list handled");
    reconciled.print(&told, whole.taken(), "established → first reconcile");
    closed.print(&told, whole.taken(), "deleted → watch closed");
    Ok(())
}
