//! Turns over a scripted engine: who makes room, for whom, and that nobody's tokens notice.

mod common;

use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::*;
use futures::future::join_all;
use sparkpipe::scheduler::{Config, Event, Failure, Finish};

const SOON: Duration = Duration::from_secs(5);

fn turns(slice: usize, paused: usize) -> Config {
    Config { slice, paused, ..config() }
}

#[tokio::test]
async fn a_short_request_is_answered_while_a_long_one_has_the_only_row() {
    let (scheduler, knobs) = start(Fake::hashing(limits(1)), turns(8, 4));
    knobs.step_ms.store(2, SeqCst);
    let handle = scheduler.handle();
    let long = tokio::spawn(finish(handle.submit(request("long", 200)).unwrap()));
    assert!(within(SOON, || knobs.steps.load(SeqCst) > 2).await);
    let (_, reason, usage) = finish(handle.submit(request("short", 5)).unwrap()).await.unwrap();
    assert_eq!((reason, usage.completion), (Finish::Length, 5));
    let ran = knobs.steps.load(SeqCst);
    assert!(ran < 100, "the short answer came after {ran} steps of 200");
    assert!(!long.is_finished());
    assert_eq!(long.await.unwrap().unwrap().2.completion, 200);
    assert_eq!((knobs.evictions.load(SeqCst), knobs.saved.load(SeqCst)), (1, 0), "one turn was enough");
    assert_eq!(handle.status().preemptions.load(SeqCst), 1);
}

#[tokio::test]
async fn without_turns_a_row_is_kept_to_its_end() {
    for config in [turns(0, 8), turns(8, 0)] {
        let (scheduler, knobs) = start(Fake::hashing(limits(1)), config);
        let handle = scheduler.handle();
        let all: Vec<_> = (0..4).map(|i| handle.submit(request(&i.to_string(), 60)).unwrap()).collect();
        assert!(join_all(all.into_iter().map(finish)).await.iter().all(Result::is_ok));
        assert_eq!(knobs.evictions.load(SeqCst), 0);
    }
}

#[tokio::test]
async fn tokens_do_not_depend_on_turns_rows_or_how_many_may_be_saved() {
    let prompts: Vec<String> = (0..14).map(|i| "ab".repeat(1 + i * 2) + &i.to_string()).collect();
    let mut alone = HashMap::new();
    let (scheduler, _) = start(Fake::hashing(limits(1)), turns(0, 0));
    for prompt in &prompts {
        let generation = scheduler.handle().submit(request(prompt, 40)).unwrap();
        alone.insert(prompt.clone(), finish(generation).await.unwrap().0);
    }
    for (rows, slice, paused) in [(1, 1, 20), (1, 3, 1), (2, 1, 2), (3, 7, 4), (5, 2, 64)] {
        let (scheduler, knobs) = start(Fake::hashing(limits(rows)), turns(slice, paused));
        let running: Vec<_> =
            prompts.iter().map(|p| scheduler.handle().submit(request(p, 40)).unwrap()).collect();
        let all = join_all(running.into_iter().map(finish)).await;
        for (prompt, answer) in prompts.iter().zip(all) {
            assert_eq!(answer.unwrap().0, alone[prompt], "{rows} rows, slice {slice}, {paused} paused");
        }
        assert!(knobs.evictions.load(SeqCst) > rows, "{rows} rows took turns");
        let most = knobs.most_saved.load(SeqCst);
        assert!(most <= paused + 1, "{most} saved at once, {paused} may wait");
        assert!(knobs.peak.load(SeqCst) <= rows);
        assert!(within(SOON, || knobs.saved.load(SeqCst) == 0).await);
    }
}

#[tokio::test]
async fn every_turn_is_at_least_a_slice_long_and_turns_go_round() {
    // All events fit unread: a row whose reader stalls would give its place away too.
    let roomy = Config { event_buffer: 128, ..turns(10, 8) };
    let (scheduler, knobs) = start(Fake::hashing(limits(1)), roomy);
    let handle = scheduler.handle();
    let all: Vec<_> = (0..4).map(|i| handle.submit(request(&i.to_string(), 100)).unwrap()).collect();
    let answers = join_all(all.into_iter().map(finish)).await;
    assert!(answers.iter().all(Result::is_ok));
    // 100 tokens are 10 turns of 10; the last one ends by itself, and the last row alone is never paused.
    let evictions = knobs.evictions.load(SeqCst);
    assert!((20..=36).contains(&evictions), "{evictions} turns given away");
}

