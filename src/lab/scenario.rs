//! MLPerf's scenarios, as loads: which loop, and which figure they are about.

use crate::toml_errors::nearest;

/// A scenario of MLPerf Inference, by the behaviour of its load; this is not the benchmark itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// One request after the other; its figure is the p90 latency.
    SingleStream,
    /// Requests of eight rows, one after the other; its figure is the p99 latency.
    MultiStream,
    /// Poisson arrivals under a bound of the p99 latency; its figure is the rate.
    Server,
    /// All that the server takes at once; its figure is the throughput.
    Offline,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Scenario; 4] =
        [Scenario::SingleStream, Scenario::MultiStream, Scenario::Server, Scenario::Offline];
    /// Rows of a request of `MultiStream`.
    pub const MULTI_STREAM_ROWS: u16 = 8;
    /// Requests in flight of `Offline`, where nothing else is asked for.
    pub const OFFLINE_IN_FLIGHT: usize = 64;

    /// MLPerf's name.
    pub const fn name(self) -> &'static str {
        match self {
            Scenario::SingleStream => "SingleStream",
            Scenario::MultiStream => "MultiStream",
            Scenario::Server => "Server",
            Scenario::Offline => "Offline",
        }
    }

    /// The metric that the scenario is about, by its name in a run's summary.
    pub const fn metric(self) -> &'static str {
        match self {
            Scenario::SingleStream => "latency_p90_us",
            Scenario::MultiStream => "latency_p99_us",
            Scenario::Server | Scenario::Offline => "throughput_per_s",
        }
    }

    /// The scenario of a name, in any spelling of its letters.
    ///
    /// # Errors
    /// A sentence with the nearest name.
    pub fn from_name(name: &str) -> Result<Scenario, String> {
        let found = Self::ALL.into_iter().find(|s| s.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| match nearest(name, Self::ALL.iter().map(|s| s.name())) {
            Some(near) => format!("there is no scenario {name:?}; did you mean {near:?}?"),
            None => format!(
                "there is no scenario {name:?}; there are {}",
                Self::ALL.map(Scenario::name).join(", ")
            ),
        })
    }
}
