//! Shapes of workflows: what each does with a task, and the exact events that its history must hold.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::payload::text_blob;
use crate::times;

/// Commands of one completion that carries markers.
pub const MARKERS: usize = 500;
/// Events by which a growing history grows at once.
pub const GROWTH: usize = 500;
/// Children of a fan-out.
const CHILDREN: usize = 10;
/// Signals of a workflow that waits for them.
pub const SIGNALS: usize = 4;
/// Bytes of a signal, and of a result of the long chain.
pub const SIGNAL_BYTES: usize = 512;
const SHORT: usize = 64;
/// Seconds of the timer.
pub const TIMER_SECONDS: u64 = 1;

/// A shape. Its name is the workflow type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Returns its input.
    Simple,
    /// One activity after another, each a cycle.
    Chain(usize),
    /// Waits for a timer.
    Timer,
    /// Waits for signals, one after another.
    Signal,
    /// Awaits children.
    FanOut,
    /// A child: records something and returns its input.
    Child,
    /// Records markers, then is woken once more.
    Replay,
    /// Schedules activities at once and awaits them all.
    Wide(usize),
    /// The same; each activity heartbeats, and the last of its heartbeats is in the history.
    Beating(usize),
    /// Waits for a signal that says that it may end; meanwhile it is asked, signalled or left alone.
    Held,
    /// Takes signals until it has had so many.
    Hot(usize),
    /// Grows by a batch of markers and a signal, so many times.
    Growing(usize),
}

/// A workflow task, as far as a worker needs it.
#[derive(Deserialize)]
pub struct WorkflowTask<'a> {
    pub task_id: &'a str,
    pub workflow_id: &'a str,
    pub run_id: &'a str,
    pub workflow_type: &'a str,
    pub workflow_task_attempt: u64,
    pub lease_owner: &'a str,
    #[serde(borrow)]
    pub arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    pub history_events: Vec<Event<'a>>,
    pub total_history_events: usize,
    pub next_history_page_token: Option<&'a str>,
}

/// An event, as far as a worker needs it.
#[derive(Deserialize)]
pub struct Event<'a> {
    pub event_type: &'a str,
    pub recorded_at: Option<&'a str>,
    #[serde(borrow)]
    pub payload: &'a RawValue,
}

/// An encoded value.
#[derive(Deserialize)]
pub struct Envelope<'a> {
    pub blob: &'a str,
}

#[derive(Deserialize)]
struct ResultOf<'a> {
    #[serde(borrow)]
    result: &'a RawValue,
}

/// What a worker answers to a task.
pub struct Step {
    /// The list of commands, as JSON.
    pub commands: String,
    /// The workflow ends with it.
    pub ends: bool,
    /// What the starter is told once it was taken: the number of the wait that is open now.
    pub waits: Option<usize>,
    /// A timer was started.
    pub timer: bool,
    /// Activities that it schedules.
    pub activities: usize,
}

impl Step {
    fn go_on(commands: String) -> Self {
        Self {
            commands,
            ends: false,
            waits: None,
            timer: false,
            activities: 0,
        }
    }

    fn end(result: &str) -> Self {
        Self {
            ends: true,
            ..Self::go_on(format!(
                r#"[{{"type":"complete_workflow","result":{result}}}]"#
            ))
        }
    }
}

/// How late the timer of a history fired: from the time that it was set for to the time of the event that
/// says so, both of the server's clock. Nothing when it has not fired.
///
/// # Errors
/// It fired too early, or says no times.
pub fn fire_lateness(events: &[Event<'_>]) -> Result<Option<f64>, String> {
    #[derive(Deserialize)]
    struct Fired<'a> {
        fire_at: &'a str,
    }
    let Some(event) = events.iter().find(|event| event.event_type == "TimerFired") else {
        return Ok(None);
    };
    let fired: Fired<'_> = serde_json::from_str(event.payload.get())
        .map_err(|error| format!("TimerFired without its time: {error}"))?;
    let due = times::seconds(fired.fire_at);
    let late = event.recorded_at.and_then(times::seconds).zip(due);
    match late.map(|(at, due)| at - due) {
        Some(late) if late >= 0.0 => Ok(Some(late)),
        Some(early) => Err(format!("a timer fired {} s early", -early)),
        None => Err("TimerFired without its times".to_owned()),
    }
}

const SHAPES: [Shape; 9] = [
    Shape::Simple,
    Shape::Chain(1),
    Shape::Chain(5),
    Shape::Timer,
    Shape::Signal,
    Shape::FanOut,
    Shape::Child,
    Shape::Replay,
    Shape::Held,
];

impl Shape {
    /// Workflow types that need no number.
    pub fn usual() -> impl Iterator<Item = Self> {
        SHAPES.into_iter()
    }

