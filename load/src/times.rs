//! Times as the protocol writes them, as numbers.

/// Seconds since 1970 of a time such as `2026-11-30T04:30:46.250000Z` (RFC 3339).
pub fn seconds(text: &str) -> Option<f64> {
    let time = chrono::DateTime::parse_from_rfc3339(text).ok()?;
    Some(time.timestamp_micros() as f64 / 1e6)
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
