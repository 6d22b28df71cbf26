//! The C library as its users have it: installed, found through pkg-config and CMake, linked by C and
//! C++ programs outside the repository, watched by valgrind and the address sanitizer.
//!
//! ```text
//! apt-get install gcc g++ make pkg-config cmake valgrind binutils
//! cargo test --release --locked --features capi --test capi
//! ```

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const PREFIX: &str = "/opt/corelane";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn source(name: &str) -> PathBuf {
    root().join("tests/capi").join(name)
}

fn model(name: &str) -> PathBuf {
    root().join("models").join(name)
}

/// Runs a command to its end; its output if it succeeded.
#[track_caller]
fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|e| panic!("{command:?}: {e}; is it installed?"));
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}\n{err}");
    format!("{out}{err}")
}

/// Where `make install-lib DESTDIR=... PREFIX=/opt/corelane` has put everything, once.
fn installed() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        install(&place, &[&format!("PREFIX={PREFIX}")]);
        place
    })
}

/// Puts everything below an empty `place`.
#[track_caller]
fn install(place: &Path, variables: &[&str]) {
    let _ = std::fs::remove_dir_all(place);
    run(Command::new("make")
        .current_dir(root())
        .arg("install-lib")
        .arg(format!("DESTDIR={}", place.display()))
        .args(variables));
}

fn lib_dir() -> PathBuf {
    installed().join(&PREFIX[1..]).join("lib")
}