    /// The workflow type.
    pub fn name(self) -> String {
        match self {
            Self::Simple => "simple".to_owned(),
            Self::Chain(count) => format!("chain-{count}"),
            Self::Timer => "timer".to_owned(),
            Self::Signal => "signal".to_owned(),
            Self::FanOut => "fan-out".to_owned(),
            Self::Child => "child".to_owned(),
            Self::Replay => "replay".to_owned(),
            Self::Wide(count) => format!("wide-{count}"),
            Self::Beating(count) => format!("beating-{count}"),
            Self::Held => "held".to_owned(),
            Self::Hot(count) => format!("hot-{count}"),
            Self::Growing(count) => format!("growing-{count}"),
        }
    }

    /// The shape of a workflow type.
    pub fn of(name: &str) -> Option<Self> {
        let numbered = |prefix| name.strip_prefix(prefix)?.parse::<usize>().ok();
        if let Some(count) = numbered("chain-") {
            return Some(Self::Chain(count));
        }
        if let Some(count) = numbered("wide-") {
            return Some(Self::Wide(count));
        }
        if let Some(count) = numbered("beating-") {
            return Some(Self::Beating(count));
        }
        if let Some(count) = numbered("hot-") {
            return Some(Self::Hot(count));
        }
        if let Some(count) = numbered("growing-") {
            return Some(Self::Growing(count));
        }
        SHAPES.into_iter().find(|shape| shape.name() == name)
    }

    /// Bytes of the input.
    pub fn input_bytes(self, payload: usize) -> usize {
        match self {
            Self::Chain(5) => 4_096,
            _ => payload,
        }
    }

