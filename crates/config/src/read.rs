//! Reads trees into typed structs through serde, with errors that name the key and where it was written.
//!
//! Stricter than serde: an unknown key is refused even if the struct does not say `deny_unknown_fields`. More lenient than
//! YAML: `1e5` is accepted as an integer, and a word that looks like a number is accepted as a string.

use crate::error::{ReadError, Why};
use crate::tree::{Node, Tree, Value, joined};
use serde::de::value::StringDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

impl Tree {
    /// The whole tree as a struct.
    ///
    /// # Errors
    /// If a key is unknown, missing, not given (`???`) or of another type.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ReadError> {
        self.read_at("")
    }

    /// The node at a dotted path as a struct.
    ///
    /// # Errors
    /// As [`Tree::read`]; also if there is no such key.
    pub fn read_at<T: DeserializeOwned>(&self, path: &str) -> Result<T, ReadError> {
        let Some(node) = self.get(path) else {
            return Err(ReadError { path: path.into(), origin: None, why: Why::Missing });
        };
        At { node, path: path.into(), fields: None }.read()
    }
}

/// What serde's generated code reports, until it is known of which key.
#[derive(Debug)]
enum Fault {
    Placed(ReadError),
    Unknown { field: String, known: Vec<String> },
    Missing(String),
    Other(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Placed(e) => e.fmt(f),
            Fault::Unknown { field, .. } => write!(f, "there is no key '{field}'"),
            Fault::Missing(field) => write!(f, "the key '{field}' is missing"),
            Fault::Other(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: std::fmt::Display>(why: T) -> Fault {
        Fault::Other(why.to_string())
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Fault {
        Fault::Unknown { field: field.into(), known: expected.iter().map(|s| s.to_string()).collect() }
    }

    fn missing_field(field: &'static str) -> Fault {
        Fault::Missing(field.into())
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Fault {
        let known: Vec<String> = expected.iter().map(|s| s.to_string()).collect();
        Fault::Other(format!("'{variant}' is not a choice{}", crate::nearest::meant(variant, &known)))
    }

    fn invalid_type(unexpected: de::Unexpected<'_>, expected: &dyn de::Expected) -> Fault {
        Fault::Other(format!("found {}, and {} is needed", words(unexpected), wanted(expected)))
    }

    fn invalid_length(length: usize, expected: &dyn de::Expected) -> Fault {
        Fault::Other(format!("found a list of {length}, and {} is needed", wanted(expected)))
    }

    fn invalid_value(unexpected: de::Unexpected<'_>, expected: &dyn de::Expected) -> Fault {
        Fault::Other(format!("found {}, and {} is needed", words(unexpected), wanted(expected)))
    }
}

/// A type in the words of a user who writes a value.
fn wanted(expected: &dyn de::Expected) -> String {
    match expected.to_string().as_str() {
        "f32" | "f64" => "a number".into(),
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more".into(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".into(),
        "a boolean" => "true or false".into(),
        "a string" => "a text".into(),
        "a map" => "a group of keys, {key: value},".into(),
        "a sequence" => "a list, [a, b],".into(),
        other => match other.strip_prefix("an array of length ") {
            Some(length) => format!("a list of {length} values"),
            None => other.into(),
        },
    }
}

fn words(unexpected: de::Unexpected<'_>) -> String {
    match unexpected {
        de::Unexpected::Str(s) => format!("'{s}'"),
        de::Unexpected::Bool(b) => b.to_string(),
        de::Unexpected::Unsigned(n) => n.to_string(),
        de::Unexpected::Signed(n) => n.to_string(),
        de::Unexpected::Float(x) => x.to_string(),
        de::Unexpected::Unit => "nothing (null)".into(),
        de::Unexpected::Seq => "a list".into(),
        de::Unexpected::Map => "a group of keys".into(),
        other => other.to_string(),
    }
}

/// A node on its way into a typed value.
struct At<'a> {
    node: &'a Node,
    path: String,
    /// The keys of the struct that this node is a member of, where it is known: for keys that it ignores.
    fields: Option<&'static [&'static str]>,
}

impl At<'_> {
    fn read<T: DeserializeOwned>(self) -> Result<T, ReadError> {
        let (node, path) = (self.node, self.path.clone());
        T::deserialize(self).map_err(|fault| placed(fault, node, &path))
    }
}

/// The fault with the key it belongs to, which is the innermost that is known.
fn placed(fault: Fault, node: &Node, path: &str) -> ReadError {
    let own = Some(node.origin.clone());
    match fault {
        Fault::Placed(e) => e,
        Fault::Unknown { field, known } => {
            let origin = node.child(&field).map(|n| n.origin.clone()).or(own);
            ReadError { path: joined(path, &field), origin, why: Why::Unknown { known } }
        }
        Fault::Missing(field) => ReadError { path: joined(path, &field), origin: own, why: Why::Missing },
        Fault::Other(why) => ReadError { path: path.into(), origin: own, why: Why::Other(why) },
    }
}

/// What a plain word looks like, after YAML 1.2's core schema.
enum Look {
    Bool(bool),
    Int(i64),
    Unsigned(u64),
    Float(f64),
    Text,
}

fn look(text: &str) -> Look {
    match text {
        "true" | "True" | "TRUE" => return Look::Bool(true),
        "false" | "False" | "FALSE" => return Look::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" => return Look::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Look::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Look::Float(f64::NAN),
        _ => {}
    }
    if let Ok(n) = text.parse::<i64>() {
        return Look::Int(n);
    }
    if let Ok(n) = text.parse::<u64>() {
        return Look::Unsigned(n);
    }
    if let Some(n) = text.strip_prefix("0x").and_then(|h| u64::from_str_radix(h, 16).ok()) {
        return Look::Unsigned(n);
    }
    // Not every word that Rust takes for a number is one in YAML: inf, nan, infinity.
    let is_numeric = text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'))
        && text.chars().any(|c| c.is_ascii_digit());
    match text.parse::<f64>() {
        Ok(x) if is_numeric => Look::Float(x),
        _ => Look::Text,
    }
}

impl<'a> At<'a> {
    fn word(&self) -> Result<Option<(&'a str, bool)>, Fault> {
        match &self.node.value {
            Value::Scalar { text, quoted: false } if text == "???" => Err(self.fault(Why::NotGiven)),
            Value::Scalar { text, quoted } => Ok(Some((text, *quoted))),
            _ => Ok(None),
        }
    }

