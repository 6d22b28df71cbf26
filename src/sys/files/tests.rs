use super::*;

struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir =
            std::env::temp_dir().join(format!("corelane-files-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn no_more_than_the_bound_is_read() {
    let scratch = Scratch::new("bound");
    let file = scratch.0.join("f");
    std::fs::write(&file, b"12345678").unwrap();
    assert_eq!(read(&file, 8).unwrap(), b"12345678");
    assert_eq!(read_any(&file, 8).unwrap(), b"12345678");
    assert_eq!(read_text(&file, 8).unwrap(), "12345678");
    for error in [read(&file, 7).unwrap_err(), read_any(&file, 7).unwrap_err()] {
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("8 bytes") && error.to_string().contains("at most 7"));
    }
    std::fs::write(&file, b"\xff\xfe").unwrap();
    assert_eq!(read_text(&file, 8).unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert_eq!(read(&scratch.0.join("none"), 8).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn devices_without_an_end_have_one() {
    let zero = Path::new("/dev/zero");
    let error = read(zero, 1000).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("a device"), "{error}");
    assert_eq!(read_any(zero, 1000).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    assert!(read(Path::new("/dev"), 1000).unwrap_err().to_string().contains("a directory"));
}

/// Nobody writes into it: a reader that waited would never end.
#[test]
fn a_pipe_is_not_waited_for() {
    let scratch = Scratch::new("pipe");
    let pipe = scratch.0.join("p");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).unwrap();
    let error = read(&pipe, 1000).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("a pipe"), "{error}");
}