    /// Activities that are scheduled at once, and what each adds to the history when its work is done,
    /// which is in the order of the work.
    fn bundle(self) -> Option<(usize, &'static [&'static str])> {
        match self {
            Self::Wide(count) => Some((count, &["ActivityStarted", "ActivityCompleted"])),
            Self::Beating(count) => Some((
                count,
                &[
                    "ActivityStarted",
                    "ActivityHeartbeatRecorded",
                    "ActivityCompleted",
                ],
            )),
            _ => None,
        }
    }

    /// The events of the whole history, in order; of a bundle those until its work begins.
    pub fn events(self) -> Vec<&'static str> {
        let mut events = vec!["StartAccepted", "WorkflowStarted"];
        match self {
            Self::Simple => {}
            Self::Chain(count) => {
                for _ in 0..count {
                    events.extend(["ActivityScheduled", "ActivityStarted", "ActivityCompleted"]);
                }
            }
            Self::Timer => events.extend(["TimerScheduled", "TimerFired"]),
            Self::Signal => {
                for _ in 0..SIGNALS {
                    events.extend(["SignalWaitOpened", "SignalReceived", "SignalApplied"]);
                }
            }
            Self::FanOut => {
                for _ in 0..CHILDREN {
                    events.extend(["ChildWorkflowScheduled", "ChildRunStarted"]);
                }
                events.extend(["ChildRunCompleted"; CHILDREN]);
            }
            Self::Child => {
                events.remove(0);
                events.push("SideEffectRecorded");
            }
            Self::Replay => {
                events.extend(["SideEffectRecorded"; MARKERS]);
                events.push("SignalReceived");
            }
            Self::Wide(count) | Self::Beating(count) => {
                events.extend(std::iter::repeat_n("ActivityScheduled", count));
            }
            Self::Held => events.extend(["SignalWaitOpened", "SignalReceived", "SignalApplied"]),
            Self::Growing(count) => {
                for _ in 0..count {
                    events.extend(std::iter::repeat_n("SideEffectRecorded", GROWTH - 1));
                    events.push("SignalReceived");
                }
            }
            Self::Hot(count) => events.extend(std::iter::repeat_n("SignalReceived", count)),
        }
        if self.bundle().is_none() {
            events.push("WorkflowCompleted");
        }
        events
    }

    /// Compares a whole history with what it must be.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(self, found: &[&str]) -> Result<(), String> {
        let expected = self.events();
        if let Some((count, work)) = self.bundle() {
            let (head, tail) = found.split_at(expected.len().min(found.len()));
            let of = |name: &str| tail.iter().filter(|event| **event == name).count();
            let whole = head == expected
                && work.iter().all(|event| of(event) == count)
                && tail.last() == Some(&"WorkflowCompleted")
                && tail.len() == work.len() * count + 1;
            return if whole {
                Ok(())
            } else {
                Err(format!(
                    "{}: {} events are not the right ones",
                    self.name(),
                    found.len()
                ))
            };
        }
        if found == expected {
            return Ok(());
        }
        Err(differs(self, &expected, found))
    }

    /// What a worker does about a task.
    ///
    /// # Errors
    /// The history is not what it must be at this point.
    pub fn step(self, task: &WorkflowTask<'_>) -> Result<Step, String> {
        let expected = self.events();
        let events = &task.history_events;
        let total = task.total_history_events;
        let paged = events.len() < total;
        let seen = events.len().min(expected.len());
        let same = events[..seen]
            .iter()
            .zip(&expected)
            .all(|(event, name)| event.event_type == *name);
        let bundle = self.bundle();
        if !same || (events.len() > expected.len() && bundle.is_none()) {
            let found: Vec<&str> = events.iter().map(|event| event.event_type).collect();
            return Err(differs(self, &expected, &found));
        }
        let input = task.arguments.map_or("null", RawValue::get);
        let unexpected = || {
            Err(format!(
                "{}: a task at event {total} was not expected",
                self.name()
            ))
        };
        Ok(match self {
            Self::Simple => match total {
                2 => Step::end(input),
                _ => return unexpected(),
            },
            Self::Chain(count) => match (total - 2) / 3 {
                _ if !(total - 2).is_multiple_of(3) => return unexpected(),
                done if done < count => Step {
                    activities: 1,
                    ..Step::go_on(activity(if count == 5 { "short" } else { "echo" }, input))
                },
                _ if paged => Step::end(input),
                _ => Step::end(result(events)?),
            },
            Self::Timer => match total {
                2 => Step {
                    timer: true,
                    ..Step::go_on(format!(
                        r#"[{{"type":"start_timer","delay_seconds":{TIMER_SECONDS}}}]"#
                    ))
                },
                4 => Step::end(input),
                _ => return unexpected(),
            },
            Self::Signal => match (total - 2) / 3 {
                _ if !(total - 2).is_multiple_of(3) => return unexpected(),
                SIGNALS => Step::end(input),
                done => wait(done),
            },
            Self::Held => match total {
                2 => wait(0),
                5 => Step::end(input),
                _ => return unexpected(),
            },
            Self::FanOut => match total.checked_sub(2 + 2 * CHILDREN) {
                None if total == 2 => {
                    let child = format!(
                        r#"{{"type":"start_child_workflow","workflow_type":"child","arguments":{input}}}"#
                    );
                    Step::go_on(list(&child, CHILDREN))
                }
                Some(CHILDREN) => Step::end(input),
                Some(_) => Step::go_on("[]".to_owned()),
                None => return unexpected(),
            },
            Self::Child => match total {
                1 => Step {
                    ends: true,
                    ..Step::go_on(format!(
                        r#"[{{"type":"record_side_effect","result":{input}}},{{"type":"complete_workflow","result":{input}}}]"#
                    ))
                },
                _ => return unexpected(),
            },
            Self::Replay => match total {
                2 => Step {
                    waits: Some(0),
                    ..Step::go_on(list(&marker(), MARKERS))
                },
                _ if total == 3 + MARKERS => Step::end(input),
                _ => return unexpected(),
            },
            Self::Wide(count) | Self::Beating(count) => match total {
                2 => Step {
                    activities: count,
                    waits: Some(0),
                    ..Step::go_on(list(
                        activity("echo", input).trim_matches(['[', ']']),
                        count,
                    ))
                },
                _ if total == 2 + bundle.map_or(0, |(_, work)| (1 + work.len()) * count) => {
                    Step::end(input)
                }
                _ => Step::go_on("[]".to_owned()),
            },
            Self::Growing(count) => match (total - 2) / GROWTH {
                _ if !(total - 2).is_multiple_of(GROWTH) => return unexpected(),
                grown if grown < count => Step {
                    waits: Some(grown),
                    ..Step::go_on(list(&marker(), GROWTH - 1))
                },
                _ => Step::end(input),
            },
            Self::Hot(count) => match total - 2 {
                0 => Step {
                    waits: Some(0),
                    ..Step::go_on("[]".to_owned())
                },
                had if had >= count => Step::end(input),
                _ => Step::go_on("[]".to_owned()),
            },
        })
    }

    /// What an activity of this shape returns: its arguments, or something short.
    pub fn activity_result(activity_type: &str, arguments: &str) -> String {
        if activity_type == "short" {
            let blob = text_blob(&"x".repeat(SHORT));
            return format!(r#"{{"codec":"avro","blob":"{blob}"}}"#);
        }
        arguments.to_owned()
    }

    /// Whether a worker reads the whole history, page by page, before it goes on.
    pub fn reads_everything(self) -> bool {
        self == Self::Replay
    }

    /// Compares events from the middle of a history with what they must be.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_page(self, after: usize, events: &[Event<'_>]) -> Result<(), String> {
        let found: Vec<&str> = events.iter().map(|event| event.event_type).collect();
        let expected = self.events();
        match expected.get(after..after + found.len()) {
            Some(expected) if expected == found => Ok(()),
            other => Err(differs(self, other.unwrap_or_default(), &found)),
        }
    }

    /// Whether the workload, not the starter, makes it go on.
    pub fn is_pushed_by_others(self) -> bool {
        self.bundle().is_some() || matches!(self, Self::Held | Self::Hot(_))
    }

    /// Whether the output must be the input.
    pub fn echoes(self) -> bool {
        self != Self::Chain(5)
    }
}

