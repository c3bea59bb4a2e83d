//! The program's observer of the library: results as text or JSON lines on standard output, notices and progress on
//! standard error.

use crate::progress::Line;
use crate::restore::{Report, Shown, Trace};
use anyhow::Result;
use clearshot::{Error, Event, ImageReport, Notice, Observer, Plan, Status};
use clearshot_graph::plan::human;
use clearshot_image::{Axis, lengths};
use clearshot_train::records::console::duration;
use serde_json::{Value, json};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// What the line of a file that is done says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// How well the result explains the measurement.
    Restored,
    /// How fast it was.
    Streamed,
}

/// See the module.
pub struct Voice {
    style: Style,
    json: bool,
    quiet: bool,
    line: Line,
    input: PathBuf,
    pub report: Option<Report>,
    pub trace: Option<Trace>,
    /// What the report shows of the image at hand.
    shown: Option<Shown>,
    /// The error that ended output.
    failed: Option<anyhow::Error>,
}

impl Voice {
    pub fn new(style: Style, json: bool, quiet: bool) -> Voice {
        let (line, input) = (Line::new(String::new()), PathBuf::new());
        Voice { style, json, quiet, line, input, report: None, trace: None, shown: None, failed: None }
    }

    /// Another file begins, which the progress calls by its label.
    pub fn begin(&mut self, label: String, input: &Path) {
        self.line = Line::new(label);
        self.input = input.to_path_buf();
    }

    /// A file ends; an error that made the library stop takes the place of its own.
    ///
    /// # Errors
    /// Why it failed.
    pub fn end<T>(&mut self, outcome: Result<T, Error>) -> Result<T> {
        self.line.end();
        match (outcome, self.failed.take()) {
            (Err(Error::Stopped), Some(why)) => Err(why),
            (outcome, _) => Ok(outcome?),
        }
    }

    /// A line for people, and the same as JSON.
    ///
    /// # Errors
    /// If the message cannot be written.
    pub fn say(&self, text: &str, record: Value) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match (self.json, self.quiet) {
            (true, _) => writeln!(out, "{record}")?,
            (false, false) => writeln!(out, "{text}")?,
            (false, true) => {}
        }
        Ok(())
    }

    /// Something to know about a file.
    fn note(&self, input: &Path, text: &str) {
        if !self.quiet {
            eprintln!("clearshot: {}: {text}", input.display());
        }
    }

    fn hear(&mut self, image: &Path, event: &Event<'_>) -> Result<()> {
        match event {
            Event::Notice(
                notice @ (Notice::FramesAveraged { along, mean } | Notice::FramesAlone { along, mean }),
            ) => {
                let what = if *along == Axis::Z { "stack" } else { "movie" };
                let record = json!({"event": what, "input": image, "exposures": mean});
                self.say(&worded(notice), record)
            }
            Event::Notice(notice @ Notice::Colours) => {
                self.say(&worded(notice), json!({"event": "colours", "input": image}))
            }
            Event::Notice(notice) => {
                self.note(image, &worded(notice));
                Ok(())
            }
            Event::Volume { model, planes } => self.say(
                &format!(
                    "a stack of {planes} planes, restored as a volume by the model {model}; --planes restores plane by plane"
                ),
                json!({"event": "volume", "input": image, "model": model, "planes": planes}),
            ),
            Event::Plan(plan) => self.plan(image, plan),
            Event::Precision(settled) => self.say(
                &format!("precision: {}", settled.in_words()),
                json!({"event": "precision", "input": image, "precision": settled}),
            ),
            Event::Choice { exposures: None, choice } => self.say(
                &format!("restored by: {}", choice.in_words()),
                json!({"event": "choice", "input": image, "choice": choice}),
            ),
            Event::Choice { exposures: Some(exposures), choice } => self.say(
                &format!("means of {exposures} exposures are restored by: {}", choice.in_words()),
                json!({"event": "choice", "input": image, "exposures": exposures, "choice": choice}),
            ),
            Event::Guided { number, steps } => match &mut self.trace {
                Some(trace) => trace.add(image, *number, steps),
                None => Ok(()),
            },
            Event::Middle(middle) => {
                if self.report.is_some() {
                    self.shown = Some(Shown::of(image, middle)?);
                }
                Ok(())
            }
            Event::Done(report) => self.done(image, report),
            _ => Ok(()),
        }
    }

    /// What restoring will take.
    fn plan(&self, input: &Path, plan: &Plan<'_>) -> Result<()> {
        let device = plan.device.to_string();
        let Some(forecast) = plan.forecast else {
            let by = plan.instead.map_or("nothing", |by| by.name());
            let record = json!({"event": "plan", "input": input, "device": "cpu", "method": by, "runs": 0});
            return self.say(&format!("plan: {by} on the CPU, without the model"), record);
        };
        let seconds = plan.seconds();
        let record = json!({
            "event": "plan", "input": input, "device": device, "tile": forecast.tile, "halo": forecast.halo,
            "tiles": forecast.tiles, "batch": forecast.batch, "blended": forecast.blends,
            "device_bytes": forecast.device_bytes, "host_bytes": forecast.host_bytes,
            "runs": plan.runs, "runs_choosing": plan.choosing, "seconds": seconds,
        });
        let beside = match forecast.blends {
            true => "overlapping by a quarter".to_string(),
            false => format!("with a margin of {} pixels", lengths(&forecast.halo)),
        };
        let text = format!(
            "plan: {} {} of {} pixels {beside}, {} at a time on {device}; memory: {} for the network, {} for the image{}",
            forecast.tiles,
            if forecast.tiles == 1 { "tile" } else { "tiles" },
            lengths(&forecast.tile),
            forecast.batch,
            human(forecast.device_bytes),
            human(forecast.host_bytes),
            seconds.map_or(String::new(), |s| format!("; about {}", duration(s))),
        );
        self.say(&text, record)
    }

    fn done(&mut self, image: &Path, report: &ImageReport) -> Result<()> {
        let arrow = format!("{} -> {}", image.display(), report.output.display());
        if report.status == Status::AlreadyDone {
            let record = json!({"event": "file", "input": self.input, "output": report.output, "status": "already done"});
            return self.say(&format!("{arrow} (already done)"), record);
        }
        if self.style == Style::Streamed {
            let rate = report.bytes as f64 / 1e6 / report.seconds.max(1e-9);
            let record = json!({
                "input": self.input, "item": report.item, "output": report.output, "pieces": report.pieces,
                "seconds": report.seconds, "bytes": report.bytes, "clipped": report.clipped, "invalid": report.filled,
                "picture": report.picture, "mask": report.mask, "objects": report.objects,
            });
            let found = report.objects.map_or(String::new(), |n| format!("{n} objects, "));
            return self.say(&format!("{arrow} ({found}{:.2} s, {rate:.0} MB/s)", report.seconds), record);
        }
        let mut text = format!("{arrow} ({}", duration(report.seconds));
        if let Some(chi2) = report.chi2 {
            text += &format!(", chi2 {chi2:.2}");
        }
        if let Some(reach) = report.interval_90 {
            text += &format!(", 90 % intervals are {reach:.2} times OUT_std to either side");
        }
        text += ")";
        let regime = report.regime.map(|r| {
            json!({"below_1": r.below_1, "below_3": r.below_3, "below_10": r.below_10, "gaussian": r.is_gaussian()})
        });
        let record = json!({
            "event": "file", "input": self.input, "item": report.item, "output": report.output,
            "status": "restored", "written": report.written, "seconds": report.seconds, "clipped": report.clipped,
            "filled": report.filled, "saturated": report.saturated, "chi2": report.chi2, "left_over": report.left_over,
            "precision": report.precision, "camera": report.camera, "strange": report.unfamiliar,
            "interval_90": report.interval_90, "regime": regime, "binning": report.binning, "colours": report.colours,
        });
        self.say(&text, record)?;
        if let (Some(page), Some(shown)) = (&mut self.report, self.shown.take()) {
            page.add(&shown, report);
        }
        Ok(())
    }
}

