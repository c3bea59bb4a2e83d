//! One request and its answer: signed where there are keys, sent over a connection that is kept, tried again where that
//! may help, read up to a limit, and worded where it fails.

use super::listing;
use super::sign::{self, Signed, Signer};
use crate::address::{Access, Address, Scheme};
use crate::error::{Fault, Parsed};
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use std::io::Read;
use std::sync::{Mutex, OnceLock};
use std::time::SystemTime;
use ureq::http::{Request, Response};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// What is asked.
pub struct Ask<'a> {
    pub method: &'static str,
    /// On the server, escaped; of S3 behind the bucket.
    pub path: String,
    /// What messages call it.
    pub key: &'a str,
    /// Escaped.
    pub query: Vec<(String, String)>,
    /// A header's value, where the range begins (nothing: so many bytes back from the end), and its length.
    pub range: Option<(String, Option<u64>, u64)>,
    pub body: Option<&'a [u8]>,
    /// Only where there is no such object yet; otherwise the answer is 412.
    pub only_new: bool,
    /// Bytes of the answer.
    pub most: u64,
}

/// An answer that is one: 2xx, 404 of a missing object, 412 of one that is there already, or 416.
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Why one attempt failed.
enum Trouble {
    /// It may help to try again: what happened, and how much patience that costs.
    Passing(String, u32),
    /// The bucket lies in another region.
    Elsewhere(String),
    Lasting(Fault),
}

/// Attempts; a server that says nothing costs two.
const TRIES: u32 = 4;
/// The first pause between two of them is this part of the patience (0.2 s of 30 s), and each is three times the one before.
const PAUSES: u32 = 150;

pub struct Client {
    access: Access,
    /// `https://host`, and for S3 servers that are told apart by paths `/bucket`.
    base: String,
    host: String,
    bucket_path: String,
    s3: Option<Bucket>,
}

struct Bucket {
    name: String,
    region: Mutex<String>,
}

fn agent() -> Parsed<&'static Agent> {
    static AGENT: OnceLock<Result<Agent, String>> = OnceLock::new();
    let made = AGENT.get_or_init(|| {
        let roots = match ["AWS_CA_BUNDLE", "SSL_CERT_FILE"].iter().find_map(std::env::var_os) {
            None => RootCerts::WebPki,
            Some(path) => {
                let shown = std::path::Path::new(&path).display().to_string();
                let pem = std::fs::read(&path).map_err(|e| format!("the certificates in {shown}: {e}"))?;
                let certificates: Vec<_> = parse_pem(&pem)
                    .filter_map(|item| match item {
                        Ok(PemItem::Certificate(certificate)) => Some(certificate),
                        _ => None,
                    })
                    .collect();
                if certificates.is_empty() {
                    return Err(format!("{shown} (AWS_CA_BUNDLE or SSL_CERT_FILE) holds no certificates"));
                }
                RootCerts::new_with_certs(&certificates)
            }
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .user_agent(concat!("clearshot/", env!("CARGO_PKG_VERSION")))
            .max_idle_connections(2 * super::AT_ONCE)
            .max_idle_connections_per_host(super::AT_ONCE)
            .build();
        Ok(Agent::new_with_config(config))
    });
    made.as_ref().map_err(|what| Fault::Remote(what.clone()))
}

impl Client {
    pub fn new(address: &Address, access: Access) -> Parsed<Client> {
        let (base, bucket_path, s3) = match address.scheme {
            Scheme::Http => (format!("http://{}", address.host), String::new(), None),
            Scheme::Https => (format!("https://{}", address.host), String::new(), None),
            Scheme::S3 => {
                let name = address.host.clone();
                let region = access.region.clone().unwrap_or_else(|| "us-east-1".to_string());
                let (base, path) = match &access.endpoint {
                    Some(endpoint) => (checked(endpoint)?, format!("/{name}")),
                    None => amazon(&name, &region),
                };
                (base, path, Some(Bucket { name, region: Mutex::new(region) }))
            }
        };
        let host = host_of(&base);
        Ok(Client { access, base, host, bucket_path, s3 })
    }

