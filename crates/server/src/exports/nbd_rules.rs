//! Rules for NBD: the clients that an export admits, and how it can be reached.
//!
//! A rule is a list of words, as the command line takes them: `open`, `unix`, `off`, or networks
//! and certificates. With both, a client must be in one of the networks and have one of the
//! certificates. Without a rule, the restrictions for iSCSI decide: an export with initiators or
//! CHAP is not offered over TCP, as NBD knows neither, and its networks count here as well. A unix
//! socket follows its mode; only `off` closes it.

use std::net::IpAddr;

use cairn_api as api;
use cairn_frontend_nbd::Visitor;
use serde::{Deserialize, Serialize};

use crate::certificates::Certificates;
use crate::error::ServerError;
use crate::exports::access::Network;
use crate::names;
use crate::peers::identity::Fingerprint;

/// The beginning of a word for a certificate: a name, or `sha256:` and its fingerprint.
const CERTIFICATE: &str = "cert:";
const BY_FINGERPRINT: &str = "sha256:";

/// The rule of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NbdRule {
    /// Any client.
    Open,
    /// Unix sockets only.
    Unix,
    /// No client.
    Off,
    /// Clients in one of the networks, if there are any, with one of the certificates, if there are
    /// any.
    Clients { networks: Vec<String>, certificates: Vec<String> },
}

/// Why a client is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NbdRefusal {
    /// It needs TLS first.
    NeedsTls,
    /// Its rule, for the client.
    Rule(&'static str),
}

impl NbdRule {
    /// Reads the words of a request; none for no rule.
    pub(crate) fn parse(words: &[String]) -> Result<Option<Self>, ServerError> {
        let invalid = || ServerError::Invalid {
            fault: "invalid rule for NBD",
            next: "give `default`, `open`, `unix` or `off` alone, or networks such as 10.0.0.0/24, and certificates as cert:NAME or cert:sha256:FINGERPRINT",
        };
        match words {
            [] => return Ok(None),
            [word] => match word.as_str() {
                "default" => return Ok(None),
                "open" => return Ok(Some(NbdRule::Open)),
                "unix" => return Ok(Some(NbdRule::Unix)),
                "off" => return Ok(Some(NbdRule::Off)),
                _ => {}
            },
            _ => {}
        }
        let (mut networks, mut certificates) = (Vec::new(), Vec::new());
        for word in words {
            match word.strip_prefix(CERTIFICATE) {
                Some(certificate) => {
                    let known = match certificate.strip_prefix(BY_FINGERPRINT) {
                        // As other programs print it, with colons.
                        Some(digits) => {
                            let plain = digits.replace(':', "").to_lowercase();
                            let fingerprint = plain.parse::<Fingerprint>().map_err(|_| invalid())?;
                            format!("{BY_FINGERPRINT}{fingerprint}")
                        }
                        None => {
                            names::check("client", certificate)?;
                            certificate.to_owned()
                        }
                    };
                    certificates.push(known);
                }
                None => {
                    word.parse::<Network>().map_err(|_| invalid())?;
                    networks.push(word.clone());
                }
            }
        }
        Ok(Some(NbdRule::Clients { networks, certificates }))
    }

    /// The rule in words; empty for none.
    pub(crate) fn words(rule: Option<&Self>) -> Vec<String> {
        match rule {
            None => Vec::new(),
            Some(NbdRule::Open) => vec!["open".to_owned()],
            Some(NbdRule::Unix) => vec!["unix".to_owned()],
            Some(NbdRule::Off) => vec!["off".to_owned()],
            Some(NbdRule::Clients { networks, certificates }) => {
                let certificates = certificates.iter().map(|one| format!("{CERTIFICATE}{one}"));
                networks.iter().cloned().chain(certificates).collect()
            }
        }
    }
}

/// The restrictions of an export that count where it has no rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Restricted {
    pub(crate) rule: Option<NbdRule>,
    /// It has initiators or CHAP.
    pub(crate) authenticates: bool,
    pub(crate) networks: Vec<String>,
}

fn is_near(networks: &[String], from: IpAddr) -> bool {
    networks.iter().filter_map(|text| text.parse::<Network>().ok()).any(|network| network.holds(from))
}

