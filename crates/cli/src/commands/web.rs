//! `cairn web`: the page of a server on a loopback address, for a user who may use the server.

use std::io::{IsTerminal, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;

use cairn_api::client::{Client, Place};
use cairn_api::{self as api, ErrorKind};
use cairn_device::SystemClock;
use cairn_web::{LocalPage, Target, serve_local};

use crate::arguments::Web;
use crate::exit::Failure;
use crate::output::Output;

/// Serves the page until Ctrl-C.
pub fn run(asked: &Web, client: &Client, output: Output) -> Result<(), Failure> {
    if !asked.listen.ip().is_loopback() {
        let message = format!("{} is not a loopback address", asked.listen.ip());
        let next = "leave --listen out, or name a port with --listen 127.0.0.1:PORT; for other machines, start the server with --http HOST:PORT and open that";
        return Err(Failure::new(ErrorKind::Usage, message, next));
    }
    // A server that does not answer is reported here, and not on an empty page.
    let _: api::Status = client.get("/v1/status")?;
    let listener = TcpListener::bind(asked.listen).map_err(|error| {
        let message = format!("cannot listen on {}: {error}", asked.listen);
        Failure::new(ErrorKind::PortTaken, message, "name another port, or leave --listen out")
    })?;
    let target = match client.place() {
        Place::Data(dir) => Target::Unix(dir.join("control.sock")),
        Place::Unix(path) => Target::Unix(path.clone()),
        Place::Tcp(address, token) => {
            Target::Tcp { address: address.clone(), token: token.clone(), tls: client.tls() }
        }
    };
    let page = LocalPage::new(listener, target, Arc::new(SystemClock::new()))?;
    output.tell(&serde_json::json!({ "url": page.url }), |_| {
        format!("open {}\nthe link works once, within 10 minutes; Ctrl-C ends the page", page.url)
    });
    // It holds the link until the browser has read it.
    let _file = if asked.no_open { None } else { open(&page.url) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // A browser that keeps its connections does not keep the page: it ends with this program.
        let served = tokio::spawn(serve_local(page, std::future::pending()));
        let stopped = tokio::signal::ctrl_c().await;
        served.abort();
        stopped
    })?;
    Ok(())
}

/// Opens the link in the browser of a person at a desktop. Arguments of programs are public on this
/// machine, so the browser is given a file that leads to the link.
fn open(url: &str) -> Option<tempfile::NamedTempFile> {
    let has = |name| std::env::var_os(name).is_some();
    if !std::io::stdout().is_terminal() || !(has("DISPLAY") || has("WAYLAND_DISPLAY")) {
        return None;
    }
    let mut file = tempfile::Builder::new().prefix("cairn-").suffix(".html").tempfile().ok()?;
    let page = "<!doctype html><meta name=\"referrer\" content=\"no-referrer\">";
    writeln!(file, "{page}<meta http-equiv=\"refresh\" content=\"0;url={url}\"><title>Cairn</title>").ok()?;
    let mut browser = Command::new("xdg-open");
    browser.arg(file.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    browser.spawn().ok().map(|_| file)
}
