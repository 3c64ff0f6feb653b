//! Safe wrappers over the operating system: the other rooms never see a raw pointer.

pub mod alloc;
pub mod disk;
pub mod mmap;
pub mod region;
