//! The floors: what the machine does without us, with threads placed alike.

use crate::sys::affinity;
use crate::sys::clock;
use crate::sys::futex::WaitWord;
use crate::sys::sync::{Arc, AtomicBool, Ordering, spin_turn};
use crate::units::CoreId;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// How a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Asleep on a futex.
    Parked,
    /// Spinning.
    Spinning,
}

/// Runs `f` on a thread of its own, pinned to `core`, and returns what it returns.
///
/// # Errors
/// The pin did not take.
///
/// # Panics
/// If `f` does.
pub fn on_core<R: Send>(
    core: CoreId,
    f: impl FnOnce() -> R + Send,
) -> Result<R, affinity::AffinityError> {
    std::thread::scope(|s| {
        let thread = s.spawn(move || {
            let _pinned = affinity::pin(core)?;
            Ok(f())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn await_value(word: &WaitWord, not: u32, waiting: Waiting) -> u32 {
    loop {
        let value = word.atomic().load(Ordering::Acquire);
        if value != not {
            return value;
        }
        match waiting {
            Waiting::Parked => word.wait(not, None),
            Waiting::Spinning => spin_turn(),
        }
    }
}

fn set(word: &WaitWord, value: u32, waiting: Waiting) {
    word.atomic().store(value, Ordering::Release);
    if waiting == Waiting::Parked {
        word.wake(1);
    }
}

/// Round trips of a bare two-thread ping-pong, each in nanoseconds.
///
/// # Errors
/// A pin did not take.
pub fn ping_pong(
    client: CoreId,
    server: CoreId,
    waiting: Waiting,
    iterations: usize,
) -> Result<Vec<u64>, affinity::AffinityError> {
    const END: u32 = u32::MAX;
    let (ping, pong) = (Arc::new(WaitWord::new(0)), Arc::new(WaitWord::new(0)));
    let (their_ping, their_pong) = (ping.clone(), pong.clone());
    let (ready, started) = std::sync::mpsc::channel();
    let partner = std::thread::spawn(move || {
        let pinned = affinity::pin(server);
        let ok = pinned.is_ok();
        let _ = ready.send(pinned.map(drop));
        if !ok {
            return;
        }
        let mut seen = 0;
        loop {
            seen = await_value(&their_ping, seen, waiting);
            if seen == END {
                return;
            }
            set(&their_pong, seen, waiting);
        }
    });
    started.recv().unwrap_or(Err(affinity::AffinityError::Unreadable(0)))?;
    let times = on_core(client, || {
        let mut times = Vec::with_capacity(iterations);
        for n in 1..=iterations as u32 {
            let start = clock::now();
            set(&ping, n, waiting);
            await_value(&pong, n - 1, waiting);
            times.push(clock::now().since(start).0);
        }
        times
    });
    set(&ping, END, Waiting::Parked);
    let _ = partner.join();
    times
}

/// How long a thread that sleeps takes to run again, each in nanoseconds: from just before it is woken
/// until it has the clock in its hand. Between two wake-ups it is left alone, so that its core idles.
///
/// # Errors
/// A pin did not take.
pub fn wake_up(
    waker: CoreId,
    sleeper: CoreId,
    iterations: usize,
) -> Result<Vec<u64>, affinity::AffinityError> {
    const REST: std::time::Duration = std::time::Duration::from_micros(200);
    let (call, answer) = (Arc::new(WaitWord::new(0)), Arc::new(WaitWord::new(0)));
    let (their_call, their_answer) = (call.clone(), answer.clone());
    let (ready, started) = std::sync::mpsc::channel();
    let asleep = std::thread::spawn(move || {
        let pinned = affinity::pin(sleeper);
        let ok = pinned.is_ok();
        let _ = ready.send(pinned.map(drop));
        let mut woken = Vec::with_capacity(iterations);
        let mut seen = 0;
        while ok && woken.len() < iterations {
            seen = await_value(&their_call, seen, Waiting::Parked);
            woken.push(clock::now());
            // So that no call is made before the last one was heard.
            set(&their_answer, seen, Waiting::Parked);
        }
        woken
    });
    started.recv().unwrap_or(Err(affinity::AffinityError::Unreadable(0)))?;
    let called = on_core(waker, || {
        let mut called = Vec::with_capacity(iterations);
        for n in 1..=iterations as u32 {
            std::thread::sleep(REST);
            called.push(clock::now());
            set(&call, n, Waiting::Parked);
            await_value(&answer, n - 1, Waiting::Parked);
        }
        called
    })?;
    let woken = asleep.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    Ok(woken.iter().zip(&called).map(|(woken, called)| woken.since(*called).0).collect())
}

/// Round trips of a raw blocking Unix socket echo of `bytes` bytes each way, in nanoseconds.
///
/// # Errors
/// A pin did not take, or the socket failed.
pub fn unix_echo(
    client: CoreId,
    server: CoreId,
    bytes: usize,
    iterations: usize,
) -> Result<Vec<u64>, Box<dyn std::error::Error + Send + Sync>> {
    let (mut near, mut far) = UnixStream::pair()?;
    let ok = Arc::new(AtomicBool::new(false));
    let echo = std::thread::spawn(move || -> Result<(), affinity::AffinityError> {
        let _pinned = affinity::pin(server)?;
        let mut buffer = vec![0u8; bytes];
        while far.read_exact(&mut buffer).is_ok() {
            if far.write_all(&buffer).is_err() {
                break;
            }
        }
        Ok(())
    });
    let times = on_core(client, || -> std::io::Result<Vec<u64>> {
        let (request, mut answer) = (vec![7u8; bytes], vec![0u8; bytes]);
        let mut times = Vec::with_capacity(iterations);
        for _ in 0..iterations {
            let start = clock::now();
            near.write_all(&request)?;
            near.read_exact(&mut answer)?;
            times.push(clock::now().since(start).0);
        }
        ok.store(answer == request, Ordering::Relaxed);
        drop(near);
        Ok(times)
    })??;
    match echo.join() {
        Ok(pinned) => pinned?,
        Err(panic) => std::panic::resume_unwind(panic),
    }
    assert!(ok.load(Ordering::Relaxed), "the echo returned other bytes");
    Ok(times)
}
