//! Host side of the expert products: which pairs of a group are multiplied together.
//!
//! The products themselves are [`crate::linear::host::tile`] over a list of rows, so a row's result does not
//! depend on which other rows chose the same expert.

/// The pairs of expert `e`, from the tables that `route` wrote.
pub fn pairs<'a>(offsets: &[u32], list: &'a [u32], e: usize) -> &'a [u32] {
    &list[offsets[e] as usize..offsets[e + 1] as usize]
}

/// Rows of `pairs` (row = pair / top_k), written to the front of `rows`.
pub fn rows_of<'a>(pairs: &[u32], top_k: usize, rows: &'a mut [u32]) -> &'a [u32] {
    for (row, pair) in rows.iter_mut().zip(pairs) {
        *row = *pair / top_k as u32;
    }
    &rows[..pairs.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_slices_of_the_list() {
        let (offsets, list) = ([0, 2, 2, 3], [0, 5, 3]);
        assert_eq!(pairs(&offsets, &list, 0), [0, 5]);
        assert!(pairs(&offsets, &list, 1).is_empty());
        let mut rows = [0; 4];
        assert_eq!(rows_of(&[0, 5, 3], 2, &mut rows), [0, 2, 1]);
    }
}
