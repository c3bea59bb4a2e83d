//! Addresses of images that are not files: `s3://BUCKET/KEY` and `http(s)://HOST/PATH`.
//!
//! Images are named by paths everywhere in this workspace, and an address is such a path. Only this module distinguishes
//! the two, including everything that works for files only (folders, patterns, existence, whether two names are the same
//! file).
//!
//! Secrets (the query of an address, name and password in it, keys) are separated from the address as soon as it is read,
//! so that no message and no record can contain them.

use crate::error::{Error, Fault, Result, request};
use crate::format::{has_known_extension, zarr};
use crate::remote::Remote;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
    S3,
}

/// The location of an image that is not a file, without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub(crate) scheme: Scheme,
    /// A bucket, or a host with its port.
    pub(crate) host: String,
    /// Without slashes at its ends.
    pub(crate) key: String,
}

/// What a server wants to know of who asks. Given for a part of the world by [`grant`]; elsewhere the environment has it.
#[derive(Clone)]
pub struct Access {
    pub credentials: Option<Credentials>,
    /// Of S3. Default: `us-east-1`, or what the server says.
    pub region: Option<String>,
    /// A server that speaks S3, other than Amazon's: `http://127.0.0.1:9000`.
    pub endpoint: Option<String>,
    /// Appended to every http address unchanged (a token of shared access).
    pub query: Option<String>,
    /// NAME:PASSWORD for http.
    pub login: Option<String>,
    /// How long a server may say nothing.
    pub patience: Duration,
}

#[derive(Clone)]
pub struct Credentials {
    pub key: String,
    pub secret: String,
    pub token: Option<String>,
}

impl Default for Access {
    fn default() -> Access {
        let patience = Duration::from_secs(30);
        Access { credentials: None, region: None, endpoint: None, query: None, login: None, patience }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secrets = [self.credentials.is_some(), self.query.is_some(), self.login.is_some()];
        let count = secrets.iter().filter(|s| **s).count();
        write!(f, "Access {{ region: {:?}, endpoint: {:?}, secrets: {count} }}", self.region, self.endpoint)
    }
}

impl Access {
    /// As the variables say that Amazon's own programs go by: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    /// AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL.
    pub fn from_environment() -> Access {
        Access::of_variables(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
    }

    fn of_variables(variable: impl Fn(&str) -> Option<String>) -> Access {
        let first = |names: [&str; 2]| names.into_iter().find_map(&variable);
        let credentials = match (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) {
            (Some(key), Some(secret)) => {
                Some(Credentials { key, secret, token: variable("AWS_SESSION_TOKEN") })
            }
            _ => None,
        };
        Access {
            credentials,
            region: first(["AWS_REGION", "AWS_DEFAULT_REGION"]),
            endpoint: first(["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]),
            ..Access::default()
        }
    }

    /// A text of others without what must not be seen.
    pub(crate) fn redacted(&self, text: &str) -> String {
        let keys = self.credentials.iter().flat_map(|c| [Some(&c.secret), c.token.as_ref()]);
        let secrets = keys.chain([self.query.as_ref(), self.login.as_ref()]).flatten();
        secrets.filter(|s| !s.is_empty()).fold(text.to_string(), |text, secret| text.replace(secret, "..."))
    }
}

/// Beginnings of addresses, and what is granted below them.
static GRANTED: Mutex<Vec<(String, Access)>> = Mutex::new(Vec::new());

/// From now on, what lies below an address is asked for in this way.
pub fn grant(below: &str, access: Access) {
    let below = below.trim_end_matches('/').to_string();
    let mut granted = GRANTED.lock().unwrap_or_else(|p| p.into_inner());
    granted.retain(|(other, _)| *other != below);
    granted.push((below, access));
}

fn granted(address: &str) -> Option<Access> {
    let granted = GRANTED.lock().unwrap_or_else(|p| p.into_inner());
    let holds = |below: &str| {
        address.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let nearest = granted.iter().filter(|(below, _)| holds(below)).max_by_key(|(below, _)| below.len());
    nearest.map(|(_, access)| access.clone())
}

/// The scheme of something that looks like an address, and what follows it.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let letters = scheme.len() > 1
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    letters.then_some((scheme, rest))
}

/// An address as it may be seen, with its query and its login; nothing for other texts.
fn without(text: &str) -> Option<(String, Option<String>, Option<String>)> {
    let (scheme, rest) = split_scheme(text)?;
    let (rest, query) = if scheme.eq_ignore_ascii_case("s3") {
        // Keys may have these, and patterns too.
        (rest, None)
    } else {
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)))
    };
    let host_ends = rest.find('/').unwrap_or(rest.len());
    let (login, rest) = match rest[..host_ends].rfind('@') {
        Some(at) => (Some(&rest[..at]), &rest[at + 1..]),
        None => (None, rest),
    };
    let owned = |text: Option<&str>| text.filter(|t| !t.is_empty()).map(str::to_string);
    Some((format!("{scheme}://{rest}"), owned(query), owned(login)))
}

