//! Bytes between two ranks over one connection, each way at once and without waiting: whoever has several of them waits for all together.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The number of an exchange and the length of what follows.
const HEADER: usize = 16;
/// How long a wait for connections is before the next look for ranks that are gone.
const LOOK: Duration = Duration::from_millis(50);

/// One message each way between this rank and another, under way.
pub(crate) struct Message<'a> {
    rank: usize,
    link: &'a mut TcpStream,
    number: u64,
    header: [u8; HEADER],
    give: &'a [u8],
    given: usize,
    header_got: [u8; HEADER],
    got: usize,
    take: &'a mut Vec<u8>,
}

impl<'a> Message<'a> {
    /// The exchange of this number: `give` goes to the rank, what it has goes to `take`.
    pub fn new(
        rank: usize,
        link: &'a mut TcpStream,
        number: u64,
        give: &'a [u8],
        take: &'a mut Vec<u8>,
    ) -> Message<'a> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&number.to_le_bytes());
        header[8..].copy_from_slice(&(give.len() as u64).to_le_bytes());
        Message { rank, link, number, header, give, given: 0, header_got: [0; HEADER], got: 0, take }
    }

    /// The other rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Bytes that are sent.
    pub fn bytes(&self) -> u64 {
        (HEADER + self.give.len()) as u64
    }

    pub fn is_done(&self) -> bool {
        self.is_given() && self.is_taken()
    }

    fn is_given(&self) -> bool {
        self.given == HEADER + self.give.len()
    }

    fn is_taken(&self) -> bool {
        self.got >= HEADER && self.got - HEADER == self.length()
    }

    /// Of what is received, once its header is there.
    fn length(&self) -> usize {
        u64::from_le_bytes(self.header_got[8..].try_into().expect("eight bytes")) as usize
    }

    /// Moves what can be moved without waiting. Says whether anything was.
    pub fn advance(&mut self) -> std::io::Result<bool> {
        let before = self.given + self.got;
        while !self.is_given() {
            let behind = self.given.saturating_sub(HEADER);
            let parts = [&self.header[self.given.min(HEADER)..], &self.give[behind..]].map(IoSlice::new);
            match self.link.write_vectored(&parts) {
                Ok(n) => self.given += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        while !self.is_taken() {
            let into = match self.got < HEADER {
                true => &mut self.header_got[self.got..],
                false => &mut self.take[self.got - HEADER..],
            };
            match self.link.read(into) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.got += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if self.got == HEADER {
                let theirs = u64::from_le_bytes(self.header_got[..8].try_into().expect("eight bytes"));
                if theirs != self.number {
                    let why = format!("it is at exchange {theirs}, and this rank at {}", self.number);
                    return Err(std::io::Error::new(ErrorKind::InvalidData, why));
                }
                self.take.resize(self.length(), 0);
            }
        }
        Ok(self.given + self.got > before)
    }
}

/// Until a connection can be written to or read from that waits for it, or for a moment.
#[cfg(unix)]
pub(crate) fn wait(messages: &[Message<'_>]) {
    use std::os::fd::AsRawFd;
    let of = |m: &Message<'_>| {
        let write = if m.is_given() { 0 } else { libc::POLLOUT };
        let read = if m.is_taken() { 0 } else { libc::POLLIN };
        libc::pollfd { fd: m.link.as_raw_fd(), events: write | read, revents: 0 }
    };
    let mut all: Vec<libc::pollfd> = messages.iter().filter(|m| !m.is_done()).map(of).collect();
    // SAFETY: the table and its length.
    unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, LOOK.as_millis() as libc::c_int) };
}

#[cfg(not(unix))]
pub(crate) fn wait(_: &[Message<'_>]) {
    std::thread::sleep(LOOK / 500);
}
