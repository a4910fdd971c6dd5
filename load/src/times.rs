//! Times as the protocol writes them, as numbers.

/// Days before each month of a year that begins in March.
const DAYS: [u32; 12] = [0, 31, 61, 92, 122, 153, 184, 214, 245, 275, 306, 337];

/// Seconds since 2000-03-01 of a time in UTC, such as `2026-11-30T04:30:46.250000Z`.
pub fn seconds(text: &str) -> Option<f64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<u32>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':');
    let (hour, minute, second) = (time.next()?, time.next()?, time.next()?);
    let years = year.checked_sub(2_000 + u32::from(month < 3))?;
    let leaps = years / 4 - years / 100 + years / 400;
    let month = usize::try_from((month + 9) % 12).ok()?;
    let days = years * 365 + leaps + DAYS[month] + day.checked_sub(1)?;
    let whole = hour.parse::<f64>().ok()? * 3_600.0 + minute.parse::<f64>().ok()? * 60.0;
    Some(f64::from(days) * 86_400.0 + whole + second.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_follow_each_other() {
        let day = |text: &str| seconds(&format!("{text}T00:00:00.000000Z"));
        for (one, next) in [
            ("2000-03-31", "2000-04-01"),
            ("2024-02-28", "2024-02-29"),
            ("2024-02-29", "2024-03-01"),
            ("2025-02-28", "2025-03-01"),
            ("2026-07-31", "2026-08-01"),
            ("2026-11-30", "2026-12-01"),
            ("2026-12-31", "2027-01-01"),
            ("2100-02-28", "2100-03-01"),
        ] {
            assert_eq!(day(one).map(|at| at + 86_400.0), day(next), "{one}");
        }
    }

    #[test]
    fn parts_of_seconds_count() {
        let (one, other) = (
            seconds("2026-11-30T23:59:59.750000Z"),
            seconds("2026-12-01T00:00:01.000000Z"),
        );
        assert_eq!(one.map(|at| at + 1.25), other);
        for wrong in ["", "2026-11-30", "2026-11-30T01:02:03", "x-1-1T0:0:0Z"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
