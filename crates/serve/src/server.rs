//! The server: a socket, a thread for each connection up to a limit, TLS if certificate files are given, and the worker.

use crate::guard::{Guard, LEAST_TOKEN, random};
use crate::http::{Answer, Connection, Deadline, Head, Stream, Timed};
use crate::jobs::Queue;
use crate::metrics::Metrics;
use crate::refusal::Refusal;
use crate::routes;
use crate::store::Store;
use crate::view::Viewer;
use crate::worker::{self, Engine};
use crate::{Error, Options, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Connections at once, and requests of them that read pixels at once.
const MOST_CONNECTIONS: usize = 256;
const READERS: usize = 4;

/// Headers of every answer. Pages run no script but the server's own, and no other site sees anything.
const HEADERS: &[(&str, &str)] = &[
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
];

/// State shared by all threads.
pub struct Shared {
    pub guard: Guard,
    pub store: Store,
    pub queue: Queue,
    pub viewer: Viewer,
    pub metrics: Metrics,
    pub cameras: crate::camera::Cameras,
    pub model: String,
    pub readers: Turns,
    is_ending: AtomicBool,
}

/// Lets so many in at once.
pub struct Turns {
    free: Mutex<usize>,
    changed: Condvar,
}

impl Turns {
    fn new(free: usize) -> Turns {
        Turns { free: Mutex::new(free), changed: Condvar::new() }
    }

    pub fn take<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        while *free == 0 {
            free = self.changed.wait(free).unwrap_or_else(|e| e.into_inner());
        }
        *free -= 1;
        drop(free);
        let _back = Back(self);
        work()
    }
}

/// Gives a turn back, after a panic too.
struct Back<'t>(&'t Turns);

impl Drop for Back<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(|e| e.into_inner()) += 1;
        self.0.changed.notify_one();
    }
}

/// A server whose socket is open.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    made: Option<String>,
    engine: Engine,
    shared: Arc<Shared>,
}

/// Ends a server that runs in another thread.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Handle {
    /// Takes no more connections and stops the job at hand, which the next server begins again.
    pub fn end(&self) {
        self.shared.is_ending.store(true, Ordering::SeqCst);
        self.shared.queue.end();
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}

