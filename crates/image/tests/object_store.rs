//! Zarr at addresses, before a small server: reading and writing give what local folders give, only what is needed is asked
//! for, an upload that ends in the middle is no image, and what servers can do wrong is named.

mod server;

use clearshot_image::address::{Access, Address, Credentials, exists, grant, same_place};
use clearshot_image::dataset::list::{Listing, files};
use clearshot_image::{Axis, DType, Description, Dim, Error, Image, Provenance, WriteOptions, Writer, copy};
use clearshot_tensor::noise::Key;
use serde_json::json;
use server::{Asked, Mischief, Server, files_below};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SECRET: &str = "wJalrXUtnFEMI-s3cr3t";

/// A server that wants signatures, as `s3://NAME` with `NAME` for each test.
fn bucket(name: &str) -> Server {
    let server = Server::start();
    server.want_authorization("AWS4-HMAC-SHA256 Credential=AKIATEST/");
    grant(
        &format!("s3://{name}"),
        Access {
            credentials: Some(Credentials {
                key: "AKIATEST".into(),
                secret: SECRET.into(),
                token: Some("t0k3n".into()),
            }),
            endpoint: Some(server.url()),
            patience: Duration::from_millis(600),
            ..Access::default()
        },
    );
    server
}

/// A server without signatures and with little patience.
fn open_server() -> Server {
    let server = Server::start();
    grant(&server.url(), Access { patience: Duration::from_millis(600), ..Access::default() });
    server
}

fn noise(seed: u64, count: usize) -> Vec<u16> {
    let mut values = vec![0.0f32; count];
    Key { seed, step: 0, stream: 0 }.fill_uniform(0, &mut values);
    values.into_iter().map(|v| (v * 4000.0) as u16).collect()
}

fn bytes(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn whole(image: &Image) -> Vec<u8> {
    image.read(&image.whole()).unwrap()
}

fn described(path: &Path, shape: &[usize]) -> Description {
    let axes = [Axis::T, Axis::C, Axis::Z, Axis::Y, Axis::X];
    let dims = axes[5 - shape.len()..].iter().zip(shape).map(|(&axis, &n)| Dim::new(axis, n)).collect();
    Description::new("made", path, dims, DType::U16)
}

fn write(path: &Path, shape: &[usize], seed: u64, replace: bool) -> Result<(), Error> {
    let description = described(Path::new("input.tif"), shape);
    let provenance = Some(Provenance::new("test", &description, json!(null)).value());
    let mut writer = Writer::create(path, &description, &WriteOptions { replace, provenance })?;
    let all: Vec<_> = shape.iter().map(|&n| 0..n).collect();
    writer.write(&all, &bytes(&noise(seed, shape.iter().product())))?;
    writer.finish()
}

/// A plane of 40 x 60 of Zarr 3 in shards of 20 x 30 and chunks of 10 x 10, stored as they are; the value of each pixel is its index.
fn sharded(folder: &Path, index_at_end: bool) -> Vec<u16> {
    let values: Vec<u16> = (0..2400).collect();
    let root = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"version": "0.5", "multiscales": [{
        "axes": [{"name": "y", "type": "space"}, {"name": "x", "type": "space"}],
        "datasets": [{"path": "s0", "coordinateTransformations": [{"type": "scale", "scale": [0.5, 0.5]}]}]}]}}});
    let raw = json!({"name": "bytes", "configuration": {"endian": "little"}});
    let array = json!({"zarr_format": 3, "node_type": "array", "shape": [40, 60], "data_type": "uint16", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [20, 30]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [10, 10], "codecs": [raw],
            "index_codecs": [raw, {"name": "crc32c"}], "index_location": if index_at_end { "end" } else { "start" }}}]});
    std::fs::create_dir_all(folder.join("s0")).unwrap();
    std::fs::write(folder.join("zarr.json"), root.to_string()).unwrap();
    std::fs::write(folder.join("s0/zarr.json"), array.to_string()).unwrap();
    for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let (mut data, mut table) = (Vec::new(), Vec::new());
        let before = if index_at_end { 0 } else { 6 * 16 + 4 };
        for chunk in 0..6 {
            table.extend(((before + data.len()) as u64).to_le_bytes());
            table.extend(200u64.to_le_bytes());
            for y in 0..10 {
                for x in 0..10 {
                    let at = (row * 20 + chunk / 3 * 10 + y) * 60 + column * 30 + chunk % 3 * 10 + x;
                    data.extend(values[at].to_le_bytes());
                }
            }
        }
        let sum = crc32c::crc32c(&table);
        table.extend(sum.to_le_bytes());
        let shard = if index_at_end { [data, table].concat() } else { [table, data].concat() };
        let path = folder.join(format!("s0/c/{row}/{column}"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, shard).unwrap();
    }
    values
}

