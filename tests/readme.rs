//! What the README says is held against the code: commands against the arguments that clap reads,
//! TOML blocks against the parsers, tables against their sources, the Python block against a server.
//!
//! After a change of a source, `CORELANE_README=write cargo test --release --locked --test readme`
//! writes the generated parts anew.

#[path = "../src/bin/corelane/args.rs"]
#[allow(dead_code)]
mod args;
#[path = "../src/bin/corelane/exit.rs"]
#[allow(dead_code)]
mod exit;

use clap::Parser;
use corelane::config::Config;
use corelane::lab::compare::Gate;
use corelane::model::Manifest;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Fenced blocks of a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside: Option<(bool, String)> = None;
    for line in text.lines() {
        match (&mut inside, line.strip_prefix("```")) {
            (None, Some(tag)) => inside = Some((tag == language, String::new())),
            (Some(_), Some(_)) => found.extend(inside.take().filter(|(is, _)| *is).map(|b| b.1)),
            (Some((_, body)), None) => {
                body.push_str(line);
                body.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

/// A directory that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("corelane-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that is ended with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn parse_command(line: &str) -> Result<args::Cli, String> {
    let words = line.split_whitespace();
    args::Cli::try_parse_from(words).map_err(|e| format!("{line:?}: {e}"))
}

/// `corelane ...` of a console block, also where cargo runs it.
fn commands() -> Vec<String> {
    (blocks(&read("README.md"), "console").iter())
        .flat_map(|block| block.lines().map(str::to_owned).collect::<Vec<_>>())
        .map(|line| match line.split_once("cargo run --release --locked -- ") {
            Some((_, arguments)) => format!("corelane {arguments}"),
            None => line,
        })
        .filter(|line| line.starts_with("corelane "))
        .collect()
}

#[test]
fn every_command_is_one_that_the_program_takes() {
    let commands = commands();
    assert!(commands.len() >= 7, "{commands:?}");
    for command in &commands {
        parse_command(command).unwrap_or_else(|e| panic!("{e}"));
        for word in command.split_whitespace().filter(|w| w.starts_with("models/")) {
            assert!(root().join(word).exists(), "{command:?}: no {word}");
        }
    }
    assert!(parse_command("corelane serve --no-such-option").is_err());
    assert!(parse_command("corelane brew").is_err());
}

#[test]
fn the_test_command_is_the_one_that_ci_runs() {
    let command = "cargo test --release --locked";
    assert!(blocks(&read("README.md"), "console").iter().any(|b| b.trim() == command));
    assert!(read(".ci/run").contains(&format!("tests() {{ {command}; }}")));
    assert!(read(".ci/run").contains("demo() { cargo run --release --locked -- demo; }"));
}

#[test]
fn the_commands_for_a_microcontroller_are_the_ones_that_ci_runs() {
    let script = read(".ci/run").replace("\\\n", " ");
    let script = script.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = read("boards/lm3s6965evb/README.md");
    let commands: Vec<_> = blocks(&text, "console").iter().map(|b| b.trim().to_owned()).collect();
    assert_eq!(commands.len(), 2);
    for command in commands {
        assert!(script.contains(&command), "CI does not run {command:?}");
    }
}

#[test]
fn every_toml_block_is_read_by_its_parser() {
    let scratch = Scratch::new("readme-toml");
    let mut seen = [0; 4];
    for block in blocks(&read("README.md"), "toml") {
        let name = block.lines().next().and_then(|l| l.strip_prefix("# ")).expect("a file name");
        let path = scratch.0.join(name);
        std::fs::write(&path, &block).unwrap();
        match name {
            "corelane.toml" => {
                let config = Config::read(&path).unwrap_or_else(|e| panic!("{e}\n{block}"));
                assert!(!config.models.is_empty());
                seen[0] += 1;
            }
            "manifest.toml" => {
                Manifest::read(&path).unwrap_or_else(|e| panic!("{e}\n{block}"));
                seen[1] += 1;
            }
            "Cargo.toml" => {
                block.parse::<toml::Table>().unwrap_or_else(|e| panic!("{e}\n{block}"));
                seen[2] += 1;
            }
            "gate.toml" => {
                let gate = Gate::parse(name, &block).unwrap_or_else(|e| panic!("{e}"));
                assert!(!gate.rules.is_empty());
                seen[3] += 1;
            }
            other => panic!("a TOML block of {other:?}, which nothing reads"),
        }
    }
    assert!(seen.iter().all(|&n| n > 0), "{seen:?}");
}

/// Boards by name.
fn boards() -> String {
    let mut out =
        "| name | board | workers | I/O | builds for |\n|---|---|---|---|---|\n".to_string();
    for name in corelane::board::names() {
        let board = corelane::board::Board::read(name).unwrap();
        let list = corelane::sys::affinity::core_list;
        let (workers, io) = match &board.cores {
            Some(plan) => (list(&plan.workers), list(&plan.io.into_iter().collect::<Vec<_>>())),
            None => ("all but the first".into(), "the first".into()),
        };
        let (title, target) = (&board.title, &board.build.target);
        out.push_str(&format!("| `{name}` | {title} | {workers} | {io} | `{target}` |\n"));
    }
    out
}

fn exit_codes() -> String {
    let rows = exit::TABLE.iter().map(|(number, what)| format!("| {number} | {what} |\n"));
    format!("| code | meaning |\n|---|---|\n{}", rows.collect::<String>())
}

/// The table in the documentation of the manifest's module, without the links of rustdoc.
fn manifest_keys() -> String {
    (read("src/model/manifest.rs").lines())
        .take_while(|line| line.starts_with("//!"))
        .filter_map(|line| line.strip_prefix("//! ").filter(|l| l.starts_with('|')))
        .map(|line| {
            let engine = corelane::model::manifest::DEFAULT_ENGINE.name();
            let line = line.replace("[`DEFAULT_ENGINE`]", &format!("`\"{engine}\"`"));
            line.replace("[`FakeSection`]", "`FakeSection`") + "\n"
        })
        .collect()
}

#[test]
fn the_generated_parts_are_up_to_date() {
    let parts = [
        ("embed", format!("```rust\n{}```\n", read("examples/embed.rs"))),
        ("manifest", manifest_keys()),
        ("config", corelane::config::reference()),
        ("boards", boards()),
        ("exit", exit_codes()),
    ];
    let old = read("README.md");
    let mut new = old.clone();
    for (name, content) in &parts {
        let begin = format!("<!-- generated: {name} -->\n");
        let start = new.find(&begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
        let end = start + new[start..].find("<!-- end -->").expect("an end");
        assert!(content.lines().count() > 3, "{name} is empty");
        new.replace_range(start..end, content);
    }
    if std::env::var("CORELANE_README").is_ok_and(|v| v == "write") {
        std::fs::write(root().join("README.md"), &new).unwrap();
        return;
    }
    let differs = old.lines().zip(new.lines()).find(|(a, b)| a != b);
    assert!(old == new, "run with CORELANE_README=write; first difference: {differs:?}");
}

#[test]
fn every_path_it_names_is_there() {
    let text = read("README.md");
    let prose: String = text.split("```").step_by(2).collect();
    let mut checked = 0;
    for word in prose.split('`').skip(1).step_by(2) {
        let is_path = ["src/", "examples/", "models/", ".ci/", "LICENSE", "tests/", "boards/"]
            .iter()
            .any(|start| word.starts_with(start));
        if is_path {
            let path = word.replace("NAME", "mlp");
            assert!(root().join(&path).exists(), "{word} is not there");
            checked += 1;
        }
    }
    assert!(checked >= 5, "only {checked} paths were found");
}

#[test]
fn the_python_block_talks_to_a_server() {
    let scratch = Scratch::new("readme-python");
    // The model as the README serves it; one unpinned worker, so that any machine will do.
    let mut server = Server(
        Command::new(env!("CARGO_BIN_EXE_corelane"))
            .args(["serve", "--unix", "corelane.sock", "--unpinned", "1", "--model"])
            .arg(root().join("models/mlp"))
            .current_dir(&scratch.0)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts"),
    );
    let mut ready = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.contains("\"ready\":true"), "{ready:?}");
    let block = blocks(&read("README.md"), "python").concat();
    assert!(block.contains("connect"));
    let output = Command::new("python3")
        .args(["-c", &block])
        .current_dir(&scratch.0)
        .env("PYTHONPATH", root().join("examples/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python3 is required");
    assert!(
        output.status.success() && !output.stdout.is_empty(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
