//! Requests that must be refused: each test is an attack over a real socket.

mod program;

use program::{Running, npy};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const TOKEN: &str = "a-token-of-a-few-letters";

#[test]
fn paths_stay_in_their_folders() {
    let server = Running::start(|_| {});
    server.image("a.npy", 8, 8);
    std::fs::write(server.home.path().join("secret.npy"), npy(8, 8)).expect("a file");
    assert_eq!(server.get("/api/describe?file=folder/a.npy").status, 200);
    for name in [
        "folder/../secret.npy",
        "folder/..%2Fsecret.npy",
        "folder/%2e%2e/secret.npy",
        "folder%2F..%2F..%2Fsecret.npy",
        "folder/..%5Csecret.npy",
        "folder/./a.npy",
        "folder//a.npy",
        "folder/",
        "folder",
        "folder/%2Fetc%2Fpasswd",
        "upload/../lock",
        "upload/../../images/a.npy",
        "job/../lock",
        "/etc/passwd",
        "file:///etc/passwd",
        "s3://bucket/a.zarr",
        "",
    ] {
        for route in ["describe", "download", "tile", "camera"] {
            let reply = server.get(&format!("/api/{route}?file={name}"));
            assert_eq!(reply.status, 404, "{route} {name}: {}", String::from_utf8_lossy(&reply.body));
        }
    }
    // Names with bytes that no name has, and percent signs without digits.
    for name in ["folder/a.npy%00.png", "folder/%ff.npy", "folder/%2", "folder/a%0d%0aX:1"] {
        assert_eq!(server.get(&format!("/api/describe?file={name}")).status, 400, "{name}");
    }
    // Paths of requests lead to no files at all.
    for path in
        ["/../secret.npy", "/%2e%2e/secret.npy", "/api/../secret.npy", "/style.css/..", "//etc/passwd"]
    {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_are_not_followed() {
    use std::os::unix::fs::symlink;
    let server = Running::start(|_| {});
    server.image("a.npy", 8, 8);
    let (images, outside) = (server.home.path().join("images"), server.home.path().join("outside"));
    std::fs::create_dir(&outside).expect("a folder");
    std::fs::write(outside.join("b.npy"), npy(8, 8)).expect("a file");
    symlink(outside.join("b.npy"), images.join("link.npy")).expect("a link");
    symlink(&outside, images.join("way")).expect("a link");
    symlink(images.join("a.npy"), images.join("inside.npy")).expect("a link");
    std::fs::create_dir(images.join("c.zarr")).expect("a folder");
    symlink(outside.join("b.npy"), images.join("c.zarr/0")).expect("a link");
    assert_eq!(server.get("/api/download?file=folder/link.npy").status, 404);
    assert_eq!(server.get("/api/download?file=folder/way/b.npy").status, 404);
    assert_eq!(server.get("/api/describe?file=folder/c.zarr").status, 403);
    assert_eq!(server.get("/api/download?file=folder/inside.npy").status, 200);
    let list = server.get("/api/files").json().to_string();
    assert!(list.contains("a.npy") && !list.contains("link.npy") && !list.contains("way"), "{list}");
}

#[test]
fn uploads_are_bounded_named_and_never_overwrite() {
    let server = Running::start(|o| o.max_state = 1 << 20);
    // Ten gigabytes are refused before they are sent.
    let since = Instant::now();
    let reply = server.with("POST", "/api/files?name=a.tif", "Content-Length: 10737418240\r\n", b"x");
    assert_eq!(reply.status, 413);
    assert!(since.elapsed() < Duration::from_secs(20));
    for (length, status) in [("-1", 400), ("1e3", 400), ("99999999999999999999999", 400), ("5, 5", 400)] {
        let reply =
            server.with("POST", "/api/files?name=a.npy", &format!("Content-Length: {length}\r\n"), b"hello");
        assert_eq!(reply.status, status, "{length}");
    }
    let chunked =
        server.with("POST", "/api/files?name=a.npy", "Transfer-Encoding: chunked\r\n", b"0\r\n\r\n");
    assert_eq!(chunked.status, 411);
    let twice =
        server.with("POST", "/api/files?name=a.npy", "Content-Length: 5\r\nContent-Length: 6\r\n", b"hello");
    assert_eq!(twice.status, 400);
    for (name, status) in
        [("a.exe", 415), ("a.html", 415), ("", 400), ("..", 400), ("x.zarr", 415), ("a.svg", 415)]
    {
        assert_eq!(server.post(&format!("/api/files?name={name}"), b"hello").status, status, "{name}");
    }
    assert_eq!(server.post("/api/files?name=a.npy", b"").status, 400);
    // Two of one name are two files; odd names become plain ones.
    let (first, second) = (server.upload("a.npy", &npy(8, 8)), server.upload("a.npy", &npy(9, 8)));
    assert_ne!(first, second);
    assert_eq!(server.get(&format!("/api/describe?file={first}")).json()["shape"][1], 8);
    let odd = server.upload("..%2F..%2Fetc%2F%3Cb%3E%22*.npy", &npy(8, 8));
    assert!(odd.ends_with("/_b___.npy"), "{odd}");
    // The space is bounded.
    let half = vec![b'x'; 600 << 10];
    server.upload("b.npy", &half);
    let full = server.post("/api/files?name=c.npy", &half);
    assert_eq!(full.status, 507);
    assert_eq!(server.with("DELETE", &format!("/api/files?file={first}"), "", b"").status, 200);
    assert_eq!(server.get(&format!("/api/describe?file={first}")).status, 404);
    assert_eq!(server.with("DELETE", "/api/files?file=folder/a.npy", "", b"").status, 404);
}

#[test]
fn an_aborted_upload_leaves_no_files() {
    let server = Running::start(|_| {});
    let mut socket = TcpStream::connect(server.address).expect("a connection");
    let head = format!(
        "POST /api/files?name=a.npy HTTP/1.1\r\nHost: {}\r\nContent-Length: 5000\r\n\r\nhalf",
        server.address
    );
    socket.write_all(head.as_bytes()).expect("sent");
    drop(socket);
    let uploads = server.home.path().join("state/uploads");
    let since = Instant::now();
    while std::fs::read_dir(&uploads).expect("a folder").count() > 0 {
        assert!(since.elapsed() < Duration::from_secs(30), "a part of the upload is left");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.get("/api/files").json()["files"].as_array().map(Vec::len), Some(0));
}

#[test]
fn slow_and_endless_heads_are_cut_off() {
    let server = Running::start(|_| {});
    let endless = format!("GET / HTTP/1.1\r\nHost: {}\r\nX: {}\r\n\r\n", server.address, "a".repeat(40_000));
    assert_eq!(server.raw(endless.as_bytes()).status, 431);
    let many = format!("GET / HTTP/1.1\r\nHost: {}\r\n{}\r\n", server.address, "X: 1\r\n".repeat(200));
    assert_eq!(server.raw(many.as_bytes()).status, 400);
    // One byte now and then does not keep a connection.
    let mut socket = TcpStream::connect(server.address).expect("a connection");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    socket.write_all(b"GET / HTTP/1.1\r\n").expect("sent");
    let (since, mut got) = (Instant::now(), Vec::new());
    let mut buffer = [0; 512];
    let answer = loop {
        assert!(since.elapsed() < Duration::from_secs(120), "the connection is still open");
        let _ = socket.write_all(b"X");
        match socket.read(&mut buffer) {
            Ok(0) => break String::from_utf8_lossy(&got).to_string(),
            Ok(n) => got.extend_from_slice(&buffer[..n]),
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => break String::from_utf8_lossy(&got).to_string(),
        }
    };
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    // While others are served.
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn other_sites_are_refused() {
    let server = Running::start(|_| {});
    let own = format!("Origin: http://{}\r\n", server.address);
    assert_eq!(server.with("GET", "/api/files", &own, b"").status, 200);
    for headers in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: https://127.0.0.1\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",
    ] {
        for (method, target) in [
            ("GET", "/api/files"),
            ("POST", "/api/files?name=a.npy"),
            ("GET", "/metrics"),
            ("OPTIONS", "/api/jobs"),
        ] {
            let reply = server.with(method, target, headers, b"");
            assert_eq!(reply.status, 403, "{method} {target} {headers}");
            assert!(reply.header("Access-Control-Allow-Origin").is_none());
        }
    }
    // A link may open the page, and a frame or a picture may not.
    let link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
    assert_eq!(server.with("GET", "/", link, b"").status, 200);
    assert_eq!(server.with("GET", "/api/files", link, b"").status, 403);
    let frame = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n";
    assert_eq!(server.with("GET", "/", frame, b"").status, 403);
}

#[test]
fn names_that_point_here_are_refused() {
    let server = Running::start(|o| o.hosts = vec!["lab.example".into()]);
    let port = server.address.port();
    for (host, status) in [
        (format!("localhost:{port}"), 200),
        (format!("[::1]:{port}"), 200),
        (format!("LAB.example:{port}"), 200),
        ("lab.example".into(), 200),
        (format!("evil.example:{port}"), 421),
        (format!("127.0.0.1.evil.example:{port}"), 421),
        (format!("localhost.evil.example:{port}"), 421),
        (format!("10.0.0.1:{port}"), 421),
        ("127.0.0.1:1".into(), 421),
        ("127.0.0.1".into(), 421),
        ("".into(), 421),
    ] {
        assert_eq!(
            server.with("GET", "/api/files", &format!("Host: {host}\r\n"), b"").status,
            status,
            "{host}"
        );
        assert_eq!(server.with("GET", "/", &format!("Host: {host}\r\n"), b"").status, status, "{host}");
    }
    assert_eq!(server.raw(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").status, 400);
    let two = format!("Host: 127.0.0.1:{port}\r\nHost: evil.example\r\n");
    assert_eq!(server.with("GET", "/", &two, b"").status, 400);
}

#[test]
fn the_token_is_asked_for() {
    let server = Running::start(|o| o.token = Some(TOKEN.into()));
    server.image("a.npy", 8, 8);
    for target in
        ["/api/files", "/metrics", "/api/describe?file=folder/a.npy", "/v2/models", "/api/about", "/nothing"]
    {
        let reply = server.get(target);
        assert_eq!((reply.status, reply.header("WWW-Authenticate")), (401, Some("Bearer")), "{target}");
        for wrong in ["Bearer x", "Bearer ", "Basic YTpi", TOKEN, "Bearer a-token-of-a-few-letters2"] {
            let headers = format!("Authorization: {wrong}\r\n");
            assert_eq!(server.with("GET", target, &headers, b"").status, 401, "{target} {wrong}");
        }
    }
    assert_eq!(server.post("/api/files?name=a.npy", &npy(4, 4)).status, 401);
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(server.with("GET", "/api/files", &right, b"").status, 200);
    for open in ["/health", "/", "/style.css", "/v2/health/ready"] {
        assert_eq!(server.get(open).status, 200, "{open}");
    }
    // In an address it is not taken, since addresses are written down.
    assert_eq!(server.get(&format!("/api/files?token={TOKEN}")).status, 401);
    // The page's cookie is not the token, and no script reads it.
    let reply = server.with("POST", "/api/session", &right, b"");
    let cookie = reply.header("Set-Cookie").expect("a cookie").to_string();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains(TOKEN));
    let pair = cookie.split(';').next().expect("a pair");
    assert_eq!(server.with("GET", "/api/files", &format!("Cookie: a=b; {pair}\r\n"), b"").status, 200);
    assert_eq!(server.with("GET", "/api/files", &format!("Cookie: {pair}0\r\n"), b"").status, 401);
}

#[test]
fn addresses_that_others_can_reach_need_a_token() {
    let home = tempfile::TempDir::new().expect("a folder");
    let mut options = program::options(home.path());
    options.address = "0.0.0.0:0".parse().expect("an address");
    let server = clearshot_serve::Server::bind(options).expect("a server");
    assert!(server.made_token().is_some_and(|t| t.len() == 48));
    let mut options = program::options(&home.path().join("b"));
    options.token = Some("short".into());
    assert!(clearshot_serve::Server::bind(options).is_err());
    // Two servers never share their jobs.
    assert!(clearshot_serve::Server::bind(program::options(home.path())).is_err());
}

#[test]
fn headers_are_set_and_cannot_be_injected() {
    let server = Running::start(|_| {});
    let file = server.upload("b%20%22q%22%C3%A9.npy", &npy(8, 8));
    let reply =
        server.get(&format!("/api/download?file={}", file.replace(' ', "%20").replace('é', "%C3%A9")));
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("Content-Disposition"), Some("attachment; filename*=UTF-8''b%20_q_%C3%A9.npy"));
    assert_eq!(reply.body, npy(8, 8));
    for target in ["/", "/api/files", "/nothing", "/health"] {
        let reply = server.get(target);
        let policy = reply.header("Content-Security-Policy").expect("a policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.header("X-Content-Type-Options"), Some("nosniff"));
        assert_eq!(reply.header("X-Frame-Options"), Some("DENY"));
        assert_eq!(reply.header("Cross-Origin-Resource-Policy"), Some("same-origin"));
    }
    for target in ["/%0d%0aSet-Cookie:%20a=b", "/api/describe?file=%0d%0aSet-Cookie:%20a=b"] {
        let reply = server.get(target);
        assert!(reply.status >= 400 && reply.header("Set-Cookie").is_none(), "{target}");
    }
    assert_eq!(server.raw(b"GET / HTTP/1.1\r\nHost: a\r\n b: c\r\n\r\n").status, 400);
    assert_eq!(server.raw(b"\x16\x03\x01\x02\x00\x01\r\n\r\n").status, 400);
    assert_eq!(server.with("TRACE", "/api/files", "", b"").status, 405);
}

#[test]
fn hostile_images_are_refused_and_the_server_lives() {
    let server = Running::start(|o| (o.max_upload, o.max_state, o.max_queue) = (64 << 20, 1 << 30, 100));
    // A head that promises a terabyte.
    let mut huge = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    let head = "{'descr': '<u2', 'fortran_order': False, 'shape': (1000000, 1000000), }";
    huge.extend(format!("{head:<117}\n").bytes());
    let mut files = vec![("huge.npy".to_string(), huge), ("text.tif".to_string(), b"not an image".to_vec())];
    let beside = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var("CLEARSHOT_DATA").map_or(beside, std::path::PathBuf::from).join("hostile");
    match std::fs::read_dir(&folder) {
        Err(_) => println!(
            "skipped: no hostile files at {} (set CLEARSHOT_DATA); generated ones are sent",
            folder.display()
        ),
        Ok(entries) => {
            for entry in entries.flatten().filter(|e| e.path().is_file()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                files.push((name, std::fs::read(entry.path()).expect("a file")));
            }
        }
    }
    for (name, bytes) in &files {
        let reply = server.post(&format!("/api/files?name={name}"), bytes);
        if reply.status != 201 {
            assert!(matches!(reply.status, 400 | 415), "{name}: {}", reply.status);
            continue;
        }
        let file = reply.json()["file"].as_str().expect("a name").to_string();
        for route in ["describe", "tile", "histogram", "camera"] {
            let reply = server.get(&format!("/api/{route}?file={file}"));
            assert!(
                matches!(reply.status, 200 | 404 | 422),
                "{route} {name}: {}",
                String::from_utf8_lossy(&reply.body)
            );
            assert!(
                !String::from_utf8_lossy(&reply.body).contains("state/uploads"),
                "{route} {name}: says where it lies"
            );
        }
        let reply = server
            .post("/api/jobs", format!(r#"{{"file":"{file}","settings":{{"method":"raw"}}}}"#).as_bytes());
        assert!(matches!(reply.status, 201 | 422), "{name}: {}", reply.status);
    }
    assert_eq!(server.get("/health").status, 200);
}
