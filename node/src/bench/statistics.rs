//! What is said of many measurements.

/// The value in the middle, the upper one of two; `None` of none.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Rounded to `digits` behind the point: more would only look precise.
pub(crate) fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0]), Some(4.0));
    }

    #[test]
    fn digits() {
        assert!((rounded(1.2345, 2) - 1.23).abs() < 1e-9);
        assert!((rounded(1234.5, 0) - 1235.0).abs() < 1e-9);
    }
}
