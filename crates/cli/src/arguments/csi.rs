//! `cairn csi`: the driver for volumes of Kubernetes.

use std::net::IpAddr;
use std::path::PathBuf;

use cairn_api::Address;
use clap::{Args, ValueEnum};

/// `cairn csi`.
#[derive(Debug, Args)]
pub struct Csi {
    /// Listen at this unix socket, as unix:///PATH or a path
    #[arg(long, value_name = "SOCKET", env = "CSI_ENDPOINT")]
    pub endpoint: String,
    /// Serve the controller only (default: controller and node)
    #[arg(long, conflicts_with = "node")]
    pub controller: bool,
    /// Serve the node only; it needs no server
    #[arg(long)]
    pub node: bool,
    /// Name the driver in Kubernetes
    #[arg(long, value_name = "NAME", default_value = cairn_csi::DRIVER_NAME)]
    pub driver: String,
    /// Begin the names of all volumes and snapshots with this
    ///
    /// The driver touches no other volumes. Clusters that share a server need different prefixes.
    #[arg(long, value_name = "PREFIX-", default_value = "csi-")]
    pub prefix: String,
    /// Tell nodes to use NBD at HOST:PORT (default: as the server says)
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "node")]
    pub nbd: Option<String>,
    /// Tell nodes to use iSCSI at HOST:PORT (default: as the server says)
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "node")]
    pub iscsi: Option<String>,
    /// Name this node as Kubernetes does
    #[arg(long, value_name = "NAME", env = "CSI_NODE_ID", conflicts_with = "controller")]
    pub node_id: Option<String>,
    /// Attach disks with iscsi, nbd, or fuse (nbdfuse and a loop device)
    #[arg(long, value_enum, value_name = "METHOD", default_value = "iscsi", conflicts_with = "controller")]
    pub attach: AttachmentName,
    /// Use this iSCSI name (default: of /etc/iscsi/initiatorname.iscsi)
    #[arg(long, value_name = "IQN", conflicts_with = "controller")]
    pub initiator: Option<String>,
    /// Reach the NBD server from this address of the node
    ///
    /// The server admits only this address to the disks of the node.
    #[arg(long, value_name = "IP", env = "CSI_NODE_ADDRESS", conflicts_with = "controller")]
    pub address: Option<IpAddr>,
    /// Use NBD with the certificate of this name, instead of --address
    ///
    /// The name is as in `cairn tls create`, or sha256:FINGERPRINT.
    #[arg(long, value_name = "NAME", requires = "tls_dir", conflicts_with_all = ["controller", "address"])]
    pub certificate: Option<String>,
    /// Read ca-cert.pem, client-cert.pem and client-key.pem from here
    #[arg(long, value_name = "DIR", conflicts_with = "controller")]
    pub tls_dir: Option<PathBuf>,
    /// Keep notes and new file systems in this directory of the node
    ///
    /// A new file system takes space there until it is on its disk: for xfs the size of its log.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cairn-csi", conflicts_with = "controller")]
    pub state: PathBuf,
    /// Run mount and other programs on the host of the container
    ///
    /// The container needs the process namespace of the host, and root.
    #[arg(long, conflicts_with = "controller")]
    pub host_programs: bool,
}

/// How a node attaches disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AttachmentName {
    /// The iSCSI initiator of the node.
    Iscsi,
    /// The NBD client of the node.
    Nbd,
    /// nbdfuse and a loop device.
    Fuse,
}

/// The socket of an endpoint; none if it is no unix socket.
pub fn socket(endpoint: &str) -> Option<PathBuf> {
    let path = match endpoint.parse() {
        _ if endpoint.starts_with("unix://") => endpoint.trim_start_matches("unix://").into(),
        Ok(Address::Unix(path)) => path,
        _ if endpoint.contains("://") => return None,
        _ => PathBuf::from(endpoint),
    };
    path.is_absolute().then_some(path)
}
