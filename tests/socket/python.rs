//! The Python client against the server. Python 3 is required; nothing is skipped.

use crate::support::*;
use corelane::transport::{ServerOptions, TcpOptions};
use corelane::wire::Key;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[test]
fn the_python_client_does_everything() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tcp = TcpOptions {
        address: "127.0.0.1:0".parse().unwrap(),
        allow_remote: false,
        key: Some(Key::new(b"a key of sufficient length").unwrap()),
    };
    let options = ServerOptions { tcp: Some(tcp), ..ServerOptions::default() };
    let fixture = serve_with(
        vec![
            model("m", 16, &[1, 4], Duration::from_millis(1)),
            model("big", 300_000, &[1], Duration::ZERO),
            model("slow", 8, &[1], Duration::from_millis(300)),
            crate::encoded::long("floats", 4),
        ],
        options,
    );
    let output = Command::new("python3")
        .arg(root.join("tests/socket/client.py"))
        .arg(format!("unix:{}", fixture.path.display()))
        .arg(format!("tcp:{}", fixture.server().tcp_address().unwrap()))
        .env("PYTHONPATH", root.join("examples/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python3 is required");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.trim_end().ends_with("all is well"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    fixture.still_serves();
}