/// The same pixels as 0.4: chunks of 20 x 30, stored as they are, one of them missing.
fn version_0_4(folder: &Path) -> Vec<u16> {
    let mut values: Vec<u16> = (0..2400).collect();
    let attributes = json!({"multiscales": [{"version": "0.4",
        "axes": [{"name": "y", "type": "space"}, {"name": "x", "type": "space"}],
        "datasets": [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [0.5, 0.5]}]}]}]});
    let array = json!({"zarr_format": 2, "shape": [40, 60], "chunks": [20, 30], "dtype": "<u2", "compressor": null,
        "fill_value": 7, "filters": null, "order": "C", "dimension_separator": "/"});
    std::fs::create_dir_all(folder.join("0/0")).unwrap();
    std::fs::create_dir_all(folder.join("0/1")).unwrap();
    std::fs::write(folder.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    std::fs::write(folder.join(".zattrs"), attributes.to_string()).unwrap();
    std::fs::write(folder.join("0/.zarray"), array.to_string()).unwrap();
    for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let places: Vec<usize> =
            (0..20).flat_map(|y| (0..30).map(move |x| (row * 20 + y) * 60 + column * 30 + x)).collect();
        if (row, column) == (1, 1) {
            places.iter().for_each(|&p| values[p] = 7);
            continue;
        }
        let data: Vec<u8> = places.iter().flat_map(|&p| values[p].to_le_bytes()).collect();
        std::fs::write(folder.join(format!("0/{row}/{column}")), data).unwrap();
    }
    values
}

/// Requests for chunks: path, range and bytes of the answer.
fn of_chunks(asked: &[Asked]) -> Vec<(String, Option<String>, usize)> {
    let is_metadata = |a: &&Asked| {
        let name = a.path.rsplit('/').next().unwrap_or("");
        name.starts_with(".z") || name == "zarr.json"
    };
    let rest = asked.iter().filter(|a| !is_metadata(a));
    let mut rest: Vec<_> = rest.map(|a| (a.path.clone(), a.headers.get("range").cloned(), a.sent)).collect();
    rest.sort();
    rest
}

#[test]
fn reading_equals_a_local_folder_and_requests_only_what_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let (server, plain) = (bucket("reading"), open_server());
    type Make<'a> = (&'a str, &'a dyn Fn(&Path) -> Vec<u16>);
    let makes: [Make<'_>; 3] = [
        ("old.zarr", &version_0_4),
        ("shards end.zarr", &|p| sharded(p, true)),
        ("shards-start.zarr", &|p| sharded(p, false)),
    ];
    for (name, make) in makes {
        let local = folder.path().join(name);
        let values = make(&local);
        server.put_folder(&local, &format!("reading/data/{name}"));
        plain.put_folder(&local, name);
        let local = Image::open(&local).unwrap();
        assert_eq!(whole(&local), bytes(&values), "{name}");
        let escaped = name.replace(' ', "%20");
        for (server, address) in [
            (&server, format!("s3://reading/data/{name}")),
            (&server, format!("s3://reading/data/{name}/")),
            (&plain, format!("{}/{escaped}", plain.url())),
        ] {
            server.asked();
            let image = Image::open(&address).unwrap();
            let metadata = server.asked();
            assert_eq!(of_chunks(&metadata), [], "{address}: opening reads metadata alone");
            assert!(metadata.len() <= 8, "{address}: {metadata:?}");
            assert_eq!(image.description.axes(), "YX");
            assert_eq!(image.description.dims, local.description.dims);
            assert_eq!(image.description.tags, local.description.tags);
            // A region inside of one chunk.
            let region = [22..28, 11..19];
            assert_eq!(image.read(&region).unwrap(), local.read(&region).unwrap(), "{address}");
            let chunks = of_chunks(&server.asked());
            let sent: Vec<usize> = chunks.iter().map(|c| c.2).collect();
            let ranges: Vec<_> = chunks.iter().map(|c| c.1.as_deref()).collect();
            match name {
                "old.zarr" => assert_eq!((sent, ranges), (vec![1200], vec![None])),
                "shards end.zarr" => {
                    assert_eq!(
                        (sent, ranges),
                        (vec![100, 200], vec![Some("bytes=-100"), Some("bytes=200-399")])
                    );
                }
                _ => {
                    assert_eq!(
                        (sent, ranges),
                        (vec![100, 200], vec![Some("bytes=0-99"), Some("bytes=300-499")])
                    );
                }
            }
            // Everything: each shard's index once, however many threads want it.
            assert_eq!(whole(&image), bytes(&values), "{address}");
            let chunks = of_chunks(&server.asked());
            let indices = chunks.iter().filter(|c| c.2 == 100).count();
            let expected = if name == "old.zarr" { (0, 4) } else { (3, 3 + 24) };
            assert!(indices == expected.0 && chunks.len() <= expected.1, "{address}: {chunks:?}");
        }
    }
    // Connections are kept.
    let plain = open_server();
    plain.put_folder(&folder.path().join("old.zarr"), "old.zarr");
    let image = Image::open(format!("{}/old.zarr", plain.url())).unwrap();
    // One chunk after the other: those of a region are asked for at once, over a connection each.
    let [last_row, last_column] = [0, 1].map(|axis| image.shape()[axis] - 1);
    for (row, column) in [(0, 0), (0, last_column), (last_row, 0), (last_row, last_column)] {
        image.read(&[row..row + 1, column..column + 1]).unwrap();
    }
    let asked = plain.asked();
    let connections: std::collections::BTreeSet<usize> = asked.iter().map(|a| a.connection).collect();
    assert!(asked.len() >= 5 && connections.len() == 1, "{} requests over {connections:?}", asked.len());
}

