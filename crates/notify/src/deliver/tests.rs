//! Deliveries to real sockets.

mod fakes;

use std::time::Instant;

use rustls::ServerConfig;

use super::*;
use crate::message::{Event, EventKind};
use crate::problem::{Problem, Severity};
use crate::secret::Secret;
use crate::shapes::{self, Shape};
use crate::target::{Mail, MailTls, Web};
use fakes::{Mood, Receiver};

fn origin() -> Origin {
    Origin { host: "store1".to_owned(), version: "0.1.0".to_owned() }
}

fn message() -> Message {
    let problem = Problem {
        key: "volume/vol0".to_owned(),
        severity: Severity::Critical,
        subject: "vol0".to_owned(),
        message: "it takes no writes".to_owned(),
        next: "free space".to_owned(),
    };
    let event =
        Event { kind: EventKind::Came, problem, since_ms: 1_795_269_600_000, until_ms: None, returns: 0 };
    Message { events: vec![event], test: false, open: 1, ..Message::test("s-7", 1_795_269_787_000) }
}

fn deliver(target: &Target) -> Result<String, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(send(target, &message(), &origin(), 1_795_269_787))
}

fn web(receiver: &Receiver, shape: Shape, secret: Option<&str>) -> Web {
    let url = Secret::new(&format!("http://{}/hooks/secret-token", receiver.address));
    Web { shape, url, is_shown: false, secret: secret.map(Secret::new), authority: None }
}

fn mail(receiver: &Receiver, tls: MailTls) -> Mail {
    Mail {
        host: "localhost".to_owned(),
        port: receiver.address.port(),
        tls,
        user: None,
        password: None,
        from: "Cairn <cairn@example.org>".to_owned(),
        to: vec!["ops@example.org".to_owned(), "on-call@example.org".to_owned()],
        authority: None,
    }
}

/// A certificate for this machine, and a server that has it.
fn certificate() -> (String, Arc<ServerConfig>) {
    let made =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    (made.cert.pem(), Arc::new(config))
}

#[test]
fn a_webhook_is_signed_and_its_answer_is_reported() {
    let receiver = Receiver::http(None);
    let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let answer = deliver(&Target::Web(web(&receiver, Shape::Webhook, Some(secret.expose())))).unwrap();
    assert!(answer.ends_with("answers 200 OK: yes"), "{answer}");
    let received = receiver.wait_for(|one| one.is_taken);
    assert!(received.head.starts_with("POST /hooks/secret-token HTTP/1.1"));
    assert_eq!(received.header("webhook-id").as_deref(), Some("s-7"));
    let expected = shapes::signature(&secret, "s-7", 1_795_269_787, received.body.as_bytes());
    assert_eq!(received.header("webhook-signature"), Some(expected));
    let body: serde_json::Value = serde_json::from_str(&received.body).unwrap();
    assert_eq!(body["events"][0]["subject"], "vol0");
}

#[test]
fn ntfy_gets_json_at_the_root_and_a_token() {
    let receiver = Receiver::http(None);
    deliver(&Target::Web(web(&receiver, Shape::Ntfy, Some("tk_1")))).unwrap();
    let received = receiver.wait_for(|one| one.is_taken);
    assert!(received.head.starts_with("POST /hooks/ HTTP/1.1"), "{}", received.head);
    assert_eq!(received.header("authorization").as_deref(), Some("Bearer tk_1"));
    assert!(received.body.contains("\"topic\":\"secret-token\""));
}

#[test]
fn each_answer_of_http_means_what_it_says() {
    let receiver = Receiver::http(None);
    let target = Target::Web(web(&receiver, Shape::Webhook, None));
    let cases = [
        ("500 Internal Server Error", Fault::Passing),
        ("503 Service Unavailable\r\nRetry-After: 120", Fault::Passing),
        ("429 Too Many Requests", Fault::Passing),
        ("400 Bad Request", Fault::Refused),
        ("413 Content Too Large", Fault::Refused),
        ("401 Unauthorized", Fault::Lasting),
        ("404 Not Found", Fault::Lasting),
        ("302 Found\r\nLocation: https://other.example.org/secret-token", Fault::Lasting),
    ];
    for (answer, fault) in cases {
        receiver.is_now(Mood::Refuses(answer.to_owned()));
        let failure = deliver(&target).unwrap_err();
        assert_eq!(failure.fault, fault, "{answer}");
        assert!(failure.message.contains(&answer[..3]), "{failure:?}");
        assert!(!format!("{failure:?}").contains("secret-token"), "{failure:?}");
        let asked = answer.contains("Retry-After").then(|| Duration::from_secs(120));
        assert_eq!(failure.retry_after, asked);
    }
    // A redirect is not followed, and its host is named.
    assert!(deliver(&target).unwrap_err().next.contains("https://other.example.org"));
}

