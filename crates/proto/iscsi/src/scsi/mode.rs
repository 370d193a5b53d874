//! Mode pages: the readable and changeable behaviour of a unit (SPC-4, section 7.5; SBC-3, section
//! 6.5).

use super::{Description, Fields, Geometry, Sense};

/// The changeable values. All nexuses share them; they are not saved over a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modes {
    /// Writes may be answered before they are durable (WCE).
    pub(crate) write_cache: bool,
    /// Sense data comes in descriptor format (D_SENSE).
    pub(crate) descriptors: bool,
    /// Writes are refused (SWP).
    pub(crate) write_protect: bool,
}

const ERROR_RECOVERY: u8 = 0x01;
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const EXCEPTIONS: u8 = 0x1c;
const PAGES: [u8; 4] = [ERROR_RECOVERY, CACHING, CONTROL, EXCEPTIONS];
const ALL_PAGES: u8 = 0x3f;

/// The kind of values that MODE SENSE requests.
const CHANGEABLE: u8 = 1;
const DEFAULT: u8 = 2;
const SAVED: u8 = 3;

const WCE: u8 = 0x04;
const D_SENSE: u8 = 0x04;
const SWP: u8 = 0x08;

fn when(condition: bool, bits: u8) -> u8 {
    if condition { bits } else { 0 }
}

impl Modes {
    /// The values of a unit before any change.
    pub(crate) fn of(description: &Description) -> Self {
        Self { write_cache: description.write_cache, descriptors: false, write_protect: false }
    }

    fn page(self, page: u8) -> Vec<u8> {
        let mut bytes = vec![page, if page == CACHING { 18 } else { 10 }];
        bytes.resize(2 + usize::from(bytes[1]), 0);
        match page {
            // Bad blocks are reallocated by themselves: a write never goes to the same place.
            ERROR_RECOVERY => bytes[2] = 0x80,
            CACHING => bytes[2] = when(self.write_cache, WCE),
            CONTROL => {
                bytes[2] = when(self.descriptors, D_SENSE);
                // Commands may be reordered without limits.
                bytes[3] = 0x10;
                bytes[4] = when(self.write_protect, SWP);
                bytes[8..10].copy_from_slice(&[0xff, 0xff]);
            }
            _ => {}
        }
        bytes
    }

    fn changeable(self, page: u8) -> Vec<u8> {
        let mut bytes = self.page(page);
        bytes[2..].fill(0);
        match page {
            CACHING => bytes[2] = WCE,
            CONTROL => {
                bytes[2] = D_SENSE;
                bytes[4] = SWP;
            }
            _ => {}
        }
        bytes
    }

    /// The answer to MODE SENSE of a unit with these modes, and `default` as the values before any
    /// change.
    pub(crate) fn sense(
        self,
        default: Self,
        geometry: Geometry,
        request: (u8, u8, u8),
        blocks: bool,
        long_lba: bool,
        long: bool,
    ) -> Result<Vec<u8>, Sense> {
        let (control, page, subpage) = request;
        if control == SAVED {
            // SAVING PARAMETERS NOT SUPPORTED
            return Err(Sense { key: 5, code: 0x39, qualifier: 0, information: None, field: None });
        }
        if subpage != 0 && subpage != 0xff {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        let wanted: Vec<u8> = PAGES.into_iter().filter(|known| page == ALL_PAGES || page == *known).collect();
        if wanted.is_empty() {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        let descriptor = if blocks { block_descriptor(geometry, long_lba) } else { Vec::new() };
        let pages: Vec<u8> = wanted
            .into_iter()
            .flat_map(|page| match control {
                CHANGEABLE => self.changeable(page),
                DEFAULT => default.page(page),
                _ => self.page(page),
            })
            .collect();
        let protected = geometry.read_only || self.write_protect;
        // DPO and FUA are understood.
        let specific = when(protected, 0x80) | 0x10;
        let header = if long { 8 } else { 4 };
        let length = header + descriptor.len() + pages.len();
        let mut bytes = Vec::with_capacity(length);
        if long {
            bytes.extend_from_slice(&((length - 2) as u16).to_be_bytes());
            bytes.extend_from_slice(&[0, specific, u8::from(long_lba && blocks), 0]);
            bytes.extend_from_slice(&(descriptor.len() as u16).to_be_bytes());
        } else {
            bytes.extend_from_slice(&[(length - 1) as u8, 0, specific, descriptor.len() as u8]);
        }
        bytes.extend_from_slice(&descriptor);
        bytes.extend_from_slice(&pages);
        Ok(bytes)
    }

    /// The modes after the parameter list of a MODE SELECT: all of it applies or, with an error,
    /// none.
    pub(crate) fn select(self, list: &[u8], geometry: Geometry, long: bool) -> Result<Self, Sense> {
        let fields = Fields(list);
        let (header, descriptor) =
            if long { (8, usize::from(fields.u16(6))) } else { (4, usize::from(fields.u8(3))) };
        if list.len() < header || list.len() - header < descriptor {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let long_lba = long && fields.bit(4, 0);
        let allowed = [block_descriptor(geometry, long_lba).len(), 0];
        if !allowed.contains(&descriptor) {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS);
        }
        if descriptor > 0 {
            let at = header + if long_lba { 12 } else { 4 };
            let block_bytes = fields.u32(at) & if long_lba { u32::MAX } else { 0xff_ffff };
            if block_bytes != geometry.block_bytes {
                return Err(Sense::INVALID_FIELD_IN_PARAMETERS);
            }
        }
        let mut modes = self;
        let mut pages = &list[header + descriptor..];
        while let [code, length, ..] = *pages {
            let whole = usize::from(length) + 2;
            if pages.len() < whole {
                return Err(Sense::PARAMETER_LIST_LENGTH);
            }
            modes = modes.take(code & 0x3f, &pages[..whole], code & 0x40 != 0)?;
            pages = &pages[whole..];
        }
        if pages.is_empty() { Ok(modes) } else { Err(Sense::PARAMETER_LIST_LENGTH) }
    }

    fn take(mut self, page: u8, bytes: &[u8], subpage: bool) -> Result<Self, Sense> {
        if subpage || !PAGES.contains(&page) {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS);
        }
        let now = self.page(page);
        let mask = self.changeable(page);
        let same = bytes.len() == now.len()
            && bytes
                .iter()
                .zip(&now)
                .zip(&mask)
                .skip(1)
                .enumerate()
                .all(|(index, ((new, old), mask))| index == 0 || (new ^ old) & !mask == 0);
        if !same {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS);
        }
        match page {
            CACHING => self.write_cache = bytes[2] & WCE != 0,
            CONTROL => {
                self.descriptors = bytes[2] & D_SENSE != 0;
                self.write_protect = bytes[4] & SWP != 0;
            }
            _ => {}
        }
        Ok(self)
    }
}

fn block_descriptor(geometry: Geometry, long_lba: bool) -> Vec<u8> {
    if long_lba {
        let mut bytes = geometry.blocks.to_be_bytes().to_vec();
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&geometry.block_bytes.to_be_bytes());
        return bytes;
    }
    let blocks = u32::try_from(geometry.blocks).unwrap_or(u32::MAX);
    let mut bytes = blocks.to_be_bytes().to_vec();
    bytes.extend_from_slice(&geometry.block_bytes.to_be_bytes());
    bytes
}
