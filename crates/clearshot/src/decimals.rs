//! Formats numbers in messages: with decimals if these are informative, and with an exponent if they would be zeros or
//! too many digits. Images may be in counts, in fluxes of 1e-26 or in fractions of a type's range, so no fixed number
//! of decimals is suitable.

/// The number with this many decimals; with an exponent if all of them would be zeros, below 0.001, and from 1e12 on.
pub fn decimals(value: f64, places: usize) -> String {
    let plain = format!("{value:.places$}");
    let is_zero = !plain.contains(|c: char| ('1'..='9').contains(&c));
    match value != 0.0 && value.is_finite() && (is_zero || !(1e-3..1e12).contains(&value.abs())) {
        true => format!("{value:.3e}"),
        false => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::decimals;

    #[test]
    fn digits_say_something() {
        assert_eq!(decimals(0.4567, 3), "0.457");
        assert_eq!(decimals(0.0, 3), "0.000");
        assert_eq!((decimals(0.3, 1), decimals(-0.06, 1)), ("0.3".into(), "-0.1".into()));
        assert_eq!((decimals(0.04, 1), decimals(-0.04, 2)), ("4.000e-2".into(), "-0.04".into()));
        assert_eq!((decimals(0.0012, 4), decimals(0.0008, 4)), ("0.0012".into(), "8.000e-4".into()));
        assert_eq!(decimals(-65535.0, 6), "-65535.000000");
        assert_eq!(decimals(4.0123e-11, 6), "4.012e-11");
        assert_eq!(decimals(1.9e301, 6), "1.900e301");
        assert_eq!(decimals(f64::INFINITY, 2), "inf");
    }
}