    pub fn url(&self, path: &str, query: &str) -> String {
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{}{}{path}{mark}{query}", self.base, self.bucket_path)
    }

    /// Asks until there is an answer, or no hope of one.
    pub fn send(&self, ask: &Ask<'_>) -> Parsed<Answer> {
        use clearshot_timeline::Phase;
        let _span =
            clearshot_timeline::span(if ask.body.is_some() { Phase::Writing } else { Phase::Reading });
        let (mut cost, mut tries, mut moved) = (0, 0, false);
        let mut pause = self.access.patience / PAUSES;
        loop {
            tries += 1;
            match self.attempt(ask) {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Lasting(fault)) => return Err(fault),
                Err(Trouble::Elsewhere(region)) if !moved => {
                    moved = true;
                    if let Some(bucket) = &self.s3 {
                        *bucket.region.lock().unwrap_or_else(|p| p.into_inner()) = region;
                    }
                }
                Err(Trouble::Elsewhere(region)) => {
                    let what = format!("the bucket lies in the region {region}; set AWS_REGION={region}");
                    return Err(Fault::Remote(what));
                }
                Err(Trouble::Passing(what, price)) => {
                    cost += price;
                    if cost >= TRIES {
                        let times = if tries == 1 { "once".to_string() } else { format!("{tries} times") };
                        return Err(Fault::Remote(format!("{what} (tried {times}); try again later")));
                    }
                    std::thread::sleep(pause);
                    pause *= 3;
                }
            }
        }
    }

    fn attempt(&self, ask: &Ask<'_>) -> Result<Answer, Trouble> {
        let region = self.region();
        let response = self.request(ask, &region)?;
        let status = response.status().as_u16();
        if let Some(other) = self.other_region(&response, &region) {
            return Err(Trouble::Elsewhere(other));
        }
        match status {
            200..=299 => self.accept(ask, status, response),
            404 | 416 => {
                let (code, said) = self.said(ask, response)?;
                match code.as_deref() {
                    Some("NoSuchBucket") => Err(Trouble::Lasting(Fault::Remote(format!(
                        "the server knows no bucket of that name ({said}); check the name, and AWS_ENDPOINT_URL if it is not Amazon's"
                    )))),
                    _ if ask.method == "PUT" => {
                        Err(Trouble::Lasting(Fault::Remote(self.worded(ask, status, &said))))
                    }
                    _ => Ok(Answer { status, body: Vec::new() }),
                }
            }
            412 if ask.only_new => {
                self.said(ask, response)?;
                Ok(Answer { status, body: Vec::new() })
            }
            408 | 429 | 500 | 502..=504 => {
                let (_, said) = self.said(ask, response)?;
                Err(Trouble::Passing(self.worded(ask, status, &said), 1))
            }
            401 | 403 => {
                let (code, said) = self.said(ask, response)?;
                let what = format!("{}; {}", self.worded(ask, status, &said), self.advice(code.as_deref()));
                Err(Trouble::Lasting(Fault::Forbidden(what)))
            }
            _ => {
                let (code, said) = self.said(ask, response)?;
                let what = self.worded(ask, status, &said);
                match code.as_deref() {
                    // The last is another put of the same object at the same moment.
                    Some("RequestTimeout" | "SlowDown" | "ConditionalRequestConflict") => {
                        Err(Trouble::Passing(what, 1))
                    }
                    _ => Err(Trouble::Lasting(Fault::Remote(what))),
                }
            }
        }
    }

    /// The region that the bucket is known to lie in by now.
    fn region(&self) -> String {
        let held = self.s3.as_ref().map(|bucket| bucket.region.lock().unwrap_or_else(|p| p.into_inner()));
        held.map_or(String::new(), |region| region.clone())
    }

    fn worded(&self, ask: &Ask<'_>, status: u16, said: &str) -> String {
        let said = if said.is_empty() { String::new() } else { format!(" ({said})") };
        format!("the server answers {status}{said} to {} {}", ask.method, ask.key)
    }

    fn advice(&self, code: Option<&str>) -> String {
        match (&self.s3, &self.access.credentials, code) {
            (_, _, Some("RequestTimeTooSkewed")) => "set this machine's clock".to_string(),
            (_, _, Some("ExpiredToken")) => "fetch new keys, AWS_SESSION_TOKEN has expired".to_string(),
            (Some(_), None, _) => {
                "there are no keys and the request was not signed: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or check the address".to_string()
            }
            (Some(bucket), Some(_), _) => format!(
                "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and that they may list, read and write objects of the bucket {}",
                bucket.name
            ),
            (None, ..) => {
                "the address wants a name and password (https://NAME:PASSWORD@HOST/...), a token behind a ?, or is not for everybody; for a bucket with keys write s3://BUCKET/...".to_string()
            }
        }
    }

    /// The beginning of what a server says of an error, without secrets.
    fn said(&self, ask: &Ask<'_>, response: Response<Body>) -> Result<(Option<String>, String), Trouble> {
        let mut body = Vec::new();
        if ask.method != "HEAD" {
            let mut reader = response.into_body().into_reader().take(16 << 10);
            reader.read_to_end(&mut body).map_err(|e| self.broken(ask, e))?;
        }
        let (code, said) = listing::said(&body);
        Ok((code, self.access.redacted(&said)))
    }

    /// The region that the server says, where it is not the one that was asked in.
    fn other_region(&self, response: &Response<Body>, here: &str) -> Option<String> {
        let status = response.status().as_u16();
        if self.s3.is_none() || !matches!(status, 301 | 307 | 400) || self.access.endpoint.is_some() {
            return None;
        }
        let region = response.headers().get("x-amz-bucket-region")?.to_str().ok()?;
        let plain = !region.is_empty() && region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        (plain && region != here).then(|| region.to_string())
    }

    /// Host, beginning of the URL and of the path of requests in a region.
    fn place(&self, region: &str) -> (String, String, String) {
        match (&self.s3, &self.access.endpoint) {
            (Some(bucket), None) => {
                let (base, path) = amazon(&bucket.name, region);
                (host_of(&base), base, path)
            }
            _ => (self.host.clone(), self.base.clone(), self.bucket_path.clone()),
        }
    }

    fn request(&self, ask: &Ask<'_>, region: &str) -> Result<Response<Body>, Trouble> {
        let (host, base, bucket_path) = self.place(region);
        let mut path = format!("{bucket_path}{}", ask.path);
        if path.is_empty() {
            path.push('/');
        }
        let mut query: Vec<String> = ask.query.iter().map(|(key, value)| format!("{key}={value}")).collect();
        query.extend(self.access.query.clone().filter(|_| self.s3.is_none()));
        let mark = if query.is_empty() { "" } else { "?" };
        let mut headers = Vec::new();
        if self.s3.is_some() {
            headers.push(("host".to_string(), host));
        }
        if let Some((range, ..)) = &ask.range {
            headers.push(("range".into(), range.clone()));
        }
        if ask.only_new {
            headers.push(("if-none-match".into(), "*".into()));
        }
        match (&self.s3, &self.access.credentials) {
            (Some(_), Some(credentials)) => {
                let moment = sign::moment(SystemTime::now());
                let payload = sign::digest(ask.body.unwrap_or_default());
                headers.push(("x-amz-content-sha256".into(), payload.clone()));
                headers.push(("x-amz-date".into(), moment.clone()));
                headers.extend(credentials.token.iter().map(|t| ("x-amz-security-token".into(), t.clone())));
                let signer =
                    Signer { key: &credentials.key, secret: &credentials.secret, region, moment: &moment };
                let signed = Signed {
                    method: ask.method,
                    path: &path,
                    query: &ask.query,
                    headers: &headers,
                    payload: &payload,
                };
                let authorization = signer.authorization(&signed);
                headers.push(("authorization".into(), authorization));
            }
            (None, _) => {
                if let Some(login) = &self.access.login {
                    let login = BASE64.encode(unescaped(login));
                    headers.push(("authorization".into(), format!("Basic {login}")));
                }
            }
            _ => {}
        }
        headers.push(("accept-encoding".into(), "identity".into()));
        let mut builder =
            Request::builder().method(ask.method).uri(format!("{base}{path}{mark}{}", query.join("&")));
        for (name, value) in headers {
            builder = builder.header(name, value);
        }
        let body = ask.body.unwrap_or_default();
        let agent = agent().map_err(Trouble::Lasting)?;
        let wrong = |_| {
            Trouble::Lasting(Fault::Remote(
                "the address or a key has characters that cannot be sent".to_string(),
            ))
        };
        let answered = match ask.method {
            "PUT" => agent.run(self.patient(agent, builder.body(body).map_err(wrong)?)),
            _ => agent.run(self.patient(agent, builder.body(()).map_err(wrong)?)),
        };
        answered.map_err(|e| self.failed(ask, e))
    }

    fn patient<S: ureq::AsSendBody>(&self, agent: &Agent, request: Request<S>) -> Request<S> {
        let patience = Some(self.access.patience);
        // A server on this machine is not asked through a proxy.
        let here = ["localhost", "127.", "[::1]"].iter().any(|name| self.host.starts_with(name));
        let proxy = agent.config().proxy().filter(|_| !here).cloned();
        agent
            .configure_request(request)
            .proxy(proxy)
            .timeout_resolve(patience)
            .timeout_connect(patience)
            .timeout_per_read(patience)
            .timeout_per_write(patience)
            // A signature holds for one place only.
            .max_redirects(if self.s3.is_some() { 0 } else { 5 })
            .max_redirects_will_error(false)
            .build()
    }

    /// A body that is not too long, and as long as it was said to be.
    fn accept(&self, ask: &Ask<'_>, status: u16, response: Response<Body>) -> Result<Answer, Trouble> {
        let header =
            |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_string);
        if let Some(packed) = header("content-encoding").filter(|e| !e.eq_ignore_ascii_case("identity")) {
            let what = format!(
                "the server sends {} packed once more (content-encoding {packed}), which is not read",
                ask.key
            );
            return Err(Trouble::Lasting(Fault::Remote(what)));
        }
        if ask.method != "GET" {
            // So that the connection can be used again.
            let mut body = response.into_body().into_reader().take(16 << 10);
            std::io::copy(&mut body, &mut std::io::sink()).map_err(|e| self.broken(ask, e))?;
            return Ok(Answer { status, body: Vec::new() });
        }
        let whole: Option<u64> = header("content-length").and_then(|l| l.trim().parse().ok());
        let Some((range, start, length)) = &ask.range else {
            if let Some(length) = whole.filter(|l| *l > ask.most) {
                return Err(too_long(ask, &format!("{length} bytes")));
            }
            let body = self.read(ask, response, 0, ask.most)?;
            return Ok(Answer { status, body });
        };
        if status == 206 {
            let sent = header("content-range");
            let right = sent.as_deref().is_none_or(|sent| is_range(sent, *start, *length));
            if !right {
                let what =
                    format!("the server answers {range} of {} by {}", ask.key, sent.unwrap_or_default());
                return Err(Trouble::Lasting(Fault::Remote(self.access.redacted(&what))));
            }
            let body = self.read(ask, response, 0, *length)?;
            return Ok(Answer { status, body });
        }
        // The whole object in place of a part: what comes before it is let go by, if it is not too much.
        let Some(total) = whole.filter(|total| *total <= super::MOST_SKIPPED) else {
            return Err(Trouble::Lasting(Fault::Remote(format!(
                "the server sends all of {} where a part of it was asked for ({range}): it knows no ranges, which shards need; copy the image to a local folder first",
                ask.key
            ))));
        };
        let skip = start.unwrap_or(total.saturating_sub(*length));
        let body = self.read(ask, response, skip, *length)?;
        Ok(Answer { status, body })
    }

    /// So many bytes after others; more are an error where the whole was wanted.
    fn read(
        &self,
        ask: &Ask<'_>,
        response: Response<Body>,
        skip: u64,
        most: u64,
    ) -> Result<Vec<u8>, Trouble> {
        let mut reader = response.into_body().into_reader();
        let broken = |e| self.broken(ask, e);
        std::io::copy(&mut (&mut reader).take(skip), &mut std::io::sink()).map_err(broken)?;
        let mut body = Vec::new();
        (&mut reader).take(most).read_to_end(&mut body).map_err(broken)?;
        // A connection is used again only if its body was read to the end.
        let more = body.len() as u64 == most && reader.read(&mut [0]).map_err(broken)? > 0;
        if more && ask.range.is_none() {
            return Err(too_long(ask, &format!("more than {most} bytes")));
        }
        Ok(body)
    }

    /// An answer that ends in the middle.
    fn broken(&self, ask: &Ask<'_>, error: std::io::Error) -> Trouble {
        let inner = error.get_ref().and_then(|e| e.downcast_ref::<ureq::Error>());
        if error.kind() == std::io::ErrorKind::TimedOut || matches!(inner, Some(ureq::Error::Timeout(_))) {
            return self.silent(ask);
        }
        Trouble::Passing(format!("the connection broke in the middle of {}: {error}", ask.key), 1)
    }

    fn silent(&self, ask: &Ask<'_>) -> Trouble {
        let seconds = self.access.patience.as_secs_f64();
        Trouble::Passing(format!("the server says nothing for {seconds} s to {} {}", ask.method, ask.key), 2)
    }

    /// No answer at all.
    fn failed(&self, ask: &Ask<'_>, error: ureq::Error) -> Trouble {
        use std::io::ErrorKind;
        let host = &self.place(&self.region()).0;
        let lasting = |what: String| Trouble::Lasting(Fault::Remote(what));
        let elsewhere = if self.s3.is_some() { " and AWS_ENDPOINT_URL" } else { "" };
        let nowhere =
            || lasting(format!("there is no host {host}, or no network; check the address{elsewhere}"));
        let unsafe_connection = |why: &dyn std::fmt::Display| {
            lasting(format!(
                "no safe connection to {host}: {why}; a server with a certificate of its own is trusted with AWS_CA_BUNDLE=FILE.pem"
            ))
        };
        match error {
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => Trouble::Passing(
                format!("{host} does not answer; check the address{elsewhere} and the network"),
                2,
            ),
            ureq::Error::Timeout(_) => self.silent(ask),
            ureq::Error::Io(e) if e.kind() == ErrorKind::TimedOut => self.silent(ask),
            ureq::Error::Io(e) if e.kind() == ErrorKind::ConnectionRefused => lasting(format!(
                "{host} refuses connections: no server runs there; check the address{elsewhere}"
            )),
            ureq::Error::HostNotFound => nowhere(),
            ureq::Error::Io(e) if not_found(&e) => nowhere(),
            // So certificates that are not trusted come through.
            ureq::Error::Io(e) if e.kind() == ErrorKind::InvalidData => unsafe_connection(&e),
            ureq::Error::Io(e) => Trouble::Passing(format!("the connection to {host} broke: {e}"), 1),
            ureq::Error::Protocol(e) => {
                Trouble::Passing(format!("{host} does not speak HTTP as it should: {e}"), 2)
            }
            ureq::Error::Rustls(e) => unsafe_connection(&e),
            other => lasting(self.access.redacted(&format!("{host}: {other}"))),
        }
    }
}

