//! The style that a machine can check: who may import whom, where unsafe and raw atomics live, how
//! long a file may be, which calls have a better replacement. Plain text checks over the sources.
//!
//! Every rule carries a snippet that breaks it and one that keeps it, and is tested on both.

mod lexer;

use lexer::{code_only, uses_of_crate};
use std::path::{Path, PathBuf};

/// One text file of the repository.
struct File {
    /// Path from the repository's root, with `/`.
    path: String,
    /// The whole text.
    text: String,
    /// The text with comments, strings and characters blanked, lines kept (Rust files only).
    code: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        let code = if path.ends_with(".rs") { code_only(text) } else { String::new() };
        File { path: path.into(), text: text.into(), code }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Tests have files of their own.
    fn is_test(&self) -> bool {
        self.path.starts_with("tests/")
            || self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
            || self.path.ends_with("_tests.rs")
    }

    fn in_any(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    /// The room of a file under `src/`.
    fn room(&self) -> Option<&str> {
        let inner = self.path.strip_prefix("src/")?;
        let first = inner.split('/').next()?;
        Some(first.strip_suffix(".rs").unwrap_or(first)).filter(|&room| room != "lib")
    }

    /// Lines of code that contain `needle` as a whole word (or path), with their numbers.
    fn lines_with(&self, needle: &str) -> Vec<usize> {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        (self.code.lines().enumerate())
            .filter(|(_, line)| {
                line.match_indices(needle).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    let after = line[at + needle.len()..].chars().next();
                    let starts = needle.starts_with(word);
                    let ends = needle.ends_with(word);
                    !(starts && before.is_some_and(word) || ends && after.is_some_and(word))
                })
            })
            .map(|(n, _)| n + 1)
            .collect()
    }
}

/// What each room may use: other rooms, or a part of one. `*` is everything.
///
/// The words that everybody shares (`limits`, `units`, and `toml_errors` among the readers of files)
/// are listed where they are used, like any other.
const ROOMS: &[(&str, &[&str])] = &[
    // Half one.
    ("limits", &[]),
    ("units", &[]),
    ("log", &[]),
    // Pages: text only.
    ("docs", &[]),
    ("wire", &["limits", "units"]),
    // Its adapter for a line of this machine opens a terminal and reads the clock.
    ("client", &["wire", "limits", "units", "sys::terminal", "sys::clock"]),
    // Half two.
    ("sys", &["limits", "units"]),
    // A queue's slots are laid out by the model's signature.
    ("queue", &["sys", "limits", "units", "model::signature"]),
    ("batch", &["limits", "units"]),
    ("toml_errors", &[]),
    // A signature's payload is laid out by the protocol's rule.
    ("model", &["limits", "units", "engine", "sys", "toml_errors", "wire"]),
    ("engine", &["limits", "units", "sys", "model::signature"]),
    ("metrics", &["limits", "units", "sys", "queue"]),
    ("logs", &["limits", "units", "sys"]),
    // A worker records what it did in the metrics' fixed memory.
    ("worker", &["limits", "units", "sys", "queue", "batch", "engine", "metrics"]),
    // I/O moves rows between sockets and slots, and hands `Stats` the text of the metrics.
    ("transport", &["limits", "units", "sys", "queue", "wire", "model::signature", "metrics"]),
    // The configuration is made of the settings of those that it configures.
    (
        "config",
        &[
            "limits",
            "units",
            "toml_errors",
            "model",
            "engine",
            "worker",
            "runtime",
            "transport",
            "logs",
            "sys::files",
        ],
    ),
    ("board", &["limits", "units", "toml_errors", "sys"]),
    // The one that knows all, but for those that use it.
    (
        "runtime",
        &[
            "limits",
            "units",
            "sys",
            "queue",
            "batch",
            "engine",
            "metrics",
            "worker",
            "transport",
            "wire",
            "model",
            "config",
            "board",
            "toml_errors",
            "client",
        ],
    ),
    ("capi", &["runtime", "units", "limits", "sys", "queue", "model", "config", "worker", "board"]),
    // The lab measures the runtime from outside and single parts against their floors.
    ("lab", &["*"]),
    // Argument parsing and printing; it names the crate as its users do.
    ("bin", &["*"]),
];

