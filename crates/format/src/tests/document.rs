//! docs/format.md as data: the places of fields according to its tables, and the reserved bytes.
//! `tidy` checks that its tables are right.

use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/format.md");

/// Offset, bytes and name of each field of the struct that the document calls `name`.
fn fields(name: &str) -> Vec<(usize, usize, String)> {
    let heading = format!("`{name}`");
    let section = DOCUMENT.lines().skip_while(|line| !(line.starts_with('#') && line.contains(&heading)));
    let rows = section.skip(1).take_while(|line| !line.starts_with('#'));
    let parsed = rows.filter_map(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let (offset, bytes) = (cells.next()?.parse().ok()?, cells.next()?.parse().ok()?);
        Some((offset, bytes, cells.next()?.trim_matches('`').to_owned()))
    });
    let fields: Vec<_> = parsed.collect();
    assert!(!fields.is_empty(), "docs/format.md has no table for {name}");
    fields
}

/// Offset and bytes of a field.
pub(super) fn field(name: &str, field: &str) -> (usize, usize) {
    let found = fields(name).into_iter().find(|(_, _, other)| other == field);
    let (offset, bytes, _) = found.unwrap_or_else(|| panic!("docs/format.md has no `{field}` of `{name}`"));
    (offset, bytes)
}

/// Bytes of the whole struct.
pub(super) fn size(name: &str) -> usize {
    fields(name).iter().map(|(_, bytes, _)| bytes).sum()
}

#[test]
fn every_reserved_byte_is_checked() {
    let mut checked = 0;
    for sample in samples() {
        for (part, start) in &sample.parts {
            let reserved = fields(part).into_iter().filter(|(_, _, field)| field.starts_with("reserved"));
            for at in reserved.flat_map(|(offset, bytes, _)| start + offset..start + offset + bytes) {
                let mut bytes = sample.bytes.clone();
                assert_eq!(bytes[at], 0, "{}: reserved byte {at} is written as zero", sample.name);
                bytes[at] = 0x80;
                if let Some(seal) = sample.seal {
                    seal(&mut bytes);
                }
                let refused = (sample.reread)(&bytes);
                assert!(
                    matches!(refused, Err(FormatError::Field { .. })),
                    "{}: byte {at}: {refused:?}",
                    sample.name
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 2000, "the document names reserved bytes: {checked}");
}

#[test]
fn version_unknown_to_this_program_is_refused_and_named() {
    let mut seen = 0;
    for sample in samples() {
        let head = sample.parts[0].0;
        if !fields(head).iter().any(|(_, _, field)| field == "version") {
            continue;
        }
        let at = field(head, "version").0;
        let unknown = (layout::VERSION + 1) as u8;
        let mut bytes = sample.bytes.clone();
        assert_eq!(u32::from(bytes[at]), layout::VERSION, "{}", sample.name);
        bytes[at] = unknown;
        // Without a correct checksum too: a later version may use another one.
        let error = (sample.reread)(&bytes).expect_err(sample.name);
        assert!(
            matches!(error, FormatError::Version { found, supported, .. }
                if found == u32::from(unknown) && supported == layout::VERSION),
            "{}: {error:?}",
            sample.name
        );
        let text = error.to_string();
        assert!(text.contains(&format!("version {unknown}")) && text.contains("use a newer cairn"), "{text}");
        bytes[at] = 0;
        if let Some(seal) = sample.seal {
            seal(&mut bytes);
        }
        let error = (sample.reread)(&bytes).expect_err(sample.name);
        assert!(matches!(error, FormatError::Field { field: "version", .. }), "{}: {error:?}", sample.name);
        seen += 1;
    }
    assert_eq!(
        seen, 18,
        "superblocks, log device, node, leaves, attributes, quotas, label blocks, log record and the history's have a version"
    );
}

const _: () =
    assert!(layout::SUPERBLOCK_A < layout::SUPERBLOCK_B && layout::SUPERBLOCK_B < layout::LABEL_START);

#[test]
fn parts_of_a_device_do_not_overlap() {
    for shift in 10..=40 {
        for blocks in [1 << shift, (1 << shift) + 1, (1 << shift) * 3 / 2] {
            let blocks: u64 = blocks;
            let log_start = layout::LABEL_START + layout::label_blocks(blocks);
            let space_start = layout::space_start(blocks);
            assert!(log_start + layout::log_blocks(blocks) <= space_start, "{blocks}");
            assert_eq!(space_start % layout::SPACE_ALIGNMENT, 0, "{blocks}");
        }
    }
    assert_eq!(layout::space_start(layout::SPACE_BLOCKS_MIN), 768);
    assert_eq!(layout::space_start(layout::SPACE_BLOCKS_MAX), 24_832);
}
