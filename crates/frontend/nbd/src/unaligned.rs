//! Requests that do not match the device's alignment: read, modify, write.
//!
//! The device only takes whole blocks of its alignment, so a write of a part reads the rest first. Nothing else may
//! write to that block in between; the caller holds the export's lock for that.

use cairn_device::{Action, Device, DeviceError, Operation, Request, Segments, Ticket, admit};

/// True when `offset` and `length` are multiples of `alignment`.
pub(crate) fn is_aligned(alignment: u64, offset: u64, length: u64) -> bool {
    offset.is_multiple_of(alignment) && length.is_multiple_of(alignment)
}

/// The smallest aligned stretch around the bytes: offset and length.
pub(crate) fn outward(alignment: u64, offset: u64, length: u64) -> (u64, u64) {
    let start = offset - offset % alignment;
    let end = (offset + length).next_multiple_of(alignment);
    (start, end - start)
}

/// The largest aligned stretch within the bytes: offset and length, which may be 0.
pub(crate) fn inward(alignment: u64, offset: u64, length: u64) -> (u64, u64) {
    let start = offset.next_multiple_of(alignment);
    let end = (offset + length) / alignment * alignment;
    (start, end.saturating_sub(start))
}

/// Performs a write or a write-zeroes that is not aligned.
pub(crate) fn run(
    device: &dyn Device,
    alignment: u64,
    request: &Request,
    ticket: &Ticket,
) -> Result<(), DeviceError> {
    match request {
        Request::Write { offset, data, fua } => {
            write(device, alignment, *offset, &data.to_vec(), *fua, ticket)
        }
        &Request::WriteZeroes { offset, length, may_trim, fua } => {
            let (middle, middle_length) = inward(alignment, offset, length);
            if middle_length == 0 {
                // Less than two blocks: what is not aligned is short.
                return write(device, alignment, offset, &vec![0; length as usize], fua, ticket);
            }
            let head = (middle - offset) as usize;
            let tail = (offset + length - middle - middle_length) as usize;
            write(device, alignment, offset, &vec![0; head], fua, ticket)?;
            write(device, alignment, middle + middle_length, &vec![0; tail], fua, ticket)?;
            let middle = Request::WriteZeroes { offset: middle, length: middle_length, may_trim, fua };
            one(device, middle, ticket)
        }
        _ => Err(DeviceError::Unaligned {
            action: Action::Write,
            offset: 0,
            length: 0,
            alignment: alignment as u32,
        }),
    }
}

fn write(
    device: &dyn Device,
    alignment: u64,
    offset: u64,
    bytes: &[u8],
    fua: bool,
    ticket: &Ticket,
) -> Result<(), DeviceError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let (start, length) = outward(alignment, offset, bytes.len() as u64);
    let mut whole = vec![0; length as usize];
    let edge = alignment as usize;
    let last = whole.len() - edge;
    device.read_into(start, &mut whole[..edge])?;
    if last > 0 {
        device.read_into(start + last as u64, &mut whole[last..])?;
    }
    let at = (offset - start) as usize;
    whole[at..at + bytes.len()].copy_from_slice(bytes);
    one(device, Request::Write { offset: start, data: Segments::copy_of(&whole), fua }, ticket)
}

fn one(device: &dyn Device, request: Request, ticket: &Ticket) -> Result<(), DeviceError> {
    let mut batch = [Operation::new(request).of(ticket.clone())];
    admit(&mut batch);
    device.run(&mut batch);
    let [operation] = batch;
    operation.into_outcome()
}