/// Where unsafe code may live.
const UNSAFE_ROOMS: &[&str] = &[
    "src/sys/",
    "src/queue/",
    "src/engine/kernels/",
    "src/engine/ort/",
    "src/capi/",
    // Registers of microcontrollers; corelane's own part in their firmware has no unsafe code.
    "boards/lm3s6965evb/src/board/",
    "boards/footprint/src/glue.rs",
    // defmt's logger is a trait that is unsafe to implement; nothing else is unsafe there.
    "src/bin/corelane/hot/logger.rs",
    // Models of the queue claim ownership of records, which loom then checks.
    "tests/loom",
];

/// Where the raw atomics may be named.
///
/// The allocators, and settings of the process, live in statics, and loom's atomics can't be made in a
/// constant.
const ATOMIC_ROOMS: &[&str] =
    &["src/sys/sync.rs", "src/sys/alloc.rs", "src/sys/pool.rs", "src/sys/region.rs"];

/// Rooms whose threads serve requests.
const HOT: &[&str] = &["src/worker/", "src/queue/", "src/batch/", "src/transport/", "src/sys/"];

const CODE_LINES_MAX: usize = 600;
const TEST_LINES_MAX: usize = 1200;

/// A call that has a better replacement, and where.
struct Ban {
    needle: &'static str,
    inside: &'static [&'static str],
    except: &'static [&'static str],
    in_tests_too: bool,
    instead: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        needle: "println!",
        inside: &["src/"],
        except: &["src/bin/"],
        in_tests_too: false,
        instead: "`event!`, or return the text: only bin/ prints",
    },
    Ban {
        needle: "eprintln!",
        inside: &["src/"],
        except: &["src/bin/"],
        in_tests_too: false,
        instead: "`event!`, or return the text: only bin/ prints",
    },
    Ban {
        needle: "thread::sleep",
        inside: &["src/worker/", "src/queue/", "src/transport/", "src/batch/"],
        except: &[],
        in_tests_too: false,
        instead: "sleeping on a word (`sys::futex`) or in the poll, so that it can be woken",
    },
    Ban {
        needle: "HashMap",
        inside: &["src/worker/", "src/queue/", "src/transport/", "src/batch/", "src/sys/"],
        except: &[],
        in_tests_too: false,
        instead: "a table of fixed size: a map allocates and hashes on the request path",
    },
    Ban {
        needle: "Instant::now",
        inside: HOT,
        // The loopback is the client's side of a test transport.
        except: &["src/sys/clock.rs", "src/transport/loopback.rs"],
        in_tests_too: false,
        instead: "`sys::clock::now()`: one clock, in integer nanoseconds",
    },
    Ban {
        needle: "SystemTime",
        inside: &["src/", "benches/", "examples/"],
        except: &[],
        in_tests_too: true,
        instead: "`sys::clock::now()`: the wall clock jumps",
    },
    Ban {
        needle: "todo!",
        inside: &["src/", "tests/", "benches/", "examples/"],
        except: &[],
        in_tests_too: true,
        instead: "the code itself, or a typed error",
    },
    Ban {
        needle: "unimplemented!",
        inside: &["src/", "tests/", "benches/", "examples/"],
        except: &[],
        in_tests_too: true,
        instead: "the code itself, or a typed error",
    },
    Ban {
        needle: "dbg!",
        inside: &["src/", "tests/", "benches/", "examples/"],
        except: &[],
        in_tests_too: true,
        instead: "`event!`",
    },
    Ban {
        needle: "process::exit",
        inside: &["src/"],
        except: &["src/bin/"],
        in_tests_too: true,
        instead: "an error: a library does not end its user's process",
    },
    Ban {
        needle: "heapless::mpmc",
        inside: &["src/"],
        except: &[],
        in_tests_too: true,
        instead: "`queue::ring::IndexRing`: heapless' queue is not lock-free, by its own docs",
    },
    Ban {
        needle: "CobsAccumulator",
        inside: &["src/", "boards/"],
        except: &[],
        in_tests_too: true,
        instead: "`wire`'s framing: after an oversized frame the accumulator parses its tail",
    },
];

type Findings = Vec<String>;

fn at(file: &File, line: usize, what: impl std::fmt::Display) -> String {
    format!("{}:{line}: {what}", file.path)
}

