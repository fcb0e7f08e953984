// SPDX-License-Identifier: Apache-2.0
//! Serves one request: authentication, injected faults, attempts until no work is pending, and the time limit.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::{Either, select};
use http::{Request, Response};

use super::{
    Inner, REVISION_WAIT,
    deadline::Deadline,
    response::{failed, fault_failure, stream_of_failure, warned},
};
use crate::{
    admission::Progress,
    auth::{self, Identity},
    background,
    body::Body,
    fault::{self, Effect},
    handler::{self, Call, Content, Reply},
    route::{Query, Verb},
    service::ConnectionLost,
    state::Context,
    status::Failure,
    workloads,
};

impl Inner {
    /// Serves one request.
    pub(crate) async fn serve(
        self: Arc<Self>,
        request: Request<Bytes>,
        default: Identity,
    ) -> Result<Response<Body>, ConnectionLost> {
        let (parts, body) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let mut call = Call {
            method: parts.method,
            path: parts.uri.path().to_owned(),
            query,
            headers: parts.headers,
            body,
            identity: default,
            received: self.clock.now(),
        };
        let answer = self.admit(&mut call).await;
        if let Some(observer) = &self.observer {
            let took = self.clock.now().duration_since(call.received);
            observer.see(&call, &parts.uri, &answer, took.unwrap_or_default());
        }
        answer
    }

    /// Authenticates the request, injects faults, and answers.
    async fn admit(self: &Arc<Self>, call: &mut Call) -> Result<Response<Body>, ConnectionLost> {
        if let Err(failure) = handler::timeout::check(call) {
            return Ok(failed(&failure));
        }
        let identified = {
            let mut state = self.lock();
            let mut cx = Context::of_server(&mut state, self.clock.now());
            auth::authenticate(&mut cx, call)
        };
        match identified {
            Ok(identity) => call.identity = identity,
            Err(failure) => return Ok(failed(&failure)),
        }
        let effects = self.lock().faults.strike(call);
        for effect in &effects {
            match effect {
                Effect::Delay(duration) => self.clock.sleep(*duration).await,
                Effect::TooManyRequests { retry_after_seconds } => {
                    let message =
                        "the server has received too many requests and has asked us to try again later";
                    return Ok(failed(&Failure::too_many_requests(message, *retry_after_seconds)));
                }
                Effect::Fail { code } => return Ok(failed(&fault_failure(*code))),
                _ => {}
            }
        }
        let response = self.answer(call, &effects).await;
        if effects
            .iter()
            .any(|effect| matches!(effect, Effect::LoseResponse))
        {
            return Err(ConnectionLost::new());
        }
        Ok(response)
    }

    async fn answer(self: &Arc<Self>, call: &Call, effects: &[Effect]) -> Response<Body> {
        let mut deadline = Deadline::new(call, &*self.clock);
        let mut patience = None;
        let mut raced = false;
        let mut progress = Progress::default();
        loop {
            let race = !raced && effects.iter().any(|effect| matches!(effect, Effect::Race));
            raced = true;
            let (outcome, mut warnings) = self.dispatch(call, race, &mut progress);
            if let Some(task) = progress.take_pending() {
                match deadline.within(progress.advance(self, task)).await {
                    Ok(()) => continue,
                    Err(failure) => return warned(failed(&failure), &warnings),
                }
            }
            let mut reply = match outcome {
                Ok(reply) => reply,
                Err(failure) => return warned(failed(&failure), &warnings),
            };
            reply.warnings.append(&mut warnings);
            if let Content::List(list) = &mut reply.content
                && list.is_unconverted()
                && let Err(failure) = deadline.within(list.convert(self)).await.flatten()
            {
                return warned(failed(&failure), &reply.warnings);
            }
            let Content::Wait(revision) = reply.content else {
                return self.finish(call, effects, reply);
            };
            let patience = patience.get_or_insert_with(|| self.clock.sleep(REVISION_WAIT));
            let mut revisions = self.revisions.subscribe();
            let reached = std::pin::pin!(revisions.wait_for(|current| *current >= revision));
            match deadline.within(select(reached, patience)).await {
                Ok(Either::Left(_)) => {}
                Ok(Either::Right(_)) => return self.revision_too_large(call, revision),
                Err(failure) => return failed(&failure),
            }
        }
    }

    /// Returns the response of a read at a revision that the server did not reach in time.
    fn revision_too_large(&self, call: &Call, revision: u64) -> Response<Body> {
        let failure = Failure::revision_too_large(revision, self.lock().store.revision());
        let request = call.resource_request();
        let is_watch = request.is_some_and(|(verb, _)| verb == Verb::Watch);
        if is_watch {
            stream_of_failure(&failure)
        } else {
            failed(&failure)
        }
    }

    /// Handles the request under the lock. If [`Progress::take_pending`] then returns a task, the reply is not final.
    fn dispatch(
        &self,
        call: &Call,
        race: bool,
        progress: &mut Progress,
    ) -> (crate::status::Result<Reply>, Vec<String>) {
        let mut state = self.lock();
        let mut cx = Context::of_server(&mut state, self.clock.now());
        let revision = cx.state.store.revision();
        cx.state.compaction.advance(cx.now, revision);
        background::expiry::expire(&mut cx);
        workloads::wake(&mut cx);
        if race {
            fault::race(&mut cx, call);
        }
        let (reply, warnings) = progress.attempt(&mut cx, call);
        if cx.state.settings.immediate {
            while background::step(&mut cx) {}
        }
        let revision = state.store.revision();
        drop(state);
        self.announce(revision);
        (reply, warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ApiServer;

    #[test]
    fn a_request_carries_no_space_for_calls_of_webhooks() {
        let server = ApiServer::builder().build();
        let request = Request::new(Bytes::new());
        let served = Arc::clone(server.inner()).serve(request, Identity::admin());
        // Each request moves its future several times; a call of a webhook alone takes more than this.
        let size = size_of_val(&served);
        assert!(size < 4096, "{size} bytes");
    }
}
