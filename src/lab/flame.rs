//! Flame graphs, and what two of them differ in.
//!
//! A flame graph is Plotly's `icicle`: a row a depth, a box a function, as wide as its share of the
//! samples with everything that it calls. The difference of two runs has boxes as wide as the mean of
//! both shares, so that a function of either run is seen, coloured by the change.
//!
//! Shares are of CPU time. Waiting is not in them: what waits for a lock is seen by who holds it, and
//! by what is on the stack while it holds it.

use super::profile::Stacks;
use super::run::figures::Figure;
use super::run::{Profiled, Run, Series};
use crate::limits::RUN_FILE_BYTES_MAX;
use crate::sys::files;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Boxes narrower than this part of the whole are left out of figures; the folded text has all.
const PART_MIN: f64 = 0.002;
/// Least change of a share that is called one, in points.
pub const POINTS_MIN: f64 = 1.0;
/// Least change of a share that is called one, in standard errors of a difference of two shares. Many
/// functions are looked at, and samples that follow each other are not wholly independent.
pub const ERRORS_MIN: f64 = 4.0;
/// Functions that are told, at most, those that changed most first.
const FUNCTIONS_MAX: usize = 30;

/// The file of a series' folded stacks in a run's folder.
pub fn file(series: &str) -> String {
    format!("{series}.folded")
}

/// A function in both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FunctionChange {
    /// The series.
    pub series: String,
    /// Its name.
    pub function: String,
    /// Share of the base's samples with it on the stack, in percent.
    pub base_percent: f64,
    /// Share of the new run's samples with it on the stack, in percent.
    pub new_percent: f64,
    /// How far the share moved, in points.
    pub points: f64,
    /// How far the share moved of samples in the function itself, not in what it calls, in points.
    pub own_points: f64,
    /// CPU time of each request with it on the stack, in the base; `None` where the run does not know
    /// what a request costs.
    pub base_us_per_request: Option<f64>,
    /// The same in the new run.
    pub new_us_per_request: Option<f64>,
    /// Whether it moved by more than the samples may vary.
    pub more_than_noise: bool,
}

/// A tree of calls with the samples of both sides.
struct Node {
    name: String,
    parent: usize,
    /// Samples of each side.
    counts: [u64; 2],
    children: BTreeMap<String, usize>,
}

struct Tree(Vec<Node>);

impl Tree {
    fn of(sides: [&Stacks; 2]) -> Tree {
        let node = |name: &str, parent| Node {
            name: name.into(),
            parent,
            counts: [0, 0],
            children: BTreeMap::new(),
        };
        let mut tree = Tree(vec![node("all", 0)]);
        for (side, stacks) in sides.into_iter().enumerate() {
            for (stack, count) in stacks.iter() {
                let mut at = 0;
                tree.0[at].counts[side] += count;
                for name in stack {
                    at = match tree.0[at].children.get(name) {
                        Some(child) => *child,
                        None => {
                            let child = tree.0.len();
                            tree.0.push(node(name, at));
                            tree.0[at].children.insert(name.into(), child);
                            child
                        }
                    };
                    tree.0[at].counts[side] += count;
                }
            }
        }
        tree
    }

