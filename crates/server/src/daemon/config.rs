//! The configuration of a server: its data directory and its addresses. The command line overrides
//! a TOML file, which overrides the defaults.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_api::{Address, DEFAULT_DATA};
use cairn_base::{ByteSize, Interval};
use serde::Deserialize;

use crate::daemon::error::DaemonError;
use crate::error::ServerError;
use crate::exports::nbd_rules::is_reachable;

mod files;

pub use files::check;

/// Where other servers fetch images from, by default.
pub const DEFAULT_MIRROR: &str = "127.0.0.1:7420";
/// Where NBD clients connect, by default (10809 is the port that IANA assigned to NBD).
pub const DEFAULT_NBD: &str = "127.0.0.1:10809";
/// Where iSCSI initiators connect, by default (3260 is the port that IANA assigned to iSCSI).
pub const DEFAULT_ISCSI: &str = "127.0.0.1:3260";
/// The block cache of a volume, in bytes.
pub const DEFAULT_CACHE: ByteSize = ByteSize(256 << 20);
/// Time without a byte in a transfer, either way, after which the peer is considered gone, by
/// default. Comparing the maps of a large volume takes a part of it.
pub const DEFAULT_MIRROR_PATIENCE: Duration = Duration::from_secs(120);

/// A size in a configuration file: a string such as "256M", or bytes.
fn size<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Size::deserialize(deserializer)? {
        Size::Bytes(bytes) => Ok(Some(ByteSize(bytes))),
        Size::Text(text) => text.parse().map(Some).map_err(serde::de::Error::custom),
    }
}

/// A length of time in a configuration file, such as "2m".
fn interval<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Interval>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(serde::de::Error::custom)
}

/// The settings of a configuration file or of the command line; the next source in line supplies
/// missing ones.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The data directory.
    pub data: Option<PathBuf>,
    /// The API over TCP; off by default. The control socket is always there.
    pub http: Option<Address>,
    /// Where mirrors of this server's volumes connect.
    pub mirror: Option<Address>,
    /// Where NBD clients connect, beside `DIR/nbd.sock`, which is always there.
    pub nbd: Option<Vec<Address>>,
    /// Where iSCSI initiators connect.
    pub iscsi: Option<Vec<Address>>,
    /// The portal that iSCSI discovery names, if it is not the one that the initiator connected to.
    pub iscsi_advertise: Option<String>,
    /// Where NFS clients connect; nowhere by default.
    pub nfs: Option<Vec<Address>>,
    /// NBD clients must use TLS (it is always offered). The unix sockets are concerned as well.
    pub nbd_tls_required: Option<bool>,
    /// The mirror address that tokens name, if it differs from the listening address.
    pub advertise: Option<String>,
    /// How long the other end of a transfer may be silent before it is given up.
    #[serde(default, deserialize_with = "interval")]
    pub mirror_patience: Option<Interval>,
    /// The API over TCP and the page have TLS, with a certificate of the server's authority unless
    /// `tls_cert` names another one.
    pub tls: Option<bool>,
    /// The certificate of the server for HTTPS and NBD, in PEM.
    pub tls_cert: Option<PathBuf>,
    /// Its key, in PEM.
    pub tls_key: Option<PathBuf>,
    /// Names and addresses in the certificate of the server's authority, beside those of the
    /// machine.
    pub tls_name: Option<Vec<String>>,
    /// The API over TCP may be reached from other machines without TLS.
    pub http_insecure: Option<bool>,
    /// Lines of the audit log also go to the system's log.
    pub audit_syslog: Option<bool>,
    /// Folders with image dumps in files that people of the page may look into.
    pub dumps: Option<Vec<PathBuf>>,
    /// The block cache of each volume.
    #[serde(default, deserialize_with = "size")]
    pub cache: Option<ByteSize>,
}

impl Settings {
    /// Reads the `text` of a configuration file, found at `path`.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ServerError> {
        toml::from_str(text).map_err(|source| {
            ServerError::Daemon(DaemonError::Config { path: path.to_owned(), source: Box::new(source) })
        })
    }

    /// These settings, with those of `below` for missing ones.
    pub fn over(self, below: Settings) -> Settings {
        Settings {
            data: self.data.or(below.data),
            http: self.http.or(below.http),
            mirror: self.mirror.or(below.mirror),
            nbd: self.nbd.or(below.nbd),
            iscsi: self.iscsi.or(below.iscsi),
            iscsi_advertise: self.iscsi_advertise.or(below.iscsi_advertise),
            nfs: self.nfs.or(below.nfs),
            nbd_tls_required: self.nbd_tls_required.or(below.nbd_tls_required),
            advertise: self.advertise.or(below.advertise),
            mirror_patience: self.mirror_patience.or(below.mirror_patience),
            tls: self.tls.or(below.tls),
            tls_cert: self.tls_cert.or(below.tls_cert),
            tls_key: self.tls_key.or(below.tls_key),
            tls_name: self.tls_name.or(below.tls_name),
            http_insecure: self.http_insecure.or(below.http_insecure),
            audit_syslog: self.audit_syslog.or(below.audit_syslog),
            dumps: self.dumps.or(below.dumps),
            cache: self.cache.or(below.cache),
        }
    }
}

