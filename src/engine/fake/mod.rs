//! Engine `fake`: a fixed compute time.