/// Whether a name could not be resolved, which has no kind of its own; 11001 is Windows' number for it.
fn not_found(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(11001)
        || error.to_string().starts_with("failed to lookup address information")
}

fn too_long(ask: &Ask<'_>, length: &str) -> Trouble {
    Trouble::Lasting(Fault::Limit(format!("{length} of {}, and {} are the most there", ask.key, ask.most)))
}

/// Whether `bytes 4-7/12` is the part that was asked for.
fn is_range(sent: &str, start: Option<u64>, length: u64) -> bool {
    let parsed = sent.trim().strip_prefix("bytes ").and_then(|sent| {
        let (range, total) = sent.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?, total.parse::<u64>().ok()))
    });
    match (parsed, start) {
        (Some((first, last, total)), start) => {
            let right =
                start.map_or(total.is_none_or(|t| Some(t) == last.checked_add(1)), |start| first == start);
            right && last.checked_sub(first).is_some_and(|n| n < length)
        }
        (None, _) => false,
    }
}

/// The URL that Amazon has for a bucket, and the bucket in the path where its name cannot be a host's.
fn amazon(bucket: &str, region: &str) -> (String, String) {
    let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    let for_host = bucket.len() >= 3
        && bucket.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !bucket.starts_with('-')
        && !bucket.ends_with('-');
    match for_host {
        true => (format!("https://{bucket}.s3.{region}.{suffix}"), String::new()),
        false => (format!("https://s3.{region}.{suffix}"), format!("/{bucket}")),
    }
}

