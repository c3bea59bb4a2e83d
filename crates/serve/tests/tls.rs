//! The server with a certificate and key: rustls and OpenSSL, which both check the certificate, can connect, and clients
//! without TLS cannot. The certificate is made by the machine's `openssl`; without it the test is skipped with a message.

mod program;

use program::{Reply, Running, npy};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const TOKEN: &str = "a-token-of-the-test";

/// A certificate for localhost and 127.0.0.1 that stands for itself, and its key; none where there is no `openssl`.
fn certificate(folder: &Path, name: &str) -> Option<(PathBuf, PathBuf)> {
    let at = |ending: &str| folder.join(format!("{name}.{ending}"));
    let config = "[req]\ndistinguished_name=who\nx509_extensions=more\nprompt=no\n[who]\nCN=localhost\n\
                  [more]\nsubjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n";
    std::fs::write(at("cnf"), config).expect("a file");
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-config",
        ])
        .arg(at("cnf"))
        .arg("-keyout")
        .arg(at("key"))
        .arg("-out")
        .arg(at("pem"))
        .output();
    match made {
        Err(e) => {
            println!("skipped: no openssl to make a certificate with: {e}");
            None
        }
        Ok(out) => {
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            Some((at("pem"), at("key")))
        }
    }
}

/// A request by rustls, which trusts this certificate alone; the whole answer up to the end of the session.
fn ask(
    server: &Running,
    trusted: &Path,
    version: &'static SupportedProtocolVersion,
    head: &str,
    body: &[u8],
) -> std::io::Result<Reply> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted).expect("a certificate")).expect("an anchor");
    let config = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let session = ClientConnection::new(Arc::new(config), name).expect("a session");
    let socket = TcpStream::connect(server.address)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut stream = StreamOwned::new(session, socket);
    let port = server.address.port();
    let (line, more) = head.split_once('\n').unwrap_or((head, ""));
    let request = format!(
        "{line} HTTP/1.1\r\nHost: localhost:{port}\r\nAuthorization: Bearer {TOKEN}\r\n{more}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    stream.write_all(body)?;
    let mut got = Vec::new();
    stream.read_to_end(&mut got)?;
    let end = got.windows(4).position(|w| w == b"\r\n\r\n").expect("an answer");
    let head = String::from_utf8(got[..end].to_vec()).expect("text");
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    Ok(Reply { status, head, body: got[end + 4..].to_vec() })
}

#[test]
fn requests_go_by_tls() {
    let home = TempDir::new().expect("a folder");
    let Some((pem, key)) = certificate(home.path(), "mine") else { return };
    let (other, _) = certificate(home.path(), "other").expect("made once already");
    let server = Running::start(|options| {
        options.tls = Some((pem.clone(), key));
        options.token = Some(TOKEN.into());
    });
    let image = npy(300, 200);
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let reply = ask(&server, &pem, version, "POST /api/files?name=a.npy", &image).expect("an answer");
        assert_eq!(reply.status, 201, "{}", reply.head);
        let file = reply.json()["file"].as_str().expect("a name").to_string();
        // All of it comes, and the session is closed and not cut off.
        let reply =
            ask(&server, &pem, version, &format!("GET /api/download?file={file}"), b"").expect("an answer");
        assert!(reply.status == 200 && reply.body == image, "{}", reply.head);
        // Cookies are for TLS alone, and so is the page's origin.
        let reply = ask(&server, &pem, version, "POST /api/session", b"").expect("an answer");
        assert!(
            reply.header("Set-Cookie").is_some_and(|c| c.contains("; Secure") && c.contains("HttpOnly")),
            "{}",
            reply.head
        );
        let port = server.address.port();
        for (scheme, status) in [("https", 200), ("http", 403)] {
            let head = format!("GET /api/files\nOrigin: {scheme}://localhost:{port}\r\n");
            assert_eq!(
                ask(&server, &pem, version, &head, b"").expect("an answer").status,
                status,
                "{scheme}"
            );
        }
        // Who trusts another certificate hears nothing.
        let refused =
            ask(&server, &other, version, "GET /health", b"").expect_err("not this server's certificate");
        assert!(refused.to_string().contains("certificate"), "{refused}");
    }
    // OpenSSL, as a client that is not ours.
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-verify_return_error", "-verify_hostname", "localhost", "-connect"])
        .arg(server.address.to_string())
        .arg("-CAfile")
        .arg(&pem)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl starts");
    let request = format!("GET /health HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address);
    client.stdin.as_mut().expect("an input").write_all(request.as_bytes()).expect("sent");
    let mut heard = String::new();
    client.stdout.take().expect("an output").read_to_string(&mut heard).expect("text");
    client.wait().expect("openssl ends");
    assert!(heard.starts_with("HTTP/1.1 200 OK") && heard.contains("\"status\":\"ok\""), "{heard}");
    // A request without TLS gets no answer in words of HTTP, and the server lives.
    let mut plain = TcpStream::connect(server.address).expect("a connection");
    plain.write_all(request.as_bytes()).expect("sent");
    let mut got = Vec::new();
    let _ = plain.read_to_end(&mut got);
    assert!(!got.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&got));
    assert_eq!(
        ask(&server, &pem, &rustls::version::TLS13, "GET /health", b"").expect("an answer").status,
        200
    );
}