#[test]
fn writing_equals_a_local_folder() {
    let folder = tempfile::tempdir().unwrap();
    let server = bucket("writing");
    // A pyramid, whose lower levels are averages of what was stored; and axes that are turned around.
    for (name, shape) in [("one.zarr", vec![1, 30, 50]), ("two.ome.zarr", vec![2, 1100, 700])] {
        let local = folder.path().join(name);
        write(&local, &shape, 3, false).unwrap();
        let address = PathBuf::from(format!("s3://writing/{name}"));
        assert!(!exists(&address).unwrap());
        server.asked();
        write(&address, &shape, 3, false).unwrap();
        let puts: Vec<String> =
            server.asked().into_iter().filter(|a| a.method == "PUT").map(|a| a.path).collect();
        assert_eq!(puts.last().map(String::as_str), Some(format!("writing/{name}/zarr.json").as_str()));
        assert!(exists(&address).unwrap());
        let (objects, files) = (server.below(&format!("writing/{name}")), files_below(&local));
        assert_eq!(objects.keys().collect::<Vec<_>>(), files.keys().collect::<Vec<_>>(), "{name}");
        assert!(objects == files, "{name}");
        // Not again by default.
        let error = write(&address, &shape, 4, false).unwrap_err();
        assert!(matches!(error, Error::Exists { .. }), "{error}");
        assert!(server.below(&format!("writing/{name}")) == files);
    }
    // Another image in its place, of other chunks: nothing of the old one stays.
    let local = folder.path().join("three.ome.zarr");
    write(&local, &[1, 20, 20], 5, false).unwrap();
    server.set_page(3);
    write(Path::new("s3://writing/two.ome.zarr"), &[1, 20, 20], 5, true).unwrap();
    let (objects, files) = (server.below("writing/two.ome.zarr"), files_below(&local));
    assert_eq!(objects.keys().collect::<Vec<_>>(), files.keys().collect::<Vec<_>>());
    assert!(server.below("writing/one.zarr").len() > 2, "what lies beside it stays");
    // From the server to the server, with shards and attributes.
    let made = folder.path().join("shards.zarr");
    let values = sharded(&made, true);
    server.put_folder(&made, "writing/in.zarr");
    copy("s3://writing/in.zarr", "s3://writing/out.zarr", false).unwrap();
    copy(&made, folder.path().join("out.zarr"), false).unwrap();
    let (objects, mut files) =
        (server.below("writing/out.zarr"), files_below(&folder.path().join("out.zarr")));
    // The record has the input's name.
    let root = String::from_utf8(files["zarr.json"].clone()).unwrap().replace("shards.zarr", "in.zarr");
    files.insert("zarr.json".into(), root.into_bytes());
    assert!(objects == files);
    let image = Image::open("s3://writing/out.zarr").unwrap();
    assert_eq!(whole(&image), bytes(&values));
    assert!(image.description.tags.iter().any(|(k, v)| k == "shards" && v == "[20, 30]"));
    let record = image.description.provenance.unwrap().to_string();
    assert!(!record.contains(SECRET) && !record.contains("t0k3n"), "{record}");
    // Not over itself, nor into itself.
    for output in ["s3://writing/out.zarr", "s3://writing/out.zarr/s0.zarr"] {
        let error = copy("s3://writing/out.zarr", output, true).unwrap_err().to_string();
        assert!(error.contains("own input"), "{error}");
    }
    assert_eq!(whole(&Image::open("s3://writing/out.zarr").unwrap()), bytes(&values));
    let http = format!("{}/writing/out.zarr", server.url());
    assert!(same_place(Path::new(&http), Path::new("s3://writing/out.zarr/")));
    assert!(!same_place(Path::new(&http), Path::new("s3://writing/in.zarr")));
}

