//! `include/corelane.h` is what cbindgen makes of the sources, and its functions keep the rules that
//! `src/capi/mod.rs` states.
//!
//! After a change of the C interface, `CORELANE_HEADER=write cargo test --release --locked --test
//! header` writes the header anew.

use std::path::{Path, PathBuf};

const FILES: [&str; 8] =
    ["status", "log", "builder", "runtime", "model", "request", "answer", "mod"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn source(file: &str) -> PathBuf {
    root().join(format!("src/capi/{file}.rs"))
}

/// The header's first comment: the rules that `src/capi/mod.rs` states, as plain text.
fn introduction() -> String {
    let text = std::fs::read_to_string(source("mod")).unwrap();
    let rules = text.lines().map_while(|line| line.strip_prefix("//!"));
    let rules =
        rules.skip_while(|line| *line != " # Names").map(|line| match line.strip_prefix(" # ") {
            Some(title) => format!(" {}", title.to_uppercase()),
            None => without_links(line),
        });
    let mut comment = "\
/* corelane: embedded inference with pinned workers and no heap on the request path.
 *
 * Generated from the sources (src/capi); a test holds it against them. What holds for all functions
 * comes first, each one's own rule stands at it.
 *\n"
    .to_owned();
    for line in rules {
        comment += &format!(" *{line}\n");
    }
    assert!(comment.lines().count() > 40, "the rules are gone from {:?}", source("mod"));
    comment + " */"
}

/// Rust's links as their words: `[text](path)` and `` [`text`] ``.
fn without_links(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, (inside, after))) =
        rest.split_once('[').and_then(|(b, a)| Some((b, a.split_once(']')?)))
    {
        let target = after.strip_prefix('(').and_then(|a| a.split_once(')'));
        out += before;
        // Brackets that are no link stay.
        match inside.starts_with('`') {
            true => out += inside,
            false => out += &format!("[{inside}]"),
        }
        rest = target.map_or(after, |(_, after)| after);
    }
    out + rest
}

const PREAMBLE: &str = "\
#ifndef CORELANE_H
#define CORELANE_H

/** A time to wait that has no end. */
#define CORELANE_WAIT_FOREVER UINT64_MAX

#if defined(__GNUC__) && !defined(__cplusplus)
/* Each enum's name is also that of its integer type; C++ takes the other branch. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored \"-Wc++-compat\"
#endif";

const TRAILER: &str = "\
#if defined(__GNUC__) && !defined(__cplusplus)
#pragma GCC diagnostic pop
#endif

#ifdef __cplusplus
extern \"C\" {
#endif

/**
 * Makes a builder, if the library serves programs that were compiled with this header.
 *
 * Ownership: the builder is the caller's, until `corelane_builder_free`.
 *
 * Errors: `ABI_MISMATCH`: it does not; the message has both versions.
 */
static inline corelane_status corelane_builder_new(struct corelane_builder **builder)
{
    return corelane_builder_new_abi(CORELANE_ABI_VERSION, builder);
}

#ifdef __cplusplus
}
#endif

#endif /* CORELANE_H */
";

fn generate() -> String {
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        cpp_compat: true,
        header: Some(introduction() + "\n" + PREAMBLE),
        sys_includes: vec!["stddef.h".into(), "stdint.h".into()],
        no_includes: true,
        line_length: 100,
        style: cbindgen::Style::Both,
        documentation_style: cbindgen::DocumentationStyle::Doxy,
        trailer: Some(TRAILER.trim_end().into()),
        ..Default::default()
    };
    config.usize_is_size_t = true;
    config.export.include =
        ["corelane_idle", "corelane_dtype", "corelane_close_reason"].map(String::from).into();
    config.enumeration.rename_variants = cbindgen::RenameRule::QualifiedScreamingSnakeCase;
    config.function.args = cbindgen::Layout::Auto;
    config.constant.allow_static_const = false;
    // It follows the modules by itself.
    let builder = cbindgen::Builder::new().with_config(config).with_src(source("mod"));
    let mut text = Vec::new();
    builder.generate().expect("the sources have a C interface").write(&mut text);
    let text = String::from_utf8(text).unwrap();
    // Rust's documentation speaks Markdown; a C header has no use for its headings and links.
    let text = text.replace(" * # Errors\n", " * Errors:\n");
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[test]
fn the_header_is_current() {
    let path = root().join("include/corelane.h");
    let wanted = generate();
    if std::env::var("CORELANE_HEADER").is_ok_and(|v| v == "write") {
        std::fs::write(&path, &wanted).unwrap();
    }
    for Function { name, .. } in functions() {
        assert!(wanted.contains(&format!("{name}(")), "cbindgen left {name} out");
    }
    let is = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = is.lines().zip(wanted.lines()).position(|(a, b)| a != b);
    assert!(
        is == wanted,
        "include/corelane.h is not what the sources give (first difference in line {:?}); write it \
         with CORELANE_HEADER=write",
        differs.map(|n| n + 1)
    );
}

/// A function of the C interface, as its source has it.
struct Function {
    name: String,
    docs: String,
    signature: String,
    body: String,
}

fn functions() -> Vec<Function> {
    let mut found = Vec::new();
    for file in FILES {
        let text = std::fs::read_to_string(source(file)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (n, _) in lines.iter().enumerate().filter(|(_, l)| l.contains("unsafe(no_mangle)")) {
            let above: Vec<&str> =
                lines[..n].iter().rev().take_while(|l| l.starts_with("///")).copied().collect();
            let end = n + lines[n..].iter().position(|l| *l == "}").unwrap();
            let open = n + lines[n..].iter().position(|l| l.ends_with('{')).unwrap();
            let signature = lines[n + 1..=open].join("\n");
            let name = signature.split("fn ").nth(1).unwrap().split('(').next().unwrap();
            found.push(Function {
                name: name.into(),
                docs: above.into_iter().rev().collect::<Vec<_>>().join("\n"),
                body: lines[open + 1..end].join("\n"),
                signature,
            });
        }
    }
    found
}

#[test]
fn every_function_keeps_the_rules() {
    const NOUNS: [&str; 8] =
        ["abi", "library", "status", "error", "log", "builder", "runtime", "model"];
    let functions = functions();
    assert!(functions.len() > 30, "the functions were not found");
    for Function { name, docs, signature, body } in &functions {
        let mut words = name.strip_prefix("corelane_").expect(name).split('_');
        let noun = words.next().unwrap();
        assert!(NOUNS.contains(&noun) || noun == "request", "{name}: no such noun");
        assert!((1..=3).contains(&words.count()), "{name}: a noun, and one to three words");
        assert!(docs.contains("Ownership: "), "{name} does not say who owns what");
        let fails = signature.contains("-> corelane_status");
        assert_eq!(docs.contains("# Errors"), fails, "{name}: its errors");
        let constant = !body.contains("unsafe") && body.lines().count() <= 2;
        let fixed = name == "corelane_error_message";
        assert!(body.contains("guard") || constant || fixed, "{name} lets a panic out");
    }
}
