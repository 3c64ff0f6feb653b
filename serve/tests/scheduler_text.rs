//! What leaves the scheduler as text, and who waits for whom.

mod common;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::*;
use sparkpipe::scheduler::{Config, Delta, Event, Failure, Finish, Generation, Request};

const SOON: Duration = Duration::from_secs(5);

async fn deltas(mut generation: Generation) -> (Vec<Delta>, Finish) {
    let mut all = Vec::new();
    loop {
        match generation.next().await.expect("an outcome") {
            Event::Delta(delta) => all.push(delta),
            Event::Done(finish, _) => return (all, finish),
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
}

/// Runs an answer of the given pieces (each one token) and returns its deltas.
async fn say(pieces: &[&[u8]], change: impl FnOnce(&mut Request)) -> (Vec<Delta>, Finish) {
    let tokens = (0..pieces.len() as u32).map(|i| PIECES + i).collect();
    let (scheduler, _) = start_text(Fake::saying(limits(1), tokens), ByteText::new(pieces), config());
    let mut asked = request("x", 60);
    change(&mut asked);
    deltas(scheduler.handle().submit(asked).expect("accepted")).await
}

/// Every way to cut `bytes` into tokens.
fn cuts(bytes: &[u8]) -> Vec<Vec<&[u8]>> {
    (0..1u32 << (bytes.len() - 1))
        .map(|mask| {
            let mut pieces = Vec::new();
            let mut from = 0;
            for at in 1..bytes.len() {
                if mask >> (at - 1) & 1 == 1 {
                    pieces.push(&bytes[from..at]);
                    from = at;
                }
            }
            pieces.push(&bytes[from..]);
            pieces
        })
        .collect()
}

fn joined(all: &[Delta]) -> String {
    all.iter().map(|delta| delta.text.as_str()).collect()
}

#[tokio::test]
async fn no_byte_of_a_stop_text_leaks_at_any_split_into_tokens() {
    for cut in cuts(b"DEFGHIJ") {
        let mut pieces = vec![b"abc".as_slice()];
        pieces.extend(&cut);
        pieces.push(b"never");
        let stop = |r: &mut Request| {
            r.stop = vec!["EFGHI".into()];
            r.logprobs = Some(0);
        };
        let (all, finish) = say(&pieces, stop).await;
        assert_eq!((joined(&all).as_str(), finish), ("abcD", Finish::Stop), "{cut:?}");
    }
}

#[tokio::test]
async fn text_withheld_for_a_stop_that_fails_to_come_is_released() {
    for cut in cuts(b"DEFGH!") {
        let (all, finish) = say(&cut, |r| r.stop = vec!["EFGHI".into(), "GH?".into()]).await;
        assert_eq!((joined(&all).as_str(), finish), ("DEFGH!", Finish::Stop), "{cut:?}");
    }
    // The answer's end releases what could still have become a stop.
    let (all, _) = say(&[b"ab", b"EFG"], |r| r.stop = vec!["EFGHI".into()]).await;
    assert_eq!(joined(&all), "abEFG");
    let (all, finish) = say(&[b"ab", b"EFG", b"x"], |r| {
        r.stop = vec!["EFGHI".into()];
        r.max_new_tokens = 2;
    })
    .await;
    assert_eq!((joined(&all).as_str(), finish), ("abEFG", Finish::Length));
}

#[tokio::test]
async fn an_emoji_over_any_number_of_tokens_is_never_split() {
    let text = "a\u{1f600}b";
    for cut in cuts(text.as_bytes()) {
        let (all, _) = say(&cut, |_| {}).await;
        assert_eq!(joined(&all), text, "{cut:?}");
        assert!(all.iter().all(|delta| !delta.text.contains('\u{fffd}')), "{cut:?}");
    }
}

#[tokio::test]
async fn broken_bytes_do_not_freeze_the_stream() {
    let whole = |pieces: &[&[u8]]| String::from_utf8_lossy(&pieces.concat()).into_owned();
    let cases: [&[&[u8]]; 3] =
        [&[b"ok", b"\x80", b"after"], &[b"ok", b"\xf0\x9f\x98"], &[b"\xf0\x9f", b"x", b"\xff"]];
    for pieces in cases {
        let (all, _) = say(pieces, |_| {}).await;
        assert_eq!(joined(&all), whole(pieces), "{pieces:?}");
    }
}

#[tokio::test]
async fn every_shown_token_has_one_logprob_and_stop_tokens_have_none() {
    let ask = |r: &mut Request| {
        r.logprobs = Some(20);
        r.stop = vec!["END".into()];
    };
    let (all, _) = say(&[b"one", b" two", b"E", b"N", b"D"], ask).await;
    let shown: Vec<u32> = all.iter().flat_map(|d| d.tokens.iter().map(|t| t.token - PIECES)).collect();
    assert_eq!(shown, [0, 1]);
    let token = &all[0].tokens[0];
    assert_eq!(token.logprob, 0.0, "the script leaves one token, so it is certain");
    assert_eq!(token.top.len(), 20);
    assert_eq!(token.top[1].1, -9999.0, "a masked token has a finite floor");
}

#[tokio::test]
async fn control_tokens_are_counted_but_never_shown() {
    let (scheduler, _) = start(Fake::saying(limits(1), vec![104, EOS + 1, 105]), config());
    let outcome = finish(scheduler.handle().submit(request("x", 9)).unwrap()).await.unwrap();
    assert_eq!(outcome.0, "hi");
    assert_eq!((outcome.1, outcome.2.completion), (Finish::Stop, 4));
}

#[tokio::test]
async fn a_row_without_any_possible_token_fails_alone() {
    let dead_end = |prompt: &[u32], i: usize| match (prompt[0], i) {
        (120, 3..) => vec![],
        _ => vec![(97, 0.0)],
    };
    let (scheduler, _) = start(Fake::new(limits(2), dead_end), config());
    let handle = scheduler.handle();
    let bad = handle.submit(request("x", 20)).unwrap();
    let good = handle.submit(request("y", 20)).unwrap();
    let (bad, good) = tokio::join!(finish(bad), finish(good));
    assert!(matches!(bad, Err(Failure::Sampling(_))), "{bad:?}");
    assert_eq!(good.unwrap().0, "a".repeat(20));
    assert!(handle.status().life().is_running());
}

#[tokio::test]
async fn a_long_prompt_delays_a_decoding_row_by_one_chunk_at_most() {
    // A row whose reader stalls pauses, and then chunks do follow each other: here all events fit unread.
    let roomy = Config { event_buffer: 256, ..config() };
    let (scheduler, knobs) = start(Fake::hashing(limits(4)), roomy);
    let handle = scheduler.handle();
    let mut decoding = handle.submit(request("d", 200)).unwrap();
    assert!(decoding.next().await.is_some());
    let decoding = tokio::spawn(finish(decoding));
    let long: Vec<_> = (0..3).map(|_| handle.submit(request(&"p".repeat(240), 2)).unwrap()).collect();
    for generation in long {
        finish(generation).await.unwrap();
    }
    decoding.await.unwrap().unwrap();
    assert!(knobs.chunks_between.load(SeqCst) <= 1);
}

#[tokio::test]
async fn short_prompts_pass_a_long_one_only_a_bounded_number_of_times() {
    let bounded = Config { max_bypass: 3, ..config() };
    let (scheduler, knobs) = start(Fake::hashing(limits(32)), bounded);
    knobs.prefill_ms.store(3, SeqCst);
    let handle = scheduler.handle();
    let hold = handle.submit(request("H", 2)).unwrap();
    let long = handle.submit(request(&"L".repeat(64), 2)).unwrap();
    let short: Vec<_> = (0..25).map(|_| handle.submit(request("s", 2)).unwrap()).collect();
    for generation in [hold, long].into_iter().chain(short) {
        finish(generation).await.unwrap();
    }
    let order = knobs.prefilled.lock().unwrap().clone();
    let passed = order.iter().take_while(|first| **first != u32::from(b'L')).count();
    // Four chunks, each passed at most three times, once passed it keeps its right of way; and `H`.
    assert!(passed <= 1 + 3, "{passed} prompts went before the long one");
}

#[tokio::test]
async fn a_large_request_is_not_starved_by_small_ones_behind_it() {
    let mut pool = limits(4);
    pool.pages = 16;
    let (scheduler, knobs) = start(Fake::hashing(pool), config());
    knobs.prefill_ms.store(2, SeqCst);
    let handle = scheduler.handle();
    let first = handle.submit(request("a", 100)).unwrap();
    let large = handle.submit(request(&"L".repeat(200), 50)).unwrap();
    let small: Vec<_> = (0..4).map(|_| handle.submit(request("s", 5)).unwrap()).collect();
    for generation in [first, large].into_iter().chain(small) {
        finish(generation).await.unwrap();
    }
    let order = knobs.prefilled.lock().unwrap().clone();
    assert_eq!(order[1], u32::from(b'L'), "first come, first admitted: {order:?}");
}

#[tokio::test]
async fn a_slow_reader_pauses_its_own_row_then_loses_it() {
    let stall = Duration::from_millis(200);
    let slow = Config { reader_stall: stall, event_buffer: 4, ..config() };
    let (scheduler, knobs) = start(Fake::hashing(limits(2)), slow);
    let handle = scheduler.handle();
    let unread = handle.submit(request("u", 200)).unwrap();
    let read = handle.submit(request("r", 200)).unwrap();
    assert_eq!(finish(read).await.unwrap().2.completion, 200, "the neighbour is not held up");
    assert!(within(SOON, || handle.status().failed.load(SeqCst) == 1).await);
    assert!(within(SOON, || knobs.free_slots.load(SeqCst) == 2).await);
    let outcome = finish(unread).await;
    assert!(matches!(outcome, Err(Failure::SlowReader { limit }) if limit == stall), "{outcome:?}");
}
