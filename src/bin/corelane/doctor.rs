//! `corelane doctor`: what this machine offers, and what to do about what is missing.
//!
//! It changes nothing and always ends well: what it finds is its answer, not its failure.

use crate::args::DoctorArgs;
use crate::exit::{Code, Exit, Outcome};
use crate::out::outln;
use corelane::engine::kernels::Isa;
use corelane::engine::ort::library::{self, Library, LibraryError, Trial, VERSION_TRIED_MAX};
use corelane::engine::ort::settings::Provider;
use corelane::limits::{CONNECTIONS_MAX, DESCRIPTORS_BESIDES_CONNECTIONS, MODELS_MAX, WORKERS_MAX};
use corelane::sys::{affinity, cores, descriptors};
use serde::Serialize;
use std::path::Path;

/// How a finding is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing needs to be done.
    Note,
    /// Something is missing for what it is needed for.
    Problem,
}

#[derive(Serialize)]
struct Finding {
    area: &'static str,
    state: State,
    what: String,
    /// What to do about it.
    todo: Option<String>,
}

#[derive(Serialize)]
struct Report {
    /// Layout version.
    schema: u32,
    version: &'static str,
    findings: Vec<Finding>,
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn ok(&mut self, area: &'static str, what: impl Into<String>) {
        self.0.push(Finding { area, state: State::Ok, what: what.into(), todo: None });
    }
    fn note(&mut self, area: &'static str, what: impl Into<String>, todo: impl Into<String>) {
        let todo = Some(todo.into());
        self.0.push(Finding { area, state: State::Note, what: what.into(), todo });
    }
    fn problem(&mut self, area: &'static str, what: impl Into<String>, todo: impl Into<String>) {
        let todo = Some(todo.into());
        self.0.push(Finding { area, state: State::Problem, what: what.into(), todo });
    }
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Outcome {
    let mut found = Findings::default();
    board(&mut found);
    processor(&mut found);
    limits(&mut found);
    let gpus = nvidia(&mut found);
    onnxruntime(args.onnxruntime.as_deref(), gpus, &mut found);
    let report = Report { schema: 1, version: env!("CARGO_PKG_VERSION"), findings: found.0 };
    if args.json {
        let text = serde_json::to_string(&report).map_err(|e| Exit::new(Code::Failure, e))?;
        outln!("{text}");
        return Ok(());
    }
    outln!("corelane {}", report.version);
    for f in &report.findings {
        let mark = match f.state {
            State::Ok => "ok",
            State::Note => "note",
            State::Problem => "MISSING",
        };
        outln!("{mark:>7}  {}: {}", f.area, f.what);
        if let Some(todo) = &f.todo {
            outln!("         -> {todo}");
        }
    }
    Ok(())
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_string();
    (!text.is_empty()).then_some(text)
}

/// The value behind `key` and a colon, in a text of such lines.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let of_line = |line: &'a str| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then_some(value.trim())
    };
    text.lines().find_map(of_line)
}

fn board(found: &mut Findings) {
    let model = read("/proc/device-tree/model").or_else(|| read("/sys/class/dmi/id/product_name"));
    match model {
        Some(model) => found.ok("board", model),
        None => found.ok("board", "the system does not say which it is"),
    }
    let memory = read("/proc/meminfo").unwrap_or_default();
    let kib = |key| value(&memory, key)?.split(' ').next()?.parse::<u64>().ok();
    if let (Some(total), Some(free)) = (kib("MemTotal"), kib("MemAvailable")) {
        found.ok("memory", format!("{} MiB, {} MiB available", total / 1024, free / 1024));
    }
}

fn processor(found: &mut Findings) {
    let info = read("/proc/cpuinfo").unwrap_or_default();
    let name = value(&info, "model name").or_else(|| value(&info, "CPU part")).unwrap_or("unknown");
    let isa = Isa::detect();
    let mut what = format!("{name} ({}), kernels for {}", std::env::consts::ARCH, isa.name());
    let mut in_order = affinity::pinnable().unwrap_or_default();
    in_order.retain(|&core| cores::in_order(Path::new("/"), &[core]));
    if isa == Isa::Neon && !in_order.is_empty() {
        let cores = affinity::core_list(&in_order);
        what += &format!(", with loops for cores that run in order on {cores}");
    }
    if isa == Isa::Portable {
        found.note(
            "processor",
            what,
            "engine plan is slower without AVX2 with FMA and F16C, or NEON; measure with \
             `corelane bench engine`",
        );
    } else {
        found.ok("processor", what);
    }
    let features = value(&info, "flags").or_else(|| value(&info, "Features")).unwrap_or_default();
    let known = [
        "sse4_2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512_vnni",
        "avx_vnni",
        "neon",
        "asimd",
        "asimdhp",
        "asimddp",
        "sve",
    ];
    let has: Vec<&str> = features.split_whitespace().filter(|f| known.contains(f)).collect();
    let none = if has.is_empty() { "none of those that matter here" } else { "" };
    found.ok("processor features", format!("{none}{}", has.join(" ")));
    match affinity::allowed() {
        Ok(cores) if cores.len() > 1 => {
            found.ok("cores", format!("{} allowed: {}", cores.len(), affinity::core_list(&cores)));
        }
        Ok(cores) => found.note(
            "cores",
            format!("only {} is allowed", affinity::core_list(&cores)),
            "the worker and the I/O thread share it; allow a second core (taskset, cpuset) for \
             steadier latencies",
        ),
        Err(e) => found.problem("cores", e.to_string(), "run where the scheduler can be asked"),
    }
    if let Some(cores) = read("/sys/devices/system/cpu/isolated") {
        found.ok("isolated cores", cores);
    }
    match read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") {
        Some(governor) if governor == "performance" => found.ok("frequency", governor),
        Some(governor) => found.note(
            "frequency",
            format!("governor {governor}"),
            "latencies vary with the frequency; set the governor `performance` for measurements",
        ),
        None => found.ok("frequency", "no governor to be set here"),
    }
}