impl Restricted {
    /// Whether a client may open the export.
    pub(crate) fn admit(&self, visitor: &Visitor, certificates: &Certificates) -> Result<(), NbdRefusal> {
        let Some(from) = visitor.from else {
            return match self.rule {
                Some(NbdRule::Off) => Err(NbdRefusal::Rule("it is not offered over NBD")),
                _ => Ok(()),
            };
        };
        match &self.rule {
            Some(NbdRule::Open) => Ok(()),
            Some(NbdRule::Off) => Err(NbdRefusal::Rule("it is not offered over NBD")),
            Some(NbdRule::Unix) => Err(NbdRefusal::Rule("it is offered over NBD on unix sockets only")),
            None if self.authenticates => Err(NbdRefusal::Rule(
                "it has initiators or CHAP, which NBD does not know, and no rule for NBD (cairn export set --nbd)",
            )),
            None if self.networks.is_empty() || is_near(&self.networks, from) => Ok(()),
            None => Err(NbdRefusal::Rule("the address of the client is not permitted")),
            Some(NbdRule::Clients { networks, certificates: known }) => {
                if !networks.is_empty() && !is_near(networks, from) {
                    return Err(NbdRefusal::Rule("the address of the client is not permitted"));
                }
                if known.is_empty() {
                    return Ok(());
                }
                if !visitor.tls {
                    return Err(NbdRefusal::NeedsTls);
                }
                let Some(first) = visitor.certificates.first() else {
                    return Err(NbdRefusal::Rule("the client has shown no certificate"));
                };
                let fingerprint = format!("{BY_FINGERPRINT}{}", Fingerprint::of(first));
                if known.contains(&fingerprint) {
                    return Ok(());
                }
                let names = certificates.names_of_client(&visitor.certificates);
                match names.iter().any(|name| known.contains(name)) {
                    true => Ok(()),
                    false => Err(NbdRefusal::Rule("the certificate of the client is not permitted")),
                }
            }
        }
    }

    /// The clients that reach the export, by a unix socket or over TCP; none if no client does.
    pub(crate) fn clients(&self, unix: bool) -> Option<String> {
        let near = |networks: &[String]| format!("clients in {}", networks.join(", "));
        match &self.rule {
            Some(NbdRule::Off) => None,
            _ if unix => Some("users that may open the socket".to_owned()),
            Some(NbdRule::Unix) => None,
            Some(NbdRule::Open) => Some("any client".to_owned()),
            None if self.authenticates => None,
            None if self.networks.is_empty() => Some("any client".to_owned()),
            None => Some(near(&self.networks)),
            Some(NbdRule::Clients { networks, certificates }) => {
                let mut words = Vec::new();
                if !networks.is_empty() {
                    words.push(near(networks));
                }
                if !certificates.is_empty() {
                    words.push(format!("certificates {}", certificates.join(", ")));
                }
                Some(words.join(", with "))
            }
        }
    }

    /// Every client that reaches a listener over TCP gets in.
    pub(crate) fn is_open(&self) -> bool {
        let is_all = |networks: &[String]| networks.iter().any(|network| network.ends_with("/0"));
        match &self.rule {
            Some(NbdRule::Open) => true,
            Some(NbdRule::Off | NbdRule::Unix) => false,
            Some(NbdRule::Clients { networks, certificates }) => certificates.is_empty() && is_all(networks),
            None => !self.authenticates && (self.networks.is_empty() || is_all(&self.networks)),
        }
    }
}

/// Whether a listening address can be reached from other machines.
pub(crate) fn is_reachable(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => !address.to_canonical().is_loopback(),
        Err(_) => host != "localhost",
    }
}

/// The initiators that reach an export over iSCSI, and whether any does.
pub(crate) fn initiators(access: &api::Access) -> (String, bool) {
    if access.secret_lacks {
        return ("no initiator: the CHAP secret is unknown here".to_owned(), false);
    }
    let mut words = Vec::new();
    if !access.initiators.is_empty() {
        words.push(format!("initiators {}", access.initiators.join(", ")));
    }
    if !access.networks.is_empty() {
        words.push(format!("clients in {}", access.networks.join(", ")));
    }
    words.extend(access.chap.as_ref().map(|name| format!("CHAP as {name}")));
    match words.is_empty() {
        true => ("any initiator".to_owned(), true),
        false => (words.join(", with "), false),
    }
}

#[cfg(test)]
mod tests;
