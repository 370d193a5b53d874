//! Medians, ratios, and the Markdown rows that bench/results takes.

use std::fmt;

/// The target of a row.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// At least this many times the peer.
    AtLeast(f64),
    /// At most this many times the peer.
    AtMost(f64),
    /// At most this much, in the row's own unit; there is no peer.
    Limit(f64),
    /// Reported only.
    None,
}

/// One row.
struct Row {
    work: String,
    unit: &'static str,
    cairn: Option<f64>,
    peer: Option<(&'static str, f64)>,
    target: Target,
}

/// The rows of one table.
pub(crate) struct Report {
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self { rows: Vec::new(), notes: Vec::new() }
    }

    /// A figure of Cairn next to a peer's; either may be missing.
    pub(crate) fn against(
        &mut self,
        work: impl Into<String>,
        unit: &'static str,
        cairn: Option<f64>,
        peer: (&'static str, f64),
        target: Target,
    ) {
        self.rows.push(Row { work: work.into(), unit, cairn, peer: Some(peer), target });
    }

    /// A figure of Cairn without a peer.
    pub(crate) fn alone(&mut self, work: impl Into<String>, unit: &'static str, cairn: f64, target: Target) {
        self.rows.push(Row { work: work.into(), unit, cairn: Some(cairn), peer: None, target });
    }

    /// A sentence under the table.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| work | unit | Cairn | peer | figure of the peer | ratio | asked | reached |")?;
        writeln!(f, "|---|---|---|---|---|---|---|---|")?;
        for row in &self.rows {
            let ratio = row.cairn.zip(row.peer).map(|(cairn, (_, peer))| cairn / peer);
            let (asked, reached) = match row.target {
                Target::AtLeast(least) => {
                    (format!("{} x or more", round(least)), ratio.map(|ratio| ratio >= least))
                }
                Target::AtMost(most) => {
                    (format!("{} x or less", round(most)), ratio.map(|ratio| ratio <= most))
                }
                Target::Limit(most) => (format!("{most} or less"), row.cairn.map(|cairn| cairn <= most)),
                Target::None => (String::new(), None),
            };
            let (peer, peer_figure) = row.peer.map_or(("", None), |(name, figure)| (name, Some(figure)));
            let reached = reached.map_or("", |reached| if reached { "yes" } else { "**no**" });
            writeln!(
                f,
                "| {} | {} | {} | {peer} | {} | {} | {asked} | {reached} |",
                row.work,
                row.unit,
                figure(row.cairn),
                figure(peer_figure),
                ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            )?;
        }
        for note in &self.notes {
            write!(f, "\n{note}\n")?;
        }
        Ok(())
    }
}

/// No target needs more than hundredths.
fn round(asked: f64) -> f64 {
    (asked * 100.0).round() / 100.0
}

/// Three digits that count.
fn figure(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// The value that `part` of `sorted` values do not exceed; 0 for none.
pub(crate) fn percentile(sorted: &[f64], part: f64) -> f64 {
    let at = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// The middle of `values`; of an even number the lower middle, so that it was really seen. 0 for
/// none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}
