//! Where the line's bytes come from and go to.

use core::convert::Infallible;

/// A line that is read and written without waiting, and what to do meanwhile.
pub trait Port {
    /// Why reading or writing failed for good. Errors of single bytes (parity, overrun) are not
    /// worth one: the link repairs what is lost.
    type Error;

    /// Reads what is there into the start of `into`; 0: nothing.
    ///
    /// # Errors
    /// The line is of no more use.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Self::Error>;
    /// Takes bytes from the start of `bytes`; 0: there is no room now.
    ///
    /// # Errors
    /// The line is of no more use.
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Self::Error>;
    /// There is nothing to do for `micros` microseconds, unless bytes come: sleep until an interrupt,
    /// feed the watchdog. The default does nothing, so that the line is polled.
    fn idle(&mut self, micros: u64) {
        let _ = micros;
    }
    /// Asked again and again while a request waits; `true` gives it up.
    fn cancelled(&mut self) -> bool {
        false
    }
}

/// A [`Port`] over what implements `embedded-io`. A write may block until the peripheral takes a
/// byte, which a UART without flow control always does soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddedIo<T>(pub T);

impl<T> Port for EmbeddedIo<T>
where
    T: embedded_io::Read + embedded_io::ReadReady + embedded_io::Write,
{
    type Error = T::Error;

    fn read(&mut self, into: &mut [u8]) -> Result<usize, T::Error> {
        if self.0.read_ready()? { self.0.read(into) } else { Ok(0) }
    }
    fn write(&mut self, bytes: &[u8]) -> Result<usize, T::Error> {
        self.0.write(bytes)
    }
}

/// A [`Port`] over two closures: `get` gives a byte if there is one, `put` says whether it took
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes<G, P> {
    /// The next received byte, if there is one.
    pub get: G,
    /// Takes a byte to send; `false`: there is no room now.
    pub put: P,
}

impl<G: FnMut() -> Option<u8>, P: FnMut(u8) -> bool> Port for Bytes<G, P> {
    type Error = Infallible;

    fn read(&mut self, into: &mut [u8]) -> Result<usize, Infallible> {
        let mut n = 0;
        for place in into {
            let Some(byte) = (self.get)() else { break };
            *place = byte;
            n += 1;
        }
        Ok(n)
    }
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        let mut n = 0;
        for &byte in bytes {
            if !(self.put)(byte) {
                break;
            }
            n += 1;
        }
        Ok(n)
    }
}
