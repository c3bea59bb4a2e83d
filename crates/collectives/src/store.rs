//! torchrun's store (PyTorch's `TCPStore`): torchrun itself listens at MASTER_PORT and keeps keys and values for its processes. Rank 0 writes where it
//! listens, the others read it. Two of the store's messages are enough; they are those of PyTorch's `TCPStoreBackend`.

use crate::launch::Place;
use crate::{CollectiveError, Result};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The first bytes of a connection: the message `VALIDATE` and its number.
const VALIDATE: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];
const SET: u8 = 1;
const GET: u8 = 3;
const WAIT: u8 = 6;
/// A longer value is not one of ours.
const MOST: u64 = 4096;

/// A connection to the store.
pub struct Store {
    stream: TcpStream,
    place: Place,
}

impl Store {
    /// # Errors
    /// If nobody listens there.
    pub fn connect(place: &Place) -> Result<Store> {
        let connected = TcpStream::connect((place.host.as_str(), place.port));
        let mut stream = connected.map_err(|e| refused(place, &e))?;
        stream.write_all(&VALIDATE).map_err(|e| refused(place, &e))?;
        Ok(Store { stream, place: place.clone() })
    }

    /// # Errors
    /// If the store is gone.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let message = [&[SET][..], &text(key), &text(value)].concat();
        self.stream.write_all(&message).map_err(|e| refused(&self.place, &e))
    }

    /// The value of a key, as soon as there is one.
    ///
    /// # Errors
    /// If nobody writes it in this time, or the store is gone.
    pub fn get(&mut self, key: &str, wait: Duration) -> Result<String> {
        self.read(key, wait).map_err(|e| refused(&self.place, &e))
    }

    fn read(&mut self, key: &str, wait: Duration) -> std::io::Result<String> {
        self.stream.set_read_timeout(Some(wait))?;
        let asked = [&[WAIT][..], &1u64.to_le_bytes(), &text(key)].concat();
        self.stream.write_all(&asked)?;
        // One byte says that the key is there.
        self.stream.read_exact(&mut [0])?;
        self.stream.write_all(&[&[GET][..], &text(key)].concat())?;
        let mut length = [0; 8];
        self.stream.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > MOST {
            return Err(std::io::Error::other(format!("a value of {length} bytes")));
        }
        let mut value = vec![0; length as usize];
        self.stream.read_exact(&mut value)?;
        String::from_utf8(value).map_err(std::io::Error::other)
    }
}

/// A text as the store has it: its length and its bytes.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn refused(place: &Place, e: &std::io::Error) -> CollectiveError {
    CollectiveError::Launch(format!(
        "torchrun's store at {place} (MASTER_ADDR:MASTER_PORT) does not tell where rank 0 listens: {e}; see whether rank 0 has ended with an error"
    ))
}