    fn fault(&self, why: Why) -> Fault {
        Fault::Placed(ReadError { path: self.path.clone(), origin: Some(self.node.origin.clone()), why })
    }

    /// Faults without a key are of this one.
    fn here<T>(node: &Node, path: &str, result: Result<T, Fault>) -> Result<T, Fault> {
        result.map_err(|fault| Fault::Placed(placed(fault, node, path)))
    }

    fn visit<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.visit_with(None, visitor)
    }

    /// `fields` are the keys of the struct that this node becomes.
    fn visit_with<'de, V: Visitor<'de>>(
        self,
        fields: Option<&'static [&'static str]>,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let (node, path) = (self.node, self.path.clone());
        let result = match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Scalar { .. } => match self.word()? {
                Some((text, true)) => visitor.visit_string(text.into()),
                Some((text, false)) => match look(text) {
                    Look::Bool(b) => visitor.visit_bool(b),
                    Look::Int(n) if n >= 0 => visitor.visit_u64(n as u64),
                    Look::Int(n) => visitor.visit_i64(n),
                    Look::Unsigned(n) => visitor.visit_u64(n),
                    Look::Float(x) => visitor.visit_f64(x),
                    Look::Text => visitor.visit_string(text.into()),
                },
                None => visitor.visit_unit(),
            },
            Value::List(items) => visitor.visit_seq(Items { items: items.iter().enumerate(), path: &path }),
            Value::Map(entries) => {
                visitor.visit_map(Entries { entries: entries.iter(), path: &path, value: None, fields })
            }
        };
        At::here(node, &path, result)
    }

    fn integer<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if let Some((text, false)) = self.word()?
            && let Look::Float(x) = look(text)
            && x.fract() == 0.0
            && x.abs() <= EXACT
        {
            let (node, path) = (self.node, self.path);
            let result = if x < 0.0 { visitor.visit_i64(x as i64) } else { visitor.visit_u64(x as u64) };
            return At::here(node, &path, result);
        }
        self.visit(visitor)
    }

    fn float<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let number = match self.word()? {
            Some((text, false)) => match look(text) {
                Look::Int(n) => Some(n as f64),
                Look::Unsigned(n) => Some(n as f64),
                Look::Float(x) => Some(x),
                _ => None,
            },
            _ => None,
        };
        let (node, path) = (self.node, self.path.clone());
        match number {
            Some(x) => At::here(node, &path, visitor.visit_f64(x)),
            None => self.visit(visitor),
        }
    }

    fn string<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let (node, path) = (self.node, self.path.clone());
        match self.word()? {
            Some((text, _)) => At::here(node, &path, visitor.visit_string(text.into())),
            None => self.visit(visitor),
        }
    }
}

