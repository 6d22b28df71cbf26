//! The fuzzing targets of `fuzz/` on inputs of our own: many, from a seed, and those that were once
//! found to break something. `CORELANE_FUZZ_INPUTS` sets how many of each target.

#[cfg(feature = "std")]
mod files;
#[cfg(feature = "std")]
mod models;
#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::time::Instant;
use targets::Reached;

/// Inputs of each target, unless the environment says otherwise.
const INPUTS: u64 = 300_000;
/// Longest input in bytes.
const INPUT_BYTES_MAX: u64 = 160;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

/// Inputs of each target.
fn inputs() -> u64 {
    let inputs = std::env::var("CORELANE_FUZZ_INPUTS").ok().and_then(|n| n.parse().ok());
    inputs.unwrap_or(INPUTS)
}

/// Runs a target; what its inputs reached, which is printed with the count.
fn fuzz(name: &str, seed: u64, target: fn(&[u8]) -> Reached) -> Reached {
    let inputs = inputs();
    let mut random = Random(seed);
    let mut reached = Reached::default();
    let mut input = Vec::new();
    let begin = Instant::now();
    for n in 0..inputs {
        input.clear();
        let len = random.below(INPUT_BYTES_MAX);
        // Small numbers choose among few; a third of all bytes are such.
        input.extend((0..len).map(|_| {
            let byte = random.next() >> 24;
            if byte.is_multiple_of(3) { (byte >> 8) as u8 % 12 } else { (byte >> 8) as u8 }
        }));
        match std::panic::catch_unwind(|| target(&input)) {
            Ok(more) => reached += more,
            Err(_) => panic!("input {n} of {name} (seed {seed}): {input:?}"),
        }
    }
    println!("{name}: {inputs} inputs in {:.1} s: {reached:?}", begin.elapsed().as_secs_f64());
    reached
}

#[test]
fn framing() {
    let reached = fuzz("framing", 1, targets::framing);
    assert!(reached.frames > 0);
}

#[test]
fn messages() {
    let reached = fuzz("messages", 2, targets::messages);
    assert!(reached.requests > 0 && reached.infers > 0 && reached.replies > 0, "{reached:?}");
    assert!(reached.bodies > 0);
}

#[test]
fn endpoints() {
    let reached = fuzz("endpoints", 3, targets::endpoints);
    assert!(reached.sessions > 0 && reached.stream_bytes > 0 && reached.infers > 0, "{reached:?}");
}

#[test]
fn client() {
    let reached = fuzz("client", 4, targets::client);
    assert!(reached.infers > 0 && reached.answers > 0 && reached.stream_bytes > 0, "{reached:?}");
}

/// Inputs that once broke something.
#[test]
fn found_cases() {
    for target in [targets::framing, targets::messages, targets::endpoints, targets::client] {
        for input in [&[][..], &[0], &[0; 64], &[255; 64]] {
            target(input);
        }
    }
}
