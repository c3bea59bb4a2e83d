//! A small server of objects for tests: GET with ranges, HEAD, PUT, DELETE and lists as S3 has them, over connections that are
//! kept. It records requests, and can be made to misbehave.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// Without the first slash, `%XX` as what it stands for.
    pub path: String,
    pub query: String,
    pub headers: BTreeMap<String, String>,
    /// Which connection it came over.
    pub connection: usize,
    /// Bytes of the answer's body.
    pub sent: usize,
}

/// Misbehaviour instead of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Mischief {
    Nothing,
    /// A status with its body.
    Status(u16, String),
    /// Half of the body, and an end of the connection.
    Broken,
    /// The whole object with status 200 where a part was asked for.
    Whole,
    /// Another part than the one asked for.
    OtherPart,
    /// A body without an end, and without a length.
    Endless,
    /// Fewer bytes than there are, with the length of those.
    Shorter,
    /// Nothing at all; or after the head and half of the body.
    Silent,
    SilentInTheMiddle,
}

type Hook = Box<dyn FnMut(&Asked) -> Mischief + Send>;

#[derive(Clone)]
pub struct Server {
    pub port: u16,
    state: Arc<State>,
}

struct State {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    asked: Mutex<Vec<Asked>>,
    hook: Mutex<Hook>,
    /// The beginning of what `Authorization` must be.
    wants: Mutex<Option<String>>,
    /// Objects on one page of a list.
    page: Mutex<usize>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|p| p.into_inner())
}

impl Server {
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            objects: Mutex::default(),
            asked: Mutex::default(),
            hook: Mutex::new(Box::new(|_| Mischief::Nothing)),
            wants: Mutex::default(),
            page: Mutex::new(1000),
        });
        let server = Server { port, state };
        let serving = server.clone();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (server, Ok(stream)) = (serving.clone(), stream) else { return };
                std::thread::spawn(move || server.serve(stream, number));
            }
        });
        server
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn misbehave(&self, hook: impl FnMut(&Asked) -> Mischief + Send + 'static) {
        *lock(&self.state.hook) = Box::new(hook);
    }

    pub fn behave(&self) {
        self.misbehave(|_| Mischief::Nothing);
    }

    pub fn want_authorization(&self, beginning: &str) {
        *lock(&self.state.wants) = Some(beginning.to_string());
    }

    pub fn set_page(&self, objects: usize) {
        *lock(&self.state.page) = objects;
    }

    pub fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        lock(&self.state.objects)
    }

    /// The requests since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *lock(&self.state.asked))
    }

    /// Puts a folder's files under a name.
    pub fn put_folder(&self, folder: &Path, name: &str) {
        for (key, data) in files_below(folder) {
            self.objects().insert(format!("{name}/{key}"), data);
        }
    }

    /// The objects below a name.
    pub fn below(&self, name: &str) -> BTreeMap<String, Vec<u8>> {
        let prefix = format!("{name}/");
        let objects = self.objects();
        objects.iter().filter_map(|(k, v)| Some((k.strip_prefix(&prefix)?.to_string(), v.clone()))).collect()
    }

    fn serve(&self, stream: TcpStream, connection: usize) {
        stream.set_nodelay(true).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let mut reader = BufReader::new(stream);
        while let Some((asked, body)) = read_request(&mut reader, connection) {
            if self.answer(asked, body, &mut writer).is_none() {
                return;
            }
        }
    }

    /// Answers; nothing where the connection ends with it.
    fn answer(&self, mut asked: Asked, body: Vec<u8>, out: &mut TcpStream) -> Option<()> {
        let mischief = (lock(&self.state.hook))(&asked);
        let authorised = match &*lock(&self.state.wants) {
            Some(wants) => asked.headers.get("authorization").is_some_and(|a| a.starts_with(wants)),
            None => true,
        };
        let error = |code: &str| {
            format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>No.</Message></Error>")
        };
        let range = asked.headers.get("range").cloned();
        let (mut status, mut data, mut head) = (200, Vec::new(), String::new());
        let read = asked.method == "GET" || asked.method == "HEAD";
        if let Mischief::Status(code, text) = &mischief {
            (status, data) = (*code, text.clone().into_bytes());
        } else if !authorised {
            (status, data) = (403, error("AccessDenied").into_bytes());
        } else if read && asked.query.contains("list-type=2") {
            data = self.list(&asked).into_bytes();
        } else if read {
            match self.objects().get(&asked.path) {
                None => (status, data) = (404, error("NoSuchKey").into_bytes()),
                Some(object) => {
                    data = object.clone();
                    let shift = usize::from(mischief == Mischief::OtherPart);
                    let part =
                        range.filter(|_| mischief != Mischief::Whole).map(|r| part_of(&r, data.len(), shift));
                    match part {
                        Some(Some((start, end))) => {
                            status = 206;
                            head = format!("Content-Range: bytes {start}-{}/{}\r\n", end - 1, data.len());
                            data = data[start..end].to_vec();
                        }
                        Some(None) => (status, data) = (416, error("InvalidRange").into_bytes()),
                        None => {}
                    }
                }
            }
        } else if asked.method == "PUT" {
            // One lock for looking and putting, as S3 has it.
            let mut objects = self.objects();
            match asked.headers.contains_key("if-none-match") && objects.contains_key(&asked.path) {
                true => (status, data) = (412, error("PreconditionFailed").into_bytes()),
                false => drop(objects.insert(asked.path.clone(), body)),
            }
        } else if asked.method == "DELETE" {
            self.objects().remove(&asked.path);
            status = 204;
        } else {
            status = 405;
        }
        asked.sent = data.len();
        let silent = mischief == Mischief::Silent;
        let is_head = asked.method == "HEAD";
        lock(&self.state.asked).push(asked);
        if silent {
            std::thread::sleep(Duration::from_secs(20));
            return None;
        }
        if mischief == Mischief::Shorter && status < 300 {
            data.truncate(data.len() / 2);
        }
        let length = match mischief {
            Mischief::Endless => "Connection: close\r\n".to_string(),
            _ if status == 204 => String::new(),
            _ => format!("Content-Length: {}\r\n", data.len()),
        };
        write!(out, "HTTP/1.1 {status} So\r\n{head}{length}\r\n").ok()?;
        if is_head {
            return Some(());
        }
        match mischief {
            Mischief::Broken | Mischief::SilentInTheMiddle => {
                out.write_all(&data[..data.len() / 2]).ok()?;
                if mischief == Mischief::SilentInTheMiddle {
                    std::thread::sleep(Duration::from_secs(20));
                }
                None
            }
            Mischief::Endless => loop {
                out.write_all(&[b' '; 1 << 16]).ok()?;
            },
            _ => out.write_all(&data).ok(),
        }
    }

    fn list(&self, asked: &Asked) -> String {
        let of = |name: &str| {
            asked.query.split('&').find_map(|p| p.strip_prefix(&format!("{name}="))).map(unescaped)
        };
        let prefix = of("prefix").unwrap_or_default();
        let (after, shallow) = (of("continuation-token").unwrap_or_default(), of("delimiter").is_some());
        let bucket = asked.path.trim_end_matches('/').to_string();
        let mut entries = BTreeMap::new();
        for (path, data) in self.objects().iter() {
            let Some(key) = path.strip_prefix(&format!("{bucket}/")) else { continue };
            let Some(rest) = key.strip_prefix(&prefix) else { continue };
            match rest.find('/').filter(|_| shallow) {
                Some(at) => {
                    let folder = format!("{prefix}{}", &rest[..=at]);
                    entries.insert(
                        folder.clone(),
                        format!("<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"),
                    );
                }
                None => {
                    let sum: u64 = data.iter().enumerate().map(|(i, b)| (i as u64 + 1) * u64::from(*b)).sum();
                    let text = format!(
                        "<Contents><Key>{key}</Key><Size>{}</Size><ETag>\"{sum}\"</ETag></Contents>",
                        data.len()
                    );
                    entries.insert(key.to_string(), text);
                }
            }
        }
        let most = *lock(&self.state.page);
        let rest: Vec<_> = entries.into_iter().filter(|(key, _)| *key > after).collect();
        let more = rest.len() > most;
        let next = rest[..most.min(rest.len())].last().map(|(key, _)| key.clone()).unwrap_or_default();
        let listed: String = rest.into_iter().take(most).map(|(_, text)| text).collect();
        let token = if more {
            format!("<NextContinuationToken>{next}</NextContinuationToken>")
        } else {
            String::new()
        };
        format!(
            "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>{more}</IsTruncated>{token}{listed}</ListBucketResult>"
        )
    }
}

