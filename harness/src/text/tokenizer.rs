//! The tokenizer: `tokenizer.json` or the vocabulary in GGUF metadata.
//!
//! One idea: two encoders over one vocabulary. The *parsing* one knows the added tokens; the *plain* one has never heard of
//! control tokens, so text that looks like one becomes ordinary pieces.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use thiserror::Error;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer as Inner};

use crate::containers::{ContainerError, Metadata};

/// Most token ids: 4 Mi. The largest known vocabulary is a sixteenth of it.
pub const VOCABULARY_LIMIT: usize = 4 << 20;

/// Why text and tokens cannot be turned into each other.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    /// The tokenizer's own description is unusable.
    #[error("tokenizer: {why}")]
    Parse {
        /// The parser's message.
        why: String,
    },
    /// A GGUF key is missing or has another type.
    #[error("tokenizer: {0}")]
    Metadata(#[from] ContainerError),
    /// A field has a value that is not supported.
    #[error("tokenizer: {field} is {value}; supported: {known}")]
    Unsupported {
        /// The field.
        field: &'static str,
        /// The value found.
        value: String,
        /// What is supported.
        known: String,
    },
    /// Text could not be encoded.
    #[error("encoding: {why}")]
    Encode {
        /// The encoder's message.
        why: String,
    },
    /// Tokenizer and model have different vocabularies.
    #[error("the tokenizer has ids up to {highest}, but the model has {rows} embedding rows")]
    Vocabulary {
        /// The tokenizer's highest id.
        highest: usize,
        /// Rows of the model's embedding.
        rows: usize,
    },
    /// The chat template refused.
    #[error(transparent)]
    Template(#[from] super::TemplateError),
}

fn parse(why: impl ToString) -> TextError {
    TextError::Parse { why: why.to_string() }
}

/// An encoder and the bytes of each token.
#[derive(Debug)]
pub struct Tokenizer {
    parsing: Inner,
    plain: Inner,
    bytes: Vec<u8>,
    ends: Vec<u32>,
    special: Vec<bool>,
    controls: Vec<(String, u32)>,
    bos: Option<u32>,
    eos: Option<u32>,
    template: Option<String>,
}

#[derive(Deserialize)]
struct PreTokenizer {
    split: String,
    nfc: bool,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub fn from_tokenizer_json(bytes: &[u8]) -> Result<Tokenizer, TextError> {
        Self::build(Inner::from_bytes(bytes).map_err(parse)?)
    }

    /// Builds the byte-level BPE that GGUF metadata describes (`tokenizer.ggml.model` = `gpt2`).
    pub fn from_gguf(meta: &Metadata) -> Result<Tokenizer, TextError> {
        let model = meta.str("tokenizer.ggml.model")?;
        if model != "gpt2" {
            let (value, known) = (model.to_owned(), "gpt2 (byte-level BPE)".to_owned());
            return Err(TextError::Unsupported { field: "tokenizer.ggml.model", value, known });
        }
        let table: BTreeMap<String, PreTokenizer> =
            serde_json::from_str(include_str!("../families/pretokenizers.json")).map_err(parse)?;
        let pre = meta.str("tokenizer.ggml.pre")?;
        let pre = table.get(pre).ok_or_else(|| TextError::Unsupported {
            field: "tokenizer.ggml.pre",
            value: pre.to_owned(),
            known: table.keys().cloned().collect::<Vec<_>>().join(", "),
        })?;
        let tokens = meta.strings("tokenizer.ggml.tokens")?;
        let mut inner = Inner::new(bpe(tokens, meta.strings("tokenizer.ggml.merges")?)?);
        if pre.nfc {
            inner.with_normalizer(Some(NFC)).map_err(parse)?;
        }
        let pattern = SplitPattern::Regex(pre.split.clone());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(parse)?;
        let steps = vec![PreTokenizerWrapper::Split(split), ByteLevel::new(false, true, false).into()];
        inner.with_pre_tokenizer(Some(Sequence::new(steps)));
        inner.with_decoder(Some(ByteLevel::default()));
        let kinds = meta.ints("tokenizer.ggml.token_type")?;
        if kinds.len() != tokens.len() {
            let known = format!("{}, one for each token", tokens.len());
            let value = format!("{} long", kinds.len());
            return Err(TextError::Unsupported { field: "tokenizer.ggml.token_type", value, known });
        }
        let added = |kind: i64| tokens.iter().zip(&kinds).filter(move |(_, k)| **k == kind).map(|(t, _)| t);
        let control = added(3).map(|t| AddedToken::from(t.as_str(), true).normalized(false));
        inner.add_special_tokens(control).map_err(parse)?;
        let defined = added(4).map(|t| AddedToken::from(t.as_str(), false).normalized(false));
        inner.add_tokens(defined).map_err(parse)?;
        let mut tokenizer = Self::build(inner)?;
        let id = |key: &str| if meta.has(key) { meta.u32(key).map(Some) } else { Ok(None) };
        tokenizer.eos = id("tokenizer.ggml.eos_token_id")?;
        let adds_bos = "tokenizer.ggml.add_bos_token";
        if meta.has(adds_bos) && meta.bool(adds_bos)? {
            tokenizer.bos = id("tokenizer.ggml.bos_token_id")?;
        }
        let key = "tokenizer.chat_template";
        tokenizer.template = if meta.has(key) { Some(meta.str(key)?.to_owned()) } else { None };
        Ok(tokenizer)
    }

    fn build(mut parsing: Inner) -> Result<Tokenizer, TextError> {
        // A `tokenizer.json` may ask for truncation or padding; a prompt is never cut or padded silently here.
        parsing.with_truncation(None).map_err(parse)?;
        parsing.with_padding(None);
        let vocabulary = parsing.get_vocab(true);
        let size = vocabulary.values().max().map_or(0, |&id| id as usize + 1);
        if size == 0 || size > VOCABULARY_LIMIT {
            let known = format!("1..={VOCABULARY_LIMIT}");
            return Err(TextError::Unsupported { field: "vocabulary", value: size.to_string(), known });
        }
        let added = parsing.get_added_tokens_decoder();
        let mut special = vec![false; size];
        let (mut controls, mut kept) = (Vec::new(), Vec::new());
        for (&id, token) in &added {
            special[id as usize] = token.special;
            if token.special || looks_like_a_tag(&token.content) {
                controls.push((token.content.clone(), id));
            } else {
                kept.push((id, token.clone()));
            }
        }
        controls.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
        kept.sort_by_key(|(id, _)| *id);
        let plain = plain_copy(&parsing, kept.into_iter().map(|(_, token)| token))?;
        let byte_level =
            format!("{:?}{:?}", parsing.get_pre_tokenizer(), parsing.get_decoder()).contains("ByteLevel");
        let mut texts: Vec<&str> = vec![""; size];
        vocabulary.iter().for_each(|(text, &id)| texts[id as usize] = text);
        let alphabet = byte_alphabet();
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(size));
        for (id, text) in texts.into_iter().enumerate() {
            if added.contains_key(&(id as u32)) {
                bytes.extend_from_slice(text.as_bytes());
            } else {
                push_bytes(&mut bytes, text, byte_level, &alphabet);
            }
            ends.push(u32::try_from(bytes.len()).map_err(parse)?);
        }
        Ok(Tokenizer { parsing, plain, bytes, ends, special, controls, bos: None, eos: None, template: None })
    }

    /// Text to ids. With `parse_special` the text of an added token becomes that token; without, control tokens are text.
    /// No begin-of-text token is added.
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TextError> {
        let inner = if parse_special { &self.parsing } else { &self.plain };
        let encoding = inner.encode_fast(text, false);
        Ok(encoding.map_err(|e| TextError::Encode { why: e.to_string() })?.get_ids().to_vec())
    }

    /// The raw bytes of a token (for an added token its text); empty for an id outside the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let at = id as usize;
        let Some(&end) = self.ends.get(at) else { return &[] };
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// All ids' bytes as text, with U+FFFD where they are no UTF-8.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Highest id plus one.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.ends.len()
    }

    /// Whether the id is a special (control) token: it ends or structures text and is not shown.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// The id of a token by its text.
    #[must_use]
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.parsing.token_to_id(text)
    }

    /// Texts that only a template may turn into tokens, longest first.
    #[must_use]
    pub fn controls(&self) -> &[(String, u32)] {
        &self.controls
    }

    /// The begin-of-text token that GGUF asks to put in front.
    #[must_use]
    pub fn bos_to_add(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-text token that GGUF names.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The chat template in GGUF metadata.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// Refuses a tokenizer that has ids beyond a model's embedding rows.
    pub fn check_vocabulary(&self, rows: usize) -> Result<(), TextError> {
        if self.vocab_size() > rows {
            return Err(TextError::Vocabulary { highest: self.vocab_size() - 1, rows });
        }
        Ok(())
    }
}

