//! What goes into the Magika model and what its answer means, as Google's Python package `magika`
//! 1.0.3 does it: bytes to features, and a label with its score to the label that is told.

use corelane::limits::TEXT_FILE_BYTES_MAX;
use corelane::sys::files;
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes taken from each end of a file, before white space goes.
const BLOCK_BYTES: usize = 4096;
/// Features of each end.
const END_LEN: usize = 1024;
/// Features of a file.
pub const FEATURES_LEN: usize = 2 * END_LEN;
/// Stands where a file has too few bytes.
const PADDING: i32 = 256;
/// With fewer bytes than these the model is not asked.
const MODEL_BYTES_MIN: usize = 8;

/// The model's labels that are text; a low score of one of them is told as `txt`, of another as
/// `unknown`. From the package's list of content types.
const TEXT_LABELS: &str = "aidl appleplist asm asp autohotkey autoit awk batch bazel bib c clojure \
    cmake cobol coffeescript cpp cs csproj css csv dart diff dm dockerfile dxf elixir eml erb erlang \
    fortran gemfile gemspec gitattributes gitmodules go gradle groovy handlebars haskell hcl htaccess \
    html ics ignorefile ini internetshortcut ipynb java javascript jinja json jsonl julia kotlin \
    latex lisp lua m3u m4 makefile markdown matlab mht mum objectivec ocaml pascal pem perl php po \
    powershell prolog proteindb proto python r randomtxt rdf rst rtf ruby rust scala scss sgml shell \
    smali solidity sql srt stltext sum svg swift tcl textproto toml tsv twig txt typescript vba vcxproj \
    verilog vhdl vtt vue winregistry xml yaml yara zig";

/// What a file's bytes come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Features {
    /// Input of the model.
    Ask(Box<[i32]>),
    /// Too few bytes for the model: the answer.
    Told(&'static str),
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// The features of a file's whole content.
pub fn features(content: &[u8]) -> Features {
    if content.is_empty() {
        return Features::Told("empty");
    }
    let block = content.len().min(BLOCK_BYTES);
    let few = |bytes: &[u8]| {
        Features::Told(if std::str::from_utf8(bytes).is_ok() { "txt" } else { "unknown" })
    };
    if content.len() < MODEL_BYTES_MIN {
        return few(content);
    }
    let first = &content[..block];
    let start = first.iter().position(|b| !is_space(*b)).unwrap_or(block);
    let head = &first[start..];
    if head.len() < MODEL_BYTES_MIN {
        return few(first);
    }
    let last = &content[content.len() - block..];
    let end = last.iter().rposition(|b| !is_space(*b)).map_or(0, |at| at + 1);
    let tail = &last[end.saturating_sub(END_LEN)..end];
    let mut out = vec![PADDING; FEATURES_LEN];
    for (to, from) in out.iter_mut().zip(head.iter().take(END_LEN)) {
        *to = i32::from(*from);
    }
    for (to, from) in out[FEATURES_LEN - tail.len()..].iter_mut().zip(tail) {
        *to = i32::from(*from);
    }
    Features::Ask(out.into_boxed_slice())
}

/// From which score on a label is believed, and which labels are told as another.
#[derive(Debug, serde::Deserialize)]
pub struct Rules {
    medium_confidence_threshold: f64,
    thresholds: BTreeMap<String, f64>,
    overwrite_map: BTreeMap<String, String>,
}

impl Rules {
    /// Reads the model's `config.min.json`.
    ///
    /// # Errors
    /// A sentence that names the file.
    pub fn read(path: &Path) -> Result<Rules, String> {
        let text = files::read_text(path, TEXT_FILE_BYTES_MAX)
            .map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The label that is told for the model's best one.
    pub fn told<'a>(&'a self, label: &'a str, score: f64) -> &'a str {
        let threshold = self.thresholds.get(label).unwrap_or(&self.medium_confidence_threshold);
        let told = self.overwrite_map.get(label).map_or(label, String::as_str);
        if score >= *threshold {
            told
        } else if TEXT_LABELS.split_whitespace().any(|text| text == told) {
            "txt"
        } else {
            "unknown"
        }
    }
}

#[cfg(test)]
mod tests;
