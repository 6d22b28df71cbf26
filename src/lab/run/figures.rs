//! Figures as Plotly's JSON: `{"data": [...], "layout": {...}}`. The report draws the same ones.

use super::analysis::STAGES;
use super::{Load, Run, Series};
use crate::lab::watch::Detail;
use crate::limits::RUN_FILE_BYTES_MAX;
use crate::sys::files;
use serde_json::{Value, json};

/// A figure and where it belongs.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The series; empty for one of the whole run.
    pub series: String,
    /// Its name, part of its file's.
    pub name: &'static str,
    /// What it shows, in a sentence.
    pub says: &'static str,
    /// Plotly's JSON.
    pub plotly: Value,
}

impl Figure {
    /// The file's name.
    pub fn file(&self) -> String {
        if self.series.is_empty() {
            format!("{}.plotly.json", self.name)
        } else {
            format!("{}.{}.plotly.json", self.series, self.name)
        }
    }
}

/// Points of the percentile curve for each factor of ten.
const POINTS_PER_DECADE: usize = 24;
/// Bins of the histogram for each factor of ten.
const BINS_PER_DECADE: f64 = 20.0;

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn axis(title: &str) -> Value {
    json!({"title": {"text": title}})
}

fn log_axis(title: &str) -> Value {
    json!({"title": {"text": title}, "type": "log"})
}

fn line(name: &str, x: Vec<f64>, y: Vec<f64>) -> Value {
    json!({"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y})
}

fn figure(
    series: &str,
    name: &'static str,
    says: &'static str,
    data: Vec<Value>,
    layout: Value,
) -> Figure {
    let mut layout = layout;
    let title = if series.is_empty() { name.into() } else { format!("{series}: {name}") };
    layout["title"] = json!({"text": title.replace('-', " ")});
    Figure { series: series.into(), name, says, plotly: json!({"data": data, "layout": layout}) }
}

/// All figures of a run.
pub fn all(run: &Run, details: &[Vec<Detail>]) -> Vec<Figure> {
    let mut out: Vec<Figure> = sweep(run).into_iter().collect();
    for (series, details) in run.series.iter().zip(details) {
        out.push(percentiles(series, details));
        out.push(histogram(series, details));
        out.extend(stages(series, details));
        if let Some(detail) = typical(series, details) {
            out.push(over_time(series, detail));
            if let Load::Open { plan } = &series.load
                && plan.profile.name() == "ramp"
            {
                out.push(ramp(series, detail));
            }
            out.extend(cpu(series, detail));
        }
        out.extend(batches(series));
    }
    out
}

/// The repeat whose p99 is the median.
fn typical<'d>(series: &Series, details: &'d [Detail]) -> Option<&'d Detail> {
    let mut order: Vec<usize> = (0..details.len().min(series.repeats.len())).collect();
    order.sort_by_key(|n| series.repeats[*n].latency.p99_ns);
    order.get(order.len().checked_sub(1)? / 2).map(|n| &details[*n])
}

/// The latency at each part of the requests, on an axis that stretches the tail.
fn percentiles(series: &Series, details: &[Detail]) -> Figure {
    let curves = details.iter().enumerate().filter(|(_, d)| !d.latencies.is_empty());
    let data = curves.map(|(n, detail)| {
        let sorted = &detail.latencies;
        let decades = (sorted.len() as f64).log10();
        let steps = (decades * POINTS_PER_DECADE as f64).ceil() as usize;
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for step in 0..=steps {
            let beyond =
                10f64.powf(step as f64 / POINTS_PER_DECADE as f64).min(sorted.len() as f64);
            let rank = (sorted.len() as f64 * (1.0 - 1.0 / beyond)).ceil() as usize;
            x.push(beyond);
            y.push(us(sorted[rank.clamp(1, sorted.len()) - 1]));
        }
        line(&format!("repeat {}", n + 1), x, y)
    });
    let ticks: Vec<f64> = (0..7).map(|n| 10f64.powi(n)).collect();
    let texts = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"];
    let mut x = log_axis("percentile");
    x["tickvals"] = json!(ticks);
    x["ticktext"] = json!(texts);
    figure(
        &series.name,
        "latency-percentiles",
        "Latency at each percentile, one line a repeat; the tail is stretched.",
        data.collect(),
        json!({"xaxis": x, "yaxis": log_axis("latency (us)")}),
    )
}

