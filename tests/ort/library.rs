//! Where the tests find ONNX Runtime's library.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// `ORT_DYLIB_PATH`, else the one in the Python package onnxruntime; `None`, and a line that says so,
/// where there is none. With `CORELANE_TEST_ORT=1` that is a failure, so that CI can't skip.
pub fn library() -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        if let Some(path) = std::env::var_os("ORT_DYLIB_PATH").filter(|p| !p.is_empty()) {
            return Some(PathBuf::from(path));
        }
        let script = "import importlib.util, glob, os; \
            spec = importlib.util.find_spec('onnxruntime'); \
            dir = os.path.join(os.path.dirname(spec.origin), 'capi') if spec else ''; \
            print((glob.glob(dir + '/libonnxruntime.so*') or [''])[0])";
        let output = Command::new("python3").args(["-c", script]).output().ok()?;
        let path = String::from_utf8(output.stdout).ok()?.trim().to_string();
        (!path.is_empty()).then(|| PathBuf::from(path))
    });
    if found.is_none() {
        let text = "no ONNX Runtime: set ORT_DYLIB_PATH, or install the Python package onnxruntime";
        assert!(std::env::var_os("CORELANE_TEST_ORT").is_none_or(|v| v != "1"), "{text}");
        println!("skipped: {text}");
    }
    found.clone()
}
