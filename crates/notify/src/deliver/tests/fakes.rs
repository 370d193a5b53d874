//! Receivers for tests: an SMTP server and an HTTP server that work, refuse, hang or answer slowly.
//! A test changes that between two deliveries.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// How a receiver behaves from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mood {
    /// It takes everything.
    Well,
    /// It answers each message with this: a status line of HTTP, or a reply of SMTP.
    Refuses(String),
    /// It takes connections and never answers.
    Hangs,
    /// It answers after this time.
    Slow(Duration),
}

/// Something that a receiver took or refused.
#[derive(Debug, Clone)]
pub struct Received {
    /// The head of an HTTP request; the commands of an SMTP session.
    pub head: String,
    /// The body of either.
    pub body: String,
    /// It was taken.
    pub is_taken: bool,
}

impl Received {
    /// The value of a header of HTTP.
    pub fn header(&self, name: &str) -> Option<String> {
        let start = format!("{}:", name.to_lowercase());
        let line = self.head.lines().find(|line| line.to_lowercase().starts_with(&start))?;
        Some(line[start.len()..].trim().to_owned())
    }
}

struct Shared {
    mood: Mutex<Mood>,
    received: Mutex<Vec<Received>>,
    news: Condvar,
    ending: AtomicBool,
}

impl Shared {
    fn note(&self, received: Received) {
        self.received.lock().unwrap().push(received);
        self.news.notify_all();
    }

    /// Waits as the mood says. The reply instead of the good one, or none if it hangs until the
    /// end.
    fn mood(&self) -> Option<Option<String>> {
        let mood = self.mood.lock().unwrap().clone();
        match mood {
            Mood::Well => Some(None),
            Mood::Refuses(with) => Some(Some(with)),
            Mood::Slow(time) => {
                thread::sleep(time);
                Some(None)
            }
            Mood::Hangs => {
                while !self.ending.load(Ordering::Relaxed) && *self.mood.lock().unwrap() == Mood::Hangs {
                    thread::sleep(Duration::from_millis(10));
                }
                None
            }
        }
    }
}

/// A receiver on a port of its own.
pub struct Receiver {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Receiver {
    /// A web server.
    pub fn http(tls: Option<Arc<ServerConfig>>) -> Self {
        Self::start("127.0.0.1:0", move |stream, shared| serve_http(stream, tls.clone(), shared))
    }

    /// A web server on a given port, as one that comes back.
    pub fn http_at(address: SocketAddr) -> Self {
        Self::start(&address.to_string(), move |stream, shared| serve_http(stream, None, shared))
    }

    /// A mail server. With TLS it offers STARTTLS; with a password it demands AUTH PLAIN of `user`.
    pub fn smtp(tls: Option<Arc<ServerConfig>>, password: Option<&str>) -> Self {
        let password = password.map(str::to_owned);
        Self::start("127.0.0.1:0", move |stream, shared| {
            serve_smtp(stream, tls.clone(), password.as_deref(), shared)
        })
    }