fn checked(endpoint: &str) -> Parsed<String> {
    let endpoint = endpoint.trim().trim_end_matches('/');
    let rest = endpoint.strip_prefix("http://").or(endpoint.strip_prefix("https://"));
    match rest.filter(|rest| !rest.is_empty() && !rest.contains(['@', '?', '#', ' '])) {
        Some(_) => Ok(endpoint.to_string()),
        None => Err(Fault::Remote("AWS_ENDPOINT_URL is no http:// or https:// address".to_string())),
    }
}

/// The host of a URL as the header has it: without a port that is the usual one.
fn host_of(base: &str) -> String {
    let (scheme, rest) = base.split_once("://").unwrap_or(("", base));
    let host = rest.split('/').next().unwrap_or_default();
    let usual = if scheme == "https" { ":443" } else { ":80" };
    host.strip_suffix(usual).unwrap_or(host).to_string()
}

/// `%XX` as what it stands for.
fn unescaped(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let code = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_hosts_where_their_names_allow() {
        let of = |bucket: &str, region: &str| {
            let (base, path) = amazon(bucket, region);
            base + &path
        };
        assert_eq!(of("idr-open", "eu-west-2"), "https://idr-open.s3.eu-west-2.amazonaws.com");
        assert_eq!(of("has.dots", "us-east-1"), "https://s3.us-east-1.amazonaws.com/has.dots");
        assert_eq!(of("Large_Names", "us-east-1"), "https://s3.us-east-1.amazonaws.com/Large_Names");
        assert_eq!(of("abc", "cn-north-1"), "https://abc.s3.cn-north-1.amazonaws.com.cn");
        assert_eq!(host_of("http://a:80/x"), "a");
        assert_eq!(host_of("https://a:80"), "a:80");
        for wrong in ["", "minio:9000", "ftp://a", "https://", "http://k:s@host"] {
            assert!(checked(wrong).is_err(), "{wrong}");
        }
        assert_eq!(checked(" http://minio:9000/ ").unwrap(), "http://minio:9000");
    }

    #[test]
    fn ranges_are_those_asked_for() {
        assert!(is_range("bytes 4-7/12", Some(4), 4) && is_range("bytes 4-7/*", Some(4), 4));
        assert!(is_range("bytes 8-11/12", None, 4) && is_range("bytes 0-11/12", None, 16));
        for (sent, start) in
            [("bytes 5-8/12", Some(4)), ("bytes 4-8/12", Some(4)), ("bytes 4-7/12", None), ("x", None)]
        {
            assert!(!is_range(sent, start, 4), "{sent}");
        }
        assert!(!is_range("bytes 7-4/12", Some(7), 4) && !is_range("bytes 7-4/5", None, 4));
    }

    /// A password with a letter that is escaped in addresses.
    #[test]
    fn logins_are_unescaped() {
        assert_eq!(unescaped("a:p%40ss%"), "a:p@ss%");
        assert_eq!(unescaped("%C3%BC%zz"), "ü%zz");
    }
}
