//! The routes, one row for each request. The interface is documented in `docs/serve.md`.

use crate::colour::{self, Map};
use crate::http::{Answer, Body, Content, Head};
use crate::jobs::Wanted;
use crate::refusal::Refusal;
use crate::server::Shared;
use crate::store::disposition;
use crate::view::{Part, Plane, TILE, describe};
use crate::{infer, runs};
use clearshot_image::archive::PackedFolder;
use clearshot_image::format::has_known_extension;
use clearshot_image::picture::{BLACK, Canvas, INVALID};
use clearshot_image::{Description, Image};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Pages and what they are made of.
const ASSETS: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("../assets/index.html")),
    ("/runs", HTML, include_str!("../assets/runs.html")),
    ("/style.css", CSS, include_str!("../assets/style.css")),
    ("/common.js", SCRIPT, include_str!("../assets/common.js")),
    ("/viewer.js", SCRIPT, include_str!("../assets/viewer.js")),
    ("/channels.js", SCRIPT, include_str!("../assets/channels.js")),
    ("/app.js", SCRIPT, include_str!("../assets/app.js")),
    ("/runs.js", SCRIPT, include_str!("../assets/runs.js")),
];

/// Bytes of a request in JSON, at most.
const MOST_JSON: u64 = 64 << 10;
/// Jobs that a list names.
const LISTED: usize = 200;

type Outcome = Result<Answer, Refusal>;

/// # Errors
/// If access is refused, the request is invalid, or it fails.
pub fn answer(shared: &Shared, head: &Head, body: &mut Body<'_>) -> Outcome {
    shared.guard.place(head)?;
    let method = if head.method == "HEAD" { "GET" } else { head.method.as_str() };
    let parts: Vec<&str> = head.path.split('/').skip(1).collect();
    // What is the same for everyone is not a secret.
    if let ("GET", Some((_, kind, text))) = (method, ASSETS.iter().find(|(path, ..)| *path == head.path)) {
        return Ok(Answer::bytes(kind, text.as_bytes().to_vec()).with("Cache-Control", "no-cache"));
    }
    match (method, &parts[..]) {
        ("GET", ["health"]) => return Ok(Answer::json(&json!({"status": "ok"}))),
        ("GET", ["v2", "health", "live" | "ready"]) => return Ok(Answer::json(&json!({}))),
        _ => shared.guard.token(head)?,
    }
    match (method, &parts[..]) {
        ("POST", ["api", "session"]) => {
            let answer = Answer::json(&json!({}));
            Ok(match shared.guard.set_cookie() {
                Some(cookie) => answer.with("Set-Cookie", cookie),
                None => answer,
            })
        }
        ("GET", ["metrics"]) => {
            let text = shared.metrics.text(&shared.queue);
            Ok(Answer::bytes("text/plain; version=0.0.4", text.into_bytes()))
        }
        ("GET", ["api", "about"]) => Ok(Answer::json(&json!({
            "version": env!("CARGO_PKG_VERSION"), "model": shared.model, "maps": colour::all(),
            "channel_colours": {"two": colour::TWO_CHANNELS, "more": colour::CHANNELS},
            "has_folder": shared.store.folder().is_some(),
        }))),
        ("GET", ["api", "files"]) => Ok(Answer::json(&shared.store.list())),
        ("POST", ["api", "files"]) => {
            let bytes = body.left;
            let file = shared.store.upload(head.needed("name")?, body)?;
            shared.metrics.uploaded_bytes.fetch_add(bytes, Relaxed);
            Ok(Answer::json(&json!({"file": file})).status(201))
        }
        ("DELETE", ["api", "files"]) => {
            shared.store.remove(head.needed("file")?)?;
            Ok(Answer::json(&json!({})))
        }
        ("GET", ["api", "describe"]) => {
            shared.readers.take(|| Ok(Answer::json(&describe(&*opened(shared, head)?))))
        }
        ("GET", ["api", "tile"]) => shared.readers.take(|| tile(shared, head)),
        ("GET", ["api", "profile"]) => shared.readers.take(|| profile(shared, head)),
        ("GET", ["api", "histogram"]) => shared.readers.take(|| {
            let (image, other) = (opened(shared, head)?, taken_off(shared, head)?);
            let at = head.query("at").unwrap_or_default();
            let other = other.as_deref().map(|other| Plane::new(other, at)).transpose()?;
            Ok(Answer::json(&Plane::new(&image, at)?.histogram(other.as_ref())?))
        }),
        ("GET", ["api", form @ ("camera" | "camera.svg")]) => shared.readers.take(|| {
            let path = shared.store.path(head.needed("file")?)?;
            let (record, figure) = shared.cameras.of(&path, head.query("item"))?;
            Ok(match *form {
                "camera" => Answer::json(&record),
                _ => Answer::bytes("image/svg+xml", figure.into_bytes()),
            })
        }),
        ("GET", ["api", "download"]) => download(shared, head),
        ("GET", ["api", "jobs"]) => Ok(Answer::json(&json!({"jobs": shared.queue.all(LISTED)}))),
        ("POST", ["api", "jobs"]) => add(shared, body),
        ("GET", ["api", "jobs", id]) => Ok(Answer::json(&shared.queue.one(id)?)),
        ("POST", ["api", "jobs", id, "cancel"]) => Ok(Answer::json(&shared.queue.cancel(id)?)),
        ("DELETE", ["api", "jobs", id]) => {
            shared.queue.remove(id)?;
            Ok(Answer::json(&json!({})))
        }
        ("GET", ["api", "runs"]) => runs::list(shared),
        ("GET", ["api", "runs", "records"]) => runs::records(shared, head),
        ("GET", ["api", "runs", "picture"]) => runs::picture(shared, head),
        (_, ["v2", rest @ ..]) => infer::answer(shared, method, rest, head, body),
        (_, ["api", ..]) if !matches!(method, "GET" | "POST" | "DELETE") => {
            Err(Refusal::new(405, format!("the method {method} is not supported")))
        }
        _ => Err(Refusal::missing(&head.path)),
    }
}

