//! Points in time as the database keeps them: UTC, to the microsecond.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MICROS_PER_MILLI: i64 = 1_000;
const MICROS_PER_SECOND: i64 = 1_000_000;

/// Microseconds since 1970-01-01T00:00:00Z.
///
/// Written as `2026-07-18T00:40:00.000000Z`, always with six digits, because clients compare the
/// text. Arithmetic saturates, so no timeout that a caller sends can overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// The latest point in time that PostgreSQL and RFC 3339 can both write: the end of the year 9999.
const LATEST: i64 = 253_402_300_799_999_999;

impl Timestamp {
    /// The beginning of 1970, earlier than anything here.
    pub const EPOCH: Self = Self(0);

    /// Whether a text is a date and time with an offset (RFC 3339).
    pub fn is_rfc3339(text: &str) -> bool {
        DateTime::parse_from_rfc3339(text).is_ok()
    }

    /// From microseconds since the epoch, held inside the years 1970 to 9999.
    pub fn from_micros(micros: i64) -> Self {
        Self(micros.clamp(0, LATEST))
    }

    /// Microseconds since the epoch.
    pub fn micros(self) -> i64 {
        self.0
    }

    /// Milliseconds since the epoch, as ULIDs count them.
    pub fn millis(self) -> u64 {
        u64::try_from(self.0 / MICROS_PER_MILLI).unwrap_or_default()
    }

    /// This time and `seconds` more.
    pub fn plus_seconds(self, seconds: u64) -> Self {
        let micros = i64::try_from(seconds)
            .unwrap_or(i64::MAX)
            .saturating_mul(MICROS_PER_SECOND);
        Self::from_micros(self.0.saturating_add(micros))
    }

    /// This time and `millis` more.
    pub fn plus_millis(self, millis: u64) -> Self {
        let micros = i64::try_from(millis)
            .unwrap_or(i64::MAX)
            .saturating_mul(MICROS_PER_MILLI);
        Self::from_micros(self.0.saturating_add(micros))
    }

    /// Milliseconds from `earlier` to this time; 0 when `earlier` is later.
    pub fn millis_since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0) / MICROS_PER_MILLI).unwrap_or_default()
    }

    /// The same time as a chrono value, for SQL.
    pub fn to_chrono(self) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(self.0).unwrap_or_default()
    }
}

impl From<DateTime<Utc>> for Timestamp {
    fn from(time: DateTime<Utc>) -> Self {
        Self::from_micros(time.timestamp_micros())
    }
}

/// Characters of a time as text.
const TEXT_LENGTH: usize = 27;
const SECONDS_PER_DAY: i64 = 86_400;

/// Writes `digits` of a number, leading zeros included, so that they end before `end`.
fn put(text: &mut [u8; TEXT_LENGTH], end: usize, digits: usize, mut number: i64) {
    for place in (end - digits..end).rev() {
        text[place] = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

impl Timestamp {
    /// The text of it. Every event and every answer has several, so it is written without the detour
    /// over a calendar library; the date is computed as in Howard Hinnant's `civil_from_days`.
    pub fn text(self) -> [u8; TEXT_LENGTH] {
        let (seconds, micros) = (self.0 / MICROS_PER_SECOND, self.0 % MICROS_PER_SECOND);
        let (days, of_day) = (seconds / SECONDS_PER_DAY, seconds % SECONDS_PER_DAY);
        // Days since 0000-03-01, in eras of 400 years; years begin in March.
        let shifted = days + 719_468;
        let (era, of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 {
            from_march + 3
        } else {
            from_march - 9
        };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        put(&mut text, 4, 4, year);
        put(&mut text, 7, 2, month);
        put(&mut text, 10, 2, day);
        put(&mut text, 13, 2, of_day / 3_600);
        put(&mut text, 16, 2, of_day / 60 % 60);
        put(&mut text, 19, 2, of_day % 60);
        put(&mut text, 26, 6, micros);
        text
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl FromStr for Timestamp {
    type Err = chrono::ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        DateTime::parse_from_rfc3339(text).map(|time| time.with_timezone(&Utc).into())
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(std::str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_with_six_digits_and_read_back() {
        let time = Timestamp::from_micros(1_784_335_200_000_000);
        assert_eq!(time.to_string(), "2026-07-18T00:40:00.000000Z");
        assert_eq!(time.to_string().parse(), Ok(time));
    }

    #[test]
    fn the_text_is_what_the_calendar_says() {
        let day = 86_400_000_000;
        let mut micros = 0;
        while micros <= LATEST {
            let time = Timestamp::from_micros(micros);
            let calendar = time
                .to_chrono()
                .to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
            assert_eq!(time.to_string(), calendar);
            // Every day of the range, each at another time of the day.
            micros += day + 7_654_321;
        }
        assert_eq!(
            Timestamp::from_micros(i64::MAX).to_string(),
            "9999-12-31T23:59:59.999999Z"
        );
    }

    #[test]
    fn arithmetic_never_leaves_the_range() {
        let time = Timestamp::from_micros(1)
            .plus_seconds(u64::MAX)
            .plus_millis(u64::MAX);
        assert_eq!(time.to_string(), "9999-12-31T23:59:59.999999Z");
        assert_eq!(Timestamp::from_micros(5).millis_since(time), 0);
    }
}