fn bpe(tokens: &[String], merges: &[String]) -> Result<BPE, TextError> {
    let vocabulary: HashMap<String, u32> = tokens.iter().cloned().zip(0u32..).collect();
    if vocabulary.len() != tokens.len() {
        let twice = tokens.len() - vocabulary.len();
        let (value, known) = (format!("{twice} repeated"), "each text once".to_owned());
        return Err(TextError::Unsupported { field: "tokenizer.ggml.tokens", value, known });
    }
    let mut pairs = Vec::with_capacity(merges.len());
    for merge in merges {
        let (left, right) = merge.split_once(' ').ok_or_else(|| TextError::Unsupported {
            field: "tokenizer.ggml.merges",
            value: format!("{merge:?}"),
            known: "two pieces with a blank between".into(),
        })?;
        pairs.push((left.to_owned(), right.to_owned()));
    }
    BPE::builder()
        .vocab_and_merges(vocabulary.into_iter().collect::<tokenizers::models::bpe::Vocab>(), pairs)
        .build()
        .map_err(parse)
}

/// `<think>`, `[INST]`, `<|x|>`: a token that marks structure even where it is not flagged as special.
fn looks_like_a_tag(text: &str) -> bool {
    (text.starts_with('<') && text.ends_with('>')) || (text.starts_with('[') && text.ends_with(']'))
}

