//! A counting allocator, so that a test can prove that a step allocates nothing.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counting calls that take memory. A test installs it as `#[global_allocator]`.
#[derive(Debug, Default)]
pub struct CountingAlloc;

impl CountingAlloc {
    /// Allocations and reallocations of all threads so far; zero where the type is not installed.
    #[must_use]
    pub fn allocations() -> u64 {
        ALLOCATIONS.load(Ordering::SeqCst)
    }
}

// SAFETY: every call goes unchanged to the system's allocator, which upholds the contract.
unsafe impl GlobalAlloc for CountingAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's layout, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` through this type.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's layout, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the pointer came from `System` through this type, with this layout.
        unsafe { System.realloc(ptr, layout, size) }
    }
}
