//! Numbers in messages: with decimals where these say something, and with an exponent where they would be zeros, or digits without
//! end. Images come in counts, in fluxes of 1e-26 and in fractions of a type's range, so no number of decimals serves all.

/// The number with so many decimals; where it is too small for them, or very large, with an exponent.
pub fn decimals(value: f64, places: usize) -> String {
    let size = value.abs();
    let too_small = size < 5.0 * 0.1f64.powi(places as i32);
    match value != 0.0 && value.is_finite() && (too_small || size >= 1e12) {
        true => format!("{value:.3e}"),
        false => format!("{value:.places$}"),
    }
}

#[cfg(test)]
mod tests {
    use super::decimals;

    #[test]
    fn digits_say_something() {
        assert_eq!(decimals(0.4567, 3), "0.457");
        assert_eq!(decimals(0.0, 3), "0.000");
        assert_eq!(decimals(-65535.0, 6), "-65535.000000");
        assert_eq!(decimals(4.0123e-11, 6), "4.012e-11");
        assert_eq!(decimals(1.9e301, 6), "1.900e301");
        assert_eq!(decimals(f64::INFINITY, 2), "inf");
    }
}
