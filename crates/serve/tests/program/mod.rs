//! What the tests of the server share: a server in a thread, and requests as bytes on a socket, so that wrong ones can be sent too.

#![allow(dead_code)]

use clearshot_serve::{Handle, Options, Server};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub struct Running {
    pub address: SocketAddr,
    pub home: TempDir,
    handle: Handle,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("an answer in JSON")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|l| l.split_once(": "));
        lines.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v)
    }
}

pub fn options(home: &Path) -> Options {
    let folder = home.join("images");
    std::fs::create_dir_all(&folder).expect("a folder");
    Options {
        address: "127.0.0.1:0".parse().expect("an address"),
        folder: Some(folder),
        state: home.join("state"),
        token: None,
        hosts: Vec::new(),
        tls: None,
        max_upload: 1 << 20,
        max_state: 64 << 20,
        max_queue: 3,
        model: None,
        device: "cpu".parse().expect("a device"),
        threads: Some(2),
    }
}

impl Running {
    pub fn start(change: impl FnOnce(&mut Options)) -> Running {
        Running::start_in(TempDir::new().expect("a folder"), change)
    }

    pub fn start_in(home: TempDir, change: impl FnOnce(&mut Options)) -> Running {
        let mut options = options(home.path());
        change(&mut options);
        let server = Server::bind(options).expect("a server");
        let (address, handle) = (server.address(), server.handle());
        let thread = Some(std::thread::spawn(move || server.run()));
        Running { address, home, handle, thread }
    }

    /// Ends it, and gives its folder to the next one.
    pub fn end(mut self) -> TempDir {
        self.stop();
        std::mem::replace(&mut self.home, TempDir::new().expect("a folder"))
    }

    fn stop(&mut self) {
        self.handle.end();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server ends");
        }
    }

    pub fn image(&self, name: &str, width: usize, height: usize) {
        std::fs::write(self.home.path().join("images").join(name), npy(width, height)).expect("a file");
    }

    /// Sends raw bytes, and reads until the connection is closed.
    pub fn raw(&self, bytes: &[u8]) -> Reply {
        let mut socket = TcpStream::connect(self.address).expect("a connection");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let _ = socket.write_all(bytes);
        let mut got = Vec::new();
        let _ = socket.read_to_end(&mut got);
        let end = got.windows(4).position(|w| w == b"\r\n\r\n").expect("an answer");
        let head = String::from_utf8(got[..end].to_vec()).expect("text");
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        Reply { status, head, body: got[end + 4..].to_vec() }
    }

    /// A request with headers of its own, each ending in `\r\n`.
    pub fn with(&self, method: &str, target: &str, headers: &str, body: &[u8]) -> Reply {
        let host = match headers.contains("Host:") {
            true => String::new(),
            false => format!("Host: {}\r\n", self.address),
        };
        let length = match headers.lines().any(|l| l.starts_with("Content-Length:")) {
            true => String::new(),
            false => format!("Content-Length: {}\r\n", body.len()),
        };
        let mut bytes =
            format!("{method} {target} HTTP/1.1\r\n{host}{headers}{length}Connection: close\r\n\r\n")
                .into_bytes();
        bytes.extend_from_slice(body);
        self.raw(&bytes)
    }

    pub fn get(&self, target: &str) -> Reply {
        self.with("GET", target, "", b"")
    }

    pub fn post(&self, target: &str, body: &[u8]) -> Reply {
        self.with("POST", target, "", body)
    }

    /// Uploads, and gives the name.
    pub fn upload(&self, name: &str, bytes: &[u8]) -> String {
        let reply = self.post(&format!("/api/files?name={name}"), bytes);
        assert_eq!(reply.status, 201, "{}", String::from_utf8_lossy(&reply.body));
        reply.json()["file"].as_str().expect("a name").to_string()
    }

    pub fn job(&self, file: &str, settings: &str) -> String {
        let reply =
            self.post("/api/jobs", format!(r#"{{"file":"{file}","settings":{settings}}}"#).as_bytes());
        assert_eq!(reply.status, 201, "{}", String::from_utf8_lossy(&reply.body));
        reply.json()["id"].as_str().expect("an id").to_string()
    }

    /// Waits until a job is in one of these states.
    pub fn wait(&self, id: &str, states: &[&str]) -> Value {
        let since = Instant::now();
        loop {
            let job = self.get(&format!("/api/jobs/{id}")).json();
            if states.contains(&job["state"].as_str().expect("a state")) {
                return job;
            }
            assert!(since.elapsed() < Duration::from_secs(300), "the job does not come to {states:?}: {job}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Counts of a smooth scene with noise, as a NumPy file of 16 bits.
pub fn npy(width: usize, height: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) % 21) as f64 - 10.0
    };
    let value = |y: f64, x: f64| 150.0 + 60.0 * (x / 9.0).sin() * (y / 7.0).cos();
    let head = format!("{{'descr': '<u2', 'fortran_order': False, 'shape': ({height}, {width}), }}");
    let mut out = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    out.extend(format!("{head:<117}\n").bytes());
    for y in 0..height {
        for x in 0..width {
            out.extend(((value(y as f64, x as f64) + noise()) as u16).to_le_bytes());
        }
    }
    out
}
