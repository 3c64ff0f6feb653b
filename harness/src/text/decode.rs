//! Token bytes to text deltas. One idea: hold back exactly what cannot be decided yet, a partial character or the
//! possible beginning of a stop string, and nothing else.

use std::str::from_utf8;

/// Turns bytes, in pieces cut anywhere, into whole UTF-8. The concatenated deltas equal the lossy decoding of all bytes.
#[derive(Debug, Default)]
pub struct StreamDecoder {
    held: Vec<u8>,
}

impl StreamDecoder {
    /// An empty decoder.
    #[must_use]
    pub fn new() -> StreamDecoder {
        StreamDecoder::default()
    }

    /// Takes a token's bytes and returns the text that is certain now. At most three bytes stay held.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let (mut out, mut at) = (String::new(), 0);
        loop {
            match from_utf8(&self.held[at..]) {
                Ok(text) => {
                    out.push_str(text);
                    at = self.held.len();
                    break;
                }
                Err(e) => {
                    let valid = at + e.valid_up_to();
                    out.push_str(from_utf8(&self.held[at..valid]).expect("valid up to here"));
                    at = valid;
                    match e.error_len() {
                        Some(wrong) => {
                            out.push('\u{fffd}');
                            at += wrong;
                        }
                        None => break, // may still be completed
                    }
                }
            }
        }
        self.held.drain(..at);
        out
    }

    /// The end: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        rest
    }
}

/// What a [`StopMatcher`] lets through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Text that may be shown.
    pub text: String,
    /// The stop string that matched, by its index; nothing is released after it.
    pub stop: Option<usize>,
}

/// Looks for stop strings in text that arrives in pieces.
#[derive(Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// A matcher; empty stop strings are ignored.
    #[must_use]
    pub fn new(stops: &[String]) -> StopMatcher {
        StopMatcher { stops: stops.to_vec(), held: String::new(), stopped: false }
    }

    /// Takes a delta. The stop string that is complete first wins (the longest among those that end together), however the
    /// text is cut into deltas; its text is never released.
    pub fn push(&mut self, delta: &str) -> Released {
        if self.stopped {
            return Released::default();
        }
        for c in delta.chars() {
            self.held.push(c);
            let ended = self.stops.iter().enumerate();
            let ended = ended.filter(|(_, stop)| !stop.is_empty() && self.held.ends_with(stop.as_str()));
            if let Some((index, stop)) = ended.max_by_key(|(index, stop)| (stop.len(), usize::MAX - index)) {
                self.held.truncate(self.held.len() - stop.len());
                self.stopped = true;
                return Released { text: std::mem::take(&mut self.held), stop: Some(index) };
            }
        }
        let keep = self.undecided();
        let rest = self.held.split_off(self.held.len() - keep);
        Released { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Bytes at the end that could still become a stop string.
    fn undecided(&self) -> usize {
        let tail = |stop: &String| {
            let most = stop.len().saturating_sub(1).min(self.held.len());
            (1..=most).rev().find(|&n| stop.is_char_boundary(n) && self.held.ends_with(&stop[..n]))
        };
        self.stops.iter().filter_map(tail).max().unwrap_or(0)
    }

    /// The end of the text: what was withheld is released.
    pub fn finish(&mut self) -> String {
        if self.stopped { String::new() } else { std::mem::take(&mut self.held) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(pieces: &[&[u8]]) -> String {
        let mut decoder = StreamDecoder::new();
        let mut text: String = pieces.iter().map(|piece| decoder.push(piece)).collect();
        text += &decoder.finish();
        text
    }

    #[test]
    fn an_emoji_over_one_to_four_tokens_is_never_halved() {
        let emoji = "🦀".as_bytes();
        for cuts in 0..8u8 {
            let mut pieces: Vec<&[u8]> = Vec::new();
            let mut from = 0;
            for at in 1..4 {
                if cuts & (1 << (at - 1)) != 0 {
                    pieces.push(&emoji[from..at]);
                    from = at;
                }
            }
            pieces.push(&emoji[from..]);
            let mut decoder = StreamDecoder::new();
            let deltas: Vec<String> = pieces.iter().map(|piece| decoder.push(piece)).collect();
            assert!(deltas[..deltas.len() - 1].iter().all(String::is_empty));
            assert_eq!(deltas.concat(), "🦀");
            assert_eq!(decoder.finish(), "");
        }
    }

    #[test]
    fn truncated_at_the_end_and_lone_continuation_bytes_do_not_freeze_the_stream() {
        assert_eq!(stream(&[b"a", &[0xf0, 0x9f], &[0xa6]]), "a\u{fffd}");
        assert_eq!(stream(&[&[0x80], b"ok"]), "\u{fffd}ok");
        assert_eq!(stream(&[&[0xf0, 0x9f], b"x", "é".as_bytes()]), "\u{fffd}xé");
    }

    #[test]
    fn every_split_of_a_stop_string_into_tokens_emits_nothing_of_it() {
        let text = "DEFGHIJ";
        for stop in ["DEFGHIJ", "EFG", "J", "GHIJ"] {
            for cuts in 0..64u32 {
                let mut matcher = StopMatcher::new(&[stop.to_owned()]);
                let (mut seen, mut piece, mut stopped) = (String::new(), String::new(), false);
                for (at, c) in text.char_indices() {
                    piece.push(c);
                    if at == 6 || cuts & (1 << at) != 0 {
                        let released = matcher.push(&std::mem::take(&mut piece));
                        seen += &released.text;
                        stopped |= released.stop.is_some();
                    }
                }
                seen += &matcher.finish();
                assert!(stopped);
                assert_eq!(seen, text[..text.find(stop).unwrap()], "stop {stop}, cuts {cuts:06b}");
            }
        }
    }

    #[test]
    fn withheld_text_is_released_when_the_match_fails() {
        let mut matcher = StopMatcher::new(&["DEFX".to_owned(), "é!".to_owned()]);
        assert_eq!(matcher.push("abcDE").text, "abc");
        assert_eq!(matcher.push("F").text, "");
        assert_eq!(matcher.push("G").text, "DEFG");
        assert_eq!(matcher.push("é").text, "");
        assert_eq!(matcher.finish(), "é");
    }

    proptest! {
        #[test]
        fn concatenated_deltas_equal_the_full_lossy_decode(bytes in proptest::collection::vec(any::<u8>(), 0..64), cut in 1usize..7) {
            let pieces: Vec<&[u8]> = bytes.chunks(cut).collect();
            prop_assert_eq!(stream(&pieces), String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn the_matcher_equals_a_search_of_the_whole_text(text in "[abc]{0,24}", stop in "[abc]{1,4}", cut in 1usize..5) {
            let mut matcher = StopMatcher::new(std::slice::from_ref(&stop));
            let mut seen = String::new();
            for piece in text.as_bytes().chunks(cut) {
                seen += &matcher.push(from_utf8(piece).unwrap()).text;
            }
            seen += &matcher.finish();
            let expected = text.find(&stop).map_or(text.as_str(), |at| &text[..at]);
            prop_assert_eq!(seen, expected);
        }
    }
}
