//! The error message for users: what was being done, then why it failed, each once.
//!
//! Messages of library errors already include their causes, so the causes that anyhow would append are left out.
//! Settings of the library are named by their options.

/// The error and its causes in one line.
pub fn worded(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(named) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

/// An error in words. A field of the library's settings is called as its option.
fn named(cause: &(dyn std::error::Error + 'static)) -> String {
    // An error with its place holds the other in a box, which is what the chain goes through.
    let boxed = || cause.downcast_ref::<Box<clearshot::Error>>().map(|e| &**e);
    match cause.downcast_ref::<clearshot::Error>().or_else(boxed) {
        Some(clearshot::Error::Setting { key, why }) => {
            format!("{}: {}", option(key), why.replace("(allow_binning)", "(--allow-binning)"))
        }
        Some(clearshot::Error::Value { key, value, why }) => format!("{} {value}: {why}", option(key)),
        Some(clearshot::Error::Missing { key, field, what }) => {
            format!("{}: {}, {what}, is needed", option(key), option(field))
        }
        Some(clearshot::Error::At { place, source }) => format!("{place}: {}", named(&**source)),
        Some(e @ clearshot::Error::Other { .. }) => format!("{e} (--force)"),
        _ => cause.to_string(),
    }
}

/// The option that sets a field; a few have names of their own.
fn option(field: &str) -> String {
    let name = match field {
        "only" => "method",
        "picture" => "png",
        field => field,
    };
    format!("--{}", name.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::worded;
    use anyhow::Context;

    #[derive(Debug)]
    struct Part(std::io::Error);

    impl std::fmt::Display for Part {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "part 1 of 2: {}", self.0)
        }
    }

    impl std::error::Error for Part {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn causes_are_printed_once() {
        let disk = || std::io::Error::other("the disk is full");
        let error = anyhow::Error::from(Part(disk())).context("a.tif");
        assert_eq!(worded(&error), "a.tif: part 1 of 2: the disk is full");
        let error = Err::<(), _>(disk()).context("b.tif").expect_err("an error");
        assert_eq!(worded(&error), "b.tif: the disk is full");
        let setting = clearshot::Error::Setting { key: "save_samples", why: "no".into() };
        let at = clearshot::Error::At { place: "c.tif".into(), source: Box::new(setting) };
        assert_eq!(worded(&at.into()), "c.tif: --save-samples: no");
    }
}
