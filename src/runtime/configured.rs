//! From a configuration to a runtime: every model, or those that can be served.

use super::{BuildError, ModelSetup, Runtime, RuntimeBuilder};
use crate::config::{Config, ModelEntry, OnLoadError, Workers};
use crate::sys::region;
use serde::Serialize;
use std::fmt::Display;

/// A model that can't be served, where the others are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotServed {
    /// Where it is.
    pub path: String,
    /// Why.
    pub reason: String,
}

impl NotServed {
    fn new(entry: &ModelEntry, reason: String) -> NotServed {
        let path = entry.path.display().to_string();
        event!(error, "the model {} is not served: {}", path, reason);
        NotServed { path, reason }
    }
}

/// A configuration whose models are loaded.
pub struct Configured<'a> {
    config: &'a Config,
    setups: Vec<(&'a ModelEntry, ModelSetup)>,
    not_served: Vec<NotServed>,
}

impl<'a> Configured<'a> {
    /// Loads the models of `config` with `load`: all of them, or those that can be loaded, as `on_load_error`
    /// says. Before that the process is asked for what must be had before anything is allocated, which is the
    /// memory of weights and arenas ([`region::configure`]) and the early ones of the real-time options.
    ///
    /// # Errors
    /// The first one of `load`, where all models must be served.
    pub fn load<E: Display>(
        config: &'a Config,
        load: impl Fn(&ModelEntry) -> Result<ModelSetup, E>,
    ) -> Result<Configured<'a>, E> {
        // The runtime asks again, and tells what came of it.
        let _ = config.realtime.process.apply_early();
        region::configure(config.memory);
        let others = config.on_load_error == OnLoadError::ServeOthers;
        let mut configured = Configured { config, setups: Vec::new(), not_served: Vec::new() };
        for entry in &config.models {
            match load(entry) {
                Ok(setup) => configured.setups.push((entry, setup)),
                Err(error) if others => {
                    configured.not_served.push(NotServed::new(entry, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(configured)
    }

    fn builder(&self) -> RuntimeBuilder {
        let builder = Runtime::builder().idle(self.config.idle).realtime(self.config.realtime);
        let builder = match &self.config.workers {
            Workers::AllButFirst => builder,
            Workers::Cores(cores) => builder.cores(cores.iter().copied()),
            Workers::Unpinned(n) => builder.unpinned(*n),
        };
        self.setups.iter().fold(builder, |builder, (_, setup)| builder.model(setup.clone()))
    }

    /// Starts the workers, and returns when all are ready, with the models that are not served. `stats` names
    /// those too, as `not_served`.
    ///
    /// # Errors
    /// The first thing that is not as asked for; nothing keeps running.
    pub fn build(mut self) -> Result<(Runtime, Vec<NotServed>), BuildError> {
        let others = self.config.on_load_error == OnLoadError::ServeOthers;
        let runtime = loop {
            if self.setups.is_empty() && !self.config.models.is_empty() {
                return Err(BuildError::Config("no model can be served".into()));
            }
            let error = match self.builder().build() {
                Ok(runtime) => break runtime,
                Err(error) => error,
            };
            // What a worker can't run is left out like what can't be loaded; another try has one model less.
            let guilty = match &error {
                BuildError::Worker { model: Some(name), .. } if others => {
                    self.setups.iter().position(|(_, setup)| setup.name == *name)
                }
                _ => None,
            };
            let Some(at) = guilty else { return Err(error) };
            let (entry, _) = self.setups.remove(at);
            self.not_served.push(NotServed::new(entry, error.to_string()));
        };
        if !self.not_served.is_empty() {
            runtime.shared().add_fact("not_served", &self.not_served);
        }
        Ok((runtime, self.not_served))
    }
}