fn plain_copy(full: &Inner, kept: impl Iterator<Item = AddedToken>) -> Result<Inner, TextError> {
    let mut plain = Inner::new(full.get_model().clone());
    plain.with_normalizer(full.get_normalizer().cloned()).map_err(parse)?;
    plain.with_pre_tokenizer(full.get_pre_tokenizer().cloned());
    plain.with_decoder(full.get_decoder().cloned());
    plain.add_tokens(kept).map_err(parse)?;
    Ok(plain)
}

/// The byte-level alphabet: printable Latin-1 bytes stand for themselves, the other 68 for U+0100 onwards.
fn byte_alphabet() -> HashMap<char, u8> {
    let mut next = 0x100u32;
    let mut map = HashMap::with_capacity(256);
    for byte in 0..=255u8 {
        let itself = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let code = if itself { u32::from(byte) } else { next };
        next += u32::from(!itself);
        map.insert(char::from_u32(code).expect("below the surrogates"), byte);
    }
    map
}

fn push_bytes(out: &mut Vec<u8>, text: &str, byte_level: bool, alphabet: &HashMap<char, u8>) {
    if byte_level {
        match text.chars().map(|c| alphabet.get(&c).copied()).collect::<Option<Vec<u8>>>() {
            Some(bytes) => out.extend(bytes),
            None => out.extend_from_slice(text.as_bytes()), // not of the alphabet: stands for itself
        }
        return;
    }
    let hex = text.strip_prefix("<0x").and_then(|t| t.strip_suffix('>')).filter(|t| t.len() == 2);
    match hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
        Some(byte) => out.push(byte),
        None => out.extend(text.replace('\u{2581}', " ").bytes()),
    }
}