fn imports(file: &File) -> Findings {
    let Some(room) = file.room().filter(|_| file.is_rust() && !file.is_test()) else {
        return Vec::new();
    };
    let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
        return vec![at(file, 1, format!("room {room:?} has no row in the table of rooms"))];
    };
    if allowed.contains(&"*") {
        return Vec::new();
    }
    uses_of_crate(&file.path, &file.code)
        .into_iter()
        .filter(|(_, path)| {
            let head = path.split("::").next().unwrap_or_default();
            // A name that is no room is a macro, or the crate itself.
            head != room
                && ROOMS.iter().any(|(name, _)| *name == head)
                && !allowed.iter().any(|a| path == a || path.starts_with(&format!("{a}::")))
        })
        .map(|(line, path)| {
            at(file, line, format!("room {room:?} may not use {path:?}, only {allowed:?}"))
        })
        .collect()
}

fn unsafe_rooms(file: &File) -> Findings {
    if file.in_any(UNSAFE_ROOMS) {
        return Vec::new();
    }
    (file.lines_with("unsafe").into_iter())
        .map(|line| {
            at(file, line, "unsafe outside the marked rooms: wrap it in sys, queue or kernels")
        })
        .collect()
}

fn raw_atomics(file: &File) -> Findings {
    if file.is_test() || !file.path.starts_with("src/") || file.in_any(ATOMIC_ROOMS) {
        return Vec::new();
    }
    (file.lines_with("sync::atomic").into_iter())
        .map(|line| at(file, line, "raw atomics: use sys::sync, which loom can watch"))
        .collect()
}

fn file_length(file: &File) -> Findings {
    let max = if file.is_test() { TEST_LINES_MAX } else { CODE_LINES_MAX };
    let lines = file.text.lines().count();
    if !file.is_rust() || lines <= max {
        return Vec::new();
    }
    vec![at(file, lines, format!("{lines} lines, at most {max}: split it"))]
}

fn tests_in_own_file(file: &File) -> Findings {
    if file.is_test() {
        return Vec::new();
    }
    (file.code.lines().enumerate())
        .filter(|(_, line)| {
            let line = line.trim_start();
            line.starts_with("mod ") && line.contains("tests") && line.contains('{')
        })
        .map(|(n, _)| at(file, n + 1, "tests go in a file of their own (`tests.rs`)"))
        .collect()
}

fn machine_paths(file: &File) -> Findings {
    // Spelled in two halves, so that this file passes.
    let everywhere = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("pypi", ".org"),
        concat!("crates", ".io/api"),
        concat!("index.crates", ".io"),
        concat!("files.python", "hosted"),
        concat!("proxy.go", "lang"),
    ];
    let in_sources = concat!("/tm", "p/");
    let mut found = Vec::new();
    for (n, line) in file.text.lines().enumerate() {
        for pattern in everywhere {
            if line.contains(pattern) {
                found.push(at(file, n + 1, format!("names {pattern:?}, which is one machine's")));
            }
        }
        if line.contains(in_sources) && file.path.starts_with("src/") && !file.is_test() {
            found.push(at(
                file,
                n + 1,
                format!("names {in_sources:?}: take the path as an option"),
            ));
        }
    }
    found
}

fn banned(file: &File) -> Findings {
    let mut found = Vec::new();
    for ban in BANS {
        let spared = (file.is_test() && !ban.in_tests_too) || file.path == "tests/tidy.rs";
        if !file.is_rust() || spared || !file.in_any(ban.inside) || file.in_any(ban.except) {
            continue;
        }
        for line in file.lines_with(ban.needle) {
            found.push(at(file, line, format!("`{}`; use {}", ban.needle, ban.instead)));
        }
    }
    found
}

fn fences_name_their_partner(file: &File) -> Findings {
    if file.is_test() || !file.path.starts_with("src/queue/") {
        return Vec::new();
    }
    let lines: Vec<&str> = file.text.lines().collect();
    (file.lines_with("fence(").into_iter())
        .filter(|&line| {
            let above = &lines[line.saturating_sub(4)..line - 1];
            !above.iter().any(|l| l.contains("Partner: "))
        })
        .map(|line| at(file, line, "a fence without `Partner: ` in the comment above it"))
        .collect()
}

/// Words that a limit may end with: a unit, or what is counted.
const UNIT_WORDS: &[&str] = &[
    "BYTES",
    "LEN",
    "NS",
    "US",
    "MS",
    "S",
    "ROWS",
    "COUNT",
    "MODELS",
    "WORKERS",
    "CORES",
    "TENSORS",
    "AXES",
    "LEVELS",
    "SIZES",
    "SIZE",
    "REQUESTS",
    "SLOTS",
    "CONNECTIONS",
    "FLIGHT",
    "STEPS",
    "NODES",
    "CHARS",
    "BUCKETS",
    "TIMES",
    "PERCENT",
    "BAUD",
    "BITS",
    "LISTENERS",
    "RECORDS",
    "UIDS",
    "LABELS",
    "ENTRIES",
    "LINES",
    "DEPTH",
];

