use super::*;
use std::ffi::CString;
use std::os::fd::AsFd;

fn device(path: std::path::PathBuf) -> CString {
    CString::new(path.into_os_string().into_encoded_bytes()).unwrap()
}

#[test]
fn a_port_is_set_as_it_is_asked_for_and_nobody_elses() {
    let (master, path) = pseudo_terminal().unwrap();
    let _held = hold_open(master.as_fd()).unwrap();
    let path = device(path);
    for (baud, rts_cts) in [(921_600, true), (250_000, false)] {
        let port = open_serial(&path, baud, rts_cts).unwrap();
        let got = settings(&port).unwrap();
        assert_eq!((got.c_ispeed, got.c_ospeed), (baud, baud));
        assert_eq!(got.c_cflag & libc::CRTSCTS != 0, rts_cts);
        assert_eq!(got.c_cflag & (libc::CSIZE | libc::PARENB | libc::CSTOPB), libc::CS8);
        assert_eq!(got.c_lflag & (libc::ICANON | libc::ECHO), 0);
        let again = open_serial(&path, baud, rts_cts).unwrap_err();
        assert!(matches!(again, Errno::WOULDBLOCK | Errno::BUSY), "{again}");
    }
    // A device that is none.
    assert_eq!(open_serial(c"/dev/null", 9_600, false).unwrap_err(), Errno::NOTTY);
}
