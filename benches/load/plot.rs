//! SVG plots: bars with intervals, and curves on logarithmic axes. No scripts, fonts or external
//! files.

use crate::stats::Spread;
use std::fmt::Write;

/// Colors of targets.
const COLORS: [&str; 6] = ["#2563a8", "#c2571a", "#2e7d4f", "#8a3f8f", "#7a6a1e", "#555555"];

/// Color of the n-th target or line.
pub(crate) fn color(index: usize) -> &'static str {
    COLORS[index % COLORS.len()]
}

/// Escapes text for markup.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Formats with three significant digits.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.1 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// A bar per value, with its interval as a whisker. `rows` are color, label and value.
pub(crate) fn bars(rows: &[(usize, String, Spread)]) -> String {
    const WIDTH: f64 = 640.0;
    const LEFT: f64 = 130.0;
    const ROW: f64 = 22.0;
    let most = rows
        .iter()
        .map(|(.., value)| value.high.max(value.median))
        .fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LEFT - 90.0) / most;
    let mut svg = svg(WIDTH, ROW * rows.len() as f64 + 4.0);
    for (row, (index, label, value)) in rows.iter().enumerate() {
        let (y, middle) = (row as f64 * ROW + 3.0, row as f64 * ROW + 11.0);
        let end = LEFT + value.median * scale;
        let (low, high) = (LEFT + value.low * scale, LEFT + value.high * scale);
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT - 6.0,
            middle + 4.0,
            escape(label)
        );
        let _ = write!(
            svg,
            r#"<rect x="{LEFT}" y="{y}" width="{:.1}" height="16" fill="{}"/>"#,
            (end - LEFT).max(1.0),
            color(*index)
        );
        let _ = write!(
            svg,
            r##"<path d="M{low:.1} {middle}H{high:.1}M{low:.1} {y}v16M{high:.1} {y}v16" stroke="#111" fill="none"/>"##
        );
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}">{}</text>"#,
            end.max(high) + 6.0,
            middle + 4.0,
            short(value.median)
        );
    }
    svg + "</svg>"
}

/// A line of a plot.
pub(crate) struct PlotLine {
    /// Legend label.
    pub(crate) label: String,
    /// Sizes and values.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A logarithmic axis.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Covers whole decades.
    fn of(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min).max(1e-6).log10().floor();
        let high = values.fold(f64::MIN_POSITIVE, f64::max).log10().ceil();
        Self { low, high: high.max(low + 1.0), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(1e-9).log10() - self.low) / (self.high - self.low);
        self.from + share * (self.to - self.from)
    }

    fn decades(&self) -> impl Iterator<Item = f64> + use<> {
        let (low, high) = (self.low, self.high);
        (0..=20)
            .map(move |step| low + f64::from(step))
            .take_while(move |decade| *decade <= high)
            .map(|decade| 10f64.powf(decade))
    }
}

/// Log-log plot over sizes: constant costs are flat, linear ones are parallel to the diagonal.
pub(crate) fn curves(lines: &[PlotLine], title: &str) -> String {
    const WIDTH: f64 = 420.0;
    const LEFT: f64 = 60.0;
    const BOTTOM: f64 = 200.0;
    let points = || {
        lines
            .iter()
            .flat_map(|line| &line.points)
            .filter(|(_, value)| value.is_finite() && *value > 0.0)
    };
    let across = Axis::of(points().map(|(size, _)| *size), LEFT, WIDTH - 15.0);
    let up = Axis::of(points().map(|(_, value)| *value), BOTTOM, 30.0);
    let mut svg = svg(WIDTH, BOTTOM + 40.0);
    let _ = write!(svg, r#"<text x="{LEFT}" y="16" font-weight="bold">{}</text>"#, escape(title));
    for value in up.decades() {
        let y = up.at(value);
        let _ = write!(svg, r##"<path d="M{LEFT} {y:.1}H{:.1}" stroke="#ddd"/>"##, WIDTH - 15.0);
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT - 6.0,
            y + 4.0,
            short(value)
        );
    }
    for size in across.decades() {
        let x = across.at(size);
        let _ = write!(
            svg,
            r##"<path d="M{x:.1} 30V{BOTTOM}" stroke="#eee"/><text x="{x:.1}" y="{:.1}" text-anchor="middle">{size:.0}</text>"##,
            BOTTOM + 16.0
        );
    }
    for (index, line) in lines.iter().enumerate() {
        let places: Vec<(f64, f64)> = line
            .points
            .iter()
            .filter(|(_, value)| value.is_finite() && *value > 0.0)
            .map(|(size, value)| (across.at(*size), up.at(*value)))
            .collect();
        let text: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(
            svg,
            r#"<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>"#,
            text.join(" "),
            color(index)
        );
        for (x, y) in places {
            let _ =
                write!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{}"/>"#, color(index));
        }
        if lines.len() > 1 {
            let _ = write!(
                svg,
                r#"<text x="{:.1}" y="{:.1}" fill="{}">{}</text>"#,
                LEFT + 8.0,
                44.0 + 14.0 * index as f64,
                color(index),
                escape(&line.label)
            );
        }
    }
    svg + "</svg>"
}

fn svg(width: f64, height: f64) -> String {
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="12">"#
    )
}
