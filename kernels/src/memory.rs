//! Memory of the host device: the four arenas and the views through which kernels touch them.
//!
//! A kernel gets its slices only through [`Rd`], [`Wr`] and [`Rw`]. In checked mode each view counts the
//! distinct bytes and the total bytes it handed out, so that an account can be compared with what the
//! kernel really touched. Disjointness of concurrent writes is a property of each kernel's work items; the
//! checked mode counts bytes that were handed out for writing twice.
#![allow(unsafe_code)]

use crate::buffer::{Arena, BufId, Buffer};
pub use crate::counter::{Counter, Touched};
use crate::sys::region::Region;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

/// Plain values a view can hand out.
///
/// # Safety
/// Implementors are inhabited by every bit pattern and have no padding.
pub unsafe trait Pod: Copy + Send + Sync + 'static {}
// SAFETY: integers and floats accept every bit pattern and have no padding.
unsafe impl Pod for u8 {}
// SAFETY: as above.
unsafe impl Pod for i8 {}
// SAFETY: as above.
unsafe impl Pod for u16 {}
// SAFETY: as above.
unsafe impl Pod for u32 {}
// SAFETY: as above.
unsafe impl Pod for f32 {}
// SAFETY: bf16 is a transparent u16.
unsafe impl Pod for crate::values::Bf16 {}

/// The arenas of a process and, in checked mode, one counter a buffer.
pub struct Memory {
    arenas: [Region; 4],
    counters: Option<Vec<Counter>>,
}

impl Memory {
    /// Memory over four regions, in the order of [`Arena::ALL`].
    pub fn new(arenas: [Region; 4]) -> Self {
        Self { arenas, counters: None }
    }

    /// Turns the counting views on for a plan's buffers.
    pub fn check(&mut self, buffers: &[Buffer]) {
        self.counters = Some(buffers.iter().map(|b| Counter::new(b.bytes)).collect());
    }

    /// Turns the counting views off.
    pub fn uncheck(&mut self) {
        self.counters = None;
    }

    /// Counters, when checked.
    pub fn counters(&self) -> Option<&[Counter]> {
        self.counters.as_deref()
    }

    /// Bytes of an arena.
    pub fn arena_bytes(&self, arena: Arena) -> u64 {
        self.arenas[arena as usize].len() as u64
    }

    /// The raw bytes of an arena, for inputs and outputs between steps.
    pub fn arena_mut(&mut self, arena: Arena) -> &mut [u8] {
        self.arenas[arena as usize].as_mut_slice()
    }

    /// The raw bytes of an arena.
    pub fn arena(&self, arena: Arena) -> &[u8] {
        self.arenas[arena as usize].as_slice()
    }

    /// A buffer's values between steps.
    pub fn values<T: Pod>(&self, buffer: &Buffer) -> &[T] {
        let (range, len) = self.span::<T>(buffer);
        let bytes = &self.arenas[buffer.arena as usize].as_slice()[range];
        // SAFETY: in bounds by the slicing above, aligned (asserted in span), any bit pattern is valid.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), len) }
    }

    /// A buffer's values between steps, for writing.
    pub fn values_mut<T: Pod>(&mut self, buffer: &Buffer) -> &mut [T] {
        let (range, len) = self.span::<T>(buffer);
        let bytes = &mut self.arenas[buffer.arena as usize].as_mut_slice()[range];
        // SAFETY: as in `values`, and exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), len) }
    }

    fn span<T: Pod>(&self, buffer: &Buffer) -> (Range<usize>, usize) {
        let start = buffer.offset as usize;
        assert_eq!(start % align_of::<T>(), 0, "buffer {} is misaligned", buffer.name);
        (start..start + buffer.bytes as usize, buffer.bytes as usize / size_of::<T>())
    }

