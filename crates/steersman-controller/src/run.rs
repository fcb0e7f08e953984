// SPDX-License-Identifier: Apache-2.0
//! One run of a controller: sources first, then leadership, then workers.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use steersman_cache::Resource;
use steersman_cluster::Ask;
use steersman_core::{Moment, Task};
use tokio::sync::watch;

use crate::{
    RequestKey, RunContext, RunError, Standing, Term,
    controller::Plan,
    source::{Reporter, SourceContext, SourceState},
    work::{Outfit, Workers},
};

/// How long to wait until the server is asked again about a kind that it does not know.
const LEARN_AGAIN: Duration = Duration::from_secs(1);

/// Runs until it is told to stop.
pub(crate) async fn run<R: RequestKey>(plan: &Arc<Plan<R>>, cx: RunContext) -> Result<(), RunError> {
    let _only = plan.begin()?;
    plan.series(cx.metrics());
    plan.hot_loops.clear();
    let stop = cx.stop().clone();
    let mut sources = Sources::start(plan, &cx);
    loop {
        tokio::select! {
            biased;
            _ = stop.requested() => return Ok(()),
            begun = sources.in_sync(plan, &cx) => begun?,
        }
        let Some(term) = sources.until_term(&cx).await else {
            return Ok(());
        };
        if let Some(result) = lead(plan, &cx, term, &mut sources).await {
            return result;
        }
        // Whatever happens under another leader, every object is looked at again after that. It is enqueued now, behind
        // what is new, so that the next term finds all there. The informers go on as they are.
        sources = sources.again(plan, &cx);
    }
}

/// Works until the term ends, which gives nothing, or the run does.
async fn lead<R: RequestKey>(
    plan: &Arc<Plan<R>>,
    cx: &RunContext,
    term: Term,
    sources: &mut Sources,
) -> Option<Result<(), RunError>> {
    let outfit = Arc::new(Outfit::new(plan, cx, term.clone()));
    let mut workers = Workers::start(plan, cx, &outfit);
    let mut members = cx.fleet().subscribe();
    plan.queue.resume();
    let (deadline, result) = loop {
        tokio::select! {
            biased;
            deadline = cx.stop().requested() => break (Some(deadline), Some(Ok(()))),
            // What is in flight has as long as the fence lets it write.
            () = term.ended() => break (None, None),
            error = workers.failed() => break (Some(Moment::ORIGIN), Some(Err(error))),
            _ = members.changed() => outfit.dismiss_absent(&plan.queue),
            () = sources.keep_standing(cx) => {}
        }
    };
    if plan.options.drains() && matches!(result, Some(Ok(()))) {
        workers.drain(deadline.unwrap_or_default()).await;
    }
    plan.queue.pause();
    workers
        .finish(deadline.unwrap_or_else(|| outfit.deadline()))
        .await;
    result
}

/// The running sources of a controller.
pub(crate) struct Sources {
    names: Vec<String>,
    states: watch::Receiver<Vec<SourceState>>,
    _tasks: Vec<Task>,
    /// Those before, until these are in sync: what they share is not let go in between.
    before: Option<Box<Self>>,
}

impl Sources {
    fn start<R: RequestKey>(plan: &Arc<Plan<R>>, cx: &RunContext) -> Self {
        let (sender, states) = watch::channel(vec![SourceState::Waiting; plan.sources.len()]);
        let sender = Arc::new(sender);
        let tasks = (0..plan.sources.len()).map(|index| {
            let reporter = Reporter::new(&sender, index);
            let source = SourceContext::new((*plan.queue).clone(), plan.home.clone(), cx, reporter);
            let plan = Arc::clone(plan);
            cx.spawner().spawn("source", async move {
                if let Some((resource, namespaced)) = &plan.unknown_scope {
                    learn_scope(&plan, resource, namespaced).await;
                }
                plan.sources[index].run(source).await;
            })
        });
        Self {
            _tasks: tasks.collect(),
            names: plan.sources.iter().map(|source| source.name()).collect(),
            states,
            before: None,
        }
    }

    /// The same sources anew, which say again what is there.
    fn again<R: RequestKey>(self, plan: &Arc<Plan<R>>, cx: &RunContext) -> Self {
        Self {
            before: Some(Box::new(self)),
            ..Self::start(plan, cx)
        }
    }

