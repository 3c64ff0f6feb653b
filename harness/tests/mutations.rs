//! Seeded mutation fuzzing inside `cargo test`: a valid header, a few damaged bytes, thousands of times. Whatever comes
//! out, it is a checkpoint whose tensors lie inside the file or a typed error; never a panic.

use harness::containers::stream::Declared;
use harness::containers::{Checkpoint, Dtype, MetaArray, MetaValue, Metadata, gguf_write, safetensors_write};
use harness::sampler::uniform;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 += 1;
        (uniform(0xfeed, self.0) * n as f64) as usize
    }

    fn damage(&mut self, seed: &[u8], head: usize) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..1 + self.below(4) {
            let at = self.below(head.min(bytes.len()).max(1));
            match self.below(6) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                2 => {
                    let value = [0, 1, u64::MAX, 1 << 63, 1 << 32, u64::from(u32::MAX)][self.below(6)];
                    let end = (at + 8).min(bytes.len());
                    bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
                }
                3 => bytes.truncate(at.max(1)),
                4 => {
                    let from = self.below(bytes.len());
                    let piece = bytes[from..(from + 9).min(bytes.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
                _ => {
                    let end = (at + 1 + self.below(9)).min(bytes.len());
                    bytes.drain(at..end);
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        bytes
    }
}

fn exercise(seed: &[u8], head: usize, rounds: usize) -> (usize, usize) {
    let mut random = Random(seed.len() as u64);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..rounds {
        match Checkpoint::from_bytes(random.damage(seed, head)) {
            Ok(checkpoint) => {
                for tensor in checkpoint.tensors() {
                    let bytes = checkpoint.bytes_of(tensor);
                    assert_eq!(Some(bytes.len() as u64), tensor.dtype.bytes_of(&tensor.shape));
                }
                accepted += 1;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
    }
    (accepted, refused)
}

#[test]
fn damaged_gguf_headers_never_panic() {
    let mut meta = Metadata::default();
    meta.insert("general.alignment", MetaValue::U32(64));
    meta.insert("a.string", MetaValue::String("text".into()));
    meta.insert("an.array", MetaValue::Array(MetaArray::String(vec!["x".into(), "yy".into()])));
    let inner = vec![MetaArray::U8(vec![1, 2]), MetaArray::F64(vec![0.5])];
    meta.insert("nested", MetaValue::Array(MetaArray::Array(inner)));
    meta.insert("flag", MetaValue::Bool(true));
    let tensors = [
        Declared::new("blk.0.w", Dtype::Q4_K, &[2, 256]),
        Declared::new("norm", Dtype::F32, &[5]),
        Declared::new("out", Dtype::Q8_0, &[3, 2, 32]),
    ];
    let mut bytes = gguf_write::header(&tensors, &meta).unwrap();
    let head = bytes.len();
    let data: usize = tensors.iter().map(|t| (t.bytes().unwrap() as usize).next_multiple_of(64)).sum();
    bytes.resize(head + data, 0);
    assert!(Checkpoint::from_bytes(bytes.clone()).is_ok());
    let (accepted, refused) = exercise(&bytes, head, 6000);
    assert!(refused > 2000 && accepted > 50, "accepted {accepted}, refused {refused}");
}

#[test]
fn damaged_safetensors_headers_never_panic() {
    let notes = [("format".to_owned(), "pt".to_owned())].into();
    let tensors = [
        Declared::new("a", Dtype::BF16, &[4, 4]),
        Declared::new("b", Dtype::F8E4M3, &[3]),
        Declared::new("c", Dtype::F32, &[]),
    ];
    let mut bytes = safetensors_write::header(&tensors, Some(&notes)).unwrap();
    let head = bytes.len();
    bytes.resize(head + 32 + 3 + 4, 0);
    assert!(Checkpoint::from_bytes(bytes.clone()).is_ok());
    let (accepted, refused) = exercise(&bytes, head, 6000);
    assert!(refused > 2000 && accepted > 10, "accepted {accepted}, refused {refused}");
}
