//! Pages that are about the whole rather than about one room. They hold no code; what they show is
//! a file that is tested.

pub mod firmware;
pub mod line;
pub mod story;
