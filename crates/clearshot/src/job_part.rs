//! The part of a run that one job does: `3/8` as written, or the number from a scheduler; and the assignment of files
//! to parts. Every job computes the same assignment from the names and sizes of all files.

use crate::error::{Error, Result};
use clearshot_image::Image;
use clearshot_image::address::is_address;
use std::fmt;
use std::path::Path;

/// More parts than any scheduler has jobs in one array.
const MOST_PARTS: usize = 1_000_000;

/// One part of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPart {
    /// From 0 on.
    index: usize,
    count: usize,
}

/// The variables that a scheduler sets for the jobs of an array.
struct Scheduler {
    name: &'static str,
    index: &'static str,
    /// The jobs of the array, where it says so.
    count: Option<&'static str>,
    /// The number of the first job, and the step between numbers, where they may be others than 0 and 1.
    first: Option<&'static str>,
    step: Option<&'static str>,
}

const SCHEDULERS: [Scheduler; 3] = [
    Scheduler {
        name: "Slurm",
        index: "SLURM_ARRAY_TASK_ID",
        count: Some("SLURM_ARRAY_TASK_COUNT"),
        first: Some("SLURM_ARRAY_TASK_MIN"),
        step: Some("SLURM_ARRAY_TASK_STEP"),
    },
    Scheduler {
        name: "AWS Batch",
        index: "AWS_BATCH_JOB_ARRAY_INDEX",
        count: Some("AWS_BATCH_JOB_ARRAY_SIZE"),
        first: None,
        step: None,
    },
    Scheduler { name: "Kubernetes", index: "JOB_COMPLETION_INDEX", count: None, first: None, step: None },
];

impl JobPart {
    /// Reads `3/8` (the third of eight), `auto` (number and count from the scheduler) or `auto/8` (the number from the
    /// scheduler, from 0 on, and the count as written). `variable` looks up environment variables. Also returns the
    /// variable that the number was taken from, if any.
    ///
    /// # Errors
    /// If the text has another form, or the scheduler does not provide enough information.
    pub fn read(
        text: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<(JobPart, Option<&'static str>)> {
        let refused = |why: String| Error::Value { key: "part", value: text.into(), why };
        let (part, count) = match text.trim().split_once('/') {
            Some((part, count)) => (part.trim(), Some(count.trim())),
            None => (text.trim(), None),
        };
        let count = match count.map(str::parse::<usize>) {
            None => None,
            Some(Ok(count)) if (1..=MOST_PARTS).contains(&count) => Some(count),
            Some(_) => {
                return Err(refused(format!("write the number of parts as a number from 1 to {MOST_PARTS}")));
            }
        };
        if part == "auto" {
            return from_scheduler(count, variable).map_err(refused);
        }
        let (Ok(number), Some(count)) = (part.parse::<usize>(), count) else {
            return Err(refused(
                "write a part and how many there are, as in 3/8, or auto in a job array".into(),
            ));
        };
        match number {
            0 => Err(refused(format!("parts are counted from 1 to {count}"))),
            n if n > count => Err(refused(format!("there are {count} parts, and this would be part {n}"))),
            n => Ok((JobPart { index: n - 1, count }, None)),
        }
    }

    /// The scheduler whose job array this process belongs to, if the array has several jobs.
    pub fn scheduler(variable: impl Fn(&str) -> Option<String>) -> Option<&'static str> {
        let (part, _) = from_scheduler(None, &variable).ok()?;
        let found = SCHEDULERS.iter().find(|s| variable(s.index).is_some())?;
        (part.count > 1).then_some(found.name)
    }

    /// The number of this part, from 0 on.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The number of parts.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl fmt::Display for JobPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index + 1, self.count)
    }
}