/// Names of the limits, with their lines.
fn limit_names(file: &File) -> Vec<(usize, String)> {
    (file.code.lines().enumerate())
        .filter_map(|(n, line)| {
            let rest = line.trim_start().strip_prefix("pub const ")?;
            Some((n + 1, rest.split(':').next()?.trim().to_owned()))
        })
        .collect()
}

fn limits_end_in_units(file: &File) -> Findings {
    if file.path != "src/limits.rs" {
        return Vec::new();
    }
    (limit_names(file).into_iter())
        .filter(|(_, name)| {
            let mut base = name.as_str();
            while let Some(shorter) =
                ["_DEFAULT", "_MAX", "_MIN"].iter().find_map(|end| base.strip_suffix(end))
            {
                base = shorter;
            }
            let base = base.split("_PER_").next().unwrap_or(base);
            let last = base.rsplit('_').next().unwrap_or(base);
            !UNIT_WORDS.contains(&last)
        })
        .map(|(line, name)| at(file, line, format!("{name} does not say its unit")))
        .collect()
}

/// A rule, a file that breaks it, and a file that keeps it.
struct Rule {
    name: &'static str,
    check: fn(&File) -> Findings,
    bad: (&'static str, &'static str),
    good: (&'static str, &'static str),
}

const RULES: &[Rule] = &[
    Rule {
        name: "imports follow the rooms",
        check: imports,
        bad: ("src/batch/mod.rs", "use crate::{limits::BATCH_ROWS_MAX, queue};\n"),
        good: (
            "src/batch/mod.rs",
            "// crate::queue\nuse crate::{limits::X, units::{Rows, Nanos}};\n",
        ),
    },
    Rule {
        name: "imports of a part stay in the part",
        check: imports,
        bad: ("src/queue/slot.rs", "use crate::model::{signature::Signature, load};\n"),
        good: ("src/queue/slot.rs", "use crate::model::signature::{self, Signature};\n"),
    },
    Rule {
        name: "a room is not left through super",
        check: imports,
        bad: ("src/wire/frame.rs", "fn f() { super::super::sys::clock::now(); }\n"),
        good: ("src/wire/frame.rs", "fn f() { super::message::g(); }\n"),
    },
    Rule {
        name: "half one knows nothing of half two",
        check: imports,
        bad: ("src/client/session.rs", "use crate::runtime::Runtime;\n"),
        good: ("src/client/session.rs", "use crate::wire::frame;\n"),
    },
    Rule {
        name: "a new room gets a row",
        check: imports,
        bad: ("src/attic/mod.rs", "fn f() {}\n"),
        good: ("src/limits.rs", "pub const X_BYTES: usize = 1;\n"),
    },
    Rule {
        name: "unsafe stays in its rooms",
        check: unsafe_rooms,
        bad: ("src/worker/run.rs", "fn f() { unsafe { g() } }\n"),
        good: (
            "src/worker/run.rs",
            "// unsafe\n#![deny(unsafe_code)]\nconst S: &str = \"unsafe\";\n",
        ),
    },
    Rule {
        name: "atomics go through the shim",
        check: raw_atomics,
        bad: ("src/runtime/stats.rs", "use std::sync::atomic::AtomicU64;\n"),
        good: ("src/runtime/stats.rs", "use crate::sys::sync::AtomicU64;\n"),
    },
    Rule {
        name: "tests have their own file",
        check: tests_in_own_file,
        bad: ("src/wire/frame.rs", "#[cfg(test)]\nmod tests {\n}\n"),
        good: ("src/wire/frame.rs", "#[cfg(test)]\nmod tests;\n"),
    },
    Rule {
        name: "no path of one machine",
        check: machine_paths,
        bad: ("README.md", concat!("see /wo", "rk/notes\n")),
        good: ("README.md", "see ../shared/models\n"),
    },
    Rule {
        name: "no temporary path in the sources",
        check: machine_paths,
        bad: ("src/config.rs", concat!("const P: &str = \"/tm", "p/x\";\n")),
        good: ("src/config/tests.rs", concat!("const P: &str = \"/tm", "p/x\";\n")),
    },
    Rule {
        name: "no banned call",
        check: banned,
        bad: ("src/worker/mod.rs", "fn f() { std::thread::sleep(d); }\n"),
        good: ("src/worker/mod.rs", "fn f() { idle.sleep(0, None); }\n"),
    },
    Rule {
        name: "only bin prints",
        check: banned,
        bad: ("src/lab/mod.rs", "fn f() { println!(\"\"); }\n"),
        good: ("src/bin/corelane/main.rs", "fn f() { println!(\"\"); }\n"),
    },
    Rule {
        name: "fences name their partner",
        check: fences_name_their_partner,
        bad: ("src/queue/idle.rs", "fn f() {\n    fence(Ordering::SeqCst);\n}\n"),
        good: ("src/queue/idle.rs", "// Partner: the fence in g.\nfence(Ordering::SeqCst);\n"),
    },
    Rule {
        name: "limits say their units",
        check: limits_end_in_units,
        bad: ("src/limits.rs", "pub const FRAME_MAX: usize = 1;\n"),
        good: ("src/limits.rs", "pub const FRAME_BYTES_MAX: usize = 1;\n"),
    },
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn collect(dir: &Path, out: &mut Vec<File>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with("target") && name != ".git" && name != "__pycache__" {
                collect(&path, out);
            }
            continue;
        }
        // A lock file names its registry, as it must. Binary files have no style.
        if name == "Cargo.lock" || name == ".git" {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let inner = path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
        out.push(File::new(&inner, &text));
    }
}

