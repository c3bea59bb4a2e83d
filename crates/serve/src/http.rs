//! HTTP/1.1 as far as the page and the file interface need it: heads parsed by `httparse`, bodies and responses of a known
//! length, persistent connections. Everything else is refused: without chunked requests there is no request smuggling, and
//! a head is limited in size and time. One thread serves one connection, because readers and kernels block anyway.

use crate::refusal::Refusal;
use clearshot_image::archive::PackedFolder;
use rustls::{ServerConnection, StreamOwned};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes of a head, and lines of it, at most.
const MOST_HEAD: usize = 16 << 10;
const MOST_HEADERS: usize = 64;
/// What a head may take, and a connection may be idle.
pub const HEAD_TIME: Duration = Duration::from_secs(10);
/// What a body may take: this and as long as its bytes take at the slowest rate, in bytes a second.
const BODY_TIME: Duration = Duration::from_secs(30);
const SLOWEST: u64 = 32 << 10;
/// What the end of a connection may take.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// When the other side must have been heard, shared with the socket below a TLS session.
#[derive(Clone)]
pub struct Deadline(Rc<Cell<Instant>>);

impl Deadline {
    pub fn new() -> Deadline {
        Deadline(Rc::new(Cell::new(Instant::now() + HEAD_TIME)))
    }

    fn set(&self, time: Duration) {
        self.0.set(Instant::now() + time);
    }

    /// Enough for so many bytes.
    fn set_for(&self, bytes: u64) {
        self.set(BODY_TIME + Duration::from_secs(bytes / SLOWEST));
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.0.get().saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// A socket whose reads and writes end at the deadline, however slowly bytes drip.
pub struct Timed {
    pub socket: TcpStream,
    pub deadline: Deadline,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.deadline.left()?))?;
        self.socket.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.deadline.left()?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// A plain socket, or TLS over one.
pub trait Stream: Read + Write {
    /// Says that nothing more comes, where the protocol has words for it.
    fn close(&mut self) {}
}

impl Stream for Timed {}

impl Stream for StreamOwned<ServerConnection, Timed> {
    // Without it the other side could not tell an answer that ends from one that was cut off.
    fn close(&mut self) {
        self.conn.send_close_notify();
        while self.conn.wants_write() && self.conn.write_tls(&mut self.sock).is_ok_and(|n| n > 0) {}
    }
}

/// One connection.
pub struct Connection {
    pub stream: Box<dyn Stream>,
    pub deadline: Deadline,
    /// Bytes that were read and not yet used.
    pub ahead: Vec<u8>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.deadline.set(CLOSE_TIME);
        self.stream.close();
    }
}

/// What a request says before its body.
#[derive(Debug, Default)]
pub struct Head {
    pub method: String,
    /// As sent: nothing is decoded, and routes are compared with it unchanged.
    pub path: String,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    pub length: u64,
    pub keeps: bool,
    expects: bool,
}

impl Head {
    /// The only value of a header.
    ///
    /// # Errors
    /// If there are several.
    pub fn header(&self, name: &str) -> Result<Option<&str>, Refusal> {
        let mut found = self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(Refusal::bad(format!("the header {name} occurs twice"))),
            (one, _) => Ok(one.map(|(_, v)| v.as_str())),
        }
    }

    pub fn query(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// A parameter that must be there.
    ///
    /// # Errors
    /// If it is not.
    pub fn needed(&self, key: &str) -> Result<&str, Refusal> {
        self.query(key).ok_or_else(|| Refusal::bad(format!("the parameter {key} is needed")))
    }

    /// A parameter as a number or the like; `None` where it is not given.
    ///
    /// # Errors
    /// If it is something else.
    pub fn parsed<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>, Refusal> {
        self.query(key)
            .map(|text| text.parse().map_err(|_| Refusal::bad(format!("{key}={text}: not a valid value"))))
            .transpose()
    }

    fn parse(bytes: &[u8]) -> Result<Head, Refusal> {
        let mut lines = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut parsed = httparse::Request::new(&mut lines);
        match parsed.parse(bytes) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => return Err(Refusal::bad("the request's head is incomplete")),
            Err(e) => return Err(Refusal::bad(format!("not a request of HTTP/1.1: {e}"))),
        }
        let mut head = Head { method: parsed.method.unwrap_or_default().into(), ..Head::default() };
        let target = parsed.path.unwrap_or_default();
        if !target.starts_with('/') {
            return Err(Refusal::bad("the target of a request must begin with /"));
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        head.path = path.into();
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            head.query.push((decoded(key)?, decoded(value)?));
        }
        for line in parsed.headers.iter() {
            let value = std::str::from_utf8(line.value)
                .map_err(|_| Refusal::bad(format!("the header {} is not text", line.name)))?;
            head.headers.push((line.name.into(), value.trim().into()));
        }
        if head.header("Transfer-Encoding")?.is_some() {
            return Err(Refusal::new(
                411,
                "state the length of the body (Content-Length); chunked bodies are not supported",
            ));
        }
        if let Some(length) = head.header("Content-Length")? {
            let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
            let number = length.parse().ok().filter(|_| digits);
            head.length = number.ok_or_else(|| Refusal::bad("Content-Length is not a number"))?;
        }
        let closes = head.header("Connection")?.is_some_and(|c| c.to_ascii_lowercase().contains("close"));
        head.keeps = parsed.version == Some(1) && !closes;
        head.expects = head.header("Expect")?.is_some_and(|e| e.eq_ignore_ascii_case("100-continue"));
        Ok(head)
    }
}