    fn start(
        address: &str,
        serve: impl Fn(TcpStream, &Shared) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (received, news) = (Mutex::default(), Condvar::new());
        let shared =
            Arc::new(Shared { mood: Mutex::new(Mood::Well), received, news, ending: AtomicBool::new(false) });
        let (own, serve) = (shared.clone(), Arc::new(serve));
        thread::spawn(move || {
            while !own.ending.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                };
                stream.set_nonblocking(false).unwrap();
                let (own, serve) = (own.clone(), serve.clone());
                thread::spawn(move || drop(serve(stream, &own)));
            }
        });
        Self { address, shared }
    }

    /// How it behaves from now on.
    pub fn is_now(&self, mood: Mood) {
        *self.shared.mood.lock().unwrap() = mood;
    }

    /// All that it took or refused, in order.
    pub fn all(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }

    /// Waits until something fits.
    pub fn wait_for(&self, fits: impl Fn(&Received) -> bool) -> Received {
        let until = Instant::now() + Duration::from_secs(60);
        let mut received = self.shared.received.lock().unwrap();
        loop {
            if let Some(found) = received.iter().find(|one| fits(one)) {
                return found.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "nothing fits: {received:#?}");
            received = self.shared.news.wait_timeout(received, left).unwrap().0;
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn over_tls(stream: TcpStream, tls: Arc<ServerConfig>) -> io::Result<Box<dyn Stream>> {
    let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
    Ok(Box::new(StreamOwned::new(connection, stream)))
}

fn serve_http(stream: TcpStream, tls: Option<Arc<ServerConfig>>, shared: &Shared) -> io::Result<()> {
    let stream = match tls {
        Some(tls) => over_tls(stream, tls)?,
        None => Box::new(stream),
    };
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let mut received = Received { head, body: String::new(), is_taken: false };
    let length = received.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    received.body = String::from_utf8(body).map_err(io::Error::other)?;
    let Some(answer) = shared.mood() else { return Ok(()) };
    received.is_taken = answer.is_none();
    let answer = answer.unwrap_or_else(|| "200 OK".to_owned());
    let text = format!("HTTP/1.1 {answer}\r\nContent-Length: 3\r\nConnection: close\r\n\r\nyes");
    let written = stream.get_mut().write_all(text.as_bytes()).and_then(|()| stream.get_mut().flush());
    received.is_taken &= written.is_ok();
    shared.note(received);
    Ok(())
}

fn serve_smtp(
    stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    password: Option<&str>,
    shared: &Shared,
) -> io::Result<()> {
    let tcp = stream.try_clone()?;
    let mut stream: BufReader<Box<dyn Stream>> = BufReader::new(Box::new(stream));
    let reply = |stream: &mut BufReader<Box<dyn Stream>>, text: &str| {
        stream.get_mut().write_all(format!("{text}\r\n").as_bytes())?;
        stream.get_mut().flush()
    };
    let Some(refusal) = shared.mood() else { return Ok(()) };
    reply(&mut stream, "220 fake ESMTP")?;
    let (mut head, mut is_secure, mut is_known) = (String::new(), false, password.is_none());
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(());
        }
        head.push_str(&line);
        let word = line.split_whitespace().next().unwrap_or_default().to_uppercase();
        match &word[..] {
            "EHLO" => {
                let starttls = if tls.is_some() && !is_secure { "250-STARTTLS\r\n" } else { "" };
                reply(&mut stream, &format!("250-fake\r\n{starttls}250-AUTH PLAIN\r\n250 8BITMIME"))?;
            }
            "STARTTLS" => {
                let Some(tls) = tls.clone() else { return Ok(()) };
                reply(&mut stream, "220 go ahead")?;
                stream = BufReader::new(over_tls(tcp.try_clone()?, tls)?);
                is_secure = true;
            }
            "AUTH" => {
                let given = line.split_whitespace().nth(2).unwrap_or_default();
                is_known = password.is_some_and(|password| given == plain("user", password));
                let answer = if is_known { "235 welcome" } else { "535 5.7.8 wrong user or password" };
                reply(&mut stream, answer)?;
            }
            "MAIL" if !is_known => reply(&mut stream, "530 5.7.0 sign in first")?,
            "MAIL" | "RCPT" => match (&refusal, &word[..]) {
                (Some(refusal), "RCPT") => {
                    shared.note(Received { head: head.clone(), body: String::new(), is_taken: false });
                    reply(&mut stream, refusal)?;
                }
                _ => reply(&mut stream, "250 ok")?,
            },
            "DATA" => {
                reply(&mut stream, "354 go ahead")?;
                let mut body = String::new();
                while !body.ends_with("\r\n.\r\n") {
                    if stream.read_line(&mut body)? == 0 {
                        return Ok(());
                    }
                }
                shared.note(Received { head: head.clone(), body, is_taken: true });
                reply(&mut stream, "250 2.0.0 queued as 4711")?;
            }
            "QUIT" => return reply(&mut stream, "221 bye"),
            _ => reply(&mut stream, "250 ok")?,
        }
    }
}

/// The argument of AUTH PLAIN.
fn plain(user: &str, password: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(format!("\0{user}\0{password}"))
}
