//! From records to figures.

use super::{Load, Percentiles, Repeat, Series};
use crate::lab::load::{End, Ran, Record};
use crate::lab::sample::Spread;
use crate::units::{CloseReason, Nanos};
use crate::wire::ErrorCode;
use std::collections::BTreeMap;

/// Percentiles by their names and parts of 1000.
pub const PERCENTILES: [(&str, u64); 5] =
    [("p50", 500), ("p90", 900), ("p95", 950), ("p99", 990), ("p999", 999)];

/// Samples beyond a percentile, below which it says little.
pub const SAMPLES_BEYOND_MIN: u64 = 10;

impl Percentiles {
    /// Of `values`, which are sorted in place; all zero for none.
    pub fn of(values: &mut [u64]) -> Percentiles {
        values.sort_unstable();
        let (Some(min), Some(max)) = (values.first(), values.last()) else {
            return Percentiles::default();
        };
        let at = |permille: u64| {
            let rank = (values.len() as u64 * permille).div_ceil(1000).max(1);
            values[rank as usize - 1]
        };
        let sum: u128 = values.iter().map(|v| u128::from(*v)).sum();
        Percentiles {
            count: values.len() as u64,
            min_ns: *min,
            mean_ns: (sum / values.len() as u128) as u64,
            p50_ns: at(500),
            p90_ns: at(900),
            p95_ns: at(950),
            p99_ns: at(990),
            p999_ns: at(999),
            max_ns: *max,
        }
    }

    /// A percentile by its name in [`PERCENTILES`], or `max`.
    pub fn by_name(&self, name: &str) -> Option<u64> {
        Some(match name {
            "p50" => self.p50_ns,
            "p90" => self.p90_ns,
            "p95" => self.p95_ns,
            "p99" => self.p99_ns,
            "p999" => self.p999_ns,
            "max" => self.max_ns,
            _ => return None,
        })
    }

    /// Names of the percentiles that have too few samples beyond them.
    pub fn too_few(&self) -> Vec<&'static str> {
        (PERCENTILES.iter())
            .filter(|(_, permille)| self.count * (1000 - permille) < SAMPLES_BEYOND_MIN * 1000)
            .map(|(name, _)| *name)
            .collect()
    }
}

/// Latency of an answered request, as its loop counts it.
pub fn latency(record: &Record) -> Option<u64> {
    (record.end == End::Answered).then(|| record.done.since(record.planned).0)
}

/// Name of an error's code.
pub fn error_name(number: u16) -> String {
    ErrorCode::from_number(number).map_or_else(|| format!("code_{number}"), |c| c.name().into())
}

/// Stages in their order.
pub const STAGES: [&str; 5] =
    ["transport", "queue", "compute_input", "compute_infer", "compute_output"];

/// Time in each of [`STAGES`] of an answered request.
pub fn stages(record: &Record) -> Option<[u64; 5]> {
    let r = record.receipt.filter(|_| record.end == End::Answered)?;
    let inside = r.queue_ns.0 + r.compute_input_ns.0 + r.compute_infer_ns.0 + r.compute_output_ns.0;
    let transport = record.done.since(record.sent).0.saturating_sub(inside);
    Some([
        transport,
        r.queue_ns.0,
        r.compute_input_ns.0,
        r.compute_infer_ns.0,
        r.compute_output_ns.0,
    ])
}

