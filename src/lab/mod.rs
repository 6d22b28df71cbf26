//! The latency lab: what is measured, against which floor, and how it is told.

pub mod overhead;
pub mod sample;