#[test]
fn a_receiver_that_is_not_there_is_named_with_the_cause() {
    let gone = Receiver::http(None);
    let target = Target::Web(web(&gone, Shape::Slack, None));
    let port = gone.address.port();
    drop(gone);
    let until = Instant::now() + Duration::from_secs(5);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let failure = deliver(&target).unwrap_err();
    assert_eq!(failure.fault, Fault::Passing);
    assert_eq!(failure.message, format!("cannot reach 127.0.0.1:{port}: connection refused"));
    let back = Receiver::http_at(([127, 0, 0, 1], port).into());
    deliver(&target).unwrap();
    assert!(back.wait_for(|one| one.is_taken).body.starts_with("{\"text\":\"*store1"));
}

#[test]
fn a_delivery_to_a_receiver_that_hangs_can_be_dropped_at_any_time() {
    let (web_server, mail_server) = (Receiver::http(None), Receiver::smtp(None, None));
    web_server.is_now(Mood::Hangs);
    mail_server.is_now(Mood::Hangs);
    let targets =
        [Target::Web(web(&web_server, Shape::Webhook, None)), Target::Mail(mail(&mail_server, MailTls::Off))];
    for target in targets {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let begun = Instant::now();
        let outcome = runtime.block_on(async {
            tokio::time::timeout(Duration::from_millis(300), send(&target, &message(), &origin(), 0)).await
        });
        assert!(outcome.is_err());
        runtime.shutdown_background();
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_certificate_is_accepted_only_if_its_authority_is_named() {
    let (pem, config) = certificate();
    let receiver = Receiver::http(Some(config));
    let url = Secret::new(&format!("https://localhost:{}/x", receiver.address.port()));
    let mut target = Web { shape: Shape::Webhook, url, is_shown: true, secret: None, authority: None };
    let failure = deliver(&Target::Web(target.clone())).unwrap_err();
    assert_eq!(failure.fault, Fault::Lasting);
    assert!(failure.message.contains("is not accepted"), "{failure:?}");
    target.authority = Some(pem);
    deliver(&Target::Web(target)).unwrap();
}

#[test]
fn a_mail_reaches_a_plain_server() {
    let receiver = Receiver::smtp(None, None);
    let answer = deliver(&Target::Mail(mail(&receiver, MailTls::Off))).unwrap();
    assert!(answer.contains("250 2.0.0 queued as 4711"), "{answer}");
    let received = receiver.wait_for(|one| one.is_taken);
    assert!(received.head.contains("MAIL FROM:<cairn@example.org>"), "{}", received.head);
    assert!(received.head.contains("RCPT TO:<on-call@example.org>"));
    assert!(received.body.contains("Subject: [cairn store1] CRITICAL: vol0: it takes no writes"));
    assert!(received.body.contains("Message-ID: <cairn-s-7@example.org>"));
    assert!(received.body.contains("Auto-Submitted: auto-generated"));
    assert!(received.body.contains("next: free space"));
}

#[test]
fn a_mail_goes_by_starttls_with_a_password_or_not_at_all() {
    let (pem, config) = certificate();
    let receiver = Receiver::smtp(Some(config), Some("right"));
    let mut target = mail(&receiver, MailTls::Starttls);
    (target.user, target.password) = (Some("user".to_owned()), Some(Secret::new("right")));
    let failure = deliver(&Target::Mail(target.clone())).unwrap_err();
    assert!(failure.message.contains("certificate"), "{failure:?}");
    target.authority = Some(pem);
    deliver(&Target::Mail(target.clone())).unwrap();
    target.password = Some(Secret::new("wrong"));
    let failure = deliver(&Target::Mail(target.clone())).unwrap_err();
    assert_eq!(failure.fault, Fault::Lasting);
    assert!(failure.message.contains("535"), "{failure:?}");
    // A server without STARTTLS gets no mail and no password.
    let plain = Receiver::smtp(None, Some("right"));
    target.port = plain.address.port();
    let failure = deliver(&Target::Mail(target)).unwrap_err();
    assert_eq!(failure.fault, Fault::Lasting, "{failure:?}");
    assert!(plain.all().is_empty());
}

#[test]
fn replies_of_a_mail_server_mean_what_they_say() {
    let receiver = Receiver::smtp(None, None);
    let target = Target::Mail(mail(&receiver, MailTls::Off));
    for (reply, fault) in [("451 4.7.1 later", Fault::Passing), ("550 5.1.1 no such user", Fault::Refused)] {
        receiver.is_now(Mood::Refuses(reply.to_owned()));
        let failure = deliver(&target).unwrap_err();
        assert_eq!(failure.fault, fault, "{failure:?}");
        assert!(failure.message.contains(&reply[..3]), "{failure:?}");
    }
}

#[test]
fn a_slow_receiver_is_waited_for() {
    let receiver = Receiver::http(None);
    receiver.is_now(Mood::Slow(Duration::from_millis(1500)));
    deliver(&Target::Web(web(&receiver, Shape::Mattermost, None))).unwrap();
}
