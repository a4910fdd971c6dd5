//! Messages to the streams of a workflow: taken once per name, by whichever run is current.

use std::sync::Arc;

use super::error::{ApplyError, Fault};
use super::executions::TRIES;
use super::{CommandError, CommandTarget, Engine};
use super::{cache, runs};
use crate::domain::ids::RunId;
use crate::domain::run::{
    CommandKind, Input, MessageRequest, Refusal, Reply, RunState, message_key,
};
use crate::store::receipts;

/// A message that was taken, now or before.
#[derive(Clone, Debug)]
pub struct MessageTaken {
    /// The run that took it.
    pub run: RunId,
    /// Its place in the stream.
    pub position: u64,
    /// It had been taken before.
    pub duplicate: bool,
    /// The workflow's current run.
    pub state: Arc<RunState>,
}

/// Why a message was not taken.
#[derive(Clone, Debug)]
pub enum MessageError {
    /// Its name stands for another content.
    IdentityConflict {
        /// Place of that one.
        position: u64,
    },
    /// As for any command.
    Command(CommandError),
}

impl From<CommandError> for MessageError {
    fn from(error: CommandError) -> Self {
        Self::Command(error)
    }
}

impl From<Fault> for MessageError {
    fn from(fault: Fault) -> Self {
        Self::Command(fault.into())
    }
}

impl Engine {
    /// Appends a message to a stream of a workflow.
    ///
    /// # Errors
    /// [`MessageError`]; nothing has changed.
    pub async fn append_message(
        &self,
        target: &CommandTarget,
        request: &MessageRequest,
    ) -> Result<MessageTaken, MessageError> {
        for _ in 0..TRIES {
            let run = self.current_run(target).await?;
            let input = Input::Message(request.clone());
            let refused = match runs::apply(&self.core, run, input).await {
                Ok(applied) => {
                    if let Reply::MessageTaken { position } = applied.reply {
                        return Ok(MessageTaken {
                            run,
                            position,
                            duplicate: false,
                            state: applied.state,
                        });
                    }
                    return Err(Fault::Bug.into());
                }
                Err(ApplyError::Refused(Refusal::NotActive(close)))
                    if close.continued_to.is_some() =>
                {
                    continue;
                }
                Err(error) => self.command_error(run, error).await?,
            };
            match (self.known_message(target, request, run).await?, refused) {
                (Some(taken), _) => return Ok(taken),
                (None, CommandError::Fault(Fault::Contended)) => {}
                (None, refused) => return Err(refused.into()),
            }
        }
        Err(Fault::Contended.into())
    }

    /// The message of this name, if it was taken before.
    async fn known_message(
        &self,
        target: &CommandTarget,
        request: &MessageRequest,
        current: RunId,
    ) -> Result<Option<MessageTaken>, MessageError> {
        let receipt = receipts::find(
            &self.core.store.reads,
            &target.namespace,
            &target.workflow_id,
            CommandKind::Message.as_str(),
            &message_key(&request.stream, &request.id),
        )
        .await
        .map_err(Fault::from)?;
        let Some(receipt) = receipt else {
            return Ok(None);
        };
        let position = receipt
            .made_id
            .as_deref()
            .and_then(|position| position.parse().ok())
            .ok_or(Fault::Bug)?;
        if receipt.digest != request.digest {
            return Err(MessageError::IdentityConflict { position });
        }
        let repeated = Input::MessageRepeated {
            stream: Arc::clone(&request.stream),
            id: Arc::clone(&request.id),
        };
        // Counted while the workflow is open; the answer is the same without.
        let _ = runs::apply(&self.core, current, repeated).await;
        let state = cache::recent(&self.core, current)
            .await?
            .ok_or(Fault::Contended)?
            .state;
        Ok(Some(MessageTaken {
            run: receipt.run,
            position,
            duplicate: true,
            state,
        }))
    }
}
