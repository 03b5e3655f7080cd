//! SVG plots: latency by percentile, throughput by connections.
//!
//! Pure drawing; runs at the end of a bench.

use std::path::Path;

use hdrhistogram::Histogram;
use plotters::prelude::*;

const SIZE: (u32, u32) = (900, 540);
const PERCENTILES: [f64; 14] = [
    0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 99.95, 99.99, 100.0,
];

/// (percentile, microseconds) of a histogram of nanoseconds, up to p99.99 and the highest.
pub fn percentile_points(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    PERCENTILES
        .iter()
        .map(|p| (*p, histogram.value_at_quantile(p / 100.0) as f64 / 1000.0))
        .collect()
}

/// Latency against the number of nines, both on logarithmic scales.
pub fn latency(
    path: &Path,
    title: &str,
    curves: &[(String, Histogram<u64>)],
) -> Result<(), String> {
    // x = 1 / (1 - quantile): 1, 10 (p90), 100 (p99), ... 10,000 (p99.99).
    let lines: Vec<(&str, Vec<(f64, f64)>)> = curves
        .iter()
        .filter(|(_, histogram)| !histogram.is_empty())
        .map(|(name, histogram)| {
            let points = (0..=80)
                .map(|step| {
                    let x = 10f64.powf(f64::from(step) / 20.0);
                    (
                        x,
                        (histogram.value_at_quantile(1.0 - 1.0 / x) as f64 / 1e6).max(1e-4),
                    )
                })
                .collect();
            (name.as_str(), points)
        })
        .collect();
    let label = |x: &f64| match x.round() as u64 {
        1 => "p0".to_owned(),
        10 => "p90".to_owned(),
        100 => "p99".to_owned(),
        1000 => "p99.9".to_owned(),
        10_000 => "p99.99".to_owned(),
        _ => String::new(),
    };
    draw(path, title, "percentile", "latency, ms", &lines, &label)
}

/// Requests per second against connections.
pub fn throughput(
    path: &Path,
    title: &str,
    lines: &[(String, Vec<(f64, f64)>)],
) -> Result<(), String> {
    let lines: Vec<(&str, Vec<(f64, f64)>)> = lines
        .iter()
        .map(|(name, points)| {
            (
                name.as_str(),
                points.iter().map(|(x, y)| (*x, y.max(1.0))).collect(),
            )
        })
        .collect();
    draw(
        path,
        title,
        "connections",
        "requests per second",
        &lines,
        &|x| format!("{x:.0}"),
    )
}

fn draw(
    path: &Path,
    title: &str,
    x_name: &str,
    y_name: &str,
    lines: &[(&str, Vec<(f64, f64)>)],
    x_label: &dyn Fn(&f64) -> String,
) -> Result<(), String> {
    let all = || lines.iter().flat_map(|(_, points)| points.iter());
    let bound = |pick: fn(&(f64, f64)) -> f64, over: fn(f64, f64) -> f64, start: f64| {
        all().map(pick).fold(start, over)
    };
    let x = bound(|p| p.0, f64::min, f64::INFINITY)..bound(|p| p.0, f64::max, 1.0);
    let y = bound(|p| p.1, f64::min, f64::INFINITY) * 0.8..bound(|p| p.1, f64::max, 0.001) * 1.25;
    if !(x.start < x.end && y.start < y.end) {
        return Ok(());
    }
    let error = |e: &dyn std::fmt::Display| e.to_string();
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|e| error(&e))?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(80)
        .build_cartesian_2d(x.log_scale(), y.log_scale())
        .map_err(|e| error(&e))?;
    chart
        .configure_mesh()
        .x_desc(x_name)
        .y_desc(y_name)
        .x_label_formatter(&|v| x_label(v))
        .draw()
        .map_err(|e| error(&e))?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                colour.stroke_width(2),
            ))
            .map_err(|e| error(&e))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .position(SeriesLabelPosition::UpperLeft)
        .draw()
        .map_err(|e| error(&e))?;
    root.present().map_err(|e| error(&e))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_plot_is_an_svg_with_every_name() {
        let dir = std::env::temp_dir().join(format!("ankusa-plot-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut histogram = crate::load::new_histogram();
        for us in 1..=1000 {
            histogram.record(us * 1000).unwrap();
        }
        let path = dir.join("latency.svg");
        latency(
            &path,
            "a title",
            &[
                ("one".to_owned(), histogram.clone()),
                ("two".to_owned(), histogram),
            ],
        )
        .unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for part in ["<svg", "a title", "one", "two", "p99.9"] {
            assert!(svg.contains(part), "{part} is missing");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
