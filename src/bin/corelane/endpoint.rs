//! The Prometheus endpoint: text over HTTP, on housekeeping threads.

use crate::exit::{Code, Exit};
use crate::serve::resolve;
use corelane::runtime::LocalClient;
use std::net::SocketAddr;
use tiny_http::{Header, Method, Response, Server};

/// The text format's own name.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves `GET /metrics` until the program ends; returns the address, with the port that was found.
pub fn start(address: &str, non_loopback: bool, client: LocalClient) -> Result<SocketAddr, Exit> {
    let address = resolve(address)?;
    if !address.ip().is_loopback() && !non_loopback {
        let text = format!(
            "metrics on {address} would be read by other machines; choose a loopback address, or \
             allow it (--non-loopback, or metrics_allow_non_loopback)"
        );
        return Err(Exit::new(Code::Config, text));
    }
    let failed = |e: &dyn std::fmt::Display| {
        Exit::new(Code::Unreachable, format_args!("metrics on {address}: {e}"))
    };
    let server = Server::http(address).map_err(|e| failed(&e))?;
    let bound = server.server_addr().to_ip().unwrap_or(address);
    let content_type = Header::from_bytes("Content-Type", CONTENT_TYPE)
        .map_err(|()| failed(&"the header is not ASCII"))?;
    std::thread::Builder::new()
        .name("cl-metrics".into())
        .spawn(move || {
            for request in server.incoming_requests() {
                let path = request.url().split('?').next().unwrap_or_default();
                let response = match (request.method(), path) {
                    (Method::Get | Method::Head, "/metrics") => {
                        Response::from_string(client.stats().prometheus())
                            .with_header(content_type.clone())
                    }
                    (_, "/metrics") => Response::from_string("only GET\n").with_status_code(405),
                    _ => Response::from_string("see /metrics\n").with_status_code(404),
                };
                // A reader that went away is no reason to stop.
                let _ = request.respond(response);
            }
        })
        .map_err(|e| failed(&e))?;
    Ok(bound)
}