fn histogram(series: &Series, details: &[Detail]) -> Figure {
    let mut counts = std::collections::BTreeMap::<i64, u64>::new();
    for ns in details.iter().flat_map(|d| &d.latencies) {
        let bin = (us(*ns).max(1e-3).log10() * BINS_PER_DECADE).floor() as i64;
        *counts.entry(bin).or_default() += 1;
    }
    let at = |bin: i64| 10f64.powf((bin as f64 + 0.5) / BINS_PER_DECADE);
    let (first, last) = (counts.keys().next().copied(), counts.keys().last().copied());
    let bins: Vec<i64> = match (first, last) {
        (Some(first), Some(last)) => (first..=last).collect(),
        _ => Vec::new(),
    };
    let x: Vec<f64> = bins.iter().map(|b| at(*b)).collect();
    let y: Vec<u64> = bins.iter().map(|b| counts.get(b).copied().unwrap_or(0)).collect();
    figure(
        &series.name,
        "latency-histogram",
        "How many requests had which latency, over all repeats.",
        vec![json!({"type": "bar", "name": "requests", "x": x, "y": y})],
        json!({"xaxis": log_axis("latency (us)"), "yaxis": axis("requests"), "bargap": 0.05}),
    )
}

/// Mean stages of the requests around each percentile, over the repeats.
fn stages(series: &Series, details: &[Detail]) -> Option<Figure> {
    let names: Vec<&str> = details.first()?.stages.iter().map(|(name, _)| *name).collect();
    if names.is_empty() {
        return None;
    }
    let told = [
        "transport and response",
        "queue and batch wait",
        "compute input",
        "compute infer",
        "compute output",
    ];
    let data = (0..STAGES.len()).map(|stage| {
        let y: Vec<f64> = (0..names.len())
            .map(|p| {
                let of = details.iter().filter_map(|d| d.stages.get(p));
                let values: Vec<f64> = of.map(|(_, s)| s[stage]).collect();
                values.iter().sum::<f64>() / values.len().max(1) as f64 / 1e3
            })
            .collect();
        json!({"type": "bar", "name": told[stage], "x": names, "y": y})
    });
    Some(figure(
        &series.name,
        "stages",
        "Where the time from the actual send goes, for the requests around each percentile.",
        data.collect(),
        json!({"barmode": "stack", "xaxis": {"type": "category", "title": {"text": "requests around"}},
            "yaxis": axis("time (us)")}),
    ))
}

fn over_time(series: &Series, detail: &Detail) -> Figure {
    let bins: Vec<_> = detail.bins.iter().filter(|b| b.latency.count > 0).collect();
    let x: Vec<f64> = bins.iter().map(|b| b.at_s).collect();
    let of = |name: &str, f: fn(&super::Percentiles) -> u64| {
        line(name, x.clone(), bins.iter().map(|b| us(f(&b.latency))).collect())
    };
    let mut data = vec![of("p50", |p| p.p50_ns), of("p99", |p| p.p99_ns), of("max", |p| p.max_ns)];
    let mut layout = json!({"xaxis": axis("planned send (s)"), "yaxis": log_axis("latency (us)")});
    if !detail.queued.is_empty() {
        let x = detail.queued.iter().map(|(at, _)| *at).collect();
        let y = detail.queued.iter().map(|(_, n)| *n as f64).collect();
        let mut depth = line("queue depth", x, y);
        depth["yaxis"] = json!("y2");
        data.push(depth);
        layout["yaxis2"] =
            json!({"title": {"text": "requests waiting"}, "overlaying": "y", "side": "right"});
    }
    figure(
        &series.name,
        "latency-over-time",
        "Latency by when requests were planned, and how many waited, in the repeat with the median p99.",
        data,
        layout,
    )
}

fn ramp(series: &Series, detail: &Detail) -> Figure {
    let bins: Vec<_> = detail.bins.iter().filter(|b| b.latency.count > 0).collect();
    let x: Vec<f64> = bins.iter().map(|b| b.planned_per_s).collect();
    let y: Vec<f64> = bins.iter().map(|b| us(b.latency.p99_ns)).collect();
    figure(
        &series.name,
        "rate-against-p99",
        "The p99 latency against the rate of a ramp, one point a hundredth of its time.",
        vec![json!({"type": "scatter", "mode": "markers", "name": "p99", "x": x, "y": y})],
        json!({"xaxis": axis("planned requests/s"), "yaxis": log_axis("p99 latency (us)")}),
    )
}

