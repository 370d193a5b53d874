//! Deliveries over HTTP: each answer means something else for the next try.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};

use crate::deliver::{Failure, Fault, cause_of, excerpt, failure_of, tls};
use crate::message::{Message, Origin};
use crate::shapes::{self, Shape};
use crate::target::{Ping, Web};

/// The time for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Bytes that are read of an answer.
const READ_MAX: usize = 4096;

fn client(authority: Option<&str>) -> Result<Client, Failure> {
    let client = Client::builder()
        .tls_backend_preconfigured(tls(authority)?)
        .connect_timeout(CONNECT_MAX)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("cairn/", env!("CARGO_PKG_VERSION")))
        .build();
    client.map_err(|_| Failure::new(Fault::Lasting, "HTTP can't be set up", "report this as a bug"))
}

fn parsed(url: &str) -> Result<Url, Failure> {
    let next = "give a valid one with `cairn notify set NAME --url-file FILE`";
    Url::parse(url).map_err(|_| Failure::new(Fault::Lasting, "its address is no valid URL", next))
}

/// The host, for people.
fn place(url: &Url) -> String {
    let host = url.host_str().unwrap_or("the host");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Posts a message.
pub(super) async fn post(
    web: &Web,
    message: &Message,
    origin: &Origin,
    seconds: u64,
) -> Result<String, Failure> {
    let mut url = parsed(web.url.expose())?;
    let topic = match web.shape {
        Shape::Ntfy => take_topic(&mut url)?,
        _ => String::new(),
    };
    let body = shapes::body(web.shape, message, origin, &topic).to_string().into_bytes();
    let place = place(&url);
    let mut request = client(web.authority.as_deref())?
        .post(url)
        .header("content-type", "application/json")
        .header("webhook-id", &message.id)
        .header("webhook-timestamp", seconds);
    if let Some(secret) = &web.secret {
        request = match web.shape {
            Shape::Webhook => {
                let signature = shapes::signature(secret, &message.id, seconds, &body);
                request.header("webhook-signature", signature)
            }
            _ => request.bearer_auth(secret.expose()),
        };
    }
    exchange(request.body(body), &place).await
}

/// The topic of ntfy, whose JSON goes to the root of the server.
fn take_topic(url: &mut Url) -> Result<String, Failure> {
    let path = url.path().trim_end_matches('/').to_owned();
    let (root, topic) = path.rsplit_once('/').unwrap_or(("", &path));
    if topic.is_empty() {
        let next = "give the address of the topic, such as https://ntfy.sh/TOPIC";
        return Err(Failure::new(Fault::Lasting, "the address names no topic of ntfy", next));
    }
    url.set_path(&format!("{root}/"));
    Ok(topic.to_owned())
}

/// Tells that all is well.
pub(super) async fn ping(ping: &Ping) -> Result<String, Failure> {
    let url = parsed(ping.url.expose())?;
    let place = place(&url);
    let client = client(ping.authority.as_deref())?;
    let request = if ping.post { client.post(url) } else { client.get(url) };
    exchange(request, &place).await
}

async fn exchange(request: RequestBuilder, place: &str) -> Result<String, Failure> {
    let mut response = match request.send().await {
        Ok(response) => response,
        Err(error) => return Err(failure_of(cause_of(&error.without_url()), place)),
    };
    let status = response.status();
    let mut said = Vec::new();
    // The status decides; what follows it is for people.
    while said.len() < READ_MAX
        && let Ok(Some(chunk)) = response.chunk().await
    {
        said.extend_from_slice(&chunk[..chunk.len().min(READ_MAX - said.len())]);
    }
    let said = excerpt(&String::from_utf8_lossy(&said));
    match status.is_success() {
        true => Ok(format!("{place} answers {}", answer(status, &said))),
        false => Err(refused(&response, status, &said, place)),
    }
}

fn answer(status: StatusCode, said: &str) -> String {
    let text = match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    };
    if said.is_empty() { text } else { format!("{text}: {said}") }
}

fn refused(response: &Response, status: StatusCode, said: &str, place: &str) -> Failure {
    let message = format!("{place} answers {}", answer(status, said));
    let (fault, next) = match status.as_u16() {
        300..=399 => {
            let to = response.headers().get("location").and_then(|to| to.to_str().ok());
            let host = to
                .and_then(|to| Url::parse(to).ok())
                .map(|url| format!("{}://{}", url.scheme(), self::place(&url)));
            let to = host.map_or(String::new(), |host| format!(" (it points to {host})"));
            let next = format!(
                "messages follow no redirect{to}: give the final address with `cairn notify set NAME --url-file FILE`"
            );
            return Failure::new(Fault::Lasting, message, next);
        }
        401 | 403 | 407 => (
            Fault::Lasting,
            "check the token or the secret there, and give the right one with `cairn notify set NAME --secret-file FILE` or `--url-file FILE`",
        ),
        404 | 405 | 410 => (
            Fault::Lasting,
            "the address is wrong or was withdrawn: give the right one with `cairn notify set NAME --url-file FILE`",
        ),
        408 | 425 | 429 => (Fault::Passing, "it is tried again; fewer messages an hour come with `--rate`"),
        400..=499 => (Fault::Refused, "check that the kind of the target is the one that is expected there"),
        _ => (Fault::Passing, "it is tried again; look at the log of the service there"),
    };
    let retry_after =
        response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Failure { retry_after: retry_after.map(Duration::from_secs), ..Failure::new(fault, message, next) }
}
