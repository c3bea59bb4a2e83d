//! Objects at an address: whole objects, parts of them, lists, and new ones. S3 and plain http servers differ in the URL of
//! an object, in signing, and in whether listing and writing are possible; everything else is shared.

mod answer;
mod client;
mod listing;
mod place;
mod sign;

use crate::address::{Address, Scheme};
use crate::error::{Fault, Parsed};
use client::{Answer, Ask, Client};
pub(crate) use listing::Page;
use sign::escaped;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most bytes of one answer: what a damaged or hostile server can make a program hold.
pub(crate) const MOST: u64 = 128 << 20;
/// Of a list of a thousand objects.
const MOST_LISTED: u64 = 8 << 20;
/// What a server without ranges may send in place of a part, which is let go by.
const MOST_SKIPPED: u64 = 1 << 30;
/// Requests that are under way at once.
pub(crate) const AT_ONCE: usize = 16;
/// The largest object of a single PUT on S3.
pub(crate) const LARGEST_OBJECT: u64 = 5 << 30;

/// An address and the way to what lies below it.
pub(crate) struct Remote {
    address: Address,
    client: Client,
    /// What was said of metadata that may not be seen. Servers that do not list say so of what is not there.
    forbidden: Mutex<Option<String>>,
}

impl Remote {
    pub fn new(address: &Address) -> Parsed<Remote> {
        let client = Client::new(address, address.access())?;
        Ok(Remote { address: address.clone(), client, forbidden: Mutex::new(None) })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    pub fn is_s3(&self) -> bool {
        self.address.scheme == Scheme::S3
    }

    /// The path of a key on the server, escaped.
    fn path(&self, key: &str) -> String {
        let root = match self.address.scheme {
            Scheme::S3 => escaped(&self.address.key, "/"),
            // As it was written, which is escaped already where it has to be.
            _ => escaped(&self.address.key, "/%+=@:!$&'()*,;"),
        };
        let parts = [root, escaped(key, "/")];
        parts.iter().filter(|p| !p.is_empty()).map(|p| format!("/{p}")).collect()
    }

    /// The whole URL of a key, without secrets.
    pub fn url(&self, key: &str) -> String {
        self.client.url(&self.path(key), "")
    }

    fn ask<'a>(&self, method: &'static str, key: &'a str) -> Ask<'a> {
        let (query, range, body, only_new) = (Vec::new(), None, None, false);
        Ask { method, path: self.path(key), key, query, range, body, only_new, most: MOST }
    }

    /// An object, if there is one, of at most so many bytes.
    pub fn get(&self, key: &str, most: u64) -> Parsed<Option<Vec<u8>>> {
        let answer = self.client.send(&Ask { most: most.min(MOST), ..self.ask("GET", key) })?;
        Ok(found(answer).map(|a| a.body))
    }

    /// As [`Remote::get`], of metadata: what may not be seen counts as missing, and is remembered.
    pub fn get_metadata(&self, key: &str, most: u64) -> Parsed<Option<Vec<u8>>> {
        match self.get(key, most) {
            Err(Fault::Forbidden(said)) => {
                self.forbidden.lock().unwrap_or_else(|p| p.into_inner()).get_or_insert(said);
                Ok(None)
            }
            other => other,
        }
    }

    /// The first refusal to show metadata.
    pub fn forbidden(&self) -> Option<String> {
        self.forbidden.lock().unwrap_or_else(|p| p.into_inner()).clone()
    }

    /// A part of an object: from the start, or `None` to count `length` back from the end.
    pub fn get_part(&self, key: &str, start: Option<u64>, length: u64, most: u64) -> Parsed<Option<Vec<u8>>> {
        let most = most.min(MOST);
        if length > most {
            return Err(Fault::Limit(format!("{length} bytes of {key}, and the limit is {most}")));
        }
        let Some(last) = start.unwrap_or(0).checked_add(length).and_then(|end| end.checked_sub(1)) else {
            return Ok(Some(Vec::new()));
        };
        let range = match start {
            Some(start) => format!("bytes={start}-{last}"),
            None => format!("bytes=-{length}"),
        };
        let ask = Ask { range: Some((range, start, length)), most, ..self.ask("GET", key) };
        let answer = self.client.send(&ask)?;
        if answer.status == 416 {
            return Err(Fault::Damaged(format!(
                "{length} bytes at {} of {key}, which is shorter",
                start.map_or("the end".to_string(), |s| s.to_string())
            )));
        }
        let Some(answer) = found(answer) else { return Ok(None) };
        if answer.body.len() as u64 != length {
            return Err(Fault::Damaged(format!(
                "{length} bytes of {key} were asked for, and it has {} there",
                answer.body.len()
            )));
        }
        Ok(Some(answer.body))
    }

    /// Makes an object, whole.
    pub fn put(&self, key: &str, data: &[u8]) -> Parsed<()> {
        self.client.send(&Ask { body: Some(data), ..self.ask("PUT", key) }).map(|_| ())
    }

    /// Makes an object, whole, where there is none of that key; says whether there was none.
    pub fn put_new(&self, key: &str, data: &[u8]) -> Parsed<bool> {
        let answer = self.client.send(&Ask { body: Some(data), only_new: true, ..self.ask("PUT", key) })?;
        Ok(answer.status != 412)
    }

    /// Takes an object away, if there is one.
    pub fn delete(&self, key: &str) -> Parsed<()> {
        self.client.send(&self.ask("DELETE", key)).map(|_| ())
    }

    /// Everything below a folder, page by page: objects, or only those of the folder itself with the names of the
    /// folders in it. S3 alone.
    pub fn list(&self, folder: &str, shallow: bool, visit: &mut dyn FnMut(Page) -> Parsed<()>) -> Parsed<()> {
        let parts = [self.address.key.as_str(), folder];
        let prefix: String = parts.iter().filter(|p| !p.is_empty()).map(|p| format!("{p}/")).collect();
        let mut next: Option<String> = None;
        // A server that repeats itself ends sometime: ten million objects.
        for _ in 0..10_000 {
            let mut query = vec![("list-type".to_string(), "2".to_string())];
            if shallow {
                query.push(("delimiter".into(), escaped("/", "")));
            }
            query.push(("prefix".into(), escaped(&prefix, "")));
            query.extend(next.iter().map(|token| ("continuation-token".to_string(), escaped(token, ""))));
            let mut ask = self.ask("GET", "a list of objects");
            ask.path = String::new();
            ask.query = query;
            ask.most = MOST_LISTED;
            let answer = self.client.send(&ask)?;
            let Some(answer) = found(answer) else {
                return Err(Fault::Remote("the server does not list objects (404)".to_string()));
            };
            let page = listing::parse(&answer.body, &prefix)?;
            next = page.next.clone();
            visit(page)?;
            if next.is_none() {
                return Ok(());
            }
        }
        Err(Fault::Limit("a list of more than ten thousand pages".to_string()))
    }
}

fn found(answer: Answer) -> Option<Answer> {
    (answer.status != 404).then_some(answer)
}

/// Calls with every item from several threads, for work that waits for a server; results in the items' order. After a
/// failure nothing more is begun.
pub(crate) fn side_by_side<T: Sync, R: Send, E: Send>(
    items: &[T],
    threads: usize,
    each: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut made = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return Ok(made) };
            match each(item) {
                Ok(result) => made.push((at, result)),
                Err(e) => {
                    next.store(items.len(), Ordering::Relaxed);
                    return Err(e);
                }
            }
        }
    };
    let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(items.len())).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for other in others {
            let made = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all = all.and_then(|mut all| {
                all.extend(made?);
                Ok(all)
            });
        }
        all
    })?;
    all.sort_unstable_by_key(|(at, _)| *at);
    Ok(all.into_iter().map(|(_, made)| made).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_failures_end_it() {
        let items: Vec<usize> = (0..100).collect();
        for threads in [1, 3, 16] {
            let twice = side_by_side(&items, threads, |n| Ok::<_, ()>(2 * n));
            assert_eq!(twice, Ok(items.iter().map(|n| 2 * n).collect()));
            let last = AtomicUsize::new(0);
            let failed = side_by_side(&items, threads, |&n| {
                last.fetch_max(n, Ordering::Relaxed);
                if n >= 5 { Err(n) } else { Ok(()) }
            });
            assert!(failed.is_err_and(|n| n >= 5));
            assert!(last.into_inner() < 5 + threads);
        }
        assert_eq!(side_by_side(&[], 4, |_: &u8| Ok::<u8, ()>(1)), Ok(Vec::new()));
    }
}