/// A complete configuration.
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) data: PathBuf,
    pub(crate) http: Address,
    pub(crate) mirror: Address,
    /// No mirror address was configured, to listen on or to advertise: a destination listens where
    /// its source can reach it.
    pub(crate) mirror_learns: bool,
    pub(crate) nbd: Vec<Address>,
    /// `HOST:PORT` each.
    pub(crate) iscsi: Vec<String>,
    pub(crate) iscsi_advertise: Option<String>,
    /// `HOST:PORT` each.
    pub(crate) nfs: Vec<String>,
    pub(crate) nbd_tls_required: bool,
    pub(crate) advertise: Option<String>,
    pub(crate) mirror_patience: Duration,
    pub(crate) audit_syslog: bool,
    pub(crate) dumps: Vec<PathBuf>,
    /// The API over TCP has TLS.
    pub(crate) tls: bool,
    /// The certificate, and its key.
    pub(crate) tls_files: Option<[PathBuf; 2]>,
    /// One of them is missing.
    tls_file_alone: bool,
    pub(crate) tls_names: Vec<String>,
    http_insecure: bool,
    pub(crate) cache: ByteSize,
}

impl Config {
    /// `settings` with the defaults for missing ones.
    pub fn new(settings: Settings) -> Result<Self, ServerError> {
        let http = settings.http.unwrap_or(Address::Off);
        if matches!(http, Address::Unix(_)) {
            return Err(ServerError::Invalid {
                fault: "the HTTP address is not HOST:PORT or `off`",
                next: "give --http HOST:PORT or `--http off`; the API is also on control.sock in the data directory",
            });
        }
        let mirror_learns = settings.mirror.is_none() && settings.advertise.is_none();
        let mirror = settings.mirror.unwrap_or_else(|| Address::Tcp(DEFAULT_MIRROR.to_owned()));
        if matches!(mirror, Address::Unix(_)) {
            return Err(ServerError::Invalid {
                fault: "the mirror address is not HOST:PORT or `off`",
                next: "give --mirror HOST:PORT or `--mirror off`",
            });
        }
        if let Some(advertise) = &settings.advertise {
            check_reachable(advertise)?;
        }
        if let Some(advertise) = &settings.iscsi_advertise {
            check_reachable(advertise)?;
        }
        let iscsi = settings.iscsi.unwrap_or_else(|| vec![Address::Tcp(DEFAULT_ISCSI.to_owned())]);
        let iscsi = iscsi.into_iter().filter_map(|address| match address {
            Address::Off => None,
            Address::Tcp(address) => Some(Ok(address)),
            Address::Unix(_) => Some(Err(ServerError::Invalid {
                fault: "the iSCSI address is not HOST:PORT or `off`",
                next: "give --iscsi HOST:PORT or `--iscsi off`",
            })),
        });
        let is_alone = settings.tls_cert.is_some() != settings.tls_key.is_some();
        let tls_files = settings.tls_cert.zip(settings.tls_key).map(<[PathBuf; 2]>::from);
        let nfs = settings.nfs.unwrap_or_default().into_iter().filter_map(|address| match address {
            Address::Off => None,
            Address::Tcp(address) => Some(Ok(address)),
            Address::Unix(_) => Some(Err(ServerError::Invalid {
                fault: "the NFS address is not HOST:PORT or `off`",
                next: "give --nfs HOST:PORT or `--nfs off`",
            })),
        });
        let dumps = settings.dumps.unwrap_or_default();
        if dumps.iter().any(|path| !path.is_absolute()) {
            return Err(ServerError::NotAbsolute { what: "the path of a folder of image dumps" });
        }
        Ok(Config {
            tls: settings.tls.unwrap_or(tls_files.is_some()),
            tls_files,
            tls_file_alone: is_alone,
            tls_names: settings.tls_name.unwrap_or_default(),
            http_insecure: settings.http_insecure.unwrap_or(false),
            data: settings.data.unwrap_or_else(|| DEFAULT_DATA.into()),
            http,
            mirror,
            mirror_learns,
            nbd: settings.nbd.unwrap_or_else(|| vec![Address::Tcp(DEFAULT_NBD.to_owned())]),
            iscsi: iscsi.collect::<Result<_, _>>()?,
            iscsi_advertise: settings.iscsi_advertise,
            nfs: nfs.collect::<Result<_, _>>()?,
            nbd_tls_required: settings.nbd_tls_required.unwrap_or(false),
            advertise: settings.advertise,
            mirror_patience: settings.mirror_patience.map_or(DEFAULT_MIRROR_PATIENCE, |patience| patience.0),
            audit_syslog: settings.audit_syslog.unwrap_or(false),
            dumps,
            cache: settings.cache.unwrap_or(DEFAULT_CACHE),
        })
    }
}

impl Config {
    /// Refuses settings that are valid each, and not together.
    pub(crate) fn refuse_in_the_clear(&self) -> Result<(), ServerError> {
        if self.tls_file_alone {
            return Err(ServerError::Invalid {
                fault: "a certificate needs its key, and a key its certificate",
                next: "give both --tls-cert FILE and --tls-key FILE, or neither",
            });
        }
        let is_open = matches!(&self.http, Address::Tcp(address) if is_reachable(address));
        if is_open && !self.tls && !self.http_insecure {
            return Err(ServerError::Invalid {
                fault: "the HTTP address can be reached from other machines, and tokens would cross the network in the clear",
                next: "give --tls, or --tls-cert FILE and --tls-key FILE; behind a TLS proxy, listen on 127.0.0.1; --http-insecure permits it without TLS",
            });
        }
        Ok(())
    }
}

/// Refuses an address to which a peer could not connect.
pub(crate) fn check_reachable(advertise: &str) -> Result<(), ServerError> {
    match advertise.parse() {
        Ok(Address::Tcp(_)) if !advertise.ends_with(":0") => Ok(()),
        _ => Err(ServerError::Invalid {
            fault: "the advertised address is not HOST:PORT",
            next: "give --advertise or --iscsi-advertise the HOST:PORT by which other machines reach this server",
        }),
    }
}

#[cfg(test)]
mod tests;
