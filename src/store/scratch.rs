//! Buffers for what is written before its size is known. A thread keeps some, so that they need not grow anew.

use std::cell::RefCell;

/// Bytes of a buffer that is kept.
const KEPT: usize = 1 << 20;

thread_local! {
    /// As many as were lent at once.
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Lends a buffer to some work. What it holds in the beginning is of no use.
pub(super) fn lend<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let mut buffer = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
    let done = work(&mut buffer);
    if buffer.capacity() <= KEPT {
        FREE.with_borrow_mut(|free| free.push(buffer));
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_lent_again_unless_it_is_large() {
        let grown = |bytes: usize| lend(|buffer| buffer.resize(bytes, 1));
        grown(1_000);
        assert!(lend(|buffer| buffer.capacity()) >= 1_000);
        grown(KEPT + 1);
        assert_eq!(lend(|buffer| buffer.capacity()), 0);
        // One that is lent is not lent to what happens inside.
        lend(|outer| {
            outer.push(7);
            lend(|inner| inner.clear());
            assert_eq!(outer.last(), Some(&7));
        });
    }
}
