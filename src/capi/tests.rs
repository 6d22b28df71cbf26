//! What can't be seen from C.

use super::answer::CLOSE_REASONS;
use super::model::DTYPES;
use super::status::{STATUSES, code, corelane_status, fail, guard, guard_value};
use super::*;
use crate::units::{CloseReason, DType};
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::ptr::null_mut;

fn message() -> String {
    // SAFETY: the thread's own message, which ends with a zero.
    unsafe { CStr::from_ptr(corelane_error_message()) }.to_str().unwrap().to_owned()
}

#[test]
fn a_panic_is_a_status() {
    assert_eq!(guard::<()>(|| panic!("number {}", 7)), corelane_status::Panic);
    assert!(message().ends_with("number 7"), "{}", message());
    assert_eq!(guard_value(5, || panic!("plain")), 5);
    assert!(message().ends_with("plain"));
    struct Nasty;
    impl Drop for Nasty {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    assert_eq!(guard::<()>(|| std::panic::panic_any(Nasty)), corelane_status::Panic);
}

#[test]
fn a_message_is_cut_at_a_character() {
    fail(corelane_status::Config, format_args!("{}", "ü".repeat(400)));
    let cut = message();
    assert_eq!(cut.len(), 510);
    assert!(cut.chars().all(|c| c == 'ü'));
    fail(corelane_status::Config, format_args!("short"));
    assert_eq!(message(), "short");
    let other = std::thread::spawn(message).join().unwrap();
    assert_eq!(other, "", "a message is its thread's own");
}

#[test]
fn statuses_are_told_apart() {
    let numbers: BTreeSet<i32> = STATUSES.iter().map(|(code, ..)| *code as i32).collect();
    let names: BTreeSet<&CStr> = STATUSES.iter().map(|(_, name, _)| *name).collect();
    assert_eq!((numbers.len(), names.len()), (STATUSES.len(), STATUSES.len()));
    let source = include_str!("status.rs").lines();
    let is_number = |n: &str| n.strip_suffix(',').is_some_and(|n| n.parse::<i32>().is_ok());
    let variants = source.filter(|l| l.split_once(" = ").is_some_and(|(_, n)| is_number(n)));
    assert_eq!(variants.count(), STATUSES.len(), "every status has its texts");
    for (code, name, text) in STATUSES {
        // SAFETY: static texts that end with a zero.
        unsafe {
            assert_eq!(CStr::from_ptr(corelane_status_name(*code as i32)), *name);
            assert_eq!(CStr::from_ptr(corelane_status_text(*code as i32)), *text);
        }
    }
    for none in [i32::MIN, -1000, 2, i32::MAX] {
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(corelane_status_name(none)) };
        assert_eq!(name, c"unknown");
    }
}

#[test]
fn numbers_match_the_crates() {
    for (n, dtype) in DType::ALL.into_iter().enumerate() {
        assert_eq!(DTYPES[n] as usize, n);
        let names = (format!("{dtype:?}"), format!("{:?}", DTYPES[n]));
        assert_eq!(names.0, names.1);
    }
    for (n, reason) in CloseReason::ALL.into_iter().enumerate() {
        assert_eq!(CLOSE_REASONS[n] as usize, n);
        assert_eq!(format!("{reason:?}"), format!("{:?}", CLOSE_REASONS[n]));
    }
}

#[test]
fn a_program_of_another_version_is_refused() {
    let mut builder = null_mut();
    let ours = CORELANE_ABI_VERSION;
    for other in [ours + 1, ours + 0x1_0000, 0] {
        // SAFETY: `builder` may be written.
        let status = unsafe { corelane_builder_new_abi(other, &mut builder) };
        assert_eq!(status, corelane_status::AbiMismatch, "{other:x}");
        assert!(builder.is_null());
    }
    assert!(message().contains("the library has 1."), "{}", message());
    // SAFETY: as above, and the builder is freed once.
    unsafe {
        assert_eq!(corelane_builder_new_abi(ours, &mut builder), corelane_status::Ok);
        corelane_builder_free(builder);
    }
}

#[test]
fn an_errand_that_panics_is_a_status() {
    assert_eq!(super::errand::on_own_thread(|| 42), Ok(42));
    let bad: Result<(), _> = super::errand::on_own_thread(|| panic!("in the errand"));
    assert_eq!(code(bad), corelane_status::Panic);
    assert!(message().ends_with("in the errand"), "{}", message());
}
