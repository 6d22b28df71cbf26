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
        let _ = std::fs::remove_dir_all(&place);
        run(Command::new("make")
            .current_dir(root())
            .arg("install-lib")
            .arg(format!("DESTDIR={}", place.display()))
            .arg(format!("PREFIX={PREFIX}")));
        place
    })
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
    let text = run(Command::new("pkg-config")
        .env("PKG_CONFIG_LIBDIR", lib_dir().join("pkgconfig"))
        .env("PKG_CONFIG_SYSROOT_DIR", installed())
        .args(how)
        .arg("corelane"));
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
    // The archive by name: `-lcorelane` would take the shared library beside it.
    let words = pkg_config(&["--cflags", "--libs", "--static"]);
    let words = words.iter().map(|w| if w == "-lcorelane" { "-l:libcorelane.a" } else { w });
    run(Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-o"])
        .args([&program, &source("allocations.c")])
        .args(words));
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
        (&["cc", "-std=c99"][..], "corelane.h", "a.c"),
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
        "--features",
        "capi",
        "--example",
        "embed",
    ]));
    assert!(rust.contains("compute_infer_ns"), "{rust}");
}

#[test]
fn cmake_finds_it() {
    let scratch = Scratch::new("cmake");
    let build = scratch.0.join("build");
    let prefix = installed().join(&PREFIX[1..]);
    run(Command::new("cmake")
        .arg("-S")
        .arg(root().join("examples/c"))
        .arg("-B")
        .arg(&build)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
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
