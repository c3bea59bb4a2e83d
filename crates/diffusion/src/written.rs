//! Parses samplers, levels and laws as users write them: `NAME`, or `NAME:key=value,key=value` with parameters.

use crate::Error;

/// A number that something with a name takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    pub name: &'static str,
    pub about: &'static str,
    /// Its default.
    pub default: f64,
    /// Whether it counts something.
    pub whole: bool,
}

/// A number.
pub(crate) const fn number(name: &'static str, default: f64, about: &'static str) -> Setting {
    Setting { name, about, default, whole: false }
}

/// A number that counts something.
pub(crate) const fn count(name: &'static str, default: f64, about: &'static str) -> Setting {
    Setting { name, about, default, whole: true }
}

/// A key and its number, as written.
pub type Given<'t> = (&'t str, f64);

/// The name, and the numbers that are given with it.
///
/// # Errors
/// If a part is not `key=number`.
pub fn parse(text: &str) -> Result<(&str, Vec<Given<'_>>), Error> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let mut given = Vec::new();
    for part in rest.split(',').filter(|p| !p.trim().is_empty()) {
        let number = part.split_once('=').and_then(|(key, v)| Some((key.trim(), v.trim().parse().ok()?)));
        given.push(number.ok_or_else(|| Error::Setting {
            what: "a number after the name",
            got: part.to_string(),
            must: "key=number, as in ddim:eta=0.5".into(),
        })?);
    }
    Ok((name.trim(), given))
}

/// The settings' values in their order: those that are given, and the defaults of the others. `of` is what they belong to, for errors.
///
/// # Errors
/// If a setting is unknown, given twice, or not a whole number where it counts something.
pub fn values(settings: &[Setting], given: &[Given<'_>], of: &'static str) -> Result<Vec<f64>, Error> {
    let mut values: Vec<Option<f64>> = vec![None; settings.len()];
    for &(name, value) in given {
        let at = settings.iter().position(|s| s.name == name).ok_or_else(|| Error::Unknown {
            kind: of,
            name: name.into(),
            known: match settings.is_empty() {
                true => "none".into(),
                false => settings.iter().map(|s| s.name).collect::<Vec<_>>().join(", "),
            },
        })?;
        let setting = &settings[at];
        if setting.whole && !(value >= 0.0 && value.fract() == 0.0 && value <= f64::from(u32::MAX)) {
            let must = "a whole number".into();
            return Err(Error::Setting { what: setting.name, got: value.to_string(), must });
        }
        if let Some(first) = values[at].replace(value) {
            let (got, must) = (format!("{first} and {value}"), "given once".into());
            return Err(Error::Setting { what: setting.name, got, must });
        }
    }
    Ok(settings.iter().zip(values).map(|(s, v)| v.unwrap_or(s.default)).collect())
}

/// The notation of an entry with its default values; an infinite one is written as no limit.
pub fn form(name: &str, settings: &[Setting]) -> String {
    let shown: Vec<String> = settings
        .iter()
        .filter(|s| s.default.abs() < 1e9)
        .map(|s| format!("{}={}", s.name, s.default))
        .collect();
    match shown.is_empty() {
        true => name.to_string(),
        false => format!("{name}[:{}]", shown.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_with_numbers() {
        assert_eq!(parse("ddim").unwrap(), ("ddim", vec![]));
        assert_eq!(
            parse("heun:churn=40, noise=1.003").unwrap(),
            ("heun", vec![("churn", 40.0), ("noise", 1.003)])
        );
        for wrong in ["ddim:eta", "ddim:eta=much", "ddim:=3=4"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        const TWO: &[Setting] = &[number("eta", 0.0, ""), count("n", 3.0, "")];
        assert_eq!(values(TWO, &[("n", 5.0)], "setting").unwrap(), [0.0, 5.0]);
        for wrong in [("m", 1.0), ("n", 1.5), ("n", -1.0)] {
            assert!(values(TWO, &[wrong], "setting").is_err(), "{wrong:?}");
        }
        assert!(values(TWO, &[("eta", 0.1), ("eta", 0.2)], "setting").is_err());
        assert_eq!(form("x", TWO), "x[:eta=0,n=3]");
        assert_eq!(form("x", &[]), "x");
    }
}