#[test]
fn an_incomplete_upload_is_not_an_image_and_the_next_run_completes_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = bucket("ending");
    let (local, address) = (folder.path().join("a.zarr"), Path::new("s3://ending/a.zarr"));
    let shape = [3, 1100, 600];
    write(&local, &shape, 3, false).unwrap();
    let files = files_below(&local);
    let puts = files.len() + 1;
    for accepted in [0, 1, 5, puts - 5, puts - 2, puts - 1] {
        server.objects().clear();
        let count = Arc::new(AtomicUsize::new(0));
        server.misbehave(move |asked| match asked.method.as_str() {
            "PUT" if count.fetch_add(1, Ordering::SeqCst) >= accepted => Mischief::Status(
                403,
                "<Error><Code>AccessDenied</Code><Message>Full.</Message></Error>".into(),
            ),
            _ => Mischief::Nothing,
        });
        let error = write(address, &shape, 3, false).unwrap_err().to_string();
        assert!(
            error.contains("403") && error.contains("Full.") && error.contains("s3://ending/a.zarr"),
            "{error}"
        );
        server.behave();
        let left = server.below("ending/a.zarr");
        assert!(!left.contains_key("zarr.json"), "after {accepted}");
        assert!(!exists(address).unwrap(), "after {accepted}");
        // Levels have metadata only when all chunks are there.
        if accepted < puts - 4 {
            assert!(Image::open(address).is_err(), "after {accepted}: {:?}", left.keys());
        }
        // Another image of another shape has its place now.
        write(address, &shape, 3, false).unwrap_or_else(|e| panic!("after {accepted}: {e}"));
        assert!(server.below("ending/a.zarr") == files, "after {accepted}");
    }
    // No answer but a good one is taken for an object that was put.
    for (status, says) in [(404, ""), (404, "NoSuchBucket"), (301, ""), (500, "InternalError")] {
        server.objects().clear();
        let body = format!("<Error><Code>{says}</Code><Message>Gone.</Message></Error>");
        server.misbehave(move |asked| match asked.path.contains("/c/") {
            true => Mischief::Status(status, body.clone()),
            false => Mischief::Nothing,
        });
        let error = write(address, &[1, 20, 20], 3, false).unwrap_err().to_string();
        assert!(error.contains("Gone.") && error.contains(says), "{status}: {error}");
    }
    server.behave();
    // What another program left without metadata at its root is not ours to replace.
    server.objects().clear();
    server.objects().insert("ending/a.zarr/sub/.zarray".into(), b"{}".to_vec());
    let error = write(address, &shape, 3, false).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    assert_eq!(server.objects().len(), 1);
    // Replacing one that is there: killed in the middle there is neither, and never a mixture.
    server.objects().clear();
    write(address, &[1, 700, 600], 9, false).unwrap();
    let count = AtomicUsize::new(0);
    server.misbehave(move |asked| match asked.method.as_str() {
        "PUT" if count.fetch_add(1, Ordering::SeqCst) >= 3 => Mischief::Status(400, String::new()),
        _ => Mischief::Nothing,
    });
    assert!(write(address, &shape, 3, true).is_err());
    server.behave();
    assert!(Image::open(address).is_err() && !exists(address).unwrap());
    write(address, &shape, 3, false).unwrap();
    assert!(server.below("ending/a.zarr") == files);
}