fn limits(found: &mut Findings) {
    found.ok(
        "limits",
        format!("{WORKERS_MAX} workers, {MODELS_MAX} models, {CONNECTIONS_MAX} connections"),
    );
    // As `serve` does before it opens its doors.
    let Some(files) = descriptors::raise_limit() else { return };
    let wanted = (CONNECTIONS_MAX + DESCRIPTORS_BESIDES_CONNECTIONS) as u64;
    if files < wanted {
        found.problem(
            "open files",
            format!(
                "at most {files}; {CONNECTIONS_MAX} connections need {wanted}, and models some more"
            ),
            format!("`ulimit -Hn {wanted}`, or LimitNOFILE in the service's unit"),
        );
    } else {
        found.ok("open files", format!("at most {files}"));
    }
}

/// The driver and its GPUs; how many.
fn nvidia(found: &mut Findings) -> usize {
    let Some(version) = read("/sys/module/nvidia/version") else {
        found.note(
            "GPU",
            "no NVIDIA driver is loaded",
            "install NVIDIA's driver if models are to run on a GPU (providers cuda, tensorrt)",
        );
        return 0;
    };
    found.ok("GPU driver", format!("NVIDIA {version}"));
    let mut count = 0;
    for gpu in std::fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten() {
        let text = read(gpu.path().join("information")).unwrap_or_default();
        let name = value(&text, "Model").unwrap_or("unknown").to_string();
        found.ok("GPU", format!("{name} at {}", gpu.file_name().display()));
        count += 1;
    }
    if count == 0 {
        found.problem(
            "GPU",
            "the driver is loaded, but shows no GPU",
            "in a container, pass the GPUs through; else look at the kernel's messages",
        );
    }
    count
}

fn onnxruntime(configured: Option<&Path>, gpus: usize, found: &mut Findings) {
    const AREA: &str = "ONNX Runtime";
    let library = match library::probe(configured) {
        Ok(library) => library,
        Err(error @ LibraryError::NotFound { .. }) => {
            return found.note(AREA, "none found; only engine ort needs it", error.to_string());
        }
        Err(error) => {
            return found.problem(
                AREA,
                error.to_string(),
                "name a libonnxruntime.so that fits: `--onnxruntime FILE`, runtime.onnxruntime, or \
                 ORT_DYLIB_PATH",
            );
        }
    };
    let what =
        format!("{}, {} ({})", library.version, library.path.display(), library.found_by.text());
    if library.version > VERSION_TRIED_MAX {
        found.note(
            AREA,
            what,
            format!(
                "it is newer than any that was tried ({VERSION_TRIED_MAX}); run the tests with it"
            ),
        );
    } else {
        found.ok(AREA, what);
    }
    if let Trial::Skipped(why) = library.trial {
        found.note(AREA, "not tried in another process", why);
    }
    match corelane::engine::ort::providers(configured) {
        Ok((_, names)) => {
            let cuda = names.iter().any(|n| n == Provider::Cuda.ort_name());
            found.ok("providers", names.join(", "));
            if gpus > 0 && !cuda {
                found.problem(
                    "providers",
                    "there is a GPU, but this library was built for the processor only",
                    "use the library of the Python package onnxruntime-gpu",
                );
            } else if gpus == 0 && cuda {
                found.note(
                    "providers",
                    "the library can use NVIDIA GPUs, but there is none",
                    "models that require cuda or tensorrt will not be loaded",
                );
            }
            for provider in Provider::ALL.into_iter().filter(|p| *p != Provider::Cpu) {
                if names.iter().any(|n| n == provider.ort_name()) {
                    provider_parts(&library, provider, gpus, found);
                }
            }
        }
        Err(LibraryError::NotBuilt) => found.note(
            "providers",
            "this program was built without ONNX Runtime",
            "build it with --features ort",
        ),
        Err(error) => found.problem("providers", error.to_string(), "use another library"),
    }
}

/// What a provider needs besides the library.
fn provider_parts(library: &Library, provider: Provider, gpus: usize, found: &mut Findings) {
    const AREA: &str = "provider";
    let name = provider.name();
    let Err(error) = library::probe_provider(library, provider) else {
        return found.ok(AREA, format!("{name} has what it needs of CUDA's libraries"));
    };
    let todo = match provider {
        Provider::TensorRt => {
            "install TensorRT, CUDA and cuDNN in the versions that the library names, and put their \
             directories into LD_LIBRARY_PATH"
        }
        _ => {
            "install CUDA and cuDNN in the versions that the library names, and put their directories \
             into LD_LIBRARY_PATH; libcuda comes with NVIDIA's driver"
        }
    };
    let what = format!("{name}: {error}");
    match gpus {
        0 => found.note(AREA, what, todo),
        _ => found.problem(AREA, what, todo),
    }
}
