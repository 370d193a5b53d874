//! The output of `cairn volume scrub`.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::summary;
use crate::exit::Failure;
use crate::output::{Output, ago, coming, duration, print_besides, size};

/// Interval at which the state of a scrub is queried.
const ASK_EVERY: std::time::Duration = std::time::Duration::from_millis(200);

/// One line: whether one runs, and how the last one ended.
pub fn line(scrub: &api::Scrub) -> String {
    if scrub.running {
        let left = scrub.seconds_left.map_or("?".to_owned(), |left| duration(left * 1000));
        return format!(
            "running: {} of {}, {}/s of at most {}/s, {left} left; {} finding(s) so far",
            size(scrub.done_bytes),
            size(scrub.total_bytes),
            size(scrub.present_rate),
            size(scrub.rate_bytes),
            scrub.findings.len(),
        );
    }
    let next = scrub.next_ms.map(|next| format!("; next {}", coming(next))).unwrap_or_default();
    match &scrub.last {
        None => format!("never{next}"),
        Some(last) => format!(
            "{} {}: read {} in {}, {} finding(s){next}",
            if last.stopped { "stopped" } else { "finished" },
            ago(last.finished_ms),
            size(last.bytes),
            duration(last.finished_ms.saturating_sub(last.started_ms)),
            last.findings_total,
        ),
    }
}

/// The remaining damage, and the repairs.
pub fn damage(scrub: &api::Scrub) -> String {
    let mended = match (scrub.repaired_blocks, scrub.repaired_ms) {
        (0, _) | (_, None) => String::new(),
        (blocks, Some(at)) => format!("; {blocks} block(s) were repaired, the last {}", ago(at)),
    };
    match scrub.damaged.len() {
        0 => format!("none{mended}"),
        blocks => format!("{blocks} block(s){mended}"),
    }
}

/// The whole state of a scrub.
pub fn show(scrub: &api::Scrub) -> String {
    let mut text = format!("scrub of {}: {}\ndamaged now: {}", scrub.volume, line(scrub), damage(scrub));
    for block in &scrub.damaged {
        text += &format!("\n  {}", block.message);
    }
    let (title, findings) = match (&scrub.last, scrub.running) {
        (_, true) => ("found so far", &scrub.findings),
        (Some(last), false) => ("found by the last pass", &last.findings),
        (None, false) => return text,
    };
    if !findings.is_empty() {
        text += &format!("\n{title}:");
        findings.iter().for_each(|finding| text += &format!("\n  {}", finding.message));
    }
    text
}

/// Follows a pass to its end.
pub fn wait(mut scrub: api::Scrub, path: &str, client: &Client, output: Output) -> Result<(), Failure> {
    let bar = output.bar(0);
    while scrub.running {
        bar.set_length(scrub.total_bytes);
        bar.set_position(scrub.done_bytes);
        bar.set_message(format!("{}: scrub", scrub.volume));
        std::thread::sleep(ASK_EVERY);
        scrub = client.get(path)?;
    }
    bar.finish_and_clear();
    match output.json {
        true => print_besides(&summary(&scrub).to_string()),
        false => output.tell_besides(&scrub, show),
    }
    if scrub.damaged.is_empty() {
        return match scrub.last.as_ref().is_some_and(|last| last.stopped) {
            true => Err(Failure::new(
                ErrorKind::Interrupted,
                format!("the scrub of {} was stopped before its end: not all was read", scrub.volume),
                format!("begin again with `cairn volume scrub {} --wait`", scrub.volume),
            )),
            false => Ok(()),
        };
    }
    Err(Failure::new(
        ErrorKind::Damaged,
        format!("volume {}: {} block(s) are damaged", scrub.volume, scrub.damaged.len()),
        "a mirror that has them gives them back; else write over them, or restore from a snapshot; see docs/tasks/disks.md",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrub_that_is_due_and_has_not_begun_is_next_now_and_not_long_ago() {
        let mut scrub = api::Scrub {
            volume: "vol0".to_owned(),
            running: false,
            rate_bytes: 100 << 20,
            every_ms: Some(604_800_000),
            // Of a volume that was never scrubbed: a period after the beginning of all time.
            next_ms: Some(604_800_000),
            started_ms: None,
            done_bytes: 0,
            total_bytes: 0,
            present_rate: 0,
            seconds_left: None,
            findings: Vec::new(),
            last: None,
            damaged: Vec::new(),
            repaired_blocks: 0,
            repaired_ms: None,
        };
        assert_eq!(line(&scrub), "never; next now");
        scrub.next_ms = Some(u64::MAX);
        assert!(line(&scrub).starts_with("never; next in "), "{}", line(&scrub));
        scrub.next_ms = None;
        assert_eq!(line(&scrub), "never");
    }
}