/// Sums one repeat up. What the generator can't know (CPU time, energy, findings) is left empty.
pub fn repeat(records: &[Record], ran: &Ran) -> Repeat {
    let sent = &records[..ran.sent.min(records.len())];
    let mut out = Repeat {
        planned: records.len() as u64,
        sent: sent.len() as u64,
        span_ns: ran.span.0,
        generator_allocator_calls: ran.allocator_calls,
        broken: ran.broken.as_ref().map(|b| b.0.clone()),
        ..Repeat::default()
    };
    let (mut latencies, mut from_send) = (Vec::new(), Vec::new());
    let mut by_stage: [Vec<u64>; 5] = Default::default();
    let mut last_end = Nanos(0);
    for record in sent {
        out.blocked += u64::from(record.was_blocked);
        match record.end {
            End::Waiting => out.unanswered += 1,
            End::Failed(code) => *out.errors.entry(error_name(code)).or_default() += 1,
            End::Answered => {
                latencies.push(record.done.since(record.planned).0);
                from_send.push(record.done.since(record.sent).0);
                last_end = last_end.max(record.done);
            }
        }
        if let (Some(receipt), Some(times)) = (record.receipt, stages(record)) {
            for (all, time) in by_stage.iter_mut().zip(times) {
                all.push(time);
            }
            *out.batch_rows.entry(receipt.batch_size.0).or_default() += 1;
            let reason = receipt.close_reason.name();
            *out.close_reasons.entry(reason.into()).or_default() += 1;
        }
    }
    debug_assert!(out.close_reasons.len() <= CloseReason::ALL.len());
    out.answered = latencies.len() as u64;
    let seconds = |ns: u64| ns as f64 / 1e9;
    let span = if last_end.0 > 0 { last_end.0 } else { ran.span.0 };
    out.throughput_per_s = out.answered as f64 / seconds(span.max(1));
    let last_planned = sent.iter().map(|r| r.planned.0).max().unwrap_or(0);
    if sent.len() > 1 && last_planned > 0 {
        out.offered_per_s = (sent.len() - 1) as f64 / seconds(last_planned);
    }
    let mut lags: Vec<u64> = sent.iter().map(|r| r.sent.since(r.planned).0).collect();
    out.latency = Percentiles::of(&mut latencies);
    out.latency_from_send = Percentiles::of(&mut from_send);
    out.lag = Percentiles::of(&mut lags);
    for (name, times) in STAGES.iter().zip(&mut by_stage) {
        if !times.is_empty() {
            out.stages.insert((*name).into(), Percentiles::of(times));
        }
    }
    out
}

/// Metrics of one repeat by name: what is summed up over repeats, compared, and gated. Latencies in
/// microseconds.
pub fn metrics(repeat: &Repeat) -> BTreeMap<&'static str, f64> {
    let us = |ns: u64| ns as f64 / 1e3;
    let mut out = BTreeMap::new();
    let failed: u64 = repeat.errors.values().sum();
    let ended = repeat.answered + failed + repeat.unanswered;
    if repeat.answered > 0 {
        let l = &repeat.latency;
        out.extend([
            ("latency_p50_us", us(l.p50_ns)),
            ("latency_p90_us", us(l.p90_ns)),
            ("latency_p95_us", us(l.p95_ns)),
            ("latency_p99_us", us(l.p99_ns)),
            ("latency_p999_us", us(l.p999_ns)),
            ("latency_max_us", us(l.max_ns)),
        ]);
    }
    if let Some(infer) = repeat.stages.get("compute_infer") {
        out.insert("compute_infer_p50_us", us(infer.p50_ns));
    }
    out.insert("throughput_per_s", repeat.throughput_per_s);
    if ended > 0 {
        out.insert("errors_percent", 100.0 * (failed + repeat.unanswered) as f64 / ended as f64);
    }
    if let Some(cpu) = repeat.cpu_us_per_request {
        out.insert("cpu_us_per_request", cpu);
    }
    if let Some(energy) = repeat.energy_uj_per_request {
        out.insert("energy_uj_per_request", energy);
    }
    out
}

impl Series {
    /// A series of these repeats, summed up.
    pub fn new(name: String, load: Load, repeats: Vec<Repeat>) -> Series {
        let mut values: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        for repeat in &repeats {
            for (name, value) in metrics(repeat) {
                values.entry(name).or_default().push(value);
            }
        }
        let summary = values.iter().map(|(n, v)| ((*n).to_string(), Spread::of(v))).collect();
        Series { name, load, scenario: None, bound: None, repeats, summary, profile: None }
    }

    /// Values of a metric over the repeats.
    pub fn values(&self, metric: &str) -> Vec<f64> {
        self.repeats.iter().filter_map(|r| metrics(r).get(metric).copied()).collect()
    }
}