    /// Waits until every source has enqueued what is there.
    async fn in_sync<R: RequestKey>(&mut self, plan: &Plan<R>, cx: &RunContext) -> Result<(), RunError> {
        let clock = Arc::clone(cx.clock());
        let mut limit = clock.sleep_until(clock.now() + plan.options.sync_limit());
        let mut is_late = false;
        loop {
            let verdict = {
                let states = self.states.borrow_and_update();
                judge(&self.names, &states)
            };
            verdict.refuse(plan, is_late)?;
            let is_ready = verdict.waiting.is_empty();
            cx.stand(verdict.standing(is_late));
            if is_ready {
                self.before = None;
                return Ok(());
            }
            tokio::select! {
                biased;
                changed = self.states.changed() => {
                    if changed.is_err() {
                        self.before = None;
                        return Ok(()); // All sources have ended by themselves.
                    }
                }
                () = &mut limit, if !is_late => is_late = true,
            }
        }
    }

    /// Waits for a term, and says how the sources stand meanwhile; gives nothing when it is time to stop.
    async fn until_term(&mut self, cx: &RunContext) -> Option<Term> {
        loop {
            tokio::select! {
                biased;
                _ = cx.stop().requested() => return None,
                term = cx.leadership().term() => return Some(term),
                () = self.keep_standing(cx) => {}
            }
        }
    }

    /// Waits for a change of how the sources stand, and says so.
    async fn keep_standing(&mut self, cx: &RunContext) {
        if self.states.changed().await.is_err() {
            // Nothing can change any more.
            std::future::pending::<()>().await;
        }
        let verdict = {
            let states = self.states.borrow_and_update();
            judge(&self.names, &states)
        };
        cx.stand(verdict.standing(true));
    }
}

/// How all sources together stand.
#[derive(Default)]
struct Verdict {
    waiting: Vec<String>,
    troubles: Vec<String>,
    dormant: Vec<String>,
    absent: Option<String>,
}

impl Verdict {
    /// Whether the controller gives up.
    fn refuse<R: RequestKey>(&self, plan: &Plan<R>, is_late: bool) -> Result<(), RunError> {
        let controller = || plan.name.to_string();
        let is_strict = plan.options.is_strict();
        match &self.absent {
            Some(kind) if is_late || is_strict => Err(RunError::Absent {
                controller: controller(),
                kind: kind.clone(),
            }),
            _ if is_strict && !self.troubles.is_empty() => Err(RunError::Source {
                controller: controller(),
                reason: self.troubles.join("; "),
            }),
            _ if is_strict && is_late && !self.waiting.is_empty() => Err(RunError::Source {
                controller: controller(),
                reason: format!("{} not in sync in time", self.waiting.join(", ")),
            }),
            _ => Ok(()),
        }
    }

    fn standing(&self, is_late: bool) -> Standing {
        if !self.troubles.is_empty() {
            return Standing::Degraded {
                reason: self.troubles.join("; "),
            };
        }
        match (self.waiting.is_empty(), is_late) {
            (true, _) => Standing::Ready,
            (false, false) => Standing::Waiting {
                on: self.waiting.clone(),
            },
            (false, true) => Standing::Degraded {
                reason: format!("{} not in sync in time", self.waiting.join(", ")),
            },
        }
    }
}

fn judge(names: &[String], states: &[SourceState]) -> Verdict {
    let mut verdict = Verdict::default();
    for (name, state) in names.iter().zip(states) {
        match state {
            SourceState::Ready => {}
            SourceState::Waiting => verdict.waiting.push(name.clone()),
            SourceState::Dormant { reason } => verdict.dormant.push(reason.clone()),
            SourceState::Trouble {
                reason,
                absent,
                was_ready,
            } => {
                verdict.troubles.push(reason.clone());
                if !was_ready {
                    verdict.waiting.push(name.clone());
                }
                if *absent && !was_ready {
                    verdict.absent.get_or_insert_with(|| name.clone());
                }
            }
        }
    }
    verdict
}

/// Asks the server whether the objects of a kind are in namespaces, until it answers.
async fn learn_scope<R: RequestKey>(plan: &Plan<R>, resource: &Resource, namespaced: &OnceLock<bool>) {
    let ask = Ask::kind(resource.group(), resource.kind()).version(resource.version());
    while namespaced.get().is_none() {
        match plan.home.mapper().resolve(&ask).await {
            // It may have been learnt for another source meanwhile.
            Ok(found) => _ = namespaced.set(found.is_namespaced()),
            Err(error) => {
                tracing::debug!(controller = %plan.name, kind = %resource, %error, "its scope is not known yet");
                let clock = plan.home.clock();
                clock.sleep_until(clock.now() + LEARN_AGAIN).await;
            }
        }
    }
}
