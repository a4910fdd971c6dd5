//! Median and range of a figure that was taken several times.

use crate::bench::short;

/// What several rounds say of one figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// Nothing for no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], upper)
        } else {
            upper
        };
        Some(Self {
            median,
            least: *values.first()?,
            most: *values.last()?,
        })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!(
            "{} ({}–{})",
            short(self.median),
            short(self.least),
            short(self.most)
        );
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: &[f64]) -> Option<(f64, f64, f64)> {
        Spread::of(values.iter().copied()).map(|of| (of.median, of.least, of.most))
    }

    #[test]
    fn a_median_is_in_the_middle_and_a_range_reaches_from_end_to_end() {
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[4.0]), Some((4.0, 4.0, 4.0)));
        assert_eq!(spread(&[9.0, 1.0, 2.0]), Some((2.0, 1.0, 9.0)));
        assert_eq!(spread(&[8.0, 1.0, 4.0, 2.0]), Some((3.0, 1.0, 8.0)));
    }

    #[test]
    fn it_is_shown_with_its_range_and_keeps_to_its_column() {
        let shown = Spread::of([1_500.0, 1_000.0, 2_000.4]).map(|of| format!("{of:>20}|"));
        assert_eq!(shown.as_deref(), Some("    1500 (1000–2000)|"));
    }
}
