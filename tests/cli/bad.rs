//! Bad input: each with its exit code and a sentence that says what was wrong.

use crate::support::{Scratch, model, run};
use corelane::units::DType;
use corelane::wire::{self, HEAD_BYTES_MAX, Reply, ServerLimits};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

#[test]
fn exit_codes_are_documented() {
    let help = run(&["--help"]).ok().out;
    for line in ["Exit codes:", "0  success", "2  wrong arguments", "6  stopped before"] {
        assert!(help.contains(line), "no {line:?} in {help}");
    }
    assert!(run(&["--version"]).ok().out.starts_with("corelane "));
}

#[test]
fn wrong_arguments_are_2() {
    run(&["brew"]).says(2, "unrecognized subcommand");
    run(&[]).says(2, "Usage");
    run(&["serve"]).says(2, "required");
    let mlp = model("mlp");
    run(&["serve", "--model", &mlp]).says(2, "nothing to listen on");
    run(&["serve", "--model", &mlp, "--config", "c.toml"]).says(2, "cannot be used with");
    run(&["serve", "--model", &mlp, "--cores", "1-"]).says(2, "write 0,2 or 1-3");
    run(&["serve", "--model", &mlp, "--idle", "nap"]).says(2, "write park, adaptive");
    run(&["serve", "--model", &mlp, "--cores", "0", "--unpinned", "1"]).says(2, "cannot be used");
    run(&["infer", &mlp, "--connect", "mlp.sock"])
        .says(2, "write unix:PATH, tcp:HOST:PORT or serial:DEVICE:BAUD");
    run(&["infer", "mlp", "--connect", "unix:/nowhere"]).says(2, "give inputs");
    run(&["infer", &format!("{mlp}/model.onnx")]).says(2, "give inputs");
    run(&["infer", &mlp, "/nowhere/x.npy"]).says(2, "/nowhere/x.npy");
    let scratch = Scratch::new();
    let input = scratch.write("x.npy", "numbers");
    run(&["infer", &mlp, &input]).says(2, "not a .npy file");
    run(&["infer", &mlp, "--repeat", "0"]).says(2, "--repeat");
    run(&["infer", &mlp, "--psk-file", "k"]).says(2, "--connect");
}

#[test]
fn models_that_cannot_be_used_are_3() {
    let scratch = Scratch::new();
    for command in ["inspect", "infer"] {
        run(&[command, "/nowhere/model"]).says(3, "/nowhere/model");
    }
    let onnx = std::fs::read(format!("{}/model.onnx", model("mlp"))).unwrap();
    let cut = scratch.write("cut.onnx", &onnx[..onnx.len() / 2]);
    run(&["inspect", &cut]).says(3, "cut.onnx");
    let text = scratch.write("text.onnx", "this is no model");
    run(&["inspect", &text]).says(3, "text.onnx");
    let manifest = |name: &str, text: &str| {
        scratch.write(&format!("{name}/model.onnx"), &onnx);
        scratch.write(&format!("{name}/manifest.toml"), text);
        scratch.path(name)
    };
    let dir = manifest("unknown", "name = 'm'\n\nmax_que_size = 3\n");
    run(&["inspect", &dir]).says(
        3,
        "manifest.toml, line 3: unknown key `max_que_size`; did you mean `max_queue_size`?",
    );
    let dir = manifest("type", "max_queue_size = 'many'\n");
    run(&["inspect", &dir]).says(3, "line 1: `max_queue_size` must be a whole number, but is text");
    let dir = manifest("hash", &format!("sha256 = '{}'\n", "0".repeat(64)));
    run(&["inspect", &dir]).says(3, &"0".repeat(64));
    let dir = manifest("nothing", "file = 'other.onnx'\n");
    run(&["inspect", &dir]).says(3, "other.onnx");
    // A golden that the model does not give.
    let dir = manifest("golden", "");
    let zeros = [0; 4 * 64];
    scratch.npy("golden/golden/input_0.npy", DType::F32, &[1, 64], &zeros);
    scratch.npy("golden/golden/output_0.npy", DType::F32, &[1, 10], &[0x41; 40]);
    run(&["infer", &dir]).says(3, "golden/output_0.npy");
    run(&["bench", "engine", &text, "--engine", "tract"]).says(3, "");
}

#[test]
fn configurations_that_cannot_be_used_are_3() {
    let scratch = Scratch::new();
    let with = |text: &str| scratch.write("corelane.toml", text);
    run(&["serve", "--config", "/nowhere/corelane.toml"]).says(3, "/nowhere/corelane.toml");
    let model = format!("[[model]]\npath = '{}'\n", model("mlp"));
    let file = with(&format!("{model}[runtime]\ncors = [0]\n"));
    run(&["serve", "--config", &file])
        .says(3, "line 4: unknown key `runtime.cors`; did you mean `runtime.cores`?");
    let file = with(&model);
    run(&["serve", "--config", &file]).says(3, "nothing to listen on");
    let file = with(&format!("{model}[listen]\ntcp = 'here'\n"));
    run(&["serve", "--config", &file]).says(3, "\"here\" is no address with a port");
    let file = with(&format!("{model}[runtime]\ncores = [999]\n[listen]\nunix = 's'\n"));
    let ran = run(&["serve", "--config", &file]).says(3, "cores 999 are wanted");
    assert!(ran.err.contains("the scheduler allows this process only"), "{}", ran.err);
    let file = with("[[model]]\npath = 'not-there'\n[listen]\nunix = 's'\n");
    run(&["serve", "--config", &file]).says(3, &scratch.path("not-there"));
    let twice = format!("{model}{model}[listen]\nunix = 's'\n");
    run(&["serve", "--config", &with(&twice)]).says(3, "two models are called \"mlp\"");
}

