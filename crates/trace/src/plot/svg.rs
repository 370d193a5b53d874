//! A chart of lines as SVG: two axes, ticks, marks, a legend. No plotting library is needed for
//! that.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
const COLOURS: [&str; 6] = ["#1b6ca8", "#c0392b", "#27803b", "#8e44ad", "#b9770e", "#444444"];

/// An axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scale {
    /// From 0 to the maximum of the data.
    Linear,
    /// From 0 to this, or to the maximum of the data.
    LinearTo(f64),
    /// Decades.
    Log,
}

/// A line of a chart.
pub(super) struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    dashed: bool,
    marks: bool,
}

impl Line {
    pub(super) fn new(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, dashed: false, marks: true }
    }

    /// Drawn dashed.
    pub(super) fn dashed(self) -> Self {
        Self { dashed: true, ..self }
    }

    /// Without marks at its points.
    pub(super) fn plain(self) -> Self {
        Self { marks: false, ..self }
    }
}

/// A chart.
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x: (String, Scale),
    pub(super) y: (String, Scale),
    pub(super) lines: Vec<Line>,
}

/// An axis with its layout: its ends, and its ticks with their labels.
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        if scale == Scale::Log {
            let least = values.iter().copied().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
            let (least, most) = if least.is_finite() { (least, most) } else { (1.0, 10.0) };
            let from = least.log10().floor();
            let to = most.log10().ceil().max(from + 1.0);
            let ticks = (from as i32..=to as i32).map(|power| 10f64.powi(power)).collect();
            return Self { scale, from, to, ticks };
        }
        let wanted = if let Scale::LinearTo(limit) = scale { limit.max(most) } else { most };
        let wanted = if wanted > 0.0 { wanted } else { 1.0 };
        // The step is the round number that gives four to eight ticks.
        let rough = wanted / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let count = (wanted / step - 1e-9).ceil();
        Self {
            scale,
            from: 0.0,
            to: step * count,
            ticks: (0..=count as u32).map(|n| f64::from(n) * step).collect(),
        }
    }

    /// Where a value is, from 0 to 1; `None` when the axis has no place for it.
    fn place(&self, value: f64) -> Option<f64> {
        let value = match self.scale {
            Scale::Log if value > 0.0 => value.log10(),
            Scale::Log => return None,
            _ => value,
        };
        value.is_finite().then(|| (value - self.from) / (self.to - self.from))
    }
}

impl Chart {
    /// The SVG.
    pub(super) fn draw(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x = Axis::new(self.x.1, points().map(|point| point.0));
        let y = Axis::new(self.y.1, points().map(|point| point.1));
        let at_x = |place: f64| LEFT + place * (WIDTH - LEFT - RIGHT);
        let at_y = |place: f64| HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
             <text x=\"{:.1}\" y=\"22\" text-anchor=\"middle\" font-size=\"14\">{}</text>\n",
            WIDTH / 2.0,
            escape(&self.title),
        );
        let mut add = |text: std::fmt::Arguments<'_>| {
            let _ = svg.write_fmt(text);
            svg.push('\n');
        };
        for tick in &x.ticks {
            let Some(place) = x.place(*tick) else { continue };
            let (at, low) = (at_x(place), at_y(0.0));
            add(format_args!(
                "<line x1=\"{at:.1}\" y1=\"{low:.1}\" x2=\"{at:.1}\" y2=\"{TOP}\" stroke=\"#e4e4e4\"/>"
            ));
            let text = low + 18.0;
            add(format_args!(
                "<text x=\"{at:.1}\" y=\"{text:.1}\" text-anchor=\"middle\">{}</text>",
                number(*tick)
            ));
        }
        for tick in &y.ticks {
            let Some(place) = y.place(*tick) else { continue };
            let (at, right) = (at_y(place), at_x(1.0));
            add(format_args!(
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right:.1}\" y2=\"{at:.1}\" stroke=\"#e4e4e4\"/>"
            ));
            let (left, text) = (LEFT - 8.0, at + 4.0);
            add(format_args!(
                "<text x=\"{left}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>",
                number(*tick)
            ));
        }
        let (low, right) = (at_y(0.0), at_x(1.0));
        add(format_args!("<path d=\"M{LEFT} {TOP} V{low:.1} H{right:.1}\" fill=\"none\" stroke=\"black\"/>"));
        let (middle, below) = (at_x(0.5), HEIGHT - 18.0);
        add(format_args!(
            "<text x=\"{middle:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>",
            escape(&self.x.0)
        ));
        let centre = at_y(0.5);
        add(format_args!(
            "<text x=\"18\" y=\"{centre:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 18 {centre:.1})\">{}</text>",
            escape(&self.y.0)
        ));
        for (line, colour) in self.lines.iter().zip(COLOURS.into_iter().cycle()) {
            let places =
                line.points.iter().filter_map(|(a, b)| Some((at_x(x.place(*a)?), at_y(y.place(*b)?))));
            let places: Vec<(f64, f64)> = places.collect();
            let path: Vec<String> = places.iter().map(|(a, b)| format!("{a:.1},{b:.1}")).collect();
            let dash = if line.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
            add(format_args!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{dash}/>",
                path.join(" ")
            ));
            for (a, b) in places.iter().filter(|_| line.marks) {
                add(format_args!("<circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"3\" fill=\"{colour}\"/>"));
            }
        }
        for (row, (line, colour)) in self.lines.iter().zip(COLOURS.into_iter().cycle()).enumerate() {
            let (at, from) = (TOP + 12.0 + 16.0 * row as f64, WIDTH - RIGHT - 30.0);
            let dash = if line.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
            let (to, text, base) = (from + 26.0, from - 6.0, at + 4.0);
            add(format_args!(
                "<line x1=\"{from}\" y1=\"{at}\" x2=\"{to}\" y2=\"{at}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\
                 <text x=\"{text}\" y=\"{base}\" text-anchor=\"end\">{}</text>",
                escape(&line.name)
            ));
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn number(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e6).contains(&value.abs()) {
        return format!("{value:.0e}");
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