/// Opens and reads, with a server that misbehaves in requests that a word is in.
fn with_mischief(
    server: &Server,
    name: &str,
    word: &'static str,
    mischief: Mischief,
) -> Result<Vec<u8>, String> {
    server
        .misbehave(move |asked| if asked.path.contains(word) { mischief.clone() } else { Mischief::Nothing });
    let read = || -> Result<Vec<u8>, Error> {
        let image = Image::open(format!("{}/{name}", server.url()))?;
        image.read(&image.whole())
    };
    let outcome = read().map_err(|e| e.to_string());
    server.behave();
    outcome
}

#[test]
fn errors_of_servers_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = open_server();
    let values = sharded(&folder.path().join("s.zarr"), true);
    server.put_folder(&folder.path().join("s.zarr"), "s.zarr");
    let old = version_0_4(&folder.path().join("o.zarr"));
    server.put_folder(&folder.path().join("o.zarr"), "o.zarr");
    let at = format!("{}/", server.url());
    let status = |code: u16, text: &str| Mischief::Status(code, text.to_string());
    let denied = "<Error><Code>AccessDenied</Code><Message>Not for you.</Message></Error>";
    for (name, word, mischief, words) in [
        ("s.zarr", "zarr", status(403, denied), &["403", "Not for you.", "NAME:PASSWORD"][..]),
        ("s.zarr", "/c/", status(403, denied), &["403", "Not for you.", "s0/c/"]),
        ("s.zarr", "zarr", status(401, ""), &["401", "NAME:PASSWORD"]),
        ("s.zarr", "/c/", status(500, ""), &["500", "4 times", "later"]),
        ("s.zarr", "/c/", status(418, "short and stout"), &["418", "short and stout"]),
        ("s.zarr", "/c/", Mischief::Broken, &["broke in the middle", "4 times"]),
        ("s.zarr", "/c/", Mischief::Shorter, &["were asked for"]),
        ("o.zarr", "/0/0/", Mischief::Shorter, &["600 bytes where 1200"]),
        ("s.zarr", "/c/", Mischief::OtherPart, &["answers bytes="]),
        ("s.zarr", "/c/", Mischief::Silent, &["did not answer for 0.6 s", "2 times"]),
        ("s.zarr", "/c/", Mischief::SilentInTheMiddle, &["did not answer for 0.6 s", "2 times"]),
        ("s.zarr", "zarr.json", Mischief::Endless, &["memory", "zarr.json"]),
        ("o.zarr", "/0/0/", Mischief::Endless, &["memory", "0/0/0"]),
        ("s.zarr", "zarr.json", status(200, "<html>Welcome</html>"), &["is a web page", "zarr.json"]),
        ("missing.zarr", "nothing", Mischief::Nothing, &["no Zarr image", "404"]),
    ] {
        let error = with_mischief(&server, name, word, mischief.clone()).unwrap_err();
        let place = format!("{at}{name}");
        assert!(error.starts_with(&place), "{mischief:?}: {error}");
        assert!(words.iter().all(|w| error.contains(w)), "{mischief:?} of {word}: {error}");
    }
    // What passes by is not told.
    for mischief in [status(503, "SlowDown"), Mischief::Broken, Mischief::Silent] {
        let times = AtomicUsize::new(0);
        let again = mischief.clone();
        server.misbehave(move |asked| {
            let first = asked.path.contains("/c/") && times.fetch_add(1, Ordering::SeqCst) < 1;
            if first { again.clone() } else { Mischief::Nothing }
        });
        let image = Image::open(format!("{at}s.zarr")).unwrap();
        assert_eq!(whole(&image), bytes(&values), "{mischief:?}");
    }
    server.behave();
    // A server without ranges sends whole shards, which are cut here.
    assert_eq!(with_mischief(&server, "s.zarr", "/c/", Mischief::Whole).unwrap(), bytes(&values));
    // Metadata that are not there may be forbidden on servers that do not list.
    server.misbehave(move |asked| match asked.path.as_str() {
        "o.zarr/zarr.json" | "o.zarr/0/zarr.json" | "o.zarr/0/.zattrs" => {
            Mischief::Status(403, denied.into())
        }
        _ => Mischief::Nothing,
    });
    assert_eq!(whole(&Image::open(format!("{at}o.zarr")).unwrap()), bytes(&old));
    server.behave();
    // A shard's index that asks for more than a chunk can have.
    let mut objects = server.objects();
    let shard = objects.get_mut("s.zarr/s0/c/0/0").unwrap();
    let table = shard.len() - 100;
    shard[table + 8..table + 16].copy_from_slice(&(1u64 << 40).to_le_bytes());
    let sum = crc32c::crc32c(&shard[table..table + 96]);
    shard[table + 96..].copy_from_slice(&sum.to_le_bytes());
    drop(objects);
    let error = with_mischief(&server, "s.zarr", "nothing", Mischief::Nothing).unwrap_err();
    assert!(error.contains("1099511627776") && error.contains("s0/c/0/0"), "{error}");
    // Nobody there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = Image::open(format!("http://127.0.0.1:{free}/x.zarr")).err().unwrap().to_string();
    assert!(error.contains("refuses connections") && error.contains(&free.to_string()), "{error}");
    // Other formats, and writing.
    for (name, word) in [("a.tif", "TIFF"), ("a.zarr.zip", "zip archives"), ("a.nii.gz", "NIfTI")] {
        let error = Image::open(format!("{at}{name}")).err().unwrap().to_string();
        assert!(error.contains(word) && error.contains("local disks only"), "{error}");
    }
    let error = write(Path::new(&format!("{at}new.zarr")), &[2, 3, 4], 1, true).unwrap_err().to_string();
    assert!(error.contains("reading only") && error.contains("s3://"), "{error}");
    let error = write(Path::new("s3://x/new.tif"), &[2, 3, 4], 1, true).unwrap_err().to_string();
    assert!(error.contains("TIFF") && error.contains(".zarr"), "{error}");
}

