//! A byte-level BPE vocabulary of any size. One idea: the 256 bytes, then every pair of them, then every triple, each
//! with the merge that makes it, so that all texts are distinct and any text can be encoded.
use crate::containers::{MetaArray, MetaValue, Metadata};

/// Control tokens at the end of the vocabulary: end of text, start and end of a message.
pub const CONTROLS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Fewest tokens: all bytes and the control tokens.
pub const LEAST: usize = 256 + CONTROLS.len();

/// Most tokens: bytes, pairs, triples, controls; far above any model's.
pub const MOST: usize = 256 + 256 * 256 + 256 * 256 * 256;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The printable character that stands for a byte: itself where it is printable, else one above 255.
fn byte_chars() -> Vec<char> {
    let plain = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut next = 256;
    (0..256)
        .map(|b| {
            let code = if plain(b) {
                b
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).expect("codes below 512 are characters")
        })
        .collect()
}

/// Texts and merges of a vocabulary of `size` tokens; `None` where `size` is outside [`LEAST`]..=[`MOST`].
#[must_use]
pub fn byte_level(size: usize) -> Option<(Vec<String>, Vec<String>)> {
    if !(LEAST..=MOST).contains(&size) {
        return None;
    }
    let chars = byte_chars();
    let mut tokens: Vec<String> = chars.iter().map(|c| c.to_string()).collect();
    let merged = size - LEAST;
    let mut merges = Vec::with_capacity(merged);
    for n in 0..merged {
        // Token 256 + n is token `left` and one more byte: pairs first, then triples, in order.
        let (left, last) = (n / 256, n % 256);
        let (left, right) = (tokens[left].clone(), chars[last]);
        merges.push(format!("{left} {right}"));
        tokens.push(format!("{left}{right}"));
    }
    tokens.extend(CONTROLS.map(String::from));
    Some((tokens, merges))
}

/// Adds the vocabulary of `size` tokens to GGUF metadata; `false` where there is none of that size.
pub fn add_to(meta: &mut Metadata, size: usize) -> bool {
    let Some((tokens, merges)) = byte_level(size) else { return false };
    let controls = size - CONTROLS.len();
    let kinds = (0..size).map(|id| if id < controls { 1 } else { 3 }).collect();
    let id = |n: usize| MetaValue::U32((controls + n) as u32); // below 2^25
    meta.insert("tokenizer.ggml.model", MetaValue::String("gpt2".into()));
    meta.insert("tokenizer.ggml.tokens", MetaValue::Array(MetaArray::String(tokens)));
    meta.insert("tokenizer.ggml.token_type", MetaValue::Array(MetaArray::I32(kinds)));
    meta.insert("tokenizer.ggml.merges", MetaValue::Array(MetaArray::String(merges)));
    meta.insert("tokenizer.ggml.bos_token_id", id(0));
    meta.insert("tokenizer.ggml.padding_token_id", id(0));
    meta.insert("tokenizer.ggml.eos_token_id", id(2));
    meta.insert("tokenizer.ggml.add_bos_token", MetaValue::Bool(false));
    meta.insert("tokenizer.chat_template", MetaValue::String(TEMPLATE.into()));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn texts_are_distinct_and_every_merge_makes_a_token() {
        for size in [LEAST, 512, 70_000] {
            let (tokens, merges) = byte_level(size).unwrap();
            assert_eq!(tokens.len(), size);
            let set: BTreeSet<&String> = tokens.iter().collect();
            assert_eq!(set.len(), size);
            assert!(merges.iter().all(|m| set.contains(&m.replace(' ', ""))));
            assert_eq!(merges.len(), size - LEAST);
        }
        assert!(byte_level(LEAST - 1).is_none());
        assert!(!tokens_have_blanks());
    }

    fn tokens_have_blanks() -> bool {
        byte_chars().iter().any(|c| c.is_whitespace() || c.is_control())
    }

    #[test]
    fn any_text_survives_the_tokenizer() {
        let mut meta = Metadata::default();
        assert!(add_to(&mut meta, 2000));
        meta.insert("tokenizer.ggml.pre", MetaValue::String("gpt-2".into()));
        let tokenizer = crate::text::Tokenizer::from_gguf(&meta).unwrap();
        assert_eq!(tokenizer.vocab_size(), 2000);
    }
}