impl Observer for Voice {
    fn progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        if !self.quiet {
            self.line.show(done, total);
        }
        ControlFlow::Continue(())
    }

    fn event(&mut self, image: &Path, event: &Event<'_>) -> ControlFlow<()> {
        self.line.end();
        match self.hear(image, event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(why) => {
                self.failed = Some(why);
                ControlFlow::Break(())
            }
        }
    }
}

/// A notice, with the options that concern it.
pub fn worded(notice: &Notice) -> String {
    let hint = match notice {
        Notice::Estimated(e) if !e.sees_gain() && !e.uniform => "; use --gain if you know it".into(),
        Notice::Background { dark, .. } => {
            format!("; use --background {dark:.2}, or leave it out; or check --offset and --gain")
        }
        Notice::UnnamedAxis { letter, axes, .. } => {
            let [movie, stack] = ["T", "Z"].map(|name| axes.replace(*letter, name));
            format!("; to restore them together, use --axes {movie} for a movie, --axes {stack} for a stack")
        }
        Notice::WithoutClass(_) => " (--class, --context)".into(),
        Notice::FilesApart { .. } => "; --item restores one".into(),
        Notice::NoLight { .. } => "; --item restores it".into(),
        Notice::DependsOnTile => " (--tile); results of networks without norms and attention (model=local) do not".into(),
        Notice::Unfamiliar(_) => {
            ": compare with `clearshot denoise`, look at --chi2 and --std, check --gain and --offset, or train on such images".into()
        }
        Notice::Clipped { .. } => "; --float keeps them".into(),
        Notice::FramesAsSingle => " (--movie, or --repeats if the sample does not move)".into(),
        Notice::Colours => "; --colours-alone restores each separately".into(),
        Notice::FramesAveraged { along: Axis::Z, .. } => "; --planes restores each separately".into(),
        Notice::FramesAveraged { .. } => "; --frames-alone restores each separately".into(),
        _ => String::new(),
    };
    format!("{notice}{hint}")
}
