//! Element types of both containers, and how many bytes a block of values takes.
//!
//! One idea: every size in the loaders comes from [`Dtype::block`]; nothing else knows a block's size.

use std::fmt;

/// How a stored tensor's values are held. Plain types belong to both containers, `Q*`/`IQ*`/`MXFP4` to GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, missing_docs)]
pub enum Dtype {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F64,
    F32,
    F16,
    BF16,
    F8E4M3,
    F8E5M2,
    F8E8M0,
    F4E2M1,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ2_XXS,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    IQ1_M,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
}

/// `(type, name, values per block, bytes per block, GGML type id, safetensors name)`; one row a type.
type Row = (Dtype, &'static str, u64, u64, Option<u32>, Option<&'static str>);

const TABLE: &[Row] = &[
    (Dtype::Bool, "BOOL", 1, 1, None, Some("BOOL")),
    (Dtype::U8, "U8", 1, 1, None, Some("U8")),
    (Dtype::I8, "I8", 1, 1, Some(24), Some("I8")),
    (Dtype::U16, "U16", 1, 2, None, Some("U16")),
    (Dtype::I16, "I16", 1, 2, Some(25), Some("I16")),
    (Dtype::U32, "U32", 1, 4, None, Some("U32")),
    (Dtype::I32, "I32", 1, 4, Some(26), Some("I32")),
    (Dtype::U64, "U64", 1, 8, None, Some("U64")),
    (Dtype::I64, "I64", 1, 8, Some(27), Some("I64")),
    (Dtype::F64, "F64", 1, 8, Some(28), Some("F64")),
    (Dtype::F32, "F32", 1, 4, Some(0), Some("F32")),
    (Dtype::F16, "F16", 1, 2, Some(1), Some("F16")),
    (Dtype::BF16, "BF16", 1, 2, Some(30), Some("BF16")),
    (Dtype::F8E4M3, "F8_E4M3", 1, 1, None, Some("F8_E4M3")),
    (Dtype::F8E5M2, "F8_E5M2", 1, 1, None, Some("F8_E5M2")),
    (Dtype::F8E8M0, "F8_E8M0", 1, 1, None, Some("F8_E8M0")),
    (Dtype::F4E2M1, "F4", 2, 1, None, Some("F4")),
    (Dtype::Q4_0, "Q4_0", 32, 18, Some(2), None),
    (Dtype::Q4_1, "Q4_1", 32, 20, Some(3), None),
    (Dtype::Q5_0, "Q5_0", 32, 22, Some(6), None),
    (Dtype::Q5_1, "Q5_1", 32, 24, Some(7), None),
    (Dtype::Q8_0, "Q8_0", 32, 34, Some(8), None),
    (Dtype::Q8_1, "Q8_1", 32, 36, Some(9), None),
    (Dtype::Q2_K, "Q2_K", 256, 84, Some(10), None),
    (Dtype::Q3_K, "Q3_K", 256, 110, Some(11), None),
    (Dtype::Q4_K, "Q4_K", 256, 144, Some(12), None),
    (Dtype::Q5_K, "Q5_K", 256, 176, Some(13), None),
    (Dtype::Q6_K, "Q6_K", 256, 210, Some(14), None),
    (Dtype::Q8_K, "Q8_K", 256, 292, Some(15), None),
    (Dtype::IQ2_XXS, "IQ2_XXS", 256, 66, Some(16), None),
    (Dtype::IQ2_XS, "IQ2_XS", 256, 74, Some(17), None),
    (Dtype::IQ3_XXS, "IQ3_XXS", 256, 98, Some(18), None),
    (Dtype::IQ1_S, "IQ1_S", 256, 50, Some(19), None),
    (Dtype::IQ4_NL, "IQ4_NL", 32, 18, Some(20), None),
    (Dtype::IQ3_S, "IQ3_S", 256, 110, Some(21), None),
    (Dtype::IQ2_S, "IQ2_S", 256, 82, Some(22), None),
    (Dtype::IQ4_XS, "IQ4_XS", 256, 136, Some(23), None),
    (Dtype::IQ1_M, "IQ1_M", 256, 56, Some(29), None),
    (Dtype::TQ1_0, "TQ1_0", 256, 54, Some(34), None),
    (Dtype::TQ2_0, "TQ2_0", 256, 66, Some(35), None),
    (Dtype::MXFP4, "MXFP4", 32, 17, Some(39), None),
    (Dtype::NVFP4, "NVFP4", 64, 36, Some(40), None),
];

/// The sizes of one block of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Values in a block; a row of a tensor is a whole number of blocks.
    pub values: u64,
    /// Bytes of a block.
    pub bytes: u64,
}

impl Dtype {
    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.0 == self).expect("every variant has a row; a test walks the table")
    }

    /// Values and bytes of one block.
    #[must_use]
    pub fn block(self) -> Block {
        let row = self.row();
        Block { values: row.2, bytes: row.3 }
    }

    /// The name the containers use.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The type of a GGML type id, if we know it.
    #[must_use]
    pub fn from_ggml(id: u32) -> Option<Dtype> {
        TABLE.iter().find(|row| row.4 == Some(id)).map(|row| row.0)
    }

    /// The GGML type id, where GGUF can hold the type.
    #[must_use]
    pub fn ggml_id(self) -> Option<u32> {
        self.row().4
    }

    /// The type of a safetensors dtype string, if we know it.
    #[must_use]
    pub fn from_safetensors(name: &str) -> Option<Dtype> {
        TABLE.iter().find(|row| row.5 == Some(name)).map(|row| row.0)
    }

    /// The safetensors dtype string, where that container can hold the type.
    #[must_use]
    pub fn safetensors_name(self) -> Option<&'static str> {
        self.row().5
    }

    /// Bytes of a row-major tensor of this type. `None` where a product overflows, or where the last dimension is
    /// not a whole number of blocks (blocks never cross rows).
    #[must_use]
    pub fn bytes_of(self, shape: &[u64]) -> Option<u64> {
        let block = self.block();
        let row = shape.last().copied().unwrap_or(1);
        if row % block.values != 0 {
            return None;
        }
        let values = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))?;
        (values / block.values).checked_mul(block.bytes)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_and_each_id_stands_in_the_table_once() {
        for (i, a) in TABLE.iter().enumerate() {
            assert_eq!(a.0.name(), a.1);
            for b in &TABLE[i + 1..] {
                assert_ne!(a.0, b.0);
                assert!(a.4.is_none() || a.4 != b.4, "{} and {} share an id", a.1, b.1);
                assert!(a.5.is_none() || a.5 != b.5);
            }
            if let Some(id) = a.4 {
                assert_eq!(Dtype::from_ggml(id), Some(a.0));
            }
            if let Some(name) = a.5 {
                assert_eq!(Dtype::from_safetensors(name), Some(a.0));
            }
        }
        assert_eq!(TABLE.len(), Dtype::NVFP4 as usize + 1, "a variant without a row");
    }

    #[test]
    fn sizes_are_those_of_the_formats_page() {
        assert_eq!(Dtype::Q4_K.bytes_of(&[151_936, 2048]), Some(175_030_272));
        assert_eq!(Dtype::Q6_K.bytes_of(&[151_936, 2048]), Some(255_252_480));
        assert_eq!(Dtype::BF16.bytes_of(&[]), Some(2));
        assert_eq!(Dtype::Q8_0.bytes_of(&[2, 33]), None);
        assert_eq!(Dtype::F32.bytes_of(&[1 << 63, 2]), None);
        assert_eq!(Dtype::F32.bytes_of(&[1 << 62]), None);
    }
}
