//! The work of the server: files are viewed and restored, the queue persists, arrays are restored, training runs are listed.

mod program;

use clearshot::{Array, Candidate, Image, Restorer, Settings, restore_file};
use program::{Running, npy};
use serde_json::json;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

#[test]
fn tiles_are_the_files_values_and_their_means() {
    let server = Running::start(|_| {});
    let file = server.upload("a.npy", &npy(300, 270));
    let d = server.get(&format!("/api/describe?file={file}")).json();
    assert_eq!((&d["axes"], &d["shape"], &d["dtype"]), (&json!("YX"), &json!([270, 300]), &json!("uint16")));
    let path = server.home.path().join("images/a.npy");
    std::fs::write(&path, npy(300, 270)).expect("a file");
    let whole = Image::open(&path).and_then(|i| i.read_f64(&i.whole())).expect("an image");
    let tile = |zoom: u32, x: usize, y: usize| {
        server.get(&format!("/api/tile?file={file}&as=f32&zoom={zoom}&x={x}&y={y}"))
    };
    let last = tile(0, 1, 1);
    assert_eq!((last.header("X-Width"), last.header("X-Height")), (Some("44"), Some("14")));
    let values = floats(&last.body);
    assert!((0..14 * 44).all(|i| values[i] == whole[(256 + i / 44) * 300 + 256 + i % 44] as f32));
    let coarse = tile(2, 0, 0);
    assert_eq!((coarse.header("X-Width"), coarse.header("X-Height")), (Some("75"), Some("68")));
    let values = floats(&coarse.body);
    // The last row is a mean of two rows: 270 is not a multiple of 4.
    for (y, x) in [(0, 0), (3, 7), (66, 74), (67, 74)] {
        let rows = (y * 4..y * 4 + 4).filter(|r| *r < 270);
        let all: Vec<f64> = rows
            .flat_map(|r| (x * 4..x * 4 + 4).map(move |c| (r, c)))
            .map(|(r, c)| whole[r * 300 + c])
            .collect();
        let mean = (all.iter().sum::<f64>() / all.len() as f64) as f32;
        assert_eq!(values[y * 75 + x], mean, "{y} {x}");
    }
    assert_eq!((tile(0, 2, 0).status, tile(0, 0, 9).status, tile(40, 0, 0).status), (404, 404, 404));
    let difference = server.get(&format!("/api/tile?file={file}&minus={file}&as=f32"));
    assert!(floats(&difference.body).iter().all(|v| *v == 0.0));
    let png = server.get(&format!("/api/tile?file={file}&low=100&high=200&map=viridis"));
    assert_eq!((png.status, &png.body[..4]), (200, &b"\x89PNG"[..]));
    assert_eq!(server.get(&format!("/api/tile?file={file}&map=jet")).status, 400);
    assert_eq!(server.get(&format!("/api/tile?file={file}&at=Z3")).status, 400);
    // Along a row, and along a diagonal whose middle lies between pixels.
    let line = server.get(&format!("/api/profile?file={file}&x0=5&y0=9&x1=8&y1=9")).json();
    assert_eq!(
        line["values"],
        json!([whole[2705] as f32, whole[2706] as f32, whole[2707] as f32, whole[2708] as f32])
    );
    let line = server.get(&format!("/api/profile?file={file}&x0=0&y0=0&x1=1&y1=1")).json();
    let middle = (whole[0] + whole[1] + whole[300] + whole[301]) / 4.0;
    assert_eq!(line["values"][1], json!(middle as f32));
    assert_eq!(server.get(&format!("/api/profile?file={file}&x0=0&y0=0&x1=300&y1=1")).status, 400);
    // Of a difference, as its tiles: the colours of the page go by it.
    let nothing = server.get(&format!("/api/histogram?file={file}&minus={file}")).json();
    assert_eq!((&nothing["p0.1"], &nothing["max"]), (&json!(0.0), &json!(0.0)));
    let histogram = server.get(&format!("/api/histogram?file={file}")).json();
    let sum: u64 =
        histogram["bins"].as_array().expect("bins").iter().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!(sum, 300 * 270);
    assert_eq!(histogram["max"], json!(whole.iter().fold(0.0, |a: f64, b| a.max(*b)) as f32));
}