macro_rules! through {
    ($($method:ident)*, $with:ident) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> { self.$with(visitor) })*
    };
}

impl<'de> de::Deserializer<'de> for At<'_> {
    type Error = Fault;

    through!(deserialize_any, visit);
    through!(deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8 deserialize_u16
        deserialize_u32 deserialize_u64, integer);
    through!(deserialize_f32 deserialize_f64, float);
    through!(deserialize_str deserialize_string deserialize_char deserialize_identifier, string);

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        // A group of which nothing is written has nothing but its defaults.
        if self.node.value == Value::Null {
            let (node, path) = (self.node, self.path);
            let none = Entries { entries: [].iter(), path: &path, value: None, fields: None };
            return At::here(node, &path, visitor.visit_map(none));
        }
        self.visit_with(Some(fields), visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let (node, path) = (self.node, self.path.clone());
        let access = match &self.node.value {
            Value::Scalar { .. } => {
                let name = self.word()?.map(|(text, _)| text.to_string()).unwrap_or_default();
                Choice { name, content: None, path: &path }
            }
            Value::Map(entries) if entries.len() == 1 => {
                Choice { name: entries[0].0.clone(), content: Some(&entries[0].1), path: &path }
            }
            other => {
                let why = format!("one of {} is needed, and this is {}", variants.join(", "), other.name());
                return Err(self.fault(Why::Other(why)));
            }
        };
        At::here(node, &path, visitor.visit_enum(access))
    }

    /// Who does not look at a key does not know it.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Fault> {
        let known = self.fields.unwrap_or_default().iter().map(|s| s.to_string()).collect();
        Err(self.fault(Why::Unknown { known }))
    }

    forward_to_deserialize_any! {
        bool i128 u128 bytes byte_buf unit unit_struct seq tuple tuple_struct map
    }
}

struct Items<'a, 'p> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
    path: &'p str,
}

impl<'de> SeqAccess<'de> for Items<'_, '_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some((i, node)) = self.items.next() else { return Ok(None) };
        let path = joined(self.path, &i.to_string());
        let result = seed.deserialize(At { node, path: path.clone(), fields: None });
        At::here(node, &path, result).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Entries<'a, 'p> {
    entries: std::slice::Iter<'a, (String, Node)>,
    path: &'p str,
    value: Option<(&'a str, &'a Node)>,
    fields: Option<&'static [&'static str]>,
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        let Some((key, node)) = self.entries.next() else { return Ok(None) };
        self.value = Some((key, node));
        let name: StringDeserializer<Fault> = key.clone().into_deserializer();
        seed.deserialize(name).map(Some).map_err(|fault| match fault {
            Fault::Unknown { field, known } => Fault::Placed(ReadError {
                path: joined(self.path, &field),
                origin: Some(node.origin.clone()),
                why: Why::Unknown { known },
            }),
            other => Fault::Placed(placed(other, node, &joined(self.path, key))),
        })
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let (key, node) =
            self.value.take().ok_or_else(|| Fault::custom("a value was read before its key"))?;
        let path = joined(self.path, key);
        let result = seed.deserialize(At { node, path: path.clone(), fields: self.fields });
        At::here(node, &path, result)
    }
}

struct Choice<'a, 'p> {
    name: String,
    content: Option<&'a Node>,
    path: &'p str,
}

impl<'de, 'a, 'p> EnumAccess<'de> for Choice<'a, 'p> {
    type Error = Fault;
    type Variant = Choice<'a, 'p>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Choice<'a, 'p>), Fault> {
        let name: StringDeserializer<Fault> = self.name.clone().into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'a> Choice<'a, '_> {
    fn inside(&self) -> Result<At<'a>, Fault> {
        match self.content {
            Some(node) => Ok(At { node, path: joined(self.path, &self.name), fields: None }),
            None => Err(Fault::Other(format!("'{}' needs settings, as {{{}: ...}}", self.name, self.name))),
        }
    }
}

impl<'de> VariantAccess<'de> for Choice<'_, '_> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        match self.content {
            None => Ok(()),
            Some(node) if node.value == Value::Null => Ok(()),
            Some(_) => Err(Fault::Other(format!("'{}' has no settings", self.name))),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Fault> {
        seed.deserialize(self.inside()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Fault> {
        self.inside()?.visit(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        de::Deserializer::deserialize_struct(self.inside()?, "", fields, visitor)
    }
}
