//! A runtime from a configuration.

use crate::exit::{Code, Exit};
use crate::models;
use corelane::config::Config;
use corelane::runtime::{Configured, NotServed, Runtime};
use corelane::sys::region;

/// A runtime as configured, with its models loaded, warm and verified: every one, or those that can be,
/// as `on_load_error` says.
pub fn build(config: &Config) -> Result<(Runtime, Vec<NotServed>), Exit> {
    let load = |entry: &_| models::load(entry, config.cache.as_deref());
    let configured = Configured::load(config, load)?;
    // Before workers warm up, so that what serves is in memory again when they are ready.
    region::release_code();
    configured.build().map_err(|e| Exit::new(Code::Config, e))
}
