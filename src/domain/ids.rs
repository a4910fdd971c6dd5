//! Identifiers: who they name, how they are written, and how one is derived from another.
//!
//! Runs have ULIDs. Everything inside a run is numbered by the run itself, and its id is the run's
//! id, a letter and that number (`01J…-a3`), so that an id tells where it belongs without a look-up
//! and a decision needs no source of chance.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::time::Timestamp;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes the text as it is; its rules were checked where it came in.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }
    };
}

text_id! {
    /// Isolation unit of workers, queues and workflows; lower case.
    Namespace
}
text_id! {
    /// The caller's name of a workflow; unique in its namespace.
    WorkflowId
}
text_id! {
    /// A named queue that workers poll.
    TaskQueue
}
text_id! {
    /// A worker's name of itself; unique in its namespace.
    WorkerId
}

const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// What no character of an id stands for.
const NO_DIGIT: u8 = 32;
/// What each byte stands for.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut digit = 0;
    while digit < CROCKFORD.len() {
        digits[CROCKFORD[digit] as usize] = digit as u8;
        digit += 1;
    }
    digits
};
const ULID_LENGTH: usize = 26;
const RANDOM_BITS: u32 = 80;
const RANDOM_MASK: u128 = (1 << RANDOM_BITS) - 1;

/// One run of a workflow: a ULID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(u128);

impl RunId {
    /// A new id from a time and at least 80 random bits.
    pub fn new(now: Timestamp, random: u128) -> Self {
        Self((u128::from(now.millis() & ((1 << 48) - 1)) << RANDOM_BITS) | (random & RANDOM_MASK))
    }

    /// The id of a run that this run brings into being, the `n`th of its kind. It is derived, not
    /// drawn, so that the same decision made twice makes the same run.
    pub fn offspring(self, now: Timestamp, n: u64) -> Self {
        let low = mix(self.0 as u64 ^ mix(n ^ 0x9E37_79B9_7F4A_7C15));
        let high = mix((self.0 >> 64) as u64 ^ low);
        Self::new(now, (u128::from(high) << 64) | u128::from(low))
    }

    /// A number that spreads runs evenly, for lanes and shards.
    pub fn spread(self) -> u64 {
        mix(self.0 as u64)
    }
}

/// The finaliser of splitmix64: a bijection that scatters neighbouring numbers.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Characters of the longest id: a run, and two numbers or a letter and one.
const LONGEST_ID: usize = ULID_LENGTH + 1 + 1 + 20;

/// An id as text. Each request writes some dozens of them, so that is done on the stack, without the detour
/// over the formatter.
pub struct IdText {
    text: [u8; LONGEST_ID],
    length: usize,
}

impl IdText {
    fn then(mut self, character: u8) -> Self {
        self.text[self.length] = character;
        self.length += 1;
        self
    }

    fn number(mut self, mut number: u64) -> Self {
        let first = self.length;
        while {
            self = self.then(b'0' + (number % 10) as u8);
            number /= 10;
            number > 0
        } {}
        self.text[first..self.length].reverse();
        self
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..self.length]).unwrap_or_default()
    }
}

impl RunId {
    /// The id as text.
    pub fn text(self) -> IdText {
        let mut text = [0; LONGEST_ID];
        let mut rest = self.0;
        for place in text[..ULID_LENGTH].iter_mut().rev() {
            *place = CROCKFORD[(rest & 31) as usize];
            rest >>= 5;
        }
        IdText {
            text,
            length: ULID_LENGTH,
        }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().as_str())
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an id that this server could have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnId;

impl FromStr for RunId {
    type Err = NotAnId;

    /// Strict: 26 upper-case Crockford characters, as [`RunId`] writes them, so that one run has
    /// one spelling.
    fn from_str(text: &str) -> Result<Self, NotAnId> {
        if text.len() != ULID_LENGTH {
            return Err(NotAnId);
        }
        let mut value: u128 = 0;
        for (place, byte) in text.bytes().enumerate() {
            let digit = DIGITS[usize::from(byte)];
            if digit == NO_DIGIT || (place == 0 && digit > 7) {
                return Err(NotAnId);
            }
            value = (value << 5) | u128::from(digit);
        }
        Ok(Self(value))
    }
}

impl Serialize for RunId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text().as_str())
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse()
            .map_err(|NotAnId| serde::de::Error::custom("not a run id"))
    }
}

/// Number of a task inside its run, from 1; workflow and activity tasks share the count.
pub type TaskNo = u32;

/// Number of a durable step inside its run, from 1: the `payload.sequence` of its events.
pub type Step = u32;

/// A task: its run and its number, written `01J…-3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The run it belongs to.
    pub run: RunId,
    /// Its number there.
    pub no: TaskNo,
}

impl TaskId {
    /// The id as text.
    pub fn text(self) -> IdText {
        self.run.text().then(b'-').number(self.no.into())
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().as_str())
    }
}