fn tree() -> Vec<File> {
    let mut files = Vec::new();
    collect(&root(), &mut files);
    files
}

fn report(findings: Findings) {
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn each_rule_can_fail_and_can_pass() {
    for rule in RULES {
        let bad = (rule.check)(&File::new(rule.bad.0, rule.bad.1));
        assert_eq!(bad.len(), 1, "{}: the bad snippet gave {bad:?}", rule.name);
        let good = (rule.check)(&File::new(rule.good.0, rule.good.1));
        assert!(good.is_empty(), "{}: the good snippet gave {good:?}", rule.name);
    }
    for (path, max) in [("src/a.rs", CODE_LINES_MAX), ("src/a/tests.rs", TEST_LINES_MAX)] {
        assert!(file_length(&File::new(path, &"\n".repeat(max))).is_empty());
        assert_eq!(file_length(&File::new(path, &"\n".repeat(max + 1))).len(), 1);
    }
    for ban in BANS {
        let path = format!("{}x.rs", ban.inside[0]);
        let file = File::new(&path, &format!("fn f() {{ {}; }}\n", ban.needle));
        assert_eq!(banned(&file).len(), 1, "{}", ban.needle);
    }
}

#[test]
fn the_tree_is_tidy() {
    let files = tree();
    assert!(files.iter().filter(|f| f.is_rust()).count() > 30, "the sources were not found");
    let mut findings = Vec::new();
    let mut seen: Vec<fn(&File) -> Findings> = Vec::new();
    for check in RULES.iter().map(|r| r.check).chain([file_length as fn(&File) -> Findings]) {
        if seen.iter().any(|&s| std::ptr::fn_addr_eq(s, check)) {
            continue;
        }
        seen.push(check);
        findings.extend(files.iter().flat_map(check));
    }
    report(findings);
}

#[test]
fn every_limit_is_used() {
    let files = tree();
    let limits = files.iter().find(|f| f.path == "src/limits.rs").unwrap();
    let names = limit_names(limits);
    assert!(names.len() > 20, "the limits were not found");
    let used = |name: &str| {
        (files.iter().filter(|f| f.is_rust() && f.path.starts_with("src/")))
            .any(|f| f.path != "src/limits.rs" && !f.lines_with(name).is_empty())
    };
    assert!(!used("NO_SUCH_LIMIT_BYTES"));
    report(
        (names.iter())
            .filter(|(_, name)| !used(name))
            .map(|(line, name)| at(limits, *line, format!("{name} limits nothing")))
            .collect(),
    );
}

#[test]
fn the_lexer_blanks_what_is_not_code() {
    let code = code_only("a /* b /* c */ d */ e // f\n\"g\\\"h\" r#\"i\"j\"# 'k' '\\'' 'l: m");
    for blank in ["b", "c", "d", "f", "g", "h", "i", "j", "k"] {
        assert!(!code.contains(blank), "{blank} is still in {code:?}");
    }
    for kept in ["a", "e", "'l: m"] {
        assert!(code.contains(kept), "{kept} is gone from {code:?}");
    }
    assert_eq!(code.lines().count(), 2);
}