/// The image that is asked about.
fn opened(shared: &Shared, head: &Head) -> Result<Arc<Image>, Refusal> {
    named(shared, head, "file", "item")
}

/// The image whose file and item two parameters name.
fn named(shared: &Shared, head: &Head, file: &str, item: &str) -> Result<Arc<Image>, Refusal> {
    shared.viewer.open(&shared.store.path(head.needed(file)?)?, head.query(item))
}

/// The image to take off, where `minus` and `minus_item` name one.
fn taken_off(shared: &Shared, head: &Head) -> Result<Option<Arc<Image>>, Refusal> {
    head.query("minus").map(|_| named(shared, head, "minus", "minus_item")).transpose()
}

/// A tile as a picture, or as numbers (32-bit floats, little-endian).
fn tile(shared: &Shared, head: &Head) -> Outcome {
    let at = head.query("at").unwrap_or_default();
    let (zoom, x, y) =
        (head.parsed("zoom")?.unwrap_or(0), head.parsed("x")?.unwrap_or(0), head.parsed("y")?.unwrap_or(0));
    let (image, other) = (opened(shared, head)?, taken_off(shared, head)?);
    let other = other.as_deref().map(|other| Plane::new(other, at)).transpose()?;
    let part = Plane::new(&image, at)?.tile_less(other.as_ref(), zoom, x, y)?;
    match head.query("as").unwrap_or("png") {
        "f32" => {
            let bytes = part.values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let answer = Answer::bytes("application/octet-stream", bytes);
            Ok(answer.with("X-Width", part.width.to_string()).with("X-Height", part.height.to_string()))
        }
        "png" => {
            let name = head.query("map").unwrap_or("gray");
            let map = Map::named(name)
                .ok_or_else(|| Refusal::bad(format!("map={name}: gray, viridis or difference is needed")))?;
            let (low, high) = (head.parsed("low")?, head.parsed("high")?);
            Ok(Answer::bytes("image/png", drawn(&part, map, low, high)?))
        }
        other => Err(Refusal::bad(format!("as={other}: png or f32 is needed"))),
    }
}