/// A directory outside the repository that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("corelane-capi-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    /// A model that computes nothing: four bytes in and out; a first byte of 238 fails, 221 panics.
    fn fake(&self, name: &str, compute_us: u32, more: &str) -> PathBuf {
        let dir = self.0.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let text = format!(
            "name = '{name}'\nengine = 'fake'\n{more}\n[fake]\n\
             inputs = [{{ name = 'x', dtype = 'uint8', shape = [4] }}]\n\
             outputs = [{{ name = 'y', dtype = 'uint8', shape = [4] }}]\n\
             compute_us = {compute_us}\nerror_marker = 238\npanic_marker = 221\n"
        );
        std::fs::write(dir.join("manifest.toml"), text).unwrap();
        dir
    }

    /// A program made from `source`, with the words that pkg-config gives for `how`.
    #[track_caller]
    fn compile(&self, compiler: &[&str], source: &Path, how: &[&str]) -> PathBuf {
        let program = self.0.join(source.file_stem().unwrap());
        run(Command::new(compiler[0])
            .current_dir(&self.0)
            .args(&compiler[1..])
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-o"])
            .arg(&program)
            .arg(source)
            .args(pkg_config(how)));
        program
    }

    fn slow(&self) -> PathBuf {
        self.fake("slow", 20_000, "batch_sizes = [1]\nmax_queue_size = 2")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What pkg-config says of the installed library.
#[track_caller]
fn pkg_config(how: &[&str]) -> Vec<String> {
    pkg_config_of("corelane", how)
}

/// What it says of one of its two files.
#[track_caller]
fn pkg_config_of(name: &str, how: &[&str]) -> Vec<String> {
    let text = run(Command::new("pkg-config")
        .env("PKG_CONFIG_LIBDIR", lib_dir().join("pkgconfig"))
        .env("PKG_CONFIG_SYSROOT_DIR", installed())
        .args(how)
        .arg(name));
    text.split_whitespace().map(str::to_owned).collect()
}

const SHARED: &[&str] = &["--cflags", "--libs"];
const C: &[&str] = &["cc", "-std=c11", "-D_GNU_SOURCE"];
const CPP: &[&str] = &["c++", "-std=c++17"];

/// Runs a program with the installed shared library.
#[track_caller]
fn start<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> String {
    let text = run(Command::new(program).args(arguments).env("LD_LIBRARY_PATH", lib_dir()));
    print!("{text}");
    text
}

/// The same, watched by valgrind: an invalid access or a block that nobody reaches any more fails.
#[track_caller]
fn watched<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> String {
    let text = run(Command::new("valgrind")
        .args(["--quiet", "--error-exitcode=99", "--leak-check=full"])
        .args(["--show-leak-kinds=definite,indirect,possible"])
        .args(["--errors-for-leak-kinds=definite,indirect,possible"])
        .arg(program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", lib_dir()));
    print!("{text}");
    text
}

/// No memory of a program is writable and executable because of corelane.
#[track_caller]
fn has_no_executable_stack(file: &Path) {
    let headers = run(Command::new("readelf").arg("-lW").arg(file));
    let stack = headers.lines().find(|l| l.contains("GNU_STACK")).expect("a word on the stack");
    assert!(stack.contains(" RW "), "{stack}");
}

#[test]
fn ten_lines_of_c_and_no_rust_on_the_command_line() {
    let scratch = Scratch::new("ten");
    let text = std::fs::read_to_string(source("ten.c")).unwrap();
    assert!(text.lines().count() <= 10, "{} lines", text.lines().count());
    let copy = scratch.0.join("ten.c");
    std::fs::write(&copy, text).unwrap();
    let words = pkg_config(SHARED);
    assert_eq!(words.len(), 3, "one -I, one -L, one -l: {words:?}");
    let program = scratch.compile(&["cc"], &copy, SHARED);
    assert!(start(&program, &[model("mlp")]).starts_with("ok "));
    let failed = Command::new(&program).arg("/no/such").env("LD_LIBRARY_PATH", lib_dir()).output();
    let failed = failed.unwrap();
    assert!(!failed.status.success());
    assert!(String::from_utf8_lossy(&failed.stdout).contains("/no/such"));
}

#[test]
fn the_static_library_links_with_what_pkg_config_names() {
    let scratch = Scratch::new("static");
    let program = scratch.0.join("allocations");
    run(Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-o"])
        .args([&program, &source("allocations.c")])
        .args(pkg_config_of("corelane-static", SHARED)));
    let needed = run(Command::new("objdump").arg("-p").arg(&program));
    assert!(!needed.contains("libcorelane"), "{needed}");
    has_no_executable_stack(&program);
    // Also here, nothing on the request path allocates.
    let fake = scratch.fake("fake", 100, "max_queue_size = 4");
    start(&program, &[model("mlp"), fake]);
}

#[test]
fn the_headers_compile_without_a_warning() {
    let scratch = Scratch::new("headers");
    for (compiler, header, name) in [
        (&["cc", "-std=c99", "-Wc++-compat"][..], "corelane.h", "a.c"),
        (&["cc", "-std=c17"][..], "corelane.h", "b.c"),
        (&["c++", "-std=c++17"][..], "corelane.h", "c.cpp"),
        (&["c++", "-std=c++17"][..], "corelane.hpp", "d.cpp"),
        (&["c++", "-std=c++20"][..], "corelane.hpp", "e.cpp"),
    ] {
        let file = scratch.0.join(name);
        // Twice: the guards hold.
        let text =
            format!("#include <{header}>\n#include <{header}>\nint main(void) {{ return 0; }}");
        std::fs::write(&file, text).unwrap();
        let mut flags = compiler.to_vec();
        flags.extend(["-Wshadow", "-Wconversion"]);
        scratch.compile(&flags, &file, SHARED);
    }
}

#[test]
fn every_rule_of_the_header_holds() {
    let scratch = Scratch::new("rules");
    let program = scratch.compile(C, &source("rules.c"), SHARED);
    start(&program, &[scratch.slow(), model("mlp")]);
}

#[test]
fn a_configuration_is_applied_or_refused() {
    let scratch = Scratch::new("config");
    let program = scratch.compile(C, &source("config.c"), SHARED);
    let (mlp, cache) = (model("mlp"), scratch.0.join("cache"));
    std::fs::create_dir(&cache).unwrap();
    let board = root().join("boards/generic-x86_64.toml");
    let write = |name: &str, text: &str| {
        let file = scratch.0.join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let whole = write(
        "whole.toml",
        &format!(
            "cache = 'cache'\n[memory]\nlock = 'try'\n[runtime]\nboard = '{}'\n\
             board_mismatch = 'adapt'\non_load_error = 'serve_others'\n\
             [[model]]\npath = '{}'\n[[model]]\npath = '/no/such/model'\n",
            board.display(),
            mlp.display()
        ),
    );
    let plain = format!("[[model]]\npath = '{}'\n", mlp.display());
    let servers = write("servers.toml", &format!("[runtime]\nio_core = 0\n{plain}"));
    let required = write("required.toml", &format!("[memory]\nlock = 'require'\n{plain}"));
    let plain = write("plain.toml", &plain);
    start(&program, &[&whole, &cache, &servers, &plain]);
    if Command::new("setpriv").arg("--version").output().is_err() {
        println!("skipped in part: no setpriv, so the privilege to lock may be there");
        return;
    }
    let script = "ulimit -l 0 && exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock \
                  --ambient-caps=-ipc_lock -- \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).args([&program, &required]).env("LD_LIBRARY_PATH", lib_dir());
    assert!(run(&mut shell).contains("refused"));
}

#[test]
fn every_rule_of_the_cpp_header_holds() {
    let scratch = Scratch::new("raii");
    let program = scratch.compile(CPP, &source("raii.cpp"), SHARED);
    let arguments = [model("mlp"), scratch.slow()];
    start(&program, &arguments);
    watched(&program, &arguments);
}

#[test]
fn ten_thousand_requests_without_an_allocation_in_the_process() {
    let scratch = Scratch::new("allocations");
    let program = scratch.compile(C, &source("allocations.c"), SHARED);
    let fake = scratch.fake("fake", 100, "max_queue_size = 4");
    start(&program, &[model("mlp"), fake]);
}

#[test]
fn a_thousand_cycles_leave_nothing() {
    let scratch = Scratch::new("cycles");
    let program = scratch.compile(C, &source("cycles.c"), SHARED);
    let fake = scratch.fake("fake", 10, "batch_sizes = [1, 2]\nmax_queue_size = 2");
    start(&program, &[fake.as_os_str(), OsStr::new("1000")]);
}

#[test]
fn a_thousand_cycles_under_valgrind_make_no_invalid_access_and_lose_nothing() {
    let scratch = Scratch::new("valgrind");
    let program = scratch.compile(C, &source("cycles.c"), SHARED);
    let fake = scratch.fake("fake", 10, "batch_sizes = [1, 2]\nmax_queue_size = 2");
    watched(&program, &[fake.as_os_str(), OsStr::new("1000")]);
}

/// A real model, with the sanitizer's allocator and leak checker around the library.
#[test]
fn a_thousand_cycles_of_a_real_model_under_the_address_sanitizer() {
    let scratch = Scratch::new("asan");
    let mut compiler = C.to_vec();
    compiler.push("-fsanitize=address");
    let program = scratch.compile(&compiler, &source("cycles.c"), SHARED);
    start(&program, &[model("mlp").as_os_str(), OsStr::new("1000")]);
}

#[test]
fn a_model_is_read_again_while_requests_run() {
    let scratch = Scratch::new("reload");
    let program = scratch.compile(C, &source("reload.c"), SHARED);
    let model = scratch.fake("fake", 100, "batch_sizes = [1, 2]\nmax_queue_size = 4");
    let manifest = std::fs::read_to_string(model.join("manifest.toml")).unwrap();
    let next = |name: &str, from: &str, to: &str| {
        assert!(manifest.contains(from));
        let file = scratch.0.join(name);
        std::fs::write(&file, manifest.replace(from, to)).unwrap();
        file
    };
    let other = next("other", "compute_us = 100", "compute_us = 200");
    let wider = next("wider", "shape = [4] }]\noutputs", "shape = [5] }]\noutputs");
    let broken = next("broken", "engine = 'fake'", "engine = 'none'");
    start(&program, &[model, other, wider, broken]);
}

#[test]
fn it_unloads_and_loads_again() {
    let scratch = Scratch::new("unload");
    // Not linked: only the header is used.
    let program = scratch.compile(&["cc", "-std=c11"], &source("unload.c"), &["--cflags"]);
    start(&program, &[lib_dir().join("libcorelane.so"), model("mlp")]);
}

#[test]
fn the_examples_run() {
    let scratch = Scratch::new("examples");
    let c = scratch.compile(&["cc"], &root().join("examples/c/embed.c"), SHARED);
    let text = start(&c, &[model("mlp")]);
    assert!(text.contains("the same") && text.matches("callback: ").count() == 4, "{text}");
    watched(&c, &[model("mlp")]);
    let cpp = scratch.compile(CPP, &root().join("examples/cpp/embed.cpp"), SHARED);
    assert!(start(&cpp, &[model("mlp")]).contains("2 rows in the batch"));
    let rust = run(Command::new(env!("CARGO")).current_dir(root()).args([
        "run",
        "--release",
        "--locked",
        "--example",
        "embed",
    ]));
    assert!(rust.contains("compute_infer_ns"), "{rust}");
}

/// The lines of the page's part on C, as a shell would have them in a checkout.
fn console() -> Vec<String> {
    let page = std::fs::read_to_string(root().join("src/docs/firmware.rs")).unwrap();
    let part = page.split("//! # C\n").nth(1).unwrap().split("//! # C++\n").next().unwrap();
    let blocks =
        part.split("//! ```console\n").skip(1).map(|b| b.split("//! ```\n").next().unwrap());
    blocks.map(|block| block.replace("//! ", "")).collect()
}

#[test]
fn the_pages_lines_work_as_they_stand() {
    let scratch = Scratch::new("page");
    for entry in std::fs::read_dir(root()).unwrap() {
        let entry = entry.unwrap();
        std::os::unix::fs::symlink(entry.path(), scratch.0.join(entry.file_name())).unwrap();
    }
    let shell = |lines: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-euc", lines]).current_dir(&scratch.0).env("HOME", scratch.0.join("home"));
        let text = run(&mut shell);
        print!("{text}");
        text
    };
    let [native, inside, board] = console().try_into().expect("three blocks");
    // What is linked here was built before; see the head of this file.
    let native = native.strip_prefix("make lib\n").expect("the library is built first");
    let text = shell(&format!("{native}ldd ./embed\n{inside}"));
    assert_eq!(text.matches("the same").count(), 3, "{text}");
    assert!(text.contains("libcorelane.so.1 => "), "{text}");
    let program = run(Command::new("objdump").arg("-p").arg(scratch.0.join("embed")));
    assert!(!program.contains("NEEDED"), "{program}");

    let tools = ["aarch64-linux-gnu-gcc", "qemu-aarch64"];
    let missing = tools.iter().find(|t| Command::new(t).arg("--version").output().is_err());
    let tree = board.lines().next().and_then(|l| l.strip_prefix("tree=$PWD/")).expect("a tree");
    if missing.is_some() || !root().join(tree).join("usr/lib/pkgconfig/corelane-static.pc").exists()
    {
        println!("skipped in part: {tree} is not built here, or there is no {tools:?}");
        return;
    }
    assert!(shell(&board).contains("the same"));
}

#[test]
fn cmake_finds_it_in_a_directory_of_an_architecture() {
    let scratch = Scratch::new("multiarch");
    let arch = run(Command::new("cc").arg("-print-multiarch"));
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("multiarch");
    let lib = format!("/usr/lib/{}", arch.trim());
    let variables = ["PREFIX=/usr", &format!("LIBDIR={lib}"), "INCLUDEDIR=/usr/include/corelane-1"];
    install(&place, &variables);
    // As systems are where /usr is all there is: found by this way, there are no headers beside it.
    std::os::unix::fs::symlink("usr/lib", place.join("lib")).unwrap();
    cmake(&scratch, &format!("-Dcorelane_DIR={}{}/cmake/corelane", place.display(), &lib[4..]));
    cmake(
        &Scratch::new("multiarch-prefix"),
        &format!("-DCMAKE_PREFIX_PATH={}/usr", place.display()),
    );
}

#[test]
fn cmake_finds_it() {
    let prefix = installed().join(&PREFIX[1..]);
    cmake(&Scratch::new("cmake"), &format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
}

/// Builds the example with CMake and runs it, with the shared library and with the static one.
#[track_caller]
fn cmake(scratch: &Scratch, how: &str) {
    let build = scratch.0.join("build");
    run(Command::new("cmake")
        .arg("-S")
        .arg(root().join("examples/c"))
        .arg("-B")
        .arg(&build)
        .arg(how));
    run(Command::new("cmake").arg("--build").arg(&build));
    // CMake sets the run path, so nothing names the library here.
    for program in ["embed", "embed_static"] {
        let text = run(Command::new(build.join(program)).arg(model("mlp")));
        assert!(text.contains("the same"), "{program}: {text}");
        has_no_executable_stack(&build.join(program));
    }
}

#[test]
fn the_shared_library_exports_its_interface_and_nothing_else() {
    let library = lib_dir().join("libcorelane.so");
    let table = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let names: Vec<&str> = table.lines().filter_map(|l| l.split_whitespace().nth(2)).collect();
    assert!(names.len() > 30, "{table}");
    let header = std::fs::read_to_string(root().join("include/corelane.h")).unwrap();
    for name in &names {
        assert!(header.contains(&format!("{name}(")), "{name} is exported but not declared");
    }
    let needs = run(Command::new("nm").args(["-D", "--undefined-only"]).arg(&library));
    for banned in ["atexit", "on_exit", "__cxa_atexit", "fork", "exit"] {
        let calls = needs.lines().filter_map(|l| l.split_whitespace().last());
        let mut names = calls.map(|n| n.split('@').next().unwrap());
        assert!(!names.any(|n| n == banned), "the library calls {banned}");
    }
    has_no_executable_stack(&library);
    let info = run(Command::new("objdump").arg("-p").arg(&library));
    assert!(info.lines().any(|l| l.contains("SONAME") && l.contains("libcorelane.so.1")), "{info}");
}
