use super::*;
use std::os::unix::fs::PermissionsExt;

/// As `perf script` prints: two samples of one worker, one of another, one of the generator.
const SCRIPT: &str = "\
cl-worker-0  4711 
\t          72c2bb _ZN8corelane6worker3run17h893e6d226b415366E (/usr/bin/corelane)
\t          cf427d clock_gettime@@GLIBC_2.17 (/usr/lib/libc.so.6)
\t          72c2de _ZN3std3sys9backtrace28__rust_begin_short_backtrace17h893e6d226b415366E.llvm.1 (/usr/bin/corelane)
\t          72c2df _ZN3std6thread5start17h893e6d226b415366E (/usr/bin/corelane)
\tffffffffffffffff [unknown] ([unknown])

cl-worker-0  4711 
\tffffffff81000000 do_syscall_64 ([kernel.kallsyms])
\t          72c2bb _ZN8corelane6worker3run17h0123456789abcdefE (/usr/bin/corelane)
\t           1234a [unknown] (/usr/lib/libonnx.so)

cl-worker-13  4712 
\tffffffff81000000 do_syscall_64 ([kernel.kallsyms])
\t          72c2bb _ZN8corelane6worker3run17h893e6d226b415366E (/usr/bin/corelane)
\t           1234a [unknown] (/usr/lib/libonnx.so)

cl-load  4713 
\t          72c2bb _RINvMNtCsgEmfK2I1SDS_4core3stre18trim_start_matchesReECsgY6Mt91CT9J_14rustc_demangle (/usr/bin/corelane)

";

#[test]
fn stacks_are_named_folded_and_counted() {
    let server = Stacks::of_script(SCRIPT, |thread| thread != "cl-load");
    assert_eq!(
        server.text(),
        "cl-worker;[libonnx.so];corelane::worker::run;do_syscall_64 [kernel] 2\n\
         cl-worker;clock_gettime;corelane::worker::run 1\n"
    );
    let all = Stacks::of_script(SCRIPT, |_| true);
    assert_eq!((server.samples(), all.samples()), (3, 4));
    // Both ways in which Rust mangles names.
    assert!(all.text().contains("cl-load;<str>::trim_start_matches::<&str> 1\n"), "{}", all.text());
}

#[test]
fn folded_text_is_read_back_and_a_wrong_line_is_named() {
    let stacks = Stacks::of_script(SCRIPT, |_| true);
    assert_eq!(Stacks::parse(&stacks.text()), Ok(stacks));
    assert_eq!(Stacks::parse("a;b 1\na;b 2\n").unwrap().text(), "a;b 3\n");
    for (text, line) in [("a;b 1\na;b\n", 2), ("a;b x\n", 1), (" 3\n", 1), ("\n", 1)] {
        assert_eq!(Stacks::parse(text), Err(line), "{text:?}");
    }
}

/// A directory with a program that stands for `perf`.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, script: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("corelane-perf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let program = dir.join("perf");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Scratch(dir)
    }
    fn start(&self) -> Result<Profiler, ProfileError> {
        Profiler::start_by(&self.0.join("perf"), 1, &self.0)
    }
    fn says(&self) -> String {
        let stacks = self.start().and_then(|profiler| profiler.finish(|_| true));
        stacks.unwrap_err().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_is_missing_for_a_profile_is_said() {
    let error = Profiler::start_by(Path::new("/nowhere/perf"), 1, Path::new("/tmp")).unwrap_err();
    assert!(matches!(error, ProfileError::NoPerf) && error.to_string().contains("linux-perf"));
    let refuses = Scratch::new("refuses", "echo >&2; echo 'Error: No permission.' >&2; exit 255");
    let text = refuses.says();
    assert!(text.contains("start: Error: No permission. (") && text.contains("paranoid"), "{text}");
    // It runs, and its end leaves nothing.
    let empty = Scratch::new("empty", "exec sleep 60");
    let text = empty.says();
    assert!(text.contains("sample the process: it did not say why"), "{text}");
    let record =
        "if [ $1 = record ]; then for last; do :; done; echo x > \"$last\"; exec sleep 60; fi";
    let idle = Scratch::new("idle", record);
    let text = idle.says();
    assert!(text.contains("no sample"), "{text}");
    let damaged =
        Scratch::new("damaged", &format!("{record}; echo 'incompatible file' >&2; exit 1"));
    let text = damaged.says();
    assert!(text.contains("read its data: incompatible file"), "{text}");
}

#[test]
fn a_profiler_leaves_only_what_it_saw() {
    let script = "if [ $1 = record ]; then for last; do :; done; echo x > \"$last\"; exec sleep 60; fi\n\
                  printf 'cl-io 7 \\n\\t 1f _ZN1a1bE (/x)\\n\\n'";
    let scratch = Scratch::new("sees", script);
    let profiler = scratch.start().unwrap();
    let child = profiler.child.id();
    let stacks = profiler.finish(|_| true).unwrap();
    assert_eq!(stacks.text(), "cl-io;a::b 1\n");
    assert!(!scratch.0.join("perf.data").exists());
    assert!(!Path::new(&format!("/proc/{child}")).exists());
}