fn cpu(series: &Series, detail: &Detail) -> Option<Figure> {
    if detail.cores.is_empty() {
        return None;
    }
    let data = detail.cores.iter().map(|(core, points)| {
        let (x, y) = points.iter().copied().unzip();
        line(&format!("core {core}"), x, y)
    });
    Some(figure(
        &series.name,
        "cpu",
        "How busy each core was, whoever used it, in the repeat with the median p99.",
        data.collect(),
        json!({"xaxis": axis("time (s)"), "yaxis": {"title": {"text": "busy (%)"}, "range": [0, 100]}}),
    ))
}

fn batches(series: &Series) -> Vec<Figure> {
    let mut rows = std::collections::BTreeMap::<u16, u64>::new();
    let mut reasons = std::collections::BTreeMap::<&str, u64>::new();
    for repeat in &series.repeats {
        repeat.batch_rows.iter().for_each(|(k, n)| *rows.entry(*k).or_default() += n);
        repeat.close_reasons.iter().for_each(|(k, n)| *reasons.entry(k).or_default() += n);
    }
    if rows.is_empty() {
        return Vec::new();
    }
    let bars = |x: Vec<String>, y: Vec<u64>| {
        vec![json!({"type": "bar", "name": "requests", "x": x, "y": y})]
    };
    let layout = |title: &str| json!({"xaxis": {"type": "category", "title": {"text": title}}, "yaxis": axis("requests")});
    vec![
        figure(
            &series.name,
            "batch-sizes",
            "Answered requests by the rows of their batch.",
            bars(rows.keys().map(u16::to_string).collect(), rows.values().copied().collect()),
            layout("rows in the batch"),
        ),
        figure(
            &series.name,
            "batch-close-reasons",
            "Answered requests by why their batch was closed.",
            bars(
                reasons.keys().map(|r| (*r).to_string()).collect(),
                reasons.values().copied().collect(),
            ),
            layout("closed by"),
        ),
    ]
}

fn sweep(run: &Run) -> Option<Figure> {
    let points = &run.sweep.as_ref()?.points;
    let x: Vec<f64> = points.iter().map(|p| p.concurrency as f64).collect();
    let of = |name: &str, f: fn(&super::Point) -> f64| {
        let mut trace = line(name, x.clone(), points.iter().map(f).collect());
        trace["mode"] = json!("lines+markers");
        trace
    };
    let mut throughput = of("answered/s", |p| p.throughput_per_s);
    throughput["yaxis"] = json!("y2");
    let y2 = json!({"title": {"text": "answered/s"}, "overlaying": "y", "side": "right"});
    Some(figure(
        "",
        "contention",
        "Latency and throughput against requests in flight, medians over the repeats.",
        vec![of("p50", |p| p.p50_ns / 1e3), of("p99", |p| p.p99_ns / 1e3), throughput],
        json!({"xaxis": log_axis("requests in flight"), "yaxis": log_axis("latency (us)"), "yaxis2": y2}),
    ))
}

/// Figures that are laid over each other when runs are compared.
const OVERLAID: [&str; 3] = ["latency-percentiles", "latency-over-time", "rate-against-p99"];

/// Figures of one series of two runs in one: label and folder of each. What a folder lacks is left
/// out.
pub fn overlaid(
    series: &str,
    base: (&str, &std::path::Path),
    new: (&str, &std::path::Path),
) -> Vec<Figure> {
    let read = |dir: &std::path::Path, name: &str| -> Option<Value> {
        let file = dir.join(format!("{series}.{name}.plotly.json"));
        serde_json::from_slice(&files::read(&file, RUN_FILE_BYTES_MAX).ok()?).ok()
    };
    let both = |name: &'static str| {
        let (before, after) = (read(base.1, name)?, read(new.1, name)?);
        let mut data = Vec::new();
        for (plotly, (label, _)) in [(&before, base), (&after, new)] {
            for trace in plotly["data"].as_array()? {
                if trace["yaxis"] == "y2" {
                    continue;
                }
                let mut trace = trace.clone();
                trace["name"] = json!(format!("{label}: {}", trace["name"].as_str().unwrap_or("")));
                data.push(trace);
            }
        }
        let mut layout = after["layout"].clone();
        layout.as_object_mut()?.remove("yaxis2");
        Some(figure(series, name, "Both runs, one laid over the other.", data, layout))
    };
    OVERLAID.into_iter().filter_map(both).collect()
}
