//! A runtime from a configuration.

use crate::exit::{Code, Exit};
use crate::models;
use corelane::config::{Config, ModelEntry, OnLoadError, Workers};
use corelane::runtime::{BuildError, ModelSetup, Runtime, RuntimeBuilder};
use corelane::sys::region;
use serde::Serialize;

/// A model that can't be served, and why the others are.
#[derive(Debug, Clone, Serialize)]
pub struct NotServed {
    /// Where it is.
    path: String,
    /// Why.
    reason: String,
}

impl NotServed {
    fn new(entry: &ModelEntry, reason: String) -> NotServed {
        let path = entry.path.display().to_string();
        log::error!("the model {path} is not served: {reason}");
        NotServed { path, reason }
    }
}

fn builder(config: &Config) -> RuntimeBuilder {
    let builder = Runtime::builder().idle(config.idle).realtime(config.realtime);
    match &config.workers {
        Workers::AllButFirst => builder,
        Workers::Cores(cores) => builder.cores(cores.iter().copied()),
        Workers::Unpinned(n) => builder.unpinned(*n),
    }
}

/// A runtime as configured, with its models loaded, warm and verified: every one, or those that can be,
/// as `on_load_error` says.
pub fn build(config: &Config) -> Result<(Runtime, Vec<NotServed>), Exit> {
    let others = config.on_load_error == OnLoadError::ServeOthers;
    let mut not_served = Vec::new();
    let mut setups: Vec<(&ModelEntry, ModelSetup)> = Vec::new();
    for entry in &config.models {
        match models::load(entry, config.cache.as_deref()) {
            Ok(setup) => setups.push((entry, setup)),
            Err(error) if others => not_served.push(NotServed::new(entry, error.message)),
            Err(error) => return Err(error),
        }
    }
    // Before workers warm up, so that what serves is in memory again when they are ready.
    region::release_code();
    loop {
        if setups.is_empty() && !config.models.is_empty() {
            return Err(Exit::new(Code::Config, "no model can be served"));
        }
        let setup =
            |builder: RuntimeBuilder, (_, setup): &(_, ModelSetup)| builder.model(setup.clone());
        let error = match setups.iter().fold(builder(config), setup).build() {
            Ok(runtime) => return Ok((runtime, not_served)),
            Err(error) => error,
        };
        // What a worker can't run is left out like what can't be loaded; another try has one model less.
        let guilty = match &error {
            BuildError::Worker { model: Some(name), .. } if others => {
                setups.iter().position(|(_, setup)| setup.name == *name)
            }
            _ => None,
        };
        let Some(at) = guilty else { return Err(Exit::new(Code::Config, error)) };
        let (entry, _) = setups.remove(at);
        not_served.push(NotServed::new(entry, error.to_string()));
    }
}