    fn raw<T: Pod>(&self, buffers: &[Buffer], buf: BufId) -> (*mut T, usize, Option<&Counter>) {
        let b = &buffers[buf.0 as usize];
        let region = &self.arenas[b.arena as usize];
        let end = b.offset.checked_add(b.bytes).expect("a plan's offsets are checked when it is finished");
        assert!(end <= region.len() as u64, "buffer {} ends at {end}, its arena at {}", b.name, region.len());
        assert_eq!(b.offset as usize % align_of::<T>(), 0, "buffer {} is misaligned", b.name);
        // SAFETY: the range was checked to lie inside the region.
        let ptr = unsafe { region.ptr().add(b.offset as usize) }.cast::<T>();
        let counter = self.counters.as_ref().map(|c| &c[buf.0 as usize]);
        (ptr, b.bytes as usize / size_of::<T>(), counter)
    }
}

/// A plan's buffers in a memory: where kernels get their views.
#[derive(Clone, Copy)]
pub struct Views<'a> {
    memory: &'a Memory,
    buffers: &'a [Buffer],
}

impl<'a> Views<'a> {
    /// Views of `buffers` in `memory`.
    pub fn new(memory: &'a Memory, buffers: &'a [Buffer]) -> Self {
        Self { memory, buffers }
    }

    /// A view for reading.
    pub fn rd<T: Pod>(&self, buf: BufId) -> Rd<'a, T> {
        let (ptr, len, counter) = self.memory.raw(self.buffers, buf);
        Rd { ptr, len, counter, _life: PhantomData }
    }

    /// A view for writing.
    pub fn wr<T: Pod>(&self, buf: BufId) -> Wr<'a, T> {
        let (ptr, len, counter) = self.memory.raw(self.buffers, buf);
        Wr { ptr, len, counter, _life: PhantomData }
    }

    /// A view for reading and writing in place.
    pub fn rw<T: Pod>(&self, buf: BufId) -> Rw<'a, T> {
        Rw(self.wr(buf))
    }
}

/// A counted read view.
pub struct Rd<'a, T> {
    ptr: *mut T,
    len: usize,
    counter: Option<&'a Counter>,
    _life: PhantomData<&'a T>,
}

/// A counted write view. Slices handed out to concurrent items must be disjoint.
pub struct Wr<'a, T> {
    ptr: *mut T,
    len: usize,
    counter: Option<&'a Counter>,
    _life: PhantomData<Cell<&'a T>>,
}

/// A counted read-modify-write view.
pub struct Rw<'a, T>(Wr<'a, T>);

// SAFETY: the pointers lead into regions that outlive 'a; concurrent use follows the items' disjointness.
unsafe impl<T: Pod> Sync for Rd<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Pod> Send for Rd<'_, T> {}
// SAFETY: as above; writes of concurrent items are disjoint by each kernel's contract.
unsafe impl<T: Pod> Sync for Wr<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Pod> Send for Wr<'_, T> {}

fn bytes_of<T>(range: &Range<usize>) -> Range<usize> {
    range.start * size_of::<T>()..range.end * size_of::<T>()
}

impl<'a, T: Pod> Rd<'a, T> {
    /// Elements `range`. Panics when it leaves the buffer: a kernel's bug, not a user's.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len, "read {range:?} of {}", self.len);
        if let Some(counter) = self.counter {
            counter.mark_read(bytes_of::<T>(&range));
        }
        // SAFETY: in bounds (asserted), aligned and initialised (regions are zeroed or files); no item of the
        // same launch writes a buffer it reads through Rd (the plan checker proves it).
        unsafe { std::slice::from_raw_parts(self.ptr.add(range.start), range.len()) }
    }

    /// One element.
    #[inline]
    pub fn get(&self, index: usize) -> T {
        self.slice(index..index + 1)[0]
    }

    /// Elements in the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<'a, T: Pod> Wr<'a, T> {
    /// Elements `range` for writing. Items running at the same time must ask for disjoint ranges.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "write {range:?} of {}", self.len);
        if let Some(counter) = self.counter {
            counter.mark_write(bytes_of::<T>(&range));
        }
        // SAFETY: in bounds (asserted), aligned; exclusive by the work-item contract stated above.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.len()) }
    }
}

impl<'a, T: Pod> Rw<'a, T> {
    /// Elements `range` for an update in place, under the same contract as [`Wr::slice`].
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        if let Some(counter) = self.0.counter {
            counter.mark_read(bytes_of::<T>(&range));
        }
        self.0.slice(range)
    }
}
