//! CPU embedding: one item is one token.
//!
//! The row is exactly what [`decode_row`](crate::formats::decode_row) yields, no scaling. An id outside the
//! table is a typed refusal, never a read.

use crate::formats::{Format, FormatError, decode_row_with};
use crate::host::simd::Simd;

/// Why a token has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    /// The id is not in the table.
    #[error("token = {token} is not below vocabulary = {vocabulary}")]
    Token {
        /// The id asked for.
        token: u32,
        /// Rows of the table.
        vocabulary: usize,
    },
    /// The row's bytes do not fit its format.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// Decodes row `token` of a table of `out.len()` columns stored row after row in `bytes`.
pub fn embed_row(
    simd: Simd,
    format: Format,
    bytes: &[u8],
    token: u32,
    out: &mut [f32],
) -> Result<(), EmbedError> {
    let row = format.row_bytes(out.len())? as usize;
    let vocabulary = bytes.len().checked_div(row).unwrap_or(0);
    let refused = EmbedError::Token { token, vocabulary };
    let start = (token as usize).checked_mul(row).ok_or(refused)?;
    let end = start.checked_add(row).ok_or(refused)?;
    let bytes = bytes.get(start..end).ok_or(refused)?;
    Ok(decode_row_with(simd, format, bytes, out)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::decode_row;

    fn bytes(n: usize) -> Vec<u8> {
        // Small exponents, so every format decodes to finite values.
        (0..n).map(|i| ((i * 37 + i / 251) % 61) as u8).collect()
    }

    #[test]
    fn a_row_is_its_decoded_bytes_in_every_format() {
        let formats = [Format::F32, Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_K, Format::Q6_K];
        for format in formats {
            let (vocabulary, width) = (5, 512);
            let row = format.row_bytes(width).expect("whole blocks") as usize;
            let table = bytes(row * vocabulary);
            for token in 0..vocabulary {
                let (mut got, mut want) = (vec![f32::NAN; width], vec![0.0; width]);
                for simd in Simd::available() {
                    embed_row(simd, format, &table, token as u32, &mut got).expect("in the table");
                    decode_row(format, &table[token * row..(token + 1) * row], &mut want).expect("a row");
                    assert_eq!(
                        got.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                        want.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                    );
                }
            }
        }
    }

    #[test]
    fn ids_outside_the_table_and_ragged_widths_are_refused() {
        let table = bytes(4 * 8 * 3);
        let mut out = [0.0; 8];
        for token in [3, 1000, u32::MAX] {
            let got = embed_row(Simd::SCALAR, Format::F32, &table, token, &mut out);
            assert_eq!(got, Err(EmbedError::Token { token, vocabulary: 3 }));
        }
        let got = embed_row(Simd::SCALAR, Format::Q8_0, &table, 0, &mut out);
        assert!(matches!(got, Err(EmbedError::Format(FormatError::RaggedRow { .. }))));
    }
}
