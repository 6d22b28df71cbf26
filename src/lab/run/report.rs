//! `report.html`: a run on one page, without network.

use super::Run;
use super::figures::Figure;
use serde_json::json;

const PAGE: &str = include_str!("report.html");
const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");

/// JSON that may stand inside a script element: no tag can end it.
fn embedded(value: &serde_json::Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

/// The page of a run.
pub fn page(run: &Run, figures: &[Figure]) -> String {
    let title = match run.label.as_str() {
        "" => run.target.model.clone(),
        label => format!("{} at {label}", run.target.model),
    };
    let figures: Vec<_> = figures
        .iter()
        .map(|f| json!({"series": f.series, "name": f.name, "says": f.says, "plotly": f.plotly}))
        .collect();
    document(&title, &json!({"run": run, "figures": figures}))
}

/// The page of anything that the script knows to draw.
pub fn document(title: &str, data: &serde_json::Value) -> String {
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    PAGE.replace("{{title}}", &title)
        .replace("{{style}}", STYLE)
        .replace("{{script}}", SCRIPT)
        // Last, so that nothing in the data is taken for a mark.
        .replace("{{data}}", &embedded(data))
}
