//! The location of a bucket or server: URLs, hosts and paths from names.

use crate::error::{Fault, Parsed};

/// The URL that Amazon has for a bucket, and the bucket in the path where its name cannot be a host's.
pub fn amazon(bucket: &str, region: &str) -> (String, String) {
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

/// A server's address as AWS_ENDPOINT_URL has it.
pub fn checked(endpoint: &str) -> Parsed<String> {
    let endpoint = endpoint.trim().trim_end_matches('/');
    let rest = endpoint.strip_prefix("http://").or(endpoint.strip_prefix("https://"));
    match rest.filter(|rest| !rest.is_empty() && !rest.contains(['@', '?', '#', ' '])) {
        Some(_) => Ok(endpoint.to_string()),
        None => Err(Fault::Remote("AWS_ENDPOINT_URL is not an http:// or https:// address".to_string())),
    }
}

/// The host of a URL as the header has it: without a port that is the usual one.
pub fn host_of(base: &str) -> String {
    let (scheme, rest) = base.split_once("://").unwrap_or(("", base));
    let host = rest.split('/').next().unwrap_or_default();
    let usual = if scheme == "https" { ":443" } else { ":80" };
    host.strip_suffix(usual).unwrap_or(host).to_string()
}

/// `%XX` as what it stands for.
pub fn unescaped(text: &str) -> String {
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

    /// A password with a letter that is escaped in addresses.
    #[test]
    fn logins_are_unescaped() {
        assert_eq!(unescaped("a:p%40ss%"), "a:p@ss%");
        assert_eq!(unescaped("%C3%BC%zz"), "ü%zz");
    }
}
