//! Sizes in bytes as written on command lines and in configurations: `4GiB`, `512 MB`, `1.5g`, `1000000`.

/// # Errors
/// If the text is not a number with a unit of bytes.
pub fn parse(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().map_err(|_| format!("`{text}` does not start with a number"))?;
    let factor: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        other => return Err(format!("`{other}` is not a unit of bytes; write for example 4GiB or 500MB")),
    };
    Ok((number * factor) as usize)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn units() {
        assert_eq!(parse("4GiB"), Ok(4 << 30));
        assert_eq!(parse("1.5 mib"), Ok(3 << 19));
        assert_eq!(parse("2MB"), Ok(2_000_000));
        assert_eq!(parse("77"), Ok(77));
        assert!(parse("GiB").is_err());
        assert!(parse("3 parsecs").is_err());
    }
}