/// An argument of a program without the query, name and password of an address in it, alone or behind a `=`. These are
/// kept and used when the address is.
pub fn without_secrets(argument: OsString) -> OsString {
    let Some(text) = argument.to_str() else { return argument };
    let begins = |text: &str| without(text).is_some();
    let at = match text.find('=') {
        _ if begins(text) => 0,
        Some(at) if begins(&text[at + 1..]) => at + 1,
        _ => return argument,
    };
    let (before, address) = text.split_at(at);
    let Some((shown, query, login)) = without(address) else { return argument };
    if query.is_some() || login.is_some() {
        grant(&shown, Access { query, login, ..Access::from_environment() });
    }
    format!("{before}{shown}").into()
}

impl Address {
    /// The address that a path is; nothing for files.
    ///
    /// # Errors
    /// If it is an address that cannot be read from.
    pub fn of(path: &Path) -> Result<Option<Address>> {
        let Some(text) = path.to_str() else { return Ok(None) };
        // On systems with backslashes in paths, joined names contain them.
        let text = if cfg!(windows) { text.replace('\\', "/") } else { text.to_string() };
        let Some((name, _)) = split_scheme(&text) else { return Ok(None) };
        let scheme = match name.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "s3" => Scheme::S3,
            "file" => return request("file://: write only the path of a file, without file://"),
            "gs" | "gcs" => {
                return request(format!(
                    "{name}:// is not read; write https://storage.googleapis.com/BUCKET/NAME.zarr, or s3:// with AWS_ENDPOINT_URL=https://storage.googleapis.com"
                ));
            }
            _ => {
                return request(format!("{name}:// is not read; addresses are s3://, https:// and http://"));
            }
        };
        let Some((shown, query, login)) = without(&text) else { return Ok(None) };
        if query.is_some() || login.is_some() {
            grant(&shown, Access { query, login, ..Access::from_environment() });
        }
        let rest = split_scheme(&shown).map_or("", |(_, rest)| rest);
        let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
        let key = key.trim_matches('/');
        let plain = |c: char| {
            c.is_ascii_alphanumeric() || ".-_".contains(c) || (scheme != Scheme::S3 && ":[]".contains(c))
        };
        if host.is_empty() || !host.chars().all(plain) {
            return request(format!(
                "{shown}: no {} after ://",
                if scheme == Scheme::S3 { "bucket" } else { "host" }
            ));
        }
        if key.split('/').any(|part| part == "." || part == "..") || key.chars().any(char::is_control) {
            return request(format!(
                "{shown}: an address has no . or .. between its slashes, and no control characters"
            ));
        }
        Ok(Some(Address { scheme, host: host.to_string(), key: key.to_string() }))
    }

    /// The address as everything else names it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(self.to_string())
    }

    pub fn is_s3(&self) -> bool {
        self.scheme == Scheme::S3
    }

    pub(crate) fn access(&self) -> Access {
        granted(&self.to_string()).unwrap_or_else(Access::from_environment)
    }

    fn fail(&self) -> impl Fn(Fault) -> Error {
        let path = self.path();
        move |fault| fault.at(&path, zarr::NAME)
    }

    /// Whether two addresses are one place, or one lies in the other.
    pub(crate) fn overlaps(&self, other: &Address) -> bool {
        let [a, b] = [self, other].map(|address| Remote::new(address).map(|r| r.url("")));
        let (Ok(a), Ok(b)) = (a, b) else { return false };
        let below =
            |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        below(&a, &b) || below(&b, &a)
    }

    /// A state of everything below an address, cheaply: names, lengths and the server's marks of contents. Nothing
    /// where the server does not list.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn listed_state(&self) -> Result<Option<Vec<String>>> {
        if !self.is_s3() {
            return Ok(None);
        }
        let mut lines = Vec::new();
        let remote = Remote::new(self).map_err(self.fail())?;
        remote
            .list("", false, &mut |page| {
                lines.extend(page.objects.into_iter().map(|o| format!("{} {} {}", o.key, o.size, o.tag)));
                Ok(())
            })
            .map_err(self.fail())?;
        lines.sort();
        Ok(Some(lines))
    }

    /// The images that an address names: itself, those of a folder of a bucket, or those that a pattern fits.
    pub(crate) fn images(&self) -> Result<Vec<PathBuf>> {
        let is_pattern = self.key.contains(['*', '?']);
        let named = has_known_extension(Path::new(&self.key));
        if !self.is_s3() && is_pattern {
            return request(format!("{self}: patterns work with s3:// only; name each image"));
        }
        if !self.is_s3() || (named && !is_pattern) {
            return Ok(vec![self.path()]);
        }
        let remote = Remote::new(self).map_err(self.fail())?;
        if !is_pattern && zarr::is_at(&remote).map_err(self.fail())? {
            return Ok(vec![self.path()]);
        }
        let (folder, pattern) = match (is_pattern, self.key.rsplit_once('/')) {
            (false, _) => (self.key.as_str(), "*"),
            (true, Some((folder, pattern))) => (folder, pattern),
            (true, None) => ("", self.key.as_str()),
        };
        if folder.contains(['*', '?']) {
            return request(format!("{self}: a pattern may only follow the last slash"));
        }
        let Ok(pattern) = glob::Pattern::new(pattern) else {
            return request(format!("{self}: {pattern} is not a valid pattern"));
        };
        let folder = Address { key: folder.to_string(), ..self.clone() };
        let mut found = Vec::new();
        Remote::new(&folder)
            .and_then(|remote| {
                remote.list("", true, &mut |page| {
                    let names = page.folders.iter().map(|f| f.trim_end_matches('/'));
                    let wanted = names.filter(|n| pattern.matches(n) && has_known_extension(Path::new(n)));
                    found.extend(wanted.map(|name| folder.path().join(name)));
                    Ok(())
                })
            })
            .map_err(self.fail())?;
        if found.is_empty() {
            return request(format!("{self}: no images there (folders whose names end in .zarr)"));
        }
        found.sort();
        Ok(found)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::S3 => "s3",
        };
        write!(f, "{scheme}://{}", self.host)?;
        if self.key.is_empty() { Ok(()) } else { write!(f, "/{}", self.key) }
    }
}

