//! A metric over many runs, in the order in which they were measured.

use super::run::figures::Figure;
use super::run::folder::{self, FolderError};
use super::run::{Run, SCHEMA};
use super::sample::Spread;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;

/// Runs of one directory with their folders' names, oldest first.
#[derive(Debug)]
pub struct History(Vec<(String, Run)>);

/// A metric of one series in one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The run's folder.
    pub folder: String,
    /// The run's label, or its number.
    pub label: String,
    /// The series.
    pub series: String,
    /// Over the repeats.
    pub spread: Spread,
    /// Whether the run is valid.
    pub valid: bool,
}

/// What the `n`-th run is called: its label, or its number.
fn label(n: usize, run: &Run) -> String {
    if run.label.is_empty() { (n + 1).to_string() } else { run.label.clone() }
}

impl History {
    /// Reads every run's folder in `dir`; what is no run is passed over.
    ///
    /// # Errors
    /// `dir` can't be read, or holds no run of this schema.
    pub fn read(dir: &Path) -> Result<History, FolderError> {
        let io = |source| FolderError::Io { doing: "read", path: dir.into(), source };
        let mut runs = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match folder::read(&path) {
                Ok(run) => runs.push((name, run)),
                Err(FolderError::NotARun { .. } | FolderError::Schema { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if runs.is_empty() {
            let why = format!("there is no folder of a run (schema {SCHEMA}) in it");
            return Err(FolderError::NotARun { path: dir.into(), why });
        }
        runs.sort_by(|(one, a), (other, b)| {
            (a.started_unix_s, &a.label, one).cmp(&(b.started_unix_s, &b.label, other))
        });
        Ok(History(runs))
    }

    /// How many runs.
    pub fn runs(&self) -> usize {
        self.0.len()
    }

    /// Names of the metrics.
    pub fn metrics(&self) -> Vec<String> {
        let all =
            self.0.iter().flat_map(|(_, r)| &r.series).flat_map(|s| s.summary.keys().cloned());
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A metric, run by run.
    pub fn of(&self, metric: &str) -> Vec<Row> {
        let mut rows = Vec::new();
        for (n, (folder, run)) in self.0.iter().enumerate() {
            let label = label(n, run);
            for series in &run.series {
                if let Some(spread) = series.summary.get(metric) {
                    rows.push(Row {
                        folder: folder.clone(),
                        label: label.clone(),
                        series: series.name.clone(),
                        spread: *spread,
                        valid: run.valid,
                    });
                }
            }
        }
        rows
    }

    /// The metric as a figure: one line a series, with the spread over the repeats.
    pub fn figure(&self, metric: &str) -> Figure {
        let rows = self.of(metric);
        let names: BTreeSet<&str> = rows.iter().map(|r| r.series.as_str()).collect();
        // Two runs may have the same label; each has a place of its own.
        let places: Vec<String> =
            self.0.iter().enumerate().map(|(n, (_, run))| label(n, run)).collect();
        let data: Vec<_> = names
            .iter()
            .map(|name| {
                let of: Vec<&Row> = rows.iter().filter(|r| r.series == *name).collect();
                let x: Vec<&str> = of.iter().map(|r| r.label.as_str()).collect();
                let y: Vec<f64> = of.iter().map(|r| r.spread.median).collect();
                let above: Vec<f64> = of.iter().map(|r| r.spread.max - r.spread.median).collect();
                let below: Vec<f64> = of.iter().map(|r| r.spread.median - r.spread.min).collect();
                json!({
                    "type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": y,
                    "error_y": {"type": "data", "symmetric": false, "array": above, "arrayminus": below},
                })
            })
            .collect();
        Figure {
            series: String::new(),
            name: "history",
            says: "Medians over the repeats, run by run, oldest first.",
            plotly: json!({"data": data, "layout": {
                "title": {"text": format!("{metric} over runs")},
                "xaxis": {"type": "category", "title": {"text": "run"}, "categoryarray": places},
                "yaxis": {"title": {"text": metric}, "rangemode": "tozero"},
            }}),
        }
    }
}
