//! Access control: the right host (against DNS rebinding), the right site (against requests of other pages in the same
//! browser), and the token if there is one. Tokens are compared by their SHA-256, so that timing reveals nothing about
//! them, and are stored nowhere else.

use crate::http::Head;
use crate::refusal::Refusal;
use sha2::{Digest, Sha256};
use std::net::{IpAddr, SocketAddr};

/// The least characters of a token.
pub const LEAST_TOKEN: usize = 16;

pub struct Guard {
    token: Option<[u8; 32]>,
    /// The cookie that the browser keeps instead of the token.
    cookie: Option<(String, String)>,
    scheme: &'static str,
    is_local: bool,
    port: u16,
    names: Vec<String>,
}

fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// So many random bytes, as text.
///
/// # Errors
/// If the system has none.
pub fn random(bytes: usize) -> Result<String, Refusal> {
    let mut buffer = vec![0; bytes];
    let provider = rustls::crypto::ring::default_provider();
    provider.secure_random.fill(&mut buffer).map_err(|_| Refusal::ours())?;
    Ok(hex(&buffer))
}

impl Guard {
    pub fn new(address: SocketAddr, token: Option<&str>, names: &[String], is_tls: bool) -> Guard {
        Guard {
            token: token.map(|t| digest(&[t])),
            cookie: token
                .map(|t| (format!("clearshot-{}", address.port()), hex(&digest(&["cookie of the page", t])))),
            scheme: if is_tls { "https" } else { "http" },
            is_local: address.ip().is_loopback(),
            port: address.port(),
            names: names.iter().map(|n| n.to_ascii_lowercase()).collect(),
        }
    }

    /// Refuses what comes by a wrong name or from another site, whatever it asks for.
    ///
    /// # Errors
    /// If it does.
    pub fn place(&self, head: &Head) -> Result<(), Refusal> {
        let host = head.header("Host")?.ok_or_else(|| Refusal::bad("the header Host is missing"))?;
        if !self.is_host(host) {
            return Err(Refusal::new(
                421,
                "this server does not answer to that name; `--host NAME` adds a name",
            ));
        }
        let foreign = || Refusal::new(403, "requests from other sites are refused");
        if let Some(origin) = head.header("Origin")?
            && !origin.eq_ignore_ascii_case(&format!("{}://{host}", self.scheme))
        {
            return Err(foreign());
        }
        let site = head.header("Sec-Fetch-Site")?.unwrap_or("none");
        // A link on another page may open a page here; nothing else of another site is answered.
        let is_link = head.method == "GET"
            && head.header("Sec-Fetch-Mode")? == Some("navigate")
            && head.header("Sec-Fetch-Dest")?.is_none_or(|d| d == "document")
            && matches!(head.path.as_str(), "/" | "/runs");
        match site {
            "none" | "same-origin" => Ok(()),
            _ if is_link => Ok(()),
            _ => Err(foreign()),
        }
    }

    fn is_host(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, port.parse().ok()),
            _ => (host.as_str(), Some(if self.scheme == "https" { 443 } else { 80 })),
        };
        // A server behind another one (a proxy, a tunnel) is called by that one's port.
        if self.names.iter().any(|n| n == name) {
            return true;
        }
        let literal = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let known = match literal {
            Ok(ip) => ip.is_loopback() || !self.is_local,
            Err(_) => name == "localhost",
        };
        known && port == Some(self.port)
    }

    /// Refuses who does not show the token, where there is one.
    ///
    /// # Errors
    /// If it is missing or wrong.
    pub fn token(&self, head: &Head) -> Result<(), Refusal> {
        let (Some(token), Some((name, value))) = (&self.token, &self.cookie) else { return Ok(()) };
        if let Some(text) = head.header("Authorization")? {
            return match text.strip_prefix("Bearer ").map(|t| digest(&[t])) {
                Some(given) if given == *token => Ok(()),
                _ => Err(Refusal::new(401, "the token is wrong")),
            };
        }
        let cookies = head.header("Cookie")?.unwrap_or_default();
        let mut pairs = cookies.split(';').filter_map(|c| c.trim().split_once('='));
        match pairs.find(|(n, _)| n == name) {
            Some((_, given)) if digest(&[given]) == digest(&[value]) => Ok(()),
            _ => Err(Refusal::new(401, "a token is needed: Authorization: Bearer TOKEN")),
        }
    }

    /// The cookie that a browser keeps after its user has presented the token.
    pub fn set_cookie(&self) -> Option<String> {
        let (name, value) = self.cookie.as_ref()?;
        let secure = if self.scheme == "https" { "; Secure" } else { "" };
        Some(format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}"))
    }
}