#[test]
fn secrets_are_sent_and_never_printed() {
    let folder = tempfile::tempdir().unwrap();
    let values = version_0_4(folder.path());
    let server = Server::start();
    server.put_folder(folder.path(), "x.zarr");
    let with = |secret: &str| format!("http://anna:{secret}@127.0.0.1:{}/x.zarr?sig={secret}", server.port);
    let image = Image::open(with("s3cr3t")).unwrap();
    assert_eq!(whole(&image), bytes(&values));
    assert_eq!(image.description.path, Path::new(&format!("{}/x.zarr", server.url())));
    for asked in server.asked() {
        assert_eq!(asked.query, "sig=s3cr3t");
        // anna:s3cr3t
        assert_eq!(asked.headers.get("authorization").map(String::as_str), Some("Basic YW5uYTpzM2NyM3Q="));
    }
    // A server that repeats them.
    server.misbehave(|asked| Mischief::Status(403, format!("bad {} for anna:s3cr3t", asked.query)));
    let error = Image::open(with("s3cr3t")).err().unwrap().to_string();
    assert!(error.contains("403 (bad ... for ...)") && !error.contains("s3cr3t"), "{error}");
    // Keys of S3: a wrong one is refused and not said.
    let server = bucket("secrets");
    server.want_authorization("another");
    let error = Image::open("s3://secrets/x.zarr").err().unwrap().to_string();
    assert!(error.contains("403") && error.contains("AWS_ACCESS_KEY_ID"), "{error}");
    assert!(!error.contains(SECRET) && !error.contains("t0k3n"), "{error}");
    let asked = server.asked();
    assert!(asked.iter().all(|a| a.headers["x-amz-security-token"] == "t0k3n"));
    assert!(asked.iter().all(|a| !format!("{a:?}").contains(SECRET)));
    grant("s3://secrets", Access { endpoint: Some(server.url()), ..Access::default() });
    let error = Image::open("s3://secrets/x.zarr").err().unwrap().to_string();
    assert!(error.contains("no keys") && error.contains("AWS_SECRET_ACCESS_KEY"), "{error}");
    assert!(server.asked().iter().all(|a| !a.headers.contains_key("authorization")));
    server.misbehave(|_| {
        Mischief::Status(404, "<Error><Code>NoSuchBucket</Code><Message>?</Message></Error>".into())
    });
    let error = Image::open("s3://secrets/x.zarr").err().unwrap().to_string();
    assert!(error.contains("no bucket of that name"), "{error}");
}