    /// Plotly's trace. A box's value is exact, so that no child is larger than its parent.
    fn icicle(
        &self,
        value: impl Fn(&Node) -> u64,
        colour: impl Fn(&Node) -> &'static str,
        text: impl Fn(&Node) -> String,
    ) -> Value {
        let total = value(&self.0[0]);
        let (mut ids, mut labels, mut parents) = (Vec::new(), Vec::new(), Vec::new());
        let (mut values, mut colours, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for (id, node) in self.0.iter().enumerate() {
            let value = value(node);
            // A child is never larger than its parent, so no box loses its parent.
            if id > 0 && (value as f64) < PART_MIN * total as f64 {
                continue;
            }
            ids.push(id.to_string());
            labels.push(node.name.clone());
            parents.push(if id == 0 { String::new() } else { node.parent.to_string() });
            values.push(value);
            colours.push(colour(node));
            texts.push(text(node));
        }
        json!({
            "type": "icicle", "branchvalues": "total", "sort": false,
            "tiling": {"orientation": "v"}, "textinfo": "label", "hoverinfo": "label+text",
            "ids": ids, "labels": labels, "parents": parents, "values": values,
            "text": texts, "marker": {"colors": colours},
        })
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// By whose code it is. Dark letters are read on all of these.
fn origin(node: &Node) -> &'static str {
    let name = node.name.trim_start_matches('<');
    if node.parent == 0 {
        "#c8ced6"
    } else if name.contains("corelane") {
        "#8fbcf2"
    } else if ["std::", "core::", "alloc::"].iter().any(|std| name.starts_with(std)) {
        "#8fd6ba"
    } else if name.ends_with("[kernel]") {
        "#f0a8a0"
    } else {
        "#f5c889"
    }
}

/// By how the share moved.
fn direction(points: f64) -> &'static str {
    match points {
        p if p >= 20.0 => "#ff7f6e",
        p if p >= 5.0 => "#ffae9f",
        p if p >= POINTS_MIN => "#ffd9d2",
        p if p <= -20.0 => "#6fa8f5",
        p if p <= -5.0 => "#a3c8fa",
        p if p <= -POINTS_MIN => "#d4e4fb",
        _ => "#dfe3e8",
    }
}

fn layout(title: String) -> Value {
    json!({"title": {"text": title}, "margin": {"l": 0, "r": 0, "b": 0}})
}

/// The flame graph of a series.
pub fn figure(series: &str, stacks: &Stacks) -> Figure {
    let tree = Tree::of([stacks, &Stacks::default()]);
    let total = stacks.samples();
    let trace = tree.icicle(
        |node| node.counts[0],
        origin,
        |node| format!("{:.1} % of {total} samples", share(node.counts[0], total)),
    );
    Figure {
        series: series.into(),
        name: "flame-graph",
        says: "CPU time of the server's process by who called whom, in a repeat that is not in the \
               figures: corelane's code blue, the standard library's green, the kernel's red. \
               Choose a box to see it closer, the top one to go back.",
        plotly: json!({"data": [trace], "layout": layout(format!("{series}: flame graph"))}),
    }
}

/// The flame graphs of a run whose stacks are in its folder.
pub fn of_run(run: &Run, dir: &Path) -> Vec<Figure> {
    let figure = |series: &Series| Some(figure(&series.name, &stacks("", series, dir).ok()?));
    run.series.iter().filter_map(figure).collect()
}

/// The difference of two flame graphs, each with its run's label.
pub fn difference(series: &str, base: (&str, &Stacks), new: (&str, &Stacks)) -> Figure {
    let tree = Tree::of([base.1, new.1]);
    let totals = [base.1.samples(), new.1.samples()];
    let shares = |node: &Node| [0, 1].map(|side| share(node.counts[side], totals[side]));
    let points = |node: &Node| shares(node)[1] - shares(node)[0];
    let trace = tree.icicle(
        |node| node.counts[0] * totals[1] + node.counts[1] * totals[0],
        |node| direction(points(node)),
        |node| {
            let [before, after] = shares(node);
            format!(
                "{before:.1} % in {}, {after:.1} % in {}: {:+.1} points",
                base.0,
                new.0,
                after - before
            )
        },
    );
    Figure {
        series: series.into(),
        name: "flame-graph-difference",
        says: "What changed in the shares of CPU time: red grew, blue shrank; a box is as wide as the \
               mean of both runs. Choose a box to see it closer, the top one to go back.",
        plotly: json!({"data": [trace], "layout": layout(format!("{series}: flame graph, {} against {}", new.0, base.0))}),
    }
}

/// Samples with a function on their stack, and samples in it, by function. Threads are no functions.
fn by_function(stacks: &Stacks) -> BTreeMap<&str, (u64, u64)> {
    let mut out: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (stack, count) in stacks.iter() {
        let functions: Vec<&str> = stack.skip(1).collect();
        if let Some(last) = functions.last() {
            out.entry(last).or_default().1 += count;
        }
        // One that calls itself is on the stack once.
        for function in functions.into_iter().collect::<BTreeSet<_>>() {
            out.entry(function).or_default().0 += count;
        }
    }
    out
}

/// The functions whose shares moved, those that moved most first. `costs` is CPU time of a request in
/// microseconds, where it is known.
pub fn changes(
    series: &str,
    base: &Stacks,
    new: &Stacks,
    costs: (Option<f64>, Option<f64>),
) -> Vec<FunctionChange> {
    let (before, after) = (by_function(base), by_function(new));
    let totals = (base.samples(), new.samples());
    let names: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let change = |name: &str| {
        let (b, own_b) = before.get(name).copied().unwrap_or_default();
        let (n, own_n) = after.get(name).copied().unwrap_or_default();
        let (base_percent, new_percent) = (share(b, totals.0), share(n, totals.1));
        let points = new_percent - base_percent;
        let pooled = share(b + n, totals.0 + totals.1) / 100.0;
        let each = 1.0 / totals.0.max(1) as f64 + 1.0 / totals.1.max(1) as f64;
        let error = 100.0 * (pooled * (1.0 - pooled) * each).sqrt();
        FunctionChange {
            series: series.into(),
            function: name.into(),
            base_percent,
            new_percent,
            points,
            own_points: share(own_n, totals.1) - share(own_b, totals.0),
            base_us_per_request: costs.0.map(|us| us * base_percent / 100.0),
            new_us_per_request: costs.1.map(|us| us * new_percent / 100.0),
            more_than_noise: points.abs() >= POINTS_MIN && points.abs() >= ERRORS_MIN * error,
        }
    };
    let mut out: Vec<FunctionChange> = names.into_iter().map(change).collect();
    let size = |c: &FunctionChange| (c.points.abs(), c.own_points.abs());
    out.sort_by(|a, b| size(b).partial_cmp(&size(a)).unwrap_or(std::cmp::Ordering::Equal));
    out.truncate(FUNCTIONS_MAX);
    out
}

/// What the profiles of two runs say.
#[derive(Debug, Clone, Default)]
pub struct Differences {
    /// A figure a series that both have.
    pub figures: Vec<Figure>,
    /// The functions of these series, those that moved most first.
    pub functions: Vec<FunctionChange>,
    /// Why there is none of a series, where one was asked for.
    pub notes: Vec<String>,
}

/// Lays the profiles of two runs side by side: each with its label, what it measured, and its folder.
pub fn differences(base: (&str, &Run, &Path), new: (&str, &Run, &Path)) -> Differences {
    let mut out = Differences::default();
    for before in &base.1.series {
        let Some(after) = new.1.series.iter().find(|s| s.name == before.name) else { continue };
        if before.profile.is_none() && after.profile.is_none() {
            continue;
        }
        let name = before.name.as_str();
        let sides = [(base, before), (new, after)]
            .map(|((label, _, dir), series)| stacks(label, series, dir));
        match sides {
            [Ok(b), Ok(n)] => {
                let cost = |s: &Series| s.summary.get("cpu_us_per_request").map(|c| c.median);
                out.figures.push(difference(name, (base.0, &b), (new.0, &n)));
                out.functions.extend(changes(name, &b, &n, (cost(before), cost(after))));
            }
            sides => {
                let why = sides.into_iter().filter_map(Result::err).collect::<Vec<_>>().join("; ");
                out.notes.push(format!("series {name} has no differential flame graph: {why}"));
            }
        }
    }
    out
}

/// A series' stacks from its folder, or why there are none.
fn stacks(label: &str, series: &Series, dir: &Path) -> Result<Stacks, String> {
    match &series.profile {
        None => return Err(format!("{label} was measured without --flame-graph")),
        Some(Profiled::Absent { why }) => return Err(format!("{label} has none: {why}")),
        Some(Profiled::Taken { .. }) => {}
    }
    let path = dir.join(file(&series.name));
    let text = files::read_text(&path, RUN_FILE_BYTES_MAX)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    Stacks::parse(&text)
        .map_err(|line| format!("{}, line {line}: write STACK COUNT", path.display()))
}

#[cfg(test)]
mod tests;