/// Every file below a folder, by its path from there.
pub fn files_below(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![folder.to_path_buf()];
    while let Some(next) = waiting.pop() {
        for entry in std::fs::read_dir(next).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let key = path.strip_prefix(folder).unwrap().to_str().unwrap().replace('\\', "/");
                all.insert(key, std::fs::read(path).unwrap());
            }
        }
    }
    all
}

fn read_request(reader: &mut BufReader<TcpStream>, connection: usize) -> Option<(Asked, Vec<u8>)> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_string(), words.next()?.to_string());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.trim().to_string()),
            None => break,
        };
    }
    let length = headers.get("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let path = unescaped(path.trim_start_matches('/'));
    let asked = Asked { method, path, query: query.to_string(), headers, connection, sent: 0 };
    Some((asked, body))
}

fn unescaped(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let code = [bytes.next().unwrap(), bytes.next().unwrap()];
                out.push(u8::from_str_radix(std::str::from_utf8(&code).unwrap(), 16).unwrap());
            }
            other => out.push(other),
        }
    }
    String::from_utf8(out).unwrap()
}

/// The part that a header's range means, if there is one.
fn part_of(range: &str, length: usize, shift: usize) -> Option<(usize, usize)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let count = last.parse::<usize>().ok()?.min(length);
        return (count > 0).then_some((length - count, length - shift));
    }
    let first = first.parse::<usize>().ok()? + shift;
    let end = (last.parse::<usize>().ok()? + 1 + shift).min(length);
    (first < end).then_some((first, end))
}
