//! Signatures of requests to S3 (AWS Signature Version 4, in the `Authorization` header). Pure functions on text; nothing
//! is sent here.

use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// A request as it will be sent.
pub struct Signed<'a> {
    pub method: &'a str,
    /// With everything but letters, digits, `-._~` and `/` as `%XX`.
    pub path: &'a str,
    /// Encoded like the path, `/` too.
    pub query: &'a [(String, String)],
    /// Names in small letters, `host` among them.
    pub headers: &'a [(String, String)],
    /// SHA-256 of the body, in hexadecimal.
    pub payload: &'a str,
}

/// The signer and its region.
pub struct Signer<'a> {
    pub key: &'a str,
    pub secret: &'a str,
    pub region: &'a str,
    /// As `20130524T000000Z`.
    pub moment: &'a str,
}

impl Signer<'_> {
    /// The value of the `Authorization` header.
    pub fn authorization(&self, request: &Signed<'_>) -> String {
        let mut headers: Vec<(&str, &str)> =
            request.headers.iter().map(|(name, value)| (name.as_str(), value.trim())).collect();
        headers.sort_unstable();
        let mut query = request.query.to_vec();
        query.sort_unstable();
        let query: Vec<String> = query.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let listed: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let canonical = format!(
            "{}\n{}\n{}\n{listed}\n{names}\n{}",
            request.method,
            request.path,
            query.join("&"),
            request.payload
        );
        let day = &self.moment[..8];
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", self.moment, digest(canonical.as_bytes()));
        let mut key = hmac(format!("AWS4{}", self.secret).as_bytes(), day.as_bytes());
        for part in [self.region, "s3", "aws4_request", &text] {
            key = hmac(&key, part.as_bytes());
        }
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={}",
            self.key,
            hexadecimal(&key)
        )
    }
}

/// SHA-256 in hexadecimal.
pub fn digest(data: &[u8]) -> String {
    hexadecimal(&Sha256::digest(data))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string");
        text
    })
}

/// HMAC with SHA-256 (RFC 2104).
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0u8; 64];
    match key.len() {
        0..=64 => block[..key.len()].copy_from_slice(key),
        _ => block[..32].copy_from_slice(&Sha256::digest(key)),
    }
    let with = |pad: u8, rest: &[u8]| -> [u8; 32] {
        let padded = block.map(|b| b ^ pad);
        Sha256::new().chain_update(padded).chain_update(rest).finalize().into()
    };
    with(0x5c, &with(0x36, message))
}

/// A moment as S3 writes it, `20130524T000000Z`.
pub fn moment(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    // Days since the first of March of the year 0, in cycles of 400 years of 146097 days.
    let days = seconds / 86_400 + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + 400 * cycle + carry;
    let second = seconds % 86_400;
    format!("{year:04}{month:02}{date:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// Everything but what is never to be escaped as `%XX`, and `keep`.
pub fn escaped(text: &str, keep: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = byte as char;
        if c.is_ascii_alphanumeric() || "-._~".contains(c) || (c.is_ascii() && keep.contains(c)) {
            out.push(c);
        } else {
            write!(out, "%{byte:02X}").expect("writing to a string");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of "Signature Calculations for the Authorization Header" in Amazon's documentation of S3.
    #[test]
    fn published_signatures_come_out() {
        let signer = Signer {
            key: "AKIAIOSFODNN7EXAMPLE",
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            region: "us-east-1",
            moment: "20130524T000000Z",
        };
        let empty = digest(b"");
        assert_eq!(empty, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let stored = digest(b"Welcome to Amazon S3.");
        let check = |method: &str,
                     path: &str,
                     query: &[(&str, &str)],
                     more: &[(&str, &str)],
                     payload: &str,
                     is: &str| {
            let owned = |list: &[(&str, &str)]| -> Vec<(String, String)> {
                list.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
            };
            let mut headers = owned(more);
            headers.extend(owned(&[
                ("x-amz-date", "20130524T000000Z"),
                ("host", "examplebucket.s3.amazonaws.com"),
                ("x-amz-content-sha256", payload),
            ]));
            let query = owned(query);
            let request = Signed { method, path, query: &query, headers: &headers, payload };
            let made = signer.authorization(&request);
            assert!(made.ends_with(&format!("Signature={is}")), "{method} {path}: {made}");
            assert!(made.starts_with(
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders="
            ));
            made
        };
        let made = check(
            "GET",
            "/test.txt",
            &[],
            &[("range", "bytes=0-9")],
            &empty,
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        );
        assert!(made.contains("SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"), "{made}");
        check(
            "PUT",
            &format!("/{}", escaped("test$file.text", "/")),
            &[],
            &[("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")],
            &stored,
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        );
        check(
            "GET",
            "/",
            &[("lifecycle", "")],
            &[],
            &empty,
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        );
        check(
            "GET",
            "/",
            &[("prefix", "J"), ("max-keys", "2")],
            &[],
            &empty,
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        );
    }

    /// RFC 4231, cases 2 and 6 (a key longer than a block).
    #[test]
    fn published_authentication_codes_come_out() {
        let code = hmac(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(hexadecimal(&code), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        let code = hmac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(hexadecimal(&code), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    }

    #[test]
    fn moments_are_dates() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (1_369_353_600, "20130524T000000Z"),
            (1_735_689_599, "20241231T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(moment(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn special_characters_are_escaped() {
        assert_eq!(escaped("a b/c+ü~.zarr", "/"), "a%20b/c%2B%C3%BC~.zarr");
        assert_eq!(escaped("a/b", ""), "a%2Fb");
    }
}