#[test]
fn stacks_are_seen_plane_by_plane() {
    let server = Running::start(|_| {});
    let mut stack = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    stack.extend(
        format!("{:<117}\n", "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 2, 5), }").bytes(),
    );
    stack.extend((0..30u16).flat_map(u16::to_le_bytes));
    let file = server.upload("s.npy", &stack);
    let axis = server.get(&format!("/api/describe?file={file}")).json()["axes"].as_str().expect("axes")[..1]
        .to_string();
    let plane = |at: &str| floats(&server.get(&format!("/api/tile?file={file}&as=f32&at={at}")).body);
    assert_eq!(plane(&format!("{axis}2")), (20..30).map(|v| v as f32).collect::<Vec<_>>());
    assert_eq!(server.get(&format!("/api/tile?file={file}&at={axis}3")).status, 400);
}

#[test]
fn results_have_the_librarys_bytes() {
    let server = Running::start(|_| {});
    let file = server.upload("cells.npy", &npy(96, 80));
    let id = server.job(&file, r#"{"chi2":true,"samples":2,"std":true,"steps":3}"#);
    let job = server.wait(&id, &["done", "failed"]);
    assert_eq!(job["state"], "done", "{job}");
    let image = &job["report"]["images"][0];
    assert!(image["chi2"].is_f64() && image["camera"]["gain"].is_f64(), "{job}");
    assert!(image["choice"]["shares"].as_array().is_some_and(|s| s.len() > 1), "{job}");
    let folder = server.home.path().join("beside");
    std::fs::create_dir(&folder).expect("a folder");
    let input = folder.join("in").join("cells.npy");
    std::fs::create_dir(folder.join("in")).expect("a folder");
    std::fs::write(&input, npy(96, 80)).expect("a file");
    let settings = Settings { chi2: true, samples: 2, std: true, steps: 3, ..Settings::default() };
    let device = clearshot::Device::cpu(Some(2));
    let restorer = Restorer::builtin_on(device).expect("a model");
    restore_file(&input, folder.join("cells.npy"), &restorer, &settings, &mut ()).expect("restored");
    let made = job["made"].as_array().expect("files");
    let kinds: Vec<_> = made.iter().map(|m| m["what"].as_str().expect("what")).collect();
    assert_eq!(kinds, ["image", "std", "chi2"]);
    for one in made {
        let name = one["file"].as_str().expect("a file");
        let got = server.get(&format!("/api/download?file={name}"));
        let expected = std::fs::read(folder.join(name.rsplit('/').next().expect("a name"))).expect("a file");
        assert_eq!(got.status, 200);
        assert!(got.body == expected, "{name} differs");
    }
    // The record of a job is not for others, and what is over can be taken away.
    assert_eq!(server.get(&format!("/api/download?file=job/{id}/job.json")).status, 404);
    assert_eq!(server.with("DELETE", &format!("/api/jobs/{id}"), "", b"").status, 200);
    assert_eq!(server.get(&format!("/api/jobs/{id}")).status, 404);
    let metrics = String::from_utf8(server.get("/metrics").body).expect("text");
    assert!(
        metrics.contains("clearshot_jobs_run_total 1\n") && metrics.contains("# TYPE clearshot_jobs gauge"),
        "{metrics}"
    );
}

#[test]
fn zarr_folders_are_sent_as_archives() {
    let server = Running::start(|_| {});
    let images = server.home.path().join("images");
    let input = images.join("cells.npy");
    std::fs::write(&input, npy(96, 80)).expect("a file");
    clearshot_image::copy(&input, images.join("cells.ome.zarr"), false).expect("a Zarr");
    let id = server.job("folder/cells.ome.zarr", r#"{"method":"bm3d","gain":1}"#);
    let job = server.wait(&id, &["done", "failed"]);
    assert_eq!(
        job["made"],
        json!([{"what": "image", "file": format!("job/{id}/cells.ome.zarr"), "item": 0}])
    );
    let reply = server.get(&format!("/api/download?file=job/{id}/cells.ome.zarr"));
    assert_eq!((reply.status, reply.header("Content-Type")), (200, Some("application/zip")));
    assert!(
        reply.header("Content-Disposition").is_some_and(|d| d.ends_with("cells.ome.zarr.zip")),
        "{}",
        reply.head
    );
    assert_eq!(reply.header("Content-Length"), Some(reply.body.len().to_string().as_str()));
    // The archive is an image that has the values of the folder.
    let packed = images.join("packed.ome.zarr.zip");
    std::fs::write(&packed, &reply.body).expect("a file");
    let values =
        |path: &std::path::Path| Image::open(path).and_then(|i| i.read_f64(&i.whole())).expect("an image");
    let folder = server.home.path().join("state/jobs").join(&id).join("cells.ome.zarr");
    assert_eq!(values(&packed), values(&folder));
    assert_ne!(values(&packed), values(&input));
    // Folders that are not images are not sent.
    std::fs::create_dir(images.join("private")).expect("a folder");
    assert_eq!(server.get("/api/download?file=folder/private").status, 409);
}

#[test]
fn every_image_of_a_file_is_found_again() {
    let server = Running::start(|_| {});
    // Two images of different sizes in one FITS file.
    let fits = |size: usize, first: bool, level: u16| {
        let start = if first { "SIMPLE  =                    T" } else { "XTENSION= 'IMAGE   '" };
        let name = format!("EXTNAME = '{}'", if first { "ONE" } else { "TWO" });
        let (columns, rows) = (format!("NAXIS1  = {size:20}"), format!("NAXIS2  = {size:20}"));
        let mut cards =
            vec![start, "BITPIX  =                   16", "NAXIS   =                    2", &columns, &rows];
        if !first {
            cards.extend(["PCOUNT  =                    0", "GCOUNT  =                    1"]);
        }
        cards.extend([name.as_str(), "END"]);
        let mut bytes: Vec<u8> = cards.iter().flat_map(|c| format!("{c:<80}").into_bytes()).collect();
        bytes.resize(bytes.len().next_multiple_of(2880), b' ');
        let noise = &npy(size, size)[128..];
        bytes.extend(noise.chunks(2).flat_map(|v| (u16::from_le_bytes([v[0], v[1]]) + level).to_be_bytes()));
        bytes.resize(bytes.len().next_multiple_of(2880), 0);
        bytes
    };
    let file = server.upload("two.fits", &[fits(64, true, 0), fits(80, false, 900)].concat());
    let tile = |file: &str, item: &str| {
        let reply = server.get(&format!("/api/tile?file={file}&item={item}&as=f32"));
        assert_eq!(reply.status, 200, "{file} {item}");
        (reply.header("X-Width").map(str::to_string), floats(&reply.body))
    };
    let about = server.get(&format!("/api/describe?file={file}&item=%231")).json();
    assert_eq!(
        (&about["items"], &about["item"], &about["shape"]),
        (&json!(["ONE", "TWO"]), &json!(1), &json!([80, 80]))
    );
    let mean = |values: &[f32]| values.iter().sum::<f32>() / values.len() as f32;
    let settings = |item: &str| format!(r#"{{"method":"bm3d","gain":1,"offset":90,"chi2":true{item}}}"#);
    let all = server.wait(&server.job(&file, &settings("")), &["done", "failed"]);
    let made = all["made"].as_array().expect("files");
    let kinds: Vec<_> = made.iter().map(|m| (m["what"].as_str().unwrap_or(""), m["item"].as_u64())).collect();
    assert_eq!(kinds, [("image", Some(0)), ("chi2", Some(0)), ("chi2", Some(1))], "{all}");
    for made in made {
        let name = made["file"].as_str().expect("a file");
        assert_eq!(server.get(&format!("/api/download?file={name}")).status, 200, "{name}");
    }
    let restored = made[0]["file"].as_str().expect("a file");
    for (item, width) in [("%230", "64"), ("%231", "80")] {
        let (before, after) = (tile(&file, item), tile(restored, item));
        assert_eq!((before.0.as_deref(), after.0.as_deref()), (Some(width), Some(width)));
        assert!((mean(&before.1) - mean(&after.1)).abs() < 2.0 && before.1 != after.1, "{item}");
        let difference = server
            .get(&format!("/api/tile?file={restored}&item={item}&minus={file}&minus_item={item}&as=f32"));
        let expected: Vec<f32> = after.1.iter().zip(&before.1).map(|(a, b)| a - b).collect();
        assert_eq!(floats(&difference.body), expected);
    }
    // One alone: the report and the file are of that one.
    let one = server.wait(&server.job(&file, &settings(r##","item":"#1""##)), &["done", "failed"]);
    assert_eq!(one["report"]["images"].as_array().map(Vec::len), Some(1), "{one}");
    assert_eq!((&one["report"]["images"][0]["item"], &one["made"][0]["item"]), (&json!(1), &json!(1)));
    assert!(one["report"]["notices"].as_array().is_some_and(|n| !n.is_empty()), "{one}");
    assert_eq!(server.get(&format!("/api/describe?file={file}&item=%237")).status, 422);
}

#[test]
fn jobs_are_refused_cancelled_and_bounded() {
    let server = Running::start(|_| {});
    let file = server.upload("a.npy", &npy(512, 512));
    for (settings, status) in [
        (r#"{"method":"magic"}"#, 400),
        (r#"{"sampels":8}"#, 400),
        (r#"{"samples":1000000}"#, 400),
        (r#"{"gain":-1}"#, 400),
        (r#"{"item":5}"#, 400),
    ] {
        let body = format!(r#"{{"file":"{file}","settings":{settings}}}"#);
        assert_eq!(server.post("/api/jobs", body.as_bytes()).status, status, "{settings}");
    }
    assert_eq!(server.post("/api/jobs", br#"{"file":"upload/x/a.npy"}"#).status, 404);
    assert_eq!(server.post("/api/jobs", &vec![b' '; 100_000]).status, 413);
    // A long one runs, three wait, and a fifth is refused.
    let long = server.job(&file, r#"{"samples":64,"std":true,"steps":1000}"#);
    server.wait(&long, &["running"]);
    let waiting: Vec<String> = (0..3).map(|_| server.job(&file, r#"{"method":"raw"}"#)).collect();
    let fifth = server.post("/api/jobs", format!(r#"{{"file":"{file}"}}"#).as_bytes());
    assert_eq!((fifth.status, fifth.header("Retry-After")), (503, Some("5")));
    assert_eq!(server.get(&format!("/api/jobs/{}", waiting[2])).json()["before"], 3);
    assert_eq!(server.with("DELETE", &format!("/api/jobs/{long}"), "", b"").status, 409);
    assert_eq!(server.post(&format!("/api/jobs/{}/cancel", waiting[1]), b"").status, 200);
    assert_eq!(server.post(&format!("/api/jobs/{long}/cancel"), b"").status, 200);
    assert_eq!(server.wait(&long, &["cancelled", "done", "failed"])["state"], "cancelled");
    for (id, state) in [(&waiting[0], "done"), (&waiting[1], "cancelled"), (&waiting[2], "done")] {
        assert_eq!(server.wait(id, &["done", "cancelled", "failed"])["state"], state);
    }
    assert_eq!(server.post(&format!("/api/jobs/{long}/cancel"), b"").status, 409);
    let left =
        std::fs::read_dir(server.home.path().join("state/jobs").join(&long)).expect("a folder").count();
    assert_eq!(left, 1, "only the record is left of a job that was cancelled");
}

#[test]
fn the_queue_outlives_the_server() {
    let server = Running::start(|_| {});
    let file = server.upload("a.npy", &npy(512, 512));
    let long = server.job(&file, r#"{"samples":64,"std":true,"steps":1000}"#);
    let short = server.job(&file, r#"{"method":"raw"}"#);
    server.wait(&long, &["running"]);
    let home = server.end();
    let record = std::fs::read_to_string(home.path().join("state/jobs").join(&long).join("job.json"))
        .expect("a record");
    assert!(record.contains(r#""state": "running""#), "{record}");
    let server = Running::start_in(home, |_| {});
    assert_eq!(server.wait(&long, &["running"])["attempts"], 2);
    server.post(&format!("/api/jobs/{long}/cancel"), b"");
    assert_eq!(server.wait(&short, &["done", "failed"])["state"], "done");
    // A record that is not one does not keep the server from starting.
    let home = server.end();
    let broken = home.path().join("state/jobs/broken");
    std::fs::create_dir(&broken).expect("a folder");
    std::fs::write(broken.join("job.json"), "{").expect("a file");
    let server = Running::start_in(home, |_| {});
    assert_eq!(server.get("/api/jobs").json()["jobs"].as_array().map(Vec::len), Some(2));
}

#[test]
fn arrays_are_restored_as_the_library_does() {
    let server = Running::start(|_| {});
    assert_eq!(server.get("/v2/models").json()["models"], json!(["default"]));
    assert_eq!(server.get("/v2/models/default").json()["inputs"][0]["name"], "image");
    assert_eq!(server.get("/v2/models/other").status, 404);
    let counts: Vec<u16> = npy(40, 32)[128..].chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
    let settings = Settings { only: Some(Candidate::Bm3d), ..Settings::default() };
    let array = Array::new(&counts, &[32, 40], "YX").expect("an array");
    let restorer = Restorer::builtin_on(clearshot::Device::cpu(Some(2))).expect("a model");
    let expected = restorer.restore(&array, &settings, &mut ()).expect("restored").image;
    let request = json!({
        "id": "7", "parameters": {"method": "bm3d"},
        "inputs": [{"name": "image", "datatype": "UINT16", "shape": [32, 40], "data": counts}],
    });
    let reply = server.post("/v2/models/default/infer", request.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    let answer = reply.json();
    assert_eq!((&answer["id"], &answer["outputs"][0]["shape"]), (&json!("7"), &json!([32, 40])));
    let values: Vec<f32> = serde_json::from_value(answer["outputs"][0]["data"].clone()).expect("numbers");
    assert_eq!(values, expected);
    // The same as bytes.
    let head = json!({
        "parameters": {"method": "bm3d", "binary_data_output": true},
        "inputs": [{"name": "image", "datatype": "UINT16", "shape": [32, 40], "parameters": {"binary_data_size": 2560}}],
    })
    .to_string();
    let mut body = head.clone().into_bytes();
    body.extend(counts.iter().flat_map(|v| v.to_le_bytes()));
    let length = format!("Inference-Header-Content-Length: {}\r\n", head.len());
    let reply = server.with("POST", "/v2/models/default/infer", &length, &body);
    let end: usize =
        reply.header("Inference-Header-Content-Length").and_then(|n| n.parse().ok()).expect("a length");
    assert_eq!(floats(&reply.body[end..]), expected);
    for broken in [
        json!({"inputs": []}),
        json!({"inputs": [{"datatype": "BYTES", "shape": [1], "data": ["a"]}]}),
        json!({"inputs": [{"datatype": "UINT8", "shape": [2, 2], "data": [1, 2, 3]}]}),
        json!({"inputs": [{"datatype": "UINT8", "shape": [2, 2], "data": [1, 2, 3, 999]}]}),
        json!({"inputs": [{"datatype": "UINT8", "shape": [1u64 << 40, 1u64 << 40], "data": []}]}),
        json!({"inputs": [{"datatype": "UINT8", "shape": [2, 2], "data": [1, 2, 3, 4]}], "parameters": {"magic": 1}}),
    ] {
        assert_eq!(
            server.post("/v2/models/default/infer", broken.to_string().as_bytes()).status,
            400,
            "{broken}"
        );
    }
}

#[test]
fn running_trainings_are_listed_with_their_records() {
    let server = Running::start(|_| {});
    let run = server.home.path().join("images/runs/one");
    std::fs::create_dir_all(run.join("pictures")).expect("a folder");
    let line = |i: u32| format!("{{\"kind\":\"train\",\"iteration\":{i},\"loss\":0.5}}\n");
    std::fs::write(run.join("records.jsonl"), line(1) + &line(2) + "{\"kind\":\"tr").expect("a file");
    std::fs::write(run.join("pictures/a.png"), b"\x89PNG").expect("a file");
    let list = server.get("/api/runs").json();
    assert_eq!(list["runs"][0]["run"], "folder/runs/one");
    let first = server.get("/api/runs/records?run=folder/runs/one").json();
    assert_eq!(first["records"].as_array().map(Vec::len), Some(2));
    let next = first["next"].as_u64().expect("a position");
    std::fs::write(run.join("records.jsonl"), line(1) + &line(2) + &line(3)).expect("a file");
    let second = server.get(&format!("/api/runs/records?run=folder/runs/one&from={next}")).json();
    assert_eq!(second["records"][0]["iteration"], 3);
    // A run that was resumed from an earlier place begins again.
    std::fs::write(run.join("records.jsonl"), line(1)).expect("a file");
    let third = server.get(&format!("/api/runs/records?run=folder/runs/one&from={}", second["next"])).json();
    assert_eq!((&third["from"], &third["records"][0]["iteration"]), (&json!(0), &json!(1)));
    assert_eq!(server.get("/api/runs/picture?run=folder/runs/one&name=a.png").body, b"\x89PNG");
    assert_eq!(server.get("/api/runs/picture?run=folder/runs/one&name=..%2Frecords.jsonl").status, 404);
    assert_eq!(server.get("/api/runs/records?run=folder/..").status, 404);
}
