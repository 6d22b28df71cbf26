//! The Prometheus endpoint: its address.

use crate::exit::{Code, Exit};
use crate::serve::resolve;
use corelane::metrics::http::Endpoint;
use corelane::runtime::LocalClient;
use std::net::TcpListener;

/// Serves `GET /metrics` until it is dropped.
pub fn start(address: &str, non_loopback: bool, client: LocalClient) -> Result<Endpoint, Exit> {
    let address = resolve(address)?;
    if !address.ip().is_loopback() && !non_loopback {
        let text = format!(
            "metrics on {address} would be read by other machines; choose a loopback address, or \
             allow it (--non-loopback, or metrics_allow_non_loopback)"
        );
        return Err(Exit::new(Code::Config, text));
    }
    let page = move || client.stats().prometheus();
    TcpListener::bind(address)
        .and_then(|listener| Endpoint::start(listener, page))
        .map_err(|e| Exit::new(Code::Unreachable, format_args!("metrics on {address}: {e}")))
}
