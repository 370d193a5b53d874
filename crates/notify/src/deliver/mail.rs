//! Deliveries by SMTP.

use std::time::{Duration, SystemTime};

use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, MessageBuilder};
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{AsyncSmtpTransport, AsyncTransport, Tokio1Executor};

use crate::deliver::{Failure, Fault, cause_of, excerpt, failure_of};
use crate::message::{Message, Origin};
use crate::target::{Mail, MailTls};

/// The time for one reply of the server.
const REPLY_MAX: Duration = Duration::from_secs(20);

/// Sends a mail, and returns the reply of the server to it.
pub(super) async fn send(mail: &Mail, message: &Message, origin: &Origin) -> Result<String, Failure> {
    let place = format!("{}:{}", mail.host, mail.port);
    let letter = letter(mail, message, origin).ok_or_else(|| {
        let next = "give valid addresses with `cairn notify set NAME --from ADDRESS --to ADDRESS`";
        Failure::new(Fault::Lasting, "an address of the mail is not valid", next)
    })?;
    let transport = transport(mail, origin).map_err(|error| failed(&error, &place))?;
    match transport.send(letter).await {
        Ok(reply) => {
            let text = reply.message().collect::<Vec<_>>().join(" ");
            Ok(format!("{place} answers {} {text}", reply.code()))
        }
        Err(error) => Err(failed(&error, &place)),
    }
}

fn letter(mail: &Mail, message: &Message, origin: &Origin) -> Option<lettre::Message> {
    let header = |name: &'static str, value: &str| {
        HeaderValue::new(HeaderName::new_from_ascii_str(name), value.to_owned())
    };
    let made = SystemTime::UNIX_EPOCH + Duration::from_millis(message.at_ms);
    let sender: Mailbox = mail.from.parse().ok()?;
    let domain = sender.email.domain().to_owned();
    let mut builder: MessageBuilder = lettre::Message::builder()
        .from(sender)
        .date(made)
        // A mail that arrives twice has the same id, by which mail servers discard the second.
        .message_id(Some(format!("<cairn-{}@{domain}>", message.id)))
        .subject(format!("[cairn {}] {}", origin.host, message.title()))
        .raw_header(header("Auto-Submitted", "auto-generated"))
        .raw_header(header("X-Cairn-Message", &message.id))
        .header(ContentType::TEXT_PLAIN);
    for to in &mail.to {
        builder = builder.to(to.parse().ok()?);
    }
    builder.body(message.text(origin)).ok()
}

fn transport(
    mail: &Mail,
    origin: &Origin,
) -> Result<AsyncSmtpTransport<Tokio1Executor>, lettre::transport::smtp::Error> {
    let secured = || {
        let mut parameters = TlsParameters::builder(mail.host.clone());
        if let Some(pem) = &mail.authority {
            parameters = parameters.add_root_certificate(Certificate::from_pem(pem.as_bytes())?);
        }
        parameters.build()
    };
    let tls = match mail.tls {
        MailTls::Off => Tls::None,
        MailTls::Starttls => Tls::Required(secured()?),
        MailTls::Tls => Tls::Wrapper(secured()?),
    };
    let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(mail.host.clone())
        .port(mail.port)
        .tls(tls)
        .timeout(Some(REPLY_MAX))
        .hello_name(ClientId::Domain(origin.host.clone()));
    if let (Some(user), Some(password)) = (&mail.user, &mail.password) {
        builder = builder
            .credentials(Credentials::new(user.clone(), password.expose().to_owned()))
            .authentication(vec![Mechanism::Plain, Mechanism::Login]);
    }
    Ok(builder.build())
}

fn failed(error: &lettre::transport::smtp::Error, place: &str) -> Failure {
    if let Some(code) = error.status() {
        let code = code.to_string();
        let said = std::error::Error::source(error).map_or(String::new(), |source| format!(" {source}"));
        let message = excerpt(&format!("{place} answers {code}{said}"));
        return match &code[..] {
            "530" | "534" | "535" | "538" => Failure::new(
                Fault::Lasting,
                message,
                "check the user and the password: `cairn notify set NAME --user NAME --secret-file FILE`",
            ),
            _ if error.is_transient() => {
                Failure::new(Fault::Passing, message, "it is tried again; look at the log of the mail server")
            }
            _ => Failure::new(
                Fault::Refused,
                message,
                "check the addresses: the mail server must take mails of this sender to these receivers",
            ),
        };
    }
    if let Some(cause) = cause_of(error) {
        return failure_of(Some(cause), place);
    }
    if error.is_client() {
        let said = std::error::Error::source(error).map_or(String::new(), ToString::to_string);
        return Failure::new(
            Fault::Lasting,
            excerpt(&format!("{place} does not offer what this target needs: {said}")),
            "use the TLS mode and the port that the mail server has: `cairn notify set NAME --tls starttls|tls|off --smtp HOST:PORT`",
        );
    }
    failure_of(None, place)
}
