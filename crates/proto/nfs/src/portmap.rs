//! The port mapper, as its clients use it: version 2, and version 4 for addresses that version 2
//! has no numbers for (RFC 1833).

use crate::xdr::{Malformed, Reader, Xdr, write_opaque, xdr_struct};

/// The program number of the port mapper.
pub const PORTMAP_PROGRAM: u32 = 100_000;
/// The version with numbers of ports.
pub const PORTMAP_VERSION: u32 = 2;
/// The version with addresses as text.
pub const RPCBIND_VERSION: u32 = 4;
/// The port of the port mapper.
pub const PORTMAP_PORT: u16 = 111;
/// The longest text of an address or an owner.
const TEXT_BYTES_MAX: usize = 1024;

/// TCP, as version 2 numbers it.
pub const TCP: u32 = 6;
/// UDP.
pub const UDP: u32 = 17;

xdr_struct! {
    /// An entry of version 2.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Mapping {
        /// The program.
        program: u32,
        /// Its version.
        version: u32,
        /// [`TCP`] or [`UDP`].
        protocol: u32,
        /// The port; of no concern in questions.
        port: u32,
    }
}

/// An entry of version 4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding<'a> {
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The kind of address: `tcp`, `udp`, `tcp6` or `udp6`.
    pub network: &'a str,
    /// The address with the port as its last two numbers: `0.0.0.0.8.1`.
    pub address: &'a str,
    /// The owner.
    pub owner: &'a str,
}

/// A call of a port mapper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortmapCall<'a> {
    /// Adds an entry.
    Set(Mapping),
    /// Removes the entries of a program and version.
    Unset(Mapping),
    /// The port of a program.
    GetPort(Mapping),
    /// Adds an entry of version 4.
    SetBinding(Binding<'a>),
    /// Removes one.
    UnsetBinding(Binding<'a>),
    /// The address of a program.
    GetAddress(Binding<'a>),
}

impl PortmapCall<'_> {
    /// The version of the port mapper.
    pub fn version(&self) -> u32 {
        match self {
            PortmapCall::Set(_) | PortmapCall::Unset(_) | PortmapCall::GetPort(_) => PORTMAP_VERSION,
            PortmapCall::SetBinding(_) | PortmapCall::UnsetBinding(_) | PortmapCall::GetAddress(_) => {
                RPCBIND_VERSION
            }
        }
    }

    /// The number of its procedure.
    pub fn procedure(&self) -> u32 {
        match self {
            PortmapCall::Set(_) | PortmapCall::SetBinding(_) => 1,
            PortmapCall::Unset(_) | PortmapCall::UnsetBinding(_) => 2,
            PortmapCall::GetPort(_) | PortmapCall::GetAddress(_) => 3,
        }
    }

    /// Writes its arguments.
    pub fn write(&self, into: &mut Vec<u8>) {
        match self {
            PortmapCall::Set(mapping) | PortmapCall::Unset(mapping) | PortmapCall::GetPort(mapping) => {
                mapping.write(into);
            }
            PortmapCall::SetBinding(binding)
            | PortmapCall::UnsetBinding(binding)
            | PortmapCall::GetAddress(binding) => {
                binding.program.write(into);
                binding.version.write(into);
                for text in [binding.network, binding.address, binding.owner] {
                    write_opaque(text.as_bytes(), into);
                }
            }
        }
    }
}

/// A call as a port mapper reads it, for tests.
///
/// # Errors
/// [`Malformed`].
pub fn parse_call(version: u32, procedure: u32, arguments: &[u8]) -> Result<PortmapCall<'_>, Malformed> {
    let from = &mut Reader::new(arguments);
    let call = match (version, procedure) {
        (PORTMAP_VERSION, 1) => PortmapCall::Set(Xdr::read(from)?),
        (PORTMAP_VERSION, 2) => PortmapCall::Unset(Xdr::read(from)?),
        (PORTMAP_VERSION, 3) => PortmapCall::GetPort(Xdr::read(from)?),
        (RPCBIND_VERSION, 1..=3) => {
            let (program, version) = (u32::read(from)?, u32::read(from)?);
            let mut text = || {
                std::str::from_utf8(from.opaque(TEXT_BYTES_MAX)?).map_err(|_| Malformed("a text is no text"))
            };
            let binding = Binding { program, version, network: text()?, address: text()?, owner: text()? };
            match procedure {
                1 => PortmapCall::SetBinding(binding),
                2 => PortmapCall::UnsetBinding(binding),
                _ => PortmapCall::GetAddress(binding),
            }
        }
        _ => return Err(Malformed("there is no such procedure")),
    };
    from.end()?;
    Ok(call)
}

/// Reads the results of any of the calls: 0 is no port, or false.
///
/// # Errors
/// [`Malformed`].
pub fn parse_number(results: &[u8]) -> Result<u32, Malformed> {
    let from = &mut Reader::new(results);
    let number = u32::read(from)?;
    from.end()?;
    Ok(number)
}

/// Reads an address, whose last two numbers are the port; an empty one is port 0.
///
/// # Errors
/// [`Malformed`].
pub fn parse_address(results: &[u8]) -> Result<u32, Malformed> {
    let from = &mut Reader::new(results);
    let text = from.opaque(TEXT_BYTES_MAX)?;
    from.end()?;
    if text.is_empty() {
        return Ok(0);
    }
    let text = std::str::from_utf8(text).map_err(|_| Malformed("an address is no text"))?;
    let mut numbers = text.rsplit('.').map(|number| number.parse::<u8>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(low)), Some(Ok(high))) => Ok(u32::from(high) << 8 | u32::from(low)),
        _ => Err(Malformed("an address has no port")),
    }
}

/// Writes an address as [`parse_address`] reads it, for tests.
pub fn write_address(text: &str, into: &mut Vec<u8>) {
    write_opaque(text.as_bytes(), into);
}