impl FromStr for TaskId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let (run, no) = text.split_once('-').ok_or(NotAnId)?;
        Ok(Self {
            run: run.parse()?,
            no: positive(no)?,
        })
    }
}

impl Serialize for TaskId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text().as_str())
    }
}

impl<'de> Deserialize<'de> for TaskId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse()
            .map_err(|NotAnId| serde::de::Error::custom("not a task id"))
    }
}

/// One hand-out of an activity task, written `01J…-3-1`: the fence that its reports name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttemptId {
    /// The task.
    pub task: TaskId,
    /// The how-manieth hand-out, from 1.
    pub attempt: u32,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.task.text().then(b'-').number(self.attempt.into());
        f.write_str(text.as_str())
    }
}

impl FromStr for AttemptId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let (task, attempt) = text.rsplit_once('-').ok_or(NotAnId)?;
        Ok(Self {
            task: task.parse()?,
            attempt: positive(attempt)?,
        })
    }
}

/// A positive number without sign or leading zero, so that one id has one spelling.
fn positive(text: &str) -> Result<u32, NotAnId> {
    if text.starts_with(|c: char| !('1'..='9').contains(&c)) {
        return Err(NotAnId);
    }
    text.parse().map_err(|_| NotAnId)
}

/// What a numbered thing inside a run is; its letter keeps ids of different kinds apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A history event, numbered by its place in the history.
    Event,
    /// An activity execution, numbered by its task.
    Activity,
    /// A user timer, numbered by its step.
    Timer,
    /// A signal, numbered by the command that brought it.
    Signal,
    /// A command of the control plane, numbered in order of acceptance.
    Command,
    /// A failure, numbered by the event that records it.
    Failure,
    /// A link between two runs, numbered by the event that records it.
    Link,
    /// A wait for a condition or a signal, numbered by its step.
    Wait,
    /// An update, numbered by the command that brought it.
    Update,
    /// A call of a child workflow, numbered by its step.
    Call,
    /// A message of a stream, numbered by the event that records it.
    Message,
}

impl Part {
    fn letter(self) -> u8 {
        match self {
            Self::Event => b'e',
            Self::Activity => b'a',
            Self::Timer => b't',
            Self::Signal => b's',
            Self::Command => b'c',
            Self::Failure => b'f',
            Self::Link => b'l',
            Self::Wait => b'w',
            Self::Update => b'u',
            Self::Call => b'k',
            Self::Message => b'm',
        }
    }
}

/// The id of part `n` of `run`, for example `01J…-e12`.
pub fn part_id(run: RunId, part: Part, n: u64) -> String {
    part_text(run, part, n).as_str().to_owned()
}

/// [`part_id`], to be written somewhere at once.
pub fn part_text(run: RunId, part: Part, n: u64) -> IdText {
    run.text().then(b'-').then(part.letter()).number(n)
}

/// A number as text, likewise.
pub fn number_text(number: u64) -> IdText {
    let nothing = IdText {
        text: [0; LONGEST_ID],
        length: 0,
    };
    nothing.number(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_one_spelling_and_come_back() {
        let run = RunId::new(Timestamp::from_micros(1_784_335_200_000_000), u128::MAX);
        let text = run.to_string();
        assert_eq!(text.len(), 26);
        assert_eq!(text.parse(), Ok(run));
        assert_eq!(text.to_lowercase().parse::<RunId>(), Err(NotAnId));
        let task = TaskId { run, no: 3 };
        assert_eq!(task.to_string().parse(), Ok(task));
        let attempt = AttemptId { task, attempt: 12 };
        assert_eq!(attempt.to_string().parse(), Ok(attempt));
        assert_eq!(
            part_id(run, Part::Event, u64::MAX),
            format!("{text}-e18446744073709551615")
        );
        assert_eq!(part_id(run, Part::Timer, 0), format!("{text}-t0"));
        let most = AttemptId {
            task: TaskId { run, no: u32::MAX },
            attempt: u32::MAX,
        };
        assert_eq!(most.to_string(), format!("{text}-4294967295-4294967295"));
        for bad in ["", "x", "-1", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ"] {
            assert_eq!(bad.parse::<RunId>(), Err(NotAnId), "{bad}");
        }
        for bad in ["-0", "-01", "-+1", "--1", "-4294967296", "-"] {
            assert_eq!(
                format!("{run}{bad}").parse::<TaskId>(),
                Err(NotAnId),
                "{bad}"
            );
        }
    }

    #[test]
    fn offspring_differ_from_each_other_and_repeat_for_the_same_decision() {
        let now = Timestamp::from_micros(1_784_335_200_000_000);
        let run = RunId::new(now, 7);
        let ids: std::collections::BTreeSet<_> = (0..1000).map(|n| run.offspring(now, n)).collect();
        assert_eq!(ids.len(), 1000);
        assert_eq!(run.offspring(now, 5), run.offspring(now, 5));
        assert!(!ids.contains(&run));
    }
}
