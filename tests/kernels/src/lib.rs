//! The rooms that the kernels are, and use.
#![allow(dead_code)]

#[path = "../../../src/engine"]
pub mod engine {
    pub mod image;
    pub mod kernels;
}
#[path = "../../../src/limits.rs"]
pub mod limits;
#[path = "../../../src/sys"]
pub mod sys {
    pub mod region;
    /// Only tests of the regions ask, which don't run here.
    pub mod memory {
        pub fn resident_bytes() -> Option<usize> {
            None
        }
    }
}
