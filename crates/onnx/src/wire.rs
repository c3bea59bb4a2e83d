//! The wire format of protocol buffers: numbered fields, each a varint, four or eight bytes, or a sequence of bytes.
//!
//! ONNX needs no more of protobuf than this, so the build needs neither a schema compiler nor generated code. Reading
//! borrows from the file and checks every length against the remaining bytes; nothing is allocated by an unchecked length.

use crate::error::ReadError;

/// One field's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    pub fn int(self) -> Result<i64, ReadError> {
        match self {
            Field::Varint(v) => Ok(v as i64),
            _ => Err(ReadError::Wire("a whole number is of another kind")),
        }
    }

    pub fn float(self) -> Result<f32, ReadError> {
        match self {
            Field::Fixed32(v) => Ok(f32::from_bits(v)),
            _ => Err(ReadError::Wire("a float is of another kind")),
        }
    }

    pub fn bytes(self) -> Result<&'a [u8], ReadError> {
        match self {
            Field::Bytes(b) => Ok(b),
            _ => Err(ReadError::Wire("a text, tensor or message is of another kind")),
        }
    }

    pub fn text(self) -> Result<&'a str, ReadError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| ReadError::Wire("a text is not UTF-8"))
    }

    /// Adds whole numbers, which may lie side by side in one field or one to a field.
    pub fn ints(self, to: &mut Vec<i64>) -> Result<(), ReadError> {
        let Field::Bytes(mut rest) = self else {
            to.push(self.int()?);
            return Ok(());
        };
        while !rest.is_empty() {
            to.push(varint(&mut rest)? as i64);
        }
        Ok(())
    }

    /// As [`Field::ints`] for floats.
    pub fn floats(self, to: &mut Vec<f32>) -> Result<(), ReadError> {
        let Field::Bytes(bytes) = self else {
            to.push(self.float()?);
            return Ok(());
        };
        let (each, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(ReadError::Wire("packed floats whose bytes are not a multiple of 4"));
        }
        to.extend(each.iter().map(|b| f32::from_le_bytes(*b)));
        Ok(())
    }

    /// As [`Field::ints`] for doubles.
    pub fn doubles(self, to: &mut Vec<f64>) -> Result<(), ReadError> {
        match self {
            Field::Fixed64(v) => to.push(f64::from_bits(v)),
            Field::Bytes(bytes) => {
                let (each, rest) = bytes.as_chunks::<8>();
                if !rest.is_empty() {
                    return Err(ReadError::Wire("packed doubles whose bytes are not a multiple of 8"));
                }
                to.extend(each.iter().map(|b| f64::from_le_bytes(*b)));
            }
            _ => return Err(ReadError::Wire("a double is of another kind")),
        }
        Ok(())
    }
}

/// The fields of a message, one by one, with their numbers.
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn new(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message }
    }

    fn read(&mut self) -> Result<(u64, Field<'a>), ReadError> {
        let tag = varint(&mut self.rest)?;
        let field = match tag & 7 {
            0 => Field::Varint(varint(&mut self.rest)?),
            1 => Field::Fixed64(u64::from_le_bytes(self.fixed()?)),
            2 => {
                let len = varint(&mut self.rest)?;
                let len = usize::try_from(len).ok().filter(|n| *n <= self.rest.len());
                let (bytes, rest) = self.rest.split_at(len.ok_or(ReadError::Truncated)?);
                self.rest = rest;
                Field::Bytes(bytes)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.fixed()?)),
            _ => return Err(ReadError::Wire("a field of a kind that protobuf does not have")),
        };
        match tag >> 3 {
            0 => Err(ReadError::Wire("a field with the number 0")),
            number => Ok((number, field)),
        }
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or(ReadError::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.rest = &[];
        }
        Some(read)
    }
}

fn varint(rest: &mut &[u8]) -> Result<u64, ReadError> {
    let mut value = 0u64;
    for (i, &byte) in rest.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            *rest = &rest[i + 1..];
            return Ok(value);
        }
    }
    if rest.len() < 10 {
        Err(ReadError::Truncated)
    } else {
        Err(ReadError::Wire("a varint of more than 10 bytes"))
    }
}

/// A message while it is written.
#[derive(Clone, Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    pub fn new() -> Message {
        Message::default()
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn int(&mut self, number: u64, value: i64) {
        self.varint(number << 3);
        self.varint(value as u64);
    }

    pub fn float(&mut self, number: u64, value: f32) {
        self.varint(number << 3 | 5);
        self.0.extend(value.to_le_bytes());
    }

    pub fn bytes(&mut self, number: u64, bytes: &[u8]) {
        self.begin_bytes(number, bytes.len());
        self.0.extend(bytes);
    }

    /// Bytes that the writer of the file appends after this message.
    pub fn begin_bytes(&mut self, number: u64, len: usize) {
        self.varint(number << 3 | 2);
        self.varint(len as u64);
    }

    pub fn text(&mut self, number: u64, text: &str) {
        self.bytes(number, text.as_bytes());
    }

    pub fn message(&mut self, number: u64, message: &Message) {
        self.bytes(number, &message.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_files_are_read() {
        let mut m = Message::new();
        m.int(1, -3);
        m.int(7, 300);
        m.float(2, 1.5);
        m.text(20, "name");
        let fields: Vec<_> = Fields::new(m.as_bytes()).map(Result::unwrap).collect();
        assert_eq!(fields[0].1.int().unwrap(), -3);
        assert_eq!((fields[1].0, fields[1].1.int().unwrap()), (7, 300));
        assert_eq!(fields[2].1.float().unwrap(), 1.5);
        assert_eq!((fields[3].0, fields[3].1.text().unwrap()), (20, "name"));
    }

    #[test]
    fn numbers_may_be_packed_or_not() {
        let (mut packed, mut each) = (Message::new(), Message::new());
        packed.bytes(8, &[1, 0x80, 1]);
        [1, 128].iter().for_each(|&v| each.int(8, v));
        for m in [packed, each] {
            let mut ints = vec![];
            Fields::new(m.as_bytes()).for_each(|f| f.unwrap().1.ints(&mut ints).unwrap());
            assert_eq!(ints, [1, 128]);
        }
    }

    #[test]
    fn damage_is_an_error() {
        let first = |bytes: &[u8]| Fields::new(bytes).next().unwrap().unwrap_err();
        assert_eq!(first(&[0x0a, 5, 1]), ReadError::Truncated);
        assert_eq!(first(&[0x80]), ReadError::Truncated);
        assert!(matches!(first(&[0xff; 11]), ReadError::Wire(_)));
        assert!(matches!(first(&[0x0b]), ReadError::Wire(_)));
        assert!(matches!(first(&[0x02, 0]), ReadError::Wire(_)));
    }
}
