use super::*;

#[test]
fn faults_are_read_after_the_name() {
    let stat = "12 (a) b) S 1 2 3 0 -1 4194560 170 0 5 0 9 8 0 0 20 0 1 0";
    assert_eq!(faults_of(stat), Some(175));
    assert_eq!(faults_of("12 (a) S 1"), None);
}

#[test]
fn a_thread_counts_the_pages_that_it_touches() {
    let me = this_thread();
    let before = page_faults(me).unwrap();
    drop(AlignedBytes::zeroed(64 * 1024 * 1024));
    assert!(page_faults(me).unwrap() > before);
    assert_eq!(page_faults(u32::MAX), None);
    assert!(resident_bytes().unwrap() > 1024 * 1024);
}
