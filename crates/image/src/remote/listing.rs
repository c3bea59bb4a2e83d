//! XML responses of S3: lists of objects, and errors.

use crate::error::{Fault, Parsed, damaged};
use roxmltree::{Document, Node};

/// A part of a list.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub objects: Vec<Object>,
    /// Names of folders, below the one that was asked for, each with a slash behind it.
    pub folders: Vec<String>,
    /// What to ask for the next part with.
    pub next: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Below the folder that was asked for.
    pub key: String,
    pub size: u64,
    /// The server's mark of what it holds.
    pub tag: String,
}

fn text<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    node.children().find(|c| c.has_tag_name_any(name)).map(|c| c.text().unwrap_or(""))
}

trait AnyNamespace {
    fn has_tag_name_any(&self, name: &str) -> bool;
}

impl AnyNamespace for Node<'_, '_> {
    fn has_tag_name_any(&self, name: &str) -> bool {
        self.is_element() && self.tag_name().name() == name
    }
}

/// A list of what lies below `prefix`.
pub fn parse(body: &[u8], prefix: &str) -> Parsed<Page> {
    let Ok(xml) = std::str::from_utf8(body) else { return damaged("a list of objects that is not text") };
    let document = Document::parse(xml)
        .map_err(|e| Fault::Remote(format!("the server's list of objects cannot be read: {e}")))?;
    let root = document.root_element();
    if !root.has_tag_name_any("ListBucketResult") {
        return Err(Fault::Remote(format!(
            "the server does not list objects: it sent {}",
            root.tag_name().name()
        )));
    }
    let mut page = Page::default();
    for node in root.children() {
        if node.has_tag_name_any("Contents") {
            let Some(key) = text(node, "Key").and_then(|k| k.strip_prefix(prefix)) else { continue };
            page.objects.push(Object {
                key: key.to_string(),
                size: text(node, "Size").and_then(|s| s.parse().ok()).unwrap_or(0),
                tag: text(node, "ETag").unwrap_or("").to_string(),
            });
        } else if node.has_tag_name_any("CommonPrefixes") {
            let name = text(node, "Prefix").and_then(|p| p.strip_prefix(prefix));
            page.folders.extend(name.map(str::to_string));
        }
    }
    if text(root, "IsTruncated") == Some("true") {
        page.next = text(root, "NextContinuationToken").map(str::to_string);
        if page.next.is_none() {
            return Err(Fault::Remote("the server's list of objects ends in the middle".to_string()));
        }
    }
    Ok(page)
}

/// What an error's body says: S3's code with its message, or the first words of a plain text.
pub fn said(body: &[u8]) -> (Option<String>, String) {
    let text_of = String::from_utf8_lossy(&body[..body.len().min(4096)]).into_owned();
    if let Ok(document) = Document::parse(text_of.trim_start())
        && document.root_element().has_tag_name_any("Error")
    {
        let root = document.root_element();
        let code = text(root, "Code").unwrap_or("").to_string();
        let message = text(root, "Message").unwrap_or("");
        return (Some(code.clone()), short(&format!("{code}: {message}")));
    }
    // Pages for people say nothing in one line.
    if text_of.trim_start().starts_with('<') { (None, String::new()) } else { (None, short(&text_of)) }
}

fn short(text: &str) -> String {
    let clean: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()).collect();
    let clean = clean.join(" ");
    match clean.char_indices().nth(200) {
        Some((at, _)) => format!("{} ...", &clean[..at]),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let xml = r#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>true</IsTruncated>
            <NextContinuationToken>a+b=</NextContinuationToken>
            <Contents><Key>x.zarr/0/c &amp; d</Key><ETag>"e"</ETag><Size>12</Size></Contents>
            <Contents><Key>elsewhere</Key><Size>1</Size></Contents>
            <CommonPrefixes><Prefix>x.zarr/sub/</Prefix></CommonPrefixes></ListBucketResult>"#;
        let page = parse(xml.as_bytes(), "x.zarr/").unwrap();
        assert_eq!(page.objects, [Object { key: "0/c & d".into(), size: 12, tag: "\"e\"".into() }]);
        assert_eq!(page.folders, ["sub/"]);
        assert_eq!(page.next.as_deref(), Some("a+b="));
        let cut = xml.replace("<NextContinuationToken>a+b=</NextContinuationToken>", "");
        for wrong in [cut.as_str(), "<html/>", "not xml", ""] {
            assert!(parse(wrong.as_bytes(), "").is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_are_short() {
        let (code, text) = said(b"<Error><Code>NoSuchKey</Code><Message>It is\nnot there.</Message></Error>");
        assert_eq!((code.as_deref(), text.as_str()), (Some("NoSuchKey"), "NoSuchKey: It is not there."));
        assert_eq!(said(b"<html><body>Sorry</body></html>"), (None, String::new()));
        assert_eq!(said("wait\u{7} a \u{1b}[31mlittle".as_bytes()).1, "wait a [31mlittle");
        assert!(said(&[b'x'; 5000]).1.len() < 210);
    }
}
