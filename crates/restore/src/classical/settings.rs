//! The settings of the denoisers by name, so that a program can list and change them.
//!
//! Each method names its fields once; listing and setting both go through that. Ranges are checked when a method runs.

use super::Method;
use crate::RestoreError;

/// A setting with its current value.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub key: &'static str,
    pub value: f64,
    pub about: &'static str,
}

enum Field<'a> {
    Real(&'a mut f32),
    Whole(&'a mut usize),
}

impl Method {
    fn fields(&mut self) -> Vec<(&'static str, Field<'_>, &'static str)> {
        use Field::{Real, Whole};
        match self {
            Method::Gaussian(m) => vec![("sigma", Real(&mut m.sigma), "standard deviation in pixels")],
            Method::Median(m) => {
                vec![("radius", Whole(&mut m.radius), "the box has 2 radius + 1 pixels along each axis")]
            }
            Method::Wiener(m) => {
                vec![("radius", Whole(&mut m.radius), "the box has 2 radius + 1 pixels along each axis")]
            }
            Method::NonLocalMeans(m) => vec![
                (
                    "patch-radius",
                    Whole(&mut m.patch_radius),
                    "patches have 2 radius + 1 pixels along each axis",
                ),
                (
                    "search-radius",
                    Whole(&mut m.search_radius),
                    "search radius for similar patches, in pixels",
                ),
                (
                    "strength",
                    Real(&mut m.strength),
                    "width of the weights, relative to the standard deviation of the noise",
                ),
            ],
            Method::TotalVariation(m) => vec![
                (
                    "strength",
                    Real(&mut m.strength),
                    "weight, relative to the standard deviation of the noise",
                ),
                (
                    "tolerance",
                    Real(&mut m.tolerance),
                    "stops when the energy changes by less than this fraction",
                ),
                ("most-steps", Whole(&mut m.most_steps), "largest number of steps"),
            ],
            Method::Bm3d(m) => vec![
                (
                    "threshold",
                    Real(&mut m.threshold),
                    "coefficients below this many standard deviations are set to zero (stage 1)",
                ),
                ("blocks-1", Whole(&mut m.first.blocks), "most blocks of a stack in stage 1, a power of two"),
                ("step-1", Whole(&mut m.first.step), "distance of reference blocks in stage 1"),
                (
                    "search-radius-1",
                    Whole(&mut m.first.search_radius),
                    "search radius for similar blocks in stage 1",
                ),
                (
                    "likeness-1",
                    Real(&mut m.first.likeness),
                    "largest mean squared difference of similar blocks, in variances, in stage 1",
                ),
                (
                    "blocks-2",
                    Whole(&mut m.second.blocks),
                    "most blocks of a stack in stage 2, a power of two",
                ),
                ("step-2", Whole(&mut m.second.step), "distance of reference blocks in stage 2"),
                (
                    "search-radius-2",
                    Whole(&mut m.second.search_radius),
                    "search radius for similar blocks in stage 2",
                ),
                (
                    "likeness-2",
                    Real(&mut m.second.likeness),
                    "largest mean squared difference of similar blocks, in variances, in stage 2",
                ),
            ],
        }
    }

    /// Every setting with its value.
    pub fn settings(&self) -> Vec<Setting> {
        let mut copy = *self;
        let one = |(key, field, about)| {
            let value = match field {
                Field::Real(v) => f64::from(*v),
                Field::Whole(v) => *v as f64,
            };
            Setting { key, value, about }
        };
        copy.fields().into_iter().map(one).collect()
    }

    /// Changes one setting; `value` as text.
    ///
    /// # Errors
    /// If the method does not have this setting, or the text is not a valid number for it.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), RestoreError> {
        let method = self.name();
        let mut fields = self.fields();
        let Some(place) = fields.iter().position(|f| f.0 == key) else {
            let keys: Vec<&'static str> = fields.iter().map(|f| f.0).collect();
            let nearest = keys.iter().copied().min_by_key(|k| distance(k, key)).unwrap_or("");
            return Err(RestoreError::Setting { method, key: key.into(), nearest, known: keys.join(", ") });
        };
        let (key, field, _) = &mut fields[place];
        let refused = |needed| RestoreError::SettingValue { method, key, got: value.into(), needed };
        match field {
            Field::Real(v) => {
                let parsed = value.parse::<f32>().ok().filter(|v| v.is_finite());
                **v = parsed.ok_or_else(|| refused("a number"))?;
            }
            Field::Whole(v) => **v = value.parse().map_err(|_| refused("a whole number"))?,
        }
        Ok(())
    }
}

/// How many letters must be put in, taken out or changed to come from one word to the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut above = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = above + usize::from(x != *y);
            above = row[j + 1];
            row[j + 1] = changed.min(above + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::super::METHODS;
    use super::*;

    #[test]
    fn settings_are_listed_as_they_were_set() {
        for row in &METHODS {
            assert_eq!(row.method.name(), row.name);
            let mut method = row.method;
            for setting in row.method.settings() {
                method.set(setting.key, "4").unwrap();
            }
            assert!(method.settings().iter().all(|s| s.value == 4.0), "{}", row.name);
        }
    }

    #[test]
    fn slips_are_named() {
        let mut nlm = Method::by_name("nlm").unwrap();
        let said = |m: &mut Method, k: &str, v: &str| m.set(k, v).unwrap_err().to_string();
        assert_eq!(
            said(&mut nlm, "patch_radius", "2"),
            "nlm has no setting 'patch_radius'; did you mean 'patch-radius'? There are patch-radius, search-radius, strength"
        );
        assert!(said(&mut nlm, "strenth", "2").contains("'strength'"));
        assert_eq!(
            said(&mut nlm, "search-radius", "1.5"),
            "search-radius of nlm is 1.5, and a whole number is needed"
        );
        assert!(nlm.set("strength", "NaN").is_err());
        assert_eq!([distance("kitten", "sitting"), distance("", "ab"), distance("same", "same")], [3, 2, 0]);
    }
}