/// Between the given values, or those that are there.
fn drawn(part: &Part, map: &Map, low: Option<f32>, high: Option<f32>) -> Result<Vec<u8>, Refusal> {
    let finite = || part.values.iter().copied().filter(|v| v.is_finite());
    let low = low.unwrap_or_else(|| finite().fold(f32::INFINITY, f32::min));
    let high = high.unwrap_or_else(|| finite().fold(f32::NEG_INFINITY, f32::max));
    let span = if high > low { high - low } else { 1.0 };
    let mut canvas = Canvas::new(part.width.min(TILE), part.height.min(TILE), BLACK);
    for (i, v) in part.values.iter().enumerate() {
        let colour = if v.is_finite() { map.colour((v - low) / span) } else { INVALID };
        canvas.set(i % part.width, i / part.width, colour);
    }
    canvas.png().map_err(|_| Refusal::ours())
}

fn profile(shared: &Shared, head: &Head) -> Outcome {
    let needed = |key: &str| -> Result<f64, Refusal> {
        head.parsed::<f64>(key)?
            .filter(|v| v.is_finite())
            .ok_or_else(|| Refusal::bad(format!("{key}, a number, is needed")))
    };
    let (from, to) = ([needed("y0")?, needed("x0")?], [needed("y1")?, needed("x1")?]);
    let image = opened(shared, head)?;
    let values = Plane::new(&image, head.query("at").unwrap_or_default())?.profile(from, to)?;
    Ok(Answer::json(
        &json!({"values": values, "length": (from[0] - to[0]).hypot(from[1] - to[1]), "pixel": pixel(&image.description)}),
    ))
}

/// How wide a pixel is, and in which unit.
fn pixel(d: &Description) -> serde_json::Value {
    d.dim(clearshot_image::Axis::X).map_or(json!(null), |x| json!({"step": x.step, "unit": x.unit}))
}

fn download(shared: &Shared, head: &Head) -> Outcome {
    let path = shared.store.path(head.needed("file")?)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let answer = |kind: &str, name: &str, body| {
        let headers = vec![("Content-Type", kind.to_string()), ("Content-Disposition", disposition(name))];
        Answer { status: 200, headers, body }
    };
    if path.is_dir() {
        // An image that is a folder goes as a zip archive; other folders are not for sending.
        if !has_known_extension(&path) {
            return Err(Refusal::new(409, "this is a folder and not an image"));
        }
        let packed = PackedFolder::of(&path).map_err(|_| Refusal::ours())?;
        return Ok(answer("application/zip", &format!("{name}.zip"), Content::Folder(packed)));
    }
    let file = std::fs::File::open(&path).map_err(|_| Refusal::ours())?;
    let length = file.metadata().map_err(|_| Refusal::ours())?.len();
    Ok(answer("application/octet-stream", &name, Content::File(file, length)))
}

#[derive(Deserialize)]
struct Asked {
    file: String,
    #[serde(default)]
    settings: Wanted,
}

fn add(shared: &Shared, body: &mut Body<'_>) -> Outcome {
    let asked: Asked = serde_json::from_slice(&body.whole(MOST_JSON)?)
        .map_err(|e| Refusal::bad(format!("not a job: {e}")))?;
    let path = shared.store.path(&asked.file)?;
    asked.settings.settings()?;
    // What cannot be opened would only fail later.
    shared.readers.take(|| shared.viewer.open(&path, asked.settings.item.as_deref()))?;
    Ok(Answer::json(&shared.queue.add(asked.file, asked.settings)?).status(201))
}
