//! Weights that sessions share on the processor.

use super::{Scratch, load, refusals, settings};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

#[test]
fn sessions_on_the_processor_share_weights() {
    let Some(library) = refusals() else { return };
    for name in ["mlp", "resnet8", "magika", "vww", "dscnn_kws"] {
        // Its goldens are compared on a session that shares.
        let loaded = load(name, settings(library, &["cpu"])).unwrap_or_else(|e| panic!("{e}"));
        let description = loaded.engine.describe();
        assert!(description.weights_shared, "{name}");
        let file = std::fs::metadata(&loaded.manifest.file).unwrap().len() as usize;
        let bytes = description.weight_bytes;
        // The optimiser pads some, and folds others.
        assert!(bytes > file / 2 && bytes < file * 2, "{name}: {bytes} bytes, the file {file}");
        assert!(loaded.golden_rows > 0, "{name}");
    }
}

/// A server that is ready.
pub struct Server {
    child: Child,
    /// The line that says so.
    pub ready: serde_json::Value,
}

impl Server {
    /// `corelane serve` with `args` and a library.
    pub fn start(library: &Path, args: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_corelane"));
        command.arg("serve").args(args).env("ORT_DYLIB_PATH", library);
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        let mut server = Server { child: command.spawn().unwrap(), ready: Default::default() };
        let mut line = String::new();
        BufReader::new(server.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        server.ready = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
        server
    }

    /// One with `workers` workers for the model in `dir`.
    fn with_workers(library: &Path, dir: &Path, workers: usize) -> Server {
        let (model, socket) = (dir.display().to_string(), dir.join(format!("socket-{workers}")));
        let (socket, workers) = (socket.display().to_string(), workers.to_string());
        Server::start(library, &["--model", &model, "--unix", &socket, "--unpinned", &workers])
    }

    fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_second_instance_has_no_weights_of_its_own() {
    let Some(library) = refusals() else { return };
    let models = std::env::var_os("CORELANE_SHARED_MODELS").map(PathBuf::from);
    let models =
        models.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/models"));
    let Ok(file) = std::fs::canonicalize(models.join("resnet18.onnx")) else {
        println!("skipped: no resnet18.onnx in {}", models.display());
        return;
    };
    let scratch = Scratch::new("sharing");
    let manifest = format!(
        "engine = 'ort'\nname = 'large'\nfile = '{}'\nmax_batch_size = 1\n",
        file.display()
    );
    std::fs::write(scratch.0.join("manifest.toml"), manifest).unwrap();
    let [one, three] = [1, 3].map(|workers| Server::with_workers(library, &scratch.0, workers));
    let more = || three.threads() as isize - one.threads() as isize;
    // A thread that only starts the server may still be ending in one of them; a session's own would stay.
    for _ in 0..200 {
        if more() == 2 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(more(), 2, "sessions have no threads of their own");
    let (one, three) = (&one.ready, &three.ready);
    let weights = three["models"][0]["memory"]["weight_bytes"].as_u64().unwrap();
    assert_eq!(one["models"][0]["memory"]["weight_bytes"], weights, "shared, so not multiplied");
    let resident = |ready: &serde_json::Value| ready["resident_bytes"].as_u64().unwrap();
    let each = resident(three).saturating_sub(resident(one)) / 2;
    println!(
        "resnet18: {weights} bytes of weights; resident {} with one worker, {} with three: {each} for \
         each more",
        resident(one),
        resident(three)
    );
    // With weights of its own, a worker would take them, and its intermediates besides.
    assert!(each < weights, "{each} bytes for each more worker, the weights are {weights}");
}
