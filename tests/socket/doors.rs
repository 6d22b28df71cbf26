//! Who may come in, and where.

use crate::support::*;
use corelane::runtime::Runtime;
use corelane::transport::{BindError, ServerOptions, TcpOptions, UnixOptions};
use corelane::wire::{ErrorCode, Key};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

fn quick() -> Vec<corelane::runtime::ModelSetup> {
    vec![model("m", 8, &[1], Duration::ZERO)]
}

/// Tries to start a server that can't start.
fn refused(options: ServerOptions) -> BindError {
    let mut builder = Runtime::builder().unpinned(1);
    for model in quick() {
        builder = builder.model(model);
    }
    start(&mut builder.build().unwrap(), options).unwrap_err()
}

fn unix(path: &std::path::Path) -> ServerOptions {
    ServerOptions { unix: Some(UnixOptions::new(path)), ..ServerOptions::default() }
}

#[test]
fn the_socket_is_private_and_goes_away() {
    let fixture = serve(quick());
    let mode = std::fs::metadata(&fixture.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fixture.still_serves();
    let path = fixture.path.clone();
    drop(fixture);
    assert!(!path.exists());
    let mut open = UnixOptions::new(socket_path());
    open.mode = 0o666;
    let fixture = serve_with(quick(), ServerOptions { unix: Some(open), ..Default::default() });
    let mode = std::fs::metadata(&fixture.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
}

#[test]
fn a_live_server_is_refused_and_a_dead_one_taken_over() {
    let fixture = serve(quick());
    let error = refused(unix(&fixture.path));
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    fixture.still_serves();
    // A socket file that nobody listens on any more.
    let path = socket_path();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let fixture = serve_with(quick(), unix(&path));
    fixture.still_serves();
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let path = socket_path();
    std::fs::write(&path, "precious").unwrap();
    let error = refused(unix(&path));
    assert!(matches!(error, BindError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
    let error = refused(unix(std::path::Path::new("/nonexistent-directory/socket")));
    assert!(matches!(error, BindError::Io { .. }), "{error}");
    let error = refused(unix(std::path::Path::new(&format!("/tmp/{}", "x".repeat(200)))));
    assert!(matches!(error, BindError::Io { .. }), "{error}");
}

#[test]
fn a_file_that_replaced_ours_is_not_removed() {
    let fixture = serve(quick());
    let path = fixture.path.clone();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another's").unwrap();
    drop(fixture);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "another's");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn users_who_are_not_on_the_list_are_turned_away() {
    let me = std::fs::metadata("/proc/self").unwrap().uid();
    let mut options = UnixOptions::new(socket_path());
    options.allowed_uids = Some(vec![me + 1]);
    let strict = ServerOptions { unix: Some(options), ..ServerOptions::default() };
    let fixture = serve_with(quick(), strict);
    let mut raw = fixture.raw();
    raw.expect_error(None, ErrorCode::PeerNotAllowed, me as u64, 0);
    raw.closed();
    let mut options = UnixOptions::new(socket_path());
    options.allowed_uids = Some(vec![me]);
    let fixture =
        serve_with(quick(), ServerOptions { unix: Some(options), ..ServerOptions::default() });
    fixture.still_serves();
}

#[test]
fn tcp_beyond_loopback_takes_permission_and_a_key() {
    let key = Some(Key::new(b"a key of sufficient length").unwrap());
    let address = "0.0.0.0:0".parse().unwrap();
    let with = |allow_remote, key| ServerOptions {
        tcp: Some(TcpOptions { address, allow_remote, key }),
        ..ServerOptions::default()
    };
    for options in [with(false, None), with(true, None), with(false, key.clone())] {
        let error = refused(options);
        assert!(matches!(error, BindError::NotLoopback { .. }), "{error}");
    }
    let fixture = serve_with(quick(), with(true, key));
    fixture.still_serves();
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let tcp = Some(TcpOptions::new(address));
    let error = refused(ServerOptions { tcp, ..ServerOptions::default() });
    let BindError::InUse { address: named } = &error else { panic!("{error}") };
    assert_eq!(*named, format!("tcp:{address}"));
}

#[test]
fn connections_over_the_limit_are_turned_away_until_one_ends() {
    let options = ServerOptions { connections_max: 3, ..ServerOptions::default() };
    let fixture = serve_with(quick(), options);
    let mut held: Vec<_> = (0..3).map(|_| fixture.greeted()).collect();
    let mut fourth = fixture.raw();
    fourth.expect_error(None, ErrorCode::TooManyConnections, 3, 3);
    fourth.closed();
    for raw in &mut held {
        raw.still_talks();
    }
    held.pop();
    let open = |f: &Fixture| {
        f.server().counters().connections_open.load(std::sync::atomic::Ordering::Relaxed)
    };
    fixture.until("a connection ends", |f| open(f) == 2);
    fixture.still_serves();
}

#[test]
fn numbers_over_their_limits_are_refused() {
    let path = socket_path();
    for (connections_max, in_flight_max) in [(0, 1), (257, 1), (1, 0), (1, 257)] {
        let options = ServerOptions { connections_max, in_flight_max, ..unix(&path) };
        let error = refused(options);
        assert!(matches!(error, BindError::Limit { max: 256, .. }), "{error}");
    }
}
