use super::*;

/// While one captures nobody else uses a GPU, and while one uses it nobody captures.
#[test]
fn a_capture_is_alone() {
    let shared = no_capture();
    thread::scope(|scope| {
        scope.spawn(|| assert!(CAPTURE.try_write().is_err()));
    });
    drop(shared);
    let alone = capture();
    thread::scope(|scope| {
        scope.spawn(|| assert!(CAPTURE.try_read().is_err()));
    });
    drop(alone);
}