#[test]
fn folders_and_patterns_of_a_bucket_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let server = bucket("lists");
    let values = version_0_4(folder.path());
    for name in ["raw/b.zarr", "raw/a.ome.zarr", "raw/other", "plain", "group/deep/arrays"] {
        server.put_folder(folder.path(), &format!("lists/{name}"));
    }
    server.set_page(2);
    let names = |source: &str| -> Vec<String> {
        files(source).unwrap().iter().map(|p| p.display().to_string()).collect()
    };
    assert_eq!(names("s3://lists/raw"), ["s3://lists/raw/a.ome.zarr", "s3://lists/raw/b.zarr"]);
    assert_eq!(names("s3://lists/raw/b*"), ["s3://lists/raw/b.zarr"]);
    assert_eq!(names("s3://lists/raw/?.zarr"), ["s3://lists/raw/b.zarr"]);
    assert_eq!(names("s3://lists/raw/missing.zarr"), ["s3://lists/raw/missing.zarr"]);
    assert_eq!(names("s3://lists/plain/"), ["s3://lists/plain"]);
    for (wrong, word) in [
        ("s3://lists/raw/c*", "no images"),
        ("s3://lists/nothing", "no images"),
        ("s3://lists/*/a.zarr", "last slash"),
        ("https://host/*.zarr", "name each"),
    ] {
        let error = files(wrong).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("://"), "{error}");
    }
    let pairs = Listing::pairs("s3://lists/raw/b.zarr", "s3://lists/raw/b.zarr").unwrap();
    assert_eq!(pairs.entries.len(), 1);
    let manifest = folder.path().join("list.csv");
    std::fs::write(&manifest, "input,target\ns3://lists/raw/b.zarr,near.tif\n").unwrap();
    let entry = Listing::manifest(&manifest).unwrap().entries.remove(0);
    assert_eq!(entry.input, Path::new("s3://lists/raw/b.zarr"));
    assert_eq!(entry.target, Some(folder.path().join("near.tif")));
    // Arrays of a hierarchy without OME metadata.
    server.objects().remove("lists/group/deep/arrays/.zattrs");
    server.objects().remove("lists/group/deep/arrays/.zgroup");
    server.objects().insert("lists/group/.zgroup".into(), br#"{"zarr_format": 2}"#.to_vec());
    let image = Image::open("s3://lists/group").unwrap();
    assert_eq!(image.description.items, ["deep/arrays/0"]);
    assert_eq!(whole(&image), bytes(&values));
    // A state of all that is there, which follows its contents.
    let state =
        || Address::of(Path::new("s3://lists/group")).unwrap().unwrap().listed_state().unwrap().unwrap();
    let before = state();
    assert_eq!(before.len(), 5);
    server.objects().get_mut("lists/group/deep/arrays/0/0/0").unwrap()[0] ^= 1;
    assert_ne!(state(), before);
}

#[test]
fn over_http_hierarchies_are_known_by_their_own_lists() {
    let folder = tempfile::tempdir().unwrap();
    let server = open_server();
    let values = version_0_4(folder.path());
    std::fs::remove_file(folder.path().join(".zattrs")).unwrap();
    server.put_folder(folder.path(), "g/arrays");
    server.objects().insert("g/.zgroup".into(), br#"{"zarr_format": 2}"#.to_vec());
    let open = || Image::open(format!("{}/g", server.url()));
    let error = open().err().unwrap().to_string();
    assert!(error.contains("name the array itself"), "{error}");
    let direct = Image::open(format!("{}/g/arrays/0", server.url())).unwrap();
    assert_eq!(whole(&direct), bytes(&values));
    let list =
        json!({"metadata": {"arrays/0/.zarray": {}, "arrays/.zgroup": {}}, "zarr_consolidated_format": 1});
    server.objects().insert("g/.zmetadata".into(), list.to_string().into_bytes());
    let image = open().unwrap();
    assert_eq!(image.description.items, ["arrays/0"]);
    assert_eq!(whole(&image), bytes(&values));
    server.objects().remove("g/.zmetadata");
    let root = json!({"zarr_format": 3, "node_type": "group", "attributes": {},
        "consolidated_metadata": {"kind": "inline", "metadata": {"arrays/0": {"node_type": "array"}, "arrays": {"node_type": "group"}}}});
    server.objects().insert("g/zarr.json".into(), root.to_string().into_bytes());
    assert_eq!(whole(&open().unwrap()), bytes(&values));
}