impl Server {
    /// Opens folders and socket. Addresses that others can reach get a token where none is given.
    ///
    /// # Errors
    /// If a folder, a file or the address cannot be used, or the token is too short.
    pub fn bind(options: Options) -> Result<Server> {
        if options
            .token
            .as_ref()
            .is_some_and(|t| t.len() < LEAST_TOKEN || !t.bytes().all(|b| b.is_ascii_graphic()))
        {
            return Err(Error::Token);
        }
        let store =
            Store::open(options.folder.as_deref(), &options.state, options.max_upload, options.max_state)?;
        let queue = Queue::open(&store, options.max_queue)?;
        let refused = |source| Error::Address { address: options.address, source };
        let listener = TcpListener::bind(options.address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let tls = match &options.tls {
            Some((certificate, key)) => Some(tls_config(certificate, key)?),
            None => None,
        };
        let made = match (&options.token, address.ip().is_loopback()) {
            (None, false) => Some(random(24).map_err(|_| Error::Token)?),
            _ => None,
        };
        let token = options.token.as_deref().or(made.as_deref());
        let guard = Guard::new(address, token, &options.hosts, tls.is_some());
        let model =
            options.model.as_ref().map_or("default".into(), |m| clearshot_image::dataset::list::stem(m));
        let shared = Shared {
            guard,
            store,
            queue,
            viewer: Viewer::default(),
            metrics: Metrics::default(),
            cameras: crate::camera::Cameras::default(),
            model,
            readers: Turns::new(READERS),
            is_ending: AtomicBool::new(false),
        };
        let engine = Engine::new(options.model, options.device, options.threads);
        Ok(Server { listener, address, tls, made, engine, shared: Arc::new(shared) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it speaks TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The token that was made, since none was given.
    pub fn made_token(&self) -> Option<&str> {
        self.made.as_deref()
    }

    /// Jobs that wait from an earlier run.
    pub fn waiting(&self) -> usize {
        self.shared.queue.count(crate::jobs::State::Queued)
    }

    /// Ends it from another thread.
    pub fn handle(&self) -> Handle {
        let ip = match self.address.ip() {
            ip if !ip.is_unspecified() => ip,
            std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        Handle { shared: Arc::clone(&self.shared), address: SocketAddr::new(ip, self.address.port()) }
    }

    /// Serves until its handle ends it.
    pub fn run(self) {
        let (shared, engine) = (Arc::clone(&self.shared), self.engine);
        let worker = std::thread::spawn(move || worker::work(&shared, engine));
        for socket in self.listener.incoming() {
            if self.shared.is_ending.load(Ordering::SeqCst) {
                break;
            }
            // A connection that is gone already, or too many open files.
            let Ok(socket) = socket else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            let open = self.shared.metrics.connections.fetch_add(1, Ordering::SeqCst);
            let counted = Counted(Arc::clone(&self.shared));
            if open >= MOST_CONNECTIONS {
                refuse(socket);
                continue;
            }
            let tls = self.tls.clone();
            let _ = std::thread::Builder::new().name("connection".into()).spawn(move || {
                let counted = counted;
                converse(&counted.0, socket, tls);
            });
        }
        let _ = worker.join();
    }
}

struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.metrics.connections.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Says that there are too many, if that can be said at once.
fn refuse(mut socket: TcpStream) {
    let _ = socket.set_write_timeout(Some(Duration::from_millis(50)));
    let _ = socket.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 5\r\nConnection: close\r\n\r\n");
}

fn tls_config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let wrong = |path: &Path, why: String| Error::Tls { path: PathBuf::from(path), why };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|e| wrong(certificate, format!("{e:?}")))?;
    // Errors of a key do not contain it.
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|_| wrong(key, "not a private key in PEM".into()))?;
    let config = ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .and_then(|c| c.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|e| wrong(certificate, e.to_string()))?;
    Ok(Arc::new(config))
}

/// One connection, request after request.
fn converse(shared: &Shared, socket: TcpStream, tls: Option<Arc<ServerConfig>>) {
    let _ = socket.set_nodelay(true);
    let deadline = Deadline::new();
    let timed = Timed { socket, deadline: deadline.clone() };
    let stream: Box<dyn Stream> = match tls.map(ServerConnection::new) {
        Some(Ok(session)) => Box::new(StreamOwned::new(session, timed)),
        Some(Err(_)) => return,
        None => Box::new(timed),
    };
    let mut connection = Connection { stream, deadline, ahead: Vec::new() };
    while !shared.is_ending.load(Ordering::SeqCst) {
        let head = match connection.head() {
            Ok(Some(head)) => head,
            Ok(None) => return,
            Err(refusal) => {
                let _ = send(shared, &mut connection, refusal.answer(), false, false);
                return connection.linger();
            }
        };
        let (answer, unread) = respond(shared, &head, &mut connection);
        let keeps = head.keeps && !unread;
        if send(shared, &mut connection, answer, head.method == "HEAD", keeps).is_err() {
            return;
        }
        if !keeps {
            if unread {
                connection.linger();
            }
            return;
        }
    }
}

fn send(
    shared: &Shared,
    connection: &mut Connection,
    mut answer: Answer,
    is_head: bool,
    keeps: bool,
) -> std::io::Result<()> {
    shared.metrics.answer(answer.status);
    answer.headers.extend(HEADERS.iter().map(|(n, v)| (*n, v.to_string())));
    if !answer.headers.iter().any(|(n, _)| *n == "Cache-Control") {
        answer.headers.push(("Cache-Control", "no-store".into()));
    }
    connection.answer(answer, is_head, keeps)
}

/// The answer to a request, and whether some of its body was left unread.
fn respond(shared: &Shared, head: &Head, connection: &mut Connection) -> (Answer, bool) {
    let mut body = connection.body(head);
    let outcome =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| routes::answer(shared, head, &mut body)));
    let answer = match outcome {
        Ok(Ok(answer)) => answer,
        Ok(Err(refusal)) => refusal.answer(),
        Err(_) => Refusal::ours().answer(),
    };
    (answer, body.left > 0)
}
