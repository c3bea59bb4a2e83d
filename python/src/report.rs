//! What the library reports, as JSON with the names of its fields.

use clearshot::{Event, ImageReport, Notice, Report, Status, TrainEnding, TrainReport};
use serde_json::{Value, json};

/// An event by its kind, where there is something in it for callers.
pub fn event(event: &Event<'_>) -> Option<(&'static str, Value)> {
    Some(match event {
        Event::Notice(notice) => ("notice", json!({ "text": notice.to_string(), "warning": warns(notice) })),
        Event::Volume { model, planes } => ("volume", json!({ "model": model, "planes": planes })),
        Event::Plan(plan) => {
            let forecast = plan.forecast.map(|f| {
                json!({
                    "tile": f.tile, "halo": f.halo, "tiles": f.tiles, "batch": f.batch,
                    "device_bytes": f.device_bytes, "host_bytes": f.host_bytes,
                })
            });
            let device = plan.device.to_string();
            let (runs, seconds) = (plan.runs, plan.seconds());
            ("plan", json!({ "device": device, "runs": runs, "seconds": seconds, "network": forecast }))
        }
        Event::Choice { exposures, choice } => {
            ("choice", json!({ "exposures": exposures, "text": choice.in_words(), "weights": choice }))
        }
        Event::Precision(settled) => ("precision", json!({ "precision": settled })),
        Event::Training(s) => (
            "training",
            json!({
                "name": s.name, "iteration": s.iteration, "total": s.total, "loss": s.loss, "rate": s.rate,
                "images_per_second": s.images_per_second, "seconds_left": s.seconds_left, "waiting": s.waiting,
                "score": s.score, "best": s.best, "skipped": s.skipped,
            }),
        ),
        Event::Note(text) => ("note", json!({ "text": text })),
        Event::Warning(text) => ("warning", json!({ "text": text })),
        Event::Record(record) => ("record", json!({ "record": record })),
        _ => return None,
    })
}

/// What came of a training run.
pub fn training(report: &TrainReport) -> Value {
    let s = &report.summary;
    let ending = match s.ending {
        TrainEnding::Finished => "finished",
        TrainEnding::EarlyStop => "early stop",
        TrainEnding::Interrupted => "interrupted",
    };
    json!({
        "ending": ending, "iterations": s.iteration, "images": s.images, "seconds": s.seconds, "score": s.score,
        "best": s.best, "start": s.start, "iterations_per_second": s.iterations_per_second, "waiting": s.waiting,
        "checkpoint": s.checkpoint,
    })
}

/// Whether a result should not be used before one has looked into it.
fn warns(notice: &Notice) -> bool {
    matches!(
        notice,
        Notice::Chi2(_)
            | Notice::Unfamiliar(_)
            | Notice::Background { .. }
            | Notice::FaintForModel { .. }
            | Notice::ProcessedColours
            | Notice::LeftOver(_)
    )
}

/// What became of an image.
pub fn image(report: &ImageReport) -> Value {
    let regime = report.regime.map(|r| {
        json!({ "below_1": r.below_1, "below_3": r.below_3, "below_10": r.below_10, "gaussian": r.is_gaussian() })
    });
    let pooled: Vec<Value> = (report.pooled.iter())
        .map(|p| json!({ "exposures": p.exposures, "text": p.choice.in_words(), "weights": p.choice }))
        .collect();
    json!({
        "item": report.item,
        "status": if report.status == Status::AlreadyDone { "already done" } else { "restored" },
        "output": report.output, "written": report.written, "mask": report.mask, "picture": report.picture,
        "seconds": report.seconds, "bytes": report.bytes, "pieces": report.pieces, "clipped": report.clipped,
        "filled": report.filled, "saturated": report.saturated, "chi2": report.chi2, "left_over": report.left_over,
        "camera": report.camera, "regime": regime, "restored_by": report.choice.as_ref().map(|c| c.in_words()),
        "weights": report.choice, "colours": report.colours, "pooled": pooled, "exposures": report.exposures, "along": report.along.map(|a| a.letter().to_string()), "precision": report.precision,
        "unfamiliar": report.unfamiliar, "interval_90": report.interval_90,
    })
}

/// What became of a file.
pub fn file(report: &Report) -> Value {
    json!({ "input": report.input, "images": report.images.iter().map(image).collect::<Vec<_>>() })
}
