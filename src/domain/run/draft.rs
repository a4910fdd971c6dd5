//! A decision in the making: every event and fact goes through the state as it is written, so that
//! later steps of the same decision see it and the fold of what is stored cannot differ.

use std::sync::Arc;

use super::super::event::{Body, Event};
use super::super::ids::{Part, TaskId, TaskNo, part_id};
use super::super::lease::Hold;
use super::super::routing::{Routing, TaskKind};
use super::super::time::Timestamp;
use super::Settings;
use super::decision::{Claim, Decision, Effects, Fence, NewTask, RequestKey, RunWrite, TimerKey};
use super::fact::{Command, CommandKind, Fact, Resume};
use super::selection;
use super::signal::InputRequest;
use super::state::RunState;

/// The working copy of one decision.
pub(super) struct Draft<'a> {
    pub state: RunState,
    pub now: Timestamp,
    pub settings: &'a Settings,
    base: u64,
    first_event: u64,
    events: Vec<Event>,
    facts: Vec<(u64, Fact)>,
    pub effects: Effects,
    pub fences: Vec<Fence>,
    pub claim: Option<Claim>,
    pub created: Vec<RunWrite>,
    task: Option<TaskId>,
    command: Option<u64>,
    closing: bool,
}

impl<'a> Draft<'a> {
    pub fn new(state: RunState, now: Timestamp, settings: &'a Settings) -> Self {
        Self {
            base: state.version,
            first_event: state.next_event,
            state,
            now,
            settings,
            events: Vec::new(),
            facts: Vec::new(),
            effects: Effects::default(),
            fences: Vec::new(),
            claim: None,
            created: Vec::new(),
            task: None,
            command: None,
            closing: false,
        }
    }

    /// What follows closes the run: selections are no longer decided by what it drops.
    pub fn closing(&mut self) {
        self.closing = true;
    }

    /// Later events name this workflow task as their origin.
    pub fn on_behalf_of_task(&mut self, no: TaskNo) {
        self.task = Some(TaskId {
            run: self.state.id,
            no,
        });
    }

    pub fn emit(&mut self, body: impl Into<Body>) {
        let event = Event {
            sequence: self.state.next_event,
            recorded_at: self.now,
            task: self.task,
            command: self.command,
            body: body.into(),
        };
        self.state.apply(&event);
        self.events.push(event);
        let resolution = self.state.resolution.take();
        if let Some(resolution) = resolution.filter(|_| !self.closing) {
            let resolved = selection::resolved(&self.state, resolution);
            self.emit(resolved);
        }
    }

    pub fn note(&mut self, fact: Fact) {
        self.state.note(&fact);
        self.facts.push((self.state.next_event, fact));
    }

    /// Events written so far.
    pub fn written(&self) -> u64 {
        self.state.next_event - self.first_event
    }

    pub fn fence(&mut self, no: TaskNo, hold: Hold) {
        self.fences.push(Fence { no, hold });
    }

    pub fn set_timer(&mut self, key: TimerKey, at: Timestamp) {
        self.effects.set(key, at);
    }

    /// The id of the event that is written next, as the number of a part.
    pub fn next_part(&self, part: Part) -> String {
        part_id(self.state.id, part, self.state.next_event)
    }

    /// Accepts a command of the control plane; its events name it. Returns its number and id.
    pub fn command(
        &mut self,
        kind: CommandKind,
        name: Option<&str>,
        request_id: Option<&str>,
    ) -> (u64, String) {
        let n = self.state.commands + 1;
        self.note(Fact::Command(Command {
            n,
            kind,
            name: name.map(Into::into),
            request_id: request_id.map(Into::into),
            at: self.now,
        }));
        self.command = Some(n);
        (n, part_id(self.state.id, Part::Command, n))
    }

    /// Claims the caller's key of a signal or an update, if it has one, for command `n`.
    pub fn claim_key(
        &mut self,
        kind: CommandKind,
        request: InputRequest,
        n: u64,
        made_id: Option<Arc<str>>,
    ) {
        let Some(request_id) = request.request_id else {
            return;
        };
        let begun = &self.state.begun;
        self.claim = Some(Claim::Request(RequestKey {
            namespace: begun.namespace.clone(),
            workflow_id: begun.workflow_id.clone(),
            kind: kind.as_str(),
            request_id,
            name: request.name,
            digest: request.digest,
            run_target: request.run_target,
            command: n,
            made_id,
        }));
    }

    /// Opens a workflow task, unless one is open.
    pub fn open_workflow_task(&mut self, resume: Resume) -> Option<TaskNo> {
        self.open_workflow_task_at(resume, self.now)
    }

    /// Opens a workflow task that may be handed out from `available_at` on, unless one is open.
    pub fn open_workflow_task_at(
        &mut self,
        resume: Resume,
        available_at: Timestamp,
    ) -> Option<TaskNo> {
        if self.state.workflow_task.is_some() || self.state.close.is_some() {
            return None;
        }
        let no = self.state.next_task;
        self.note(Fact::TaskOpened { no, resume });
        let begun = &self.state.begun;
        let task = NewTask {
            routing: Routing {
                kind: TaskKind::Workflow,
                namespace: begun.namespace.clone(),
                queue: begun.queue.clone(),
                task_type: begun.workflow_type.clone(),
                priority: begun.priority,
                fairness_key: begun.fairness_key.clone(),
                fairness_weight: begun.fairness_weight,
                build_id: begun.build_id.clone(),
                needs: self.state.needs,
                session: None,
                preferred: self.state.preferred(available_at),
            },
            available_at,
            lease_ms: self.settings.workflow_task_lease_ms,
            start_to_close_ms: None,
            heartbeat_ms: None,
            handed_to: None,
        };
        self.effects.open(no, task);
        Some(no)
    }

    /// After an outcome was written: makes sure that a workflow task will see it.
    pub fn wake(&mut self) -> Option<TaskNo> {
        if self.state.last_wake < self.first_event {
            return None;
        }
        let resume = self.state.last_resume.clone().unwrap_or(Resume::Unseen);
        self.open_workflow_task(resume)
    }

    pub fn finish(mut self) -> Decision {
        self.state.version = self.base + 1;
        Decision {
            write: RunWrite {
                base: self.base,
                first_event: self.first_event,
                events: self.events,
                facts: self.facts,
                effects: self.effects,
                next: Arc::new(self.state),
                text: None,
            },
            created: self.created,
            fences: self.fences,
            claim: self.claim,
        }
    }
}
