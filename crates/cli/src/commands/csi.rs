//! `cairn csi`: options to the settings of the driver.

use cairn_api::ErrorKind;
use cairn_api::client::Place;
use cairn_csi::names::{Identity, NodeId, Prefix};
use cairn_csi::{
    Attachment, Connection, Controller, ControllerOptions, Node, NodeOptions, Options, Programs, ServeError,
    serve,
};

use crate::arguments::{AttachmentName, Csi, Global, socket};
use crate::exit::Failure;

/// The file with the name of the initiator of a machine.
const INITIATOR_FILE: &str = "etc/iscsi/initiatorname.iscsi";

fn usage(message: impl std::fmt::Display, next: &str) -> Failure {
    Failure::new(ErrorKind::Usage, message, next)
}

/// Runs the driver until a signal ends it.
pub fn run(asked: Csi, place: Place, global: &Global) -> Result<(), Failure> {
    let socket = socket(&asked.endpoint).ok_or_else(|| {
        usage(format!("{} is no unix socket", asked.endpoint), "give --endpoint unix:///csi/csi.sock")
    })?;
    if !is_driver(&asked.driver) {
        return Err(usage(
            format!("{} is no name of a driver", asked.driver),
            "give at most 63 letters, digits, dots and dashes, with a letter at both ends",
        ));
    }
    let prefix = Prefix::new(&asked.prefix).ok_or_else(|| {
        usage(
            format!("{} is no prefix", asked.prefix),
            "give at most 12 letters, digits and dashes: first a letter other than x, last a dash",
        )
    })?;
    let controller = (!asked.node).then(|| {
        let connection =
            Connection { place, token_file: global.token_file.clone(), tls_root: global.tls_root.clone() };
        let options = ControllerOptions { prefix, nbd: asked.nbd.clone(), iscsi: asked.iscsi.clone() };
        Controller::new(Box::new(connection), options)
    });
    let node = if asked.controller { None } else { Some(node(&asked)?) };
    serve(Options { socket, name: asked.driver, controller, node }).map_err(|error| {
        let next = match &error {
            ServeError::Listen { .. } => "make the directory of the socket, or end the driver that has it",
            _ => "see the log",
        };
        Failure::new(ErrorKind::Failed, error, next)
    })
}

fn is_driver(name: &str) -> bool {
    let is_letter = |at: Option<char>| at.is_some_and(|letter| letter.is_ascii_alphabetic());
    name.len() <= 63
        && is_letter(name.chars().next())
        && is_letter(name.chars().last())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
}

fn node(asked: &Csi) -> Result<Node, Failure> {
    let name = asked
        .node_id
        .clone()
        .ok_or_else(|| usage("a node needs its name", "give --node-id, in Kubernetes from spec.nodeName"))?;
    let (attachment, identity) = match asked.attach {
        AttachmentName::Iscsi => (Attachment::Iscsi, Identity::Initiator(initiator(asked)?)),
        method => {
            let attachment = if method == AttachmentName::Nbd { Attachment::Nbd } else { Attachment::Fuse };
            let identity = match (&asked.certificate, asked.address) {
                (Some(certificate), _) => Identity::Certificate(certificate.clone()),
                (None, Some(address)) => Identity::Address(address),
                (None, None) => Identity::Unix,
            };
            (attachment, identity)
        }
    };
    let id = NodeId { name, identity };
    if NodeId::parse(&id.to_string()).as_ref() != Some(&id) {
        return Err(usage(
            format!("{id} is no id of a node"),
            "give a name without spaces, `~` and `|`; 192 characters at most in all",
        ));
    }
    let programs = Programs { on_host: asked.host_programs, ..Programs::default() };
    let (state, tls) = (asked.state.clone(), asked.tls_dir.clone());
    Ok(Node::new(NodeOptions { id, attachment, state, tls, programs }))
}

/// The name of the initiator of this machine.
fn initiator(asked: &Csi) -> Result<String, Failure> {
    if let Some(name) = &asked.initiator {
        return Ok(name.clone());
    }
    let root = if asked.host_programs { cairn_csi::host::process().join("root") } else { "/".into() };
    let path = root.join(INITIATOR_FILE);
    let next = "install open-iscsi on the node, or give --initiator";
    let text = std::fs::read_to_string(&path)
        .map_err(|error| usage(format!("cannot read {}: {error}", path.display()), next))?;
    let name = text.lines().find_map(|line| line.trim().strip_prefix("InitiatorName="));
    name.map(|name| name.trim().to_owned())
        .ok_or_else(|| usage(format!("{} names no initiator", path.display()), next))
}