#[tokio::test]
async fn a_paused_client_that_leaves_or_is_late_gives_its_saved_sequence_back() {
    let (scheduler, knobs) = start(Fake::hashing(limits(1)), turns(4, 4));
    knobs.step_ms.store(5, SeqCst);
    let handle = scheduler.handle();
    let first = handle.submit(request("first", 200)).unwrap();
    assert!(within(SOON, || knobs.steps.load(SeqCst) > 2).await);
    let mut late = request("late", 200);
    late.deadline = Duration::from_millis(400);
    let limit = late.deadline;
    let late = tokio::spawn(finish(handle.submit(late).unwrap()));
    assert!(within(SOON, || knobs.saved.load(SeqCst) == 1).await);
    drop(first);
    assert!(within(SOON, || knobs.resident.load(SeqCst) == 1 && knobs.saved.load(SeqCst) == 0).await);
    let third = tokio::spawn(finish(handle.submit(request("third", 200)).unwrap()));
    match late.await.unwrap().unwrap_err() {
        Failure::Deadline { stage, limit: held } => {
            assert!(["paused", "decoding"].contains(&stage), "{stage}");
            assert_eq!(held, limit);
        }
        other => panic!("{other}"),
    }
    third.abort();
    let full = || knobs.free_slots.load(SeqCst) == 1 && knobs.free_pages.load(SeqCst) == 16;
    assert!(within(SOON, || full() && knobs.saved.load(SeqCst) == 0 && handle.free_seats() == 65).await);
}

#[tokio::test]
async fn a_row_whose_reader_stalls_makes_room_at_once() {
    let narrow = Config { event_buffer: 2, reader_stall: Duration::from_secs(30), ..turns(1000, 2) };
    let (scheduler, knobs) = start(Fake::hashing(limits(1)), narrow);
    let handle = scheduler.handle();
    let mut unread = handle.submit(request("unread", 100)).unwrap();
    let status = handle.status();
    assert!(within(SOON, || status.sampled_tokens.load(SeqCst) >= 1).await);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let answer = finish(handle.submit(request("read", 20)).unwrap()).await.unwrap();
    assert_eq!(answer.2.completion, 20);
    assert_eq!(knobs.evictions.load(SeqCst), 1);
    // Read at last, it goes on to its end.
    assert!(matches!(unread.next().await, Some(Event::Delta(_))));
    assert_eq!(finish(unread).await.unwrap().2.completion, 100);
}

#[tokio::test]
async fn a_sequence_that_cannot_be_restored_fails_alone() {
    let (scheduler, knobs) = start(Fake::hashing(limits(1)), turns(4, 4));
    knobs.step_ms.store(2, SeqCst);
    let handle = scheduler.handle();
    let lost = tokio::spawn(finish(handle.submit(request("lost", 200)).unwrap()));
    assert!(within(SOON, || knobs.steps.load(SeqCst) > 6).await);
    knobs.fail_restore.store(true, SeqCst);
    let other = finish(handle.submit(request("other", 3)).unwrap()).await.unwrap();
    assert_eq!(other.2.completion, 3);
    let failure = lost.await.unwrap().unwrap_err();
    assert!(matches!(&failure, Failure::Refused(why) if why.contains("restoring")), "{failure}");
    knobs.fail_restore.store(false, SeqCst);
    assert!(finish(handle.submit(request("next", 3)).unwrap()).await.is_ok());
    assert!(within(SOON, || knobs.free_slots.load(SeqCst) == 1 && knobs.saved.load(SeqCst) == 0).await);
}

#[tokio::test]
async fn pages_that_run_short_are_shared_by_turns_too() {
    let mut pool = limits(4);
    // Two sequences of 100 tokens need 7 pages each: the second waits for pages, not for a row.
    pool.pages = 8;
    pool.max_context = 128;
    let (scheduler, knobs) = start(Fake::hashing(pool), turns(8, 4));
    let handle = scheduler.handle();
    let all: Vec<_> = (0..3).map(|i| handle.submit(request(&format!("p{i}"), 98)).unwrap()).collect();
    for answer in join_all(all.into_iter().map(finish)).await {
        assert_eq!(answer.unwrap().2.completion, 98);
    }
    assert!(knobs.evictions.load(SeqCst) > 2);
    // The last answer is complete before its pages are given back.
    assert!(within(SOON, || knobs.free_pages.load(SeqCst) == 8).await);
}

#[tokio::test]
async fn a_fatal_step_fails_those_that_are_paused_too() {
    let (scheduler, knobs) = start(Fake::hashing(limits(1)), turns(2, 4));
    knobs.step_ms.store(2, SeqCst);
    let handle = scheduler.handle();
    let all: Vec<_> = (0..3).map(|i| handle.submit(request(&i.to_string(), 200)).unwrap()).collect();
    assert!(within(SOON, || knobs.saved.load(SeqCst) >= 1).await);
    knobs.fail_step.store(true, SeqCst);
    for outcome in join_all(all.into_iter().map(finish)).await {
        assert_eq!(outcome.err(), Some(Failure::EngineDead("scripted device loss".into())));
    }
}
