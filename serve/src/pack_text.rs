//! Tokenizer, chat template and stop tokens of a pack.
use crate::scheduler::{ChatMessage, TextModel};
use anyhow::{Context, Result, bail};
use harness::containers::Checkpoint;
use harness::pack::{GGUF_HEADER, Pack};
use harness::text::chat::encode_chat;
use harness::text::template::{ChatTemplate, Message};
use harness::text::tokenizer::Tokenizer;
use serde_json::{Map, Value};

/// The text side of a served model.
pub struct PackText {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    stops: Vec<u32>,
}

impl PackText {
    /// Reads the side files of `pack`.
    pub fn open(pack: &Pack) -> Result<Self> {
        let json = |name: &str| -> Result<Option<Value>> {
            pack.file(name)?.map(|b| serde_json::from_slice(&b).with_context(|| name.to_owned())).transpose()
        };
        let tokenizer = match (pack.file("tokenizer.json")?, pack.file(GGUF_HEADER)?) {
            (Some(bytes), _) => Tokenizer::from_tokenizer_json(&bytes)?,
            (None, Some(bytes)) => {
                let header = Checkpoint::from_bytes(bytes)?;
                Tokenizer::from_gguf(header.metadata().context("the GGUF header holds no metadata")?)?
            }
            (None, None) => bail!("pack {} holds no tokenizer", pack.path.display()),
        };
        tokenizer.check_vocabulary(pack.header.model.summary().vocab)?;
        let config = json("tokenizer_config.json")?;
        let from_config = config.as_ref().and_then(|c| c.get("chat_template")?.as_str());
        let file = pack.file("chat_template.jinja")?.map(String::from_utf8).transpose()?;
        let source = file.as_deref().or(from_config).or(tokenizer.chat_template());
        let template = source.map(ChatTemplate::new).transpose()?;
        let stops = stops(&tokenizer, json("generation_config.json")?.as_ref());
        Ok(Self { tokenizer, template, stops })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

/// Every end token that generation_config.json or the GGUF metadata names.
fn stops(tokenizer: &Tokenizer, generation: Option<&Value>) -> Vec<u32> {
    let ids = match generation.and_then(|g| g.get("eos_token_id")) {
        Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_u64).collect(),
        Some(id) => id.as_u64().into_iter().collect(),
        None => Vec::new(),
    };
    let mut stops: Vec<u32> = ids.into_iter().filter_map(|id| u32::try_from(id).ok()).collect();
    for id in tokenizer.eos().into_iter().chain(tokenizer.id_of("<|im_end|>")) {
        if !stops.contains(&id) {
            stops.push(id);
        }
    }
    stops
}

impl TextModel for PackText {
    fn chat(&self, messages: &[ChatMessage], extra: &Map<String, Value>) -> Result<Vec<u32>, String> {
        let Some(template) = &self.template else {
            return Err("this model has no chat template; use /v1/completions".into());
        };
        let messages: Vec<Message> = messages
            .iter()
            .map(|m| Message { role: m.role.clone(), content: m.content.clone(), extra: m.fields.clone() })
            .collect();
        encode_chat(&self.tokenizer, template, &messages, true, Some(extra)).map_err(|e| e.to_string())
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let mut ids: Vec<u32> = self.tokenizer.bos_to_add().into_iter().collect();
        ids.extend(self.tokenizer.encode(text, false).map_err(|e| e.to_string())?);
        Ok(ids)
    }

    fn token_bytes(&self, id: u32) -> &[u8] {
        self.tokenizer.token_bytes(id)
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }

    fn is_special(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }
}