fn from_scheduler(
    written: Option<usize>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(JobPart, Option<&'static str>), String> {
    let Some(scheduler) = SCHEDULERS.iter().find(|s| variable(s.index).is_some()) else {
        let names: Vec<&str> = SCHEDULERS.iter().map(|s| s.index).collect();
        return Err(format!(
            "no job array was found: none of {} is set; write the part, as in 3/8",
            names.join(", ")
        ));
    };
    let number = |name: &str| -> Result<Option<usize>, String> {
        let Some(text) = variable(name) else { return Ok(None) };
        let read = text.trim().parse().map(Some);
        read.map_err(|_| format!("the variable {name} is {text:?}, which is not a number of 0 or more"))
    };
    let optional = |name: Option<&str>| name.map_or(Ok(None), number);
    let id = number(scheduler.index)?.unwrap_or(0);
    let (index, count) = match (written, optional(scheduler.count)?) {
        // So that one job of an array can be started again by its number.
        (Some(count), _) => (id, count),
        (None, Some(count)) => {
            let (first, step) =
                (optional(scheduler.first)?.unwrap_or(0), optional(scheduler.step)?.unwrap_or(1));
            let from_first = id.checked_sub(first).filter(|n| step > 0 && n.is_multiple_of(step));
            let index = from_first.map(|n| n / step);
            let uneven = || {
                format!(
                    "job {id} of {} with {count} jobs from {first} on: their numbers do not follow each other; write the count, as in auto/{count}, and number the jobs from 0 on",
                    scheduler.name
                )
            };
            (index.filter(|i| *i < count).ok_or_else(uneven)?, count)
        }
        (None, None) => {
            return Err(format!(
                "{} gives the number of this job ({}) but not how many jobs there are; write their count, as in auto/8",
                scheduler.name, scheduler.index
            ));
        }
    };
    if index >= count {
        return Err(format!(
            "{} is {index}, and {count} parts have the numbers 0 to {}",
            scheduler.index,
            count.saturating_sub(1)
        ));
    }
    Ok((JobPart { index, count }, Some(scheduler.index)))
}

/// The size of a file in bytes: its length, or the size of its pixels for a folder of chunks. `None` if this would need
/// a request to a server, or is unknown.
pub fn size_of(path: &Path) -> Option<u64> {
    if is_address(path) {
        return None;
    }
    let about = std::fs::metadata(path).ok()?;
    match about.is_dir() {
        false => Some(about.len()),
        true => {
            let image = Image::open(path).ok()?;
            image.shape().iter().try_fold(image.dtype().bytes() as u64, |n, &m| n.checked_mul(m as u64))
        }
    }
}

/// The part of each file: the largest files first, each to the part with the fewest bytes so far. Unknown sizes count
/// as the mean of the others.
pub fn shares(sizes: &[Option<u64>], count: usize) -> Vec<usize> {
    let known: Vec<u64> = sizes.iter().flatten().copied().collect();
    let mean = known.iter().map(|&n| u128::from(n)).sum::<u128>() / known.len().max(1) as u128;
    // A file of no bytes is work too.
    let weight = |n: usize| sizes[n].map_or(mean, u128::from).max(1);
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&n| (std::cmp::Reverse(weight(n)), n));
    // Parts by what they have, the emptiest first.
    let mut parts: std::collections::BTreeSet<(u128, usize)> = (0..count).map(|part| (0, part)).collect();
    let mut shares = vec![0; sizes.len()];
    for n in order {
        let Some((bytes, part)) = parts.pop_first() else { return shares };
        shares[n] = part;
        parts.insert((bytes + weight(n), part));
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, set: &[(&str, &str)]) -> Result<(String, Option<&'static str>), String> {
        let variable = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        JobPart::read(text, variable).map(|(part, from)| (part.to_string(), from)).map_err(|e| e.to_string())
    }

    #[test]
    fn parts_are_read_as_they_are_written() {
        assert_eq!(read("3/8", &[]), Ok(("3/8".into(), None)));
        assert_eq!(read(" 1 / 1 ", &[("SLURM_ARRAY_TASK_ID", "7")]), Ok(("1/1".into(), None)));
        for (text, words) in [
            ("0/8", "counted from 1"),
            ("9/8", "there are 8 parts"),
            ("3/0", "from 1 to"),
            ("3/-1", "from 1 to"),
            ("3/x", "from 1 to"),
            ("x/8", "3/8"),
            ("3", "3/8"),
            ("", "3/8"),
            ("-1/8", "3/8"),
            ("auto", "SLURM_ARRAY_TASK_ID"),
            ("3/99999999999999999999", "from 1 to"),
        ] {
            let said = read(text, &[]).expect_err(text);
            assert!(said.contains(words) && said.contains("part"), "{text}: {said}");
        }
    }

    #[test]
    fn schedulers_say_which_part_a_job_has() {
        let slurm = |id, count, min, step| {
            [
                ("SLURM_ARRAY_TASK_ID", id),
                ("SLURM_ARRAY_TASK_COUNT", count),
                ("SLURM_ARRAY_TASK_MIN", min),
                ("SLURM_ARRAY_TASK_STEP", step),
            ]
        };
        let from = Some("SLURM_ARRAY_TASK_ID");
        assert_eq!(read("auto", &slurm("0", "8", "0", "1")), Ok(("1/8".into(), from)));
        assert_eq!(read("auto", &slurm("8", "8", "1", "1")), Ok(("8/8".into(), from)));
        assert_eq!(read("auto", &slurm("14", "8", "0", "2")), Ok(("8/8".into(), from)));
        // Jobs 3 and 6 of 8 again: with the count they are what they were, without it something else.
        assert_eq!(read("auto/8", &slurm("6", "2", "3", "3")), Ok(("7/8".into(), from)));
        assert!(read("auto", &slurm("7", "2", "3", "1")).is_err_and(|e| e.contains("follow each other")));
        assert!(read("auto", &slurm("3", "8", "4", "1")).is_err_and(|e| e.contains("follow each other")));
        assert!(read("auto/8", &slurm("8", "8", "1", "1")).is_err_and(|e| e.contains("0 to 7")));
        assert!(read("auto", &slurm("a", "8", "0", "1")).is_err_and(|e| e.contains("\"a\"")));
        assert!(read("auto", &slurm("1", "8", "0", "0")).is_err());
        let aws = [("AWS_BATCH_JOB_ARRAY_INDEX", "2"), ("AWS_BATCH_JOB_ARRAY_SIZE", "4")];
        assert_eq!(read("auto", &aws), Ok(("3/4".into(), Some("AWS_BATCH_JOB_ARRAY_INDEX"))));
        let kubernetes = [("JOB_COMPLETION_INDEX", "0")];
        assert_eq!(read("auto/2", &kubernetes), Ok(("1/2".into(), Some("JOB_COMPLETION_INDEX"))));
        assert!(read("auto", &kubernetes).is_err_and(|e| e.contains("auto/8")));
    }

    /// Every file has one part; no part has more than the mean and the largest file; nothing depends on who asks.
    #[test]
    fn files_are_shared_out_by_their_sizes() {
        let mut state = 1u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 44
        };
        for (files, count) in [(0, 3), (1, 8), (8, 8), (100, 7), (1000, 64)] {
            let sizes: Vec<Option<u64>> = (0..files).map(|_| Some(draw())).collect();
            let shares = shares(&sizes, count);
            assert!(shares.len() == files && shares.iter().all(|s| *s < count));
            let total: u64 = sizes.iter().flatten().sum();
            let largest = sizes.iter().flatten().max().copied().unwrap_or(0);
            for part in 0..count {
                let own: u64 = (0..files).filter(|&n| shares[n] == part).filter_map(|n| sizes[n]).sum();
                assert!(own <= total / count as u64 + largest + 1, "{files} files, part {part} of {count}");
            }
        }
        // Unknown sizes count as the mean of 30, so that the two fill a part each.
        assert_eq!(shares(&[Some(50), None, Some(10), None], 2), [0, 1, 0, 1]);
        assert_eq!(shares(&[None; 4], 2), [0, 1, 0, 1]);
        assert_eq!(shares(&[Some(0); 4], 4), [0, 1, 2, 3]);
    }
}
