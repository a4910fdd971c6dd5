//! Signals and updates: taken once per caller's key, by whichever run is current.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::cache::{self, Cached};
use super::error::{ApplyError, Fault};
use super::executions::{TRIES, accepted};
use super::runs;
use super::{Accepted, CommandError, CommandTarget, Engine};
use crate::domain::event::{Body, Event, UpdateCompleted};
use crate::domain::ids::RunId;
use crate::domain::run::{
    CloseReason, CommandKind, Digest, Input, InputRequest, Refusal, Rejection, RunState,
};
use crate::domain::time::Timestamp;
use crate::payload::Payload;
use crate::store::receipts;

/// How often whoever waits for an update looks at what other nodes may have written.
const RECHECK: Duration = Duration::from_secs(1);

/// Events that are read at once when an old outcome is looked for.
const OUTCOME_PAGE: u64 = 500;

/// A signal or an update as a caller sends it.
#[derive(Clone, Debug)]
pub struct InputCommand {
    /// Its name.
    pub name: Arc<str>,
    /// Encoded argument list.
    pub arguments: Payload,
    /// The caller's key.
    pub request_id: Option<Arc<str>>,
    /// Digest of the arguments.
    pub digest: Digest,
    /// The id that an update was given for its validation.
    pub update_id: Option<Arc<str>>,
}

impl InputCommand {
    pub(super) fn request(&self, target: &CommandTarget) -> InputRequest {
        InputRequest {
            name: Arc::clone(&self.name),
            arguments: self.arguments.clone(),
            request_id: self.request_id.clone(),
            digest: self.digest,
            run_target: target.run.clone().unwrap_or_else(|| Arc::from("")),
            update_id: self.update_id.clone(),
        }
    }
}

/// How an update ended.
#[derive(Clone, Debug)]
pub enum UpdateOutcome {
    /// It entered the history and has an outcome.
    Completed {
        /// The event.
        completed: Box<UpdateCompleted>,
        /// When.
        at: Timestamp,
    },
    /// A validator refused it.
    Rejected {
        /// Human sentence.
        message: Arc<str>,
        /// Field → sentences, a JSON object.
        validation_errors: Option<crate::domain::event::Json>,
        /// When.
        at: Timestamp,
    },
}

impl Engine {
    /// Signals a workflow. A key that was used before gets its first answer, whatever has become of
    /// the run since.
    ///
    /// # Errors
    /// [`CommandError`]; nothing has changed.
    pub async fn signal(
        &self,
        target: &CommandTarget,
        command: &InputCommand,
    ) -> Result<Accepted, CommandError> {
        let input = Input::Signal(command.request(target));
        self.send(target, CommandKind::Signal, command, input).await
    }

    /// Gives a workflow an update, likewise.
    ///
    /// # Errors
    /// [`CommandError`]; nothing has changed.
    pub async fn update(
        &self,
        target: &CommandTarget,
        command: &InputCommand,
    ) -> Result<Accepted, CommandError> {
        let input = Input::Update(command.request(target));
        self.send(target, CommandKind::Update, command, input).await
    }

    /// Records that a validator refused an update.
    ///
    /// # Errors
    /// [`CommandError`]; nothing has changed.
    pub async fn reject_update(
        &self,
        target: &CommandTarget,
        command: &InputCommand,
        rejection: Rejection,
    ) -> Result<Accepted, CommandError> {
        let input = Input::RejectUpdate(command.request(target), rejection);
        self.send(target, CommandKind::Update, command, input).await
    }

    async fn send(
        &self,
        target: &CommandTarget,
        kind: CommandKind,
        command: &InputCommand,
        input: Input,
    ) -> Result<Accepted, CommandError> {
        for _ in 0..TRIES {
            let refused = match self.current_run(target).await {
                Err(error) => error,
                Ok(run) => match runs::apply(&self.core, run, input.clone()).await {
                    Ok(applied) => return Ok(accepted(run, applied)),
                    Err(ApplyError::Refused(Refusal::NotActive(close)))
                        if close.continued_to.is_some() && target.run.is_none() =>
                    {
                        // Its successor is current by now.
                        continue;
                    }
                    Err(error) => self.command_error(run, error).await?,
                },
            };
            return match (self.retained(target, kind, command).await?, refused) {
                (Some(accepted), _) => Ok(accepted),
                // The key was claimed, and its claimant's run is gone again: nothing is retained.
                (None, CommandError::Fault(Fault::Contended)) => continue,
                (None, error) => Err(error),
            };
        }
        Err(Fault::Contended.into())
    }

