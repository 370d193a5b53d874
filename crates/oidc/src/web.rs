//! Requests to a provider: each has a limit on its time and on its answer, and follows no redirect.

use std::time::Duration;

use cairn_notify::Secret;
use reqwest::{Client, RequestBuilder, StatusCode, Url};

use crate::failure::Failure;

/// The time for a connection, and for a whole request. A browser without a session keeps its
/// connection for 10 s, and a sign-in may need three requests.
const CONNECT_MAX: Duration = Duration::from_secs(3);
const REQUEST_MAX: Duration = Duration::from_secs(6);

/// A longer answer is refused, in bytes.
const ANSWER_MAX: usize = 512 << 10;

/// An HTTP client that trusts the machine's authorities and those of the settings.
pub(crate) struct Web(Client);

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Vec<u8>,
}

/// The host, for people.
pub(crate) fn place(url: &Url) -> String {
    let host = url.host_str().unwrap_or("the provider");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

impl Web {
    pub(crate) fn new(authority: Option<&str>) -> Result<Self, Failure> {
        let tls = cairn_notify::client_tls(authority).map_err(|_| {
            let next = "give the certificates of the authority again with `cairn oidc set --ca FILE`";
            Failure::provider("the certificates that the provider needs can't be read", next)
        })?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .connect_timeout(CONNECT_MAX)
            .timeout(REQUEST_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("cairn/", env!("CARGO_PKG_VERSION")))
            .build();
        client.map(Self).map_err(|_| Failure::provider("HTTP can't be set up", "report this as a bug"))
    }

    pub(crate) async fn get(&self, url: &Url) -> Result<Answer, Failure> {
        exchange(self.0.get(url.clone()), url).await
    }

    /// The same with a token of the provider.
    pub(crate) async fn get_with(&self, url: &Url, token: &str) -> Result<Answer, Failure> {
        exchange(self.0.get(url.clone()).bearer_auth(token), url).await
    }

    /// Posts a form, with the name and the secret of this client where the provider wants them in
    /// the header.
    pub(crate) async fn post(
        &self,
        url: &Url,
        form: String,
        basic: Option<(&str, &Secret)>,
    ) -> Result<Answer, Failure> {
        let mut request = self.0.post(url.clone()).header("accept", "application/json");
        if let Some((name, secret)) = basic {
            // RFC 6749, section 2.3.1: encoded as in a form, and then joined.
            let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            request = request.basic_auth(encoded(name), Some(encoded(secret.expose())));
        }
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        exchange(request.body(form), url).await
    }
}

async fn exchange(request: RequestBuilder, url: &Url) -> Result<Answer, Failure> {
    let place = place(url);
    let failed = |error: reqwest::Error| {
        let error = error.without_url();
        if error.is_timeout() {
            return Failure::provider(
                format!("{place} did not answer within {} s", REQUEST_MAX.as_secs()),
                "try again later, or sign in with a token",
            );
        }
        Failure::provider(
            cairn_notify::reason_of(&error, &place),
            "check that the provider runs and that this machine reaches it; tokens work without it",
        )
    };
    let mut response = request.send().await.map_err(failed)?;
    let status = response.status();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > ANSWER_MAX {
            let next = "check the issuer with `cairn oidc show`";
            return Err(Failure::provider(format!("the answer of {place} is too long"), next));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Answer { status, body })
}
