//! The serial link end to end in simulated time: the client's state machine, a line with faults, and
//! a server over the same link. Nothing here waits for a clock.

mod efficiency;
mod faults;
mod framing;
mod fuzz;
mod key;
mod line;
mod server;
mod short;
mod watch;
mod world;
