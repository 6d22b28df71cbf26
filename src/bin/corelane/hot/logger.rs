//! The program's defmt logger: the calling thread's own ring. No lock, since no two threads share one.

use corelane::sys::records;

#[defmt::global_logger]
struct Logger;

// SAFETY: the trait's rules are about one place that all statements write to; here each thread has its
// own, so statements of two threads never meet. A statement within a statement on one thread is told
// apart by `records`, which drops it. Nothing below touches memory but through safe calls.
unsafe impl defmt::Logger for Logger {
    fn acquire() {
        records::begin();
    }
    unsafe fn flush() {
        // A reader empties the rings; a thread that serves waits for nobody.
    }
    unsafe fn release() {
        records::commit();
    }
    unsafe fn write(bytes: &[u8]) {
        records::append(bytes);
    }
}
