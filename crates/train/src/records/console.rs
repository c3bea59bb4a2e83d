//! What a run shows while it trains: a dashboard on a terminal, lines elsewhere, JSON, or nothing.

use crate::watch::{Status, Watch};
use std::io::{IsTerminal, Write};

/// How to show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// A block of lines that is drawn over itself.
    Dashboard,
    /// A line for each record.
    Lines,
    /// Each record as JSON on standard output.
    Json,
    Quiet,
}

impl Show {
    /// The dashboard where someone looks at a terminal.
    pub fn for_terminal() -> Show {
        if std::io::stderr().is_terminal() { Show::Dashboard } else { Show::Lines }
    }
}

const WIDTH: usize = 64;
const HEIGHT: usize = 8;

pub struct Console {
    show: Show,
    losses: Vec<f64>,
    drawn: usize,
}

impl Console {
    pub fn new(show: Show) -> Console {
        Console { show, losses: vec![], drawn: 0 }
    }

    fn dashboard(&self, status: &Status) -> String {
        let mut text = chart(&self.losses, WIDTH, HEIGHT);
        text.push_str(&line(status));
        text.push('\n');
        text
    }
}

impl Watch for Console {
    fn status(&mut self, status: &Status) {
        self.losses.push(status.loss);
        match self.show {
            Show::Dashboard => {
                let text = self.dashboard(status);
                let up = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
                let lines: Vec<String> = text.lines().map(|l| format!("\x1b[2K{l}\n")).collect();
                self.drawn = lines.len();
                // Training continues if the terminal is closed.
                let _ = write!(std::io::stderr(), "{up}{}", lines.concat());
            }
            Show::Lines => {
                let _ = writeln!(std::io::stderr(), "{}", line(status));
            }
            Show::Json | Show::Quiet => {}
        }
    }

    fn note(&mut self, text: &str) {
        if matches!(self.show, Show::Dashboard | Show::Lines) {
            self.drawn = 0;
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    fn record(&mut self, record: &serde_json::Value) {
        if self.show == Show::Json {
            let _ = writeln!(std::io::stdout(), "{record}");
        }
    }
}

impl From<Show> for Box<dyn Watch> {
    fn from(show: Show) -> Box<dyn Watch> {
        Box::new(Console::new(show))
    }
}

fn line(status: &Status) -> String {
    let of = status.total.map_or("?".to_string(), |t| t.to_string());
    let left = status.seconds_left.map_or("?".to_string(), duration);
    let score = |x: Option<f64>| x.map_or("-".to_string(), |s| status.score_kind.in_words(s));
    let skipped = if status.skipped > 0 { format!(", {} skipped", status.skipped) } else { String::new() };
    format!(
        "{} {}/{of} loss {:.5} rate {:.2e} {:.0} images/s, {left} left, {}validation {} (best {}), {:.0} % waiting for \
         data{skipped}",
        status.name,
        status.iteration,
        status.loss,
        status.rate,
        status.images_per_second,
        status.stage,
        score(status.score),
        score(status.best),
        100.0 * status.waiting,
    )
}

/// Hours, minutes or seconds, whichever a person would say.
pub fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    match s {
        3600.. => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
        60.. => format!("{} min {:02} s", s / 60, s % 60),
        10.. => format!("{s} s"),
        _ => format!("{:.1} s", seconds.max(0.0)),
    }
}

/// A curve in text: logarithms of values, in columns of means, the largest at the top.
pub fn chart(values: &[f64], width: usize, height: usize) -> String {
    let logs: Vec<f64> = values.iter().filter(|v| v.is_finite() && **v > 0.0).map(|v| v.ln()).collect();
    if logs.is_empty() {
        return String::new();
    }
    let columns = width.min(logs.len());
    let column = |c: usize| {
        let part = &logs[c * logs.len() / columns..(c + 1) * logs.len() / columns];
        part.iter().sum::<f64>() / part.len() as f64
    };
    let means: Vec<f64> = (0..columns).map(column).collect();
    let low = means.iter().copied().fold(f64::INFINITY, f64::min);
    let high = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let span = (high - low).max(1e-9);
    let levels =
        ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
    let mut text = String::new();
    for row in (0..height).rev() {
        let label = low + span * (row as f64 + 0.5) / height as f64;
        text.push_str(&format!("{:>9.5} ", label.exp()));
        for mean in &means {
            let filled = (mean - low) / span * height as f64 - row as f64;
            text.push(match filled {
                f if f <= 0.0 => {
                    if row == 0 {
                        levels[0]
                    } else {
                        ' '
                    }
                }
                f => levels[((f * 8.0) as usize).min(7)],
            });
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_falling_loss_falls() {
        let values: Vec<f64> = (0..100).map(|i| (-0.05 * i as f64).exp()).collect();
        let text = chart(&values, 10, 4);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 4);
        let top: Vec<char> = rows[0].chars().skip(10).collect();
        assert_eq!((top[0], top[9]), ('\u{2588}', ' '));
        assert_eq!(chart(&[f64::NAN], 10, 4), "");
        assert_eq!(duration(3725.0), "1 h 02 min");
        assert_eq!(duration(59.4), "59 s");
        assert_eq!((duration(2.34), duration(-1.0)), ("2.3 s".into(), "0.0 s".into()));
    }
}
