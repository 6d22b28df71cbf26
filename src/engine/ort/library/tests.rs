use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of its own that is gone afterwards.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("corelane-library-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
    /// A shared library of `code` whose symbols have `version`, if any; `None` where there is no C compiler.
    pub fn library(&self, name: &str, code: &str, version: &str, more: &[&str]) -> Option<PathBuf> {
        let source = self.write("code.c", code);
        let path = self.0.join(name);
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(&path).arg(source).args(more);
        if !version.is_empty() {
            let script = format!("{version} {{ global: OrtGetApiBase; local: *; }};");
            let script = self.write("versions", script);
            cc.arg(format!("-Wl,--version-script={}", script.display()));
        }
        match cc.status() {
            Ok(status) => {
                assert!(status.success(), "{cc:?}");
                Some(path)
            }
            Err(e) => {
                println!("skipped: no C compiler: {e}");
                None
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const ENTRY_ONLY: &str = "const void *OrtGetApiBase(void) { return 0; }\n";

fn refused(path: &Path) -> LibraryError {
    let error = probe(Some(path)).expect_err("must be refused");
    assert!(error.to_string().contains(&*path.to_string_lossy()), "{error} names no file");
    error
}

#[test]
fn versions_are_read_and_compared() {
    let version = |text| Version::parse(text).unwrap();
    assert_eq!(version("1.32.0").to_string(), "1.32.0");
    assert_eq!(version("1.9"), Version { major: 1, minor: 9, patch: 0 });
    assert!(version("1.17.0").is_supported() && version("1.40.2").is_supported());
    assert!(!version("1.16.3").is_supported() && !version("2.0.0").is_supported());
    assert!(VERSION_TRIED_MAX.is_supported());
    for wrong in ["", "1", "1.x", "1.2.3.4", "v1.2"] {
        assert_eq!(Version::parse(wrong), None, "{wrong}");
    }
}

/// The table that `tests/ort/versions.py` wrote: what it holds as tried is what the code says.
#[test]
fn the_range_is_the_one_that_was_tried() {
    let rows = include_str!("../versions.md").lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((Version::parse(cells.next()?)?, cells.nth(1)?.starts_with("refused")))
    });
    let rows: Vec<(Version, bool)> = rows.collect();
    assert!(rows.len() >= 8, "{rows:?}");
    for (version, refused) in &rows {
        assert_eq!(version.is_supported(), !refused, "{version}");
    }
    assert_eq!(rows.iter().map(|r| r.0).max(), Some(VERSION_TRIED_MAX));
    assert!(rows.iter().any(|(version, _)| version.minor == VERSION_MIN.minor));
}

#[test]
fn what_is_no_library_is_refused_by_what_it_is() {
    let scratch = Scratch::new();
    let gone = scratch.0.join("gone.so");
    assert!(matches!(refused(&gone), LibraryError::Io { .. }));
    let text = scratch.write("text.so", "#!/bin/sh\n");
    assert!(matches!(refused(&text), LibraryError::NotALibrary { .. }));
    assert!(matches!(refused(&scratch.write("empty.so", "")), LibraryError::NotALibrary { .. }));
    let error = refused(&scratch.0);
    assert!(error.to_string().contains("is a directory"), "{error}");
    let pipe = scratch.0.join("pipe.so");
    // Opening it would wait for its other end for ever.
    if Command::new("mkfifo").arg(&pipe).status().is_ok_and(|s| s.success()) {
        assert!(refused(&pipe).to_string().contains("no regular file"));
    }
    let program = std::env::current_exe().unwrap();
    assert!(matches!(refused(&program), LibraryError::NotOnnxRuntime { .. }));
}

#[test]
fn a_library_for_another_machine_is_refused_by_name() {
    let scratch = Scratch::new();
    let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    bytes[18..20].copy_from_slice(&243u16.to_le_bytes());
    match refused(&scratch.write("riscv.so", &bytes)) {
        LibraryError::Machine { found, .. } => assert_eq!(found, "64-bit RISC-V"),
        other => panic!("{other}"),
    }
    bytes[4] = 1;
    bytes[18..20].copy_from_slice(&40u16.to_le_bytes());
    match refused(&scratch.write("arm.so", &bytes)) {
        LibraryError::Machine { found, .. } => assert_eq!(found, "32-bit Arm"),
        other => panic!("{other}"),
    }
}

#[test]
fn a_version_out_of_the_range_is_refused_with_what_was_found() {
    let scratch = Scratch::new();
    for (version, wanted) in
        [("VERS_1.16.3", Version::parse("1.16.3")), ("VERS_2.0.0", Version::parse("2.0.0"))]
    {
        let Some(path) = scratch.library("old.so", ENTRY_ONLY, version, &[]) else { return };
        let error = refused(&path);
        assert!(error.to_string().contains("from 1.17 on within 1.x"), "{error}");
        let LibraryError::Version { found, .. } = error else { panic!("{error}") };
        assert_eq!(found, wanted);
    }
    let Some(path) = scratch.library("none.so", ENTRY_ONLY, "", &[]) else { return };
    assert!(matches!(refused(&path), LibraryError::Version { found: None, .. }));
}

#[test]
fn a_library_that_loads_is_tried_in_another_process() {
    let scratch = Scratch::new();
    let name = "libonnxruntime.so.1.20.0";
    let Some(path) = scratch.library(name, ENTRY_ONLY, "VERS_1.20.0", &[]) else { return };
    let library = probe(Some(&path)).unwrap();
    assert_eq!(library.version.to_string(), "1.20.0");
    assert_eq!((library.trial, library.found_by), (Trial::Loads, FoundBy::Configuration));
    // The newest beside the program, by number and not by letters.
    scratch.library("libonnxruntime.so.1.9.0", ENTRY_ONLY, "VERS_1.9.0", &[]);
    assert_eq!(beside_program(&scratch.0).as_deref(), path.canonicalize().ok().as_deref());
    let blank = scratch.library("with blank.so", ENTRY_ONLY, "VERS_1.20.0", &[]).unwrap();
    assert!(matches!(probe(Some(&blank)).unwrap().trial, Trial::Skipped(_)));
}

#[test]
fn a_library_that_crashes_or_hangs_does_so_elsewhere() {
    let scratch = Scratch::new();
    let early = "__attribute__((constructor)) static void early(void)";
    let crash = format!("#include <stdlib.h>\n{ENTRY_ONLY}{early} {{ abort(); }}\n");
    let Some(path) = scratch.library("crash.so", &crash, "VERS_1.20.0", &[]) else { return };
    let error = refused(&path);
    assert!(matches!(error, LibraryError::Crashes { .. }), "{error}");
    let hang = format!("#include <unistd.h>\n{ENTRY_ONLY}{early} {{ for (;;) pause(); }}\n");
    let path = scratch.library("hang.so", &hang, "VERS_1.20.0", &[]).unwrap();
    let patience = Duration::from_millis(150);
    let version = inspect(&path, FoundBy::Configuration).unwrap();
    match trial(&path, None, version, patience) {
        Err(LibraryError::Hangs { waited, .. }) => assert_eq!(waited, patience),
        other => panic!("{other:?}"),
    }
}

/// What the process that tried it leaves behind may hold its pipes; the answer does not wait for that.
#[test]
fn a_library_that_leaves_a_process_behind_is_not_waited_for() {
    let scratch = Scratch::new();
    let stays = scratch.write("stays", "");
    let gave_up = scratch.0.join("gave-up");
    // Until the file is gone, or for half a minute; then it says that nobody came.
    let fork = format!(
        "#include <unistd.h>\n#include <fcntl.h>\n{ENTRY_ONLY}__attribute__((constructor)) static void early(void) {{\n\
         if (fork()) return;\n\
         for (int n = 0; n < 600; n++) {{ usleep(50000); if (access({stays:?}, F_OK)) _exit(0); }}\n\
         creat({gave_up:?}, 0600); _exit(0); }}\n"
    );
    let name = "libonnxruntime.so.1.20.0";
    let Some(path) = scratch.library(name, &fork, "VERS_1.20.0", &[]) else { return };
    let library = probe(Some(&path)).unwrap();
    assert_eq!(library.trial, Trial::Loads);
    std::fs::remove_file(stays).unwrap();
    assert!(!gave_up.exists(), "the answer came only when the process that was left behind ended");
}

#[test]
fn a_library_that_lacks_something_is_refused_with_what_it_lacks() {
    let scratch = Scratch::new();
    let needs = format!("void missing(void);\n{ENTRY_ONLY}void f(void) {{ missing(); }}\n");
    let dir = scratch.0.display().to_string();
    let Some(part) = scratch.library("libpart.so", "void missing(void) {}\n", "", &[]) else {
        return;
    };
    let link = ["-L", &dir, "-Wl,--no-as-needed", "-lpart"];
    let path = scratch.library("whole.so", &needs, "VERS_1.20.0", &link).unwrap();
    std::fs::remove_file(part).unwrap();
    match refused(&path) {
        LibraryError::Loader { said, .. } => assert!(said.contains("libpart.so"), "{said}"),
        other => panic!("{other}"),
    }
}

/// What a provider needs is tried as well: its own file, the one that all providers call, and what it lacks.
#[test]
fn a_providers_library_is_tried_with_what_it_needs() {
    let scratch = Scratch::new();
    let name = "libonnxruntime.so.1.20.0";
    let Some(path) = scratch.library(name, ENTRY_ONLY, "VERS_1.20.0", &[]) else { return };
    let library = probe(Some(&path)).unwrap();
    probe_provider(&library, Provider::Cpu).unwrap();
    let missing = |part: &str| match probe_provider(&library, Provider::Cuda) {
        Err(LibraryError::Io { path, .. }) => assert!(path.ends_with(part), "{}", path.display()),
        other => panic!("{other:?}"),
    };
    missing("libonnxruntime_providers_shared.so");
    let shared = "int Provider_GetHost(void) { return 0; }\n";
    scratch.library("libonnxruntime_providers_shared.so", shared, "", &[]);
    missing("libonnxruntime_providers_cuda.so");
    // As the real one: it calls what it does not name, and all of it is looked for at once.
    let cuda =
        "int Provider_GetHost(void);\nint GetProvider(void) { return Provider_GetHost(); }\n";
    scratch.library("libonnxruntime_providers_cuda.so", cuda, "", &["-Wl,-z,now"]);
    probe_provider(&library, Provider::Cuda).unwrap();
    let dir = scratch.0.display().to_string();
    let part = scratch.library("libcublas_made_up.so", "void part(void) {}\n", "", &[]).unwrap();
    let link = ["-L", &dir, "-Wl,--no-as-needed", "-lcublas_made_up"];
    scratch.library("libonnxruntime_providers_cuda.so", cuda, "", &link);
    std::fs::remove_file(part).unwrap();
    match probe_provider(&library, Provider::Cuda) {
        Err(LibraryError::Loader { said, path }) => {
            assert!(said.contains("libcublas_made_up.so"), "{said}");
            assert!(path.ends_with("libonnxruntime_providers_cuda.so"), "{}", path.display());
        }
        other => panic!("{other:?}"),
    }
}

/// Bytes of a valid library, changed one by one, and the file cut anywhere: never a panic.
#[test]
fn damaged_libraries_are_errors_not_panics() {
    let scratch = Scratch::new();
    let Some(path) = scratch.library("good.so", ENTRY_ONLY, "VERS_1.20.0", &[]) else { return };
    let good = std::fs::read(path).unwrap();
    let bad = scratch.0.join("bad.so");
    // Headers and tables come first; the rest is code and debug sections.
    for at in 0..good.len().min(2048) {
        for flip in [1u8, 0x80, 0xFF] {
            let mut bytes = good.clone();
            bytes[at] ^= flip;
            std::fs::write(&bad, &bytes).unwrap();
            let _ = inspect(&bad, FoundBy::Configuration);
        }
    }
    for len in (0..good.len()).step_by(97) {
        std::fs::write(&bad, &good[..len]).unwrap();
        let _ = inspect(&bad, FoundBy::Configuration);
    }
}
