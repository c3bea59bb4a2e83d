//! A single request: signed if there are keys, sent over a persistent connection, and repeated where that may help.

use super::answer::Trouble;
use super::place::{amazon, checked, host_of, unescaped};
use super::sign::{self, Signed, Signer};
use crate::address::{Access, Address, Scheme};
use crate::error::{Fault, Parsed};
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use std::sync::{Mutex, OnceLock};
use std::time::SystemTime;
use ureq::http::{Request, Response};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// The request.
pub struct Ask<'a> {
    pub method: &'static str,
    /// On the server, escaped; of S3 behind the bucket.
    pub path: String,
    /// Its name in messages.
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

/// Attempts; a server that says nothing costs two.
const TRIES: u32 = 4;
/// The first pause between two of them is this part of the patience (0.2 s of 30 s), and each is three times the one before.
const PAUSES: u32 = 150;

pub struct Client {
    pub(super) access: Access,
    /// `https://host`, and `/bucket` for S3 servers with the bucket in the path.
    base: String,
    host: String,
    bucket_path: String,
    pub(super) s3: Option<Bucket>,
}

pub(super) struct Bucket {
    pub(super) name: String,
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
    pub(super) fn region(&self) -> String {
        let held = self.s3.as_ref().map(|bucket| bucket.region.lock().unwrap_or_else(|p| p.into_inner()));
        held.map_or(String::new(), |region| region.clone())
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
    pub(super) fn place(&self, region: &str) -> (String, String, String) {
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
}
