// SPDX-License-Identifier: Apache-2.0
//! The part of the leader: it keeps the CA and the registration objects.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use steersman_cluster::Client;
use steersman_core::error_chain;
use steersman_runtime::{BoxError, RunContext, Runnable};

use crate::{
    certificates::{
        Managed,
        authority::bundle_pem,
        rotation::{Found, Step, plan},
        secret::CaState,
    },
    registration::Live,
    replica::Shared,
};

/// Interval between two steps of the CA. Anything else waits for the check interval, so that two writers of the same field do not
/// keep the API server busy.
const STEP_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the CA and the registration objects while this replica leads.
pub(crate) struct Keep {
    pub(crate) name: String,
    pub(crate) shared: Arc<Shared>,
}

impl Runnable for Keep {
    fn name(&self) -> &str {
        &self.name
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        cx.ready();
        let client = cx.fenced(&self.shared.cluster.client());
        tokio::select! {
            biased;
            _ = cx.stop().requested() => {}
            () = self.keep(&client) => {}
        }
        Ok(())
    }
}

impl Keep {
    /// Never completes.
    async fn keep(&self, client: &Client) {
        let (clock, mut is_first, mut last_error) = (&self.shared.clock, true, String::new());
        self.shared.declarations.warn();
        loop {
            let mut interval = self.shared.check_interval;
            match self.check(client, is_first).await {
                Ok(has_stepped) => {
                    (is_first, last_error) = (false, String::new());
                    if has_stepped {
                        interval = interval.min(STEP_INTERVAL);
                    }
                }
                Err(error) => {
                    let error = error_chain(&*error);
                    if error != last_error {
                        tracing::warn!(error, "failed to keep webhook registration; retrying");
                    }
                    last_error = error;
                }
            }
            clock.sleep_until(clock.now() + interval).await;
        }
    }

    /// Takes the next step of the CA, and applies the registration objects that differ. Returns whether there was a step.
    async fn check(&self, client: &Client, is_first: bool) -> Result<bool, BoxError> {
        let declarations = &self.shared.declarations;
        let live = declarations.read(client).await?;
        let Some(managed) = &self.shared.managed else {
            declarations.apply(client, &live, None, is_first).await?;
            return Ok(false);
        };
        let (state, has_stepped) = self.step(client, managed, &live).await?;
        let bundle = bundle_pem(&state.trusted);
        declarations.apply(client, &live, Some(&bundle), is_first).await?;
        Ok(has_stepped)
    }

    /// Takes the next step of the CA, and returns its state.
    async fn step(
        &self,
        client: &Client,
        managed: &Managed,
        live: &Live,
    ) -> Result<(CaState, bool), BoxError> {
        let shared = &self.shared;
        let (secret, found) = shared.read_ca(client, managed).await?;
        let published = shared.declarations.published(live);
        let name = &shared.declarations.name;
        let step = plan(name, shared.clock.wall(), &found, &published, managed)?;
        match (step, found) {
            (Some(step), _) => {
                self.write(client, managed, secret.as_deref(), &step).await?;
                Ok((step.state, true))
            }
            (None, Found::Valid(state)) => Ok((*state, false)),
            (None, found) => Err(format!("no step for {found:?}").into()),
        }
    }

    async fn write(
        &self,
        client: &Client,
        managed: &Managed,
        present: Option<&Secret>,
        Step { state, reason }: &Step,
    ) -> Result<(), BoxError> {
        let key = self.shared.secret_key(managed);
        let client = client.field_manager(&format!("{}-webhooks", self.shared.declarations.name));
        let mut secret = present.cloned().unwrap_or_default();
        state.write(&mut secret);
        if present.is_some() {
            client.update(&secret).await?;
        } else {
            secret.metadata.namespace = Some(key.namespace().to_owned());
            secret.metadata.name = Some(key.name().to_owned());
            client.create(&secret).await?;
        }
        tracing::info!(secret = %key, reason, "wrote webhook CA");
        Ok(())
    }
}
