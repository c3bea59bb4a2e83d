//! `clearshot serve` as users start it: a killed server resumes its queue, and results are identical to those of `clearshot restore`.

mod program;

use program::{folder, must, refused};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(state: &Path) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_clearshot"))
            .args(["serve", "--address", "127.0.0.1:0", "--device", "cpu", "--state"])
            .arg(state)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("an output")).read_line(&mut line).expect("a line");
        let address =
            line.split("http://").nth(1).and_then(|l| l.split('/').next()).expect("an address").to_string();
        Server { child, address }
    }

    fn ask(&self, method: &str, target: &str, body: &[u8]) -> Vec<u8> {
        let mut socket = TcpStream::connect(&self.address).expect("a connection");
        let (host, length) = (&self.address, body.len());
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body)).expect("sent");
        let mut got = Vec::new();
        socket.read_to_end(&mut got).expect("an answer");
        assert!(got.starts_with(b"HTTP/1.1 20"), "{target}: {}", String::from_utf8_lossy(&got));
        let end = got.windows(4).position(|w| w == b"\r\n\r\n").expect("a head");
        got.split_off(end + 4)
    }

    fn json(&self, method: &str, target: &str, body: &[u8]) -> Value {
        serde_json::from_slice(&self.ask(method, target, body)).expect("JSON")
    }

    fn job(&self, file: &str, settings: &str) -> String {
        let body = format!(r#"{{"file":"{file}","settings":{settings}}}"#);
        self.json("POST", "/api/jobs", body.as_bytes())["id"].as_str().expect("an id").to_string()
    }

    fn wait(&self, id: &str, states: &[&str]) -> Value {
        let since = Instant::now();
        loop {
            let job = self.json("GET", &format!("/api/jobs/{id}"), b"");
            if states.contains(&job["state"].as_str().expect("a state")) {
                return job;
            }
            assert!(since.elapsed() < Duration::from_secs(300), "{job}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The bytes with the identifiers that every OME-TIFF file gets for itself made the same.
fn without_uuid(mut bytes: Vec<u8>) -> Vec<u8> {
    const MARK: &[u8] = b"urn:uuid:";
    let places: Vec<usize> =
        (0..bytes.len().saturating_sub(MARK.len() + 36)).filter(|&i| bytes[i..].starts_with(MARK)).collect();
    for place in places {
        bytes[place + MARK.len()..][..36].fill(b'0');
    }
    bytes
}

#[test]
fn a_killed_server_resumes_and_results_equal_the_command_line() {
    let folder = folder("served");
    let at = |name: &str| folder.join(name);
    must("synth --scene nuclei --size 128 --count 1 --peak 20 --out data", &folder);
    let noisy =
        std::fs::read_dir(at("data/noisy")).expect("a folder").flatten().next().expect("an image").path();
    must(&format!("convert {} cells.ome.tif", noisy.display()), &folder);
    let state = at("state");
    let mut server = Server::start(&state);
    let bytes = std::fs::read(at("cells.ome.tif")).expect("a file");
    let file = server.json("POST", "/api/files?name=cells.ome.tif", &bytes)["file"]
        .as_str()
        .expect("a name")
        .to_string();
    let long = server.job(&file, r#"{"samples":64,"std":true,"steps":1000}"#);
    let waits = server.job(&file, r#"{"chi2":true}"#);
    server.wait(&long, &["running"]);
    // SIGKILL on Unix.
    server.child.kill().expect("killed");
    server.child.wait().expect("ended");
    let server = Server::start(&state);
    assert_eq!(server.wait(&long, &["running"])["attempts"], 2);
    server.ask("POST", &format!("/api/jobs/{long}/cancel"), b"");
    let job = server.wait(&waits, &["done", "failed"]);
    assert_eq!(job["state"], "done", "{job}");
    must("restore cells.ome.tif -o out.ome.tif --chi2 --device cpu", &folder);
    for made in job["made"].as_array().expect("files") {
        let (what, name) = (made["what"].as_str().expect("what"), made["file"].as_str().expect("a file"));
        let expected = std::fs::read(at(if what == "image" { "out.ome.tif" } else { "out_chi2.ome.tif" }))
            .expect("a file");
        let got = server.ask("GET", &format!("/api/download?file={name}"), b"");
        assert!(
            without_uuid(got.clone()) == without_uuid(expected.clone()),
            "{what}: {} and {} bytes differ",
            got.len(),
            expected.len()
        );
    }
}

#[test]
fn servers_that_cannot_be_say_why() {
    let folder = folder("not_served");
    assert!(refused("serve nowhere --address 127.0.0.1:0", &folder).contains("nowhere"));
    assert!(refused("serve --address 127.0.0.1:0 --token secret", &folder).contains("at least 16"));
    std::fs::write(folder.join("key.pem"), "not a key").expect("a file");
    let tls = refused("serve --address 127.0.0.1:0 --tls-cert key.pem --tls-key key.pem", &folder);
    assert!(tls.contains("key.pem"), "{tls}");
    assert!(!refused("serve --address 127.0.0.1:0 --tls-key key.pem", &folder).is_empty());
}

#[test]
fn the_page_works_in_a_browser() {
    let python = std::env::var("CLEARSHOT_PYTHON").unwrap_or("python3".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../serve/tests/browser.py");
    match Command::new(python).args([script, env!("CARGO_BIN_EXE_clearshot")]).output() {
        Err(e) => println!("skipped: no Python: {e}"),
        Ok(out) => {
            print!("{}", String::from_utf8_lossy(&out.stdout));
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        }
    }
}
