//! An error as users read it: what was being done, then why it failed, each said once.
//!
//! Errors of libraries tell their causes in their own words already; the causes that anyhow would append to those are left
//! out.

/// The error and its causes in one line.
pub fn worded(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
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
    fn causes_are_said_once() {
        let disk = || std::io::Error::other("the disk is full");
        let error = anyhow::Error::from(Part(disk())).context("a.tif");
        assert_eq!(worded(&error), "a.tif: part 1 of 2: the disk is full");
        let error = Err::<(), _>(disk()).context("b.tif").expect_err("an error");
        assert_eq!(worded(&error), "b.tif: the disk is full");
    }
}