/// Whether a path is an address and no file.
pub fn is_address(path: impl AsRef<OsStr>) -> bool {
    path.as_ref().to_str().is_some_and(|text| split_scheme(text).is_some())
}

/// Whether there is a file or folder, or at an address an image.
///
/// # Errors
/// If the server does not answer, or not as it should.
pub fn exists(path: &Path) -> Result<bool> {
    match Address::of(path)? {
        None => Ok(path.exists()),
        Some(address) => {
            let remote = Remote::new(&address).map_err(address.fail())?;
            zarr::is_at(&remote).map_err(address.fail())
        }
    }
}

/// Sees whether an image can be written at an address, before much work is done for it.
///
/// # Errors
/// If not.
pub fn try_out(path: &Path, replace: bool) -> Result<()> {
    let Some(address) = Address::of(path)? else { return Ok(()) };
    crate::format::refuse_output(path)?;
    zarr::Upload::try_out(&address, replace)
}

/// Whether two names are of one thing that is there.
pub fn same_place(a: &Path, b: &Path) -> bool {
    match (Address::of(a), Address::of(b)) {
        (Ok(Some(a)), Ok(Some(b))) => a.overlaps(&b),
        (Ok(None), Ok(None)) => match (a.canonicalize(), b.canonicalize()) {
            (Ok(a), Ok(b)) => a == b,
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Option<String> {
        Address::of(Path::new(text)).unwrap().map(|a| a.to_string())
    }

    #[test]
    fn addresses_are_distinguished_from_files() {
        for file in ["a.zarr", "/data/a.zarr", "s3:/a", "C:\\data\\a.tif", "a://", "://x", "a b://c/d"] {
            assert_eq!(Address::of(Path::new(file)).ok().flatten(), None, "{file}");
        }
        assert_eq!(shown("s3://bucket/a/b.zarr/").as_deref(), Some("s3://bucket/a/b.zarr"));
        assert_eq!(shown("S3://bucket").as_deref(), Some("s3://bucket"));
        assert_eq!(shown("http://127.0.0.1:9000/x.zarr").as_deref(), Some("http://127.0.0.1:9000/x.zarr"));
        assert_eq!(shown("http://[::1]:9000/x.zarr").as_deref(), Some("http://[::1]:9000/x.zarr"));
        for (wrong, word) in [
            ("s3:///x.zarr", "bucket"),
            ("https:///x.zarr", "host"),
            ("gs://bucket/x.zarr", "storage.googleapis.com"),
            ("file:///x.zarr", "without file://"),
            ("ftp://host/x.zarr", "ftp://"),
            ("s3://bucket/a/../x.zarr", ".."),
            ("s3://buc ket/x.zarr", "bucket"),
        ] {
            let said = Address::of(Path::new(wrong)).unwrap_err().to_string();
            assert!(said.contains(word), "{wrong}: {said}");
        }
        // Names that are made of others.
        let output = Path::new("s3://bucket/folder/out.ome.zarr");
        assert_eq!(
            output.with_file_name("out_std.ome.zarr"),
            Path::new("s3://bucket/folder/out_std.ome.zarr")
        );
        assert_eq!(Path::new("s3://bucket").join("a.zarr"), Path::new("s3://bucket/a.zarr"));
    }

    #[test]
    fn secrets_are_kept_apart() {
        let argument = "https://anna:p%40ss@host:81/a/b.zarr?sig=s3cr3t&se=1#top";
        assert_eq!(without_secrets(argument.into()), "https://host:81/a/b.zarr");
        let access = granted("https://host:81/a/b.zarr/0/0").unwrap();
        assert_eq!(access.query.as_deref(), Some("sig=s3cr3t&se=1"));
        assert_eq!(access.login.as_deref(), Some("anna:p%40ss"));
        assert!(granted("https://host:81/a/b.zarrs").is_none() && granted("https://host:81/a").is_none());
        assert!(!format!("{access:?}").contains("s3cr3t"));
        assert_eq!(access.redacted("not sig=s3cr3t&se=1!"), "not ...!");
        assert_eq!(without_secrets("--mask=http://h/m.zarr?key=1".into()), "--mask=http://h/m.zarr");
        assert_eq!(
            without_secrets("data.inputs=https://h/i.zarr?key=1".into()),
            "data.inputs=https://h/i.zarr"
        );
        for same in ["--psf", "a?b=c", "s3://bucket/x?.zarr", "x=y?z", "gain=1"] {
            assert_eq!(without_secrets(same.into()), same);
        }
        assert_eq!(without_secrets("s3://KEY:SECRET@bucket/x.zarr".into()), "s3://bucket/x.zarr");
        assert_eq!(without_secrets("ftp://a:b@host/x?c".into()), "ftp://host/x");
        // A path that comes in another way loses them as well.
        let address = Address::of(Path::new("https://other/c.zarr?sig=s3cr3t")).unwrap().unwrap();
        assert_eq!(address.path(), Path::new("https://other/c.zarr"));
        assert_eq!(address.access().query.as_deref(), Some("sig=s3cr3t"));
    }

    #[test]
    fn the_environment_says_how() {
        let of = |list: &[(&str, &str)]| {
            Access::of_variables(|name| list.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
        };
        assert!(of(&[("AWS_ACCESS_KEY_ID", "a")]).credentials.is_none());
        let access = of(&[
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SECRET_ACCESS_KEY", "b"),
            ("AWS_SESSION_TOKEN", "c"),
            ("AWS_DEFAULT_REGION", "eu-west-2"),
            ("AWS_ENDPOINT_URL", "http://one"),
            ("AWS_ENDPOINT_URL_S3", "http://two"),
        ]);
        assert_eq!(access.credentials.as_ref().and_then(|c| c.token.as_deref()), Some("c"));
        assert_eq!(
            (access.region.as_deref(), access.endpoint.as_deref()),
            (Some("eu-west-2"), Some("http://two"))
        );
    }
}
