//! What becomes of the other models where one can't be served.

use std::str::FromStr;

/// What `serve` does where a model can't be loaded, or a worker can't run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnLoadError {
    /// Says why and ends.
    #[default]
    Exit,
    /// Says why and serves those that can be served, if any can.
    ServeOthers,
}

impl FromStr for OnLoadError {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "exit" => Ok(OnLoadError::Exit),
            "serve_others" => Ok(OnLoadError::ServeOthers),
            _ => Err(format!("{text:?}; choose \"exit\" or \"serve_others\"")),
        }
    }
}
