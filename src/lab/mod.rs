//! The latency lab: what is measured, against which floor, and how it is told.
//!
//! How these parts find two careless changes is told on the page [`docs::story`](crate::docs::story).
//!
//! | part | what it does |
//! |---|---|
//! | [`schedule`] | when requests are to be sent, fixed by a seed before the run |
//! | [`load`] | the generator: open and closed loop, without allocation while it runs |
//! | [`drive`] | connects, repeats, watches server and machine meanwhile ([`watch`], [`system`]) |
//! | [`run`] | what was measured: `metrics.json`, its schema and its folder |
//! | [`compare`] | two runs: what changed, and whether it is more than noise; gates |
//! | [`history`] | a metric over many runs |
//! | [`profile`] | where the server spends its CPU time, sampled from outside |
//! | [`flame`] | flame graphs, their difference, and the functions that it names |
//! | [`saturate`] | the highest rate within a latency bound |
//! | [`scenario`] | MLPerf's scenarios as loads |
//! | [`tune`] | the settings that serve a given load best |
//! | [`validity`] | what speaks against the figures |
//! | [`device`] | the standard card of a board |
//! | [`overhead`] | the runtime's own cost beside bare floors |
//! | [`synthetic`] | a model whose compute time is sized to the machine |
//! | [`rows`] | what a row costs in a batch beside alone |
//! | [`sample`] | medians and spreads |

pub mod compare;
pub mod device;
pub mod drive;
pub mod flame;
pub mod history;
pub mod load;
pub mod overhead;
pub mod profile;
pub mod rows;
pub mod run;
pub mod sample;
pub mod saturate;
pub mod scenario;
pub mod schedule;
pub mod synthetic;
pub mod system;
pub mod tune;
pub mod validity;
pub mod watch;
