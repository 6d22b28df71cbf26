//! Compute kernels, per instruction set.
