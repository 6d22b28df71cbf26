//! Just enough of Rust's lexical structure for text checks.

/// `text` with comments, strings and character literals blanked; lines stay where they are.
pub fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let blank = |out: &mut String, from: usize, to: usize| {
        for &c in &chars[from..to.min(chars.len())] {
            out.push(if c == '\n' { '\n' } else { ' ' });
        }
    };
    let mut i = 0;
    while i < chars.len() {
        let start = i;
        match (at(i), at(i + 1)) {
            ('/', '/') => {
                while i < chars.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            ('/', '*') => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 || i >= chars.len() {
                        break;
                    }
                }
            }
            ('r', '"' | '#') if !before_is_word(&chars, i) => {
                let mut hashes = 0;
                while at(i + 1 + hashes) == '#' {
                    hashes += 1;
                }
                if at(i + 1 + hashes) != '"' {
                    // A raw identifier.
                    out.push(at(i));
                    i += 1;
                    continue;
                }
                i += hashes + 2;
                while i < chars.len()
                    && !(at(i) == '"' && (0..hashes).all(|h| at(i + 1 + h) == '#'))
                {
                    i += 1;
                }
                i += hashes + 1;
            }
            ('"', _) => {
                i += 1;
                while i < chars.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                i += 1;
            }
            ('\'', '\\') => {
                i += 3;
                while i < chars.len() && at(i) != '\'' {
                    i += 1;
                }
                i += 1;
            }
            // A character, not a lifetime.
            ('\'', _) if at(i + 2) == '\'' => i += 3,
            (c, _) => {
                out.push(c);
                i += 1;
                continue;
            }
        }
        blank(&mut out, start, i);
    }
    out
}

fn before_is_word(chars: &[char], i: usize) -> bool {
    // `br"..."` is a string too.
    i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_') && chars[i - 1] != 'b'
}

/// Paths that start at the crate's root, as `(line, "room::part")`, groups taken apart. `super` is
/// followed where it leaves the room of the file at `path`.
pub fn uses_of_crate(path: &str, code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let line_of = |at: usize| code[..at].matches('\n').count() + 1;
    for (at, _) in code.match_indices("crate::") {
        expand(&code[at + "crate::".len()..], "", &mut |p| found.push((line_of(at), p)));
    }
    // Modules above this file, the crate's root being none.
    let inner = path.trim_start_matches("src/").trim_end_matches(".rs");
    let mut depth = inner.split('/').filter(|part| *part != "mod").count();
    // Inline modules add a level; none is worth a parser.
    depth += usize::from(code.lines().any(|l| l.contains("mod ") && l.contains('{')));
    let climb = "super::".repeat(depth);
    for (at, _) in code.match_indices(&climb) {
        if !code[..at].ends_with("super::") {
            expand(&code[at + climb.len()..], "", &mut |p| found.push((line_of(at), p)));
        }
    }
    found
}

/// Expands the use tree at the head of `rest`, two segments deep.
fn expand(rest: &str, prefix: &str, found: &mut dyn FnMut(String)) -> usize {
    let skipped = rest.len() - rest.trim_start().len();
    let body = &rest[skipped..];
    if let Some(group) = body.strip_prefix('{') {
        let mut at = 1;
        let mut inner = group;
        loop {
            let used = expand(inner, prefix, found);
            inner = &inner[used..];
            at += used;
            match inner.chars().next() {
                Some(',') => (inner, at) = (&inner[1..], at + 1),
                Some('}') => return skipped + at + 1,
                _ if inner.is_empty() => return skipped + at,
                // `as name`, or white space.
                Some(c) => (inner, at) = (&inner[c.len_utf8()..], at + c.len_utf8()),
                None => return skipped + at,
            }
        }
    }
    let end = body.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(body.len());
    let name = &body[..end];
    if name.is_empty() {
        return skipped + usize::from(body.starts_with('*'));
    }
    let path = match (prefix, name) {
        ("", _) => name.to_owned(),
        (_, "self") => prefix.to_owned(),
        _ => format!("{prefix}::{name}"),
    };
    if let Some(next) = body[end..].strip_prefix("::") {
        return skipped + end + 2 + expand(next, &path, found);
    }
    found(path);
    skipped + end
}
