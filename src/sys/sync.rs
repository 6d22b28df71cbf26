//! The one door to atomics: std's, or loom's when models are checked (`--cfg loom`).
