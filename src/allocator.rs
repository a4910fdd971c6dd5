//! The allocator of the process: small blocks come from mimalloc, large ones from the kernel and go back to it at once.

#![allow(
    unsafe_code,
    reason = "an allocator hands out addresses, and mimalloc's options can be set in C only"
)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{copy_nonoverlapping, null_mut};

use libmimalloc_sys::{mi_malloc, mi_option_get, mi_option_set, mi_option_t, mi_zalloc};
use mimalloc::MiMalloc;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// How long mimalloc keeps what is free, in milliseconds, unless `MIMALLOC_PURGE_DELAY` says otherwise:
/// long enough for the next requests of a busy server.
const PURGE_DELAY_MS: std::ffi::c_long = 50;
/// What it is by default.
const DEFAULT_PURGE_DELAY_MS: std::ffi::c_long = 10;
/// `mi_option_purge_delay` of mimalloc's second version.
const PURGE_DELAY: mi_option_t = 15;

/// Bytes from which a block is a mapping of its own. Payloads of a megabyte go through buffers that grow: what
/// an allocator keeps of those for its next user is more than all that is in use, the kernel moves
/// them without a copy, and pages of one that were never written take no memory.
const LARGE: usize = 512 << 10;
/// Mappings begin at multiples of this, or of more.
const PAGE: usize = 4 << 10;
/// Blocks of mimalloc of at least this size begin at multiples of it without being asked to, and smaller ones at
/// multiples of their size.
const NATURAL: usize = 16;

/// See the head of this file.
pub struct Allocator;

fn is_large(size: usize, align: usize) -> bool {
    size >= LARGE && align <= PAGE
}

fn is_natural(layout: Layout) -> bool {
    layout.align() <= NATURAL && layout.align() <= layout.size()
}

fn map(size: usize) -> *mut u8 {
    // SAFETY: a new private mapping at an address that the kernel chooses touches no other memory.
    let block = unsafe {
        mmap_anonymous(
            null_mut(),
            size,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    block.map_or(null_mut(), |block| block.cast())
}

// SAFETY: whether a block is large is told by its layout alone, which is the same when it is handed out and when
// it comes back, so each goes back to where it came from. Nothing here panics or allocates.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout.size(), layout.align()) {
            return map(layout.size());
        }
        if is_natural(layout) {
            // SAFETY: any size may be asked for; the alignment is the natural one.
            return unsafe { mi_malloc(layout.size()) }.cast();
        }
        // SAFETY: the caller keeps to the same contract.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout.size(), layout.align()) {
            return map(layout.size());
        }
        if is_natural(layout) {
            // SAFETY: as above.
            return unsafe { mi_zalloc(layout.size()) }.cast();
        }
        // SAFETY: the caller keeps to the same contract.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout.size(), layout.align()) {
            // SAFETY: a large block is a whole mapping of this size, and the caller gives it up. The kernel may join
            // neighbours and refuse to part them when there are too many mappings; such a block is lost, not damaged.
            let _ = unsafe { munmap(block.cast(), layout.size()) };
            return;
        }
        // SAFETY: a small block is mimalloc's.
        unsafe { MiMalloc.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (was, will) = (
            is_large(layout.size(), layout.align()),
            is_large(size, layout.align()),
        );
        match (was, will) {
            // SAFETY: a small block is mimalloc's, and stays so.
            (false, false) => unsafe { MiMalloc.realloc(block, layout, size) },
            (true, true) => {
                // SAFETY: the whole mapping, which nobody else knows; the kernel moves it when it must.
                let moved =
                    unsafe { mremap(block.cast(), layout.size(), size, MremapFlags::MAYMOVE) };
                moved.map_or(null_mut(), |block| block.cast())
            }
            // SAFETY: the caller promises that `size` makes a layout with this alignment; the new block is another
            // one than the old, and both have as many bytes as are copied.
            _ => unsafe {
                let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
                if !moved.is_null() {
                    copy_nonoverlapping(block, moved, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }
}

/// Sets how long free memory is kept, unless somebody has chosen.
pub fn keep_free_memory_for_a_moment() {
    // SAFETY: both take numbers only, and may be called at any time from any thread.
    unsafe {
        // Another value was set on purpose, or the number stands for another option by now.
        if mi_option_get(PURGE_DELAY) == DEFAULT_PURGE_DELAY_MS {
            mi_option_set(PURGE_DELAY, PURGE_DELAY_MS);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use super::*;

    /// A block that grows and shrinks through every kind keeps its bytes.
    #[test]
    fn blocks_keep_what_is_in_them_as_they_move() {
        let mut text: Vec<u8> = Vec::with_capacity(16);
        let byte = |at: usize| u8::try_from(at % 251).unwrap_or(0);
        for size in [
            100,
            LARGE - 1,
            LARGE,
            LARGE + 1,
            5 * LARGE + 17,
            LARGE,
            LARGE - 1,
            3 * LARGE,
            10,
        ] {
            let kept = text.len().min(size);
            text.truncate(size);
            text.shrink_to_fit();
            assert!((0..kept).all(|at| text[at] == byte(at)), "{size}");
            text.reserve_exact(size - kept);
            text.extend((kept..size).map(byte));
            assert_eq!(text.len(), size);
            assert!((0..size).all(|at| text[at] == byte(at)), "{size}");
        }
    }

    #[test]
    fn small_blocks_are_aligned() {
        for size in 1..600 {
            for align in [1, 2, 4, 8, 16, 32, 64] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: the size is not zero, and the blocks go back as what they were handed out.
                unsafe {
                    let blocks = [(); 3].map(|()| Allocator.alloc(layout));
                    for block in blocks {
                        assert!(!block.is_null() && block.addr().is_multiple_of(align));
                        block.write_bytes(1, size);
                        Allocator.dealloc(block, layout);
                    }
                    let block = Allocator.alloc_zeroed(layout);
                    assert!(block.addr().is_multiple_of(align));
                    assert!((0..size).all(|at| *block.add(at) == 0));
                    Allocator.dealloc(block, layout);
                }
            }
        }
    }

    #[test]
    fn zeroed_blocks_are_zero_and_aligned_ones_aligned() {
        for size in [LARGE / 2, LARGE, LARGE * 2] {
            let zeros = vec![0_u8; size];
            assert!(zeros.iter().all(|byte| *byte == 0));
            for align in [8, PAGE, PAGE * 4] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: the size is not zero, and the block goes back as what it was handed out.
                unsafe {
                    let block = Allocator.alloc(layout);
                    assert!(!block.is_null() && block.addr().is_multiple_of(align));
                    block.write_bytes(1, size);
                    Allocator.dealloc(block, layout);
                }
            }
        }
    }
}
