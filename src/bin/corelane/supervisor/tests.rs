use super::Supervisor;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

fn heard(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 256];
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let n = socket.recv(&mut bytes).unwrap();
    String::from_utf8(bytes[..n].to_vec()).unwrap()
}

#[test]
fn what_is_said_arrives() {
    let name = format!("corelane-supervisor-{}", std::process::id());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let supervisor = Supervisor::new(Some(format!("@{name}").into()), None, None).unwrap();
    supervisor.say("READY=1");
    assert_eq!(heard(&socket), "READY=1");
    assert_eq!(supervisor.beat_every(), None);

    let path = std::env::temp_dir().join(&name);
    let socket = UnixDatagram::bind(&path).unwrap();
    let supervisor = Supervisor::new(Some(path.clone().into()), None, None).unwrap();
    supervisor.say("STOPPING=1");
    assert_eq!(heard(&socket), "STOPPING=1");
    std::fs::remove_file(path).unwrap();
    // Nobody listens any more: said in the log, and no reason to end.
    supervisor.say("WATCHDOG=1");
}

#[test]
fn beats_are_half_the_patience_and_only_for_this_process() {
    let every = |usec: &str, pid: Option<u32>| {
        let pid = pid.map(|pid| pid.to_string().into());
        Supervisor::new(Some("@x".into()), Some(usec.into()), pid).unwrap().beat_every()
    };
    assert_eq!(every("3000000", None), Some(Duration::from_millis(1500)));
    assert_eq!(every("3000000", Some(std::process::id())), Some(Duration::from_millis(1500)));
    assert_eq!(every("3000000", Some(1)), None);
    assert_eq!(every("0", None), None);
    assert_eq!(every("soon", None), None);
    let silent = Supervisor::new(None, Some("3000000".into()), None).unwrap();
    assert_eq!(silent.beat_every(), None);
    silent.say("READY=1");
    assert!(Supervisor::new(Some("relative\0".into()), None, None).is_err());
}