    /// What this key stood for, if it was used before.
    ///
    /// # Errors
    /// [`CommandError`], when it stood for something else.
    pub async fn retained(
        &self,
        target: &CommandTarget,
        kind: CommandKind,
        command: &InputCommand,
    ) -> Result<Option<Accepted>, CommandError> {
        let Some(request_id) = &command.request_id else {
            return Ok(None);
        };
        let receipt = receipts::find(
            &self.core.store.reads,
            &target.namespace,
            &target.workflow_id,
            kind.as_str(),
            request_id,
        )
        .await
        .map_err(Fault::from)?;
        let Some(receipt) = receipt else {
            return Ok(None);
        };
        let mut differs = Vec::new();
        if receipt.name != *command.name {
            differs.push("name");
        }
        if receipt.digest != command.digest {
            differs.push("arguments");
        }
        if receipt.run_target != target.run.as_deref().unwrap_or("") {
            differs.push("run_target");
        }
        if !differs.is_empty() {
            return Err(CommandError::KeyConflict { receipt, differs });
        }
        let state = cache::recent(&self.core, receipt.run)
            .await?
            .ok_or(CommandError::NoSuchRun)?
            .state;
        Ok(Some(Accepted {
            run: receipt.run,
            command: Some(receipt.command),
            state,
            retained: true,
            update_id: receipt.made_id.map(Arc::from),
        }))
    }

    /// Waits for the outcome of an update that `run` accepted, at most `wait`. Returns the outcome
    /// if there is one, and the run that the update is in.
    ///
    /// # Errors
    /// [`Fault`]; the update itself is not touched.
    pub async fn update_outcome(
        &self,
        run: RunId,
        update_id: &str,
        wait: Duration,
    ) -> Result<(Option<UpdateOutcome>, Arc<RunState>), Fault> {
        let core = &self.core;
        let deadline = Instant::now() + wait;
        let mut run = run;
        let mut woken = false;
        loop {
            let watch = core.cache.watch(run);
            let moved = watch.moved();
            tokio::pin!(moved);
            // From here on no write is missed, before the look as well as after it.
            moved.as_mut().enable();
            let cached = if woken {
                cache::newest(core, run).await?
            } else {
                cache::recent(core, run).await?
            };
            let cached = cached.ok_or(Fault::Bug)?;
            let state = Arc::clone(&cached.state);
            if state.open_update(update_id).is_none() {
                if let Some(outcome) = self.find_outcome(&cached, update_id).await? {
                    return Ok((Some(outcome), state));
                }
                match state.close.as_ref().and_then(|close| {
                    (close.reason == CloseReason::Continued)
                        .then_some(close.continued_to)
                        .flatten()
                }) {
                    Some(successor) => run = successor,
                    // Another node may have written it; what is remembered here proves nothing.
                    None if !woken => woken = true,
                    None => return Ok((None, state)),
                }
                continue;
            }
            if Instant::now() >= deadline {
                return Ok((None, state));
            }
            let next_look = deadline.min(Instant::now() + RECHECK);
            tokio::select! {
                () = moved => {}
                () = tokio::time::sleep_until(next_look) => {}
            }
            woken = true;
        }
    }

    /// The outcome of an update, from the event that holds it.
    async fn find_outcome(
        &self,
        cached: &Cached,
        update_id: &str,
    ) -> Result<Option<UpdateOutcome>, Fault> {
        let state = &cached.state;
        let known = state
            .answered
            .iter()
            .find(|answered| *answered.update_id == *update_id)
            .map(|answered| answered.event);
        // Only the most recent outcomes are kept in the state; older ones are looked for.
        let (mut from, last) = match known {
            Some(event) => (event, event),
            None => (1, state.last_event()),
        };
        while from <= last {
            let page = self.page(cached, from, last, OUTCOME_PAGE).await?;
            for event in Event::read_all(&page.events)? {
                let at = event.recorded_at;
                match event.body {
                    Body::UpdateCompleted(completed) if *completed.keys.update_id == *update_id => {
                        return Ok(Some(UpdateOutcome::Completed { completed, at }));
                    }
                    Body::UpdateRejected(rejected) if *rejected.keys.update_id == *update_id => {
                        return Ok(Some(UpdateOutcome::Rejected {
                            message: rejected.message,
                            validation_errors: rejected.validation_errors,
                            at,
                        }));
                    }
                    _ => {}
                }
            }
            match page.next_after {
                Some(after) => from = after + 1,
                None => break,
            }
        }
        Ok(None)
    }
}
