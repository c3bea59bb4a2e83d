//! Turns a response into an answer: read up to a limit, checked against the request, and worded if it is an error or does
//! not arrive.

use super::client::{Answer, Ask, Client};
use super::listing;
use crate::error::Fault;
use std::io::Read;
use ureq::Body;
use ureq::http::Response;

/// Why one attempt failed.
pub enum Trouble {
    /// It may help to try again: what happened, and how much patience that costs.
    Passing(String, u32),
    /// The bucket lies in another region.
    Elsewhere(String),
    Lasting(Fault),
}

impl Client {
    /// A body that is not too long, and as long as it was said to be.
    pub(super) fn accept(
        &self,
        ask: &Ask<'_>,
        status: u16,
        response: Response<Body>,
    ) -> Result<Answer, Trouble> {
        let header =
            |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_string);
        if let Some(packed) = header("content-encoding").filter(|e| !e.eq_ignore_ascii_case("identity")) {
            let what = format!(
                "the server sent {} compressed (content-encoding {packed}), which is not supported",
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
                "the server sent all of {} instead of the requested part ({range}): it does not support range requests, which shards need; copy the image to a local folder first",
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

    pub(super) fn worded(&self, ask: &Ask<'_>, status: u16, said: &str) -> String {
        let said = if said.is_empty() { String::new() } else { format!(" ({said})") };
        format!("the server answers {status}{said} to {} {}", ask.method, ask.key)
    }

    pub(super) fn advice(&self, code: Option<&str>) -> String {
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
    pub(super) fn said(
        &self,
        ask: &Ask<'_>,
        response: Response<Body>,
    ) -> Result<(Option<String>, String), Trouble> {
        let mut body = Vec::new();
        if ask.method != "HEAD" {
            let mut reader = response.into_body().into_reader().take(16 << 10);
            reader.read_to_end(&mut body).map_err(|e| self.broken(ask, e))?;
        }
        let (code, said) = listing::said(&body);
        Ok((code, self.access.redacted(&said)))
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
        Trouble::Passing(
            format!("the server did not answer for {seconds} s to {} {}", ask.method, ask.key),
            2,
        )
    }

    /// No answer at all.
    pub(super) fn failed(&self, ask: &Ask<'_>, error: ureq::Error) -> Trouble {
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
    Trouble::Lasting(Fault::Limit(format!("{length} of {}, and the limit is {}", ask.key, ask.most)))
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