fn differs(shape: Shape, expected: &[&str], found: &[&str]) -> String {
    let at = expected
        .iter()
        .zip(found)
        .take_while(|(one, other)| one == other)
        .count();
    format!(
        "{}: event {} is {:?} and must be {:?} ({} of {} events)",
        shape.name(),
        at + 1,
        found.get(at),
        expected.get(at),
        found.len(),
        expected.len()
    )
}

fn list(command: &str, count: usize) -> String {
    let mut all = String::with_capacity((command.len() + 1) * count + 2);
    all.push('[');
    for n in 0..count {
        if n > 0 {
            all.push(',');
        }
        all.push_str(command);
    }
    all.push(']');
    all
}

fn activity(kind: &str, input: &str) -> String {
    format!(r#"[{{"type":"schedule_activity","activity_type":"{kind}","arguments":{input}}}]"#)
}

fn marker() -> String {
    format!(
        r#"{{"type":"record_side_effect","result":{{"codec":"avro","blob":"{}"}}}}"#,
        text_blob("a marker of some bytes")
    )
}

fn wait(number: usize) -> Step {
    Step {
        waits: Some(number),
        ..Step::go_on(format!(
            r#"[{{"type":"open_signal_wait","signal_name":"s{number}"}}]"#
        ))
    }
}

/// The result of the last activity, as an envelope.
fn result<'a>(events: &[Event<'a>]) -> Result<&'a str, String> {
    let last = events
        .iter()
        .rev()
        .find(|event| event.event_type == "ActivityCompleted")
        .ok_or("there is no completed activity")?;
    let payload: ResultOf<'a> = serde_json::from_str(last.payload.get())
        .map_err(|error| format!("a completed activity without a result: {error}"))?;
    Ok(payload.result.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Shape> {
        Shape::usual().chain([
            Shape::Wide(3),
            Shape::Beating(2),
            Shape::Hot(4),
            Shape::Growing(2),
            Shape::Chain(7),
        ])
    }

    #[test]
    fn a_name_stands_for_its_shape() {
        for shape in all() {
            assert_eq!(Shape::of(&shape.name()), Some(shape));
        }
        assert_eq!(Shape::of("chain-x"), None);
    }

    /// A shape takes these events with none of them missing, and none of them twice.
    #[track_caller]
    fn needs_each_once(shape: Shape, events: &[&'static str]) {
        for at in 0..events.len() {
            let mut missing = events.to_vec();
            let event = missing.remove(at);
            assert!(shape.check(&missing).is_err(), "{shape:?} without {at}");
            let mut twofold = events.to_vec();
            twofold.insert(at, event);
            assert!(shape.check(&twofold).is_err(), "{shape:?} with {at} twice");
        }
    }

    #[test]
    fn what_is_missing_twofold_or_out_of_order_is_found() {
        for shape in all().filter(|shape| shape.bundle().is_none()) {
            let events = shape.events();
            assert_eq!(shape.check(&events), Ok(()));
            needs_each_once(shape, &events);
            let mut swapped = events.clone();
            swapped.swap(0, 1);
            assert!(shape.check(&swapped).is_err(), "{shape:?} swapped");
        }
    }

    #[test]
    fn a_bundle_has_each_event_of_each_activity_once() {
        for shape in [Shape::Wide(2), Shape::Beating(2)] {
            let mut events = shape.events();
            for event in shape.bundle().map_or(&[][..], |(_, work)| work) {
                events.extend([event, event]);
            }
            events.push("WorkflowCompleted");
            assert_eq!(shape.check(&events), Ok(()));
            needs_each_once(shape, &events);
        }
    }

    #[test]
    fn a_page_is_compared_with_its_place() {
        let page = |json: &str| {
            let events: Vec<Event<'_>> = serde_json::from_str(json).unwrap_or_default();
            Shape::Simple.check_page(1, &events)
        };
        let started = r#"{"event_type": "WorkflowStarted", "payload": {}}"#;
        let completed = r#"{"event_type": "WorkflowCompleted", "payload": {}}"#;
        assert_eq!(page(&format!("[{started},{completed}]")), Ok(()));
        assert!(page(&format!("[{completed}]")).is_err());
        assert!(page(&format!("[{started},{completed},{completed}]")).is_err());
    }
}