/// Percent signs taken back; `+` is a space, as forms write it.
fn decoded(text: &str) -> Result<String, Refusal> {
    let (mut out, mut bytes) = (Vec::new(), text.bytes());
    let digit = |b: Option<u8>| b.and_then(|b| (b as char).to_digit(16)).map(|d| d as u8);
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => match (digit(bytes.next()), digit(bytes.next())) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => return Err(Refusal::bad("a percent sign without two digits")),
            },
            b'+' => b' ',
            other => other,
        });
    }
    let text = String::from_utf8(out).map_err(|_| Refusal::bad("the query is not UTF-8"))?;
    if text.chars().any(char::is_control) {
        return Err(Refusal::bad("the query has control characters"));
    }
    Ok(text)
}

impl Connection {
    /// The next request's head; `None` where the other side has left.
    ///
    /// # Errors
    /// What to answer before the connection is closed.
    pub fn head(&mut self) -> Result<Option<Head>, Refusal> {
        self.deadline.set(HEAD_TIME);
        let mut buffer = [0; 4096];
        loop {
            if let Some(end) = self.ahead.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = Head::parse(&self.ahead[..end + 4]);
                self.ahead.drain(..end + 4);
                return head.map(Some);
            }
            if self.ahead.len() > MOST_HEAD {
                return Err(Refusal::new(431, "the request's head is too long"));
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(n) => self.ahead.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if self.ahead.is_empty() => return Ok(None),
                Err(_) => return Err(Refusal::new(408, "the request's head took too long")),
            }
        }
    }

    pub fn body(&mut self, head: &Head) -> Body<'_> {
        self.deadline.set_for(head.length);
        Body { left: head.length, expects: head.expects && head.length > 0, connection: self }
    }

    /// Sends an answer.
    ///
    /// # Errors
    /// If the other side does not take it.
    pub fn answer(&mut self, answer: Answer, is_head: bool, keeps: bool) -> io::Result<()> {
        let length = answer.body.len();
        self.deadline.set_for(length);
        let mut text =
            format!("HTTP/1.1 {} {}\r\nContent-Length: {length}\r\n", answer.status, reason(answer.status));
        for (name, value) in &answer.headers {
            // What could end a header's line never comes into one.
            let clean: String = value.chars().filter(|c| !c.is_control() && c.is_ascii()).collect();
            text += &format!("{name}: {clean}\r\n");
        }
        text += if keeps { "Connection: keep-alive\r\n\r\n" } else { "Connection: close\r\n\r\n" };
        self.stream.write_all(text.as_bytes())?;
        match answer.body {
            _ if is_head => {}
            Content::Bytes(bytes) => self.stream.write_all(&bytes)?,
            Content::File(file, length) => {
                let sent = io::copy(&mut file.take(length), &mut self.stream)?;
                if sent != length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Content::Folder(folder) => folder.write(BufWriter::new(&mut self.stream))?,
        }
        self.stream.flush()
    }

    /// Reads on for a moment, so that an answer that came before the end of a body is not lost with the connection.
    pub fn linger(&mut self) {
        self.deadline.set(CLOSE_TIME);
        let mut buffer = [0; 16 << 10];
        for _ in 0..256 {
            if !matches!(self.stream.read(&mut buffer), Ok(n) if n > 0) {
                return;
            }
        }
    }
}

/// The body of a request.
pub struct Body<'c> {
    connection: &'c mut Connection,
    pub left: u64,
    expects: bool,
}

impl Body<'_> {
    /// All of it, if it is no longer than this.
    ///
    /// # Errors
    /// If it is longer, or ends early.
    pub fn whole(&mut self, most: u64) -> Result<Vec<u8>, Refusal> {
        if self.left > most {
            return Err(Refusal::new(413, format!("the body has {} bytes; the limit is {most}", self.left)));
        }
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)
            .map_err(|_| Refusal::new(408, "the body took too long or ended early"))?;
        Ok(bytes)
    }
}

impl Read for Body<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        if std::mem::take(&mut self.expects) {
            self.connection.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            self.connection.stream.flush()?;
        }
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let ahead = &mut self.connection.ahead;
        let n = if ahead.is_empty() {
            self.connection.stream.read(&mut buffer[..most])?
        } else {
            let n = most.min(ahead.len());
            buffer[..n].copy_from_slice(&ahead[..n]);
            ahead.drain(..n);
            n
        };
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= n as u64;
        Ok(n)
    }
}

pub enum Content {
    Bytes(Vec<u8>),
    File(File, u64),
    /// A folder (Zarr) as a zip archive.
    Folder(PackedFolder),
}

impl Content {
    fn len(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::File(_, length) => *length,
            Content::Folder(folder) => folder.len(),
        }
    }
}

pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Content,
}

impl Answer {
    pub fn bytes(kind: &str, bytes: Vec<u8>) -> Answer {
        Answer { status: 200, headers: vec![("Content-Type", kind.into())], body: Content::Bytes(bytes) }
    }

    pub fn json(value: &serde_json::Value) -> Answer {
        Answer::bytes("application/json", format!("{value}\n").into_bytes())
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }

    pub fn status(mut self, status: u16) -> Answer {
        self.status = status;
        self
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        507 => "Insufficient Storage",
        _ => "Internal Server Error",
    }
}