#[test]
fn requests_that_do_not_fit_are_5() {
    let scratch = Scratch::new();
    let mlp = model("mlp");
    let infer = |file: &str| run(&["infer", &mlp, file]);
    let file = scratch.npy("ints.npy", DType::I32, &[1, 64], &[0; 256]);
    infer(&file).says(5, "input \"x\" takes float32, the file holds int32");
    let file = scratch.npy("short.npy", DType::F32, &[1, 63], &[0; 252]);
    infer(&file).says(5, "takes the shape (rows, 64) or (64,), the file holds (1, 63)");
    let file = scratch.npy("none.npy", DType::F32, &[0, 64], &[]);
    let ran = infer(&file).says(5, "wrong_rows");
    assert!(ran.err.contains("0 rows"), "{}", ran.err);
    let file = scratch.npy("many.npy", DType::F32, &[1000, 64], &vec![0; 256_000]);
    infer(&file).says(5, "1000 rows, but a request has 1 to ");
    // The same rows, each a request of its own, are no trouble.
    let ran = run(&["infer", &mlp, &file, "--rows", "--json"]).ok();
    assert_eq!(ran.json().len(), 1000);
    let golden = format!("{mlp}/golden/input_0.npy");
    run(&["infer", &mlp, "--input", &format!("z={golden}")])
        .says(5, "there is no input \"z\"; there are: x");
    run(&["infer", &mlp, &golden, &golden]).says(5, "takes 1 inputs (x), 2 are given");
    run(&["infer", &mlp, "--priority", "9"]).says(5, "bad_priority");
    let ran = run(&["infer", &mlp, "--timeout-us", "3600000001", "--json"]).says(5, "bad_deadline");
    assert_eq!(ran.json()[0]["error"]["code"], "bad_deadline");
    assert_eq!(ran.json()[0]["error"]["number"], 206);
}

#[test]
fn requests_that_the_model_fails_are_5() {
    let scratch = Scratch::new();
    let dir = scratch.fake("fails", 0, "");
    for (first, code) in [(238, "model_failed"), (221, "model_panicked")] {
        let rows = [[1, 2, 3, 4], [first, 0, 0, 0], [5, 6, 7, 8]].concat();
        let file = scratch.npy("rows.npy", DType::U8, &[3, 4], &rows);
        let ran = run(&["infer", &dir, &file, "--rows", "--json"]).says(5, code);
        let lines = ran.json();
        assert_eq!(lines.len(), 3);
        // Its neighbours are answered, batched with it or not, with their own rows.
        assert_eq!(lines[0]["outputs"][0]["data"], serde_json::json!([1, 2, 3, 4]));
        assert_eq!(lines[1]["error"]["code"], code);
        assert_eq!(lines[2]["outputs"][0]["data"], serde_json::json!([5, 6, 7, 8]));
    }
}

#[test]
fn a_full_queue_and_a_short_deadline_are_5() {
    let scratch = Scratch::new();
    let dir = scratch.fake("slow", 30_000, "max_batch_size = 1\nmax_queue_size = 1");
    let file = scratch.npy("rows.npy", DType::U8, &[12, 4], &[7; 48]);
    let ran = run(&["infer", &dir, &file, "--rows", "--json"]).says(5, "queue_full");
    let lines = ran.json();
    assert_eq!(lines.len(), 12);
    let full: Vec<_> = lines.iter().filter(|l| l["error"]["code"] == "queue_full").collect();
    let answered = lines.iter().filter(|l| l["outputs"].is_array()).count();
    assert_eq!(answered + full.len(), 12);
    assert!(answered >= 1 && !full.is_empty(), "{lines:?}");
    assert!(full[0]["error"]["text"].as_str().unwrap().contains("max_queue_size is 1"));
    let one = scratch.npy("row.npy", DType::U8, &[1, 4], &[7; 4]);
    let ran = run(&["infer", &dir, &one, "--timeout-us", "1000"]).says(5, "deadline_unmeetable");
    assert!(ran.err.contains("1000 us are given"), "{}", ran.err);
}

#[test]
fn servers_that_are_not_there_are_4() {
    let scratch = Scratch::new();
    let input = format!("{}/golden/input_0.npy", model("mlp"));
    let unix = format!("unix:{}", scratch.path("none.sock"));
    run(&["infer", "mlp", &input, "--connect", &unix]).says(4, "none.sock");
    run(&["stats", "--connect", &unix]).says(4, "none.sock");
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    run(&["stats", "--connect", &format!("tcp:127.0.0.1:{port}")]).says(4, "Connection refused");
}

#[test]
fn a_server_that_says_goodbye_has_refused() {
    let scratch = Scratch::new();
    let input = format!("{}/golden/input_0.npy", model("mlp"));
    let path = scratch.path("s.sock");
    let listener = UnixListener::bind(&path).unwrap();
    // It lets one in and leaves, in one piece.
    let serving = std::thread::spawn(move || {
        let limits = ServerLimits { payload_bytes_max: 1000, in_flight_max: 3, models: 1 };
        let mut said = Vec::new();
        for reply in [Reply::HelloOk { version: wire::VERSION_MAX, limits }, Reply::Goodbye] {
            let mut head = [0; HEAD_BYTES_MAX];
            let n = wire::encode_head(&reply, 0, &mut head).unwrap();
            said.extend_from_slice(&head[..n]);
        }
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 64]).unwrap() > 0);
        stream.write_all(&said).unwrap();
    });
    let address = format!("unix:{path}");
    run(&["infer", "mlp", &input, "--connect", &address]).says(5, "the server is shutting down");
    serving.join().unwrap();
}
